//! Decides as which user each act of a guard runs. The kernel counts the disk space of a file for
//! its owner, and keeps blocks back that only root may use: a guard of root must not write for
//! others as root. But it publishes what they may publish, also where only root may write.
//!
//! - Content (write, truncate, allocate, copy, and the write-back of mapped pages): as the user who
//!   opened the file, without a capability for files.
//! - A new inode: as the user to whom the published file will belong, with [`OF_NAMES`].
//! - A name (publish, rename, remove, make), and an extended attribute: as the user who makes the
//!   request, or as the owner of the file that is saved, with [`OF_NAMES`].
//! - A directory of `.latchfs`: as the owner of the directory in which it lies, if that user may
//!   write there. The look whether a user may make files in the directory of a lost file: as that
//!   user, without a capability for files and without further groups.
//! - All else, such as stages, lost files, change log, markers, modes, owners and times: as the
//!   guard itself.
//!
//! If the user is root, the act has all capabilities for files that the guard has. No thread of a
//! guard has `CAP_SYS_RESOURCE`, which lifts quotas ([`drop_resource_rights`]).
//!
//! To give a name to a user after it was made would be wrong: in a directory of its own, the user
//! could have exchanged the name for a file of root meanwhile.

use rustix::fs::Statx;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// The capabilities that a thread keeps while it creates, renames or removes a file as another
/// user. They let nobody in: the kernel has checked the program's permissions, with all of its
/// groups, before it sent the request.
const OF_NAMES: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD);

/// The capabilities that the kernel takes from a thread that acts as another user than root.
const OF_FILES: CapabilitySet = OF_NAMES
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_OVERRIDE);

/// A user, with the group that the user's new files get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Returns a user with a group.
    pub(crate) const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid }
    }

    /// Returns the owner of a file.
    pub(crate) const fn owning(found: &Statx) -> Self {
        Self { uid: found.stx_uid, gid: found.stx_gid }
    }
}

/// As whom a thread acts, and with which capabilities for files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Acting {
    uid: u32,
    /// The group that new files get; `None` for an act that makes no file and needs no group.
    gid: Option<u32>,
    kept: CapabilitySet,
}

thread_local! {
    /// As whom this thread acts; `None` as the guard itself.
    static ACTING: Cell<Option<Acting>> = const { Cell::new(None) };
}

/// Whether this guard can act as other users. It never changes its own user.
fn is_roots() -> bool {
    static IS_ROOTS: OnceLock<bool> = OnceLock::new();
    *IS_ROOTS.get_or_init(|| rustix::process::geteuid().is_root())
}

/// Returns the capabilities of a thread that acts as the guard itself.
fn own_capabilities() -> io::Result<CapabilitySets> {
    static OWN: OnceLock<CapabilitySets> = OnceLock::new();
    if let Some(own) = OWN.get() {
        return Ok(*own);
    }
    let own = capabilities(None)?;
    Ok(*OWN.get_or_init(|| own))
}

/// Sets the user of this thread for files, and its group if that matters.
#[allow(unsafe_code)]
fn set_user(uid: u32, gid: Option<u32>) {
    // SAFETY: the calls change the identity of this thread only, and no memory.
    unsafe {
        if let Some(gid) = gid {
            libc::setfsgid(gid);
        }
        libc::setfsuid(uid);
    }
}

/// Returns the user of this thread for files.
#[allow(unsafe_code)]
fn user_now() -> u32 {
    // SAFETY: the invalid id changes nothing, and the call no memory.
    (unsafe { libc::setfsuid(u32::MAX) }) as u32
}

/// The end of an act: on drop, the thread acts as before.
struct ActingScope {
    before: Option<Acting>,
}

impl ActingScope {
    /// Lets this thread act as `to`, or as the guard itself.
    fn begin(to: Option<Acting>) -> io::Result<Self> {
        let act = Self { before: ACTING.get() };
        Self::switch(act.before, to)?;
        Ok(act)
    }

