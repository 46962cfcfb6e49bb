//! A file that a program of the view writes as a whole: it has no name before it is published.

use super::disk::Disk;
use super::space::{NoSpace, Space};
use super::tenure::TenureId;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

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
    space: Arc<Space>,
    /// The bytes of space that the content takes.
    counted: Mutex<u64>,
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
        space: Arc<Space>,
    ) -> Self {
        let path = path.to_owned();
        let state = StagedState { save: SaveState::Unpublished, path, is_exclusive };
        Self { file, tenure, uid, state: Mutex::new(state), space, counted: Mutex::new(0) }
    }

    /// Takes the space for `bytes` of content that end at the offset `end`. Holes of the file take
    /// none.
    pub(crate) fn reserve(&self, end: u64, bytes: u64) -> Result<(), NoSpace> {
        let mut counted = self.counted.lock();
        let more = end.saturating_sub(*counted).min(bytes);
        if more > 0 {
            self.space.take(more)?;
            *counted += more;
        }
        Ok(())
    }

    /// Sets the counted bytes to the size of the file, which is not more than was reserved.
    pub(crate) fn settle(&self, size: u64) {
        let mut counted = self.counted.lock();
        if size < *counted {
            self.space.give(*counted - size);
            *counted = size;
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

    /// Gives the space back after the content was published or put aside. Returns the bytes.
    pub(super) fn give_space(&self) -> u64 {
        let counted = std::mem::take(&mut *self.counted.lock());
        self.space.give(counted);
        counted
    }

    /// Replaces the state by the result of `change`, which no other thread sees half done.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SaveState, &OsStr) -> T) -> T {
        let mut state = self.state.lock();
        let StagedState { save, path, .. } = &mut *state;
        change(save, path)
    }
}

impl<D: Disk> Drop for StagedFile<D> {
    fn drop(&mut self) {
        self.give_space();
    }
}
