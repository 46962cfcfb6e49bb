//! Tests of the remote client with a server in this process and simulated faults of the network.
//!
//! Tests of the remote client with several servers in this process, with the same engine or
//! different ones.

use super::*;
use crate::client::http_transport::{
    FrameStream, ServerConnection, StreamPosition, Transport, TransportError,
};
use crate::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use crate::engine::{
    Acquire, Answer, Child, ClientId, Command, Engine, EventKind, Grace, LeaseKey, LeaseTerms,
    LockName, LockView, Op, OpenId, Outcome, Ownership, Patch, QueuePolicy as InLine, Reason,
    Release, Renew, Rules, SessionId, SessionView, Token, Ttl,
};
use crate::service::batch::batch_messages::{
    BatchResponse, ItemReply, RequestBatch, decode_response, encode_batch,
};
use crate::service::batch::batch_server::{BatchError, BatchServer, Limits};
use crate::service::counters::Count;
use crate::service::event_log::EventWatch;
use crate::service::local::Local;
use crate::service::paging::StaleReads;
use crate::service::{
    About, BackendStatus, CacheableView, Call, Children, Contact, List, ListPage, ListedNames,
    LockService, ParentCheck, Retry, SessionOwner, Unavailable, submit_in_steps,
};
use crate::time::{Span, Time, Wall, boot_now};
use futures_util::FutureExt as _;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// Simulated faults of the network and of the server.
#[derive(Default)]
pub(super) struct ServerFaults {
    /// Whether no event and no heartbeat arrives.
    is_silent: AtomicBool,
    /// Whether the network is partitioned.
    pub(super) cut: AtomicBool,
    /// The number of following batches that arrive at the server, but whose answers are lost.
    pub(super) answers_lost: AtomicU64,
    /// The number of batches that arrived at the server.
    pub(super) arrived: AtomicU64,
    /// The current fault of the server.
    fault: Mutex<Option<ServerFault>>,
}

/// A fault of a server that is reachable.
#[derive(Clone)]
enum ServerFault {
    /// The server executes no request, and reports the reason.
    Unable(Unavailable),
    /// The server executes requests, but replies that their outcome is unknown, because its log was
    /// too slow.
    Unsure,
    /// The server rejects the credentials.
    Unauthorized,
}

impl ServerFault {
    fn unsure() -> Unavailable {
        Unavailable::Log { why: "too slow".into() }
    }
}

/// A transport to a server in this process.
pub(super) struct Near {
    pub(super) batch_server: Mutex<BatchServer>,
    pub(super) weather: Arc<ServerFaults>,
}

struct NearLine {
    near: Arc<Near>,
}

struct NearStream {
    following: crate::service::batch::batch_server::Following,
    woken: Arc<(Mutex<bool>, Condvar)>,
    weather: Arc<ServerFaults>,
}

fn gone() -> TransportError {
    TransportError::Silent("cut".to_owned())
}

impl Transport for Arc<Near> {
    fn name(&self) -> &'static str {
        "near"
    }

    fn line(&self) -> Box<dyn ServerConnection> {
        Box::new(NearLine { near: Arc::clone(self) })
    }

    fn follow(
        &self,
        from: &StreamPosition,
        _: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError> {
        if self.weather.cut.load(Ordering::Acquire) {
            return Err(gone());
        }
        let mut following = self.batch_server.lock().follow(from.start, from.next, from.place);
        let woken = Arc::new((Mutex::new(false), Condvar::new()));
        let waking = Arc::clone(&woken);
        following.watch.wake_by(Arc::new(move || {
            *waking.0.lock() = true;
            waking.1.notify_all();
        }));
        Ok(Box::new(NearStream { following, woken, weather: Arc::clone(&self.weather) }))
    }
}

