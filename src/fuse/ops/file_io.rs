//! Open files: open, read, write, close; and what setattr changes.

use crate::fuse::file_attrs;
use crate::fuse::ops::lease_change::{self, Change, Reached, Text, Times};
use crate::fuse::control_files::control::{self, Control, Fact};
use crate::fuse::control_files::ctl;
use crate::fuse::errno::Act;
use crate::fuse::process::process_handle;
use crate::fuse::ops::lookup::attr_of_top;
use crate::fuse::ops::create::{NO_CACHE, open_of, speaks_for_held};
use crate::fuse::write_message::{self, Message, Options};
use crate::fuse::open_files::{Access, End, Open, Target, window};
use crate::fuse::credentials::{Caller, groups_of};
use crate::fuse::poll;
use crate::fuse::process::bindings;
use crate::fuse::shared::{Fs, attr_of_one};
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::open_files::event_stream;
use crate::fuse::inodes::Place;
use crate::fuse::control_files::wait;
use crate::fuse::last_refusal;
use crate::engine::limits::TEXT_BYTES_MAX;
use crate::engine::{Firm, LockName, LockView, ReadMode, Reason, Refusal};
use crate::service::RequestError;
use crate::status::{pretty, status_of};
use crate::time::Wall;
use fuser::{
    Errno, FileHandle, FopenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite,
    TimeOrNow,
};
use std::sync::Arc;

/// open of what the kernel knows already.
pub(crate) fn open(fs: &Fs, caller: &Caller, ino: u64, flags: i32, reply: ReplyOpen) {
    if let Err(full) = fs.shares.room(Pool::Files, caller.uid) {
        return reply.error(fs.refuse_full(caller, Act::Open, None, full));
    }
    match fs.place(ino) {
        Some(Place::Lock(place)) => open_lock(fs, caller, (ino, place.name.clone()), flags, reply),
        Some(Place::Control(Control::Fact(Fact::Ctl, name))) => {
            let ino = fs.tree.lock().number(&name);
            match ino {
                Some(ino) => open_lock(fs, caller, (ino, name), flags, reply),
                None => reply.error(Errno::ENOENT),
            }
        }
        Some(Place::Control(control)) => control::open(fs, caller, control, flags, reply),
        Some(Place::Top) => reply.error(Errno::EISDIR),
        None => reply.error(Errno::ESTALE),
    }
}

fn open_lock(fs: &Fs, caller: &Caller, of: (u64, LockName), flags: i32, reply: ReplyOpen) {
    let (ino, name) = of;
    fs.view(caller, Act::Open, &name.clone(), move |fs, caller, view| {
        let view = match view {
            Ok(view) => view,
            Err(errno) => return reply.error(errno),
        };
        let open = open_of(caller, ino, name, flags);
        speaks_for_held(fs, caller, ino, &view, &open);
        poll::saw(&open, &view);
        change::truncate_at_open(fs, caller, view, flags, move |fs, _, _| {
            let fh = FileHandle(fs.opens.insert(open));
            reply.opened(fh, FopenFlags::FOPEN_DIRECT_IO);
        });
    });
}

/// read. What is read is of one moment: taken at offset 0, kept for the rest.
pub(crate) fn read(
    fs: &Fs,
    caller: &Caller,
    fh: u64,
    (offset, size, flags): (u64, u32, i32),
    reply: ReplyData,
) {
    let Some(open) = fs.opens.get(fh) else { return reply.error(Errno::EBADF) };
    if let Some(stream) = stream::of(&open) {
        return stream::read(fs, &stream, caller, (size, flags), reply);
    }
    if let Target::Control(Control::Page(control::Page::Ctl)) = &open.target {
        return ctl::read(fs, caller, fh, &open, size, reply);
    }
    if let Some(name) = open.waits_for() {
        return wait::read(fs, caller, (fh, &open), name, (offset, size, flags), reply);
    }
    if offset > 0 {
        let bytes = Arc::clone(&open.state.lock().bytes.0);
        return reply.data(window(&bytes, offset, size));
    }
    fs.polls.reads(fh);
    let (kept, shared, reader) = (Arc::clone(&open), Arc::clone(fs), caller.clone());
    let then = move |bytes: Result<Arc<[u8]>, Errno>| {
        let refuse = |full| shared.refuse_full(&reader, Act::Read, None, full);
        match bytes.and_then(|bytes| kept.keep(&shared.shares, bytes).map_err(refuse)) {
            Ok(bytes) => reply.data(window(&bytes, 0, size)),
            Err(errno) => reply.error(errno),
        }
    };
    match &open.target {
        Target::Control(control) => control::render(fs, caller, &open, control, then),
        Target::Lock(ino, name) => {
            let name = spoken_of(fs, &open, *ino, name);
            let access = open.access;
            fs.view(caller, Act::Read, &name, move |fs, _, view| {
                then(view.map(|view| {
                    poll::saw(&open, &view);
                    content_of(fs, &view, access)
                }));
            });
        }
    }
}

