//! How a machine gets the right to change its copy of the folder.
use std::path::PathBuf;
use std::process::Command;
use testing::{Server, run};

/// A lock of the folder, which one machine holds at a time.
pub(crate) trait Access {
    /// Takes the lock for a machine, and returns the directory in which its programs work.
    fn take(&mut self, machine: usize) -> PathBuf;

    /// Gives the lock up.
    fn give(&mut self, machine: usize);

    /// Asks for the lock, and gives up before the files have arrived. Returns whether they had not
    /// arrived yet.
    fn give_up_while_arriving(&mut self, machine: usize) -> bool;

    /// Asks for the lock, kills the guard before the files have arrived, and starts it again.
    /// Returns whether they had not arrived yet.
    fn kill_while_arriving(&mut self, machine: usize) -> bool;
}

/// The name of the folder's lock.
const LOCK: &str = "folder";

/// The lock alone: programs change the folder itself, and nothing waits for the files of the last
/// turn.
pub(crate) struct LockOnly {
    server: Server,
    folders: Vec<PathBuf>,
}

impl LockOnly {
    pub(crate) fn new(folders: &[PathBuf]) -> Self {
        let server = Server::at("127.0.0.1:0", &["--memory", "--grant-at-once"]);
        Self { server, folders: folders.to_vec() }
    }

    fn request(&self, method: &str, machine: usize, options: &str) {
        let url = format!("{}/locks/{LOCK}?client=m{machine}{options}", self.server.url);
        run(Command::new("curl").args(["--silent", "--show-error", "--fail", "-X", method, &url]))
            .ok();
    }
}

impl Access for LockOnly {
    fn take(&mut self, machine: usize) -> PathBuf {
        self.request("POST", machine, "&ttl=10m");
        self.folders[machine].clone()
    }

    fn give(&mut self, machine: usize) {
        self.request("DELETE", machine, "");
    }

    fn give_up_while_arriving(&mut self, _machine: usize) -> bool {
        false
    }

    fn kill_while_arriving(&mut self, _machine: usize) -> bool {
        false
    }
}
