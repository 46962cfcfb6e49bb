//! Reads files that have a maximum size, and notices when they are changed meanwhile.

use super::super::barrier::content_digest::ContentDigest;
use super::super::disk::{Disk, Look, Place};
use sha2::{Digest as _, Sha256};
use std::io;

/// The number of bytes that are read at a time.
const BLOCK_BYTES: usize = 128 * 1_024;

/// Whether an error says that no file that counts has the path: nothing, a symlink or a mount point
/// on the way, another kind of file, or a name that the file system can't have.
pub(super) fn is_absent(error: &io::Error) -> bool {
    let absent =
        [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EXDEV, libc::ENXIO, libc::ENAMETOOLONG];
    error.raw_os_error().is_some_and(|errno| absent.contains(&errno))
}

/// Returns `None` for a file that is not there.
pub(super) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Passes the content of an open file on in blocks. Returns whether it had exactly the size that
/// `look` says, and is still the file at which `look` looked.
fn read_blocks<D: Disk>(
    disk: &D,
    file: &D::File,
    look: &Look,
    mut take: impl FnMut(&[u8]),
) -> io::Result<bool> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut offset = 0;
    loop {
        let length = disk.read(file, offset, &mut block)?;
        offset += length as u64;
        if length == 0 || offset > look.size {
            break;
        }
        take(&block[..length]);
    }
    Ok(offset == look.size && disk.look_file(file)? == *look)
}

/// Returns the digest of an open file; `None` if it was changed while it was read.
pub(in crate::guard) fn digest_of<D: Disk>(
    disk: &D,
    file: &D::File,
    look: &Look,
) -> io::Result<Option<ContentDigest>> {
    let mut digest = Sha256::new();
    let is_whole = read_blocks(disk, file, look, |bytes| digest.update(bytes))?;
    Ok(is_whole.then(|| ContentDigest(digest.finalize().into())))
}

/// Returns the content of a regular file, and the look at it; `None` if there is none. Fails if the
/// file has more than `bytes_max` bytes, or is changed while it is read.
pub(super) fn read_at_most<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    bytes_max: u64,
) -> io::Result<Option<(Vec<u8>, Look)>> {
    let Some(file) = if_there(disk.open_to_read(at))? else { return Ok(None) };
    let look = disk.look_file(&file)?;
    if look.size > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    let mut bytes = Vec::new();
    if read_blocks(disk, &file, &look, |block| bytes.extend_from_slice(block))? {
        Ok(Some((bytes, look)))
    } else {
        Err(io::Error::other("it was changed while it was read"))
    }
}
