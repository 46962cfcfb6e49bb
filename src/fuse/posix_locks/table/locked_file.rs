//! One file in the lock table: its holds, its byte ranges, and its pending requests.

use crate::engine::{ClientId, LeaseKey, LockName, Mode, Patch, Ticket, Token};
use crate::fuse::kernel::hash_maps::Numbers;
use crate::fuse::posix_locks::byte_ranges::{Owner, Ranges, Span};
use crate::fuse::posix_locks::table::messages::{Ask, Call, Effect, No, Recall, Waits};
use std::collections::VecDeque;

/// The state of one inode. `R` is the type of a reply to a program.
#[derive(Debug)]
pub(crate) struct File<R> {
    /// The holds on the whole file, one for each owner.
    pub(crate) holds: Vec<Held>,
    /// Requests for the whole file, and for the bundle, that were submitted to the engine.
    pub(crate) asks: Vec<Asking<R>>,
    pub(crate) bundle: Option<Bundle>,
    /// Requests that wait for an owner of this mount.
    pub(crate) queue: VecDeque<Asking<R>>,
    /// Requests that can't be decided before the engine has answered another one.
    pub(crate) behind: Vec<Asking<R>>,
    /// The numbers that are in use, or were a moment ago.
    pub(crate) numbers: Vec<u64>,
}

/// A lease of the engine for one owner.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) owner: Owner,
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    /// Whether it was granted to a waiter that a signal had just interrupted, and that has not
    /// returned yet.
    pub(crate) unclaimed: bool,
}

/// The lease of the engine for all byte ranges of a file.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) held: Held,
    pub(crate) ranges: Ranges,
}

/// A pending request.
#[derive(Debug)]
pub(crate) struct Asking<R> {
    pub(crate) number: u64,
    /// Distinguishes this request from others under the same number; the answer carries it.
    pub(crate) cookie: u64,
    pub(crate) ask: Ask,
    /// The reply to the program; `None` after a signal has interrupted the wait. Its place is then
    /// kept for a moment, because a restarted system call repeats its request.
    pub(crate) reply: Option<R>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) wants: Wants,
    /// Whether the request was given up, perhaps before the engine knows. Its number stays in use
    /// until its outcome is known, because the outcome could not be told from that of another
    /// request under the number.
    pub(crate) gone: bool,
    /// A tenure under its number that an event or a recall announced before the answer came.
    pub(crate) early: Option<Early>,
    /// Whether the lock changed since the request was submitted, perhaps after the engine decided
    /// it.
    pub(crate) news: bool,
    /// Whether the engine has refused the request, and will again until the lock changes.
    pub(crate) refused: bool,
}

/// A tenure whose beginning an event announced before the answer to the request came.
#[derive(Debug)]
pub(crate) struct Early {
    /// The queue place that the grant served.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) key: LeaseKey,
}

/// Whether a request is new, or has waited before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    New,
    Next,
}

/// The change that a grant of the request makes in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Hold,
    Bundle,
    /// To downgrade the hold to shared mode; no program waits for that.
    Less,
}

/// Whether a granted request could be entered in the table.
#[derive(Debug)]
pub(crate) enum Placed<R> {
    Yes(Asking<R>),
    /// The granted hold no longer fits, and the request must be made again.
    Again(Asking<R>),
}

impl<R> Default for File<R> {
    fn default() -> Self {
        let (holds, asks, queue) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { holds, asks, bundle: None, queue, behind: Vec::new(), numbers: Vec::new() }
    }
}

impl<R> File<R> {
    /// Converts the whole-file hold of `id` into a byte range. If the file has a bundle already,
    /// the bundle's lease covers this range too, and the owner's own hold is returned for release.
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

    /// Removes and returns a request that was submitted to the engine.
    pub(crate) fn take(&mut self, which: impl Fn(&Asking<R>) -> bool) -> Option<Asking<R>> {
        let place = self.asks.iter().position(which)?;
        Some(self.asks.remove(place))
    }

