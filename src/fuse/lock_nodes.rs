//! Locks as inodes: combines the lock service, the inode table and the file attributes, and has the
//! steps that all file operations share.
//!
//! Checks whether a caller may create a name below a lock. The module `auth` decides by the
//! permission bits of the nearest held lock above the name; this module tells it the user and
//! groups of the caller.

use crate::auth::{LocalUser, depends_on_groups};
use crate::control::control_request::short;
use crate::engine::values::name::RESERVED_PREFIX;
use crate::engine::{
    Acquire, ClientId, FileType, Lease, LockName, LockView, NameError, Op, Ownership, Token,
};
use crate::fuse::control_names::{ControlFile, ControlPage, LockReport, README};
use crate::fuse::credentials::Caller;
use crate::fuse::file_attrs::{LINKS, LockAttributes, NodeState};
use crate::fuse::inodes::{InodeTable, LockNode, NodePlace, TOP};
use crate::fuse::open_files::OpenFiles;
use crate::fuse::process::lease_users::LeaseUsers;
use crate::fuse::refusals::{Act, Refusals, errno_of_name};
use crate::service::{CacheableView, LockService, ParentCheck, RequestError, Retry};
use futures_util::future::join_all;
use kernel::file_system::{Errno, FileAttr, LockRequest, NameIn, NodeEntry};
use kernel::interrupts::groups_of;
use parking_lot::{Mutex, MutexGuard};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel may cache entries and attributes that never change. In practice the kernel
/// evicts them earlier.
pub(crate) const FOREVER: Duration = Duration::from_secs(3_600);

/// The locks of one mount as inodes: the lock service, the attributes and the inode table.
pub(crate) struct LockNodes {
    /// The lock service.
    pub(crate) service: Arc<dyn LockService>,
    /// The record of refusals, which `.latchfs/why` and the metrics show.
    pub(crate) refusals: Arc<Refusals>,
    /// The file attributes of locks.
    pub(crate) attrs: LockAttributes,
    /// The processes that made and last renewed the leases.
    pub(crate) users: LeaseUsers,
    inodes: Mutex<InodeTable>,
}

impl LockNodes {
    /// Returns the inodes of a new mount, of which the kernel knows none yet.
    pub(crate) fn new(
        service: Arc<dyn LockService>,
        refusals: Arc<Refusals>,
        attrs: LockAttributes,
        users: LeaseUsers,
    ) -> Self {
        Self { service, refusals, attrs, users, inodes: Mutex::default() }
    }

    /// Returns the current state of a lock. If the lock service gives no answer, records the
    /// failure and returns its errno.
    pub(crate) async fn view(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
    ) -> Result<LockView, Errno> {
        self.seen(caller, act, name).await.map(|seen| seen.view)
    }

    /// Returns the current states of several locks, in the order of `names`.
    async fn views(
        &self,
        caller: &Caller,
        act: Act,
        names: &[LockName],
    ) -> Result<Vec<LockView>, Errno> {
        let views = join_all(names.iter().map(|name| self.view(caller, act, name))).await;
        views.into_iter().collect()
    }

    /// Returns the current state of a lock for the kernel to cache, with the number of the first
    /// event that this state may not include. If the lock service gives no answer, records the
    /// failure and returns its errno.
    async fn seen(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
    ) -> Result<CacheableView, Errno> {
        self.service.view(name, Retry::Never).await.map_err(|why| {
            self.refusals.failed(caller, act, Some(name), RequestError::Unavailable(why))
        })
    }

