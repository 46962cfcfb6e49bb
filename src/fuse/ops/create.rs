//! The file operations that take a lock by creating a directory or symlink: `mkdir` and `ln -s`.
//!
//! Opens with `O_CREAT` a name that the kernel has not cached: takes the lock if it is free, and
//! otherwise opens its file without taking it.

use crate::engine::{
    Acquire, FileAttrs, FileType, LeaseKey, LockName, Op, OpenId, Outcome, Ownership, Patch,
    ReadMode, RefusalKind, Tenure, TextPatch,
};
use crate::fuse::credentials::Caller;
use crate::fuse::file_attrs::attrs_of_new;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::OpenFile;
use crate::fuse::ops::setattr::{lost, truncate_at_open, truncates};
use crate::fuse::process::lease_users::{LeaseUse, ProcessHandle};
use crate::fuse::refusals::Act;
use crate::service::RequestError;
use kernel::file_system::{Errno, NameIn, NodeEntry, Opened, OpenedFlags};
use kernel::handles::Pool;
use std::ffi::OsStr;
use std::sync::Arc;

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

/// Takes a lock by `mkdir NAME`.
pub(crate) async fn mkdir(
    mount: &Mount,
    caller: &Caller,
    at: NameIn<'_>,
    mode: u32,
) -> Result<NodeEntry, Errno> {
    let name = mount.nodes.name_in(caller, Act::Mkdir, at)?;
    let attrs = attrs_of_new(caller, FileType::Directory, mode);
    let new = NewLock { name, hold: Ownership::Exclusive(None), attrs, text: None };
    make(mount, caller, Act::Mkdir, new).await
}

/// Takes a lock by `ln -s TEXT NAME`.
pub(crate) async fn symlink(
    mount: &Mount,
    caller: &Caller,
    at: NameIn<'_>,
    text: &OsStr,
) -> Result<NodeEntry, Errno> {
    let name = mount.nodes.name_in(caller, Act::Symlink, at)?;
    let attrs = attrs_of_new(caller, FileType::Symlink, 0o777);
    let attrs = FileAttrs { reads: ReadMode::Text, ..attrs };
    let text = Some(text.as_encoded_bytes().into());
    let new = NewLock { name, hold: Ownership::Exclusive(None), attrs, text };
    make(mount, caller, Act::Symlink, new).await
}

/// Takes the lock that `new` describes; fails with EEXIST if it is held.
async fn make(mount: &Mount, caller: &Caller, act: Act, new: NewLock) -> Result<NodeEntry, Errno> {
    let (op, process) = acquire(mount, caller, &new);
    let check = mount.parents.check_of(caller, &op);
    let made = mount.nodes.service.clone().submit_checked(op.into(), check).outcome().await;
    let failed = |failure| mount.nodes.refusals.failed(caller, act, Some(&new.name), failure);
    match made.map_err(failed)? {
        Outcome::Granted(tenure) => Ok(granted(mount, caller, &new, &tenure, process.as_ref())),
        _ => Err(Errno::EEXIST),
    }
}

/// Returns the acquire request for a lock, and the process to which the mount binds the lease
/// by default.
pub(crate) fn acquire(
    mount: &Mount,
    caller: &Caller,
    new: &NewLock,
) -> (Op, Option<ProcessHandle>) {
    let process = mount.bindings.by_default(caller);
    let op = Op::Acquire(Acquire {
        hold: new.hold,
        patch: Patch {
            holder_id: Some(mount.callers.holder_id(caller)),
            text: new.text.clone().map(TextPatch::Set),
            attrs: Some(new.attrs),
            process: process.as_ref().map(|handle| Some(handle.process)),
            ..Patch::default()
        },
        ..Acquire::new(
            new.name.clone(),
            caller.client.clone(),
            mount.bindings.term(process.as_ref()),
        )
    });
    (op, process)
}

/// Returns the directory entry of a lock that was granted, and binds the lease to `process`.
pub(crate) fn granted(
    mount: &Mount,
    caller: &Caller,
    new: &NewLock,
    tenure: &Tenure,
    process: Option<&ProcessHandle>,
) -> NodeEntry {
    if let Some(process) = process {
        let (name, client) = (new.name.clone(), caller.client.clone());
        let key = LeaseKey { name, client, token: Some(tenure.token) };
        mount.bindings.bind(key, tenure.life, process);
    }
    mount.nodes.users.made(caller, &new.name, tenure);
    let ino = mount.nodes.inodes().made(&new.name, new.attrs.file_type, tenure.token);
    let (attrs, text) = (new.attrs, new.text.as_deref());
    NodeEntry::uncached(mount.nodes.attrs.of_tenure(ino, caller, attrs, text, tenure))
}

/// Returns the kind of operation, for errnos and counters, of an open with `O_CREAT` and these
/// flags of open(2).
pub(crate) const fn act_of(flags: i32) -> Act {
    if flags & libc::O_EXCL != 0 { Act::CreateNew } else { Act::Create }
}

