//! The model check of the engine: applies random commands to the engine and to a second, naive
//! implementation of the same rules. After every command both must have the same answer, events and
//! state.
//!
//! `LATCHFS_SEED=...` repeats the run of a printed seed. A failing run is shrunk by removing
//! commands while it still fails, and the rest is printed. `LATCHFS_MODEL_SEED=...` sets the seed
//! from which the seeds of all runs are drawn.
//!
//! `contrib/mutants` breaks the rules on purpose, one at a time: the check must find each broken
//! rule.

mod draw;
mod naive;

use super::{
    Answer, Command, Engine, Event, EventKind, HoldOff, HoldOffCause, Lifetime, LockName, LockView,
    Mode, Obstacle, Op, Outcome, QueuePlace, QueuePolicy, Reason, Rules, TenureEnd, Token,
};
use crate::codec::state_codec;
use crate::time::{Span, Time};
use draw::{Dice, Draw};
use naive::Naive;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of commands in one run: enough for queues and sessions to interact, and few enough to
/// shrink.
const COMMANDS_A_RUN: usize = 400;
/// The number of runs of one check, which makes 120,000 commands.
const RUNS: u64 = 300;

/// The input of a run: the limits of the engine, and the commands with their times.
pub(crate) type Script = (Rules, Vec<(Time, Command)>);

/// The hold-off of a run, and when it begins. In practice an engine begins with it; here it also
/// begins while locks are held.
type HoldOffOfRun = Option<(Time, HoldOff)>;

/// Returns the hold-off of the run with this seed: every other run has none.
fn hold_off_of(seed: u64) -> HoldOffOfRun {
    let mut dice = Dice::new(seed.rotate_left(8));
    let from = Time::ZERO + Span::from_millis(dice.next() % 15_000);
    let until = from + Span::from_millis(1 + dice.next() % 15_000);
    let cause = HoldOffCause::Restored;
    dice.next().is_multiple_of(2).then_some((from, HoldOff { until, cause }))
}

/// Both implementations of the rules, and the state for properties that are checked independently
/// of them.
struct Pair {
    engine: Engine,
    naive: Naive,
    names: Vec<LockName>,
    highest: Option<Token>,
    /// The time until which each lease was promised to its holder, by the token of the lease. The
    /// lease must not run out earlier.
    promised: BTreeMap<Token, Time>,
    /// The hold-off that is to begin.
    hold_off: HoldOffOfRun,
    /// For each lock that a steal or a reset has taken from its holder, the end of the steal grace
    /// (1 s): no later request may be granted the lock before.
    kept: BTreeMap<LockName, Time>,
    /// Until when each seat that was taken from its holder is unusable.
    kept_seats: BTreeMap<(LockName, u16), Time>,
}

impl Pair {
    fn new(rules: &Rules, hold_off: HoldOffOfRun) -> Self {
        let names = ["a", "b", "b/x", "c", "b!", "never"];
        Self {
            engine: Engine::new(*rules),
            naive: Naive::new(*rules),
            names: names.map(|name| LockName::parse(name).expect("a name")).into(),
            highest: None,
            promised: BTreeMap::new(),
            hold_off,
            kept: BTreeMap::new(),
            kept_seats: BTreeMap::new(),
        }
    }

    /// Applies a command to both implementations and compares the results.
    fn step(&mut self, at: Time, command: &Command) -> Result<Answer, String> {
        if let Some((_, hold_off)) = self.hold_off.take_if(|(from, _)| *from <= at) {
            self.engine.begin_hold_off(hold_off);
            self.naive.begin_hold_off(hold_off);
        }
        let mut settled = self.engine.clone();
        settled.apply(at, &Op::Settle.into(), &mut vec![]).expect("time passing is never refused");
        let mut events = vec![];
        let answer = self.engine.apply(at, command, &mut events);
        let (wanted, wanted_events) = self.naive.apply(at, command);
        same("answers", &answer, &wanted)?;
        same("events", &events, &wanted_events)?;
        self.engine.check();
        same_foresight(&settled, command, &answer)?;
        self.same_views()?;
        let bytes = state_codec::encode_engine(state_codec::known_version(), &self.engine);
        let restored = state_codec::decode_engine(state_codec::known_version(), &bytes)
            .map_err(|_| "a snapshot can't be read")?;
        same("the restored engine", &restored, &self.engine)?;
        if answer.is_err() && !is_state_after_refusal(&bytes, settled, command) {
            return Err(format!("a refusal has left something behind: {answer:?}"));
        }
        self.keeps_its_word(command, &answer, &events)?;
        Ok(answer)
    }

