//! The encoding of the messages between a remote client and its server.
//!
//! A request is a batch of all that was asked while the previous batch was in flight. Its parts are
//! carried out in their order, so that a release is never overtaken by the next acquire. Each
//! batch of a client has a number, by which a repeat is recognized and gets the first answer.
//!
//! Reading is strict: it never panics, and believes no length further than the bytes go.

use super::backend_status::{About, BackendKind, Contact};
use super::failure::Unavailable;
use super::paging::{Children, List, ListPage};
use crate::engine::codec::{Codec, Decoder, Malformed, require, wire_enum, wire_struct};
use crate::engine::{
    Answer, Child, Command, Digest, Event, IdempotencyKey, LockName, LockView, Op, RequestId,
    RequestOrder, SessionId, Token,
};
use crate::time::{Time, Wall};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The version of these bytes: both ends must be of the same.
pub const VERSION: u8 = 5;
/// Parts of one batch: what queues up in the time of one answer, on a busy mount.
pub const ASKS_MAX: usize = 256;
/// Bytes of one batch: each part says 4 KiB of text, 1 KiB of note and a name at most.
pub const BATCH_BYTES_MAX: usize = ASKS_MAX * 8_192;
/// Bytes of one answer: what a client takes from a server that it can't trust.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Memory of one answer when it is read: lists of short items take more of it than bytes.
const ANSWER_MEMORY_MAX: usize = 3 * ANSWER_BYTES_MAX;
/// Items on one page that crosses: 1,024 locks with the longest names, notes and texts fit an
/// answer.
pub const PAGE_MAX: usize = 1_024;
/// Bytes of one frame of the stream of events: some thousand events.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Events in one frame.
pub const FRAME_EVENTS_MAX: usize = 1_024;

/// Stands for whichever start of a server there is.
pub const ANY_START: u64 = u64::MAX;

/// A batch of requests from one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestBatch {
    /// The id of the engine that must decide it, as in the stamps of its answers; 0: any engine.
    pub engine: u64,
    /// The sender: a random number that each remote client draws.
    pub from: u64,
    /// The sequence number of the batch at its sender. 0: it may be carried out again.
    pub number: u64,
    /// The session of which this client is the only sender. With it the engine refuses parts of the
    /// batch that arrive after parts of a later one: see [`RequestOrder`].
    pub session: Option<SessionId>,
    /// The parts of the batch, in order.
    pub asks: Vec<BatchItem>,
}

/// One part of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Nearly all of them are the large one.
pub enum BatchItem {
    /// Decide a command.
    Submit(Submission),
    /// Show a lock.
    View(LockName),
    /// Show a page of locks.
    List(List),
    /// Show a page of a directory.
    Children(Children),
    /// Tell what stands behind the door.
    About,
    /// Tell the time.
    Now,
    /// Show a page of the leases that hang on a session, those behind a name.
    Leases(SessionId, Option<LockName>),
    /// Tell the URLs of all nodes of the cluster.
    Urls,
}

/// A command as another machine sends it. Of a request id it can only choose the key: the caller
/// is the credential that the server has authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The idempotency key, by which a repeat of the command is recognized.
    pub key: Option<Arc<str>>,
    /// The operation to carry out.
    pub op: Op,
}

impl RequestBatch {
    /// Returns the place of one part among all parts that this door sends; none for a batch that
    /// may be carried out again.
    pub fn order(&self, place: usize) -> Option<RequestOrder> {
        let session = self.session.filter(|_| self.number > 0)?;
        let before = self.number.saturating_mul(ASKS_MAX as u64);
        Some(RequestOrder { session, number: before.saturating_add(place as u64) })
    }
}

impl From<Op> for Submission {
    fn from(op: Op) -> Self {
        Self { key: None, op }
    }
}

impl Submission {
    /// Returns the command of `caller`, under an id if it has a key.
    pub fn into_command(self, caller: &Arc<str>, order: Option<RequestOrder>) -> Command {
        let Self { key, op } = self;
        let request = key.map(|key| {
            let id = RequestId { caller: Arc::clone(caller), key };
            IdempotencyKey { id, digest: digest_of(&op) }
        });
        Command { request, order, ..op.into() }
    }
}

/// A digest of all that a command says.
fn digest_of(op: &Op) -> Digest {
    let mut bytes = Vec::new();
    op.put(&mut bytes);
    let hash = Sha256::digest(&bytes);
    Digest(u128::from_le_bytes(hash[..16].try_into().expect("16 bytes of 32")))
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchResponse {
    /// By which server, since which start of it.
    pub stamp: Stamp,
    /// One for each part, in order.
    pub replies: Vec<ItemReply>,
}

/// When a server said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The name of the engine, the same at all nodes of a cluster; 0: it has none.
    pub engine: u64,
    /// Drawn at random when the server starts: event numbers begin anew with it.
    pub start: u64,
    /// The engine's time.
    pub now: Time,
    /// The wall clock at that time, for display.
    pub wall: Wall,
    /// All events before this number are in what is shown.
    pub next_event: u64,
}

