//! One file: its holds, its byte ranges, and the requests on their way.

use super::super::ranges::{Owner, Ranges, Span};
use super::ask::{Ask, Call, Effect, No, Recall, Waits};
use crate::engine::{ClientId, LeaseKey, LockName, Mode, Patch, Ticket, Token};
use crate::fuse::numbered::Numbers;
use std::collections::VecDeque;

/// One file, by its inode.
#[derive(Debug)]
pub(super) struct File<R> {
    /// Whole-file holds.
    pub(super) holds: Vec<Held>,
    /// Whole-file requests, and a bundle's, that the engine has.
    pub(super) asks: Vec<Asking<R>>,
    pub(super) bundle: Option<Bundle>,
    /// Requests that wait for an owner of this mount.
    pub(super) queue: VecDeque<Asking<R>>,
    /// Requests that can't be decided before the engine has answered another one.
    pub(super) behind: Vec<Asking<R>>,
    /// The numbers that are in use, or were a moment ago.
    pub(super) numbers: Vec<u64>,
}

/// A hold of the engine for one owner.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) number: u64,
    pub(super) owner: Owner,
    pub(super) name: LockName,
    pub(super) client: ClientId,
    pub(super) token: Token,
    pub(super) mode: Mode,
    /// Granted to a waiter whose wait a signal had just interrupted, and that has not come back.
    pub(super) unclaimed: bool,
}

/// The hold of the engine for all byte ranges of a file.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) held: Held,
    pub(super) ranges: Ranges,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Asking<R> {
    pub(super) number: u64,
    /// What tells this request from others under the same number: the answer brings it back.
    pub(super) cookie: u64,
    pub(super) ask: Ask,
    /// Gone when a signal has interrupted the wait: the place is kept for a moment, because a
    /// restarted system call asks again.
    pub(super) reply: Option<R>,
    pub(super) ticket: Option<Ticket>,
    pub(super) wants: Wants,
    /// Nobody wants it any more, and the engine may not know yet. Until it is known what became of
    /// it, its number is in use: of another request under it one could not tell what is whose.
    pub(super) gone: bool,
    /// What was heard of its number before the answer.
    pub(super) early: Option<Early>,
    /// Something happened about the lock since the engine was asked, and perhaps after it decided.
    pub(super) news: bool,
    /// The engine has refused it, and will until something happens about the lock.
    pub(super) refused: bool,
}

/// A tenure that began, as an event said before the answer came.
#[derive(Debug)]
pub(super) struct Early {
    /// The place in line that it was for.
    pub(super) ticket: Option<Ticket>,
    pub(super) key: LeaseKey,
}

/// Whether a request has just come, or has waited until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    New,
    Next,
}

/// What a granted request becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    Hold,
    Bundle,
    /// Nothing: the number's hold becomes a shared one, and no program waits for that.
    Less,
}

