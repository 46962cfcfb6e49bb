//! The local backend: an engine in this process, which decides a request on the caller's thread.
//!
//! One mutex guards the engine, its journal and the order of its events. While the mutex is held,
//! no answer is delivered and no waiter is woken. One thread sleeps until the next deadline.
//!
//! The order of effects: the journal records the command, the engine applies it, the event log
//! receives the events, the caller receives the answer. So every answer and event that was
//! delivered is in the journal, and a restart restores the same state by replaying it.
//!
//! Commands that must take effect although the journal cannot record them now: even while the disk
//! is full, a process may close its files or die.
//!
//! The log line of this process about a hold-off of its engine: one log line when it begins to
//! serve, one when locks are granted, and a part of the text that says where the state is.

use super::backend_status::{About, BackendKind, BackendStatus, Contact};
use super::counters::{Count, Histogram, ServiceCounters};
use super::event_log::{EventLog, EventWatch, Wakers};
use super::lock_service::{CacheableView, LockService, Retry};
use super::paging::{
    Children, List, ListPage, ListedNames, SESSION_LEASES_SHOWN_MAX, page_of_children,
    page_of_leases, page_of_locks,
};
use super::replay;
use super::timer::Alarm;
use crate::base::said;
use crate::engine::codec::state_codec::{encode_state, known_version};
use crate::engine::{
    Answer, Child, Command, Engine, Event, EventKind, HoldOff, HoldOffCause, LockName, LockView,
    Op, Reason, Refusal, Rules, SessionId, SessionView, Token,
};
use crate::service::audit::audit_log::{Audit, AuditEntry, is_audited};
use crate::service::call::{Call, Replier};
use crate::service::lock_service::Admission;
use crate::service::paging::StaleReads;
use crate::service::parent_check::ParentCheck;
use crate::service::replay::ClockMapping;
use crate::service::unavailable::Unavailable;
use crate::storage::{StateDir, StateError};
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The number of tokens reserved at a time: each reservation costs one fsync (some milliseconds).
const TOKEN_BLOCK: u64 = 1 << 16;

/// The number of reserved tokens that an ordinary command leaves unused: commands that only end
/// leases may still serve waiters when the disk is full and no more tokens can be reserved.
const TOKENS_KEPT: u64 = 1 << 12;

/// Delay before the next attempt to apply a deadline that the journal could not record.
const RETRY_AFTER: Span = Span::from_secs(1);

/// The largest state, as a number of stored items, of which a snapshot is made while the mutex is
/// held. The copy blocks all requests for half a millisecond, once in some ten thousand commands.
const COPIED_AT_ONCE_MAX: usize = 2_000;

/// The lock service of an engine in this process.
pub struct Local {
    shared: Arc<LocalShared>,
    timer: Option<JoinHandle<()>>,
}

struct LocalShared {
    core: Mutex<LocalState>,
    feed: Arc<EventLog>,
    alarm: Alarm,
    audit: Audit,
    tally: ServiceCounters,
    timeline: ClockMapping,
    /// The path of the state directory, or a note that there is none, for display.
    place: String,
}

/// The state of the local backend that its mutex guards.
struct LocalState {
    engine: Engine,
    state: Store,
    /// The events of the current command. Emptied after each, and kept to reuse the allocation.
    events: Vec<Event>,
    /// The journal record that is being written. The vector is kept to reuse its allocation.
    record: Vec<u8>,
    /// Tokens below this number are reserved and may be issued.
    reserved: u64,
    /// Releases and similar commands that the journal could not record, oldest first. They are
    /// tried again before each later command.
    owed: VecDeque<DeferredCommand>,
    /// What further commands that add to the engine are checked by.
    admissions: Vec<Admission>,
}

/// The location from which a restart restores the state.
enum Store {
    /// A state directory, from which a restart restores the engine.
    Kept(Box<StateDir>),
    /// No storage: a restart loses all locks and sessions.
    None,
    /// The state directory was closed after its final write; the state must not change any more.
    Closed,
}

impl Local {
    /// Returns a backend without storage: its locks are lost when the process ends.
    pub fn in_memory(rules: Rules) -> io::Result<Self> {
        let timeline = ClockMapping::starting_at(Time::ZERO, Time::ZERO);
        let engine = Engine::new(rules);
        Self::start(engine, Store::None, Audit::to_log()?, u64::MAX, timeline)
    }

