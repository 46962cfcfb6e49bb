//! Estimates the server's time. The estimate is never behind the server's clock, so that a lease
//! expires on the client before it expires on the server.
//!
//! Probes a server, for `doctor`: how far a connection gets, and the time that the server reports.

use super::http_transport::{Http, HttpConnection, HttpTarget, runtime};
use crate::client::http_transport::{ServerConnection, TransportError};
use crate::net::connections::with_causes;
use crate::service::RttSample;
use crate::service::batch::batch_messages::{BatchItem, RequestBatch, Stamp};
use crate::time::{Span, Time, Wall, boot_now};
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// How far two clocks may drift apart, per mille of the time passed: 0.1 %, ten times the drift of
/// quartz crystals.
const DRIFT_PER_MILLE: u64 = 1;
/// The change of the offset of the server's wall clock, in nanoseconds, above which that clock
/// counts as set, and the client adopts the new offset.
const WALL_STEP_NANOS: i128 = 1_000_000_000;

/// The estimate of the server's clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    start: u64,
    /// The latest engine time that the server reported.
    latest: Time,
    bound: Option<ClockBound>,
    wall: Option<(Time, Wall)>,
}

/// An upper bound of the server's clock: when the local boot clock showed `boot`, the server's time
/// was at most `server`.
#[derive(Debug, Clone, Copy)]
struct ClockBound {
    boot: Time,
    server: Time,
}

impl ClockBound {
    fn at(self, boot: Time) -> Time {
        let passed = boot.since(self.boot);
        self.server + passed + Span::from_nanos(passed.as_nanos() / 1_000 * DRIFT_PER_MILLE)
    }
}

impl ServerClock {
    /// Records the server's time (`stamp`) in an answer to a request that was sent at `asked_at` or
    /// later. Returns whether the server has lost its state: the time of a server that keeps its
    /// state never goes back.
    pub(super) fn observe_stamp(&mut self, asked_at: Time, stamp: &Stamp) -> bool {
        let anew = stamp.start != self.start;
        let forgot = anew && stamp.now < self.latest;
        self.latest = if anew { stamp.now } else { self.latest.max(stamp.now) };
        if anew {
            (self.start, self.bound, self.wall) = (stamp.start, None, None);
        }
        let heard = ClockBound { boot: asked_at, server: stamp.now };
        if self.bound.is_none_or(|bound| heard.server < bound.at(asked_at)) {
            self.bound = Some(heard);
        }
        // The offset is kept until the server's clock is set: with an offset from each answer, the
        // times of a file would vary and look like changes.
        let moved = self.wall.map(|(at, wall)| {
            (nanos(stamp.wall) - nanos(wall))
                - (i128::from(stamp.now.as_nanos()) - i128::from(at.as_nanos()))
        });
        if moved.is_none_or(|moved| moved.abs() > WALL_STEP_NANOS) {
            self.wall = Some((stamp.now, stamp.wall));
        }
        forgot
    }

    /// Returns the server's time, or a later one.
    pub(super) fn now(&self) -> Time {
        self.bound.map_or(Time::ZERO, |bound| bound.at(boot_now()))
    }

    /// Returns the server's wall-clock time at its engine time `at`.
    pub(super) fn wall(&self, at: Time) -> Wall {
        let Some((then, wall)) = self.wall else { return Wall::now() };
        let ahead = i128::from(at.as_nanos()) - i128::from(then.as_nanos());
        let nanos = nanos(wall) + ahead;
        let secs = i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(i64::MAX);
        Wall { secs, nanos: nanos.rem_euclid(1_000_000_000) as u32 }
    }
}

fn nanos(wall: Wall) -> i128 {
    i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos)
}

/// How long each step may take: after a longer time a user thinks that the program hangs.
const PATIENCE: Span = Span::from_secs(2);

/// The number of requests that measure the round trip, of which the fastest counts. The first ones
/// warm the connection.
const SAMPLES: usize = 5;

/// The step at which a probe failed, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stuck {
    /// The TCP connection fails.
    Unreachable(String),
    /// The TLS handshake failed: one side does not trust the other's certificate.
    Untrusted(String),
    /// The server refuses the credentials.
    Denied(String),
    /// The peer is not a latchfs server of this version.
    Foreign(String),
    /// The server accepts connections, and does not answer.
    Silent(String),
}

