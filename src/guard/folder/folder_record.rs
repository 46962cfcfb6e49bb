//! The record that makes a folder a guarded one: `.latchfs/folder`, with the id of the folder, and
//! the lock service that decides who may change it.
//!
//! The lock (flock) on a guarded folder itself, by which the guards of different users see each
//! other. Every user who can read the folder can take this lock, so it stops a guard only if
//! another guard has it, of a user who has a right to guard the folder. The lock in their private
//! state directory decides between the guards of one user.

use crate::base::{random, said};
use crate::engine;
use crate::engine::{ClientId, LockName};
#[cfg(target_os = "linux")]
use crate::guard::disk::linux_disk::{give_to_owner, make_dir_as_owner, open_below};
#[cfg(not(target_os = "linux"))]
use crate::guard::disk::plain_disk::{give_to_owner, make_dir_as_owner, open_below};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io, thread};

/// The version of the record of a folder without markers.
const VERSION: u32 = 1;
/// The version of the record of a folder with markers: a guard that does not know them would change
/// the folder without a word to the others.
const VERSION_MARKED: u32 = 2;
/// The maximum size of the record in bytes. A sync tool may have put any file there.
const RECORD_BYTES_MAX: u64 = 64 * 1_024;
/// The directory of the guard in a guarded folder.
const DIR: &str = ".latchfs";
/// The path of the record in a guarded folder.
pub(crate) const RECORD_PATH: &str = ".latchfs/folder";
/// The text of the file README in the directory of the guard.
const README: &str = "\
The folder above this directory is guarded by latchfs: the file 'folder' holds its id. Programs \
change it through a view, 'latchfs guard FOLDER VIEW', and only while this machine holds its lock. \
Keep this directory, and let your sync tool carry it.
";

/// The record of a guarded folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FolderRecord {
    /// The version of the record.
    pub(crate) v: u32,
    /// The id of the folder: 32 hexadecimal digits.
    pub(crate) id: String,
    /// The URL of the server that decides about the lock; `None` for a folder that only guards of
    /// this machine change.
    #[serde(default)]
    pub(crate) server: Option<String>,
    /// The id of the engine that decides about the lock: 16 hexadecimal digits.
    pub(crate) engine: String,
    /// The id of the storage that several machines share, which lies in the state directory as
    /// well; `None` if each machine has a copy of the folder.
    #[serde(default)]
    pub(crate) storage: Option<String>,
}

/// Why a folder has no usable record.
#[derive(Debug)]
pub(crate) enum RecordError {
    /// The folder is not guarded yet.
    None(PathBuf),
    /// The folder is guarded already.
    Exists(PathBuf, String),
    /// The record is not one of this version.
    Damaged(PathBuf, String),
    /// A symlink or a file stands in the way to the record.
    Symlink(PathBuf),
    /// The record can't be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None(folder) => {
                let folder = folder.display();
                write!(
                    f,
                    "{folder} is not guarded yet; run 'latchfs guard init {folder} --alone' if \
                     only this machine changes it, or 'latchfs guard init {folder} --server URL', \
                     on one machine, if several do"
                )
            }
            Self::Exists(folder, id) => {
                let folder = folder.display();
                write!(
                    f,
                    "{folder} is guarded already (id {id}); run 'latchfs guard {folder} VIEW', or \
                     'latchfs guard init {folder} --new-id' if it is a copy of another folder"
                )
            }
            Self::Damaged(path, why) => write!(
                f,
                "{} is no record of a guarded folder: {why}; restore it from another machine or a \
                 backup",
                path.display()
            ),
            Self::Symlink(path) => write!(
                f,
                "a symlink or a file stands in the way to {}, and a guard follows no symlink; \
                 remove it, and restore the directory '.latchfs' from another machine or a backup",
                path.display()
            ),
            Self::Io(path, error) => {
                write!(f, "{} can't be used: {}", path.display(), said(error))
            }
        }
    }
}

/// Returns a random id of 32 hexadecimal digits.
pub(crate) fn random_id() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// Whether a text is an id of `length` hexadecimal digits, so that it can be part of a path.
fn is_id(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a text can be the id of a folder.
pub(crate) fn is_folder_id(text: &str) -> bool {
    is_id(text, 32)
}

/// Opens the folder itself.
fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}

