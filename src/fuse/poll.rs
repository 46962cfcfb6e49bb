//! poll(2) on the file of a lock. Like any file it is always readable and writable. A change of the
//! lock's phase (held, grace or free) or holder is reported by POLLPRI, until the file is read
//! again from its beginning, as in sysfs.
//!
//! Between the open or the last read and the first poll, [`LastSeen`] detects a change; after that
//! poll, lock events do.

use crate::engine::{Event, EventKind, LockName, Phase};
use crate::fuse::control_names::ControlFile;
use crate::fuse::kernel::poll_waker::PollWaker;
use crate::fuse::kernel::values::PollEvents;
use crate::fuse::lock_nodes::LockNodes;
use crate::fuse::open_files::OpenFiles;
use crate::fuse::open_files::last_seen::LastSeen;
use crate::fuse::open_files::open_file::{OpenFile, OpenTarget};
use crate::service::event_log::EventWatch;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of events handled in one batch, which bounds how long the mutex is held.
const EVENTS_MAX: usize = 256;

/// The poll events that are always ready on the file of a lock.
const ALWAYS: PollEvents = PollEvents::POLLIN
    .union(PollEvents::POLLOUT)
    .union(PollEvents::POLLRDNORM)
    .union(PollEvents::POLLWRNORM);

/// The open files of one mount on which programs wait by poll(2).
pub(crate) struct Polls {
    nodes: Arc<LockNodes>,
    opens: Arc<OpenFiles>,
    polled: Mutex<PollTable<PollWaker>>,
}

/// The open files on which programs wait by poll(2). `N` is the waker of all pollers of one open
/// file.
struct PollTable<N> {
    files: HashMap<u64, PolledFile<N>>,
    /// The file handles of the polled files of each lock.
    of_lock: HashMap<LockName, Vec<u64>>,
    /// The subscription to lock events, while any file is polled.
    watch: Option<EventWatch>,
}

struct PolledFile<N> {
    name: LockName,
    /// Whether the lock has changed since the file was last read.
    changed: bool,
    /// Whether the lock was in grace at the last poll. If so, a renewal changes the lock's phase
    /// from grace to held.
    in_grace: bool,
    /// The waker of the latest poll. It wakes all pollers, because the kernel has one queue of
    /// pollers per open file.
    waker: Option<N>,
}

impl<N> Default for PollTable<N> {
    fn default() -> Self {
        Self { files: HashMap::new(), of_lock: HashMap::new(), watch: None }
    }
}

