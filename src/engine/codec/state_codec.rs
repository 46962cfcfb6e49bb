//! Encodes commands and engine states as bytes, for the journal, snapshots and replication.
//!
//! Each value has exactly one encoding, so equal states have equal bytes. Decoding never panics and
//! never trusts a length, since the bytes come from disks and networks. The containers (journal
//! records, snapshots) carry the version of the format.

pub use super::encoding::{
    Codec, Decoder, Encoder, decode_message, encode_message, require, wire_enum, wire_struct,
};
pub use super::encoding::{DecodeError, Malformed};
pub use super::format_version::{
    FORMAT_VERSION, UnknownVersion, check_version, known_version, oldest_version,
};
use crate::values::command::{
    Acquire, Annotate, Command, Digest, EndHoldOff, EndSession, Firm, Forget, IdempotencyKey,
    IfExists, LeaseKey, Leave, Move, Op, OpenSession, Outcome, QueuePolicy, Release, Renew, Replay,
    RequestId, RequestKey, RequestNumber, Reset, ResetPart, ResetScope, Steal, Tenure,
};
use crate::values::details::{Details, FileAttrs, FileType, Patch, Process, ReadMode, TextPatch};
use crate::values::hold_off::Baseline;

use super::encoding::{put_text, take_bytes, wire_number, wire_text};
use crate::codec::encoding::Interner;
use crate::state::{Engine, EngineState, Rules};
use crate::time::{Span, Time, Wall};
use crate::values::deadlines::Session;
use crate::values::event::{LeaveReason, SessionEnd};
use crate::values::handover::StolenTenure;
use crate::values::handover::{Handover, HandoverEnd, LastHandover, Previous, RememberedName};
use crate::values::hold_off::{HoldOff, HoldOffCause};
use crate::values::idempotency::{IdempotencyRecord, UsedNumbers};
use crate::values::lease::TokenAllocator;
use crate::values::lease::{
    Ends, Lease, LeaseTerms, Lifetime, Mode, OpenId, Ownership, Seats, SessionId, StealReason,
    Ticket, Token,
};
use crate::values::lease::{Grace, Ttl};
use crate::values::lock::{Lock, QueuedWaiter, Tenancy, WaitQueue};
use crate::values::name::{ClientId, LockName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[cfg(feature = "planted-version")]
pub use super::format_version::PLANTED_VERSION;

/// Appends `command`, to be applied at `at`, to `out`, in the newest version.
pub fn encode_command(at: Time, command: &Command, out: &mut Vec<u8>) {
    let mut bytes = Encoder::new(known_version());
    at.put(&mut bytes);
    command.put(&mut bytes);
    out.append(&mut bytes);
}

/// Decodes a command and its time, as [`encode_command`] encoded them in this version.
pub fn decode_command(version: u8, bytes: &[u8]) -> Result<(Time, Command), Malformed> {
    let mut from = Decoder::new(version, bytes);
    let decoded = (Time::take(&mut from)?, Command::take(&mut from)?);
    from.end()?;
    Ok(decoded)
}

/// Appends the encoded limits and durations of an engine (`rules`) to `out`, in the newest version.
pub fn encode_rules(rules: &Rules, out: &mut Vec<u8>) {
    let mut bytes = Encoder::new(known_version());
    rules.put(&mut bytes);
    out.append(&mut bytes);
}

/// Decodes limits and durations that [`encode_rules`] encoded in this version.
pub fn decode_rules(version: u8, bytes: &[u8]) -> Result<Rules, Malformed> {
    let mut from = Decoder::new(version, bytes);
    let rules = Rules::take(&mut from)?;
    from.end()?;
    Ok(rules)
}

/// Encodes the whole state of an engine in this version.
pub fn encode_engine(version: u8, engine: &Engine) -> Vec<u8> {
    let mut out = Encoder::new(version);
    let state = &engine.state;
    state.rules.put(&mut out);
    state.clock.put(&mut out);
    state.mint.upcoming().put(&mut out);
    state.next_ticket.put(&mut out);
    (state.sessions.len() as u64).put(&mut out);
    for (id, session) in &state.sessions {
        (*id).put(&mut out);
        session.put(&mut out);
    }
    (engine.locks.len() as u64).put(&mut out);
    for (name, lock) in engine.locks.iter() {
        name.put(&mut out);
        lock.put(&mut out);
    }
    (state.replies.len() as u64).put(&mut out);
    for (id, reply) in state.replies.iter() {
        id.put(&mut out);
        reply.put(&mut out);
    }
    state.hold_off.put(&mut out);
    state.remembered.put(&mut out);
    out.into_bytes()
}

/// Encodes the whole state of an engine in this version, which is its first byte.
pub fn encode_state(version: u8, engine: &Engine) -> Vec<u8> {
    [&[version], &encode_engine(version, engine)[..]].concat()
}

/// Decodes an engine that [`encode_engine`] encoded in this version. Derived state (the deadlines,
/// and the leases and waiters of each session) is not in the bytes, so it cannot contradict them.
pub fn decode_engine(version: u8, bytes: &[u8]) -> Result<Engine, Malformed> {
    let from = &mut Decoder::new(version, bytes);
    let mut engine = Engine::new(Rules::take(from)?);
    engine.state.clock = Time::take(from)?;
    let upcoming = u64::take(from)?;
    require(upcoming > 0)?;
    engine.state.mint = TokenAllocator::at(upcoming);
    engine.state.next_ticket = u64::take(from)?;
    for _ in 0..u64::take(from)? {
        let (id, session) = (SessionId::take(from)?, Session::take(from)?);
        let last = engine.state.sessions.last_key_value();
        require(last.is_none_or(|(last, _)| *last < id))?;
        engine.state.register_session(id, &session);
        engine.state.usage.learn_session(&session.client);
        engine.state.sessions.insert(id, session);
    }
    let mut known = Interner::default();
    let mut waiting = BTreeSet::new();
    let mut has_lock_without_lease = false;
    for _ in 0..u64::take(from)? {
        let (name, mut lock) = (LockName::take(from)?, Lock::take(from)?);
        for lease in lock.leases_mut() {
            known.share_lease(lease);
        }
        let last = engine.locks.last_key_value();
        require(last.is_none_or(|(last, _)| *last < name))?;
        require_sound(&lock, &engine.state)?;
        has_lock_without_lease |= lock.leases().is_empty();
        lock.leases().iter().for_each(|lease| engine.state.register_lease(&name, lease));
        for (ticket, waiter) in lock.line.iter() {
            engine.state.register_waiter(&name, *ticket, waiter);
            waiting.insert(*ticket);
        }
        engine.state.usage.learn_lock(&lock);
        *engine.locks.get_or_new(&name) = lock;
    }
    for _ in 0..u64::take(from)? {
        let (id, reply) = (RequestId::take(from)?, IdempotencyRecord::take(from)?);
        require(engine.state.replies.last().is_none_or(|last| *last < id))?;
        require(
            reply.until < Time::NEVER || reply.place().is_some_and(|at| waiting.contains(&at)),
        )?;
        engine.state.restore_reply(id, reply);
    }
    let hold_off: Option<HoldOff> = Codec::take(from)?;
    require(hold_off.is_none_or(|it| it.until > engine.state.clock))?;
    if let Some(hold_off) = hold_off {
        engine.begin_hold_off(hold_off);
    }
    require(engine.hold_off().is_some() || !has_lock_without_lease)?;
    engine.state.take_names(from)?;
    require(from.is_empty())?;
    Ok(engine)
}

/// Checks a decoded lock before it is inserted, so that damaged bytes are an error and do not reach
/// the assertions of [`EngineState`].
fn require_sound(lock: &Lock, state: &EngineState) -> Result<(), Malformed> {
    let known = |id| state.sessions.contains_key(&id);
    let lives = |lease: &Lease| match lease.life {
        Lifetime::Session(id) => known(id),
        Lifetime::Own { .. } => true,
    };
    let is_held = !lock.leases().is_empty();
    let is_waited_for = matches!(lock.tenancy, Tenancy::Nobody) && !lock.line.is_empty();
    require((is_held || is_waited_for) && lock.leases().iter().all(lives))?;
    require(lock.leases().windows(2).all(|pair| pair[0].token < pair[1].token))?;
    // A stored token or ticket must be below the next one to be issued. Otherwise the engine would
    // issue the same number twice.
    require(lock.leases().iter().all(|lease| lease.token.as_u64() < state.mint.upcoming()))?;
    if let Tenancy::Seats(seats, leases) = &lock.tenancy {
        let taken: BTreeSet<u16> = leases.iter().filter_map(|lease| lease.seat).collect();
        require(taken.len() == leases.len())?;
        require(taken.last().is_some_and(|last| *last < seats.get()))?;
    } else {
        require(lock.leases().iter().all(|lease| lease.seat.is_none()))?;
    }
    require(lock.line.keys().all(|ticket| ticket.as_u64() < state.next_ticket))?;
    require(lock.line.values().all(|waiter| waiter.sessions().all(known)))
}

wire_number! {
    u16: |n| u64::from(*n), |n| n.try_into().ok();
    u32: |n| u64::from(*n), |n| n.try_into().ok();
    usize: |n| *n as u64, |n| n.try_into().ok();
    // Zigzag encoding: numbers close to zero are short, whatever their sign.
    i64: |n| ((n << 1) ^ (n >> 63)) as u64, |n| Some((n >> 1) as i64 ^ -((n & 1) as i64));
    Time: |time| time.as_nanos(), |n| Some(Time::from_nanos(n));
    Span: |span| span.as_nanos(), |n| Some(Span::from_nanos(n));
    Ttl: |ttl| ttl.span().as_nanos(), |n| Ttl::new(Span::from_nanos(n)).ok();
    Grace: |grace| grace.span().as_nanos(), |n| Grace::new(Span::from_nanos(n)).ok();
    Seats: |seats| u64::from(seats.get()), |n| Seats::new(n).ok();
    Token: |token| token.as_u64(), |n| Some(Token(n));
    SessionId: |id| id.as_u64(), |n| Some(SessionId(n));
    Ticket: |ticket| ticket.as_u64(), |n| Some(Ticket(n));
}

wire_text! {
    Arc<str>: |text| text, |text| Some(text.into());
    LockName: |name| name.as_str(), |text| LockName::parse_stored(text).ok();
    ClientId: |client| client.as_str(), |text| ClientId::parse_stored(text).ok();
    StealReason: |reason| reason.as_str(),
        |text| StealReason::parse(text).filter(|reason| reason.as_str() == text);
}

wire_struct! {
    Baseline { rules, tokens_from, tickets_from, hold_off }
    HoldOff { until, cause }
    EndHoldOff { by, reason }
    Ends { expires_at, grace_until, ttl, grace }
    Command { request, op, answered_below }
    Renew { key, term, firm, patch, acquires }
    Annotate { key, patch, handover }
    Release { key, acquisition, open, handover, acknowledges }
    Steal { name, only, client, reason, term, patch, at_once }
    Reset { part, whose, by, reason }
    Forget { name, by }
    Tenure { token, life, acquired_at, acquisition, seat, previous }
    RequestId { caller, key }
    IdempotencyKey { id, digest }
    IdempotencyRecord { until, digest, replay }
    Patch { holder_id, note, text, process, attrs }
    LeaseKey { name, client, token }
    Leave { name, ticket, why }
    Move { from, to, over }
    StolenTenure { client, token }
    OpenSession { client, ttl, grace }
    EndSession { session, end }
    OpenId { session, number }
    Lease { holder, token, hold, life, acquired_at, renewed_at, acquisition, seat, details }
    Process { pid, start, boot }
    FileAttrs { file_type, reads, mode, uid, gid, times }
    Wall { secs, nanos }
    Lock { tenancy, line }
    QueuedWaiter { client, hold, mode, term, patch, since, until }
    Session { client, ttl, grace, renewed_at, numbers; leases, opens, waiters }
    RequestNumber { session, number }
    Handover { text, counter }
    Previous { seq, last }
    LastHandover { token, client, at, end, handover }
    RememberedName { name, owner, previous }
    Rules {
        locks_max, waiters_max, holders_max, sessions_max, requests_max, requests_kept, steal_grace
    }
}

#[cfg(not(feature = "planted-version"))]
wire_struct! {
    Acquire { name, client, mode, hold, term, line, patch, takes_over, remember }
}

#[cfg(feature = "planted-version")]
wire_struct! {
    Acquire { name, client, mode, hold, term, line, patch, takes_over, remember }
        [since 2: planted]
}

impl Codec for WaitQueue {
    fn put(&self, out: &mut Encoder) {
        (**self).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        BTreeMap::take(from).map(Self::from)
    }
}

impl Codec for Details {
    fn put(&self, out: &mut Encoder) {
        self.holder_id().cloned().put(out);
        self.note().cloned().put(out);
        self.shared_text().put(out);
        self.process().put(out);
        self.attrs().put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let details = Self::default().with_holder_id(Codec::take(from)?);
        let details = details.with_note(Codec::take(from)?);
        let details = details.with_text(Codec::take(from)?);
        Ok(details.with_process(Codec::take(from)?).with_attrs(Codec::take(from)?))
    }
}

impl Codec for Digest {
    fn put(&self, out: &mut Encoder) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self(u128::from_le_bytes(from.take_array()?)))
    }
}

