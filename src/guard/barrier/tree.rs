//! The files that stand in the folder, as a trait: the barrier decides over it without a disk.

use super::content_digest::ContentDigest;
use super::folder_path::FolderPath;
use std::collections::HashMap;
use std::io;

/// Tells two versions of a file apart without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileStamp {
    /// The size in bytes.
    pub(crate) size: u64,
    /// When the content was last changed, in nanoseconds since 1970; programs can set this.
    pub(crate) mtime: i128,
    /// The inode number.
    pub(crate) inode: u64,
}

/// A regular file of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundFile {
    /// Tells the version of the file.
    pub(crate) stamp: FileStamp,
    /// When the file was last changed in any way, in nanoseconds since 1970.
    pub(crate) changed: i128,
    /// The mode bits.
    pub(crate) mode: u32,
    /// Whether the content is here, and not a placeholder of the sync tool.
    pub(crate) is_downloaded: bool,
}

/// The regular files of a folder. The directory of the guard is no part of it, symlinks are not
/// followed, and other kinds of files do not count.
pub(crate) trait FolderTree {
    /// Calls `visit` for each regular file.
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()>;
    /// Returns the regular file that has a path.
    fn look(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>>;
    /// Whether something is mounted on a path or above it: nobody can say then what stands there.
    fn is_hidden(&mut self, path: &FolderPath) -> io::Result<bool>;
    /// Returns the digest of a file's content; `None` if it is no longer the file `found`, or was
    /// changed meanwhile.
    fn digest(&mut self, path: &FolderPath, found: &FoundFile)
    -> io::Result<Option<ContentDigest>>;
}

/// Returns the error for a path on whose directory something is mounted, and of which a list must
/// say how it stands.
pub(super) fn hidden(path: &FolderPath) -> io::Error {
    io::Error::other(format!(
        "nobody can say whether {path} is there, since something is mounted above it; unmount that"
    ))
}

/// The maximum number of files whose digest is remembered while the folder is not ready.
pub(crate) const DIGESTS_MAX: usize = 65_536;

/// The digests of files that are not in the ledger, so that a folder that is looked at again and
/// again is hashed once.
#[derive(Debug, Default)]
pub(crate) struct DigestCache {
    known: HashMap<FolderPath, (FileStamp, ContentDigest)>,
}

impl DigestCache {
    /// Returns the digest of a file.
    pub(crate) fn digest(
        &mut self,
        tree: &mut dyn FolderTree,
        path: &FolderPath,
        found: &FoundFile,
    ) -> io::Result<Option<ContentDigest>> {
        if let Some((stamp, digest)) = self.known.get(path)
            && *stamp == found.stamp
        {
            return Ok(Some(*digest));
        }
        let digest = tree.digest(path, found)?;
        if let Some(digest) = digest {
            if self.known.len() >= DIGESTS_MAX {
                self.known.clear();
            }
            self.known.insert(path.clone(), (found.stamp, digest));
        }
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_tree::TestTree;
    use super::*;

    #[test]
    fn remembered_digests_have_a_bound() {
        let mut cache = DigestCache::default();
        let mut tree = TestTree::default();
        for number in 0..=DIGESTS_MAX {
            let path = FolderPath::parse(&format!("{number}")).expect("valid");
            let stamp = FileStamp { size: 0, mtime: 0, inode: 0 };
            cache.known.insert(path, (stamp, ContentDigest::of(b"")));
        }
        tree.put("a", b"one");
        let path = FolderPath::parse("a").expect("valid");
        let found = tree.look(&path).expect("no disk").expect("there");
        let digest = cache.digest(&mut tree, &path, &found).expect("no disk");
        assert_eq!(digest, Some(ContentDigest::of(b"one")));
        assert_eq!(cache.known.len(), 1);
    }

    #[test]
    fn a_file_is_hashed_once() {
        let (mut cache, mut tree) = (DigestCache::default(), TestTree::default());
        tree.put("a", b"one");
        let path = FolderPath::parse("a").expect("valid");
        for _ in 0..3 {
            let found = tree.look(&path).expect("no disk").expect("there");
            cache.digest(&mut tree, &path, &found).expect("no disk");
        }
        assert_eq!(tree.hashed, 1);
        tree.put("a", b"two");
        let found = tree.look(&path).expect("no disk").expect("there");
        let digest = cache.digest(&mut tree, &path, &found).expect("no disk");
        assert_eq!((digest, tree.hashed), (Some(ContentDigest::of(b"two")), 2));
    }
}
