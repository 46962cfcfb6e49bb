//! The forms that take a lock: `mkdir`, create, `ln -s`, `ln`.

use crate::fuse::file_attrs::{self, Held, Sight};
use crate::fuse::ops::ancestors;
use crate::fuse::ops::lease_change;
use crate::fuse::errno::Act;
use crate::fuse::process::process_handle::Living;
use crate::fuse::open_files::{Access, Open, State, Target};
use crate::fuse::credentials::Caller;
use crate::fuse::process::bindings;
use crate::fuse::shared::{Fs, attr_of_one, flat};
use crate::fuse::kernel::user_shares::Pool;
use crate::engine::{
    Acquire, Annotate, Details, FileAttrs, FileType, Lease, LeaseKey, LeaseTerms, Lifetime,
    LockName, LockView, Mode, Op, OpenId, Outcome, Ownership, Patch, QueuePolicy, ReadMode,
    RefusalKind, Tenure, TextPatch,
};
use crate::service::{RequestError, SessionOwner};
use fuser::{Errno, FileAttr, FileHandle, FopenFlags, Generation, ReplyCreate, ReplyEntry};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

/// The kernel is to ask each time: another machine may have changed the answer.
pub(crate) const NO_CACHE: Duration = Duration::ZERO;
/// Numbers are never used twice, so generations are not needed to tell inodes apart.
pub(crate) const GENERATION: Generation = Generation(0);

/// Names of one inode: whatever arrives through it reaches the lease of each. Programs that lock
/// by `ln` make two.
const LINKS_MAX: usize = 64;

/// What `mkdir`, create and `ln -s` make.
struct Wanted {
    name: LockName,
    hold: Ownership,
    looks: FileAttrs,
    text: Option<Arc<[u8]>>,
}

