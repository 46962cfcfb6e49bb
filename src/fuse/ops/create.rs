//! The file operations that take a lock by creating a directory or symlink: `mkdir` and `ln -s`.

use crate::engine::{
    Acquire, FileAttrs, FileType, LeaseKey, LockName, Op, Outcome, Ownership, Patch, ReadMode,
    Tenure, TextPatch,
};
use crate::fuse::credentials::{Caller, Callers};
use crate::fuse::errno::Act;
use crate::fuse::file_attrs::looks_of_new;
use crate::fuse::kernel::file_system::NameIn;
use crate::fuse::kernel::values::{Errno, NodeEntry};
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::parent_checks::ParentChecks;
use crate::fuse::process::bindings::ProcessBindings;
use crate::fuse::process::process_handle::ProcessHandle;
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
    pub(crate) looks: FileAttrs,
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
        let looks = looks_of_new(caller, FileType::Directory, mode);
        let new = NewLock { name, hold: Ownership::Exclusive(None), looks, text: None };
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
        let looks = looks_of_new(caller, FileType::Symlink, 0o777);
        let looks = FileAttrs { reads: ReadMode::Text, ..looks };
        let text = Some(text.as_encoded_bytes().into());
        let new = NewLock { name, hold: Ownership::Exclusive(None), looks, text };
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
                looks: Some(new.looks),
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
        let ino = self.nodes.inodes().made(&new.name, new.looks.face, tenure.token);
        let (looks, text) = (new.looks, new.text.as_deref());
        NodeEntry::uncached(self.nodes.attrs.of_tenure(ino, caller, looks, text, tenure))
    }
}
