//! The status page in a real browser: live updates, countdowns, search, steal, a lost connection,
//! and what axe-core finds for people who cannot see or use a mouse. Screenshots are stored in the
//! target directory; with `SCREENSHOTS=1` those of the documentation are made anew.

use crate::http::mounting::Dir;
use crate::http::nodes::Nodes;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use testing::{Scratch, Server, latchfs, latchfs_path, run_latchfs};

/// Time limit in seconds for the browser script: only a script that hangs takes so long, even on a
/// loaded machine.
const LIMIT: &str = "180";

/// Returns the target directory, in which `contrib/test` installs its tools.
fn target() -> PathBuf {
    let profile = Path::new(latchfs_path()).parent().and_then(Path::parent);
    profile.expect("the program lies in the target directory").to_owned()
}

/// A running script that controls a browser.
struct Browser {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Browser {
    fn start(url: &str, scene: &str) -> Self {
        let pictures = target().join("screenshots");
        fs::create_dir_all(&pictures).expect("the target directory is ours");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/served/http/page.js");
        let mut child = Command::new("timeout")
            .args([LIMIT, "node"])
            .arg(script)
            .arg(url)
            .arg(pictures)
            .arg(scene)
            .env("NODE_PATH", target().join("test-tools/npm/node_modules"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node is there");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, out }
    }

    /// Waits for the next step that the script reports: one that it has done, or one that it
    /// requests from the test. Fails if the script has failed.
    fn step(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("text");
        let step: Value = serde_json::from_str(&line).expect("the script went on to the end");
        step["step"].as_str().expect("a step").to_owned()
    }

    fn until(&mut self, step: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != step) {
            seen.push(self.step());
        }
        seen
    }

    fn resume(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin.write_all(b"done\n").expect("the script waits");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn page_works_in_a_browser() {
    let server = Server::start(&[]);
    let url = server.url.clone();
    let address = url.strip_prefix("http://").expect("no TLS").to_owned();
    let mut browser = Browser::start(&url, "everything");
    browser.until("kill");
    drop(server);
    browser.resume();
    browser.until("restart");
    let _server = Server::at(&address, &["--memory", "--grant-at-once"]);
    browser.resume();
    browser.until("done");
    for name in ["light", "dark", "phone", "steal", "lost"] {
        let picture = target().join(format!("screenshots/page-{name}.png"));
        assert!(fs::metadata(&picture).is_ok_and(|data| data.len() > 5_000), "{name}");
    }
}

/// During a hold-off the page says that nothing is granted.
#[test]
fn page_says_that_nothing_is_granted_yet() {
    let server = Server::listen(&["--memory", "--max-ttl", "1h"]);
    Browser::start(&server.url, "heldOff").until("done");
}

/// The status page of a cluster node shows all nodes, and which of them does not answer.
#[test]
fn page_of_a_node_shows_all_nodes() {
    let mut nodes = Nodes::start();
    Browser::start(&nodes.leader.url, "nodesRead").until("done");
    let mut browser = Browser::start(&nodes.leader.url, "nodes");
    browser.until("kill");
    nodes.learner.signal(libc::SIGKILL);
    nodes.learner.wait();
    browser.resume();
    browser.until("done");
    for name in ["nodes", "nodes-phone", "nodes-silent"] {
        let picture = target().join(format!("screenshots/page-{name}.png"));
        assert!(fs::metadata(&picture).is_ok_and(|data| data.len() > 5_000), "{name}");
    }
}

/// A node without a majority does not know what is held: the page says so, shows the last known
/// state with its age, and still shows the nodes.
#[test]
fn page_without_a_majority_says_that_it_does_not_know() {
    let mut nodes = Nodes::start();
    let id = nodes.status()["nodes"][1]["id"].to_string();
    let force = ["cluster", "join", &id, "--force", "--server", &nodes.leader.url];
    assert_eq!(run_latchfs(&force).0, Some(0));
    let mut browser = Browser::start(&nodes.leader.url, "minority");
    browser.until("kill");
    nodes.learner.signal(libc::SIGSTOP);
    browser.resume();
    browser.until("restart");
    nodes.learner.signal(libc::SIGCONT);
    browser.resume();
    browser.until("kill the leader");
    nodes.leader.signal(libc::SIGKILL);
    nodes.leader.wait();
    browser.resume();
    browser.until("done");
}

/// Laptops show 25 locks, sorted and searched by mouse or keyboard.
#[test]
fn page_is_a_table_of_locks() {
    let server = Server::start(&[]);
    Browser::start(&server.url, "table").until("done");
    for name in ["page-table", "page-phone-table"] {
        let picture = target().join(format!("screenshots/{name}.png"));
        assert!(fs::metadata(&picture).is_ok_and(|data| data.len() > 5_000), "{name}");
    }
}

#[test]
fn page_shows_a_lock_at_its_own_address() {
    let server = Server::start(&[]);
    Browser::start(&server.url, "lock").until("done");
}

/// An earlier version of the page showed the ttl of a hold that no time ends.
#[test]
fn page_says_what_a_hold_without_expiry_lasts_for() {
    let dir = Dir::new();
    let mut command = latchfs();
    command.arg("mount").arg(dir.path());
    command.args(["--listen", "127.0.0.1:0", "--state", "none", "--grant-at-once"]);
    let scratch = Scratch::new();
    command.arg("--tokens").arg(tokens(&scratch));
    let server = Server::spawn(&mut command, Scratch::new());
    let file = fs::File::create(dir.path().join("build")).expect("it is free");
    file.lock().expect("nobody has it");
    Browser::start(&server.url, "holds").until("done");
}

#[test]
fn page_shows_guarded_folders() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name).display().to_string();
    let server = Server::listen(&["--data", &path("data")]);
    fs::create_dir_all(path("notes")).expect("a fresh directory");
    fs::write(path("notes/plan"), "text").expect("a fresh directory");
    let (code, said) = run_latchfs(&["guard", "init", &path("notes"), "--server", &server.url]);
    assert_eq!(code, Some(0), "{said}");
    Browser::start(&server.url, "folders").until("done");
}

#[test]
fn page_shows_5000_locks_within_a_second() {
    let server = Server::start(&[]);
    Browser::start(&server.url, "many").until("done");
}

/// The page is one file of at most 60 KB.
#[test]
fn page_is_small() {
    let page = Server::start(&[]).curl(&["/"]);
    assert!(page.body.len() <= 60_000, "{} bytes", page.body.len());
    for foreign in ["src=\"http", "href=\"http", "@import", "url(", "innerHTML", "eval("] {
        assert!(!page.body.contains(foreign), "{foreign}");
    }
}

/// Returns a file of tokens with one of laptop1.
fn tokens(scratch: &Scratch) -> PathBuf {
    let path = scratch.path().join("tokens.toml");
    let tokens = "[[token]]\nname = \"laptop1\"\nsecret = \"the secret of laptop1\"\n\
                  clients = [\"laptop1\"]\n";
    fs::write(&path, tokens).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    path
}

#[test]
fn page_accepts_a_token() {
    let scratch = Scratch::new();
    let server = Server::start(&["--tokens", &tokens(&scratch).display().to_string()]);
    Browser::start(&server.url, "tokens").until("done");
    Browser::start(&server.url, "login").until("done");
}

/// The content security policy of the status page forbids foreign resources and inline code, and
/// the page needs neither.
#[test]
fn page_has_a_strict_content_security_policy() {
    let server = Server::start(&[]);
    let page = server.curl(&["/"]);
    assert_eq!(page.code, 200);
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert!(!page.body.contains("https://") && !page.body.contains(" style="), "{}", page.body);
}