impl ServerConnection for NearLine {
    fn send_batch(
        &mut self,
        batch: &RequestBatch,
        _: Span,
    ) -> Result<BatchResponse, TransportError> {
        let weather = &self.near.weather;
        if weather.cut.load(Ordering::Acquire) {
            return Err(gone());
        }
        weather.arrived.fetch_add(1, Ordering::Relaxed);
        let bytes = encode_batch(batch);
        let batch = BatchServer::read(&bytes).expect("as it was written");
        let fault = weather.fault.lock().clone();
        let parts = batch.asks.len();
        if let Some(ServerFault::Unauthorized) = fault {
            return Err(TransportError::Denied("unknown token".to_owned()));
        }
        if let Some(ServerFault::Unable(why)) = &fault {
            let stamp = self.near.batch_server.lock().stamp();
            let replies = vec![ItemReply::Unavailable(why.clone()); parts];
            return Ok(BatchResponse { stamp, replies });
        }
        let batch_server = self.near.batch_server.lock().clone();
        let call = batch_server.execute(&"batch:a".into(), batch, Limits::new(), |_, _| {});
        let response = call.wait().expect("the server answers");
        if let Some(ServerFault::Unsure) = fault {
            let stamp = self.near.batch_server.lock().stamp();
            let replies = vec![ItemReply::Unavailable(ServerFault::unsure()); parts];
            return Ok(BatchResponse { stamp, replies });
        }
        let lost = |count: u64| count.checked_sub(1);
        if weather.answers_lost.fetch_update(Ordering::AcqRel, Ordering::Acquire, lost).is_ok() {
            return Err(gone());
        }
        let response = response.map_err(|turned| match turned {
            BatchError::Elsewhere => TransportError::Elsewhere("another engine".to_owned()),
            BatchError::Unreadable(error) => TransportError::Foreign(error.to_string()),
        });
        decode_response(&response?).map_err(|error| TransportError::Foreign(error.to_string()))
    }
}

impl FrameStream for NearStream {
    fn read(&mut self, bytes: &mut Vec<u8>, _: Span) -> Result<(), TransportError> {
        while self.weather.is_silent.load(Ordering::Acquire) {
            let (woken, called) = &*self.woken;
            called.wait_for(&mut woken.lock(), Span::from_millis(20).as_duration());
        }
        if self.weather.cut.load(Ordering::Acquire) {
            return Err(gone());
        }
        if let Some(frame) = self.following.frame() {
            bytes.extend(frame);
            return Ok(());
        }
        let (woken, called) = &*self.woken;
        let mut woken = woken.lock();
        // The wait is short, so that a change of the simulated faults is noticed.
        if !*woken {
            called.wait_for(&mut woken, Span::from_millis(20).as_duration());
        }
        *woken = false;
        bytes.extend(self.following.beat());
        Ok(())
    }
}

pub(super) struct ClientFixture {
    pub(super) local: Arc<Local>,
    pub(super) near: Arc<Near>,
    pub(super) weather: Arc<ServerFaults>,
}

pub(super) fn world() -> ClientFixture {
    let local = Arc::new(Local::in_memory(Rules::default()).expect("started"));
    let batch_server = Mutex::new(BatchServer::new(Arc::clone(&local) as _));
    let weather = Arc::new(ServerFaults::default());
    let near = Arc::new(Near { batch_server, weather: Arc::clone(&weather) });
    ClientFixture { local, near, weather }
}

pub(super) fn client_id(text: &str) -> ClientId {
    ClientId::parse(text).expect("valid")
}

