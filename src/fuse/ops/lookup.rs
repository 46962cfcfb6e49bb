//! The forms that only look: lookup, stat, readlink.

use crate::fuse::file_attrs;
use crate::fuse::control_files::control::{self, Control, Fact};
use crate::fuse::errno::{Act, errno_of_lookup};
use crate::fuse::kernel_cache;
use crate::fuse::ops::create::{GENERATION, NO_CACHE};
use crate::fuse::credentials::Caller;
use crate::fuse::shared::{Fs, Shared, attr_of_one, wrong_name};
use crate::fuse::inodes::{LockPlace, Place, TOP};
use crate::engine::name::{PART_BYTES_MAX, RESERVED_PREFIX};
use crate::engine::{FileType, LockName, LockView, NameError};
use fuser::{Errno, FileAttr, INodeNo, ReplyAttr, ReplyData, ReplyEntry, ReplyStatfs};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

/// What never changes may be kept by the kernel.
pub(crate) const FOREVER: Duration = Duration::from_secs(3_600);
/// The size of a block in statfs.
const BLOCK_BYTES: u32 = 4_096;
/// Room that statfs shows: locks take none, but many programs refuse to write to a full disk.
const BLOCKS: u64 = 1 << 20;
/// Names that statfs shows room for.
const FILES: u64 = 1 << 20;

/// lookup.
pub(crate) fn lookup(fs: &Fs, caller: &Caller, parent: u64, name: &OsStr, reply: ReplyEntry) {
    let place = match fs.place(parent) {
        Some(Place::Control(dir)) => return control::lookup(fs, caller, &dir, name, reply),
        Some(Place::Top) if name == RESERVED_PREFIX => {
            return control::entered(fs, &Control::Top, reply);
        }
        Some(place) => place,
        None => return reply.error(Errno::ESTALE),
    };
    let child = match place.child(name) {
        Ok(child) => child,
        Err(error) => return reply.error(no_such_name(fs, caller, name, error)),
    };
    let page = if place.is_held_directory() { Fact::named(name) } else { None };
    fs.look(caller, Act::Lookup, child, move |fs, caller, name, seen| {
        let (sight, as_of) = match seen {
            Ok(seen) => seen,
            Err(errno) => return reply.error(errno),
        };
        let Some((face, token)) = sight.shown() else {
            return match (page, place) {
                (Some(fact), Place::Lock(dir)) => {
                    control::entered(fs, &Control::Fact(fact, dir.name.clone()), reply);
                }
                _ => not_there(fs, &name, as_of, reply),
            };
        };
        fs.whys.met(&caller.client, &name);
        let (ino, place) = {
            let mut tree = fs.tree.lock();
            let ino = tree.seen(&name, face, token);
            (ino, tree.place(ino))
        };
        let Some(Place::Lock(place)) = place else { return reply.error(Errno::ESTALE) };
        if place.links.len() > 1 {
            return fs.attr_now(caller, ino, place, move |_, attr| match attr {
                Ok(attr) => reply.entry(&NO_CACHE, &attr, GENERATION),
                Err(errno) => reply.error(errno),
            });
        }
        let attr = attr_of_one(fs, ino, &place, &sight);
        // To forget a directory is to lose it for whoever stands in it, and the way to locks
        // changes with each of them.
        let may_stay = face != FileType::Directory || (token.is_some() && fs.kept.expires());
        let as_of = as_of.filter(|_| may_stay);
        kept::answer(fs, &name, Some(ino), as_of, |ttl| reply.entry(ttl, &attr, GENERATION));
    });
}

/// Answers that there is nothing of this name, which the kernel may be let keep as well.
fn not_there(fs: &Fs, name: &LockName, as_of: Option<u64>, reply: ReplyEntry) {
    fs.tree.lock().gone(name);
    let nothing = FileAttr { ino: INodeNo(0), ..attr::of_nobody(fs, 0, FileType::File, 0) };
    kept::answer(fs, name, None, as_of, |ttl| {
        if ttl.is_zero() {
            reply.error(Errno::ENOENT);
        } else {
            reply.entry(ttl, &nothing, GENERATION);
        }
    });
}

