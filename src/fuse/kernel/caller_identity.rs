//! Makes, renames and removes files as the program that asked for it: with its file-system user and
//! group, so that new files are the program's from the start, and the sticky bit of a directory
//! protects the files of others.
//!
//! To give a name to the program afterwards would be wrong: in a directory of its own, the program
//! could have exchanged the name for a file of root meanwhile.

use crate::fuse::kernel::own_user::is_root;
use crate::fuse::kernel::values::Requester;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The capabilities that stay: the kernel has checked the program's permissions, with all of its
/// groups, before it sent the request.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD);

/// The identity of the caller on this thread, until it is dropped.
struct CallerIdentity;

impl CallerIdentity {
    #[allow(unsafe_code)]
    fn take(who: Requester, kept: CapabilitySet) -> io::Result<Self> {
        // SAFETY: the calls change the identity of this thread only, and no memory.
        unsafe {
            libc::setfsgid(who.gid);
            libc::setfsuid(who.uid);
        }
        // From here on `drop` restores the identity.
        let identity = Self;
        let mut sets = capabilities(None)?;
        sets.effective = sets.effective.union(kept.intersection(sets.permitted));
        set_capabilities(None, sets)?;
        // An id that does not take effect is not reported, so it is asked for.
        // SAFETY: as above; the invalid id changes nothing.
        if unsafe { libc::setfsuid(u32::MAX) } as u32 != who.uid {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(identity)
    }
}

impl Drop for CallerIdentity {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the calls change the identity of this thread only, and no memory. User 0 gets
        // all its capabilities for files back.
        unsafe {
            libc::setfsuid(0);
            libc::setfsgid(0);
        }
    }
}

/// Makes a call with no rights but those of the caller's user and group, so that the kernel checks
/// the permissions of every path in it. Further groups of the caller do not count.
#[allow(unsafe_code)]
fn with_rights_of<T>(who: Requester, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if !is_root() || who.uid == 0 {
        return call();
    }
    let groups = rustix::process::getgroups()?;
    let set_groups = |groups: &[rustix::process::Gid]| {
        // SAFETY: the system call, unlike the function of libc, changes this thread only; it reads
        // as many ids of 32 bits as it is told.
        unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }
    };
    if set_groups(&[]) != 0 {
        return Err(io::Error::last_os_error());
    }
    let called = CallerIdentity::take(who, CapabilitySet::empty()).and_then(|_identity| call());
    match set_groups(&groups) {
        0 => called,
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a directory in which a caller may make files, as far as the caller's user and group decide
/// it. `open` opens the directory by its path.
#[allow(unsafe_code)]
pub(crate) fn writable_dir(
    who: Requester,
    open: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    with_rights_of(who, || {
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

/// Makes a call with the user and group of the program that made a request. A daemon of another
/// user than root makes it as it is.
pub(crate) fn as_caller<T>(who: Requester, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if !is_root() || (who.uid, who.gid) == (0, 0) {
        return call();
    }
    let _identity = CallerIdentity::take(who, KEPT)?;
    call()
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
        let who = Requester { uid: 4_001, gid: 4_002, pid: 0 };
        as_caller(who, || fs::create_dir(path.join("own"))).expect("the parent is overridden");
        let made = fs::metadata(path.join("own")).expect("there");
        assert_eq!((made.uid(), made.gid()), (4_001, 4_002));
        fs::create_dir(path.join("roots")).expect("as before");
        let made = fs::metadata(path.join("roots")).expect("there");
        assert_eq!((made.uid(), made.gid()), (0, 0));
        // Capabilities for files are back.
        let own = fs::File::open(path.join("own")).expect("there");
        rustix::fs::fchown(&own, Some(rustix::fs::Uid::from_raw(4_003)), None).expect("root may");
        fs::remove_dir_all(&path).expect("it is there");
    }

    #[test]
    fn a_directory_of_root_is_no_place_for_files_of_others() {
        let path = std::env::temp_dir().join(format!("latchfs-place-of-{}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        let who = Requester { uid: 4_001, gid: 4_002, pid: 0 };
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
        // Everything is as before.
        mode(0o700);
        fs::write(path.join("roots"), "").expect("root may");
        fs::remove_dir_all(&path).expect("it is there");
    }
}
