//! The commands of the engine, which are a closed list, and the answers to them.
//!
//! The answers to commands.
//!
//! The ids and numbers of requests, by which the engine recognizes repeats and late copies of them.

use super::details::Patch;
use super::event::{LeaveReason, SessionEnd};
use super::handover::{Handover, Previous};
pub use super::hold_off::EndHoldOff;
use super::lease::{
    Ends, LeaseTerms, Lifetime, Mode, OpenId, Ownership, SessionId, StealReason, Ticket, Token,
};
use super::name::{ClientId, LockName};
use super::refusal::Refusal;
use super::subject::{ChangedLocks, OpKind, OpSubject};
use crate::time::{Span, Time};
use crate::values::details::{HANDOVER_BYTES_MAX, LimitedField, SPARED_MAX};
use crate::values::lease::{Grace, Ttl};
use std::fmt;
use std::sync::Arc;

/// One request: an operation, and the id that identifies a repeat of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The id of the request. A repeat under the same id has no second effect and gets the first
    /// answer.
    pub request: Option<IdempotencyKey>,
    /// The operation to carry out.
    pub op: Op,
    /// The number below which the sender has the answers to all its numbered requests, or no longer
    /// wants them: it repeats none of these. Counts only for a request with a number.
    pub answered_below: u64,
}

/// An operation of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Advance time: expire everything that is due, and serve the next waiters.
    Settle,
    /// Take a lock, renew it, or wait for it.
    Acquire(Acquire),
    /// Make a lease last longer.
    Renew(Renew),
    /// Change the details of a lease, and nothing else.
    Annotate(Annotate),
    /// Release a lock.
    Release(Release),
    /// Leave a queue.
    Leave(Leave),
    /// Move a lease to another name.
    Move(Move),
    /// Take a live lock away from its holders: an administrative operation.
    Steal(Steal),
    /// Open a session.
    OpenSession(OpenSession),
    /// Renew a session, and with it all leases that are bound to it.
    KeepAlive(SessionId),
    /// End a session.
    EndSession(EndSession),
    /// Take all locks and queue places from a set of clients: an administrative operation.
    Reset(Reset),
    /// Forget a name that is remembered beyond a tenure: an administrative operation.
    Forget(Forget),
    /// Grant locks from now on, although the hold-off is not over: an administrative operation.
    EndHoldOff(EndHoldOff),
    /// Do nothing to this lock: the command that the build for the tests of upgrades adds.
    #[cfg(feature = "planted-version")]
    Planted(LockName),
}

