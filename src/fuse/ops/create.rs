//! The file operations that take a lock by creating a directory or symlink: `mkdir` and `ln -s`.
//!
//! Opens with `O_CREAT` a name that the kernel has not cached: takes the lock if it is free, and
//! otherwise opens its file without taking it.

use crate::engine::{
    Acquire, FileAttrs, FileType, LeaseKey, LockName, Op, OpenId, Outcome, Ownership, Patch,
    ReadMode, RefusalKind, Tenure, TextPatch,
};
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::file_attrs::attrs_of_new;
use crate::fuse::kernel::file_system::{Errno, NameIn, NodeEntry, Opened, OpenedFlags};
use crate::fuse::kernel::handles::Pool;
use crate::fuse::lock_nodes::{LockNodes, ParentChecks};
use crate::fuse::open_files::{OpenFile, OpenFiles};
use crate::fuse::ops::lease_change::LeaseChanges;
use crate::fuse::ops::setattr::{lost, truncate_at_open, truncates};
use crate::fuse::posix_locks::PosixLocks;
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::lease_users::{LeaseUse, ProcessHandle};
use crate::fuse::refusals::Act;
use crate::service::RequestError;
use std::ffi::OsStr;
use std::sync::Arc;

/// Takes locks by creating directories and symlinks.
pub(crate) struct Creation {
    nodes: Arc<LockNodes>,
    parents: Arc<ParentChecks>,
    callers: Arc<Callers>,
    bindings: Arc<ProcessBindings>,
}

/// A lock that `mkdir`, open with `O_CREAT`, or `ln -s` is about to take.
pub(crate) struct NewLock {
    /// The name of the lock.
    pub(crate) name: LockName,
    /// The ownership of the lease: which open files or clients may use it.
    pub(crate) hold: Ownership,
    /// The attributes of the lock's file.
    pub(crate) attrs: FileAttrs,
    /// The content of the lock's file.
    pub(crate) text: Option<Arc<[u8]>>,
}

impl Creation {
    /// Returns the operations `mkdir` and `ln -s` of one mount.
    pub(crate) const fn new(
        nodes: Arc<LockNodes>,
        parents: Arc<ParentChecks>,
        callers: Arc<Callers>,
        bindings: Arc<ProcessBindings>,
    ) -> Self {
        Self { nodes, parents, callers, bindings }
    }

    /// Takes a lock by `mkdir NAME`.
    pub(crate) async fn mkdir(
        &self,
        caller: &Caller,
        at: NameIn<'_>,
        mode: u32,
    ) -> Result<NodeEntry, Errno> {
        let name = self.nodes.name_in(caller, Act::Mkdir, at)?;
        let attrs = attrs_of_new(caller, FileType::Directory, mode);
        let new = NewLock { name, hold: Ownership::Exclusive(None), attrs, text: None };
        self.make(caller, Act::Mkdir, new).await
    }

    /// Takes a lock by `ln -s TEXT NAME`.
    pub(crate) async fn symlink(
        &self,
        caller: &Caller,
        at: NameIn<'_>,
        text: &OsStr,
    ) -> Result<NodeEntry, Errno> {
        let name = self.nodes.name_in(caller, Act::Symlink, at)?;
        let attrs = attrs_of_new(caller, FileType::Symlink, 0o777);
        let attrs = FileAttrs { reads: ReadMode::Text, ..attrs };
        let text = Some(text.as_encoded_bytes().into());
        let new = NewLock { name, hold: Ownership::Exclusive(None), attrs, text };
        self.make(caller, Act::Symlink, new).await
    }

    /// Takes the lock that `new` describes; fails with EEXIST if it is held.
    async fn make(&self, caller: &Caller, act: Act, new: NewLock) -> Result<NodeEntry, Errno> {
        let (op, process) = self.acquire(caller, &new);
        let check = self.parents.check_of(caller, &op);
        match self.nodes.locks.submit_checked(caller, act, &new.name, op, check).await? {
            Outcome::Granted(tenure) => Ok(self.granted(caller, &new, &tenure, process.as_ref())),
            _ => Err(Errno::EEXIST),
        }
    }

    /// Returns the acquire request for a lock, and the process to which the mount binds the lease
    /// by default.
    pub(crate) fn acquire(&self, caller: &Caller, new: &NewLock) -> (Op, Option<ProcessHandle>) {
        let process = self.bindings.by_default(caller);
        let op = Op::Acquire(Acquire {
            hold: new.hold,
            patch: Patch {
                holder_id: Some(self.callers.holder_id(caller)),
                text: new.text.clone().map(TextPatch::Set),
                attrs: Some(new.attrs),
                process: process.as_ref().map(|handle| Some(handle.process)),
                ..Patch::default()
            },
            ..Acquire::new(
                new.name.clone(),
                caller.client.clone(),
                self.bindings.term(process.as_ref()),
            )
        });
        (op, process)
    }

    /// Returns the directory entry of a lock that was granted, and binds the lease to `process`.
    pub(crate) fn granted(
        &self,
        caller: &Caller,
        new: &NewLock,
        tenure: &Tenure,
        process: Option<&ProcessHandle>,
    ) -> NodeEntry {
        if let Some(process) = process {
            let (name, client) = (new.name.clone(), caller.client.clone());
            let key = LeaseKey { name, client, token: Some(tenure.token) };
            self.bindings.bind(key, tenure.life, process);
        }
        self.nodes.users.made(caller, &new.name, tenure);
        let ino = self.nodes.inodes().made(&new.name, new.attrs.file_type, tenure.token);
        let (attrs, text) = (new.attrs, new.text.as_deref());
        NodeEntry::uncached(self.nodes.attrs.of_tenure(ino, caller, attrs, text, tenure))
    }
}

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
        let attrs = attrs_of_new(caller, FileType::File, mode);
        let new = NewLock { name: name.clone(), hold, attrs, text: None };
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
        let view = truncate_at_open(&self.nodes, &self.changes, caller, &open, view, flags).await?;
        let entry = NodeEntry::uncached(self.nodes.attr_of_view(ino, &view));
        Ok((entry, self.opened(self.opens.number(), open)))
    }

    fn opened(&self, fh: u64, open: OpenFile) -> Opened {
        self.opens.insert_as(fh, open);
        Opened::by_requests(fh, OpenedFlags::FOPEN_DIRECT_IO)
    }
}
