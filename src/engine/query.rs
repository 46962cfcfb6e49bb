//! Queries: one lock, a page of locks, a page of a directory.

use super::state::Engine;
use crate::time::Time;
use crate::values::command::Acquire;
use crate::values::event::{Child, Holder, LockView, SessionView, WaiterView};
use crate::values::lease::{Lease, Lifetime, Mode, Ownership, Phase, SessionId, Token};
use crate::values::lock::{Lock, QueuedWaiter};
use crate::values::name::{ClientId, LockName, parents};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What is counted of one lock.
#[derive(Debug, Clone, Copy)]
pub struct LockCount {
    /// The phase of the lock.
    pub phase: Phase,
    /// The number of its holders.
    pub holders: usize,
    /// The number of waiters in its queue.
    pub waiters: usize,
}

impl Engine {
    /// Returns the view of one lock at `now`. The caller must first have applied all expiries and
    /// timeouts up to that time.
    pub fn view(&self, name: &LockName, now: Time) -> LockView {
        let lock = self.locks.get(name).map(|lock| &**lock);
        let has_below = self.has_below(name.as_str());
        self.view_of(name, lock, now, has_below)
    }

    /// Returns the leases of the nearest held lock above `name`: the lock of its closest parent
    /// name that is held. Empty if no parent is held.
    pub fn holders_above(&self, name: &LockName) -> &[Lease] {
        let held = parents(name.as_str())
            .filter_map(|parent| self.locks.get(parent))
            .map(|lock| lock.leases());
        held.into_iter().find(|leases| !leases.is_empty()).unwrap_or_default()
    }

    /// Whether `client` holds the lock `name` or waits for it.
    pub fn involves(&self, name: &LockName, client: &ClientId) -> bool {
        self.locks.get(name).is_some_and(|lock| {
            lock.leases().iter().any(|lease| lease.holder == *client)
                || lock.line.iter().any(|(_, waiter)| waiter.client == *client)
        })
    }

    /// Whether `ask` repeats a request of a program that holds the lock or waits for it, so that it
    /// adds neither a lease nor a place in the queue. Requests as [`Ownership::Exclusive`] without
    /// an open file are never repeats of one another.
    pub fn is_repeated(&self, ask: &Acquire) -> bool {
        let same = |waiter: &QueuedWaiter| waiter.client == ask.client && waiter.hold == ask.hold;
        ask.hold != Ownership::Exclusive(None)
            && self.locks.get(&ask.name).is_some_and(|lock| {
                lock.own(ask.into()).is_some() || lock.line.iter().any(|(_, waiter)| same(waiter))
            })
    }

    /// Returns the oldest lease of the lock `name`, without building the whole view.
    pub fn lease(&self, name: &LockName) -> Option<&Lease> {
        self.locks.get(name).and_then(|lock| lock.leases().first())
    }

