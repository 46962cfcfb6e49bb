//! The versions that other machines have published and that no program of this machine has opened
//! since they arrived. A program that has an older version in its memory must not replace one
//! silently.
//!
//! The file `unread` of this machine: the versions of other machines that no program has opened, as
//! of the last time that some arrived.

use crate::guard::barrier_store::small_files::{give_name, read_at_most, write_temporary};
use crate::guard::disk::operations::{Disk, IfThere, Place};
use crate::guard::tenure::Owner;
use barrier::folder_path::FileStamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum number of versions that are known not to be read.
pub(crate) const UNREAD_MAX: usize = 1 << 20;
/// The maximum number of opened versions that are remembered while the lock is not held. Beyond it
/// all are forgotten: a save then puts a version aside that was read.
const OPENED_MAX: usize = 1 << 16;
/// The maximum number of owners who have opened one version, as far as that is remembered.
const READERS_MAX: usize = 16;

/// The handling of an unread version when a save replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadPolicy {
    /// Whether every save over an unread version is refused.
    pub(crate) is_careful: bool,
    /// How many bytes of unread versions are kept among the lost files.
    pub(crate) keep_bytes: u64,
}

impl UnreadPolicy {
    /// A save replaces an unread version, which is not kept.
    pub(crate) const NONE: Self = Self { is_careful: false, keep_bytes: 0 };
}

/// The versions that are kept: the numbers of the lost files with their sizes, the oldest first.
pub(crate) type KeptVersions = VecDeque<(u64, u64)>;

/// Why a save must not replace an unread version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnreadRefusal {
    /// The guard refuses every save over an unread version.
    Careful,
    /// The version is larger than everything that may be kept.
    TooLarge {
        /// The bytes that may be kept.
        max: u64,
    },
}

impl std::fmt::Display for UnreadRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another machine has published a version that no program here has opened")?;
        if let Self::TooLarge { max } = self {
            write!(f, ", and it has more than the {max} bytes that --keep-unread keeps")?;
        }
        f.write_str("; open the file, and save it again")
    }
}

/// The inode number and the size of a version. Its time may change after it has arrived: Syncthing
/// sets it once the file has its name.
type VersionKey = (u64, u64);

fn key(version: &FileStamp) -> VersionKey {
    (version.inode, version.size)
}

#[derive(Default)]
struct Memory {
    /// For each unread version: the stamp of its file when the version arrived, and the owners
    /// whose programs have opened it nevertheless. It is read once the host's owner has.
    unread: HashMap<VersionKey, (FileStamp, Vec<Owner>)>,
    /// The versions that programs have opened since the gate closed. They may be new ones.
    opened: HashSet<(VersionKey, Owner)>,
}

/// The versions that no program has opened.
#[derive(Default)]
pub(crate) struct UnreadVersions {
    memory: Mutex<Memory>,
    /// The number of unread versions.
    count: AtomicUsize,
}

impl UnreadVersions {
    /// Whether an open of a file must be recorded.
    pub(crate) fn is_watching(&self, is_held: bool) -> bool {
        !is_held || self.count.load(Ordering::Acquire) > 0
    }

    /// Records that a program of an owner has opened a version.
    pub(crate) fn opened(&self, version: FileStamp, owner: Owner, is_held: bool) {
        let mut memory = self.memory.lock();
        let Memory { unread, opened } = &mut *memory;
        if !is_held {
            if opened.len() >= OPENED_MAX {
                opened.clear();
            }
            opened.insert((key(&version), owner));
        }
        if owner == Owner::Host {
            unread.remove(&key(&version));
        } else if let Some((_, readers)) = unread.get_mut(&key(&version))
            && readers.len() < READERS_MAX
            && !readers.contains(&owner)
        {
            readers.push(owner);
        }
        self.count.store(unread.len(), Ordering::Release);
    }

