//! The names and attributes that the kernel caches, and their invalidation.
//!
//! The kernel may cache an answer only if the lock service says which events the answer includes,
//! and reports every later change. Then `test -e` in a loop costs the server nothing, and still
//! sees a change at once.
//!
//! An answer that is older than a change must not be cached after the kernel was notified of that
//! change. So the cache remembers the number of the last event about each name, and if a change
//! arrives while an answer is on its way to the kernel, the invalidation is sent after that answer.

use crate::engine::{EventKind, LockName};
use crate::fuse::inodes::TOP;
use crate::fuse::lock_nodes::LockNodes;
use crate::service::event_log::EventWatch;
use kernel::file_system::UntilReplied;
use kernel::notifications::{Invalidator, StaleName};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the kernel may cache an answer that is invalidated on change. The limit bounds the
/// effect of an invalidation that is lost by mistake.
const KEEP: Duration = Duration::from_secs(3_600);
/// The maximum number of cached names: more than programs look up repeatedly, at 100 bytes each.
const NAMES_MAX: usize = 1 << 16;
/// The maximum number of remembered changes; an answer from before the oldest of them is not
/// cached.
const CHANGES_MAX: usize = 1 << 14;
/// The maximum number of events handled in one batch, which bounds how long the mutex is held.
const EVENTS_MAX: usize = 256;

/// The names that the kernel has cached for one mount, and the means to invalidate them.
pub(crate) struct KernelCache {
    nodes: Arc<LockNodes>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    names: CachedNames,
    /// The subscription to lock events, which begins with the first cached name.
    watch: Option<EventWatch>,
    /// Sends invalidations to the kernel. `None` if none can be sent; then the kernel caches
    /// nothing.
    invalidator: Option<Invalidator>,
}

/// The names that the kernel has cached, and recent changes of names. Pure state.
#[derive(Default)]
struct CachedNames {
    names: HashMap<LockName, CachedName>,
    /// The number of the last event about each name, or about any name below it.
    changed: HashMap<LockName, u64>,
    /// Per name, changes are remembered only from this event number on. An answer that does not
    /// include all earlier events may be stale, and is not cached.
    floor: u64,
}

/// The inode numbers under which the kernel has cached a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownAs {
    /// The inode number of the directory that contains the name.
    parent: u64,
    /// The inode number of the name itself; `None` for a negative entry.
    ino: Option<u64>,
}

/// A name that the kernel has cached, with the number of answers about the name that are on their
/// way to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CachedName {
    known_as: KnownAs,
    /// The number of answers about the name that are on their way to the kernel.
    on_their_way: u32,
    /// Whether the name has changed since the first of the answers on their way was made.
    changed: bool,
}

/// How long the kernel may cache an answer about a name, and a value to drop after the reply.
pub(crate) type Keep = (Duration, Option<UntilReplied>);

/// Marks an answer as on its way to the kernel, until this value is dropped after the reply.
struct OnItsWay {
    cache: Weak<KernelCache>,
    name: LockName,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.upgrade() {
            let mut kept = cache.kept.lock();
            let stale = kept.names.arrived(&self.name);
            kept.forget(stale.into_iter().collect());
        }
    }
}

impl KernelCache {
    /// Returns the cache of a mount, initially empty.
    pub(crate) fn new(nodes: Arc<LockNodes>) -> Arc<Self> {
        Arc::new(Self { nodes, kept: Mutex::default() })
    }

    /// Sets the invalidator. Without one, the kernel is allowed to cache nothing.
    pub(crate) fn attach(&self, invalidator: Invalidator) {
        self.kept.lock().invalidator = Some(invalidator);
    }

    /// Whether the kernel may cache names of directories. It may only if the kernel can mark such a
    /// name as expired: a plain invalidation would drop the name, and programs that have the
    /// directory as their working directory would lose it.
    pub(crate) fn may_keep_directories(&self) -> bool {
        self.kept.lock().invalidator.as_ref().is_some_and(Invalidator::can_expire)
    }

