//! Authorization over HTTP: bearer tokens, their permissions, and reloading of the token file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use testing::{Scratch, Server, eventually, run_latchfs};

const TOKENS: &str = r#"
[[token]]
name = "laptop1"
secret = "the secret of laptop1"
clients = ["laptop1", "laptop1:*"]
locks = ["team/"]

[[token]]
name = "admin"
secret = "the secret of admin"
clients = ["*"]
steal = true
"#;

const LAPTOP: &str = "Authorization: Bearer the secret of laptop1";
const ADMIN: &str = "Authorization: bearer the secret of admin";

fn tokens(dir: &Path, text: &str, mode: u32) -> PathBuf {
    let path = dir.join("tokens.toml");
    fs::write(&path, text).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    path
}

fn start(scratch: &Scratch) -> (Server, PathBuf) {
    let path = tokens(scratch.path(), TOKENS, 0o600);
    (Server::start(&["--tokens", &path.display().to_string()]), path)
}

#[test]
fn remembered_names_of_others_are_not_listed() {
    let scratch = Scratch::new();
    let (server, _) = start(&scratch);
    for name in ["team/folder", "other/folder"] {
        let path = format!("/locks/{name}?client=boss&remember=true");
        server.curl(&["-H", ADMIN, "-X", "POST", &path]).is(200);
        server.curl(&["-H", ADMIN, "-X", "DELETE", &path.replace("&remember=true", "")]).is(200);
    }
    server.curl(&["/locks?remembered=true"]).is(401);
    for (who, count) in [(LAPTOP, 1), (ADMIN, 2)] {
        for more in ["", "&consistency=stale"] {
            let listed =
                server.curl(&["-H", who, &format!("/locks?remembered=true{more}")]).is(200);
            let names = listed["locks"].as_array().expect("a list");
            assert_eq!(names.len(), count, "{listed}");
            assert_eq!(names[count - 1]["name"], "team/folder");
        }
    }
}

/// A command whose credentials are rejected names the option by which other credentials are given.
#[test]
fn command_with_rejected_credentials_names_the_option() {
    let scratch = Scratch::new();
    let (server, _) = start(&scratch);
    let (ended, said) = run_latchfs(&["ls", "--server", &server.url]);
    assert_eq!(ended, Some(77), "{said}");
    assert!(said.contains("pass valid credentials with --token-file"), "{said}");
    assert!(!said.contains("can be reached"), "{said}");
    let acquire = ["acquire", "team/x", "--client", "other", "--server", &server.url];
    let secret = scratch.path().join("secret");
    fs::write(&secret, "the secret of laptop1").expect("a fresh directory");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let token = ["--token-file", &secret.display().to_string()];
    let (ended, said) = run_latchfs(&[&acquire[..], &token].concat());
    assert_eq!(ended, Some(77), "{said}");
}

/// A token for one client needs no --client.
#[test]
fn command_acts_as_the_only_client_of_its_token() {
    let scratch = Scratch::new();
    let text = r#"
        token = [
            { name = "ci", secret = "the secret of the ci", clients = ["ci"] },
            { name = "two", secret = "the secret of two", clients = ["a", "b"] },
        ]"#;
    let path = tokens(scratch.path(), text, 0o600);
    let server = Server::start(&["--tokens", &path.display().to_string()]);
    let as_token = |secret: &str, words: &[&str]| {
        let file = scratch.path().join("secret");
        fs::write(&file, secret).expect("a fresh directory");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let file = file.display().to_string();
        run_latchfs(&[words, &["--server", &server.url, "--token-file", &file]].concat())
    };
    let (code, said) = as_token("the secret of the ci", &["acquire", "build"]);
    assert_eq!(code, Some(0), "{said}");
    let (_, status) = as_token("the secret of the ci", &["who", "build"]);
    assert!(status.contains("build: held by ci,"), "{status}");
    let (code, said) = as_token("the secret of two", &["acquire", "other"]);
    assert_eq!(code, Some(77), "{said}");
    assert!(said.contains("--client"), "{said}");
}

#[test]
fn only_health_and_document_are_served_without_a_token() {
    let scratch = Scratch::new();
    let (server, _) = start(&scratch);
    for path in ["/lock", "/locks", "/locks/a", "/events", "/metrics", "/history", "/sessions/7"] {
        let reply = server.curl(&[path]);
        assert_eq!(reply.is(401)["kind"], "E_DENIED", "{path}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer realm=\"latchfs\""));
        server.curl(&["-H", "Authorization: Bearer wrong", path]).is(401);
        server.curl(&["-H", "Authorization: Basic eDp5", path]).is(401);
    }
    server.curl(&["-X", "POST", "/locks/a?client=x"]).is(401);
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        server.curl(&[path]).is(200);
    }
}

