//! The state that the threads of a client share: the data about the server, and the state of the
//! connection to it. No mutex is held while a reply is delivered or a waiter is woken.
//!
//! The state of the connection to a server.
//!
//! Maps the event numbers of the server to local ones: the server's numbers restart with it, and
//! those of the local event log must not.

use super::request_queue::{ItemReplier, QueuedRequest, RequestQueue};
use super::server_clock::ServerClock;
use crate::client::http_transport::{ServerConnection, Transport, TransportError};
use crate::client::session_keep_alive::{SessionKeepAlive, SessionState, surely_until};
use crate::engine::{
    ClientId, Event, EventKind, Lifetime, LockName, RefusalKind, SessionEnd, SessionId, Tenure,
    Token,
};
use crate::service::batch::batch_messages::{
    BatchItem, BatchResponse, ItemReply, RequestBatch, Stamp,
};
use crate::service::event_log::EventLog;
use crate::service::{About, BackendKind, Contact, RemoteStatus, RttSample, Unavailable};
use crate::time::{Span, Time, Wall, boot_now};
use log::Level;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::mem::replace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The maximum number of leases whose expiry the client remembers. Whether another lease is over,
/// only the server knows.
const TENURES_MAX: usize = 1 << 16;

/// The state that the threads of one client share.
pub(super) struct ClientState {
    pub(super) server: Arc<dyn Transport>,
    pub(super) name: Arc<str>,
    pub(super) feed: Arc<EventLog>,
    pub(super) numbers: Mutex<SequenceMapping>,
    pub(super) clock: Mutex<ServerClock>,
    pub(super) queue: Mutex<RequestQueue>,
    /// Signals that the queue has a request, or that the client stops.
    pub(super) asked: Condvar,
    state: Mutex<ConnectionState>,
    /// Signals that `state` has changed.
    changed: Condvar,
    tenures: Mutex<HashMap<Token, KnownTenure>>,
    about: Mutex<About>,
    heard: Mutex<Option<RttSample>>,
    /// The session that was lost last, and its client. If events are lost after that, the event of
    /// the session's end is published again.
    session_lost: Mutex<Option<(SessionId, ClientId)>>,
    /// The most recent error of a request or of the event stream, for troubleshooting.
    error: Mutex<Option<TransportError>>,
    /// Why the last server that answered could not decide a request; `None` if it did.
    unable: Mutex<Option<Unavailable>>,
    pub(super) counts: PipelineCounts,
    /// The id of the engine in use; 0 if it has none, or is not known yet.
    engine: AtomicU64,
    /// Whether the engine's id is known: with several servers, from the first one that answered.
    met: Mutex<bool>,
    /// The handle on the keep-alive thread.
    pub(super) keeper: OnceLock<Arc<SessionKeepAlive>>,
}

/// Counters of requests and their outcomes.
#[derive(Default)]
pub(super) struct PipelineCounts {
    pub(super) batches: AtomicU64,
    pub(super) asks: AtomicU64,
    pub(super) repeats: AtomicU64,
    pub(super) unanswered: AtomicU64,
    pub(super) breaks: AtomicU64,
    pub(super) sessions_lost: AtomicU64,
}

/// A lease of this client, with its expiry as this client computes it.
struct KnownTenure {
    name: LockName,
    life: Lifetime,
    /// The boot-clock time until which the lease certainly lasts.
    until: Time,
}

impl ClientState {
    pub(super) fn new(server: Arc<dyn Transport>, session: SessionState) -> Self {
        let name: Arc<str> = server.name().into();
        let about = About {
            kind: BackendKind::Server,
            contact: Contact::Connected,
            state: String::new(),
            locks: 0,
            waiters: 0,
            sessions: 0,
        };
        Self {
            server,
            name,
            feed: Arc::default(),
            numbers: Mutex::default(),
            clock: Mutex::default(),
            queue: Mutex::default(),
            asked: Condvar::new(),
            state: Mutex::new(ConnectionState::new(session)),
            changed: Condvar::new(),
            tenures: Mutex::default(),
            about: Mutex::new(about),
            heard: Mutex::default(),
            session_lost: Mutex::default(),
            error: Mutex::default(),
            unable: Mutex::default(),
            counts: PipelineCounts::default(),
            engine: AtomicU64::new(0),
            met: Mutex::new(false),
            keeper: OnceLock::new(),
        }
    }

