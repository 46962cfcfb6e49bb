//! The guard's action before this machine sleeps: it gives an idle lock up, so that other machines
//! need not wait until the lease ends and then be unsure what it has changed. A lock that it keeps
//! gets a marker.
//!
//! The guard's action after this machine has slept, or after its clocks were moved: before the next
//! change it asks the lock service whether the lock is still its own. The deadline of the tenure
//! counts the time of a sleep as well; this question finds what no clock tells, for example that
//! the machine was restored from an image. It asks also if events of the lock service were lost, of
//! which the end of the tenure may have been one.

use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_barrier::Job;
use crate::guard::tenures::sequence::{GuardState, Message, Tenures};
use crate::guard::tenures::tenure_arrival::{SleepUnderWay, Then, WaitingChange};
use crate::guard::tenures::wishes::{Denied, TenureEnd};
use crate::guard::write_policy::WhenAsked;
use crate::time::{Span, Time, boot_now};
use barrier::tenure_id::TenureId;

/// How long a sleep is delayed until the folder was left alone for as long as `--yield` says.
const IDLE_PATIENCE: Span = Span::from_millis(2_500);
/// How long a sleep is delayed at most: logind waits for 5 s.
const SLEEP_PATIENCE: Span = Span::from_millis(4_400);
/// The delay before the guard asks for the lock again for programs that wait. The machine sleeps
/// before, or not at all.
const ASK_AFTER: Span = Span::from_secs(10);

impl<D: Disk> Tenures<D> {
    /// Gives the lock up if it is idle, since this machine is about to sleep. Calls `then` when the
    /// machine may sleep.
    pub(crate) fn before_sleep(&self, then: impl FnOnce() + Send + 'static) {
        self.send(Message::Sleep(Box::new(then)));
    }

    pub(super) fn sleep_comes(&self, then: Then) {
        let now = boot_now();
        let (gives_until, until) = (now + IDLE_PATIENCE, now + SLEEP_PATIENCE);
        let before = {
            let sleep = SleepUnderWay { gives_until, until, marks: false, then };
            self.steps.lock().sleep.replace(sleep)
        };
        if let Some(before) = before {
            (before.then)();
        }
    }

    /// Returns when the next step before a sleep is due, unless a message comes before.
    pub(super) fn next_before_sleep(&self) -> Time {
        let steps = self.steps.lock();
        let Some(sleep) = &steps.sleep else { return Time::NEVER };
        let idle_at = self.guard.gate().last_change() + self.idle_before_sleep();
        let idle_at = idle_at.max(self.hidden_use.next_check());
        let gives_until = if sleep.marks { sleep.until } else { sleep.gives_until };
        idle_at.max(boot_now() + Span::from_millis(10)).min(gives_until).min(sleep.until)
    }

    fn idle_before_sleep(&self) -> Span {
        match self.policy.when_asked {
            WhenAsked::Keep => Span::ZERO,
            WhenAsked::Yield { idle, .. } => idle,
        }
    }

    /// Returns the call to make once the lock is released: after [`TenureEnd::Slept`] it lets the
    /// machine sleep.
    pub(super) fn after_end(&self, end: TenureEnd) -> Then {
        let sleep = match end {
            TenureEnd::Slept => self.steps.lock().sleep.take(),
            _ => None,
        };
        sleep.map_or_else(|| Box::new(|| {}) as Then, |sleep| sleep.then)
    }

    /// Whether the lock is kept through a sleep, whatever programs do.
    fn is_kept_asleep(&self) -> bool {
        self.policy.when_asked == WhenAsked::Keep || self.is_away()
    }

    /// Makes the next step before a sleep, if one comes.
    pub(super) fn step_before_sleep(&self, now: Time) {
        let Some(sleep) = self.steps.lock().sleep.take() else { return };
        match self.state() {
            GuardState::Asking => {
                // Nobody could use a lock that is granted to a machine that sleeps.
                self.lock.leave();
                let mut state = self.state.lock();
                (state.state, state.ask_again) = (GuardState::Reading, now + ASK_AFTER);
                drop(state);
                (sleep.then)();
            }
            GuardState::Reading => (sleep.then)(),
            GuardState::Yielding(_) => self.wait_for_yield(sleep.then),
            GuardState::Arriving(..) => {
                self.state.lock().ask_again = now + ASK_AFTER;
                self.give_now(TenureEnd::Slept, sleep.then);
            }
            GuardState::Holding(tenure, ..) => {
                let is_kept = self.is_kept_asleep();
                let waits = !is_kept && now < sleep.gives_until && !sleep.marks;
                if waits && self.is_idle_for(self.idle_before_sleep()) {
                    self.steps.lock().sleep = Some(sleep);
                    return self.give_if_unused(tenure, TenureEnd::Slept);
                }
                if waits || self.marks_before_sleep(tenure, &sleep) && now < sleep.until {
                    let marks = sleep.marks || !waits;
                    self.steps.lock().sleep = Some(SleepUnderWay { marks, ..sleep });
                } else {
                    (sleep.then)();
                }
            }
        }
    }

