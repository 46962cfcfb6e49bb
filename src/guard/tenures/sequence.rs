//! The tenures of a guard, one after the other: requests the folder's lock when a program wants to
//! change the folder, begins the tenure after the grant, and ends it when the lock is lost or given
//! up. One thread makes all these steps.

use crate::engine::Token;
use crate::guard::audit_log::AuditedAct;
use crate::guard::disk::operations::Disk;
use crate::guard::folder::arrival_watch::ArrivalWatch;
use crate::guard::folder::folder_barrier::{BarrierWorker, JobDone};
use crate::guard::folder::folder_guard::{FolderGuard, HiddenUse};
use crate::guard::folder::not_ready::NotReady;
use crate::guard::lock::asking::{LockUse, LockUses};
use crate::guard::lock::folder_lock::{FolderLock, LockMessage, LockNews, SeenLock, TakeAnswer};
use crate::guard::stage::fence::FenceError;
use crate::guard::stage::staged_file::PutAside;
use crate::guard::tenure::{LiveTenures, Owner, TenureClock};
use crate::guard::tenures::tenure_arrival::{Steps, Then, WaitingChange};
use crate::guard::tenures::wishes::{
    IsWanted, KeptPlaces, MayGoOn, OnHeld, OnNews, TenureEnd, TenureNews, Waiter, Wish, WishOf,
};
use crate::guard::write_policy::WritePolicy;
use crate::time::{Span, Time, Wall, boot_now};
use barrier::handover::{HandoverId, PreviousTenure};
use barrier::tenure_id::TenureId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// How long a program waits for the answer of the lock service, even if it does not want to wait
/// for the lock.
const ANSWER_PATIENCE: Span = Span::from_secs(1);

/// How long the end of a guard waits for the release of the lock.
const RELEASE_PATIENCE: Span = Span::from_secs(5);
/// How long the end of a guard waits for the release if a marker is written before.
const MARKER_PATIENCE: Span = Span::from_secs(60);

/// The answer to an acceptance that has begun in a tenure that is over.
const NOT_ACCEPTED: &str =
    "nothing was accepted, since the lock was lost or given up meanwhile; try again";

/// The answer to programs that wait while a steal ends the tenure before it has begun.
pub(in crate::guard) const TAKEN_AT_ONCE: &str =
    "the lock of this folder was taken away right after its grant; try again";

pub(in crate::guard) enum Message {
    Lock(LockMessage),
    News(LockNews),
    /// The clients that hold the lock and that wait for it; `None` if there was no answer.
    LockSeen(Option<SeenLock>),
    /// The tenures that live on beside a new one.
    OthersLive(TenureId, Result<LiveTenures, String>),
    Wish(Wish),
    /// Gives the lock up; if a tenure is named, only in that one.
    Give(Option<TenureId>, Then),
    /// A process uses the lock in the tenure with this token.
    Use(u32, u64, Box<dyn FnOnce(Option<LockUse>) + Send>),
    /// Gives the lock of the tenure with this token up after its last use, if this use or an
    /// earlier one took it. The flag says whether this one did.
    GiveUnused(u64, bool, Then),
    /// Another machine has waited long enough for the end of this tenure.
    Yield(TenureId),
    /// Whether programs use the folder of a tenure that is about to be given up.
    UseSeen(TenureId, TenureEnd, bool),
    /// This machine is about to sleep.
    Sleep(Then),
    /// A change waits since this machine has slept.
    Jumped(WaitingChange),
    /// Whether the lock is still held after the machine has slept for so long.
    StillHeld(Span, Option<bool>),
    /// The last tenure as the lock service remembers it; with the tenure that asks for it.
    Previous(Option<TenureId>, Result<PreviousTenure, String>),
    /// The answer to a handover.
    HandedOver(HandoverId, Result<(), String>),
    /// A change waits until it is announced.
    Announce(WaitingChange),
    /// The thread of the barrier has made a step.
    Worked(JobDone),
    /// Something has changed where a file is missing.
    Changed,
    FileStat,
    /// Asks for a sign that the thread works.
    Ping(Sender<()>),
    Stop,
}

/// The state of the guard as `latchfs guard status` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GuardState {
    /// The guard does not hold the lock.
    Reading,
    /// The guard has requested the lock.
    Asking,
    /// The guard holds the lock, and waits until everything is here.
    Arriving(TenureId, Owner),
    /// The guard holds the lock, since this time.
    Holding(TenureId, Owner, Wall),
    /// The gate has closed for good, and the last marker is being written.
    Yielding(TenureId),
}

