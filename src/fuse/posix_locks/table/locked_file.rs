//! One file in the lock table: the leases by which owners hold it, its locked byte ranges, and its
//! pending requests.

use crate::engine::{ClientId, LeaseKey, LockName, Mode, Patch, Ticket, Token};
use crate::fuse::kernel::hash_maps::Numbers;
use crate::fuse::posix_locks::byte_ranges::{Owner, Ranges, Span};
use crate::fuse::posix_locks::table::messages::{Ask, Call, Effect, No, Recall, Waits};
use std::collections::VecDeque;

/// The state of one inode. `R` is the type of a reply to a program.
#[derive(Debug)]
pub(crate) struct File<R> {
    /// The leases on the whole file, one for each owner.
    pub(crate) holds: Vec<Held>,
    /// Lock requests that were submitted to the engine: for the whole file, or for the one lease
    /// that covers the file's byte ranges.
    pub(crate) asks: Vec<Asking<R>>,
    pub(crate) bundle: Option<Bundle>,
    /// Lock requests that wait for an owner of this mount.
    pub(crate) queue: VecDeque<Asking<R>>,
    /// Lock requests that can't be decided before the engine has answered another request.
    pub(crate) behind: Vec<Asking<R>>,
    /// The lease numbers (of [`Held`] and [`Asking`]) that belong to this file. Some of them may be
    /// unused since the last cleanup.
    pub(crate) numbers: Vec<u64>,
}

/// A hold: a lease of the engine that one owner has on a whole file, or that covers the byte ranges
/// of all owners. Its `number` identifies the lease within the session.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) owner: Owner,
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    /// Whether the lock was granted to a waiter that a signal had just interrupted, and whose
    /// system call was not restarted yet.
    pub(crate) unclaimed: bool,
}

/// The one lease of the engine that covers all locked byte ranges of a file, together with these
/// ranges.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) held: Held,
    pub(crate) ranges: Ranges,
}

/// A lock request that is not decided yet.
#[derive(Debug)]
pub(crate) struct Asking<R> {
    pub(crate) number: u64,
    /// Distinguishes this request from other requests for a lease with the same number. The
    /// engine's answer is passed to the table with this cookie.
    pub(crate) cookie: u64,
    pub(crate) ask: Ask,
    /// The channel of the reply to the program; `None` after a signal has interrupted the wait. The
    /// request's queue place is then kept for a moment, because a restarted system call repeats the
    /// request.
    pub(crate) reply: Option<R>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) wants: Wants,
    /// Whether the program gave up the request, perhaps before the request reached the engine. The
    /// number of the requested lease stays in use until the outcome is known: the outcome of a
    /// second request with the same number would look the same.
    pub(crate) gone: bool,
    /// The lease with the number of this request, if an event, or a query after lost events,
    /// reported the lease before the answer to the request came.
    pub(crate) early: Option<Early>,
    /// Whether the lock has changed since the request was submitted. The engine may have decided
    /// the request before the change.
    pub(crate) news: bool,
    /// Whether the engine has refused the request, and would refuse it as long as the lock does not
    /// change.
    pub(crate) refused: bool,
}

/// A lease that an event reported before the answer to the lock request came.
#[derive(Debug)]
pub(crate) struct Early {
    /// The ticket of the waiter to which the lease was granted; `None` if the request did not wait.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) key: LeaseKey,
}

/// Whether a lock request is new, or has waited in the file's queue before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    New,
    Next,
}

/// The change that a lock request makes in the table when it is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Hold,
    Bundle,
    /// The owner's lease on the whole file is downgraded to shared mode. No program waits for the
    /// answer.
    Less,
}

/// Whether the lease of a granted request could be entered in the table.
#[derive(Debug)]
pub(crate) enum Placed<R> {
    Yes(Asking<R>),
    /// The granted lease no longer fits the table, and the request must be made again.
    Again(Asking<R>),
}

impl<R> Default for File<R> {
    fn default() -> Self {
        let (holds, asks, queue) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { holds, asks, bundle: None, queue, behind: Vec::new(), numbers: Vec::new() }
    }
}

impl<R> File<R> {
    /// Converts the whole-file lease of the owner `id` into a locked byte range. If another lease
    /// already covers the byte ranges of this file, the owner's own lease is returned, so that the
    /// caller releases it.
    pub(crate) fn bundle_up(&mut self, id: u64) -> Option<Held> {
        let place = self.holds.iter().position(|held| held.owner.id == id)?;
        let held = self.holds.remove(place);
        if let Some(bundle) = &mut self.bundle {
            bundle.ranges.lock_if_free(held.owner, Span::WHOLE, held.mode);
            return Some(held);
        }
        let mut ranges = Ranges::default();
        ranges.lock(held.owner, Span::WHOLE, held.mode);
        self.bundle = Some(Bundle { held, ranges });
        None
    }

