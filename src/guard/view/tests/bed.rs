//! A guard in memory: the real view, guard and tenures over a real folder in a scratch directory.
//! Its lock service is an engine in this process, to which each machine has a link that a test can
//! cut, and other clients that do what a test says.

use super::program::{Descriptors, Program};
use crate::engine::values::lease::TTL_DEFAULT;
use crate::engine::{
    Acquire, Answer, ClientId, Command, EndSession, Grace, Holder, LeaseTerms, LockName, Mode, Op,
    OpenSession, Outcome, Patch, QueuePolicy, Rules, SessionEnd, SessionId, Steal, StealReason,
    Token,
};
use crate::guard::barrier_store::test_disk::TestFolder;
use crate::guard::disk::linux_disk::LinuxDisk;
use crate::guard::disk::plain_disk::PlainDisk;
use crate::guard::folder::folder_changes::FirstMarked;
use crate::guard::folder::folder_record::{FolderRecord, StartedRecord};
use crate::guard::folder::state_place::{ChangedThrough, StatePlace};
use crate::guard::folder::unread::UnreadPolicy;
use crate::guard::folder_parts::{PartsRequest, folder_parts};
use crate::guard::lost_files::SpaceLimits;
use crate::guard::tenure::Owner;
use crate::guard::tenures::sequence::{GuardState, Tenures};
use crate::guard::tenures::tenure_events::NewsCommands;
use crate::guard::tenures::wishes::WishOf;
use crate::guard::view::folder_view::FolderView;
use crate::guard::view::mount_view::ViewParts;
use crate::guard::view::parts::view_snapshots::ViewSnapshots;
use crate::guard::write_policy::{
    AcceptedByOption, IN_PLACE_DEFAULT, LOCAL_DEFAULT, NEVER_ASK_DEFAULT, OnWrite, OwnerKind,
    WhenAsked, WritePolicy,
};
use crate::service::local::Local;
use crate::service::test_backends::forward_to_engine;
use crate::service::{
    About, BackendStatus, CacheableView, Call, LockService, Retry, SessionOwner, Unavailable,
    counters, paging,
};
use crate::time::{Span, Time, boot_now};
use barrier::folder_path::PathPatterns;
use kernel::file_system::FileSystem as _;
use kernel::machine_facts::own_uid;
use kernel::notifications::{Invalidator, Stale};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};

/// How long a test waits for an answer: no answer takes so long, however loaded the machine is.
pub(super) const PATIENCE: Span = Span::from_secs(60);

/// Which machines may change the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Machines {
    /// This one alone.
    One,
    /// Several, which share one storage.
    Shared,
    /// Several, each with a copy that a sync tool carries.
    Copies,
}

/// The options of a guard, as the command line has them by default.
pub(super) struct Setup {
    /// Which machines may change the folder.
    pub(super) machines: Machines,
    /// How this machine is named to the lock service.
    pub(super) client: &'static str,
    /// Whether this machine holds the lock alone.
    pub(super) mode: Mode,
    pub(super) policy: WritePolicy,
    pub(super) limits: SpaceLimits,
    pub(super) unread: UnreadPolicy,
    /// How much of the disk all folder snapshots may take.
    pub(super) max_snapshots: u64,
}

