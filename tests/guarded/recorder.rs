//! A reader of a folder that runs beside a test, and records each version of each file that it
//! sees.

use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The digest of a file's content.
pub(crate) type Version = [u8; 32];

/// The versions of each path of a folder.
pub(crate) type Versions = BTreeMap<PathBuf, BTreeSet<Version>>;

/// Calls `seen` with the path and the content of each regular file below a directory. Files that
/// disappear meanwhile are left out.
pub(crate) fn read_all(dir: &Path, seen: &mut impl FnMut(&Path, &[u8])) {
    let mut waiting = vec![dir.to_owned()];
    while let Some(next) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && entry.file_name() != ".latchfs" {
                waiting.push(path);
            } else if kind.is_file() && !kind.is_fifo() {
                let Ok(content) = fs::read(&path) else { continue };
                seen(path.strip_prefix(dir).unwrap_or(&path), &content);
            }
        }
    }
}

/// Returns the digest of a content.
pub(crate) fn version(content: &[u8]) -> Version {
    Sha256::digest(content).into()
}

/// Returns the version of each file below a directory.
pub(crate) fn versions_in(dir: &Path) -> Versions {
    let mut versions = Versions::new();
    read_all(dir, &mut |path, content| {
        versions.entry(path.to_owned()).or_default().insert(version(content));
    });
    versions
}

/// A thread that reads all files of a folder again and again.
pub(crate) struct Recorder {
    is_over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Versions>>,
}

impl Recorder {
    pub(crate) fn start(dir: &Path) -> Self {
        let (is_over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (dir, over, count) = (dir.to_owned(), Arc::clone(&is_over), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let mut all = Versions::new();
            while !over.load(Ordering::Acquire) {
                read_all(&dir, &mut |path, content| {
                    all.entry(path.to_owned()).or_default().insert(version(content));
                });
                count.fetch_add(1, Ordering::Release);
            }
            all
        });
        Self { is_over, rounds, thread: Some(thread) }
    }

    /// Waits until each file was read once more from its beginning to its end.
    pub(crate) fn next_round(&self) {
        let before = self.rounds.load(Ordering::Acquire);
        testing::soon("another round", || {
            (self.rounds.load(Ordering::Acquire) >= before + 2).then_some(())
        });
    }

    /// Ends the thread. Returns all versions that it saw, and how often it read the folder.
    pub(crate) fn end(mut self) -> (Versions, u64) {
        self.is_over.store(true, Ordering::Release);
        let thread = self.thread.take().expect("it runs");
        (thread.join().expect("no panic"), self.rounds.load(Ordering::Acquire))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
