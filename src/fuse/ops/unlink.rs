//! The file operations that release a lock: `rm` and `rmdir`.

use crate::engine::{ClientId, Holder, LeaseKey, LockName, LockView, Op, Outcome, Reason, Release};
use crate::fuse::control_names::LockFact;
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::errno::Act;
use crate::fuse::kernel::file_system::NameIn;
use crate::fuse::kernel::values::Errno;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::ops::own_lease::{lease_to_end, not_empty};
use crate::fuse::posix_locks::PosixLocks;
use crate::service::RequestError;
use std::sync::Arc;

/// Releases locks by removing files.
pub(crate) struct Removal {
    nodes: Arc<LockNodes>,
    callers: Arc<Callers>,
    posix_locks: Arc<PosixLocks>,
}

impl Removal {
    /// Returns the operations `rm` and `rmdir` of one mount.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        callers: Arc<Callers>,
        posix_locks: Arc<PosixLocks>,
    ) -> Self {
        Self { nodes, callers, posix_locks }
    }

    /// Releases a lock by `rm NAME`.
    pub(crate) async fn unlink(&self, caller: &Caller, at: NameIn<'_>) -> Result<(), Errno> {
        let name = self.nodes.name_in(caller, Act::Unlink, at)?;
        let is_fact = LockFact::named(at.name).is_some()
            && self.nodes.place(at.parent).is_some_and(|place| place.is_held_directory());
        if is_fact {
            // In a directory that is a held lock, a name such as `holder` is a read-only file about
            // the lock, unless it is also held as a lock of its own.
            let view = self.nodes.locks.view(caller, Act::Unlink, &name).await?;
            if view.holders.is_empty() {
                let sentence = format!(
                    "'{name}' is a read-only fact about a lock, and \
                    disappears with the lock"
                );
                let (refusals, name) = (self.nodes.locks.refusals(), Some(&name));
                return Err(refusals.refused(caller, Act::Unlink, name, Errno::EPERM, sentence));
            }
        }
        self.release(caller, Act::Unlink, name).await
    }

    /// Releases a lock by `rmdir NAME`.
    pub(crate) async fn rmdir(&self, caller: &Caller, at: NameIn<'_>) -> Result<(), Errno> {
        let name = self.nodes.name_in(caller, Act::Rmdir, at)?;
        self.release(caller, Act::Rmdir, name).await
    }

    async fn release(&self, caller: &Caller, act: Act, name: LockName) -> Result<(), Errno> {
        let locks = &self.nodes.locks;
        let view = locks.view(caller, act, &name).await?;
        if act == Act::Rmdir && view.has_below && self.has_own_below(caller, &view).await {
            return Err(not_empty(locks.refusals(), caller, act, &view));
        }
        let token = lease_to_end(&self.posix_locks, locks.refusals(), caller, act, &view)?;
        let key = LeaseKey { name: name.clone(), client: caller.client.clone(), token };
        if let Err(failure) = locks.decide(Op::Release(Release::of(key))).await {
            match self.local_holder(caller, &failure) {
                Some(holder) => self.release_for(caller, act, &name, holder).await?,
                None => return Err(locks.refusals().failed(caller, act, Some(&name), failure)),
            };
        }
        self.nodes.users.released(&name, token);
        self.nodes.inodes().removed(&name);
        Ok(())
    }

    /// Whether `rmdir` of a lock must fail because of locks below it. If the caller may release the
    /// lock, only locks of the same holder count: those of other clients stay after the release.
    async fn has_own_below(&self, caller: &Caller, view: &LockView) -> bool {
        let is_local =
            |holder: &&Holder| caller.is_root() && self.callers.is_local(&holder.lease.holder);
        let own = view.held_by(&caller.client).or_else(|| view.holders.iter().find(is_local));
        let Some(holder) = own else { return true };
        // If the lock service gives no answer, no lock counts as found: the release that `rmdir`
        // requests next fails for the same reason, and reports it.
        let held = self.nodes.locks.holds_below(&view.name, &holder.lease.holder).await;
        held.unwrap_or(false)
    }

    /// Releases, on behalf of root, a lock that a user of this machine holds.
    async fn release_for(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
        client: ClientId,
    ) -> Result<Outcome, Errno> {
        let key = LeaseKey { name: name.clone(), client, token: None };
        self.nodes.locks.submit(caller, act, name, Op::Release(Release::of(key))).await
    }

    fn local_holder(&self, caller: &Caller, failure: &RequestError) -> Option<ClientId> {
        let RequestError::Refused(refusal) = failure else { return None };
        let Reason::NotHeld { holder: Some(holder), .. } = &*refusal.reason else { return None };
        (caller.is_root() && self.callers.is_local(holder)).then(|| holder.clone())
    }
}
