//! poll(2) on the file of a lock: as any file it can always be read and written, and a change of
//! its phase or holder is told by POLLPRI, once, until the file is read again from its beginning,
//! as in /sys.
//!
//! Between the opening or the last reading and the first poll, [`Seen`] tells whether something
//! has changed; from then on events do.

use crate::fuse::control_files::control::Control;
use crate::fuse::ops::file_io;
use crate::fuse::open_files::{Open, Target};
use crate::fuse::shared::{Fs, Shared};
use crate::fuse::open_files::event_stream;
use crate::engine::{Event, EventKind, LockName, LockView, Phase, Token};
use crate::service::event_log::EventWatch;
use fuser::{PollEvents, PollFlags, PollNotifier, ReplyPoll};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Events taken at once: a bound on how long the mutex is held.
const EVENTS_MAX: usize = 256;

/// What a file always is.
const ALWAYS: PollEvents = PollEvents::POLLIN
    .union(PollEvents::POLLOUT)
    .union(PollEvents::POLLRDNORM)
    .union(PollEvents::POLLWRNORM);

/// The open files of one mount that are polled.
#[derive(Default)]
pub(crate) struct Polls(Mutex<Inner<PollNotifier>>);

/// `N` wakes the pollers of one open file.
struct Inner<N> {
    files: HashMap<u64, Polled<N>>,
    /// The files of each lock.
    of_lock: HashMap<LockName, Vec<u64>>,
    /// Followed while there is a file.
    watch: Option<EventWatch>,
}

struct Polled<N> {
    name: LockName,
    /// Changed since it was read.
    changed: bool,
    /// In grace when last looked at: a renewal is a change then.
    in_grace: bool,
    /// The kernel has one queue of pollers per open file, so the latest wakes them all.
    notifier: Option<N>,
}

impl<N> Default for Inner<N> {
    fn default() -> Self {
        Self { files: HashMap::new(), of_lock: HashMap::new(), watch: None }
    }
}

impl<N> Inner<N> {
    /// Keeps who is to be woken, and says whether there was a change since the last reading.
    fn register(&mut self, fh: u64, name: &LockName, notifier: Option<N>) -> bool {
        if self.files.get(&fh).is_some_and(|file| file.name != *name) {
            self.remove(fh);
        }
        let file = self.files.entry(fh).or_insert_with(|| {
            self.of_lock.entry(name.clone()).or_default().push(fh);
            Polled { name: name.clone(), changed: false, in_grace: false, notifier: None }
        });
        if notifier.is_some() {
            file.notifier = notifier;
        }
        file.changed
    }

    fn remove(&mut self, fh: u64) {
        let Some(file) = self.files.remove(&fh) else { return };
        if let Some(files) = self.of_lock.get_mut(&file.name) {
            files.retain(|other| *other != fh);
            if files.is_empty() {
                self.of_lock.remove(&file.name);
            }
        }
    }

    /// Notes an event; who is to be woken goes to `due`.
    fn hear(&mut self, event: &Event, due: &mut Vec<N>) {
        match &event.what {
            EventKind::Granted { name, .. }
            | EventKind::Expired { name, .. }
            | EventKind::Ended { name, .. } => {
                for fh in self.of_lock.get(name).into_iter().flatten() {
                    if let Some(file) = self.files.get_mut(fh) {
                        file.changed = true;
                        due.extend(file.notifier.take());
                    }
                }
            }
            // These only end a grace, which the poller sees when it looks again.
            EventKind::Renewed { name, .. } => {
                for fh in self.of_lock.get(name).into_iter().flatten() {
                    if let Some(file) = self.files.get_mut(fh).filter(|file| file.in_grace) {
                        due.extend(file.notifier.take());
                    }
                }
            }
            EventKind::SessionKept { .. } => {
                let in_grace = self.files.values_mut().filter(|file| file.in_grace);
                due.extend(in_grace.filter_map(|file| file.notifier.take()));
            }
            _ => {}
        }
    }

    /// Events were lost: any lock may have changed.
    fn hear_of_loss(&mut self, due: &mut Vec<N>) {
        for file in self.files.values_mut() {
            file.changed = true;
            due.extend(file.notifier.take());
        }
    }
}

/// poll(2), select(2), epoll(7).
pub(crate) fn poll(
    fs: &Fs,
    fh: u64,
    notifier: PollNotifier,
    (events, flags): (PollEvents, PollFlags),
    reply: ReplyPoll,
) {
    let Some(open) = fs.opens.get(fh) else { return reply.poll(PollEvents::POLLERR) };
    if let Some(stream) = stream::of(&open) {
        return stream::poll(&stream, notifier, (events, flags), reply);
    }
    let (true, Some(name)) = (events.contains(PollEvents::POLLPRI), lock_of(fs, &open)) else {
        return reply.poll(events & ALWAYS);
    };
    let wanted = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY).then_some(notifier);
    // Before looking: what changes in between finds it registered.
    if fs.polls.register(fs, fh, &name, wanted) {
        return reply.poll((events & ALWAYS) | PollEvents::POLLPRI);
    }
    let shared = Arc::clone(fs);
    fs.locks.view(&name, move |view| {
        let Ok(view) = view else { return reply.poll(events & ALWAYS) };
        let now = Seen::of(&view);
        let seen = *open.state.lock().seen.get_or_insert(now);
        let changed = shared.polls.looked(fh, now.phase, seen != now);
        let changed = if changed { PollEvents::POLLPRI } else { PollEvents::empty() };
        reply.poll((events & ALWAYS) | changed);
    });
}

