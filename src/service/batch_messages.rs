//! The messages between a remote client and its server, and their encoding.
//!
//! A request is a batch of all calls that were made while the previous batch was in flight. Its
//! parts are carried out in order, so that the next acquire never overtakes a release. Each batch
//! of a client has a number, by which a repeat is recognized and gets the first answer.
//!
//! Decoding is strict: it never panics, and accepts no length beyond the end of the bytes.

use super::backend_status::{About, BackendKind, Contact};
use super::failure::Unavailable;
use super::paging::{Children, List, ListPage};
use crate::engine::codec::{
    Codec, Decoder, FORMAT_BASE, FORMAT_VERSION, Malformed, WITH_ACKNOWLEDGEMENTS, decode_message,
    encode_message, require, wire_enum, wire_struct,
};
use crate::engine::{
    AcknowledgedKeys, Answer, Child, Command, Digest, Event, IdempotencyKey, LockName, LockView,
    Op, Reason, Refusal, RequestId, RequestOrder, SessionId, Token, answer_for, answer_format,
    view_for,
};
use crate::time::{Time, Wall};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The version of a message that uses no feature of a later version, which the previous release of
/// latchfs can read. A message claims the lowest version that can hold it, between this version and
/// [`PROTOCOL`].
pub const PROTOCOL_BASE: u8 = FORMAT_BASE;
/// The newest version of the protocol that this latchfs knows. The version of a message is the
/// format in which the commands in it are encoded.
pub const PROTOCOL: u8 = FORMAT_VERSION;
/// The header in which a server and a client give the newest version of the protocol that they
/// know. One that sends no such header knows [`PROTOCOL_BASE`] only, or as a client perhaps the
/// next one, which has the same answers.
pub const PROTOCOL_HEADER: &str = "latchfs-protocol";
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
    /// The id of the sender: a random number that each remote client draws.
    pub from: u64,
    /// The sequence number of the batch at its sender; 0 if the batch may be carried out
    /// repeatedly.
    pub number: u64,
    /// The session of which the sender is the only user. It gives each part of a batch a
    /// [`RequestOrder`], so that the engine refuses a part that arrives after parts of a later
    /// batch.
    pub session: Option<SessionId>,
    /// The keys of requests whose answers this client has received, or no longer wants: it sends
    /// none of them again. Each of them was sent only with the `session` of this batch.
    pub acknowledged: Option<AcknowledgedKeys>,
    /// The parts of the batch, in order.
    pub asks: Vec<BatchItem>,
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
    /// The idempotency key, by which a repeat of the command is recognized.
    pub key: Option<Arc<str>>,
    /// The operation to carry out.
    pub op: Op,
}

impl RequestBatch {
    /// Returns a batch that may be carried out repeatedly, for this engine (0 for any).
    pub const fn repeatable(engine: u64, asks: Vec<BatchItem>) -> Self {
        Self { engine, from: 0, number: 0, session: None, acknowledged: None, asks }
    }

    /// Returns the lowest version of the protocol that can hold the batch.
    fn version(&self) -> u8 {
        let formats = self.asks.iter().filter_map(|ask| match ask {
            BatchItem::Submit(command) => Some(command.op.format()),
            _ => None,
        });
        let own = self.acknowledged.as_ref().map(|_| WITH_ACKNOWLEDGEMENTS);
        formats.chain(own).max().unwrap_or(PROTOCOL_BASE)
    }

    /// Returns the lowest version of the protocol in which every part means what it says.
    pub fn needs(&self) -> u8 {
        let needs = self.asks.iter().map(BatchItem::needs);
        needs.max().unwrap_or(PROTOCOL_BASE)
    }

    /// Returns the batch without the parts that a server does not know which speaks only this
    /// `version` of the protocol, and the places of these parts: they are refused.
    pub fn known_parts(&self, version: u8) -> (Self, Vec<usize>) {
        let parts = self.asks.iter().enumerate();
        let unknown = parts.filter(|(_, ask)| ask.needs() > version).map(|(place, _)| place);
        let unknown: Vec<_> = unknown.collect();
        let mut batch = self.clone();
        for place in &unknown {
            batch.asks[*place] = BatchItem::Now;
        }
        (batch, unknown)
    }

    /// Returns the batch as a server knows it that speaks only this `version` of the protocol.
    fn for_version(&self, version: u8) -> Self {
        let ask = |ask: &BatchItem| match ask {
            BatchItem::Submit(Submission { key, op }) => BatchItem::Submit(Submission {
                key: key.clone(),
                op: op.clone().for_format(version),
            }),
            other => other.clone(),
        };
        let acknowledged = self.acknowledged.clone();
        let acknowledged = acknowledged.filter(|_| version >= WITH_ACKNOWLEDGEMENTS);
        Self { asks: self.asks.iter().map(ask).collect(), acknowledged, ..*self }
    }

