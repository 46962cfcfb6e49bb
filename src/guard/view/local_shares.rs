//! What the local files of a view take: bytes on the disk and names, by the users who made them.

use super::super::disk::FileId;
use super::super::linux_disk::{allocated_in, id_in};
use super::super::space::GrowingPart;
use crate::fuse::kernel::own_user::own_uid;
use crate::shares::{Charges, TableFull, TableShare, UserLimits, UserTable};
use parking_lot::Mutex;
use rustix::fs::{FileType, Statx};
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of names of local files, of all users but root and the one who runs the
/// guard. A trash can of a desktop has one for each file in it.
const LOCAL_FILES_MAX: usize = 65_536;
/// The maximum number of bytes of local files on the disk, of the same users.
const LOCAL_BYTES_MAX: u64 = 10 << 30;

/// The tables of the local files.
pub(super) struct LocalShares {
    names: UserTable,
    bytes: UserTable,
    files: Mutex<HashMap<FileId, Arc<LocalUse>>>,
}

/// What one local file takes. Programs that have it open keep it after its last name was removed.
pub(super) struct LocalUse {
    owner: u32,
    names: Mutex<TableShare>,
    bytes: Mutex<Charges>,
}

impl Default for LocalShares {
    fn default() -> Self {
        let limits = |max| UserLimits { one: max / 2, users: max, all: usize::MAX };
        let bytes = usize::try_from(LOCAL_BYTES_MAX).unwrap_or(usize::MAX);
        Self {
            names: UserTable::new("local files", limits(LOCAL_FILES_MAX), own_uid()),
            bytes: UserTable::new("bytes of local files", limits(bytes), own_uid()),
            files: Mutex::default(),
        }
    }
}

impl LocalShares {
    /// Fails if a user may make no local file.
    pub(super) fn check(&self, uid: u32) -> Result<(), TableFull> {
        self.names.room(uid, 1)?;
        self.bytes.room(uid, 1)
    }

    /// Counts a local file that was made or found, or whose names or content have changed. A file
    /// without a name counts as long as the result is kept.
    pub(super) fn note(&self, found: &Statx) -> Arc<LocalUse> {
        let uid = found.stx_uid;
        let new = || {
            Arc::new(LocalUse {
                owner: uid,
                names: Mutex::new(self.names.take_always(uid, 0)),
                bytes: Mutex::new(Charges::new(self.bytes.clone())),
            })
        };
        let used = match found.stx_nlink {
            0 => new(),
            _ => Arc::clone(self.files.lock().entry(id_in(found)).or_insert_with(new)),
        };
        let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
        // The links of a directory are those of its subdirectories.
        let names = if kind == FileType::Directory { 1 } else { found.stx_nlink as usize };
        used.names.lock().set(names);
        if kind == FileType::RegularFile {
            used.settle(uid, found);
        }
        used
    }

    /// Counts the removal of a name of a local file, which had these attributes before.
    pub(super) fn removed(&self, found: &Statx) {
        let is_dir = FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::Directory;
        let mut files = self.files.lock();
        if is_dir || found.stx_nlink <= 1 {
            files.remove(&id_in(found));
        } else if let Some(used) = files.get(&id_in(found)) {
            used.names.lock().set(found.stx_nlink as usize - 1);
        }
    }
}

impl LocalUse {
    /// Takes the space for a part of the file that a user is about to write. The kernel names no
    /// user who writes through a mapping: the owner pays then.
    pub(super) fn reserve(&self, uid: Option<u32>, part: GrowingPart) -> Result<(), TableFull> {
        let mut bytes = self.bytes.lock();
        let more = part.takes(bytes.amount() as u64);
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        bytes.grow(uid.unwrap_or(self.owner), more)
    }

    /// Sets the bytes of the file to those that it has on the disk after a change by a user.
    pub(super) fn settle(&self, uid: u32, found: &Statx) {
        let bytes = usize::try_from(allocated_in(found)).unwrap_or(usize::MAX);
        self.bytes.lock().set(uid, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::linux_disk::stat;
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    #[test]
    fn local_files_of_one_user_have_a_share() {
        let shares = LocalShares::default();
        let file = File::open("/proc/self/exe").expect("there");
        let mut found = stat(file.as_fd()).expect("an open file");
        let (eve, ann) = (1_234_567, 1_234_568);
        (found.stx_uid, found.stx_nlink) = (eve, LOCAL_FILES_MAX as u32 / 2 - 1);
        shares.note(&found);
        assert_eq!(shares.check(eve), Ok(()));
        found.stx_nlink += 1;
        let used = shares.note(&found);
        assert_eq!(shares.check(eve).expect_err("no more").user(), Some(eve));
        assert_eq!((shares.check(ann), shares.check(0)), (Ok(()), Ok(())));
        shares.removed(&found);
        assert_eq!(shares.check(eve), Ok(()));
        let half = LOCAL_BYTES_MAX / 2;
        let part = |bytes| GrowingPart { offset: 0, bytes, is_dense: false };
        assert!(used.reserve(Some(eve), part(half)).is_err(), "the file has some bytes already");
        found.stx_blocks = half / 512;
        used.settle(eve, &found);
        assert!(shares.check(eve).is_err() && shares.check(ann).is_ok());
        assert!(
            used.reserve(Some(eve), part(1)).is_err() && used.reserve(Some(0), part(1)).is_ok()
        );
        found.stx_nlink = 1;
        shares.removed(&found);
        drop(used);
        assert_eq!((shares.check(eve), shares.bytes.taken()), (Ok(()), 0));
        found.stx_nlink = 0;
        let open = shares.note(&found);
        assert!(shares.bytes.taken() > 0, "its content is there as long as it is open");
        drop(open);
        assert_eq!(shares.bytes.taken(), 0);
    }
}
