//! What the kernel is let keep of what it was told: names that are there or not, and how they
//! look. Only behind a door that says what its answers include, and tells of every change: then
//! `test -e` in a loop costs the server nothing, and still sees a change at once.
//!
//! Two things must not happen. A look that is older than a change must not be kept after the
//! change was told: so each name's last change is remembered, by its number, and the kernel is
//! answered under the same mutex under which changes are noted. And whoever tells the kernel to
//! forget may have to wait for a program in that directory: so a thread of its own does.

use super::device;
use super::shared::{Fs, Shared};
use super::tree::TOP;
use crate::engine::{EventKind, LockName};
use crate::service::event_log::EventWatch;
use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the kernel keeps what it is told to forget when it changes. Not for ever, so that a
/// mistake ends.
const KEEP: Duration = Duration::from_secs(3_600);
/// How long it keeps all else.
const KEEP_NOT: Duration = Duration::ZERO;
/// Names that are kept at a time: more than programs look at again, at 100 bytes each.
const NAMES_MAX: usize = 1 << 16;
/// Changes that are remembered; what was looked at before the oldest is not kept.
const CHANGES_MAX: usize = 1 << 14;
/// Events taken at once: a bound on how long the mutex is held.
const EVENTS_MAX: usize = 256;

/// What the kernel keeps of one mount.
#[derive(Default)]
pub(super) struct Kept {
    inner: Mutex<Inner>,
    /// Whether the kernel can be told to ask again for a name, and to keep it until then. Else it
    /// drops the name, and a directory is lost for programs that are in it.
    expires: AtomicBool,
}

#[derive(Default)]
struct Inner {
    book: Book,
    /// Followed from the first name that is kept.
    watch: Option<EventWatch>,
    /// To the thread that tells the kernel; none without one.
    teller: Option<Sender<Vec<Stale>>>,
}

/// What is kept, and what has changed. Pure.
#[derive(Default)]
struct Book {
    names: HashMap<LockName, Entry>,
    /// The last change of a name, or of anything below it.
    changed: HashMap<LockName, u64>,
    /// Changes before this number are not remembered one by one.
    floor: u64,
}

/// One name that the kernel keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The inode of its directory.
    parent: u64,
    /// Its own; `None`: it is known not to be there.
    ino: Option<u64>,
}

/// What the kernel is to forget.
#[derive(Debug, PartialEq, Eq)]
struct Stale {
    name: LockName,
    entry: Entry,
}

/// Tells the kernel what to forget.
struct Teller {
    /// Keeps the device open.
    notifier: Notifier,
    device: RawFd,
    expires: bool,
}

/// Begins the thread that tells the kernel what to forget. `device` is that of `notifier`.
pub(super) fn start(fs: &Fs, notifier: Notifier, device: RawFd) {
    let (send, stale) = channel();
    let thread = std::thread::Builder::new().name("forget".to_owned());
    let teller = Teller { notifier, device, expires: fs.kept.expires() };
    match thread.spawn(move || teller.tell_all(&stale)) {
        Ok(_) => fs.kept.inner.lock().teller = Some(send),
        Err(error) => log::warn!("the kernel keeps nothing, for want of a thread: {error}"),
    }
}

impl Kept {
    /// Sets whether the kernel can be told that a name has expired; before [`start`].
    pub(super) fn set_expires(&self, expires: bool) {
        self.expires.store(expires, Ordering::Relaxed);
    }

    /// Whether the kernel can be told that a name has expired.
    pub(super) fn expires(&self) -> bool {
        self.expires.load(Ordering::Relaxed)
    }
}

impl Teller {
    fn tell_all(&self, stale: &Receiver<Vec<Stale>>) {
        for Stale { name, entry } in stale.iter().flatten() {
            if let Err(error) = self.tell(&name, entry) {
                log::debug!("the kernel can't be told to forget '{name}': {error}");
            }
        }
    }

