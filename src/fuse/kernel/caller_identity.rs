//! Makes files as the program that asked for them: with its file-system user and group, so that
//! they are the program's from the start.
//!
//! To give a name to the program afterwards would be wrong: in a directory of its own, the program
//! could have exchanged the name for a file of root meanwhile.

use crate::fuse::kernel::own_user::is_root;
use crate::fuse::kernel::values::Requester;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::io;

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
    fn take(who: Requester) -> io::Result<Self> {
        // SAFETY: the calls change the identity of this thread only, and no memory.
        unsafe {
            libc::setfsgid(who.gid);
            libc::setfsuid(who.uid);
        }
        // From here on `drop` restores the identity.
        let identity = Self;
        let mut sets = capabilities(None)?;
        sets.effective = sets.effective.union(KEPT.intersection(sets.permitted));
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

/// Makes a call with the user and group of the program that made a request. A daemon of another
/// user than root makes it as it is.
pub(crate) fn as_caller<T>(who: Requester, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if !is_root() || (who.uid, who.gid) == (0, 0) {
        return call();
    }
    let _identity = CallerIdentity::take(who)?;
    call()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

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
}
