//! A mount that also serves HTTP: locks created as files are visible over HTTP, and vice versa.

use std::fs;
use std::path::PathBuf;
use testing::{Scratch, Server, latchfs};

/// A directory that is unmounted when this value is dropped, even if the test has failed.
pub(crate) struct Dir(Scratch);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(Scratch::new())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("locks")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = latchfs().arg("umount").arg(self.path()).output();
    }
}

#[test]
fn files_and_http_are_the_same_locks() {
    let dir = Dir::new();
    let mut server = Server::mounted(&dir.path());
    fs::create_dir(dir.path().join("build")).expect("it is free");
    let status = server.curl(&["/locks/build"]).is(200);
    assert!(status["holder"].as_str().is_some_and(|holder| holder.starts_with("box:")), "{status}");
    server.curl(&["-X", "POST", "/locks/build?client=other"]).is(409);
    let kept = dir.path().join("kept");
    let inside = latchfs().args(["serve", "--data"]).arg(kept).output().expect("it runs");
    let said = String::from_utf8_lossy(&inside.stderr);
    assert_eq!(inside.status.code(), Some(64), "{said}");
    assert!(said.contains("is in a mount of latchfs"), "{said}");
    let waits = server.open(&["-X", "POST", "/locks/build?client=other&wait=60s"]);
    server.in_line("build", 1);
    fs::remove_dir(dir.path().join("build")).expect("it is ours");
    waits.reply().is(200);
    assert!(fs::create_dir(dir.path().join("build")).is_err(), "another has it");
    let text = fs::read_to_string(dir.path().join(".latchfs/status/build")).expect("a status");
    assert!(text.contains("\"holder\": \"other\""), "{text}");
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    let socket = server.url.strip_prefix("unix:").expect("a socket");
    assert!(!std::path::Path::new(socket).exists(), "it goes with the server");
    assert!(!dir.path().exists(), "the mount has made the directory, so it goes with it");
}