/// Whether a path was not opened because a symlink, or a file, stands where a directory should. A
/// program that may write in the folder can put one there, and the guard, which may be root, must
/// not follow it.
fn is_symlink(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR))
}

/// Writes a file that does not exist yet. Anybody who may read the directory may read it: a sync
/// tool runs as another user than root. The owner of the directory may replace it.
fn write_new(dir: &OwnedFd, name: &str, text: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
    let mut file = File::from(file);
    file.write_all(text)?;
    give_to_owner(file.as_fd(), dir.as_fd())?;
    file.sync_all()
}

impl FolderRecord {
    /// Returns the record of a new guarded folder.
    pub(crate) fn new(server: Option<String>, engine: u64, is_shared: bool) -> Self {
        let is_marked = server.is_some() && !is_shared;
        Self {
            v: if is_marked { VERSION_MARKED } else { VERSION },
            id: random_id(),
            server,
            engine: format!("{engine:016x}"),
            storage: is_shared.then(random_id),
        }
    }

    /// Whether machines have copies of the folder, which a sync tool carries. Where they share one
    /// storage, each sees the files of the others at once, and there is no sync barrier; nor is
    /// there one where only this machine changes the folder.
    pub(crate) fn has_copies(&self) -> bool {
        self.server.is_some() && self.storage.is_none()
    }

    /// Returns the record of a folder that was made before there were markers, as it is once the
    /// first one is written; `None` for another folder.
    pub(crate) fn with_markers(&self) -> Option<Self> {
        let is_older = self.has_copies() && self.v < VERSION_MARKED;
        is_older.then(|| Self { v: VERSION_MARKED, ..self.clone() })
    }

    /// Returns the name of the folder's lock.
    pub(crate) fn lock(&self) -> String {
        format!("folder-{}", self.id)
    }

    /// Returns the id of the engine as a number.
    pub(crate) fn engine_id(&self) -> u64 {
        u64::from_str_radix(&self.engine, 16).unwrap_or(0)
    }

    /// Reads the record of a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, RecordError> {
        let path = folder.join(DIR).join("folder");
        let failed = |error| RecordError::Io(path.clone(), error);
        let root = open_folder(folder).map_err(failed)?;
        let below = Path::new(DIR).join("folder");
        let opened = match open_below(root.as_fd(), &below, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RecordError::None(folder.to_owned()));
            }
            Err(error) if is_symlink(&error) => return Err(RecordError::Symlink(path)),
            opened => File::from(opened.map_err(failed)?),
        };
        let found = opened.metadata().map_err(failed)?;
        if !found.is_file() || found.len() > RECORD_BYTES_MAX {
            let why = "it is not a small regular file".to_owned();
            return Err(RecordError::Damaged(path, why));
        }
        let mut text = Vec::new();
        opened.take(RECORD_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
        let record: Self = serde_json::from_slice(&text)
            .map_err(|error| RecordError::Damaged(path.clone(), error.to_string()))?;
        if ![VERSION, VERSION_MARKED].contains(&record.v) {
            let why =
                format!("it has version {}, and this latchfs knows {VERSION_MARKED}", record.v);
            return Err(RecordError::Damaged(path, why));
        }
        let storage = record.storage.as_deref().unwrap_or_default();
        if !is_folder_id(&record.id)
            || !is_id(&record.engine, 16)
            || !(storage.is_empty() || is_id(storage, 32))
        {
            return Err(RecordError::Damaged(
                path,
                "its ids are no hexadecimal numbers".to_owned(),
            ));
        }
        Ok(record)
    }

    /// Makes the directory of the record in a folder that has none, or may get another one with
    /// `replace`.
    pub(crate) fn make_dir(folder: &Path, replace: bool) -> Result<OwnedFd, RecordError> {
        let dir = folder.join(DIR);
        let path = dir.join("folder");
        let failed = |error| RecordError::Io(path.clone(), error);
        if !replace && let Ok(there) = Self::read(folder) {
            return Err(RecordError::Exists(folder.to_owned(), there.id));
        }
        let root = open_folder(folder).map_err(failed)?;
        match make_dir_as_owner(root.as_fd(), OsStr::new(DIR)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RecordError::Io(dir, error));
            }
            _ => {}
        }
        let opened = open_below(root.as_fd(), Path::new(DIR), OFlags::RDONLY | OFlags::DIRECTORY);
        match opened {
            Err(error) if is_symlink(&error) => Err(RecordError::Symlink(dir)),
            opened => opened.map_err(failed),
        }
    }

    /// Writes the record of a folder that has none, or replaces it with `replace`.
    pub(crate) fn write(&self, folder: &Path, replace: bool) -> Result<(), RecordError> {
        let path = folder.join(DIR).join("folder");
        let failed = |error| RecordError::Io(path.clone(), error);
        let opened = Self::make_dir(folder, replace)?;
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        // git does not list the directory as untracked.
        for (name, text) in [("README", README), (".gitignore", "*\n")] {
            match write_new(&opened, name, text.as_bytes()) {
                // A file that is there already stays.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                written => written.map_err(failed)?,
            }
        }
        let temporary = format!("folder.{}.tmp", random_id());
        write_new(&opened, &temporary, &text).map_err(failed)?;
        let renamed = rustix::fs::renameat(&opened, &temporary, &opened, "folder");
        renamed.map_err(|error| failed(error.into()))?;
        File::from(opened).sync_all().map_err(failed)?;
        Ok(())
    }
}

