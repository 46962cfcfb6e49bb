//! The forms that give a lock back or carry it over: `rm`, `rmdir`, `mv`.

use crate::fuse::ops::ancestors;
use crate::fuse::control_files::control::Fact;
use crate::fuse::errno::Act;
use crate::fuse::kernel_cache;
use crate::fuse::credentials::Caller;
use crate::fuse::shared::{Fs, flat};
use crate::engine::{
    ClientId, Glance, IfExists, Lease, LeaseKey, LockName, LockView, Move, Op, Outcome, Ownership,
    Reason, Release, Token,
};
use crate::service::{Done, RequestError};
use fuser::{Errno, RenameFlags, ReplyEmpty};
use std::ffi::OsStr;
use std::sync::Arc;

/// `rm NAME`.
pub(crate) fn unlink(fs: &Fs, caller: &Caller, parent: u64, name: &OsStr, reply: ReplyEmpty) {
    let is_fact = Fact::named(name).is_some();
    let name = match fs.name_in(caller, Act::Unlink, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    if !is_fact || !fs.place(parent).is_some_and(|place| place.is_held_directory()) {
        return release(fs, caller, Act::Unlink, name, reply);
    }
    // `NAME/holder` may be a lock of that name, which then is what was looked up.
    fs.view(caller, Act::Unlink, &name.clone(), move |fs, caller, view| match view {
        Ok(view) if view.holders.is_empty() => {
            let sentence = format!("'{name}' is a fact about a lock, and goes with it");
            let errno = fs.refuse_own(caller, Act::Unlink, Some(&name), Errno::EPERM, sentence);
            reply.error(errno);
        }
        Ok(_) => release(fs, caller, Act::Unlink, name, reply),
        Err(errno) => reply.error(errno),
    });
}

/// `rmdir NAME`.
pub(crate) fn rmdir(fs: &Fs, caller: &Caller, parent: u64, name: &OsStr, reply: ReplyEmpty) {
    let name = match fs.name_in(caller, Act::Rmdir, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    release(fs, caller, Act::Rmdir, name, reply);
}

fn not_empty(fs: &Fs, caller: &Caller, act: Act, view: &LockView) -> Errno {
    let name = &view.name;
    let sentence = format!("there are locks below '{name}/'; release them first");
    fs.refuse_own(caller, act, Some(name), Errno::ENOTEMPTY, sentence)
}

fn release(fs: &Fs, caller: &Caller, act: Act, name: LockName, reply: ReplyEmpty) {
    if let Some((Some(answer), ())) = release_here(fs, caller, act, &name) {
        return released(fs, caller, act, name, flat(answer), reply);
    }
    fs.view(caller, act, &name, move |fs, caller, view| match view {
        Ok(view) if act == Act::Rmdir && view.has_below => {
            reply.error(not_empty(fs, caller, act, &view));
        }
        Ok(view) => match lease_to_end(fs, caller, act, &view) {
            Ok(token) => release_token(fs, caller, act, view.name, token, reply),
            Err(errno) => reply.error(errno),
        },
        Err(errno) => reply.error(errno),
    });
}

/// The nearly always case in one step: the caller's own lease, which hangs on no open file.
fn release_here(fs: &Fs, caller: &Caller, act: Act, name: &LockName) -> Option<(Done, ())> {
    let ask = |lock: Glance<'_>| {
        let mut leases = lock.leases().iter();
        let own = leases.find(|lease| lease.holder == caller.client && is_loose(lease))?;
        if act == Act::Rmdir && lock.has_below() {
            return None;
        }
        let (name, client, token) = (name.clone(), caller.client.clone(), Some(own.token));
        Some(Op::Release(Release::of(LeaseKey { name, client, token })).into())
    };
    fs.locks.act_here(name, ask, |_| ())
}

/// Whether it hangs on no open file.
const fn is_loose(lease: &Lease) -> bool {
    !matches!(lease.hold, Ownership::OpenFile(_))
}

/// The lease that `rm` or `mv` by the caller means, as far as that can be seen here: `None` lets
/// the engine say who has it.
///
/// What an open file holds, only the process that opened or locked it may take away, and
/// processes below it: `flock x sh -c 'rm x'` may, another program of the same user may not.
fn lease_to_end(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    view: &LockView,
) -> Result<Option<Token>, Errno> {
    let own = || view.holders.iter().filter(|holder| holder.lease.holder == caller.client);
    if let Some(lease) = own().find(|holder| is_loose(&holder.lease)) {
        return Ok(Some(lease.lease.token));
    }
    let mut tokens = own().map(|holder| holder.lease.token).peekable();
    if tokens.peek().is_none() {
        return Ok(None);
    }
    if let Some(token) = tokens.find(|token| crate::fuse::posix_locks::may_end(fs, caller, *token)) {
        return Ok(Some(token));
    }
    let sentence = format!(
        "lock '{}' is held by an open file of another program of {}; it is free when that \
         program unlocks or closes it",
        view.name, caller.client
    );
    Err(fs.refuse_own(caller, act, Some(&view.name), Errno::EBUSY, sentence))
}

fn release_token(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    name: LockName,
    token: Option<Token>,
    reply: ReplyEmpty,
) {
    let (fs, caller) = (Arc::clone(fs), caller.clone());
    let door = fs.locks.clone();
    let key = LeaseKey { name: name.clone(), client: caller.client.clone(), token };
    door.submit(Op::Release(Release::of(key)), move |answer| {
        released(&fs, &caller, act, name, flat(answer), reply);
    });
}

fn released(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    name: LockName,
    answer: Result<Outcome, RequestError>,
    reply: ReplyEmpty,
) {
    match answer {
        Ok(_) => {
            fs.tree.lock().removed(&name);
            reply.ok();
        }
        Err(failure) => match local_holder(fs, caller, &failure) {
            Some(holder) => release_for(fs, caller, act, name, &holder, reply),
            None => reply.error(fs.refuse(caller, act, Some(&name), failure)),
        },
    }
}

/// Root may release what users of this machine hold.
fn release_for(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    name: LockName,
    holder: &ClientId,
    reply: ReplyEmpty,
) {
    let op = release_of(&name, holder);
    fs.submit(caller, act, &name.clone(), op, move |fs, _, outcome| match outcome {
        Ok(_) => {
            fs.tree.lock().removed(&name);
            reply.ok();
        }
        Err(errno) => reply.error(errno),
    });
}

fn release_of(name: &LockName, client: &ClientId) -> Op {
    let (name, client) = (name.clone(), client.clone());
    Op::Release(Release::of(LeaseKey { name, client, token: None }))
}

fn local_holder(fs: &Fs, caller: &Caller, failure: &RequestError) -> Option<ClientId> {
    let RequestError::Refused(refusal) = failure else { return None };
    let Reason::NotHeld { holder: Some(holder), .. } = &*refusal.reason else { return None };
    (caller.is_root() && fs.owners.is_local(holder)).then(|| holder.clone())
}

/// One end of a rename, as the kernel names it: a directory and a name in it.
#[derive(Clone, Copy)]
pub(crate) struct End<'a> {
    /// The directory.
    pub(crate) parent: u64,
    /// The name.
    pub(crate) name: &'a OsStr,
}