/// The lock whose changes a poller of this file waits for.
fn lock_of(fs: &Fs, open: &Open) -> Option<LockName> {
    match &open.target {
        Target::Lock(ino, name) => Some(files::spoken_of(fs, open, *ino, name)),
        Target::Control(Control::Report(_, name) | Control::Fact(_, name)) => Some(name.clone()),
        Target::Control(_) => None,
    }
}

/// A lock is shown through an open file.
pub(crate) fn saw(open: &Open, view: &LockView) {
    open.state.lock().seen = Some(Seen::of(view));
}

impl Polls {
    fn register(&self, fs: &Fs, fh: u64, name: &LockName, notifier: Option<PollNotifier>) -> bool {
        let mut inner = self.0.lock();
        if inner.watch.is_none() {
            let mut watch = fs.locks.watch(None);
            let events_of = Arc::downgrade(fs);
            watch.wake_by(Arc::new(move || on_events(&events_of)));
            inner.watch = Some(watch);
        }
        inner.register(fh, name, notifier)
    }

    /// It was looked at for a poller; says whether there is a change to tell.
    fn looked(&self, fh: u64, phase: Phase, changed: bool) -> bool {
        let mut inner = self.0.lock();
        let Some(file) = inner.files.get_mut(&fh) else { return changed };
        file.in_grace = phase == Phase::Grace;
        file.changed |= changed;
        file.changed
    }

    /// It is about to be read: what changes from here on is a change again.
    pub(crate) fn reads(&self, fh: u64) {
        if let Some(file) = self.0.lock().files.get_mut(&fh) {
            file.changed = false;
        }
    }

    /// The last descriptor of it is closed.
    pub(crate) fn closed(&self, fh: u64) {
        let mut inner = self.0.lock();
        inner.remove(fh);
        let unused = if inner.files.is_empty() { inner.watch.take() } else { None };
        drop(inner);
        drop(unused);
    }
}

/// Called on the thread that decided a command, with no lock held.
fn on_events(fs: &Weak<Shared>) {
    let Some(fs) = fs.upgrade() else { return };
    loop {
        let mut due = Vec::new();
        let more = {
            let mut inner = fs.polls.0.lock();
            let Some(watch) = &mut inner.watch else { return };
            let batch = watch.take(EVENTS_MAX);
            for (_, event) in &batch.events {
                inner.hear(event, &mut due);
            }
            if batch.lost > 0 {
                inner.hear_of_loss(&mut due);
            }
            batch.events.len() == EVENTS_MAX
        };
        for notifier in due {
            if let Err(error) = notifier.notify() {
                log::debug!("a poller was not woken: {error}");
            }
        }
        if !more {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, TenureEnd};
    use crate::time::{Span, Time};

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn event(what: EventKind) -> Event {
        Event { at: Time::ZERO, what }
    }

    fn ended(text: &str) -> Event {
        let holder = ClientId::parse("a").expect("valid");
        let (token, held, end) = (Token::named(1), Span::ZERO, TenureEnd::Released);
        event(EventKind::Ended { name: name(text), holder, token, held, end })
    }

    fn renewed(text: &str) -> Event {
        let holder = ClientId::parse("a").expect("valid");
        event(EventKind::Renewed { name: name(text), holder, token: Token::named(1) })
    }

    /// Who is woken by an event.
    fn woken(inner: &mut Inner<u64>, event: &Event) -> Vec<u64> {
        let mut due = Vec::new();
        inner.hear(event, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn a_change_wakes_the_pollers_of_its_lock_once() {
        let mut inner = Inner::default();
        assert!(!inner.register(1, &name("a"), Some(10)));
        assert!(!inner.register(2, &name("a"), Some(20)));
        assert!(!inner.register(3, &name("b"), Some(30)));
        assert!(!inner.register(3, &name("b"), None), "asking again changes nothing");
        assert_eq!(woken(&mut inner, &ended("a")), [10, 20]);
        assert_eq!(woken(&mut inner, &ended("a")), [0; 0]);
        assert!(inner.register(1, &name("a"), Some(11)), "told until it is read");
        assert_eq!(woken(&mut inner, &ended("b")), [30]);
    }

    #[test]
    fn a_renewal_wakes_only_in_grace_and_is_no_change_by_itself() {
        let mut inner = Inner::default();
        inner.register(1, &name("a"), Some(10));
        assert_eq!(woken(&mut inner, &renewed("a")), [0; 0]);
        inner.files.get_mut(&1).expect("registered").in_grace = true;
        assert_eq!(woken(&mut inner, &renewed("a")), [10]);
        assert!(!inner.register(1, &name("a"), None));
    }

    #[test]
    fn what_is_lost_may_have_been_anything() {
        let mut inner = Inner::default();
        inner.register(1, &name("a"), Some(10));
        inner.register(2, &name("b"), Some(20));
        let mut due = Vec::new();
        inner.hear_of_loss(&mut due);
        due.sort_unstable();
        assert_eq!(due, [10, 20]);
        assert!(inner.register(2, &name("b"), None));
    }

    #[test]
    fn a_file_follows_its_lock_and_leaves_nothing_behind() {
        let mut inner = Inner::default();
        inner.register(1, &name("a"), Some(10));
        inner.register(1, &name("b"), Some(11));
        assert_eq!(woken(&mut inner, &ended("a")), [0; 0]);
        assert_eq!(woken(&mut inner, &ended("b")), [11]);
        inner.remove(1);
        assert!(inner.files.is_empty() && inner.of_lock.is_empty());
    }
}