impl Op {
    /// Returns what the operation is about.
    pub fn subject(&self) -> OpSubject<'_> {
        match self {
            Self::Settle => OpSubject::of(OpKind::Settle),
            Self::Acquire(ask) => {
                let subject = OpSubject::of_lock(OpKind::Acquire, &ask.name).by(&ask.client);
                subject.needing(ask.hold, Some(ask.term))
            }
            Self::Renew(ask) => ask.key.subject(OpKind::Renew).needing(Ownership::Client, ask.term),
            Self::Annotate(ask) => ask.key.subject(OpKind::Annotate),
            // The lease of an open file may have been moved to any name.
            Self::Release(ask) if ask.open.is_some() => {
                OpSubject { changes: ChangedLocks::Any, ..ask.key.subject(OpKind::Release) }
            }
            Self::Release(ask) => ask.key.subject(OpKind::Release),
            Self::Leave(ask) => OpSubject::of_lock(OpKind::Leave, &ask.name),
            Self::Move(ask) => {
                OpSubject { new_name: Some(&ask.to), ..ask.from.subject(OpKind::Move) }
            }
            Self::Steal(ask) => {
                let subject = OpSubject::of_lock(OpKind::Steal, &ask.name).by(&ask.client);
                subject.needing(Ownership::Client, Some(ask.term))
            }
            Self::OpenSession(ask) => OpSubject::of(OpKind::OpenSession).by(&ask.client),
            Self::KeepAlive(id) => {
                OpSubject { sessions: [Some(*id), None], ..OpSubject::of(OpKind::KeepAlive) }
            }
            Self::EndSession(ask) => OpSubject {
                sessions: [Some(ask.session), None],
                changes: ChangedLocks::Any,
                ..OpSubject::of(OpKind::EndSession)
            },
            Self::Reset(ask) => {
                OpSubject { changes: ChangedLocks::Any, ..OpSubject::of(OpKind::Reset).by(&ask.by) }
            }
            Self::Forget(ask) => OpSubject::of_lock(OpKind::Forget, &ask.name).by(&ask.by),
            Self::EndHoldOff(ask) => OpSubject {
                changes: ChangedLocks::Any,
                ..OpSubject::of(OpKind::EndHoldOff).by(&ask.by)
            },
            #[cfg(feature = "planted-version")]
            Self::Planted(name) => OpSubject::of_lock(OpKind::Planted, name),
        }
    }

    /// Whether the operation may add a lock, a waiter or a session, for which there must be room.
    pub const fn needs_room(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Steal(_) | Self::OpenSession(_))
    }

    /// Whether the operation only ends leases and waits, so that only waiters can get a token by
    /// it. A full disk must not block such a command: a released lock would stay held.
    pub const fn only_ends(&self) -> bool {
        matches!(self, Self::Settle | Self::Release(_) | Self::Leave(_) | Self::EndSession(_))
    }

    /// Returns how long the lease or session that the operation creates lasts unrenewed, ttl and
    /// grace together.
    pub(crate) fn lasts(&self) -> Span {
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

    /// Returns the handover that the operation sets, if it sets one.
    pub const fn handover(&self) -> Option<&Handover> {
        match self {
            Self::Annotate(ask) => ask.handover.as_ref(),
            Self::Release(ask) => ask.handover.as_ref(),
            _ => None,
        }
    }

    /// Returns the length of all texts in the operation, apart from those of its subject.
    fn text_bytes(&self) -> usize {
        let own = match self {
            Self::Steal(ask) => ask.reason.as_str().len(),
            Self::EndHoldOff(ask) => ask.reason.as_str().len(),
            Self::Reset(ask) => ask.reason.as_str().len() + ask.scope_bytes(),
            _ => 0,
        };
        let handover = self.handover().map_or(0, |handover| handover.text.len());
        own + self.patch().map_or(0, Patch::text_bytes) + handover
    }

    fn hands_over_too_much(&self) -> bool {
        self.handover().is_some_and(|handover| handover.text.len() > HANDOVER_BYTES_MAX)
    }

    fn spares_too_many(&self) -> bool {
        matches!(self, Self::Reset(ask)
            if matches!(&ask.whose, ResetScope::AllBut(kept) if kept.len() > SPARED_MAX))
    }
}

/// Acquires a lock (rule 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// The name of the lock.
    pub name: LockName,
    /// The client that acquires the lock.
    pub client: ClientId,
    /// The requested mode of the lock: exclusive or shared.
    pub mode: Mode,
    /// The owner of the lease within the client: see [`Ownership`].
    pub hold: Ownership,
    /// How the lease is kept alive: by renewals or by a session.
    pub term: LeaseTerms,
    /// Whether to wait if the lock is not available.
    pub line: QueuePolicy,
    /// The details of the lease. An open file that takes a lock over leaves the file attributes as
    /// they are.
    pub patch: Patch,
    /// The token of a lease of the client that its open file takes over, as it takes over one of
    /// [`Ownership::Client`]: the program wrote the text of the lock, or its ttl, through that
    /// file. If no lease has this token, or another open file owns it, the acquire is like any
    /// other.
    pub takes_over: Option<Token>,
    /// Whether the name is remembered from now on: its tenures may then set handovers.
    pub remember: bool,
    /// The note of the lease: the field that the build for the tests of upgrades adds.
    #[cfg(feature = "planted-version")]
    pub planted: Option<std::sync::Arc<str>>,
}