    /// Stops reading lock events after the mount is gone.
    pub(crate) fn end(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }

    /// Returns how long the kernel may cache an answer about `name`. The answer includes all events
    /// before the event number `as_of`; `ino` is `None` if the name does not exist.
    pub(crate) fn keep(
        self: &Arc<Self>,
        name: &LockName,
        ino: Option<u64>,
        as_of: Option<u64>,
    ) -> Keep {
        const NOTHING: Keep = (Duration::ZERO, None);
        let Some(as_of) = as_of else { return NOTHING };
        let Some(parent) = self.parent_of(name) else { return NOTHING };
        let mut kept = self.kept.lock();
        if kept.invalidator.is_none() {
            return NOTHING;
        }
        if kept.watch.is_none() {
            self.follow(&mut kept, as_of);
        }
        if !kept.keep(name, KnownAs { parent, ino }, as_of) {
            return NOTHING;
        }
        let on_its_way = OnItsWay { cache: Arc::downgrade(self), name: name.clone() };
        (KEEP, Some(UntilReplied::new(on_its_way)))
    }

    /// Handles `mv`, after which the kernel uses its cached entry of the old name for the new name.
    pub(crate) fn moved(&self, from: &LockName, to: &LockName) {
        let parent = self.parent_of(to);
        self.kept.lock().names.moved(from, to, parent);
    }

    /// Returns the inode number of the directory that contains `name`, if the kernel knows it.
    fn parent_of(&self, name: &LockName) -> Option<u64> {
        match above(name) {
            None => Some(TOP),
            Some(parent) => self.nodes.inodes().number(&parent),
        }
    }

    fn follow(self: &Arc<Self>, kept: &mut Kept, since: u64) {
        let mut watch = self.nodes.service.subscribe(Some(since));
        let events_of = Arc::downgrade(self);
        watch.wake_by(Arc::new(move || {
            if let Some(cache) = events_of.upgrade() {
                cache.on_events();
            }
        }));
        kept.names.floor = since;
        kept.watch = Some(watch);
    }

    /// Handles new lock events. Called on the thread that delivered them, with no mutex held.
    fn on_events(&self) {
        loop {
            let mut kept = self.kept.lock();
            let (stale, more) = kept.take_news();
            kept.forget(stale);
            if !more {
                return;
            }
        }
    }
}

/// Returns the name of the directory that contains `name`; `None` if that is the mount point.
fn above(name: &LockName) -> Option<LockName> {
    let (above, _) = name.as_str().rsplit_once('/')?;
    LockName::parse(above).ok()
}

fn stale_name(name: &LockName, known_as: KnownAs) -> StaleName {
    let KnownAs { parent, ino } = known_as;
    StaleName { parent, name: name.last_part().into(), ino }
}

impl Kept {
    fn keep(&mut self, name: &LockName, known_as: KnownAs, as_of: u64) -> bool {
        // Events that were published but not read here yet may make the answer stale, so they are
        // handled first.
        let stale = self.take_news().0;
        self.forget(stale);
        if self.names.names.len() >= NAMES_MAX {
            let all = self.names.forget_all();
            self.forget(all);
        }
        self.names.keep(name, known_as, as_of)
    }

    fn take_news(&mut self) -> (Vec<StaleName>, bool) {
        let Some(watch) = &mut self.watch else { return (Vec::new(), false) };
        let batch = watch.take(EVENTS_MAX);
        let mut stale = Vec::new();
        if batch.has_gap() {
            // Lock events were lost or are late, so any name may have changed: the kernel must drop
            // all cached names. An answer from before an interruption may be stale as well.
            stale = self.names.forget_all();
            self.names.changed.clear();
            let first = batch.events.first().map_or(watch.next(), |(number, _)| *number);
            let live = batch.interrupted_at.map_or(0, |at| at + 1);
            self.names.floor = first.max(live);
        }
        for (number, event) in &batch.events {
            self.names.handle_event(*number, &event.what, &mut stale);
        }
        (stale, batch.events.len() == EVENTS_MAX)
    }

