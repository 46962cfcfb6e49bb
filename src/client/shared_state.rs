//! The state that the threads of a client share: the data about the server, and the state of the
//! connection to it. No mutex is held while a reply is delivered or a waiter is woken.

use super::connection_state::ConnectionState;
use super::request_keys::RequestKeys;
use super::request_queue::{ItemResult, QueuedRequest, RequestQueue, Then};
use super::sequence_mapping::SequenceMapping;
use super::server_clock::ServerClock;
use super::session_state::{SessionKeepAlive, SessionState, surely_until};
use super::transport::{ServerConnection, Transport, TransportError};
use crate::engine::{
    ClientId, Event, EventKind, Lifetime, LockName, RefusalKind, SessionEnd, SessionId, Tenure,
    Token,
};
use crate::service::batch_messages::{BatchItem, BatchResponse, ItemReply, RequestBatch, Stamp};
use crate::service::event_log::EventLog;
use crate::service::{About, BackendKind, Contact, RemoteStatus, RttSample, Unavailable};
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
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
    pub(super) keys: Mutex<RequestKeys>,
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
    trouble: Mutex<Option<TransportError>>,
    /// Why the last server that answered could not decide a request; `None` if it did.
    unable: Mutex<Option<Unavailable>>,
    pub(super) counts: Counts,
    /// The id of the engine in use; 0 if it has none, or is not known yet.
    engine: AtomicU64,
    /// Whether the engine's id is known: with several servers, from the first one that answered.
    met: Mutex<bool>,
    /// The handle on the keep-alive thread.
    pub(super) keeper: OnceLock<Arc<SessionKeepAlive>>,
}

/// Counters of requests and their outcomes.
#[derive(Default)]
pub(super) struct Counts {
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
            keys: Mutex::default(),
            asked: Condvar::new(),
            state: Mutex::new(ConnectionState::new(session)),
            changed: Condvar::new(),
            tenures: Mutex::default(),
            about: Mutex::new(about),
            heard: Mutex::default(),
            session_lost: Mutex::default(),
            trouble: Mutex::default(),
            unable: Mutex::default(),
            counts: Counts::default(),
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
        let who = RequestBatch::repeatable(0, vec![BatchItem::Now]);
        let told = line.ask(&who, patience)?;
        self.engine.store(told.stamp.engine, Ordering::Release);
        if told.stamp.engine == 0 {
            log::warn!(
                "{}: a server's engine has no id; only that server is used, without \
                failover",
                self.name
            );
            line.stay();
        }
        *met = true;
        Ok(told.stamp.engine)
    }

    /// Returns the response `told` of a server. If one of its replies says that the server could
    /// not decide a request, and the client has several servers, returns an error instead, and the
    /// next try goes to another server.
    pub(super) fn able(
        &self,
        line: &mut dyn ServerConnection,
        told: BatchResponse,
    ) -> Result<BatchResponse, TransportError> {
        let unable = told.replies.iter().find_map(|reply| match reply {
            ItemReply::Unavailable(why) if why.kind() == RefusalKind::ConsistencyUnavailable => {
                Some(why)
            }
            _ => None,
        });
        *self.unable.lock() = unable.cloned();
        match unable {
            Some(why) if self.server.is_several() => {
                let trouble = TransportError::Silent(why.to_string());
                line.pass_over(&trouble);
                Err(trouble)
            }
            Some(_) | None => Ok(told),
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
        for then in given_up {
            self.refuse(Some(then));
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
    /// locks.
    pub(super) fn events_work(&self, work: bool) {
        let before = self.state.lock().set_events(&self.name, work);
        if before && !work {
            self.numbers.lock().cut();
            self.skip(1);
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
        let Some(client) = self.with_session(|session| session.lose(lost)) else { return };
        self.counts.sessions_lost.fetch_add(1, Ordering::Relaxed);
        let (session, server) = (lost.as_u64(), &*self.name);
        log::warn!(session, server; "session lost, with the locks of open files of this mount");
        *self.session_lost.lock() = Some((lost, client.clone()));
        self.tell_session_over(lost, client);
    }

    /// Reports to all readers that `count` events were lost. The event that the session is over may
    /// be among them, so it is published again: no waiter may miss it.
    pub(super) fn skip(&self, count: u64) {
        let wakers = self.feed.skip(count);
        let lost = self.session_lost.lock().take();
        match lost {
            Some((lost, client)) => self.tell_session_over(lost, client),
            None => wakers.wake(),
        }
    }

    fn tell_session_over(&self, session: SessionId, client: ClientId) {
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
            let denied = || self.last_trouble().is_some_and(|trouble| trouble.is_denial());
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
    pub(super) fn troubled(&self, what: &str, trouble: &TransportError) {
        log::debug!("{}: {what}: {trouble}", self.name);
        let _state = self.state.lock(); // a thread could be about to wait
        let mut last = self.trouble.lock();
        if trouble.is_denial() || !last.as_ref().is_some_and(TransportError::is_denial) {
            *last = Some(trouble.clone());
        }
        self.changed.notify_all();
    }

    pub(super) fn last_trouble(&self) -> Option<TransportError> {
        self.trouble.lock().clone()
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
    pub(super) fn hear(&self, asked_at: Time, stamp: &Stamp) {
        let round_trip = boot_now().since(asked_at);
        self.trouble.lock().take_if(|trouble| trouble.is_denial());
        *self.heard.lock() = Some(RttSample::new(round_trip, stamp.wall, Wall::now()));
        if !self.server.is_several() {
            self.engine.store(stamp.engine, Ordering::Release);
        }
        let forgot = self.clock.lock().hear(asked_at, stamp);
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
        let trouble = self.last_trouble().filter(|_| is_away).map(|trouble| trouble.to_string());
        let heard = *self.heard.lock();
        RemoteStatus { server: Arc::clone(&self.name), heard, trouble }
    }

    /// Queues a request, or refuses it at once if the server is known to be unreachable. A request
    /// that must be carried out is queued in any case, but then its caller waits only if it
    /// insists.
    pub(super) fn ask(&self, asked: QueuedRequest) {
        let away = !self.is_reached();
        if away && !asked.is_owed() {
            return self.refuse(asked.then);
        }
        let mut asked = asked;
        let then = if away && !asked.insists { asked.then.take() } else { None };
        self.queue.lock().push(asked);
        self.asked.notify_one();
        self.refuse(then);
    }

    pub(super) fn refuse(&self, then: Option<Then>) {
        if let Some(then) = then {
            self.counts.unanswered.fetch_add(1, Ordering::Relaxed);
            let no: ItemResult = Err(self.no_answer());
            then(no);
        }
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
            let tenure = Tenure { token, life, acquired_at, acquisition: 0, previous: None };
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