    /// Lets this thread, which acts as `from`, act as `to`. Only on the way from root to another
    /// user, the kernel takes capabilities, and on the way back it returns them.
    fn switch(from: Option<Acting>, to: Option<Acting>) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        let own = own_capabilities()?;
        if let Some(from) = from {
            set_user(0, from.gid.map(|_| 0));
        }
        ACTING.set(to);
        let Some(Acting { uid, gid, kept }) = to else { return Ok(()) };
        set_user(uid, gid);
        // The kernel does not report an id that it refuses, so the id in force is read back.
        if user_now() != uid {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        if uid != 0 && !kept.is_empty() {
            let effective = own.effective.difference(OF_FILES).union(own.permitted & kept);
            set_capabilities(None, CapabilitySets { effective, ..own })?;
        }
        Ok(())
    }
}

impl Drop for ActingScope {
    fn drop(&mut self) {
        if let Err(error) = Self::switch(ACTING.get(), self.before) {
            // This is unexpected: the thread acted as that user before.
            log::error!("a thread can't act as {:?} again: {error}", self.before);
        }
    }
}

/// Makes a call as a user, with some capabilities. A guard of another user than root makes it as it
/// is.
fn act<T>(to: Acting, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if !is_roots() {
        return call();
    }
    let is_root = to.uid == 0 && to.gid.is_none_or(|gid| gid == 0);
    let _act = ActingScope::begin((!is_root).then_some(to))?;
    call()
}

/// Changes the content of a file as the user who opened it.
pub(crate) fn content<T>(user: User, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    act(Acting { uid: user.uid, gid: None, kept: CapabilitySet::empty() }, call)
}

/// Makes an inode as the user to whom it will belong.
pub(crate) fn making<T>(user: User, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    act(Acting { uid: user.uid, gid: Some(user.gid), kept: OF_NAMES }, call)
}

/// Renames or removes names as a user, or gives one to a file. The sticky bit of a directory then
/// protects the files of others, whatever became of the names since the kernel looked at them.
pub(crate) fn naming<T>(user: User, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    act(Acting { uid: user.uid, gid: None, kept: OF_NAMES }, call)
}

/// Makes a call as a user for whom nothing was checked yet: the kernel checks the permissions.
pub(crate) fn checked<T>(user: User, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    act(Acting { uid: user.uid, gid: Some(user.gid), kept: CapabilitySet::empty() }, call)
}

/// Makes a call as the guard itself, within an act of a user.
pub(crate) fn itself<T>(call: impl FnOnce() -> T) -> T {
    // To become root again can't fail.
    let _act = ActingScope::begin(None).ok();
    call()
}