    fn tell(&self, name: &LockName, entry: Entry) -> io::Result<()> {
        let part = OsStr::new(name.last_part());
        let of_entry = if self.expires {
            device::expire_entry(self.device, entry.parent, part)
        } else {
            self.notifier.inval_entry(INodeNo(entry.parent), part)
        };
        // A negative offset: how it looks, for nothing of what it holds is ever kept.
        let inval_inode = |ino| self.notifier.inval_inode(INodeNo(ino), -1, 0);
        of_entry.and(entry.ino.map_or(Ok(()), inval_inode))
    }
}

/// The mount is gone.
pub(super) fn ended(fs: &Shared) {
    let inner = std::mem::take(&mut *fs.kept.inner.lock());
    drop(inner);
}

/// Answers the kernel about `name`: `reply` gets how long it may keep the answer. `as_of` is the
/// event up to which the answer is known to be true; `ino` is none for what is not there.
pub(super) fn answer(
    fs: &Fs,
    name: &LockName,
    ino: Option<u64>,
    as_of: Option<u64>,
    reply: impl FnOnce(&Duration),
) {
    let Some(as_of) = as_of else { return reply(&KEEP_NOT) };
    let parent = parent_of(fs, name);
    let mut inner = fs.kept.inner.lock();
    let (Some(parent), true) = (parent, inner.teller.is_some()) else {
        drop(inner);
        return reply(&KEEP_NOT);
    };
    if inner.watch.is_none() {
        inner.follow(fs, as_of);
    }
    let ttl = if inner.keep(name, Entry { parent, ino }, as_of) { KEEP } else { KEEP_NOT };
    // Under the mutex: a change that is noted after this is told to the kernel after this.
    reply(&ttl);
}

/// `mv`: the kernel keeps what it knew of the old name for the new one.
pub(super) fn moved(fs: &Fs, from: &LockName, to: &LockName) {
    let parent = parent_of(fs, to);
    let mut inner = fs.kept.inner.lock();
    let before = inner.book.names.remove(from);
    if let (Some(parent), Some(before)) = (parent, before) {
        inner.book.names.insert(to.clone(), Entry { parent, ..before });
    }
}

/// The inode of the directory that `name` is in, if the kernel knows it.
fn parent_of(fs: &Fs, name: &LockName) -> Option<u64> {
    match above(name) {
        None => Some(TOP),
        Some(parent) => fs.tree.lock().number(&parent),
    }
}

fn above(name: &LockName) -> Option<LockName> {
    let (above, _) = name.as_str().rsplit_once('/')?;
    LockName::parse(above).ok()
}

impl Inner {
    fn follow(&mut self, fs: &Fs, since: u64) {
        let mut watch = fs.locks.watch(Some(since));
        let events_of = Arc::downgrade(fs);
        watch.wake_by(Arc::new(move || on_events(&events_of)));
        self.book.floor = since;
        self.watch = Some(watch);
    }

    fn keep(&mut self, name: &LockName, entry: Entry, as_of: u64) -> bool {
        // What has happened already, and nobody has looked at yet, counts as well.
        let stale = self.take_news().0;
        self.forget(stale);
        if self.book.names.len() >= NAMES_MAX {
            let all = self.book.forget_all();
            self.forget(all);
        }
        self.book.keep(name, entry, as_of)
    }

    fn take_news(&mut self) -> (Vec<Stale>, bool) {
        let Some(watch) = &mut self.watch else { return (Vec::new(), false) };
        let batch = watch.take(EVENTS_MAX);
        let mut stale = Vec::new();
        if batch.lost > 0 {
            // Any name may have changed.
            stale = self.book.forget_all();
            self.book.changed.clear();
            self.book.floor = batch.events.first().map_or(watch.next(), |(number, _)| *number);
        }
        for (number, event) in &batch.events {
            self.book.hear(*number, &event.what, &mut stale);
        }
        (stale, batch.events.len() == EVENTS_MAX)
    }

    fn forget(&self, stale: Vec<Stale>) {
        if let Some(teller) = self.teller.as_ref().filter(|_| !stale.is_empty()) {
            // Without the thread the mount is gone.
            let _ = teller.send(stale);
        }
    }
}

