//! The environment of a simulated node: the clocks of its virtual machine, random numbers from the
//! seed, and timeouts that fit the pace of the simulated elections.
//!
//! The random numbers of a simulation: all its parts draw from one stream, which the seed
//! determines.
//!
//! openraft's type configuration for the simulation: the log entries of a real cluster, on a
//! runtime with virtual time.
//!
//! The clocks of simulated machines. Each has its own rate and its own starting value.

use crate::checks::recorder::Record;
use crate::planted_bugs::{PlantedBug, planted};
use latchfs::raft::node_environment::{NodeEnvironment, RequestTimeouts};
use latchfs::raft::store::snapshot::{Answers, Proposal};
use latchfs::raft::write::engine_clock::EngineClock;
use latchfs::time::{Span, Time};
use openraft::type_config::TypeConfigExt;
use openraft::vote::leader_id_adv::LeaderId;
use openraft_rt_sim::SimRuntime;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A stream of random numbers. Cheap to clone: all clones draw from the same stream.
#[derive(Debug, Clone)]
pub struct SeededRandom(Arc<Mutex<u64>>);

impl SeededRandom {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// Returns the next number (Steele's `SplitMix64`).
    fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        assert!(end > 0, "there is a number to draw");
        self.next() % end
    }

    /// Returns an index into a list of this length.
    pub fn index(&self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true with a probability of `chance` percent.
    pub fn percent(&self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a duration between `from` and `to` milliseconds, with microsecond resolution.
    pub fn millis(&self, from: u64, to: u64) -> Span {
        Span::from_nanos((from * 1_000 + self.below((to - from) * 1_000 + 1)) * 1_000)
    }

    /// Returns a random element of `from`.
    pub fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}

openraft::declare_raft_types!(
    /// openraft's type configuration: the log entries and answers of a real cluster, on a simulated
    /// async runtime.
    pub SimTypeConfig:
        D = Proposal,
        R = Answers,
        AsyncRuntime = SimRuntime,
);

/// One leadership: a term, and the node that leads in it.
pub type Leader = LeaderId<u64, u64>;

/// Returns the virtual time since the simulation began: the time that a perfect clock would show.
pub fn now() -> Time {
    let since = SimTypeConfig::now().elapsed_since_start();
    Time::from_nanos(
        u64::try_from(since.as_nanos()).expect("a simulation lasts less than 500 years"),
    )
}

/// Sleeps for a span of virtual time.
pub async fn sleep(span: Span) {
    SimTypeConfig::sleep(span.as_duration()).await;
}

/// Maximum error of a clock's rate, in millionths. Two clocks then differ by less than the 0.1 %
/// that a client allows for.
const RATE_OFF_MAX: u64 = 400;
const MILLION: u64 = 1_000_000;

/// A monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct VirtualClock {
    /// The reading of the clock at the start of the simulation.
    began: Span,
    /// Microseconds that pass on this clock per second of virtual time.
    rate: u64,
}

impl VirtualClock {
    pub fn new(dice: &SeededRandom) -> Self {
        let rate = MILLION - RATE_OFF_MAX + dice.below(2 * RATE_OFF_MAX + 1);
        Self { began: dice.millis(1_000, 100_000_000), rate }
    }

    /// Returns the current reading of the clock.
    pub fn read(self) -> Time {
        let passed = u128::from(now().as_nanos()) * u128::from(self.rate) / u128::from(MILLION);
        Time::ZERO + self.began + Span::from_nanos(passed as u64)
    }

    /// Returns the virtual time at which the clock shows `time`, in the past or the future.
    pub fn virtual_at(self, time: Time) -> Time {
        let passed = time.since(Time::ZERO + self.began).as_nanos();
        let passed = u128::from(passed) * u128::from(MILLION) / u128::from(self.rate);
        Time::from_nanos(passed as u64)
    }
}

/// The clocks, random numbers and timeouts of a simulated node, from its start to its next crash.
pub struct VirtualEnvironment {
    pub clock: VirtualClock,
    pub wall_ahead_ms: Arc<AtomicI64>,
    pub dice: SeededRandom,
    pub record: Arc<Record>,
    /// The engine clock of the first leadership in this run of the node. The planted bug
    /// `StaleCarry` reuses it for later leaderships.
    pub first: Mutex<Option<EngineClock>>,
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
