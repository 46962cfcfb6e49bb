//! Opens with `O_CREAT` a name that the kernel has not cached: takes the lock if it is free, and
//! otherwise opens its file without taking it.

use crate::engine::{FileType, LockName, OpenId, Outcome, Ownership, RefusalKind};
use crate::fuse::credentials::Caller;
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::looks_of_new;
use crate::fuse::kernel::file_system::NameIn;
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::kernel::values::{Errno, NodeEntry, Opened, OpenedFlags};
use crate::fuse::lease_users::LeaseUse;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::open_files::open_file::OpenFile;
use crate::fuse::ops::create::{Creation, NewLock};
use crate::fuse::ops::lease_change::LeaseChanges;
use crate::fuse::ops::truncation::{lost, truncate_at_open, truncates};
use crate::fuse::parent_checks::ParentChecks;
use crate::fuse::posix_locks::PosixLocks;
use crate::service::RequestError;
use std::sync::Arc;

/// Takes locks by open with `O_CREAT`.
pub(crate) struct CreateOpen {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
    parents: Arc<ParentChecks>,
    creation: Arc<Creation>,
    posix_locks: Arc<PosixLocks>,
    changes: Arc<LeaseChanges>,
}

/// The permissions and the flags of an open with `O_CREAT`.
type CreateMode = (u32, i32);

/// Returns the kind of operation, for errnos and counters, of an open with `O_CREAT` and these
/// flags of open(2).
pub(crate) const fn act_of(flags: i32) -> Act {
    if flags & libc::O_EXCL != 0 { Act::CreateNew } else { Act::Create }
}

impl CreateOpen {
    /// Returns the part of a mount that handles opens with `O_CREAT`.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        opens: Arc<OpenFiles>,
        parents: Arc<ParentChecks>,
        creation: Arc<Creation>,
        posix_locks: Arc<PosixLocks>,
        changes: Arc<LeaseChanges>,
    ) -> Self {
        Self { nodes, opens, parents, creation, posix_locks, changes }
    }

    /// Opens a file with `O_CREAT`, and takes its lock if the lock is free.
    pub(crate) async fn create(
        &self,
        caller: &Caller,
        at: NameIn<'_>,
        how: CreateMode,
    ) -> Result<(NodeEntry, Opened), Errno> {
        let act = act_of(how.1);
        self.opens.repeated.done(caller.pid);
        if let Err(full) = self.opens.shares().room(Pool::Files, caller.uid) {
            return Err(self.nodes.locks.refusals().full(caller, act, None, &full));
        }
        let name = self.nodes.name_in(caller, act, at)?;
        if act == Act::Create {
            // The state of the lock is read first: if the caller holds the lock already, an acquire
            // would overwrite the details of its lease.
            let view = self.nodes.locks.view(caller, act, &name).await?;
            if truncates(how.1)
                && let LeaseUse::Lost(token) = self.nodes.users.use_of(caller, &view)
            {
                return Err(lost(&self.nodes, caller, &name, token));
            }
            if self.nodes.attrs.state_of(&view).shown().is_some() {
                return self.open_as_it_is(caller, &name, how.1).await;
            }
        }
        self.create_free(caller, name, how).await
    }

    /// Takes a lock that was free when its state was read. If another client has taken the lock
    /// since, opens its file without taking the lock, or fails if the flags contain `O_EXCL`.
    async fn create_free(
        &self,
        caller: &Caller,
        name: LockName,
        (mode, flags): CreateMode,
    ) -> Result<(NodeEntry, Opened), Errno> {
        let act = act_of(flags);
        let is_new = act == Act::CreateNew;
        let refused = |failure| {
            let name = Some(&name);
            Err(self.nodes.locks.refusals().failed(caller, act, name, failure))
        };
        let fh = self.opens.number();
        let hold = match self.maker_of(is_new, fh) {
            Ok(hold) => hold,
            Err(failure) => return refused(failure),
        };
        let looks = looks_of_new(caller, FileType::File, mode);
        let new = NewLock { name: name.clone(), hold, looks, text: None };
        let (op, process) = self.creation.acquire(caller, &new);
        let check = self.parents.check_of(caller, &op);
        match self.nodes.locks.decide_checked(op, check).await {
            Ok(Outcome::Granted(tenure)) => {
                let token = tenure.token;
                let entry = self.creation.granted(caller, &new, &tenure, process.as_ref());
                let ino = entry.attr.ino.0;
                let mut open = OpenFile::of_lock(caller, ino, name, flags);
                open.made_new = is_new;
                {
                    let mut state = open.state();
                    state.tenure = Some(token);
                    state.own_lease = state.tenure.filter(|_| is_new);
                }
                Ok((entry, self.opened(fh, open)))
            }
            Ok(_) if !is_new => self.open_as_it_is(caller, &name, flags).await,
            // Programs such as `flock`, and those that write log files, open a file before they
            // lock it. So an open without O_EXCL never fails because another client holds the lock.
            Err(RequestError::Refused(no)) if !is_new && no.kind() == RefusalKind::LockConflict => {
                self.open_as_it_is(caller, &name, flags).await
            }
            Ok(_) => Err(Errno::EIO),
            Err(failure) => refused(failure),
        }
    }

    /// Returns the ownership of a lock that an open with `O_CREAT` takes. With `O_EXCL`, only the
    /// open file that it creates can lock it by flock later.
    fn maker_of(&self, is_new: bool, fh: u64) -> Result<Ownership, RequestError> {
        if !is_new {
            return Ok(Ownership::Client);
        }
        let session = self.posix_locks.session()?;
        Ok(Ownership::Exclusive(Some(OpenId { session, number: fh })))
    }

    /// Opens the file of a lock that is held already, as an open without `O_CREAT` does.
    async fn open_as_it_is(
        &self,
        caller: &Caller,
        name: &LockName,
        flags: i32,
    ) -> Result<(NodeEntry, Opened), Errno> {
        let view = self.nodes.locks.view(caller, Act::Open, name).await?;
        let state = self.nodes.attrs.state_of(&view);
        let (kind, token) = state.shown().unwrap_or((FileType::File, None));
        if kind != FileType::File {
            // Another program has replaced the file by a directory or symlink since the kernel's
            // lookup. ESTALE makes the kernel look the name up again.
            return Err(Errno::ESTALE);
        }
        let ino = self.nodes.inodes().seen(&view.name, kind, token);
        let open = OpenFile::of_lock(caller, ino, view.name.clone(), flags);
        let origin = |token| self.nodes.origin_of(ino, token);
        open.bind_to_held(self.nodes.locks.service(), &view, origin);
        let view =
            truncate_at_open(&self.nodes, &self.changes, caller, (&open, view), flags).await?;
        let entry = NodeEntry::uncached(self.nodes.attr_of_view(ino, &view));
        Ok((entry, self.opened(self.opens.number(), open)))
    }

    fn opened(&self, fh: u64, open: OpenFile) -> Opened {
        self.opens.insert_as(fh, open);
        Opened::by_requests(fh, OpenedFlags::FOPEN_DIRECT_IO)
    }
}
