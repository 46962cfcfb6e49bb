//! Tests of the lock table with a real engine that answers at once. Programs are numbers.

use crate::engine::{
    Acquire, Answer, ClientId, Engine, Event, EventKind, Grace, IfExists, LeaseKey, LeaseTerms,
    LockName, LockView, Mode, Move, Op, OpenSession, Outcome, Ownership, Patch, QueuePolicy,
    Release, SessionId, TenureEnd, Token,
};
use crate::fuse::posix_locks::byte_ranges::{ByteRange, PosixOwner};
use crate::fuse::posix_locks::table::table_state::CallOf;
use crate::fuse::posix_locks::table::*;
use crate::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A mount with its engine, and the replies to each program.
struct TableRig {
    engine: Engine,
    table: Table<u32>,
    reply: BTreeMap<u32, Result<(), No>>,
    /// The numbers of the leases (unique within the session) for which threads wait, by the thread
    /// that is watched for signals.
    watched: BTreeMap<u32, u64>,
    now: u64,
}

/// An answer that has not reached the table yet.
struct LateReply {
    cookie: u64,
    ino: u64,
    of: RequestedLease,
    answer: Answer,
}

const FILE: u64 = 7;

fn span(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

fn name(ino: u64) -> LockName {
    LockName::parse(&format!("f{ino}")).expect("valid")
}

/// Returns the request of program `n`, whose owner id and file handle are `n` too.
fn request(n: u32, mode: Mode, line: Waits) -> Ask {
    let owner = PosixOwner { id: u64::from(n), fh: u64::from(n), pid: n };
    let client = ClientId::parse("host:me").expect("valid");
    let (patch, call): (_, CallOf) = (Patch::default(), |_| Call::Fcntl);
    let (ino, span) = (FILE, ByteRange::WHOLE);
    let (name, takes_over) = (name(FILE), None);
    Ask { ino, owner, tid: n, span, mode, name, client, patch, takes_over, line, call }
}

fn on(ino: u64, ask: Ask) -> Ask {
    Ask { ino, name: name(ino), ..ask }
}

/// Returns an engine, and the session of the table in it.
pub(super) fn engine_with_session() -> (Engine, SessionId) {
    let mut engine = Engine::default();
    let grace = Grace::new(Span::ZERO).expect("valid");
    let client = ClientId::parse("host").expect("valid");
    let open = Op::OpenSession(OpenSession { client, ttl: None, grace });
    let opened = engine.apply(Time::ZERO, &open.into(), &mut Vec::new());
    let Ok(Outcome::SessionOpened(session)) = opened else { panic!("not opened") };
    (engine, session)
}

impl TableRig {
    fn new() -> Self {
        let (engine, session) = engine_with_session();
        let (reply, watched) = (BTreeMap::new(), BTreeMap::new());
        Self { engine, table: Table::new(session), reply, watched, now: 1 }
    }

    /// Performs the effects that the table has decided, and those that follow from them, until none
    /// is left.
    fn run(&mut self, todo: Vec<Effect<u32>>) {
        self.run_on(todo);
        self.engine.check();
        self.check();
    }

    fn run_on(&mut self, mut todo: Vec<Effect<u32>>) {
        while !todo.is_empty() {
            let mut next = Vec::new();
            for effect in todo {
                match effect {
                    Effect::Submit { cookie, ino, ask } => {
                        let of = RequestedLease::of(&ask);
                        let answer = self.apply(Op::Acquire(*ask), &mut next);
                        self.table.answered(cookie, ino, of, answer, &mut next);
                    }
                    Effect::Tell(op, _) => drop(self.apply(*op, &mut next)),
                    Effect::Reply(program, result) => {
                        let before = self.reply.insert(program, result);
                        assert!(before.is_none(), "{program} is answered once");
                    }
                    Effect::Watch(number, tid) => drop(self.watched.insert(tid, number)),
                    Effect::Continues(..)
                    | Effect::Speaks(..)
                    | Effect::Recall(_)
                    | Effect::Compare => {}
                }
            }
            todo = next;
        }
    }

    fn apply(&mut self, op: Op, next: &mut Vec<Effect<u32>>) -> Answer {
        let mut events = Vec::new();
        self.now += 1;
        let answer = self.engine.apply(Time::from_secs(self.now), &op.into(), &mut events);
        for Event { what, .. } in events {
            match what {
                EventKind::Granted {
                    hold: Ownership::OpenFile(open),
                    token,
                    name,
                    holder,
                    waited,
                    ..
                } => {
                    let key = LeaseKey { name, client: holder, token: Some(token) };
                    let ticket = waited.map(|(ticket, _)| ticket);
                    self.table.granted(open.number, ticket, key, next);
                }
                EventKind::Granted { waited: None, name, token, .. } => {
                    self.table.link_moved(&name, token);
                }
                EventKind::Ended { end: TenureEnd::Moved { .. }, name, token, .. } => {
                    self.table.moved(token, &name, next);
                }
                EventKind::Ended { end: TenureEnd::Replaced, name, .. } => {
                    self.table.changed(&name, next);
                }
                EventKind::Left { ticket, name, .. } => self.table.left(ticket, &name, next),
                EventKind::Ended { token, name, .. } => {
                    self.table.ended(token, next);
                    self.table.changed(&name, next);
                }
                _ => {}
            }
        }
        answer
    }

    /// Asserts that the table and the engine have the same leases.
    fn check(&self) {
        let mut believed = 0;
        for file in self.table.files.values() {
            let bundle = file.bundle.iter().map(|bundle| &bundle.held);
            for held in file.holds.iter().chain(bundle) {
                believed += 1;
                let view = self.view(&held.name);
                let mode = view.mode;
                let lease = view.holders.iter().find(|holder| holder.lease.token == held.token);
                assert!(lease.is_some(), "a hold is the engine's");
                assert_eq!(mode, held.mode, "in the same mode: {:?} {:?}", self.table, view);
                assert!(self.table.numbers.contains_key(&held.number), "its number is known");
            }
        }
        assert_eq!(
            believed,
            self.table.tenures.len(),
            "each tenure is found by its token: {:?}",
            self.table
        );
        if self.table.files.is_empty() {
            assert!(self.table.numbers.is_empty(), "nothing is left behind");
            let is_loose = |name: LockName| {
                let holders = self.view(&name).holders;
                let is_loose = |hold| !matches!(hold, Ownership::OpenFile(_));
                !holders.is_empty() && holders.iter().all(|holder| is_loose(holder.lease.hold))
            };
            let loose = (FILE..FILE + 9).filter(|ino| is_loose(name(*ino))).count();
            assert_eq!((self.engine.locks(), self.engine.waiters()), (loose, 0));
        }
    }

    /// Submits requests to the engine and delivers its events, but holds back the answers.
    fn carry(&mut self, todo: Vec<Effect<u32>>) -> Vec<LateReply> {
        let (mut late, mut todo) = (Vec::new(), VecDeque::from(todo));
        while let Some(effect) = todo.pop_front() {
            let mut next = Vec::new();
            match effect {
                Effect::Submit { cookie, ino, ask } => {
                    let of = RequestedLease::of(&ask);
                    let answer = self.apply(Op::Acquire(*ask), &mut next);
                    late.push(LateReply { cookie, ino, of, answer });
                }
                Effect::Tell(op, _) => drop(self.apply(*op, &mut next)),
                Effect::Reply(program, result) => drop(self.reply.insert(program, result)),
                Effect::Watch(number, tid) => drop(self.watched.insert(tid, number)),
                Effect::Continues(..)
                | Effect::Speaks(..)
                | Effect::Recall(_)
                | Effect::Compare => {}
            }
            todo.extend(next);
        }
        late
    }

    /// Requests a lock, and holds back the answer.
    fn lock_late(&mut self, ask: Ask) -> Vec<LateReply> {
        let program = ask.owner.pid;
        self.reply.remove(&program);
        let mut todo = Vec::new();
        self.table.lock(ask, program, &mut todo);
        self.carry(todo)
    }

    fn unlock_late(&mut self, program: u32) -> Vec<LateReply> {
        let mut todo = Vec::new();
        self.table.unlock(FILE, u64::from(program), ByteRange::WHOLE, &mut todo);
        self.carry(todo)
    }

    /// Sends a signal to the program that requested the lease with this number, before the answer
    /// says that the request waits.
    fn signal(&mut self, number: u64) {
        let mut todo = Vec::new();
        self.table.interrupt(number, &mut todo);
        assert!(self.carry(todo).is_empty(), "a signal asks nothing");
    }

    /// Delivers late answers to the table, and performs all effects that follow without delay.
    fn answered(&mut self, late: Vec<LateReply>) {
        for LateReply { cookie, ino, of, answer } in late {
            let mut todo = Vec::new();
            self.table.answered(cookie, ino, of, answer, &mut todo);
            self.run_on(todo);
        }
        self.engine.check();
        self.check();
    }

    fn view(&self, name: &LockName) -> LockView {
        self.engine.view(name, Time::from_secs(self.now))
    }

    fn lock(&mut self, ask: Ask) -> Option<Result<(), No>> {
        let program = ask.owner.pid;
        self.reply.remove(&program);
        let mut todo = Vec::new();
        self.table.lock(ask, program, &mut todo);
        self.run(todo);
        self.reply(program)
    }

    fn reply(&mut self, program: u32) -> Option<Result<(), No>> {
        self.reply.get(&program).cloned()
    }

    fn unlock(&mut self, program: u32, span: ByteRange) {
        let mut todo = Vec::new();
        self.table.unlock(FILE, u64::from(program), span, &mut todo);
        self.run(todo);
    }

    fn closed(&mut self, program: u32) {
        let mut todo = Vec::new();
        self.table.closed(FILE, u64::from(program), &mut todo);
        self.run(todo);
    }

    fn interrupt(&mut self, program: u32) {
        let mut todo = Vec::new();
        self.table.interrupt(self.watched[&program], &mut todo);
        self.run(todo);
    }

    fn expire(&mut self, program: u32) {
        let mut todo = Vec::new();
        self.table.expire(self.watched[&program], &mut todo);
        self.run(todo);
    }
}

use Mode::{Exclusive, Shared};

const GOT: Option<Result<(), No>> = Some(Ok(()));

fn busy(reply: impl std::borrow::Borrow<Option<Result<(), No>>>) -> bool {
    matches!(reply.borrow(), Some(Err(No::Busy(_))))
}

#[test]
fn waiters_are_served_in_order() {
    let mut rig = TableRig::new();
    assert_eq!(rig.lock(request(1, Exclusive, Waits::No)), GOT);
    assert!(busy(rig.lock(request(2, Exclusive, Waits::No))));
    assert_eq!(rig.lock(request(3, Exclusive, Waits::Yes)), None);
    assert_eq!(rig.lock(request(4, Exclusive, Waits::Yes)), None);
    rig.unlock(1, ByteRange::WHOLE);
    assert_eq!((rig.reply(3), rig.reply(4)), (GOT, None));
    rig.closed(3);
    assert_eq!(rig.reply(4), GOT);
    rig.closed(4);
    assert!(rig.table.files.is_empty());
}

impl TableRig {
    /// Makes the lock of the file exclusive for the programs' client, as a write of a text does.
    fn write(&mut self) -> LeaseKey {
        self.lease_of(FILE)
    }

    /// Takes the lock of the file `ino` for the programs' client, as a lease of no open file.
    fn lease_of(&mut self, ino: u64) -> LeaseKey {
        let Ask { name, client, .. } = on(ino, request(1, Exclusive, Waits::No));
        let (hold, term) = (Ownership::Exclusive(None), LeaseTerms::Session(self.table.session()));
        let (line, mode, patch) = (QueuePolicy::Skip, Exclusive, Patch::default());
        let mut key = LeaseKey { name: name.clone(), client: client.clone(), token: None };
        let new = Acquire { mode, hold, line, patch, ..Acquire::new(name, client, term) };
        let answer = self.apply(Op::Acquire(new), &mut Vec::new());
        let Ok(Outcome::Granted(tenure)) = answer else { panic!("not granted: {answer:?}") };
        key.token = Some(tenure.token);
        key
    }
}

#[test]
fn file_takes_its_own_lease_over_before_all_waiters() {
    let spans = [ByteRange::WHOLE, span(3, 5)];
    let kinds =
        [Waits::No, Waits::Yes].map(|line| spans.map(|of| spans.map(|own| (line, of, own))));
    for (line, of_waiter, span) in kinds.into_iter().flatten().flatten() {
        for mode in [Exclusive, Shared] {
            let mut rig = TableRig::new();
            let written = rig.write();
            for waiter in [2, 3] {
                let asked = Ask { span: of_waiter, ..request(waiter, Exclusive, Waits::Yes) };
                assert_eq!(rig.lock(asked), None);
            }
            rig.watched.clear();
            let own = Ask { takes_over: written.token, span, ..request(1, mode, line) };
            assert_eq!(rig.lock(own), GOT);
            assert!(!rig.watched.contains_key(&1), "it has not waited");
            let view = rig.view(&name(FILE));
            let [holder] = &view.holders[..] else { panic!("one holder: {view:?}") };
            assert_eq!((Some(holder.lease.token), view.mode), (written.token, mode));
            assert_eq!((rig.reply(2), rig.reply(3)), (None, None));
            rig.unlock(1, span);
            let first = [2, 3].into_iter().find(|waiter| rig.reply(*waiter) == GOT);
            let first = first.expect("a waiter is served");
            rig.closed(first);
            assert_eq!(rig.reply(5 - first), GOT);
            rig.closed(5 - first);
            assert_eq!(rig.engine.locks(), 0);
            assert!(rig.table.is_idle());
        }
    }
}

#[test]
fn shared_lease_that_is_taken_over_waits_for_the_other_holders() {
    for span in [ByteRange::WHOLE, span(3, 5)] {
        let mut rig = TableRig::new();
        let written = rig.write();
        let term = LeaseTerms::Session(rig.table.session());
        let share =
            |client: ClientId| Acquire { mode: Shared, ..Acquire::new(name(FILE), client, term) };
        let other = ClientId::parse("host:you").expect("valid");
        rig.apply(Op::Acquire(share(written.client.clone())), &mut Vec::new()).expect("its own");
        rig.apply(Op::Acquire(share(other.clone())), &mut Vec::new()).expect("it is shared");
        let own = |line| Ask { takes_over: written.token, span, ..request(1, Exclusive, line) };
        assert!(busy(rig.lock(own(Waits::No))));
        assert_eq!(rig.lock(own(Waits::Yes)), None);
        let key = LeaseKey { name: name(FILE), client: other, token: None };
        let mut todo = Vec::new();
        rig.apply(Op::Release(Release::of(key)), &mut todo).expect("it is held");
        rig.run(todo);
        assert_eq!(rig.reply(1), GOT);
        assert_eq!((rig.view(&name(FILE)).holders.len(), rig.engine.locks()), (1, 1));
        rig.closed(1);
        assert_eq!(rig.engine.locks(), 0);
    }
}

#[test]
fn linked_lease_ends_with_the_lock() {
    let kinds = [ByteRange::WHOLE, span(3, 5)].map(|span| [0, 1, 2, 3].map(|end| (span, end)));
    for (span, end) in kinds.into_iter().flatten() {
        let mut rig = TableRig::new();
        assert_eq!(rig.lock(Ask { span, ..request(1, Shared, Waits::No) }), GOT);
        let token = rig.view(&name(FILE)).holders[0].lease.token;
        let other = rig.lease_of(FILE + 1);
        assert!(!rig.table.linked(Token::named(99), other));
        let linked = rig.lease_of(FILE + 2);
        assert!(rig.table.linked(token, linked.clone()));
        let (from, to) = (linked, name(FILE + 3));
        let mut todo = Vec::new();
        let ask = Move { from, to, over: IfExists::Refuse };
        rig.apply(Op::Move(ask), &mut todo).expect("it can be moved");
        rig.run(todo);
        let is_linked = |rig: &TableRig| !rig.view(&name(FILE + 3)).holders.is_empty();
        // Another owner locks the file too, or the lock is removed by its name before its file is
        // closed.
        match end {
            0 => rig.unlock(1, span),
            1 => rig.closed(1),
            removed => {
                let Ask { client, .. } = request(1, Shared, Waits::No);
                let key = LeaseKey { name: name(FILE), client, token: Some(token) };
                let mut todo = Vec::new();
                rig.apply(Op::Release(Release::of(key)), &mut todo).expect("it is held");
                rig.run(todo);
                assert!(is_linked(&rig) && !rig.table.is_idle());
                if removed == 2 { rig.unlock(1, ByteRange::WHOLE) } else { rig.closed(1) }
            }
        }
        assert!(!is_linked(&rig), "{span:?} {end}");
        rig.closed(1);
        assert_eq!(rig.engine.locks(), 1, "only the one that was not linked");
        assert!(rig.table.is_idle());
    }
}

impl TableRig {
    /// Moves the lock of the file to the name `to`, as another program would.
    fn move_to(&mut self, to: &LockName) -> Vec<Effect<u32>> {
        let holder = self.view(&name(FILE)).holders.first().map(|holder| holder.lease.clone());
        let lease = holder.expect("it is held");
        let from = LeaseKey { name: name(FILE), client: lease.holder, token: Some(lease.token) };
        let mut todo = Vec::new();
        let ask = Move { from, to: to.clone(), over: IfExists::Refuse };
        self.apply(Op::Move(ask), &mut todo).expect("it can be moved");
        todo
    }
}

#[test]
fn hold_that_is_moved_while_it_is_released_is_released_under_its_new_name() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    let mut release = Vec::new();
    rig.table.unlock(FILE, 1, ByteRange::WHOLE, &mut release);
    assert!(!rig.table.is_idle(), "the events of the release are heard");
    let todo = rig.move_to(&name(FILE + 1));
    let Some(Effect::Tell(op, _)) = release.pop() else { panic!("no release: {release:?}") };
    rig.apply(*op, &mut Vec::new()).expect("it names the open file");
    rig.run(todo);
    assert_eq!(rig.engine.locks(), 0);
    assert!(rig.table.is_idle());
}