    /// Returns at most `limit` locks whose names begin with `prefix` and come after `after`. The
    /// views do not tell whether locks exist below a name: `has_below` is always false.
    pub fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a LockName>,
        limit: usize,
        now: Time,
    ) -> impl Iterator<Item = LockView> + 'a {
        page(&self.locks, prefix, after, limit)
            .map(move |(name, lock)| self.view_of(name, Some(&**lock), now, false))
    }

    /// Calls `each` with the name and the counts of at most `limit` locks after
    /// `after`, and returns the name of the last of them, or `None` if none is left.
    pub fn walk(
        &self,
        after: Option<&LockName>,
        limit: usize,
        now: Time,
        each: &mut dyn FnMut(&LockName, LockCount),
    ) -> Option<LockName> {
        let now = now.max(self.state.clock);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (name, lock) in self.locks.range::<LockName, _>((from, Bound::Unbounded)).take(limit) {
            let ends = lock.leases().iter().map(|lease| self.state.ends(lease.life));
            let (phase, holders) = (Phase::of_lock(ends, now), lock.leases().len());
            each(name, LockCount { phase, holders, waiters: lock.line.len() });
            last = Some(name);
        }
        last.cloned()
    }

    /// Returns the locks of at most `limit` remembered names that begin with `prefix` and come
    /// after `after`, also if nobody holds them. The views do not tell whether locks exist below a
    /// name.
    pub fn list_remembered<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a LockName>,
        limit: usize,
        now: Time,
    ) -> impl Iterator<Item = LockView> + 'a {
        page(&self.state.remembered.0, prefix, after, limit).map(move |(name, _)| {
            self.view_of(name, self.locks.get(name).map(|lock| &**lock), now, false)
        })
    }

    /// Returns at most `limit` names directly below `parent` (or at the top level) after `cursor`,
    /// and the cursor of the next page if there may be more.
    pub fn children(
        &self,
        parent: Option<&LockName>,
        cursor: Option<&str>,
        limit: usize,
    ) -> (Vec<Child>, Option<String>) {
        let prefix = parent.map_or_else(String::new, |parent| format!("{parent}/"));
        let mut from = cursor.filter(|from| **from > *prefix).unwrap_or(&prefix).to_owned();
        let mut children = Vec::new();
        while children.len() < limit {
            let range = self.locks.range::<str, _>((Bound::Included(&*from), Bound::Unbounded));
            let mut dir = None;
            // A lock without a lease, which waits for the end of the hold-off, has no entry.
            for (name, lock) in range.filter(|(_, lock)| !lock.leases().is_empty()) {
                let Some(rest) = name.as_str().strip_prefix(&prefix) else {
                    return (children, None);
                };
                if let Some((part, _)) = rest.split_once('/') {
                    dir = Some(format!("{prefix}{part}"));
                    break;
                }
                let lock = lock.leases().first().cloned();
                children.push(Child { name: name.clone(), lock });
                if children.len() == limit {
                    // The smallest text that sorts after this name.
                    return (children, Some(format!("{name}\0")));
                }
            }
            let Some(dir) = dir else { return (children, None) };
            // A directory that is itself a held lock was already returned under its own name.
            if self.locks.get(dir.as_str()).is_none_or(|lock| lock.leases().is_empty())
                && let Ok(name) = LockName::parse(&dir)
            {
                children.push(Child { name, lock: None });
            }
            // '0' follows '/' in ASCII: the next search starts behind all names below this
            // directory.
            from = dir + "0";
        }
        (children, Some(from))
    }

    /// Returns the view of a session with at most `limit` of the leases that are bound to it.
    pub fn session(&self, id: SessionId, limit: usize) -> Option<SessionView> {
        let session = self.state.sessions.get(&id)?;
        Some(SessionView {
            client: session.client.clone(),
            ends: session.ends(),
            leases: session.leases.iter().take(limit).cloned().collect(),
            held: session.leases.len(),
            waiting: session.waiters.len(),
        })
    }

    /// Returns at most `limit` of the leases that are bound to a session, in order of their names,
    /// after `after`.
    pub fn leases_of(
        &self,
        id: SessionId,
        after: Option<&LockName>,
        limit: usize,
    ) -> Vec<(LockName, Token)> {
        let Some(session) = self.state.sessions.get(&id) else { return Vec::new() };
        let from = after.map(|name| (name.clone(), Token::named(u64::MAX)));
        let from = from.map_or(Bound::Unbounded, Bound::Excluded);
        session.leases.range((from, Bound::Unbounded)).take(limit).cloned().collect()
    }

    pub(super) fn has_below(&self, name: &str) -> bool {
        if self.locks.below() == 0 {
            return false;
        }
        let mut below = String::with_capacity(name.len() + 1);
        below.push_str(name);
        below.push('/');
        let mut range = self.locks.range::<str, _>((Bound::Included(&*below), Bound::Unbounded));
        range.next().is_some_and(|(name, _)| name.as_str().starts_with(&below))
    }

    fn view_of(
        &self,
        name: &LockName,
        lock: Option<&Lock>,
        now: Time,
        has_below: bool,
    ) -> LockView {
        let (previous, at) = (self.state.previous(name), now.max(self.state.clock));
        let (name, hold_off) = (name.clone(), self.state.hold_off);
        let Some(lock) = lock else {
            let (holders, waiters) = (Vec::new(), Vec::new());
            let mode = Mode::Exclusive;
            return LockView { name, at, mode, holders, waiters, has_below, previous, hold_off };
        };
        let waiters = lock.line.iter().map(|(ticket, waiter)| WaiterView {
            client: waiter.client.clone(),
            ticket: *ticket,
            mode: waiter.mode,
            since: waiter.since,
        });
        LockView {
            name,
            at,
            mode: lock.mode(),
            holders: lock.leases().iter().map(|lease| self.show_lease(lease)).collect(),
            waiters: waiters.collect(),
            has_below,
            previous,
            hold_off,
        }
    }

    fn show_lease(&self, lease: &Lease) -> Holder {
        let mut lease = lease.clone();
        lease.renewed_at = self.renewed_at(&lease);
        let ends = self.state.ends(lease.life);
        Holder { lease, ends }
    }

    /// Returns when a lease was last renewed, by its own renewal or by a keep-alive of its session.
    pub(super) fn renewed_at(&self, lease: &Lease) -> Time {
        let session = match lease.life {
            Lifetime::Session(id) => self.state.sessions.get(&id),
            Lifetime::Own { .. } => None,
        };
        session.map_or(lease.renewed_at, |session| lease.renewed_at.max(session.renewed_at))
    }
}

/// Returns at most `limit` entries whose names begin with `prefix` and come after `after`.
fn page<'a, V>(
    all: &'a BTreeMap<LockName, V>,
    prefix: &'a str,
    after: Option<&'a LockName>,
    limit: usize,
) -> impl Iterator<Item = (&'a LockName, &'a V)> {
    let after = after.map(LockName::as_str).filter(|after| *after >= prefix);
    let from = after.map_or(Bound::Included(prefix), Bound::Excluded);
    let rest = all.range::<str, _>((from, Bound::Unbounded));
    rest.take_while(move |(name, _)| name.as_str().starts_with(prefix)).take(limit)
}
