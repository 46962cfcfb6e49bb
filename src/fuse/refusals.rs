//! Counters of requests and refusals of a mount, the last refusals for `.latchfs/why`, and the
//! records of denied requests in the audit log.

use crate::auth::Grant;
use crate::engine::{LockName, RefusalKind};
use crate::fuse::credentials::Caller;
use crate::fuse::errno::{Act, errno_of};
use crate::fuse::kernel::user_shares::Full;
use crate::fuse::kernel::values::Errno;
use crate::fuse::last_refusal::{LastRefusals, RefusedBy};
use crate::service::{AuditEntry, Locks, RefusedRequest, RequestError};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of errnos that are counted: more than Linux has.
const ERRNOS: usize = 134;

/// The counters and last refusals of one mount.
pub(crate) struct Refusals {
    last: LastRefusals,
    acts: [AtomicU64; Act::COUNT],
    errnos: [AtomicU64; ERRNOS],
    /// The lock service whose audit log has the denied requests, and the path of the mount.
    audited: Option<(Locks, String)>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            last: LastRefusals::default(),
            acts: [const { AtomicU64::new(0) }; Act::COUNT],
            errnos: [const { AtomicU64::new(0) }; ERRNOS],
            audited: None,
        }
    }
}

impl Refusals {
    /// Returns the counters of the mount at `dir`, which records denied requests in the audit log
    /// of `service`.
    pub(crate) fn audited(service: Locks, dir: &Path) -> Self {
        Self { audited: Some((service, dir.display().to_string())), ..Self::default() }
    }

    pub(crate) fn count_act(&self, act: Act) {
        self.acts[act as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_errno(&self, errno: Errno) {
        if let Some(count) = usize::try_from(errno.code()).ok().and_then(|n| self.errnos.get(n)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of requests of each kind of file operation.
    pub(crate) fn acts(&self) -> impl Iterator<Item = (Act, u64)> + '_ {
        Act::ALL.iter().map(|act| (*act, self.acts[*act as usize].load(Ordering::Relaxed)))
    }

    /// Returns how often each errno was returned, without errnos that were never returned.
    pub(crate) fn errnos(&self) -> impl Iterator<Item = (Errno, u64)> + '_ {
        let all = self.errnos.iter().enumerate();
        all.map(|(n, count)| (Errno::from_i32(n as i32), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns the record of each client's last refusal.
    pub(crate) const fn last(&self) -> &LastRefusals {
        &self.last
    }

    /// Records a refusal of the lock service, or a missing answer. Returns the errno for the
    /// program.
    pub(crate) fn failed(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        failure: RequestError,
    ) -> Errno {
        let errno = errno_of(&failure, act);
        self.keep(caller, act, name, errno, RefusedBy::Service(failure))
    }

    /// Records a refusal by the file system itself. Returns the errno for the program.
    pub(crate) fn refused(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        sentence: impl Into<String>,
    ) -> Errno {
        let kind = match errno.code() {
            libc::EPERM => RefusalKind::LockNotHeld,
            libc::EBUSY => RefusalKind::LockConflict,
            libc::EACCES => RefusalKind::Denied,
            libc::EMLINK | libc::ENOSPC => RefusalKind::Limit,
            _ => RefusalKind::Invalid,
        };
        self.keep(caller, act, name, errno, RefusedBy::FileSystem(kind, sentence.into()))
    }

    /// Records that a user has reached a limit. Returns the errno for the program.
    pub(crate) fn full(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        full: &Full,
    ) -> Errno {
        self.refused(caller, act, name, Errno::ENOSPC, full.to_string())
    }

    fn keep(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        by: RefusedBy,
    ) -> Errno {
        match &by {
            RefusedBy::Service(failure) if failure.kind() == RefusalKind::Denied => {
                self.denied(caller, act.as_str(), &failure.to_string());
            }
            RefusedBy::FileSystem(RefusalKind::Denied, why) => {
                self.denied(caller, act.as_str(), why);
            }
            RefusedBy::Service(_) | RefusedBy::FileSystem(..) => {}
        }
        self.last.refused(&caller.client, act, name, errno, by);
        self.count_errno(errno);
        errno
    }

    /// Records in the audit log that a user lacks the right to an operation. The lock of another
    /// client, which the engine protects, is no matter of rights.
    pub(crate) fn denied(&self, caller: &Caller, what: &str, reason: &str) {
        let Some((service, address)) = &self.audited else { return };
        let Grant { credential, name: by, .. } = Grant::of_user(caller.uid, Vec::new(), false);
        let (credential, network) = (credential.as_str(), address);
        // The kernel names the user of each request.
        let (by, is_known) = (&*by, true);
        let refused = RefusedRequest { what, by, credential, is_known, address, network, reason };
        service.audit(&AuditEntry::Refused(refused));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ClientId;
    use crate::fuse::last_refusal::Why;

    fn caller() -> Caller {
        Caller { uid: 7, gid: 7, pid: 1, client: ClientId::parse("host:a").expect("valid") }
    }

    #[test]
    fn a_refusal_is_counted_and_recorded_for_its_client() {
        let refusals = Refusals::default();
        refusals.count_act(Act::Mkdir);
        let errno = refusals.refused(&caller(), Act::Mkdir, None, Errno::EACCES, "no");
        assert_eq!(errno, Errno::EACCES);
        assert!(refusals.acts().any(|(act, count)| act == Act::Mkdir && count == 1));
        assert_eq!(refusals.errnos().collect::<Vec<_>>(), [(Errno::EACCES, 1)]);
        let Why::Refused(value) = refusals.last().of(&caller().client) else { panic!("kept") };
        assert_eq!((&value["kind"], &value["message"]), (&"E_DENIED".into(), &"no".into()));
    }
}
