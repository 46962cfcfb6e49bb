//! Administrative operations on all locks: reset, backup, and restoring a new cluster from a
//! backup.

use serde_json::{Value, json};
use std::fs;
use std::process::Command;
use testing::{Scratch, Server, run_latchfs};

fn acquire(server: &Server, name: &str, client: &str) -> u64 {
    let path = format!("/locks/{name}?client={client}&ttl=1h");
    server.curl(&["-X", "POST", &path]).is(200)["token"].as_u64().expect("a token")
}

#[test]
fn reset_ends_leases_and_waits_of_all_other_clients() {
    let server = Server::with_socket(&[]);
    for (name, client) in [("one", "gone"), ("two", "gone:ann"), ("three", "here")] {
        acquire(&server, name, client);
    }
    let dead = server.open(&["-X", "POST", "/locks/one?client=dead&wait=60s"]);
    server.in_line("one", 1);
    let next = server.open(&["-X", "POST", "/locks/one?client=here:bob&wait=60s"]);
    server.in_line("one", 2);
    let mut events = server.events(&["/events"]);
    let (code, said) = run_latchfs(&[
        "cluster",
        "reset",
        "--keep",
        "here,other",
        "--reason",
        "they have left",
        "--client",
        "admin",
        "--server",
        &server.socket(),
    ]);
    assert_eq!((code, said.as_str()), (Some(0), "ended 2 holds and 1 waits\n"));
    assert_eq!(events.until("left").data["why"], "reset");
    let stolen = events.until("stolen").data;
    assert_eq!((&stolen["by"], &stolen["reason"]), (&json!("admin"), &json!("they have left")));
    // The reset, which takes locks and queue places from all clients but the listed ones, has
    // removed the first waiter from the queue. The second waiter stays in it, and gets the lock one
    // second later: for that time no client can be granted a lock that was taken from its holder.
    dead.reply().is(409);
    assert_eq!(next.reply().is(200)["holder"], "here:bob");
    assert_eq!(server.curl(&["/locks/three"]).is(200)["holder"], "here");
    let answer = server.reset("client=admin&reason=x&of=here").is(200);
    assert_eq!(answer, json!({ "holds": 2, "waits": 0 }));
    let answer = server.reset("client=admin&reason=x&all=true").is(200);
    assert_eq!(answer["holds"], 0, "{answer}");
    for wrong in ["", "&all=true&of=a", "&keep=a&of=b"] {
        server.reset(&format!("client=admin&reason=x{wrong}")).is(400);
    }
    server.reset("client=admin&all=true").is(400);
    let (code, said) = run_latchfs(&["cluster", "reset", "--reason", "x", "--server", &server.url]);
    assert_eq!(code, Some(64), "{said}");
}

/// At its port a server without credentials lets nobody reset locks, by any kind of request. At its
/// Unix socket it lets root and its own user, and no other user of the machine.
#[test]
fn a_server_without_credentials_resets_at_its_socket_alone() {
    let server = Server::with_socket(&[]);
    acquire(&server, "build", "a");
    let refused = server.curl(&["-X", "POST", "/reset?client=b&reason=x&all=true"]).is(403);
    let names_the_remedy =
        |said: &str| said.contains("--server unix:PATH") && said.contains("--tokens");
    assert!(names_the_remedy(refused["detail"].as_str().unwrap_or_default()), "{refused}");
    let reset = ["cluster", "reset", "--all", "--reason", "x", "--server"];
    let (code, said) = run_latchfs(&[&reset[..], &[&server.url]].concat());
    assert!(code == Some(77) && names_the_remedy(&said), "{code:?} {said}");
    let socket = server.socket();
    let as_other = |method: &str, path: &str| {
        let user = ["--reuid=4242", "--regid=4242", "--clear-groups", "curl", "-sS", "-X", method];
        let path = format!("http://localhost{path}");
        let at = ["-w", "%{http_code}", "--unix-socket", &socket["unix:".len()..], &path];
        let output = Command::new("setpriv").args(user).args(at).output().expect("they are there");
        String::from_utf8(output.stdout).expect("text")
    };
    let refused = as_other("POST", "/reset?client=b&reason=x&all=true");
    assert!(refused.ends_with("403") && names_the_remedy(&refused), "{refused}");
    assert!(as_other("POST", "/locks/other?client=b").ends_with("200"), "as at the port");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["holder"], "a", "nothing was reset");
    let (code, said) = run_latchfs(&[&reset[..], &[&socket]].concat());
    assert_eq!((code, said.as_str()), (Some(0), "ended 2 holds and 0 waits\n"));
    // Other commands reach the server by its socket as well.
    let (code, said) = run_latchfs(&["acquire", "fresh", "--client", "c", "--server", &socket]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run_latchfs(&["ls", "--server", &socket]);
    assert!(code == Some(0) && said.contains("fresh"), "{said}");
}

