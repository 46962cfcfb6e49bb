//! A file that a program of the view writes as a whole: it has no name before it is published.

use super::disk::Disk;
use super::space::{GrowingPart, NoSpace, StagedSpace};
use super::tenure::TenureId;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};

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
    pub(super) fn new(
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
    pub(super) fn is_exclusive(&self) -> bool {
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
    pub(super) fn give_space(&self) {
        *self.space.lock() = None;
    }

    /// Replaces the state by the result of `change`, which no other thread sees half done.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SaveState, &OsStr) -> T) -> T {
        let mut state = self.state.lock();
        let StagedState { save, path, .. } = &mut *state;
        change(save, path)
    }
}
