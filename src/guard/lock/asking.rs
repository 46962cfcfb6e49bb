//! Requests the folder's lock for programs that want to change the folder, and refuses those that
//! do not wait. A program that was refused because another machine holds the lock keeps a place in
//! the queue for a while, so that the other machine hears of it and this one gets the lock.
//!
//! Programs that must end before the guard gives the lock up: `latchfs run --guard` says so for
//! each program that it starts. While there is one, the lock is not idle.

use super::folder_lock::{TakeAnswer, unanswered};
use crate::engine::Token;
use crate::guard::audit_log::AuditedAct;
use crate::guard::disk::operations::Disk;
use crate::guard::tenure::{LiveTenures, Owner};
use crate::guard::tenures::sequence::{GuardState, Message, TAKEN_AT_ONCE, Tenures};
use crate::guard::tenures::wishes::{Denied, Wish, WishOf};
use crate::time::{Span, Time, boot_now};
use barrier::tenure_id::TenureId;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// The delay before a lock service that could not be reached is asked again for programs that
/// wait.
const ASK_AGAIN: Span = Span::from_secs(1);
/// How long the guard keeps a place in the queue for a program that was refused.
const PLACE_KEPT: Span = Span::from_secs(60);

impl<D: Disk> Tenures<D> {
    /// Returns until when the guard asks for the lock although no program waits.
    pub(super) fn asks_until(&self) -> Option<Time> {
        self.state.lock().asked.ends().map(|(_, last)| last)
    }

    /// Whether the guard asks for the lock although no program waits.
    pub(in crate::guard) fn asks(&self, now: Time) -> bool {
        self.state.lock().asked.first(now).is_some()
    }

    /// Returns the owner that has waited longest: its programs wait, or were refused a short time
    /// ago.
    pub(in crate::guard) fn first_in_line(
        &self,
        wishes: &VecDeque<Wish>,
        now: Time,
    ) -> Option<Owner> {
        match (wishes.front(), self.state.lock().asked.first(now)) {
            (Some(wish), Some(asked)) if asked.since < wish.since => Some(asked.owner),
            (Some(wish), _) => Some(wish.owner),
            (None, asked) => asked.map(|asked| asked.owner),
        }
    }

    /// Stops asking for the lock for programs that were refused, except those that wait for the
    /// end of a tenure of another owner.
    pub(in crate::guard) fn stop_asking(&self) {
        let mut state = self.state.lock();
        match state.state {
            GuardState::Holding(_, owner, _) => {
                state.asked.drop_of(owner);
            }
            _ => state.asked.clear(),
        }
    }

    fn next_request_at(&self) -> Time {
        self.state.lock().ask_again
    }

    /// Returns when the guard has to do something about its request for the lock, unless a message
    /// comes before.
    pub(in crate::guard) fn next_request(&self, wishes: &VecDeque<Wish>) -> Time {
        let asks_until = self.asks_until();
        let is_wanted = !wishes.is_empty() || asks_until.is_some();
        let again = if is_wanted && self.state() == GuardState::Reading {
            self.next_request_at()
        } else {
            Time::NEVER
        };
        let refused = wishes.iter().map(|wish| wish.until).min().unwrap_or(Time::NEVER);
        let place = self.state.lock().asked.ends().map_or(Time::NEVER, |(first, _)| first);
        again.min(refused).min(place)
    }

    /// Leaves the queue if nobody asks for the lock any more, and asks again if it is time.
    pub(in crate::guard) fn check_request(&self, wishes: &mut VecDeque<Wish>, now: Time) {
        self.state.lock().asked.drop_old(now);
        let is_wanted = !wishes.is_empty() || self.asks_until().is_some();
        if !is_wanted && self.state() == GuardState::Asking && self.lock.token().is_none() {
            self.lock.leave();
            self.state.lock().state = GuardState::Reading;
        }
        if is_wanted && self.state() == GuardState::Reading && self.next_request_at() <= now {
            self.request_lock(wishes);
        }
    }