    /// Returns a backend without storage whose tokens are above those of every earlier backend that
    /// this function returned. It grants nothing for `longest`, the longest time for which a lease
    /// of an earlier backend can last; `None` means that no earlier holder can be alive. Fails if
    /// the clock is not set.
    pub fn afresh(rules: Rules, wall: Wall, longest: Option<Span>) -> io::Result<Self> {
        let timeline = ClockMapping::starting_at(Time::ZERO, Time::ZERO);
        let mut engine = Engine::afresh(rules, wall).ok_or_else(|| {
            io::Error::other(format!("the clock shows {wall}, and the first token follows from it"))
        })?;
        if let Some(longest) = longest {
            let (until, cause) = (timeline.now() + longest, HoldOffCause::NoState);
            engine.begin_hold_off(HoldOff { until, cause });
            engine.limit_leases(longest);
        }
        Self::start(engine, Store::None, Audit::to_log()?, u64::MAX, timeline)
    }

    /// Opens the state directory `path` and restores the engine that is persisted in it.
    pub fn open(path: &Path, rules: Rules) -> Result<Self, StateError> {
        let (mut dir, recovered) = StateDir::open(path)?;
        let restored = replay::restore(recovered, rules)?;
        let unwritable = |error| StateError::io(path, error);
        for record in &restored.start_records {
            // Start records go to reserved disk space, so that even on a full disk the daemon
            // starts and releases can be recorded.
            dir.append_reserved(record).map_err(unwritable)?;
        }
        let audit = Audit::open(path, None).map_err(unwritable)?;
        let (engine, reserved) = (restored.engine, restored.tokens_reserved);
        Self::start(engine, Store::Kept(Box::new(dir)), audit, reserved, restored.timeline)
            .map_err(unwritable)
    }

    fn start(
        engine: Engine,
        state: Store,
        audit: Audit,
        reserved: u64,
        timeline: ClockMapping,
    ) -> io::Result<Self> {
        let place = match &state {
            Store::Kept(dir) => dir.path().display().to_string(),
            Store::None | Store::Closed => "none: a restart forgets all leases".to_owned(),
        };
        log_begin(&engine, |at| Wall::at_boot_time(timeline.boot(at)));
        let (events, record, owed) = (Vec::new(), Vec::new(), VecDeque::new());
        let admissions = Vec::new();
        let core = LocalState { engine, state, events, record, reserved, owed, admissions };
        audit.set_clock(move |at| Some(Wall::at_boot_time(timeline.boot(at))));
        let shared = Arc::new(LocalShared {
            core: Mutex::new(core),
            feed: Arc::default(),
            alarm: Alarm::new()?,
            audit,
            tally: ServiceCounters::default(),
            timeline,
            place,
        });
        shared.set_alarm(&shared.core.lock());
        let ringing = Arc::clone(&shared);
        let timer = std::thread::Builder::new()
            .name("timer".to_owned())
            .spawn(move || ringing.keep_time())?;
        Ok(Self { shared, timer: Some(timer) })
    }

    /// Writes the final state, which the next start will read, and rejects all changes after that.
    pub fn close(&self) -> Result<(), StateError> {
        self.shared.close()
    }

    /// Calls `query` with the engine in its current state.
    pub fn inspect<T>(&self, query: impl FnOnce(&Engine) -> T) -> T {
        query(&self.shared.settled().1.engine)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.shared.alarm.stop();
        if let Some(timer) = self.timer.take()
            && timer.join().is_err()
        {
            log::error!("the timer thread has panicked; leases may have lasted too long");
        }
    }
}

impl StaleReads for Local {}

impl BackendStatus for Local {
    fn audit(&self, entry: &AuditEntry<'_>) {
        self.shared.audit.enter_entry(entry);
    }

    fn audited(&self) -> Call<()> {
        self.shared.audit.written()
    }

    fn about(&self) -> About {
        let (place, core) = (&self.shared.place, self.shared.settled().1);
        let state = shown_place(place, core.engine.hold_off(), |at| self.wall(at));
        About {
            kind: BackendKind::Embedded,
            contact: Contact::Connected,
            state,
            locks: core.engine.locks(),
            waiters: core.engine.waiters(),
            sessions: core.engine.sessions(),
        }
    }