/// Returns the effects of an unlock by owner 1, of which program 9 awaits the result.
fn unlock_and_reply(rig: &mut TableRig, span: ByteRange) -> Vec<Effect<u32>> {
    let mut todo = Vec::new();
    rig.table.unlock_and_reply(FILE, 1, span, 9, &mut todo);
    todo
}

#[test]
fn unlock_is_answered_with_its_release() {
    let mut rig = TableRig::new();
    let is_release =
        |op: &Op| matches!(op, Op::Release(Release { open: Some(open), .. }) if open.number == 1);
    rig.lock(request(1, Exclusive, Waits::No));
    rig.lock(request(2, Exclusive, Waits::Yes));
    let todo = unlock_and_reply(&mut rig, ByteRange::WHOLE);
    assert!(matches!(&todo[..], [Effect::Tell(op, Some(9))] if is_release(op)), "{todo:?}");
    rig.run(todo);
    assert_eq!(rig.reply(2), GOT);
    let todo = unlock_and_reply(&mut rig, ByteRange::WHOLE);
    assert!(
        matches!(todo[..], [Effect::Reply(9, Ok(()))]),
        "there was nothing to release: {todo:?}"
    );
    rig.closed(2);

    rig.lock(part(1, Exclusive, Waits::No, 0, 9));
    rig.lock(part(2, Exclusive, Waits::No, 10, 19));
    let todo = unlock_and_reply(&mut rig, span(0, 9));
    assert!(matches!(todo[..], [Effect::Reply(9, Ok(()))]), "another range is locked: {todo:?}");
}