    fn same_views(&self) -> Result<(), String> {
        let now = self.engine.clock();
        for name in &self.names {
            let view = self.engine.view(name, now);
            same("views", &view, &self.naive.view(name))?;
            let tickets: Vec<_> = view.waiters.iter().map(|waiter| waiter.ticket).collect();
            if !tickets.is_sorted() {
                return Err(format!("the line of {name} is out of order: {tickets:?}"));
            }
            let places: Vec<_> = view.queue().map(|(_, place)| place).collect();
            same("places", &places, &places_of(&view))?;
            if view.mode == Mode::Exclusive && view.holders.len() > 1 {
                return Err(format!("{name} is held by several, each alone"));
            }
            if view.mode.seats().is_some_and(|max| view.holders.len() > usize::from(max)) {
                return Err(format!("{name} has more holders than seats"));
            }
        }
        let listed: Vec<_> = self.engine.list("", None, usize::MAX, now).map(|v| v.name).collect();
        same("lists", &listed, &self.naive.names())?;
        same("deadlines", &self.engine.next_deadline(), &self.naive.next_deadline())
    }

    /// Checks properties that both implementations could violate in the same way: tokens rise, no
    /// lease runs out before the time promised to its holder, waiters are served in the order of
    /// their arrival, and no request is granted a lock within a second after the lock was stolen.
    fn keeps_its_word(
        &mut self,
        command: &Command,
        answer: &Answer,
        events: &[Event],
    ) -> Result<(), String> {
        // The holder has acknowledged that the lock was taken from it.
        let is_early = |event: &Event| matches!(event.what, EventKind::Annotated { .. });
        if let (Op::Release(ask), true) = (&command.op, events.iter().any(is_early)) {
            self.kept.remove(&ask.key.name);
        }
        for Event { at, what } in events {
            match what {
                EventKind::Granted { name, token, waited, mode, .. } => {
                    if self.highest >= Some(*token) {
                        return Err(format!("token {token} comes after {:?}", self.highest));
                    }
                    self.highest = Some(*token);
                    if self.engine.hold_off().is_some_and(|hold_off| *at < hold_off.until)
                        && !matches!(command.op, Op::Reset(_))
                    {
                        return Err(format!("{name} is granted during the hold-off"));
                    }
                    // A reset takes a lock from its holders. For the steal grace (1 s), a
                    // placeholder lease in the name of the client that requested the reset keeps
                    // all clients, including that one, from the lock.
                    let reset_now = matches!(command.op, Op::Reset(_)) && waited.is_none();
                    let stolen_now = matches!(command.op, Op::Steal(_)) || reset_now;
                    self.keeps_seats(name, *token, *at, stolen_now, reset_now)?;
                    if !stolen_now && self.kept.get(name).is_some_and(|until| at < until) {
                        return Err(format!("{name} is granted within the steal grace"));
                    }
                    if reset_now && *mode == Mode::Exclusive {
                        let until = *at + self.engine.rules().steal_grace;
                        self.kept.insert(name.clone(), until);
                    }
                    let line = self.engine.view(name, *at).waiters;
                    let overtaken = |place| line.iter().any(|waiter| waiter.ticket < place);
                    if waited.is_some_and(|(place, _)| overtaken(place)) {
                        return Err(format!("{name} was given past somebody in line"));
                    }
                }
                EventKind::Ended { token, end: TenureEnd::Lapsed, .. }
                    if self.promised.get(token).is_some_and(|until| at < until) =>
                {
                    return Err(format!("token {token} lapsed before its time"));
                }
                _ => {}
            }
        }
        if let (Op::Steal(ask), Ok(Outcome::Stolen(tenure))) = (&command.op, answer) {
            match self.engine.view(&ask.name, tenure.acquired_at).mode {
                Mode::Exclusive => drop(self.kept.insert(ask.name.clone(), tenure.acquired_at)),
                Mode::Shared => {}
                Mode::Seats(_) => {
                    let seat = tenure.seat.ok_or("a seat that was taken has a number")?;
                    self.kept_seats.insert((ask.name.clone(), seat), tenure.acquired_at);
                }
            }
        }
        self.note_promises(events);
        Ok(())
    }

    /// Checks that nobody gets a seat before its last holder, from whom it was taken, has stopped.
    fn keeps_seats(
        &mut self,
        name: &LockName,
        token: Token,
        at: Time,
        stolen_now: bool,
        reset_now: bool,
    ) -> Result<(), String> {
        let Some(seat) = self.seat(name, token) else { return Ok(()) };
        let seat = (name.clone(), seat);
        if !stolen_now && self.kept_seats.get(&seat).is_some_and(|until| at < *until) {
            return Err(format!("a seat of {name} is granted within the steal grace"));
        }
        if reset_now {
            self.kept_seats.insert(seat, at + self.engine.rules().steal_grace);
        }
        Ok(())
    }