pub(super) fn name(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

impl ClientFixture {
    fn connect(&self, who: &str, ttl: &str) -> Remote {
        let ttl = Ttl::parse(ttl).expect("valid");
        let terms = Terms { client: client_id(who), ttl, grace: Grace::NONE };
        let client = Remote::connect(Arc::new(Arc::clone(&self.near)), Some(terms));
        let client = client.expect("threads are to be had");
        assert!(client.is_ready(), "the server is near");
        client
    }

    pub(super) fn cut(&self, cut: bool) {
        self.weather.cut.store(cut, Ordering::Release);
    }

    pub(super) fn holders(&self, of: &str) -> Vec<String> {
        let view = self.local.inspect(|engine| engine.view(&name(of), engine.clock()));
        view.holders.iter().map(|holder| holder.lease.holder.to_string()).collect()
    }
}

pub(super) fn acquire(of: &str, who: &str, hold: Ownership, term: LeaseTerms, line: InLine) -> Op {
    Op::Acquire(Acquire { hold, line, ..Acquire::new(name(of), client_id(who), term) })
}

/// Returns the request that `mkdir` on the mount makes.
pub(super) fn mkdir(of: &str, who: &str) -> Op {
    let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
    acquire(of, who, Ownership::Exclusive(None), term, InLine::Skip)
}

/// Returns the request that `flock` on the mount makes.
pub(super) fn flock(client: &Remote, of: &str, who: &str, number: u64, line: InLine) -> Op {
    let session = session_of(client);
    let hold = Ownership::OpenFile(OpenId { session, number });
    acquire(of, who, hold, LeaseTerms::Session(session), line)
}

pub(super) fn session_of(client: &Remote) -> SessionId {
    match client.own_session() {
        Ok(SessionOwner::Kept(session)) => session,
        other => panic!("no session: {other:?}"),
    }
}

pub(super) fn submit(client: &Remote, op: Op) -> Result<Answer, Unavailable> {
    let answer = client.submit(op.into(), Retry::Never);
    answer.wait_at_most(REPLY_DEADLINE + REPLY_DEADLINE).expect("an answer")
}

#[track_caller]
pub(super) fn granted(answer: Result<Answer, Unavailable>) -> Token {
    match answer {
        Ok(Ok(Outcome::Granted(tenure))) => tenure.token,
        other => panic!("not granted: {other:?}"),
    }
}

/// Reads events until one matches `wanted`.
pub(super) fn wait_for(
    client: &Remote,
    watch: &mut EventWatch,
    wanted: impl Fn(&EventKind) -> bool,
) {
    let (send, news) = mpsc::channel();
    watch.wake_by(Arc::new(move || {
        // The send fails only after `wait_for` has returned and dropped the receiver.
        let _ = send.send(());
    }));
    loop {
        let batch = watch.take(usize::MAX);
        if batch.events.iter().any(|(_, event)| wanted(&event.what)) {
            return;
        }
        let limit = Span::from_secs(20).as_duration();
        news.recv_timeout(limit).unwrap_or_else(|_| panic!("never: {:?}", client.contact()));
    }
}

#[test]
fn the_server_decides_the_requests_of_remote_clients() {
    let world = world();
    let client = world.connect("a", "30s");
    let token = granted(submit(&client, mkdir("build", "a")));
    assert_eq!(world.holders("build"), ["a"]);
    let other = world.connect("b", "30s");
    let refused = submit(&other, mkdir("build", "b")).expect("answered").expect_err("held");
    assert!(matches!(*refused.reason, Reason::Conflict(_)), "{refused}");
    let key = LeaseKey { name: name("build"), client: client_id("a"), token: Some(token) };
    assert_eq!(submit(&client, Op::Release(Release::of(key))), Ok(Ok(Outcome::Released)));
    let page = client.list(ListedNames::InUse, List { limit: 10, ..List::default() }).wait();
    assert_eq!(page.expect("a page").items.len(), 0);
}

#[test]
fn a_lost_answer_is_repeated_and_the_request_has_one_effect() {
    let world = world();
    let client = world.connect("a", "30s");
    world.weather.answers_lost.store(1, Ordering::Release);
    let token = granted(submit(&client, mkdir("build", "a")));
    let view = world.local.inspect(|engine| engine.view(&name("build"), engine.clock()));
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.holders[0].lease.token, token, "the grant, and not a refusal of its repeat");
}

#[test]
fn an_answer_lost_in_a_restart_is_repeated_by_the_id_of_the_request() {
    let world = world();
    let client = world.connect("a", "30s");
    world.weather.answers_lost.store(1, Ordering::Release);
    // The new server has no record of earlier batches, as after a restart; the engine keeps its
    // state.
    let locks = Arc::clone(&world.local) as Arc<dyn LockService>;
    let answer = client.submit(mkdir("build", "a").into(), Retry::Never);
    while world.weather.answers_lost.load(Ordering::Acquire) > 0 {
        std::thread::yield_now();
    }
    *world.near.batch_server.lock() = BatchServer::new(locks);
    granted(answer.wait());
    assert_eq!(world.holders("build"), ["a"]);
}

/// The engine remembers only the answers that may not have arrived yet.
#[test]
fn answers_that_have_arrived_are_forgotten() {
    let world = world();
    let client = world.connect("a", "30s");
    for round in 0..200 {
        world.weather.answers_lost.store(u64::from(round % 50 == 7), Ordering::Release);
        let token = granted(submit(&client, mkdir("build", "a")));
        let key = LeaseKey { name: name("build"), client: client_id("a"), token: Some(token) };
        assert_eq!(submit(&client, Op::Release(Release::of(key))), Ok(Ok(Outcome::Released)));
    }
    let known = world.local.inspect(Engine::request_ids);
    assert!(known < 5, "{known} are remembered");
}