    /// Records the versions that have arrived, and forgets those that are gone.
    pub(crate) fn arrived(
        &self,
        versions: impl Iterator<Item = FileStamp>,
        is_there: impl Fn(&FileStamp) -> bool,
    ) {
        let mut memory = self.memory.lock();
        let Memory { unread, opened } = &mut *memory;
        unread.retain(|_, (version, _)| is_there(version));
        for version in versions {
            let key = key(&version);
            let readers: Vec<_> = opened.iter().filter(|it| it.0 == key).map(|it| it.1).collect();
            if !readers.contains(&Owner::Host) && unread.len() < UNREAD_MAX {
                unread.insert(key, (version, readers));
            }
        }
        self.count.store(unread.len(), Ordering::Release);
    }

    /// Forgets what was opened before the gate opened.
    pub(crate) fn begin_tenure(&self) {
        self.memory.lock().opened.clear();
    }

    /// Whether no program of an owner has opened a version.
    pub(crate) fn is_unread(&self, version: &FileStamp, owner: Owner) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let memory = self.memory.lock();
        let readers = memory.unread.get(&key(version)).map(|(_, readers)| readers);
        readers.is_some_and(|readers| !readers.contains(&owner))
    }

    /// Returns the unread versions as a text for a file.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let memory = self.memory.lock();
        let version = |it: &FileStamp| json!([it.inode, it.size, it.mtime.to_string()]);
        let versions: Vec<_> = memory.unread.values().map(|(it, _)| version(it)).collect();
        json!({ "v": 1, "unread": versions }).to_string().into_bytes()
    }

    /// Returns the versions in a text that [`Self::to_text`] made, with no readers; `None` for
    /// another text.
    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let text: Value = serde_json::from_slice(text).ok()?;
        if text["v"] != 1 {
            return None;
        }
        let version = |it: &Value| {
            let (inode, size) = (it[0].as_u64()?, it[1].as_u64()?);
            let version = FileStamp { inode, size, mtime: it[2].as_str()?.parse().ok()? };
            Some((key(&version), (version, Vec::new())))
        };
        let unread: Option<HashMap<_, _>> =
            text["unread"].as_array()?.iter().map(version).collect();
        let unread = unread.filter(|unread| unread.len() <= UNREAD_MAX)?;
        let count = AtomicUsize::new(unread.len());
        Some(Self { memory: Mutex::new(Memory { unread, opened: HashSet::new() }), count })
    }
}

/// The maximum size of the file in bytes.
const UNREAD_BYTES_MAX: u64 = 128 * 1_024 * 1_024;
const NAME: &str = "unread";
const TEMPORARY: &str = "unread.tmp";
/// The mode of the file: the state directory is private.
const MODE: u32 = 0o600;

/// Reads the file `unread`.
pub(crate) fn read_unread<D: Disk>(disk: &D, dir: &D::Dir) -> io::Result<UnreadVersions> {
    let read = read_at_most(disk, Place::new(dir, NAME), UNREAD_BYTES_MAX)?;
    let Some((text, _)) = read else { return Ok(UnreadVersions::default()) };
    Ok(UnreadVersions::from_text(&text).unwrap_or_else(|| {
        log::warn!("nobody knows any more which versions of other machines were opened here");
        UnreadVersions::default()
    }))
}