impl Acquire {
    /// Returns an acquire of an exclusive lock for the client as a whole, which does not wait. Each
    /// acquire is made from it and names only the fields that differ, so that a new field concerns
    /// only the callers that offer it.
    pub fn new(name: LockName, client: ClientId, term: LeaseTerms) -> Self {
        let (mode, hold, line) = (Mode::Exclusive, Ownership::Client, QueuePolicy::Skip);
        let (patch, takes_over, remember) = (Patch::default(), None, false);
        Self {
            name,
            client,
            mode,
            hold,
            term,
            line,
            patch,
            takes_over,
            remember,
            #[cfg(feature = "planted-version")]
            planted: None,
        }
    }
}

/// Whether a request waits if the lock is not available now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePolicy {
    /// A request that conflicts with a lease is refused at once.
    Skip,
    /// The request waits until it is granted or this time has passed (`None`: without limit).
    Join(Option<Span>),
}

/// Renews a lease (rule 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renew {
    /// The lease to renew.
    pub key: LeaseKey,
    /// How the lease is kept alive from now on, if that changes.
    pub term: Option<LeaseTerms>,
    /// Whether the renewal changes [`Ownership::Client`] to [`Ownership::Exclusive`], for example
    /// because it sets a ttl, a grace or a process. The mode of the lock, exclusive or shared, does
    /// not change.
    pub firm: Firm,
    /// The changes to the details of the lease.
    pub patch: Patch,
    /// Whether the renewal takes the place of an acquire: the client sent it to acquire a lock that
    /// it holds already. Such a renewal counts in [`Tenure::acquisition`], so that a release that
    /// was sent before it does not end the lease.
    pub acquires: bool,
}

/// Whether a renewal changes [`Ownership::Client`] to [`Ownership::Exclusive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firm {
    /// The ownership stays as it is.
    Keep,
    /// The ownership becomes exclusive: no open file may take the lease over.
    Make,
}

/// Identifies a lease by its lock and holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseKey {
    /// The name of the lock.
    pub name: LockName,
    /// The client that holds the lock.
    pub client: ClientId,
    /// The fencing token, if the caller knows it: the key then matches only the lease with this
    /// token.
    pub token: Option<Token>,
}

impl LeaseKey {
    /// Returns the subject of an operation on the lease.
    const fn subject(&self, kind: OpKind) -> OpSubject<'_> {
        let subject = OpSubject::of_lock(kind, &self.name).by(&self.client);
        OpSubject { token: self.token, ..subject }
    }
}

/// Changes the details of a lease, or the handover of its name, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotate {
    /// The lease to annotate.
    pub key: LeaseKey,
    /// The changes to the details of the lease.
    pub patch: Patch,
    /// The handover to set. The key must then name the token of the lease.
    pub handover: Option<Handover>,
}

/// Releases a lock (rule 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The lease to release.
    pub key: LeaseKey,
    /// The acquire whose effect the release ends, by its [`Tenure::acquisition`]: the release is
    /// refused if a later acquire has renewed the same lease. `None` matches any acquire.
    pub acquisition: Option<u32>,
    /// The open file whose lease ends, whatever name and token `mv` has given that lease.
    pub open: Option<OpenId>,
    /// The handover to set in the same step. The key must then name the token of the lease.
    pub handover: Option<Handover>,
    /// Whether the holder knows that the lock was taken from it, and says that it has stopped. The
    /// key must then name the token of the tenure.
    pub acknowledges: bool,
}

impl Release {
    /// Returns a release that ends the lease of `key`, whichever acquire last began or renewed that
    /// lease.
    pub const fn of(key: LeaseKey) -> Self {
        Self { key, acquisition: None, open: None, handover: None, acknowledges: false }
    }

    /// Returns a release that ends the lease of the open file `open`. `key` is the name and token
    /// under which the holder last knew the lease.
    pub const fn of_open_file(open: OpenId, key: LeaseKey) -> Self {
        Self { key, acquisition: None, open: Some(open), handover: None, acknowledges: false }
    }
}