    /// Returns the inode table.
    pub(crate) fn inodes(&self) -> MutexGuard<'_, InodeTable> {
        self.inodes.lock()
    }

    /// Returns the object that an inode stands for.
    pub(crate) fn place(&self, ino: u64) -> Option<NodePlace> {
        // The parent of nearly every lookup is the mount point, which is found without the mutex.
        if ino == TOP {
            return Some(NodePlace::Top);
        }
        self.inodes().place(ino)
    }

    /// Returns the lock that an inode stands for.
    pub(crate) fn lock_node(&self, ino: u64) -> Option<Arc<LockNode>> {
        match self.place(ino) {
            Some(NodePlace::Lock(lock)) => Some(lock),
            Some(NodePlace::Top | NodePlace::Control(_)) | None => None,
        }
    }

    /// Returns the token by which an open file of the inode is bound to the lease with the token
    /// `token`; the two differ after `ln`, `mv` or an upgrade.
    pub(crate) fn origin_of(&self, ino: u64, token: Token) -> Token {
        self.lock_node(ino).map_or(token, |node| node.origin_of(token))
    }

    /// Returns the name of the lock to which an operation on an open file applies: the current name
    /// of the lease to which the file is bound, or else the name under which the file was opened.
    pub(crate) fn spoken_of(&self, ino: u64, name: &LockName, tenure: Option<Token>) -> LockName {
        let node = tenure.and_then(|_| self.lock_node(ino));
        let links = node.map(|node| node.links_of(tenure)).unwrap_or_default();
        links.into_iter().next().map_or_else(|| name.clone(), |link| link.name)
    }

    /// Returns the full name of a lock that the caller creates, changes or removes in a directory.
    pub(crate) fn name_in(
        &self,
        caller: &Caller,
        act: Act,
        at: NameIn<'_>,
    ) -> Result<LockName, Errno> {
        match self.place(at.parent) {
            Some(NodePlace::Control(_)) => Err(self.refuse_ours(caller, act)),
            Some(NodePlace::Top) if at.name == RESERVED_PREFIX => {
                Err(self.refuse_ours(caller, act))
            }
            Some(place) => place.child(at.name).map_err(|error| {
                let (errno, sentence) = (errno_of_name(error), wrong_name(at.name, error));
                self.refusals.refused(caller, act, None, errno, sentence)
            }),
            None => Err(Errno::ESTALE),
        }
    }

    fn refuse_ours(&self, caller: &Caller, act: Act) -> Errno {
        let sentence = ".latchfs holds latchfs's own files, and only those; make locks beside it";
        self.refusals.refused(caller, act, None, Errno::EPERM, sentence)
    }

    /// Returns the attributes of a control file. As in /proc, its size is unknown before it is
    /// read, except that of the text `README`.
    pub(crate) fn control_attr(&self, ino: u64, control: &ControlFile) -> FileAttr {
        let (kind, perm) = match control {
            _ if control.is_directory() => (FileType::Directory, 0o555),
            _ if control.takes_writes() => (FileType::File, 0o666),
            _ => (FileType::File, 0o444),
        };
        let attr = self.attrs.of_nobody(ino, kind, LINKS);
        let size = match control {
            ControlFile::Page(ControlPage::Readme) => README.len() as u64,
            _ => attr.size,
        };
        FileAttr { perm, size, uid: self.attrs.mounter(), ..attr }
    }

    /// Returns the current attributes of a control file. The size of `content/NAME` is that of the
    /// lock's content.
    pub(crate) async fn control_attr_now(
        &self,
        caller: &Caller,
        ino: u64,
        control: &ControlFile,
    ) -> Result<FileAttr, Errno> {
        let attr = self.control_attr(ino, control);
        let ControlFile::Report(LockReport::Content, name) = control else { return Ok(attr) };
        let view = self.view(caller, Act::Stat, name).await?;
        Ok(FileAttr { size: content_bytes(&view), ..attr })
    }

    /// Returns the entry of a control file, counted as one lookup.
    pub(crate) fn control_entry(&self, control: &ControlFile) -> NodeEntry {
        let ino = self.inodes().control(control);
        let entry_ttl = if control.is_constant() { FOREVER } else { Duration::ZERO };
        NodeEntry { entry_ttl, ..NodeEntry::uncached(self.control_attr(ino, control)) }
    }

    /// Returns the state of a lock's file. If the kernel may cache the state, also returns the
    /// number of the first event that it may not include.
    pub(crate) async fn state(
        &self,
        caller: &Caller,
        act: Act,
        name: &LockName,
    ) -> Result<(NodeState, Option<u64>), Errno> {
        let CacheableView { view, as_of } = self.seen(caller, act, name).await?;
        Ok((self.attrs.state_of(&view), as_of))
    }

    /// Returns the current attributes of a lock's inode. An inode whose names are all gone has no
    /// links; fstat of an open file still shows it.
    pub(crate) async fn attr_now(
        &self,
        caller: &Caller,
        ino: u64,
        node: &LockNode,
    ) -> Result<FileAttr, Errno> {
        if node.links.len() > 1 {
            let names: Vec<_> = node.links.iter().map(|link| link.name.clone()).collect();
            let views = self.views(caller, Act::Stat, &names).await?;
            return Ok(self.attrs.of_group(ino, node, &views));
        }
        let (state, _) = self.state(caller, Act::Stat, &node.name).await?;
        Ok(self.attrs.of_one(ino, node, &state))
    }

    /// Returns the attributes of an inode, derived from the state `view` of its lock.
    pub(crate) fn attr_of_view(&self, ino: u64, view: &LockView) -> FileAttr {
        let state = self.attrs.state_of(view);
        if let Some(node) = self.lock_node(ino) {
            return self.attrs.of_one(ino, &node, &state);
        }
        let (file_type, _) = state.shown().unwrap_or((FileType::File, None));
        self.attrs.of_nobody(ino, file_type, 0)
    }
}

