//! Handovers: what the server remembers of the name of a lock beyond the tenure, over HTTP and by
//! the command line, after a crash and after a restore from a backup.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use testing::{Scratch, Server, run_latchfs};

fn acquire(server: &Server, client: &str) -> Value {
    let path = format!("/locks/folder?client={client}&ttl=1h&remember=true");
    server.curl(&["-X", "POST", &path]).is(200)
}

fn hand_over(server: &Server, granted: &Value, text: &str, counter: u64, code: u16) -> Value {
    let (client, token) = (granted["holder"].as_str().expect("a client"), &granted["token"]);
    let path = format!("/locks/folder/previous?client={client}&token={token}&counter={counter}");
    server.curl(&["-X", "PATCH", &format!("{path}&handover={text}")]).is(code)
}

fn previous(server: &Server) -> Value {
    server.curl(&["/locks/folder/previous"]).is(200)["previous"].clone()
}

#[test]
fn every_answer_about_a_remembered_name_tells_the_last_handover() {
    let server = Server::start(&[]);
    assert_eq!(server.curl(&["/locks/folder/previous"]).is(200), json!({ "name": "folder" }));
    let first = acquire(&server, "a");
    assert_eq!(first["previous"], json!({ "seq": 1 }));
    let said = json!({ "name": "folder", "handover": "dirty", "counter": 2 });
    assert_eq!(hand_over(&server, &first, "dirty", 2, 200), said);
    let late = hand_over(&server, &first, "clean", 2, 412);
    assert_eq!(late["kind"], "E_FENCING_MISMATCH", "{late}");
    let handover_of = |previous: &Value| {
        let part = |key: &str| previous[key].clone();
        json!([part("seq"), part("token"), part("client"), part("end"), part("handover")])
    };
    let own = |end| json!([1, first["token"], "a", end, "dirty"]);
    let refused = server.curl(&["-X", "POST", "/locks/folder?client=b"]).is(409);
    assert_eq!(handover_of(&refused["previous"]), own("open"), "{refused}");
    let status = server.curl(&["/locks/folder"]).is(200);
    assert_eq!(handover_of(&status["previous"]), own("open"), "{status}");
    let waiter = server.open(&["-X", "POST", "/locks/folder?client=b&wait=60s"]);
    server.in_line("folder", 1);
    server.curl(&["-X", "DELETE", "/locks/folder?client=a"]).is(200);
    let second = waiter.reply().is(200);
    assert_eq!(
        handover_of(&second["previous"]),
        json!([2, first["token"], "a", "released", "dirty"])
    );
    let path = format!("/locks/folder?client=b&token={}", second["token"]);
    server.curl(&["-X", "DELETE", &format!("{path}&handover=clean")]).is(400);
    server.curl(&["-X", "DELETE", "/locks/folder?client=b&handover=clean&counter=1"]).is(400);
    server.curl(&["-X", "DELETE", &format!("{path}&handover=clean&counter=1")]).is(200);
    assert_eq!(
        handover_of(&previous(&server)),
        json!([2, second["token"], "b", "released", "clean"])
    );
    let third = acquire(&server, "c");
    assert_eq!(
        handover_of(&third["previous"]),
        json!([3, second["token"], "b", "released", "clean"])
    );
}

#[test]
fn a_handover_of_a_name_that_is_not_remembered_is_refused() {
    let server = Server::start(&[]);
    let granted = server.curl(&["-X", "POST", "/locks/folder?client=a"]).is(200);
    assert_eq!(granted.get("previous"), None, "{granted}");
    let refused = hand_over(&server, &granted, "clean", 1, 400);
    assert!(refused["detail"].as_str().is_some_and(|why| why.contains("remember")), "{refused}");
    let long = "x".repeat(257);
    let refused = hand_over(&server, &granted, &long, 1, 400);
    assert!(refused["detail"].as_str().is_some_and(|why| why.contains("256 bytes")), "{refused}");
    let path = format!("/locks/folder?client=a&token={}&remember=true", granted["token"]);
    server.curl(&["-X", "POST", &path]).is(400);
    assert_eq!(acquire_again(&server)["previous"]["seq"], 0, "it is remembered from now on");
    hand_over(&server, &granted, "clean", 1, 200);
}

fn acquire_again(server: &Server) -> Value {
    let path = "/locks/folder?client=a&reentrant=true&remember=true";
    server.curl(&["-X", "POST", path]).is(200)
}

/// The path of a lock whose name ends like that of what is remembered is written with `%2F`.
#[test]
fn a_lock_may_be_called_previous() {
    let server = Server::start(&[]);
    for method in ["POST", "PUT"] {
        server.curl(&["-X", method, "/locks/a/previous?client=a"]).is(405);
    }
    server.curl(&["-X", "POST", "/locks/a%2Fprevious?client=a"]).is(200);
    assert_eq!(server.curl(&["/locks/a%2Fprevious"]).is(200)["holder"], "a");
    let stolen = "/locks/a/previous/steal?client=b&reason=why";
    assert_eq!(server.curl(&["-X", "POST", stolen]).is(200)["name"], "a/previous");
}