    /// Returns the position of each part among all that the session's client sends. The first part
    /// with a key acknowledges the answers to earlier ones.
    pub fn positions(&self) -> Vec<RequestPosition> {
        let has_key =
            |ask: &BatchItem| matches!(ask, BatchItem::Submit(part) if part.key.is_some());
        let first = self.asks.iter().position(has_key);
        let of = |place| RequestPosition {
            order: self.order(place),
            acknowledged: self.acknowledged.clone().filter(|_| first == Some(place)),
        };
        (0..self.asks.len()).map(of).collect()
    }

    /// Returns the number of one call in a batch in the order of all calls that the session's
    /// client makes, or `None` for a batch that may be carried out repeatedly or names no session.
    pub fn order(&self, place: usize) -> Option<RequestOrder> {
        let session = self.session.filter(|_| self.number > 0)?;
        let before = self.number.saturating_mul(ASKS_MAX as u64);
        Some(RequestOrder { session, number: before.saturating_add(place as u64) })
    }
}

/// The position of one part of a batch in the sequence of all parts that its client sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestPosition {
    /// The place of the part.
    pub order: Option<RequestOrder>,
    /// The keys of earlier requests that are acknowledged with this part.
    pub acknowledged: Option<AcknowledgedKeys>,
}

impl BatchItem {
    const fn needs(&self) -> u8 {
        match self {
            Self::Submit(command) => command.op.needs(),
            _ => PROTOCOL_BASE,
        }
    }
}

impl From<Op> for Submission {
    fn from(op: Op) -> Self {
        Self { key: None, op }
    }
}

impl Submission {
    /// Returns the command of `caller`, with a request id if it has a key.
    pub fn into_command(self, caller: &Arc<str>, position: RequestPosition) -> Command {
        let Self { key, op } = self;
        let request = key.map(|key| {
            let id = RequestId { caller: Arc::clone(caller), key };
            IdempotencyKey { id, digest: digest_of(&op) }
        });
        let RequestPosition { order, acknowledged } = position;
        Command { order, acknowledged, ..Command::from(op).with_request(request) }
    }
}