    /// Returns the seat of the holder with this token, if it has one and holds the lock still.
    fn seat(&self, name: &LockName, token: Token) -> Option<u16> {
        let holders = self.engine.view(name, self.engine.clock()).holders;
        let holder = holders.iter().find(|holder| holder.lease.token == token);
        holder.and_then(|holder| holder.lease.seat)
    }

    /// Records for each granted or renewed lease the time until which it is promised to its holder.
    /// A lease that is kept alive by a session has no such time.
    fn note_promises(&mut self, events: &[Event]) {
        for Event { at, what } in events {
            let (EventKind::Granted { name, token, .. } | EventKind::Renewed { name, token, .. }) =
                what
            else {
                continue;
            };
            let view = self.engine.view(name, *at);
            let holder = view.holders.iter().find(|holder| holder.lease.token == *token);
            match holder.map(|holder| (holder.lease.life, holder.ends.grace_until)) {
                Some((Lifetime::Own { .. }, until)) => self.promised.insert(*token, until),
                _ => self.promised.remove(token),
            };
        }
    }
}

/// Whether the encoded state `bytes` equals the state before the command, or differs from it only
/// in the session's used request numbers, to which a refused request adds its own.
fn is_state_after_refusal(bytes: &[u8], mut before: Engine, command: &Command) -> bool {
    let as_before = bytes == state_codec::encode_engine(state_codec::known_version(), &before);
    let _ = before.state.use_number(command);
    as_before || bytes == state_codec::encode_engine(state_codec::known_version(), &before)
}

/// A view of a lock predicts which lease, if any, is in the way of an acquire. Checks that the
/// prediction agrees with the engine's answer.
fn same_foresight(before: &Engine, command: &Command, answer: &Answer) -> Result<(), String> {
    let (None, Op::Acquire(ask)) = (&command.request, &command.op) else { return Ok(()) };
    let view = before.view(&ask.name, before.clock());
    let foreseen = view.in_the_way(&ask.client, ask.hold, ask.mode, ask.takes_over);
    let foreseen = foreseen.map(|obstacle| match obstacle {
        Obstacle::Lease(holder, way) => Some((holder.lease.token, way)),
        Obstacle::HoldOff(_) => None,
    });
    match answer {
        // The prediction may be wrong for a client that already waits in the queue and now requests
        // the lock in a weaker mode: the client may be granted the lock from the queue.
        Ok(Outcome::Granted(_)) if ask.line != QueuePolicy::Skip => Ok(()),
        Ok(Outcome::Granted(_) | Outcome::Renewed(_)) => same("foresight", &foreseen, &None),
        Err(refusal) => match &*refusal.reason {
            Reason::Conflict(no) => same("foresight", &foreseen, &Some(Some((no.token, no.way)))),
            Reason::HoldOff { .. } => same("foresight", &foreseen, &Some(None)),
            _ => Ok(()),
        },
        Ok(_) if foreseen.is_none() => Err("waits, and nothing was seen in the way".to_owned()),
        Ok(_) => Ok(()),
    }
}

/// Returns the places of the waiters of a lock. They are counted by serving one waiter after the
/// other, when as few clients as possible have given the lock up for each.
fn places_of(view: &LockView) -> Vec<QueuePlace> {
    let (mut mode, mut holders, mut ahead) = (Mode::Exclusive, 0, 0);
    let mut places = vec![];
    for waiter in &view.waiters {
        let may_share = mode != Mode::Exclusive && waiter.mode == mode;
        let has_room = mode.seats().is_none_or(|max| holders < usize::from(max));
        let leave = match (may_share, has_room) {
            (false, _) => holders,
            (true, false) => 1,
            (true, true) => 0,
        };
        ahead += leave;
        (mode, holders) = (waiter.mode, holders - leave + 1);
        places.push(QueuePlace { position: places.len() + 1, ahead });
    }
    places
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, wanted: &T) -> Result<(), String> {
    if got == wanted {
        return Ok(());
    }
    Err(format!("{what} differ\n  engine: {got:?}\n  naive:  {wanted:?}"))
}