    /// Removes and returns the first request that `which` selects among those that were submitted
    /// to the engine.
    pub(crate) fn take(&mut self, which: impl Fn(&Asking<R>) -> bool) -> Option<Asking<R>> {
        let place = self.asks.iter().position(which)?;
        Some(self.asks.remove(place))
    }

    pub(crate) fn holds_tenure(&self, token: Token) -> bool {
        self.held_under(token).is_some()
    }

    /// Returns the lease with this token: an owner's lease on the whole file, or the lease that
    /// covers the byte ranges.
    pub(crate) fn held_under(&self, token: Token) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.token == token)
    }

    /// Whether a lease with another number than this one covers the file's byte ranges.
    pub(crate) fn is_covered_beside(&self, number: u64) -> bool {
        self.bundle.as_ref().is_some_and(|bundle| bundle.held.number != number)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.bundle.is_none() && self.is_quiet()
    }

    /// Returns the lease with this number: an owner's lease on the whole file, or the lease that
    /// covers the byte ranges.
    pub(crate) fn held(&self, number: u64) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.number == number)
    }

    pub(crate) fn held_mut(&mut self, number: u64) -> Option<&mut Held> {
        let bundle = self.bundle.iter_mut().map(|bundle| &mut bundle.held);
        self.holds.iter_mut().chain(bundle).find(|held| held.number == number)
    }

    /// Whether a request with this lease number was submitted and is pending. There must not be two
    /// with the same number: their answers could arrive in either order, and the earlier request
    /// would seem to undo the later one.
    pub(crate) fn is_asked(&self, number: u64) -> bool {
        self.asks.iter().any(|asking| asking.number == number)
    }

    /// Whether a lease of this file, or a submitted request for one, has this number (unique within
    /// the session).
    pub(crate) fn uses(&self, number: u64) -> bool {
        self.held(number).is_some() || self.is_asked(number)
    }

    /// Records, for the unanswered request with this lease number, that the engine already has the
    /// lease `key` with the same number.
    pub(crate) fn heard_early(&mut self, number: u64, key: LeaseKey) {
        let mut own = self.asks.iter_mut().filter(|asking| asking.number == number);
        if let Some(asking) = own.find(|asking| asking.early.is_none()) {
            asking.early = Some(Early { ticket: None, key });
        }
    }

    /// Whether the outcome of an earlier request of the owner `id` is still unknown. If the owner's
    /// next request were decided now, the owner could conflict with itself.
    pub(crate) fn is_awaited_by(&self, id: u64) -> bool {
        self.asks.iter().any(|asking| {
            let open = asking.gone || asking.ticket.is_none();
            open && asking.ask.owner.id == id && asking.wants != Wants::Less
        })
    }

    /// Whether this file has no pending request.
    pub(crate) fn is_quiet(&self) -> bool {
        self.asks.is_empty() && self.queue.is_empty() && self.behind.is_empty()
    }

    /// Whether an event about the lock `name` may concern this file: a lease on it or a pending
    /// request has that name.
    pub(crate) fn speaks_of(&self, name: &LockName) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| &held.name);
        let asks = self.queue.iter().chain(&self.asks).map(|asking| &asking.ask.name);
        held.chain(asks).any(|other| other == name)
    }

    /// Records that the lock of this file has changed, so that refused requests are tried again.
    pub(crate) fn hear(&mut self) {
        self.asks.iter_mut().for_each(|asking| asking.news = true);
        self.queue.iter_mut().for_each(|asking| asking.refused = false);
    }

    /// Whether a waiting request would extend a lease that its owner already has, or one that it
    /// takes over. The engine refuses such a request and does not queue it.
    pub(crate) fn is_growing(&self) -> bool {
        let waits = |asking: &&Asking<R>| asking.ask.line == Waits::Yes && asking.ticket.is_none();
        let has = |asking: &Asking<R>| {
            asking.ask.takes_over.is_some() || self.held(asking.number).is_some()
        };
        self.asks.iter().filter(waits).any(has)
    }

    /// Returns the lease numbers of all leases and pending requests of this file.
    pub(crate) fn used(&self) -> Numbers {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| held.number);
        let asks = self.asks.iter().chain(&self.queue).chain(&self.behind);
        held.chain(asks.map(|asking| asking.number)).collect()
    }

    /// Whether a request in the queue may proceed: if it were retried now, it would not only be
    /// queued for the same reason as before.
    pub(crate) fn may_go_on(&self, asking: &Asking<R>) -> bool {
        if asking.refused || asking.reply.is_none() {
            return false;
        }
        let Ask { owner, span, mode, .. } = asking.ask;
        let others = self.holds.iter().any(|held| {
            held.owner.id != owner.id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        });
        // A request for the lease that is to cover the byte ranges goes first, unless it waits for
        // this very owner, which already holds the whole file.
        let own = self.holds.iter().any(|held| held.owner.id == owner.id);
        let bundle_comes = self.asks.iter().any(|other| other.wants == Wants::Bundle) && !own;
        match &self.bundle {
            Some(bundle) => bundle.ranges.conflict(owner.id, span, mode).is_none(),
            None => !others && !bundle_comes,
        }
    }
}

