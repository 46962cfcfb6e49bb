//! Tests of the remote client with several servers in this process, with the same engine or
//! different ones.

use super::tests::{
    ClientFixture, Near, ServerFaults, acquire, client, flock, granted, mkdir, name, session_of,
    submit, wait_for,
};
use super::*;
use crate::engine::{
    Child, Command, EventKind, Grace, LeaseKey, LeaseTerms, LockName, LockView, Op, OpenId,
    Outcome, Ownership, QueuePolicy as InLine, Release, Rules, SessionId, SessionView, Ttl,
};
use crate::service::batch_server::BatchServer;
use crate::service::counters::Count;
use crate::service::event_log::EventWatch;
use crate::service::local::Local;
use crate::service::stale_read::StaleReads;
use crate::service::{
    About, BackendStatus, CacheableView, Children, List, ListPage, LockService, Locks, Retry, Then,
    Unavailable,
};
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An engine in memory that reports an engine id, as the engine of a cluster does.
struct Named(Arc<Local>, u64);

impl LockService for Named {
    fn submit(
        &self,
        command: Command,
        retry: Retry,
        then: Then<Result<crate::engine::Answer, Unavailable>>,
    ) {
        self.0.submit(command, retry, then);
    }

    fn view(&self, name: &LockName, retry: Retry, then: Then<Result<CacheableView, Unavailable>>) {
        self.0.view(name, retry, then);
    }

    fn list(&self, query: List, then: Then<Result<ListPage<LockView>, Unavailable>>) {
        self.0.list(query, then);
    }

    fn children(&self, query: Children, then: Then<Result<ListPage<Child>, Unavailable>>) {
        self.0.children(query, then);
    }