#[test]
fn an_interrupted_waiter_keeps_its_place_for_a_moment() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    rig.lock(request(2, Exclusive, Waits::Yes));
    rig.lock(request(3, Exclusive, Waits::Yes));
    rig.interrupt(2);
    assert_eq!(rig.reply(2), Some(Err(No::Interrupted)));
    assert_eq!(rig.lock(request(2, Exclusive, Waits::Yes)), None, "it asks again");
    rig.unlock(1, ByteRange::WHOLE);
    assert_eq!((rig.reply(2), rig.reply(3)), (GOT, None), "and was still the first");
    rig.unlock(2, ByteRange::WHOLE);
    rig.closed(3);
    assert!(rig.table.files.is_empty());
}

#[test]
fn place_of_a_waiter_that_does_not_return_expires() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    rig.lock(request(2, Exclusive, Waits::Yes));
    rig.lock(request(3, Exclusive, Waits::Yes));
    rig.interrupt(2);
    rig.unlock(1, ByteRange::WHOLE);
    assert_eq!(rig.reply(3), None, "2 may still come back");
    rig.expire(2);
    assert_eq!(rig.reply(3), GOT);
    rig.interrupt(3);
    rig.closed(3);
    rig.lock(request(1, Exclusive, Waits::No));
    rig.lock(request(2, Exclusive, Waits::Yes));
    rig.interrupt(2);
    rig.closed(2);
    rig.unlock(1, ByteRange::WHOLE);
    assert!(rig.table.files.is_empty(), "the dead leave by RELEASE, at once");
}

