//! Who may mount: tokens and certificates.

use crate::net::{LATCHFS, Machine, Net, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Machine 2 may speak as itself and its users, below `team/` and in `own`.
const TOKENS: &str = r#"
[[token]]
name = "two"
secret = "the secret of two"
clients = ["machine2", "machine2:*"]
locks = ["team/", "own"]
"#;

fn private(machine: &Machine, name: &str, text: &str) -> String {
    let path = machine.path(name);
    fs::write(&path, text).expect("ours");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    path.display().to_string()
}

/// What a mount that must not be says.
fn refused(machine: &Machine, args: &[&str]) -> String {
    let mut command = machine.command(LATCHFS);
    let dir = machine.path("never");
    let tried = run(command.arg("mount").arg(&dir).args(args).args(["--foreground"]));
    assert_ne!(tried.code, 0, "{tried:?}");
    tried.err
}

#[test]
fn a_token_says_who_mounts_and_what_it_may() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let tokens = private(&server, "tokens.toml", TOKENS);
    let _served = server.serve(&format!("--tokens {tokens}"));
    let right = private(&a, "token", "the secret of two\n");
    let wrong = private(&a, "wrong", "the secret of three\n");
    let url = server.url();
    assert!(refused(&a, &["--server", &url]).contains("can't be used"));
    refused(&a, &["--server", &url, "--token-file", &wrong]);
    refused(&a, &["--server", &url, "--token-file", &right, "--client", "machine3"]);
    let a = a.mount(&url, &format!("--token-file {right}"));
    a.sh("mkdir own && rmdir own").ok();
    let denied = a.sh("mkdir other");
    assert!(denied.err.contains("Permission denied"), "{denied:?}");
    let flock = a.python("f = open('own', 'w'); fcntl.flock(f, 2); print('mine')", &[]);
    flock.says("mine");
}

#[test]
fn certificates_say_who_is_who() {
    let mut net = Net::new();
    let (server, a) = (net.machine(), net.machine());
    let dir = server.path("certs").display().to_string();
    let cert = |args: &[&str]| {
        run(server.command(LATCHFS).arg("cert").args(args).args(["--dir", &dir])).ok()
    };
    cert(&["ca"]);
    cert(&["server", &server.address]);
    cert(&["client", "machine2"]);
    let _served = server.serve(&format!(
        "--tls-cert {dir}/server.pem --tls-key {dir}/server.key --client-ca {dir}/ca.pem"
    ));
    let url = server.url().replace("http:", "https:");
    let ca = format!("{dir}/ca.pem");
    assert!(refused(&a, &["--server", &url]).contains("--ca"));
    refused(&a, &["--server", &url, "--ca", &ca]);
    refused(&a, &["--server", &server.url()]);
    let (mine, key) = (format!("{dir}/machine2.pem"), format!("{dir}/machine2.key"));
    let a = a.mount(&url, &format!("--ca {ca} --cert {mine} --key {key}"));
    a.sh("mkdir x && ! mkdir x && flock y true && rmdir x").ok();
    a.machine.cable(false);
    assert_ne!(a.sh("ls").code, 0);
    a.machine.cable(true);
    a.is("connected");
    a.sh("mkdir x && rmdir x").ok();
}