    /// Begins the marker of a lock that is kept, if there is anything to name. Returns whether it,
    /// or the handover that names it, is under way.
    fn marks_before_sleep(&self, tenure: TenureId, sleep: &SleepUnderWay) -> bool {
        let Some(barrier) = self.guard.barrier() else { return false };
        let mut steps = self.steps.lock();
        if steps.is_marking || steps.sent.is_some() {
            return true;
        }
        if sleep.marks || !barrier.needs_marker() {
            return false;
        }
        steps.is_marking = true;
        self.work(Job::Mark(tenure, false));
        true
    }
}

/// The delay before a lock service that did not answer is asked again.
const ASK_AGAIN: Span = Span::from_secs(1);

impl<D: Disk> Tenures<D> {
    /// Waits until the lock service has said that the lock is still this guard's, and calls `then`.
    pub(crate) fn after_jump(
        &self,
        patience: Span,
        then: impl FnOnce(Result<(), Denied>) + Send + 'static,
    ) {
        let until = boot_now() + patience;
        self.send(Message::Jumped(WaitingChange { until, then: Box::new(then) }));
    }

    pub(super) fn jumped(&self, change: WaitingChange) {
        if !self.guard.gate().has_jumped() {
            return (change.then)(Ok(()));
        }
        self.steps.lock().jump.changes.push(change);
    }

    /// Asks the lock service whether the lock is still this guard's, since events were lost.
    pub(super) fn ask_after_lost_events(&self) {
        self.steps.lock().jump.must_ask = true;
    }

    /// Returns when the next step after a jump is due, unless a message comes before.
    pub(super) fn next_after_jump(&self) -> Time {
        let steps = self.steps.lock();
        let until = steps.jump.changes.iter().map(|change| change.until).min();
        let asks = if steps.jump.is_asked { Time::NEVER } else { steps.jump.ask_after };
        let must_ask = steps.jump.must_ask && matches!(self.state(), GuardState::Holding(..));
        let asks = if until.is_some() || must_ask { asks } else { Time::NEVER };
        until.unwrap_or(Time::NEVER).min(asks)
    }

    /// Asks the lock service about the lock, if changes wait for the answer.
    pub(super) fn step_after_jump(&self, now: Time) {
        if !matches!(self.state(), GuardState::Holding(..)) {
            return self.answer_jump(Time::NEVER, "the lock was lost or given up meanwhile");
        }
        self.answer_jump(
            now,
            "this machine has slept, and the lock service has not said since that the lock is \
             still its own",
        );
        let mut steps = self.steps.lock();
        let jump = &mut steps.jump;
        let must_ask = jump.must_ask || !jump.changes.is_empty();
        if !must_ask || jump.is_asked || jump.ask_after > now {
            return;
        }
        (jump.is_asked, jump.ask_after) = (true, now + ASK_AGAIN);
        drop(steps);
        // A jump that comes after this reading is one more.
        let slept = self.guard.gate().slept();
        let send = self.sender();
        self.lock.ask_whether_held(move |answer| {
            // The send fails only after the thread has ended.
            let _ = send.send(Message::StillHeld(slept, answer));
        });
    }

    /// Takes note of the lock service's answer whether the lock is still held; `None` if there was
    /// none.
    pub(super) fn still_held(&self, slept: Span, answer: Option<bool>) {
        self.steps.lock().jump.is_asked = false;
        let GuardState::Holding(tenure, ..) = self.state() else { return };
        match answer {
            Some(true) => {
                self.steps.lock().jump.must_ask = false;
                self.guard.gate().set_slept(slept);
                for change in std::mem::take(&mut self.steps.lock().jump.changes) {
                    (change.then)(Ok(()));
                }
            }
            Some(false) => {
                self.steps.lock().jump.must_ask = false;
                self.lose(tenure, TenureEnd::Taken);
            }
            None => {}
        }
    }

    /// Refuses the changes that have waited until `now`.
    fn answer_jump(&self, now: Time, sentence: &str) {
        let late: Vec<_> =
            self.steps.lock().jump.changes.extract_if(.., |change| change.until <= now).collect();
        for change in late {
            (change.then)(Err(Denied { sentence: sentence.to_owned() }));
        }
    }
}