pub(in crate::guard) struct TenureState {
    pub(in crate::guard) state: GuardState,
    /// The holder that refused the last request for the lock.
    pub(in crate::guard) other_holder: Option<String>,
    /// Until when the holder that refused has taken the lock along.
    pub(in crate::guard) other_away: Option<Wall>,
    /// The token of the holder that refused, while the guard asks whether it has taken the lock
    /// along.
    pub(in crate::guard) refused_by: Option<Token>,
    /// The other client that waits for the lock.
    pub(in crate::guard) waiter: Option<Waiter>,
    /// The programs of another owner that wait for the end of this tenure, as another client does.
    pub(in crate::guard) own_waiter: Option<Waiter>,
    /// The programs that were refused, and for which the guard asks for the lock.
    pub(in crate::guard) asked: KeptPlaces,
    /// The end of the last tenure.
    pub(in crate::guard) last_end: Option<(TenureId, TenureEnd)>,
    /// When the guard asks again a lock service that could not be reached.
    pub(in crate::guard) ask_again: Time,
    /// Why the folder is not ready.
    pub(in crate::guard) not_ready: Option<NotReady>,
    /// The paths that are missing, each with its reason.
    pub(in crate::guard) missing: Vec<String>,
}

/// The tenures of one guard.
pub(crate) struct Tenures<D: Disk> {
    pub(in crate::guard) guard: Arc<FolderGuard<D>>,
    pub(in crate::guard) lock: Arc<FolderLock>,
    pub(in crate::guard) policy: Arc<WritePolicy>,
    pub(in crate::guard) state: Mutex<TenureState>,
    send: Mutex<Sender<Message>>,
    /// Whether the guard ends: it requests the lock for nobody any more.
    pub(in crate::guard) is_ending: AtomicBool,
    pub(in crate::guard) waiting: AtomicUsize,
    pub(in crate::guard) hidden_use: HiddenUse,
    /// The programs that must end before the lock is given up.
    pub(crate) uses: Arc<LockUses>,
    pub(in crate::guard) on_news: OnNews,
    /// The thread of the sync barrier, if there is one.
    pub(in crate::guard) worker: Option<BarrierWorker>,
    /// The watch for missing files, where the kernel has one.
    pub(in crate::guard) arrival_watch: Option<ArrivalWatch>,
    /// The steps of the sync barrier. The thread of the tenures alone uses them.
    pub(in crate::guard) steps: Mutex<Steps>,
}

impl<D: Disk> Tenures<D> {
    /// Starts the thread of the tenures.
    pub(crate) fn start(
        guard: Arc<FolderGuard<D>>,
        lock: Arc<FolderLock>,
        policy: Arc<WritePolicy>,
        on_news: OnNews,
    ) -> io::Result<Arc<Self>> {
        let (send, receive) = channel();
        let state = TenureState {
            state: GuardState::Reading,
            other_holder: None,
            other_away: None,
            refused_by: None,
            waiter: None,
            own_waiter: None,
            asked: KeptPlaces::default(),
            last_end: None,
            ask_again: Time::ZERO,
            not_ready: None,
            missing: Vec::new(),
        };
        let results = send.clone();
        let done = move |done| results.send(Message::Worked(done)).unwrap_or_default();
        let worker = BarrierWorker::start(Arc::clone(&guard), done)?;
        let changes = send.clone();
        let on_change = move || changes.send(Message::Changed).unwrap_or_default();
        let arrival_watch = worker.is_some().then(|| ArrivalWatch::start(on_change));
        let has_late = guard.barrier().is_some_and(|barrier| barrier.may_have_late_changes());
        let steps = Steps { late_at: has_late.then_some(Time::ZERO), ..Steps::default() };
        let tenures = Arc::new(Self {
            guard,
            lock,
            policy,
            state: Mutex::new(state),
            send: Mutex::new(send.clone()),
            is_ending: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            hidden_use: HiddenUse::default(),
            uses: Arc::default(),
            on_news,
            worker,
            // Without a watch the folder is compared at intervals.
            arrival_watch: arrival_watch.and_then(Result::ok),
            steps: Mutex::new(steps),
        });
        let sends = Mutex::new(send.clone());
        let wake = move || drop(sends.lock().send(Message::FileStat));
        // The call is set only once, so this does not fail.
        let _ = tenures.uses.on_end.set(Box::new(wake));
        tenures.lock.follow(move |news| drop(send.send(Message::News(news))));
        let own = Arc::clone(&tenures);
        std::thread::Builder::new().name("tenures".to_owned()).spawn(move || own.run(&receive))?;
        Ok(tenures)
    }