/// Removes a waiter from a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    /// The name of the lock.
    pub name: LockName,
    /// The ticket of the waiter.
    pub ticket: Ticket,
    /// The reason why the waiter leaves, for the event that reports it.
    pub why: LeaveReason,
}

/// Moves a lease to another name, as `mv` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The lease that moves.
    pub from: LeaseKey,
    /// The new name.
    pub to: LockName,
    /// Whether to replace a lock that the same client holds under the target name.
    pub over: IfExists,
}

/// The effect of a [`Move`] on a lock that the same client holds under the target name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// The move replaces the lock under the target name.
    Replace,
    /// The move is refused.
    Refuse,
}

/// Takes a live lock away from its holders (rule 9). The lock of a remembered name is not usable
/// before its holder has acknowledged the steal by a release, or its lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steal {
    /// The name of the lock.
    pub name: LockName,
    /// The token of the only tenure that is taken, with its seat if the lock has seats; `None`
    /// takes the lock from all its holders, as an exclusive one.
    pub only: Option<Token>,
    /// The client that takes the lock.
    pub client: ClientId,
    /// The reason, for the previous holder and the audit log.
    pub reason: StealReason,
    /// How the lease is kept alive: by renewals or by a session.
    pub term: LeaseTerms,
    /// The details of the new lease.
    pub patch: Patch,
    /// Whether the new lease begins after the steal grace also if the name is remembered. The end
    /// of the holder's tenure is unknown then.
    pub at_once: bool,
}

/// Opens a session (rule 8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// The client that owns the session.
    pub client: ClientId,
    /// How long the session lasts unrenewed. `None`: until it is ended, which suits a mount in the
    /// engine's own process: while that process sleeps, it serves no other client either.
    pub ttl: Option<Ttl>,
    /// The grace of the leases that are bound to the session, from its expiry on.
    pub grace: Grace,
}

/// Ends a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndSession {
    /// The id of the session.
    pub session: SessionId,
    /// `Closed` releases the leases that are bound to the session. `Expired` puts them in grace:
    /// the client disappeared without closing the session, and may come back. `Revoked` keeps those
    /// of remembered names from others for as long as the session would have lived.
    pub end: SessionEnd,
}

/// Ends all leases of a set of clients, and removes these clients from all queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// The part of the reset that this command carries out.
    pub part: ResetPart,
    /// The clients that lose their leases and their places in queues.
    pub whose: ResetScope,
    /// The client on whose behalf the reset is made.
    pub by: ClientId,
    /// The reason, for the previous holders and the audit log.
    pub reason: StealReason,
}

impl Reset {
    fn scope_bytes(&self) -> usize {
        let part = match &self.part {
            ResetPart::Names(first, last) => first.as_str().len() + last.as_str().len(),
            ResetPart::Rest { .. } => 0,
        };
        let whose = match &self.whose {
            ResetScope::AllBut(kept) => {
                let each = |client: &ClientId| size_of_val(client) + client.as_str().len();
                kept.iter().map(each).sum()
            }
            ResetScope::Of(client) => client.as_str().len(),
        };
        part + whose
    }
}

/// The part of a reset that one command carries out. A backend may split a reset of many locks into
/// several commands, so that other requests are carried out between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetPart {
    /// The locks with names from the first name to the second. The command answers no request: the
    /// answer is not remembered.
    Names(LockName, LockName),
    /// All locks. The earlier parts have ended this many leases and queue places, which the answer
    /// includes.
    Rest {
        /// The number of leases that the earlier parts have ended.
        holds: usize,
        /// The number of waiters that the earlier parts have removed.
        waits: usize,
    },
}

/// The clients to which a [`Reset`] applies. A client such as `laptop1` stands also for its users,
/// such as `laptop1:alice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetScope {
    /// All clients except the listed ones and their users. An empty list means all clients.
    AllBut(Vec<ClientId>),
    /// Only this client and its users.
    Of(ClientId),
}

