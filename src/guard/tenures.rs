//! The tenures of a guard, one after the other: requests the folder's lock when a program wants to
//! change the folder, begins the tenure after the grant, and ends it when the lock is lost or given
//! up. One thread makes all these steps.

use super::disk::Disk;
use super::fence::FenceError;
use super::folder_guard::{FolderGuard, PutAside};
use super::folder_lock::{FolderLock, LockMessage, LockNews, TakeAnswer, unanswered};
use super::tenure::{Owner, TenureClock, TenureId};
use super::tenure_news::{OnNews, TenureEnd, TenureNews};
use super::write_policy::WritePolicy;
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// Why a program does not get a tenure now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The reason as a sentence without a full stop.
    pub(crate) sentence: String,
}

/// A callback for the answer to a wish for a tenure.
pub(crate) type OnHeld = Box<dyn FnOnce(Result<(), Denied>) + Send>;

/// Tells whether a program still waits for a tenure: a signal may have ended its wait.
pub(crate) type IsWanted = Box<dyn Fn() -> bool + Send>;

/// How long a program waits for the answer of the lock service, even if it does not want to wait
/// for the lock.
const ANSWER_PATIENCE: Span = Span::from_secs(1);

/// The delay before a lock service that could not be reached is asked again for programs that
/// wait.
const ASK_AGAIN: Span = Span::from_secs(1);

/// A program's wish for a tenure.
struct Wish {
    owner: Owner,
    /// When the program no longer waits for a lock that is held.
    waits_until: Time,
    /// When the program is refused if there was no answer.
    until: Time,
    /// Whether the program still waits.
    is_wanted: IsWanted,
    then: OnHeld,
}

enum Message {
    Lock(LockMessage),
    News(LockNews),
    Wish(Wish),
    Give(Box<dyn FnOnce() + Send>),
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
    /// The guard holds the lock, since this time.
    Holding(TenureId, Owner, Wall),
}

struct TenureState {
    state: GuardState,
    /// The holder that refused the last request for the lock.
    other_holder: Option<String>,
    /// The clients that wait for the lock.
    wanted_by: Option<String>,
    /// The end of the last tenure.
    last_end: Option<(TenureId, TenureEnd)>,
    /// When the guard asks again a lock service that could not be reached.
    ask_again: Time,
}