/// Returns the length of a lock's content.
pub(crate) fn content_bytes(view: &LockView) -> u64 {
    view.holder().map_or(0, |holder| holder.lease.details.text().len() as u64)
}

/// Returns the error message for a string that can't be the name of a lock.
pub(crate) fn wrong_name(name: &OsStr, error: NameError) -> String {
    let shown = String::from_utf8_lossy(name.as_bytes());
    let shown = short(&shown.escape_debug().to_string());
    format!("'{shown}' can't be the name of a lock: {error}; choose another")
}

/// Makes the checks that the lock service performs before it creates a name below the name of a
/// held lock.
pub(crate) struct ParentChecks {
    service: Arc<dyn LockService>,
    refusals: Arc<Refusals>,
    opens: Arc<OpenFiles>,
    host: ClientId,
}

impl ParentChecks {
    /// Returns the checks of one mount, whose users are clients of `host`.
    pub(crate) const fn new(
        service: Arc<dyn LockService>,
        refusals: Arc<Refusals>,
        opens: Arc<OpenFiles>,
        host: ClientId,
    ) -> Self {
        Self { service, refusals, opens, host }
    }

    /// Returns the check that the lock service performs before it executes the command `op` of
    /// `caller`; `None` if the command creates no name below another.
    pub(crate) fn check_of(&self, caller: &Caller, op: &Op) -> Option<ParentCheck> {
        ParentCheck::of(op, |_| allows(self.user_of(caller)))
    }

    /// Returns the check that the lock service performs before it grants the lock `name` to
    /// `caller`; `None` if the name is not below another.
    pub(crate) fn check_of_name(&self, caller: &Caller, name: &LockName) -> Option<ParentCheck> {
        ParentCheck::of_name(name, &caller.client, |_| allows(self.user_of(caller)))
    }

    /// Returns the check for a lock request through an open file. [`Self::check_lock`] has checked
    /// the request already, but a lock above may have been taken since. The groups of the file's
    /// opener are no longer known at this point, so the permission bits of a lock above are skipped
    /// if they give its group other rights than other users.
    pub(crate) fn check_of_open(&self, ask: &Acquire) -> Option<ParentCheck> {
        let Ownership::OpenFile(open) = ask.hold else { return None };
        ParentCheck::of_name(&ask.name, &ask.client, |_| {
            let user = self.opens.get(open.number).map(|open| self.local_user(open.uid, None));
            move |name: &LockName, client: &ClientId, holders: &[Lease]| match &user {
                Some(user) if !depends_on_groups(holders) => decide(user, name, client, holders),
                Some(_) | None => Ok(()),
            }
        })
    }

    /// Checks whether the user who opened a file may lock it by flock or fcntl. The file's lock may
    /// have become free since the open, so this request may create its name.
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
        let Some(check) = self.check_of_name(&open.opener(caller), name) else { return Ok(()) };
        self.service.check_parent(&check).await.map_err(|why| {
            let failure = RequestError::Unavailable(why);
            self.refusals.failed(caller, Act::Lock, Some(name), failure)
        })
    }

    fn user_of(&self, caller: &Caller) -> LocalUser {
        let groups = (!caller.is_root()).then(|| [&[caller.gid], &*groups_of(caller.pid)].concat());
        self.local_user(caller.uid, groups)
    }

    fn local_user(&self, uid: u32, groups: Option<Vec<u32>>) -> LocalUser {
        LocalUser { uid, groups, hosts: vec![self.host.clone()] }
    }
}

fn allows(user: LocalUser) -> impl Fn(&LockName, &ClientId, &[Lease]) -> Result<(), Arc<str>> {
    move |name, client, holders| decide(&user, name, client, holders)
}

fn decide(
    user: &LocalUser,
    name: &LockName,
    client: &ClientId,
    holders: &[Lease],
) -> Result<(), Arc<str>> {
    user.may_make(name, client, holders).map_err(|denial| denial.to_string().into())
}