/// Makes the engine forget a name that it remembers beyond a tenure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forget {
    /// The name of the lock.
    pub name: LockName,
    /// The client on whose behalf the name is forgotten.
    pub by: ClientId,
}

impl Command {
    /// Returns the command with an id, if `request` is one.
    #[must_use]
    pub fn with_request(self, request: Option<IdempotencyKey>) -> Self {
        Self { request, ..self }
    }

    /// Returns the number of the request, if its id is a number.
    pub fn number(&self) -> Option<RequestNumber> {
        match self.request.as_ref()?.id.key {
            RequestKey::Text(_) => None,
            RequestKey::Number(number) => Some(number),
        }
    }

    /// Whether the command changed the state of the engine, apart from the events that it produced.
    /// An [`Op::Settle`] with a request id changes the state, since its answer is remembered.
    pub fn changes_state(&self, answer: &Answer) -> bool {
        match answer {
            Err(_) => false,
            Ok(Outcome::Settled) => self.request.is_some(),
            Ok(_) => true,
        }
    }

    /// Returns the weight of the command: an estimate of its size in bytes, in memory or encoded,
    /// whichever is more.
    pub fn weight(&self) -> usize {
        let id = self.request.as_ref().map(|request| &request.id);
        let id = id.map_or(0, |id| id.caller.len() + id.key.text_bytes());
        let OpSubject { name, new_name, client, .. } = self.op.subject();
        let names = [name, new_name].into_iter().flatten().map(|name| name.as_str().len());
        let subject = names.sum::<usize>() + client.map_or(0, |client| client.as_str().len());
        size_of::<Self>() + id + subject + self.op.text_bytes()
    }

    /// Returns a part of the command that is too long, if there is one.
    pub(crate) fn oversized(&self) -> Option<LimitedField> {
        let id = self.request.as_ref().map(|request| &request.id);
        let is_oversized = |key: &Arc<str>| key.is_empty() || key.len() > LimitedField::Key.max();
        let key = id.filter(|id| matches!(&id.key, RequestKey::Text(key) if is_oversized(key)));
        let caller = id.filter(|id| id.caller.len() > LimitedField::Caller.max());
        key.map(|_| LimitedField::Key)
            .or_else(|| caller.map(|_| LimitedField::Caller))
            .or_else(|| self.op.patch().and_then(Patch::oversized))
            .or_else(|| self.op.spares_too_many().then_some(LimitedField::Spared))
            .or_else(|| self.op.hands_over_too_much().then_some(LimitedField::Handover))
    }
}

impl From<Op> for Command {
    fn from(op: Op) -> Self {
        Self { request: None, op, answered_below: 0 }
    }
}

/// The engine's answer to a command.
pub type Answer = Result<Outcome, Refusal>;

/// The effect of a command that was not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The answer to [`Op::Settle`]: all expiries and timeouts that were due have taken effect.
    Settled,
    /// The lock was granted: a tenure (a possession of the lock under one fencing token) began.
    Granted(Tenure),
    /// The client's own lease was renewed. Its token is the same, unless the request changed the
    /// mode of the lease from shared to exclusive.
    Renewed(Tenure),
    /// The request waits in the queue.
    Waiting {
        /// The ticket: the number of the request's place in the queue.
        ticket: Ticket,
        /// The number of waiters before it in the queue.
        before: usize,
    },
    /// The lock was released.
    Released,
    /// The waiter left the queue.
    Left,
    /// The details of the lease were changed.
    Annotated,
    /// The lease was moved to another lock name, under a new token.
    Moved(Tenure),
    /// The lock was taken from its holders. The new holder may use it after the steal grace, the
    /// time in which a stolen lock is unusable.
    Stolen(Tenure),
    /// The session is open.
    SessionOpened(SessionId),
    /// The session was kept alive, and lasts until the time in this variant.
    KeptAlive(Time),
    /// The session was ended.
    SessionEnded,
    /// The reset removed this many leases and queue places.
    Reset {
        /// The number of leases that were ended.
        holds: usize,
        /// The number of waiters that were removed from queues.
        waits: usize,
    },
    /// One part of a reset, [`ResetPart::Names`], removed this many leases and queue places.
    ResetPart {
        /// The number of leases that were ended.
        holds: usize,
        /// The number of waiters that were removed from queues.
        waits: usize,
    },
    /// The name is not remembered, or is remembered no more.
    Forgotten,
    /// The engine grants locks.
    HoldOffEnded,
    /// The request had no effect, because it had been applied before.
    Replayed(Box<Replay>),
}