    /// Returns the state of the guard.
    pub(crate) fn state(&self) -> GuardState {
        self.state.lock().state.clone()
    }

    /// Returns the client that holds the lock instead of this guard, as far as it is known.
    pub(crate) fn other_holder(&self) -> Option<String> {
        self.state.lock().other_holder.clone()
    }

    /// Returns until when the other holder has taken the lock along.
    pub(crate) fn other_away(&self) -> Option<Wall> {
        let state = self.state.lock();
        state.other_holder.as_ref().and(state.other_away).filter(|until| *until > Wall::now())
    }

    /// Returns the client that waits for the lock while this guard holds it, or else the owner of
    /// this machine that does.
    pub(crate) fn wanted_by(&self) -> Option<String> {
        let state = self.state.lock();
        let waiter = state.waiter.as_ref().or(state.own_waiter.as_ref());
        waiter.map(|waiter| waiter.client.clone())
    }

    /// Whether another client waits for the lock while this guard holds it.
    pub(super) fn is_wanted_elsewhere(&self) -> bool {
        self.state.lock().waiter.is_some()
    }

    /// Returns the owner whose programs may write, and since when.
    pub(crate) fn holding(&self) -> Option<(Owner, Wall)> {
        match self.state() {
            GuardState::Holding(_, owner, since) => Some((owner, since)),
            _ => None,
        }
    }

    /// Returns the last tenure that has ended, and how.
    pub(crate) fn last_end(&self) -> Option<(TenureId, TenureEnd)> {
        self.state.lock().last_end
    }

    /// Returns why the folder is not ready, while the guard holds the lock.
    pub(crate) fn not_ready(&self) -> Option<NotReady> {
        self.state.lock().not_ready.clone()
    }

    /// Returns the paths that are missing while the folder is not ready, each with its reason.
    pub(crate) fn missing(&self) -> Vec<String> {
        let state = self.state.lock();
        if state.not_ready.is_some() { state.missing.clone() } else { Vec::new() }
    }

    /// Whether an ended tenure has left changes that no marker names yet.
    pub(crate) fn has_unmarked_changes(&self) -> bool {
        self.steps.lock().late_at.is_some()
    }

    /// Whether markers name everything that this machine has changed, as far as there are markers.
    pub(crate) fn is_marked(&self) -> bool {
        self.guard.barrier().is_none_or(|barrier| barrier.is_marked())
    }

    /// Whether a tenure has begun, and the lock service knows that changes follow if this guard
    /// does not see them.
    pub(crate) fn may_change(&self) -> bool {
        let gate = self.guard.gate();
        gate.tenure().is_some() && (self.policy.sees_changes || !gate.must_announce())
    }

    /// Returns the lock.
    pub(crate) const fn lock(&self) -> &Arc<FolderLock> {
        &self.lock
    }

