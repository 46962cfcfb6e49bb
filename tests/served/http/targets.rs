//! Which mount or server a command uses when `LATCHFS_SERVER` is set as well.

use std::path::PathBuf;
use testing::{Output, Scratch, Server, latchfs, run};

/// A latchfs mount whose daemon runs in the background and keeps its own locks, in memory only.
struct Mount(Scratch);

impl Mount {
    fn new() -> Self {
        let mount = Self(Scratch::new());
        mount
            .command("", &["mount", "fst", "--state", "none", "--grant-at-once", "--background"])
            .ok();
        mount
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("fst")
    }

    /// Runs a command in the parent directory of the mount point, with `LATCHFS_SERVER` set to
    /// `server`, or without that variable if `server` is empty.
    fn command(&self, server: &str, args: &[&str]) -> Output {
        let mut command = latchfs();
        command.args(args).current_dir(self.0.path());
        command.env_remove("LATCHFS_DIR").env_remove("LATCHFS_SERVER");
        if !server.is_empty() {
            command.env("LATCHFS_SERVER", server);
        }
        run(&mut command)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = latchfs().arg("umount").arg(self.path()).output();
    }
}

/// `run --dir` and a path below a mount select the mount, where `job` is held, so `run` starts no
/// command.
#[test]
fn command_line_takes_precedence_over_the_environment() {
    let (server, mount) = (Server::start(&[]), Mount::new());
    mount.command("", &["acquire", "job", "--dir", "fst"]).ok();
    let run_job = |target: &[&str]| {
        let args = [&["run"], target, &["--try", "--", "touch", "ran"]].concat();
        mount.command(&server.url, &args)
    };
    run_job(&["job", "--dir", "fst"]).exits(75);
    run_job(&["fst/job"]).exits(75);
    run_job(&["./fst/job"]).exits(75);
    assert!(!mount.0.path().join("ran").exists());
    // A plain lock name, used outside of all mounts, selects the server, where the lock is free.
    run_job(&["job"]).ok();
    let both = mount.command("", &["status", "job", "--dir", "fst", "--server", &server.url]);
    assert!(both.exits(64).contains("cannot be used with"));
}

/// Inside a mount, and with `LATCHFS_DIR`, a plain lock name selects the mount.
#[test]
fn mount_takes_precedence_over_the_server_variable() {
    let (server, mount) = (Server::start(&[]), Mount::new());
    mount.command("", &["acquire", "job", "--dir", "fst"]).ok();
    let mut inside = latchfs();
    inside.args(["run", "job", "--try", "--", "true"]).current_dir(mount.path());
    run(inside.env_remove("LATCHFS_DIR").env("LATCHFS_SERVER", &server.url)).exits(75);
    let mut named = latchfs();
    named.args(["run", "job", "--try", "--", "true"]).env("LATCHFS_DIR", mount.path());
    run(named.env("LATCHFS_SERVER", &server.url)).exits(75);
    let output = mount.command("", &["status", "fst/job", "--client", "ci"]).exits(64);
    assert!(output.contains("--server URL"), "{output}");
}

/// A command that runs under the lock of a server finds the server, even if `LATCHFS_DIR` is
/// exported.
#[test]
fn command_under_a_lock_finds_the_server_of_the_lock() {
    let (server, mount) = (Server::start(&[]), Mount::new());
    let mut outer = latchfs();
    outer.args(["run", "job", "--server", &server.url, "--", "sh", "-c"]);
    outer.arg("echo ${LATCHFS_DIR-none} $LATCHFS_SERVER").env("LATCHFS_DIR", mount.path());
    assert_eq!(run(&mut outer).ok(), format!("none {}\n", server.url));
}

/// `mount` mounts the locks of the server that `LATCHFS_SERVER` names, and says so. Options for
/// local state take precedence, with a warning.
#[test]
fn mount_uses_the_server_variable() {
    let server = Server::start(&[]);
    let mount = Mount(Scratch::new());
    let output = mount.command(&server.url, &["mount", "fst", "--background"]);
    assert!(output.err.contains("which LATCHFS_SERVER names"), "{}", output.err);
    output.ok();
    std::fs::create_dir(mount.path().join("build")).expect("the lock is free");
    assert_eq!(server.curl(&["/locks/build"]).is(200)["phase"], "held");
    let own = Mount(Scratch::new());
    let args = ["mount", "fst", "--state", "none", "--grant-at-once", "--background"];
    let output = own.command(&server.url, &args);
    assert!(output.err.contains("is ignored"), "{}", output.err);
    output.ok();
    std::fs::create_dir(own.path().join("build")).expect("the lock is free in its own engine");
}