    fn inspect_engine(&self, query: &mut dyn FnMut(&Engine)) {
        query(&self.shared.core.lock().engine);
    }

    fn answers_at_once(&self) -> bool {
        true
    }

    fn state(&self) -> Call<Option<Vec<u8>>> {
        Call::answered(Ok(Some(self.inspect(|engine| encode_state(known_version(), engine)))))
    }

    fn counts(&self) -> Vec<Count> {
        self.shared.tally.counts()
    }

    fn histograms(&self) -> Vec<Histogram> {
        self.shared.tally.histograms()
    }
}

impl LockService for Local {
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
        match retry {
            Retry::Never => Call::answered(self.shared.submit(&command, None)),
            Retry::UntilAnswered => self.shared.owe(command),
        }
    }

    fn submit_checked(
        self: Arc<Self>,
        command: Command,
        check: Option<ParentCheck>,
    ) -> Call<Answer> {
        Call::answered(self.shared.submit(&command, check.as_ref()))
    }

    fn limit(&self, admission: Admission) {
        self.shared.core.lock().admissions.push(admission);
    }

    fn view(&self, name: &LockName, _: Retry) -> Call<CacheableView> {
        self.shared.inspect(|engine, now| CacheableView::uncached(engine.view(name, now)))
    }

    fn list(&self, names: ListedNames, query: List) -> Call<ListPage<LockView>> {
        self.shared.inspect(|engine, now| page_of_locks(engine, names, &query, now))
    }

    fn children(&self, query: Children) -> Call<ListPage<Child>> {
        self.shared.inspect(|engine, _| page_of_children(engine, &query))
    }

    fn session(&self, id: SessionId) -> Call<Option<SessionView>> {
        self.shared.inspect(|engine, _| engine.session(id, SESSION_LEASES_SHOWN_MAX))
    }

    fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
    ) -> Call<ListPage<(LockName, Token)>> {
        self.shared.inspect(|engine, _| page_of_leases(engine, session, after.as_ref()))
    }

    fn subscribe(&self, since: Option<u64>) -> EventWatch {
        self.shared.feed.watch(since)
    }

    fn next_event(&self) -> u64 {
        self.shared.feed.next()
    }

    fn now(&self) -> Time {
        self.shared.timeline.now()
    }

    fn wall(&self, at: Time) -> Wall {
        Wall::at_boot_time(self.shared.timeline.boot(at))
    }
}

impl LocalShared {
    /// Decides a command, if `check` permits it.
    fn submit(
        self: &Arc<Self>,
        command: &Command,
        check: Option<&ParentCheck>,
    ) -> Result<Answer, Unavailable> {
        let (now, mut core) = if check.is_some() {
            // All deadlines must be applied before the check: the lease on a lock above the name
            // may have expired.
            self.settled()
        } else {
            let core = self.core.lock();
            (self.timeline.now(), core)
        };
        let paid = self.pay(&mut core);
        let (answer, wakers) = match core.permit(now, command, check) {
            Ok(()) => self.decide(&mut core, now, command),
            Err(refused) => (refused, Wakers::default()),
        };
        drop(core);
        paid.answer(&self.tally);
        wakers.wake();
        if let Ok(answer) = &answer {
            self.tally.count_answer(answer);
        }
        if is_audited(&command.op) {
            self.audit.flush();
        }
        answer
    }

    /// Decides a command now, or as soon as the journal can record it.
    fn owe(self: &Arc<Self>, command: Command) -> Call<Answer> {
        let mut core = self.core.lock();
        if let Store::Closed = core.state {
            return Call::answered(Err(Unavailable::Closing));
        }
        let (replier, call) = Call::expected();
        core.owed.push_back(DeferredCommand { command, replier });
        let paid = self.pay(&mut core);
        drop(core);
        paid.answer(&self.tally);
        call
    }