/// An open file speaks of the lock that it holds, else of the name it was opened under.
pub(crate) fn spoken_of(fs: &Fs, open: &Open, ino: u64, name: &LockName) -> LockName {
    let place = fs.lock_place(ino);
    place
        .map(|place| change::meant_by_open(&place, open).one.name)
        .filter(|_| open.tenure().is_some())
        .unwrap_or_else(|| name.clone())
}

/// What a reader of a lock's file gets.
fn content_of(fs: &Fs, view: &LockView, access: Access) -> Arc<[u8]> {
    let details = view.holder().map(|holder| &holder.lease.details);
    let reads = details.map_or(ReadMode::Status, |details| attr::reads(fs, &details.looks()));
    if access == Access::Both || reads == ReadMode::Text {
        return details.map(|details| details.shared_text()).unwrap_or_default();
    }
    pretty(&status_of(view, |at| fs.locks.wall(at))).into_bytes().into()
}

/// write.
pub(crate) fn write(
    fs: &Fs,
    caller: &Caller,
    fh: u64,
    (offset, data): (u64, &[u8]),
    reply: ReplyWrite,
) {
    let Some(open) = fs.opens.get(fh) else { return reply.error(Errno::EBADF) };
    // Written in the name of whoever opened it: a file that is handed on speaks for its opener.
    let caller = &Caller { client: open.client.clone(), uid: open.uid, ..caller.clone() };
    let (ino, name) = match &open.target {
        Target::Control(Control::Page(control::Page::Ctl)) => {
            return ctl::request(fs, caller, fh, &open, data, reply);
        }
        Target::Control(_) => return reply.error(Errno::EBADF),
        Target::Lock(ino, name) => (*ino, name),
    };
    open.state.lock().wrote = true;
    let act = Act::Write;
    let refuse = |errno, sentence| fs.refuse_own(caller, act, Some(name), errno, sentence);
    if data.len() > TEXT_BYTES_MAX {
        return reply.error(refuse(Errno::EFBIG, change::too_long(name, data.len() as u64)));
    }
    let message = match message::parse(data) {
        Ok(message) => message,
        Err(sentence) => {
            return reply.error(refuse(Errno::EINVAL, format!("lock '{name}': {sentence}")));
        }
    };
    if let Some(lost) = lost(fs, &open, name) {
        return reply.error(fs.refuse(caller, act, Some(name), lost));
    }
    let Some(place) = fs.lock_place(ino) else { return reply.error(Errno::ESTALE) };
    let mut meant = change::meant_by_open(&place, &open);
    let mut process = None;
    if let Message::Options(Options { pid, token, .. }) = &message {
        if let Some(pid) = pid {
            process = match living::named(fs, caller, *pid) {
                Ok(living) => Some(Arc::new(living)),
                Err((errno, why)) => {
                    return reply.error(refuse(errno, format!("lock '{name}': {why}")));
                }
            };
        }
        if let Some(token) = token {
            for meant in meant.iter_mut() {
                meant.token = Some(*token);
            }
        }
    }
    let is_text = message == Message::Text;
    if is_text && is_far(&open, offset) {
        return reply.error(refuse(Errno::EFBIG, change::too_long(name, offset)));
    }
    let hangs = process.as_ref().and_then(|_| process::session(fs));
    let wanted = Change { process, hangs, ..change::of_message(message, data, offset, &open) };
    let length = data.len() as u32;
    change::apply(fs, caller, act, meant, wanted, move |fs, caller, done| match done {
        Ok(Reached { token, .. }) => {
            // Lost while the server was asked.
            if let Some(lost) = open.lock().and_then(|name| lost(fs, &open, name)) {
                return reply.error(fs.refuse(caller, act, open.lock(), lost));
            }
            let mut state = open.state.lock();
            state.tenure = state.tenure.or(token.map(|token| place.origin_of(token)));
            state.end = Some(End { at: offset + u64::from(length), is_text });
            drop(state);
            reply.written(length);
        }
        Err(errno) => reply.error(errno),
    });
}

