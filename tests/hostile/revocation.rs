//! Credentials that are revoked while their requests last: waiting requests, event streams and open
//! connections of clients and nodes.

use crate::patience::prompt;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{Scratch, Server, eventually, latchfs, latchfs_path, run_latchfs};

const EVE: &str = "Authorization: Bearer the secret of the attacker";
const ANN: &str = "Authorization: Bearer the secret of the victim";

/// Writes a token file for these clients, of which `eve` may use locks with this prefix.
fn write_tokens(path: &Path, names: &[&str], prefix: &str) {
    let mut text = String::new();
    for (name, secret, locks) in
        [("eve", "the secret of the attacker", prefix), ("ann", "the secret of the victim", "")]
    {
        if names.contains(&name) {
            let _ = write!(
                text,
                "[[token]]\nname = \"{name}\"\nsecret = \"{secret}\"\nclients = [\"{name}\"]\n\
                 locks = [\"{locks}\"]\n"
            );
        }
    }
    fs::write(path, text).expect("our directory");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// Sends SIGHUP and waits until the server has read its files again.
fn reload(server: &Server) {
    let count = |server: &Server| server.log().matches("were read again").count();
    let before = count(server);
    server.signal(libc::SIGHUP);
    eventually("a reload", || (count(server) > before).then_some(()));
}

/// In an earlier version the waiting request of a revoked token was granted the lock, and its event
/// stream went on.
#[test]
fn revoked_token_loses_its_waits_and_event_streams() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    write_tokens(&path, &["eve", "ann"], "team/");
    let tokens = path.display().to_string();
    let server = Server::listen(&["--memory", "--grant-at-once", "--tokens", &tokens]);
    let held = "/locks/team/x?client=ann&ttl=1h";
    server.curl(&["-H", ANN, "-X", "POST", held]).is(200);
    let waiting = "/locks/team/x?client=eve&wait=1h&ttl=24h";
    let mut wait = server.open(&["-H", EVE, "-X", "POST", waiting]);
    let key = "Idempotency-Key: 1";
    let mut kept = server.open(&["-H", EVE, "-H", key, "-X", "POST", waiting]);
    let mut events = server.events(&["-H", EVE, "/events?prefix=team/"]);
    let queue = || {
        let seen = server.curl(&["-H", ANN, "/locks/team/x"]).is(200);
        seen["waiters"].as_array().map_or(0, Vec::len)
    };
    eventually("both requests wait", || (queue() == 2).then_some(()));
    // A reload that takes nothing from the token changes nothing.
    reload(&server);
    assert_eq!(queue(), 2);
    write_tokens(&path, &["ann"], "");
    reload(&server);
    for open in [&mut wait, &mut kept] {
        let status = open.line().expect("an answer");
        assert!(status.starts_with("HTTP/1.1 401"), "{status}");
    }
    eventually("the queue is empty", || (queue() == 0).then_some(()));
    let mut last = String::new();
    while let Some(line) = events.line() {
        if !line.is_empty() {
            last = line;
        }
    }
    assert_eq!(last, "data: {}", "the stream ends with the event 'revoked'");
    prompt("the victim's request", || {
        server.curl(&["-H", ANN, "-X", "DELETE", "/locks/team/x?client=ann"]).is(200);
        let seen = server.curl(&["-H", ANN, "/locks/team/x"]).is(200);
        assert_eq!(seen["phase"], "free", "{seen}");
    });
}

