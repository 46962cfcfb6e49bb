//! Changes the attributes of locks: chmod, chown, truncate, utimensat.
//!
//! Truncations of the files of locks: by open(2) with `O_TRUNC`, and by truncate(2).
//!
//! A truncation renews the lease if the process, or another one of its login session, has made or
//! last renewed it, and fails if the process has lost the lease. From other processes it changes
//! nothing, because an open with `O_TRUNC` is also the first half of `exec 9>NAME; flock 9`.

use crate::engine::values::details::TEXT_BYTES_MAX;
use crate::engine::{
    Firm, LeaseKey, LockName, LockView, Op, Outcome, Ownership, Patch, Reason, Refusal, Renew,
    Token,
};
use crate::fuse::credentials::Caller;
use crate::fuse::file_attrs::wall_of;
use crate::fuse::inodes::LockNode;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::{OpenAccess, OpenFile, TruncatedLease};
use crate::fuse::ops::lease_change;
use crate::fuse::ops::lease_change::{
    ChangeReached, ChangedLease, ChangedLeases, LeaseChange, TextChange, TimesChange,
    meant_by_path, too_long,
};
use crate::fuse::process::lease_users::LeaseUse;
use crate::fuse::refusals::{Act, only_a_way};
use crate::service::{RequestError, Retry};
use crate::time::Wall;
use common::task::spawn;
use kernel::file_system::{Errno, NodeAttr, SetAttrs, TimeOrNow};
use kernel::interrupts::groups_of;
use std::sync::Arc;

/// Returns the kind of operation (chmod, truncate or touch) from which the kernel has made a
/// setattr request. The kernel combines attributes in one request only for a truncation that also
/// sets times.
pub(crate) const fn act_of(wanted: &SetAttrs) -> Act {
    match (wanted.size, &wanted.times) {
        (Some(_), _) => Act::Truncate,
        (None, (None, None)) => Act::Chmod,
        (None, _) => Act::Touch,
    }
}

/// Performs chmod, chown, truncate or utimensat on a lock.
pub(crate) async fn setattr(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    node: &LockNode,
    wanted: &SetAttrs,
) -> Result<NodeAttr, Errno> {
    let act = act_of(wanted);
    if let Some((act, errno, sentence)) = wrong_change(caller, node, wanted) {
        let (refusals, name) = (&mount.nodes.refusals, Some(&node.name));
        return Err(refusals.refused(caller, act, name, errno, sentence));
    }
    if let (Some(fh), Some(_)) = (wanted.fh, wanted.size)
        && let Some(open) = mount.opens.get(fh)
    {
        // The truncation ends the message that was written last through this open file, so the
        // next write starts a new content, whatever its offset.
        open.state().end = None;
    }
    if let Some(size) = wanted.size {
        return truncate(mount, caller, ino, node, size as usize, wanted.fh).await;
    }
    let (meant, change) = (meant_by_path(node), change_of(wanted));
    let attr = match lease_change::apply(mount, caller, act, &meant, &change).await {
        Err(errno) => return Err(errno),
        // The answer to the change contains the new state of the lock, so no further request is
        // needed for the attributes.
        Ok(ChangeReached { state: Some(state), .. }) if node.links.len() == 1 => {
            mount.nodes.attrs.of_one(ino, node, &state)
        }
        // Another request is needed for the attributes, because the change returned no complete
        // state of the lock.
        Ok(_) => mount.nodes.attr_now(caller, ino, node).await?,
    };
    Ok(NodeAttr::uncached(attr))
}

/// Performs truncate or ftruncate on a lock: a renewal by a process that uses the lease, and a
/// failure for one that has lost it. By other processes it has no effect, and does not fail:
/// programs truncate a file before they write to it, and the write reports the error.
async fn truncate(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    node: &LockNode,
    length: usize,
    fh: Option<u64>,
) -> Result<NodeAttr, Errno> {
    let view = mount.nodes.view(caller, Act::Truncate, &node.name).await?;
    match use_of_truncation(&mount.nodes, caller, &view, fh) {
        LeaseUse::None => {}
        LeaseUse::Lost(token) => return Err(lost(&mount.nodes, caller, &node.name, token)),
        LeaseUse::ByProcess(_) | LeaseUse::BySession(_) => {
            let (meant, change) = (meant_by_path(node), renewing_cut(length));
            lease_change::apply(mount, caller, Act::Truncate, &meant, &change).await?;
        }
    }
    Ok(NodeAttr::uncached(mount.nodes.attr_now(caller, ino, node).await?))
}

/// Returns the operation, errno and message of an attribute change that is never allowed, whichever
/// client holds the lock; `None` if it is allowed.
fn wrong_change(
    caller: &Caller,
    node: &LockNode,
    wanted: &SetAttrs,
) -> Option<(Act, Errno, String)> {
    if node.is_only_a_way() {
        return Some((act_of(wanted), Errno::EPERM, only_a_way(&node.name)));
    }
    if let Some(sentence) = wrong_chown(caller, &node.name, wanted.owner.0, wanted.owner.1) {
        return Some((Act::Chmod, Errno::EPERM, sentence));
    }
    let size = wanted.size.filter(|size| *size > TEXT_BYTES_MAX as u64)?;
    Some((Act::Truncate, Errno::EFBIG, too_long(&node.name, size)))
}

