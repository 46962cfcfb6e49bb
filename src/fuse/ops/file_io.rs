//! Open, read, write and close of the files of locks.

use crate::control::control_request::LeaseOptions;
use crate::engine::values::details::TEXT_BYTES_MAX;
use crate::engine::{Firm, LockName, LockView, ReadMode, Reason, Refusal};
use crate::fuse::control_names::report_of;
use crate::fuse::credentials::Caller;
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::{MessageEnd, OpenAccess, OpenFile};
use crate::fuse::ops::lease_change;
use crate::fuse::ops::lease_change::{
    ChangedLeases, LeaseChange, meant_by_open, of_message, too_long,
};
use crate::fuse::ops::lease_change::{WrittenMessage, parse};
use crate::fuse::ops::setattr::{renew_at_close, truncate_at_open};
use crate::fuse::process::lease_users::ProcessHandle;
use crate::fuse::refusals::Act;
use crate::service::RequestError;
use crate::status::{pretty, status_of};
use kernel::file_system::{Errno, Opened, OpenedFlags, ReadBytes, ReadRequest};
use kernel::handles::Pool;
use std::sync::Arc;

/// Opens a lock that the kernel has looked up already. If its name has vanished since, the
/// answer says so once.
pub(crate) async fn open(
    mount: &Mount,
    caller: &Caller,
    ino: u64,
    name: LockName,
    flags: i32,
) -> Result<Opened, Errno> {
    if let Err(full) = mount.opens.shares().room(Pool::Files, caller.uid) {
        return Err(mount.nodes.refusals.full(caller, Act::Open, None, &full));
    }
    let view = mount.nodes.view(caller, Act::Open, &name).await?;
    let has_vanished = mount.nodes.attrs.state_of(&view).shown().is_none();
    if has_vanished && mount.opens.repeated.repeats(caller.uid, caller.pid) {
        return Err(Errno::ESTALE);
    }
    if !has_vanished {
        mount.opens.repeated.done(caller.pid);
    }
    let open = OpenFile::of_lock(caller, ino, name, flags);
    let origin = |token| mount.nodes.origin_of(ino, token);
    open.bind_to_held(&mount.nodes.service, &view, origin);
    open.saw(&view);
    truncate_at_open(mount, caller, &open, view, flags).await?;
    Ok(Opened { fh: mount.opens.insert(open), flags: OpenedFlags::FOPEN_DIRECT_IO })
}

/// Reads the file of a lock. The first read and each read at offset 0 take a snapshot of the
/// content; other reads return parts of the same snapshot.
pub(crate) async fn read(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    ino: u64,
    name: &LockName,
    asked: ReadRequest,
) -> Result<ReadBytes, Errno> {
    if let Some(part) = open.kept_window(asked) {
        return Ok(part);
    }
    mount.polls.reads(asked.fh);
    let name = mount.nodes.spoken_of(ino, name, open.tenure());
    let view = mount.nodes.view(caller, Act::Read, &name).await?;
    open.saw(&view);
    let bytes = content_of(mount, &view, open.access);
    match open.keep(mount.opens.shares(), bytes) {
        Ok(bytes) => Ok(ReadBytes::window(bytes, asked.offset, asked.size)),
        Err(full) => Err(mount.nodes.refusals.full(caller, Act::Read, None, &full)),
    }
}

/// Returns the bytes that a read of the lock's file returns: its content, or its status as
/// JSON.
fn content_of(mount: &Mount, view: &LockView, access: OpenAccess) -> Arc<[u8]> {
    let details = view.holder().map(|holder| &holder.lease.details);
    let reads = |attrs| mount.nodes.attrs.reads(&attrs);
    let reads = details.map_or(ReadMode::Status, |details| reads(details.attrs()));
    if access == OpenAccess::Both || reads == ReadMode::Text {
        return details.map(|details| details.shared_text()).unwrap_or_default();
    }
    let wall = |at| mount.nodes.service.wall(at);
    pretty(&status_of(view, wall)).into_bytes().into()
}

