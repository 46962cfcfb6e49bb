//! The messages between a remote client and its server, and their encoding.
//!
//! A request is a batch of all calls that were made while the previous batch was in flight. Its
//! parts are carried out in order, so that the next acquire never overtakes a release. A batch may
//! be sent again: its commands have numbers or keys, by which the engine recognizes repeats and
//! answers each as the first time.
//!
//! Decoding is strict: it never panics, and accepts no length beyond the end of the bytes.

use crate::engine::codec::state_codec::{
    Codec, DecodeError, Decoder, Encoder, Malformed, decode_message, encode_message, known_version,
    require, wire_enum, wire_struct,
};
use crate::engine::{
    Answer, Child, Command, Digest, Event, IdempotencyKey, LockName, LockView, Op, RequestId,
    RequestKey, RequestNumber, SessionId, Token,
};
use crate::service::backend_status::{About, BackendKind, Contact};
use crate::service::event_log::EventPlace;
use crate::service::paging::{Children, List, ListPage};
use crate::service::unavailable::Unavailable;
use crate::time::{Time, Wall};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Returns the version of the batch protocol in which this latchfs writes batches. A server reads
/// the last two. The protocol has a number of its own, and its values have the version of the
/// encoding with the same number.
pub fn protocol() -> u8 {
    known_version()
}

/// The parameter of a request for events that names the version of the frames.
pub const PROTOCOL_PARAMETER: &str = "protocol";

/// The maximum number of parts in a batch: as many as queue up during one round trip on a busy
/// mount.
pub const ASKS_MAX: usize = 256;
/// The maximum length of a batch in bytes: each part has at most 4 KiB of text, 1 KiB of note and a
/// name.
pub const BATCH_BYTES_MAX: usize = ASKS_MAX * 8_192;
/// The maximum length of an answer in bytes, which a client accepts from a server that it need not
/// trust.
pub const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The maximum memory of a decoded answer: lists of short items take more memory than bytes.
const ANSWER_MEMORY_MAX: usize = 3 * ANSWER_BYTES_MAX;
/// The maximum number of items on a page in an answer: 1,024 locks with the longest names, notes
/// and texts fit.
pub const PAGE_MAX: usize = 1_024;
/// The maximum length of a frame of the event stream in bytes: some thousand events.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// The maximum number of events in a frame.
pub const FRAME_EVENTS_MAX: usize = 1_024;

/// Stands for the id of a server's start in a request for events, if the client does not know that
/// id: the request is then valid for any start.
pub const ANY_START: u64 = u64::MAX;

/// A batch of requests from one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestBatch {
    /// The id of the engine that must decide the batch, as answers report it in their [`Stamp`]; 0
    /// for any engine.
    pub engine: u64,
    /// The session that numbers the commands of the batch. `None` if no command has a number.
    pub numbers: Option<BatchNumbers>,
    /// The parts of the batch, in order.
    pub asks: Vec<BatchItem>,
}

/// What the numbers of the commands in a batch belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNumbers {
    /// The session of which the sender is the only user.
    pub session: SessionId,
    /// The number below which this client has the answers to all its requests, or no longer wants
    /// them: it sends none of these again.
    pub answered_below: u64,
}

/// One call in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Nearly all parts are of the large variant.
pub enum BatchItem {
    /// Submit a command to the engine.
    Submit(Submission),
    /// Return the view of a lock.
    View(LockName),
    /// Return a page of locks.
    List(List),
    /// Return a page of a directory.
    Children(Children),
    /// Return the status of the server's backend.
    About,
    /// Return only the server's time, which the [`Stamp`] of every answer contains.
    Now,
    /// Return a page of the leases that are bound to this session: those whose names come after the
    /// given one, or the first ones.
    Leases(SessionId, Option<LockName>),
    /// Return the URLs of all nodes of the cluster.
    Urls,
}

/// A command as a remote client sends it. The client chooses only the key of the request id; the
/// caller in it is the credential that the server authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// What identifies a repeat of the command.
    pub key: Option<SubmissionKey>,
    /// The operation to carry out.
    pub op: Op,
}

/// What identifies a command among those of its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmissionKey {
    /// An idempotency key.
    Text(Arc<str>),
    /// The number of the command among those of the batch's session.
    Number(u64),
}

impl From<&str> for SubmissionKey {
    fn from(key: &str) -> Self {
        Self::Text(key.into())
    }
}

impl RequestBatch {
    /// Returns a batch without numbers, for this engine (0 for any).
    pub const fn new(engine: u64, asks: Vec<BatchItem>) -> Self {
        Self { engine, numbers: None, asks }
    }
}

impl From<Op> for Submission {
    fn from(op: Op) -> Self {
        Self { key: None, op }
    }
}