    /// Decides the deferred commands, oldest first, as long as the journal can record them. If it
    /// can't record one, the timer tries again later.
    fn pay(self: &Arc<Self>, core: &mut LocalState) -> DeferredAnswers {
        let mut paid = DeferredAnswers::default();
        while let Some(owed) = core.owed.pop_front() {
            match self.decide(core, self.timeline.now(), &owed.command) {
                (Ok(answer), wakers) => paid.0.push((owed, answer, wakers)),
                (Err(why), _) => {
                    log::debug!("{} commands wait for the journal: {why}", core.owed.len() + 1);
                    core.owed.push_front(owed);
                    self.alarm.set(boot_now() + RETRY_AFTER);
                    break;
                }
            }
        }
        paid
    }

    /// Decides one command. The caller must unlock the mutex, then wake the readers, then answer.
    fn decide(
        self: &Arc<Self>,
        core: &mut LocalState,
        now: Time,
        command: &Command,
    ) -> (Result<Answer, Unavailable>, Wakers) {
        let at = now.max(core.engine.clock());
        if let Err(unavailable) = core.record(at, command) {
            return (Err(unavailable), Wakers::default());
        }
        let LocalState { engine, events, .. } = core;
        let answer = engine.apply(at, command, events);
        let quiet = events.is_empty() && !command.changes_state(&answer);
        if quiet {
            // The command has not changed the state, so its record is removed from the journal: a
            // replay does not need it.
            core.take_back();
        }
        core.events.iter().for_each(|event| self.tally.count_event(event));
        log_end(&core.events);
        self.audit.enter(None, &core.events, |at| Wall::at_boot_time(self.timeline.boot(at)));
        let wakers = if quiet { Wakers::default() } else { self.feed.publish(&mut core.events) };
        self.set_alarm(core);
        self.cut_back(core);
        (Ok(answer), wakers)
    }

    /// Answers with what `query` finds in the engine, which does not change during the call.
    fn inspect<T>(self: &Arc<Self>, query: impl FnOnce(&Engine, Time) -> T) -> Call<T> {
        let (now, core) = self.settled();
        Call::answered(Ok(query(&core.engine, now)))
    }

    /// Locks the state of the backend, with all deadlines up to now applied if the journal can
    /// record them.
    fn settled(self: &Arc<Self>) -> (Time, MutexGuard<'_, LocalState>) {
        let mut core = self.core.lock();
        let now = self.timeline.now();
        if core.engine.next_deadline().is_some_and(|due| due <= now) {
            let (_, wakers) = self.decide(&mut core, now, &Op::Settle.into());
            drop(core);
            wakers.wake();
            core = self.core.lock();
        }
        (now, core)
    }

    /// Runs the timer thread: sleeps until the next deadline of the engine, applies the expiries
    /// and timeouts that are due, and repeats.
    fn keep_time(self: &Arc<Self>) {
        while self.alarm.wait() {
            let mut core = self.core.lock();
            self.alarm.clear();
            let (done, wakers) = self.decide(&mut core, self.timeline.now(), &Op::Settle.into());
            if done.is_err() {
                self.alarm.set(boot_now() + RETRY_AFTER);
            }
            let paid = self.pay(&mut core);
            drop(core);
            wakers.wake();
            paid.answer(&self.tally);
        }
    }

    fn set_alarm(&self, core: &LocalState) {
        if let Some(due) = core.engine.next_deadline() {
            self.alarm.set(self.timeline.boot(due));
        }
    }

    /// Compacts a long journal into a snapshot, on a thread of its own, while the engine continues.
    ///
    /// A small state is copied under the mutex. For a large one, the thread builds its own copy by
    /// replaying the journal, which takes about as long as the commands took at first.
    fn cut_back(&self, core: &mut LocalState) {
        let Store::Kept(dir) = &mut core.state else { return };
        if !dir.wants_rotation() {
            return;
        }
        let sealed = match dir.rotate() {
            Ok(sealed) => sealed,
            Err(error) => return log::warn!("the journal can't be cut back yet: {error}"),
        };
        let copy = (core.engine.size() <= COPIED_AT_ONCE_MAX)
            .then(|| replay::snapshot(&core.engine, self.timeline));
        replay::compact_in_background(sealed, copy);
    }

