//! The examples of contrib, each by its own interpreter: each waits for a lock that another has,
//! gets it in its turn, and gives it back.

use crate::harness::Server;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "team/demo";

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/examples").join(file)
}

#[track_caller]
fn runs(program: &mut Command) {
    let server = Server::start(&[]);
    let held = server.curl(&["-X", "POST", "/locks/team/demo?client=other"]).is(200);
    let before = held["token"].as_u64().expect("a token");
    program.args([NAME, "example"]).env("LATCHFS_SERVER", &server.url);
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = program.spawn().expect("contrib/test installs the interpreter");
    server.in_line(NAME, 1);
    server.curl(&["-X", "DELETE", "/locks/team/demo?client=other"]).is(200);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let token = said.strip_prefix("mine, token ").and_then(|rest| rest.lines().next());
    let token: u64 = token.and_then(|token| token.parse().ok()).expect("a token is said");
    assert!(token > before && said.ends_with("released\n"), "{said}");
    assert_eq!(server.curl(&["/locks/team/demo"]).is(200)["phase"], "free");
}

#[test]
fn sh() {
    runs(Command::new("sh").arg(example("lock.sh")));
}

#[test]
fn python() {
    runs(Command::new("python3").arg(example("lock.py")));
}

#[test]
fn node() {
    runs(Command::new("node").arg(example("lock.mjs")));
}

#[test]
fn ruby() {
    runs(Command::new("ruby").arg(example("lock.rb")));
}

#[test]
fn go() {
    runs(Command::new("go").arg("run").arg(example("lock.go")).env("GO111MODULE", "off"));
}