/// What can't be a name is not there; the call that makes something under it, which the kernel
/// sends next, says what is wrong with it. A name that is too long gets no such call.
fn no_such_name(fs: &Fs, caller: &Caller, name: &OsStr, error: NameError) -> Errno {
    let errno = errno_of_lookup(error);
    if error == NameError::TooLong {
        return fs.refuse_own(caller, Act::Lookup, None, errno, wrong_name(name, error));
    }
    errno
}

/// statfs.
pub(crate) fn statfs(fs: &Fs, reply: ReplyStatfs) {
    let used = fs.locks.about().locks as u64;
    let name_bytes = PART_BYTES_MAX as u32;
    let free = FILES.saturating_sub(used);
    reply.statfs(BLOCKS, BLOCKS, BLOCKS, FILES, free, BLOCK_BYTES, name_bytes, BLOCK_BYTES);
}

/// stat.
pub(crate) fn getattr(fs: &Fs, caller: &Caller, ino: u64, reply: ReplyAttr) {
    match fs.place(ino) {
        Some(Place::Top) => reply.attr(&FOREVER, &attr_of_top(fs)),
        Some(Place::Control(control)) => {
            reply.attr(&NO_CACHE, &control::attr_of(fs, ino, &control));
        }
        Some(Place::Lock(place)) => getattr_of(fs, caller, ino, place, reply),
        None => reply.error(Errno::ESTALE),
    }
}

fn getattr_of(fs: &Fs, caller: &Caller, ino: u64, place: Arc<LockPlace>, reply: ReplyAttr) {
    if place.links.len() > 1 {
        return fs.attr_now(caller, ino, place, move |_, attr| match attr {
            Ok(attr) => reply.attr(&NO_CACHE, &attr),
            Err(errno) => reply.error(errno),
        });
    }
    fs.look(caller, Act::Stat, place.name.clone(), move |fs, _, name, seen| match seen {
        Ok((sight, as_of)) => {
            let attr = attr_of_one(fs, ino, &place, &sight);
            // Only of what has this name still: its changes are told by the name.
            let as_of = as_of.filter(|_| !place.links.is_empty() && sight.is_held());
            kept::answer(fs, &name, Some(ino), as_of, |ttl| reply.attr(ttl, &attr));
        }
        Err(errno) => reply.error(errno),
    });
}

/// The mount point.
pub(crate) fn attr_of_top(fs: &Fs) -> FileAttr {
    let top = attr::of_nobody(fs, TOP, FileType::Directory, attr::LINKS);
    // Anybody who may use the mount may make locks in it, and nobody another's away: as in /tmp.
    FileAttr { perm: 0o1777, uid: fs.mounter, ..top }
}

/// readlink.
pub(crate) fn readlink(fs: &Fs, caller: &Caller, ino: u64, reply: ReplyData) {
    let Some(place) = fs.lock_place(ino) else { return reply.error(Errno::EINVAL) };
    fs.view(caller, Act::Readlink, &place.name.clone(), move |fs, caller, view| {
        let view = match view {
            Ok(view) => view,
            Err(errno) => return reply.error(errno),
        };
        match text_of(&place, &view) {
            Some(text) if fs.follows_symlinks && !may_follow(fs, caller, &view, text) => {
                let sentence = "this symlink of another user leads out of the mount, and this \
                                mount can't keep the kernel from following it; read \
                                .latchfs/content for its text";
                let name = Some(&view.name);
                reply.error(fs.refuse_own(caller, Act::Readlink, name, Errno::EACCES, sentence));
            }
            Some(text) => reply.data(text),
            None => reply.error(Errno::ENOENT),
        }
    });
}

/// Whether the kernel may follow a symlink on behalf of the caller. It does not say whether it
/// asks for a readlink or to follow, so what leads out of the mount is told only to its maker.
fn may_follow(fs: &Shared, caller: &Caller, view: &LockView, text: &[u8]) -> bool {
    let stays = !text.starts_with(b"/") && text.split(|byte| *byte == b'/').all(|p| p != b"..");
    let own = view.holder().is_some_and(|holder| {
        let lease = &holder.lease;
        fs.owners.is_local(&lease.holder) && lease.details.looks().uid == caller.uid
    });
    stays || own
}

fn text_of<'a>(place: &LockPlace, view: &'a LockView) -> Option<&'a [u8]> {
    let token = place.links.iter().find(|link| link.name == view.name)?.token;
    let lease = &view.holder()?.lease;
    (token == Some(lease.token)).then_some(lease.details.text())
}