    /// Returns the id of the engine that requests are for.
    pub(super) fn engine(&self) -> u64 {
        self.engine.load(Ordering::Acquire)
    }

    /// Returns the id of the engine. With several servers, first asks one of them for it, before a
    /// request could change the state of another engine.
    pub(super) fn introduce(
        &self,
        line: &mut dyn ServerConnection,
        patience: Span,
    ) -> Result<u64, TransportError> {
        if !self.server.is_several() {
            return Ok(self.engine());
        }
        // Only one thread at a time asks for the engine's id, or two threads could choose two
        // different engines.
        let mut met = self.met.lock();
        if *met {
            return Ok(self.engine());
        }
        let who = RequestBatch::new(0, vec![BatchItem::Now]);
        let response = line.send_batch(&who, patience)?;
        self.engine.store(response.stamp.engine, Ordering::Release);
        if response.stamp.engine == 0 {
            log::warn!(
                "{}: a server's engine has no id; only that server is used, without \
                failover",
                self.name
            );
            line.stay();
        }
        *met = true;
        Ok(response.stamp.engine)
    }

    /// Returns the response of a server. If one of its replies says that the server could not
    /// decide a request, and the client has several servers, returns an error instead, and the next
    /// try goes to another server.
    pub(super) fn able(
        &self,
        line: &mut dyn ServerConnection,
        response: BatchResponse,
    ) -> Result<BatchResponse, TransportError> {
        let unable = response.replies.iter().find_map(|reply| match reply {
            ItemReply::Unavailable(why) if why.kind() == RefusalKind::ConsistencyUnavailable => {
                Some(why)
            }
            _ => None,
        });
        *self.unable.lock() = unable.cloned();
        match unable {
            Some(why) if self.server.is_several() => {
                let error = TransportError::Silent(why.to_string());
                line.pass_over(&error);
                Err(error)
            }
            Some(_) | None => Ok(response),
        }
    }

    /// Handles a change of the server's engine from `before` to another one: all locks are lost,
    /// and requests for the old engine are refused, because they are not meant for the new one.
    pub(super) fn engine_gone(&self, before: u64) {
        {
            // The engine id and `met` change while the mutex is held: no thread may read the id as
            // unset and take it for that of the new engine, or for that of an engine without an id.
            let mut met = self.met.lock();
            if before == 0 || self.engine() != before {
                return;
            }
            self.engine.store(0, Ordering::Release);
            *met = false;
        }
        log::warn!("{} has another engine than before; all locks are lost", self.name);
        *self.clock.lock() = ServerClock::default();
        self.forgotten();
        let given_up = self.queue.lock().clear();
        for replier in given_up {
            self.refuse(Some(replier));
        }
    }

    /// Gives up the session, because a server that lost its state may reuse its number.
    fn forgotten(&self) {
        if let Some(session) = self.session(SessionState::bond) {
            self.lose_session(session);
            self.with_session(SessionState::forget);
        }
        // Wakes the keep-alive thread, which then opens a new session.
        if let Some(keeper) = self.keeper.get() {
            keeper.call();
        }
    }

    /// Returns the failure of a server that does not answer, or that has answered last that its
    /// cluster has no majority.
    pub(super) fn no_answer(&self) -> Unavailable {
        let no_answer = || Unavailable::NoAnswer { server: Arc::clone(&self.name) };
        self.no_majority().unwrap_or_else(no_answer)
    }

    /// Returns the failure of a cluster without a majority, if the last server that answered has
    /// said so.
    pub(super) fn no_majority(&self) -> Option<Unavailable> {
        self.unable.lock().clone().filter(Unavailable::is_no_majority)
    }

    /// Whether the server answers requests. A call to a server that is known not to answer fails at
    /// once.
    pub(super) fn is_reached(&self) -> bool {
        self.state.lock().asks_work
    }

    pub(super) fn asks_work(&self, work: bool) {
        self.change(|state| {
            let before = state.set_asks(&self.name, work);
            if before && !work {
                self.counts.breaks.fetch_add(1, Ordering::Relaxed);
            }
            before != work
        });
    }