impl<R> Asking<R> {
    pub(crate) const fn new(ask: Ask, reply: Option<R>, wants: Wants) -> Self {
        let (number, cookie, ticket, early) = (0, 0, None, None);
        let (gone, news, refused) = (false, false, false);
        Self { number, cookie, ask, reply, ticket, wants, gone, early, news, refused }
    }

    pub(crate) fn key(&self, token: Token) -> LeaseKey {
        let (name, client) = (self.ask.name.clone(), self.ask.client.clone());
        LeaseKey { name, client, token: Some(token) }
    }

    /// Returns the lease that the engine's answer to this request granted under the fencing token
    /// `token`. If `mv` has renamed the lease before the answer came, returns its new name and
    /// token.
    pub(crate) fn latest(&mut self, token: Token) -> LeaseKey {
        let early = self.early.take().map(|early| early.key);
        early.filter(|key| key.token > Some(token)).unwrap_or_else(|| self.key(token))
    }

    /// Whether a lease that an event announced belongs to this pending request, if a lease with the
    /// same number is already held. Otherwise the event reports that `mv` has moved the held lease.
    /// `goes_on` tells whether the announced lease continues one with the given name and token.
    pub(crate) fn may_begin(&self, goes_on: impl Fn(&LockName, Option<Token>) -> bool) -> bool {
        let early = self.early.as_ref().map(|early| &early.key);
        goes_on(&self.ask.name, None) || early.is_some_and(|key| goes_on(&key.name, key.token))
    }

    /// Whether a program waits for the lock, or may restart its interrupted system call to wait for
    /// it.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.gone && self.wants != Wants::Less
    }

    /// Adds the file handle of the open file to `spent`, if it is the lease number of this request:
    /// a later request through the same open file must get another number.
    pub(crate) fn spend(&self, spent: &mut Numbers) {
        if self.wants != Wants::Less && self.number == self.ask.owner.fh && !self.gone {
            spent.insert(self.number);
        }
    }

    /// Returns the query that finds out the outcome of this request after an answer or events were
    /// lost.
    pub(crate) fn recall(&self) -> Recall {
        Recall { number: self.number, name: self.ask.name.clone(), token: None }
    }

    pub(crate) fn is_parked_for(&self, ask: &Ask) -> bool {
        self.reply.is_none()
            && !self.gone
            && self.wants != Wants::Less
            && self.ask.line == ask.line
            && self.ask.owner.id == ask.owner.id
            && self.ask.mode == ask.mode
            && self.ask.span == ask.span
    }
}

impl Held {
    pub(crate) fn key(&self) -> LeaseKey {
        LeaseKey { name: self.name.clone(), client: self.client.clone(), token: Some(self.token) }
    }

    /// Returns the request that downgrades this lease to shared mode, so that other readers can
    /// share the lock.
    pub(crate) fn less<R>(&self, ino: u64) -> Asking<R> {
        let (name, client) = (self.name.clone(), self.client.clone());
        let ask = Ask {
            ino,
            owner: self.owner,
            tid: 0,
            span: Span::WHOLE,
            mode: Mode::Shared,
            name,
            client,
            patch: Patch::default(),
            takes_over: None,
            line: Waits::No,
            call: |_| Call::Fcntl,
        };
        Asking { number: self.number, ..Asking::new(ask, None, Wants::Less) }
    }
}

pub(crate) fn answer<R>(asking: Asking<R>, result: Result<(), No>, todo: &mut Vec<Effect<R>>) {
    if let Some(reply) = asking.reply {
        todo.push(Effect::Reply(reply, result));
    }
}
