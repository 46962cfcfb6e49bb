//! Writes a file that appears under its name complete or not at all.

use super::super::disk::{Disk, IfThere, Place};
use std::io;

/// Removes a file if it is there.
pub(super) fn remove_if_there<D: Disk>(disk: &D, at: Place<'_, D::Dir>) -> io::Result<()> {
    match disk.remove_file(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Writes a file and syncs it under a temporary name, which replaces what an interrupted write left
/// there. The file inherits from the directory `near`, which is to become its own.
pub(super) fn write_temporary<D: Disk>(
    disk: &D,
    near: &D::Dir,
    mode: u32,
    bytes: &[u8],
    temporary: Place<'_, D::Dir>,
) -> io::Result<D::File> {
    let file = disk.unnamed_file(near, mode)?;
    disk.write(&file, 0, bytes)?;
    disk.sync_file(&file)?;
    remove_if_there(disk, temporary)?;
    disk.link(&file, temporary)?;
    Ok(file)
}

/// Gives a temporary file its name, durably. The temporary name is gone afterwards.
pub(super) fn give_name<D: Disk>(
    disk: &D,
    temporary: Place<'_, D::Dir>,
    to: Place<'_, D::Dir>,
    if_there: IfThere,
) -> io::Result<()> {
    if let Err(error) = disk.rename(temporary, to, if_there) {
        let _ = disk.remove_file(temporary);
        return Err(error);
    }
    disk.sync_dir(to.dir)
}
