//! The tenures of a guard, one after the other: requests the folder's lock when a program wants to
//! change the folder, begins the tenure after the grant, and ends it when the lock is lost or given
//! up. One thread makes all these steps.

use super::barrier::handover::{HandoverId, PreviousTenure};
use super::barrier_worker::{BarrierWorker, JobDone};
use super::disk::Disk;
use super::folder_guard::FolderGuard;
use super::folder_lock::{FolderLock, LockMessage, LockNews, TakeAnswer, unanswered};
use super::tenure::{Owner, TenureClock, TenureId};
use super::tenure_news::{OnNews, TenureEnd, TenureNews};
use super::tenure_steps::{Steps, Then, WaitingChange};
use super::wish::{Denied, IsWanted, OnHeld, Wish, WishOf};
use super::write_policy::WritePolicy;
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// How long a program waits for the answer of the lock service, even if it does not want to wait
/// for the lock.
const ANSWER_PATIENCE: Span = Span::from_secs(1);

/// How long the end of a guard waits for the release of the lock.
const RELEASE_PATIENCE: Span = Span::from_secs(5);
/// How long it waits if a marker is written before.
const MARKER_PATIENCE: Span = Span::from_secs(60);

/// The delay before a lock service that could not be reached is asked again for programs that
/// wait.
const ASK_AGAIN: Span = Span::from_secs(1);

pub(super) enum Message {
    Lock(LockMessage),
    News(LockNews),
    Wish(Wish),
    Give(Then),
    /// The last tenure as the lock service remembers it; with the tenure that asks for it.
    Previous(Option<TenureId>, Result<PreviousTenure, String>),
    /// The answer to a handover.
    HandedOver(HandoverId, Result<(), String>),
    /// A change waits until it is announced.
    Announce(WaitingChange),
    /// The thread of the barrier has made a step.
    Worked(JobDone),
    Look,
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

pub(super) struct TenureState {
    pub(super) state: GuardState,
    /// The holder that refused the last request for the lock.
    pub(super) other_holder: Option<String>,
    /// The clients that wait for the lock.
    pub(super) wanted_by: Option<String>,
    /// The end of the last tenure.
    pub(super) last_end: Option<(TenureId, TenureEnd)>,
    /// When the guard asks again a lock service that could not be reached.
    pub(super) ask_again: Time,
    /// Why the folder is not ready, as a sentence without a full stop.
    pub(super) not_ready: Option<String>,
    /// The paths that are missing, each with its reason.
    pub(super) missing: Vec<String>,
}

/// The tenures of one guard.
pub(crate) struct Tenures<D: Disk> {
    pub(super) guard: Arc<FolderGuard<D>>,
    pub(super) lock: Arc<FolderLock>,
    pub(super) policy: Arc<WritePolicy>,
    pub(super) state: Mutex<TenureState>,
    send: Mutex<Sender<Message>>,
    waiting: AtomicUsize,
    /// The number of open files through which programs may change the folder.
    writers: AtomicUsize,
    pub(super) on_news: OnNews,
    /// The thread of the sync barrier, if there is one.
    pub(super) worker: Option<BarrierWorker>,
    /// The steps of the sync barrier. The thread of the tenures alone uses them.
    pub(super) steps: Mutex<Steps>,
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
            wanted_by: None,
            last_end: None,
            ask_again: Time::ZERO,
            not_ready: None,
            missing: Vec::new(),
        };
        let results = send.clone();
        let done = move |done| results.send(Message::Worked(done)).unwrap_or_default();
        let worker = BarrierWorker::start(Arc::clone(&guard), done)?;
        let has_late = guard.barrier().is_some_and(|barrier| barrier.may_have_late_changes());
        let steps = Steps { late_at: has_late.then_some(Time::ZERO), ..Steps::default() };
        let tenures = Arc::new(Self {
            guard,
            lock,
            policy,
            state: Mutex::new(state),
            send: Mutex::new(send.clone()),
            waiting: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            on_news,
            worker,
            steps: Mutex::new(steps),
        });
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

    /// Returns the client that waits for the lock while this guard holds it.
    pub(crate) fn wanted_by(&self) -> Option<String> {
        self.state.lock().wanted_by.clone()
    }

    /// Returns the last tenure that has ended, and how.
    pub(crate) fn last_end(&self) -> Option<(TenureId, TenureEnd)> {
        self.state.lock().last_end
    }

    /// Returns why the folder is not ready, while the guard holds the lock.
    pub(crate) fn not_ready(&self) -> Option<String> {
        self.state.lock().not_ready.clone()
    }

    /// Returns the paths that are missing while the folder is not ready, each with its reason.
    pub(crate) fn missing(&self) -> Vec<String> {
        let state = self.state.lock();
        if state.not_ready.is_some() { state.missing.clone() } else { Vec::new() }
    }

    /// Returns the lock.
    pub(crate) const fn lock(&self) -> &Arc<FolderLock> {
        &self.lock
    }