/// With a remote engine, a signal can come between a request and its answer. An upgrade that was
/// given up leaves the held lock as it was, and leaves nothing behind.
#[test]
fn an_interrupted_upgrade_keeps_what_was_held() {
    for part in [ByteRange::WHOLE, span(0, 9)] {
        let mut rig = TableRig::new();
        let own = |mode, line| Ask { span: part, ..request(1, mode, line) };
        assert_eq!(rig.lock(own(Shared, Waits::No)), GOT);
        rig.reply.clear();
        let mut asked = Vec::new();
        rig.table.lock(own(Exclusive, Waits::Yes), 1, &mut asked);
        let number = asked.iter().find_map(|effect| match effect {
            Effect::Submit { ask, .. } => match ask.hold {
                Ownership::OpenFile(open) => Some(open.number),
                _ => None,
            },
            _ => None,
        });
        let number = number.expect("the engine is asked");
        let mut todo = Vec::new();
        rig.table.interrupt(number, &mut todo);
        rig.run(todo);
        assert_eq!(rig.reply(1), Some(Err(No::Interrupted)));
        rig.run(asked);
        let mut todo = Vec::new();
        rig.table.expire(number, &mut todo);
        rig.run(todo);
        let reads = |n| Ask { span: part, ..request(n, Shared, Waits::No) };
        let writes = |n| Ask { span: part, ..request(n, Exclusive, Waits::No) };
        assert!(busy(rig.lock(writes(2))), "it reads still");
        assert_eq!(rig.lock(reads(2)), GOT, "and only reads");
        rig.closed(1);
        assert_eq!(rig.lock(writes(2)), GOT);
        rig.closed(2);
        assert!(rig.table.files.is_empty());
    }
}