/// What became of a grant.
#[derive(Debug)]
pub(super) enum Placed<R> {
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
    /// What `id` holds of the whole file becomes a range like others. Where there are some already,
    /// so that the engine's hold for them serves for this one too, its own hold comes out.
    pub(super) fn bundle_up(&mut self, id: u64) -> Option<Held> {
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
    pub(super) fn take(&mut self, which: impl Fn(&Asking<R>) -> bool) -> Option<Asking<R>> {
        let place = self.asks.iter().position(which)?;
        Some(self.asks.remove(place))
    }

    pub(super) fn holds_tenure(&self, token: Token) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).any(|held| held.token == token)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.bundle.is_none() && self.is_quiet()
    }

    /// The hold of this number, or the bundle's.
    pub(super) fn held(&self, number: u64) -> Option<&Held> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        self.holds.iter().chain(bundle).find(|held| held.number == number)
    }

    pub(super) fn held_mut(&mut self, number: u64) -> Option<&mut Held> {
        let bundle = self.bundle.iter_mut().map(|bundle| &mut bundle.held);
        self.holds.iter_mut().chain(bundle).find(|held| held.number == number)
    }

    /// Whether the engine has a request for this lock under this number.
    pub(super) fn asks_for(&self, number: u64, name: &LockName) -> bool {
        self.asks.iter().any(|asking| asking.number == number && asking.ask.name == *name)
    }

    /// Whether the engine has a request under this number. It must not have another: of two the
    /// answers could come in either order, and a later one would seem to be undone by an earlier.
    pub(super) fn is_asked(&self, number: u64) -> bool {
        self.asks.iter().any(|asking| asking.number == number)
    }

    /// Whether the engine's holds and requests of this number are known here.
    pub(super) fn uses(&self, number: u64) -> bool {
        self.held(number).is_some() || self.is_asked(number)
    }

    /// What a number has already, while its next request is on its way.
    pub(super) fn heard_early(&mut self, number: u64, key: LeaseKey) {
        let mut own = self.asks.iter_mut().filter(|asking| asking.number == number);
        if let Some(asking) = own.find(|asking| asking.early.is_none()) {
            asking.early = Some(Early { ticket: None, key });
        }
    }

    /// Whether it is open yet what became of an earlier request of this owner. Decided now, the
    /// owner could be in its own way.
    pub(super) fn is_awaited_by(&self, id: u64) -> bool {
        self.asks.iter().any(|asking| {
            let open = asking.gone || asking.ticket.is_none();
            open && asking.ask.owner.id == id && asking.wants != Wants::Less
        })
    }

    /// Whether nobody asks or waits.
    pub(super) fn is_quiet(&self) -> bool {
        self.asks.is_empty() && self.queue.is_empty() && self.behind.is_empty()
    }

    /// Whether an event about this lock may concern those who wait here.
    pub(super) fn speaks_of(&self, name: &LockName) -> bool {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| &held.name);
        let asks = self.queue.iter().chain(&self.asks).map(|asking| &asking.ask.name);
        held.chain(asks).any(|other| other == name)
    }

    /// Something has happened about the lock.
    pub(super) fn hear(&mut self) {
        self.asks.iter_mut().for_each(|asking| asking.news = true);
        self.queue.iter_mut().for_each(|asking| asking.refused = false);
    }

    /// Whether a request is on its way that the engine would refuse rather than put in line: one
    /// for more of what is held.
    pub(super) fn is_growing(&self) -> bool {
        let more = |asking: &Asking<R>| asking.ask.line == Waits::Yes && asking.ticket.is_none();
        self.asks.iter().any(|asking| more(asking) && self.held(asking.number).is_some())
    }

    /// The numbers of all that is held, asked for or waited for.
    pub(super) fn used(&self) -> Numbers {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| held.number);
        let asks = self.asks.iter().chain(&self.queue).chain(&self.behind);
        held.chain(asks.map(|asking| asking.number)).collect()
    }

    /// Whether trying again could end otherwise than by waiting again.
    pub(super) fn may_go_on(&self, asking: &Asking<R>) -> bool {
        if asking.refused || asking.reply.is_none() {
            return false;
        }
        let Ask { owner, span, mode, .. } = asking.ask;
        let others = self.holds.iter().any(|held| {
            held.owner.id != owner.id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        });
        // Who has the file already waits for nothing that waits for it.
        let own = self.holds.iter().any(|held| held.owner.id == owner.id);
        let bundle_comes = self.asks.iter().any(|other| other.wants == Wants::Bundle) && !own;
        match &self.bundle {
            Some(bundle) => bundle.ranges.conflict(owner.id, span, mode).is_none(),
            None => !others && !bundle_comes,
        }
    }
}

impl<R> Asking<R> {
    pub(super) const fn new(ask: Ask, reply: Option<R>, wants: Wants) -> Self {
        let (number, cookie, ticket, early) = (0, 0, None, None);
        let (gone, news, refused) = (false, false, false);
        Self { number, cookie, ask, reply, ticket, wants, gone, early, news, refused }
    }

    pub(super) fn key(&self, token: Token) -> LeaseKey {
        let (name, client) = (self.ask.name.clone(), self.ask.client.clone());
        LeaseKey { name, client, token: Some(token) }
    }

    /// Asks what has become of it.
    pub(super) fn recall(&self) -> Recall {
        Recall { number: self.number, name: self.ask.name.clone(), token: None }
    }

    pub(super) fn is_parked_for(&self, ask: &Ask) -> bool {
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
    pub(super) fn key(&self) -> LeaseKey {
        LeaseKey { name: self.name.clone(), client: self.client.clone(), token: Some(self.token) }
    }

    /// The request that lets others that only read come in.
    pub(super) fn less<R>(&self, ino: u64) -> Asking<R> {
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

pub(super) fn answer<R>(asking: Asking<R>, result: Result<(), No>, todo: &mut Vec<Effect<R>>) {
    if let Some(reply) = asking.reply {
        todo.push(Effect::Reply(reply, result));
    }
}
