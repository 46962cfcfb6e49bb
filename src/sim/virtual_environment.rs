//! The environment of a simulated node: the clocks of its virtual machine, and random numbers from
//! the seed.

use super::seeded_random::SeededRandom;
use super::virtual_clock::VirtualClock;
use crate::raft::environment::Environment;
use crate::time::{Span, Time};

/// The environment of one run of a node.
pub(super) struct VirtualEnvironment {
    pub(super) clock: VirtualClock,
    pub(super) dice: SeededRandom,
}

impl Environment for VirtualEnvironment {
    fn steady_now(&self) -> Time {
        self.clock.read()
    }

    /// A virtual machine never sleeps.
    fn boot_now(&self) -> Time {
        self.clock.read()
    }

    fn jittered(&self, span: Span) -> Span {
        let half = span.as_nanos() / 2;
        Span::from_nanos(half + self.dice.below(half.max(1)))
    }
}