/// Returns the sentence for a folder whose lock the engine `recorded` decides, when a server has
/// the engine `found`.
pub(crate) fn another_engine(recorded: u64, found: u64) -> String {
    format!(
        "the folder's lock is decided by the engine {recorded:016x}, and this is {found:016x}: the \
         server was replaced or restored from a backup, or its URL leads to another one; use the \
         right server, or, if it is gone for good, stop all guards of the folder and run 'latchfs \
         guard init FOLDER --new-id' on the machine whose files count"
    )
}

/// The record of a folder as a guard has read it at its start. A sync tool may bring another one.
#[derive(Debug, Clone)]
pub(crate) struct StartedRecord {
    folder: PathBuf,
    record: Option<FolderRecord>,
}

impl StartedRecord {
    /// Returns the record that a guard of the folder has found, if there was one.
    pub(crate) fn new(folder: &Path, record: Option<FolderRecord>) -> Self {
        Self { folder: folder.to_owned(), record }
    }

    /// Returns a sentence that says what to do if another lock decides about the folder by now. A
    /// record that can't be read, for example while a sync tool replaces it, says nothing.
    pub(crate) fn replaced(&self) -> Option<String> {
        let started = self.record.as_ref()?;
        let now = FolderRecord::read(&self.folder).ok()?;
        let is_same = (&now.id, &now.engine, &now.storage)
            == (&started.id, &started.engine, &started.storage);
        (!is_same).then(|| {
            format!(
                "the folder has another id by now ({} in place of {}), since 'latchfs guard init \
                 --new-id' was run here or on another machine; end this guard by 'latchfs umount \
                 VIEW', and start it again",
                now.id, started.id
            )
        })
    }
}

/// As whom and how a guard holds the lock of its folder.
#[derive(Debug, Clone)]
pub(crate) struct LockIdentity {
    /// The engine that decides about the lock, as the folder's record says; `None` if it is an
    /// engine of this process.
    pub(crate) engine: Option<u64>,
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The client as which the guard holds the lock.
    pub(crate) client: ClientId,
    /// How long the lock stays held without a sign of life of the guard.
    pub(crate) ttl: engine::Ttl,
    /// The id of the guard's process, as a lock record shows it.
    pub(crate) holder_id: std::sync::Arc<str>,
    /// Whether the guard holds the lock alone, or other machines may hold it at the same time.
    pub(crate) mode: engine::Mode,
    /// Whether the lock service remembers the handovers of the folder.
    pub(crate) remembers: bool,
    /// The record that names the engine and the lock.
    pub(crate) record: StartedRecord,
}

/// The name of the program of a guard.
const PROGRAM: &str = "latchfs";