/// A token that loses a prefix loses its waits there, and its event stream shows no more of it.
#[test]
fn narrowed_token_loses_what_lies_outside() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    write_tokens(&path, &["eve", "ann"], "team/");
    let tokens = path.display().to_string();
    let server = Server::listen(&["--memory", "--grant-at-once", "--tokens", &tokens]);
    server.curl(&["-H", ANN, "-X", "POST", "/locks/team/x?client=ann"]).is(200);
    let mut wait = server.open(&["-H", EVE, "-X", "POST", "/locks/team/x?client=eve&wait=1h"]);
    let mut events = server.events(&["-H", EVE, "/events"]);
    eventually("the request waits", || {
        let seen = server.curl(&["-H", ANN, "/locks/team/x"]).is(200);
        (seen["waiters"].as_array().map_or(0, Vec::len) == 1).then_some(())
    });
    write_tokens(&path, &["eve", "ann"], "sandbox/");
    reload(&server);
    let status = wait.line().expect("an answer");
    assert!(status.starts_with("HTTP/1.1 403"), "{status}");
    server.curl(&["-H", ANN, "-X", "POST", "/locks/team/hidden?client=ann"]).is(200);
    server.curl(&["-H", EVE, "-X", "POST", "/locks/sandbox/shown?client=eve"]).is(200);
    loop {
        let line = events.line().expect("the stream goes on");
        assert!(!line.contains("hidden"), "{line}");
        if line.contains("sandbox/shown") {
            break;
        }
    }
}

/// Makes certificates in `dir`.
fn certificates(dir: &str, of: &[&[&str]]) {
    for what in of {
        let (code, said) = run_latchfs(&[&["cert", "--dir", dir], *what].concat());
        assert_eq!(code, Some(0), "{said}");
    }
}

/// Returns the serial number of a certificate as openssl prints it.
fn serial(path: &str) -> String {
    let mut openssl = Command::new("openssl");
    let output = openssl.args(["x509", "-noout", "-serial", "-in", path]).output();
    String::from_utf8(output.expect("openssl is there").stdout).expect("text")
}

/// In an earlier version a client certificate could not be revoked at all.
#[test]
fn refused_client_certificate_ends_on_open_connections() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let certs = path("certs");
    certificates(
        &certs,
        &[&["ca"], &["server", "localhost"], &["client", "eve"], &["client", "ann"]],
    );
    let cert = |name: &str| format!("{certs}/{name}");
    let refused = path("refused");
    fs::write(&refused, "# none yet\n").expect("our directory");
    let (own, key, ca) = (cert("server.pem"), cert("server.key"), cert("ca.pem"));
    let tls = ["--tls-cert", &own, "--tls-key", &key, "--client-ca", &ca];
    let options = ["--memory", "--grant-at-once", "--refuse-serials", &refused];
    let server = Server::listen(&[&options[..], &tls[..]].concat());
    let port = server.url.rsplit_once(':').expect("a port").1.to_owned();
    let url = format!("https://localhost:{port}");
    let curl = |name: &str, args: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-i", "-N", "--http1.1", "--max-time", "30", "--cacert", &ca]);
        curl.args(["--cert", &cert(&format!("{name}.pem"))]);
        curl.args(["--key", &cert(&format!("{name}.key"))]).args(args);
        curl.stdout(Stdio::piped()).stderr(Stdio::null());
        curl
    };
    let mut stream = curl("eve", &[&format!("{url}/events")]).spawn().expect("curl is there");
    let said = testing::lines(stream.stdout.take().expect("piped"));
    while said.recv_timeout(Duration::from_secs(20)).expect("a line") != ": latchfs" {}
    let status = |name: &str| {
        let path = format!("{url}/locks/{name}?client={name}");
        let output = curl(name, &["-X", "POST", &path]).output().expect("curl is there");
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
    };
    assert!(status("eve").contains(" 200"));
    fs::write(&refused, serial(&cert("eve.pem"))).expect("our directory");
    reload(&server);
    let rest: Vec<String> = said.iter().collect();
    assert!(rest.iter().any(|line| line.contains("revoked")), "the stream ends: {rest:?}");
    let _reaped = stream.wait();
    assert!(status("eve").contains(" 401"), "{}", status("eve"));
    assert!(status("ann").contains(" 200"));
}