/// Why an open file may not write any more: what it holds hangs on a session that is over. The
/// server may have it in grace still, in which its client may renew it, but the program that
/// locked was told that it has lost.
fn lost(fs: &Fs, open: &Open, name: &LockName) -> Option<RequestError> {
    let (tenure, session) = {
        let state = open.state.lock();
        (state.tenure?, state.session?)
    };
    fs.locks.is_over(session).then(|| {
        let reason = Box::new(Reason::Expired { name: name.clone(), token: tenure });
        RequestError::Refused(Refusal { at: fs.locks.now(), reason })
    })
}

/// The last descriptor of an open file is closed.
pub(crate) fn closed(fs: &Fs, fh: u64) {
    fs.polls.closed(fh);
    if let Some(open) = fs.opens.remove(fh)
        && open.waits_for().is_some()
    {
        wait::closed(fs, &open);
    }
}

/// Whether a text at `offset` would lie behind all that can be kept, and does not just follow what
/// was written before: an open file that renews for days has come far.
fn is_far(open: &Open, offset: u64) -> bool {
    let follows = open.state.lock().end.is_some_and(|end| end.at == offset);
    offset > TEXT_BYTES_MAX as u64 && !open.append && !follows
}

/// close(2) of one descriptor. A file that was opened for writing by whoever does not hold the
/// lock, and was not written to, was some program's way to renew: this is where it learns.
pub(crate) fn flush(fs: &Fs, caller: &Caller, fh: u64, reply: ReplyEmpty) {
    let Some(open) = fs.opens.get(fh) else { return reply.ok() };
    let idle = {
        let state = open.state.lock();
        open.access.writes() && state.tenure.is_none() && !state.wrote && !state.locked
    };
    let (true, Target::Lock(_, name)) = (idle, &open.target) else { return reply.ok() };
    let opener = Caller { client: open.client.clone(), ..caller.clone() };
    fs.view(&opener, Act::Close, name, move |fs, caller, view| {
        // Forced by the kernel, so it can't fail for want of an answer.
        let Ok(view) = view else { return reply.ok() };
        match view.holder() {
            Some(holder) if view.held_by(&caller.client).is_none() => {
                let sentence = format!(
                    "lock '{}' is held by {}, so opening and closing it renewed nothing; \
                     read .latchfs/status/{} for how long",
                    view.name,
                    holder.lease.holder,
                    control::report_of(&view),
                );
                let name = Some(&view.name);
                reply.error(fs.refuse_own(caller, Act::Close, name, Errno::EBUSY, sentence));
            }
            _ => reply.ok(),
        }
    });
}

/// What setattr asks for, of what latchfs keeps.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// chmod.
    pub(crate) mode: Option<u32>,
    /// chown.
    pub(crate) user: (Option<u32>, Option<u32>),
    /// truncate.
    pub(crate) size: Option<u64>,
    /// utimensat: access and modification.
    pub(crate) times: (Option<TimeOrNow>, Option<TimeOrNow>),
    /// Through an open file.
    pub(crate) fh: Option<u64>,
}

impl Wanted {
    /// Which of them it is. The kernel never mixes these in one request, but for times with a
    /// truncation, which then are those of the truncation.
    pub(crate) const fn act(&self) -> Act {
        match (self.size, &self.times) {
            (Some(_), _) => Act::Truncate,
            (None, (None, None)) => Act::Chmod,
            (None, _) => Act::Touch,
        }
    }
}