/// Probes a server with requests for its time only.
pub fn probe(server: &Http) -> Result<RttSample, Stuck> {
    let runtime = runtime().map_err(|error| Stuck::Unreachable(error.to_string()))?;
    let mut connection = connect(runtime, &server.0)?;
    let ask = RequestBatch::new(0, vec![BatchItem::Now]);
    let mut heard: Option<RttSample> = None;
    for _ in 0..SAMPLES {
        let asked_at = boot_now();
        let response = connection.send_batch(&ask, PATIENCE).map_err(|error| match error {
            TransportError::Denied(why) => Stuck::Denied(why),
            TransportError::Foreign(why) | TransportError::Elsewhere(why) => Stuck::Foreign(why),
            TransportError::Silent(why) => Stuck::Silent(why),
        })?;
        let (round_trip, here) = (boot_now().since(asked_at), Wall::now());
        if heard.is_none_or(|best| round_trip < best.round_trip) {
            heard = Some(RttSample::new(round_trip, response.stamp.wall, here));
        }
    }
    heard.ok_or_else(|| Stuck::Silent("it was not asked".to_owned()))
}

fn connect(runtime: Runtime, target: &Arc<HttpTarget>) -> Result<HttpConnection, Stuck> {
    let patience = PATIENCE.as_duration();
    let in_time = |why: &str| format!("{why} within {PATIENCE}");
    let sender = runtime.block_on(async {
        let stream = match timeout(patience, target.reach()).await {
            Ok(reached) => reached.map_err(|error| Stuck::Unreachable(with_causes(&error)))?,
            Err(_) => return Err(Stuck::Unreachable(in_time("no connection"))),
        };
        match timeout(patience, target.speak(stream)).await {
            Ok(spoken) => spoken.map_err(|error| Stuck::Untrusted(error.to_string())),
            Err(_) => Err(Stuck::Untrusted(in_time("no TLS"))),
        }
    })?;
    let (target, runtime, sender) = (Arc::clone(target), Some(runtime), Some(sender));
    Ok(HttpConnection { target, runtime, sender })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(start: u64, secs: u64) -> Stamp {
        let wall = Wall { secs: 1_000 + secs as i64, nanos: 5 };
        Stamp { engine: 0, start, now: Time::from_secs(secs), wall, next_event: 0 }
    }

    fn at(clock: &ServerClock, boot: u64) -> Time {
        clock.bound.expect("heard").at(Time::from_secs(boot))
    }

    #[test]
    fn the_estimate_is_never_behind_the_server() {
        let mut clock = ServerClock::default();
        // A request is sent at local time 10, and its answer carries the server's time 105: the
        // server's clock is at most 95 ahead of the local one.
        clock.observe_stamp(Time::from_secs(10), &stamp(1, 105));
        assert_eq!(at(&clock, 10), Time::from_secs(105));
        // A request is sent at local time 20, and its answer carries 114: the server's clock is at
        // most 94 ahead, which is a tighter bound.
        clock.observe_stamp(Time::from_secs(20), &stamp(1, 114));
        assert_eq!(at(&clock, 20), Time::from_secs(114));
        // A slow answer yields a looser bound on the server's clock, which is ignored.
        clock.observe_stamp(Time::from_secs(30), &stamp(1, 129));
        assert!(at(&clock, 30) < Time::from_secs(125));
    }

    #[test]
    fn an_old_bound_is_replaced_by_a_looser_new_one() {
        let mut clock = ServerClock::default();
        clock.observe_stamp(Time::ZERO, &stamp(1, 0));
        assert_eq!(at(&clock, 1_000), Time::from_secs(1_001));
        // After 1,000 s the allowed drift has loosened the old bound, so an answer that took half a
        // second improves it.
        let late = Stamp { now: Time::from_secs(1_000) + Span::from_millis(500), ..stamp(1, 0) };
        clock.observe_stamp(Time::from_secs(1_000), &late);
        assert_eq!(at(&clock, 1_000), late.now);
    }

    #[test]
    fn a_restarted_server_has_a_new_clock() {
        let mut clock = ServerClock::default();
        clock.observe_stamp(Time::from_secs(10), &stamp(1, 10));
        assert!(!clock.observe_stamp(Time::from_secs(11), &stamp(2, 500)), "it goes on");
        assert_eq!(at(&clock, 11), Time::from_secs(500));
        assert!(clock.observe_stamp(Time::from_secs(12), &stamp(3, 1)), "it begins anew");
        assert_eq!(at(&clock, 12), Time::from_secs(1));
    }

    #[test]
    fn wall_times_are_stable() {
        let mut clock = ServerClock::default();
        clock.observe_stamp(Time::ZERO, &stamp(1, 10));
        let before = clock.wall(Time::from_secs(3));
        assert_eq!(before, Wall { secs: 1_003, nanos: 5 });
        let a_little_off = Wall { secs: 1_020, nanos: 900 };
        clock.observe_stamp(Time::ZERO, &Stamp { wall: a_little_off, ..stamp(1, 20) });
        assert_eq!(clock.wall(Time::from_secs(3)), before);
        let set = Wall { secs: 5_030, nanos: 0 };
        clock.observe_stamp(Time::ZERO, &Stamp { wall: set, ..stamp(1, 30) });
        assert_eq!(clock.wall(Time::from_secs(30)), set);
    }
}