    /// Records whether the event stream is open. Without it, the client does not notice changes of
    /// locks, and tells each reader so.
    pub(super) fn events_work(&self, work: bool) {
        let before = self.state.lock().set_events(&self.name, work);
        if before && !work {
            self.numbers.lock().cut();
            self.feed.interrupt().wake();
        }
        self.changed.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut ConnectionState) -> bool) {
        let changed = change(&mut self.state.lock());
        self.changed.notify_all();
        if changed {
            self.feed.wakers().wake();
        }
    }

    /// Returns the state of the connection to the server.
    pub(super) fn contact(&self) -> Contact {
        let state = self.state.lock();
        let up = state.is_up();
        match state.session.contact(boot_now()) {
            Contact::Connected if !up => Contact::Jeopardy,
            contact => contact,
        }
    }

    /// Returns what `read` finds in the session of this client, at the current boot time.
    pub(super) fn session<T>(&self, read: impl FnOnce(&SessionState, Time) -> T) -> T {
        read(&self.state.lock().session, boot_now())
    }

    pub(super) fn with_session<T>(&self, change: impl FnOnce(&mut SessionState) -> T) -> T {
        let (done, before, after) = {
            let mut state = self.state.lock();
            let now = boot_now();
            let before = state.session.contact(now);
            let done = change(&mut state.session);
            (done, before, state.session.contact(now))
        };
        self.changed.notify_all();
        if before != after {
            self.feed.wakers().wake();
        }
        done
    }

    /// Gives up a session and notifies all readers of events: all leases bound to it are lost.
    pub(super) fn lose_session(&self, lost: SessionId) {
        if let Some(client) = self.give_up_session(lost) {
            self.publish_session_over(lost, client);
        }
    }

    /// Gives up a session whose end the server has reported by an event. Returns whether readers
    /// are to get this event: not if they were told before that the session is over.
    pub(super) fn session_over(&self, over: SessionId) -> bool {
        let is_lost = |lost: &(SessionId, ClientId)| lost.0 == over;
        let was_told = self.session_lost.lock().as_ref().is_some_and(is_lost);
        self.give_up_session(over);
        !was_told
    }

    /// Gives up a session. Returns its client, or `None` if it is not the current session.
    fn give_up_session(&self, lost: SessionId) -> Option<ClientId> {
        let client = self.with_session(|session| session.lose(lost))?;
        self.counts.sessions_lost.fetch_add(1, Ordering::Relaxed);
        let (session, server) = (lost.as_u64(), &*self.name);
        log::warn!(session, server; "session lost, with the locks of open files of this mount");
        *self.session_lost.lock() = Some((lost, client.clone()));
        Some(client)
    }

    /// Reports to all readers that `count` events were lost, or an unknown number. The event that
    /// the session is over may be among them, so it is published again: no waiter may miss it.
    pub(super) fn skip(&self, count: Option<u64>) {
        let wakers = count.map_or_else(|| self.feed.skip_unknown(), |count| self.feed.skip(count));
        let lost = self.session_lost.lock().take();
        match lost {
            Some((lost, client)) => self.publish_session_over(lost, client),
            None => wakers.wake(),
        }
    }

    fn publish_session_over(&self, session: SessionId, client: ClientId) {
        let what = EventKind::SessionOver { session, client, end: SessionEnd::Expired };
        let at = self.clock.lock().now();
        self.feed.publish(&mut vec![Event { at, what }]).wake();
    }

    /// Waits until it is known whether the session is alive, but at most until `limit`. It is
    /// unknown after a sleep of the machine. Returns false if it is still unknown.
    pub(super) fn session_is_clear(&self, limit: Time) -> bool {
        let mut state = self.state.lock();
        while state.session.is_unclear(boot_now()) {
            let left = limit.since(boot_now());
            if left == Span::ZERO || state.stopped {
                return false;
            }
            self.changed.wait_for(&mut state, left.as_duration());
        }
        true
    }

    /// Waits until requests are answered, events arrive and a session is open, but at most until
    /// `limit`, or until the only server refuses the credentials. Returns whether they do.
    pub(super) fn is_ready(&self, limit: Time) -> bool {
        let mut state = self.state.lock();
        loop {
            let contact = state.session.contact(boot_now());
            if state.is_up() && contact == Contact::Connected {
                return true;
            }
            let left = limit.since(boot_now());
            let denied = || self.last_error().is_some_and(|error| error.is_denial());
            if left == Span::ZERO || state.stopped || (!self.server.is_several() && denied()) {
                return false;
            }
            self.changed.wait_for(&mut state, left.as_duration());
        }
    }

    /// Sleeps for `span`. Returns false if the client stops meanwhile.
    pub(super) fn pause(&self, span: Span) -> bool {
        let until = boot_now() + span;
        let mut state = self.state.lock();
        while !state.stopped {
            let left = until.since(boot_now());
            if left == Span::ZERO {
                return true;
            }
            self.changed.wait_for(&mut state, left.as_duration());
        }
        false
    }

    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
        // The pipeline thread is notified under the mutex of the queue, since it could be about to
        // wait.
        let _queue = self.queue.lock();
        self.asked.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Remembers a lease that was granted or renewed by a request first sent at `asked_at`.
    pub(super) fn keep_in_mind(&self, name: &LockName, tenure: &Tenure, asked_at: Time) {
        let until = match tenure.life {
            Lifetime::Own { ttl, .. } => surely_until(asked_at, ttl),
            Lifetime::Session(_) => Time::NEVER,
        };
        let mut tenures = self.tenures.lock();
        if tenures.len() >= TENURES_MAX {
            let now = boot_now();
            tenures.retain(|_, known| known.until > now);
        }
        if tenures.len() < TENURES_MAX {
            let known = KnownTenure { name: name.clone(), life: tenure.life, until };
            tenures.insert(tenure.token, known);
        }
    }

    /// Records an error. A refusal of the credentials is kept until the server answers a request.
    pub(super) fn record_error(&self, what: &str, error: &TransportError) {
        log::debug!("{}: {what}: {error}", self.name);
        let _state = self.state.lock(); // a thread could be about to wait
        let mut last = self.error.lock();
        if error.is_denial() || !last.as_ref().is_some_and(TransportError::is_denial) {
            *last = Some(error.clone());
        }
        self.changed.notify_all();
    }

    pub(super) fn last_error(&self) -> Option<TransportError> {
        self.error.lock().clone()
    }

    pub(super) fn forget(&self, token: Token) {
        self.tenures.lock().remove(&token);
    }

    /// Whether this client knows that the lease with this token is over, so that it need not ask
    /// the server.
    pub(super) fn is_lost(&self, name: &LockName, token: Token) -> bool {
        let tenures = self.tenures.lock();
        let Some(known) = tenures.get(&token).filter(|known| known.name == *name) else {
            return false;
        };
        match known.life {
            Lifetime::Own { .. } => boot_now() >= known.until,
            Lifetime::Session(id) => self.session(SessionState::bond) != Some(id),
        }
    }

    /// Records the [`Stamp`] in a server's response (its engine and its clocks) and the round-trip
    /// time.
    pub(super) fn observe_stamp(&self, asked_at: Time, stamp: &Stamp) {
        let round_trip = boot_now().since(asked_at);
        self.error.lock().take_if(|error| error.is_denial());
        *self.heard.lock() = Some(RttSample::new(round_trip, stamp.wall, Wall::now()));
        if !self.server.is_several() {
            self.engine.store(stamp.engine, Ordering::Release);
        }
        let forgot = self.clock.lock().observe_stamp(asked_at, stamp);
        // An engine with an id has not lost its state when the time in a response goes back: the
        // response came from another node of its cluster, which may be behind.
        if forgot && stamp.engine == 0 {
            log::warn!("{} has lost its state; all locks are lost", self.name);
            self.forgotten();
        }
    }

    /// Records the URLs of all nodes of the server's cluster, any of which can be used from now on.
    pub(super) fn learn(&self, urls: &[String]) {
        if self.engine() == 0 || urls.len() < 2 {
            return;
        }
        if !self.server.is_several() {
            // From now on the client has several servers. The id of their engine is already known,
            // so `introduce` must not ask one of them for it.
            *self.met.lock() = true;
        }
        self.server.learn(urls);
    }

    pub(super) fn set_about(&self, about: About) {
        *self.about.lock() = about;
    }

    /// Returns the last known description of the server, with the current state of the connection.
    pub(super) fn about(&self) -> About {
        let about = self.about.lock().clone();
        let state = match &*about.state {
            "" => self.name.to_string(),
            state => format!("{} ({state})", self.name),
        };
        About { kind: BackendKind::Server, contact: self.contact(), state, ..about }
    }

    /// Returns the state of the connection to the server, for troubleshooting.
    pub(super) fn far(&self) -> RemoteStatus {
        // The last error matters only as long as there is no connection.
        let is_away = self.contact() != Contact::Connected;
        let error = self.last_error().filter(|_| is_away).map(|error| error.to_string());
        let heard = *self.heard.lock();
        RemoteStatus { server: Arc::clone(&self.name), heard, error }
    }

    /// Queues a request, or refuses it at once if the server is known to be unreachable. A request
    /// that must be carried out is queued in any case, but then its caller waits only if it
    /// insists.
    pub(super) fn enqueue(&self, asked: QueuedRequest) {
        let away = !self.is_reached();
        if away && !asked.is_owed() {
            return self.refuse(asked.replier);
        }
        let mut asked = asked;
        let replier = if away && !asked.insists { asked.replier.take() } else { None };
        self.queue.lock().push(asked);
        self.asked.notify_one();
        self.refuse(replier);
    }

    pub(super) fn refuse(&self, replier: Option<ItemReplier>) {
        if let Some(replier) = replier {
            self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
            replier.keep(Err(self.no_answer()));
        }
    }
}

