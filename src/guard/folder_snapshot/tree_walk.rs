//! Visits the files of a tree, each directory before its entries.

use super::super::disk::{Attributes, Disk, Place};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

/// The type of a visited file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalkedKind {
    /// A directory, whose entries are visited later.
    Dir,
    /// A regular file.
    File,
    /// A symlink, with its target.
    Symlink(OsString),
    /// Something else, and the words for it.
    Other(&'static str),
}

/// A visited file.
pub(crate) struct Walked<'a, D: Disk> {
    /// The directory in which the file lies.
    pub(crate) at: Place<'a, D::Dir>,
    /// The path below the root.
    pub(crate) path: &'a OsStr,
    /// The attributes.
    pub(crate) found: Attributes,
    /// The type.
    pub(crate) kind: WalkedKind,
}

/// Whether an error says that a file has gone since its name was read.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE))
}

fn kind_of<D: Disk>(disk: &D, at: Place<'_, D::Dir>, found: &Attributes) -> io::Result<WalkedKind> {
    if found.is_mount_point {
        return Ok(WalkedKind::Other("a mount point"));
    }
    if found.look.is_dir {
        return Ok(WalkedKind::Dir);
    }
    if found.look.is_file {
        return Ok(WalkedKind::File);
    }
    match disk.read_symlink(at) {
        Ok(target) => Ok(WalkedKind::Symlink(target)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(WalkedKind::Other("a FIFO, a socket or a device"))
        }
        Err(error) => Err(error),
    }
}

/// Calls `visit` for each file below `root` for which `is_left_out` is false. A file that goes
/// meanwhile is passed over, and so is a directory in whose place another one is: its files would
/// be taken for those of the one that was visited.
pub(crate) fn walk<D: Disk>(
    disk: &D,
    root: &D::Dir,
    is_left_out: impl Fn(&OsStr) -> bool,
    mut visit: impl FnMut(Walked<'_, D>) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = vec![(OsString::new(), None)];
    while let Some((dir_path, visited)) = left.pop() {
        let dir = match disk.open_dir(Place::new(root, &dir_path)) {
            Err(error) if is_gone(&error) => continue,
            dir => dir?,
        };
        if visited.is_some_and(|id| disk.id_of(Place::new(&dir, ".")).ok() != Some(id)) {
            continue;
        }
        for entry in disk.entries(&dir)? {
            let path = Path::new(&dir_path).join(&entry.name).into_os_string();
            if is_left_out(&path) {
                continue;
            }
            let at = Place::new(&dir, &entry.name);
            let looked = disk.attributes(at).and_then(|it| Ok((it, kind_of(disk, at, &it)?)));
            let (found, kind) = match looked {
                Err(error) if is_gone(&error) => continue,
                looked => looked?,
            };
            let (is_dir, id) = (kind == WalkedKind::Dir, found.look.id);
            visit(Walked { at, path: &path, found, kind })?;
            if is_dir {
                left.push((path, Some(id)));
            }
        }
    }
    Ok(())
}
