//! Checks whether a caller may create a name below a lock. `auth` decides that for all front ends,
//! by the permission bits of the nearest held lock above the name; this module provides the
//! identity of the mount's users.

use crate::auth::{LocalUser, depends_on_groups};
use crate::engine::{Acquire, ClientId, Lease, LockName, Op, Ownership};
use crate::fuse::credentials::{Caller, groups_of};
use crate::fuse::errno::Act;
use crate::fuse::kernel::pending::pending;
use crate::fuse::kernel::values::{Errno, LockRequest};
use crate::fuse::lock_access::LockAccess;
use crate::fuse::open_files::OpenFiles;
use crate::service::{ParentCheck, RequestError, Unavailable};
use std::sync::Arc;

/// Creates the conditions under which names below locks may be created.
pub(crate) struct ParentChecks {
    locks: LockAccess,
    opens: Arc<OpenFiles>,
    host: ClientId,
}

impl ParentChecks {
    /// Returns the checks of one mount, whose users are clients of `host`.
    pub(crate) const fn new(locks: LockAccess, opens: Arc<OpenFiles>, host: ClientId) -> Self {
        Self { locks, opens, host }
    }

    /// Returns the condition for an operation of `caller`; `None` if it creates no name below
    /// another.
    pub(crate) fn check_of(&self, caller: &Caller, op: &Op) -> Option<ParentCheck> {
        ParentCheck::of(op, |_| allows(self.user_of(caller)))
    }

    /// Returns the condition for a request of `caller` for `name`.
    pub(crate) fn check_of_name(&self, caller: &Caller, name: &LockName) -> Option<ParentCheck> {
        ParentCheck::of_name(name, &caller.client, |_| allows(self.user_of(caller)))
    }

    /// Returns the condition for a request through an open file that has passed
    /// [`Self::check_lock`]; a lock above may have been taken since then. The groups of the file's
    /// opener are no longer known, so a lock above is not checked again if its mode gives its group
    /// other rights than other users.
    pub(crate) fn check_of_open(&self, ask: &Acquire) -> Option<ParentCheck> {
        let Ownership::OpenFile(open) = ask.hold else { return None };
        ParentCheck::of_name(&ask.name, &ask.client, |_| {
            let user = self.opens.get(open.number).map(|open| self.local_user(open.uid, None));
            move |name: &LockName, client: &ClientId, holders: &[Lease]| match &user {
                Some(user) if !depends_on_groups(holders) => decide(user, name, client, holders),
                Some(_) | None => Ok(()),
            }
        })
    }

    /// Checks a request by `flock` or fcntl. Such a request acts on behalf of the user who opened
    /// the file, and its name may be free by now.
    pub(crate) async fn check_lock(
        &self,
        caller: &Caller,
        asked: &LockRequest,
    ) -> Result<(), Errno> {
        if asked.kind == libc::F_UNLCK {
            return Ok(());
        }
        let Some(open) = self.opens.get(asked.fh) else { return Ok(()) };
        let Some(name) = open.lock() else { return Ok(()) };
        let Some(check) = self.check_of_name(&open.opener(caller), name) else { return Ok(()) };
        let (promise, allowed) = pending();
        self.locks.service().check_parent(check, move |allowed| promise.keep(allowed));
        allowed.await.unwrap_or(Err(Unavailable::Closing)).map_err(|why| {
            let failure = RequestError::Unavailable(why);
            self.locks.refusals().failed(caller, Act::Lock, Some(name), failure)
        })
    }

    fn user_of(&self, caller: &Caller) -> LocalUser {
        let groups = (!caller.is_root()).then(|| [&[caller.gid], &*groups_of(caller.pid)].concat());
        self.local_user(caller.uid, groups)
    }

    fn local_user(&self, uid: u32, groups: Option<Vec<u32>>) -> LocalUser {
        LocalUser { uid, groups, hosts: vec![self.host.clone()] }
    }
}

fn allows(user: LocalUser) -> impl Fn(&LockName, &ClientId, &[Lease]) -> Result<(), Arc<str>> {
    move |name, client, holders| decide(&user, name, client, holders)
}

fn decide(
    user: &LocalUser,
    name: &LockName,
    client: &ClientId,
    holders: &[Lease],
) -> Result<(), Arc<str>> {
    user.may_make(name, client, holders).map_err(|denial| denial.to_string().into())
}
