//! Directed tests of the codec: each value decodes as it was encoded, and damaged bytes are
//! refused.

use crate::codec::state_codec::{Codec, Decoder, Encoder, FORMAT_VERSION, Malformed};
use crate::model::sound;
use crate::tests::{Lab, acquire, client, name, own, shared, waiting};
use crate::time::{Span, Time, Wall};
use crate::values::deadlines::Due;
use crate::values::deadlines::Session;
use crate::values::details::LimitedField;
use crate::values::idempotency::IdempotencyRecord;
use crate::values::lock::{Lock, QueuedWaiter, Tenancy};
use crate::*;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

fn written(value: &impl Codec) -> Vec<u8> {
    let mut bytes = Encoder::new(FORMAT_VERSION);
    value.put(&mut bytes);
    bytes.into_bytes()
}

/// Decodes a whole value in the current format.
fn read<T: Codec>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut from = Decoder::new(FORMAT_VERSION, bytes);
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

/// Checks that a value decodes as it was encoded, and that no proper prefix of its bytes decodes.
#[track_caller]
fn survives<T: Codec + PartialEq + Debug>(value: &T) {
    let bytes = written(value);
    assert_eq!(read::<T>(&bytes).as_ref(), Ok(value));
    for end in 0..bytes.len() {
        assert_eq!(read::<T>(&bytes[..end]), Err(Malformed), "{value:?} cut at {end}");
    }
    assert_eq!(read::<T>(&[&bytes[..], &[0]].concat()), Err(Malformed), "a byte is left");
}

#[test]
fn numbers_have_one_form() {
    for number in [0, 1, 127, 128, 300, 16_383, 16_384, u64::MAX >> 1, u64::MAX] {
        survives(&number);
    }
    assert_eq!(written(&300_u64), [0xac, 0x02]);
    assert_eq!(written(&u64::MAX), [[0xff; 9].as_slice(), &[0x01]].concat());
    assert_eq!(read::<u64>(&[0x80, 0x00]), Err(Malformed), "padded");
    assert_eq!(read::<u64>(&[[0xff; 9].as_slice(), &[0x02]].concat()), Err(Malformed), "65 bits");
    assert_eq!(read::<u64>(&[[0xff; 10].as_slice(), &[0x01]].concat()), Err(Malformed));
    for number in [0, -1, 1, i64::MIN, i64::MAX] {
        survives(&number);
    }
    assert_eq!(written(&-1_i64), [1]);
    assert_eq!(read::<u16>(&written(&65_536_u64)), Err(Malformed));
    assert_eq!(read::<u32>(&written(&(1_u64 << 32))), Err(Malformed));
    assert_eq!(read::<Ttl>(&written(&Span::ZERO)), Err(Malformed), "no ttl");
}

#[test]
fn lists_options_and_flags_are_read_as_written() {
    survives(&vec![1_u64, 300, 0]);
    survives(&vec![1_u8, 255, 0]);
    survives(&vec![5_u64; 1_000]);
    survives(&Some(7_u64));
    survives(&None::<u64>);
    survives(&true);
    survives(&false);
    survives(&(Box::new(1_u64), Arc::new(2_u64)));
    survives(&BTreeMap::from([(1_u64, 2_u64), (3, 4)]));
    survives::<Arc<[u8]>>(&b"text".as_slice().into());
    survives::<Arc<str>>(&"text".into());
    assert_eq!(read::<bool>(&[2]), Err(Malformed));
    assert_eq!(read::<Option<u64>>(&[2, 0]), Err(Malformed));
    assert_eq!(read::<Result<u64, Refusal>>(&[2, 0]), Err(Malformed));
    assert_eq!(read::<Mode>(&[2]), Err(Malformed));
    assert_eq!(read::<Arc<str>>(&[1, 0xff]), Err(Malformed), "no UTF-8");
    assert_eq!(read::<BTreeMap<u64, u64>>(&[2, 3, 0, 1, 0]), Err(Malformed), "out of order");
    assert_eq!(read::<BTreeMap<u64, u64>>(&[2, 3, 0, 3, 0]), Err(Malformed), "twice");
    assert_eq!(read::<StealReason>(&[2, b' ', b'x']), Err(Malformed), "not as it is kept");
}