/// Makes a call with no rights but those of a user and the user's group, so that the kernel checks
/// the permissions of every path in it. Further groups of the user do not count.
#[allow(unsafe_code)]
fn with_rights_of<T>(user: User, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if !is_roots() || user.uid == 0 {
        return call();
    }
    let groups = rustix::process::getgroups()?;
    let set_groups = |groups: &[rustix::process::Gid]| {
        // SAFETY: the system call, unlike the function of libc, changes this thread only; it reads
        // as many ids of 32 bits as the argument says.
        unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }
    };
    if set_groups(&[]) != 0 {
        return Err(io::Error::last_os_error());
    }
    let called = checked(user, call);
    match set_groups(&groups) {
        0 => called,
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a directory in which a user may make files, as far as the user and the user's group decide
/// it. `open` opens the directory by its path.
#[allow(unsafe_code)]
pub(crate) fn writable_dir(
    user: User,
    open: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    with_rights_of(user, || {
        let dir = open()?;
        let flags = libc::AT_EACCESS | libc::AT_EMPTY_PATH;
        let wanted = libc::W_OK | libc::X_OK;
        // SAFETY: the path ends with a zero byte, and the call changes no memory.
        let answer = unsafe {
            libc::syscall(libc::SYS_faccessat2, dir.as_raw_fd(), c"".as_ptr(), wanted, flags)
        };
        if answer == 0 { Ok(dir) } else { Err(io::Error::last_os_error()) }
    })
}

/// Takes `CAP_SYS_RESOURCE` from this thread, and from all that it starts: with it, the kernel
/// would let the content of every user pass quotas and use the blocks that are kept for root. The
/// programs that the guard starts have it again.
pub(crate) fn drop_resource_rights() -> io::Result<()> {
    let mut own = capabilities(None)?;
    let dropped = CapabilitySet::SYS_RESOURCE;
    if own.permitted.contains(dropped) {
        own.effective.remove(dropped);
        own.permitted.remove(dropped);
        own.inheritable.remove(dropped);
        set_capabilities(None, own)?;
    }
    Ok(())
}

/// Fails unless this process can act as other users.
pub(crate) fn check() -> io::Result<()> {
    const ANOTHER: User = User { uid: 1, gid: 1 };
    with_rights_of(ANOTHER, || Ok(())).and_then(|()| making(ANOTHER, || Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_directory_is_the_callers_from_the_start() {
        let path = std::env::temp_dir().join(format!("latchfs-caller-{}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        let who = User::new(4_001, 4_002);
        let mkdir = || fs::create_dir(path.join("own"));
        making(who, mkdir).expect("the parent is overridden");
        let made = fs::metadata(path.join("own")).expect("there");
        assert_eq!((made.uid(), made.gid()), (4_001, 4_002));
        fs::create_dir(path.join("roots")).expect("as before");
        let made = fs::metadata(path.join("roots")).expect("there");
        assert_eq!((made.uid(), made.gid()), (0, 0));
        // After the act the thread has its capabilities for files again.
        let own = fs::File::open(path.join("own")).expect("there");
        rustix::fs::fchown(&own, Some(rustix::fs::Uid::from_raw(4_003)), None).expect("root may");
        fs::remove_dir_all(&path).expect("it is there");
    }

    #[test]
    fn a_directory_of_root_is_no_place_for_files_of_others() {
        let path = std::env::temp_dir().join(format!("latchfs-place-of-{}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        let who = User::new(4_001, 4_002);
        let open = || {
            writable_dir(who, || Ok(OwnedFd::from(fs::File::open(&path)?)))
                .map_err(|error| error.raw_os_error())
        };
        let mode = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, mode).expect("the directory is ours");
        };
        for refused in [0o755, 0o775, 0o700] {
            mode(refused);
            assert_eq!(open().err(), Some(Some(libc::EACCES)), "{refused:o}");
        }
        mode(0o777);
        open().expect("anybody may");
        // After the act the thread has the permissions of root again.
        mode(0o700);
        fs::write(path.join("roots"), "").expect("root may");
        fs::remove_dir_all(&path).expect("it is there");
    }

    /// Returns the capabilities and the user of this thread for files.
    fn rights() -> (CapabilitySet, String) {
        let status = fs::read_to_string("/proc/thread-self/status").expect("readable");
        let uids = status.lines().find(|line| line.starts_with("Uid:")).expect("there");
        let own = capabilities(None).expect("readable").effective;
        (own, uids.split_whitespace().last().expect("four").to_owned())
    }

    #[test]
    fn an_act_has_the_capabilities_of_its_kind_and_ends() {
        let before = rights();
        let (one, other) = (User::new(4_001, 4_002), User::new(4_003, 4_004));
        let of_files = |rights: &(CapabilitySet, String)| rights.0 & OF_FILES;
        content(one, || {
            assert_eq!((of_files(&rights()), &*rights().1), (CapabilitySet::empty(), "4001"));
            naming(other, || {
                assert_eq!((of_files(&rights()), &*rights().1), (OF_NAMES, "4003"));
                itself(|| assert_eq!(rights(), before));
                assert_eq!(of_files(&rights()), OF_NAMES, "as before");
                Err::<(), _>(io::Error::other("failed"))
            })
            .expect_err("it fails");
            assert_eq!((of_files(&rights()), &*rights().1), (CapabilitySet::empty(), "4001"));
            Ok(())
        })
        .expect("it acts");
        assert_eq!(rights(), before);
        assert!(making(User::new(u32::MAX, 7), || Ok(())).is_err(), "nobody has this id");
        assert_eq!(rights(), before);
        let as_root = content(User::new(0, 0), || Ok(rights()));
        assert_eq!(as_root.expect("root acts as it is"), before);
    }
}
