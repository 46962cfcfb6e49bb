//! Requests that the server has not answered yet: in order, each with the time until which its
//! caller waits.
//!
//! Some requests are repeated until the server answers: releases, departures from a queue, and
//! requests with [`QueuedRequest::insists`]. From the first reply without an outcome (no quorum, a
//! full disk, no credentials) until the answer they are *unconfirmed*, and go first in each batch.
//!
//! The numbers of a client's requests in its session, by which the engine recognizes repeats, and
//! the keys of requests that a client sends without a session.

use crate::base::{jittered, random};
use crate::engine::{
    LeaseKey, Leave, LeaveReason, LockName, Op, Outcome, Ownership, Reason, RefusalKind, Release,
    SessionId, Ticket, Token, UNANSWERED_MAX,
};
use crate::service::Unavailable;
use crate::service::batch::batch_messages::{
    ASKS_MAX, BatchItem, BatchNumbers, ItemReply, Stamp, SubmissionKey,
};
use crate::time::{Span, Time, boot_now};
use common::task::Promise;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How long a call waits for its answer: after a longer time a user thinks that the program hangs.
pub const REPLY_DEADLINE: Span = Span::from_secs(2);
/// How long a reset waits for its answer: enough for a million holds.
pub(super) const RESET_DEADLINE: Span = Span::from_secs(10);

/// The maximum number of requests kept for a server that gives no answer: more than the open files
/// of a machine. Beyond it the oldest requests are dropped.
const OWED_MAX: usize = 1 << 16;
/// The maximum number of unconfirmed requests in one batch. The rest of the batch is for new ones:
/// a server that cannot write may still be able to show locks.
const REPEATS_MAX: usize = ASKS_MAX / 2;
/// The first pause before the client repeats requests whose replies have left their outcome open.
/// It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Span = Span::from_millis(20);
/// The longest pause before the client repeats requests whose replies have left their outcome open.
const PAUSE_MAX: Span = Span::from_millis(500);

/// The reply to a request with the server's [`Stamp`] (its ids and clocks), or the reason why there
/// is no reply.
pub(super) type ItemResult = Result<(ItemReply, Stamp), Unavailable>;

/// The sender of the reply to a request.
pub(super) type ItemReplier = Promise<ItemResult>;

/// A request in the queue.
pub(super) struct QueuedRequest {
    pub(super) ask: BatchItem,
    /// The deadline until which the caller waits for the reply.
    pub(super) until: Time,
    /// The sender of the reply. `None` if no caller waits for the reply, or the caller has timed
    /// out.
    pub(super) replier: Option<ItemReplier>,
    /// Whether the request is repeated until the server answers, however long that takes, and the
    /// caller gets the answer.
    pub(super) insists: bool,
    /// The session in which the request has got its number, if it has one.
    pub(super) numbered_by: Option<SessionId>,
}

/// The queue of requests without an answer, oldest first. An *unconfirmed* request has had a reply
/// that leaves its outcome open (such as no quorum), and is sent again.
#[derive(Default)]
pub(super) struct RequestQueue {
    new: VecDeque<QueuedRequest>,
    unconfirmed: VecDeque<QueuedRequest>,
    /// When the unconfirmed requests (whose replies have left their outcome open) are sent again,
    /// unless an earlier batch with new requests has room for them.
    due: Time,
    pause: Span,
    /// For each lease that this client has acquired again while it held it, and has not released
    /// since: the number of the last acquire (how often the lease was acquired), by the token of
    /// the lease. A release names this number: see [`Release::acquisition`].
    acquisitions: BTreeMap<Token, u32>,
}

/// A granted lock, or a place in the queue of a lock, which was reported to a caller, and which the
/// caller may use from now on.
struct Delivered {
    name: LockName,
    hold: Ownership,
    /// The fencing token of the granted lock, and how often the lease has been acquired; `None` for
    /// a queue place.
    tenure: Option<(Token, u32)>,
    ticket: Option<Ticket>,
}

