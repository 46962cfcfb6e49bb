//! The lock service of the tests: an engine in this process, to which each machine has a link that
//! a test can cut, and other clients that do what a test says.

use crate::engine::{
    Acquire, Answer, ClientId, Command, EndSession, Grace, Holder, LeaseTerms, LockName, Op,
    OpenSession, Outcome, Patch, QueuePolicy, Rules, SessionEnd, SessionId, Steal, StealReason,
    Token,
};
use crate::service::local::Local;
use crate::service::test_backends::forward_to_engine;
use crate::service::{
    About, BackendStatus, CacheableView, LockService, Locks, Retry, SessionOwner, Then, Unavailable,
};
use crate::service::{counters, paging};
use crate::time::Time;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

/// The id of the engine, as the record of a folder names it.
pub(super) const ENGINE: u64 = 7;

/// The session of a client, which lasts until it is ended.
pub(super) fn open_session(engine: &Local, client: &str) -> SessionId {
    let (client, ttl, grace) = (client_of(client), None, Grace::NONE);
    match submit(engine, Op::OpenSession(OpenSession { client, ttl, grace })) {
        Ok(Outcome::SessionOpened(session)) => session,
        other => panic!("no session: {other:?}"),
    }
}

fn client_of(name: &str) -> ClientId {
    ClientId::parse(name).expect("a valid name")
}

fn submit(engine: &Local, op: Op) -> Answer {
    let (send, answer) = channel();
    let then = Box::new(move |answer| drop(send.send(answer)));
    engine.submit(Command::from(op), Retry::Never, then);
    answer.recv().expect("the engine answers at once").expect("it is in memory")
}

/// A request that waits until the service answers again.
type Unanswered = Box<dyn FnOnce(&Local) + Send>;

/// The link of one machine to the lock service.
pub(super) struct Link {
    engine: Arc<Local>,
    client: String,
    /// The session that the link keeps alive.
    session: Mutex<SessionId>,
    is_silent: AtomicBool,
    is_lease_over: AtomicBool,
    unanswered: Mutex<Vec<Unanswered>>,
}

impl Link {
    fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::SeqCst)
    }

    fn no_answer() -> Unavailable {
        Unavailable::NoAnswer { server: "http://test".into() }
    }
}

impl LockService for Link {
    fn submit(&self, command: Command, retry: Retry, then: Then<Result<Answer, Unavailable>>) {
        match (self.is_silent(), retry) {
            (false, _) => self.engine.submit(command, retry, then),
            (true, Retry::Never) => then(Err(Self::no_answer())),
            (true, Retry::UntilAnswered) => self.unanswered.lock().push(Box::new(move |engine| {
                engine.submit(command, retry, then);
            })),
        }
    }

    fn view(&self, name: &LockName, retry: Retry, then: Then<Result<CacheableView, Unavailable>>) {
        match (self.is_silent(), retry) {
            (false, _) => self.engine.view(name, retry, then),
            (true, Retry::Never) => then(Err(Self::no_answer())),
            (true, Retry::UntilAnswered) => {
                let name = name.clone();
                let view = Box::new(move |engine: &Local| engine.view(&name, retry, then));
                self.unanswered.lock().push(view);
            }
        }
    }

    fn own_session(&self) -> Result<SessionOwner, Unavailable> {
        if self.is_silent() {
            return Err(Self::no_answer());
        }
        let mut session = self.session.lock();
        if self.is_session_over(*session) {
            *session = open_session(&self.engine, &self.client);
        }
        Ok(SessionOwner::Kept(*session))
    }

    fn is_session_over(&self, session: SessionId) -> bool {
        self.engine.inspect(|engine| engine.session(session, 0).is_none())
    }

    fn surely_until(&self, session: SessionId) -> Time {
        let is_over = self.is_lease_over.load(Ordering::SeqCst) || self.is_session_over(session);
        if is_over { Time::ZERO } else { Time::NEVER }
    }

    forward_to_engine!();
}

impl paging::StaleReads for Link {}

impl BackendStatus for Link {
    fn about(&self) -> About {
        self.engine.about()
    }