    /// Returns the number of programs that wait for a tenure.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a file that was opened for writing, or closed.
    pub(crate) fn count_writer(&self, is_open: bool) {
        if is_open {
            self.writers.fetch_add(1, Ordering::Relaxed);
        } else {
            self.writers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn send(&self, message: Message) {
        // The send fails only after the thread has ended, when the view is gone.
        let _ = self.send.lock().send(message);
    }

    pub(super) fn sender(&self) -> Sender<Message> {
        self.send.lock().clone()
    }

    /// Requests a tenure for `owner`, waits for it for at most `patience`, and then calls `then`.
    /// The thread asks `is_wanted` whenever it looks at its state.
    pub(crate) fn hold(
        &self,
        (owner, of): (Owner, WishOf),
        patience: Span,
        is_wanted: IsWanted,
        then: OnHeld,
    ) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let now = boot_now();
        let (waits_until, until) = (now + patience, now + patience.max(ANSWER_PATIENCE));
        self.send(Message::Wish(Wish { owner, of, waits_until, until, is_wanted, then }));
    }

    /// Gives the lock up, and calls `then` when that is done.
    pub(crate) fn give(&self, then: impl FnOnce() + Send + 'static) {
        self.send(Message::Give(Box::new(then)));
    }

    /// Whether the thread answers within `patience`.
    pub(crate) fn answers(&self, patience: Span) -> bool {
        let (send, answer) = channel();
        self.send(Message::Ping(send));
        answer.recv_timeout(patience.as_duration()).is_ok()
    }

    /// Makes the thread look at its state again, for example because a publish was fenced, or
    /// because a program no longer waits.
    pub(crate) fn look(&self) {
        self.send(Message::Look);
    }

    /// Gives the lock up, and ends the thread.
    pub(crate) fn stop(&self) {
        let (send, done) = channel();
        self.give(move || send.send(()).unwrap_or_default());
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
            let wait = self.next_look(&wishes);
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
    fn next_look(&self, wishes: &VecDeque<Wish>) -> Option<Span> {
        let now = boot_now();
        let mut next = wishes.iter().map(|wish| wish.until).min().unwrap_or(Time::NEVER);
        if !wishes.is_empty() && self.state() == GuardState::Reading {
            next = next.min(self.ask_again());
        }
        next = next.min(self.next_step(now));
        if matches!(self.state(), GuardState::Holding(..) | GuardState::Arriving(..)) {
            next = next.min(self.lock.surely_until());
        }
        if let GuardState::Holding(..) = self.state()
            && let Some(after) = self.policy.give_after
        {
            let idle_since = self.guard.gate().last_change();
            // A file that is open for writing keeps the lock; the guard looks again then.
            next = next.min((idle_since + after).max(now + Span::from_millis(100)));
        }
        (next != Time::NEVER).then(|| next.since(now) + Span::from_millis(1))
    }

    fn handle(&self, message: Message, wishes: &mut VecDeque<Wish>) {
        match message {
            Message::Lock(message) => {
                let answer = self.lock.accept(message);
                self.answered(answer, wishes);
            }
            Message::News(LockNews::Wanted(client)) => {
                if matches!(self.state(), GuardState::Holding(..) | GuardState::Arriving(..)) {
                    self.state.lock().wanted_by = Some(client.clone());
                    (self.on_news)(&TenureNews::Wanted(client));
                }
            }
            Message::News(LockNews::Ended(token)) => match self.state() {
                GuardState::Holding(tenure, ..) | GuardState::Arriving(tenure, _)
                    if tenure.token == token =>
                {
                    self.lose(tenure, TenureEnd::Taken);
                }
                GuardState::Yielding(tenure) if tenure.token == token => self.lock.forget(),
                _ => {}
            },
            Message::Previous(tenure, answer) => self.previous_known(tenure, answer),
            Message::HandedOver(id, answer) => self.handed_over(id, answer, wishes),
            Message::Announce(change) => self.announce_change(change),
            Message::Worked(done) => self.worked(done, wishes),
            Message::Wish(wish) => self.wish(wish, wishes),
            Message::Give(then) => self.give_now(then),
            // The send fails if nobody waits for the sign any more.
            Message::Ping(answer) => answer.send(()).unwrap_or_default(),
            Message::Look | Message::Stop => {}
        }
    }

    /// Looks at everything that has a deadline.
    fn tick(&self, wishes: &mut VecDeque<Wish>) {
        let state = self.state();
        if let GuardState::Holding(tenure, ..) | GuardState::Arriving(tenure, _) = state {
            let is_holding = matches!(state, GuardState::Holding(..));
            if self.guard.is_fenced() {
                self.lose(tenure, TenureEnd::Fenced);
            } else if self.guard.gate().is_past_deadline() {
                self.lose(tenure, TenureEnd::Deadline);
            } else if is_holding
                && self.policy.give_after.is_some_and(|after| self.is_idle_for(after))
            {
                self.give_now(Box::new(|| {}));
            }
        }
        if self.guard.take_late()
            && let Some(tenure) = self.current_or_last()
        {
            (self.on_news)(&TenureNews::Late(tenure));
        }
        let now = boot_now();
        let sentence = self.why_not();
        while let Some(at) = wishes.iter().position(|wish| wish.until <= now || !(wish.is_wanted)())
        {
            let Some(wish) = wishes.remove(at) else { break };
            self.answer(wish, Err(Denied { sentence: sentence.clone() }));
        }
        self.step(wishes, now);
        if wishes.is_empty() && self.state() == GuardState::Asking {
            self.lock.leave();
            self.state.lock().state = GuardState::Reading;
        }
        if !wishes.is_empty() && self.state() == GuardState::Reading && self.ask_again() <= now {
            self.ask(wishes);
        }
    }

    fn ask_again(&self) -> Time {
        self.state.lock().ask_again
    }

    pub(super) fn current_or_last(&self) -> Option<TenureId> {
        match self.state() {
            GuardState::Holding(tenure, ..)
            | GuardState::Arriving(tenure, _)
            | GuardState::Yielding(tenure) => Some(tenure),
            GuardState::Reading | GuardState::Asking => self.last_end().map(|(tenure, _)| tenure),
        }
    }

    fn is_idle_for(&self, after: Span) -> bool {
        let idle_since = self.guard.gate().last_change();
        self.writers.load(Ordering::Relaxed) == 0 && idle_since + after <= boot_now()
    }

    fn why_not(&self) -> String {
        if let GuardState::Arriving(..) = self.state() {
            let not_ready = self.not_ready();
            return not_ready.unwrap_or_else(|| "the folder is being compared".to_owned());
        }
        match self.other_holder() {
            Some(holder) => format!("{holder} holds the lock of this folder"),
            None => self.lock.trouble().unwrap_or_else(|| {
                "the lock service has not granted the lock of this folder yet".to_owned()
            }),
        }
    }

    fn answer(&self, wish: Wish, answer: Result<(), Denied>) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        (wish.then)(answer);
    }

    pub(super) fn wish(&self, wish: Wish, wishes: &mut VecDeque<Wish>) {
        let state = self.state();
        if let GuardState::Holding(_, owner, _) = state {
            let answer = if owner == wish.owner {
                Ok(())
            } else {
                let sentence = "another user or session of this machine holds the lock of this \
                                folder; wait until it gives the lock up"
                    .to_owned();
                Err(Denied { sentence })
            };
            return self.answer(wish, answer);
        }
        wishes.push_back(wish);
        match state {
            GuardState::Asking if self.lock.is_in_line() => {
                self.deny_impatient(wishes, &self.why_not());
            }
            GuardState::Arriving(..) if self.not_ready().is_some() => {
                self.deny_impatient(wishes, &self.why_not());
            }
            GuardState::Reading => self.ask(wishes),
            // The wish is granted or refused with those that wait already, or after the yield.
            _ => {}
        }
    }

    /// Requests the lock, and waits in its queue for as long as the most patient program does.
    fn ask(&self, wishes: &mut VecDeque<Wish>) {
        let last = wishes.iter().map(|wish| wish.waits_until).max().unwrap_or(Time::ZERO);
        let patience = last.since(boot_now());
        self.state.lock().state = GuardState::Asking;
        let send = self.sender();
        let asked =
            self.lock.take(patience, move |message| drop(send.send(Message::Lock(message))));
        if let Err(why) = asked {
            self.answered(unanswered(&why), wishes);
        }
    }

    fn answered(&self, answer: TakeAnswer, wishes: &mut VecDeque<Wish>) {
        match answer {
            TakeAnswer::Granted(tenure, previous) => self.begin(tenure, previous, wishes),
            TakeAnswer::Waits => self.deny_impatient(wishes, &self.why_not()),
            TakeAnswer::Held { holder, token } => {
                let sentence =
                    format!("{holder} holds the lock of this folder (token {})", token.as_u64());
                let mut state = self.state.lock();
                state.other_holder = Some(holder);
                state.state = GuardState::Reading;
                drop(state);
                self.deny_impatient(wishes, &sentence);
                if !wishes.is_empty() {
                    self.ask(wishes);
                }
            }
            TakeAnswer::Failed(sentence) => {
                self.state.lock().state = GuardState::Reading;
                self.deny_all(wishes, &sentence);
            }
            TakeAnswer::Unreachable(sentence) => {
                let mut state = self.state.lock();
                (state.state, state.ask_again) = (GuardState::Reading, boot_now() + ASK_AGAIN);
                drop(state);
                self.deny_impatient(wishes, &sentence);
            }
        }
    }

    /// Refuses the wishes of programs that do not wait for a lock that is held.
    pub(super) fn deny_impatient(&self, wishes: &mut VecDeque<Wish>, sentence: &str) {
        let now = boot_now();
        let all = wishes.drain(..);
        let (patient, mut others): (VecDeque<_>, _) = all.partition(|w| w.waits_until > now);
        self.deny_all(&mut others, sentence);
        *wishes = patient;
    }

    pub(super) fn deny_all(&self, wishes: &mut VecDeque<Wish>, sentence: &str) {
        for wish in wishes.drain(..) {
            self.answer(wish, Err(Denied { sentence: sentence.to_owned() }));
        }
    }
}
