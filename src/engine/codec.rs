//! Commands and states as bytes: what a journal, a snapshot and another replica are made of.
//!
//! One way to write each value, so that equal states are equal bytes. Reading never panics and
//! never trusts a length: bytes come from disks and networks. The containers around these bytes
//! (journal records, snapshots) carry the format's version.

use super::command::{
    Acquire, Annotate, Command, EndSession, Firm, LeaseKey, Leave, Line, Move, Op, OpenSession,
    Outcome, Over, Patch, Release, Renew, RequestId, Reset, Steal, Tenure, TextPatch, Whose,
};
use super::event::{SessionEnd, Why};
use super::heritage::Heritage;
use super::known::Known;
use super::lease::{
    Details, Face, Hold, Lease, Life, Looks, Mode, OpenId, Process, Reads, SessionId, StealReason,
    Term, Ticket, Token,
};
use super::lock::{Lock, Queue, Tenancy, Waiter};
use super::mint::Mint;
use super::name::{ClientId, LockName};
use super::planted::{Bug, planted};
use super::session::Session;
use super::term::{Grace, Ttl};
use super::{Books, Engine, Rules};
use crate::time::{Span, Time, Wall};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The version of these bytes. A change of any layout below raises it.
pub const FORMAT_VERSION: u8 = 2;

/// The bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the bytes are damaged, or of another version of latchfs")
    }
}

impl std::error::Error for Malformed {}

/// A value with one way to be written.
pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Result<Self, Malformed>;
}

/// Writes `command`, to be carried out at `at`, behind what `out` holds.
pub fn encode_command(at: Time, command: &Command, out: &mut Vec<u8>) {
    at.put(out);
    command.put(out);
}

/// Reads what [`encode_command`] wrote.
pub fn decode_command(mut bytes: &[u8]) -> Result<(Time, Command), Malformed> {
    let decoded = (Time::take(&mut bytes)?, Command::take(&mut bytes)?);
    if bytes.is_empty() { Ok(decoded) } else { Err(Malformed) }
}

/// Writes `rules` behind what `out` holds.
pub fn encode_rules(rules: &Rules, out: &mut Vec<u8>) {
    rules.put(out);
}

/// Reads what [`encode_rules`] wrote.
pub fn decode_rules(mut bytes: &[u8]) -> Result<Rules, Malformed> {
    let rules = Rules::take(&mut bytes)?;
    if bytes.is_empty() { Ok(rules) } else { Err(Malformed) }
}

/// The whole state.
pub fn encode_engine(engine: &Engine) -> Vec<u8> {
    let mut out = Vec::new();
    let books = &engine.books;
    books.rules.put(&mut out);
    books.clock.put(&mut out);
    books.mint.upcoming().put(&mut out);
    books.next_ticket.put(&mut out);
    (books.sessions.len() as u64).put(&mut out);
    for (id, session) in &books.sessions {
        (*id).put(&mut out);
        session.put(&mut out);
    }
    (engine.locks.len() as u64).put(&mut out);
    for (name, lock) in engine.locks.iter() {
        name.put(&mut out);
        lock.put(&mut out);
    }
    (books.replies.len() as u64).put(&mut out);
    for (request, until, outcome) in books.replies.iter() {
        request.put(&mut out);
        until.put(&mut out);
        outcome.put(&mut out);
    }
    // Most never had any: their bytes are as they were before there was such a thing.
    if books.shut_until > Time::ZERO {
        books.shut_until.put(&mut out);
    }
    out
}

/// Reads what [`encode_engine`] wrote. What follows from the rest (the agenda, what hangs on
/// which session) is not in the bytes, so it cannot contradict them.
pub fn decode_engine(mut bytes: &[u8]) -> Result<Engine, Malformed> {
    let from = &mut bytes;
    let mut engine = Engine::new(Rules::take(from)?);
    engine.books.clock = Time::take(from)?;
    let upcoming = u64::take(from)?;
    require(upcoming > 0)?;
    engine.books.mint = Mint::at(upcoming - u64::from(planted(Bug::TokenReusedByRestore)));
    engine.books.next_ticket = u64::take(from)?;
    for _ in 0..u64::take(from)? {
        let (id, session) = (SessionId::take(from)?, Session::take(from)?);
        let last = engine.books.sessions.last_key_value();
        require(last.is_none_or(|(last, _)| *last < id))?;
        engine.books.book_session(id, &session);
        engine.books.sessions.insert(id, session);
    }
    let mut known = Known::default();
    for _ in 0..u64::take(from)? {
        let (name, mut lock) = (LockName::take(from)?, Lock::take(from)?);
        for lease in lock.leases_mut() {
            known.share_lease(lease);
        }
        let last = engine.locks.last_key_value();
        require(last.is_none_or(|(last, _)| *last < name))?;
        require_sound(&lock, &engine.books)?;
        lock.leases().iter().for_each(|lease| engine.books.book(&name, lease));
        for (ticket, waiter) in lock.line.iter() {
            engine.books.book_waiter(&name, *ticket, waiter);
        }
        *engine.locks.get_or_new(&name) = lock;
    }
    let mut last = None;
    for _ in 0..u64::take(from)? {
        let (request, until) = (RequestId::take(from)?, Time::take(from)?);
        require(last.as_ref().is_none_or(|last| *last < request))?;
        last = Some(request.clone());
        engine.books.restore_reply(request, until, Outcome::take(from)?);
    }
    if !from.is_empty() {
        engine.books.shut_until = Time::take(from)?;
        require(engine.books.shut_until > Time::ZERO)?;
    }
    if from.is_empty() { Ok(engine) } else { Err(Malformed) }
}

