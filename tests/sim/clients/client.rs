//! A simulated client: it sends requests to any node, retries them on other nodes under the same
//! request id, keeps a session alive, and waits in queues. It computes lease deadlines on its own
//! clock, from the moment before it sent the request, and records all answers in the history.
//!
//! The commands that a simulated client sends. Each has a request id, and a sequence number among
//! the requests of the client's session.
//!
//! The end of a client's belief that it holds a lock. A client drops a lease before another client
//! can get the lock, and records in the history how long it relied on the lease.
//!
//! The session and the leases that a simulated client believes it has. A lease has an end of its
//! own, or ends with the session.

use crate::checks::recorder::SEATS;
use crate::machines::virtual_environment::{VirtualClock, now, sleep};
use crate::machines::virtual_links::{End, NodeReply, NodeRequest};
use crate::planted_bugs::{PlantedBug, planted};
use crate::world::SimWorld;
use latchfs::engine::{
    Acquire, Answer, ClientId, Command, Digest, Firm, Grace, Holder, IdempotencyKey, LeaseKey,
    LeaseTerms, Lifetime, LockName, LockView, Mode, Op, OpenId, OpenSession, Outcome, Ownership,
    Patch, QueuePolicy, Reason, Release, Renew, RequestId, RequestKey, RequestNumber, Seats,
    SessionId, Tenure, Token, Ttl,
};
use latchfs::raft::store::snapshot::NodeId;
use latchfs::time::{Span, Time};
use std::sync::Arc;
use testing::client_history::{Belief, Lock, SafetyProperty, Sharing, StepKind, Who};

/// The number of locks in a simulation. All clients compete for the same ones.
pub(crate) const LOCKS: usize = 3;
/// How long a client waits for an answer before it tries another node.
pub(crate) const PATIENCE: Span = Span::from_millis(400);
/// How many times a client sends a request before it gives up.
const TRIES: u32 = 8;
/// The longest ttl that a client requests for a lease.
const TTL_MAX: Span = Span::from_millis(2_500);
/// A simulated client process.
pub(crate) struct SimClient {
    pub(crate) world: Arc<SimWorld>,
    pub(crate) end: End,
    pub(crate) clock: VirtualClock,
    /// The client id. A client that restarts gets a new one.
    pub(crate) who: Who,
    pub(crate) life: u32,
    pub(crate) requests: u64,
    /// Number of files opened so far, over all sessions of the client.
    files: u64,
    /// The node that gets the next request.
    pub(crate) node: NodeId,
    pub(crate) session: Option<ClientSession>,
    pub(crate) held: Vec<ClientLease>,
}

/// The answer to a request, and the times of the request.
pub(crate) struct RequestResult {
    /// `sent` and `from` are the same moment, when the request was first sent: `sent` on the
    /// client's clock, `from` in virtual time.
    pub(crate) sent: Time,
    pub(crate) from: Time,
    pub(crate) to: Time,
    /// The answer; `None` if no node answered.
    pub(crate) answer: Option<Answer>,
}

impl SimClient {
    pub(crate) fn new(world: &Arc<SimWorld>, number: u64) -> Self {
        let clock = VirtualClock::new(&world.dice);
        let node = *world.dice.pick(&world.nodes());
        let (end, who) = (100 + number, format!("c{number}.0").into());
        let world = Arc::clone(world);
        Self {
            world,
            end,
            clock,
            who,
            life: 0,
            requests: 0,
            files: 0,
            node,
            session: None,
            held: vec![],
        }
    }

    pub(crate) const fn end(number: u64) -> End {
        100 + number
    }

    /// Performs random operations until `until`.
    pub(crate) async fn live(mut self, until: Time) {
        while now() < until {
            self.keep_up().await;
            self.drop_the_late();
            let dice = self.world.dice.clone();
            let lock = dice.index(LOCKS);
            match dice.below(200) {
                0..66 => self.acquire(lock, QueuePolicy::Skip).await,
                66..116 => {
                    let patience = dice.millis(500, 4_000);
                    self.acquire(lock, QueuePolicy::Join(Some(patience))).await;
                }
                116..121 => self.steal(lock).await,
                121..147 => self.renew_one().await,
                147..155 => self.die_or_end().await,
                155..163 => self.change_mode().await,
                163..168 => self.move_one(lock).await,
                168..169 => self.reset().await,
                _ => drop(self.read_lock(lock).await),
            }
            sleep(dice.millis(1, 60)).await;
            if !self.held.is_empty() && dice.percent(45) {
                self.give_back_one().await;
            }
        }
        self.forget_all();
    }