/// A process that has locked a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locker {
    /// The process id.
    pub(crate) pid: u32,
    /// The user of the process.
    uid: u32,
    /// The name of the process's program.
    program: String,
}

impl fmt::Display for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({}) of user {}", self.pid, self.program.escape_debug(), self.uid)
    }
}

/// Returns the process ids in the text of `/proc/locks` that have an inode locked by flock(2).
fn lockers_in(locks: &str, device: Option<(u32, u32)>, inode: u64) -> Vec<u32> {
    let pid = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else { return None };
        let mut file = file.split(':');
        let (major, minor, found) = (file.next()?, file.next()?, file.next()?);
        let found_device =
            (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let is_same = device.is_none_or(|device| device == found_device);
        (is_same && found.parse() == Ok(inode)).then(|| pid.parse().ok())?
    };
    locks.lines().filter_map(pid).collect()
}

impl Locker {
    /// Returns the process that has a directory locked; `None` if it has ended, or can't be seen.
    pub(crate) fn of(dir: &impl AsFd) -> Option<Self> {
        let found = rustix::fs::fstat(dir).ok()?;
        let device = found.st_dev;
        let device = Some((rustix::fs::major(device), rustix::fs::minor(device)));
        let locks = fs::read_to_string("/proc/locks").ok()?;
        // A subvolume of btrfs has another device number than its file system.
        let exact = lockers_in(&locks, device, found.st_ino);
        let all = if exact.is_empty() { lockers_in(&locks, None, found.st_ino) } else { exact };
        all.into_iter().find_map(Self::running)
    }

