//! One file: its holds, its byte ranges, and the requests on their way.

use super::super::ranges::{Owner, Ranges, Span};
use super::ask::{Ask, Effect, No};
use crate::engine::{
    Acquire, ClientId, Hold, LeaseKey, Line, LockName, Mode, Op, OpenId, Patch, Release, SessionId,
    Term, Ticket, Token,
};
use std::collections::{HashSet, VecDeque};

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
    /// Nobody wants it any more, and the engine has not answered yet: until then its number is in
    /// use, or another request under it could share its place in line, and lose it with it.
    pub(super) gone: bool,
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
}

impl<R> Default for File<R> {
    fn default() -> Self {
        let (holds, asks, queue) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { holds, asks, bundle: None, queue, numbers: Vec::new() }
    }
}

impl<R> File<R> {
    /// What `id` holds of the whole file becomes a range like others. Where there are some already,
    /// so that the engine's hold for them serves for this one too, its own hold comes out.
    pub(super) fn bundle_up(&mut self, id: u64) -> Option<Held> {
        let place = self.holds.iter().position(|held| held.owner.id == id)?;
        let held = self.holds.remove(place);
        if let Some(bundle) = &mut self.bundle {
            bundle.ranges.lock(held.owner, Span::WHOLE, held.mode);
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
        let holds_none = self.holds.is_empty() && self.bundle.is_none();
        holds_none && self.asks.is_empty() && self.queue.is_empty()
    }

    /// The numbers of all that is held, asked for or waited for.
    pub(super) fn used(&self) -> HashSet<u64> {
        let bundle = self.bundle.iter().map(|bundle| &bundle.held);
        let held = self.holds.iter().chain(bundle).map(|held| held.number);
        let asks = self.asks.iter().chain(&self.queue).map(|asking| asking.number);
        held.chain(asks).collect()
    }

    /// Whether trying again could end otherwise than by waiting again.
    pub(super) fn may_go_on(&self, asking: &Asking<R>) -> bool {
        let Ask { owner, span, mode, .. } = asking.ask;
        let others = self.holds.iter().any(|held| {
            held.owner.id != owner.id && (held.mode == Mode::Exclusive || mode == Mode::Exclusive)
        });
        let bundle_comes = self.asks.iter().any(|other| other.wants == Wants::Bundle);
        match &self.bundle {
            Some(bundle) => bundle.ranges.conflict(owner.id, span, mode).is_none(),
            None => !others && !bundle_comes,
        }
    }
}

impl<R> Asking<R> {
    pub(super) fn is_parked_for(&self, ask: &Ask) -> bool {
        self.reply.is_none()
            && !self.gone
            && self.ask.owner.id == ask.owner.id
            && self.ask.mode == ask.mode
            && self.ask.span == ask.span
    }
}

impl Held {
    pub(super) fn key(&self) -> LeaseKey {
        LeaseKey { name: self.name.clone(), client: self.client.clone(), token: Some(self.token) }
    }

    pub(super) fn release(&self) -> Op {
        Op::Release(Release { key: self.key() })
    }

    /// Others that only read may come in.
    pub(super) fn share(&self, session: SessionId) -> Op {
        Op::Acquire(Acquire {
            name: self.name.clone(),
            client: self.client.clone(),
            mode: Mode::Shared,
            hold: Hold::Open(OpenId { session, number: self.number }),
            term: Term::Session(session),
            line: Line::Skip,
            patch: Patch::default(),
        })
    }
}

pub(super) fn answer<R>(asking: Asking<R>, result: Result<(), No>, todo: &mut Vec<Effect<R>>) {
    if let Some(reply) = asking.reply {
        todo.push(Effect::Reply(reply, result));
    }
}