/// How long after a loss of the connection no further one is logged as a warning. A server that
/// accepts connections and closes them would otherwise fill the terminal of a command.
const LOSS_SAID_EVERY: Span = Span::from_secs(10);

/// Whether a server answers, and the session with it.
pub(super) struct ConnectionState {
    /// Whether the server answers requests.
    pub(super) asks_work: bool,
    /// Whether the event stream from the server is open.
    pub(super) events_work: bool,
    pub(super) session: SessionState,
    pub(super) stopped: bool,
    /// When a loss of the connection was last logged as a warning.
    loss_said: Option<Time>,
}

impl ConnectionState {
    pub(super) const fn new(session: SessionState) -> Self {
        Self { asks_work: true, events_work: false, session, stopped: false, loss_said: None }
    }

    /// Whether the server answers requests and sends events.
    pub(super) const fn is_up(&self) -> bool {
        self.asks_work && self.events_work
    }

    /// Records whether requests to `server` work. Returns whether they did before.
    pub(super) fn set_asks(&mut self, server: &str, work: bool) -> bool {
        let (was_up, before) = (self.is_up(), replace(&mut self.asks_work, work));
        self.log_change(server, was_up);
        before
    }

    /// Records whether the event stream of `server` is open. Returns whether it was before.
    pub(super) fn set_events(&mut self, server: &str, work: bool) -> bool {
        let (was_up, before) = (self.is_up(), replace(&mut self.events_work, work));
        self.log_change(server, was_up);
        before
    }