    fn close(&self) -> Result<(), StateError> {
        let mut core = self.core.lock();
        let body = replay::snapshot(&core.engine, self.timeline);
        match std::mem::replace(&mut core.state, Store::Closed) {
            Store::Kept(dir) => dir.close(&body),
            Store::None | Store::Closed => Ok(()),
        }
    }
}

impl LocalState {
    /// Returns the answer to a command that may not be decided.
    fn permit(
        &self,
        now: Time,
        command: &Command,
        check: Option<&ParentCheck>,
    ) -> Result<(), Result<Answer, Unavailable>> {
        let mut admissions = self.admissions.iter().filter(|_| command.op.needs_room());
        // The command is decided in this step, so it is never pending.
        let admit = |admit: &Admission| admit(&command.op, &self.engine).map(drop);
        if let Err(limit) = admissions.try_for_each(admit) {
            return Err(Ok(Err(Refusal { at: now, reason: Box::new(Reason::Limit(limit)) })));
        }
        check.map_or(Ok(()), |check| check.allows(&self.engine)).map_err(Err)
    }

    /// Reserves the tokens that the command may use, and appends the command to the journal.
    fn record(&mut self, at: Time, command: &Command) -> Result<(), Unavailable> {
        let dir = match &mut self.state {
            Store::None => return Ok(()),
            Store::Closed => return Err(Unavailable::Closing),
            Store::Kept(dir) => dir,
        };
        let unwritable = |error: &io::Error| Unavailable::State {
            full: matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded),
            why: said(error).into(),
        };
        let kept = if command.op.only_ends() { 0 } else { TOKENS_KEPT };
        let ceiling = self.engine.next_token() + self.engine.tokens_wanted(&command.op);
        if ceiling + kept > self.reserved {
            let raised = ceiling + kept + TOKEN_BLOCK;
            dir.reserve_tokens(raised).map_err(|error| unwritable(&error))?;
            self.reserved = raised;
        }
        self.record.clear();
        replay::put_command(at, command, &mut self.record);
        let append =
            if command.op.only_ends() { StateDir::append_reserved } else { StateDir::append };
        append(dir, &self.record).map_err(|error| unwritable(&error))
    }

    fn take_back(&mut self) {
        if let Store::Kept(dir) = &mut self.state {
            dir.take_back();
        }
    }
}

/// A command that is decided as soon as the journal can record it.
pub(super) struct DeferredCommand {
    pub(super) command: Command,
    pub(super) replier: Replier<Answer>,
}

/// Deferred commands that were decided. Their callers are answered once no mutex is held.
#[derive(Default)]
#[must_use = "callers wait for their answers"]
pub(super) struct DeferredAnswers(pub(super) Vec<(DeferredCommand, Answer, Wakers)>);

impl DeferredAnswers {
    pub(super) fn answer(self, tally: &ServiceCounters) {
        for (owed, answer, wakers) in self.0 {
            wakers.wake();
            tally.count_answer(&answer);
            owed.replier.keep(Ok(answer));
        }
    }
}

/// Logs that the engine grants nothing yet, if it has a hold-off. `wall` converts an engine time to
/// wall-clock time.
pub(crate) fn log_begin(engine: &Engine, wall: impl Fn(Time) -> Wall) {
    let Some(hold_off) = engine.hold_off() else { return };
    let (cause, until) = (hold_off.cause.as_str(), wall(hold_off.until).to_string());
    let reason = hold_off.cause.to_string();
    log::info!(until = &*until, cause, reason = &*reason; "nothing is granted yet");
}

/// Logs that locks are granted, if one of the events says so.
pub(crate) fn log_end(events: &[Event]) {
    for event in events {
        let EventKind::HoldOffEnded { by } = &event.what else { continue };
        let (client, reason) = (by.as_ref().map(|by| by.by.as_str()), by.as_ref());
        let reason = reason.map_or("its time is over", |by| by.reason.as_str());
        log::info!(by = client, reason; "locks are granted");
    }
}

/// Adds to the text `place`, which says where the state is, that nothing is granted yet.
pub(crate) fn shown_place(
    place: &str,
    hold_off: Option<HoldOff>,
    wall: impl Fn(Time) -> Wall,
) -> String {
    match hold_off {
        Some(hold_off) => format!("{place}; {}", hold_off.sentence(wall(hold_off.until))),
        None => place.to_owned(),
    }
}
