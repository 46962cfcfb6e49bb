//! Checks whether a caller may create a name below a lock. The module `auth` decides by the
//! permission bits of the nearest held lock above the name; this module tells it the user and
//! groups of the caller.

use crate::auth::{LocalUser, depends_on_groups};
use crate::engine::{Acquire, ClientId, Lease, LockName, Op, Ownership};
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::kernel::caller_status::groups_of;
use crate::fuse::kernel::pending::pending;
use crate::fuse::kernel::values::{Errno, LockRequest};
use crate::fuse::lock_access::LockAccess;
use crate::fuse::open_files::OpenFiles;
use crate::service::{ParentCheck, RequestError, Unavailable};
use std::sync::Arc;

/// Makes the checks that the lock service performs before it creates a name below the name of a
/// held lock.
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

    /// Returns the check that the lock service performs before it executes the command `op` of
    /// `caller`; `None` if the command creates no name below another.
    pub(crate) fn check_of(&self, caller: &Caller, op: &Op) -> Option<ParentCheck> {
        ParentCheck::of(op, |_| allows(self.user_of(caller)))
    }

    /// Returns the check that the lock service performs before it grants the lock `name` to
    /// `caller`; `None` if the name is not below another.
    pub(crate) fn check_of_name(&self, caller: &Caller, name: &LockName) -> Option<ParentCheck> {
        ParentCheck::of_name(name, &caller.client, |_| allows(self.user_of(caller)))
    }

    /// Returns the check for a lock request through an open file. [`Self::check_lock`] has checked
    /// the request already, but a lock above may have been taken since. The groups of the file's
    /// opener are no longer known at this point, so the permission bits of a lock above are skipped
    /// if they give its group other rights than other users.
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

    /// Checks whether the user who opened a file may lock it by flock or fcntl. The file's lock may
    /// have become free since the open, so this request may create its name.
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