/// Writes to the file of a lock on behalf of the user who opened it, even if the descriptor was
/// passed to another process.
pub(crate) async fn write(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    ino: u64,
    name: &LockName,
    offset: u64,
    data: &[u8],
) -> Result<u32, Errno> {
    let caller = &open.opener(caller);
    open.state().wrote = true;
    let refused = |(errno, sentence): (Errno, String)| {
        let refusals = &mount.nodes.refusals;
        refusals.refused(caller, Act::Write, Some(name), errno, sentence)
    };
    if data.len() > TEXT_BYTES_MAX {
        return Err(refused((Errno::EFBIG, too_long(name, data.len() as u64))));
    }
    let message = parse(data)
        .map_err(|sentence| refused((Errno::EINVAL, format!("lock '{name}': {sentence}"))))?;
    check_not_lost(mount, caller, open, name)?;
    let Some(node) = mount.nodes.lock_node(ino) else { return Err(Errno::ESTALE) };
    let mut meant = meant_by_open(&node, open);
    let process = process_of(mount, caller, &message, &mut meant)
        .map_err(|(errno, why)| refused((errno, format!("lock '{name}': {why}"))))?;
    let is_text = message == WrittenMessage::Text;
    if is_text && is_far(open, offset) {
        return Err(refused((Errno::EFBIG, too_long(name, offset))));
    }
    let hangs = process.as_ref().and_then(|_| mount.bindings.session());
    let change = of_message(message, data, offset, open);
    let change = LeaseChange { process, hangs, ..change };
    let length = data.len() as u32;
    let reached = lease_change::apply(mount, caller, Act::Write, &meant, &change).await?;
    // The session to which the lease is attached may have ended while the renewal was in
    // progress.
    check_not_lost(mount, caller, open, name)?;
    let mut state = open.state();
    let origin = reached.token.map(|token| node.origin_of(token));
    state.tenure = state.tenure.or(origin);
    if change.renews == Some(Firm::Make) {
        state.own_lease = origin;
    }
    state.end = Some(MessageEnd { at: offset + u64::from(length), is_text });
    Ok(length)
}

/// Returns the process that a written message names, if it names one. If the message names a
/// token, limits the leases in `meant` to the one with that token.
fn process_of(
    mount: &Mount,
    caller: &Caller,
    message: &WrittenMessage,
    meant: &mut ChangedLeases,
) -> Result<Option<Arc<ProcessHandle>>, (Errno, String)> {
    let WrittenMessage::Options(LeaseOptions { pid, token, .. }) = message else {
        return Ok(None);
    };
    let process = match pid {
        Some(pid) => Some(Arc::new(mount.bindings.named(caller, *pid)?)),
        None => None,
    };
    if let Some(token) = token {
        for meant in meant.iter_mut() {
            meant.token = Some(*token);
        }
    }
    Ok(process)
}

/// Refuses a write through an open file whose lease was attached to a session that is over. The
/// server may still keep the lease in grace, where its client may renew it, but the program
/// that took the lock has been notified that the lock is lost.
fn check_not_lost(
    mount: &Mount,
    caller: &Caller,
    open: &OpenFile,
    name: &LockName,
) -> Result<(), Errno> {
    let (tenure, session) = {
        let state = open.state();
        (state.tenure, state.session)
    };
    let (Some(token), Some(session)) = (tenure, session) else { return Ok(()) };
    let nodes = &mount.nodes;
    if !nodes.service.is_session_over(session) {
        return Ok(());
    }
    let reason = Box::new(Reason::Expired { name: name.clone(), token });
    let lost = RequestError::Refused(Refusal { at: nodes.service.now(), reason });
    Err(nodes.refusals.failed(caller, Act::Write, Some(name), lost))
}

/// Removes and returns an open file after its last descriptor was closed.
pub(crate) fn release(mount: &Mount, fh: u64) -> Option<Arc<OpenFile>> {
    mount.polls.closed(fh);
    let open = mount.opens.remove(fh)?;
    renew_at_close(&mount.nodes, &open);
    Some(open)
}

/// Handles close(2) of one descriptor. A close without a write of a file that was opened for
/// writing fails with EBUSY if another client holds the lock, because such a program expects to
/// have renewed the lock.
pub(crate) async fn flush(mount: &Mount, caller: &Caller, fh: u64) -> Result<(), Errno> {
    let Some(open) = mount.opens.get(fh) else { return Ok(()) };
    let is_idle = {
        let state = open.state();
        open.access.writes() && state.tenure.is_none() && !state.wrote && !state.locked
    };
    let (true, Some(name)) = (is_idle, open.lock()) else { return Ok(()) };
    let caller = open.opener(caller);
    // If the lock service gives no answer, the close succeeds: the kernel closes the descriptor
    // in any case.
    let Ok(view) = mount.nodes.view(&caller, Act::Close, name).await else {
        return Ok(());
    };
    match view.holder() {
        Some(holder) if view.held_by(&caller.client).is_none() => {
            let sentence = format!(
                "lock '{}' is held by {}, so opening and closing it renewed nothing; \
                 read .latchfs/status/{} for how long",
                view.name,
                holder.lease.holder,
                report_of(&view),
            );
            let (refusals, name) = (&mount.nodes.refusals, Some(&view.name));
            Err(refusals.refused(&caller, Act::Close, name, Errno::EBUSY, sentence))
        }
        _ => Ok(()),
    }
}

/// Whether a text written at `offset` would start beyond the maximum size of a content. An append
/// is allowed, and so is an offset at the end of the previous message: a file through which a
/// program has renewed for days has a large offset.
fn is_far(open: &OpenFile, offset: u64) -> bool {
    let follows = open.state().end.is_some_and(|end| end.at == offset);
    offset > TEXT_BYTES_MAX as u64 && !open.append && !follows
}