    pub(in crate::guard) fn why_not(&self) -> String {
        if let GuardState::Arriving(..) = self.state() {
            let not_ready = self.not_ready();
            let why =
                not_ready.as_ref().map_or("the folder is being compared", |it| it.text(false));
            return why.to_owned();
        }
        if let Some((owner, since)) = self.holding() {
            let holds = owner.holds(Some(since));
            let asked = self.state.lock().own_waiter.is_some();
            return if asked { format!("{holds} and was asked to hand it over") } else { holds };
        }
        match (self.other_holder(), self.asks_until()) {
            (Some(holder), _) if let Some(until) = self.other_away() => format!(
                "{holder} holds the lock of this folder, and is away until {}",
                until.to_minute()
            ),
            (Some(holder), None) => format!("{holder} holds the lock of this folder"),
            (Some(holder), Some(_)) => format!(
                "{holder} holds the lock of this folder and was asked to hand it over: try again"
            ),
            (None, _) => self.lock.connection_error().unwrap_or_else(|| {
                "the lock service has not granted the lock of this folder yet".to_owned()
            }),
        }
    }

    /// Refuses the programs that do not wait for a lock which this client holds, and requests it
    /// for the others.
    pub(in crate::guard) fn refused_by(&self, token: Token, wishes: &mut VecDeque<Wish>) {
        self.state.lock().state = GuardState::Reading;
        let holder = self.other_holder().unwrap_or_default();
        let away = self.other_away();
        let away = away.map(|until| format!(", and is away until {}", until.to_minute()));
        let away = away.unwrap_or_default();
        let token = token.as_u64();
        let sentence = format!("{holder} holds the lock of this folder (token {token}){away}");
        self.deny_impatient(wishes, &sentence);
        if !wishes.is_empty() {
            self.request_lock(wishes);
        }
    }