#[test]
fn a_release_is_never_overtaken_by_the_next_acquire() {
    let world = world();
    let client = world.connect("a", "30s");
    let mut answers = Vec::new();
    for number in 0..1_000 {
        let ask = flock(&client, "build", "a", number, InLine::Skip);
        answers.push(client.submit(ask.into(), Retry::Never));
        // The release names no token, so it matches whichever lease of the client is held when the
        // server executes it.
        let key = LeaseKey { name: name("build"), client: client_id("a"), token: None };
        client.submit(Op::Release(Release::of(key)).into(), Retry::Never).detach();
    }
    for answer in answers {
        granted(answer.wait());
    }
}

#[test]
fn no_call_waits_for_an_unreachable_server() {
    let world = world();
    let client = world.connect("a", "30s");
    world.cut(true);
    let begun = boot_now();
    let no = submit(&client, mkdir("build", "a"));
    let took = boot_now().since(begun);
    assert!(matches!(no, Err(Unavailable::NoAnswer { .. })), "{no:?}");
    assert!(took < REPLY_DEADLINE + Span::from_millis(500), "{took}");
    let begun = boot_now();
    assert!(submit(&client, mkdir("build", "a")).is_err());
    let took = boot_now().since(begun);
    assert!(took < Span::from_millis(200), "known to be away: {took}");
    assert_eq!(client.contact(), Contact::Jeopardy);
    world.cut(false);
    assert!(client.hub.is_ready(boot_now() + Span::from_secs(10)), "it comes back by itself");
    granted(submit(&client, mkdir("other", "a")));
}

#[test]
fn late_grants_are_released_and_releases_are_carried_out_after_a_failure() {
    let world = world();
    let client = world.connect("a", "30s");
    let token = granted(submit(&client, flock(&client, "held", "a", 1, InLine::Skip)));
    // The server executes the acquire, but its answer is lost until the caller's deadline has
    // passed.
    world.weather.answers_lost.store(u64::MAX, Ordering::Release);
    let no = submit(&client, flock(&client, "build", "a", 2, InLine::Skip));
    assert!(no.is_err(), "{no:?}");
    assert_eq!(world.holders("build"), ["a"], "nobody knows");
    let key = LeaseKey { name: name("held"), client: client_id("a"), token: Some(token) };
    assert!(submit(&client, Op::Release(Release::of(key))).is_err(), "not now");
    let mut watch = world.local.subscribe(None);
    world.weather.answers_lost.store(0, Ordering::Release);
    let mut over = [false, false];
    while over != [true, true] {
        for (_, event) in watch.take(usize::MAX).events {
            if let EventKind::Ended { name, .. } = event.what {
                over[usize::from(name.as_str() == "held")] = true;
            }
        }
        std::thread::yield_now();
    }
    assert!(world.holders("build").is_empty() && world.holders("held").is_empty());
}

