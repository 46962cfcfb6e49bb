//! Names below a lock: whether the caller may make one. `auth` decides that for all front ends, by
//! the permission bits of the nearest lock above the name that is held.

use super::errno::Act;
use super::locking::{self, Request};
use super::owner::{Caller, groups_of};
use super::shared::{Fs, Shared};
use crate::auth::{LocalUser, depends_on_groups};
use crate::engine::{Acquire, ClientId, Lease, LockName, Op, Ownership};
use crate::service::{ParentCheck, RequestError};
use fuser::ReplyEmpty;
use std::sync::Arc;

/// The condition for an operation of `caller`. `None`: it makes no name below others.
pub(super) fn check_of(fs: &Shared, caller: &Caller, op: &Op) -> Option<ParentCheck> {
    ParentCheck::of(op, |name| allows(user_of(fs, caller, name)))
}

/// The condition for a request that an open file makes, after [`lock`] has let it pass: a lock
/// above that was taken meanwhile. The groups of the file's opener are not known any more, so a
/// lock above whose mode gives its group another right than others is not looked at again.
pub(super) fn check_of_open(fs: &Shared, ask: &Acquire) -> Option<ParentCheck> {
    let Ownership::OpenFile(open) = ask.hold else { return None };
    ParentCheck::of_name(&ask.name, &ask.client, |_| {
        let user = fs.opens.get(open.number).map(|open| local_user(fs, open.uid, None));
        move |name: &LockName, client: &ClientId, holders: &[Lease]| match &user {
            Some(user) if !depends_on_groups(holders) => decide(user, name, client, holders),
            Some(_) | None => Ok(()),
        }
    })
}

fn user_of(fs: &Shared, caller: &Caller, name: &LockName) -> LocalUser {
    // The groups are read only where they make a difference, or where that can't be seen here.
    let matters = || fs.locks.glance(name, |lock| depends_on_groups(lock.above()));
    let needed = !caller.is_root() && matters().unwrap_or(true);
    let groups = needed.then(|| [&[caller.gid], &*groups_of(caller.pid)].concat());
    local_user(fs, caller.uid, groups)
}

fn local_user(fs: &Shared, uid: u32, groups: Option<Vec<u32>>) -> LocalUser {
    LocalUser { uid, groups, hosts: vec![fs.config.client.clone()] }
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

/// `flock`, fcntl: locks in the name of the user who opened the file, who may have to wait for a
/// name that is free by now.
pub(super) fn lock(fs: &Fs, caller: &Caller, asked: &Request, sleep: bool, reply: ReplyEmpty) {
    let open = fs.opens.get(asked.fh).filter(|_| asked.kind != libc::F_UNLCK);
    let check = open.as_ref().and_then(|open| {
        let opener = Caller { client: open.client.clone(), uid: open.uid, ..caller.clone() };
        let allows = |name: &LockName| allows(user_of(fs, &opener, name));
        Some((open.lock()?, ParentCheck::of_name(open.lock()?, &opener.client, allows)?))
    });
    let Some((name, check)) = check else {
        return locking::set(fs, caller, asked, sleep, reply);
    };
    let (fs2, caller, asked, name) = (Arc::clone(fs), caller.clone(), *asked, name.clone());
    fs.locks.check_parent(check, move |allowed| match allowed {
        Ok(()) => locking::set(&fs2, &caller, &asked, sleep, reply),
        Err(why) => {
            let failure = RequestError::Unavailable(why);
            reply.error(fs2.refuse(&caller, Act::Lock, Some(&name), failure));
        }
    });
}