    fn answer(&self, wish: Wish, answer: Result<(), Denied>) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        (wish.then)(answer);
    }

    pub(in crate::guard) fn wish(&self, wish: Wish, wishes: &mut VecDeque<Wish>) {
        let state = self.state();
        if let GuardState::Holding(..) = state
            && matches!(wish.of, WishOf::PutBack { .. })
        {
            let sentence = "nothing is missing in the folder, so nothing is put back".to_owned();
            return self.answer(wish, Err(Denied { sentence }));
        }
        if let GuardState::Holding(_, owner, _) = state
            && owner.includes(wish.owner)
        {
            let answer = self.give_up_ignored(&wish.of);
            return self.answer(wish, answer);
        }
        let now = boot_now();
        if wish.of == (WishOf::Program { asks: true }) {
            self.state.lock().asked.keep(wish.owner, now, now + PLACE_KEPT);
        }
        if let GuardState::Holding(_, owner, _) = state
            && wish.waits_until <= now
        {
            self.look_for_own_waiter(owner, wishes, now);
            let sentence = self.why_not();
            return self.answer(wish, Err(Denied { sentence }));
        }
        wishes.push_back(wish);
        match state {
            GuardState::Asking if self.lock.is_in_line() => {
                self.deny_impatient(wishes, &self.why_not());
            }
            // Everything may have arrived since the folder was last compared.
            GuardState::Arriving(..) => self.compare_soon(),
            GuardState::Reading => self.request_lock(wishes),
            // The wish is granted or refused with those that wait already, or after the yield, or
            // after the end of a tenure that is held for another owner.
            _ => {}
        }
    }

    /// Gives up the paths of an acceptance that a rule ignores, although markers name them. The
    /// folder is ready.
    fn give_up_ignored(&self, of: &WishOf) -> Result<(), Denied> {
        let (WishOf::Acceptance { paths, reason }, Some(barrier)) = (of, self.guard.barrier())
        else {
            return Ok(());
        };
        if self.steps.lock().is_marking {
            let sentence = "a marker is being written; try again".to_owned();
            return Err(Denied { sentence });
        }
        match barrier.give_up(paths) {
            Ok(true) => {
                if let GuardState::Holding(tenure, ..) = self.state() {
                    self.audit(AuditedAct::Accept, tenure, reason);
                }
                self.announce();
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(sentence) => Err(Denied { sentence }),
        }
    }

    /// Requests the lock, and waits in its queue for as long as the most patient program does.
    fn request_lock(&self, wishes: &mut VecDeque<Wish>) {
        if self.is_ending.load(Ordering::Acquire) {
            self.state.lock().asked.clear();
            return self.deny_all(wishes, "the guard of this folder ends");
        }
        let asks_until = self.asks_until().unwrap_or(Time::ZERO);
        let last = wishes.iter().map(|wish| wish.waits_until).max().unwrap_or(Time::ZERO);
        let patience = last.max(asks_until).since(boot_now());
        self.state.lock().state = GuardState::Asking;
        let send = self.sender();
        let asked =
            self.lock.take(patience, move |message| drop(send.send(Message::Lock(message))));
        if let Err(why) = asked {
            self.answered(unanswered(&why), wishes);
        }
    }

    pub(in crate::guard) fn answered(&self, answer: TakeAnswer, wishes: &mut VecDeque<Wish>) {
        match answer {
            TakeAnswer::Granted(tenure, _) if self.lock.is_shared() => {
                let send = self.sender();
                let tell = move |answer| drop(send.send(Message::OthersLive(tenure, answer)));
                self.lock.ask_live(tenure, tell);
            }
            TakeAnswer::Granted(tenure, previous) => self.begin(tenure, previous, None, wishes),
            // The programs that do not wait are refused with the name of the holder.
            TakeAnswer::Waits => self.inspect_lock(),
            TakeAnswer::Held { holder, token } => {
                let mut state = self.state.lock();
                (state.other_holder, state.other_away) = (Some(holder), None);
                state.refused_by = Some(token);
                drop(state);
                // The programs that do not wait are refused with the answer, which says whether
                // the holder is away.
                self.inspect_lock();
            }
            TakeAnswer::Failed(sentence) => {
                let mut state = self.state.lock();
                state.state = GuardState::Reading;
                state.asked.clear();
                drop(state);
                self.deny_all(wishes, &sentence);
            }
            TakeAnswer::Unreachable(sentence) => {
                let mut state = self.state.lock();
                state.state = GuardState::Reading;
                state.asked.clear();
                state.ask_again = boot_now() + ASK_AGAIN;
                drop(state);
                self.deny_impatient(wishes, &sentence);
            }
        }
    }

    /// Begins a tenure beside those that live on.
    pub(in crate::guard) fn begin_beside(
        &self,
        tenure: TenureId,
        answer: Result<LiveTenures, String>,
        wishes: &mut VecDeque<Wish>,
    ) {
        if self.lock.token() != Some(tenure.token) {
            // The tenure has ended meanwhile, and another request may be under way.
            return;
        }
        let why = match answer {
            Ok(live) if live.tokens.contains(&tenure.token) => {
                return self.begin(tenure, None, Some(&live), wishes);
            }
            Ok(_) => TAKEN_AT_ONCE.to_owned(),
            Err(why) => why,
        };
        self.lock.release(|| {});
        self.answered(TakeAnswer::Unreachable(why), wishes);
    }

    /// Refuses the programs that have waited for as long as they want to, and forgets those that do
    /// not wait any more.
    pub(in crate::guard) fn deny_late(&self, wishes: &mut VecDeque<Wish>, now: Time) {
        let is_over = |wish: &Wish| wish.until <= now || !(wish.is_wanted)();
        let (mut over, waiting): (VecDeque<_>, _) = wishes.drain(..).partition(is_over);
        *wishes = waiting;
        if !over.is_empty() {
            self.deny_all(&mut over, &self.why_not());
        }
    }

    /// Refuses the wishes of programs that do not wait for a lock that is held.
    pub(in crate::guard) fn deny_impatient(&self, wishes: &mut VecDeque<Wish>, sentence: &str) {
        let now = boot_now();
        let all = wishes.drain(..);
        let (patient, mut others): (VecDeque<_>, _) = all.partition(|w| w.waits_until > now);
        self.deny_all(&mut others, sentence);
        *wishes = patient;
    }

    pub(in crate::guard) fn deny_all(&self, wishes: &mut VecDeque<Wish>, sentence: &str) {
        for wish in wishes.drain(..) {
            self.answer(wish, Err(Denied { sentence: sentence.to_owned() }));
        }
    }
}

/// How long a guard that must give the lock up waits for the end of the programs.
pub(crate) const USE_END_PATIENCE: Span = Span::from_secs(5);

/// The uses of the lock of one folder.
#[derive(Default)]
pub(crate) struct LockUses {
    state: Mutex<UsesState>,
    ended: Condvar,
    /// Called after the end of a use.
    pub(in crate::guard) on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct UsesState {
    /// The processes that watch over the programs.
    pids: Vec<u32>,
    /// Until when the guard waits for the end of the programs, once it must give the lock up.
    ends_at: Option<Time>,
    /// Whether the lock is given up after the last use: a program took it for its use.
    gives: bool,
}

/// One use of the lock, which ends when this value is dropped.
pub(crate) struct LockUse {
    uses: Arc<LockUses>,
    pid: u32,
}

impl LockUses {
    /// Begins a use for a process.
    pub(in crate::guard) fn begin(self: &Arc<Self>, pid: u32) -> LockUse {
        self.state.lock().pids.push(pid);
        LockUse { uses: Arc::clone(self), pid }
    }