#[test]
fn token_is_limited_to_its_clients_and_locks() {
    let scratch = Scratch::new();
    let (server, _) = start(&scratch);
    let laptop = |method: &str, path: &str| server.curl(&["-H", LAPTOP, "-X", method, path]);
    let admin = |method: &str, path: &str| server.curl(&["-H", ADMIN, "-X", method, path]);
    // The request may omit the client, because the bearer token names only one client exactly.
    assert_eq!(laptop("POST", "/locks/team/a").is(200)["holder"], "laptop1");
    laptop("POST", "/locks/team/b?client=laptop1:alice").is(200);
    let denied = laptop("POST", "/locks/team/c?client=laptop2").is(403);
    assert_eq!(denied["kind"], "E_DENIED");
    assert_eq!(laptop("POST", "/locks/other?client=laptop1").is(403)["kind"], "E_DENIED");
    laptop("GET", "/locks/other").is(403);
    laptop("POST", "/lock?client=laptop1").is(403);
    laptop("DELETE", "/locks/team/a?client=admin").is(403);
    laptop("POST", "/locks/team/a/steal?client=laptop1&reason=x").is(403);
    laptop("POST", "/check?name=other&token=1").is(403);
    laptop("GET", "/metrics").is(403);
    admin("POST", "/locks/other?client=x").is(200);
    admin("POST", "/locks/team/a/steal?client=x&reason=x").is(200);
    // Pages and event streams contain only the locks that the bearer token may see.
    let page = laptop("GET", "/locks").is(200);
    assert_eq!(page["locks"].as_array().map(Vec::len), Some(2));
    let page = admin("GET", "/locks").is(200);
    assert_eq!(page["locks"].as_array().map(Vec::len), Some(3));
    let mut events = server.events(&["-H", LAPTOP, "/events"]);
    admin("POST", "/locks/hidden?client=x").is(200);
    laptop("POST", "/locks/team/seen").is(200);
    assert_eq!(events.event().data["name"], "team/seen");
}

/// A listing contains the locks that the bearer token may see, page by page; page boundaries reveal
/// nothing about hidden locks.
#[test]
fn pages_are_made_of_visible_locks_only() {
    let scratch = Scratch::new();
    let parts = TOKENS.replace("[\"team/\"]", "[\"b\", \"team/x/\", \"team/x/y\", \"z\"]");
    let path = tokens(scratch.path(), &parts, 0o600).display().to_string();
    let server = Server::start(&["--tokens", &path]);
    let held =
        ["a", "b", "b/c", "bc", "c", "team", "team/w", "team/x", "team/x/1", "team/x/y/2", "y"];
    for name in held {
        server.curl(&["-H", ADMIN, "-X", "POST", &format!("/locks/{name}?client=x")]).is(200);
    }
    let page = |query: &str| {
        let page = server.curl(&["-H", LAPTOP, &format!("/locks?{query}")]).is(200);
        let locks = page["locks"].as_array().expect("a list").iter();
        let names = locks.map(|lock| lock["name"].as_str().expect("a name").to_owned());
        (names.collect::<Vec<_>>(), page["next"].as_str().map(str::to_owned))
    };
    let visible = ["b", "b/c", "bc", "team/x/1", "team/x/y/2"];
    assert_eq!(page(""), (visible.map(str::to_owned).to_vec(), None));
    for limit in 1..=3 {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let (names, next) = page(&format!("limit={limit}{after}"));
            assert!(names.len() <= limit);
            all.extend(names);
            let Some(next) = next else { break };
            assert_eq!(all.last(), Some(&next));
            after = format!("&after={next}");
        }
        assert_eq!(all, visible);
    }
    assert_eq!(page("prefix=team"), page("prefix=team/x/"));
    assert_eq!(page("prefix=a"), (vec![], None));
    assert_eq!(page("after=c&limit=1"), (vec!["team/x/1".to_owned()], Some("team/x/1".to_owned())));
}

/// A client that knows the id of another client's session gets no access to the session.
#[test]
fn session_of_another_client_is_inaccessible() {
    let scratch = Scratch::new();
    let (server, _) = start(&scratch);
    let laptop = |method: &str, path: &str| server.curl(&["-H", LAPTOP, "-X", method, path]);
    let opened = server.curl(&["-H", ADMIN, "-X", "POST", "/sessions?client=x"]).is(201);
    let id = &opened["session"];
    laptop("GET", &format!("/sessions/{id}")).is(403);
    laptop("POST", &format!("/sessions/{id}/keepalive")).is(403);
    laptop("DELETE", &format!("/sessions/{id}")).is(403);
    laptop("POST", &format!("/locks/team/a?client=laptop1&session={id}")).is(403);
    laptop("POST", "/sessions?client=x").is(403);
    let own = laptop("POST", "/sessions").is(201)["session"].clone();
    laptop("POST", &format!("/sessions/{own}/keepalive")).is(200);
    server.curl(&["-H", ADMIN, "-X", "DELETE", &format!("/sessions/{id}")]).is(200);
}

