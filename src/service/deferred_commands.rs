//! Commands that must take effect although the journal cannot record them now: even while the disk
//! is full, a process may close its files or die.

use super::callback::Then;
use super::counters::ServiceCounters;
use super::event_log::Wakers;
use super::failure::Unavailable;
use crate::engine::{Answer, Command};

/// A command that is decided as soon as the journal can record it.
pub(super) struct DeferredCommand {
    pub(super) command: Command,
    pub(super) then: Then<Result<Answer, Unavailable>>,
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
            (owed.then)(Ok(answer));
        }
    }
}