/// chmod, chown, truncate, utimensat.
pub(crate) fn setattr(fs: &Fs, caller: &Caller, ino: u64, wanted: &Wanted, reply: ReplyAttr) {
    let place = match fs.place(ino) {
        Some(Place::Lock(place)) => place,
        Some(Place::Top) => return reply.attr(&NO_CACHE, &attr_of_top(fs)),
        Some(Place::Control(control)) if wanted.size.is_some() => {
            return reply.attr(&NO_CACHE, &control::attr_of(fs, ino, &control));
        }
        Some(Place::Control(_)) => return reply.error(Errno::EPERM),
        None => return reply.error(Errno::ESTALE),
    };
    if place.is_only_a_way() {
        let (act, sentence) = (wanted.act(), why::only_a_way(&place.name));
        let errno = fs.refuse_own(caller, act, Some(&place.name), Errno::EPERM, sentence);
        return reply.error(errno);
    }
    if let Some(sentence) = wrong_chown(caller, &place.name, wanted.user) {
        let name = Some(&place.name);
        return reply.error(fs.refuse_own(caller, Act::Chmod, name, Errno::EPERM, sentence));
    }
    if let Some(size) = wanted.size.filter(|size| *size > TEXT_BYTES_MAX as u64) {
        let name = &place.name;
        let sentence = change::too_long(name, size);
        let errno = fs.refuse_own(caller, Act::Truncate, Some(name), Errno::EFBIG, sentence);
        return reply.error(errno);
    }
    if let Some(open) = wanted.fh.filter(|_| wanted.size.is_some()).and_then(|fh| fs.opens.get(fh))
    {
        // What is written next begins anew, wherever the program's offset is.
        open.state.lock().end = None;
    }
    let (act, change) = (wanted.act(), change_of(wanted));
    let meant = change::meant_by_path(&place);
    change::apply(fs, caller, act, meant, change, move |fs, caller, done| match done {
        Err(errno) if act != Act::Truncate => reply.error(errno),
        // What was seen and set just now needs no second look.
        Ok(Reached { sight: Some(sight), .. })
            if act != Act::Truncate && place.links.len() == 1 =>
        {
            reply.attr(&NO_CACHE, &attr_of_one(fs, ino, &place, &sight));
        }
        // Truncating what another holds does nothing, and never fails.
        _ => fs.attr_now(caller, ino, place, move |_, attr| match attr {
            Ok(attr) => reply.attr(&NO_CACHE, &attr),
            Err(errno) => reply.error(errno),
        }),
    });
}

/// Why the caller may not chown so: as on other file systems, only root gives files away.
fn wrong_chown(
    caller: &Caller,
    name: &LockName,
    (uid, gid): (Option<u32>, Option<u32>),
) -> Option<String> {
    let own_user = uid.is_none_or(|uid| uid == caller.uid);
    let own_group = |gid| gid == caller.gid || groups_of(caller.pid).contains(&gid);
    if caller.is_root() || (own_user && gid.is_none_or(own_group)) {
        return None;
    }
    Some(format!("only root can give the file of lock '{name}' to another user or group"))
}

fn change_of(wanted: &Wanted) -> Change {
    let change = Change { permissions: wanted.mode, user: wanted.user, ..Change::default() };
    if let Some(size) = wanted.size {
        return Change { text: Some(Text::Cut(size as usize)), ..change };
    }
    let renews = Some(Firm::Keep);
    match wanted.times {
        (None, None) => return change,
        // A plain touch: the times of a lock for which nobody set others are those of its renewal.
        (Some(TimeOrNow::Now), Some(TimeOrNow::Now)) => {
            return Change { renews, times: Times::Reset, ..change };
        }
        _ => {}
    }
    let now = Wall::now();
    let wall = |time: &TimeOrNow| match time {
        TimeOrNow::SpecificTime(time) => attr::wall_of(*time),
        TimeOrNow::Now => now,
    };
    let (accessed, modified) =
        (wanted.times.0.as_ref().map(wall), wanted.times.1.as_ref().map(wall));
    Change { renews, times: Times::Set(accessed, modified), ..change }
}