pub(crate) fn require(sound: bool) -> Result<(), Malformed> {
    if sound { Ok(()) } else { Err(Malformed) }
}

/// What the books assert of a lock that is entered: damaged bytes must not get as far as that.
fn require_sound(lock: &Lock, books: &Books) -> Result<(), Malformed> {
    let known = |id| books.sessions.contains_key(&id);
    let lives = |lease: &Lease| match lease.life {
        Life::Session(id) => known(id),
        Life::Own { .. } => true,
    };
    require(!lock.leases().is_empty() && lock.leases().iter().all(lives))?;
    require(lock.leases().windows(2).all(|pair| pair[0].token < pair[1].token))?;
    // A token or a place that the counters would give out again is the worst damage of all.
    require(lock.leases().iter().all(|lease| lease.token.as_u64() < books.mint.upcoming()))?;
    require(lock.line.keys().all(|ticket| ticket.as_u64() < books.next_ticket))?;
    require(lock.line.values().all(|waiter| waiter.sessions().all(known)))
}

/// Seven bits a byte, lowest first, the top bit saying that there are more.
impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = u8::take(from)?;
            let bits = Self::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                // One way to write each value: no padding with empty groups.
                return if byte == 0 && shift > 0 { Err(Malformed) } else { Ok(value) };
            }
        }
        Err(Malformed)
    }
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        let (byte, rest) = from.split_first().ok_or(Malformed)?;
        *from = rest;
        Ok(*byte)
    }
}

/// Values that are written as a number.
macro_rules! wire_number {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let to: fn(&$type) -> u64 = $to;
                to(self).put(out);
            }

            fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
                let make: fn(u64) -> Option<$type> = $from;
                make(u64::take(from)?).ok_or(Malformed)
            }
        }
    )*};
}

wire_number! {
    u16: |n| u64::from(*n), |n| n.try_into().ok();
    u32: |n| u64::from(*n), |n| n.try_into().ok();
    usize: |n| *n as u64, |n| n.try_into().ok();
    // Zigzag: small numbers of either sign are short.
    i64: |n| ((n << 1) ^ (n >> 63)) as u64, |n| Some((n >> 1) as i64 ^ -((n & 1) as i64));
    Time: |time| time.as_nanos(), |n| Some(Time::from_nanos(n));
    Span: |span| span.as_nanos(), |n| Some(Span::from_nanos(n));
    Ttl: |ttl| ttl.span().as_nanos(), |n| Ttl::new(Span::from_nanos(n)).ok();
    Grace: |grace| grace.span().as_nanos(), |n| Grace::new(Span::from_nanos(n)).ok();
    Token: |token| token.as_u64(), |n| Some(Token(n));
    SessionId: |id| id.as_u64(), |n| Some(SessionId(n));
    Ticket: |ticket| ticket.as_u64(), |n| Some(Ticket(n));
}

impl Wire for Arc<[u8]> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        out.extend_from_slice(self);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        Ok(take_bytes(from)?.into())
    }
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = usize::take(from)?;
    let (bytes, rest) = from.split_at_checked(length).ok_or(Malformed)?;
    *from = rest;
    Ok(bytes)
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    text.len().put(out);
    out.extend_from_slice(text.as_bytes());
}

/// Values that are written as a text, and checked when read.
macro_rules! wire_text {
    ($($type:ty: $to:expr, $from:expr;)*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let to: fn(&$type) -> &str = $to;
                put_text(to(self), out);
            }

            fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
                let text = std::str::from_utf8(take_bytes(from)?).map_err(|_| Malformed)?;
                let make: fn(&str) -> Option<$type> = $from;
                make(text).ok_or(Malformed)
            }
        }
    )*};
}

wire_text! {
    Arc<str>: |text| text, |text| Some(text.into());
    LockName: |name| name.as_str(), |text| LockName::parse(text).ok();
    ClientId: |client| client.as_str(), |text| ClientId::parse(text).ok();
    StealReason: |reason| reason.as_str(),
        |text| StealReason::parse(text).filter(|reason| reason.as_str() == text);
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.put(out);
            }
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        match u8::take(from)? {
            0 => Ok(None),
            1 => T::take(from).map(Some),
            _ => Err(Malformed),
        }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        for value in self {
            value.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        // No reserve: the length is only believed as far as the bytes go.
        (0..usize::take(from)?).map(|_| T::take(from)).collect()
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        let mut map = Self::new();
        for _ in 0..usize::take(from)? {
            let (key, value) = <(K, V)>::take(from)?;
            require(map.last_key_value().is_none_or(|(last, _)| *last < key))?;
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        T::take(from).map(Self::new)
    }
}

