//! Tests of the lock table with a remote engine: requests arrive late, answers later and in any
//! order, with events in between. Programs are numbers, and make one call at a time as programs do.
//! Each random run locks whole files; one kind of run also locks parts of files.

use crate::engine::{
    Acquire, Answer, ClientId, Engine, EventKind, IfExists, LeaseKey, LockName, LockView, Mode,
    Move, Op, Ownership, Patch, Release, TenureEnd,
};
use crate::fuse::posix_locks::byte_ranges::{ByteRange, PosixOwner};
use crate::fuse::posix_locks::table::tests::engine_with_session;
use crate::fuse::posix_locks::table::*;
use crate::time::Time;
use kernel::interrupts::WaitStatus;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const FILE: u64 = 7;
const PROGRAMS: u32 = 5;
/// The number of bytes of the file for which the test tracks the holders.
const BYTES: usize = 3;
/// The number of random runs, each from its own seed.
const SEEDS: u64 = 4_500;
const STEPS: usize = 250;
/// The first seed of the runs in which the engine is behind a server and `mv` moves locks.
const MOVES_FROM: u64 = SEEDS + LOSSES;

/// A message on its way to the engine.
enum SentCommand {
    Ask { cookie: u64, ino: u64, ask: Acquire },
    Tell(Op),
    Recall(Recall),
    Compare,
}

/// An answer that has not reached the table yet.
enum Came {
    /// `None` if the answer was lost, so that the outcome is unknown.
    Answer {
        cookie: u64,
        ino: u64,
        of: RequestedLease,
        answer: Option<Answer>,
    },
    Recalled(Recall, Found),
    Compared(Vec<(u64, LeaseKey)>),
}

/// One simulated program: the locks that it believes to hold, and its pending lock request.
#[derive(Default)]
struct Program {
    fh: u64,
    has: [Option<Mode>; BYTES],
    asks: Option<(ByteRange, Mode)>,
    /// Whether the pending request waits if the lock is not free.
    line: Option<Waits>,
}

struct Far {
    engine: Engine,
    table: Table<u32>,
    sent: VecDeque<SentCommand>,
    came: Vec<Came>,
    events: VecDeque<EventKind>,
    programs: BTreeMap<u32, Program>,
    /// The numbers of the leases (unique within the session) for whose waiters the table has asked
    /// for notice of signals.
    watched: Vec<u64>,
    fhs: u64,
    now: u64,
    kind: Kind,
    /// The numbers of the leases (unique within the session) for which a release was sent.
    released: BTreeSet<u64>,
    /// Whether to print each step.
    says: bool,
}

fn name() -> LockName {
    named("f")
}

fn named(name: &str) -> LockName {
    LockName::parse(name).expect("valid")
}

/// The client in whose name all programs lock.
fn client() -> ClientId {
    ClientId::parse("host:me").expect("valid")
}

/// Programs with even numbers use flock, the others fcntl.
fn call(n: u32) -> Call {
    if n.is_multiple_of(2) { Call::Flock } else { Call::Fcntl }
}

fn bytes(span: ByteRange) -> std::ops::Range<usize> {
    let end = usize::try_from(span.end).unwrap_or(usize::MAX).saturating_add(1);
    span.start as usize..end.min(BYTES)
}

impl Far {
    fn new(kind: Kind, says: bool) -> Self {
        let (engine, session) = engine_with_session();
        let mut far = Self {
            engine,
            table: Table::new(session),
            sent: VecDeque::new(),
            came: Vec::new(),
            events: VecDeque::new(),
            programs: BTreeMap::new(),
            watched: Vec::new(),
            fhs: 0,
            now: 1,
            kind,
            released: BTreeSet::new(),
            says,
        };
        for n in 1..=PROGRAMS {
            far.open(n);
        }
        far
    }

    /// Opens the file for program `n`, under a file handle that was never used before.
    fn open(&mut self, n: u32) {
        self.fhs += 1;
        self.programs.insert(n, Program { fh: self.fhs, ..Program::default() });
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        if self.says {
            eprintln!("{what}");
        }
    }

