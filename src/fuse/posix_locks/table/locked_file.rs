//! One file: its holds, its byte ranges, and the requests on their way.

use crate::engine::{ClientId, LeaseKey, LockName, Mode, Patch, Ticket, Token};
use crate::fuse::kernel::hash_maps::Numbers;
use crate::fuse::posix_locks::byte_ranges::{Owner, Ranges, Span};
use crate::fuse::posix_locks::table::messages::{Ask, Call, Effect, No, Recall, Waits};
use std::collections::VecDeque;

/// One file, by its inode.
#[derive(Debug)]
pub(crate) struct File<R> {
    /// Whole-file holds.
    pub(crate) holds: Vec<Held>,
    /// Whole-file requests, and a bundle's, that the engine has.
    pub(crate) asks: Vec<Asking<R>>,
    pub(crate) bundle: Option<Bundle>,
    /// Requests that wait for an owner of this mount.
    pub(crate) queue: VecDeque<Asking<R>>,
    /// Requests that can't be decided before the engine has answered another one.
    pub(crate) behind: Vec<Asking<R>>,
    /// The numbers that are in use, or were a moment ago.
    pub(crate) numbers: Vec<u64>,
}

/// A hold of the engine for one owner.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) owner: Owner,
    pub(crate) name: LockName,
    pub(crate) client: ClientId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    /// Granted to a waiter whose wait a signal had just interrupted, and that has not come back.
    pub(crate) unclaimed: bool,
}

/// The hold of the engine for all byte ranges of a file.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) held: Held,
    pub(crate) ranges: Ranges,
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Asking<R> {
    pub(crate) number: u64,
    /// The mark that tells this request from others under the same number: the answer brings it
    /// back.
    pub(crate) cookie: u64,
    pub(crate) ask: Ask,
    /// Gone when a signal has interrupted the wait: the place is kept for a moment, because a
    /// restarted system call asks again.
    pub(crate) reply: Option<R>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) wants: Wants,
    /// Nobody wants it any more, and the engine may not know yet. Until it is known what became of
    /// it, its number is in use: of another request under it one could not tell what is whose.
    pub(crate) gone: bool,
    /// A tenure under its number that an event or a recall announced before the answer came.
    pub(crate) early: Option<Early>,
    /// Something happened about the lock since the engine was asked, and perhaps after it decided.
    pub(crate) news: bool,
    /// The engine has refused it, and will until something happens about the lock.
    pub(crate) refused: bool,
}

/// A tenure that began, as an event said before the answer came.
#[derive(Debug)]
pub(crate) struct Early {
    /// The place in line that it was for.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) key: LeaseKey,
}

/// Whether a request has just come, or has waited until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    New,
    Next,
}

/// How a granted request is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    Hold,
    Bundle,
    /// Nothing: the number's hold becomes a shared one, and no program waits for that.
    Less,
}

/// Whether a grant could be entered.
#[derive(Debug)]
pub(crate) enum Placed<R> {
    Yes(Asking<R>),
    /// It is not to be had like this any more: to be asked for again.
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
    /// the bundle's engine hold covers this range too, and the owner's own hold is returned for
    /// release.
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

    /// Takes a request out that the engine has.
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

    /// The hold of this number, or the bundle's.
    pub(crate) fn held(&self, number: u64) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.number == number)
    }

    pub(crate) fn held_mut(&mut self, number: u64) -> Option<&mut Held> {
        let bundle = self.bundle.iter_mut().map(|bundle| &mut bundle.held);
        self.holds.iter_mut().chain(bundle).find(|held| held.number == number)
    }

    /// Whether the engine has a request for this lock under this number.
    pub(crate) fn asks_for(&self, number: u64, name: &LockName) -> bool {
        self.asks.iter().any(|asking| asking.number == number && asking.ask.name == *name)
    }

    /// Whether the engine has a request under this number. It must not have another: of two the
    /// answers could come in either order, and a later one would seem to be undone by an earlier.
    pub(crate) fn is_asked(&self, number: u64) -> bool {
        self.asks.iter().any(|asking| asking.number == number)
    }

    /// Whether the engine's holds and requests of this number are known here.
    pub(crate) fn uses(&self, number: u64) -> bool {
        self.held(number).is_some() || self.is_asked(number)
    }

    /// Records a tenure that a number has already, while its next request is unanswered.
    pub(crate) fn heard_early(&mut self, number: u64, key: LeaseKey) {
        let mut own = self.asks.iter_mut().filter(|asking| asking.number == number);
        if let Some(asking) = own.find(|asking| asking.early.is_none()) {
            asking.early = Some(Early { ticket: None, key });
        }
    }

    /// Whether it is open yet what became of an earlier request of this owner. Decided now, the
    /// owner could be in its own way.
    pub(crate) fn is_awaited_by(&self, id: u64) -> bool {
        self.asks.iter().any(|asking| {
            let open = asking.gone || asking.ticket.is_none();
            open && asking.ask.owner.id == id && asking.wants != Wants::Less
        })
    }

    /// Whether nobody asks or waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.asks.is_empty() && self.queue.is_empty() && self.behind.is_empty()
    }

    /// Whether an event about this lock may concern those who wait here.
    pub(crate) fn speaks_of(&self, name: &LockName) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| &held.name);
        let asks = self.queue.iter().chain(&self.asks).map(|asking| &asking.ask.name);
        held.chain(asks).any(|other| other == name)
    }

    /// Something has happened about the lock.
    pub(crate) fn hear(&mut self) {
        self.asks.iter_mut().for_each(|asking| asking.news = true);
        self.queue.iter_mut().for_each(|asking| asking.refused = false);
    }

    /// Whether a request is on its way that the engine would refuse rather than put in line: one
    /// for more of what is held.
    pub(crate) fn is_growing(&self) -> bool {
        let more = |asking: &Asking<R>| asking.ask.line == Waits::Yes && asking.ticket.is_none();
        self.asks.iter().any(|asking| more(asking) && self.held(asking.number).is_some())
    }

    /// The numbers of all that is held, asked for or waited for.
    pub(crate) fn used(&self) -> Numbers {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| held.number);
        let asks = self.asks.iter().chain(&self.queue).chain(&self.behind);
        held.chain(asks.map(|asking| asking.number)).collect()
    }

    /// Whether trying again could end otherwise than by waiting again.
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

    /// Asks what has become of it.
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

    /// The request that lets others that only read come in.
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