/// The answer that a repeated request gets: that of its first execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// When the request was applied.
    pub at: Time,
    /// The outcome of the first execution.
    pub first: Outcome,
    /// When the lease or the session in the outcome `first` was to end, as known at the time of the
    /// first execution.
    pub ends: Option<Ends>,
}

impl Outcome {
    /// Returns the outcome of the first execution, whether this answer is that of a repeat or not.
    #[must_use]
    pub fn first(self) -> Self {
        match self {
            Self::Replayed(replay) => replay.first,
            done => done,
        }
    }

    /// Returns the tenure (the possession of the lock under one token) in this outcome, if there is
    /// one.
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

/// A tenure as answers show it. A tenure is one uninterrupted possession of a lock by a client,
/// under one fencing token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// The fencing token under which the client holds the lock.
    pub token: Token,
    /// Whether the lease ends at a deadline that renewals extend, or together with a session.
    pub life: Lifetime,
    /// When the client's possession of the lock began, or will begin if the lock was stolen.
    pub acquired_at: Time,
    /// How often an acquire was answered with this lease: see
    /// [`Lease::acquisition`](super::lease::Lease::acquisition).
    pub acquisition: u32,
    /// The number of the holder's seat, from 0 on. `None` if the lock has no seats, and for a
    /// waiter that has learned only its token.
    pub seat: Option<u16>,
    /// The last handover of the name and the number of its grants, as of the moment when the lock
    /// was granted or acquired again. `None` if the name is not remembered, and for a renewal.
    pub previous: Option<Arc<Previous>>,
}

/// An idempotency key (rule 10): the id of a request, and a digest of its whole content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The id of the request.
    pub id: RequestId,
    /// Tells a repeat of the request from a different request under the same id.
    pub digest: Digest,
}

/// The id of a request: a key or a number that the caller chooses. Ids of different callers are
/// independent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    /// The front end and the credential that it has authenticated, at most
    /// [`CALLER_BYTES_MAX`](super::details::CALLER_BYTES_MAX) bytes. The server sets it; it is
    /// never read from a request.
    pub caller: Arc<str>,
    /// The key or the number that the caller chose.
    pub key: RequestKey,
}

/// What identifies a request among those of its caller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKey {
    /// A key of at most [`REQUEST_KEY_BYTES_MAX`](super::details::REQUEST_KEY_BYTES_MAX) bytes.
    Text(Arc<str>),
    /// The number of the request among those of one session.
    Number(RequestNumber),
}

impl RequestKey {
    /// Returns the length of the key in bytes; a number has none.
    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(key) => key.len(),
            Self::Number(_) => 0,
        }
    }
}

impl From<&str> for RequestKey {
    fn from(key: &str) -> Self {
        Self::Text(key.into())
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(key) => f.write_str(key),
            Self::Number(RequestNumber { session, number }) => write!(f, "{session}.{number}"),
        }
    }
}

/// 128 bits of a cryptographic hash over a whole request, computed by the front end that received
/// it. It covers the lock and the options as they were sent, before defaults and the state of the
/// lock complete them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

/// The number of a request among those of one session. A session has one sender, which gives each
/// request the next number, and the same number to all copies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNumber {
    /// The session of the sender.
    pub session: SessionId,
    /// The number of the request.
    pub number: u64,
}