#[test]
fn reset_and_backup_need_the_right_to_steal() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    let entry = |name: &str, more: &str| {
        format!(
            "[[token]]\nname = '{name}'\nsecret = 'the secret of {name}'\nclients = ['*']\n{more}\n"
        )
    };
    let text = entry("plain", "")
        + &entry("part", "steal = true\nlocks = [\"a\"]")
        + &entry("admin", "steal = true");
    fs::write(&path, text).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let server = Server::start(&["--tokens", &path.display().to_string()]);
    for (who, code) in [("plain", 403), ("part", 403), ("admin", 200)] {
        let bearer = format!("Authorization: Bearer the secret of {who}");
        let reset = "/reset?client=x&reason=x&all=true";
        server.curl(&["-H", &bearer, "-X", "POST", reset]).is(code);
        let token = scratch.path().join("token");
        fs::write(&token, format!("the secret of {who}")).expect("a fresh directory");
        let file = scratch.path().join(who).display().to_string();
        let (exit, said) = run_latchfs(&[
            "cluster",
            "backup",
            &file,
            "--server",
            &server.url,
            "--token-file",
            &token.display().to_string(),
        ]);
        assert_eq!(exit == Some(0), code == 200, "{said}");
        assert_eq!(fs::exists(&file).expect("readable"), code == 200);
    }
}

#[test]
fn backup_is_restored_as_a_new_cluster() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (old, new, file) = (path("old"), path("new"), path("backup"));
    let server = Server::listen(&["--data", &old]);
    let last = acquire(&server, "build", "a");
    let (code, said) = run_latchfs(&["cluster", "backup", &file, "--server", &server.url]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(": 1 locks, 0 waiters, 0 sessions"), "{said}");
    drop(server);
    let restore = |more: &[&str]| {
        run_latchfs(&[&["cluster", "restore", &file, "--data", &new], more].concat())
    };
    let (code, said) = restore(&["--hold-off", "48h"]);
    assert_eq!(code, Some(64), "{said}");
    let (code, said) = restore(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing is granted") && said.contains("24h"), "{said}");
    for option in ["--hold-off DURATION", "--old-holders-are-gone", "cluster grant-now"] {
        assert!(said.contains(option), "{option}: {said}");
    }
    assert!(said.contains("the longest ttl in the backup is 1h"), "{said}");
    let (code, said) = restore(&["--old-holders-are-gone"]);
    assert_eq!(code, Some(69), "there is something now: {said}");
    let server = Server::listen(&["--data", &new]);
    assert_eq!(server.curl(&["/locks/build"]).is(200)["phase"], "free");
    let no = server.curl(&["-X", "POST", "/locks/build?client=b"]).is(409);
    assert_eq!(no["reason"], "hold_off", "{no}");
    assert!(no["retry_after_ms"].as_u64() > Some(86_000_000), "{no}");
    let ready = server.curl(&["/readyz"]).is(503);
    assert_eq!(ready["because"], "restored", "{ready}");
    let (_, said) = run_latchfs(&["cluster", "status", "--server", &server.url]);
    assert!(said.contains("nothing is granted before") && said.contains("grant-now"), "{said}");
    // The hold-off is over also after a restart.
    let (code, said) =
        run_latchfs(&["cluster", "grant-now", "--reason", "all are off", "--server", &server.url]);
    assert_eq!(code, Some(0), "{said}");
    drop(server);
    let server = Server::listen(&["--data", &new]);
    server.curl(&["/readyz"]).is(200);
    assert!(acquire(&server, "build", "b") > last + (1 << 39));
    let audit = fs::read_to_string(format!("{new}/audit.log")).expect("it is written");
    let lines = audit.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let act = lines.iter().find(|line| line["operation"] == "grant-now").expect("it is recorded");
    assert_eq!(act["reason"], "all are off", "{act}");
    assert!(lines.iter().any(|line| line["operation"] == "end a hold-off"), "{audit}");
    drop(server);
    let repeated = path("again");
    let (code, said) =
        run_latchfs(&["cluster", "restore", &file, "--data", &repeated, "--old-holders-are-gone"]);
    assert_eq!(code, Some(0), "{said}");
    let server = Server::listen(&["--data", &repeated]);
    assert!(acquire(&server, "build", "b") > last + (1 << 39));
}

#[test]
fn damaged_backup_is_refused_and_leaves_no_data() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let server = Server::start(&[]);
    acquire(&server, "build", "a");
    let file = path("backup");
    let (code, said) = run_latchfs(&["cluster", "backup", &file, "--server", &server.url]);
    assert_eq!(code, Some(0), "{said}");
    let good = fs::read(&file).expect("it was written");
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    for (bytes, says) in [
        (good[..good.len() - 1].to_vec(), "cut off"),
        (changed(good.len() - 1), "damaged"),
        (changed(40), "damaged"),
        (b"something else".to_vec(), "not a backup"),
    ] {
        fs::write(&file, bytes).expect("it is ours");
        let (code, said) = run_latchfs(&["cluster", "restore", &file, "--data", &path("data")]);
        assert_eq!(code, Some(69), "{said}");
        assert!(said.contains(says), "{said}");
        assert!(!fs::exists(path("data")).expect("readable"));
    }
}
