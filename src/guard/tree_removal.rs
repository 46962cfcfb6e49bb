//! Removes a directory with everything in it, however deep it is.

use super::disk::{Disk, Place};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

/// Returns success if the name is gone: another process may have removed it.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes a directory of the state directory with everything in it. The file `first` in it is
/// removed before all others. No symlink is followed.
pub(crate) fn remove_tree<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    first: &OsStr,
) -> io::Result<()> {
    let dir = match disk.open_dir(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        dir => dir?,
    };
    unless_gone(disk.remove_file(Place::new(&dir, first)))?;
    let mut left = vec![OsString::new()];
    while let Some(path) = left.last().cloned() {
        let inside = Place::new(&dir, &path);
        disk.let_owner_write(inside)?;
        let opened = match disk.open_dir(inside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                left.pop();
                continue;
            }
            opened => opened?,
        };
        let before = left.len();
        for entry in disk.entries(&opened)? {
            if entry.is_dir {
                left.push(Path::new(&path).join(&entry.name).into_os_string());
            } else {
                unless_gone(disk.remove_file(Place::new(&opened, &entry.name)))?;
            }
        }
        if left.len() == before {
            left.pop();
            if !path.is_empty() {
                let (parent, name) = disk.open_parent(&dir, &path)?;
                unless_gone(disk.remove_dir(Place::new(&parent, &name)))?;
            }
        }
    }
    unless_gone(disk.remove_dir(at))
}