    fn engine_id(&self) -> u64 {
        ENGINE
    }

    fn counts(&self) -> Vec<counters::Count> {
        Vec::new()
    }
}

/// The lock service as the tests of one folder use it.
#[derive(Clone)]
pub(super) struct TestService {
    engine: Arc<Local>,
    /// The lock of the folder.
    name: LockName,
    link: Arc<Link>,
}

impl TestService {
    /// Returns a service that decides about the lock `name`, with the link of the machine `client`.
    pub(super) fn new(name: &str, client: &str) -> Self {
        let engine = Arc::new(Local::in_memory(Rules::default()).expect("it starts"));
        Self::linked(engine, LockName::parse(name).expect("a valid name"), client)
    }

    fn linked(engine: Arc<Local>, name: LockName, client: &str) -> Self {
        let session = Mutex::new(open_session(&engine, client));
        let link = Arc::new(Link {
            engine: Arc::clone(&engine),
            client: client.to_owned(),
            session,
            is_silent: AtomicBool::new(false),
            is_lease_over: AtomicBool::new(false),
            unanswered: Mutex::default(),
        });
        Self { engine, name, link }
    }

    /// Returns the same service with the link of another machine.
    pub(super) fn of(&self, client: &str) -> Self {
        Self::linked(Arc::clone(&self.engine), self.name.clone(), client)
    }

    /// Returns the service as the guard of the machine gets it.
    pub(super) fn locks(&self) -> Locks {
        Locks::new(Arc::clone(&self.link) as _)
    }

    /// Another client takes the lock, or waits for it. Returns whether it has it at once.
    pub(super) fn wanted_by(&self, client: &str) -> bool {
        let term = LeaseTerms::Session(open_session(&self.engine, client));
        let ask = Acquire::new(self.name.clone(), client_of(client), term);
        let ask = Acquire { line: QueuePolicy::Join(None), ..ask };
        matches!(submit(&self.engine, Op::Acquire(ask)), Ok(Outcome::Granted(_)))
    }

    /// Another client steals the lock.
    pub(super) fn stolen_by(&self, client: &str) {
        let term = LeaseTerms::Session(open_session(&self.engine, client));
        let steal = Steal {
            name: self.name.clone(),
            client: client_of(client),
            reason: StealReason::parse("maintenance").expect("a valid reason"),
            term,
            patch: Patch::default(),
            at_once: true,
        };
        submit(&self.engine, Op::Steal(steal)).expect("somebody holds the lock");
    }

    /// The session of this machine ends, as after an administrator's request.
    pub(super) fn end_session(&self) {
        let end = EndSession { session: *self.link.session.lock(), end: SessionEnd::Revoked };
        submit(&self.engine, Op::EndSession(end)).expect("it is open");
    }

    /// No request of this machine is answered from now on.
    pub(super) fn falls_silent(&self) {
        self.link.is_silent.store(true, Ordering::SeqCst);
    }

    /// Nothing proves any more that the lease of this machine lasts. The caller has the guard check
    /// its deadline.
    pub(super) fn lease_ends(&self) {
        self.link.is_lease_over.store(true, Ordering::SeqCst);
    }

    /// Requests are answered again, also those that were repeated until now. If the lease has ended
    /// meanwhile, the session of this machine is over.
    pub(super) fn answers_again(&self) {
        if self.link.is_lease_over.swap(false, Ordering::SeqCst) {
            self.end_session();
        }
        self.link.is_silent.store(false, Ordering::SeqCst);
        for request in std::mem::take(&mut *self.link.unanswered.lock()) {
            request(&self.engine);
        }
    }

    fn holders(&self) -> Vec<Holder> {
        self.engine.inspect(|engine| engine.view(&self.name, engine.clock()).holders)
    }

    /// Returns the token of the holder.
    pub(super) fn token(&self) -> Option<Token> {
        self.holders().first().map(|holder| holder.lease.token)
    }

    /// Returns the client that holds the lock.
    pub(super) fn holder(&self) -> Option<String> {
        self.holders().first().map(|holder| holder.lease.holder.to_string())
    }
}