/// In an earlier version a node read the certificates for its peers once: after a change of the CA
/// each node had to be restarted.
#[test]
fn certificates_for_peers_are_read_again() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let (old, new, used) = (path("old"), path("new"), path("used"));
    for dir in [&old, &new] {
        certificates(dir, &[&["ca"], &["peer", "127.0.0.1"]]);
    }
    let copy = |from: &str| {
        fs::create_dir_all(&used).expect("our directory");
        for file in fs::read_dir(from).expect("it is there") {
            let file = file.expect("a file");
            fs::copy(file.path(), Path::new(&used).join(file.file_name())).expect("ours");
        }
    };
    copy(&old);
    let find = |dir: &str, ending: &str| {
        let files =
            fs::read_dir(dir).expect("it is there").map(|file| file.expect("a file").path());
        let mut files = files.filter(|file| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.ends_with(ending) && !name.starts_with("ca.")
        });
        files.next().expect("a certificate").display().to_string()
    };
    let peers = |dir: &str, data: &str| -> Vec<String> {
        let (cert, key) = (find(dir, ".pem"), find(dir, ".key"));
        let ca = format!("{dir}/ca.pem");
        ["--data", data, "--peer-listen", "127.0.0.1:0", "--peer-cert", &cert, "--peer-key", &key]
            .into_iter()
            .chain(["--peer-ca", &ca])
            .map(str::to_owned)
            .collect()
    };
    let first = path("first");
    // A new cluster begins without peers.
    drop(Server::listen(&["--data", &first]));
    let first = peers(&used, &first);
    let server = Server::listen(&first.iter().map(String::as_str).collect::<Vec<_>>());
    let address = eventually("an address", || {
        let said = server.curl(&["/cluster"]).is(200);
        let address = said["nodes"][0]["address"].as_str()?;
        (!address.is_empty()).then(|| address.to_owned())
    });
    copy(&new);
    reload(&server);
    let second = peers(&new, &path("second"));
    let mut command = latchfs();
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(&second).args(["--seed", &address]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let said = testing::lines(child.stdout.take().expect("piped"));
    let line = said.recv_timeout(Duration::from_secs(20));
    let _gone = child.kill();
    let _reaped = child.wait();
    let line = line.unwrap_or_else(|_| panic!("it does not join: {}", server.log()));
    assert!(line.starts_with("latchfs: listening on "), "{line}");
}

/// In an earlier version the certificate of any node made every other node of the cluster.
#[test]
fn certificate_of_one_node_does_not_make_another() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let certs = path("certs");
    certificates(&certs, &[&["ca"], &["peer", "127.0.0.1"], &["peer", "127.0.0.2"]]);
    let start = |host: &str, data: &str, seed: Option<&str>| {
        let (cert, key) = (format!("{certs}/{host}.pem"), format!("{certs}/{host}.key"));
        let (ca, listen) = (format!("{certs}/ca.pem"), "127.0.0.1:0");
        let mut command = latchfs();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data", data]);
        command.args(["--peer-listen", listen, "--peer-cert", &cert, "--peer-key", &key]);
        command.args(["--peer-ca", &ca]).args(seed.iter().flat_map(|seed| ["--seed", seed]));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let first = path("first");
    drop(Server::listen(&["--data", &first]));
    let server = Server::spawn(&mut start("127.0.0.1", &first, None), Scratch::new());
    let address = eventually("an address", || {
        let said = server.curl(&["/cluster"]).is(200);
        let address = said["nodes"][0]["address"].as_str()?;
        (!address.is_empty()).then(|| address.to_owned())
    });
    // Its certificate is for 127.0.0.2, and it says that it is at 127.0.0.1.
    let mut child = start("127.0.0.2", &path("second"), Some(&address)).spawn().expect("it starts");
    eventually("the call is rejected", || {
        server.log().contains("its certificate is not that of node").then_some(())
    });
    let _gone = child.kill();
    let _reaped = child.wait();
    let nodes = server.curl(&["/cluster"]).is(200);
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(1), "{nodes}");
}

