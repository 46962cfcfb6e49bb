//! One machine's copy of the folder: two files, each a version by number or absent.

use super::super::content_digest::ContentDigest;
use super::super::folder_path::FolderPath;
use super::super::ledger::Ledger;
use super::super::tree::{FileStamp, FolderTree, FoundFile};
use std::io;

/// The number of paths.
pub(super) const PATHS: usize = 2;
/// How each path stands: the number of a version, 0 if it is absent.
pub(super) type Contents = [u8; PATHS];

/// Returns the path with this number.
pub(super) fn path(at: usize) -> FolderPath {
    FolderPath::parse(["a", "b"][at]).expect("valid")
}

/// Returns the number of a path.
pub(super) fn number(path: &FolderPath) -> usize {
    usize::from(path.as_str() == "b")
}

/// Returns the digest of a version. All versions have one size.
pub(super) fn digest(version: u8) -> ContentDigest {
    ContentDigest::of(&[version])
}

/// Returns what tells a version apart; `None` if it is absent.
pub(super) fn stamp(version: u8) -> Option<FileStamp> {
    let inode = u64::from(version);
    (version > 0).then_some(FileStamp { size: 1, mtime: i128::from(version), inode })
}

/// Returns how a ledger, with its log, says that a path stands.
pub(super) fn known(ledger: &Ledger, at: usize) -> u8 {
    let entry = || ledger.entry(&path(at)).map(|entry| entry.stamp);
    let known = ledger.log().get(&path(at)).map_or_else(entry, |change| change.after);
    known.map_or(0, |stamp| stamp.inode as u8)
}

/// A copy of the folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelFolder {
    pub(super) contents: Contents,
    /// The digests that a comparison by size would take for those of the files.
    pub(super) assumed: Option<[ContentDigest; PATHS]>,
}

impl FolderTree for ModelFolder {
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()> {
        for at in 0..PATHS {
            if let Some(found) = self.look(&path(at))? {
                visit(path(at), found);
            }
        }
        Ok(())
    }

    fn look(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>> {
        let stamp = stamp(self.contents[number(path)]);
        let of = |stamp| FoundFile { stamp, changed: 0, mode: 0o644, is_downloaded: true };
        Ok(stamp.map(of))
    }

    fn is_hidden(&mut self, _: &FolderPath) -> io::Result<bool> {
        Ok(false)
    }

    fn digest(&mut self, path: &FolderPath, _: &FoundFile) -> io::Result<Option<ContentDigest>> {
        let at = number(path);
        let of = || digest(self.contents[at]);
        Ok(Some(self.assumed.map_or_else(of, |assumed| assumed[at])))
    }
}