    /// Reads every lock once, and reports a violation if one can't be read. Retries until `until`,
    /// since an election may still be under way.
    pub(crate) async fn read_all_locks(mut self, until: Time) {
        for lock in 0..LOCKS {
            while self.read_lock(lock).await.is_none() {
                if now() > until {
                    let what = format_args!("lock {lock} can't be seen at the end");
                    self.world.record.violation(SafetyProperty::Recovers, what);
                    break;
                }
            }
        }
    }

    /// Sends a command, and sends it again to other nodes until one answers, at most [`TRIES`]
    /// times in all.
    pub(crate) async fn submit(&mut self, op: Op) -> RequestResult {
        let (sent, from) = (self.clock.read(), now());
        self.requests += 1;
        let mut key = self.request_key();
        for attempt in 0..TRIES {
            if attempt > 0 && planted(PlantedBug::NewIdOnRetry) {
                self.requests += 1;
                key = self.request_key();
            }
            let request = NodeRequest::Submit(self.command(&key, op.clone()).into());
            let reply = self.world.request(self.end, self.node, request, PATIENCE).await;
            let sent =
                if planted(PlantedBug::DeadlineFromReply) { self.clock.read() } else { sent };
            if let Some(NodeReply::Answered(answer)) = reply {
                self.world.record.note(format_args!("{} {op:?}: {answer:?}", self.who));
                self.world.record.history(|history| history.answered += 1);
                if self.renumber(&mut key, &answer) {
                    continue;
                }
                let answer = answer.map(Outcome::first);
                return RequestResult { sent, from, to: now(), answer: Some(answer) };
            }
            self.turn_away().await;
        }
        self.world.record.note(format_args!("{} {op:?}: no answer", self.who));
        self.world.record.history(|history| history.unknown += 1);
        RequestResult { sent, from, to: now(), answer: None }
    }

    /// Switches to a random node after a short pause.
    async fn turn_away(&mut self) {
        self.node = *self.world.dice.pick(&self.world.nodes());
        sleep(self.world.dice.millis(1, 50)).await;
    }

    /// Opens a session if the client has none. Sends a keep-alive if a third of the session's ttl
    /// has passed since the last one.
    pub(super) async fn keep_up(&mut self) {
        let Some(ClientSession { id, ttl, kept, .. }) = self.session else {
            return self.open().await;
        };
        let third = Span::from_nanos(ttl.span().as_nanos() / 3);
        if self.clock.read().since(kept) < third {
            return;
        }
        let came = self.submit(Op::KeepAlive(id)).await;
        match came.answer {
            Some(Ok(_)) => {
                let until = came.sent + less(ttl.span());
                let session = self.session.as_mut().expect("it is open");
                session.until = until.max(session.until);
                session.kept = came.sent;
                let secured = came.from + less(ttl.span());
                let held = self.held.iter().filter(|held| held.until.is_none());
                self.world.record.history(|history| {
                    held.for_each(|held| history.secure(held.token, secured));
                });
            }
            Some(Err(_)) => self.lose_session(),
            None => {}
        }
    }

    async fn open(&mut self) {
        let client = ClientId::parse(&self.who).expect("a valid name");
        let ttl = Ttl::new(self.world.dice.millis(1_000, 3_000)).expect("long enough");
        let grace = self.grace();
        let came =
            self.submit(Op::OpenSession(OpenSession { client, ttl: Some(ttl), grace })).await;
        if let Some(Ok(Outcome::SessionOpened(id))) = came.answer {
            let until = came.sent + less(ttl.span());
            self.session = Some(ClientSession { id, ttl, until, kept: came.sent });
        }
    }

    /// Returns a random grace period. It is zero half of the time, so that a lease which is used
    /// past its ttl shows up as a violation.
    fn grace(&self) -> Grace {
        let dice = &self.world.dice;
        let span = if dice.percent(50) { Span::ZERO } else { dice.millis(0, 600) };
        Grace::new(span).expect("short enough")
    }

    async fn acquire(&mut self, lock: Lock, line: QueuePolicy) {
        if self.held.iter().any(|held| held.lock == lock) {
            return;
        }
        let ask = self.attempt(lock, line);
        self.take(lock, ask).await;
    }

