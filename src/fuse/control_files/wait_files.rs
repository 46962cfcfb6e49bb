//! `.latchfs/wait/NAME`: a read waits in the queue of the lock, and returns when the lock is
//! granted.
//!
//! The wait happens in the engine's queue, and the client of the reader gets a lease like any
//! other. Each open file has its own place in the queue, so two programs of one user exclude each
//! other. A signal ends the read but not the wait, since the program may read again. Closing the
//! file ends the wait, and releases the lock if it was granted but no read has reported the grant.

use crate::control::WAITERS_SHOWN_MAX;
use crate::engine::{
    Acquire, FileType, Firm, LeaseKey, LeaveReason, LockName, Op, Ownership, Patch, QueuePolicy,
    RefusalKind, Release, Renew, Tenure,
};
use crate::fuse::credentials::Caller;
use crate::fuse::file_attrs::attrs_of_new;
use crate::fuse::file_waits::FileWaitEnd;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::HeldRead;
use crate::fuse::open_files::WaitState;
use crate::fuse::open_files::{OpenFile, OpenFileState};
use crate::fuse::process::lease_users::ProcessHandle;
use crate::fuse::refusals::Act;
use crate::service::{RequestError, Retry};
use crate::status::{pretty, status_of};
use common::task::Pending;
use common::task::spawn;
use kernel::file_system::{Errno, ReadBytes, ReadRequest};
use kernel::handles::Pool;
use std::sync::Arc;

/// The permission bits of the file of a lock that was granted through `.latchfs/wait`.
const MODE_OF_NEW: u32 = 0o644;

/// An open file of `.latchfs/wait`, and the lock for which it waits.
#[derive(Clone)]
struct WaitFile {
    fh: u64,
    open: Arc<OpenFile>,
    name: LockName,
}

/// The future of the bytes that a waiting read of a wait file returns.
type LateRead = Pending<Result<ReadBytes, Errno>>;

/// Reads a wait file. A read at offset 0 waits until the lock is granted to the reader, and
/// returns the lock's status at that time; reads at later offsets return the rest of the same
/// status.
pub(crate) async fn read(
    mount: &Arc<Mount>,
    caller: &Caller,
    open: &Arc<OpenFile>,
    name: &LockName,
    asked: ReadRequest,
) -> Result<ReadBytes, Errno> {
    if asked.offset > 0 {
        return Ok(open.kept_window(asked).unwrap_or_else(|| ReadBytes::from(Vec::new())));
    }
    let file = WaitFile { fh: asked.fh, open: Arc::clone(open), name: name.clone() };
    read_status(mount, caller, &file, asked)?.await.unwrap_or(Err(Errno::EIO))
}

/// Starts the wait for the lock unless the file waits already, and returns the future of the
/// read.
fn read_status(
    mount: &Arc<Mount>,
    caller: &Caller,
    file: &WaitFile,
    asked: ReadRequest,
) -> Result<LateRead, Errno> {
    let mut state = file.open.state();
    if matches!(state.wait, WaitState::Queued) {
        drop(state);
        may_wait(mount, caller, &file.name, asked)?;
        // The mutex was released for a moment, in which the lock may have been granted, so the
        // state of the wait is checked again. If it has changed, the read is handled like a
        // first read.
        state = file.open.state();
        if matches!(state.wait, WaitState::Queued) {
            return Ok(mount.reads.hold(asked.fh, state, asked.size, caller.pid));
        }
    }
    let before = std::mem::replace(&mut state.wait, WaitState::Queued);
    let (held, answer) = HeldRead::new(mount.reads.number(), asked.size);
    let number = held.number;
    state.held.push(held);
    drop(state);
    begin(mount, caller, file, before);
    // If this read has no answer yet, the lock was not granted at once. The read then has to
    // wait, which is refused if the program or its user may not wait.
    if file.open.state().held.iter().any(|held| held.number == number) {
        let may_wait = may_wait(mount, caller, &file.name, asked);
        let unanswered = may_wait.err().and_then(|errno| {
            let mut state = file.open.state();
            let at = state.held.iter().position(|held| held.number == number)?;
            let held = state.held.remove(at);
            drop(state);
            drop(held);
            Some(errno)
        });
        if let Some(errno) = unanswered {
            return Err(errno);
        }
        mount.reads.watch(asked.fh, number, caller.pid);
    }
    Ok(answer)
}

