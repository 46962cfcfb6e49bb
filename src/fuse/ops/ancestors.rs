//! The permission to make a name below a lock. Its holder could not remove a directory that others
//! fill, so the permission bits of a directory that is held decide, as in other file systems. A
//! directory that is only shown belongs to nobody, and everybody may make names in it.

use crate::engine::{Lease, LockName, RefusalKind};
use crate::fuse::credentials::{Caller, Callers, groups_of};
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::permissions;
use crate::fuse::kernel::values::{Errno, LockRequest};
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use std::sync::Arc;

/// Write and search, for others.
const WRITE: u16 = 0o3;

/// Checks the permission bits of the locks above a name.
pub(crate) struct Ancestors {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
    callers: Arc<Callers>,
}

impl Ancestors {
    /// The checks of one mount.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        opens: Arc<OpenFiles>,
        callers: Arc<Callers>,
    ) -> Self {
        Self { nodes, opens, callers }
    }

    /// Checks whether the caller may make `name`, as far as the nearest lock above it decides.
    pub(crate) async fn check(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
    ) -> Result<(), Errno> {
        let above: Vec<_> = ancestors(name).collect();
        if above.is_empty() {
            return Ok(());
        }
        let may = match self.may_here(caller, &above) {
            Some(may) => may,
            None => self.may_afar(caller, act, &above).await?,
        };
        if may {
            return Ok(());
        }
        let refusals = self.nodes.locks.refusals();
        Err(refusals.refused(caller, act, Some(name), Errno::EACCES, sentence(name)))
    }

    /// The same for a request through the control file, which is told why not in a sentence.
    pub(crate) async fn check_request(
        &self,
        caller: &Caller,
        name: &LockName,
    ) -> Result<(), (RefusalKind, String)> {
        self.check(caller, Act::Control, name).await.map_err(|errno| {
            if errno == Errno::EACCES {
                (RefusalKind::Denied, sentence(name))
            } else {
                let sentence = format!("what lies above '{name}' can't be seen now; try again");
                (RefusalKind::ConsistencyUnavailable, sentence)
            }
        })
    }

    /// The same for `flock` and fcntl: they lock in the name of the user who opened the file, and
    /// the name may be free by now.
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
        self.check(&open.opener(caller), Act::Lock, name).await
    }

    /// Whether the nearest lock above lets the caller; `None`: the engine is elsewhere.
    fn may_here(&self, caller: &Caller, above: &[LockName]) -> Option<bool> {
        for name in above {
            let may = self.nodes.locks.service().glance(name, |lock| {
                let leases = lock.leases();
                (!leases.is_empty()).then(|| self.may_write(caller, leases.iter()))
            })?;
            if may.is_some() {
                return may;
            }
        }
        Some(true)
    }

    /// The same where the engine is elsewhere.
    async fn may_afar(&self, caller: &Caller, act: Act, above: &[LockName]) -> Result<bool, Errno> {
        let views = self.nodes.locks.views(caller, act, above).await?;
        let nearest = views.iter().find(|view| !view.holders.is_empty());
        Ok(nearest.is_none_or(|view| {
            self.may_write(caller, view.holders.iter().map(|holder| &holder.lease))
        }))
    }

    /// Whether the caller may make names below a lock that is held so. Root of another machine is
    /// nobody here, as over NFS.
    fn may_write<'a>(
        &self,
        caller: &Caller,
        mut leases: impl Iterator<Item = &'a Lease> + Clone,
    ) -> bool {
        let mut holders = leases.clone();
        let Some(lease) = leases.next() else { return true };
        if holders.any(|lease| lease.holder == caller.client) {
            return true;
        }
        let looks = lease.details.looks();
        let local = self.callers.is_local(&lease.holder);
        let bits = permissions(looks.face, looks.mode);
        let writes = |bits: u16| bits & WRITE == WRITE;
        match local {
            true if caller.is_root() => true,
            true if looks.uid == caller.uid => writes(bits >> 6),
            // The group is asked for only where it makes a difference.
            true if writes(bits >> 3) != writes(bits) => {
                let own = looks.gid == caller.gid || groups_of(caller.pid).contains(&looks.gid);
                writes(if own { bits >> 3 } else { bits })
            }
            _ => writes(bits),
        }
    }
}

/// Why a name below another's lock can't be made.
fn sentence(name: &LockName) -> String {
    format!(
        "'{name}' lies below a lock of another user, whose mode lets nobody else make locks \
         there; choose another name, or have its holder open it by 'chmod a+rwx'"
    )
}

/// The names above a name, the nearest first.
fn ancestors(name: &LockName) -> impl Iterator<Item = LockName> {
    let above = |name: &LockName| LockName::parse(name.as_str().rsplit_once('/')?.0).ok();
    std::iter::successors(above(name), above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_come_nearest_first() {
        let name = |text| LockName::parse(text).expect("valid");
        let above: Vec<_> = ancestors(&name("a/b/c")).collect();
        assert_eq!(above, [name("a/b"), name("a")]);
        assert_eq!(ancestors(&name("a")).count(), 0);
    }
}