#[test]
fn a_session_is_kept_alive_and_its_loss_is_reported_before_the_next_grant() {
    let world = world();
    let client = world.connect("a", "1s");
    let session = session_of(&client);
    let token = granted(submit(&client, flock(&client, "build", "a", 1, InLine::Skip)));
    let other = world.connect("b", "30s");
    let mut lost = client.subscribe(None);
    let waiting = submit(&other, flock(&other, "build", "b", 1, InLine::Join(None)));
    assert!(matches!(waiting, Ok(Ok(Outcome::Waiting { .. }))), "{waiting:?}");
    // Waits for longer than the ttl, so that only keep-alives preserve the session.
    let kept =
        |what: &EventKind| matches!(what, EventKind::SessionKept { session: of } if *of == session);
    (0..4).for_each(|_| wait_for(&client, &mut client.subscribe(None), kept));
    assert_eq!(session_of(&client), session);
    // Earlier events may be those from before the client followed them.
    let from = client.hub.feed.next();
    // Both clients lose the connection to the server. Client b only waits for the lock, and its
    // longer session does not expire meanwhile.
    let over =
        |what: &_| matches!(what, EventKind::SessionOver { session: of, .. } if *of == session);
    let granted_at = std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut watch = world.local.subscribe(None);
            let b = client_id("b");
            let is_b = |what: &EventKind| {
                matches!(what, EventKind::Granted { holder, .. } if *holder == b)
            };
            loop {
                if watch.take(usize::MAX).events.iter().any(|(_, event)| is_b(&event.what)) {
                    return boot_now();
                }
                std::thread::yield_now();
            }
        });
        world.cut(true);
        wait_for(&client, &mut lost, over);
        let lost_at = boot_now();
        assert_eq!(client.contact(), Contact::Lost);
        let key = LeaseKey { name: name("build"), client: client_id("a"), token: Some(token) };
        let renew = Renew {
            key,
            term: None,
            firm: engine::Firm::Keep,
            patch: Patch::default(),
            acquires: false,
        };
        let no = submit(&client, Op::Renew(renew)).expect("known without the server");
        assert!(matches!(*no.expect_err("over").reason, Reason::Expired { .. }));
        let granted_at = served.join().expect("served");
        assert!(lost_at <= granted_at, "the loss is reported before the next grant");
        granted_at
    });
    assert!(granted_at > Time::ZERO);
    world.cut(false);
    assert!(client.hub.is_ready(boot_now() + Span::from_secs(10)));
    assert_ne!(session_of(&client), session, "a new one");
    // The server's event of the same end arrives after the client has published its own.
    let (mut all, mut later) = (client.subscribe(Some(from)), client.subscribe(None));
    granted(submit(&client, mkdir("later", "a")));
    let is_later =
        |what: &_| matches!(what, EventKind::Granted { name: of, .. } if *of == name("later"));
    wait_for(&client, &mut later, is_later);
    let batch = all.take(usize::MAX);
    assert_eq!(batch.events.iter().filter(|(_, event)| over(&event.what)).count(), 1);
    assert_eq!(batch.missing(), None);
}

#[test]
fn an_interruption_is_a_gap_and_the_events_of_it_arrive() {
    let world = world();
    let client = world.connect("a", "30s");
    let mut watch = client.subscribe(None);
    granted(submit(&client, mkdir("one", "a")));
    let is = |of: &str| {
        let of = name(of);
        move |what: &EventKind| matches!(what, EventKind::Granted { name, .. } if *name == of)
    };
    wait_for(&client, &mut watch, is("one"));
    world.cut(true);
    let locks = Arc::clone(&world.local) as Arc<dyn LockService>;
    let done = locks.submit(mkdir("two", "x").into(), Retry::Never).wait();
    done.expect("decided").expect("granted");
    // Readers are told of the interruption of the event stream, since locks may have changed
    // unnoticed. Once the network works again, the events arrive that have come meanwhile.
    let mut has_gap = false;
    while !has_gap {
        has_gap = watch.take(usize::MAX).has_gap();
        std::thread::yield_now();
    }
    world.cut(false);
    wait_for(&client, &mut watch, is("two"));
}

#[test]
fn closing_a_client_releases_its_leases_at_once() {
    let world = world();
    let client = world.connect("a", "24h");
    granted(submit(&client, flock(&client, "build", "a", 1, InLine::Skip)));
    client.close();
    assert!(world.holders("build").is_empty());
    assert_eq!(world.local.about().sessions, 0);
}

/// The next heartbeat of the event stream may be half a second away.
#[test]
fn closing_a_client_does_not_wait_for_the_next_heartbeat() {
    let world = world();
    let client = world.connect("a", "24h");
    world.weather.is_silent.store(true, Ordering::Release);
    let (send, closed) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.close();
            send.send(()).expect("the test waits");
        });
        let in_time = closed.recv_timeout(Span::from_secs(10).as_duration());
        world.weather.is_silent.store(false, Ordering::Release);
        assert!(in_time.is_ok(), "it waits");
    });
}

/// Waits until a lock is free at the server.
fn wait_until_free(world: &ClientFixture, watch: &mut EventWatch, of: &str) {
    let (send, news) = mpsc::channel();
    watch.wake_by(Arc::new(move || {
        let _ = send.send(());
    }));
    while !world.holders(of).is_empty() {
        let limit = Span::from_secs(20).as_duration();
        news.recv_timeout(limit).unwrap_or_else(|_| panic!("'{of}' stays held"));
    }
}