/// Draws new commands and applies them to both implementations. Returns the commands, and the first
/// difference if there was one.
fn run(seed: u64, commands: usize, hold_off: HoldOffOfRun) -> (Script, Result<(), String>) {
    let mut draw = Draw::new(seed);
    let rules = draw.rules();
    let mut pair = Pair::new(&rules, hold_off);
    let mut script = (rules, vec![]);
    for _ in 0..commands {
        // A panic while a command is drawn is not caught, because it is a bug of the generator and
        // not of the engine.
        let (at, command) = draw.next(&pair.engine);
        script.1.push((at, command.clone()));
        match guarded(|| pair.step(at, &command)) {
            Ok(answer) => draw.learn(&command, &answer),
            Err(why) => return (script, Err(why)),
        }
    }
    let done = guarded(|| replays(&script.0, &script.1, hold_off, &pair.engine));
    (script, done)
}

/// Runs a script again, on a new pair of implementations. Fails at the first difference between the
/// two.
fn rerun((rules, commands): &Script, hold_off: HoldOffOfRun) -> Result<(), String> {
    guarded(|| {
        let mut pair = Pair::new(rules, hold_off);
        for (at, command) in commands {
            let _answer = pair.step(*at, command)?;
        }
        replays(rules, commands, hold_off, &pair.engine)
    })
}

/// Checks that the same commands, after being encoded and decoded, lead to the same engine state,
/// byte for byte.
fn replays(
    rules: &Rules,
    commands: &[(Time, Command)],
    mut hold_off: HoldOffOfRun,
    end: &Engine,
) -> Result<(), String> {
    let mut decoded = Engine::new(*rules);
    for (at, command) in commands {
        let mut bytes = vec![];
        state_codec::encode_command(*at, command, &mut bytes);
        let read = state_codec::decode_command(state_codec::known_version(), &bytes)
            .map_err(|_| "a command can't be read")?;
        same("a command and its bytes", &read, &(*at, command.clone()))?;
        if let Some((_, hold_off)) = hold_off.take_if(|(from, _)| *from <= *at) {
            decoded.begin_hold_off(hold_off);
        }
        let _answer = decoded.apply(read.0, &read.1, &mut vec![]);
    }
    if state_codec::encode_engine(state_codec::known_version(), &decoded)
        == state_codec::encode_engine(state_codec::known_version(), end)
    {
        return Ok(());
    }
    Err("a replay has come to other bytes".to_owned())
}

/// Runs `body` and turns a panic, such as a failed assertion of the engine, into an error.
fn guarded<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// Removes commands from a script, many at first and then one by one, as long as `fails` is still
/// true for the script.
fn shrink(mut script: Script, fails: impl Fn(&Script) -> bool) -> Script {
    let mut size = script.1.len() / 2;
    while size > 0 {
        let mut start = 0;
        while start < script.1.len() {
            let mut fewer = script.clone();
            fewer.1.drain(start..(start + size).min(script.1.len()));
            if fails(&fewer) {
                script = fewer;
            } else {
                start += size;
            }
        }
        size /= 2;
    }
    script
}

fn explain(seed: u64, script: Script) -> String {
    let hold_off = hold_off_of(seed);
    let script = shrink(script, |script| rerun(script, hold_off).is_err());
    let why = rerun(&script, hold_off).expect_err("it failed before");
    let mut text = format!("LATCHFS_SEED={seed} fails; what is left of it:\n");
    writeln!(text, "{:?}, {hold_off:?}", script.0).expect("a string takes all");
    for (at, command) in &script.1 {
        writeln!(text, "{at} ({}ns): {command:?}", at.as_nanos()).expect("a string takes all");
    }
    text + &why
}

/// Makes `RUNS` runs. Returns the first failure, with its script shrunk, and an explanation.
fn check(seed: u64) -> Result<(), String> {
    let mut seeds = Dice::new(seed);
    for _ in 0..RUNS {
        let seed = seeds.next();
        if let (script, Err(_)) = run(seed, COMMANDS_A_RUN, hold_off_of(seed)) {
            return Err(explain(seed, script));
        }
    }
    Ok(())
}

#[test]
fn the_engine_does_what_the_naive_rules_do() {
    if let Ok(seed) = std::env::var("LATCHFS_SEED") {
        let seed = seed.parse().expect("LATCHFS_SEED is a number, as a failure printed it");
        if let (script, Err(_)) = run(seed, COMMANDS_A_RUN, hold_off_of(seed)) {
            panic!("{}", explain(seed, script));
        }
        return;
    }
    let named = std::env::var("LATCHFS_MODEL_SEED").ok();
    let named = named.map(|seed| seed.parse().expect("LATCHFS_MODEL_SEED is a number"));
    let seed = named.unwrap_or_else(|| crate::time::boot_now().as_nanos());
    println!("{RUNS} runs of {COMMANDS_A_RUN} commands from {seed}");
    if let Err(found) = check(seed) {
        panic!("{found}");
    }
}

