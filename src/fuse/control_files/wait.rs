//! `.latchfs/wait/NAME`: who reads it waits in line, and the read returns when the lock is there.
//!
//! It is the reader's client that waits, in the engine's line, and what it gets is a lease like
//! others. Each open file has a place of its own, so that two programs of one user exclude each
//! other. A signal ends the read and not the wait, since the program may read again; closing the
//! file ends the wait, and gives back a lock that came and was never read of.

use crate::fuse::ops::ancestors;
use crate::fuse::control_files::ctl::WAITERS_SHOWN_MAX;
use crate::fuse::errno::Act;
use crate::fuse::process::process_handle::Living;
use crate::fuse::queue_wait::{self, Ended, Held};
use crate::fuse::ops::create::looks;
use crate::fuse::open_files::{Open, State, window};
use crate::fuse::credentials::Caller;
use crate::fuse::process::bindings;
use crate::fuse::shared::{Fs, flat};
use crate::fuse::kernel::user_shares::Pool;
use crate::engine::{
    Acquire, FileType, Firm, LeaseKey, LockName, Mode, Op, Ownership, Patch, QueuePolicy,
    RefusalKind, Release, Renew, Tenure,
};
use crate::service::RequestError;
use crate::status::{pretty, status_of};
use fuser::{Errno, ReplyData};
use std::sync::Arc;

/// The permission bits of a lock that came to a waiter.
const MODE_OF_NEW: u32 = 0o644;

/// How it stands with an open file of `wait/`.
#[derive(Debug, Default)]
pub(crate) enum Place {
    /// It has not asked yet, or what came of it has been read.
    #[default]
    Out,
    /// It waits in line.
    InLine,
    /// The lock has come, and nobody has read so.
    Unread(LeaseKey),
    /// It was closed.
    Closed,
}

/// read. From the beginning it waits until the lock is the reader's; the rest is what it said then.
pub(crate) fn read(
    fs: &Fs,
    caller: &Caller,
    (fh, open): (u64, &Arc<Open>),
    name: &LockName,
    (offset, size, flags): (u64, u32, i32),
    reply: ReplyData,
) {
    let mut state = open.state.lock();
    if offset > 0 {
        let bytes = Arc::clone(&state.bytes.0);
        drop(state);
        return reply.data(window(&bytes, offset, size));
    }
    let reply = if matches!(state.place, Place::InLine) {
        reply
    } else {
        let before = std::mem::replace(&mut state.place, Place::InLine);
        let number = fs.opens.number();
        state.held.push(Held { number, size, reply });
        drop(state);
        match before {
            Place::Unread(key) => renew(fs, caller, (fh, open), key),
            _ => ask(fs, caller, (fh, open), name),
        }
        // Perhaps it has the lock already; otherwise the reply waits.
        state = open.state.lock();
        let at = state.held.iter().position(|held| held.number == number);
        let Some(held) = at.map(|at| state.held.remove(at)) else { return };
        held.reply
    };
    if flags & libc::O_NONBLOCK == 0 {
        if let Err(full) = fs.shares.room(Pool::Threads, caller.uid) {
            drop(state);
            return reply.error(fs.refuse_full(caller, Act::Read, Some(name), full));
        }
        return waiting::hold(fs, fh, state, (size, caller.pid), reply);
    }
    drop(state);
    reply.error(Errno::EAGAIN);
}

/// The last descriptor is closed; the place in line is gone already.
pub(crate) fn closed(fs: &Fs, open: &Open) {
    let before = std::mem::replace(&mut open.state.lock().place, Place::Closed);
    if let Place::Unread(key) = before {
        fs.locks.give_back(Op::Release(Release::of(key)));
    }
}

/// Asks for the lock, in the name of who opened the file.
fn ask(fs: &Fs, caller: &Caller, (fh, open): (u64, &Arc<Open>), name: &LockName) {
    let caller = Caller { client: open.client.clone(), uid: open.uid, ..caller.clone() };
    let (open, asked) = (Arc::clone(open), name.clone());
    let join = move |fs: &Fs, caller: &Caller, allowed| match allowed {
        Ok(()) => join(fs, caller, (fh, open), asked),
        Err(errno) => fail(&open, errno),
    };
    below::check(fs, &caller, Act::Read, name, join);
}