    pub(crate) async fn take(&mut self, lock: Lock, ask: Acquire) {
        let came = self.submit(Op::Acquire(ask.clone())).await;
        match &came.answer {
            Some(Ok(Outcome::Granted(tenure))) => {
                let token = tenure.token.as_u64();
                let what = StepKind::Granted(token, sharing(ask.mode));
                self.has(&ask, lock, &came, tenure, what);
            }
            Some(Ok(Outcome::Renewed(tenure))) => {
                let token = tenure.token.as_u64();
                self.world.record.history(|history| history.held_again(token));
                // The client may have held the lock by name, in exclusive mode. A shared acquire by
                // an open file then takes the lease over and makes it shared.
                let what = match sharing(ask.mode) {
                    mode @ Sharing::Shared => StepKind::Changed { from: token, to: token, mode },
                    Sharing::Alone => StepKind::Kept(token),
                };
                self.has(&ask, lock, &came, tenure, what);
            }
            Some(Ok(Outcome::Waiting { ticket, .. })) => {
                self.wait(lock, &came, *ticket, &ask).await;
            }
            Some(Err(refusal)) => self.refused(lock, &came, &refusal.reason),
            _ if ask.mode != Mode::Exclusive => self.world.record.history(|history| {
                history.left_open_to_share(lock, &self.who, came.from);
            }),
            _ => self.left_open(lock, came.from),
        }
    }

    /// Returns a random acquire: by name, or for a new open file of the session, possibly shared.
    ///
    /// Its holder id identifies the request, so that a reader of the lock can tell which request
    /// was granted. Except for [`SimClient::by_name`], no request refers to a lease that the client
    /// already has, because a late copy of the request could shorten that lease.
    fn attempt(&mut self, lock: Lock, line: QueuePolicy) -> Acquire {
        let dice = self.world.dice.clone();
        let ttl = Ttl::new(dice.millis(1_000, TTL_MAX.as_millis())).expect("long enough");
        let own = LeaseTerms::Own(ttl, self.grace());
        let session = self.session.as_ref().map(|session| session.id);
        let session = session.filter(|_| dice.percent(60));
        let (hold, mode, term) = match session {
            Some(session) if dice.percent(60) => {
                self.files += 1;
                let open = OpenId { session, number: self.files };
                let mode = if dice.percent(50) { shared(lock) } else { Mode::Exclusive };
                (Ownership::OpenFile(open), mode, LeaseTerms::Session(session))
            }
            None if dice.percent(40) => return self.by_name(lock, line),
            session => (
                Ownership::Exclusive(None),
                Mode::Exclusive,
                session.map_or(own, LeaseTerms::Session),
            ),
        };
        let (name, client, patch) = (name(lock), self.id(), self.marked());
        Acquire { mode, hold, line, patch, ..Acquire::new(name, client, term) }
    }

    /// Returns an acquire in the name of the client rather than of an open file. If the client
    /// holds a lease under that lock name, the acquire renews the lease. A late copy of the acquire
    /// can only extend that lease, because no other request asks for a longer ttl.
    pub(crate) fn by_name(&self, lock: Lock, line: QueuePolicy) -> Acquire {
        let ttl = Ttl::new(TTL_MAX).expect("long enough");
        let (hold, mode, term) =
            (Ownership::Client, Mode::Exclusive, LeaseTerms::Own(ttl, Grace::NONE));
        let (name, client, patch) = (name(lock), self.id(), self.marked());
        Acquire { mode, hold, line, patch, ..Acquire::new(name, client, term) }
    }

    /// Returns the details of the lease for the next request: the field `holder_id` is the number
    /// of the request, by which a reader of the lock can tell which request was granted.
    fn marked(&self) -> Patch {
        let attempt = Some(format!("{}", self.requests + 1).into());
        Patch { holder_id: attempt, ..Patch::default() }
    }

    pub(crate) fn id(&self) -> ClientId {
        ClientId::parse(&self.who).expect("a valid name")
    }

    /// Records in the history that the client holds a lock, as the answer `came` says, and adds the
    /// lease to those that the client believes it holds.
    fn has(
        &mut self,
        ask: &Acquire,
        lock: Lock,
        came: &RequestResult,
        tenure: &Tenure,
        what: StepKind,
    ) {
        let token = tenure.token.as_u64();
        self.world.record.history(|history| {
            history.tenure(lock, token, &self.who);
            history.act(lock, came.from, Some(came.to), what);
        });
        self.hold(lock, came, tenure, ask.hold, ask.mode);
    }