/// A release that the server could not carry out must not be forgotten.
#[test]
fn a_release_is_repeated_until_the_server_has_carried_it_out() {
    let full = Unavailable::State { full: true, why: "no space left on device".into() };
    let faults = [
        ServerFault::Unable(full),
        ServerFault::Unable(Unavailable::NoQuorum { why: "too few nodes".into() }),
        ServerFault::Unable(Unavailable::Denied { why: "other rights".into() }),
        ServerFault::Unauthorized,
    ];
    for fault in faults {
        let world = world();
        let client = world.connect("a", "30s");
        let token = granted(submit(&client, flock(&client, "build", "a", 1, InLine::Skip)));
        let mut watch = world.local.subscribe(None);
        *world.weather.fault.lock() = Some(fault);
        let before = world.weather.arrived.load(Ordering::Relaxed);
        let key = LeaseKey { name: name("build"), client: client_id("a"), token: Some(token) };
        let release = Op::Release(Release::of(key));
        let mut answer = client.submit(release.into(), Retry::UntilAnswered);
        while world.weather.arrived.load(Ordering::Relaxed) < before + 3 {
            std::thread::yield_now();
        }
        assert_eq!(world.holders("build"), ["a"], "it can't be done");
        assert!((&mut answer).now_or_never().is_none(), "nor is it answered");
        *world.weather.fault.lock() = None;
        wait_until_free(&world, &mut watch, "build");
        assert_eq!(answer.wait(), Ok(Ok(Outcome::Released)));
    }
}

/// A lock whose grant was never reported to the caller must not stay held.
#[test]
fn a_lock_granted_without_an_answer_is_released() {
    let world = world();
    let client = world.connect("a", "30s");
    let mut watch = world.local.subscribe(None);
    *world.weather.fault.lock() = Some(ServerFault::Unsure);
    let no = submit(&client, mkdir("build", "a"));
    assert_eq!(no, Err(ServerFault::unsure()), "the caller learns that it is not known");
    assert_eq!(world.holders("build"), ["a"]);
    *world.weather.fault.lock() = None;
    wait_until_free(&world, &mut watch, "build");
}

/// A refused view of a lock must be repeated, so that the waiter is notified.
#[test]
fn a_view_that_must_be_answered_is_once_the_server_is_back() {
    let world = world();
    let client = world.connect("a", "30s");
    granted(submit(&client, flock(&client, "build", "a", 1, InLine::Skip)));
    world.cut(true);
    assert!(submit(&client, mkdir("other", "a")).is_err(), "it is known to be away");
    let seen = client.view(&name("build"), Retry::UntilAnswered);
    world.cut(false);
    let view = seen.wait_at_most(Span::from_secs(20)).expect("an answer");
    assert_eq!(view.expect("a view").view.holders.len(), 1);
}

#[test]
fn the_leases_of_a_session_are_listed_page_by_page() {
    let world = world();
    let client = world.connect("a", "30s");
    let session = session_of(&client);
    let tokens: Vec<_> = (0..3)
        .map(|n| granted(submit(&client, flock(&client, &format!("l{n}"), "a", n, InLine::Skip))))
        .collect();
    let page =
        |after: Option<&str>| client.leases(session, after.map(name)).wait().expect("a page").items;
    assert_eq!(page(None).into_iter().map(|(_, token)| token).collect::<Vec<_>>(), tokens);
    assert_eq!(page(Some("l1")), [(name("l2"), tokens[2])]);
    assert_eq!(page(Some("l2")), []);
}

/// An engine in memory that reports an engine id, as the engine of a cluster does.
struct WithEngineId(Arc<Local>, u64);

impl LockService for WithEngineId {
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
        self.0.submit(command, retry)
    }

    fn submit_checked(
        self: Arc<Self>,
        command: Command,
        check: Option<ParentCheck>,
    ) -> Call<Answer> {
        submit_in_steps(self, command, check)
    }

    fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView> {
        self.0.view(name, retry)
    }

    fn list(&self, names: ListedNames, query: List) -> Call<ListPage<LockView>> {
        self.0.list(names, query)
    }

    fn children(&self, query: Children) -> Call<ListPage<Child>> {
        self.0.children(query)
    }

    fn session(&self, id: SessionId) -> Call<Option<SessionView>> {
        self.0.session(id)
    }

    fn subscribe(&self, since: Option<u64>) -> EventWatch {
        self.0.subscribe(since)
    }

    fn next_event(&self) -> u64 {
        self.0.next_event()
    }

    fn now(&self) -> Time {
        self.0.now()
    }

    fn wall(&self, at: Time) -> Wall {
        self.0.wall(at)
    }
}

