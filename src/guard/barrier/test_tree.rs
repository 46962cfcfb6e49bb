//! A folder in memory, for tests.

use super::content_digest::ContentDigest;
use super::folder_path::FolderPath;
use super::tree::{FileStamp, FolderTree, FoundFile};
use std::collections::BTreeMap;
use std::io;

/// A folder in memory. Each version of a file has an inode and a time of its own.
#[derive(Debug, Clone, Default)]
pub(super) struct TestTree {
    pub(super) files: BTreeMap<FolderPath, (FoundFile, Vec<u8>)>,
    /// How many files were hashed.
    pub(super) hashed: usize,
    /// A file that changes while it is hashed.
    pub(super) busy: Option<FolderPath>,
    /// A directory on which something is mounted.
    pub(super) mounted: Option<FolderPath>,
    /// A file that a walk misses.
    pub(super) missed: Option<FolderPath>,
    next: u64,
}

pub(super) fn path(text: &str) -> FolderPath {
    FolderPath::parse(text).expect("valid")
}

impl TestTree {
    pub(super) fn put(&mut self, name: &str, content: &[u8]) {
        self.next += 1;
        let size = content.len() as u64;
        let stamp = FileStamp { size, mtime: i128::from(self.next), inode: self.next };
        let found = FoundFile { stamp, changed: 0, mode: 0o644, is_downloaded: true };
        self.files.insert(path(name), (found, content.to_vec()));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.files.remove(&path(name)).expect("there");
    }
}

impl FolderTree for TestTree {
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()> {
        for (path, (found, _)) in &self.files {
            let is_below = self.mounted.as_ref().is_some_and(|dir| path.is_below(dir));
            if !is_below && self.missed.as_ref() != Some(path) {
                visit(path.clone(), *found);
            }
        }
        Ok(())
    }

    fn look(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>> {
        let is_hidden = self.is_hidden(path)?;
        Ok(self.files.get(path).filter(|_| !is_hidden).map(|(found, _)| *found))
    }

    fn is_hidden(&mut self, path: &FolderPath) -> io::Result<bool> {
        Ok(self.mounted.as_ref().is_some_and(|dir| path.is_below(dir)))
    }

    fn digest(&mut self, path: &FolderPath, _: &FoundFile) -> io::Result<Option<ContentDigest>> {
        self.hashed += 1;
        let is_busy = self.busy.as_ref() == Some(path);
        let there = self.files.get(path).filter(|_| !is_busy);
        Ok(there.map(|(_, content)| ContentDigest::of(content)))
    }
}
