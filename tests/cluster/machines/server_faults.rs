//! Faults that a test injects into a server: a full disk for its state, and a changed token file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The only bearer token that the server accepts while it has no fault.
pub(crate) const SECRET: &str = "the secret of all";

/// Writes the server's token file, with `secret` as the only bearer token.
pub(crate) fn allow(tokens: &Path, secret: &str) {
    let rights = "clients = [\"*\"]\ncluster = true";
    let text = format!("[[token]]\nname = \"all\"\nsecret = \"{secret}\"\n{rights}\n");
    private(tokens, &text);
}

pub(crate) fn private(path: &Path, text: &str) {
    fs::write(path, text).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
}

/// A small tmpfs for the state of a server.
pub(crate) struct Disk(PathBuf);

impl Disk {
    pub(crate) fn new(path: PathBuf, size: &str) -> Self {
        fs::create_dir(&path).expect("a fresh name");
        let options = format!("size={size},mode=700");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).status();
        assert!(mounted.expect("mount is there").success(), "this test needs root");
        Self(path)
    }

    pub(crate) fn fill(&self) {
        // The disk is filled by a write of more bytes than it has, so the write must fail.
        let filled = fs::write(self.0.join("fill"), vec![0; 64 << 20]);
        assert!(filled.is_err(), "the disk is full");
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(self.0.join("fill")).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