    /// Returns a process that runs.
    fn running(pid: u32) -> Option<Self> {
        // The user is read from `status`: the owner of /proc/PID is root for a process that hides
        // its memory.
        let status = fs::read(format!("/proc/{pid}/status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let uid = field("Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
        // Each process chooses its own name; a user may read the program of own processes only.
        let program = match fs::read_link(format!("/proc/{pid}/exe")) {
            Ok(path) => path.file_name()?.to_string_lossy().into_owned(),
            Err(_) => field("Name:")?.trim().to_owned(),
        };
        let program = program.trim_end_matches(" (deleted)").to_owned();
        Some(Self { pid, uid, program })
    }

    /// Whether the process is a guard of a user who may guard a directory: root, the owner, or the
    /// user of this process.
    pub(crate) fn may_guard(&self, dir: &impl AsFd) -> bool {
        let owner = rustix::fs::fstat(dir).ok().map(|found| found.st_uid);
        let own = rustix::process::geteuid().as_raw();
        self.program == PROGRAM && (self.uid == 0 || self.uid == own || Some(self.uid) == owner)
    }
}

/// Whether this process has the lock on a folder itself.
#[derive(Debug)]
pub(crate) enum FolderClaim {
    /// This process has the lock, as long as the descriptor of the folder is open.
    Own,
    /// A program that is no guard has the lock; `None` if the program can't be seen.
    Others(Option<Locker>),
    /// Another guard has the lock; `None` if its process can't be seen.
    Guarded(Option<Locker>),
}

impl FolderClaim {
    /// Locks an open folder against guards of other users, unless a program has locked it.
    pub(crate) fn take(dir: &OwnedFd) -> io::Result<Self> {
        match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self::Own),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(match Locker::of(dir) {
                Some(locker) if locker.may_guard(dir) => Self::Guarded(Some(locker)),
                None if !cfg!(target_os = "linux") => Self::Guarded(None),
                locker => Self::Others(locker),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits on another thread for the lock that another program has, and warns of that program.
    pub(crate) fn wait_for(&self, dir: &OwnedFd, folder: &Path) -> io::Result<()> {
        let Self::Others(locker) = self else { return Ok(()) };
        let who =
            locker.as_ref().map_or("a program that can't be seen".to_owned(), Locker::to_string);
        log::warn!(
            "{who} has locked {} itself; this guard starts all the same, and a guard of another \
             user would not see it until that lock is free",
            folder.display()
        );
        let dir = dir.try_clone()?;
        let wait = move || {
            if let Err(error) = rustix::fs::flock(&dir, FlockOperation::LockExclusive) {
                log::warn!("the folder can't be locked: {}", said(&io::Error::from(error)));
            }
        };
        thread::Builder::new().name("folder-lock".to_owned()).spawn(wait).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_gets_one_record() {
        let dir = std::env::temp_dir().join(format!("latchfs-record-{}", std::process::id()));
        fs::create_dir(&dir).expect("a fresh directory");
        let none = FolderRecord::read(&dir).expect_err("there is none").to_string();
        assert!(none.contains("--alone") && none.contains("--server URL"), "{none}");
        let record = FolderRecord::new(None, 7, false);
        record.write(&dir, false).expect("written");
        assert_eq!(FolderRecord::read(&dir).expect("there is one"), record);
        let other = FolderRecord::new(None, 7, false);
        let twice = other.write(&dir, false).expect_err("there is one").to_string();
        assert!(twice.contains(&record.id) && twice.contains("--new-id"), "{twice}");
        other.write(&dir, true).expect("replaced");
        assert_eq!(FolderRecord::read(&dir).expect("there is one").id, other.id);
        fs::write(dir.join(".latchfs/folder"), vec![b' '; RECORD_BYTES_MAX as usize + 1])
            .expect("written");
        let long = FolderRecord::read(&dir).expect_err("it is too long").to_string();
        assert!(long.contains("is no record"), "{long}");
        for text in
            ["{", r#"{"v":2,"id":"a","engine":"b"}"#, r#"{"v":1,"id":"../..","engine":"0"}"#]
        {
            fs::write(dir.join(".latchfs/folder"), text).expect("written");
            let wrong = FolderRecord::read(&dir).expect_err("it is wrong").to_string();
            assert!(wrong.contains("is no record"), "{text}: {wrong}");
        }
        fs::remove_dir_all(&dir).expect("it is there");
    }

    #[test]
    fn the_version_says_whether_there_are_markers() {
        let server = || Some("http://127.0.0.1:1".to_owned());
        let copies = FolderRecord::new(server(), 7, false);
        assert!(copies.v == 2 && copies.has_copies() && copies.with_markers().is_none());
        for other in [FolderRecord::new(None, 7, false), FolderRecord::new(server(), 7, true)] {
            assert!(other.v == 1 && !other.has_copies() && other.with_markers().is_none());
        }
        let older = FolderRecord { v: 1, ..copies.clone() };
        assert_eq!(older.with_markers(), Some(copies));
    }
}

#[cfg(test)]
mod folder_claim_tests {
    use super::*;

    #[test]
    fn the_processes_that_hold_a_flock_are_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 00:2f:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 6 00:2f:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 7 00:2f:77 0 EOF\n\
                     3: FLOCK  ADVISORY  READ 8 00:30:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 9 00:2f:78 0 EOF\nbroken\n";
        assert_eq!(lockers_in(locks, Some((0, 0x2f)), 77), [6]);
        assert_eq!(lockers_in(locks, None, 77), [6, 8]);
        assert_eq!(lockers_in(locks, Some((1, 0x2f)), 77), [0; 0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_is_no_guard_does_not_decide() {
        let path = std::env::temp_dir().join(format!("latchfs-claim-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        let open = || OwnedFd::from(File::open(&path).expect("there"));
        let (first, second) = (open(), open());
        assert!(matches!(FolderClaim::take(&first), Ok(FolderClaim::Own)));
        let claim = FolderClaim::take(&second).expect("tried");
        let FolderClaim::Others(Some(locker)) = &claim else { panic!("{claim:?}") };
        assert_eq!(locker.pid, std::process::id());
        let guard = Locker { program: PROGRAM.to_owned(), ..locker.clone() };
        assert!(guard.may_guard(&second) && !locker.may_guard(&second));
        assert!(!Locker { uid: 4_001, ..guard }.may_guard(&second));
        // The lock is this guard's as soon as it is free.
        claim.wait_for(&second, &path).expect("a thread");
        drop(first);
        let third = open();
        let free = || rustix::fs::flock(&third, FlockOperation::NonBlockingLockExclusive);
        while free().is_ok() {
            rustix::fs::flock(&third, FlockOperation::Unlock).expect("ours");
            thread::yield_now();
        }
        fs::remove_dir(&path).expect("it is there");
    }
}
