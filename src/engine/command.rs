//! The commands of the engine (a closed list) and its answers.

use super::details::Patch;
use super::event::{LeaveReason, SessionEnd};
use super::lease::{
    Ends, LeaseTerms, Lifetime, Mode, Ownership, SessionId, StealReason, Ticket, Token,
};
use super::lease_terms::{Grace, Ttl};
use super::limits::{LimitedField, SPARED_MAX};
use super::name::{ClientId, LockName};
use super::refusal::Refusal;
use crate::time::{Span, Time};
use std::sync::Arc;

/// One request: what to do, and the id by which a repeat is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Repeating a request under the same id has no second effect and gets the first answer.
    pub request: Option<IdempotencyKey>,
    /// The operation to carry out.
    pub op: Op,
    /// The version of the rules by which it is carried out.
    pub rules: Rulebook,
    /// The place of this request among all requests of its sender: a copy that the network
    /// delivers late is refused. `None`: the sender sends no copies.
    pub order: Option<RequestOrder>,
}

/// The place of a request among those of one session, which has one sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestOrder {
    /// The session of the sender.
    pub session: SessionId,
    /// Rises with each request, from 1 on. The engine carries a number out once, and none below
    /// the last one: whatever became of such a request, its sender has sent later ones since.
    pub number: u64,
}

/// The version of the rules that a command follows. A journal written by an older latchfs replays
/// by the rules of its time, so that it comes to the tokens that clients have been given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Rulebook {
    /// An upgrade to exclusive keeps its token.
    First,
    /// An upgrade to exclusive mints a token. The answer to a request that waits is forgotten
    /// after a while, and requests of one client that no open file makes share a place in the
    /// queue.
    Second,
    /// The id of a request that waits names its place, and later the grant. Each exclusive
    /// request that no open file makes has a place of its own. A request may wait for the time
    /// from which on locks are granted.
    #[default]
    Third,
}

/// Rule 10: the id of a request, and a digest of all that the request says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The id.
    pub id: RequestId,
    /// Tells a repeat of the request from another request under the same id.
    pub digest: Digest,
}

/// An id of a caller's choosing. Two callers may choose the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The front end and the credential that it has authenticated, at most
    /// [`super::limits::CALLER_BYTES_MAX`] bytes. The server sets it; it is never read from a
    /// request.
    pub caller: Arc<str>,
    /// The key that the caller chose, at most [`super::limits::REQUEST_KEY_BYTES_MAX`] bytes.
    pub key: Arc<str>,
}

/// 128 bits of a cryptographic hash over a whole request, made by the front end that took it: the
/// lock and the options as they were sent, not as defaults and the state of the lock complete them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

/// An operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Advance time: expire everything that is due, and serve the next waiters.
    Settle,
    /// Take a lock, renew it, or wait for it.
    Acquire(Acquire),
    /// Make a lease last longer.
    Renew(Renew),
    /// Change what the holder said about the lock, and nothing else.
    Annotate(Annotate),
    /// Give a lock back.
    Release(Release),
    /// Leave the line.
    Leave(Leave),
    /// Carry a hold over to another name.
    Move(Move),
    /// Take a live lock away from its holders: an administrator's act.
    Steal(Steal),
    /// Begin a session.
    OpenSession(OpenSession),
    /// Renew a session, and with it all that hangs on it.
    KeepAlive(SessionId),
    /// End a session.
    EndSession(EndSession),
    /// Take whatever some clients hold and wait for away from them: an administrator's act.
    Reset(Reset),
}

impl Op {
    /// Whether it only ends holds and waits, so that nothing but waiters can get a token by it. A
    /// full disk must not stop such a command: somebody would keep a lock that is given back.
    pub const fn only_ends(&self) -> bool {
        matches!(self, Self::Settle | Self::Release(_) | Self::Leave(_) | Self::EndSession(_))
    }

    /// Returns how long what it makes lasts unrenewed, ttl and grace together.
    pub(super) fn lasts(&self) -> Span {
        match self {
            Self::Acquire(Acquire { term: LeaseTerms::Own(ttl, grace), .. })
            | Self::Renew(Renew { term: Some(LeaseTerms::Own(ttl, grace)), .. })
            | Self::Steal(Steal { term: LeaseTerms::Own(ttl, grace), .. })
            | Self::OpenSession(OpenSession { ttl: Some(ttl), grace, .. }) => {
                ttl.span() + grace.span()
            }
            _ => Span::ZERO,
        }
    }

