//! Mounting and unmounting: one directory, one session with the kernel, one thread.

use super::LatchFs;
pub use super::config::{Content, HoldBy, MountConfig, Owner, Users};
use super::device::{self, DEVICE, Gone, HELPER, detach, unmount};
use super::kept;
use super::mountinfo::{self, Device, Life};
use super::owner;
use super::seal::{self, Below};
use crate::auth::{ClientPattern, Grant};
use crate::engine::ClientId;
use crate::os_error::said;
use crate::service::Locks;
use fuser::{Config, Session, SessionACL};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A session ends within microseconds of its unmounting; who waits longer waits for a bug.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A directory that is mounted. Dropping it unmounts.
pub struct Mounted {
    dir: PathBuf,
    made_dir: bool,
    device: Device,
    session: Arc<Ending>,
}

/// Tells that a session with the kernel has ended.
#[derive(Default)]
struct Ending {
    state: Mutex<End>,
    ended: Condvar,
}

#[derive(Default)]
struct End {
    over: bool,
    then: Vec<Box<dyn FnOnce() + Send>>,
}

/// What unmounting did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// It was there, and went so.
    Now(Gone),
    /// It was not there any more.
    Before,
}

/// Why a directory can't be mounted.
#[derive(Debug)]
pub enum MountError {
    /// There is no /dev/fuse.
    NoDevice,
    /// /dev/fuse may not be opened.
    DeviceDenied,
    /// /dev/fuse can't be opened, or no socket be made.
    Device(io::Error),
    /// There is no fusermount3, and the caller is not root.
    NoHelper,
    /// fusermount3 says no.
    Helper(String),
    /// /etc/fuse.conf does not allow it to serve others.
    AllowOther,
    /// mount(2) says no.
    Refused {
        /// The mount point.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// One of ours is there already, and lives.
    Already(PathBuf),
    /// One of ours is there already, and does not answer.
    Silent(PathBuf),
    /// It lies in one of ours, where all that is made is a lock.
    Inside {
        /// What it is called.
        dir: PathBuf,
        /// The mount.
        mount: PathBuf,
    },
    /// It has entries, which a mount would hide.
    Entries {
        /// The directory.
        dir: PathBuf,
        /// Some of them.
        entries: String,
    },
    /// A latchfs of root has sealed it.
    Sealed(PathBuf),
    /// It is no directory, or can't be made one.
    Dir {
        /// What it is called.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel and we do not understand each other.
    Handshake(io::Error),
}

/// Mounts `config.dir`, and serves it on a thread of its own until it is unmounted.
///
/// Makes the directory if there is none, and removes what a killed daemon left mounted there.
pub fn mount(locks: &Locks, config: &MountConfig) -> Result<Mounted, MountError> {
    let (dir, made_dir) = prepare(&config.dir, config.nonempty)?;
    let config = MountConfig { dir: dir.clone(), ..config.clone() };
    let mut below = match Below::open(&dir) {
        Ok(below) => Some(below),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            return Err(MountError::Sealed(dir));
        }
        // Whether it can be mounted on, the mounting shows.
        Err(_) => None,
    };
    let kernel = device::mount(&dir, config.users)?;
    if let Some(below) = below.as_mut().filter(|_| !config.nonempty) {
        seal(&dir, below);
    }
    let found = match mountinfo::at(&dir) {
        Ok(Some(mount)) => mount,
        failed => {
            let _ = detach(&dir);
            let error = failed.err().unwrap_or_else(|| ErrorKind::NotFound.into());
            return Err(MountError::Refused { dir, error });
        }
    };
    // From here on a return unmounts.
    let mounted = Mounted { dir, made_dir, device: found.device, session: Arc::default() };

    let acl = match config.users {
        Users::Mounter => SessionACL::Owner,
        Users::All => SessionACL::All,
    };
    let mut session_config = Config::default();
    // One thread keeps the order of messages: with more, a close is seen after a later lock.
    session_config.n_threads = Some(1);
    session_config.acl = acl;
    let session = LatchFs::new(locks.clone(), &config, found.follows_symlinks);
    let shared = Arc::clone(&session.0);
    let session = match Session::from_fd(session, kernel, acl, session_config) {
        Ok(session) => session,
        Err(error) => {
            mounted.session.end();
            return Err(MountError::Handshake(error));
        }
    };
    kept::start(&shared, session.notifier(), session.as_fd().as_raw_fd());
    let ending = Arc::clone(&mounted.session);
    let served = thread::Builder::new().name("mount".into()).spawn(move || {
        if let Err(error) = session.run() {
            log::warn!("the session with the kernel ended: {error}");
        }
        ending.end();
    });
    if let Err(error) = served {
        mounted.session.end();
        return Err(MountError::Handshake(error));
    }
    Ok(mounted)
}

/// Seals the directory below a mount.
fn seal(dir: &Path, below: &mut Below) {
    const UNSEALED: &str = "while nothing is mounted there, files in it lock nothing";
    let dir = dir.display();
    match below.seal() {
        Ok(is_for_root) if is_for_root || !device::is_root() => {}
        Ok(_) => log::warn!("{dir} can't be made immutable, so root can write in it: {UNSEALED}"),
        Err(error) => log::warn!("{dir} can't be sealed: {}; {UNSEALED}", said(&error)),
    }
}

/// The client of the user of this process, on the host `host`: as a mount of that host calls it.
pub fn client_of_user(host: &ClientId) -> ClientId {
    owner::client_of_user(host, device::own_uid())
}

/// What a user of this machine may do over HTTP beside these mounts: what it may do by them.
/// `None`: none of them serves that user.
pub fn grant_of_user(mounts: &[MountConfig], uid: u32) -> Option<Grant> {
    if uid == 0 || uid == device::own_uid() {
        let anybody = vec![ClientPattern::Beginning(String::new())];
        return Some(Grant::of_user(uid, anybody, true));
    }
    let serving = mounts.iter().filter(|mount| mount.users == Users::All);
    let clients = serving.map(|mount| {
        let own = || owner::client_of_user(&mount.client, uid).to_string();
        match mount.owner {
            Owner::Host => ClientPattern::Exactly(mount.client.to_string()),
            Owner::User => ClientPattern::Exactly(own()),
            Owner::Session => ClientPattern::Beginning(format!("{}:", own())),
        }
    });
    let clients: Vec<_> = clients.collect();
    (!clients.is_empty()).then(|| Grant::of_user(uid, clients, false))
}

/// Whether there is a mount of ours at `dir` that somebody serves: nothing can be mounted then,
/// and to know it first makes a better sentence than that the state directory is in use.
pub fn check(dir: &Path, nonempty: bool) -> Result<(), MountError> {
    let wrong = |error| MountError::Dir { dir: dir.into(), error };
    let real = mountinfo::resolve(dir).map_err(wrong)?;
    let ours = mountinfo::ours().map_err(wrong)?;
    if let Some(mount) = ours.into_iter().find(|mount| is_within(&real, &mount.dir)) {
        return Err(MountError::Inside { dir: real, mount: mount.dir });
    }
    let there = mountinfo::at(&real).map_err(wrong)?;
    if !there.is_some_and(|there| there.is_latchfs()) {
        return match seal::entries(&real).filter(|_| !nonempty) {
            Some(entries) => Err(MountError::Entries { dir: real, entries }),
            None => Ok(()),
        };
    }
    match mountinfo::probe(&real) {
        Life::Live => Err(MountError::Already(real)),
        Life::Silent => Err(MountError::Silent(real)),
        Life::Dead => Ok(()),
    }
}

/// Makes `dir` ready to be mounted on; gives its real path, and whether it had to be made.
fn prepare(dir: &Path, nonempty: bool) -> Result<(PathBuf, bool), MountError> {
    let wrong = |error| MountError::Dir { dir: dir.into(), error };
    let real = mountinfo::resolve(dir).map_err(wrong)?;
    while let Some(there) = mountinfo::at(&real).map_err(wrong)?
        && there.is_latchfs()
    {
        check(&real, nonempty)?;
        detach(&real).map_err(wrong)?;
        log::warn!("removed the mount that a killed latchfs had left on {}", real.display());
    }
    check(&real, nonempty)?;
    match std::fs::metadata(&real) {
        Ok(found) if found.is_dir() => Ok((real, false)),
        Ok(_) => Err(wrong(io::Error::from_raw_os_error(libc::ENOTDIR))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(&real).map_err(wrong)?;
            Ok((real, true))
        }
        Err(error) => Err(wrong(error)),
    }
}

fn is_within(dir: &Path, mount: &Path) -> bool {
    dir != mount && dir.starts_with(mount)
}

impl Mounted {
    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether there was no such directory before.
    pub fn made_dir(&self) -> bool {
        self.made_dir
    }

