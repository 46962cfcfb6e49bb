//! The file `unread` of this machine: the versions of other machines that no program has opened, as
//! of the last time that some arrived.

use super::super::disk::{Disk, IfThere, Place};
use super::super::unread::UnreadVersions;
use super::bounded_read::read_at_most;
use super::whole_write::{give_name, write_temporary};
use std::io;

/// The maximum size of the file in bytes.
const UNREAD_BYTES_MAX: u64 = 128 * 1_024 * 1_024;
const NAME: &str = "unread";
const TEMPORARY: &str = "unread.tmp";
/// The mode of the file: the state directory is private.
const MODE: u32 = 0o600;

/// Reads the file.
pub(crate) fn read_unread<D: Disk>(disk: &D, dir: &D::Dir) -> io::Result<UnreadVersions> {
    let read = read_at_most(disk, Place::new(dir, NAME), UNREAD_BYTES_MAX)?;
    let Some((text, _)) = read else { return Ok(UnreadVersions::default()) };
    Ok(UnreadVersions::from_text(&text).unwrap_or_else(|| {
        log::warn!("nobody knows any more which versions of other machines were opened here");
        UnreadVersions::default()
    }))
}

/// Writes the file.
pub(crate) fn write_unread<D: Disk>(
    disk: &D,
    dir: &D::Dir,
    unread: &UnreadVersions,
) -> io::Result<()> {
    let temporary = Place::new(dir, TEMPORARY);
    write_temporary(disk, dir, MODE, &unread.to_text(), temporary)?;
    give_name(disk, temporary, Place::new(dir, NAME), IfThere::Replace)
}