impl StaleReads for WithEngineId {}

impl BackendStatus for WithEngineId {
    fn about(&self) -> About {
        self.0.about()
    }

    fn engine_id(&self) -> u64 {
        self.1
    }

    fn counts(&self) -> Vec<Count> {
        self.0.counts()
    }
}

fn local() -> Arc<Local> {
    Arc::new(Local::in_memory(Rules::default()).expect("started"))
}

/// Returns a server in front of an engine with the id `engine`.
fn node(local: &Arc<Local>, engine: u64) -> ClientFixture {
    let locks = Arc::new(WithEngineId(Arc::clone(local), engine));
    let weather = Arc::new(ServerFaults::default());
    let batch_server = Mutex::new(BatchServer::new(locks));
    let near = Arc::new(Near { batch_server, weather: Arc::clone(&weather) });
    ClientFixture { local: Arc::clone(local), near, weather }
}

fn connect_all(nodes: &[&ClientFixture]) -> Remote {
    let servers = nodes.iter().map(|node| Arc::new(Arc::clone(&node.near)) as _).collect();
    let ttl = Ttl::parse("30s").expect("valid");
    let terms = Terms { client: client_id("a"), ttl, grace: Grace::NONE };
    let client = Remote::connect(Arc::new(Failover::new(servers)), Some(terms));
    client.expect("threads are to be had")
}

#[test]
fn any_node_can_serve_and_the_session_survives_a_failover() {
    let engine = local();
    let (one, two, three) = (node(&engine, 7), node(&engine, 7), node(&engine, 7));
    one.cut(true);
    let client = connect_all(&[&one, &two, &three]);
    assert!(client.is_ready(), "the first is away");
    let session = session_of(&client);
    let token = granted(submit(&client, flock(&client, "build", "a", 1, InLine::Skip)));
    assert_eq!(one.weather.arrived.load(Ordering::Relaxed), 0);
    for (away, back) in [(&two, &one), (&three, &two), (&one, &three), (&two, &one)] {
        away.cut(true);
        back.cut(false);
        let begun = boot_now();
        let other = format!("lock{}", begun.as_nanos());
        granted(submit(&client, mkdir(&other, "a")));
        let took = boot_now().since(begun);
        assert!(took < REPLY_DEADLINE, "{took}");
    }
    assert!(client.hub.is_ready(boot_now() + Span::from_secs(10)), "events, too");
    assert_eq!(session_of(&client), session);
    assert_eq!(one.holders("build"), ["a"]);
    let key = LeaseKey { name: name("build"), client: client_id("a"), token: Some(token) };
    assert_eq!(submit(&client, Op::Release(Release::of(key))), Ok(Ok(Outcome::Released)));
    client.close();
    assert_eq!(engine.about().sessions, 0);
}

/// A node carries out a request and fails before its answer arrives; another node gets the retry.
#[test]
fn a_request_carried_out_by_one_node_is_not_repeated_by_another() {
    let engine = local();
    let (one, two) = (node(&engine, 7), node(&engine, 7));
    let client = connect_all(&[&one, &two]);
    assert!(client.is_ready());
    let session = session_of(&client);
    let ops = [
        mkdir("build", "a"),
        flock(&client, "held", "a", 1, InLine::Skip),
        acquire(
            "plain",
            "a",
            Ownership::Exclusive(None),
            LeaseTerms::Session(session),
            InLine::Skip,
        ),
    ];
    let mut tokens = Vec::new();
    for op in ops {
        one.weather.answers_lost.store(1, Ordering::Release);
        two.weather.answers_lost.store(1, Ordering::Release);
        let before = engine.inspect(Engine::next_token);
        tokens.push(granted(submit(&client, op)));
        let after = engine.inspect(Engine::next_token);
        assert_eq!(after, before + 1, "one grant");
    }
    // Without a token a repeated release could end a later lease; with one, the answer to the retry
    // would be that there is nothing to release. The release takes effect once, and the retry
    // reports that.
    for (lock, token) in [("held", None), ("build", Some(tokens[0]))] {
        let key = LeaseKey { name: name(lock), client: client_id("a"), token };
        one.weather.answers_lost.store(1, Ordering::Release);
        two.weather.answers_lost.store(1, Ordering::Release);
        let released = submit(&client, Op::Release(Release::of(key)));
        assert_eq!(released, Ok(Ok(Outcome::Released)), "{lock}");
        assert_eq!(one.holders(lock), [""; 0]);
    }
}