/// `mv A NAME`.
pub(crate) fn rename(
    fs: &Fs,
    caller: &Caller,
    from: End<'_>,
    to: End<'_>,
    flags: RenameFlags,
    reply: ReplyEmpty,
) {
    let new = flags.contains(RenameFlags::RENAME_NOREPLACE);
    let act = if new { Act::RenameNew } else { Act::Rename };
    if flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
        let sentence = "two locks can't be exchanged; move one after the other";
        return reply.error(fs.refuse_own(caller, act, None, Errno::EINVAL, sentence));
    }
    let names = fs
        .name_in(caller, act, from.parent, from.name)
        .and_then(|a| Ok((a, fs.name_in(caller, act, to.parent, to.name)?)));
    let (from, to) = match names {
        Ok(names) => names,
        Err(errno) => return reply.error(errno),
    };
    below::check(fs, caller, act, &to.clone(), move |fs, caller, allowed| match allowed {
        Ok(()) => rename_allowed(fs, caller, act, &from, to, reply),
        Err(errno) => reply.error(errno),
    });
}

fn rename_allowed(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    from: &LockName,
    to: LockName,
    reply: ReplyEmpty,
) {
    fs.view(caller, act, from, move |fs, caller, view| match view {
        Ok(view) if view.has_below => reply.error(not_empty(fs, caller, act, &view)),
        Ok(view) => match lease_to_end(fs, caller, act, &view) {
            Ok(token) => rename_onto(fs, caller, act, (view.name, token), &to, reply),
            Err(errno) => reply.error(errno),
        },
        Err(errno) => reply.error(errno),
    });
}

fn rename_onto(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    (from, token): (LockName, Option<Token>),
    to: &LockName,
    reply: ReplyEmpty,
) {
    fs.view(caller, act, to, move |fs, caller, view| match view {
        Ok(view) if view.has_below => reply.error(not_empty(fs, caller, act, &view)),
        Ok(view) => {
            let key = LeaseKey { name: from, client: caller.client.clone(), token };
            carry(fs, caller, act, key, view.name, reply);
        }
        Err(errno) => reply.error(errno),
    });
}

fn carry(fs: &Fs, caller: &Caller, act: Act, key: LeaseKey, to: LockName, reply: ReplyEmpty) {
    let over = if act == Act::RenameNew { IfExists::Refuse } else { IfExists::Replace };
    let from = key.name.clone();
    let op = Op::Move(Move { from: key, to: to.clone(), over });
    fs.submit(caller, act, &from.clone(), op, move |fs, _, outcome| match outcome {
        Ok(Outcome::Moved(tenure)) => {
            fs.tree.lock().moved(&from, &to, tenure.token);
            kept::moved(fs, &from, &to);
            reply.ok();
        }
        Ok(_) => reply.error(Errno::EIO),
        Err(errno) => reply.error(errno),
    });
}