impl Book {
    fn keep(&mut self, name: &LockName, entry: Entry, as_of: u64) -> bool {
        let changed = self.changed.get(name).is_some_and(|change| *change >= as_of);
        if changed || as_of < self.floor {
            return false;
        }
        self.names.insert(name.clone(), entry);
        true
    }

    /// Notes a change.
    fn hear(&mut self, number: u64, what: &EventKind, stale: &mut Vec<Stale>) {
        match what {
            EventKind::Granted { name, .. }
            | EventKind::Renewed { name, .. }
            | EventKind::Annotated { name, .. }
            | EventKind::Expired { name, .. }
            | EventKind::Ended { name, .. }
            | EventKind::Joined { name, .. }
            | EventKind::Left { name, .. } => self.note(number, name, stale),
            // What hangs on a session is told one by one when it ends.
            EventKind::SessionOpened { .. }
            | EventKind::SessionKept { .. }
            | EventKind::SessionOver { .. } => {}
        }
    }

    fn note(&mut self, number: u64, name: &LockName, stale: &mut Vec<Stale>) {
        if self.changed.len() >= CHANGES_MAX {
            self.changed.clear();
            self.floor = number;
        }
        self.changed.insert(name.clone(), number);
        if let Some(entry) = self.names.remove(name) {
            stale.push(Stale { name: name.clone(), entry });
        }
        // With the first lock below it a name is there, and with the last it is gone.
        let mut below = above(name);
        while let Some(name) = below {
            self.changed.insert(name.clone(), number);
            if let Some(entry) = self.names.remove(&name) {
                below = above(&name);
                stale.push(Stale { name, entry });
            } else {
                below = above(&name);
            }
        }
    }

    fn forget_all(&mut self) -> Vec<Stale> {
        self.names.drain().map(|(name, entry)| Stale { name, entry }).collect()
    }
}

/// Called on the thread that brought the event, with no lock held.
fn on_events(fs: &Weak<Shared>) {
    let Some(fs) = fs.upgrade() else { return };
    loop {
        let mut inner = fs.kept.inner.lock();
        let (stale, more) = inner.take_news();
        inner.forget(stale);
        if !more {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Token;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn entry(ino: Option<u64>) -> Entry {
        Entry { parent: TOP, ino }
    }

    fn change(book: &mut Book, number: u64, text: &str) -> Vec<LockName> {
        let mut stale = Vec::new();
        let what = EventKind::Annotated { name: name(text), token: Token::named(1) };
        book.hear(number, &what, &mut stale);
        stale.into_iter().map(|stale| stale.name).collect()
    }

    #[test]
    fn what_is_kept_is_forgotten_when_it_changes() {
        let mut book = Book::default();
        assert!(book.keep(&name("a"), entry(Some(7)), 5));
        assert!(book.keep(&name("b"), entry(None), 5));
        assert_eq!(change(&mut book, 5, "a"), [name("a")]);
        assert_eq!(change(&mut book, 6, "a"), [], "once");
        assert_eq!(change(&mut book, 7, "b"), [name("b")]);
    }

    #[test]
    fn an_old_look_is_not_kept() {
        let mut book = Book::default();
        change(&mut book, 5, "a");
        assert!(!book.keep(&name("a"), entry(None), 5), "it may lack the change");
        assert!(book.keep(&name("a"), entry(None), 6));
        assert!(book.keep(&name("b"), entry(None), 0));
    }

    #[test]
    fn the_way_to_a_lock_changes_with_it() {
        let mut book = Book::default();
        assert!(book.keep(&name("team"), entry(None), 0));
        assert_eq!(change(&mut book, 1, "team/a/b"), [name("team")]);
        assert!(!book.keep(&name("team/a"), entry(None), 1));
    }

    #[test]
    fn what_is_not_remembered_is_not_kept() {
        let mut book = Book::default();
        for number in 0..=CHANGES_MAX as u64 {
            change(&mut book, number, &format!("n{number}"));
        }
        assert!(book.changed.len() < CHANGES_MAX);
        assert!(!book.keep(&name("other"), entry(None), 7));
        assert!(book.keep(&name("other"), entry(None), CHANGES_MAX as u64 + 1));
    }
}