    /// Returns the processes that use the lock.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.state.lock().pids.clone()
    }

    pub(in crate::guard) fn is_empty(&self) -> bool {
        self.state.lock().pids.is_empty()
    }

    /// Refuses to give the lock up while a program must end before.
    pub(crate) fn check_unused(&self) -> Result<(), String> {
        let pids = self.pids();
        let Some(pid) = pids.first() else { return Ok(()) };
        Err(format!(
            "a program that 'latchfs run --guard' has started uses the lock, and would have to \
             end; end it first (process {pid} watches over it)"
        ))
    }

    /// Whether the programs must end now.
    pub(crate) fn must_end(&self) -> bool {
        self.state.lock().ends_at.is_some()
    }

    /// Returns until when the guard waits for programs that must end; `Time::ZERO` if it waits for
    /// none.
    pub(in crate::guard) fn ends_at(&self) -> Time {
        let state = self.state.lock();
        state.ends_at.filter(|_| !state.pids.is_empty()).unwrap_or(Time::ZERO)
    }

    /// Asks the programs to end. Returns whether the guard waits no longer: they have ended, or had
    /// time enough.
    pub(in crate::guard) fn end(&self, now: Time) -> bool {
        let mut state = self.state.lock();
        let ends_at = *state.ends_at.get_or_insert(now + USE_END_PATIENCE);
        state.pids.is_empty() || ends_at <= now
    }

    /// Asks the programs to end, and waits until they have ended.
    pub(in crate::guard) fn end_and_wait(&self) {
        self.end(boot_now());
        let mut state = self.state.lock();
        let patience = USE_END_PATIENCE.as_duration();
        self.ended.wait_while_for(&mut state, |state| !state.pids.is_empty(), patience);
    }

    /// Takes note that a use has ended, and whether the program took the lock for it. Returns
    /// whether the lock is given up now.
    pub(in crate::guard) fn gives_after_last(&self, gives: bool) -> bool {
        let mut state = self.state.lock();
        state.gives |= gives;
        state.gives && state.pids.is_empty()
    }

    /// Takes note that the tenure is over.
    pub(in crate::guard) fn tenure_is_over(&self) {
        let mut state = self.state.lock();
        (state.ends_at, state.gives) = (None, false);
    }
}

impl Drop for LockUse {
    fn drop(&mut self) {
        let mut state = self.uses.state.lock();
        if let Some(at) = state.pids.iter().position(|pid| *pid == self.pid) {
            state.pids.swap_remove(at);
        }
        drop(state);
        self.uses.ended.notify_all();
        if let Some(on_end) = self.uses.on_end.get() {
            on_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_waits_for_programs_that_use_the_lock_but_not_for_ever() {
        let uses = Arc::new(LockUses::default());
        let now = boot_now();
        let (first, second) = (uses.begin(1), uses.begin(2));
        assert!(!uses.must_end() && uses.ends_at() == Time::ZERO);
        assert!(!uses.end(now));
        assert!(uses.must_end());
        assert_eq!(uses.ends_at(), now + USE_END_PATIENCE);
        drop(first);
        assert_eq!(uses.pids(), [2]);
        assert!(!uses.end(now + Span::from_secs(1)), "one is left");
        assert!(uses.end(now + USE_END_PATIENCE), "it had time enough");
        drop(second);
        assert!(uses.is_empty() && uses.end(now) && uses.ends_at() == Time::ZERO);
        uses.tenure_is_over();
        assert!(!uses.must_end());
    }

    #[test]
    fn the_last_use_gives_the_lock_up_that_one_of_them_took() {
        let uses = Arc::new(LockUses::default());
        let (first, second) = (uses.begin(1), uses.begin(2));
        drop(first);
        assert!(!uses.gives_after_last(true), "one is left");
        drop(second);
        assert!(uses.gives_after_last(false));
        uses.tenure_is_over();
        drop(uses.begin(3));
        assert!(!uses.gives_after_last(false), "a person took it");
    }
}