/// Waits until `found` returns a value, for a state of which no event tells.
pub(super) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = boot_now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(boot_now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// Returns patterns of paths.
pub(super) fn patterns(texts: &[&str]) -> PathPatterns {
    let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
    PathPatterns::parse(&texts).expect("valid patterns")
}

impl Default for Setup {
    fn default() -> Self {
        let policy = WritePolicy {
            sees_changes: true,
            on_write: OnWrite::Take,
            give_after: None,
            when_asked: WhenAsked::Yield { idle: Span::from_secs(2), max: Span::from_secs(3_600) },
            accepts: AcceptedByOption::default(),
            owner: OwnerKind::Host,
            in_place: patterns(&IN_PLACE_DEFAULT),
            never_ask: patterns(&NEVER_ASK_DEFAULT),
            local: patterns(&LOCAL_DEFAULT),
            settle: Span::from_secs(2),
            sync_saves: false,
        };
        Self {
            machines: Machines::One,
            client: "m1",
            mode: Mode::Exclusive,
            policy,
            limits: SpaceLimits { staged: 10 << 30, lost: 10 << 30 },
            unread: UnreadPolicy { is_careful: false, keep_bytes: 1 << 30 },
            max_snapshots: 100 << 30,
        }
    }
}

/// Returns the path of a folder as the record and the state know it.
fn real_path(folder: &TestFolder) -> PathBuf {
    folder.path("").components().collect()
}

fn place_of(
    folder: &TestFolder,
    record: &FolderRecord,
    setup: &Setup,
    through: ChangedThrough,
) -> StatePlace {
    let (path, state) = (real_path(folder), folder.state_path(""));
    let place = StatePlace::open(&path, record, &state, setup.client, through);
    place.unwrap_or_else(|error| panic!("{error}"))
}

fn wanted_parts<'a>(
    record: &'a FolderRecord,
    place: &'a StatePlace,
    setup: &Setup,
    first_marked: Option<FirstMarked>,
) -> PartsRequest<'a> {
    PartsRequest {
        record,
        started: StartedRecord::new(Path::new("/"), None),
        place,
        client: ClientId::parse(setup.client).expect("a valid name"),
        ttl: TTL_DEFAULT,
        local: setup.policy.local.clone(),
        limits: setup.limits,
        unread: setup.unread,
        mode: setup.mode,
        first_marked,
    }
}

/// Writes the first checkpoint of a folder, as `latchfs guard init --server` does.
fn write_checkpoint(
    folder: &TestFolder,
    record: &FolderRecord,
    service: &TestService,
    setup: &Setup,
) {
    let place = place_of(folder, record, setup, ChangedThrough::Folder);
    let wanted = wanted_parts(record, &place, setup, Some(Box::new(|| {})));
    let parts = folder_parts(PlainDisk, service.locks(), wanted);
    let (lock, guard) = parts.expect("the folder can be guarded");
    let policy = Arc::new(WritePolicy::without_view());
    let tenures = Tenures::start(Arc::clone(&guard), lock, policy, Box::new(|_| {}));
    let tenures = tenures.expect("the thread starts");
    let (send, held) = channel();
    let then = Box::new(move |answer| send.send(answer).unwrap_or_default());
    tenures.hold(Owner::Host, WishOf::Person, PATIENCE, Box::new(|| true), then);
    held.recv().expect("an answer").unwrap_or_else(|denied| panic!("{}", denied.sentence));
    tenures.stop();
    assert!(guard.barrier().is_some_and(|barrier| barrier.is_marked()), "a checkpoint");
    let ended = Arc::downgrade(&guard);
    drop((guard, tenures));
    wait_for_end(&ended);
}

/// Waits until the threads of a guard have ended: they have its directories open, and locked.
fn wait_for_end<T>(guard: &Weak<T>) {
    eventually("the end of the guard", || (guard.strong_count() == 0).then_some(()));
}

/// Makes `to` like `from`: with new files where the content differs, and the same times.
fn carry(from: &Path, to: &Path) {
    let Ok(found) = fs::symlink_metadata(from) else {
        let removed = if to.is_dir() { fs::remove_dir_all(to) } else { fs::remove_file(to) };
        return removed.unwrap_or_default();
    };
    if found.is_dir() {
        fs::create_dir_all(to).expect("made");
        let names = |dir: &Path| -> BTreeSet<OsString> {
            fs::read_dir(dir).expect("there").flatten().map(|entry| entry.file_name()).collect()
        };
        for name in names(from).union(&names(to)) {
            carry(&from.join(name), &to.join(name));
        }
        return;
    }
    if fs::read(to).is_ok_and(|there| there == fs::read(from).expect("readable")) {
        return;
    }
    let dir = to.parent().expect("below the folder");
    fs::create_dir_all(dir).expect("made");
    let new = dir.join(".carried");
    fs::copy(from, &new).expect("copied");
    let file = fs::File::options().write(true).open(&new).expect("there");
    file.set_modified(found.modified().expect("known")).expect("set");
    fs::rename(new, to).expect("renamed");
}

