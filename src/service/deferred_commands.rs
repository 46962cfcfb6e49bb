//! Commands that have to be decided although the journal cannot take them now: on a disk that is
//! full a process may still close its files and die.

use super::callback::Then;
use super::counters::ServiceCounters;
use super::event_log::Wakers;
use super::failure::Unavailable;
use crate::engine::{Answer, Command};

/// A command that is decided as soon as the journal takes it.
pub(super) struct DeferredCommand {
    pub(super) command: Command,
    pub(super) then: Then<Result<Answer, Unavailable>>,
}

/// Owed commands that were decided, to be answered when no mutex is held.
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