#[test]
fn ranges_share_one_hold_of_the_engine() {
    let mut rig = TableRig::new();
    let part = |n, from, to| Ask { span: span(from, to), ..request(n, Exclusive, Waits::No) };
    assert_eq!(rig.lock(part(1, 0, 9)), GOT);
    assert_eq!(rig.lock(part(2, 10, 19)), GOT);
    assert!(busy(rig.lock(part(3, 5, 14))));
    assert!(busy(rig.lock(request(4, Shared, Waits::No))));
    assert_eq!(rig.view(&name(FILE)).holders.len(), 1);
    let waits = Ask { line: Waits::Yes, ..part(3, 5, 14) };
    assert_eq!(rig.lock(waits), None);
    rig.unlock(1, ByteRange::WHOLE);
    assert_eq!(rig.reply(3), None);
    rig.closed(2);
    assert_eq!(rig.reply(3), GOT);
    rig.unlock(3, span(5, 14));
    assert!(rig.table.files.is_empty());
}

#[test]
fn a_whole_lock_can_be_given_back_in_parts() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    rig.unlock(1, span(10, 19));
    let part = |n, from, to| Ask { span: span(from, to), ..request(n, Exclusive, Waits::No) };
    assert!(busy(rig.lock(part(2, 0, 3))));
    assert_eq!(rig.lock(part(2, 12, 13)), GOT);
    assert_eq!(
        rig.table.conflict(FILE, 3, ByteRange::WHOLE, Exclusive),
        Some((span(0, 9), Exclusive, 1))
    );
    rig.unlock(1, ByteRange::WHOLE);
    rig.unlock(2, ByteRange::WHOLE);
    assert!(rig.table.files.is_empty());
}