impl Codec for UsedNumbers {
    fn put(&self, out: &mut Encoder) {
        self.answered_below.put(out);
        self.used.iter().for_each(|word| word.put(out));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let mut numbers = Self { answered_below: Codec::take(from)?, ..Self::default() };
        for word in &mut numbers.used {
            *word = Codec::take(from)?;
        }
        Ok(numbers)
    }
}

/// The number by which the encoding identifies the variant [`Outcome::Replayed`].
const REPLAYED: u8 = 13;

impl Codec for Replay {
    fn put(&self, out: &mut Encoder) {
        self.at.put(out);
        self.first.put(out);
        self.ends.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let at = Codec::take(from)?;
        // The first answer that a replayed outcome contains must not be a replayed outcome too: a
        // hostile peer would nest them until the stack overflows.
        require(from.peek() != Some(REPLAYED))?;
        Ok(Self { at, first: Codec::take(from)?, ends: Codec::take(from)? })
    }
}

wire_enum! {
    Op {
        0 Settle, 1 Acquire(ask), 2 Renew(ask), 3 Annotate(ask), 4 Release(ask), 5 Leave(ask),
        6 Move(ask), 7 Steal(ask), 8 OpenSession(ask), 9 KeepAlive(id), 10 EndSession(ask),
        11 Reset(ask), 12 Forget(ask), 13 EndHoldOff(ask),
        #[cfg(feature = "planted-version")] 14 Planted(name),
    }
    RequestKey { 0 Text(key), 1 Number(number) }
    QueuePolicy { 0 Skip, 1 Join(patience) }
    Firm { 0 Keep, 1 Make }
    TextPatch { 0 Set(text), 1 Append(text) }
    IfExists { 0 Replace, 1 Refuse }
    SessionEnd { 0 Closed, 1 Expired, 2 Revoked }
    HandoverEnd { 0 Open, 1 Released, 2 Expired, 3 Stolen, 4 Session, 5 Unknown }
    HoldOffCause { 0 NoState, 1 Restored, 2 Recovered }
    LeaveReason { 0 Asked, 1 Gone, 2 TimedOut, 3 SessionOver, 4 Reset }
    ResetScope { 0 AllBut(kept), 1 Of(client) }
    ResetPart { 0 Names(first, last), 1 Rest { holds, waits } }
    Mode { 0 Exclusive, 1 Shared, 2 Seats(seats) }
    Ownership { 0 Client, 1 Exclusive(maker), 2 OpenFile(open) }
    LeaseTerms { 0 Own(ttl, grace), 1 Session(id) }
    Lifetime { 0 Own { ttl, grace, expires_at }, 1 Session(id) }
    FileType { 0 File, 1 Directory, 2 Symlink }
    ReadMode { 0 Status, 1 Text }
    Tenancy { 0 Nobody, 1 Exclusive(lease), 2 Shared(leases), 3 Seats(seats, leases) }
    Outcome {
        0 Settled, 1 Granted(tenure), 2 Renewed(tenure), 3 Waiting { ticket, before }, 4 Released,
        5 Left, 6 Annotated, 7 Moved(tenure), 8 Stolen(tenure), 9 SessionOpened(id),
        10 KeptAlive(until), 11 SessionEnded, 12 Reset { holds, waits }, 13 Replayed(replay),
        14 ResetPart { holds, waits }, 15 Forgotten, 16 HoldOffEnded,
    }
}