    fn session(&self, id: SessionId, then: Then<Result<Option<SessionView>, Unavailable>>) {
        self.0.session(id, then);
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

impl StaleReads for Named {}

impl BackendStatus for Named {
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
    let locks = Locks::new(Arc::new(Named(Arc::clone(local), engine)));
    let weather = Arc::new(ServerFaults::default());
    let porter = Mutex::new(BatchServer::new(locks));
    let near = Arc::new(Near { porter, weather: Arc::clone(&weather) });
    ClientFixture { local: Arc::clone(local), near, weather }
}

fn door(nodes: &[&ClientFixture]) -> Remote {
    let servers = nodes.iter().map(|node| Arc::new(Arc::clone(&node.near)) as _).collect();
    let ttl = Ttl::parse("30s").expect("valid");
    let terms = Terms { client: client("a"), ttl, grace: Grace::NONE };
    let door = Remote::connect(Arc::new(Failover::new(servers)), Some(terms));
    door.expect("threads are to be had")
}

#[test]
fn any_node_can_serve_and_the_session_survives_a_failover() {
    let engine = local();
    let (one, two, three) = (node(&engine, 7), node(&engine, 7), node(&engine, 7));
    one.cut(true);
    let door = door(&[&one, &two, &three]);
    assert!(door.is_ready(), "the first is away");
    let session = session_of(&door);
    let token = granted(submit(&door, flock(&door, "build", "a", 1, InLine::Skip)));
    assert_eq!(one.weather.arrived.load(Ordering::Relaxed), 0);
    for (away, back) in [(&two, &one), (&three, &two), (&one, &three), (&two, &one)] {
        away.cut(true);
        back.cut(false);
        let begun = boot_now();
        let other = format!("lock{}", begun.as_nanos());
        granted(submit(&door, mkdir(&other, "a")));
        let took = boot_now().since(begun);
        assert!(took < REPLY_DEADLINE, "{took}");
    }
    assert!(door.hub.is_ready(boot_now() + Span::from_secs(10)), "events, too");
    assert_eq!(session_of(&door), session);
    assert_eq!(one.holders("build"), ["a"]);
    let key = LeaseKey { name: name("build"), client: client("a"), token: Some(token) };
    assert_eq!(submit(&door, Op::Release(Release::of(key))), Ok(Ok(Outcome::Released)));
    door.close();
    assert_eq!(engine.about().sessions, 0);
}

/// A node carries out a request and fails before its answer arrives; another node gets the retry.
#[test]
fn a_request_carried_out_by_one_node_is_not_repeated_by_another() {
    let engine = local();
    let (one, two) = (node(&engine, 7), node(&engine, 7));
    let door = door(&[&one, &two]);
    assert!(door.is_ready());
    let session = session_of(&door);
    let ops = [
        mkdir("build", "a"),
        flock(&door, "held", "a", 1, InLine::Skip),
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
        let before = engine.inspect(crate::engine::Engine::next_token);
        tokens.push(granted(submit(&door, op)));
        let after = engine.inspect(crate::engine::Engine::next_token);
        assert_eq!(after, before + 1, "one grant");
    }
    // Without a token a repeated release could end a later lease; with one, the retry would be told
    // that there is nothing to release. The release takes effect once, and the retry reports that.
    for (lock, token) in [("held", None), ("build", Some(tokens[0]))] {
        let key = LeaseKey { name: name(lock), client: client("a"), token };
        one.weather.answers_lost.store(1, Ordering::Release);
        two.weather.answers_lost.store(1, Ordering::Release);
        let released = submit(&door, Op::Release(Release::of(key)));
        assert_eq!(released, Ok(Ok(Outcome::Released)), "{lock}");
        assert_eq!(one.holders(lock), [""; 0]);
    }
}

#[test]
fn a_server_of_another_engine_is_never_used() {
    let (ours, others) = (local(), local());
    let (one, two) = (node(&ours, 7), node(&others, 8));
    let door = door(&[&one, &two]);
    assert!(door.is_ready());
    let session = session_of(&door);
    one.cut(true);
    let no = submit(&door, mkdir("build", "a"));
    assert!(matches!(no, Err(Unavailable::NoAnswer { .. })), "{no:?}");
    assert_eq!((others.about().locks, others.about().sessions), (0, 0), "nothing was asked there");
    one.cut(false);
    assert!(door.hub.is_ready(boot_now() + Span::from_secs(10)), "it comes back by itself");
    granted(submit(&door, mkdir("build", "a")));
    assert_eq!(session_of(&door), session);
    assert_eq!((others.about().locks, others.about().sessions), (0, 0));
}

/// Two servers whose engines have no id could have different engines: only the first that answers
/// is used.
#[test]
fn only_one_of_several_servers_without_an_engine_id_is_used() {
    let (engine, others) = (local(), local());
    let (one, two) = (node(&engine, 0), node(&others, 0));
    one.cut(true);
    let door = door(&[&one, &two]);
    assert!(door.is_ready());
    granted(submit(&door, mkdir("build", "a")));
    one.cut(false);
    two.cut(true);
    assert!(submit(&door, mkdir("other", "a")).is_err());
    assert_eq!((engine.about().locks, engine.about().sessions), (0, 0));
    two.cut(false);
    assert!(door.hub.is_ready(boot_now() + Span::from_secs(10)));
    assert_eq!(two.holders("build"), ["a"]);
}

/// All nodes were restored from a backup: the leases of the session are lost, and this is reported.
#[test]
fn an_engine_that_is_gone_for_good_is_given_up() {
    let (engine, restored) = (local(), local());
    let (one, two) = (node(&engine, 7), node(&engine, 7));
    let door = door(&[&one, &two]);
    assert!(door.is_ready());
    let session = session_of(&door);
    let hold = Ownership::OpenFile(OpenId { session, number: 1 });
    let mut watch = door.subscribe(None);
    granted(submit(&door, acquire("build", "a", hold, LeaseTerms::Session(session), InLine::Skip)));
    // Opens sessions on the restored engine, so that the session numbers of the two engines differ.
    for _ in 0..5 {
        mint(&restored);
    }
    for node in [&one, &two] {
        let locks = Locks::new(Arc::new(Named(Arc::clone(&restored), 9)));
        *node.near.porter.lock() = BatchServer::new(locks);
    }
    // The client detects the new engine when it sends the next request.
    assert!(submit(&door, mkdir("other", "a")).is_err(), "it was for another engine");
    let over =
        |what: &_| matches!(what, EventKind::SessionOver { session: of, .. } if *of == session);
    wait_for(&door, &mut watch, over);
    assert!(door.hub.is_ready(boot_now() + Span::from_secs(10)));
    assert_ne!(session_of(&door), session);
    granted(submit(&door, mkdir("again", "a")));
    assert!(restored.about().locks > 0);
}

/// Opens a session that no client keeps alive, to use up a session number.
fn mint(engine: &Arc<Local>) -> SessionId {
    let (send, answer) = std::sync::mpsc::channel();
    let ttl = Some(Ttl::parse("24h").expect("valid"));
    let open = crate::engine::OpenSession { client: client("x"), ttl, grace: Grace::NONE };
    engine.submit(
        Op::OpenSession(open).into(),
        Retry::Never,
        Box::new(move |got| drop(send.send(got))),
    );
    match answer.recv().expect("answered") {
        Ok(Ok(Outcome::SessionOpened(id))) => id,
        other => panic!("not opened: {other:?}"),
    }
}