/// Opens a file with `O_CREAT`, and takes its lock if the lock is free.
pub(crate) async fn create(
    mount: &Mount,
    caller: &Caller,
    at: NameIn<'_>,
    mode: u32,
    flags: i32,
) -> Result<(NodeEntry, Opened), Errno> {
    let act = act_of(flags);
    mount.opens.repeated.done(caller.pid);
    if let Err(full) = mount.opens.shares().room(Pool::Files, caller.uid) {
        return Err(mount.nodes.refusals.full(caller, act, None, &full));
    }
    let name = mount.nodes.name_in(caller, act, at)?;
    if act == Act::Create {
        // The state of the lock is read first: if the caller holds the lock already, an acquire
        // would overwrite the details of its lease.
        let view = mount.nodes.view(caller, act, &name).await?;
        if truncates(flags)
            && let LeaseUse::Lost(token) = mount.nodes.users.use_of(caller, &view)
        {
            return Err(lost(&mount.nodes, caller, &name, token));
        }
        if mount.nodes.attrs.state_of(&view).shown().is_some() {
            return open_as_it_is(mount, caller, &name, flags).await;
        }
    }
    create_free(mount, caller, name, mode, flags).await
}

/// Takes a lock that was free when its state was read. If another client has taken the lock
/// since, opens its file without taking the lock, or fails if the flags contain `O_EXCL`.
async fn create_free(
    mount: &Mount,
    caller: &Caller,
    name: LockName,
    mode: u32,
    flags: i32,
) -> Result<(NodeEntry, Opened), Errno> {
    let act = act_of(flags);
    let is_new = act == Act::CreateNew;
    let refused = |failure| {
        let name = Some(&name);
        Err(mount.nodes.refusals.failed(caller, act, name, failure))
    };
    let fh = mount.opens.number();
    let hold = match maker_of(mount, is_new, fh) {
        Ok(hold) => hold,
        Err(failure) => return refused(failure),
    };
    let attrs = attrs_of_new(caller, FileType::File, mode);
    let new = NewLock { name: name.clone(), hold, attrs, text: None };
    let (op, process) = acquire(mount, caller, &new);
    let check = mount.parents.check_of(caller, &op);
    match mount.nodes.service.clone().submit_checked(op.into(), check).outcome().await {
        Ok(Outcome::Granted(tenure)) => {
            let token = tenure.token;
            let entry = granted(mount, caller, &new, &tenure, process.as_ref());
            let ino = entry.attr.ino.0;
            let mut open = OpenFile::of_lock(caller, ino, name, flags);
            open.made_new = is_new;
            {
                let mut state = open.state();
                state.tenure = Some(token);
                state.own_lease = state.tenure.filter(|_| is_new);
            }
            Ok((entry, opened(mount, fh, open)))
        }
        Ok(_) if !is_new => open_as_it_is(mount, caller, &name, flags).await,
        // Programs such as `flock`, and those that write log files, open a file before they
        // lock it. So an open without O_EXCL never fails because another client holds the lock.
        Err(RequestError::Refused(no)) if !is_new && no.kind() == RefusalKind::LockConflict => {
            open_as_it_is(mount, caller, &name, flags).await
        }
        Ok(_) => Err(Errno::EIO),
        Err(failure) => refused(failure),
    }
}

/// Returns the ownership of a lock that an open with `O_CREAT` takes. With `O_EXCL`, only the
/// open file that it creates can lock it by flock later.
fn maker_of(mount: &Mount, is_new: bool, fh: u64) -> Result<Ownership, RequestError> {
    if !is_new {
        return Ok(Ownership::Client);
    }
    let session = mount.posix_locks.session()?;
    Ok(Ownership::Exclusive(Some(OpenId { session, number: fh })))
}

/// Opens the file of a lock that is held already, as an open without `O_CREAT` does.
async fn open_as_it_is(
    mount: &Mount,
    caller: &Caller,
    name: &LockName,
    flags: i32,
) -> Result<(NodeEntry, Opened), Errno> {
    let view = mount.nodes.view(caller, Act::Open, name).await?;
    let state = mount.nodes.attrs.state_of(&view);
    let (kind, token) = state.shown().unwrap_or((FileType::File, None));
    if kind != FileType::File {
        // Another program has replaced the file by a directory or symlink since the kernel's
        // lookup. ESTALE makes the kernel look the name up again.
        return Err(Errno::ESTALE);
    }
    let ino = mount.nodes.inodes().seen(&view.name, kind, token);
    let open = OpenFile::of_lock(caller, ino, view.name.clone(), flags);
    let origin = |token| mount.nodes.origin_of(ino, token);
    open.bind_to_held(&mount.nodes.service, &view, origin);
    let view = truncate_at_open(mount, caller, &open, view, flags).await?;
    let entry = NodeEntry::uncached(mount.nodes.attr_of_view(ino, &view));
    Ok((entry, opened(mount, mount.opens.number(), open)))
}

fn opened(mount: &Mount, fh: u64, open: OpenFile) -> Opened {
    mount.opens.insert_as(fh, open);
    Opened { fh, flags: OpenedFlags::FOPEN_DIRECT_IO }
}
