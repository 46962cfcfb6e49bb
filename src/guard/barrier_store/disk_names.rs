//! Finds the name on the disk that belongs to a path of the folder. Paths are in Unicode
//! normalization form C; a name on the disk need not be.

use super::super::barrier::folder_path::FolderPath;
use super::super::disk::{Disk, Place};
use super::bounded_read::if_there;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use unicode_normalization::UnicodeNormalization as _;

/// Whether a name in another form could have this path. Three characters of ASCII are the form C of
/// others.
fn may_differ(path: &str) -> bool {
    !path.is_ascii() || path.contains(['K', ';', '`'])
}

/// Whether a name on the disk is in form C.
pub(super) fn is_composed(name: &str) -> bool {
    name.is_ascii() || unicode_normalization::is_nfc(name)
}

/// Returns the name in a directory whose form C is `part`. If there are several, it is the one in
/// that form, or else the first in the order of their bytes.
fn name_in<D: Disk>(disk: &D, dir: &D::Dir, part: &str) -> io::Result<Option<OsString>> {
    if if_there(disk.look(Place::new(dir, part)))?.is_some() {
        return Ok(Some(part.into()));
    }
    let mut first: Option<OsString> = None;
    if may_differ(part) {
        disk.visit_entries(dir, &mut |entry| {
            let is_it = entry.name.to_str().is_some_and(|name| name.nfc().eq(part.chars()));
            if is_it && first.as_ref().is_none_or(|first| entry.name < *first) {
                first = Some(entry.name);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(first)
}

/// Returns the directory that has a path on the disk; `None` if there is none.
pub(super) fn open_dir_at<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    path: &OsStr,
) -> io::Result<Option<D::Dir>> {
    if path.is_empty() {
        return disk.reopen_dir(folder).map(Some);
    }
    let mut below = path.to_owned();
    below.push("/-");
    Ok(if_there(disk.open_parent(folder, &below))?.map(|(dir, _)| dir))
}

/// Returns the directory and the name on the disk of the file that has a path.
pub(super) fn find<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    path: &FolderPath,
) -> io::Result<Option<(D::Dir, OsString)>> {
    let text = path.as_str();
    if let Some((dir, name)) = if_there(disk.open_parent(folder, OsStr::new(text)))?
        && if_there(disk.look(Place::new(&dir, &name)))?.is_some()
    {
        return Ok(Some((dir, name)));
    }
    if !may_differ(text) {
        return Ok(None);
    }
    let mut dir = disk.reopen_dir(folder)?;
    let mut parts = text.split('/').peekable();
    while let Some(part) = parts.next() {
        let Some(name) = name_in(disk, &dir, part)? else { return Ok(None) };
        if parts.peek().is_none() {
            return Ok(Some((dir, name)));
        }
        let Some(next) = if_there(disk.open_dir(Place::new(&dir, &name)))? else {
            return Ok(None);
        };
        dir = next;
    }
    Ok(None)
}

/// Whether something is mounted on a path of the folder, or on a directory above it.
pub(super) fn is_hidden<D: Disk>(disk: &D, folder: &D::Dir, path: &FolderPath) -> io::Result<bool> {
    let mut dir = disk.reopen_dir(folder)?;
    for part in path.as_str().split('/') {
        let Some(name) = name_in(disk, &dir, part)? else { return Ok(false) };
        let at = Place::new(&dir, &name);
        match if_there(disk.attributes(at))? {
            Some(found) if found.is_mount_point => return Ok(true),
            Some(found) if found.look.is_dir => {}
            _ => return Ok(false),
        }
        dir = match disk.open_dir(at) {
            // Something was mounted on it just now.
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => return Ok(true),
            opened => match if_there(opened)? {
                Some(dir) => dir,
                None => return Ok(false),
            },
        };
    }
    Ok(false)
}