/// Checks that a read may wait: it is not non-blocking, and its user is below the limit of
/// waiting threads.
fn may_wait(
    mount: &Mount,
    caller: &Caller,
    name: &LockName,
    asked: ReadRequest,
) -> Result<(), Errno> {
    if asked.is_nonblocking() {
        return Err(Errno::EAGAIN);
    }
    let room = mount.reads.shares().room(Pool::Threads, caller.uid);
    room.map_err(|full| mount.nodes.refusals.full(caller, Act::Read, Some(name), &full))
}

/// Handles the close of a wait file's last descriptor: releases the lock if it was granted but
/// no read has reported the grant. A queue place of the file is given up by `FileWaits`, not by
/// this function.
pub(crate) fn closed(mount: &Mount, open: &OpenFile) {
    let before = std::mem::replace(&mut open.state().wait, WaitState::Closed);
    if let WaitState::Unread(key) = before {
        give_back(mount, key);
    }
}

fn give_back(mount: &Mount, key: LeaseKey) {
    mount.nodes.service.give_back(Op::Release(Release::of(key)));
}

/// Requests the lock. If the lock was granted before and no read has reported that, reports the
/// grant instead.
fn begin(mount: &Arc<Mount>, caller: &Caller, file: &WaitFile, before: WaitState) {
    let (own, caller, file) = (Arc::clone(mount), caller.clone(), file.clone());
    spawn(async move {
        match before {
            WaitState::Unread(key) => renew(&own, &caller, &file, key).await,
            _ => request_lock(&own, &caller, &file).await,
        }
    });
}

/// Reports an earlier grant to the reader, after a renewal of the lease has shown that the lock
/// is still held.
async fn renew(mount: &Mount, caller: &Caller, file: &WaitFile, key: LeaseKey) {
    let (firm, patch) = (Firm::Keep, Patch::default());
    let renewal = Renew { key: key.clone(), term: None, firm, patch, acquires: false };
    let renew = Op::Renew(renewal);
    match mount.nodes.service.submit(renew.into(), Retry::Never).outcome().await {
        Ok(_) => answer_reads(mount, caller, file, key).await,
        Err(failure) if failure.kind() == RefusalKind::ConsistencyUnavailable => {
            refuse(mount, caller, file, failure);
            let mut state = file.open.state();
            if matches!(state.wait, WaitState::Idle) {
                state.wait = WaitState::Unread(key);
            } else {
                drop(state);
                give_back(mount, key);
            }
        }
        Err(_) => request_lock(mount, caller, file).await,
    }
}

/// Requests the lock on behalf of the user who opened the wait file.
async fn request_lock(mount: &Mount, caller: &Caller, file: &WaitFile) {
    join(mount, &file.open.opener(caller), file).await;
}

/// Waits in the queue of the lock, and answers the waiting reads with the outcome.
async fn join(mount: &Mount, caller: &Caller, file: &WaitFile) {
    let name = &file.name;
    let process = mount.bindings.by_default(caller);
    let ask = acquire(mount, caller, name, process.as_ref());
    let refusals = &mount.nodes.refusals;
    let check = mount.parents.check_of_name(caller, name);
    match mount.waits.join(file.fh, caller.uid, None, ask, check).await {
        Some(FileWaitEnd::Granted(tenure)) => {
            let key = bound(mount, caller, name, &tenure, process.as_ref());
            answer_reads(mount, caller, file, key).await;
        }
        Some(FileWaitEnd::Failed(failure)) => refuse(mount, caller, file, failure),
        Some(FileWaitEnd::NoRoom(full)) => {
            fail(&file.open, refusals.full(caller, Act::Read, Some(name), &full));
        }
        Some(FileWaitEnd::Left(why)) => {
            let why = why.map_or("the place in its queue is lost", LeaveReason::sentence);
            let sentence = format!("lock '{name}': {why}; read again");
            let (act, errno) = (Act::Read, Errno::ESTALE);
            fail(&file.open, refusals.refused(caller, act, Some(name), errno, sentence));
        }
        // The file was closed while it waited in the queue, so no read is left to answer.
        None => {}
    }
}

