//! Handles of processes to which leases are bound, and the check whether a caller may bind a lease
//! to a process.

use crate::engine::{Process, RefusalKind};
use crate::fuse::credentials::{Caller, ids_of, is_alive};
use crate::fuse::kernel::user_shares::{Pool, Share, Shares};
use crate::fuse::kernel::values::Errno;
use crate::holder_id::{pidfd_of, start_of};
use crate::time::this_boot;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A process to which leases can be bound, with a pidfd that becomes readable when the process
/// ends.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    /// The identity of the process: pid, start time and boot.
    pub(crate) process: Process,
    /// The pidfd, readable after the process has ended.
    pub(crate) alive: OwnedFd,
    /// Counts the lease that is bound to the process against the user's limit on bound leases;
    /// `None` if the lease is exempt.
    pub(crate) share: Option<Arc<Share>>,
}

/// The errno and message that say why a lease can't be bound to a process.
pub(crate) type Unbound = (Errno, String);

/// Returns a handle of the process `pid`, if the caller may bind leases to it and is below the
/// limit of bindings.
pub(crate) fn named(shares: &Shares, caller: &Caller, pid: u32) -> Result<ProcessHandle, Unbound> {
    let share = shares.take(Pool::Bindings, caller.uid, 1);
    let share = share.map_err(|full| (Errno::ENOSPC, full.to_string()))?;
    Ok(ProcessHandle { share: Some(Arc::new(share)), ..found(caller, pid)? })
}

fn found(caller: &Caller, pid: u32) -> Result<ProcessHandle, Unbound> {
    if caller.pid == 0 || ids_of(caller.pid).is_some_and(|ids| ids.spaces > 1) {
        let sentence = format!(
            "process {pid} can't be named by a caller that counts processes in a pid namespace \
             of its own; do it from outside, or write a ttl such as 60s and renew in time"
        );
        return Err((Errno::EPERM, sentence));
    }
    let gone = || {
        let sentence = format!("there is no process {pid}; name one that runs, such as pid=$$");
        (Errno::ESRCH, sentence)
    };
    let living = ProcessHandle::open(pid).map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
            (Errno::ENOSPC, format!("process {pid} can't be watched: {error}; bind fewer locks"))
        }
        _ => gone(),
    })?;
    let ids = ids_of(pid).ok_or_else(gone)?;
    if !caller.is_root() && !ids.users.contains(&caller.uid) {
        let sentence = format!(
            "process {pid} belongs to another user, so this caller can't bind a lock to it; \
             name a process of your own"
        );
        return Err((Errno::EPERM, sentence));
    }
    // The user ids were read by pid, and the pid may have been reused. They belong to the process
    // of the pidfd only if that process is still alive now.
    if is_alive(&living.alive) { Ok(living) } else { Err(gone()) }
}

/// Returns the kind of refusal that corresponds to an errno that [`named`] returns.
pub(crate) fn kind_of(errno: Errno) -> RefusalKind {
    match errno.code() {
        libc::EPERM => RefusalKind::Denied,
        libc::ENOSPC => RefusalKind::Limit,
        _ => RefusalKind::Invalid,
    }
}

impl ProcessHandle {
    /// Opens a handle of the process with the given pid.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        // The pidfd is opened before the start time is read: either the start time belongs to the
        // process of the pidfd, or the pidfd reports that the process has ended.
        let alive = pidfd_of(pid)?;
        let start = start_of(pid).ok_or(io::ErrorKind::NotFound)?;
        if !is_alive(&alive) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { process: Process { pid, start, boot: this_boot() as u64 }, alive, share: None })
    }

    /// Returns a new handle of the process that has this pid and start time, if it still lives.
    pub(crate) fn again(process: Process) -> Option<Self> {
        Self::open(process.pid).ok().filter(|living| living.process == process)
    }

    /// Returns another handle of the same process, with a duplicate of its pidfd.
    pub(crate) fn copy(&self) -> io::Result<Self> {
        let (process, share) = (self.process, self.share.clone());
        Ok(Self { process, alive: self.alive.try_clone()?, share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ClientId;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().expect("sleep is there")
    }

    fn caller(uid: u32) -> Caller {
        let client = ClientId::parse("laptop1").expect("valid");
        Caller { uid, gid: uid, pid: std::process::id(), client }
    }

    #[test]
    fn only_processes_of_the_own_user_can_be_named() {
        let mut child = sleeper();
        let uid = ids_of(child.id()).expect("it runs").users[0];
        assert!(found(&caller(uid), child.id()).is_ok());
        assert!(found(&caller(0), child.id()).is_ok(), "root names any");
        let (errno, sentence) = found(&caller(uid + 1), child.id()).expect_err("another's");
        assert_eq!(errno.code(), libc::EPERM, "{sentence}");
        let foreign = Caller { pid: 0, ..caller(uid) };
        assert_eq!(found(&foreign, child.id()).expect_err("foreign").0.code(), libc::EPERM);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let (errno, sentence) = found(&caller(uid), child.id()).expect_err("gone");
        assert_eq!(errno.code(), libc::ESRCH, "{sentence}");
    }

    #[test]
    fn zombie_process_counts_as_ended() {
        let mut child = Command::new("true").spawn().expect("true is there");
        let living = pidfd_of(child.id()).expect("not reaped");
        while is_alive(&living) {
            std::thread::yield_now();
        }
        assert!(ProcessHandle::open(child.id()).is_err());
        child.wait().expect("it ends");
    }

    #[test]
    fn reused_pid_is_another_process() {
        let own = ProcessHandle::open(std::process::id()).expect("we run").process;
        assert!(ProcessHandle::again(own).is_some());
        assert!(ProcessHandle::again(Process { start: own.start + 1, ..own }).is_none());
    }

    /// After a reboot, another process may have the same pid and start time. So the locks of a
    /// process of an earlier boot are released.
    #[test]
    fn a_process_of_another_boot_is_gone() {
        let own = ProcessHandle::open(std::process::id()).expect("we run").process;
        assert_ne!(own.boot, 0, "the kernel names its boots");
        assert!(ProcessHandle::again(Process { boot: own.boot ^ 1, ..own }).is_none());
    }
}
