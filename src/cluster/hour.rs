//! An hour of many sessions on virtual time, while five others come to lead: whoever gives signs
//! of life keeps what it has, and whoever gives none loses it.

use super::clock::Carried;
use crate::engine::{
    Acquire, ClientId, Command, Engine, Event, Grace, Hold, Line, LockName, Mode, Op, OpenId,
    OpenSession, Outcome, Patch, SessionId, Term, Ttl, What,
};
use crate::time::{Span, Time};

const SESSIONS: usize = 100_000;
const TTL: Span = Span::from_secs(600);
const HOUR: Span = Span::from_secs(3_600);
/// How long nobody leads.
const GAP: Span = Span::from_secs(2);
/// When the leader fails: the rest of each leadership is as long as the others.
const REIGN: Span = Span::from_secs(600);

/// A leader: its steady clock shows anything, and runs a little too fast or too slow.
struct Leader {
    shows: Time,
    since: Time,
    /// In millionths.
    fast: i64,
    clock: Carried,
}

impl Leader {
    /// The one of this number leads from `real` on.
    fn from(number: u64, real: Time, engine: &Engine) -> Self {
        let shows = Time::from_secs(number * 77_777 % 1_000);
        let fast = [900, -900][number as usize % 2];
        Self { shows, since: real, fast, clock: Carried::on(engine.clock(), shows) }
    }

    /// What it stamps by.
    fn now(&self, real: Time) -> Time {
        let passed = real.since(self.since).as_nanos().cast_signed();
        let passed = passed + passed / 1_000_000 * self.fast;
        self.clock.at(self.shows + Span::from_nanos(passed.cast_unsigned()))
    }
}

struct World {
    engine: Engine,
    leader: Leader,
    leaders: u64,
    /// Until when nobody leads.
    gap_until: Time,
    events: Vec<Event>,
    over: Vec<SessionId>,
    expired: usize,
}

impl World {
    fn apply(&mut self, real: Time, command: &Command) -> Outcome {
        if real.since(self.leader.since) > REIGN && self.leaders < 6 {
            self.gap_until = real + GAP;
            self.leader = Leader::from(self.leaders, self.gap_until, &self.engine);
            self.leaders += 1;
        }
        // What is asked while nobody leads is asked again afterwards.
        let now = self.leader.now(real.max(self.gap_until));
        let answer = self.engine.apply(now, command, &mut self.events);
        for event in self.events.drain(..) {
            match event.what {
                What::SessionOver { session, .. } => self.over.push(session),
                What::Expired { .. } => self.expired += 1,
                _ => {}
            }
        }
        answer.expect("nothing is refused")
    }
}

fn open(world: &mut World, number: usize) -> SessionId {
    let client = ClientId::parse(&format!("c{number}")).expect("valid");
    let ttl = Some(Ttl::new(TTL).expect("valid"));
    let grace = Grace::new(Span::from_secs(5)).expect("valid");
    let ask = OpenSession { client: client.clone(), ttl, grace };
    let Outcome::SessionOpened(session) = world.apply(Time::ZERO, &Op::OpenSession(ask).into())
    else {
        panic!("it is opened");
    };
    let ask = Acquire {
        name: LockName::parse(&format!("lock{number}")).expect("valid"),
        client,
        mode: Mode::Exclusive,
        hold: Hold::Open(OpenId { session, number: 1 }),
        term: Term::Session(session),
        line: Line::Skip,
        patch: Patch::default(),
    };
    world.apply(Time::ZERO, &Op::Acquire(ask).into());
    session
}

#[test]
fn who_gives_signs_of_life_loses_nothing_in_an_hour_of_five_failures() {
    let engine = Engine::default();
    let leader = Leader::from(0, Time::ZERO, &engine);
    let (events, over, gap_until) = (vec![], vec![], Time::ZERO);
    let mut world = World { engine, leader, leaders: 1, gap_until, events, over, expired: 0 };
    let sessions: Vec<_> = (0..SESSIONS).map(|number| open(&mut world, number)).collect();
    // The first of them is never heard of again.
    let dead = sessions[0];
    // Each renews at a third of its ttl, by a clock that is as slow as one may be.
    let period = Span::from_nanos(TTL.as_nanos() / 3 / 1_000 * 1_001);
    let mut real = Time::ZERO;
    while real < Time::ZERO + HOUR {
        for (number, session) in sessions.iter().enumerate().skip(1) {
            let at = real + Span::from_nanos(period.as_nanos() * number as u64 / SESSIONS as u64);
            world.apply(at, &Op::KeepAlive(*session).into());
        }
        real = real + period;
    }
    assert_eq!(world.leaders, 6, "five have failed");
    assert_eq!(world.over, [dead]);
    assert_eq!(world.expired, 1, "its lease is the only one that was lost");
    assert_eq!((world.engine.sessions(), world.engine.locks()), (SESSIONS - 1, SESSIONS - 1));
}