#[test]
fn a_server_of_another_engine_is_never_used() {
    let (ours, others) = (local(), local());
    let (one, two) = (node(&ours, 7), node(&others, 8));
    let client = connect_all(&[&one, &two]);
    assert!(client.is_ready());
    let session = session_of(&client);
    one.cut(true);
    let no = submit(&client, mkdir("build", "a"));
    assert!(matches!(no, Err(Unavailable::NoAnswer { .. })), "{no:?}");
    assert_eq!((others.about().locks, others.about().sessions), (0, 0), "nothing was asked there");
    one.cut(false);
    assert!(client.hub.is_ready(boot_now() + Span::from_secs(10)), "it comes back by itself");
    granted(submit(&client, mkdir("build", "a")));
    assert_eq!(session_of(&client), session);
    assert_eq!((others.about().locks, others.about().sessions), (0, 0));
}

/// Two servers whose engines have no id could have different engines: only the first that answers
/// is used.
#[test]
fn only_one_of_several_servers_without_an_engine_id_is_used() {
    let (engine, others) = (local(), local());
    let (one, two) = (node(&engine, 0), node(&others, 0));
    one.cut(true);
    let client = connect_all(&[&one, &two]);
    assert!(client.is_ready());
    granted(submit(&client, mkdir("build", "a")));
    one.cut(false);
    two.cut(true);
    assert!(submit(&client, mkdir("other", "a")).is_err());
    assert_eq!((engine.about().locks, engine.about().sessions), (0, 0));
    two.cut(false);
    assert!(client.hub.is_ready(boot_now() + Span::from_secs(10)));
    assert_eq!(two.holders("build"), ["a"]);
}

/// All nodes were restored from a backup: the leases of the session are lost, and this is reported.
#[test]
fn an_engine_that_is_gone_for_good_is_given_up() {
    let (engine, restored) = (local(), local());
    let (one, two) = (node(&engine, 7), node(&engine, 7));
    let client = connect_all(&[&one, &two]);
    assert!(client.is_ready());
    let session = session_of(&client);
    let hold = Ownership::OpenFile(OpenId { session, number: 1 });
    let mut watch = client.subscribe(None);
    granted(submit(
        &client,
        acquire("build", "a", hold, LeaseTerms::Session(session), InLine::Skip),
    ));
    // Opens sessions on the restored engine, so that the session numbers of the two engines differ.
    for _ in 0..5 {
        mint(&restored);
    }
    for node in [&one, &two] {
        let locks = Arc::new(WithEngineId(Arc::clone(&restored), 9));
        *node.near.batch_server.lock() = BatchServer::new(locks);
    }
    // The client detects the new engine when it sends the next request.
    assert!(submit(&client, mkdir("other", "a")).is_err(), "it was for another engine");
    let over =
        |what: &_| matches!(what, EventKind::SessionOver { session: of, .. } if *of == session);
    wait_for(&client, &mut watch, over);
    assert!(client.hub.is_ready(boot_now() + Span::from_secs(10)));
    assert_ne!(session_of(&client), session);
    granted(submit(&client, mkdir("again", "a")));
    assert!(restored.about().locks > 0);
}

/// Opens a session that no client keeps alive, to use up a session number.
fn mint(engine: &Arc<Local>) -> SessionId {
    let ttl = Some(Ttl::parse("24h").expect("valid"));
    let open = engine::OpenSession { client: client_id("x"), ttl, grace: Grace::NONE };
    match engine.submit(Op::OpenSession(open).into(), Retry::Never).wait() {
        Ok(Ok(Outcome::SessionOpened(id))) => id,
        other => panic!("not opened: {other:?}"),
    }
}