    pub(crate) fn hold(
        &mut self,
        lock: Lock,
        came: &RequestResult,
        tenure: &Tenure,
        hold: Ownership,
        mode: Mode,
    ) {
        let token = tenure.token.as_u64();
        if self.is_of_another_session(&tenure.life) {
            return;
        }
        let (until, secured) = match tenure.life {
            Lifetime::Own { ttl, .. } => {
                (Some(came.sent + less(ttl.span())), came.from + less(ttl.span()))
            }
            Lifetime::Session(_) => (None, self.session_secured()),
        };
        self.world.record.history(|history| {
            history.secure(token, secured);
            if until.is_none() {
                history.hangs_on_session(token);
            }
        });
        if let Some(held) = self.held.iter_mut().find(|held| held.token == token) {
            (held.until, held.acquisition) = (until, tenure.acquisition);
        } else {
            let runs_out = until.is_some() && self.world.dice.percent(40);
            let acquisition = tenure.acquisition;
            let (asked, from) = (came.from, came.to);
            let one =
                ClientLease { lock, token, hold, mode, acquisition, asked, from, until, runs_out };
            self.held.push(one);
        }
    }

    pub(crate) fn refused(&mut self, lock: Lock, came: &RequestResult, reason: &Reason) {
        if let Reason::Conflict(conflict) = reason {
            let token = conflict.token.as_u64();
            let who: Who = conflict.holder.as_str().into();
            self.world.record.history(|history| {
                history.tenure(lock, token, &who);
                history.act(lock, came.from, Some(came.to), StepKind::InTheWay(token));
            });
        }
        // A copy of the refused request may still be in flight. That copy could be granted, because
        // the engine stores no refusals for repeated requests.
        self.left_open(lock, came.from);
    }

    pub(crate) fn left_open(&self, lock: Lock, since: Time) {
        self.world.record.history(|history| history.left_open(lock, &self.who, since));
    }

    /// Reads a lock. Returns the time of the request on the client's clock, the state of the lock,
    /// and an upper bound of the engine time.
    pub(crate) async fn read_lock(&mut self, lock: Lock) -> Option<(Time, LockView, Time)> {
        for _ in 0..TRIES {
            let (sent, from) = (self.clock.read(), now());
            let request = NodeRequest::View(name(lock));
            let reply = self.world.request(self.end, self.node, request, PATIENCE).await;
            if let Some(NodeReply::Seen(view, at)) = reply {
                self.saw(lock, from, &view);
                return Some((sent, *view, at));
            }
            self.turn_away().await;
        }
        None
    }

    fn saw(&self, lock: Lock, from: Time, view: &LockView) {
        let show = |holder: &Holder| {
            let who: Who = holder.lease.holder.as_str().into();
            (holder.lease.token.as_u64(), who)
        };
        let mut holders: Vec<_> = view.holders.iter().map(show).collect();
        holders.sort_unstable();
        self.world.record.note(format_args!("{} sees lock {lock}: {holders:?}", self.who));
        self.world.record.history(|history| {
            history.answered += 1;
            for (token, who) in &holders {
                history.tenure(lock, *token, who);
            }
            let seen = StepKind::Seen(holders.iter().map(|(token, _)| *token).collect());
            history.act(lock, from, Some(now()), seen);
        });
    }

