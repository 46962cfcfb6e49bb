//! The environment of a simulated node: the clocks of its virtual machine, random numbers from the
//! seed, and timeouts that fit the pace of the simulated elections.

use super::planted_bugs::{PlantedBug, planted};
use super::recorder::Record;
use super::seeded_random::SeededRandom;
use super::sim_types::{Leader, now};
use super::virtual_clock::VirtualClock;
use crate::raft::engine_clock::EngineClock;
use crate::raft::node_environment::{NodeEnvironment, RequestTimeouts};
use crate::time::{Span, Time};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// The clocks, random numbers and timeouts of a simulated node, from its start to its next crash.
pub(super) struct VirtualEnvironment {
    pub(super) clock: VirtualClock,
    pub(super) wall_ahead_ms: Arc<AtomicI64>,
    pub(super) dice: SeededRandom,
    pub(super) record: Arc<Record>,
    /// The engine clock of the first leadership in this run of the node. The planted bug
    /// `StaleCarry` reuses it for later leaderships.
    pub(super) first: Mutex<Option<EngineClock>>,
}

impl VirtualEnvironment {
    /// Reads the wall clock, which fault injection sets to other times.
    fn wall_now(&self) -> Time {
        let ahead_ms = self.wall_ahead_ms.load(Ordering::Relaxed);
        let ahead = Span::from_millis(ahead_ms.unsigned_abs());
        let right = Time::from_secs(10_000_000) + Span::from_nanos(now().as_nanos());
        if ahead_ms < 0 { right - ahead } else { right + ahead }
    }
}

impl NodeEnvironment for VirtualEnvironment {
    fn steady_now(&self) -> Time {
        self.clock.read()
    }

    /// Returns the steady time: a virtual machine is never suspended.
    fn boot_now(&self) -> Time {
        self.clock.read()
    }

    fn jittered(&self, span: Span) -> Span {
        let half = span.as_nanos() / 2;
        Span::from_nanos(half + self.dice.below(half.max(1)))
    }

    fn stamp(&self, leader: Leader, clock: EngineClock) -> Time {
        let steady = self.steady_now();
        let first = *self.first.lock().get_or_insert(clock);
        let stamp = if planted(PlantedBug::WallStamps) {
            self.wall_now()
        } else if planted(PlantedBug::ClockNotCarried) {
            steady
        } else if planted(PlantedBug::StaleCarry) {
            first.at(steady)
        } else {
            clock.at(steady)
        };
        self.record.stamped(leader, stamp);
        stamp
    }

    /// Returns timeouts of a fifth to a half of the real ones: elections take less than half as
    /// long as on a real network, and faults come and go within a second or two.
    fn timeouts(&self) -> RequestTimeouts {
        RequestTimeouts {
            answer: Span::from_millis(500),
            leader_call: Span::from_millis(300),
            quorum_lost: Span::from_millis(700),
            without_quorum: Span::from_millis(150),
            barrier: Span::from_millis(150),
        }
    }
}
