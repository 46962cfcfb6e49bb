//! The files of a database, and what the view remembers of databases that programs have open.

use crate::guard::disk::operations::{FileId, FileStat};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The ends of the names of a database's files.
pub(in crate::guard::view) const DATABASE_FILES: [&[u8]; 3] = [b"", b"-wal", b"-journal"];

/// A file as it was when the gate closed for good.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::guard::view) struct ClosedVersion {
    pub(in crate::guard::view) file: FileStat,
    /// The path of the database to which the file may belong, and the database's files; `None`
    /// for a file without a name.
    pub(in crate::guard::view) database: Option<(PathBuf, [Option<FileStat>; 3])>,
}

impl ClosedVersion {
    /// Whether the file belongs to a database.
    pub(in crate::guard::view) fn is_of_database(&self) -> bool {
        self.database.as_ref().is_some_and(|(_, files)| files[1..].iter().any(Option::is_some))
    }
}

/// Returns the path of the database to which a file may belong: that of the file without the end
/// that marks a log or a journal.
pub(in crate::guard::view) fn database_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let ends = &DATABASE_FILES[1..];
    let stem = ends.iter().find_map(|end| name.strip_suffix(*end)).filter(|it| !it.is_empty());
    stem.map_or_else(
        || path.to_owned(),
        |stem| path.with_file_name(OsString::from_vec(stem.into())),
    )
}

/// Returns the path of a database's file with this end.
pub(in crate::guard::view) fn database_file(database: &Path, end: &[u8]) -> PathBuf {
    let name = database.file_name().unwrap_or_default().as_bytes();
    database.with_file_name(OsString::from_vec([name, end].concat()))
}

/// The maximum number of shared memories whose databases are remembered.
pub(super) const SHARED_MEMORIES_MAX: usize = 16_384;

/// The end of the name of a shared memory.
const SHM: &[u8] = b"-shm";

/// The files `X` and `X-wal` of a database, as far as they are there.
pub(in crate::guard::view) type Pair = [Option<FileId>; 2];

/// The files for which a shared memory was made.
pub(in crate::guard::view) struct MadeFor {
    pub(in crate::guard::view) pair: Pair,
    /// The versions that these files had when the gate last closed.
    pub(in crate::guard::view) closed: Option<[Option<FileStat>; 2]>,
}

/// The databases that the view remembers.
#[derive(Default)]
pub(in crate::guard::view) struct Databases {
    /// The shared memories that were made since the view was mounted. Nobody has an older one open.
    pub(in crate::guard::view) made_for: Mutex<HashMap<FileId, MadeFor>>,
    /// The databases that were changed while programs had them open, with the nodes of the files
    /// that these programs have open.
    pub(in crate::guard::view) parted: Mutex<Vec<(PathBuf, Vec<u64>)>>,
}

impl Databases {
    /// Remembers for which files a shared memory was made. Returns false if too many are in use.
    pub(in crate::guard::view) fn made(
        &self,
        memory: FileId,
        made_for: MadeFor,
        is_used: impl Fn(FileId) -> bool,
    ) -> bool {
        let mut all = self.made_for.lock();
        if all.len() >= SHARED_MEMORIES_MAX {
            all.retain(|memory, _| is_used(*memory));
        }
        let has_room = all.len() < SHARED_MEMORIES_MAX;
        if has_room {
            all.insert(memory, made_for);
        }
        has_room
    }
}

/// Returns the path of the database whose shared memory has this path.
pub(in crate::guard::view) fn database_of_shm(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let stem = name.strip_suffix(SHM).filter(|stem| !stem.is_empty())?;
    Some(path.with_file_name(std::ffi::OsStr::from_bytes(stem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_shared_memories_is_bounded() {
        let databases = Databases::default();
        let made = |inode, used_from| {
            let memory = FileId { device: 1, inode, born: 0 };
            let made_for = MadeFor { pair: [None; 2], closed: None };
            databases.made(memory, made_for, |file| file.inode >= used_from)
        };
        let count = SHARED_MEMORIES_MAX as u64;
        assert!((0..count).all(|inode| made(inode, 0)));
        assert!(!made(count, 0), "all are in use");
        assert!(made(count, 10));
        assert_eq!(databases.made_for.lock().len(), SHARED_MEMORIES_MAX - 9);
    }

    #[test]
    fn a_shared_memory_has_the_name_of_its_database() {
        let of = |path: &str| database_of_shm(Path::new(path));
        assert_eq!(of("d/x.db-shm"), Some(PathBuf::from("d/x.db")));
        assert_eq!((of("x.db"), of("d/-shm")), (None, None));
    }

    #[test]
    fn the_files_of_a_database_have_one_stem() {
        let of = |path: &str| database_of(Path::new(path)).display().to_string();
        assert_eq!(of("d/x.db-wal"), "d/x.db");
        assert_eq!(of("x-journal"), "x");
        assert_eq!(of("d/x.db"), "d/x.db");
        assert_eq!(of("d/-wal"), "d/-wal");
        assert_eq!(database_file(Path::new("d/x.db"), b"-wal"), Path::new("d/x.db-wal"));
    }
}