/// The decoder trusts no length: it refuses more items than bytes are left, and more than its
/// memory budget allows.
#[test]
fn what_is_read_has_room() {
    let bytes = [3, 1, 2, 3];
    let within = |room| Vec::<u64>::take(&mut Decoder::within(room, FORMAT_VERSION, &bytes));
    let needed = 3 * size_of::<u64>() + 32;
    assert_eq!(within(needed), Ok(vec![1, 2, 3]));
    assert_eq!(within(needed - 1), Err(Malformed));
    assert_eq!(read::<Vec<u64>>(&[4, 1, 2, 3]), Err(Malformed));
    // All values that a decoder reads share one memory budget.
    let both = [&bytes[..], &bytes[..]].concat();
    let two =
        |room| <(Vec<u64>, Vec<u64>)>::take(&mut Decoder::within(room, FORMAT_VERSION, &both));
    assert!(two(2 * needed).is_ok() && two(2 * needed - 1).is_err());
}

#[test]
fn a_decoder_knows_what_is_left() {
    let mut from = Decoder::new(FORMAT_VERSION, &[1, 2, 3]);
    assert_eq!(from.peek(), Some(1));
    assert_eq!(from.take_array(), Ok([1, 2]));
    assert!(!from.is_empty());
    assert_eq!(from.take_array::<2>(), Err(Malformed));
    assert_eq!((from.peek(), from.rest()), (Some(3), &[3][..]));
    assert!(Decoder::new(FORMAT_VERSION, &[]).is_empty());
    assert_eq!(Decoder::new(FORMAT_VERSION, &[]).peek(), None);
}

/// The events, answers and views that random commands produce decode as they were encoded.
#[test]
fn events_answers_and_views_are_read_as_written() {
    let (rules, commands) = sound(5, 600);
    let mut engine = Engine::new(rules);
    for (at, command) in &commands {
        let mut events = vec![];
        let answer = engine.apply(*at, command, &mut events);
        assert_eq!(read(&written(&answer)), Ok(answer));
        assert_eq!(read(&written(&events)), Ok(events));
        let views: Vec<_> = engine.list("", None, 9, *at).collect();
        assert_eq!(read(&written(&views)), Ok(views));
        let (children, _) = engine.children(None, None, 9);
        assert_eq!(read(&written(&children)), Ok(children));
    }
    survives(&Err::<Outcome, _>(Refusal {
        at: Time::from_secs(1),
        reason: Box::new(Reason::Oversized(LimitedField::Note)),
    }));
    survives(&Ok::<_, Refusal>(Outcome::Settled));
}

#[test]
fn baselines_and_rules_are_read_as_written() {
    let rules = Rules { locks_max: 7, ..Rules::default() };
    for cause in [HoldOffCause::NoState, HoldOffCause::Restored, HoldOffCause::Recovered] {
        let hold_off = Some(HoldOff { until: Time::from_secs(7), cause });
        survives(&Baseline { rules, tokens_from: 8, tickets_from: 9, hold_off });
    }
    let mut bytes = vec![];
    codec::state_codec::encode_rules(&rules, &mut bytes);
    assert_eq!(
        codec::state_codec::decode_rules(codec::state_codec::known_version(), &bytes),
        Ok(rules)
    );
    bytes.push(0);
    assert_eq!(
        codec::state_codec::decode_rules(codec::state_codec::known_version(), &bytes),
        Err(Malformed)
    );
}

#[test]
fn details_are_read_as_written() {
    let times = Some((Wall { secs: -1, nanos: 2 }, Wall { secs: 3, nanos: 4 }));
    let attrs = FileAttrs { file_type: FileType::Symlink, uid: 7, times, ..FileAttrs::default() };
    let process = Some(Process { pid: 1, start: 2, boot: 3 });
    let details = Details::default().with_attrs(attrs).with_process(process);
    let details = details.with_note(Some("busy".into())).with_text(b"text".as_slice().into());
    survives(&details.with_holder_id(Some("host:a:7:70".into())));
}

/// A replay within a replay is refused, since nested replays could make the decoder recurse without
/// bound.
#[test]
fn the_answer_of_a_replay_is_no_replay() {
    let replay = |first| Replay { at: Time::ZERO, first, ends: None };
    let once = Outcome::Replayed(Box::new(replay(Outcome::Settled)));
    survives(&once);
    let twice = Outcome::Replayed(Box::new(replay(once)));
    assert_eq!(read::<Outcome>(&written(&twice)), Err(Malformed));
}