/// Returns why a chown by the caller is not allowed, if so: as on other file systems, only root
/// gives files away.
fn wrong_chown(
    caller: &Caller,
    name: &LockName,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Option<String> {
    let own_user = uid.is_none_or(|uid| uid == caller.uid);
    let own_group = |gid| gid == caller.gid || groups_of(caller.pid).contains(&gid);
    if caller.is_root() || (own_user && gid.is_none_or(own_group)) {
        return None;
    }
    Some(format!("only root can give the file of lock '{name}' to another user or group"))
}

fn change_of(wanted: &SetAttrs) -> LeaseChange {
    let (permissions, user) = (wanted.mode, wanted.owner);
    let change = LeaseChange { permissions, user, ..LeaseChange::default() };
    let renews = Some(Firm::Keep);
    match wanted.times {
        (None, None) => return change,
        // A plain `touch` removes times that were set earlier: the file then shows the time of the
        // last renewal.
        (Some(TimeOrNow::Now), Some(TimeOrNow::Now)) => {
            return LeaseChange { renews, times: TimesChange::Reset, ..change };
        }
        _ => {}
    }
    let now = Wall::now();
    let wall = |time: &TimeOrNow| match time {
        TimeOrNow::SpecificTime(time) => wall_of(*time),
        TimeOrNow::Now => now,
    };
    let (accessed, modified) =
        (wanted.times.0.as_ref().map(wall), wanted.times.1.as_ref().map(wall));
    LeaseChange { renews, times: TimesChange::Set(accessed, modified), ..change }
}

/// Whether an open with these flags truncates the file.
pub(crate) const fn truncates(flags: i32) -> bool {
    flags & libc::O_TRUNC != 0 && OpenAccess::of_flags(flags).writes()
}

/// Returns the change of a lease that a truncation to `length` bytes requests.
pub(crate) fn renewing_cut(length: usize) -> LeaseChange {
    LeaseChange {
        renews: Some(Firm::Keep),
        text: Some(TextChange::Cut(length)),
        times: TimesChange::Reset,
        ..LeaseChange::default()
    }
}

/// Truncates a lock's file if the flags of open(2) contain `O_TRUNC`. `open` is the new open file,
/// and `view` the state of the lock before the truncation; returns the state after it.
///
/// Another process of the login session of the lease's user may be one that polls with
/// `flock -n`. So its truncation clears the content, and renews only when the file is closed and no
/// lock was requested through it.
pub(crate) async fn truncate_at_open(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    view: LockView,
    flags: i32,
) -> Result<LockView, Errno> {
    if !truncates(flags) {
        return Ok(view);
    }
    let nodes = &mount.nodes;
    let (token, change) = match nodes.users.use_of(caller, &view) {
        LeaseUse::None => return Ok(view),
        LeaseUse::Lost(token) => return Err(lost(nodes, caller, &view.name, token)),
        LeaseUse::ByProcess(token) => (token, renewing_cut(0)),
        LeaseUse::BySession(token) => {
            let by = nodes.users.id_of(caller);
            open.state().truncated = Some(TruncatedLease { token, by });
            let text = Some(TextChange::Cut(0));
            (token, LeaseChange { text, ..LeaseChange::default() })
        }
    };
    let meant = ChangedLeases::one(ChangedLease { name: view.name.clone(), token: Some(token) });
    let truncated = lease_change::apply(mount, caller, Act::Truncate, &meant, &change).await;
    if change.renews.is_some() {
        truncated?;
    }
    let after = nodes.view(caller, Act::Truncate, &view.name).await;
    Ok(after.unwrap_or(view))
}

/// Returns the relation of a process that calls ftruncate(2) or truncate(2) to the leases of the
/// lock. An open file that holds the lock is the lease's user, whichever process has it.
pub(crate) fn use_of_truncation(
    nodes: &LockNodes,
    caller: &Caller,
    view: &LockView,
    fh: Option<u64>,
) -> LeaseUse {
    let held = view.holders.iter().find(|holder| {
        matches!(holder.lease.hold, Ownership::OpenFile(open) if Some(open.number) == fh)
            && holder.lease.holder == caller.client
    });
    held.map_or_else(
        || nodes.users.use_of(caller, view),
        |held| LeaseUse::ByProcess(held.lease.token),
    )
}

/// Renews the lease of a lock whose file was truncated by the open that is closed now, unless a
/// program has tried to lock the file, or has written to it.
pub(crate) fn renew_at_close(nodes: &Arc<LockNodes>, open: &OpenFile) {
    let truncated = {
        let mut state = open.state();
        let is_used = state.locked || state.wrote;
        state.truncated.take().filter(|_| !is_used)
    };
    let (Some(truncated), Some(name)) = (truncated, open.lock()) else { return };
    let TruncatedLease { token, by } = truncated;
    let (name, client) = (name.clone(), open.client.clone());
    let key = LeaseKey { name: name.clone(), client: client.clone(), token: Some(token) };
    let patch = Patch::default();
    let op = Op::Renew(Renew { key, term: None, firm: Firm::Keep, patch, acquires: false });
    let of = Arc::clone(nodes);
    let renewed = nodes.service.submit(op.into(), Retry::Never);
    spawn(async move {
        if let Ok(Ok(Outcome::Renewed(tenure))) = renewed.await {
            of.users.renewed(by, &client, &name, &tenure);
        }
    });
}

/// Records that a truncation was refused because the caller has lost the lease with this token, and
/// returns the errno.
pub(crate) fn lost(nodes: &LockNodes, caller: &Caller, name: &LockName, token: Token) -> Errno {
    let reason = Box::new(Reason::Expired { name: name.clone(), token });
    let refusal = Refusal { at: nodes.service.now(), reason };
    let failure = RequestError::Refused(refusal);
    nodes.refusals.failed(caller, Act::Truncate, Some(name), failure)
}
