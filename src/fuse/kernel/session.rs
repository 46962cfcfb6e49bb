//! A session with the kernel: mounts a file system on a directory, serves it on a thread of its
//! own, and unmounts it.

use crate::fuse::kernel::device::{self, Gone, detach, unmount};
use crate::fuse::kernel::dispatch::Dispatcher;
use crate::fuse::kernel::file_system::FileSystem;
use crate::fuse::kernel::invalidation::Invalidator;
use crate::fuse::kernel::mount_error::MountError;
use crate::fuse::kernel::mount_seal::{self, Below};
use crate::fuse::kernel::mount_users::Users;
use crate::fuse::kernel::mountinfo::{self, Device, Life, MountPoint};
use crate::fuse::kernel::own_user::is_root;
use crate::fuse::kernel::session_kind::SessionKind;
use crate::os_error::said;
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

/// How long an unmount waits for the session to end. The end takes microseconds, so a longer wait
/// means a bug.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A mounted directory. Dropping it unmounts.
pub struct Mounted {
    dir: PathBuf,
    made_dir: bool,
    device: Device,
    session: Arc<Ending>,
}

/// Whether the session with the kernel has ended, and the callbacks to run at its end.
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

/// The result of unmounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// The file system was still mounted; holds how it was unmounted.
    Now(Gone),
    /// The file system was not mounted any more.
    Before,
}

/// The mount point and the options of a mount that is about to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MountRequest<'a> {
    /// The mount point, which is created if it does not exist.
    pub(crate) dir: &'a Path,
    /// The users that the mount serves.
    pub(crate) users: Users,
    /// Whether to mount on a directory that has entries, without sealing it.
    pub(crate) nonempty: bool,
    /// How the mount is served.
    pub(crate) kind: SessionKind,
}

/// Mounts a file system, and serves it on a thread of its own until it is unmounted.
///
/// Creates the directory if it does not exist, and removes a dead mount that a killed daemon left
/// there. `build` returns the file system, given the resolved mount point.
pub(crate) fn mount<F: FileSystem>(
    wanted: MountRequest<'_>,
    build: impl FnOnce(&MountPoint) -> Arc<F>,
) -> Result<Mounted, MountError> {
    let MountRequest { dir, users, nonempty, kind } = wanted;
    let (dir, made_dir) = prepare(dir, nonempty)?;
    let mut below = match Below::open(&dir, made_dir) {
        Ok(below) => Some(below),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            return Err(MountError::Sealed(dir));
        }
        // If the device number can't be read, mount(2) decides whether the directory can be a mount
        // point.
        Err(_) => None,
    };
    let kernel = device::mount(&dir, users, &kind)?;
    if let Some(below) = below.as_mut().filter(|_| !nonempty) {
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
    // From here on, an early return unmounts the file system, because dropping the value `mounted`
    // unmounts it.
    let mounted = Mounted { dir, made_dir, device: found.device, session: Arc::default() };
    let fs = build(&found);
    let acl = match users {
        Users::Mounter => SessionACL::Owner,
        Users::All => SessionACL::All,
    };
    let mut config = Config::default();
    config.n_threads = Some(kind.threads);
    config.acl = acl;
    let dispatcher = Dispatcher::new(Arc::clone(&fs), kind);
    let can_expire = dispatcher.can_expire();
    let served = Session::from_fd(dispatcher, kernel, acl, config).and_then(|session| {
        let (notifier, device) = (session.notifier(), session.as_fd().as_raw_fd());
        match Invalidator::start(notifier, device, can_expire.get()) {
            Ok(invalidator) => fs.attached(invalidator),
            Err(error) => log::warn!(
                "kernel caching is disabled: the invalidation thread can't \
                be started: {error}"
            ),
        }
        let ending = Arc::clone(&mounted.session);
        thread::Builder::new().name("mount".into()).spawn(move || {
            if let Err(error) = session.run() {
                log::warn!("the session with the kernel ended: {error}");
            }
            ending.end();
        })
    });
    match served {
        Ok(_) => Ok(mounted),
        Err(error) => {
            mounted.session.end();
            Err(MountError::Handshake(error))
        }
    }
}