    const fn patch(&self) -> Option<&Patch> {
        match self {
            Self::Acquire(ask) => Some(&ask.patch),
            Self::Renew(ask) => Some(&ask.patch),
            Self::Annotate(ask) => Some(&ask.patch),
            Self::Steal(ask) => Some(&ask.patch),
            _ => None,
        }
    }

    fn spares_too_many(&self) -> bool {
        matches!(self, Self::Reset(ask)
            if matches!(&ask.whose, ResetScope::AllBut(kept) if kept.len() > SPARED_MAX))
    }
}

/// Rule 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// Which lock.
    pub name: LockName,
    /// The client that asks.
    pub client: ClientId,
    /// Exclusive or shared.
    pub mode: Mode,
    /// The owner within the client: see [`Ownership`].
    pub hold: Ownership,
    /// How the lease is kept alive: by renewals or by a session.
    pub term: LeaseTerms,
    /// Whether to wait if the lock is not available.
    pub line: QueuePolicy,
    /// The details of the lease. An open file that takes a lock over leaves the file attributes as
    /// they are.
    pub patch: Patch,
}

/// Whether a request waits if the lock is not available now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePolicy {
    /// Be refused.
    Skip,
    /// Wait, until served or this much later (`None`: for ever).
    Join(Option<Span>),
}

/// Rule 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renew {
    /// The lease to renew.
    pub key: LeaseKey,
    /// How the lease is kept alive from now on, if that changes.
    pub term: Option<LeaseTerms>,
    /// Whether the ownership becomes [`Ownership::Exclusive`], as with a new ttl, grace or process.
    /// The mode stays as it is.
    pub firm: Firm,
    /// The changes of its details.
    pub patch: Patch,
    /// Whether it stands for an acquire, by a client that names its lease: then it counts in
    /// [`Tenure::acquisition`], and a release that was sent before it ends nothing.
    pub acquires: bool,
}

/// Whether a renewal leaves a loose hold loose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firm {
    /// As it was.
    Keep,
    /// Only by name from now on: no open file may take it over.
    Make,
}

/// Names a lease by its lock and holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseKey {
    /// Which lock.
    pub name: LockName,
    /// The holder.
    pub client: ClientId,
    /// The token, where the caller knows it: then only that tenure is meant.
    pub token: Option<Token>,
}

/// A change of the details only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotate {
    /// The lease to annotate.
    pub key: LeaseKey,
    /// The changes of its details.
    pub patch: Patch,
}

/// Rule 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The lease to release.
    pub key: LeaseKey,
    /// The acquire whose effect it ends, as [`Tenure::acquisition`] told it: refused once a later
    /// acquire was answered with the same tenure. `None`: whichever was last.
    pub acquisition: Option<u32>,
}

impl Release {
    /// Ends the hold of `key`, whichever acquire began or renewed it.
    pub const fn of(key: LeaseKey) -> Self {
        Self { key, acquisition: None }
    }
}

/// A waiter goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    /// Which lock.
    pub name: LockName,
    /// The place in its line.
    pub ticket: Ticket,
    /// Why, for the event.
    pub why: LeaveReason,
}

/// `mv A NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The lease that moves.
    pub from: LeaseKey,
    /// Where to.
    pub to: LockName,
    /// Whether to replace a lock that the same client holds under the target name.
    pub over: IfExists,
}

/// The effect of a [`Move`] on a lock that the same client holds under the target name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// Replaces it.
    Replace,
    /// Is refused.
    Refuse,
}

/// Rule 9.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steal {
    /// Which lock.
    pub name: LockName,
    /// The client that takes it.
    pub client: ClientId,
    /// Why, for the holder and the audit log.
    pub reason: StealReason,
    /// How the lease is kept alive: by renewals or by a session.
    pub term: LeaseTerms,
    /// The details of the new lease.
    pub patch: Patch,
}

/// Rule 8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// The client that opens it.
    pub client: ClientId,
    /// How long it lasts unrenewed. `None`: until it is ended, as that of a mount in the
    /// engine's own process: while that sleeps nobody else is served either.
    pub ttl: Option<Ttl>,
    /// How long its leases are in grace when it has expired.
    pub grace: Grace,
}