    async fn renew_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.world.dice.index(self.held.len());
        let ClientLease { lock, token, hold, mode, runs_out, .. } = self.held[at];
        if runs_out {
            return;
        }
        let key = self.key(lock, token);
        let (firm, patch) = (Firm::Keep, Patch::default());
        let renew = Renew { key, term: None, firm, patch, acquires: false };
        let came = self.submit(Op::Renew(renew)).await;
        match &came.answer {
            Some(Ok(Outcome::Renewed(tenure))) => {
                self.world.record.history(|history| {
                    history.act(lock, came.from, Some(came.to), StepKind::Kept(token));
                });
                self.hold(lock, &came, tenure, hold, mode);
            }
            Some(Err(refusal)) => {
                let not_kept = !matches!(*refusal.reason, Reason::NoSession(_));
                if not_kept {
                    self.not_kept(lock, token, &came);
                }
                self.lose(token);
            }
            _ => {}
        }
    }

    fn not_kept(&self, lock: Lock, token: u64, came: &RequestResult) {
        self.world.record.history(|history| {
            history.act(lock, came.from, Some(came.to), StepKind::NotKept(token));
        });
    }

    pub(crate) fn key(&self, lock: Lock, token: u64) -> LeaseKey {
        let client = ClientId::parse(&self.who).expect("a valid name");
        LeaseKey { name: name(lock), client, token: Some(Token::named(token)) }
    }

    async fn give_back_one(&mut self) {
        let at = self.world.dice.index(self.held.len());
        if self.held[at].runs_out {
            return;
        }
        self.give_back(at).await;
    }

    /// Releases a lease. The client stops relying on it before it sends the request.
    pub(crate) async fn give_back(&mut self, at: usize) {
        let held = self.held.swap_remove(at);
        self.believed(&held);
        let ClientLease { lock, token, hold, mut acquisition, .. } = held;
        let (from, key) = (now(), self.key(lock, token));
        let release =
            |acquisition| Release { acquisition: Some(acquisition), ..Release::of(key.clone()) };
        if hold == Ownership::Client && self.world.dice.percent(60) {
            self.world.record.history(|history| history.free(token, from));
            return self.change_its_mind(lock, release(acquisition)).await;
        }
        let came = loop {
            let came = self.submit(Op::Release(release(acquisition))).await;
            let reason = match &came.answer {
                Some(Err(refusal)) => Some(&*refusal.reason),
                _ => None,
            };
            // The refusal means that the lock was acquired again by a late copy of an acquire. The
            // release is sent again, and names that acquire.
            let Some(Reason::AcquiredAgain { current, .. }) = reason else { break came };
            acquisition = *current;
        };
        match &came.answer {
            Some(Ok(Outcome::Released)) => self.world.record.history(|history| {
                history.act(lock, came.from, Some(came.to), StepKind::Released(token));
            }),
            Some(_) => self.not_kept(lock, token, &came),
            None => self.world.record.history(|history| history.free(token, from)),
        }
    }
}

/// Returns the name under which the engine knows the lock with the number `lock`.
pub(crate) fn name(lock: Lock) -> LockName {
    LockName::parse(&format!("lock{lock}")).expect("a valid name")
}

impl SimClient {
    /// Whether the request must be sent again because the engine has refused its number: another
    /// copy of it was refused, or its session is over. If so, sets `key` to the next number of the
    /// session, or to a key. A copy that was applied would have been answered.
    pub(crate) fn renumber(&mut self, key: &mut RequestKey, answer: &Answer) -> bool {
        let (RequestKey::Number(RequestNumber { session, .. }), Err(refusal)) = (&*key, answer)
        else {
            return false;
        };
        self.requests += 1;
        match *refusal.reason {
            Reason::LateCopy(_) => *key = self.request_key(),
            Reason::NoSession(id) if id == *session => *key = self.text_key(),
            _ => return false,
        }
        true
    }

    /// Returns the id of the last request: its number in the session, or a key if there is none.
    pub(crate) fn request_key(&self) -> RequestKey {
        let number = self.requests;
        match &self.session {
            Some(session) => RequestKey::Number(RequestNumber { session: session.id, number }),
            None => self.text_key(),
        }
    }

    /// Returns the key of the last request if it has no number.
    pub(super) fn text_key(&self) -> RequestKey {
        RequestKey::Text(self.requests.to_string().into())
    }

    /// Returns a command with the request id `key`, which no other command may use. It acknowledges
    /// the answers to all earlier requests of its session: the client sends none of them again.
    pub(crate) fn command(&self, key: &RequestKey, op: Op) -> Command {
        let id = RequestId { caller: Arc::clone(&self.who), key: key.clone() };
        let request = IdempotencyKey { id, digest: Digest(0) };
        let answered_below = match key {
            RequestKey::Text(_) => 0,
            RequestKey::Number(of) => of.number,
        };
        Command { answered_below, ..Command::from(op).with_request(Some(request)) }
    }
}

impl SimClient {
    /// Returns the earliest time at which the client's session may expire, in virtual time, which
    /// the checks of the history use. The client itself only reads its own clock.
    pub(super) fn session_secured(&self) -> Time {
        let session = self.session.as_ref();
        session.map_or(Time::ZERO, |session| {
            self.clock.virtual_at(session.kept) + less(session.ttl.span())
        })
    }