/// The changes to make to the request queue after the replies to a batch were processed.
#[derive(Default)]
pub(super) struct BatchRemainder {
    unconfirmed: Vec<QueuedRequest>,
    /// Operations that release locks, or leave queues, because the callers had stopped waiting
    /// before the lock or the queue place was granted.
    undo: Vec<Op>,
    delivered: Vec<Delivered>,
    /// The tokens of releases that were answered.
    released: Vec<Token>,
    /// Releases that came after an acquire whose answer was not delivered: they are sent again, and
    /// name that acquire.
    overtaken: Vec<QueuedRequest>,
    /// The session that numbered the requests of the batch.
    session: Option<SessionId>,
    /// Requests that the engine refused as late copies, or because the session that numbered them
    /// is over: the client sends them again under a new number, before all other requests.
    resend: Vec<QueuedRequest>,
}

impl QueuedRequest {
    /// Returns the number by which a repeat of the request is recognized, if it has one.
    pub(super) fn number(&self) -> Option<u64> {
        let BatchItem::Submit(command) = &self.ask else { return None };
        match command.key {
            Some(SubmissionKey::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// Removes the number of the request, which gets another one before it is sent again.
    fn forget_number(&mut self) {
        if let (Some(_), BatchItem::Submit(command)) = (self.numbered_by.take(), &mut self.ask) {
            command.key = None;
        }
    }

    /// Whether the request must be carried out even if no caller waits for the answer any more: a
    /// lock that a program released must not stay held because the network failed at that moment.
    pub(super) fn is_owed(&self) -> bool {
        self.gives_back() || self.insists
    }

    /// Whether the request releases the lease of a token, or leaves a queue: it may be carried out
    /// twice.
    fn gives_back(&self) -> bool {
        match &self.ask {
            BatchItem::Submit(command) => match &command.op {
                // A release without a token is not repeated without a caller: it could end a newer
                // lease of the same client.
                Op::Release(release) => release.key.token.is_some(),
                Op::Leave(_) => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether the outcome of the request must be known: the request may have acquired a lock, or
    /// must be carried out.
    pub(super) fn leaves_traces(&self) -> bool {
        let takes = match &self.ask {
            BatchItem::Submit(command) => matches!(command.op, Op::Acquire(_) | Op::Steal(_)),
            _ => false,
        };
        takes || self.is_owed()
    }

    /// Returns the release command in this request and its token; `None` if the request is no
    /// release, or a release without a token.
    fn release(&mut self) -> Option<(&mut Release, Token)> {
        let BatchItem::Submit(command) = &mut self.ask else { return None };
        let Op::Release(release) = &mut command.op else { return None };
        let token = release.key.token?;
        Some((release, token))
    }

    /// Whether the command in this request names the session `id`, so that the engine refuses the
    /// command once that session is over.
    fn leans_on(&self, id: SessionId) -> bool {
        let BatchItem::Submit(command) = &self.ask else { return false };
        command.op.subject().needs_session(id)
    }

    /// Whether a caller waits for the reply to this request and gets a failure when its deadline
    /// passes.
    pub(super) fn is_impatient(&self) -> bool {
        self.replier.is_some() && !self.insists
    }

    /// Whether `reply` leaves the outcome of this request open, so that the request must be sent
    /// again.
    fn is_unconfirmed_by(&self, reply: &ItemReply) -> bool {
        let ItemReply::Unavailable(why) = reply else { return false };
        // If the request was certainly not executed, a caller that still waits gets the error, and
        // decides itself how to continue.
        let is_unknown =
            why.kind() == RefusalKind::ConsistencyUnavailable || self.replier.is_none();
        self.insists || is_unknown && self.leaves_traces()
    }

    /// Whether the request may get another number although `why` leaves its outcome open, so that
    /// it does not count among those without an answer for as long as the server refuses it.
    fn may_be_renumbered(&self, why: &Unavailable) -> bool {
        match why.kind() {
            RefusalKind::ConsistencyUnavailable => false,
            RefusalKind::Denied => true,
            _ => self.gives_back(),
        }
    }

    /// Returns the operation that gives back a lock, or a place in its queue, when the reply grants
    /// it to a caller that no longer waits.
    fn undone_by(&self, reply: &ItemReply) -> Option<Op> {
        let (BatchItem::Submit(command), ItemReply::Answered(Ok(outcome))) = (&self.ask, reply)
        else {
            return None;
        };
        // Only an acquire and a steal have these outcomes.
        let subject = command.op.subject();
        let (name, client) = (subject.name?.clone(), subject.client?.clone());
        match outcome {
            Outcome::Granted(tenure) | Outcome::Stolen(tenure) => {
                let key = LeaseKey { name, client, token: Some(tenure.token) };
                let acquisition = Some(tenure.acquisition);
                Some(Op::Release(Release { acquisition, ..Release::of(key) }))
            }
            Outcome::Waiting { ticket, .. } => {
                Some(Op::Leave(Leave { name, ticket: *ticket, why: LeaveReason::Gone }))
            }
            _ => None,
        }
    }
}

impl Delivered {
    fn of(ask: &BatchItem, reply: &ItemReply) -> Option<Self> {
        let (BatchItem::Submit(command), ItemReply::Answered(Ok(outcome))) = (ask, reply) else {
            return None;
        };
        let Op::Acquire(ask) = &command.op else { return None };
        let (tenure, ticket) = match outcome {
            Outcome::Granted(tenure) | Outcome::Renewed(tenure) => {
                (Some((tenure.token, tenure.acquisition)), None)
            }
            Outcome::Waiting { ticket, .. } => (None, Some(*ticket)),
            _ => return None,
        };
        Some(Self { name: ask.name.clone(), hold: ask.hold, tenure, ticket })
    }

    /// Whether `op` would release the lock or leave the queue place that was just delivered to its
    /// caller. Such an operation is left from an earlier use of the same open file, and must not be
    /// sent.
    fn supersedes(&self, op: &Op) -> bool {
        match op {
            Op::Release(release) => {
                self.tenure.is_some_and(|(token, _)| release.key.token == Some(token))
            }
            Op::Leave(leave) => Some(leave.ticket) == self.ticket,
            // A queued acquire by the same open file is older than the answer that was just
            // delivered, and must not be sent: the open file already has its lock or queue place.
            Op::Acquire(ask) => {
                ask.hold.open().is_some() && ask.hold == self.hold && ask.name == self.name
            }
            _ => false,
        }
    }
}

impl FromIterator<QueuedRequest> for BatchRemainder {
    fn from_iter<T: IntoIterator<Item = QueuedRequest>>(unconfirmed: T) -> Self {
        Self { unconfirmed: unconfirmed.into_iter().collect(), ..Self::default() }
    }
}

impl BatchRemainder {
    /// Returns an empty value, to which the replies to a batch are added. `session` is the session
    /// that has numbered the requests of the batch.
    pub(super) fn of_session(session: Option<SessionId>) -> Self {
        Self { session, ..Self::default() }
    }

    /// Whether `reply` refuses the request only because of its number: another copy of it was
    /// refused before, or the session that numbered it is over. A copy that was carried out would
    /// have been answered, so the request is sent again under another number.
    fn is_late_copy(&self, asked: &QueuedRequest, reply: &ItemReply) -> bool {
        let ItemReply::Answered(Err(refusal)) = reply else { return false };
        match *refusal.reason {
            Reason::LateCopy(_) => true,
            Reason::NoSession(id) => Some(id) == self.session && !asked.leans_on(id),
            _ => false,
        }
    }

    /// Delivers a reply to its caller, or keeps the request for a repetition.
    pub(super) fn sort(&mut self, mut asked: QueuedRequest, reply: ItemReply, stamp: Stamp) {
        if self.is_late_copy(&asked, &reply) {
            if asked.replier.is_some() || asked.leaves_traces() {
                asked.forget_number();
                self.resend.push(asked);
            }
            return;
        }
        if asked.is_unconfirmed_by(&reply) {
            let replier = if asked.insists { None } else { asked.replier.take() };
            if let ItemReply::Unavailable(why) = &reply
                && asked.may_be_renumbered(why)
            {
                asked.forget_number();
            }
            self.unconfirmed.push(asked);
            if let Some(replier) = replier {
                replier.keep(Ok((reply, stamp)));
            }
            return;
        }
        if let (Some((release, token)), ItemReply::Answered(answer)) = (asked.release(), &reply) {
            if let Err(refusal) = answer
                && let Reason::AcquiredAgain { current, .. } = *refusal.reason
            {
                release.acquisition = Some(current);
                // It is another request than the one that was refused.
                asked.forget_number();
                return self.overtaken.push(asked);
            }
            self.released.push(token);
        }
        match asked.replier.take() {
            Some(replier) => {
                self.delivered.extend(Delivered::of(&asked.ask, &reply));
                replier.keep(Ok((reply, stamp)));
            }
            None => self.undo.extend(asked.undone_by(&reply)),
        }
    }
}

impl RequestQueue {
    /// Adds a request to the queue. A release gets the number of the last acquire that this client
    /// knows of, so that a late copy of the release ends no later acquire.
    pub(super) fn push(&mut self, mut asked: QueuedRequest) {
        if let Some((release, token)) = asked.release() {
            let known = self.acquisitions.get(&token).copied().unwrap_or(0);
            release.acquisition.get_or_insert(known);
        }
        self.new.push_back(asked);
    }

    /// Returns all requests in the queue.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedRequest> {
        self.unconfirmed.iter().chain(&self.new)
    }

    /// Puts requests that were not sent before all new ones.
    pub(super) fn put_back(&mut self, requests: Vec<QueuedRequest>) {
        for asked in requests.into_iter().rev() {
            self.new.push_front(asked);
        }
    }

    /// Whether the queue has no new requests; unconfirmed ones do not count.
    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    /// Returns when the unconfirmed requests (whose replies have left their outcome open) are to be
    /// repeated; `None` if there are none.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.unconfirmed.is_empty()).then_some(self.due)
    }

    /// Takes the requests of one batch from the queue. Those that are sent again because their
    /// outcome is open come first, so that a new acquire does not overtake an earlier release.
    pub(super) fn take(&mut self) -> Vec<QueuedRequest> {
        let repeats = self.unconfirmed.len().min(REPEATS_MAX);
        let until = boot_now() + REPLY_DEADLINE;
        let repeats =
            self.unconfirmed.drain(..repeats).map(|asked| QueuedRequest { until, ..asked });
        let mut batch: Vec<_> = repeats.collect();
        let new = self.new.len().min(ASKS_MAX - batch.len());
        batch.extend(self.new.drain(..new));
        batch
    }

    /// Queues the work that is left after the replies to a batch.
    pub(super) fn keep(&mut self, left: BatchRemainder) {
        let BatchRemainder { mut unconfirmed, undo, delivered, released, overtaken, .. } = left;
        self.put_back(left.resend);
        for token in released {
            self.acquisitions.remove(&token);
        }
        let in_use =
            delivered.iter().filter_map(|had| had.tenure).filter(|(_, number)| *number > 0);
        self.acquisitions.extend(in_use);
        let is_overtaken = !overtaken.is_empty();
        let is_superseded = |op: &Op| delivered.iter().any(|had| had.supersedes(op));
        let is_meant = |asked: &QueuedRequest| match &asked.ask {
            BatchItem::Submit(command) => asked.is_impatient() || !is_superseded(&command.op),
            _ => true,
        };
        if !delivered.is_empty() {
            self.unconfirmed.retain(is_meant);
        }
        self.put_off(!unconfirmed.is_empty());
        if is_overtaken {
            unconfirmed.extend(overtaken);
            self.due = Time::ZERO;
        }
        self.unconfirmed.extend(unconfirmed.into_iter().filter(is_meant));
        for op in undo.into_iter().filter(|op| !is_superseded(op)) {
            log::info!("a grant arrived after the caller's deadline and is released: {op:?}");
            let ask = BatchItem::Submit(op.into());
            let (until, numbered_by) = (Time::ZERO, None);
            let asked = QueuedRequest { ask, until, replier: None, insists: true, numbered_by };
            self.unconfirmed.push_front(asked);
            self.due = Time::ZERO;
        }
        self.bound();
    }

    /// Schedules the next repetition of the unconfirmed requests, whose replies have left their
    /// outcome open. The pause doubles each time that a repetition has left an outcome open.
    fn put_off(&mut self, in_vain: bool) {
        let longer = (self.pause + self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause = if in_vain { longer } else { Span::ZERO };
        self.due = boot_now() + jittered(self.pause);
    }

    /// Empties the queue, and returns the senders to the waiting callers, to which the client must
    /// report that the server has not answered.
    pub(super) fn clear(&mut self) -> Vec<ItemReplier> {
        let all = self.unconfirmed.drain(..).chain(self.new.drain(..));
        all.filter_map(|asked| asked.replier).collect()
    }

    /// Drops the new requests that need not be carried out, and returns the senders to all callers
    /// that do not insist on an answer: the client must report to them that the server has not
    /// answered.
    pub(super) fn give_up(&mut self) -> Vec<ItemReplier> {
        let mut abandoned = Vec::new();
        self.new.retain_mut(|asked| {
            if !asked.insists {
                abandoned.extend(asked.replier.take());
            }
            asked.is_owed()
        });
        self.bound();
        abandoned
    }

    fn bound(&mut self) {
        let excess = self.new.len().saturating_sub(OWED_MAX);
        self.new.drain(..excess);
        let excess = self.unconfirmed.len().saturating_sub(OWED_MAX);
        self.unconfirmed.drain(..excess);
        // If a lease was lost and never released, its entry in `acquisitions` is removed only here,
        // when the map exceeds its maximum size.
        while self.acquisitions.len() > OWED_MAX {
            self.acquisitions.pop_first();
        }
    }
}

/// Gives requests their numbers in the session of the client, or keys if it has no session.
pub(super) struct RequestKeys {
    /// The beginning of all keys, which no other client has.
    prefix: Arc<str>,
    keys: u64,
    session: Option<SessionId>,
    /// The number of the next request in the session.
    pub(super) next: u64,
}

impl RequestKeys {
    /// Numbers requests in the session from now on. Without one, the numbers go on later, unless
    /// the next session is another one.
    pub(super) fn begin(&mut self, session: Option<SessionId>) {
        if session.is_some() && session != self.session {
            (self.session, self.next) = (session, 1);
        }
    }

    /// Gives a request that has no id its number among those of `numbers`, or a key if it needs
    /// one. Returns false if too many requests have no answer: the request must not be sent.
    pub(super) fn identify(
        &mut self,
        asked: &mut QueuedRequest,
        numbers: Option<BatchNumbers>,
        several: bool,
    ) -> bool {
        let BatchItem::Submit(command) = &mut asked.ask else { return true };
        if command.key.is_some() {
            return true;
        }
        let Some(BatchNumbers { session, answered_below }) = numbers else {
            if needs_key(&command.op, several) {
                let key = format!("{}{:016x}", self.prefix, self.keys);
                command.key = Some(SubmissionKey::Text(key.into()));
                self.keys += 1;
            }
            return true;
        };
        let has_room = self.next - answered_below < UNANSWERED_MAX;
        if has_room {
            command.key = Some(SubmissionKey::Number(self.next));
            asked.numbered_by = Some(session);
            self.next += 1;
        }
        has_room
    }
}

impl Default for RequestKeys {
    fn default() -> Self {
        let prefix = format!("{:016x}-", random()).into();
        Self { prefix, keys: 0, session: None, next: 1 }
    }
}

/// Whether an operation that a client without a session sends must not be carried out twice.
const fn needs_key(op: &Op, several: bool) -> bool {
    match op {
        // With several servers even a release needs a key. A server that seemed unreachable may
        // carry it out late, after another did; and a retry at another server must get the first
        // outcome, not the refusal that there is nothing to release.
        Op::Release(_) => several,
        // An acquire on behalf of an open file is safe to repeat without a key: the second copy
        // only renews the lease.
        Op::Acquire(ask) => several || !matches!(ask.hold, Ownership::OpenFile(_)),
        Op::Move(_) | Op::Steal(_) | Op::Reset(_) | Op::Annotate(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        Acquire, ClientId, LeaseTerms, Lifetime, OpenId, Refusal, SessionId, Tenure,
    };
    use common::task::pending;

    fn asked(ask: BatchItem) -> QueuedRequest {
        QueuedRequest {
            ask,
            until: Time::ZERO,
            replier: Some(pending().0),
            insists: false,
            numbered_by: None,
        }
    }

    fn release(token: Option<u64>) -> BatchItem {
        release_of(token, None)
    }

    fn release_of(token: Option<u64>, acquisition: Option<u32>) -> BatchItem {
        let name = LockName::parse("build").expect("valid");
        let client = ClientId::parse("a").expect("valid");
        let key = LeaseKey { name, client, token: token.map(Token::named) };
        BatchItem::Submit(Op::Release(Release { acquisition, ..Release::of(key) }).into())
    }

    #[test]
    fn releases_are_repeated_until_the_server_confirms_them() {
        let mut queue = RequestQueue::default();
        for ask in [BatchItem::Now, release(Some(7)), release(None), BatchItem::About] {
            queue.push(asked(ask));
        }
        assert_eq!(queue.give_up().len(), 4, "all get an answer");
        let left: Vec<_> = queue.take().into_iter().map(|asked| asked.ask).collect();
        assert_eq!(left, [release_of(Some(7), Some(0))]);
    }

    fn acquire() -> QueuedRequest {
        let hold = Ownership::OpenFile(OpenId { session: SessionId::named(1), number: 3 });
        let ask = Acquire {
            hold,
            ..Acquire::new(
                LockName::parse("build").expect("valid"),
                ClientId::parse("a").expect("valid"),
                LeaseTerms::Session(SessionId::named(1)),
            )
        };
        asked(BatchItem::Submit(Op::Acquire(ask).into()))
    }

    fn tenure(token: u64) -> Tenure {
        let token = Token::named(token);
        let life = Lifetime::Session(SessionId::named(1));
        Tenure { token, life, acquired_at: Time::ZERO, acquisition: 0, seat: None, previous: None }
    }

    fn answer_all(queue: &mut RequestQueue, mut reply: impl FnMut(&BatchItem) -> ItemReply) {
        let (now, wall) = (Time::ZERO, crate::time::Wall::now());
        let stamp = Stamp { engine: 0, start: 1, now, wall, next_event: 0 };
        let mut left = BatchRemainder::of_session(Some(SessionId::named(9)));
        for asked in queue.take() {
            let reply = reply(&asked.ask);
            left.sort(asked, reply, stamp);
        }
        queue.keep(left);
    }

    /// The test: a program unlocks its file and locks it again before the server has carried out
    /// the unlock.
    #[test]
    fn a_late_release_does_not_end_a_later_acquire_of_the_same_open_file() {
        let full = || Unavailable::State { full: true, why: "no room".into() };
        let mut queue = RequestQueue::default();
        queue.push(QueuedRequest { insists: true, ..asked(release(Some(7))) });
        answer_all(&mut queue, |_| ItemReply::Unavailable(full()));
        assert!(queue.due().is_some(), "it is to be repeated");
        queue.push(acquire());
        answer_all(&mut queue, |ask| match ask {
            BatchItem::Submit(command) if matches!(command.op, Op::Acquire(_)) => {
                ItemReply::Answered(Ok(Outcome::Renewed(tenure(7))))
            }
            _ => ItemReply::Unavailable(full()),
        });
        assert_eq!(queue.take().len(), 0, "the tenure goes on");
    }

    fn acquired(tenure: &Tenure) -> impl Fn(&BatchItem) -> ItemReply + use<> {
        let outcome = Outcome::Renewed(tenure.clone());
        move |_| ItemReply::Answered(Ok(outcome.clone()))
    }

    #[test]
    fn a_release_names_the_acquire_that_it_ends() {
        let mut queue = RequestQueue::default();
        queue.push(acquire());
        answer_all(&mut queue, acquired(&Tenure { acquisition: 3, ..tenure(7) }));
        let numbered = |mut ask: BatchItem| {
            let BatchItem::Submit(command) = &mut ask else { panic!("{ask:?}") };
            command.key = Some(SubmissionKey::Number(5));
            ask
        };
        let numbered_by = Some(SessionId::named(1));
        let first = asked(numbered(release(Some(7))));
        queue.push(QueuedRequest { insists: true, numbered_by, ..first });
        // The server refuses the release, because it has granted acquire 4 on the same lease, and
        // the release names acquire 3.
        let current = 4;
        let name = LockName::parse("build").expect("valid");
        let reason = Reason::AcquiredAgain { name, token: Token::named(7), current };
        let refusal = Refusal { at: Time::ZERO, reason: Box::new(reason) };
        let mut sent = Vec::new();
        answer_all(&mut queue, |ask| {
            sent.push(ask.clone());
            ItemReply::Answered(Err(refusal.clone()))
        });
        assert_eq!(queue.due(), Some(Time::ZERO), "it is sent again at once");
        answer_all(&mut queue, |ask| {
            sent.push(ask.clone());
            ItemReply::Answered(Ok(Outcome::Released))
        });
        // The number of the refused request was used, and is not that of the changed one.
        assert_eq!(sent, [numbered(release_of(Some(7), Some(3))), release_of(Some(7), Some(4))]);
        assert_eq!((queue.due(), queue.acquisitions.len()), (None, 0));
    }

    /// The test: one thread of a program unlocks an open file while another thread locks the same
    /// open file.
    #[test]
    fn an_overtaken_release_does_not_end_a_lock_that_was_delivered_since() {
        let mut queue = RequestQueue::default();
        queue.push(QueuedRequest { insists: true, ..asked(release(Some(7))) });
        queue.push(acquire());
        let name = LockName::parse("build").expect("valid");
        let reason = Reason::AcquiredAgain { name, token: Token::named(7), current: 1 };
        let refusal = Refusal { at: Time::ZERO, reason: Box::new(reason) };
        let acquired = acquired(&Tenure { acquisition: 1, ..tenure(7) });
        answer_all(&mut queue, |ask| match ask {
            BatchItem::Submit(command) if matches!(command.op, Op::Release(_)) => {
                ItemReply::Answered(Err(refusal.clone()))
            }
            _ => acquired(ask),
        });
        assert_eq!(queue.take().len(), 0, "the tenure goes on");
    }

    /// The test: the server has refused a request because the request's sequence number was too
    /// low, and an earlier copy of the request may have had an effect.
    #[test]
    fn a_late_copy_is_sent_again_before_all_other_requests() {
        let late = [
            Reason::LateCopy(SessionId::named(9)),
            // The request got its sequence number in session 9, which is over. Its open file
            // belongs to session 1, so the request is still valid under a new number.
            Reason::NoSession(SessionId::named(9)),
        ];
        for reason in late {
            let mut queue = RequestQueue::default();
            queue.push(acquire());
            let refusal = Refusal { at: Time::ZERO, reason: Box::new(reason) };
            answer_all(&mut queue, |_| ItemReply::Answered(Err(refusal.clone())));
            queue.push(asked(BatchItem::Now));
            let batch = queue.take();
            assert_eq!(batch.len(), 2, "{refusal}");
            assert_eq!(batch[0].ask, acquire().ask, "{refusal}");
            assert!(batch[0].replier.is_some(), "its caller still waits: {refusal}");
        }
        // The open file of this acquire belongs to session 1. If that session is over, the request
        // is not sent again, and its caller gets the refusal.
        let mut queue = RequestQueue::default();
        queue.push(acquire());
        let reason = Box::new(Reason::NoSession(SessionId::named(1)));
        let refusal = Refusal { at: Time::ZERO, reason };
        answer_all(&mut queue, |_| ItemReply::Answered(Err(refusal.clone())));
        assert_eq!(queue.take().len(), 0);
    }

    #[test]
    fn unconfirmed_requests_leave_room_for_new_ones() {
        let mut queue = RequestQueue::default();
        for token in 0..600 {
            queue.push(QueuedRequest { insists: true, ..asked(release(Some(token))) });
        }
        for _ in 0..10 {
            answer_all(&mut queue, |_| ItemReply::Unavailable(Unavailable::Closing));
        }
        queue.push(asked(BatchItem::Now));
        let batch = queue.take();
        assert_eq!(batch.len(), REPEATS_MAX + 1);
        assert!(matches!(batch.last(), Some(QueuedRequest { ask: BatchItem::Now, .. })));
    }

    #[test]
    fn the_oldest_unconfirmed_releases_are_dropped() {
        let mut queue = RequestQueue::default();
        for token in 0..=OWED_MAX as u64 {
            queue.push(asked(release_of(Some(token), Some(0))));
            queue.acquisitions.insert(Token::named(token), 0);
        }
        queue.give_up();
        assert_eq!((queue.new.len(), queue.acquisitions.len()), (OWED_MAX, OWED_MAX));
        assert_eq!(queue.new[0].ask, release_of(Some(1), Some(0)), "the oldest one is gone");
    }
}

#[cfg(test)]
mod request_keys_tests {
    use super::*;
    use crate::engine::ClientId;

    fn release(insists: bool) -> QueuedRequest {
        let (name, client) = (LockName::parse("x"), ClientId::parse("a"));
        let (name, client) = (name.expect("valid"), client.expect("valid"));
        let op = Op::Release(Release::of(LeaseKey { name, client, token: None }));
        let (ask, until) = (BatchItem::Submit(op.into()), Time::ZERO);
        QueuedRequest { ask, until, replier: None, insists, numbered_by: None }
    }

    fn numbered(
        keys: &mut RequestKeys,
        numbers: Option<BatchNumbers>,
    ) -> Option<(Option<SessionId>, u64)> {
        let mut asked = release(true);
        assert!(keys.identify(&mut asked, numbers, true));
        asked.number().map(|number| (asked.numbered_by, number))
    }

    #[test]
    fn requests_are_numbered_in_their_session() {
        let mut keys = RequestKeys::default();
        let [one, two] = [1, 2].map(SessionId::named);
        let of = |session| Some(BatchNumbers { session, answered_below: 1 });
        keys.begin(None);
        assert_eq!(numbered(&mut keys, None), None, "it has a key");
        keys.begin(Some(one));
        assert_eq!(numbered(&mut keys, of(one)), Some((Some(one), 1)));
        let mut asked = release(true);
        keys.identify(&mut asked, of(one), true);
        keys.identify(&mut asked, of(one), true);
        assert_eq!(asked.number(), Some(2), "it keeps its number");
        keys.begin(None);
        keys.begin(Some(one));
        assert_eq!(numbered(&mut keys, of(one)), Some((Some(one), 3)));
        keys.begin(Some(two));
        assert_eq!(numbered(&mut keys, of(two)), Some((Some(two), 1)));
        asked.forget_number();
        keys.identify(&mut asked, of(two), true);
        assert_eq!((asked.numbered_by, asked.number()), (Some(two), Some(2)));
    }

    #[test]
    fn requests_without_an_answer_are_limited() {
        let mut keys = RequestKeys::default();
        let session = SessionId::named(1);
        keys.begin(Some(session));
        let of = |answered_below| Some(BatchNumbers { session, answered_below });
        for _ in 0..UNANSWERED_MAX {
            assert!(numbered(&mut keys, of(1)).is_some());
        }
        let mut asked = release(true);
        assert!(!keys.identify(&mut asked, of(1), true) && asked.number().is_none());
        assert!(keys.identify(&mut asked, of(2), true), "one has been answered");
    }
}
