//! Lists the files of a tree with their digests.

use super::super::barrier::content_digest::ContentDigest;
use super::super::disk::{Disk, Place};
use super::snapshot_manifest::{EntryKind, ManifestEntry};
use super::tree_walk::{Walked, WalkedKind, walk};
use sha2::{Digest as _, Sha256};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// The number of bytes that are read at a time.
const BLOCK_BYTES: usize = 128 * 1_024;

/// Returns the size and the digest of a regular file.
pub(crate) fn digest_of<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
) -> io::Result<(u64, ContentDigest)> {
    let file = disk.open_to_read(at)?;
    let (mut block, mut digest, mut offset) = (vec![0; BLOCK_BYTES], Sha256::new(), 0);
    loop {
        let length = disk.read(&file, offset, &mut block)?;
        digest.update(&block[..length]);
        offset += length as u64;
        if length < BLOCK_BYTES {
            return Ok((offset, ContentDigest(digest.finalize().into())));
        }
    }
}

/// Returns the entry of a visited file; `None` for one that no snapshot holds.
pub(crate) fn entry_of<D: Disk>(
    disk: &D,
    walked: &Walked<'_, D>,
) -> io::Result<Option<ManifestEntry>> {
    let (kind, size, digest) = match &walked.kind {
        WalkedKind::Dir => (EntryKind::Dir, 0, ContentDigest::of(b"")),
        WalkedKind::Symlink(target) => {
            (EntryKind::Symlink, target.len() as u64, ContentDigest::of(target.as_bytes()))
        }
        WalkedKind::File => {
            let (size, digest) = digest_of(disk, walked.at)?;
            (EntryKind::File, size, digest)
        }
        WalkedKind::Other(_) => return Ok(None),
    };
    let (path, mode) = (walked.path.to_owned(), walked.found.mode);
    Ok(Some(ManifestEntry { kind, path, mode, size, digest }))
}

/// Returns the entries of all files below `root`, and of the root itself. `on_file` is called for
/// each.
pub(crate) fn entries_of<D: Disk>(
    disk: &D,
    root: &D::Dir,
    is_left_out: impl Fn(&OsStr) -> bool,
    on_file: &dyn Fn(),
) -> io::Result<Vec<ManifestEntry>> {
    let mode = disk.attributes(Place::new(root, "."))?.mode;
    let (path, digest) = (OsString::new(), ContentDigest::of(b""));
    let mut all = vec![ManifestEntry { kind: EntryKind::Dir, path, mode, size: 0, digest }];
    walk(disk, root, is_left_out, |walked| {
        on_file();
        all.extend(entry_of(disk, &walked)?);
        Ok(())
    })?;
    Ok(all)
}