/// Seals the directory below a mount against root and other users, and logs a warning if that
/// fails.
fn seal(dir: &Path, below: &mut Below) {
    const UNSEALED: &str = "while nothing is mounted there, files in it lock nothing";
    let dir = dir.display();
    match below.seal() {
        Ok(is_for_root) if is_for_root || !is_root() => {}
        Ok(_) => log::warn!("{dir} can't be made immutable, so root can write in it: {UNSEALED}"),
        Err(error) => log::warn!("{dir} can't be sealed: {}; {UNSEALED}", said(&error)),
    }
}

/// Fails if nothing can be mounted at `dir`: a live latchfs mount is there or around it, or the
/// directory has entries. A daemon calls this before it opens its state directory, so that the
/// error names the mount rather than a state directory that is in use.
pub fn check(dir: &Path, nonempty: bool) -> Result<(), MountError> {
    let wrong = |error| MountError::Dir { dir: dir.into(), error };
    let real = mountinfo::resolve(dir).map_err(wrong)?;
    let ours = mountinfo::ours_and_views().map_err(wrong)?;
    if let Some(mount) = ours.into_iter().find(|mount| is_within(&real, &mount.dir)) {
        return Err(if mount.is_view() {
            MountError::InsideView { dir: real, view: mount.dir }
        } else {
            MountError::Inside { dir: real, mount: mount.dir }
        });
    }
    let there = mountinfo::at(&real).map_err(wrong)?;
    if !there.is_some_and(|there| there.is_ours()) {
        return match mount_seal::entries(&real).filter(|_| !nonempty) {
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

/// Checks that `dir` can be mounted on, and creates it if it does not exist. Returns its resolved
/// path, and whether it had to be created.
fn prepare(dir: &Path, nonempty: bool) -> Result<(PathBuf, bool), MountError> {
    let wrong = |error| MountError::Dir { dir: dir.into(), error };
    let real = mountinfo::resolve(dir).map_err(wrong)?;
    while let Some(there) = mountinfo::at(&real).map_err(wrong)?
        && there.is_ours()
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

/// Removes a mount point that a mount has made, if nothing is mounted there any more: a directory
/// that is missing keeps programs from locking there as well as a sealed one does.
pub fn remove_made(dir: &Path) -> io::Result<()> {
    if mountinfo::at(dir)?.is_some_and(|there| there.is_ours()) {
        return Ok(());
    }
    if let Err(error) = mount_seal::remove_made(dir) {
        log::debug!("{} can't be removed: {}", dir.display(), said(&error));
    }
    Ok(())
}

fn is_within(dir: &Path, mount: &Path) -> bool {
    dir != mount && dir.starts_with(mount)
}

impl Mounted {
    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the device number of the file system.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether the mount created its directory.
    pub fn made_dir(&self) -> bool {
        self.made_dir
    }

    /// Calls `then` when the session with the kernel has ended, whichever process unmounted the
    /// file system.
    pub fn on_end(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.session.state.lock();
        if state.over {
            drop(state);
            then();
        } else {
            state.then.push(Box::new(then));
        }
    }

    /// Whether the session with the kernel has ended.
    pub fn has_ended(&self) -> bool {
        self.session.state.lock().over
    }

    /// Unmounts the file system, and waits for the session to end. A busy mount is detached
    /// instead, without waiting for the session's end.
    pub fn unmount(&self) -> io::Result<Unmounted> {
        if !self.is_there()? {
            remove_made(&self.dir)?;
            return Ok(Unmounted::Before);
        }
        let gone = unmount(&self.dir)?;
        if gone == Gone::Clean {
            self.session.wait(END_PATIENCE);
        }
        remove_made(&self.dir)?;
        Ok(Unmounted::Now(gone))
    }

    /// Whether the mount that is now at this directory is the one that this process has made.
    /// Another daemon may have mounted there since, and may even have got the same device number,
    /// which is free again once the first mount is gone.
    fn is_there(&self) -> io::Result<bool> {
        let ours = mountinfo::at(&self.dir)?
            .is_some_and(|mount| mount.is_ours() && mount.device == self.device);
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
