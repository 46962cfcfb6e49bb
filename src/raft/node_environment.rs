//! The environment of a node: the clocks and the random numbers of its machine, and how long its
//! requests may take. A simulation replaces all of it.

use super::engine_clock::EngineClock;
use super::types::Leader;
use crate::base;
use crate::time::{self, Span, Time};

/// The clocks and the random numbers of a machine.
pub(crate) trait NodeEnvironment: Send + Sync + 'static {
    /// Reads the steady clock, which never jumps, and which stands still while the machine sleeps.
    fn steady_now(&self) -> Time;

    /// Reads the boot clock, which continues while the machine sleeps.
    fn boot_now(&self) -> Time;

    /// Returns a random duration between half of `span` and `span`.
    fn jittered(&self, span: Span) -> Span;

    /// Returns the engine time with which a leader, whose engine clock is `clock`, stamps an entry
    /// now.
    fn stamp(&self, _: Leader, clock: EngineClock) -> Time {
        clock.at(self.steady_now())
    }

    /// Returns how long requests may take.
    fn timeouts(&self) -> RequestTimeouts {
        RequestTimeouts::default()
    }
}

/// The timeouts of a client's request, and of the calls to other nodes that the request causes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimeouts {
    /// How long a client's request may take until it is answered: a user who waits longer assumes
    /// that the program hangs.
    pub(crate) answer: Span,
    /// Timeout of one call to the leader: shorter than the deadline of an answer, so that there is
    /// time to call the next leader.
    pub(crate) leader_call: Span,
    /// A node without contact to a leader or a quorum for longer than this has lost its quorum: an
    /// election takes less time.
    pub(crate) quorum_lost: Span,
    /// Deadline of an answer on a node that has lost its quorum: enough for three heartbeats on a
    /// local network, in case contact is just coming back.
    pub(crate) without_quorum: Span,
    /// How long a new leader waits for a quorum to confirm that it leads, before it retries.
    pub(crate) barrier: Span,
}

impl Default for RequestTimeouts {
    fn default() -> Self {
        Self {
            answer: Span::from_secs(2),
            leader_call: Span::from_millis(1_500),
            quorum_lost: Span::from_secs(2),
            without_quorum: Span::from_millis(300),
            barrier: Span::from_millis(500),
        }
    }
}

/// The environment of a real machine.
pub(super) struct SystemEnvironment;

impl NodeEnvironment for SystemEnvironment {
    fn steady_now(&self) -> Time {
        time::steady_now()
    }

    fn boot_now(&self) -> Time {
        time::boot_now()
    }

    fn jittered(&self, span: Span) -> Span {
        base::jittered(span)
    }
}