    /// Logs a change, if this client has a session: a single command needs no such lines.
    fn log_change(&mut self, server: &str, was_up: bool) {
        match (was_up, self.is_up()) {
            _ if !self.session.is_wanted() => {}
            (true, false) => {
                let level = self.level_of_loss(boot_now());
                log::log!(level, server; "connection to the server lost");
            }
            (false, true) => log::info!(server; "connected to the server"),
            (true, true) | (false, false) => {}
        }
    }

    /// Returns the level at which a loss of the connection is logged.
    fn level_of_loss(&mut self, now: Time) -> Level {
        if self.loss_said.is_some_and(|said| now < said + LOSS_SAID_EVERY) {
            return Level::Info;
        }
        self.loss_said = Some(now);
        Level::Warn
    }
}

/// The maximum number of runs that are remembered; a run is a sequence of events that arrived
/// together. A lock's state that is older than the oldest run is not cached.
const RUNS_MAX: usize = 1_024;

/// Maps the numbers of the events received from the server to their numbers in the local event log.
#[derive(Debug, Default)]
pub(super) struct SequenceMapping {
    /// The id of the server's start that numbered the events; 0 while the stream is interrupted.
    start: u64,
    /// For each run of events that arrived together, the number of its first event at the server
    /// and in the local event log.
    runs: VecDeque<(u64, u64)>,
    /// The server's number of the next event to arrive.
    next: u64,
    /// The local number of the next event to arrive.
    next_here: u64,
}

impl SequenceMapping {
    /// Records that the event stream of the server with the start id `start` begins or continues at
    /// its event `next`, which gets the local number `next_here`.
    pub(super) fn begin(&mut self, start: u64, next: u64, next_here: u64) {
        *self = Self { start, runs: VecDeque::new(), next, next_here };
    }