    fn decide(&mut self, act: impl FnOnce(&mut Table<u32>, &mut Vec<Effect<u32>>)) {
        let mut todo = Vec::new();
        act(&mut self.table, &mut todo);
        for effect in todo {
            self.say(format_args!("    -> {effect:?}"));
            match effect {
                Effect::Submit { cookie, ino, ask } => {
                    let number = ask.hold.open().expect("an open file asks").number;
                    assert!(!self.released.contains(&number), "{number} may be released late");
                    self.sent.push_back(SentCommand::Ask { cookie, ino, ask: *ask });
                }
                Effect::Tell(op, _) => {
                    if let Op::Release(Release { open: Some(open), .. }) = &*op {
                        self.released.insert(open.number);
                    }
                    self.sent.push_back(SentCommand::Tell(*op));
                }
                Effect::Reply(n, result) => self.receive_reply(n, &result),
                Effect::Watch(number, _) => self.watched.push(number),
                // Queries for the state of a lock after lost events need an engine connection whose
                // answers come in order.
                Effect::Recall(asked) if self.kind.is_remote() => {
                    self.sent.push_back(SentCommand::Recall(asked));
                }
                Effect::Compare => self.sent.push_back(SentCommand::Compare),
                Effect::Recall(_) | Effect::Speaks(..) | Effect::Continues(..) => {}
            }
        }
    }

    /// Records the answer to a lock call, of which each call gets one, and asserts that no two
    /// programs hold conflicting locks.
    fn receive_reply(&mut self, n: u32, result: &Result<(), No>) {
        let program = self.programs.get_mut(&n).expect("one of ours");
        let (span, mode) = program.asks.take().expect("a call is answered once");
        match result {
            Ok(()) => {
                for at in bytes(span) {
                    program.has[at] = Some(mode);
                }
            }
            Err(No::Busy(_) | No::Interrupted | No::Deadlock | No::Full) => {}
            Err(No::Refused(why)) => panic!("nothing is wrong with the request: {why}"),
        }
        if self.kind.has_moves() {
            return;
        }
        for at in 0..BYTES {
            let holders: Vec<_> = self.programs.values().filter_map(|p| p.has[at]).collect();
            let alone = holders.len() == 1 || !holders.contains(&Mode::Exclusive);
            assert!(holders.is_empty() || alone, "byte {at} is {holders:?}: {:?}", self.table);
        }
        if result.is_ok() {
            let view = self.view(&name());
            assert!(!view.holders.is_empty(), "nobody has what the engine has not granted");
        }
    }

    fn lock(&mut self, n: u32, span: ByteRange, mode: Mode, line: Waits) {
        self.say(format_args!("{n} ({:?}) locks {span:?} {mode:?}, waits: {line:?}", call(n)));
        let program = self.programs.get_mut(&n).expect("one of ours");
        (program.asks, program.line) = (Some((span, mode)), Some(line));
        for at in bytes(span) {
            // A flock is released before it is taken in another mode. After a request to downgrade
            // to shared mode, other readers may share the lock before the answer comes.
            match (program.has[at], call(n)) {
                (Some(had), Call::Flock) if had != mode => program.has[at] = None,
                (Some(_), _) if mode == Mode::Shared => program.has[at] = Some(mode),
                _ => {}
            }
        }
        let owner = PosixOwner { id: u64::from(n), fh: program.fh, pid: n };
        let (ino, patch, client) = (FILE, Patch::default(), client());
        let (name, takes_over) = (name(), None);
        let ask =
            Ask { ino, owner, tid: n, span, mode, name, client, patch, takes_over, line, call };
        self.decide(|table, todo| table.lock(ask, n, todo));
    }

    fn unlock(&mut self, n: u32, span: ByteRange) {
        self.say(format_args!("{n} unlocks {span:?}"));
        let program = self.programs.get_mut(&n).expect("one of ours");
        bytes(span).for_each(|at| program.has[at] = None);
        self.decide(|table, todo| table.unlock(FILE, u64::from(n), span, todo));
    }

    fn close(&mut self, n: u32) {
        self.say(format_args!("{n} closes"));
        let program = self.programs.get_mut(&n).expect("one of ours");
        program.has = [None; BYTES];
        let fh = program.fh;
        self.decide(|table, todo| {
            table.flushed(FILE, u64::from(n), todo);
            table.closed(FILE, fh, todo);
        });
        self.open(n);
    }

    fn give_up(&mut self, n: u32) {
        self.say(format_args!("{n} gives up"));
        let fh = self.programs[&n].fh;
        self.decide(|table, todo| table.give_up(FILE, fh, todo));
        // After the wait is cancelled, only a request that does not wait in a queue may still be
        // without an answer.
        let Program { asks, line, .. } = &self.programs[&n];
        assert!(asks.is_none() || *line == Some(Waits::No), "{n} waits: {:?}", self.table);
    }