    /// Returns the number of programs that wait for a tenure.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(in crate::guard) fn send(&self, message: Message) {
        // The send fails only after the thread has ended, when the view is gone.
        let _ = self.send.lock().send(message);
    }

    pub(in crate::guard) fn sender(&self) -> Sender<Message> {
        self.send.lock().clone()
    }

    /// Requests a tenure for `owner`, waits for it for at most `patience`, and then calls `then`.
    /// The thread asks `is_wanted` whenever it checks its state.
    pub(crate) fn hold(
        &self,
        owner: Owner,
        of: WishOf,
        patience: Span,
        is_wanted: IsWanted,
        then: OnHeld,
    ) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let now = boot_now();
        let (waits_until, until) = (now + patience, now + patience.max(ANSWER_PATIENCE));
        let wish = Wish { owner, of, since: now, waits_until, until, is_wanted, then };
        self.send(Message::Wish(wish));
    }

    /// Gives the lock up, if a tenure is named only in that one, and calls `then` when that is
    /// done.
    pub(crate) fn give(&self, of: Option<TenureId>, then: impl FnOnce() + Send + 'static) {
        self.send(Message::Give(of, Box::new(then)));
    }

    /// Begins a use of the lock in the tenure with this token, by a program that must end before
    /// the lock is given up. `pid` is the process that watches over it. Calls `then` with `None` if
    /// the tenure is over, or about to end.
    pub(crate) fn begin_use(
        &self,
        pid: u32,
        token: u64,
        then: impl FnOnce(Option<LockUse>) + Send + 'static,
    ) {
        self.send(Message::Use(pid, token, Box::new(then)));
    }

    /// Takes note that a program uses the lock of the tenure with this token no longer, and whether
    /// it took the lock for that. Gives the lock up after the last of them, if one of them took it,
    /// and calls `then` when that is done.
    pub(crate) fn give_unused(
        &self,
        token: u64,
        gives: bool,
        then: impl FnOnce() + Send + 'static,
    ) {
        self.send(Message::GiveUnused(token, gives, Box::new(then)));
    }

    /// Gives the lock up because another machine has waited for so long.
    pub(crate) fn yield_now(&self, tenure: TenureId) {
        self.send(Message::Yield(tenure));
    }

    /// Whether the thread answers within `patience`.
    pub(crate) fn answers(&self, patience: Span) -> bool {
        let (send, answer) = channel();
        self.send(Message::Ping(send));
        answer.recv_timeout(patience.as_duration()).is_ok()
    }

    /// Makes the thread check its state again, for example because a publish was fenced, or because
    /// a program no longer waits.
    pub(crate) fn recheck(&self) {
        self.send(Message::FileStat);
    }

    /// Gives the lock up, and ends the thread.
    pub(crate) fn stop(&self) {
        self.uses.end_and_wait();
        self.is_ending.store(true, Ordering::Release);
        let (send, done) = channel();
        self.give(None, move || send.send(()).unwrap_or_default());
        // The release is repeated by the lock service's client for as long as needed; a server that
        // does not answer must not keep the view from being unmounted. The last marker may take
        // longer; without it the next start of the guard writes a late one.
        let patience = if self.worker.is_some() { MARKER_PATIENCE } else { RELEASE_PATIENCE };
        let _ = done.recv_timeout(patience.as_duration());
        self.send(Message::Stop);
        self.lock.close();
    }

    fn run(&self, messages: &Receiver<Message>) {
        let mut wishes = VecDeque::new();
        loop {
            let wait = self.next_check(&wishes);
            let message = match wait {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => messages.recv_timeout(wait.as_duration()),
            };
            match message {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(message) => self.handle(message, &mut wishes),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.tick(&mut wishes);
        }
    }

    /// Returns how long nothing has to be done unless a message comes.
    fn next_check(&self, wishes: &VecDeque<Wish>) -> Option<Span> {
        let now = boot_now();
        let mut next = self.next_request(wishes).min(self.next_step(now));
        if matches!(self.state(), GuardState::Holding(..) | GuardState::Arriving(..)) {
            next = next.min(self.lock.surely_until());
        }
        if let GuardState::Holding(..) = self.state() {
            next = next.min(self.next_yield());
        }
        next = next.min(self.next_before_sleep()).min(self.next_after_jump());
        (next != Time::NEVER).then(|| next.since(now) + Span::from_millis(1))
    }

    fn handle(&self, message: Message, wishes: &mut VecDeque<Wish>) {
        match message {
            Message::Lock(message) => {
                let answer = self.lock.accept(message);
                self.answered(answer, wishes);
            }
            Message::News(LockNews::Wanted(client)) => self.waited_for(client),
            Message::News(LockNews::Unwanted) => {
                if self.is_wanted_elsewhere() {
                    self.inspect_lock();
                }
            }
            Message::News(LockNews::Missed) => self.ask_after_lost_events(),
            Message::News(LockNews::SameName) => {
                if matches!(self.state(), GuardState::Holding(..) | GuardState::Arriving(..)) {
                    self.inspect_lock();
                }
            }
            Message::OthersLive(tenure, answer) => self.begin_beside(tenure, answer, wishes),
            Message::LockSeen(seen) => self.lock_seen(seen, wishes),
            Message::News(LockNews::Ended(token)) => match self.state() {
                GuardState::Holding(tenure, ..) | GuardState::Arriving(tenure, _)
                    if tenure.token == token =>
                {
                    self.lose(tenure, TenureEnd::Taken);
                }
                GuardState::Yielding(tenure) if tenure.token == token => self.lock.forget(),
                // The guard does not know yet which tenures live on beside this one.
                GuardState::Asking if self.lock.token() == Some(token) => {
                    self.lock.forget();
                    self.answered(TakeAnswer::Unreachable(TAKEN_AT_ONCE.to_owned()), wishes);
                }
                _ => {}
            },
            Message::Previous(tenure, answer) => self.previous_known(tenure, answer),
            Message::HandedOver(id, answer) => self.handed_over(id, answer, wishes),
            Message::Announce(change) => self.announce_change(change),
            Message::Worked(done) => self.worked(done, wishes),
            Message::Changed => self.arrival_changed(),
            Message::Wish(wish) => self.wish(wish, wishes),
            Message::Give(Some(tenure), then) if self.current() != Some(tenure) => then(),
            Message::Give(_, then) => {
                self.stop_asking();
                self.give_now(TenureEnd::Given, then);
            }
            Message::Use(pid, token, then) => {
                let may_begin = self.holds(token) && !self.uses.must_end();
                then(may_begin.then(|| self.uses.begin(pid)));
            }
            Message::GiveUnused(token, gives, then) => {
                if self.holds(token) && self.uses.gives_after_last(gives) {
                    return self.give_now(TenureEnd::Given, then);
                }
                then();
            }
            Message::Yield(tenure) => self.yield_overdue(tenure),
            Message::UseSeen(tenure, end, is_used) => self.use_seen(tenure, end, is_used),
            Message::Sleep(then) => self.sleep_comes(then),
            Message::Jumped(change) => self.jumped(change),
            Message::StillHeld(slept, answer) => self.still_held(slept, answer),
            // The send fails if nobody waits for the sign any more.
            Message::Ping(answer) => answer.send(()).unwrap_or_default(),
            Message::FileStat | Message::Stop => {}
        }
    }

    /// Looks at everything that has a deadline.
    fn tick(&self, wishes: &mut VecDeque<Wish>) {
        let state = self.state();
        if let GuardState::Holding(_, owner, _) = state {
            self.look_for_own_waiter(owner, wishes, boot_now());
        }
        if let GuardState::Holding(tenure, ..) | GuardState::Arriving(tenure, _) = state {
            if self.guard.is_fenced() {
                self.lose(tenure, TenureEnd::Fenced);
            } else if self.guard.gate().is_past_deadline() {
                self.lose(tenure, TenureEnd::Deadline);
            } else if let GuardState::Holding(..) = state {
                self.yield_if_due(tenure, boot_now());
            }
        }
        if self.guard.take_late()
            && let Some(tenure) = self.current_or_last()
        {
            let why = "a file appeared in the folder after the deadline of its tenure";
            self.audit(AuditedAct::LatePublish, tenure, why);
            (self.on_news)(&TenureNews::Late(tenure));
        }
        if !matches!(self.state(), GuardState::Arriving(..)) {
            self.refuse_acceptance(NOT_ACCEPTED, wishes);
            self.end_watch();
        }
        if self.uses.is_empty() {
            self.lock.acknowledge_loss();
        }
        let now = boot_now();
        self.deny_late(wishes, now);
        self.step(wishes, now);
        self.step_before_sleep(now);
        self.step_after_jump(now);
        self.check_request(wishes, now);
    }

    fn current(&self) -> Option<TenureId> {
        match self.state() {
            GuardState::Holding(tenure, ..)
            | GuardState::Arriving(tenure, _)
            | GuardState::Yielding(tenure) => Some(tenure),
            GuardState::Reading | GuardState::Asking => None,
        }
    }

    pub(in crate::guard) fn current_or_last(&self) -> Option<TenureId> {
        self.current().or_else(|| self.last_end().map(|(tenure, _)| tenure))
    }

    /// Whether programs may write in the tenure with this token.
    fn holds(&self, token: u64) -> bool {
        matches!(self.state(), GuardState::Holding(held, ..) if held.token.as_u64() == token)
    }

    pub(super) fn is_idle_for(&self, after: Span) -> bool {
        let idle_since = self.guard.gate().last_change();
        idle_since + after <= boot_now() && !self.guard.has_unpublished() && self.uses.is_empty()
    }
}