/// Structs: their fields, in the order given.
macro_rules! wire_struct {
    ($($type:ident { $($field:ident),* $(; $($derived:ident),*)? })*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
                $(let $field = Wire::take(from)?;)*
                $($(let $derived = Default::default();)*)?
                Ok(Self { $($field,)* $($($derived,)*)? })
            }
        }
    )*};
}

wire_struct! {
    Heritage { rules, tokens_from, tickets_from, hold_off }
    Command { request, op }
    RequestId { client, key }
    Acquire { name, client, mode, hold, term, line, patch }
    Renew { key, term, firm, patch }
    LeaseKey { name, client, token }
    Annotate { key, patch }
    Patch { holder_id, note, text, process, looks }
    Release { key }
    Leave { name, ticket, why }
    Move { from, to, over }
    Steal { name, client, reason, term, patch }
    OpenSession { client, ttl, grace }
    EndSession { session, end }
    Reset { whose, by, reason }
    Tenure { token, life, acquired_at }
    OpenId { session, number }
    Lease { holder, token, hold, life, acquired_at, renewed_at, details }
    Process { pid, start, boot }
    Looks { face, reads, mode, uid, gid, times }
    Wall { secs, nanos }
    Lock { tenancy, line }
    Waiter { client, hold, mode, term, patch, since, until }
    Session { client, ttl, grace, renewed_at; leases, waiters }
    Rules {
        locks_max, waiters_max, holders_max, sessions_max, requests_max, requests_kept, steal_grace
    }
}

impl Wire for Queue {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        BTreeMap::take(from).map(Self::from)
    }
}

impl Wire for Details {
    fn put(&self, out: &mut Vec<u8>) {
        self.holder_id().cloned().put(out);
        self.note().cloned().put(out);
        self.shared_text().put(out);
        self.process().put(out);
        self.looks().put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
        let details = Self::default().with_holder_id(Wire::take(from)?);
        let details = details.with_note(Wire::take(from)?).with_text(Wire::take(from)?);
        Ok(details.with_process(Wire::take(from)?).with_looks(Wire::take(from)?))
    }
}

/// Enums: a number for the variant, then what it holds. A number is never given anew.
macro_rules! wire_enum {
    ($($type:ident {
        $($number:literal $variant:ident $(($($part:ident),*))? $({ $($field:ident),* })?),* $(,)?
    })*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($part),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($part.put(out);)*)?
                        $($($field.put(out);)*)?
                    })*
                }
            }

            fn take(from: &mut &[u8]) -> Result<Self, Malformed> {
                match u8::take(from)? {
                    $($number => {
                        $($(let $part = Wire::take(from)?;)*)?
                        $($(let $field = Wire::take(from)?;)*)?
                        Ok(Self::$variant $(($($part),*))? $({ $($field),* })?)
                    })*
                    _ => Err(Malformed),
                }
            }
        }
    )*};
}

wire_enum! {
    Op {
        0 Settle, 1 Acquire(ask), 2 Renew(ask), 3 Annotate(ask), 4 Release(ask), 5 Leave(ask),
        6 Move(ask), 7 Steal(ask), 8 OpenSession(ask), 9 KeepAlive(id), 10 EndSession(ask),
        11 Reset(ask),
    }
    Line { 0 Skip, 1 Join(patience) }
    Firm { 0 Keep, 1 Make }
    TextPatch { 0 Set(text), 1 Append(text) }
    Over { 0 Replace, 1 Refuse }
    SessionEnd { 0 Closed, 1 Expired }
    Why { 0 Asked, 1 Gone, 2 TimedOut, 3 SessionOver, 4 Reset }
    Whose { 0 AllBut(kept), 1 Of(client) }
    Mode { 0 Exclusive, 1 Shared }
    Hold { 0 Loose, 1 Firm(maker), 2 Open(open) }
    Term { 0 Own(ttl, grace), 1 Session(id) }
    Life { 0 Own { ttl, grace, expires_at }, 1 Session(id) }
    Face { 0 File, 1 Directory, 2 Symlink }
    Reads { 0 Status, 1 Text }
    Tenancy { 0 Nobody, 1 Exclusive(lease), 2 Shared(leases) }
    Outcome {
        0 Settled, 1 Granted(tenure), 2 Renewed(tenure), 3 Waiting { ticket, ahead }, 4 Released,
        5 Left, 6 Annotated, 7 Moved(tenure), 8 Stolen(tenure), 9 SessionOpened(id),
        10 KeptAlive(until), 11 SessionEnded, 12 Reset { holds, waits },
    }
}

pub(crate) use {wire_enum, wire_struct};
