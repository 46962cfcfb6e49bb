//! Truncation at open (`O_TRUNC`): clears the content of a lock that the caller holds, and leaves a
//! lock of another client unchanged, without an error.

use crate::engine::LockView;
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::open_file::OpenAccess;
use crate::fuse::ops::lease_change::{
    ChangedLease, ChangedLeases, LeaseChange, LeaseChanges, TextChange,
};

/// Clears the content of the caller's own lock if the flags of open(2) contain `O_TRUNC`. `view` is
/// the state of the lock before the truncation; returns the state after it.
pub(crate) async fn truncate_at_open(
    nodes: &LockNodes,
    changes: &LeaseChanges,
    caller: &Caller,
    view: LockView,
    flags: i32,
) -> LockView {
    let truncates = flags & libc::O_TRUNC != 0 && OpenAccess::of_flags(flags).writes();
    let held = view.held_by(&caller.client);
    let Some(held) = held.filter(|held| truncates && !held.lease.details.text().is_empty()) else {
        return view;
    };
    let (name, token) = (view.name.clone(), Some(held.lease.token));
    let meant = ChangedLeases::one(ChangedLease { name, token });
    let change = LeaseChange { text: Some(TextChange::Cut(0)), ..LeaseChange::default() };
    // The result of the truncation is ignored, because the open succeeds in any case.
    let _truncated = changes.apply(caller, Act::Truncate, &meant, &change).await;
    let after = nodes.locks.view(caller, Act::Truncate, &view.name).await;
    after.unwrap_or(view)
}