/// The lock has come, and is read of now if it has not been lost meanwhile.
fn renew(fs: &Fs, caller: &Caller, (fh, open): (u64, &Arc<Open>), key: LeaseKey) {
    let (shared, caller, open) = (Arc::clone(fs), caller.clone(), Arc::clone(open));
    let (firm, patch) = (Firm::Keep, Patch::default());
    let renewal = Renew { key: key.clone(), term: None, firm, patch, acquires: false };
    fs.locks.submit(Op::Renew(renewal), move |answer| match flat(answer) {
        Ok(_) => tell(&shared, &caller, &open, &key.name.clone(), Some(key)),
        Err(failure) if failure.kind() == RefusalKind::ConsistencyUnavailable => {
            refuse(&shared, &caller, &open, &key.name, failure);
            let mut state = open.state.lock();
            if matches!(state.place, Place::Out) {
                state.place = Place::Unread(key);
            } else {
                drop(state);
                shared.locks.give_back(Op::Release(Release::of(key)));
            }
        }
        Err(_) => ask(&shared, &caller, (fh, &open), &key.name),
    });
}

/// Stands in line.
fn join(fs: &Fs, caller: &Caller, (fh, open): (u64, Arc<Open>), name: LockName) {
    let process = process::by_default(fs, caller);
    let patch = Patch {
        holder_id: Some(fs.owners.holder_id(caller)),
        process: process.as_ref().map(|living| Some(living.process)),
        looks: Some(looks(caller, FileType::File, MODE_OF_NEW)),
        ..Patch::default()
    };
    let ask = Acquire {
        name: name.clone(),
        client: caller.client.clone(),
        mode: Mode::Exclusive,
        // By name only, and this attempt's own: two readers of one client wait for each other.
        hold: Ownership::Exclusive(None),
        term: process::term(fs, process.as_ref()),
        line: QueuePolicy::Join(None),
        patch,
    };
    let (shared, caller) = (Arc::clone(fs), caller.clone());
    waiting::join(fs, (fh, caller.uid), None, ask, move |ended| match ended {
        Ended::Granted(tenure) => {
            let key = bound(&shared, &caller, &name, tenure, process.as_ref());
            tell(&shared, &caller, &open, &name, Some(key));
        }
        Ended::Failed(failure) => refuse(&shared, &caller, &open, &name, failure),
        Ended::NoRoom(full) => {
            fail(&open, shared.refuse_full(&caller, Act::Read, Some(&name), full));
        }
        Ended::TimedOut => {
            let sentence = format!("the place in the line of lock '{name}' is lost; read again");
            let (act, name) = (Act::Read, Some(&name));
            let errno = shared.refuse_own(&caller, act, name, Errno::ESTALE, sentence);
            fail(&open, errno);
        }
    });
}

fn bound(
    fs: &Fs,
    caller: &Caller,
    name: &LockName,
    tenure: Tenure,
    process: Option<&Living>,
) -> LeaseKey {
    let (name, client) = (name.clone(), caller.client.clone());
    let key = LeaseKey { name, client, token: Some(tenure.token) };
    if let Some(living) = process {
        process::bind(fs, key.clone(), tenure.life, living);
    }
    key
}

/// The lock is the reader's: says so to whoever reads. `new`: the lease that came by waiting.
fn tell(fs: &Fs, caller: &Caller, open: &Arc<Open>, name: &LockName, new: Option<LeaseKey>) {
    let open = Arc::clone(open);
    fs.view(caller, Act::Read, name, move |fs, _, view| {
        let bytes: Arc<[u8]> = match view {
            Ok(mut view) => {
                view.waiters.truncate(WAITERS_SHOWN_MAX);
                pretty(&status_of(&view, |at| fs.locks.wall(at))).into_bytes().into()
            }
            Err(errno) => return fail(&open, errno),
        };
        let share = fs.shares.take_always(Pool::Bytes, open.uid, bytes.len());
        let mut state = open.state.lock();
        state.bytes = (Arc::clone(&bytes), Some(share));
        let held = std::mem::take(&mut state.held);
        let unwanted = settle(&mut state, new, held.is_empty());
        drop(state);
        for Held { size, reply, .. } in held {
            reply.data(window(&bytes, 0, size));
        }
        if let Some(key) = unwanted {
            fs.locks.give_back(Op::Release(Release::of(key)));
        }
    });
}

/// Where the file stands when its wait is over; gives back the lease that nobody is there for.
fn settle(state: &mut State, new: Option<LeaseKey>, unread: bool) -> Option<LeaseKey> {
    match (&state.place, new) {
        (Place::Closed, new) => return new,
        (_, Some(key)) if unread => state.place = Place::Unread(key),
        _ => state.place = Place::Out,
    }
    None
}

fn refuse(fs: &Fs, caller: &Caller, open: &Open, name: &LockName, failure: RequestError) {
    fail(open, fs.refuse(caller, Act::Read, Some(name), failure));
}

/// The wait has come to nothing.
fn fail(open: &Open, errno: Errno) {
    let mut state = open.state.lock();
    if !matches!(state.place, Place::Closed) {
        state.place = Place::Out;
    }
    let held = std::mem::take(&mut state.held);
    drop(state);
    for Held { reply, .. } in held {
        reply.error(errno);
    }
}