    /// Calls `then` when the session with the kernel is over: unmounted by us or by others.
    pub fn on_end(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.session.state.lock();
        if state.over {
            drop(state);
            then();
        } else {
            state.then.push(Box::new(then));
        }
    }

    /// Whether the session with the kernel is over.
    pub fn has_ended(&self) -> bool {
        self.session.state.lock().over
    }

    /// Unmounts, and waits for the session to end. A busy mount is detached, and not waited for.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        if !self.is_there()? {
            return Ok(Unmounted::Before);
        }
        let gone = unmount(&self.dir)?;
        if gone == Gone::Clean {
            self.session.wait(END_PATIENCE);
        }
        Ok(Unmounted::Now(gone))
    }

    /// Whether what one sees at the mount point is still ours: by now another daemon may have
    /// mounted there, and may even have got our device number, which is free when we are gone.
    fn is_there(&self) -> io::Result<bool> {
        let ours = mountinfo::at(&self.dir)?
            .is_some_and(|mount| mount.is_latchfs() && mount.device == self.device);
        Ok(ours && (!self.has_ended() || mountinfo::probe(&self.dir) == Life::Dead))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            log::warn!("{} stays mounted: {}", self.dir.display(), said(&error));
        }
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Ending {
    fn end(&self) {
        let then = {
            let mut state = self.state.lock();
            state.over = true;
            mem::take(&mut state.then)
        };
        self.ended.notify_all();
        for then in then {
            then();
        }
    }

    fn wait(&self, patience: Duration) {
        let mut state = self.state.lock();
        let wait = self.ended.wait_while_for(&mut state, |state| !state.over, patience);
        if wait.timed_out() {
            log::warn!("the session with the kernel goes on although it is unmounted");
        }
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => write!(
                f,
                "{DEVICE} is missing, so nothing can be mounted; load the kernel module by \
                 'modprobe fuse', or give the container the device by '--device {DEVICE}'"
            ),
            Self::DeviceDenied => write!(
                f,
                "{DEVICE} may not be opened by this user, so nothing can be mounted; let root \
                 run 'chmod 666 {DEVICE}', which is its usual mode, or mount as root"
            ),
            Self::Device(error) => write!(f, "{DEVICE} can't be opened: {}", said(error)),
            Self::NoHelper => write!(
                f,
                "{HELPER} is missing, and without it only root can mount; install the package \
                 fuse3, or mount as root"
            ),
            Self::Helper(said) => write!(
                f,
                "{HELPER} could not mount: {said}; see 'latchfs doctor', or mount as root"
            ),
            Self::AllowOther => write!(
                f,
                "/etc/fuse.conf does not let users serve other users; add the line \
                 'user_allow_other' to it, or leave out --allow-other"
            ),
            Self::Refused { dir, error } if error.raw_os_error() == Some(libc::EPERM) => {
                write!(f, "this root may not mount on {}; ", dir.display())?;
                write!(f, "give the container the capability SYS_ADMIN")
            }
            Self::Refused { dir, error } => {
                write!(f, "the kernel does not mount on {}: {}", dir.display(), said(error))
            }
            Self::Already(dir) => {
                let dir = dir.display();
                write!(f, "{dir} is a latchfs mount already, and it works; use it as it is, ")?;
                write!(f, "or unmount it first by 'latchfs umount {dir}'")
            }
            Self::Silent(dir) => {
                let dir = dir.display();
                write!(f, "{dir} is a latchfs mount already, but its daemon does not answer; ")?;
                write!(f, "continue or end that process, or run 'latchfs umount {dir}'")
            }
            Self::Inside { dir, mount } => {
                let (dir, mount) = (dir.display(), mount.display());
                write!(f, "{dir} lies in the latchfs that is mounted at {mount}, where whatever ")?;
                write!(f, "is made is a lock; name a directory outside of it")
            }
            Self::Entries { dir, entries } => say_entries(&dir.display(), entries, f),
            Self::Sealed(dir) => say_sealed(&dir.display(), f),
            Self::Dir { dir, error } => {
                write!(f, "{} can't be a mount point: {}; ", dir.display(), said(error))?;
                write!(f, "name a directory, or a place where one can be made")
            }
            Self::Handshake(error) => {
                write!(f, "the kernel's FUSE did not answer as expected: {}; ", said(error))?;
                write!(f, "latchfs needs Linux 5.4 or newer")
            }
        }
    }
}

fn say_entries(
    dir: &std::path::Display<'_>,
    entries: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(
        f,
        "{dir} has entries, which the mount would hide: {entries}; if programs made them as "
    )?;
    write!(
        f,
        "locks while nothing was mounted, they lock nothing: remove them, mount on an empty "
    )?;
    write!(f, "directory, or pass --nonempty")
}

fn say_sealed(dir: &std::path::Display<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{dir} is sealed, since root mounted a latchfs there; let root run ")?;
    write!(f, "'latchfs umount --unseal {dir}', or name another directory")
}

impl std::error::Error for MountError {}