/// Writes the file `unread`.
pub(crate) fn write_unread<D: Disk>(
    disk: &D,
    dir: &D::Dir,
    unread: &UnreadVersions,
) -> io::Result<()> {
    let temporary = Place::new(dir, TEMPORARY);
    write_temporary(disk, dir, MODE, &unread.to_text(), temporary)?;
    give_name(disk, temporary, Place::new(dir, NAME), IfThere::Replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(inode: u64) -> FileStamp {
        FileStamp { size: 1, mtime: -7, inode }
    }

    fn session(pid: u32) -> Owner {
        let leader = crate::holder_id::ProcessStart { pid, at: 1 };
        Owner::Session(crate::holder_id::LoginSession { leader, uid: 5 })
    }

    fn with(inodes: &[u64]) -> UnreadVersions {
        let unread = UnreadVersions::default();
        unread.arrived(inodes.iter().map(|inode| version(*inode)), |_| true);
        unread
    }

    #[test]
    fn a_version_is_unread_until_a_program_of_the_owner_opens_it() {
        let unread = with(&[1, 2]);
        assert!(unread.is_watching(true));
        let is = |inode, owner| unread.is_unread(&version(inode), owner);
        assert!(is(1, Owner::Host) && is(2, Owner::User(5)) && !is(3, Owner::Host));
        unread.opened(version(2), Owner::User(5), true);
        assert!(!is(2, Owner::User(5)) && is(2, Owner::User(6)));
        unread.opened(version(1), Owner::Host, true);
        assert!(!is(1, Owner::Host));
        unread.arrived([].into_iter(), |_| false);
        assert!(!is(2, Owner::User(6)) && !unread.is_watching(true));
    }

    /// The sync tool gives a file its name first, and its time afterwards.
    #[test]
    fn a_version_whose_time_is_set_after_it_has_arrived_is_the_same() {
        let unread = with(&[1, 2]);
        let later = |inode| FileStamp { mtime: 9, ..version(inode) };
        assert!(unread.is_unread(&later(1), Owner::Host));
        assert!(!unread.is_unread(&FileStamp { size: 2, ..later(1) }, Owner::Host));
        unread.opened(later(1), Owner::Host, true);
        assert!(
            !unread.is_unread(&version(1), Owner::Host)
                && !unread.is_unread(&later(1), Owner::Host)
        );
        unread.opened(version(3), Owner::Host, false);
        unread.arrived([later(3)].into_iter(), |_| true);
        assert!(!unread.is_unread(&later(3), Owner::Host));
    }

    /// A program may open a version before the guard knows that it is a new one.
    #[test]
    fn a_version_that_was_opened_before_the_comparison_is_read() {
        let unread = with(&[]);
        assert!(unread.is_watching(false) && !unread.is_watching(true));
        unread.opened(version(1), Owner::Host, false);
        unread.opened(version(2), session(9), false);
        unread.arrived([1, 2].map(version).into_iter(), |_| true);
        assert!(!unread.is_unread(&version(1), Owner::Host));
        assert!(!unread.is_unread(&version(2), session(9)));
        assert!(unread.is_unread(&version(2), session(8)));
        unread.begin_tenure();
        unread.arrived([version(1)].into_iter(), |_| true);
        assert!(unread.is_unread(&version(1), Owner::Host), "the inode number was used again");
    }

    #[test]
    fn unread_versions_survive_a_restart() {
        let again = UnreadVersions::from_text(&with(&[1, u64::MAX]).to_text()).expect("valid");
        assert!(again.is_unread(&version(1), Owner::Host));
        assert!(again.is_unread(&version(u64::MAX), Owner::User(1)));
        for text in ["", "[]", "{\"v\":2,\"unread\":[]}", "{\"v\":1,\"unread\":[[1,2]]}"] {
            assert!(UnreadVersions::from_text(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn the_number_of_unread_versions_has_a_bound() {
        let unread = UnreadVersions::default();
        unread.arrived((0..=UNREAD_MAX as u64).map(version), |_| true);
        assert_eq!(unread.memory.lock().unread.len(), UNREAD_MAX);
    }

    #[test]
    fn what_is_remembered_of_opens_has_a_bound() {
        let unread = with(&[0]);
        (0..=OPENED_MAX as u64).for_each(|it| unread.opened(version(it + 1), Owner::Host, false));
        assert_eq!(unread.memory.lock().opened.len(), 1);
        (0..99).for_each(|uid| unread.opened(version(0), Owner::User(uid), true));
        assert_eq!(unread.memory.lock().unread[&key(&version(0))].1.len(), READERS_MAX);
    }
}
