//! The directory of one measurement, which is removed at its end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("latchfs-bench-{}-{count}", process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A mount leaves the directory below its mount point immutable, so the flag is cleared
        // first.
        let mut chattr = process::Command::new("chattr");
        let _ = chattr.args(["-R", "-f", "-i"]).arg(&self.0).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}
