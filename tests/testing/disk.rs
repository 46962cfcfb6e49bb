//! Small file systems that a test fills, or makes read-only.

use crate::command::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small tmpfs, which is unmounted when this value is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Makes a directory, and mounts a tmpfs there with these options, such as `size=2m`.
    #[track_caller]
    pub fn new(path: PathBuf, options: &str) -> Self {
        fs::create_dir(&path).expect("a fresh name");
        let disk = Self(path);
        disk.mount(&["-t", "tmpfs", "-o", options, "tmpfs"]);
        disk
    }

    #[track_caller]
    fn mount(&self, arguments: &[&str]) {
        run(Command::new("mount").args(arguments).arg(&self.0)).ok();
    }

    /// Returns the path of the mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Mounts the disk again with other options.
    #[track_caller]
    pub fn remount(&self, options: &str) {
        self.mount(&["-o", &format!("remount,{options}")]);
    }

    /// Writes a file until the disk is full, so that later writes fail with ENOSPC.
    #[track_caller]
    pub fn fill(&self) {
        // The write has more bytes than the disk, so it must fail.
        let filled = fs::write(self.0.join("fill"), vec![0; 64 << 20]);
        assert!(filled.is_err(), "the disk is full");
    }

    /// Removes the file of [`Self::fill`].
    #[track_caller]
    pub fn empty(&self) {
        fs::remove_file(self.0.join("fill")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        let _gone = umount.arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}