/// A guard that runs. It ends in good order with this value.
struct Running {
    view: Arc<FolderView>,
    place: StatePlace,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.view.tenures.stop();
        self.view.ended();
    }
}

/// A guard with its view, and the folder that it shows. It is also a program that uses the view.
pub(super) struct Bed {
    /// The program as which the bed itself uses the view.
    own: Program,
    running: Running,
    /// The lock service with the link of this machine.
    pub(super) service: TestService,
    /// The folder and the state directory, past the view.
    pub(super) folder: Arc<TestFolder>,
    record: FolderRecord,
}

impl Deref for Bed {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.own
    }
}

impl Bed {
    /// Returns a guard with the default options of a folder that only this machine changes.
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Returns a guard whose options `change` changes.
    pub(super) fn with(change: impl FnOnce(&mut Setup)) -> Self {
        Self::over(TestFolder::new(), change)
    }

    /// Returns a guard of a folder of which other machines have copies.
    pub(super) fn copies() -> Self {
        Self::copies_with(|_| {})
    }

    /// Returns a guard of a folder of which other machines have copies. The folder has a file `old`
    /// and so many others that a marker of a few files becomes no checkpoint.
    pub(super) fn copies_with(change: impl FnOnce(&mut Setup)) -> Self {
        let folder = TestFolder::new();
        folder.put("old", b"old");
        (0..60).for_each(|number| folder.put(&format!("pad{number}"), b""));
        Self::over(folder, |setup| {
            setup.machines = Machines::Copies;
            change(setup);
        })
    }

    /// Returns a guard of a folder that has files already.
    pub(super) fn over(folder: TestFolder, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::default();
        change(&mut setup);
        let server = (setup.machines != Machines::One).then(|| "http://test".to_owned());
        let record = FolderRecord::new(server, ENGINE, setup.machines == Machines::Shared);
        record.write(&folder.path(""), true).expect("the folder has no record yet");
        let service = TestService::new(&record.lock(), setup.client);
        if setup.machines == Machines::Copies {
            write_checkpoint(&folder, &record, &service, &setup);
        }
        Self::start(Arc::new(folder), record, service, setup)
    }

    /// Returns the guard of another machine, which has a copy of the folder.
    pub(super) fn copy(&self, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup { machines: Machines::Copies, client: "m2", ..Setup::default() };
        change(&mut setup);
        let folder = TestFolder::new();
        carry(&self.folder.path(""), &folder.path(""));
        let service = self.service.of(setup.client);
        Self::start(Arc::new(folder), self.record.clone(), service, setup)
    }

    /// Carries a file or directory to another machine, as a sync tool does, or removes there what
    /// is gone here. The empty path is the whole folder, and `.latchfs/markers` the markers.
    pub(super) fn carry(&self, path: &str, to: &Self) {
        carry(&self.folder.path(path), &to.folder.path(path));
    }

    /// Returns the guard of another machine on the same storage.
    pub(super) fn beside(&self, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup { machines: Machines::Shared, client: "m2", ..Setup::default() };
        change(&mut setup);
        let service = self.service.of(setup.client);
        Self::start(Arc::clone(&self.folder), self.record.clone(), service, setup)
    }

    /// Ends this guard, and starts another one of the same folder. No program of the test may use
    /// the view any more.
    pub(super) fn restart(self, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::default();
        change(&mut setup);
        let Self { own, running, service, folder, record } = self;
        let guard = Arc::downgrade(&running.view.guard);
        drop((own, running));
        wait_for_end(&guard);
        let service = service.of(setup.client);
        Self::start(folder, record, service, setup)
    }

    /// Returns a path in the state directory of the folder.
    pub(super) fn state(&self, below: &str) -> PathBuf {
        self.running.place.path.join(below)
    }