#[test]
fn upgrade_is_atomic_for_fcntl_but_not_for_flock() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Shared, Waits::No));
    rig.lock(request(2, Shared, Waits::No));
    assert!(busy(rig.lock(request(1, Exclusive, Waits::No))));
    assert!(rig.table.holds(FILE, 1), "fcntl keeps what it had");
    assert_eq!(rig.lock(request(1, Exclusive, Waits::Yes)), None);
    let upgrade = rig.lock(request(2, Exclusive, Waits::Yes));
    assert_eq!(upgrade, Some(Err(No::Deadlock)), "each would wait for the other");
    rig.unlock(2, ByteRange::WHOLE);
    assert_eq!(rig.reply(1), GOT);
    rig.unlock(1, ByteRange::WHOLE);
    assert!(rig.table.files.is_empty());

    rig.lock(flock(1, Shared, Waits::No));
    rig.lock(flock(2, Shared, Waits::No));
    assert!(busy(rig.lock(flock(1, Exclusive, Waits::No))));
    assert!(!rig.table.holds(FILE, 1), "flock has given the old lock back first");
    assert_eq!(rig.lock(flock(1, Exclusive, Waits::Yes)), None);
    rig.unlock(2, ByteRange::WHOLE);
    assert_eq!(rig.reply(1), GOT);
    rig.closed(1);
    assert!(rig.table.files.is_empty());
}

/// A shared whole-file lock next to another owner's range: a request to upgrade or downgrade it
/// does not conflict with itself.
#[test]
fn whole_file_lock_next_to_ranges_can_be_upgraded_and_downgraded() {
    let mut rig = TableRig::new();
    let part = |n, from, to| Ask { span: span(from, to), ..request(n, Shared, Waits::No) };
    assert_eq!(rig.lock(request(1, Shared, Waits::No)), GOT);
    assert_eq!(rig.lock(part(2, 10, 19)), GOT);
    assert_eq!(rig.lock(request(1, Shared, Waits::No)), GOT);
    assert_eq!(rig.lock(request(1, Exclusive, Waits::Yes)), None);
    rig.unlock(2, ByteRange::WHOLE);
    assert_eq!(rig.reply(1), GOT);
    rig.unlock(1, ByteRange::WHOLE);
    assert!(rig.table.files.is_empty());

    assert_eq!(rig.lock(request(1, Shared, Waits::No)), GOT);
    assert_eq!(rig.lock(part(2, 10, 19)), GOT);
    rig.unlock(1, span(0, 9));
    rig.unlock(2, ByteRange::WHOLE);
    let writes = |from, to| Ask { mode: Exclusive, ..part(3, from, to) };
    assert_eq!(rig.lock(writes(0, 9)), GOT);
    assert!(busy(rig.lock(writes(10, 19))), "the rest of it is still held");
    rig.closed(1);
    rig.closed(3);
    assert!(rig.table.files.is_empty());
}

#[test]
fn deadlock_over_two_files_is_refused() {
    let mut rig = TableRig::new();
    rig.lock(on(1, request(1, Exclusive, Waits::No)));
    let other_file = |n| Ask {
        owner: PosixOwner { fh: 50 + u64::from(n), ..request(n, Shared, Waits::No).owner },
        ..request(n, Exclusive, Waits::Yes)
    };
    rig.lock(on(2, request(2, Exclusive, Waits::No)));
    assert_eq!(rig.lock(on(2, other_file(1))), None);
    assert_eq!(rig.lock(on(1, other_file(2))), Some(Err(No::Deadlock)));
}

fn part(n: u32, mode: Mode, line: Waits, from: u64, to: u64) -> Ask {
    Ask { span: span(from, to), ..request(n, mode, line) }
}

fn flock(n: u32, mode: Mode, line: Waits) -> Ask {
    Ask { call: |_| Call::Flock, ..request(n, mode, line) }
}

/// Two requests with the same lease number would share a queue place: giving up the first would
/// remove the second.
#[test]
fn giving_up_a_late_place_leaves_the_newer_request() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    let late = rig.lock_late(request(2, Exclusive, Waits::Yes));
    rig.signal(2);
    assert!(rig.lock_late(request(2, Shared, Waits::Yes)).is_empty(), "what became of the first?");
    rig.answered(late);
    assert_eq!((rig.reply(2), rig.engine.waiters()), (None, 1));
    rig.unlock(1, ByteRange::WHOLE);
    assert_eq!(rig.reply(2), GOT);
    rig.closed(2);
    assert!(rig.table.files.is_empty());
}

/// When the answer to an upgrade arrives that was given up meanwhile, the lease is downgraded to
/// shared mode again, but not a lease that a newer request has upgraded.
#[test]
fn an_abandoned_upgrade_does_not_undo_the_next() {
    let mut rig = TableRig::new();
    assert_eq!(rig.lock(request(1, Shared, Waits::No)), GOT);
    let mut late = rig.lock_late(request(1, Exclusive, Waits::Yes));
    rig.signal(1);
    late.extend(rig.lock_late(request(1, Exclusive, Waits::No)));
    rig.answered(late);
    assert_eq!(rig.reply(1), GOT);
    assert!(busy(rig.lock(request(2, Shared, Waits::No))), "it is alone, as its answer says");
    rig.closed(1);
    assert!(rig.table.files.is_empty());
}