/// The answer to one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemReply {
    /// To a command.
    Answered(Answer),
    /// A lock.
    Viewed(LockView),
    /// A page of locks.
    Listed(ListPage<LockView>),
    /// A page of a directory.
    Found(ListPage<Child>),
    /// The status of the backend.
    About(About),
    /// The time is in the stamp.
    Now,
    /// There is no answer.
    Unavailable(Unavailable),
    /// Leases of a session.
    Leases(ListPage<(LockName, Token)>),
    /// The URLs of all nodes of the cluster; none if the server is alone.
    Urls(Vec<String>),
}

/// One frame of the stream of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first: the stream goes on at this event.
    Begin(Stamp, u64),
    /// Events that were dropped before they could be sent, and then those with their numbers.
    Events(u64, Vec<(u64, Event)>),
    /// Nothing has happened: a sign of life.
    Beat(Stamp),
}

wire_struct! {
    Submission { key, op }
    BatchResponse { stamp, replies }
    Stamp { engine, start, now, wall, next_event }
    List { prefix, after, limit }
    Children { parent, cursor, limit }
    About { kind, contact, state, locks, waiters, sessions }
}

wire_enum! {
    BatchItem {
        0 Submit(command), 1 View(name), 2 List(query), 3 Children(query), 4 About, 5 Now,
        6 Leases(session, after), 7 Urls,
    }
    ItemReply {
        0 Answered(answer), 1 Viewed(view), 2 Listed(page), 3 Found(page), 4 About(about), 5 Now,
        6 Unavailable(why), 7 Leases(page), 8 Urls(urls),
    }
    Frame { 0 Begin(stamp, next), 1 Events(lost, events), 2 Beat(stamp) }
    Unavailable {
        0 State { full, why }, 1 Closing, 2 NoAnswer { server }, 3 Denied { why }, 4 Log { why },
        5 NoQuorum { why },
    }
    BackendKind { 0 Embedded, 1 Server }
    Contact { 0 Connected, 1 Jeopardy, 2 Lost }
}

impl Codec for RequestBatch {
    fn put(&self, out: &mut Vec<u8>) {
        self.engine.put(out);
        self.from.put(out);
        self.number.put(out);
        self.session.put(out);
        self.asks.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (engine, by, number) = (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        let session = Codec::take(from)?;
        let count = from.take_length::<BatchItem>()?;
        require(count <= ASKS_MAX)?;
        let asks = (0..count).map(|_| BatchItem::take(from)).collect::<Result<_, _>>()?;
        Ok(Self { engine, from: by, number, session, asks })
    }
}

impl<T: Codec> Codec for ListPage<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.items.put(out);
        self.next.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self { items: Codec::take(from)?, next: Codec::take(from)? })
    }
}

impl Codec for String {
    fn put(&self, out: &mut Vec<u8>) {
        Arc::<str>::from(self.as_str()).put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Arc::<str>::take(from).map(|text| text.to_string())
    }
}

/// A batch, in bytes.
pub fn encode_batch(batch: &RequestBatch) -> Vec<u8> {
    encode(batch)
}

/// Reads what [`encode_batch`] wrote.
pub fn decode_batch(bytes: &[u8]) -> Result<RequestBatch, Malformed> {
    require(bytes.len() <= BATCH_BYTES_MAX)?;
    decode(2 * BATCH_BYTES_MAX, bytes)
}

/// The answer to a batch, in bytes.
pub fn encode_told(told: &BatchResponse) -> Vec<u8> {
    encode(told)
}

/// A reply, in bytes: replies wait in this form for the others of their batch, in which a page of
/// locks takes no more than it will on the way.
pub(super) fn encode_reply(reply: &ItemReply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.put(&mut out);
    out
}

/// The same as [`encode_told`], of replies that [`encode_reply`] wrote.
pub(super) fn encode_replies(stamp: &Stamp, replies: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![VERSION];
    stamp.put(&mut out);
    replies.len().put(&mut out);
    for reply in replies {
        out.extend_from_slice(reply);
    }
    out
}

/// Reads what [`encode_told`] wrote.
pub fn decode_told(bytes: &[u8]) -> Result<BatchResponse, Malformed> {
    require(bytes.len() <= ANSWER_BYTES_MAX)?;
    decode(ANSWER_MEMORY_MAX, bytes)
}

/// A frame, in bytes, behind the four bytes of its length.
pub fn encode_frame(frame: &Frame) -> Vec<u8> {
    let bytes = encode(frame);
    let mut out = (bytes.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&bytes);
    out
}

/// Takes the first whole frame out of `bytes`, if there is one.
pub fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<Frame>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    require(length <= FRAME_BYTES_MAX)?;
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let frame = decode(2 * FRAME_BYTES_MAX, frame)?;
    bytes.drain(..length + size_of::<u32>());
    Ok(Some(frame))
}

fn encode(value: &impl Codec) -> Vec<u8> {
    let mut out = vec![VERSION];
    value.put(&mut out);
    out
}

/// Reads a value that takes `room` bytes of memory at most.
fn decode<T: Codec>(room: usize, bytes: &[u8]) -> Result<T, Malformed> {
    let mut from = Decoder::within(room, bytes);
    require(u8::take(&mut from)? == VERSION)?;
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}