    /// Acts as the interrupt watcher for one waiting request: when its program gets a signal, or
    /// when the queue place that was kept after a signal expires.
    fn check_waiter(&mut self, at: usize, signal: bool) {
        let Some(number) = self.watched.get(at).copied() else { return };
        let waiting = self.table.is_waiting(number);
        self.say(format_args!("number {number} is looked at: {waiting:?}, signal: {signal}"));
        match waiting {
            WaitStatus::Asks if signal => self.decide(|table, todo| table.interrupt(number, todo)),
            WaitStatus::Asks => {}
            WaitStatus::Parked | WaitStatus::Unclaimed => {
                self.decide(|table, todo| table.expire(number, todo));
            }
            WaitStatus::Over => drop(self.watched.swap_remove(at)),
        }
    }

    fn apply(&mut self, op: Op) -> Answer {
        self.now += 1;
        let mut events = Vec::new();
        let answer = self.engine.apply(Time::from_secs(self.now), &op.into(), &mut events);
        self.engine.check();
        self.events.extend(events.into_iter().map(|event| event.what));
        answer
    }

    fn view(&self, name: &LockName) -> LockView {
        self.engine.view(name, Time::from_secs(self.now))
    }

    /// Moves the lock from one name to another, as another program would.
    fn carry(&mut self, from: LockName, to: LockName) {
        let Some(holder) = self.view(&from).holders.first().map(|holder| holder.lease.token) else {
            return;
        };
        let from = LeaseKey { name: from, client: client(), token: Some(holder) };
        let answer = self.apply(Op::Move(Move { from, to, over: IfExists::Refuse }));
        self.say(format_args!("moved: {answer:?}"));
    }

    /// Delivers the next message to the engine.
    fn arrive(&mut self, dice: &mut Dice) {
        let Some(sent) = self.sent.pop_front() else { return };
        let came = match sent {
            SentCommand::Tell(op) => {
                let answer = self.apply(op);
                return self.say(format_args!("arrived: {answer:?}"));
            }
            SentCommand::Ask { cookie, ino, ask } => {
                let of = RequestedLease::of(&ask);
                let is_lost = self.kind == Kind::Losses && dice.below(8) == 0;
                // If the answer is lost, the request may have been lost before it reached the
                // engine.
                let arrives = !is_lost || dice.below(2) == 0;
                let answer = arrives.then(|| self.apply(Op::Acquire(ask)));
                let answer = answer.filter(|_| !is_lost);
                self.say(format_args!("arrived: {answer:?}"));
                Came::Answer { cookie, ino, of, answer }
            }
            SentCommand::Recall(asked) => {
                let found = self.found(&asked);
                Came::Recalled(asked, found)
            }
            SentCommand::Compare => Came::Compared(self.on_session()),
        };
        self.came.push(came);
    }

    /// Delivers one of the engine's answers to the table.
    fn answer(&mut self, at: usize) {
        if at >= self.came.len() {
            return;
        }
        let in_order = self.kind.is_remote();
        let came = if in_order { self.came.remove(0) } else { self.came.swap_remove(at) };
        match came {
            Came::Answer { cookie, ino, of, answer: Some(answer) } => {
                self.say(format_args!("answered {cookie}: {answer:?}"));
                self.decide(|table, todo| table.answered(cookie, ino, of, answer, todo));
            }
            Came::Answer { cookie, ino, .. } => {
                self.say(format_args!("no answer for {cookie}"));
                let mut reply = None;
                self.decide(|table, todo| reply = table.unanswered(cookie, ino, todo));
                if let Some(n) = reply {
                    self.receive_reply(n, &Err(No::Interrupted));
                }
            }
            Came::Recalled(asked, found) => {
                self.say(format_args!("recalled {asked:?}: {found:?}"));
                self.decide(|table, todo| table.recalled(&asked, &found, todo));
            }
            Came::Compared(all) => {
                for (number, key) in all {
                    self.decide(|table, todo| table.found_stray(number, key, todo));
                }
            }
        }
    }