/// Returns the digest of an operation with all its fields that every version of the protocol knows:
/// a client may repeat the operation at a server of another version.
fn digest_of(op: &Op) -> Digest {
    let mut bytes = Vec::new();
    op.clone().for_format(PROTOCOL_BASE).put(&mut bytes);
    let hash = Sha256::digest(&bytes);
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

impl BatchResponse {
    /// Refuses the parts of a batch that [`RequestBatch::known_parts`] has left out.
    pub fn refuse(&mut self, places: &[usize]) {
        let at = self.stamp.now;
        for place in places {
            if let Some(reply) = self.replies.get_mut(*place) {
                let reason = Box::new(Reason::NoHandoversYet);
                *reply = ItemReply::Answered(Err(Refusal { at, reason }));
            }
        }
    }

    /// Returns the lowest version of the protocol that can hold the answer.
    fn version(&self) -> u8 {
        self.replies.iter().map(ItemReply::version).max().unwrap_or(PROTOCOL_BASE)
    }
}

impl ItemReply {
    /// Returns the lowest version of the protocol that can hold the reply.
    pub(super) fn version(&self) -> u8 {
        match self {
            Self::Answered(answer) => answer_format(answer),
            Self::Viewed(view) => view.format(),
            Self::Listed(page) => {
                page.items.iter().map(LockView::format).max().unwrap_or(PROTOCOL_BASE)
            }
            _ => PROTOCOL_BASE,
        }
    }

    /// Returns the reply as a client knows it that speaks only this `version` of the protocol.
    pub(super) fn for_version(self, version: u8) -> Self {
        if self.version() <= version {
            return self;
        }
        match self {
            Self::Answered(answer) => Self::Answered(answer_for(version, answer)),
            Self::Viewed(view) => Self::Viewed(view_for(version, view)),
            Self::Listed(ListPage { items, next }) => {
                let items = items.into_iter().map(|view| view_for(version, view)).collect();
                Self::Listed(ListPage { items, next })
            }
            other => other,
        }
    }
}

/// One frame of the stream of events that a server sends to a remote client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a stream: the server's [`Stamp`] (its ids and its time), and the number
    /// of the next event that the stream will contain.
    Begin(Stamp, u64),
    /// How many events were dropped before they could be sent, followed by the next events with
    /// their numbers.
    Events(u64, Vec<(u64, Event)>),
    /// A heartbeat with the server's [`Stamp`] (its ids and its time), sent when there are no
    /// events.
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
        5 NoQuorum { why }, 6 ClockSkew { why },
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
        if self.version() >= WITH_ACKNOWLEDGEMENTS {
            self.acknowledged.put(out);
        }
        self.asks.put(out);
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (engine, by, number) = (Codec::take(from)?, Codec::take(from)?, Codec::take(from)?);
        let session = Codec::take(from)?;
        let acknowledged = from.take_since(WITH_ACKNOWLEDGEMENTS)?;
        let count = from.take_length::<BatchItem>()?;
        require(count <= ASKS_MAX)?;
        let asks = (0..count).map(|_| BatchItem::take(from)).collect::<Result<_, _>>()?;
        Ok(Self { engine, from: by, number, session, acknowledged, asks })
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

/// Encodes a batch for a server that knows the protocol up to the version `known`. Later features
/// are left out.
pub fn encode_batch(known: u8, batch: &RequestBatch) -> Vec<u8> {
    let version = batch.version();
    if version <= known {
        return encode_message(version, batch);
    }
    let older = batch.for_version(known);
    encode_message(older.version(), &older)
}

/// Decodes the output of [`encode_batch`]. A version above the lowest that can hold the batch is
/// malformed, so that each batch has one encoding.
pub fn decode_batch(bytes: &[u8]) -> Result<RequestBatch, Malformed> {
    require(bytes.len() <= BATCH_BYTES_MAX)?;
    let batch: RequestBatch = decode_message(format_of, 2 * BATCH_BYTES_MAX, bytes)?;
    require(bytes.first() == Some(&batch.version()))?;
    Ok(batch)
}

/// Encodes the answer to a batch.
pub fn encode_told(told: &BatchResponse) -> Vec<u8> {
    encode_message(told.version(), told)
}

/// Encodes the reply to one call in a batch. A reply is kept in encoded form until the replies to
/// all calls are complete: a page of locks takes less memory in this form.
pub(super) fn encode_reply(reply: &ItemReply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.put(&mut out);
    out
}

/// Encodes the answer to a batch, as [`encode_told`] does, from replies that [`encode_reply`]
/// encoded, and the highest version that any of them needs.
pub(super) fn encode_replies(version: u8, stamp: &Stamp, replies: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![version];
    stamp.put(&mut out);
    replies.len().put(&mut out);
    for reply in replies {
        out.extend_from_slice(reply);
    }
    out
}

/// Decodes the output of [`encode_told`].
pub fn decode_told(bytes: &[u8]) -> Result<BatchResponse, Malformed> {
    require(bytes.len() <= ANSWER_BYTES_MAX)?;
    decode_message(format_of, ANSWER_MEMORY_MAX, bytes)
}

/// Encodes a frame of the event stream, preceded by its length in four bytes.
pub fn encode_frame(frame: &Frame) -> Vec<u8> {
    let bytes = encode_message(PROTOCOL_BASE, frame);
    let mut out = (bytes.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&bytes);
    out
}

/// If `bytes` begins with a complete frame of the event stream, removes and decodes the frame.
pub fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<Frame>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    require(length <= FRAME_BYTES_MAX)?;
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let frame = decode_message(format_of, 2 * FRAME_BYTES_MAX, frame)?;
    bytes.drain(..length + size_of::<u32>());
    Ok(Some(frame))
}

