//! The lock (flock) on a guarded folder itself, by which the guards of different users see each
//! other. Every user who can read the folder can take this lock, so it stops a guard only if
//! another guard has it, of a user who has a right to guard the folder. What decides between the
//! guards of one user is the lock in their private state directory.

use crate::base::said;
use rustix::fs::FlockOperation;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

/// The name of the program of a guard.
const PROGRAM: &str = "latchfs";

/// A process that has locked a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Locker {
    /// The process id.
    pub(crate) pid: u32,
    /// The user of the process.
    uid: u32,
    /// The name of its program.
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
        // Not the owner of /proc/PID, which is root for a process that hides its memory.
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
    /// It has the lock, as long as the descriptor of the folder is open.
    Own,
    /// A program has the lock that is no guard. It can't be seen, if it is not named.
    Others(Option<Locker>),
    /// Another guard has the lock.
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
    pub(crate) fn wait_for(&self, dir: &OwnedFd, folder: &std::path::Path) -> io::Result<()> {
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
        let open = || OwnedFd::from(fs::File::open(&path).expect("there"));
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
