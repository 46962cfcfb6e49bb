//! Directories of tests, which are removed at their end.

use crate::command::{latchfs, remove_tree, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A directory of one test, which is removed when this value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes an empty directory.
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-test-{}-{count}", std::process::id());
        // The directory is not in the home of root, which other users may not enter.
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a fresh name");
        Self::at(path)
    }

    /// Makes an empty directory in which all users may create files.
    pub fn open_to_all() -> Self {
        let scratch = Self::new();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        scratch
    }

    /// Makes a directory that has a folder to be guarded, [`Self::folder`].
    pub fn with_folder() -> Self {
        let scratch = Self::new();
        fs::create_dir(scratch.folder()).expect("a fresh directory");
        scratch
    }

    /// Takes this directory, which the test has made or will make, as its own.
    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Writes a file that only its owner may read, as one with secrets must be. Returns its path.
    pub fn secret_file(&self, name: &str, text: &str) -> String {
        let path = self.join(name);
        fs::write(&path, text).expect("a fresh directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        path.display().to_string()
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in the directory.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the path of the folder that guards of the test guard.
    pub fn folder(&self) -> PathBuf {
        self.join("folder")
    }

    /// Runs `latchfs guard init` on the folder.
    pub fn init(&self, options: &[&str]) {
        let mut command = latchfs();
        command.args(["guard", "init"]).arg(self.folder()).args(options);
        if options.contains(&"--server") {
            command.arg("--stage").arg(self.join("state"));
        }
        run(&mut command).ok();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The directory is not removed if a mount is still in it, because removing the files of a
        // mount would release locks.
        if !mounts().iter().any(|dir| dir.starts_with(&self.0)) {
            remove_tree(&self.0);
        }
    }
}

/// Returns all mount points of this mount namespace.
pub fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("proc is mounted");
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}