/// Shrinking keeps the failure and removes most other commands. Here the "failure" is that a lease
/// expires.
#[test]
fn a_failure_is_shrunk_to_its_cause() {
    let expires = |(rules, commands): &Script| {
        let (mut engine, mut events) = (Engine::new(*rules), vec![]);
        for (at, command) in commands {
            let _answer = engine.apply(*at, command, &mut events);
        }
        events.iter().any(|event| matches!(event.what, EventKind::Expired { .. }))
    };
    let left = shrink(sound(1, COMMANDS_A_RUN), expires);
    assert!(expires(&left));
    assert!(left.1.len() <= 2, "an acquire and time passing would do: {:?}", left.1);
}

/// Runs random commands on both implementations, fails unless they agree, and returns the commands.
pub(crate) fn sound(seed: u64, commands: usize) -> Script {
    let (script, done) = run(seed, commands, None);
    done.expect("the model check runs well");
    script
}

/// Two engines that apply the same commands have the same state after each of them, byte for byte.
#[test]
fn two_engines_have_the_same_encoding() {
    let (rules, commands) = sound(2, 1_000);
    let (mut one, mut two) = (Engine::new(rules), Engine::new(rules));
    let (mut events_one, mut events_two) = (vec![], vec![]);
    for (at, command) in &commands {
        let answers =
            (one.apply(*at, command, &mut events_one), two.apply(*at, command, &mut events_two));
        assert_eq!(answers.0, answers.1);
        assert_eq!(
            state_codec::encode_engine(state_codec::known_version(), &one),
            state_codec::encode_engine(state_codec::known_version(), &two)
        );
    }
    assert_eq!(events_one, events_two);
}

/// An engine restored from a snapshot at any point of a run reaches the same final state.
#[test]
fn a_snapshot_of_any_moment_leads_to_the_same_state() {
    let (rules, commands) = sound(3, 2_000);
    let mut engine = Engine::new(rules);
    let mut snapshots = vec![state_codec::encode_engine(state_codec::known_version(), &engine)];
    for (at, command) in &commands {
        let _answer = engine.apply(*at, command, &mut vec![]);
        snapshots.push(state_codec::encode_engine(state_codec::known_version(), &engine));
    }
    // Comparing each snapshot with the next one is enough, because equal bytes are equal states.
    for (index, (at, command)) in commands.iter().enumerate() {
        let mut restored =
            state_codec::decode_engine(state_codec::known_version(), &snapshots[index])
                .expect("just written");
        let _answer = restored.apply(*at, command, &mut vec![]);
        assert_eq!(
            state_codec::encode_engine(state_codec::known_version(), &restored),
            snapshots[index + 1],
            "at command {index}"
        );
    }
    for index in (0..commands.len()).step_by(97) {
        let mut restored =
            state_codec::decode_engine(state_codec::known_version(), &snapshots[index])
                .expect("just written");
        for (at, command) in &commands[index..] {
            let _answer = restored.apply(*at, command, &mut vec![]);
        }
        assert_eq!(
            Some(&state_codec::encode_engine(state_codec::known_version(), &restored)),
            snapshots.last(),
            "from {index}"
        );
    }
}

/// `Settle` is the command that only expires what is due. Before the next deadline it changes
/// nothing but the engine's clock. (At a deadline it would have an effect: the lease of the next
/// waiter would begin at that time, and not at the time of a later command.)
#[test]
fn settling_when_nothing_is_due_changes_nothing() {
    let mut dice = Dice::new(4);
    let (rules, commands) = sound(dice.next(), 1_000);
    let (mut plain, mut settled) = (Engine::new(rules), Engine::new(rules));
    let mut events = (vec![], vec![]);
    for (at, command) in &commands {
        let due = settled.next_deadline().unwrap_or(*at);
        let idle = due.since(settled.clock()).as_nanos().min(at.since(settled.clock()).as_nanos());
        if idle > 1 {
            let early = settled.clock() + Span::from_nanos(dice.next() % (idle - 1));
            let reported = events.1.len();
            settled.apply(early, &Op::Settle.into(), &mut events.1).expect("never refused");
            assert_eq!(events.1.len(), reported, "nothing was due");
        }
        let answers =
            (plain.apply(*at, command, &mut events.0), settled.apply(*at, command, &mut events.1));
        assert_eq!(answers.0, answers.1);
        assert_eq!(
            state_codec::encode_engine(state_codec::known_version(), &plain),
            state_codec::encode_engine(state_codec::known_version(), &settled)
        );
    }
    assert_eq!(events.0, events.1);
}