impl Submission {
    /// Returns the id of the command of `caller`, if it has one. A number belongs to the session of
    /// the batch.
    pub fn request_id(
        &self,
        caller: &Arc<str>,
        numbers: Option<BatchNumbers>,
    ) -> Option<RequestId> {
        let key = match self.key.as_ref()? {
            SubmissionKey::Text(key) => RequestKey::Text(Arc::clone(key)),
            SubmissionKey::Number(number) => {
                let session = numbers?.session;
                RequestKey::Number(RequestNumber { session, number: *number })
            }
        };
        Some(RequestId { caller: Arc::clone(caller), key })
    }

    /// Returns the command of `caller`.
    pub fn into_command(self, caller: &Arc<str>, numbers: Option<BatchNumbers>) -> Command {
        let id = self.request_id(caller, numbers);
        let request = id.map(|id| IdempotencyKey { id, digest: digest_of(&self.op) });
        let answered_below = numbers.map_or(0, |numbers| numbers.answered_below);
        Command { answered_below, ..Command::from(self.op).with_request(request) }
    }
}

/// Returns the digest of an operation with all its fields.
fn digest_of(op: &Op) -> Digest {
    let mut bytes = Encoder::new(known_version());
    op.put(&mut bytes);
    let hash = Sha256::digest(&**bytes);
    Digest(u128::from_le_bytes(hash[..16].try_into().expect("16 bytes of 32")))
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchResponse {
    /// The server and its time when it received the batch.
    pub stamp: Stamp,
    /// The replies, one for each call in the batch, in order.
    pub replies: Vec<ItemReply>,
}

/// The identity of a server and its time when it sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The id of the engine, the same at all nodes of a cluster; 0 if it has none.
    pub engine: u64,
    /// A random number that is drawn when the server starts. Event numbers restart with it.
    pub start: u64,
    /// The engine's time.
    pub now: Time,
    /// The wall clock at that time, for display.
    pub wall: Wall,
    /// The number of the next event: the replies include the effect of all events before it.
    pub next_event: u64,
}

/// The answer to one call in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemReply {
    /// The answer to a command.
    Answered(Answer),
    /// The view of a lock.
    Viewed(LockView),
    /// A page of locks.
    Listed(ListPage<LockView>),
    /// A page of a directory.
    Found(ListPage<Child>),
    /// The status of the server's backend.
    About(About),
    /// The reply to [`BatchItem::Now`] is empty: the server's time is in the [`Stamp`] of the
    /// answer.
    Now,
    /// The call has no answer, for this reason.
    Unavailable(Unavailable),
    /// A page of the leases of a session.
    Leases(ListPage<(LockName, Token)>),
    /// The URLs of all nodes of the cluster; none if the server is not in one.
    Urls(Vec<String>),
}

/// One frame of the stream of events that a server sends to a remote client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a stream with events: the server's [`Stamp`] (its ids and its time), and
    /// where the stream begins.
    Begin(Stamp, StreamStart),
    /// How many events were dropped before they could be sent, followed by the next events with
    /// their numbers, and the place of the last of them.
    Events(u64, Vec<(u64, Event)>, Option<EventPlace>),
    /// A heartbeat with the server's [`Stamp`] (its ids and its time), sent when there are no
    /// events; and the place of the last event before it, once the stream has begun.
    Beat(Stamp, Option<EventPlace>),
}

/// Where a stream of events begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStart {
    /// The number of the next event that the stream will contain.
    pub next: u64,
    /// Whether that event follows the last one that the client knows, so that none is missing.
    pub continues: bool,
    /// The place of the event before it in the log of the cluster, if it is known.
    pub place: Option<EventPlace>,
}

wire_struct! {
    Submission { key, op }
    BatchNumbers { session, answered_below }
    BatchResponse { stamp, replies }
    Stamp { engine, start, now, wall, next_event }
    StreamStart { next, continues, place }
    EventPlace { entry, number }
    List { prefix, after, limit }
    Children { parent, cursor, limit }
    About { kind, contact, state, locks, waiters, sessions }
}

wire_enum! {
    BatchItem {
        0 Submit(command), 1 View(name), 2 List(query), 3 Children(query), 4 About, 5 Now,
        6 Leases(session, after), 7 Urls,
    }
    SubmissionKey { 0 Text(key), 1 Number(number) }
    ItemReply {
        0 Answered(answer), 1 Viewed(view), 2 Listed(page), 3 Found(page), 4 About(about), 5 Now,
        6 Unavailable(why), 7 Leases(page), 8 Urls(urls),
    }
    Frame { 0 Begin(stamp, start), 1 Events(lost, events, place), 2 Beat(stamp, place) }
    Unavailable {
        0 State { full, why }, 1 Closing, 2 NoAnswer { server }, 3 Denied { why }, 4 Log { why },
        5 NoQuorum { why }, 6 ClockSkew { why },
    }
    BackendKind { 0 Embedded, 1 Server }
    Contact { 0 Connected, 1 Jeopardy, 2 Lost }
}