impl<D: Disk> Tenures<D> {
    /// Begins a tenure after its grant, for the owner that has waited longest. Where there is a
    /// sync barrier, the gate stays closed until everything is here.
    pub(in crate::guard) fn begin(
        &self,
        tenure: TenureId,
        previous: Option<PreviousTenure>,
        live: Option<&LiveTenures>,
        wishes: &mut VecDeque<Wish>,
    ) {
        if self.current_or_last() == Some(tenure) && self.state() != GuardState::Asking {
            return;
        }
        let Some(owner) = self.first_in_line(wishes, boot_now()) else {
            self.state.lock().state = GuardState::Reading;
            return self.lock.release(|| {});
        };
        // Other clients may have waited since before the grant.
        self.inspect_lock();
        match self.guard.begin(tenure, live) {
            Ok(kept) if self.worker.is_some() => self.arrive(tenure, owner, previous, kept),
            Ok(kept) => self.open(tenure, owner, kept, wishes),
            Err(error) => {
                let why = match error {
                    FenceError::Late => "the lease ended before the stages of other tenures were \
                                         removed"
                        .to_owned(),
                    FenceError::Disk(error) => {
                        format!("the stages of other tenures can't be removed: {error}")
                    }
                };
                self.lock.release(|| {});
                self.state.lock().state = GuardState::Reading;
                self.deny_all(wishes, &why);
            }
        }
    }