fn acquire(
    mount: &Mount,
    caller: &Caller,
    name: &LockName,
    process: Option<&ProcessHandle>,
) -> Acquire {
    let patch = Patch {
        holder_id: Some(mount.callers.holder_id(caller)),
        process: process.map(|handle| Some(handle.process)),
        attrs: Some(attrs_of_new(caller, FileType::File, MODE_OF_NEW)),
        ..Patch::default()
    };
    Acquire {
        // The lease is exclusive within the client, and no open file owns it: another request
        // of the same client can't share the lease, so two readers of one client wait for each
        // other.
        hold: Ownership::Exclusive(None),
        line: QueuePolicy::Join(None),
        patch,
        ..Acquire::new(name.clone(), caller.client.clone(), mount.bindings.term(process))
    }
}

fn bound(
    mount: &Mount,
    caller: &Caller,
    name: &LockName,
    tenure: &Tenure,
    process: Option<&ProcessHandle>,
) -> LeaseKey {
    let (name, client) = (name.clone(), caller.client.clone());
    let key = LeaseKey { name, client, token: Some(tenure.token) };
    if let Some(process) = process {
        mount.bindings.bind(key.clone(), tenure.life, process);
    }
    key
}

/// Answers the waiting reads of a wait file with the status of the lock after the grant. `key`
/// holds the name, the client and the token of the granted lease.
async fn answer_reads(mount: &Mount, caller: &Caller, file: &WaitFile, key: LeaseKey) {
    let view = mount.nodes.view(caller, Act::Read, &file.name).await;
    let mut view = match view {
        Ok(view) => view,
        Err(errno) => return fail(&file.open, errno),
    };
    view.waiters.truncate(WAITERS_SHOWN_MAX);
    let wall = |at| mount.nodes.service.wall(at);
    let bytes: Arc<[u8]> = pretty(&status_of(&view, wall)).into_bytes().into();
    let share = mount.reads.shares().take_always(Pool::Bytes, file.open.uid, bytes.len());
    let mut state = file.open.state();
    let kept = std::mem::replace(&mut state.bytes, (Arc::clone(&bytes), Some(share)));
    let held = std::mem::take(&mut state.held);
    let unwanted = settle(&mut state, key, held.is_empty());
    drop(state);
    drop(kept);
    for HeldRead { size, promise, .. } in held {
        promise.keep(Ok(ReadBytes::window(Arc::clone(&bytes), 0, size)));
    }
    if let Some(key) = unwanted {
        give_back(mount, key);
    }
}

fn refuse(mount: &Mount, caller: &Caller, file: &WaitFile, failure: RequestError) {
    let (refusals, name) = (&mount.nodes.refusals, Some(&file.name));
    fail(&file.open, refusals.failed(caller, Act::Read, name, failure));
}

/// Records the grant of the lock in the state of the wait file. Returns the lease if the file was
/// closed in the meantime, since the caller must then release it.
fn settle(state: &mut OpenFileState, key: LeaseKey, unread: bool) -> Option<LeaseKey> {
    if matches!(state.wait, WaitState::Closed) {
        return Some(key);
    }
    state.wait = if unread { WaitState::Unread(key) } else { WaitState::Idle };
    None
}

/// Fails the waiting reads of a wait file with `errno` after the request for the lock has failed.
fn fail(open: &OpenFile, errno: Errno) {
    let mut state = open.state();
    if !matches!(state.wait, WaitState::Closed) {
        state.wait = WaitState::Idle;
    }
    let held = std::mem::take(&mut state.held);
    drop(state);
    for HeldRead { promise, .. } in held {
        promise.keep(Err(errno));
    }
}