impl Codec for RequestBatch {
    fn put(&self, out: &mut Encoder) {
        self.engine.put(out);
        self.numbers.put(out);
        self.asks.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (engine, numbers) = (Codec::take(from)?, Codec::take(from)?);
        let count = from.take_length::<BatchItem>()?;
        require(count <= ASKS_MAX)?;
        let asks = (0..count).map(|_| BatchItem::take(from)).collect::<Result<_, _>>()?;
        Ok(Self { engine, numbers, asks })
    }
}

impl<T: Codec> Codec for ListPage<T> {
    fn put(&self, out: &mut Encoder) {
        self.items.put(out);
        self.next.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self { items: Codec::take(from)?, next: Codec::take(from)? })
    }
}

/// Encodes a batch.
pub fn encode_batch(batch: &RequestBatch) -> Vec<u8> {
    encode_message(protocol(), batch)
}

/// Decodes the output of [`encode_batch`].
pub fn decode_batch(bytes: &[u8]) -> Result<RequestBatch, DecodeError> {
    require(bytes.len() <= BATCH_BYTES_MAX)?;
    decode_message(2 * BATCH_BYTES_MAX, bytes)
}

/// Encodes the answer to a batch.
pub fn encode_response(response: &BatchResponse) -> Vec<u8> {
    encode_message(protocol(), response)
}

/// Encodes the reply to one call in a batch of this version. A reply is kept in encoded form until
/// the replies to all calls are complete: a page of locks takes less memory in this form.
pub(super) fn encode_reply(protocol: u8, reply: &ItemReply) -> Vec<u8> {
    let mut out = Encoder::new(protocol);
    reply.put(&mut out);
    out.into_bytes()
}

/// Encodes the answer to a batch, as [`encode_response`] does, from replies that [`encode_reply`]
/// encoded.
pub(super) fn encode_replies(protocol: u8, stamp: &Stamp, replies: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Encoder::message(protocol);
    stamp.put(&mut out);
    replies.len().put(&mut out);
    for reply in replies {
        out.extend_from_slice(reply);
    }
    out.into_bytes()
}

/// Decodes the output of [`encode_response`].
pub fn decode_response(bytes: &[u8]) -> Result<BatchResponse, DecodeError> {
    require(bytes.len() <= ANSWER_BYTES_MAX)?;
    decode_message(ANSWER_MEMORY_MAX, bytes)
}

/// Encodes a frame of the event stream in this version, preceded by its length in four bytes.
pub fn encode_frame(protocol: u8, frame: &Frame) -> Vec<u8> {
    let bytes = encode_message(protocol, frame);
    let mut out = (bytes.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&bytes);
    out
}

/// If `bytes` begins with a complete frame of the event stream, removes and decodes the frame.
pub fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<Frame>, DecodeError> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    require(length <= FRAME_BYTES_MAX)?;
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let frame = decode_message(2 * FRAME_BYTES_MAX, frame)?;
    bytes.drain(..length + size_of::<u32>());
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::codec::state_codec::{FORMAT_VERSION, UnknownVersion};

    fn batch_of(op: Op) -> RequestBatch {
        let asks = vec![BatchItem::Now, BatchItem::Submit(op.into())];
        let numbers = BatchNumbers { session: SessionId::named(4), answered_below: 3 };
        RequestBatch { engine: 1, numbers: Some(numbers), asks }
    }

    #[test]
    fn commands_get_the_ids_that_the_batch_gives_them() {
        let numbers = batch_of(Op::Settle).numbers;
        let caller: Arc<str> = "batch:a".into();
        let command = |key: Option<SubmissionKey>, numbers| {
            Submission { key, op: Op::Settle }.into_command(&caller, numbers)
        };
        let (text, five) = (Some("k".into()), Some(SubmissionKey::Number(5)));
        assert_eq!(command(five.clone(), None), Op::Settle.into(), "of no session");
        assert_eq!(command(None, numbers).request, None);
        let id = |command: Command| command.request.expect("it has an id").id;
        let of_session = RequestNumber { session: SessionId::named(4), number: 5 };
        assert_eq!(command(five.clone(), numbers).number(), Some(of_session));
        assert_eq!(command(five.clone(), numbers).answered_below, 3);
        assert_eq!(id(command(five, numbers)).caller, caller);
        assert_eq!(id(command(text, None)).key, "k".into());
    }

    /// A message of another version is refused as a whole.
    #[test]
    fn another_version_is_named() {
        let bytes = encode_batch(&batch_of(Op::Settle));
        for found in [0, FORMAT_VERSION + 1, u8::MAX] {
            let refused = decode_batch(&[&[found], &bytes[1..]].concat());
            assert_eq!(refused, Err(DecodeError::Version(UnknownVersion { found })));
            let said = refused.expect_err("another version").to_string();
            assert_eq!(said, format!("it has version {found}, and this latchfs knows version 1"));
        }
    }
}