/// `mkdir NAME`.
pub(crate) fn mkdir(
    fs: &Fs,
    caller: &Caller,
    parent: u64,
    name: &OsStr,
    mode: u32,
    reply: ReplyEntry,
) {
    let name = match fs.name_in(caller, Act::Mkdir, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    let looks = looks(caller, FileType::Directory, mode);
    let wanted = Wanted { name, hold: Ownership::Exclusive(None), looks, text: None };
    make(fs, caller, Act::Mkdir, wanted, move |made| entered(reply, made));
}

/// `ln -s TEXT NAME`.
pub(crate) fn symlink(
    fs: &Fs,
    caller: &Caller,
    parent: u64,
    name: &OsStr,
    text: &OsStr,
    reply: ReplyEntry,
) {
    let name = match fs.name_in(caller, Act::Symlink, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    let looks = FileAttrs { reads: ReadMode::Text, ..looks(caller, FileType::Symlink, 0o777) };
    let text = Some(text.as_encoded_bytes().into());
    let wanted = Wanted { name, hold: Ownership::Exclusive(None), looks, text };
    make(fs, caller, Act::Symlink, wanted, move |made| entered(reply, made));
}

/// What an open with `O_CREAT` and these flags does.
pub(crate) const fn act_of(flags: i32) -> Act {
    if flags & libc::O_EXCL != 0 { Act::CreateNew } else { Act::Create }
}

/// open with `O_CREAT`.
pub(crate) fn create(
    fs: &Fs,
    caller: &Caller,
    parent: u64,
    name: &OsStr,
    (mode, flags): (u32, i32),
    reply: ReplyCreate,
) {
    let act = act_of(flags);
    if let Err(full) = fs.shares.room(Pool::Files, caller.uid) {
        return reply.error(fs.refuse_full(caller, act, None, full));
    }
    let name = match fs.name_in(caller, act, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    if act == Act::CreateNew {
        return create_free(fs, caller, name, (mode, flags), reply);
    }
    // To look first keeps what an own lock says about itself from being overwritten.
    fs.look(caller, act, name, move |fs, caller, name, seen| match seen {
        Ok((sight, _)) if sight.shown().is_some() => {
            open_as_it_is(fs, caller, &name, flags, reply);
        }
        Ok(_) => create_free(fs, caller, name, (mode, flags), reply),
        Err(errno) => reply.error(errno),
    });
}

/// The create of a name that seems to be free.
fn create_free(fs: &Fs, caller: &Caller, name: LockName, how: (u32, i32), reply: ReplyCreate) {
    let act = act_of(how.1);
    below::check(fs, caller, act, &name.clone(), move |fs, caller, allowed| match allowed {
        Ok(()) => create_allowed(fs, caller, name, how, reply),
        Err(errno) => reply.error(errno),
    });
}

fn create_allowed(
    fs: &Fs,
    caller: &Caller,
    name: LockName,
    (mode, flags): (u32, i32),
    reply: ReplyCreate,
) {
    let act = act_of(flags);
    let new = act == Act::CreateNew;
    let fh = fs.opens.number();
    let hold = match maker_of(fs, new, fh) {
        Ok(hold) => hold,
        Err(failure) => return reply.error(fs.refuse(caller, act, Some(&name), failure)),
    };
    let looks = looks(caller, FileType::File, mode);
    let wanted = Wanted { name: name.clone(), hold, looks, text: None };
    let (op, session) = acquire(fs, caller, &wanted);
    let (fs2, caller) = (Arc::clone(fs), caller.clone());
    fs.locks.submit(op, move |answer| match flat(answer) {
        Ok(Outcome::Granted(tenure)) => {
            bind(&fs2, &caller, &name, tenure, session.as_ref());
            let ino = fs2.tree.lock().made(&name, FileType::File, tenure.token);
            let attr = attr_of_tenure(&fs2, ino, &caller, looks, None, tenure);
            let open = Open { made_new: new, ..open_of(&caller, ino, name, flags) };
            open.state.lock().tenure = Some(tenure.token);
            created(&fs2, reply, &attr, fh, open);
        }
        Ok(_) if !new => open_as_it_is(&fs2, &caller, &name, flags, reply),
        // Opening never fails for whoever does not hold: `flock` and logs open first.
        Err(RequestError::Refused(no)) if !new && no.kind() == RefusalKind::LockConflict => {
            open_as_it_is(&fs2, &caller, &name, flags, reply);
        }
        Ok(_) => reply.error(Errno::EIO),
        Err(failure) => reply.error(fs2.refuse(&caller, act, Some(&name), failure)),
    });
}

/// How a create holds: what was made exclusively only its own open file may lock by flock.
fn maker_of(fs: &Fs, new: bool, fh: u64) -> Result<Ownership, RequestError> {
    if !new {
        return Ok(Ownership::Client);
    }
    let session = fs.locking.session(fs)?;
    Ok(Ownership::Exclusive(Some(OpenId { session, number: fh })))
}

/// The rest of a create that found the lock held: what an open of the name would have done.
fn open_as_it_is(fs: &Fs, caller: &Caller, name: &LockName, flags: i32, reply: ReplyCreate) {
    fs.view(caller, Act::Open, name, move |fs, caller, view| {
        let view = match view {
            Ok(view) => view,
            Err(errno) => return reply.error(errno),
        };
        let sight = Sight::of_view(fs, &view);
        let (face, token) = sight.shown().unwrap_or((FileType::File, None));
        if face != FileType::File {
            // Another has made something else of it since the kernel looked. This errno sends the
            // kernel back to look again.
            return reply.error(Errno::ESTALE);
        }
        let ino = fs.tree.lock().seen(&view.name, face, token);
        let open = open_of(caller, ino, view.name.clone(), flags);
        speaks_for_held(fs, caller, ino, &view, &open);
        change::truncate_at_open(fs, caller, view, flags, move |fs, _, view| {
            let attr = match fs.lock_place(ino) {
                Some(place) => attr_of_one(fs, ino, &place, &Sight::of_view(fs, &view)),
                None => attr::of_nobody(fs, ino, face, 0),
            };
            created(fs, reply, &attr, fs.opens.number(), open);
        });
    });
}

/// `ln A NAME`, where `ino` is A's inode.
pub(crate) fn link(
    fs: &Fs,
    caller: &Caller,
    ino: u64,
    parent: u64,
    name: &OsStr,
    reply: ReplyEntry,
) {
    let name = match fs.name_in(caller, Act::Link, parent, name) {
        Ok(name) => name,
        Err(errno) => return reply.error(errno),
    };
    let Some(place) = fs.lock_place(ino) else {
        let sentence = "only a lock can be linked, and to another name of a lock";
        return reply.error(fs.refuse_own(caller, Act::Link, None, Errno::EPERM, sentence));
    };
    if place.face == FileType::Directory {
        let sentence = format!("lock '{}' is a directory, which can't be linked", place.name);
        let errno = fs.refuse_own(caller, Act::Link, Some(&name), Errno::EPERM, sentence);
        return reply.error(errno);
    }
    if place.links.len() >= LINKS_MAX {
        let sentence = format!(
            "lock '{}' has {LINKS_MAX} names already, and can have no more; release one of them",
            place.name
        );
        return reply.error(fs.refuse_own(caller, Act::Link, Some(&name), Errno::EMLINK, sentence));
    }
    below::check(fs, caller, Act::Link, &name.clone(), move |fs, caller, allowed| match allowed {
        Ok(()) => link_allowed(fs, caller, (ino, &place.name), name, reply),
        Err(errno) => reply.error(errno),
    });
}

fn link_allowed(
    fs: &Fs,
    caller: &Caller,
    (ino, of): (u64, &LockName),
    name: LockName,
    reply: ReplyEntry,
) {
    fs.view(caller, Act::Link, of, move |fs, caller, view| {
        let view = match view {
            Ok(view) => view,
            Err(errno) => return reply.error(errno),
        };
        let Some(held) = view.held_by(&caller.client) else {
            let sentence = format!(
                "lock '{}' is not held by {}, and only its holder can link it",
                view.name, caller.client
            );
            let errno = fs.refuse_own(caller, Act::Link, Some(&name), Errno::EPERM, sentence);
            return reply.error(errno);
        };
        let term = match held.lease.life {
            Lifetime::Own { ttl, grace, .. } => LeaseTerms::Own(ttl, grace),
            Lifetime::Session(session) => LeaseTerms::Session(session),
        };
        let details = &held.lease.details;
        let looks = FileAttrs { reads: ReadMode::Text, ..details.looks() };
        let key = held_key(&view, caller);
        let process = details.process().and_then(Living::again);
        let op = Op::Acquire(Acquire {
            name: name.clone(),
            client: caller.client.clone(),
            mode: Mode::Exclusive,
            hold: Ownership::Exclusive(None),
            term,
            line: QueuePolicy::Skip,
            patch: patch_like(details, looks),
        });
        fs.submit(caller, Act::Link, &name.clone(), op, move |fs, caller, outcome| match outcome {
            Ok(Outcome::Granted(tenure)) => {
                bind(fs, caller, &name, tenure, process.as_ref());
                fs.tree.lock().linked(ino, &name, tenure.token, &key.name);
                read_as_text(fs, caller, ino, key, looks, reply);
            }
            Ok(_) => reply.error(Errno::EEXIST),
            Err(errno) => reply.error(errno),
        });
    });
}

/// The last step of `ln`: the linked lock is read as text from now on, under both names.
fn read_as_text(
    fs: &Fs,
    caller: &Caller,
    ino: u64,
    key: LeaseKey,
    looks: FileAttrs,
    reply: ReplyEntry,
) {
    let (shared, caller) = (Arc::clone(fs), caller.clone());
    let patch = Patch { looks: Some(looks), ..Patch::default() };
    fs.locks.submit(Op::Annotate(Annotate { key, patch }), move |_| {
        // Whether or not: the link is made, and a lease that ended meanwhile can't be described.
        let Some(place) = shared.lock_place(ino) else { return reply.error(Errno::EIO) };
        shared.attr_now(&caller, ino, place, move |_, attr| match attr {
            Ok(attr) => entered(reply, Ok(attr)),
            Err(errno) => reply.error(errno),
        });
    });
}

/// Takes a lock in a form that must not find it taken.
fn make(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    wanted: Wanted,
    then: impl FnOnce(Result<FileAttr, Errno>) + Send + 'static,
) {
    below::check(fs, caller, act, &wanted.name.clone(), move |fs, caller, allowed| match allowed {
        Ok(()) => make_allowed(fs, caller, act, wanted, then),
        Err(errno) => then(Err(errno)),
    });
}

fn make_allowed(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    wanted: Wanted,
    then: impl FnOnce(Result<FileAttr, Errno>) + Send + 'static,
) {
    let (op, session) = acquire(fs, caller, &wanted);
    fs.submit(caller, act, &wanted.name.clone(), op, move |fs, caller, outcome| {
        then(match outcome {
            Ok(Outcome::Granted(tenure)) => {
                bind(fs, caller, &wanted.name, tenure, session.as_ref());
                let Wanted { name, looks, text, .. } = wanted;
                let ino = fs.tree.lock().made(&name, looks.face, tenure.token);
                Ok(attr_of_tenure(fs, ino, caller, looks, text.as_deref(), tenure))
            }
            Ok(_) => Err(Errno::EEXIST),
            Err(errno) => Err(errno),
        });
    });
}

/// The request, and what the lease will be bound to by itself.
fn acquire(fs: &Fs, caller: &Caller, wanted: &Wanted) -> (Op, Option<Living>) {
    let session = process::by_default(fs, caller);
    let op = Op::Acquire(Acquire {
        name: wanted.name.clone(),
        client: caller.client.clone(),
        mode: Mode::Exclusive,
        hold: wanted.hold,
        term: process::term(fs, session.as_ref()),
        line: QueuePolicy::Skip,
        patch: Patch {
            holder_id: Some(fs.owners.holder_id(caller)),
            text: wanted.text.clone().map(TextPatch::Set),
            looks: Some(wanted.looks),
            process: session.as_ref().map(|living| Some(living.process)),
            ..Patch::default()
        },
    });
    (op, session)
}

fn bind(fs: &Fs, caller: &Caller, name: &LockName, tenure: Tenure, to: Option<&Living>) {
    let Some(living) = to else { return };
    let (name, client) = (name.clone(), caller.client.clone());
    let key = LeaseKey { name, client, token: Some(tenure.token) };
    process::bind(fs, key, tenure.life, living);
}

/// How something new looks.
pub(crate) fn looks(caller: &Caller, face: FileType, mode: u32) -> FileAttrs {
    FileAttrs {
        face,
        reads: ReadMode::Status,
        mode: attr::chosen_mode(mode),
        uid: caller.uid,
        gid: caller.gid,
        times: None,
    }
}

fn patch_like(details: &Details, looks: FileAttrs) -> Patch {
    Patch {
        holder_id: details.holder_id().cloned(),
        note: details.note().cloned(),
        text: Some(TextPatch::Set(details.shared_text())),
        process: Some(details.process()),
        looks: Some(looks),
    }
}

/// The lease of the caller in a view that shows it.
fn held_key(view: &LockView, caller: &Caller) -> LeaseKey {
    LeaseKey {
        name: view.name.clone(),
        client: caller.client.clone(),
        token: view.held_by(&caller.client).map(|holder| holder.lease.token),
    }
}

/// Binds an open file of the caller to the tenure that the caller has, if there is one.
pub(crate) fn speaks_for_held(fs: &Fs, caller: &Caller, ino: u64, view: &LockView, open: &Open) {
    let Some(held) = view.held_by(&caller.client) else { return };
    let Lease { token, life, .. } = held.lease;
    let session = match (life, fs.locks.bond()) {
        (Lifetime::Session(session), Ok(SessionOwner::Kept(own))) if session == own => Some(own),
        _ => None,
    };
    let origin = fs.lock_place(ino).map_or(token, |place| place.origin_of(token));
    let mut state = open.state.lock();
    (state.tenure, state.session) = (Some(origin), session);
}

/// The attributes of a tenure that began just now, without asking for what is known.
fn attr_of_tenure(
    fs: &Fs,
    ino: u64,
    caller: &Caller,
    looks: FileAttrs,
    text: Option<&[u8]>,
    tenure: Tenure,
) -> FileAttr {
    let held = Held {
        token: tenure.token,
        looks,
        local: fs.owners.is_local(&caller.client),
        text_bytes: text.map_or(0, <[u8]>::len),
        acquired_at: tenure.acquired_at,
        renewed_at: tenure.acquired_at,
    };
    attr::of_held(fs, ino, looks.face, attr::LINKS, &held)
}

/// An open file that speaks for no tenure yet.
pub(crate) fn open_of(caller: &Caller, ino: u64, name: LockName, flags: i32) -> Open {
    Open {
        target: Target::Lock(ino, name),
        client: caller.client.clone(),
        uid: caller.uid,
        pid: caller.pid,
        access: Access::of_flags(flags),
        append: flags & libc::O_APPEND != 0,
        made_new: false,
        state: State::default().into(),
        share: None,
    }
}

fn entered(reply: ReplyEntry, made: Result<FileAttr, Errno>) {
    match made {
        Ok(attr) => reply.entry(&NO_CACHE, &attr, GENERATION),
        Err(errno) => reply.error(errno),
    }
}

fn created(fs: &Fs, reply: ReplyCreate, attr: &FileAttr, fh: u64, open: Open) {
    fs.opens.insert_as(fh, open);
    let fh = FileHandle(fh);
    reply.created(&NO_CACHE, attr, GENERATION, fh, FopenFlags::FOPEN_DIRECT_IO);
}