    /// Records that the event stream is interrupted.
    pub(super) fn cut(&mut self) {
        self.start = 0;
    }

    /// Records that the next run of events (events that arrived together), up to the server's event
    /// number `next`, was published in the local event log under the numbers from `first_here` to
    /// `next_here`.
    pub(super) fn came(&mut self, next: u64, first_here: u64, next_here: u64) {
        self.runs.push_back((self.next, first_here));
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
        (self.next, self.next_here) = (next, next_here);
    }

    /// Returns a local number such that every event before it also comes before the server's event
    /// `number`. `None` if the mapping does not know that event number.
    pub(super) fn here(&self, start: u64, number: u64) -> Option<u64> {
        if start != self.start || self.start == 0 {
            return None;
        }
        if number >= self.next {
            return Some(self.next_here);
        }
        // Returning the number of the first event that arrived in the same run is safe: a number
        // that is too small only prevents the caching of a state that could have been cached.
        let after = self.runs.partition_point(|(first, _)| *first <= number);
        after.checked_sub(1).map(|run| self.runs[run].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::{name, world};
    use crate::engine::{Grace, Ttl};

    /// The lease with the token 0 has expired, and the others last as long as a session.
    #[test]
    fn a_limited_number_of_leases_is_remembered() {
        let state = ClientState::new(Arc::new(world().near), SessionState::new(None));
        let ttl = Ttl::parse("1s").expect("valid");
        let expired = Lifetime::Own { ttl, grace: Grace::NONE, expires_at: Time::from_secs(1) };
        let remember = |number: usize| {
            let life = if number == 0 { expired } else { Lifetime::Session(SessionId::named(1)) };
            let token = Token::named(number as u64);
            let acquired_at = Time::ZERO;
            let tenure =
                Tenure { token, life, acquired_at, acquisition: 0, seat: None, previous: None };
            state.keep_in_mind(&name("build"), &tenure, Time::ZERO);
        };
        let knows = |number: usize| state.tenures.lock().contains_key(&Token::named(number as u64));
        (0..TENURES_MAX).for_each(remember);
        assert!(knows(0) && state.is_lost(&name("build"), Token::named(0)));
        assert_eq!(state.tenures.lock().len(), TENURES_MAX);
        remember(TENURES_MAX);
        assert!(!knows(0) && knows(TENURES_MAX), "it takes the place of the expired one");
        remember(TENURES_MAX + 1);
        assert!(!knows(TENURES_MAX + 1), "only the server knows when it is over");
        assert_eq!(state.tenures.lock().len(), TENURES_MAX);
    }
}

#[cfg(test)]
mod connection_state_tests {
    use super::*;

    #[test]
    fn one_loss_in_ten_seconds_is_a_warning() {
        let mut state = ConnectionState::new(SessionState::new(None));
        let levels = [1, 2, 10, 11, 12].map(|secs| state.level_of_loss(Time::from_secs(secs)));
        let [warn, info] = [Level::Warn, Level::Info];
        assert_eq!(levels, [warn, info, info, warn, info]);
    }
}

#[cfg(test)]
mod sequence_mapping_tests {
    use super::*;

    #[test]
    fn server_numbers_map_to_local_ones() {
        let mut numbers = SequenceMapping::default();
        assert_eq!(numbers.here(0, 0), None, "nothing is followed yet");
        numbers.begin(5, 100, 7);
        assert_eq!(numbers.here(5, 100), Some(7));
        assert_eq!(numbers.here(6, 100), None, "of another start");
        numbers.came(103, 7, 10);
        numbers.came(104, 12, 13);
        assert_eq!(numbers.here(5, 99), None, "before all that is remembered");
        assert_eq!(numbers.here(5, 102), Some(7));
        assert_eq!(numbers.here(5, 103), Some(12));
        assert_eq!(numbers.here(5, 110), Some(13), "the stream is behind the view");
        numbers.cut();
        assert_eq!(numbers.here(5, 110), None);
    }

    #[test]
    fn the_oldest_run_is_forgotten() {
        let mut numbers = SequenceMapping::default();
        numbers.begin(5, 0, 0);
        for run in 0..=RUNS_MAX as u64 {
            numbers.came(run + 1, run, run + 1);
        }
        assert_eq!(numbers.runs.len(), RUNS_MAX);
        assert_eq!((numbers.here(5, 0), numbers.here(5, 1)), (None, Some(1)));
    }
}