    /// Delivers the next event to the table.
    fn process_event(&mut self) {
        let event = self.events.pop_front();
        self.say(format_args!("heard {event:?}"));
        match event {
            Some(EventKind::Granted {
                hold: Ownership::OpenFile(open),
                token,
                name,
                holder,
                waited,
                ..
            }) => {
                let key = LeaseKey { name, client: holder, token: Some(token) };
                let ticket = waited.map(|(ticket, _)| ticket);
                self.decide(|table, todo| table.granted(open.number, ticket, key, todo));
            }
            Some(EventKind::Ended { end: TenureEnd::Moved { .. }, name, token, .. }) => {
                self.decide(|table, todo| table.moved(token, &name, todo));
            }
            Some(EventKind::Ended { end: TenureEnd::Replaced, name, .. }) => {
                self.decide(|table, todo| table.changed(&name, todo));
            }
            Some(EventKind::Left { ticket, name, .. }) => {
                self.decide(|table, todo| table.left(ticket, &name, todo));
            }
            Some(EventKind::Ended { token, name, .. }) => self.decide(|table, todo| {
                table.ended(token, todo);
                table.changed(&name, todo);
            }),
            _ => {}
        }
    }

    /// Returns a random span for program `n`; a flock covers the whole file.
    fn span(&self, n: u32, dice: &mut Dice) -> ByteRange {
        if self.kind != Kind::Parts || call(n) == Call::Flock || dice.below(3) == 0 {
            return ByteRange::WHOLE;
        }
        let start = dice.below(BYTES) as u64;
        ByteRange { start, end: (start + dice.below(2) as u64).min(BYTES as u64 - 1) }
    }

    fn step(&mut self, dice: &mut Dice) {
        let n = 1 + dice.below(PROGRAMS as usize) as u32;
        let idle = self.programs[&n].asks.is_none();
        let span = self.span(n, dice);
        let mode = if dice.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
        let line = if dice.below(3) == 0 { Waits::No } else { Waits::Yes };
        if self.kind.has_moves() && dice.below(8) == 0 {
            let names = [named("f"), named("g")];
            let [from, to] = if dice.below(2) == 0 { names } else { [named("g"), named("f")] };
            return self.carry(from, to);
        }
        match dice.below(16) {
            0..=3 if idle => self.lock(n, span, mode, line),
            4 | 5 if idle => self.unlock(n, span),
            6 if idle => self.close(n),
            6 => self.give_up(n),
            7 => {
                let at = dice.below(self.watched.len().max(1));
                self.check_waiter(at, dice.below(2) == 0);
            }
            8 if self.kind == Kind::Losses && dice.below(8) == 0 => self.lose_events(),
            8..=10 => self.arrive(dice),
            11..=13 => self.answer(dice.below(self.came.len().max(1))),
            _ => self.process_event(),
        }
    }

    /// Delivers all messages, answers and events that are under way, in random order.
    fn settle(&mut self, dice: &mut Dice) {
        while !(self.sent.is_empty() && self.came.is_empty() && self.events.is_empty()) {
            match dice.below(3) {
                0 => self.arrive(dice),
                1 => self.answer(dice.below(self.came.len().max(1))),
                _ => self.process_event(),
            }
        }
    }

    /// Asserts that the table and the engine have the same leases once everything was delivered.
    fn agree(&self) {
        let views = [self.view(&named("f")), self.view(&named("g"))];
        let held = self.table.files.values().flat_map(|file| {
            file.holds.iter().chain(file.bundle.iter().map(|bundle| &bundle.held))
        });
        let mut tokens: Vec<_> = held.map(|held| held.token).collect();
        let holders = views.iter().flat_map(|view| &view.holders);
        let mut granted: Vec<_> = holders.map(|holder| holder.lease.token).collect();
        tokens.sort_unstable();
        granted.sort_unstable();
        assert_eq!(tokens, granted, "{:?} {views:?}", self.table);
    }
}