/// The parts of an engine's state, which tests can combine and encode in ways that no engine would.
struct State {
    upcoming: u64,
    next_ticket: u64,
    sessions: Vec<(SessionId, Session)>,
    locks: Vec<(LockName, Lock)>,
    replies: Vec<(RequestId, IdempotencyRecord)>,
    tail: Vec<u8>,
}

impl State {
    /// Returns a valid state with two sessions, two locks, of which the first one has waiters, and
    /// the remembered answers to two requests.
    fn sound() -> Self {
        let mut lab = Lab::new();
        let session = lab.session("a");
        lab.session("b");
        lab.granted(Acquire { term: LeaseTerms::Session(session), ..acquire("x", "a") });
        let asked = Acquire { term: LeaseTerms::Session(session), ..acquire("x", "a") };
        let file = Ownership::OpenFile(OpenId { session, number: 1 });
        for hold in [Ownership::Exclusive(None), file] {
            lab.does(waiting(Acquire { hold, ..asked.clone() })).expect("waits");
        }
        lab.granted(shared(acquire("y", "a")));
        lab.granted(shared(acquire("y", "b")));
        for key in ["k1", "k2"] {
            let id = RequestId { caller: "c".into(), key: key.into() };
            let request = Some(IdempotencyKey { id, digest: Digest(1) });
            lab.does_command(&Command { request, ..Op::Settle.into() }).expect("settled");
        }
        let state = &lab.engine.state;
        Self {
            upcoming: state.mint.upcoming(),
            next_ticket: state.next_ticket,
            sessions: state.sessions.clone().into_iter().collect(),
            locks: lab
                .engine
                .locks
                .iter()
                .map(|(name, lock)| (name.clone(), *lock.clone()))
                .collect(),
            replies: state.replies.iter().map(|(id, reply)| (id.clone(), reply.clone())).collect(),
            tail: vec![0, 0, 0],
        }
    }

    fn decode(&self) -> Result<Engine, Malformed> {
        let mut bytes = Encoder::new(FORMAT_VERSION);
        Rules::default().put(&mut bytes);
        Time::ZERO.put(&mut bytes);
        self.upcoming.put(&mut bytes);
        self.next_ticket.put(&mut bytes);
        put_pairs(&self.sessions, &mut bytes);
        put_pairs(&self.locks, &mut bytes);
        put_pairs(&self.replies, &mut bytes);
        bytes.extend_from_slice(&self.tail);
        codec::state_codec::decode_engine(codec::state_codec::known_version(), &bytes)
    }
}

