//! The forms that give a lock back or carry it over: `rm`, `rmdir`, `mv`.

use super::errno::Act;
use super::owner::Caller;
use super::shared::{Fs, flat};
use crate::engine::{
    ClientId, LeaseKey, LockName, LockView, Move, Op, Outcome, Over, Reason, Release,
};
use crate::locks::Failure;
use fuser::{Errno, RenameFlags, ReplyEmpty};
use std::ffi::OsStr;
use std::sync::Arc;

/// `rm NAME`.
pub(super) fn unlink(fs: &Fs, caller: &Caller, parent: u64, name: &OsStr, reply: ReplyEmpty) {
    match fs.name_in(caller, Act::Unlink, parent, name) {
        Ok(name) => release(fs, caller, Act::Unlink, name, reply),
        Err(errno) => reply.error(errno),
    }
}

/// `rmdir NAME`.
pub(super) fn rmdir(fs: &Fs, caller: &Caller, parent: u64, name: &OsStr, reply: ReplyEmpty) {
    let name = match fs.name_in(caller, Act::Rmdir, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    fs.view(caller, Act::Rmdir, &name, move |fs, caller, view| match view {
        Ok(view) if view.has_below => reply.error(not_empty(fs, caller, Act::Rmdir, &view)),
        Ok(view) => release(fs, caller, Act::Rmdir, view.name, reply),
        Err(errno) => reply.error(errno),
    });
}

fn not_empty(fs: &Fs, caller: &Caller, act: Act, view: &LockView) -> Errno {
    let name = &view.name;
    let sentence = format!("there are locks below '{name}/'; release them first");
    fs.refuse_own(caller, act, Some(name), Errno::ENOTEMPTY, sentence)
}

fn release(fs: &Fs, caller: &Caller, act: Act, name: LockName, reply: ReplyEmpty) {
    let (fs, caller) = (Arc::clone(fs), caller.clone());
    let door = fs.locks.clone();
    door.submit(release_of(&name, &caller.client), move |answer| match flat(answer) {
        Ok(_) => {
            fs.tree.lock().removed(&name);
            reply.ok();
        }
        Err(failure) => match local_holder(&fs, &caller, &failure) {
            Some(holder) => release_for(&fs, &caller, act, name, &holder, reply),
            None => reply.error(fs.refuse(&caller, act, Some(&name), failure)),
        },
    });
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
    Op::Release(Release { key: LeaseKey { name, client, token: None } })
}

fn local_holder(fs: &Fs, caller: &Caller, failure: &Failure) -> Option<ClientId> {
    let Failure::Refused(refusal) = failure else { return None };
    let Reason::NotHeld { holder: Some(holder), .. } = &*refusal.reason else { return None };
    (caller.is_root() && fs.owners.is_local(holder)).then(|| holder.clone())
}

/// One end of a rename, as the kernel names it: a directory and a name in it.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    /// The directory.
    pub(super) parent: u64,
    /// The name.
    pub(super) name: &'a OsStr,
}

/// `mv A NAME`.
pub(super) fn rename(
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
    fs.view(caller, act, &from.clone(), move |fs, caller, view| match view {
        Ok(view) if view.has_below => reply.error(not_empty(fs, caller, act, &view)),
        Ok(_) => fs.view(caller, act, &to.clone(), move |fs, caller, view| match view {
            Ok(view) if view.has_below => reply.error(not_empty(fs, caller, act, &view)),
            Ok(_) => carry(fs, caller, act, from, to, reply),
            Err(errno) => reply.error(errno),
        }),
        Err(errno) => reply.error(errno),
    });
}

fn carry(fs: &Fs, caller: &Caller, act: Act, from: LockName, to: LockName, reply: ReplyEmpty) {
    let over = if act == Act::RenameNew { Over::Refuse } else { Over::Replace };
    let key = LeaseKey { name: from.clone(), client: caller.client.clone(), token: None };
    let op = Op::Move(Move { from: key, to: to.clone(), over });
    fs.submit(caller, act, &from.clone(), op, move |fs, _, outcome| match outcome {
        Ok(Outcome::Moved(tenure)) => {
            fs.tree.lock().moved(&from, &to, tenure.token);
            reply.ok();
        }
        Ok(_) => reply.error(Errno::EIO),
        Err(errno) => reply.error(errno),
    });
}
