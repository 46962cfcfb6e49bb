//! Carries out a reset of many locks in parts, each in a log entry of its own, so that the requests
//! of other clients are carried out between them.
//!
//! The last part resets all locks once more, and answers the request. If a node or the leader fails
//! before it, the request has no answer, and a repeat of it ends what is left.

use super::cluster_types::ClusterTypes;
use super::node_pipeline::RequestPipeline;
use super::proposal_queue::ProposalQueue;
use crate::engine::{Answer, Command, Op, Outcome, Reset, ResetPart};
use crate::service::{Then, Unavailable};
use std::sync::Arc;

/// How many leases and queue places one part of a reset ends, unless one lock has more: few enough
/// that a node applies the part within milliseconds.
pub(super) const RESET_PART_MAX: usize = 1_000;

/// A reset that is carried out in parts.
struct ResetInParts {
    queue: Arc<ProposalQueue>,
    /// The request, with its idempotency key and order.
    command: Command,
    reset: Reset,
    parts: std::vec::IntoIter<ResetPart>,
    /// The numbers of leases and queue places that the parts have ended.
    ended: (usize, usize),
    then: Then<Result<Answer, Unavailable>>,
}

impl<C: ClusterTypes> RequestPipeline<C> {
    /// Adds a command to the queue; a reset in parts of `reset_part_max` leases and queue places.
    pub(crate) fn submit(
        &self,
        command: Command,
        reset_part_max: usize,
        then: Then<Result<Answer, Unavailable>>,
    ) {
        let reset = match &command.op {
            Op::Reset(reset) if reset.part == ResetPart::ALL => reset,
            _ => return self.queue.ask(command, then),
        };
        let (reset, queue) = (reset.clone(), Arc::clone(&self.queue));
        let parts = self.replica.look().engine.reset_parts(&reset.whose, reset_part_max);
        let parts = parts.into_iter();
        ResetInParts { queue, command, reset, parts, ended: (0, 0), then }.submit_next();
    }
}

impl ResetInParts {
    /// Submits the next part. Its answer submits the part after it.
    fn submit_next(mut self) {
        let (holds, waits) = self.ended;
        let Some(part) = self.parts.next() else {
            let rest = Op::Reset(Reset { part: ResetPart::Rest { holds, waits }, ..self.reset });
            return self.queue.ask(Command { op: rest, ..self.command }, self.then);
        };
        // A part has the key and the order of the request, so that no part of a late copy of the
        // request is carried out.
        let op = Op::Reset(Reset { part, ..self.reset.clone() });
        let part = Command { op, acknowledged: None, ..self.command.clone() };
        let queue = Arc::clone(&self.queue);
        let next = move |answer| match answer {
            Ok(Ok(Outcome::ResetPart { holds: more, waits: left })) => {
                self.ended = (holds + more, waits + left);
                self.submit_next();
            }
            Err(Unavailable::Closing) if self.ended != (0, 0) => {
                let why = "the daemon is being stopped, and a part of the reset is done".into();
                (self.then)(Err(Unavailable::NoQuorum { why }));
            }
            // The request was refused or carried out before.
            answer => (self.then)(answer),
        };
        queue.ask(part, Box::new(next));
    }
}