impl<N> PollTable<N> {
    /// Registers a polled file and its waker. Returns whether the lock has changed since the last
    /// read.
    fn register(&mut self, fh: u64, name: &LockName, waker: Option<N>) -> bool {
        if self.files.get(&fh).is_some_and(|file| file.name != *name) {
            self.remove(fh);
        }
        let file = self.files.entry(fh).or_insert_with(|| {
            self.of_lock.entry(name.clone()).or_default().push(fh);
            PolledFile { name: name.clone(), changed: false, in_grace: false, waker: None }
        });
        if waker.is_some() {
            file.waker = waker;
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

    /// Handles one lock event: appends the wakers of the files whose lock it changes to `due`.
    fn hear(&mut self, event: &Event, due: &mut Vec<N>) {
        match &event.what {
            EventKind::Granted { name, .. }
            | EventKind::Expired { name, .. }
            | EventKind::Ended { name, .. } => {
                for fh in self.of_lock.get(name).into_iter().flatten() {
                    if let Some(file) = self.files.get_mut(fh) {
                        file.changed = true;
                        due.extend(file.waker.take());
                    }
                }
            }
            // A renewal changes the phase of the lock only if the lock is in grace. The poller is
            // then woken, and its next poll compares the state of the lock with the one that it
            // saw.
            EventKind::Renewed { name, .. } => {
                for fh in self.of_lock.get(name).into_iter().flatten() {
                    if let Some(file) = self.files.get_mut(fh).filter(|file| file.in_grace) {
                        due.extend(file.waker.take());
                    }
                }
            }
            EventKind::SessionKept { .. } => {
                let in_grace = self.files.values_mut().filter(|file| file.in_grace);
                due.extend(in_grace.filter_map(|file| file.waker.take()));
            }
            _ => {}
        }
    }

    /// Handles the loss of events: any lock may have changed, so all pollers are woken.
    fn hear_of_loss(&mut self, due: &mut Vec<N>) {
        for file in self.files.values_mut() {
            file.changed = true;
            due.extend(file.waker.take());
        }
    }
}

impl Polls {
    /// Returns the table of polled files of one mount, initially empty.
    pub(crate) fn new(nodes: Arc<LockNodes>, opens: Arc<OpenFiles>) -> Arc<Self> {
        Arc::new(Self { nodes, opens, polled: Mutex::default() })
    }

    /// Returns the ready poll events of an open file (poll(2), select(2), epoll(7)). With a
    /// `waker`, the program may sleep until the waker is called.
    pub(crate) async fn poll(
        self: &Arc<Self>,
        fh: u64,
        events: PollEvents,
        waker: Option<PollWaker>,
    ) -> PollEvents {
        let Some(open) = self.opens.get(fh) else { return PollEvents::POLLERR };
        let stream = open.state().stream.clone();
        if let Some(stream) = stream {
            return stream.poll(events, waker);
        }
        let always = events & ALWAYS;
        let (true, Some(name)) = (events.contains(PollEvents::POLLPRI), self.lock_of(&open)) else {
            return always;
        };
        // The file is registered before the state of the lock is read, so that no change between
        // the two is missed.
        if self.register(fh, &name, waker) {
            return always | PollEvents::POLLPRI;
        }
        let Ok(view) = self.nodes.locks.view_of(&name).await else { return always };
        let now = LastSeen::of(&view);
        let seen = *open.state().seen.get_or_insert(now);
        let changed = self.looked(fh, now.phase, seen != now);
        if changed { always | PollEvents::POLLPRI } else { always }
    }

    /// Returns the lock whose changes a poll of this file reports.
    fn lock_of(&self, open: &OpenFile) -> Option<LockName> {
        match &open.target {
            OpenTarget::Lock(ino, name) => Some(self.nodes.spoken_of(*ino, name, open.tenure())),
            OpenTarget::Control(ControlFile::Report(_, name) | ControlFile::Fact(_, name)) => {
                Some(name.clone())
            }
            OpenTarget::Control(_) => None,
        }
    }

    fn register(self: &Arc<Self>, fh: u64, name: &LockName, waker: Option<PollWaker>) -> bool {
        let mut polled = self.polled.lock();
        if polled.watch.is_none() {
            let mut watch = self.nodes.locks.service().subscribe(None);
            let events_of = Arc::downgrade(self);
            watch.wake_by(Arc::new(move || {
                if let Some(polls) = events_of.upgrade() {
                    polls.on_events();
                }
            }));
            polled.watch = Some(watch);
        }
        polled.register(fh, name, waker)
    }

    /// Records what a poll has found: the lock's phase, and whether the lock has changed. Returns
    /// whether there is a change that the poll must report.
    fn looked(&self, fh: u64, phase: Phase, changed: bool) -> bool {
        let mut polled = self.polled.lock();
        let Some(file) = polled.files.get_mut(&fh) else { return changed };
        file.in_grace = phase == Phase::Grace;
        file.changed |= changed;
        file.changed
    }

    /// Clears the change flag when the file is read, so that only later changes are reported.
    pub(crate) fn reads(&self, fh: u64) {
        if let Some(file) = self.polled.lock().files.get_mut(&fh) {
            file.changed = false;
        }
    }

    /// Removes a file from the table of polled files after its last descriptor was closed.
    pub(crate) fn closed(&self, fh: u64) {
        let mut polled = self.polled.lock();
        polled.remove(fh);
        let unused = if polled.files.is_empty() { polled.watch.take() } else { None };
        drop(polled);
        drop(unused);
    }

    /// Handles new lock events. Called on the thread that delivered them, with no mutex held.
    fn on_events(&self) {
        loop {
            let mut due = Vec::new();
            let more = {
                let mut polled = self.polled.lock();
                let Some(watch) = &mut polled.watch else { return };
                let batch = watch.take(EVENTS_MAX);
                for (_, event) in &batch.events {
                    polled.hear(event, &mut due);
                }
                if batch.lost > 0 {
                    polled.hear_of_loss(&mut due);
                }
                batch.events.len() == EVENTS_MAX
            };
            due.into_iter().for_each(PollWaker::wake);
            if !more {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, TenureEnd, Token};
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

    /// Returns the test wakers that an event wakes.
    fn woken(inner: &mut PollTable<u64>, event: &Event) -> Vec<u64> {
        let mut due = Vec::new();
        inner.hear(event, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn a_change_wakes_the_pollers_of_its_lock_once() {
        let mut inner = PollTable::default();
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
        let mut inner = PollTable::default();
        inner.register(1, &name("a"), Some(10));
        assert_eq!(woken(&mut inner, &renewed("a")), [0; 0]);
        inner.files.get_mut(&1).expect("registered").in_grace = true;
        assert_eq!(woken(&mut inner, &renewed("a")), [10]);
        assert!(!inner.register(1, &name("a"), None));
    }

    #[test]
    fn loss_of_events_wakes_all_pollers() {
        let mut inner = PollTable::default();
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
        let mut inner = PollTable::default();
        inner.register(1, &name("a"), Some(10));
        inner.register(1, &name("b"), Some(11));
        assert_eq!(woken(&mut inner, &ended("a")), [0; 0]);
        assert_eq!(woken(&mut inner, &ended("b")), [11]);
        inner.remove(1);
        assert!(inner.files.is_empty() && inner.of_lock.is_empty());
    }
}
