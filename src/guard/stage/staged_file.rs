//! A file that a program of the view writes as a whole: it has no name before it is published.
//!
//! Names that a tenure makes and removes in the folder by way of its stage, where several machines
//! share the storage: directories, links and devices are made in the stage and leave it by a
//! rename, and what is removed enters it by one. Once a later tenure has removed the stage, each of
//! these renames fails, however late it comes.

use super::publish::{FILES, MADE, MOVED, PublishError, Stage};
use crate::guard::disk::operations::{Disk, FolderName, IfThere, Place};
use crate::guard::lost_files::{GrowingPart, NoSpace, StagedSpace};
use barrier::tenure_id::TenureId;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::Ordering;

/// The effect of the end of a tenure on the files that were being saved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PutAside {
    /// The numbers of the files that are now among the lost files, with their paths.
    pub(crate) kept: Vec<(u64, String)>,
    /// The paths of the files that could not be kept.
    pub(crate) failed: Vec<String>,
}

/// The state of a file that is saved as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SaveState {
    /// The file is not in the folder yet.
    Unpublished,
    /// The file is in the folder. Later writes change it in place.
    Published,
    /// A write failed with this errno, so the file must not be published.
    Spoiled(i32),
    /// The content is among the lost files under this number, or was lost with an error (`None`).
    PutAside(Option<u64>),
}

/// A file that is saved as a whole in one tenure.
pub(crate) struct StagedFile<D: Disk> {
    /// The open file.
    pub(crate) file: D::File,
    /// The tenure in which the program opened the file.
    pub(crate) tenure: TenureId,
    /// The user that opened the file.
    pub(crate) uid: u32,
    state: Mutex<StagedState>,
    /// The space that the content takes; `None` once it was published or put aside.
    space: Mutex<Option<StagedSpace>>,
}

struct StagedState {
    save: SaveState,
    /// The path in the folder at which the file is going to appear.
    path: OsString,
    /// Whether the program asked for a new file (`O_EXCL`), so that no other may be replaced.
    is_exclusive: bool,
}

impl<D: Disk> StagedFile<D> {
    /// Returns a file that is not published yet.
    pub(in crate::guard) fn new(
        file: D::File,
        tenure: TenureId,
        uid: u32,
        path: &OsStr,
        is_exclusive: bool,
        space: StagedSpace,
    ) -> Self {
        let path = path.to_owned();
        let state = StagedState { save: SaveState::Unpublished, path, is_exclusive };
        Self { file, tenure, uid, state: Mutex::new(state), space: Mutex::new(Some(space)) }
    }

    /// Takes the space for a part of the content that a user is about to write.
    pub(crate) fn reserve(&self, uid: u32, part: GrowingPart) -> Result<(), NoSpace> {
        self.space.lock().as_mut().map_or(Ok(()), |space| space.reserve(uid, part))
    }

    /// Sets the space of the content to the bytes that it has on the disk after a change by a user.
    pub(crate) fn settle(&self, uid: u32, bytes: u64) {
        if let Some(space) = &mut *self.space.lock() {
            space.settle(uid, bytes);
        }
    }

    /// Returns the state of the file.
    pub(crate) fn save_state(&self) -> SaveState {
        self.state.lock().save
    }

    /// Returns the path in the folder at which the file is going to appear.
    pub(crate) fn path(&self) -> OsString {
        self.state.lock().path.clone()
    }

    /// Changes the path at which the file is going to appear.
    pub(crate) fn set_path(&self, path: &OsStr) {
        path.clone_into(&mut self.state.lock().path);
    }

    /// Records that the program has renamed the file. A file that has the new name is replaced.
    pub(crate) fn rename(&self, path: &OsStr) {
        let mut state = self.state.lock();
        path.clone_into(&mut state.path);
        state.is_exclusive = false;
    }

    /// Whether the file must not replace another one.
    pub(in crate::guard) fn is_exclusive(&self) -> bool {
        self.state.lock().is_exclusive
    }

    /// Records that a write failed with `errno`, unless the file is published already.
    pub(crate) fn spoil(&self, errno: i32) {
        let mut state = self.state.lock();
        if state.save == SaveState::Unpublished {
            state.save = SaveState::Spoiled(errno);
        }
    }