    /// Opens the gate for a tenure that is ready.
    pub(in crate::guard) fn open(
        &self,
        tenure: TenureId,
        owner: Owner,
        kept: usize,
        wishes: &mut VecDeque<Wish>,
    ) {
        let mut steps = self.steps.lock();
        steps.opens_at = Time::ZERO;
        let compared = steps.compared.take();
        drop(steps);
        if let Some(since) = compared {
            self.guard.compared(since);
        }
        if let Some(barrier) = self.guard.barrier() {
            barrier.unread.begin_tenure();
        }
        (self.on_news)(&TenureNews::Opens(tenure));
        self.guard.open(tenure, owner);
        let mut state = self.state.lock();
        state.state = GuardState::Holding(tenure, owner, Wall::now());
        (state.other_holder, state.not_ready) = (None, None);
        state.asked.drop_of(owner);
        drop(state);
        (self.on_news)(&TenureNews::Began(tenure, kept));
        for wish in std::mem::take(wishes) {
            self.wish(wish, wishes);
        }
    }

    pub(in crate::guard) fn lose(&self, tenure: TenureId, end: TenureEnd) {
        let is_idle = self.is_idle_for(self.policy.idle_after());
        let aside = self.guard.lose();
        let may_go_on = if is_idle { MayGoOn::Unchanged } else { MayGoOn::Never };
        (self.on_news)(&TenureNews::Closed(tenure, may_go_on));
        if end == TenureEnd::Taken {
            self.lock.forget();
        } else {
            // The lock service may still count this guard as the holder.
            self.lock.release(|| {});
        }
        self.forget_steps(end);
        self.ended(tenure, end, aside);
    }

    /// Gives the lock up, if the guard holds it, and calls `then` when that is done.
    pub(in crate::guard) fn give_now(&self, end: TenureEnd, then: Then) {
        let (tenure, is_ready) = match self.state() {
            GuardState::Holding(tenure, ..) => (tenure, true),
            GuardState::Arriving(tenure, _) => (tenure, false),
            GuardState::Yielding(_) => return self.wait_for_yield(then),
            GuardState::Reading | GuardState::Asking => return then(),
        };
        let aside = self.guard.give_up();
        (self.on_news)(&TenureNews::Closed(tenure, MayGoOn::Unchanged));
        if is_ready && self.worker.is_some() {
            return self.yield_marked(tenure, end, aside, then);
        }
        self.lock.release(then);
        self.forget_steps(end);
        self.ended(tenure, end, aside);
    }

    pub(in crate::guard) fn ended(&self, tenure: TenureId, end: TenureEnd, aside: PutAside) {
        let mut state = self.state.lock();
        state.state = GuardState::Reading;
        state.last_end = Some((tenure, end));
        (state.waiter, state.own_waiter, state.not_ready) = (None, None, None);
        drop(state);
        self.uses.tenure_is_over();
        (self.on_news)(&TenureNews::Ended(tenure, end, aside));
    }
}
