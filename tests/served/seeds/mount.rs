//! A mount of a server, for the tests of the library.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use testing::{Scratch, Server, latchfs};

/// A mount, which is ended when it is dropped.
pub(crate) struct Mount {
    child: Child,
    dir: PathBuf,
    _scratch: Scratch,
}

impl Mount {
    /// Mounts the locks of a server as the client `client`.
    #[track_caller]
    pub(crate) fn of(server: &Server, client: &str) -> Self {
        let scratch = Scratch::new();
        let dir = scratch.path().join("locks");
        let mut command = latchfs();
        command.arg("mount").arg(&dir).args(["--server", &server.url, "--client", client]);
        command.arg("--foreground").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("the program is there");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("mounted") {
            line.clear();
            let count = out.read_line(&mut line).expect("text");
            assert!(count > 0, "it ended before it was mounted");
        }
        Self { child, dir, _scratch: scratch }
    }

    pub(crate) fn dir(&self) -> &std::path::Path {
        &self.dir
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        testing::signal(self.child.id().cast_signed(), libc::SIGTERM);
        let _ = self.child.wait();
        let mut umount = Command::new("umount");
        let _ = umount.args(["-l"]).arg(&self.dir).stderr(Stdio::null()).status();
    }
}
