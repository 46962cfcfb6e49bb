//! Names that a tenure makes and removes in the folder by way of its stage, where several machines
//! share the storage: directories, links and devices are made in the stage and leave it by a
//! rename, and what is removed enters it by one. Once a later tenure has removed the stage, each of
//! these renames fails, however late it comes.

use super::disk::{Disk, IfThere, Place};
use super::stage::{FILES, MADE, MOVED, PublishError, Stage};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::Ordering;

/// The name of what is made in a directory of its own, so that it inherits what the directory
/// passes on for which it is meant.
const HEIR: &str = "heir";

/// Makes something at a place.
pub(super) type Make<'a, Dir> = &'a dyn Fn(Place<'_, Dir>) -> io::Result<()>;

impl<D: Disk> Stage<D> {
    /// Returns the error of a rename between the stage and the folder. If it says that a name is
    /// gone, that is the name in the folder as long as the stage stands.
    pub(super) fn fenced_if_gone(&self, disk: &D, error: io::Error) -> PublishError {
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        if is_gone && disk.look(Place::new(&self.dir, FILES)).is_err() {
            PublishError::Fenced { is_kept: true }
        } else {
            PublishError::Disk(error)
        }
    }

    /// Makes a name in the folder. Fails with EEXIST if there is one.
    pub(super) fn make_name(
        &self,
        disk: &D,
        to: Place<'_, D::Dir>,
        make: Make<'_, D::Dir>,
    ) -> Result<(), PublishError> {
        let name = format!("{MADE}{}", self.next.fetch_add(1, Ordering::Relaxed));
        let own = Place::new(&self.files, &name);
        let heir = disk.make_heir_dir(own, to.dir);
        let heir = heir.map_err(|error| self.fenced_if_gone(disk, error))?;
        let staged = heir.as_ref().map_or(own, |dir| Place::new(dir, HEIR));
        let named = make(staged).map_err(|error| self.fenced_if_gone(disk, error));
        let named = named.and_then(|()| match disk.rename(staged, to, IfThere::Fail) {
            Err(_) if disk.id_of(staged).is_err() => Err(PublishError::Fenced { is_kept: true }),
            Err(error) => {
                let _ = remove_made(disk, staged);
                Err(self.fenced_if_gone(disk, error))
            }
            Ok(()) => Ok(()),
        });
        if heir.is_some() {
            let _ = disk.remove_dir(own);
        }
        named
    }

    /// Removes the name of a file of the folder. If the guard dies between the steps, the next
    /// fence puts the file back.
    pub(super) fn remove_name(
        &self,
        disk: &D,
        at: Place<'_, D::Dir>,
        path: &OsStr,
    ) -> Result<(), PublishError> {
        let name = format!("{MOVED}{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (staged, record) = (Place::new(&self.files, &name), Place::new(&self.in_place, &name));
        let recorded = disk.make_symlink(record, path);
        recorded.map_err(|error| self.fenced_if_gone(disk, error))?;
        let moved = disk.rename(at, staged, IfThere::Fail);
        let moved = moved.map_err(|error| self.fenced_if_gone(disk, error));
        let removed = moved.and_then(|()| {
            let done = match disk.look(staged) {
                // Programs have exchanged the file for a directory.
                Ok(found) if found.is_dir => disk
                    .rename(staged, at, IfThere::Fail)
                    .and(Err(io::Error::from_raw_os_error(libc::EISDIR))),
                _ => disk.remove_file(staged),
            };
            done.map_err(|error| match error.kind() {
                // The fence has put the file back.
                io::ErrorKind::NotFound => PublishError::Fenced { is_kept: true },
                _ => PublishError::Disk(error),
            })
        });
        // The next fence needs the record of a file that stays in the stage.
        if disk.id_of(staged).is_err() {
            let _ = disk.remove_file(record);
        }
        removed
    }
}

/// Removes what was made in a stage and has not left it: an entry, or a directory with one.
pub(super) fn remove_made<D: Disk>(disk: &D, at: Place<'_, D::Dir>) -> io::Result<()> {
    if !disk.look(at)?.is_dir {
        return disk.remove_file(at);
    }
    let dir = disk.open_dir(at)?;
    for entry in disk.entries(&dir)? {
        let inside = Place::new(&dir, &entry.name);
        if entry.is_dir { disk.remove_dir(inside) } else { disk.remove_file(inside) }?;
    }
    disk.remove_dir(at)
}