#[test]
fn ranges_stay_while_more_is_asked_for() {
    let mut rig = TableRig::new();
    assert_eq!(rig.lock(part(1, Shared, Waits::No, 0, 9)), GOT);
    let late = rig.lock_late(part(2, Exclusive, Waits::No, 10, 19));
    assert!(rig.lock_late(part(3, Exclusive, Waits::No, 20, 29)).is_empty(), "one at a time");
    assert!(rig.unlock_late(1).is_empty());
    rig.answered(late);
    assert_eq!((rig.reply(2), rig.reply(3)), (GOT, GOT));
    assert!(busy(rig.lock(part(1, Shared, Waits::No, 10, 10))));
    rig.closed(2);
    rig.closed(3);
    assert!(rig.table.files.is_empty());
}

/// The two ranges do not conflict, but the second request waits for the answer to the first.
#[test]
fn second_range_waits_for_the_answer_to_the_first() {
    let mut rig = TableRig::new();
    let late = rig.lock_late(part(1, Exclusive, Waits::No, 0, 9));
    assert!(rig.lock_late(part(2, Exclusive, Waits::No, 10, 19)).is_empty());
    assert_eq!(rig.reply(2), None, "not busy: nobody knows yet");
    rig.answered(late);
    assert_eq!((rig.reply(1), rig.reply(2)), (GOT, GOT));
    rig.closed(1);
    rig.closed(2);
    assert!(rig.table.files.is_empty());
}

/// After an unlock, a request that a signal interrupted before the unlock must not be resumed.
#[test]
fn unlock_ends_an_interrupted_request() {
    let mut rig = TableRig::new();
    assert_eq!(rig.lock(flock(1, Shared, Waits::No)), GOT);
    let mut late = rig.lock_late(flock(1, Shared, Waits::Yes));
    rig.signal(1);
    late.extend(rig.unlock_late(1));
    late.extend(rig.lock_late(flock(1, Shared, Waits::Yes)));
    rig.answered(late);
    assert_eq!(rig.reply(1), GOT);
    assert!(busy(rig.lock(request(2, Exclusive, Waits::No))), "it has what its answer says");
    rig.closed(1);
    assert!(rig.table.files.is_empty());
}

/// In an earlier version nobody gave such a lock back before the file was closed.
#[test]
fn unlock_of_a_part_gives_back_what_was_kept_for_a_restart() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    assert_eq!(rig.lock(request(2, Shared, Waits::Yes)), None);
    rig.interrupt(2);
    rig.closed(1);
    rig.unlock(2, ByteRange { start: 1, end: 2 });
    assert_eq!(rig.lock(request(3, Exclusive, Waits::No)), GOT);
    rig.closed(2);
    rig.closed(3);
    assert!(rig.table.files.is_empty());
}

#[test]
fn returning_waiter_that_no_longer_waits_is_answered() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Exclusive, Waits::No));
    rig.lock(request(2, Exclusive, Waits::Yes));
    rig.interrupt(2);
    assert!(busy(rig.lock(request(2, Exclusive, Waits::No))));
    rig.closed(1);
    assert!(rig.table.files.is_empty());
}

/// The event on which a refused request is retried comes before the refusal that makes the request
/// wait.
#[test]
fn late_refusal_is_retried() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Shared, Waits::No));
    rig.lock(request(2, Shared, Waits::No));
    let mut late = rig.lock_late(request(1, Exclusive, Waits::Yes));
    late.extend(rig.unlock_late(2));
    rig.answered(late);
    assert_eq!(rig.reply(1), GOT);
    rig.closed(1);
    assert!(rig.table.files.is_empty());
}

#[test]
fn an_upgrade_does_not_wait_for_ranges_behind_it() {
    let mut rig = TableRig::new();
    rig.lock(request(1, Shared, Waits::No));
    rig.lock(request(2, Shared, Waits::No));
    assert_eq!(rig.lock(part(3, Exclusive, Waits::Yes, 0, 9)), None);
    assert_eq!(rig.lock(request(1, Exclusive, Waits::Yes)), None);
    rig.closed(2);
    assert_eq!(rig.reply(1), GOT);
    rig.closed(1);
    assert_eq!(rig.reply(3), GOT);
    rig.closed(3);
    assert!(rig.table.files.is_empty());
}

#[test]
fn returning_waiter_finds_that_its_turn_has_come() {
    let mut rig = TableRig::new();
    rig.lock(part(1, Exclusive, Waits::No, 0, 9));
    rig.lock(part(2, Exclusive, Waits::No, 20, 29));
    assert_eq!(rig.lock(part(3, Exclusive, Waits::Yes, 0, 9)), None);
    rig.interrupt(3);
    rig.closed(1);
    assert_eq!(rig.lock(part(3, Exclusive, Waits::Yes, 0, 9)), GOT);
    rig.closed(2);
    rig.closed(3);
    assert!(rig.table.files.is_empty());
}