#[test]
fn an_administrator_has_a_name_forgotten() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    let entry = |name: &str, more: &str| {
        format!(
            "[[token]]\nname = '{name}'\nsecret = 'the secret of {name}'\nclients = ['*']\n{more}\n"
        )
    };
    fs::write(&path, entry("plain", "") + &entry("admin", "steal = true")).expect("a directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let data = scratch.path().join("data");
    let (tokens, data_arg) = (path.display().to_string(), data.display().to_string());
    let server = Server::listen(&["--tokens", &tokens, "--data", &data_arg]);
    let ask = |who: &str, method: &str, path: &str, code: u16| {
        let bearer = format!("Authorization: Bearer the secret of {who}");
        server.curl(&["-H", &bearer, "-X", method, path]).is(code)
    };
    ask("plain", "POST", "/locks/folder?client=a&remember=true", 200);
    ask("plain", "DELETE", "/locks/folder/previous?client=a", 403);
    let held = ask("admin", "DELETE", "/locks/folder/previous?client=root", 409);
    assert_eq!(held["holder"], "a", "{held}");
    ask("plain", "DELETE", "/locks/folder?client=a", 200);
    ask("admin", "DELETE", "/locks/folder/previous?client=root", 200);
    assert_eq!(ask("plain", "GET", "/locks/folder/previous", 200), json!({ "name": "folder" }));
    let log = fs::read_to_string(data.join("audit.log")).expect("it is written");
    assert!(log.contains("\"operation\":\"forget a remembered name\""), "{log}");
    assert!(log.contains("\"actor\":\"admin\"") && log.contains("\"name\":\"folder\""), "{log}");
}

/// A handover is on disk before it is answered: the server is killed right after the answer.
#[test]
fn a_handover_survives_a_crash() {
    let starts: [fn(&Path) -> Server; 2] = [Server::of_own_locks, Server::of_data];
    for start in starts {
        let scratch = Scratch::new();
        let dir = scratch.join("dir");
        let mut server = start(&dir);
        let granted = acquire(&server, "a");
        hand_over(&server, &granted, "dirty", 1, 200);
        server.signal(9);
        server.wait();
        let server = start(&dir);
        let known = previous(&server);
        assert_eq!((&known["handover"], &known["end"]), (&json!("dirty"), &json!("open")));
        assert_eq!(known["token"], granted["token"]);
        server.curl(&["-X", "DELETE", "/locks/folder?client=a"]).is(200);
        assert_eq!(previous(&server)["end"], "released");
    }
}

#[test]
fn after_a_restore_it_is_unknown_how_a_tenure_ended() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (old, new, file) = (path("old"), path("new"), path("backup"));
    let server = Server::listen(&["--data", &old]);
    let granted = acquire(&server, "a");
    hand_over(&server, &granted, "clean", 1, 200);
    server.curl(&["-X", "DELETE", "/locks/folder?client=a"]).is(200);
    let (code, said) = run_latchfs(&["cluster", "backup", &file, "--server", &server.url]);
    assert_eq!(code, Some(0), "{said}");
    drop(server);
    let (code, said) =
        run_latchfs(&["cluster", "restore", &file, "--data", &new, "--old-holders-are-gone"]);
    assert_eq!(code, Some(0), "{said}");
    for _ in 0..2 {
        let server = Server::listen(&["--data", &new]);
        let known = previous(&server);
        let wanted = json!({
            "seq": 1, "token": granted["token"], "client": "a", "at": null, "end": "unknown",
            "handover": "clean", "counter": 1,
        });
        assert_eq!(known, wanted);
    }
    let server = Server::listen(&["--data", &new]);
    assert_eq!(acquire(&server, "b")["previous"]["end"], "unknown");
}

#[test]
fn the_command_line_sets_and_shows_a_handover() {
    let server = Server::start(&[]);
    let run = |args: &[&str]| {
        let (code, said) =
            run_latchfs(&[args, &["--server", &server.url, "--client", "a"]].concat());
        assert_eq!(code, Some(0), "{args:?}: {said}");
        said
    };
    run(&["acquire", "folder", "--remember"]);
    run(&["release", "folder", "--handover", "clean 7"]);
    let page = run(&["status", "folder"]);
    assert!(page.contains("previous  clean 7, of a, token "), "{page}");
    assert!(page.contains(", released, set "), "{page}");
    let status: Value = serde_json::from_str(&run(&["status", "folder", "--json"])).expect("JSON");
    assert_eq!(status["previous"]["handover"], "clean 7", "{status}");
    // A second handover of a tenure is numbered behind the first one.
    let granted = acquire(&server, "a");
    hand_over(&server, &granted, "dirty", 5, 200);
    run(&["release", "folder", "--any", "--handover", "clean 8"]);
    let known = previous(&server);
    assert_eq!((&known["counter"], &known["handover"]), (&json!(6), &json!("clean 8")));
}
