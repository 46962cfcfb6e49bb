//! A local user who sends requests to the HTTP socket of root's mount.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use testing::{ALICE, Scratch, Server, latchfs, run_latchfs, users};

/// A mount of root that serves all users, with an HTTP socket that they can reach.
struct Mounted {
    server: Server,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Mounted {
    fn start() -> Self {
        let scratch = Scratch::open_to_all();
        let (dir, socket) = (scratch.join("locks"), scratch.join("http.sock"));
        let mut command = latchfs();
        command.arg("mount").arg(&dir).args([
            "--state",
            "none",
            "--grant-at-once",
            "--client",
            "box",
            "--listen",
        ]);
        command.arg(format!("unix:{}", socket.display()));
        let server = Server::spawn(&mut command, Scratch::new());
        Self { server, dir, _scratch: scratch }
    }

    /// Sends a request as Alice; returns the status code and the body.
    fn alice(&self, method: &str, path: &str) -> (String, String) {
        users();
        let own = [format!("--reuid={ALICE}"), format!("--regid={ALICE}")];
        let mut command = Command::new("setpriv");
        command.args(own).args(["--clear-groups", "curl", "-sS", "--max-time", "20"]);
        command.args(["-X", method]);
        command.args(["-w", "\n%{http_code}"]).args(self.server.target(path));
        let output = command.output().expect("curl is there");
        let said = String::from_utf8(output.stdout).expect("text");
        let (body, code) = said.rsplit_once('\n').unwrap_or_default();
        (code.to_owned(), body.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = latchfs().arg("umount").arg(&self.dir).output();
    }
}

#[test]
fn a_local_user_at_the_socket_of_a_mount_acts_as_its_own_client() {
    let mount = Mounted::start();
    fs::create_dir(mount.dir.join("build")).expect("it is free");
    // Alice may neither act as root, whatever client name she sends, nor steal or reset.
    for (method, path) in [
        ("DELETE", "/locks/build?client=box:root"),
        ("POST", "/locks/x?client=box:root"),
        ("POST", "/locks/x?client=bob"),
        ("POST", "/locks/build/steal?reason=why"),
        ("POST", "/reset?all=true&reason=why"),
        ("GET", "/backup"),
        ("POST", "/cluster/transfer"),
    ] {
        let (code, body) = mount.alice(method, path);
        assert!(code == "403" && body.contains("E_DENIED"), "{method} {path}: {code} {body}");
    }
    // A request by Alice that names no client acts for her own client.
    let (code, body) = mount.alice("DELETE", "/locks/build");
    assert!(code == "403" && body.contains("E_LOCK_NOT_HELD"), "{code} {body}");
    let (code, body) = mount.alice("POST", "/locks/hers");
    assert!(code == "200" && body.contains(&format!("\"box:{ALICE}\"")), "{code} {body}");
    // The victim, root, still holds its lock, gets its answer within a second, and may steal locks.
    let root = |method: &str, path: &str| {
        mount.server.curl(&["--max-time", "1", "-X", method, path]).is(200)
    };
    assert_eq!(root("GET", "/locks/build")["holder"], "box:root");
    root("POST", "/locks/hers/steal?client=box:root&reason=why");
    assert_eq!(root("DELETE", "/locks/build?client=box:root")["released"], true);
    fs::create_dir(mount.dir.join("build")).expect("it is free again");
}

#[test]
fn a_mount_serves_no_tcp_address_without_credentials() {
    let scratch = Scratch::open_to_all();
    let dir = scratch.join("locks").display().to_string();
    for more in [&[][..], &["--insecure"]] {
        let mount =
            ["mount", &dir, "--state", "none", "--grant-at-once", "--listen", "127.0.0.1:0"];
        let (code, said) = run_latchfs(&[&mount[..], more].concat());
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("--tokens") && said.contains("unix:PATH"), "{said}");
    }
    assert!(!scratch.join("locks").exists(), "nothing was mounted");
}

/// A daemon replaces a socket that a killed daemon left behind, but no other kind of file.
#[test]
fn a_stale_socket_is_replaced() {
    let scratch = Scratch::open_to_all();
    let start = |name: &str| {
        let mut command = latchfs();
        command.arg("mount").arg(scratch.join("locks")).args([
            "--state",
            "none",
            "--grant-at-once",
            "--listen",
        ]);
        command.arg(format!("unix:{}", scratch.join(name).display()));
        command
    };
    let mut first = Server::spawn(&mut start("http.sock"), Scratch::new());
    first.signal(libc::SIGKILL);
    first.wait();
    drop(first);
    let umount = || {
        let mut umount = latchfs();
        umount.arg("umount").arg(scratch.join("locks")).output().expect("it ends")
    };
    umount();
    let second = Server::spawn(&mut start("http.sock"), Scratch::new());
    second.curl(&["/locks"]).is(200);
    umount();
    drop(second);
    fs::write(scratch.join("file"), "text").expect("ours");
    let refused = start("file").output().expect("it ends");
    umount();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("can't listen on"), "{said}");
    assert_eq!(fs::read_to_string(scratch.join("file")).expect("it is there"), "text");
}