/// A description of damage to a state, and a function that causes the damage.
type Damage = (&'static str, fn(&mut State));

fn put_pairs<K: Codec, V: Codec>(pairs: &[(K, V)], out: &mut Encoder) {
    pairs.len().put(out);
    for (key, value) in pairs {
        key.put(out);
        value.put(out);
    }
}

/// The decoder refuses a state that no engine can reach, even if its bytes are well formed.
#[test]
fn states_that_contradict_themselves_are_refused() {
    State::sound().decode().expect("it is sound").check();
    let damages: &[Damage] = &[
        ("no token is upcoming", |state| {
            (state.upcoming, state.locks) = (0, vec![]);
        }),
        ("a token would be given out again", |state| {
            let lease = state.locks[1].1.leases().last().expect("it is held");
            state.upcoming = lease.token.as_u64();
        }),
        ("a ticket would be given out again", |state| state.next_ticket -= 1),
        ("sessions are out of order", |state| state.sessions.reverse()),
        ("a session comes twice", |state| state.sessions[1].0 = state.sessions[0].0),
        ("locks are out of order", |state| state.locks.reverse()),
        ("a lock comes twice", |state| state.locks.push(state.locks[1].clone())),
        ("replies are out of order", |state| state.replies.reverse()),
        ("a reply comes twice", |state| state.replies.push(state.replies[1].clone())),
        ("a lock is free", |state| state.locks[0].1 = Lock::default()),
        ("the session of a lease is unknown", |state| {
            state.sessions.remove(0);
            let tickets: Vec<_> = state.locks[0].1.line.keys().copied().collect();
            for ticket in tickets {
                state.locks[0].1.line.remove(ticket);
            }
        }),
        ("the session of a waiter is unknown", |state| {
            let ask = acquire("x", "c");
            let term = LeaseTerms::Session(SessionId::named(99));
            let waiter = QueuedWaiter::new(&Acquire { term, ..ask }, Time::ZERO, None);
            state.locks[0].1.line.insert(Ticket::named(1), waiter);
        }),
        ("leases are out of order", |state| {
            state.locks[1].1.leases_mut().reverse();
        }),
        ("two leases have one token", |state| {
            let leases = state.locks[1].1.leases_mut();
            leases[1].token = leases[0].token;
        }),
        ("a reply is kept for a place that is none", |state| {
            let (ticket, before) = (Ticket::named(99), 0);
            let reply = &mut state.replies[0].1;
            (reply.until, reply.replay.first) = (Time::NEVER, Outcome::Waiting { ticket, before });
        }),
        ("a reply is kept for ever", |state| state.replies[0].1.until = Time::NEVER),
        ("the end is missing", |state| state.tail = vec![0, 0]),
        ("the hold-off is over", |state| state.tail = vec![1, 0, 0, 0, 0]),
        ("a shared lock has no lease", |state| {
            state.locks[0].1.tenancy = Tenancy::Shared(vec![]);
            state.tail = vec![1, 9, 0, 0, 0];
        }),
        ("the cause of the hold-off is unknown", |state| state.tail = vec![1, 9, 3, 0, 0]),
        ("a lock is only waited for", |state| state.locks[0].1.tenancy = Tenancy::Nobody),
        ("bytes are left", |state| state.tail = vec![0, 0, 0, 0]),
    ];
    for (damage, make) in damages {
        let mut state = State::sound();
        make(&mut state);
        assert_eq!(state.decode().err(), Some(Malformed), "{damage}");
    }
    let mut state = State { tail: vec![1, 9, 0, 0, 0], ..State::sound() };
    state.locks[0].1.tenancy = Tenancy::Nobody;
    let engine = state.decode().expect("it is sound");
    let hold_off = HoldOff { until: Time::from_nanos(9), cause: HoldOffCause::NoState };
    assert_eq!(engine.hold_off(), Some(hold_off));
    engine.check();
}

/// The answer to a queued request is remembered as long as the request is in the queue, and decodes
/// as it was encoded.
#[test]
fn a_reply_of_a_place_is_read_as_written() {
    let mut state = State::sound();
    let place = state.locks[0].1.line.keys().next().copied().expect("it is waited for");
    let reply = &mut state.replies[0].1;
    let first = Outcome::Waiting { ticket: place, before: 0 };
    (reply.until, reply.replay.first) = (Time::NEVER, first);
    let engine = state.decode().expect("it is sound");
    engine.check();
    assert!(engine.state.replies.waiting.contains_key(&place));
}

/// Of deadlines at the same time, the expiry of a session comes before those of leases and waits.
#[test]
fn sessions_end_before_what_hangs_on_them() {
    let session = Due::Session(SessionId::named(9));
    assert!(session < Due::Lease(Token::named(1), name("x")));
    assert!(session < Due::Patience(Box::new((Ticket::named(1), name("x")))));
}

/// Commands with every form of request id decode as they were encoded.
#[test]
fn commands_are_read_as_written() {
    let number = RequestNumber { session: SessionId::named(1), number: 2 };
    for key in [None, Some("k".into()), Some(RequestKey::Number(number))] {
        let id = key.map(|key| RequestId { caller: "c".into(), key });
        let request = id.map(|id| IdempotencyKey { id, digest: Digest(u128::MAX) });
        for answered_below in [0, 2, u64::MAX] {
            survives(&Command { request: request.clone(), op: Op::Settle, answered_below });
        }
    }
    for takes_over in [None, Some(Token::named(1)), Some(Token::named(values::lease::TOKEN_MAX))] {
        for mode in [Mode::Exclusive, Mode::Shared] {
            survives(&Op::Acquire(Acquire { mode, takes_over, ..acquire("x", "a") }));
        }
    }
    let LeaseTerms::Own(ttl, grace) = own(30, 5) else { unreachable!("as made above") };
    survives(&Op::OpenSession(OpenSession { client: client("a"), ttl: Some(ttl), grace }));
    let mut bytes = vec![];
    codec::state_codec::encode_command(Time::ZERO, &Op::Settle.into(), &mut bytes);
    bytes.push(0);
    assert!(
        codec::state_codec::decode_command(codec::state_codec::known_version(), &bytes).is_err(),
        "a byte is left"
    );
}