/// The tenures of one guard.
pub(crate) struct Tenures<D: Disk> {
    guard: Arc<FolderGuard<D>>,
    lock: Arc<FolderLock>,
    policy: Arc<WritePolicy>,
    state: Mutex<TenureState>,
    send: Mutex<Sender<Message>>,
    waiting: AtomicUsize,
    /// The number of open files through which programs may change the folder.
    writers: AtomicUsize,
    on_news: OnNews,
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
        };
        let tenures = Arc::new(Self {
            guard,
            lock,
            policy,
            state: Mutex::new(state),
            send: Mutex::new(send.clone()),
            waiting: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            on_news,
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

    fn send(&self, message: Message) {
        // The send fails only after the thread has ended, when the view is gone.
        let _ = self.send.lock().send(message);
    }

    /// Requests a tenure for `owner`, waits for it for at most `patience`, and then calls `then`.
    /// The thread asks `is_wanted` whenever it looks at its state.
    pub(crate) fn hold(&self, owner: Owner, patience: Span, is_wanted: IsWanted, then: OnHeld) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let now = boot_now();
        let (waits_until, until) = (now + patience, now + patience.max(ANSWER_PATIENCE));
        self.send(Message::Wish(Wish { owner, waits_until, until, is_wanted, then }));
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
        // does not answer must not keep the view from being unmounted.
        let _ = done.recv_timeout(std::time::Duration::from_secs(5));
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
        if let GuardState::Holding(..) = self.state() {
            next = next.min(self.lock.surely_until());
            if let Some(after) = self.policy.give_after {
                let idle_since = self.guard.gate().last_change();
                // A file that is open for writing keeps the lock; the guard looks again then.
                next = next.min((idle_since + after).max(now + Span::from_millis(100)));
            }
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
                if matches!(self.state(), GuardState::Holding(..)) {
                    self.state.lock().wanted_by = Some(client.clone());
                    (self.on_news)(&TenureNews::Wanted(client));
                }
            }
            Message::News(LockNews::Ended(token)) => match self.state() {
                GuardState::Holding(tenure, ..) if tenure.token == token => {
                    self.lose(tenure, TenureEnd::Taken);
                }
                _ => {}
            },
            Message::Wish(wish) => self.wish(wish, wishes),
            Message::Give(then) => self.give_now(then),
            // The send fails if nobody waits for the sign any more.
            Message::Ping(answer) => answer.send(()).unwrap_or_default(),
            Message::Look | Message::Stop => {}
        }
    }

    /// Looks at everything that has a deadline.
    fn tick(&self, wishes: &mut VecDeque<Wish>) {
        if let GuardState::Holding(tenure, ..) = self.state() {
            if self.guard.is_fenced() {
                self.lose(tenure, TenureEnd::Fenced);
            } else if self.guard.gate().is_past_deadline() {
                self.lose(tenure, TenureEnd::Deadline);
            } else if self.policy.give_after.is_some_and(|after| self.is_idle_for(after)) {
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

    fn current_or_last(&self) -> Option<TenureId> {
        match self.state() {
            GuardState::Holding(tenure, ..) => Some(tenure),
            _ => self.last_end().map(|(tenure, _)| tenure),
        }
    }

    fn is_idle_for(&self, after: Span) -> bool {
        let idle_since = self.guard.gate().last_change();
        self.writers.load(Ordering::Relaxed) == 0 && idle_since + after <= boot_now()
    }

    fn why_not(&self) -> String {
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

    fn wish(&self, wish: Wish, wishes: &mut VecDeque<Wish>) {
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
        if state == GuardState::Asking && self.lock.is_in_line() {
            self.deny_impatient(wishes, &self.why_not());
        }
        if state != GuardState::Asking {
            self.ask(wishes);
        }
    }

    /// Requests the lock, and waits in its queue for as long as the most patient program does.
    fn ask(&self, wishes: &mut VecDeque<Wish>) {
        let last = wishes.iter().map(|wish| wish.waits_until).max().unwrap_or(Time::ZERO);
        let patience = last.since(boot_now());
        self.state.lock().state = GuardState::Asking;
        let send = self.send.lock().clone();
        let asked =
            self.lock.take(patience, move |message| drop(send.send(Message::Lock(message))));
        if let Err(why) = asked {
            self.answered(unanswered(&why), wishes);
        }
    }

    fn answered(&self, answer: TakeAnswer, wishes: &mut VecDeque<Wish>) {
        match answer {
            TakeAnswer::Granted(tenure) => self.begin(tenure, wishes),
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
    fn deny_impatient(&self, wishes: &mut VecDeque<Wish>, sentence: &str) {
        let now = boot_now();
        let all = wishes.drain(..);
        let (patient, mut others): (VecDeque<_>, _) = all.partition(|w| w.waits_until > now);
        self.deny_all(&mut others, sentence);
        *wishes = patient;
    }

    fn deny_all(&self, wishes: &mut VecDeque<Wish>, sentence: &str) {
        for wish in wishes.drain(..) {
            self.answer(wish, Err(Denied { sentence: sentence.to_owned() }));
        }
    }

    /// Begins a tenure after its grant, for the owner that has waited longest.
    fn begin(&self, tenure: TenureId, wishes: &mut VecDeque<Wish>) {
        if matches!(self.state(), GuardState::Holding(held, ..) if held == tenure) {
            return;
        }
        let Some(owner) = wishes.front().map(|wish| wish.owner) else {
            self.state.lock().state = GuardState::Reading;
            return self.lock.release(|| {});
        };
        match self.guard.begin(tenure, owner) {
            Ok(kept) => {
                let mut state = self.state.lock();
                state.state = GuardState::Holding(tenure, owner, Wall::now());
                (state.other_holder, state.wanted_by) = (None, None);
                drop(state);
                (self.on_news)(&TenureNews::Began(tenure, kept));
                for wish in std::mem::take(wishes) {
                    self.wish(wish, wishes);
                }
            }
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

    fn lose(&self, tenure: TenureId, end: TenureEnd) {
        let aside = self.guard.lose();
        if end == TenureEnd::Taken {
            self.lock.forget();
        } else {
            // The lock service may still count this guard as the holder.
            self.lock.release(|| {});
        }
        self.ended(tenure, end, aside);
    }

    fn give_now(&self, then: Box<dyn FnOnce() + Send>) {
        let GuardState::Holding(tenure, ..) = self.state() else { return then() };
        let aside = self.guard.give_up();
        self.lock.release(then);
        self.ended(tenure, TenureEnd::Given, aside);
    }

    fn ended(&self, tenure: TenureId, end: TenureEnd, aside: PutAside) {
        let mut state = self.state.lock();
        state.state = GuardState::Reading;
        state.last_end = Some((tenure, end));
        state.wanted_by = None;
        drop(state);
        (self.on_news)(&TenureNews::Ended(tenure, end, aside));
    }
}
