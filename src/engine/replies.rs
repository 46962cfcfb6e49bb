//! Rule 10: a repeated request has one effect, and gets the first answer.
//!
//! Only what was done is remembered. A refusal had no effect, so repeating the request can do no
//! harm, and remembering it would let a client that is refused fill the memory.

use super::Books;
use super::agenda::Due;
use super::command::{Outcome, RequestId};
use super::planted::{Bug, planted};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The first answers to requests that carried an id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Replies(BTreeMap<Arc<RequestId>, (Time, Outcome)>);

impl Replies {
    /// The answer that this request has had.
    pub(super) fn first(&self, request: &RequestId) -> Option<Outcome> {
        if planted(Bug::RepeatsAreApplied) {
            return None;
        }
        self.0.get(request).map(|(_, outcome)| outcome.clone())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn forget(&mut self, request: &RequestId) {
        self.0.remove(request);
    }

    /// Each answer, with the time until which it is kept.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RequestId, Time, &Outcome)> {
        self.0.iter().map(|(request, (until, outcome))| (&**request, *until, outcome))
    }
}

impl Books {
    /// Keeps the answer to a request for repeats of it.
    pub(super) fn remember(&mut self, request: &RequestId, outcome: &Outcome) {
        let until = self.clock + self.rules.requests_kept;
        self.restore_reply(request.clone(), until, outcome.clone());
    }

    /// The same, with a time given: what a snapshot brings back.
    pub(super) fn restore_reply(&mut self, request: RequestId, until: Time, outcome: Outcome) {
        let request = Arc::new(request);
        let before = self.replies.0.insert(Arc::clone(&request), (until, outcome));
        if let Some((until, _)) = before {
            self.agenda.remove(until, Due::Reply(Arc::clone(&request)));
        }
        self.agenda.add(until, Due::Reply(request));
    }
}
