//! Renames locks: `mv A NAME` moves a lease to another name.

use crate::engine::{IfExists, LeaseKey, LockName, Move, Op, Outcome};
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::kernel::file_system::NameIn;
use crate::fuse::kernel::values::{Errno, RenameFlags};
use crate::fuse::kernel_cache::KernelCache;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::ops::own_lease::{lease_to_end, not_empty};
use crate::fuse::parent_checks::ParentChecks;
use crate::fuse::posix_locks::PosixLocks;
use std::sync::Arc;

pub(crate) struct Renames {
    nodes: Arc<LockNodes>,
    cache: Arc<KernelCache>,
    posix_locks: Arc<PosixLocks>,
    parents: Arc<ParentChecks>,
}

impl Renames {
    /// Returns the rename operations of one mount.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        cache: Arc<KernelCache>,
        posix_locks: Arc<PosixLocks>,
        parents: Arc<ParentChecks>,
    ) -> Self {
        Self { nodes, cache, posix_locks, parents }
    }

    /// Moves the lease of a lock to another name by `mv A NAME`.
    pub(crate) async fn rename(
        &self,
        caller: &Caller,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let new = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let act = if new { Act::RenameNew } else { Act::Rename };
        if flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
            let sentence = "two locks can't be exchanged; move one after the other";
            let refusals = self.nodes.locks.refusals();
            return Err(refusals.refused(caller, act, None, Errno::EINVAL, sentence));
        }
        let from = self.nodes.name_in(caller, act, from)?;
        let to = self.nodes.name_in(caller, act, to)?;
        let key = self.lease_to_move(caller, act, from).await?;
        let view = self.nodes.locks.view(caller, act, &to).await?;
        if view.has_below {
            return Err(not_empty(self.nodes.locks.refusals(), caller, act, &view));
        }
        self.carry(caller, act, key, to).await
    }

    /// Returns the token of the lease that `mv` moves to another name.
    async fn lease_to_move(
        &self,
        caller: &Caller,
        act: Act,
        name: LockName,
    ) -> Result<LeaseKey, Errno> {
        let (locks, client) = (&self.nodes.locks, caller.client.clone());
        let view = locks.view(caller, act, &name).await?;
        if view.has_below {
            return Err(not_empty(locks.refusals(), caller, act, &view));
        }
        let token = lease_to_end(&self.posix_locks, locks.refusals(), caller, act, &view)?;
        Ok(LeaseKey { name, client, token })
    }

    async fn carry(
        &self,
        caller: &Caller,
        act: Act,
        key: LeaseKey,
        to: LockName,
    ) -> Result<(), Errno> {
        let over = if act == Act::RenameNew { IfExists::Refuse } else { IfExists::Replace };
        let (from, token) = (key.name.clone(), key.token);
        let op = Op::Move(Move { from: key, to: to.clone(), over });
        let check = self.parents.check_of(caller, &op);
        match self.nodes.locks.submit_checked(caller, act, &from, op, check).await? {
            Outcome::Moved(tenure) => {
                self.nodes.users.released(&from, token);
                self.nodes.inodes().moved(&from, &to, tenure.token);
                self.cache.moved(&from, &to);
                Ok(())
            }
            _ => Err(Errno::EIO),
        }
    }
}