    fn forget(&self, stale: Vec<StaleName>) {
        if let Some(invalidator) = &self.invalidator {
            invalidator.forget(stale);
        }
    }
}

impl CachedNames {
    /// Returns whether the kernel may cache an answer about `name` that includes all events before
    /// `as_of`. If so, the answer counts as on its way until [`arrived`](Self::arrived) is called.
    fn keep(&mut self, name: &LockName, known_as: KnownAs, as_of: u64) -> bool {
        let changed = self.changed.get(name).is_some_and(|change| *change >= as_of);
        if changed || as_of < self.floor {
            return false;
        }
        let on_their_way = self.names.get(name).map_or(0, |cached| cached.on_their_way);
        // If an earlier answer about the name is stale already, the invalidation is sent after the
        // last answer has arrived.
        let changed = self.names.get(name).is_some_and(|cached| cached.changed);
        let cached = CachedName { known_as, on_their_way: on_their_way + 1, changed };
        self.names.insert(name.clone(), cached);
        true
    }

    /// Records that an answer about the name has reached the kernel. Returns the name if the kernel
    /// must invalidate it now.
    fn arrived(&mut self, name: &LockName) -> Option<StaleName> {
        let cached = self.names.get_mut(name)?;
        cached.on_their_way = cached.on_their_way.saturating_sub(1);
        if cached.on_their_way > 0 || !cached.changed {
            return None;
        }
        let CachedName { known_as, .. } = self.names.remove(name)?;
        Some(stale_name(name, known_as))
    }

    /// Invalidates a name in the kernel: at once, or after the answers on their way have arrived.
    fn invalidate(&mut self, name: &LockName, stale: &mut Vec<StaleName>) {
        let Some(cached) = self.names.get_mut(name) else { return };
        if cached.on_their_way > 0 {
            cached.changed = true;
            return;
        }
        stale.push(stale_name(name, cached.known_as));
        self.names.remove(name);
    }

    fn moved(&mut self, from: &LockName, to: &LockName, parent: Option<u64>) {
        let Some(before) = self.names.get_mut(from) else { return };
        let known_as = before.known_as;
        if before.on_their_way > 0 {
            before.changed = true;
        } else {
            self.names.remove(from);
        }
        let Some(parent) = parent else { return };
        let on_their_way = self.names.get(to).map_or(0, |cached| cached.on_their_way);
        let (known_as, changed) = (KnownAs { parent, ..known_as }, on_their_way > 0);
        self.names.insert(to.clone(), CachedName { known_as, on_their_way, changed });
    }

    /// Records the change that an event reports.
    fn handle_event(&mut self, number: u64, what: &EventKind, stale: &mut Vec<StaleName>) {
        match what {
            EventKind::Granted { name, .. }
            | EventKind::Renewed { name, .. }
            | EventKind::Annotated { name, .. }
            | EventKind::Expired { name, .. }
            | EventKind::Ended { name, .. }
            | EventKind::Joined { name, .. }
            | EventKind::Left { name, .. } => self.note(number, name, stale),
            // An event about a session as a whole changes no name: when a session ends, separate
            // events report the end of each of its leases.
            EventKind::SessionOpened { .. }
            | EventKind::SessionKept { .. }
            | EventKind::SessionOver { .. }
            | EventKind::HoldOffEnded { .. } => {}
        }
    }

    fn note(&mut self, number: u64, name: &LockName, stale: &mut Vec<StaleName>) {
        if self.changed.len() >= CHANGES_MAX {
            self.changed.clear();
            self.floor = number;
        }
        self.changed.insert(name.clone(), number);
        self.invalidate(name, stale);
        // A directory exists while there are locks below it, so a lock's change may create or
        // remove each directory above it.
        let mut below = above(name);
        while let Some(name) = below {
            self.changed.insert(name.clone(), number);
            self.invalidate(&name, stale);
            below = above(&name);
        }
    }