/// Returns the encoding format of the values in a message of this protocol version; `None` if the
/// version is not known.
fn format_of(version: u8) -> Option<u8> {
    (PROTOCOL_BASE..=PROTOCOL).contains(&version).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ClientId, Handover, LeaseKey, Mode, OpenId, Previous, Release};

    fn batch_of(op: Op) -> RequestBatch {
        let asks = vec![BatchItem::Now, BatchItem::Submit(op.into())];
        let session = Some(SessionId::named(4));
        RequestBatch { engine: 1, from: 2, number: 3, session, acknowledged: None, asks }
    }

    #[test]
    fn acknowledged_keys_are_left_out_for_an_older_server() {
        let keyed = Submission { key: Some("a-7".into()), op: Op::Settle };
        let none = RequestBatch { asks: vec![BatchItem::Now], ..batch_of(Op::Settle) };
        let submits = [BatchItem::Submit(Op::Settle.into()), BatchItem::Submit(keyed)];
        let asks = [&none.asks[..], &submits, &submits].concat();
        let old = RequestBatch { asks, ..none };
        let acknowledged = Some(AcknowledgedKeys { from: "a-".into(), below: "a-7".into() });
        let new = RequestBatch { acknowledged: acknowledged.clone(), ..old.clone() };
        let bytes = encode_batch(PROTOCOL, &new);
        assert_eq!((bytes[0], decode_batch(&bytes).as_ref()), (6, Ok(&new)));
        assert_eq!(encode_batch(PROTOCOL_BASE, &new), encode_batch(PROTOCOL_BASE, &old));
        assert_eq!(encode_batch(PROTOCOL, &old)[0], PROTOCOL_BASE);
        let carried: Vec<_> = new.positions().into_iter().map(|at| at.acknowledged).collect();
        assert_eq!(carried, [None, None, acknowledged, None, None], "with the first key only");
    }

    #[test]
    fn a_batch_claims_the_lowest_version_that_can_hold_it() {
        let (name, client) = (LockName::parse("x"), ClientId::parse("a"));
        let (name, client) = (name.expect("valid"), client.expect("valid"));
        let key = LeaseKey { name, client, token: Some(Token::named(7)) };
        let open = OpenId { session: SessionId::named(4), number: 5 };
        let old = batch_of(Op::Release(Release::of(key.clone())));
        let new = batch_of(Op::Release(Release::of_open_file(open, key)));
        assert_eq!(encode_batch(PROTOCOL, &old)[0], PROTOCOL_BASE);
        assert_eq!(decode_batch(&encode_batch(PROTOCOL, &old)), Ok(old.clone()));
        let bytes = encode_batch(PROTOCOL, &new);
        assert_eq!(bytes[0], 6);
        assert_eq!(decode_batch(&bytes), Ok(new.clone()));
        // A server that knows only the previous version gets the release without the open file. It
        // has the same digest as the release with the open file, so either is recognized as a
        // repeat of the other.
        assert_eq!(encode_batch(PROTOCOL_BASE, &new), encode_batch(PROTOCOL_BASE, &old));
        let digest = |batch: &RequestBatch| match &batch.asks[1] {
            BatchItem::Submit(command) => digest_of(&command.op),
            other => panic!("{other:?}"),
        };
        assert_eq!(digest(&old), digest(&new));
        // A message is malformed if its content needs a newer protocol version than the message
        // claims, or if the claimed version is unknown.
        assert!(decode_batch(&[&[PROTOCOL_BASE], &bytes[1..]].concat()).is_err());
        assert!(decode_batch(&[&[PROTOCOL + 1], &bytes[1..]].concat()).is_err());
    }

    /// A server that does not know handovers is sent the rest of the batch, and a client that does
    /// not know them is sent answers without what is remembered.
    #[test]
    fn handovers_are_refused_by_an_older_server_and_left_out_for_an_older_client() {
        let (name, client) = (LockName::parse("x"), ClientId::parse("a"));
        let (name, client) = (name.expect("valid"), client.expect("valid"));
        let key = LeaseKey { name: name.clone(), client, token: Some(Token::named(7)) };
        let handover = Some(Handover { text: "clean".into(), counter: 1 });
        let batch = batch_of(Op::Release(Release { handover, ..Release::of(key) }));
        assert_eq!((batch.needs(), encode_batch(PROTOCOL, &batch)[0]), (7, 7));
        assert_eq!(batch.known_parts(PROTOCOL), (batch.clone(), vec![]));
        let (older, refused) = batch.known_parts(6);
        assert_eq!(
            (&older.asks[..], &refused[..]),
            (&[BatchItem::Now, BatchItem::Now][..], &[1][..])
        );
        let (at, wall) = (Time::from_secs(5), Wall { secs: 0, nanos: 0 });
        let stamp = Stamp { engine: 1, start: 2, now: at, wall, next_event: 3 };
        let mut told = BatchResponse { stamp, replies: vec![ItemReply::Now, ItemReply::Now] };
        told.refuse(&refused);
        let [ItemReply::Now, ItemReply::Answered(Err(refusal))] = &told.replies[..] else {
            panic!("{told:?}");
        };
        assert_eq!(*refusal.reason, Reason::NoHandoversYet);
        let previous = Some(Arc::new(Previous { seq: 3, last: None }));
        let (mode, holders, waiters) = (Mode::Exclusive, vec![], vec![]);
        let hold_off = None;
        let view =
            LockView { name, at, mode, holders, waiters, has_below: false, previous, hold_off };
        let reply = ItemReply::Viewed(view.clone());
        let told = BatchResponse { stamp, replies: vec![reply.clone()] };
        let bytes = encode_told(&told);
        assert_eq!((bytes[0], decode_told(&bytes)), (7, Ok(told)));
        assert!(decode_told(&[&[6], &bytes[1..]].concat()).is_err());
        assert_eq!(reply.clone().for_version(7), reply);
        let bare = LockView { previous: None, ..view };
        assert_eq!(reply.for_version(6), ItemReply::Viewed(bare));
    }
}