    /// Gives the space back after the content was published or put aside.
    pub(in crate::guard) fn give_space(&self) {
        *self.space.lock() = None;
    }

    /// Replaces the state by the result of `change`, which no other thread sees half done.
    pub(in crate::guard) fn change<T>(
        &self,
        change: impl FnOnce(&mut SaveState, &OsStr) -> T,
    ) -> T {
        let mut state = self.state.lock();
        let StagedState { save, path, .. } = &mut *state;
        change(save, path)
    }
}

/// The name that a new entry has in a directory of its own in the stage, which inherits what the
/// entry's directory in the folder passes on.
const HEIR: &str = "heir";

/// Makes something at a place.
pub(in crate::guard) type Make<'a, Dir> = &'a dyn Fn(Place<'_, Dir>) -> io::Result<()>;

impl<D: Disk> Stage<D> {
    /// Returns the error of a rename between the stage and the folder. If it says that a name is
    /// gone, that is the name in the folder as long as the stage stands.
    pub(super) fn fenced_if_gone(&self, disk: &D, error: io::Error) -> PublishError {
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        if is_gone && disk.stat(Place::new(&self.dir, FILES)).is_err() {
            PublishError::Fenced { is_kept: true }
        } else {
            PublishError::Disk(error)
        }
    }

    /// Makes a name in the folder. Fails with EEXIST if there is one.
    pub(in crate::guard) fn make_name(
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

    /// Removes the name of a file, or of an empty directory, of the folder. If the guard dies
    /// between the steps, the next fence puts it back.
    pub(in crate::guard) fn remove_name(
        &self,
        disk: &D,
        FolderName { at, path }: FolderName<'_, D::Dir>,
        removed: Removed,
    ) -> Result<(), PublishError> {
        let name = format!("{MOVED}{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (staged, record) = (Place::new(&self.files, &name), Place::new(&self.in_place, &name));
        let recorded = disk.make_symlink(record, path);
        recorded.map_err(|error| self.fenced_if_gone(disk, error))?;
        let moved = disk.rename(at, staged, IfThere::Fail);
        let moved = moved.map_err(|error| self.fenced_if_gone(disk, error));
        let done = moved.and_then(|()| {
            removed.remove(disk, staged).map_err(|error| match error.kind() {
                // The fence has put the file back.
                io::ErrorKind::NotFound => PublishError::Fenced { is_kept: true },
                _ => match disk.rename(staged, at, IfThere::Fail) {
                    Ok(()) => PublishError::Disk(error),
                    Err(back) => self.fenced_if_gone(disk, back),
                },
            })
        });
        // The next fence needs the record of what stays in the stage.
        if disk.id_of(staged).is_err() {
            let _ = disk.remove_file(record);
        }
        done
    }
}

/// What a program removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard) enum Removed {
    /// A file, or anything else that is no directory.
    File,
    /// An empty directory.
    Dir,
}

impl Removed {
    /// Removes the file or directory from the stage, unless programs have exchanged a file for a
    /// directory, or the other way round.
    fn remove<D: Disk>(self, disk: &D, staged: Place<'_, D::Dir>) -> io::Result<()> {
        match (self, disk.stat(staged)?.is_dir) {
            (Self::File, false) => disk.remove_file(staged),
            (Self::Dir, true) => disk.remove_dir(staged),
            (Self::File, true) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            (Self::Dir, false) => Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
}

/// Removes what was made in a stage and has not left it: an entry, or a directory with one.
pub(in crate::guard) fn remove_made<D: Disk>(disk: &D, at: Place<'_, D::Dir>) -> io::Result<()> {
    if !disk.stat(at)?.is_dir {
        return disk.remove_file(at);
    }
    let dir = disk.open_dir(at)?;
    for entry in disk.entries(&dir)? {
        let inside = Place::new(&dir, &entry.name);
        if entry.is_dir { disk.remove_dir(inside) } else { disk.remove_file(inside) }?;
    }
    disk.remove_dir(at)
}