/// The end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndSession {
    /// Which.
    pub session: SessionId,
    /// `Closed` releases all that hangs on it. `Expired` puts it in grace: the client is gone
    /// without a word, and may come back.
    pub end: SessionEnd,
}

/// Ends all holds of the clients in its scope, and removes them from all queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// The clients that lose their holds and queue places.
    pub whose: ResetScope,
    /// The client on whose behalf the reset is made.
    pub by: ClientId,
    /// Why, for the holders and the audit log.
    pub reason: StealReason,
}

/// The clients whose holds and queue places a [`Reset`] ends; a client includes its users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetScope {
    /// All clients except these: the listed ones stay, and all others are taken to have left. If
    /// the list is empty, all clients.
    AllBut(Vec<ClientId>),
    /// Only this client.
    Of(ClientId),
}

/// The engine's answer to a command.
pub type Answer = Result<Outcome, Refusal>;

/// The effect of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Time has passed.
    Settled,
    /// A new tenure began.
    Granted(Tenure),
    /// The tenure goes on.
    Renewed(Tenure),
    /// In line.
    Waiting {
        /// The place.
        ticket: Ticket,
        /// How many are served before, from 0.
        ahead: usize,
    },
    /// Given back.
    Released,
    /// Out of the line.
    Left,
    /// Annotated.
    Annotated,
    /// The hold has another name and token.
    Moved(Tenure),
    /// Taken away; the new tenure begins after the steal grace.
    Stolen(Tenure),
    /// The session is open.
    SessionOpened(SessionId),
    /// The session lasts until then.
    KeptAlive(Time),
    /// The session is over.
    SessionEnded,
    /// So many holds and places in lines were taken away.
    Reset {
        /// Holds.
        holds: usize,
        /// Places.
        waits: usize,
    },
    /// Nothing: the request had been carried out before.
    Replayed(Box<Replay>),
}

/// The first answer to a request that was repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// When the request was carried out.
    pub at: Time,
    /// The outcome of the first execution.
    pub first: Outcome,
    /// When the tenure or the session of `first` was to end, as things stood then.
    pub ends: Option<Ends>,
}

impl Outcome {
    /// Returns what the request did when it was carried out, now or before.
    #[must_use]
    pub fn first(self) -> Self {
        match self {
            Self::Replayed(replay) => replay.first,
            done => done,
        }
    }

    /// Returns the tenure that this speaks of.
    pub const fn tenure(&self) -> Option<&Tenure> {
        match self {
            Self::Granted(tenure)
            | Self::Renewed(tenure)
            | Self::Moved(tenure)
            | Self::Stolen(tenure) => Some(tenure),
            _ => None,
        }
    }
}

/// The tenure that an outcome speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// Its token.
    pub token: Token,
    /// How it is kept alive: by its own renewals, until a time, or by a session.
    pub life: Lifetime,
    /// When it began, or will begin.
    pub acquired_at: Time,
    /// See [`Lease::acquisition`](super::lease::Lease::acquisition).
    pub acquisition: u32,
}

impl Command {
    /// Whether the state is another one after this answer, apart from what events tell: the answer
    /// to a request with an id is remembered.
    pub fn changes_state(&self, answer: &Answer) -> bool {
        match answer {
            Err(_) => false,
            Ok(Outcome::Settled) => self.request.is_some(),
            Ok(_) => true,
        }
    }

    /// Returns a part that is too long, if there is one.
    pub(super) fn oversized(&self) -> Option<LimitedField> {
        let id = self.request.as_ref().map(|request| &request.id);
        let key = id.filter(|id| id.key.is_empty() || id.key.len() > LimitedField::Key.max());
        let caller = id.filter(|id| id.caller.len() > LimitedField::Caller.max());
        key.map(|_| LimitedField::Key)
            .or_else(|| caller.map(|_| LimitedField::Caller))
            .or_else(|| self.op.patch().and_then(Patch::oversized))
            .or_else(|| self.op.spares_too_many().then_some(LimitedField::Spared))
    }
}

impl From<Op> for Command {
    fn from(op: Op) -> Self {
        Self { request: None, op, rules: Rulebook::default(), order: None }
    }
}
