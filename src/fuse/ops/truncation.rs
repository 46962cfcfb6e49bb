//! Truncations of the files of locks: by open(2) with `O_TRUNC`, and by truncate(2).
//!
//! A truncation renews the lease if the process, or another one of its login session, has made or
//! last renewed it, and fails if the process has lost the lease. From other processes it changes
//! nothing, because an open with `O_TRUNC` is also the first half of `exec 9>NAME; flock 9`.

use crate::engine::{
    Firm, LeaseKey, LockName, LockView, Op, Outcome, Ownership, Patch, Reason, Refusal, Renew,
    Token,
};
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::kernel::values::Errno;
use crate::fuse::lease_users::LeaseUse;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::open_file::{OpenAccess, OpenFile, TruncatedLease};
use crate::fuse::ops::lease_change::{
    ChangedLease, ChangedLeases, LeaseChange, LeaseChanges, TextChange, TimesChange,
};
use crate::service::RequestError;
use std::sync::Arc;

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
    nodes: &LockNodes,
    changes: &LeaseChanges,
    caller: &Caller,
    (open, view): (&OpenFile, LockView),
    flags: i32,
) -> Result<LockView, Errno> {
    if !truncates(flags) {
        return Ok(view);
    }
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
    let truncated = changes.apply(caller, Act::Truncate, &meant, &change).await;
    if change.renews.is_some() {
        truncated?;
    }
    let after = nodes.locks.view(caller, Act::Truncate, &view.name).await;
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
    nodes.locks.service().submit(op, move |answer| {
        if let Ok(Ok(answer)) = answer
            && let Outcome::Renewed(tenure) = answer
        {
            of.users.renewed(by, &client, &name, &tenure);
        }
    });
}

/// Records that a truncation was refused because the caller has lost the lease with this token, and
/// returns the errno.
pub(crate) fn lost(nodes: &LockNodes, caller: &Caller, name: &LockName, token: Token) -> Errno {
    let reason = Box::new(Reason::Expired { name: name.clone(), token });
    let refusal = Refusal { at: nodes.locks.service().now(), reason };
    let failure = RequestError::Refused(refusal);
    nodes.locks.refusals().failed(caller, Act::Truncate, Some(name), failure)
}