    fn forget_all(&mut self) -> Vec<StaleName> {
        let mut stale = Vec::new();
        let names: Vec<_> = self.names.keys().cloned().collect();
        for name in names {
            self.invalidate(&name, &mut stale);
        }
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Token;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    fn known_as(ino: Option<u64>) -> KnownAs {
        KnownAs { parent: TOP, ino }
    }

    /// Caches a name in a test; the answer about it reaches the kernel at once.
    fn keep(book: &mut CachedNames, text: &str, ino: Option<u64>, as_of: u64) -> bool {
        let kept = book.keep(&name(text), known_as(ino), as_of);
        assert_eq!(book.arrived(&name(text)), None);
        kept
    }

    fn change(book: &mut CachedNames, number: u64, text: &str) -> Vec<String> {
        let mut stale = Vec::new();
        let what = EventKind::Annotated { name: name(text), token: Token::named(1) };
        book.handle_event(number, &what, &mut stale);
        stale.into_iter().map(|stale| stale.name.into_string().expect("UTF-8")).collect()
    }

    #[test]
    fn cached_name_is_invalidated_once_when_it_changes() {
        let mut book = CachedNames::default();
        assert!(keep(&mut book, "a", Some(7), 5));
        assert!(keep(&mut book, "b", None, 5));
        assert_eq!(change(&mut book, 5, "a"), ["a"]);
        assert_eq!(change(&mut book, 6, "a"), [""; 0], "once");
        assert_eq!(change(&mut book, 7, "b"), ["b"]);
    }

    #[test]
    fn answer_from_before_a_change_is_not_cached() {
        let mut book = CachedNames::default();
        change(&mut book, 5, "a");
        assert!(!keep(&mut book, "a", None, 5), "it may lack the change");
        assert!(keep(&mut book, "a", None, 6));
        assert!(keep(&mut book, "b", None, 0));
    }

    #[test]
    fn parent_directories_change_with_a_lock() {
        let mut book = CachedNames::default();
        assert!(keep(&mut book, "team", None, 0));
        assert_eq!(change(&mut book, 1, "team/a/b"), ["team"]);
        assert!(!keep(&mut book, "team/a", None, 1));
    }

    #[test]
    fn answer_from_before_the_oldest_remembered_change_is_not_cached() {
        let mut book = CachedNames::default();
        for number in 0..=CHANGES_MAX as u64 {
            change(&mut book, number, &format!("n{number}"));
        }
        assert!(book.changed.len() < CHANGES_MAX);
        assert!(!keep(&mut book, "other", None, 7));
        assert!(keep(&mut book, "other", None, CHANGES_MAX as u64 + 1));
    }

    #[test]
    fn the_kernel_drops_all_names_when_it_has_too_many() {
        let mut kept = Kept::default();
        let mut add = |number: usize| {
            let name = name(&format!("n{number}"));
            assert!(kept.keep(&name, known_as(None), 0));
            assert_eq!(kept.names.arrived(&name), None);
            kept.names.names.len()
        };
        assert_eq!((0..NAMES_MAX).map(&mut add).last(), Some(NAMES_MAX));
        assert_eq!(add(NAMES_MAX), 1);
    }

    /// An invalidation that is sent before the answer on its way would let the kernel cache the
    /// stale answer.
    #[test]
    fn invalidation_is_sent_after_the_answers_on_their_way() {
        let mut book = CachedNames::default();
        let a = name("a");
        assert!(book.keep(&a, known_as(None), 1) && book.keep(&a, known_as(None), 1));
        assert_eq!(change(&mut book, 1, "a"), [""; 0], "not yet");
        assert_eq!(book.arrived(&a), None, "another is on its way");
        let stale = book.arrived(&a).expect("now");
        assert_eq!((stale.parent, stale.name.to_str()), (TOP, Some("a")));
        assert_eq!(book.arrived(&a), None);
        assert!(book.names.is_empty());
    }
}
