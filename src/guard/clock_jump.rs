//! What a guard does after this machine has slept, or after its clocks were moved: before the next
//! change it asks the lock service whether the lock is still its own. The deadline of the tenure
//! counts the time of a sleep as well; this question finds what no clock tells, for example that
//! the machine was restored from an image. It asks also if events of the lock service were lost,
//! of which the end of the tenure may have been one.

use super::disk::Disk;
use super::tenure_news::TenureEnd;
use super::tenure_steps::WaitingChange;
use super::tenures::{GuardState, Message, Tenures};
use super::wish::Denied;
use crate::time::{Span, Time, boot_now};

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

    /// Takes note of the answer; `None` if there was none.
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
