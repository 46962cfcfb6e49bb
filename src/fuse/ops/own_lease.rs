//! Selects the lease that `rm` or `mv` ends: one of the caller's own.

use crate::engine::{Lease, LockView, Ownership, Token};
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::kernel::values::Errno;
use crate::fuse::posix_locks::PosixLocks;
use crate::fuse::refusals::Refusals;

/// Whether the lease is not owned by one open file, so that any program of the client may end it.
pub(crate) const fn is_loose(lease: &Lease) -> bool {
    !matches!(lease.hold, Ownership::OpenFile(_))
}

/// Returns the token of the lease that `rm` or `mv` by the caller ends. Returns `None` if the
/// caller holds no lease of the lock: the engine then refuses and names the holder.
///
/// Only the process that opened or locked a file, and descendants of that process, can end a lock
/// that the open file holds: `flock x sh -c 'rm x'` works, while `rm x` by another program of the
/// same user fails.
pub(crate) fn lease_to_end(
    posix_locks: &PosixLocks,
    refusals: &Refusals,
    caller: &Caller,
    act: Act,
    view: &LockView,
) -> Result<Option<Token>, Errno> {
    let own = || view.holders.iter().filter(|holder| holder.lease.holder == caller.client);
    if let Some(lease) = own().find(|holder| is_loose(&holder.lease)) {
        return Ok(Some(lease.lease.token));
    }
    let mut tokens = own().map(|holder| holder.lease.token).peekable();
    if tokens.peek().is_none() {
        return Ok(None);
    }
    if let Some(token) = tokens.find(|token| posix_locks.may_end(caller, *token)) {
        return Ok(Some(token));
    }
    let sentence = format!(
        "lock '{}' is held by an open file of another program of {}; it is free when that \
         program unlocks or closes it",
        view.name, caller.client
    );
    Err(refusals.refused(caller, act, Some(&view.name), Errno::EBUSY, sentence))
}

/// Records that the operation was refused with ENOTEMPTY, because there are locks below the name,
/// and returns that errno.
pub(crate) fn not_empty(refusals: &Refusals, caller: &Caller, act: Act, view: &LockView) -> Errno {
    let name = &view.name;
    let sentence = format!("there are locks below '{name}/'; release them first");
    refusals.refused(caller, act, Some(name), Errno::ENOTEMPTY, sentence)
}
