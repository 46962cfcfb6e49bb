//! Simulates one hour of 100,000 sessions with five changes of the leader: no session expires while
//! its client sends keep-alives, and a session without keep-alives expires on time.

use latchfs::engine::{
    ClientId, Command, Engine, Event, EventKind, Grace, Op, OpenSession, Outcome, SessionId, Ttl,
};
use latchfs::raft::write::engine_clock::EngineClock;
use latchfs::time::{Span, Time};
use sim::machines::virtual_environment::SeededRandom;

const SESSIONS: u64 = 100_000;
const TTL: Span = Span::from_secs(180);
const HOUR: u64 = 3_600;
/// When the cluster loses its leader, and for how long it has none, in seconds of real time.
const CHANGES: [(u64, u64); 5] = [(301, 2), (907, 11), (1_499, 1), (1_500, 30), (2_800, 7)];

/// The node that leads the cluster at the moment. Its clock has a rate and a starting value of its
/// own.
struct Leader {
    began: Time,
    /// How many microseconds pass on the leader's clock per second of real time.
    rate: u64,
    carried: EngineClock,
}

impl Leader {
    fn new(dice: &SeededRandom, engine: Time, truth: Time) -> Self {
        let began = Time::ZERO + dice.millis(0, 1_000_000_000);
        let rate = 999_600 + dice.below(801);
        let mut leader = Self { began, rate, carried: EngineClock::on(engine, Time::ZERO) };
        leader.carried = EngineClock::on(engine, leader.steady(truth));
        leader
    }

    fn steady(&self, truth: Time) -> Time {
        let passed = u128::from(truth.as_nanos()) * u128::from(self.rate) / 1_000_000;
        self.began + Span::from_nanos(passed as u64)
    }

    fn now(&self, truth: Time) -> Time {
        self.carried.at(self.steady(truth))
    }
}

/// The engine, the current leader, and the sessions that have expired.
struct SessionHour {
    dice: SeededRandom,
    engine: Engine,
    leader: Leader,
    changes: Vec<(Time, Time)>,
    over: Vec<(SessionId, Time)>,
    events: Vec<Event>,
}

impl SessionHour {
    fn new() -> Self {
        let dice = SeededRandom::new(1);
        let leader = Leader::new(&dice, Time::ZERO, Time::ZERO);
        let change = |(at, gap)| (Time::from_secs(at), Time::from_secs(at + gap));
        let changes = CHANGES.iter().copied().map(change).rev().collect();
        let (engine, over, events) = (Engine::default(), vec![], vec![]);
        Self { dice, engine, leader, changes, over, events }
    }

    /// Applies an operation that a client requests at the real time `truth`. If the cluster has no
    /// leader at that time, the next leader applies it.
    fn apply(&mut self, truth: Time, op: Op) -> Outcome {
        let mut truth = truth;
        while let Some((_, regained)) = self.changes.last().filter(|(lost, _)| *lost <= truth) {
            truth = truth.max(*regained);
            self.leader = Leader::new(&self.dice, self.engine.clock(), *regained);
            self.changes.pop();
        }
        let now = self.leader.now(truth);
        let answer = self.engine.apply(now, &Command::from(op), &mut self.events);
        for event in self.events.drain(..) {
            if let EventKind::SessionOver { session, .. } = event.what {
                self.over.push((session, truth));
            }
        }
        answer.expect("a session that is kept alive is alive")
    }
}

#[test]
fn an_hour_with_five_leaders_ends_no_session_that_is_kept_alive() {
    let mut world = SessionHour::new();
    let open = OpenSession {
        client: ClientId::parse("ann").expect("valid"),
        ttl: Some(Ttl::new(TTL).expect("valid")),
        grace: Grace::NONE,
    };
    let every = TTL.as_nanos() / 3;
    let at = |round: u64, number: u64| Time::from_nanos(round * every + every / SESSIONS * number);
    let mut sessions = vec![];
    for number in 0..SESSIONS {
        match world.apply(at(0, number), Op::OpenSession(open.clone())) {
            Outcome::SessionOpened(id) => sessions.push(id),
            other => panic!("not opened: {other:?}"),
        }
    }
    // One client stops its keep-alives after half an hour.
    let (dead, half) = (sessions[77], HOUR * 1_000_000_000 / every / 2);
    let rounds = HOUR * 1_000_000_000 / every;
    for round in 1..rounds {
        for (number, id) in (0..).zip(&sessions) {
            if *id != dead || round < half {
                world.apply(at(round, number), Op::KeepAlive(*id));
            }
        }
    }
    assert!(world.changes.is_empty(), "there were five changes");
    let &[(session, when)] = &world.over[..] else { panic!("{:?} are over", world.over) };
    assert_eq!(session, dead);
    let lived = when.since(at(half - 1, 77));
    // No leader's clock is fast by more than the 0.1 % that clients allow for.
    let least = TTL.as_nanos() / 1_000 * 999;
    assert!(lived.as_nanos() >= least, "it was cut short by a leader's clock: {lived}");
    // The expiry may be late: the leader may have been lost meanwhile, and a leader's clock may be
    // slow.
    assert!(lived.as_nanos() < TTL.as_nanos() + 31_000_000_000, "{lived}");
}
