//! A session with the kernel: mounts a file system on a directory, serves it on a thread of its
//! own, and unmounts it.
//!
//! How a mount is served: its file system type, and which tasks its file system leaves to the
//! kernel.
//!
//! Negotiates the FUSE session with the kernel: capabilities, and the number of background
//! requests.
//!
//! The reasons why a directory can't be mounted, as error messages that suggest a remedy.

use crate::LOG;
use crate::device::{Gone, detach, unmount};
use crate::dispatch::Dispatcher;
use crate::file_system::FileSystem;
use crate::machine_facts::Users;
use crate::machine_facts::is_root;
use crate::machine_facts::{DEVICE, HELPER};
use crate::mount_seal::Below;
use crate::mountinfo::{Device, Life, MountPoint};
use crate::notifications::Invalidator;
use crate::{device, mount_seal, mountinfo};
use common::error_text::said;
use fuser::{Config, InitFlags, KernelConfig, Session, SessionACL};
use parking_lot::{Condvar, Mutex};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io, mem, thread};

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
pub struct MountRequest<'a> {
    /// The mount point, which is created if it does not exist.
    pub dir: &'a Path,
    /// The users that the mount serves.
    pub users: Users,
    /// Whether to mount on a directory that has entries, without sealing it.
    pub nonempty: bool,
    /// How the mount is served.
    pub kind: SessionKind,
}

/// Mounts a file system, and serves it on a thread of its own until it is unmounted.
///
/// Creates the directory if it does not exist, and removes a dead mount that a killed daemon left
/// there. `build` returns the file system, given the resolved mount point.
pub fn mount<F: FileSystem>(
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
    let kernel = device::mount(&dir, users, &kind).inspect_err(|_| {
        // Programs would take an ordinary directory for a mount. One that is not empty stays.
        if made_dir {
            let _ = std::fs::remove_dir(&dir);
        }
    })?;
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
                target: LOG,
                "kernel caching is disabled: the invalidation thread can't be started: {error}"
            ),
        }
        let ending = Arc::clone(&mounted.session);
        thread::Builder::new().name("mount".into()).spawn(move || {
            if let Err(error) = session.run() {
                log::warn!(target: LOG, "the session with the kernel ended: {error}");
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
        Ok(_) => {
            log::warn!(
                target: LOG,
                "{dir} can't be made immutable, so root can write in it: {UNSEALED}"
            );
        }
        Err(error) => {
            log::warn!(target: LOG, "{dir} can't be sealed: {}; {UNSEALED}", said(&error));
        }
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
        log::warn!(
            target: LOG,
            "removed the mount that a killed latchfs had left on {}",
            real.display()
        );
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
        log::debug!(target: LOG, "{} can't be removed: {}", dir.display(), said(&error));
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
            log::warn!(target: LOG, "{} stays mounted: {}", self.dir.display(), said(&error));
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
            log::warn!(target: LOG, "the session with the kernel goes on although it is unmounted");
        }
    }
}

/// How a mount is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionKind {
    /// The file system type that `/proc/self/mountinfo` shows: `fuse.`, and a name.
    pub type_name: &'static str,
    /// Whether the source of the mount names the daemon.
    pub names_daemon: bool,
    /// The number of threads that read the kernel's requests. With more than one, requests are not
    /// processed in their order.
    pub threads: usize,
    /// The side that grants flock and POSIX locks on files of the mount.
    pub locks: LocksBy,
    /// The side that checks permissions.
    pub permissions: PermissionsBy,
    /// Whether the kernel caches content of files, and drops it when a file's size or modification
    /// time has changed.
    pub caches_content: bool,
    /// Whether programs follow the symlinks in the mount.
    pub follows_symlinks: bool,
}

/// The side that grants flock and POSIX locks on files of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocksBy {
    /// The file system.
    FileSystem,
    /// The kernel, so that the locks exclude only programs that use this mount.
    Kernel,
}

/// The side that checks permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermissionsBy {
    /// The file system, in each operation.
    FileSystem,
    /// The kernel, by the modes, owners and POSIX ACLs that the file system reports.
    Kernel,
}

impl SessionKind {
    /// A directory of locks.
    pub const LOCKS: Self = Self {
        type_name: mountinfo::TYPE,
        names_daemon: false,
        // One thread preserves the order of requests: with more threads, a close could be processed
        // after a later lock request.
        threads: 1,
        locks: LocksBy::FileSystem,
        permissions: PermissionsBy::FileSystem,
        caches_content: false,
        follows_symlinks: false,
    };
    /// The view of a guarded folder.
    pub const VIEW: Self = Self {
        type_name: mountinfo::VIEW_TYPE,
        names_daemon: true,
        // One thread preserves the order of requests: the close of a file, and what follows.
        threads: 1,
        locks: LocksBy::Kernel,
        permissions: PermissionsBy::Kernel,
        caches_content: true,
        follows_symlinks: true,
    };
}