/// A client that guesses tokens waits for each answer, and the log says so.
#[test]
fn wrong_tokens_are_slow_and_logged() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    write_tokens(&path, &["ann"], "");
    let tokens = path.display().to_string();
    let server = Server::listen(&["--memory", "--grant-at-once", "--tokens", &tokens]);
    let asked = latchfs::time::boot_now();
    server.curl(&["-H", EVE, "/locks/x"]).is(401);
    let took = latchfs::time::boot_now().since(asked).as_duration();
    assert!(took >= Duration::from_millis(250), "{took:?}");
    eventually("a line in the log", || {
        let line = "1 requests by nobody (none) from 127.0.0.1 were refused, the last to show a \
                    lock: this token is unknown";
        server.log().contains(line).then_some(())
    });
    // The name of the owner of a session is not disclosed.
    let session = server.curl(&["-H", ANN, "-X", "POST", "/sessions?client=ann"]).is(201);
    write_tokens(&path, &["eve", "ann"], "");
    reload(&server);
    let keep = format!("/sessions/{}/keepalive", session["session"]);
    let denied = server.curl(&["-H", EVE, "-X", "POST", &keep]).is(403);
    assert!(!denied.to_string().contains("ann"), "{denied}");
}

/// A program on the way could read the token.
#[test]
fn token_is_not_sent_without_encryption() {
    let scratch = Scratch::new();
    let path = scratch.path().join("token");
    fs::write(&path, "the secret of ann").expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let token = path.display().to_string();
    // An address of documentation, to which nothing is sent.
    let (code, said) =
        run_latchfs(&["ls", "--server", "http://192.0.2.1:8080", "--token-file", &token]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("--plain-token") && said.contains("https"), "{said}");
}

/// The options before the directory of a server: those of a user's own locks, which have a journal,
/// and those of every other server.
const STORAGES: [&[&str]; 2] = [&["--detached", "--state"], &["--data"]];

/// In an earlier version a symlink in the state directory named the file that was opened.
#[test]
fn symlinks_in_a_state_directory_are_not_followed() {
    let scratch = Scratch::new();
    let target = scratch.path().join("target");
    for options in STORAGES {
        let state = scratch.path().join(options[options.len() - 1].trim_start_matches('-'));
        fs::create_dir(&state).expect("a fresh directory");
        std::os::unix::fs::symlink(&target, state.join("lock")).expect("a fresh directory");
        let state = state.display().to_string();
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        let (code, said) = run_latchfs(&[&serve[..], options, &[&state]].concat());
        assert_ne!(code, Some(0), "{said}");
        assert!(!target.exists(), "{said}");
    }
}

/// The umask does not open the files of a server to other users.
#[test]
fn files_of_a_server_are_private_whatever_the_umask() {
    let scratch = Scratch::new();
    for options in STORAGES {
        let dir = scratch.path().join(options[options.len() - 1].trim_start_matches('-'));
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0; exec \"$0\" \"$@\"", latchfs_path(), "serve"]);
        command.args(["--listen", "127.0.0.1:0"]).args(options).arg(&dir);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let server = Server::spawn(&mut command, Scratch::new());
        server.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode(&dir) & 0o077, 0, "others reach no file of {}", dir.display());
    }
}

/// A state directory of another user could be changed by that user at any time.
#[test]
fn state_directory_of_another_user_is_refused() {
    let scratch = Scratch::new();
    let state = scratch.path().join("state");
    fs::create_dir(&state).expect("a fresh directory");
    std::os::unix::fs::chown(&state, Some(4_000_001), None).expect("the tests run as root");
    for options in STORAGES {
        let state = state.display().to_string();
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        let (code, said) = run_latchfs(&[&serve[..], options, &[&state]].concat());
        assert_ne!(code, Some(0));
        assert!(said.contains("belongs to user 4000001"), "{said}");
    }
}