    pub(crate) fn holds_tenure(&self, token: Token) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).any(|held| held.token == token)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.bundle.is_none() && self.is_quiet()
    }

    /// Returns the hold with this number, be it an owner's or the bundle's.
    pub(crate) fn held(&self, number: u64) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.number == number)
    }

    pub(crate) fn held_mut(&mut self, number: u64) -> Option<&mut Held> {
        let bundle = self.bundle.iter_mut().map(|bundle| &mut bundle.held);
        self.holds.iter_mut().chain(bundle).find(|held| held.number == number)
    }

    /// Whether a request under this number was submitted and is pending. There must not be two:
    /// their answers could arrive in either order, and the earlier request would seem to undo the
    /// later one.
    pub(crate) fn is_asked(&self, number: u64) -> bool {
        self.asks.iter().any(|asking| asking.number == number)
    }

    /// Whether a hold or a pending request has this number.
    pub(crate) fn uses(&self, number: u64) -> bool {
        self.held(number).is_some() || self.is_asked(number)
    }

    /// Records a tenure that a number already has while its next request is unanswered.
    pub(crate) fn heard_early(&mut self, number: u64, key: LeaseKey) {
        let mut own = self.asks.iter_mut().filter(|asking| asking.number == number);
        if let Some(asking) = own.find(|asking| asking.early.is_none()) {
            asking.early = Some(Early { ticket: None, key });
        }
    }

    /// Whether the outcome of an earlier request of this owner is still unknown. If the next one
    /// were decided now, the owner could conflict with itself.
    pub(crate) fn is_awaited_by(&self, id: u64) -> bool {
        self.asks.iter().any(|asking| {
            let open = asking.gone || asking.ticket.is_none();
            open && asking.ask.owner.id == id && asking.wants != Wants::Less
        })
    }

    /// Whether no request is pending.
    pub(crate) fn is_quiet(&self) -> bool {
        self.asks.is_empty() && self.queue.is_empty() && self.behind.is_empty()
    }

    /// Whether an event about this lock may concern requests that wait here.
    pub(crate) fn speaks_of(&self, name: &LockName) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| &held.name);
        let asks = self.queue.iter().chain(&self.asks).map(|asking| &asking.ask.name);
        held.chain(asks).any(|other| other == name)
    }

    /// Records that the lock has changed, so that refused requests are tried again.
    pub(crate) fn hear(&mut self) {
        self.asks.iter_mut().for_each(|asking| asking.news = true);
        self.queue.iter_mut().for_each(|asking| asking.refused = false);
    }

    /// Whether a pending request extends a hold, so that the engine would refuse it rather than
    /// queue it.
    pub(crate) fn is_growing(&self) -> bool {
        let more = |asking: &Asking<R>| asking.ask.line == Waits::Yes && asking.ticket.is_none();
        self.asks.iter().any(|asking| more(asking) && self.held(asking.number).is_some())
    }

    /// Returns the numbers of all holds and pending requests.
    pub(crate) fn used(&self) -> Numbers {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| held.number);
        let asks = self.asks.iter().chain(&self.queue).chain(&self.behind);
        held.chain(asks.map(|asking| asking.number)).collect()
    }

    /// Whether retrying a waiting request could have another result than waiting again.
    pub(crate) fn may_go_on(&self, asking: &Asking<R>) -> bool {
        if asking.refused || asking.reply.is_none() {
            return false;
        }
        let Ask { owner, span, mode, .. } = asking.ask;
        let others = self.holds.iter().any(|held| {
            held.owner.id != owner.id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        });
        // An owner that already holds the file does not wait for a bundle request that waits for
        // it.
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

    /// Returns the tenure that the answer `token` to this request began, under the name and token
    /// that `mv` may have given it before the answer came.
    pub(crate) fn latest(&mut self, token: Token) -> LeaseKey {
        let early = self.early.take().map(|early| early.key);
        early.filter(|key| key.token > Some(token)).unwrap_or_else(|| self.key(token))
    }

    /// Whether a tenure that began under the number of this request and of a hold belongs to the
    /// request, rather than to a former hold of the number that `mv` has moved. `goes_on` tells
    /// whether the tenure continues one with this name and token.
    pub(crate) fn may_begin(&self, goes_on: impl Fn(&LockName, Option<Token>) -> bool) -> bool {
        let early = self.early.as_ref().map(|early| &early.key);
        goes_on(&self.ask.name, None) || early.is_some_and(|key| goes_on(&key.name, key.token))
    }

    /// Whether a program waits for the lock, or may return to wait for it.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.gone && self.wants != Wants::Less
    }

    /// Prevents that the number of this request is used again for the same open file.
    pub(crate) fn spend(&self, spent: &mut Numbers) {
        if self.wants == Wants::Hold && self.number == self.ask.owner.fh && !self.gone {
            spent.insert(self.number);
        }
    }

    /// Returns the query for the outcome of this request.
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

    /// Returns the request that downgrades this hold to shared mode, so that other readers can
    /// share it.
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