/// The maximum number of background requests in flight: requests that no program waits for, such as
/// RELEASE. With fuser's default of 16, the files of a thousand programs that exit at once would
/// close one by one.
const BACKGROUND_MAX: u16 = 1_024;

/// Whether the kernel can mark a cached name as expired and keep it until its next use
/// (`FUSE_HAS_EXPIRE_ONLY`). The value is known once the session with the kernel has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct CanExpire(Arc<AtomicBool>);

impl CanExpire {
    /// Returns whether the kernel can mark cached names as expired.
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records whether the kernel can mark cached names as expired.
    pub(crate) fn set(&self, can_expire: bool) {
        self.0.store(can_expire, Ordering::Relaxed);
    }
}

/// Requests the capabilities that a mount of `kind` uses. Returns whether the kernel can mark
/// cached names as expired.
pub(super) fn negotiate(config: &mut KernelConfig, kind: &SessionKind) -> bool {
    // A mount works, with restrictions, on a kernel that lacks some of the capabilities. Without
    // FUSE_ATOMIC_O_TRUNC, the truncation by `O_TRUNC` is a request of its own, which does not name
    // the open file. Without FUSE_POSIX_LOCKS and FUSE_FLOCK_LOCKS, the kernel itself grants flock
    // and POSIX locks, and clients on other machines do not see them. Without FUSE_POSIX_ACL, the
    // kernel checks permissions by modes alone. Without FUSE_DONT_MASK, the kernel applies the
    // umask of a program also where the default ACL of a directory takes its place.
    // FUSE_WRITEBACK_CACHE is never requested: with it, the kernel would ignore every change of a
    // file's size that it has not made itself.
    let mut all = InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_PARALLEL_DIROPS;
    if kind.locks == LocksBy::FileSystem {
        all |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
    }
    if kind.permissions == PermissionsBy::Kernel {
        all |= InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
    }
    if kind.caches_content {
        all |= InitFlags::FUSE_AUTO_INVAL_DATA;
    }
    for wanted in all {
        if config.add_capabilities(wanted).is_err() {
            log::debug!(target: LOG, "this kernel's FUSE lacks {wanted:?}");
        }
    }
    if let Err(nearest) = config.set_max_background(BACKGROUND_MAX) {
        log::warn!(target: LOG, "the kernel takes {nearest} requests in the background at most");
    }
    config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY)
}

/// The reason why a directory can't be mounted.
#[derive(Debug)]
pub enum MountError {
    /// `/dev/fuse` does not exist.
    NoDevice,
    /// This user may not open `/dev/fuse`.
    DeviceDenied,
    /// Opening `/dev/fuse` failed for another reason, or no socket to `fusermount3` could be
    /// created.
    Device(io::Error),
    /// `fusermount3` is not installed, and the caller is not root.
    NoHelper,
    /// `fusermount3` failed; holds its error output.
    Helper(String),
    /// `/etc/fuse.conf` does not allow users to mount with `allow_other`.
    AllowOther,
    /// mount(2) failed.
    Refused {
        /// The directory on which mount(2) failed.
        dir: PathBuf,
        /// The error that mount(2) returned.
        error: io::Error,
    },
    /// A latchfs mount exists at the directory already, and its daemon responds.
    Already(PathBuf),
    /// A latchfs mount exists at the directory already, and its daemon does not respond.
    Silent(PathBuf),
    /// The directory lies within a latchfs mount, where every entry that is created is a lock.
    Inside {
        /// The path of the directory as the caller gave it.
        dir: PathBuf,
        /// The mount point of the enclosing latchfs mount.
        mount: PathBuf,
    },
    /// The directory lies within a view of a guarded folder.
    InsideView {
        /// The path of the directory as the caller gave it.
        dir: PathBuf,
        /// The mount point of the view.
        view: PathBuf,
    },
    /// The directory has entries, which a mount would hide.
    Entries {
        /// The directory that has entries.
        dir: PathBuf,
        /// The names of some entries, for the message.
        entries: String,
    },
    /// The directory was sealed by a latchfs mount of root, and the caller is not root.
    Sealed(PathBuf),
    /// The path is not a directory, or no directory can be created there.
    Dir {
        /// The path of the directory as the caller gave it.
        dir: PathBuf,
        /// The error of the file operation that failed.
        error: io::Error,
    },
    /// The FUSE handshake with the kernel failed.
    Handshake(io::Error),
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
            Self::InsideView { dir, view } => {
                let (dir, view) = (dir.display(), view.display());
                write!(f, "{dir} lies in {view}, which is a view of a guarded folder: what is ")?;
                write!(f, "made there reaches the folder; name a directory outside of the view")
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
                write!(f, "choose a directory, or a path where one can be created")
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
