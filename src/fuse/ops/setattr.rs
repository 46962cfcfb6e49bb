//! Changes the attributes of locks: chmod, chown, truncate, utimensat.

use crate::engine::Firm;
use crate::engine::LockName;
use crate::engine::limits::TEXT_BYTES_MAX;
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::wall_of;
use crate::fuse::inodes::LockNode;
use crate::fuse::kernel::caller_status::groups_of;
use crate::fuse::kernel::values::{Errno, NodeAttr, SetAttrs, TimeOrNow};
use crate::fuse::last_refusal::only_a_way;
use crate::fuse::lease_users::LeaseUse;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::ops::lease_change::{
    ChangeReached, LeaseChange, LeaseChanges, TimesChange, meant_by_path, too_long,
};
use crate::fuse::ops::truncation::{lost, renewing_cut, use_of_truncation};
use crate::time::Wall;
use std::sync::Arc;

pub(crate) struct SetAttributes {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
    changes: Arc<LeaseChanges>,
}

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

impl SetAttributes {
    /// Returns the setattr operations of one mount.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        opens: Arc<OpenFiles>,
        changes: Arc<LeaseChanges>,
    ) -> Self {
        Self { nodes, opens, changes }
    }

    /// Performs chmod, chown, truncate or utimensat on a lock.
    pub(crate) async fn setattr(
        &self,
        caller: &Caller,
        ino: u64,
        node: &LockNode,
        wanted: &SetAttrs,
    ) -> Result<NodeAttr, Errno> {
        let act = act_of(wanted);
        if let Some((act, errno, sentence)) = wrong_change(caller, node, wanted) {
            let (refusals, name) = (self.nodes.locks.refusals(), Some(&node.name));
            return Err(refusals.refused(caller, act, name, errno, sentence));
        }
        if let (Some(fh), Some(_)) = (wanted.fh, wanted.size)
            && let Some(open) = self.opens.get(fh)
        {
            // The truncation ends the message that was written last through this open file, so the
            // next write starts a new content, whatever its offset.
            open.state().end = None;
        }
        if let Some(size) = wanted.size {
            return self.truncate(caller, (ino, node), size as usize, wanted.fh).await;
        }
        let (meant, change) = (meant_by_path(node), change_of(wanted));
        let attr = match self.changes.apply(caller, act, &meant, &change).await {
            Err(errno) => return Err(errno),
            // The answer to the change contains the new state of the lock, so no further request is
            // needed for the attributes.
            Ok(ChangeReached { state: Some(state), .. }) if node.links.len() == 1 => {
                self.nodes.attrs.of_one(ino, node, &state)
            }
            // Another request is needed for the attributes, because the change returned no complete
            // state of the lock.
            Ok(_) => self.nodes.attr_now(caller, ino, node).await?,
        };
        Ok(NodeAttr::uncached(attr))
    }

    /// Performs truncate or ftruncate on a lock: a renewal by a process that uses the lease, and a
    /// failure for one that has lost it. By other processes it has no effect, and does not fail:
    /// programs truncate a file before they write to it, and the write reports the error.
    async fn truncate(
        &self,
        caller: &Caller,
        (ino, node): (u64, &LockNode),
        length: usize,
        fh: Option<u64>,
    ) -> Result<NodeAttr, Errno> {
        let view = self.nodes.locks.view(caller, Act::Truncate, &node.name).await?;
        match use_of_truncation(&self.nodes, caller, &view, fh) {
            LeaseUse::None => {}
            LeaseUse::Lost(token) => return Err(lost(&self.nodes, caller, &node.name, token)),
            LeaseUse::ByProcess(_) | LeaseUse::BySession(_) => {
                let (meant, change) = (meant_by_path(node), renewing_cut(length));
                self.changes.apply(caller, Act::Truncate, &meant, &change).await?;
            }
        }
        Ok(NodeAttr::uncached(self.nodes.attr_now(caller, ino, node).await?))
    }
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
    if let Some(sentence) = wrong_chown(caller, &node.name, wanted.owner) {
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
    (uid, gid): (Option<u32>, Option<u32>),
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