/// Performs the random run of this seed. Prints each step if `says` is set.
fn run(seed: u64, says: bool) {
    let _said = Seed(seed);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let kinds = [Kind::Whole, Kind::Parts, Kind::Moves];
    let kind = match seed {
        0..SEEDS => kinds[seed as usize % 3],
        SEEDS..MOVES_FROM => Kind::Losses,
        _ => Kind::ServerMoves,
    };
    let mut far = Far::new(kind, says);
    for _ in 0..STEPS {
        far.step(&mut dice);
    }
    // Programs that do not wait close the file, until each waiting program got the lock or a
    // refusal.
    for _ in 0..2 * PROGRAMS {
        far.settle(&mut dice);
        far.agree();
        for n in 1..=PROGRAMS {
            if far.programs[&n].asks.is_none() {
                far.close(n);
            } else if kind.has_moves() {
                // A program that waits for the lock under its other name may be in a deadlock that
                // the table can't detect, so it cancels its wait.
                far.give_up(n);
            }
        }
    }
    far.settle(&mut dice);
    let stuck: Vec<_> = far.programs.iter().filter(|(_, p)| p.asks.is_some()).collect();
    assert!(stuck.is_empty(), "{} are stuck: {:?}", stuck.len(), far.table);
    if kind.is_remote() {
        // If the event that a released lease has ended was lost, the table remembers the release
        // until events are lost once more.
        far.lose_events();
        far.settle(&mut dice);
    }
    let is_empty = far.table.is_idle() && far.table.spent.is_empty();
    assert!(is_empty, "something is left: {:?}", far.table);
    assert_eq!((far.engine.locks(), far.engine.waiters()), (0, 0));
}

#[test]
fn late_answers_in_any_order_do_no_harm() {
    if let Ok(seed) = std::env::var("LATCHFS_SEED") {
        return run(seed.parse().expect("LATCHFS_SEED is a number, as a failure printed it"), true);
    }
    (0..SEEDS).for_each(|seed| run(seed, false));
}

/// The number of random runs with lost answers and events; none may leave a program waiting.
pub(crate) const LOSSES: u64 = 2_000;
/// The number of random runs in which the engine is behind a server and `mv` moves locks.
const MOVES: u64 = 2_000;

impl Far {
    /// Returns the engine's reply to a query: the lease with the lease number of the query, and the
    /// waiters of its lock.
    pub(crate) fn found(&self, Recall { number, name, .. }: &Recall) -> Found {
        let mut all = self.on_session().into_iter();
        let lease = all.find(|(of, key)| of == number && key.name == *name);
        let tickets = self.view(name).waiters.iter().map(|waiter| waiter.ticket).collect();
        Found { lease: lease.map(|(_, key)| key), tickets }
    }

    /// Returns all leases of the session with their lease numbers.
    pub(crate) fn on_session(&self) -> Vec<(u64, LeaseKey)> {
        let views = [self.view(&named("f")), self.view(&named("g"))];
        let of_lock = |view: &LockView| {
            let holds = view.holders.iter().filter_map(|holder| {
                let Ownership::OpenFile(open) = holder.lease.hold else { return None };
                let (name, client) = (view.name.clone(), holder.lease.holder.clone());
                Some((open.number, LeaseKey { name, client, token: Some(holder.lease.token) }))
            });
            holds.collect::<Vec<_>>()
        };
        views.iter().flat_map(of_lock).collect()
    }

    /// Interrupts the stream of events, and drops the events that are under way.
    pub(crate) fn lose_events(&mut self) {
        self.say(format_args!("events are lost: {:?}", self.events));
        self.events.clear();
        self.decide(Table::missed);
    }
}

#[test]
fn lost_answers_and_events_leave_nobody_waiting_and_nothing_held() {
    (SEEDS..SEEDS + LOSSES).for_each(|seed| run(seed, false));
}

#[test]
fn moves_behind_a_server_leave_nothing_held() {
    (MOVES_FROM..MOVES_FROM + MOVES).for_each(|seed| run(seed, false));
}

/// A random number generator with a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % limit
    }
}

/// A seed that is printed if the test panics before this value is dropped.
pub(super) struct Seed(pub(super) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LATCHFS_SEED={} repeats it, and tells it", self.0);
        }
    }
}

/// The operations and faults that a random run contains besides locking whole files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Whole,
    /// Programs also lock parts of the file.
    Parts,
    /// Other programs move the lock to another name and back, whichever program holds it. Then a
    /// program that locks the first name does not conflict with one that locks the second.
    Moves,
    /// Events and answers are lost. The remaining answers come in order, as from a server.
    Losses,
    /// Other programs move the lock as in [`Kind::Moves`], and the engine is behind a server.
    ServerMoves,
}

impl Kind {
    /// Whether the engine is behind a server, so that events and answers may be lost and answers
    /// come in order.
    pub(super) fn is_remote(self) -> bool {
        matches!(self, Self::Losses | Self::ServerMoves)
    }

    pub(super) fn has_moves(self) -> bool {
        matches!(self, Self::Moves | Self::ServerMoves)
    }
}
