//! Access control of the line protocol: tokens, TLS, and public addresses.

use std::io::Write as _;
use std::process::{Command, Stdio};
use testing::{Lines, Scratch, run_latchfs};

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
"#;

#[test]
fn token_is_limited_to_its_clients_and_locks() {
    let scratch = Scratch::new();
    let lines = Lines::start(&["--tokens", &scratch.secret_file("tokens.toml", TOKENS)]);
    for line in
        ["LOCK,team/a,laptop1", "OWN,team/a,x", "UNLOCK,team/a,laptop1", "REGISTER,127.0.0.1:9"]
    {
        assert_eq!(lines.request(line), "ERROR", "{line}");
    }
    assert_eq!(lines.request("FOO,a,b"), "INVALID_COMMAND");
    let mut talk = lines.connect();
    for (line, word) in [
        ("AUTH,the secret of laptop1", "SUCCESS"),
        ("LOCK,team/a,laptop1:bob", "SUCCESS"),
        ("OWN,team/a,x", "laptop1:bob"),
        ("LOCK,team/b,laptop2", "ERROR"),
        ("LOCK,other,laptop1", "ERROR"),
        ("OWN,other,laptop1", "ERROR"),
        ("REGISTER,127.0.0.1:9", "ERROR"),
        ("AUTH,the secret of admin", "SUCCESS"),
        ("LOCK,other,anybody", "SUCCESS"),
        ("UNLOCK,team/a,laptop1:bob", "SUCCESS"),
        ("AUTH,a guess of some length", "FAIL"),
    ] {
        assert_eq!(talk.request(line), word, "{line}");
    }
    assert_eq!(talk.word(), None, "a guess costs a connection");
}

#[test]
fn lines_are_encrypted_if_the_server_uses_tls() {
    let scratch = Scratch::new();
    let dir = scratch.path().join("certs").display().to_string();
    for what in [&["ca"][..], &["server", "localhost", "127.0.0.1"], &["client", "laptop1"]] {
        let (code, said) = run_latchfs(&[&["cert", "--dir", &dir], what].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    let path = |name: &str| format!("{dir}/{name}");
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let lines = Lines::start(&["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &ca]);
    let (own, own_key) = (path("laptop1.pem"), path("laptop1.key"));
    let said = encrypted(
        &lines,
        &["-CAfile", &ca, "-cert", &own, "-key", &own_key],
        "LOCK,a,laptop1\nOWN,a,x\nLOCK,b,laptop2\n",
    );
    assert_eq!(said, "SUCCESS\nlaptop1\nERROR\n", "it is who its certificate says");
    assert_eq!(encrypted(&lines, &["-CAfile", &ca], "OWN,a,x\n"), "", "no certificate, no answer");
    let mut plain = lines.connect();
    plain.send(b"OWN,a,x\n");
    let said = plain.rest();
    assert!(!said.starts_with(b"laptop1") && !said.starts_with(b"NONE"), "{said:?}");
}

/// Sends lines over TLS with openssl, and returns the replies.
fn encrypted(lines: &Lines, options: &[&str], said: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-verify_return_error", "-verify_quiet", "-connect"]);
    command.arg(&lines.address).args(options);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("openssl is there");
    let mut input = child.stdin.take().expect("piped");
    let _ = input.write_all(said.as_bytes());
    // A line of 4,000 bytes is too long for the server, which closes the connection, and so openssl
    // exits.
    let _ = input.write_all(&[b'x'; 4_000]);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8(output.stdout).expect("text");
    said.trim_end_matches("INVALID_FORMAT\n").to_owned()
}

#[test]
fn public_address_requires_credentials() {
    let (code, said) = run_latchfs(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "--line-listen",
        "0.0.0.0:0",
    ]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("can be reached by other machines"), "{said}");
    let (code, said) =
        run_latchfs(&["serve", "--listen", "127.0.0.1:0", "--memory", "--line-listen", "9000"]);
    assert_eq!(code, Some(64), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let (code, said) =
        run_latchfs(&["serve", "--listen", "127.0.0.1:0", "--memory", "--line-listen", &address]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("--line-listen"), "{said}");
}