/// Both programs have released their locks before they wait, as flock(2) documents, so neither
/// waits for the other.
#[test]
fn two_flocks_next_to_ranges_can_both_be_upgraded() {
    let mut rig = TableRig::new();
    rig.lock(part(1, Shared, Waits::No, 0, 9));
    rig.lock(flock(2, Shared, Waits::No));
    rig.lock(flock(4, Shared, Waits::No));
    assert_eq!(rig.lock(flock(2, Exclusive, Waits::Yes)), None);
    assert_eq!(rig.lock(flock(4, Exclusive, Waits::Yes)), None);
    rig.closed(1);
    assert_eq!((rig.reply(2), rig.reply(4)), (GOT, None));
    rig.closed(2);
    assert_eq!(rig.reply(4), GOT);
    rig.closed(4);
    assert!(rig.table.files.is_empty());
}

/// A late event about an earlier lease of the lock does not change the current lease.
#[test]
fn late_event_about_a_former_tenure_is_ignored() {
    let mut rig = TableRig::new();
    let token = |rig: &TableRig| rig.view(&name(FILE)).holders[0].lease.token;
    rig.lock(request(1, Exclusive, Waits::No));
    let old = token(&rig);
    rig.unlock(1, ByteRange::WHOLE);
    rig.lock(request(1, Exclusive, Waits::No));
    let client = request(1, Shared, Waits::No).client;
    let key = LeaseKey { name: name(FILE), client, token: Some(old) };
    let mut todo = Vec::new();
    rig.table.granted(1, None, key, &mut todo);
    rig.table.ended(old, &mut todo);
    rig.run(todo);
    assert!(rig.table.holds(FILE, 1));
    rig.unlock(1, ByteRange::WHOLE);
    assert!(rig.table.files.is_empty());
}

/// The lock is removed by name before the answer to its request comes.
#[test]
fn late_answer_does_not_revive_an_ended_tenure() {
    let mut rig = TableRig::new();
    let late = rig.lock_late(request(1, Exclusive, Waits::No));
    let lease = rig.view(&name(FILE)).holders[0].lease.clone();
    let key = LeaseKey { name: name(FILE), client: lease.holder, token: Some(lease.token) };
    let mut todo = Vec::new();
    rig.apply(Op::Release(Release::of(key)), &mut todo).expect("it is held");
    assert!(rig.carry(todo).is_empty());
    rig.answered(late);
    assert!(rig.table.files.is_empty(), "nobody holds what is over");
}

/// A lock request without an answer does not delay other lock requests.
#[test]
fn request_without_an_answer_does_not_block_others() {
    let mut rig = TableRig::new();
    let mut lost = Vec::new();
    rig.table.lock(part(1, Exclusive, Waits::No, 0, 9), 1, &mut lost);
    let cookies = lost.iter().filter_map(|effect| match effect {
        Effect::Submit { cookie, .. } => Some(*cookie),
        _ => None,
    });
    let [cookie] = cookies.collect::<Vec<_>>()[..] else { panic!("one is asked: {lost:?}") };
    assert!(rig.lock_late(part(2, Exclusive, Waits::No, 10, 19)).is_empty());
    let mut todo = Vec::new();
    assert_eq!(rig.table.unanswered(cookie, FILE, &mut todo), Some(1), "it is to get an answer");
    rig.run(todo);
    assert_eq!(rig.reply(2), GOT);
    rig.closed(2);
    assert!(rig.table.files.is_empty());
}

/// Random programs lock three files: the table and the engine agree after every step, and nothing
/// is left when all programs have ended.
#[test]
fn random_programs_leave_nothing_behind() {
    for seed in 0..2_000_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32 % below
        };
        let mut rig = TableRig::new();
        let mut waits = BTreeSet::new();
        for _ in 0..150 {
            waits.retain(|n| !rig.reply.contains_key(n));
            let n = 1 + random(6);
            let busy = waits.contains(&n);
            let from = u64::from(random(4));
            let part = if random(2) == 0 { ByteRange::WHOLE } else { span(from, from + 2) };
            match random(8) {
                0..=3 if !busy => {
                    let mode = if random(2) == 0 { Shared } else { Exclusive };
                    let line = if random(2) == 0 { Waits::Yes } else { Waits::No };
                    // As for real programs, a flock covers the whole file, and an owner uses one
                    // kind of lock.
                    let call: CallOf = |n| if n % 2 == 0 { Call::Flock } else { Call::Fcntl };
                    let span = if n % 2 == 0 { ByteRange::WHOLE } else { part };
                    if rig.lock(Ask { span, call, ..request(n, mode, line) }).is_none() {
                        waits.insert(n);
                    }
                }
                4 if !busy => rig.unlock(n, if n % 2 == 0 { ByteRange::WHOLE } else { part }),
                5 if busy => rig.interrupt(n),
                6 if rig.watched.contains_key(&n) => rig.expire(n),
                7 if !busy => rig.closed(n),
                _ => {}
            }
        }
        for n in 1..=6 {
            if waits.contains(&n) && rig.reply(n).is_none() {
                rig.interrupt(n);
            }
            rig.closed(n);
        }
        assert!(rig.table.files.is_empty(), "seed {seed}: {:?}", rig.table.files);
        assert_eq!((rig.engine.locks(), rig.engine.waiters()), (0, 0), "seed {seed}");
    }
}