    /// Whether a lease is tied to a session that is not the client's current one. The client does
    /// not rely on such a lease.
    pub(super) fn is_of_another_session(&self, life: &Lifetime) -> bool {
        let open = self.session.as_ref().map(|session| session.id);
        matches!(life, Lifetime::Session(id) if Some(*id) != open)
    }

    pub(crate) fn lose_session(&mut self) {
        let lost: Vec<_> = self.held.extract_if(.., |held| held.until.is_none()).collect();
        for held in &lost {
            self.believed(held);
        }
        self.session = None;
    }

    /// Drops the expired leases and the expired session, and records the beliefs that end with
    /// them.
    pub(super) fn drop_the_late(&mut self) {
        let (clock, session) = (self.clock.read(), self.session.as_ref().map(|s| s.until));
        let is_late =
            |held: &ClientLease| held.until.or(session).is_none_or(|until| until <= clock);
        let late: Vec<_> = self.held.extract_if(.., |held| is_late(held)).collect();
        for held in &late {
            self.believed(held);
        }
        if session.is_some_and(|until| until <= clock) {
            self.lose_session();
        }
    }

    pub(crate) fn lose(&mut self, token: u64) {
        let lost: Vec<_> = self.held.extract_if(.., |held| held.token == token).collect();
        for held in &lost {
            self.believed(held);
        }
    }

    pub(crate) fn forget_all(&mut self) {
        let all = std::mem::take(&mut self.held);
        for held in &all {
            self.believed(held);
        }
    }

    /// Records the end of the client's belief that it holds a lease: now, or the deadline of the
    /// lease if that has passed.
    pub(crate) fn believed(&self, held: &ClientLease) {
        let until = held.until.or(self.session.as_ref().map(|session| session.until));
        let until = until.map_or(held.from, |until| self.clock.virtual_at(until)).min(now());
        let ClientLease { lock, token, asked, from, mode, .. } = *held;
        let who = Arc::clone(&self.who);
        let mode = sharing(mode);
        let belief = Belief { lock, token, who, mode, asked, from, until };
        self.world.record.history(|history| history.believed(belief));
    }
}

/// The part of a ttl, in thousandths, by which a client shortens it, since clocks run at different
/// rates.
const OFF_PER_MILLE: u64 = 1;
/// The fixed time by which a client additionally shortens a ttl, to allow for its own processing
/// time.
const OFF: Span = Span::from_millis(50);

/// A session, as its client knows it.
pub(crate) struct ClientSession {
    pub(crate) id: SessionId,
    pub(crate) ttl: Ttl,
    /// The earliest end of the session, on the client's clock.
    pub(crate) until: Time,
    pub(crate) kept: Time,
}

/// A lease that the client believes it holds.
#[derive(Clone)]
pub(crate) struct ClientLease {
    pub(crate) lock: Lock,
    pub(crate) token: u64,
    pub(crate) hold: Ownership,
    pub(crate) mode: Mode,
    /// The engine's count of the acquires that were answered with this lease, at the last of them.
    /// A release contains this number, so that a late release does not end a lease that was
    /// acquired again after it.
    pub(crate) acquisition: u32,
    /// When the client requested the lease, in virtual time.
    pub(crate) asked: Time,
    /// When the client learned of the grant, in virtual time.
    pub(crate) from: Time,
    /// The end of the lease on the client's clock. `None`: the lease ends with the session.
    pub(crate) until: Option<Time>,
    /// Whether the client leaves the lease to expire: it neither renews nor releases it.
    pub(super) runs_out: bool,
}

/// Returns a ttl minus the allowances for clock rates and processing time.
pub(crate) fn less(ttl: Span) -> Span {
    let off = Span::from_nanos(ttl.as_nanos() * OFF_PER_MILLE / 1_000 + OFF.as_nanos());
    Span::from_nanos(ttl.as_nanos().saturating_sub(off.as_nanos()))
}

/// Converts a mode to the type that the history uses.
pub(crate) const fn sharing(mode: Mode) -> Sharing {
    match mode {
        Mode::Exclusive => Sharing::Alone,
        Mode::Shared | Mode::Seats(_) => Sharing::Shared,
    }
}

/// Returns the mode in which several clients hold a lock.
pub(crate) fn shared(lock: Lock) -> Mode {
    let (seated, seats) = SEATS;
    if lock == seated {
        Mode::Seats(Seats::new(seats as u64).expect("valid"))
    } else {
        Mode::Shared
    }
}
