//! The file operations that release a lock: `rm` and `rmdir`.
//!
//! Selects the lease that `rm` or `mv` ends: one of the caller's own.
//!
//! Renames locks: `mv A NAME` moves a lease to another name.

use crate::engine::{
    ClientId, Holder, IfExists, Lease, LeaseKey, LockName, LockView, Move, Op, Outcome, Ownership,
    Reason, Release, Token,
};
use crate::fuse::control_names::LockFact;
use crate::fuse::credentials::Caller;
use crate::fuse::mount_parts::Mount;
use crate::fuse::posix_locks::PosixLocks;
use crate::fuse::refusals::{Act, Refusals};
use crate::service::{RequestError, Retry};
use kernel::file_system::Errno;
use kernel::file_system::NameIn;
use kernel::file_system::RenameFlags;

/// Releases a lock by `rm NAME`.
pub(crate) async fn unlink(mount: &Mount, caller: &Caller, at: NameIn<'_>) -> Result<(), Errno> {
    let name = mount.nodes.name_in(caller, Act::Unlink, at)?;
    let is_fact = LockFact::named(at.name).is_some()
        && mount.nodes.place(at.parent).is_some_and(|place| place.is_held_directory());
    if is_fact {
        // In a directory that is a held lock, a name such as `holder` is a read-only file about
        // the lock, unless it is also held as a lock of its own.
        let view = mount.nodes.view(caller, Act::Unlink, &name).await?;
        if view.holders.is_empty() {
            let sentence = format!(
                "'{name}' is a read-only fact about a lock, and \
                disappears with the lock"
            );
            let (refusals, name) = (&mount.nodes.refusals, Some(&name));
            return Err(refusals.refused(caller, Act::Unlink, name, Errno::EPERM, sentence));
        }
    }
    release(mount, caller, Act::Unlink, name).await
}

/// Releases a lock by `rmdir NAME`.
pub(crate) async fn rmdir(mount: &Mount, caller: &Caller, at: NameIn<'_>) -> Result<(), Errno> {
    let name = mount.nodes.name_in(caller, Act::Rmdir, at)?;
    release(mount, caller, Act::Rmdir, name).await
}

async fn release(mount: &Mount, caller: &Caller, act: Act, name: LockName) -> Result<(), Errno> {
    let nodes = &mount.nodes;
    let view = nodes.view(caller, act, &name).await?;
    if act == Act::Rmdir && view.has_below && has_own_below(mount, caller, &view).await {
        return Err(not_empty(&nodes.refusals, caller, act, &view));
    }
    let token = lease_to_end(&mount.posix_locks, &nodes.refusals, caller, act, &view)?;
    let key = LeaseKey { name: name.clone(), client: caller.client.clone(), token };
    let release = Op::Release(Release::of(key));
    if let Err(failure) = nodes.service.submit(release.into(), Retry::Never).outcome().await {
        match local_holder(mount, caller, &failure) {
            Some(holder) => release_for(mount, caller, act, &name, holder).await?,
            None => return Err(nodes.refusals.failed(caller, act, Some(&name), failure)),
        };
    }
    mount.nodes.users.released(&name, token);
    mount.nodes.inodes().removed(&name);
    Ok(())
}

/// Whether `rmdir` of a lock must fail because of locks below it. If the caller may release the
/// lock, only locks of the same holder count: those of other clients stay after the release.
async fn has_own_below(mount: &Mount, caller: &Caller, view: &LockView) -> bool {
    let is_local =
        |holder: &&Holder| caller.is_root() && mount.callers.is_local(&holder.lease.holder);
    let own = view.held_by(&caller.client).or_else(|| view.holders.iter().find(is_local));
    let Some(holder) = own else { return true };
    // If the lock service gives no answer, no lock counts as found: the release that `rmdir`
    // requests next fails for the same reason, and reports it.
    let held = mount.nodes.service.holds_below(&view.name, &holder.lease.holder).await;
    held.unwrap_or(false)
}

/// Releases, on behalf of root, a lock that a user of this machine holds.
async fn release_for(
    mount: &Mount,
    caller: &Caller,
    act: Act,
    name: &LockName,
    client: ClientId,
) -> Result<Outcome, Errno> {
    let key = LeaseKey { name: name.clone(), client, token: None };
    let release = Op::Release(Release::of(key));
    let released = mount.nodes.service.submit(release.into(), Retry::Never).outcome().await;
    released.map_err(|failure| mount.nodes.refusals.failed(caller, act, Some(name), failure))
}

fn local_holder(mount: &Mount, caller: &Caller, failure: &RequestError) -> Option<ClientId> {
    let RequestError::Refused(refusal) = failure else { return None };
    let Reason::NotHeld { holder: Some(holder), .. } = &*refusal.reason else { return None };
    (caller.is_root() && mount.callers.is_local(holder)).then(|| holder.clone())
}

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

/// Moves the lease of a lock to another name by `mv A NAME`.
pub(crate) async fn rename(
    mount: &Mount,
    caller: &Caller,
    from: NameIn<'_>,
    to: NameIn<'_>,
    flags: RenameFlags,
) -> Result<(), Errno> {
    let new = flags.contains(RenameFlags::RENAME_NOREPLACE);
    let act = if new { Act::RenameNew } else { Act::Rename };
    if flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
        let sentence = "two locks can't be exchanged; move one after the other";
        let refusals = &mount.nodes.refusals;
        return Err(refusals.refused(caller, act, None, Errno::EINVAL, sentence));
    }
    let from = mount.nodes.name_in(caller, act, from)?;
    let to = mount.nodes.name_in(caller, act, to)?;
    let key = lease_to_move(mount, caller, act, from).await?;
    let view = mount.nodes.view(caller, act, &to).await?;
    if view.has_below {
        return Err(not_empty(&mount.nodes.refusals, caller, act, &view));
    }
    carry(mount, caller, act, key, to).await
}

/// Returns the token of the lease that `mv` moves to another name.
async fn lease_to_move(
    mount: &Mount,
    caller: &Caller,
    act: Act,
    name: LockName,
) -> Result<LeaseKey, Errno> {
    let (nodes, client) = (&mount.nodes, caller.client.clone());
    let view = nodes.view(caller, act, &name).await?;
    if view.has_below {
        return Err(not_empty(&nodes.refusals, caller, act, &view));
    }
    let token = lease_to_end(&mount.posix_locks, &nodes.refusals, caller, act, &view)?;
    Ok(LeaseKey { name, client, token })
}

async fn carry(
    mount: &Mount,
    caller: &Caller,
    act: Act,
    key: LeaseKey,
    to: LockName,
) -> Result<(), Errno> {
    let over = if act == Act::RenameNew { IfExists::Refuse } else { IfExists::Replace };
    let (from, token) = (key.name.clone(), key.token);
    let op = Op::Move(Move { from: key, to: to.clone(), over });
    let check = mount.parents.check_of(caller, &op);
    let moved = mount.nodes.service.clone().submit_checked(op.into(), check).outcome().await;
    let failed = |failure| mount.nodes.refusals.failed(caller, act, Some(&from), failure);
    match moved.map_err(failed)? {
        Outcome::Moved(tenure) => {
            mount.nodes.users.released(&from, token);
            mount.nodes.inodes().moved(&from, &to, tenure.token);
            mount.cache.moved(&from, &to);
            Ok(())
        }
        _ => Err(Errno::EIO),
    }
}