    fn start(
        folder: Arc<TestFolder>,
        record: FolderRecord,
        service: TestService,
        setup: Setup,
    ) -> Self {
        let place = place_of(&folder, &record, &setup, ChangedThrough::View);
        let wanted = wanted_parts(&record, &place, &setup, None);
        let (lock, guard) =
            folder_parts(LinuxDisk, service.locks(), wanted).expect("the folder can be guarded");
        let (stages, dir) = place.snapshots().unwrap_or_else(|error| panic!("{error}"));
        let shared_by = record.storage.is_some().then_some(setup.client);
        let may_link = record.server.is_none();
        let id = &record.id;
        let snapshots =
            ViewSnapshots::open(&stages, dir, id, may_link, shared_by, setup.max_snapshots);
        let parts = ViewParts {
            guard,
            lock,
            local: place.local().unwrap_or_else(|error| panic!("{error}")),
            snapshots: snapshots.expect("the snapshots can be read"),
            policy: Arc::new(setup.policy),
            folder: real_path(&folder),
            is_carried: record.server.is_some(),
            commands: NewsCommands::default(),
        };
        let descriptors = Descriptors::default();
        let view = FolderView::start(parts, Path::new("/view"), descriptors.seen_by_guard());
        let view = view.expect("the tenures start");
        let (invalidator, stale) = Invalidator::for_test();
        // No kernel has cached anything.
        std::thread::spawn(move || {
            for stale in stale {
                if let Stale::Then(call) = stale {
                    (call.0)();
                }
            }
        });
        view.attached(invalidator);
        let own = Program::new(Arc::clone(&view), descriptors, own_uid());
        Self { own, running: Running { view, place }, service, folder, record }
    }

    /// Returns a program of the user `uid`, in a process of its own.
    pub(super) fn user(&self, uid: u32) -> Program {
        self.own.of_user(uid)
    }

    /// Returns another program of the user who started the guard.
    pub(super) fn program(&self) -> Program {
        self.user(own_uid())
    }

    /// Has the guard check its deadline and what else is due, and returns once it has heard of
    /// everything that happened before.
    pub(super) fn settle(&self) {
        self.running.view.tenures.recheck();
        assert!(self.running.view.tenures.answers(PATIENCE), "the thread of the tenures answers");
    }

    /// Returns the state of the guard, once it has heard of everything that happened before.
    pub(super) fn state_of_guard(&self) -> GuardState {
        self.settle();
        self.running.view.tenures.state()
    }

    /// Takes the lock, as `latchfs guard take` does.
    pub(super) fn take(&self) {
        let answer = self.request(&serde_json::json!({"do": "take", "wait_ms": 60_000}));
        assert_eq!(answer["state"], "holding", "{answer}");
    }

    /// Gives the lock up, as `latchfs guard give` does.
    pub(super) fn give(&self) {
        let answer = self.request(&serde_json::json!({"do": "give"}));
        assert!(answer["error"].is_null(), "{answer}");
        self.settle();
    }

    /// Returns the lost files.
    pub(super) fn lost(&self) -> Vec<serde_json::Value> {
        let answer = self.request(&serde_json::json!({"do": "lost"}));
        answer["lost"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// Returns the content of a file of the folder, past the view.
    pub(super) fn real(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.folder.path(path)).ok()
    }
}

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
    engine.submit(op.into(), Retry::Never).wait().expect("it is in memory")
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

    /// Returns what the engine answers to `ask`, at once or when it can be reached again.
    fn answered<T: Send + 'static>(
        &self,
        retry: Retry,
        ask: impl FnOnce(&Local) -> Call<T> + Send + 'static,
    ) -> Call<T> {
        match (self.is_silent(), retry) {
            (false, _) => ask(&self.engine),
            (true, Retry::Never) => Call::answered(Err(Self::no_answer())),
            (true, Retry::UntilAnswered) => {
                let (replier, call) = Call::expected();
                self.unanswered.lock().push(Box::new(move |engine| {
                    replier.keep(ask(engine).wait());
                }));
                call
            }
        }
    }

    fn no_answer() -> Unavailable {
        Unavailable::NoAnswer { server: "http://test".into() }
    }
}

impl LockService for Link {
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
        self.answered(retry, move |engine| engine.submit(command, retry))
    }

    fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView> {
        let name = name.clone();
        self.answered(retry, move |engine| engine.view(&name, retry))
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
    pub(super) fn locks(&self) -> Arc<dyn LockService> {
        Arc::clone(&self.link) as _
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
            only: None,
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