#[test]
fn token_file_is_reloaded_unless_it_is_invalid() {
    let scratch = Scratch::new();
    let (server, path) = start(&scratch);
    server.curl(&["-H", ADMIN, "/locks"]).is(200);
    fs::write(&path, TOKENS.replace("of admin", "of the admin")).expect("it is ours");
    server.signal(libc::SIGHUP);
    eventually("the new token counts", || {
        (server.curl(&["-H", ADMIN, "/locks"]).code == 401).then_some(())
    });
    let new = "Authorization: Bearer the secret of the admin";
    server.curl(&["-H", new, "/locks"]).is(200);
    fs::write(&path, "[[token]]\nbroken").expect("it is ours");
    server.signal(libc::SIGHUP);
    eventually("it says so", || server.log().contains("all stays as it was").then_some(()));
    server.curl(&["-H", new, "/locks"]).is(200);
}

#[test]
fn token_file_that_others_may_read_is_refused() {
    let scratch = Scratch::new();
    let path = tokens(scratch.path(), TOKENS, 0o640).display().to_string();
    let (code, said) = run_latchfs(&["serve", "--memory", "--grant-at-once", "--tokens", &path]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("chmod 600"), "{said}");
}

#[test]
fn public_address_requires_tokens_and_tls() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let (code, said) =
            run_latchfs(&["serve", "--memory", "--grant-at-once", "--listen", address]);
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("--insecure"), "{said}");
    }
    // With `--insecure` the server starts on the address 0.0.0.0 although it has neither tokens nor
    // TLS. The harness sends its requests to the loopback address.
    let server = Server::at("0.0.0.0:0", &["--memory", "--grant-at-once", "--insecure"]);
    server.curl(&["/healthz"]).is(200);
}

/// In an earlier version `--insecure` permitted to lack TLS and credentials at once.
#[test]
fn insecure_permits_what_it_names_only() {
    let scratch = Scratch::new();
    let path = tokens(scratch.path(), TOKENS, 0o600).display().to_string();
    let options = ["--memory", "--grant-at-once"];
    for (more, says) in [
        (&["--insecure=no-tls"][..], "--insecure=no-credentials"),
        (&["--insecure=no-credentials"], "--insecure=no-tls"),
        (&["--insecure=no-credentials", "--tokens", &path], "--insecure=no-tls"),
    ] {
        let serve = ["serve", "--listen", "0.0.0.0:0"];
        let (code, said) = run_latchfs(&[&serve[..], &options, more].concat());
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains(says), "{more:?}: {said}");
    }
    let more = ["--insecure=no-tls", "--tokens", &path];
    let server = Server::at("0.0.0.0:0", &[&options[..], &more].concat());
    server.curl(&["/healthz"]).is(200);
    server.curl(&["/locks"]).is(401);
}

/// A token for monitoring reads statuses, metrics and events, and changes nothing.
#[test]
fn token_without_clients_reads_and_changes_nothing() {
    let scratch = Scratch::new();
    let reads = "\n[[token]]\nname = \"prometheus\"\nsecret = \"the secret of metrics\"\n\
                 clients = []\n";
    let path = tokens(scratch.path(), &format!("{TOKENS}{reads}"), 0o600);
    let server = Server::start(&["--tokens", &path.display().to_string()]);
    let reader = "Authorization: Bearer the secret of metrics";
    server.curl(&["-H", LAPTOP, "-X", "POST", "/locks/team/a?client=laptop1"]).is(200);
    for path in ["/locks/team/a", "/locks", "/metrics", "/me"] {
        assert_eq!(server.curl(&["-H", reader, path]).code, 200, "{path}");
    }
    for (method, path) in [
        ("POST", "/locks/team/b?client=laptop1"),
        ("POST", "/locks/team/a?client=laptop1&wait=1s"),
        ("DELETE", "/locks/team/a?client=laptop1"),
        ("POST", "/sessions?client=laptop1"),
        ("DELETE", "/locks?client=laptop1"),
        ("POST", "/reset?client=laptop1&reason=x"),
    ] {
        let refused = server.curl(&["-H", reader, "-X", method, path]).is(403);
        assert!(refused.to_string().contains("may"), "{method} {path}: {refused}");
    }
}
