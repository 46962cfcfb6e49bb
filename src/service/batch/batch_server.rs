//! The server side of remote clients: decodes batches, submits their parts to the lock service, and
//! encodes the replies.
//!
//! It keeps nothing about batches. One that is repeated because its answer was lost, even while the
//! first copy is being carried out, is carried out part by part: the engine recognizes, by their
//! request ids, the commands that it must not carry out twice, and reads are made anew.

use super::batch_messages::{
    ANSWER_BYTES_MAX, ANY_START, ASKS_MAX, BatchItem, BatchNumbers, FRAME_EVENTS_MAX, Frame,
    ItemReply, PAGE_MAX, RequestBatch, Stamp, StreamStart, decode_batch, encode_frame,
    encode_replies, encode_reply, protocol,
};
use crate::base::random;
use crate::engine::codec::state_codec::DecodeError;
use crate::engine::{Command, Event, Op, OpenSession, Outcome, Refusal};
use crate::service::audit::refusal_log::CommandSubject;
use crate::service::backend_status::About;
use crate::service::event_log::{EventPlace, EventStart, EventWatch};
use crate::service::paging::{Children, List, ListPage};
use crate::service::scoped_views;
use crate::service::unavailable::Unavailable;
use crate::service::{Call, ListedNames, LockService, ParentCheck, Retry};
use crate::time::Span;
use std::collections::HashMap;
use std::sync::Arc;

/// The length in bytes up to which an answer may contain replies other than outcomes of commands.
/// The difference to [`ANSWER_BYTES_MAX`] is reserved for outcomes, which are short.
const REPLIES_BYTES_MAX: usize = ANSWER_BYTES_MAX - (1 << 20);
/// The error message in place of a reply for which the answer has no room: see
/// [`REPLIES_BYTES_MAX`].
const TOO_MUCH: &str = "the answer to this batch would be too long; request less at once";
/// The interval of heartbeats on an idle event stream. A client gives up after three.
pub const BEAT: Span = Span::from_millis(500);

/// The message with which a session without a ttl is refused. If the remote client of such a
/// session crashed, the session would never end.
const ENDLESS: &str = "a remote session needs a ttl; open it with one, and send keep-alives";

/// The access restrictions of the calls in a batch, by the index of the call. The front end that
/// authorizes the batch fills them in. A call without an entry is unrestricted.
pub type Limits = HashMap<usize, ItemAccess>;

/// The access restriction of one call in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemAccess {
    /// The call is refused with this error.
    Nothing(Unavailable),
    /// The command is refused as the engine would refuse it.
    Refused(Refusal),
    /// The part is a command that creates a name below other names. It is decided only if this
    /// condition holds.
    Checked(ParentCheck),
    /// The answer to the call contains only names that begin with one of these prefixes. The
    /// prefixes are sorted, and none begins with another.
    Within(Vec<String>),
}

/// Why a batch is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchError {
    /// The bytes are not a valid batch, or one of another version.
    Unreadable(DecodeError),
    /// The batch is for another engine.
    Elsewhere,
}

/// Serves remote clients: carries out the batches of requests that they send.
#[derive(Clone)]
pub struct BatchServer {
    state: Arc<BatchServerState>,
    /// The version of the protocol in which the client is answered.
    protocol: u8,
}

struct BatchServerState {
    locks: Arc<dyn LockService>,
    start: u64,
}

impl BatchServer {
    /// Returns a server for the locks of `locks`.
    pub fn new(locks: Arc<dyn LockService>) -> Self {
        let start = random();
        let state = Arc::new(BatchServerState { locks, start });
        Self { state, protocol: protocol() }
    }

    /// Returns the server for a client that speaks this version of the protocol.
    #[must_use]
    pub fn in_protocol(&self, protocol: u8) -> Self {
        Self { protocol, ..self.clone() }
    }

    /// Decodes a batch.
    pub fn read(bytes: &[u8]) -> Result<RequestBatch, BatchError> {
        decode_batch(bytes).map_err(BatchError::Unreadable)
    }

    /// Carries out a batch of `caller`, subject to its `limits`. The answer is an error, or the
    /// bytes to send. Unless the batch is refused as a whole, first calls `begins` for each part
    /// but the commands that were answered before, with the limit of the part.
    pub fn execute(
        &self,
        caller: &Arc<str>,
        batch: RequestBatch,
        limits: Limits,
        mut begins: impl FnMut(&BatchItem, Option<&ItemAccess>),
    ) -> Call<Result<Arc<[u8]>, BatchError>> {
        if batch.engine != 0 && batch.engine != self.state.locks.engine_id() {
            return Call::answered(Ok(Err(BatchError::Elsewhere)));
        }
        for (place, ask) in batch.asks.iter().enumerate() {
            if !self.state.is_answered(caller, &batch, ask) {
                begins(ask, limits.get(&place));
            }
        }
        self.carry_out(caller, batch, limits)
    }

    fn carry_out(
        &self,
        caller: &Arc<str>,
        batch: RequestBatch,
        mut limits: Limits,
    ) -> Call<Result<Arc<[u8]>, BatchError>> {
        // The [`Stamp`] of the answer is made before any call of the batch is carried out, so that
        // every view in the answer includes all events whose numbers are below `next_event` of the
        // stamp.
        let stamp = self.stamp();
        let RequestBatch { numbers, asks, .. } = batch;
        assert!(asks.len() <= ASKS_MAX, "the batch was checked when it was read");
        let page = page_share(&asks);
        let mut calls = Vec::with_capacity(asks.len());
        for (place, ask) in asks.into_iter().enumerate() {
            let ask = with_limit(ask, page);
            calls.push(match limits.remove(&place) {
                None => self.state.execute_item(caller, ask, numbers, None),
                Some(ItemAccess::Checked(check)) => {
                    self.state.execute_item(caller, ask, numbers, Some(check))
                }
                Some(ItemAccess::Nothing(why)) => Call::answered(Err(why)),
                Some(ItemAccess::Refused(why)) => Call::answered(Ok(ItemReply::Answered(Err(why)))),
                Some(ItemAccess::Within(prefixes)) => {
                    self.state.execute_within(caller, ask, numbers, prefixes)
                }
            });
        }
        let protocol = self.protocol;
        Call::of_steps(async move {
            let mut replies = EncodedReplies::new(protocol);
            for call in calls {
                replies.add(&call.await.unwrap_or_else(ItemReply::Unavailable));
            }
            Ok(Ok(encode_replies(protocol, &stamp, &replies.replies).into()))
        })
    }

    /// Returns the ids of the engine and of this start of the server, the time, and the number of
    /// the next event.
    pub fn stamp(&self) -> Stamp {
        let locks = &self.state.locks;
        let now = locks.now();
        let next_event = locks.next_event();
        Stamp {
            engine: locks.engine_id(),
            start: self.state.start,
            now,
            wall: locks.wall(now),
            next_event,
        }
    }

    /// Returns the stream of events that a client follows. The stream starts at event `since` if
    /// `start` is the id of this start of the server or [`ANY_START`], otherwise after the event at
    /// the place `after` of the cluster's log, if this node knows it, and otherwise at the next
    /// event.
    pub fn follow(&self, start: u64, since: u64, after: Option<EventPlace>) -> Following {
        let is_ours = start == self.state.start || start == ANY_START;
        let watch = self.state.locks.subscribe(is_ours.then_some(since));
        let begin = match after {
            Some(place) if !is_ours => StreamBegin::After(place),
            _ => StreamBegin::Here { continues: is_ours && watch.next() == since },
        };
        Following { server: self.clone(), watch, begin: Some(begin), wanted: Box::new(|_| true) }
    }

    /// Returns the place of the event before the one with the number `next`.
    fn place_before(&self, next: u64) -> Option<EventPlace> {
        next.checked_sub(1).and_then(|last| self.state.locks.event_place(last))
    }
}

/// Where a stream of events begins.
#[derive(Clone, Copy)]
enum StreamBegin {
    /// At the position of its reader.
    Here { continues: bool },
    /// After the event at this place, once this node has come so far.
    After(EventPlace),
}

/// The condition that decides which events the stream to a client contains.
type Wanted = Box<dyn Fn(&Event) -> bool + Send>;

/// The position of one client in the stream of events.
pub struct Following {
    server: BatchServer,
    /// The reader of the event log. It wakes the thread that sends the stream.
    pub watch: EventWatch,
    /// Where the stream begins, until it has begun.
    begin: Option<StreamBegin>,
    wanted: Wanted,
}

impl Following {
    /// Restricts the stream to selected events from now on.
    pub fn only(&mut self, wanted: impl Fn(&Event) -> bool + Send + 'static) {
        self.wanted = Box::new(wanted);
    }

    /// Returns the next frame of the event stream as bytes, if there are new events.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        if let Some(begin) = self.begin.take() {
            return self.begin(begin);
        }
        let mut batch = self.watch.take(FRAME_EVENTS_MAX);
        batch.events.retain(|(_, event)| (self.wanted)(event));
        let quiet = batch.lost == 0 && batch.events.is_empty();
        let place = self.server.place_before(self.watch.next());
        let frame = Frame::Events(batch.lost, batch.events, place);
        (!quiet).then(|| encode_frame(self.server.protocol, &frame))
    }

    /// Returns the first frame of the stream, unless this node has to wait for the entry after
    /// which the stream begins.
    fn begin(&mut self, begin: StreamBegin) -> Option<Vec<u8>> {
        let continues = match begin {
            StreamBegin::Here { continues } => continues,
            StreamBegin::After(place) => match self.server.state.locks.events_after(place) {
                EventStart::At(next) => {
                    self.watch.seek(next);
                    true
                }
                EventStart::NotYet => {
                    self.begin = Some(StreamBegin::After(place));
                    return None;
                }
                EventStart::Forgotten => false,
            },
        };
        let next = self.watch.next();
        let start = StreamStart { next, continues, place: self.server.place_before(next) };
        Some(encode_frame(self.server.protocol, &Frame::Begin(self.server.stamp(), start)))
    }

    /// Returns a heartbeat frame of the event stream.
    pub fn beat(&self) -> Vec<u8> {
        let has_begun = self.begin.is_none();
        let place = has_begun.then(|| self.server.place_before(self.watch.next())).flatten();
        encode_frame(self.server.protocol, &Frame::Beat(self.server.stamp(), place))
    }
}

impl BatchServerState {
    /// Whether `ask` is a command whose answer is remembered: it is not carried out again.
    fn is_answered(&self, caller: &Arc<str>, batch: &RequestBatch, ask: &BatchItem) -> bool {
        let BatchItem::Submit(command) = ask else { return false };
        let id = command.request_id(caller, batch.numbers);
        id.is_some_and(|id| self.locks.remembers(&id))
    }

    /// Carries out one call in a batch. A command is decided only if the condition `check` holds.
    fn execute_item(
        &self,
        caller: &Arc<str>,
        ask: BatchItem,
        numbers: Option<BatchNumbers>,
        check: Option<ParentCheck>,
    ) -> Call<ItemReply> {
        let locks = &self.locks;
        match ask {
            BatchItem::Submit(submission) => {
                self.submit(submission.into_command(caller, numbers), check)
            }
            BatchItem::View(name) => {
                locks.view(&name, Retry::Never).map(|seen| ItemReply::Viewed(seen.view))
            }
            BatchItem::List(query) => locks.list(ListedNames::InUse, query).map(ItemReply::Listed),
            BatchItem::Children(query) => locks.children(query).map(ItemReply::Found),
            BatchItem::About => Call::answered(Ok(ItemReply::About(locks.about()))),
            BatchItem::Now => Call::answered(Ok(ItemReply::Now)),
            BatchItem::Urls => Call::answered(Ok(ItemReply::Urls(locks.urls()))),
            BatchItem::Leases(session, after) => {
                locks.leases(session, after).map(ItemReply::Leases)
            }
        }
    }

    /// Carries out one call in a batch for a caller that may see only names that begin with one of
    /// `prefixes`.
    fn execute_within(
        &self,
        caller: &Arc<str>,
        ask: BatchItem,
        numbers: Option<BatchNumbers>,
        prefixes: Vec<String>,
    ) -> Call<ItemReply> {
        let locks = Arc::clone(&self.locks);
        match ask {
            BatchItem::View(name) => Call::of_steps(async move {
                scoped_views::lead(&*locks, &name, prefixes).await.map(ItemReply::Viewed)
            }),
            BatchItem::List(query) => Call::of_steps(async move {
                let page = scoped_views::list(&*locks, ListedNames::InUse, prefixes, query).await;
                page.map(ItemReply::Listed)
            }),
            BatchItem::Children(query) => Call::of_steps(async move {
                scoped_views::children(&*locks, prefixes, query).await.map(ItemReply::Found)
            }),
            BatchItem::About => {
                // The counts of all locks, waiters and sessions are hidden, since they would reveal
                // how many locks exist that the caller may not see.
                let about = About { locks: 0, waiters: 0, sessions: 0, ..locks.about() };
                Call::answered(Ok(ItemReply::About(about)))
            }
            BatchItem::Submit(_) | BatchItem::Now | BatchItem::Leases(..) | BatchItem::Urls => {
                self.execute_item(caller, ask, numbers, None)
            }
        }
    }

    fn submit(&self, command: Command, check: Option<ParentCheck>) -> Call<ItemReply> {
        if let (Op::Settle, None) = (&command.op, &command.request) {
            // A server applies expiries and timeouts by itself, so no command is needed for a
            // client that asks for that (`Settle`) without a request id.
            return Call::answered(Ok(ItemReply::Now));
        }
        if let Op::OpenSession(OpenSession { ttl: None, .. }) = command.op {
            return Call::answered(Err(Unavailable::Denied { why: ENDLESS.into() }));
        }
        let subject = CommandSubject::of(&command.op);
        Arc::clone(&self.locks).submit_checked(command, check).map(move |answer| {
            if let (Some(subject), Err(refusal)) = (&subject, &answer) {
                subject.refused(refusal);
            }
            ItemReply::Answered(answer.map(Outcome::first))
        })
    }
}

/// Returns the maximum number of items on each page of locks or directory entries in the answer to
/// a batch: all pages of one answer together have at most as many items as a single page may have.
fn page_share(asks: &[BatchItem]) -> usize {
    let pages = asks
        .iter()
        .filter(|ask| matches!(ask, BatchItem::List(_) | BatchItem::Children(_)))
        .count();
    (PAGE_MAX / pages.max(1)).max(1)
}

fn with_limit(ask: BatchItem, max: usize) -> BatchItem {
    match ask {
        BatchItem::List(query) => BatchItem::List(List { limit: query.limit.min(max), ..query }),
        BatchItem::Children(query) => {
            BatchItem::Children(Children { limit: query.limit.min(max), ..query })
        }
        other => other,
    }
}

/// The encoded replies of a batch, as far as there are any.
struct EncodedReplies {
    replies: Vec<Vec<u8>>,
    protocol: u8,
    bytes: usize,
}

impl EncodedReplies {
    const fn new(protocol: u8) -> Self {
        Self { replies: Vec::new(), protocol, bytes: 0 }
    }

    fn add(&mut self, reply: &ItemReply) {
        let mut bytes = encode_reply(self.protocol, reply);
        let room = REPLIES_BYTES_MAX.saturating_sub(self.bytes);
        if bytes.len() > room && !matches!(reply, ItemReply::Answered(_)) {
            bytes = shortened(self.protocol, reply, room).unwrap_or_else(|| {
                let why = TOO_MUCH.into();
                encode_reply(self.protocol, &ItemReply::Unavailable(Unavailable::Denied { why }))
            });
        }
        self.bytes += bytes.len();
        self.replies.push(bytes);
    }
}

/// Returns the encoding of the first part of a page of locks that fits into `room` bytes, with the
/// cursor of the rest: a lock with thousands of waiters is long. `None` if the reply is no such
/// page, or even its first lock is too long.
fn shortened(protocol: u8, reply: &ItemReply, room: usize) -> Option<Vec<u8>> {
    let ItemReply::Listed(page) = reply else { return None };
    let mut count = page.items.len();
    while count > 1 {
        count /= 2;
        let items = page.items[..count].to_vec();
        let next = items.last().map(|last| last.name.to_string());
        let bytes = encode_reply(protocol, &ItemReply::Listed(ListPage { items, next }));
        if bytes.len() <= room {
            return Some(bytes);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::batch_messages::{Submission, SubmissionKey, decode_response};
    use super::*;
    use crate::engine::values::lease::TTL_DEFAULT;
    use crate::engine::values::name::CLIENT_BYTES_MAX;
    use crate::engine::{
        Acquire, Answer, ClientId, Engine, Grace, LeaseKey, LeaseTerms, LockName, Mode, OpenId,
        Ownership, QueuePolicy, Reason, Release, Rules, SessionId, Ttl,
    };
    use crate::service::local::Local;

    fn server() -> BatchServer {
        BatchServer::new(Arc::new(Local::in_memory(Rules::default()).expect("started")))
    }

    fn execute(
        server: &BatchServer,
        batch: &RequestBatch,
        limits: &Limits,
    ) -> Result<Vec<ItemReply>, BatchError> {
        let call = server.execute(&"batch:a".into(), batch.clone(), limits.clone(), |_, _| {});
        let replies = call.wait().expect("the server answers");
        replies.map(|replies| decode_response(&replies).expect("as it was written").replies)
    }

    fn anything() -> Limits {
        Limits::new()
    }

    fn open() -> BatchItem {
        open_for(Some(TTL_DEFAULT))
    }

    fn open_for(ttl: Option<Ttl>) -> BatchItem {
        let client = ClientId::parse("a").expect("valid");
        let open = OpenSession { client, ttl, grace: Grace::NONE };
        BatchItem::Submit(Op::OpenSession(open).into())
    }

    fn batch(asks: Vec<BatchItem>) -> RequestBatch {
        RequestBatch::new(0, asks)
    }

    fn keyed(key: &str, part: BatchItem) -> BatchItem {
        let BatchItem::Submit(command) = part else { panic!("{part:?} has no key") };
        BatchItem::Submit(Submission { key: Some(key.into()), ..command })
    }

    fn numbered(number: u64, part: BatchItem) -> BatchItem {
        let BatchItem::Submit(command) = part else { panic!("{part:?} has no number") };
        BatchItem::Submit(Submission { key: Some(SubmissionKey::Number(number)), ..command })
    }

    fn of_session(session: SessionId, answered_below: u64, asks: Vec<BatchItem>) -> RequestBatch {
        RequestBatch { numbers: Some(BatchNumbers { session, answered_below }), ..batch(asks) }
    }

    /// In an earlier version the audit log had the acts of refused batches as begun.
    #[test]
    fn repeated_and_refused_batches_do_not_begin() {
        let server = server();
        let mut begun = Vec::new();
        let other_engine = RequestBatch { engine: 1, ..batch(vec![keyed("3", open())]) };
        for batch in [
            batch(vec![keyed("1", open())]),
            batch(vec![keyed("1", open())]),
            batch(vec![keyed("2", open())]),
            batch(vec![keyed("1", open())]),
            other_engine,
        ] {
            let begins = |ask: &BatchItem, _: Option<&ItemAccess>| match ask {
                BatchItem::Submit(command) => begun.push(command.key.clone()),
                other => panic!("{other:?}"),
            };
            server.execute(&"batch:a".into(), batch, anything(), begins).detach();
        }
        assert_eq!(begun, [Some("1".into()), Some("2".into())]);
    }

    /// The copy of a batch gets the first answers, and its reads are made anew.
    #[test]
    fn a_batch_is_carried_out_once() {
        let server = server();
        let mine = batch(vec![keyed("1", open()), BatchItem::About]);
        let first = execute(&server, &mine, &anything()).expect("carried out");
        let repeated = execute(&server, &mine, &anything()).expect("known");
        assert_eq!(first, repeated);
        assert!(matches!(&first[..], [ItemReply::Answered(Ok(Outcome::SessionOpened(_))), _]));
        assert_eq!(server.state.locks.about().sessions, 1);
        let next = execute(&server, &batch(vec![keyed("2", open())]), &anything());
        assert_ne!(first[0], next.expect("carried out")[0]);
        let late = execute(&server, &mine, &anything()).expect("known");
        assert_eq!(late[0], first[0]);
        assert!(matches!(&late[1], ItemReply::About(about) if about.sessions == 2), "{late:?}");
        let caller = "batch:b".into();
        let other = server.execute(&caller, mine, anything(), |_, _| {}).wait();
        other.expect("the server answers").expect("another's");
        for _ in 0..2 {
            execute(&server, &batch(vec![open()]), &anything()).expect("as often as it is asked");
        }
        assert_eq!(server.state.locks.about().sessions, 5);
    }

    /// The second copy of a batch arrives before the first one is answered.
    #[test]
    fn a_copy_beside_its_batch_has_no_effect_of_its_own() {
        let server = server();
        let mine = batch(vec![keyed("1", open()), keyed("2", open())]);
        let calls = [(); 3]
            .map(|()| server.execute(&"batch:a".into(), mine.clone(), anything(), |_, _| {}));
        let answers = calls.map(|call| {
            let bytes = call.wait().expect("the server answers").expect("carried out");
            decode_response(&bytes).expect("as it was written").replies
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        assert_eq!(server.state.locks.about().sessions, 2);
    }

    /// A page of locks is bounded in bytes, too: with many waiters it ends earlier, and the next
    /// page begins there.
    #[test]
    fn pages_of_locks_with_many_waiters_fit_the_answer() {
        let server = server();
        let (locks, waiters) = (24, 1_500);
        let acquire = |name: usize, number: usize, line| {
            let client = format!("{number:0>CLIENT_BYTES_MAX$}");
            Op::Acquire(Acquire {
                line,
                ..Acquire::new(
                    LockName::parse(&format!("lock{name:02}")).expect("valid"),
                    ClientId::parse(&client).expect("valid"),
                    LeaseTerms::Own(TTL_DEFAULT, Grace::NONE),
                )
            })
        };
        for name in 0..locks {
            for number in 0..=waiters {
                let line = QueuePolicy::Join(None);
                let ask = acquire(name, number, line).into();
                let answer = server.state.locks.submit(ask, Retry::Never).wait();
                answer.expect("in this process").expect("granted or queued");
            }
        }
        let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let query = List { prefix: String::new(), after, limit: PAGE_MAX };
            let asked = batch(vec![BatchItem::List(query)]);
            let replies = execute(&server, &asked, &anything()).expect("carried out");
            let [ItemReply::Listed(page)] = &replies[..] else { panic!("{replies:?}") };
            seen.extend(page.items.iter().map(|view| (view.name.to_string(), view.waiters.len())));
            pages += 1;
            let Some(next) = &page.next else { break };
            after = Some(LockName::parse(next).expect("a name"));
        }
        assert!(pages > 1, "all fits one page, so nothing is tested");
        let all: Vec<_> = (0..locks).map(|name| (format!("lock{name:02}"), waiters)).collect();
        assert_eq!(seen, all);
    }

    #[test]
    fn denied_parts_do_not_stop_the_rest_of_a_batch() {
        let server = server();
        let no = Unavailable::Denied { why: "no".into() };
        let no_sessions: Limits = [(1, ItemAccess::Nothing(no.clone()))].into();
        let asks =
            vec![BatchItem::Now, open(), BatchItem::About, BatchItem::Submit(Op::Settle.into())];
        let replies = execute(&server, &batch(asks), &no_sessions).expect("carried out");
        let denied = ItemReply::Unavailable(no);
        assert_eq!((&replies[0], &replies[1], replies.len()), (&ItemReply::Now, &denied, 4));
        assert_eq!(server.state.locks.about().sessions, 0);
        let empty = execute(&server, &batch(vec![]), &anything());
        assert_eq!(empty, Ok(vec![]));
    }

    /// A client whose machine is gone for good cannot end its session, so the session needs a ttl.
    #[test]
    fn a_session_without_an_end_is_refused() {
        let server = server();
        let asks = vec![open_for(None), open()];
        let replies = execute(&server, &batch(asks), &anything()).expect("carried out");
        let [ItemReply::Unavailable(Unavailable::Denied { why }), ItemReply::Answered(Ok(_))] =
            &replies[..]
        else {
            panic!("{replies:?}");
        };
        assert!(why.contains("needs a ttl"), "{why}");
        assert_eq!(server.state.locks.about().sessions, 1);
    }

    #[test]
    fn more_request_ids_than_are_remembered_block_no_command() {
        let rules = Rules { requests_max: 1, ..Rules::default() };
        let local = Arc::new(Local::in_memory(rules).expect("started"));
        let server = BatchServer::new(local);
        for number in 1..4 {
            let asks = vec![keyed(&number.to_string(), open())];
            let replies = execute(&server, &batch(asks), &anything());
            let done = |answer: &Answer| matches!(answer, Ok(Outcome::SessionOpened(_)));
            let replies = replies.expect("carried out");
            assert!(matches!(&replies[..], [ItemReply::Answered(answer)] if done(answer)));
        }
    }

    /// Returns the engine of a cluster, the batch servers of two of its nodes, and a session.
    fn two_nodes() -> (Arc<Local>, [BatchServer; 2], SessionId) {
        let local = Arc::new(Local::in_memory(Rules::default()).expect("started"));
        let [one, two] = [(); 2].map(|()| BatchServer::new(Arc::<Local>::clone(&local)));
        let opened = execute(&one, &batch(vec![open()]), &anything()).expect("carried out");
        let [ItemReply::Answered(Ok(Outcome::SessionOpened(session)))] = opened[..] else {
            panic!("{opened:?}");
        };
        (local, [one, two], session)
    }

    /// Node two, which has not received the client's later batches, receives a copy of an earlier
    /// batch. The engine refuses the copy.
    #[test]
    fn a_late_copy_at_another_node_does_not_share_an_exclusive_lock() {
        let (_, [one, two], session) = two_nodes();
        let mine = |number, below, ask| of_session(session, below, vec![numbered(number, ask)]);
        let acquire = |client: &str, mode, hold, term| {
            let (name, client) = (LockName::parse("x"), ClientId::parse(client));
            let (name, client) = (name.expect("valid"), client.expect("valid"));
            let op = Op::Acquire(Acquire { mode, hold, ..Acquire::new(name, client, term) });
            BatchItem::Submit(op.into())
        };
        let own = LeaseTerms::Own(TTL_DEFAULT, Grace::NONE);
        let by_name = |client| acquire(client, Mode::Exclusive, Ownership::Client, own);
        let file = Ownership::OpenFile(OpenId { session, number: 7 });
        let share = acquire("a", Mode::Shared, file, LeaseTerms::Session(session));
        let done = |server: &BatchServer, batch: &RequestBatch| {
            let replies = execute(server, batch, &anything()).expect("carried out");
            let [ItemReply::Answered(answer)] = &replies[..] else { panic!("{replies:?}") };
            answer.clone()
        };
        let granted = done(&one, &batch(vec![keyed("theirs", by_name("b"))]));
        let token = granted.expect("it is free").tenure().expect("a tenure").token;
        let refused = done(&one, &mine(1, 1, share.clone())).expect_err("b holds it");
        assert!(matches!(*refused.reason, Reason::Conflict(_)), "{refused}");
        let key = LeaseKey {
            name: LockName::parse("x").expect("valid"),
            client: ClientId::parse("b").expect("valid"),
            token: Some(token),
        };
        let release = BatchItem::Submit(Op::Release(Release::of(key)).into());
        done(&one, &batch(vec![release])).expect("released");
        // Whether the client has acknowledged the refusal or not, no copy of it is carried out.
        let is_late = |answer: Answer| {
            let late = answer.expect_err("it comes too late");
            assert!(matches!(*late.reason, Reason::LateCopy(of) if of == session), "{late}");
        };
        is_late(done(&two, &mine(1, 1, share.clone())));
        done(&one, &mine(2, 2, by_name("a"))).expect("granted");
        is_late(done(&two, &mine(1, 1, share.clone())));
        // The same request under a new number of the client is carried out.
        done(&two, &mine(3, 3, share)).expect("the open file takes the lease over");
    }

    /// The first copy of an acknowledged request was delayed, and arrives at another node.
    #[test]
    fn late_copy_of_an_acknowledged_request_is_refused() {
        let (local, [one, two], session) = two_nodes();
        let settle = |number: u64, below: u64| {
            of_session(session, below, vec![numbered(number, BatchItem::Submit(Op::Settle.into()))])
        };
        let done = Ok(vec![ItemReply::Answered(Ok(Outcome::Settled))]);
        assert_eq!(execute(&one, &settle(2, 2), &anything()), done);
        assert_eq!(execute(&two, &settle(2, 2), &anything()), done, "a copy in time");
        assert_eq!(execute(&one, &settle(3, 3), &anything()), done);
        assert_eq!(local.inspect(Engine::request_ids), 1);
        let three = BatchServer::new(Arc::<Local>::clone(&local));
        let late = execute(&three, &settle(2, 2), &anything()).expect("carried out");
        let [ItemReply::Answered(Err(refusal))] = &late[..] else { panic!("{late:?}") };
        assert!(matches!(*refusal.reason, Reason::LateCopy(of) if of == session), "{refusal}");
    }

    #[test]
    fn a_batch_for_another_engine_is_not_carried_out() {
        let server = server();
        let other = RequestBatch { engine: 9, ..batch(vec![open()]) };
        assert_eq!(execute(&server, &other, &anything()), Err(BatchError::Elsewhere));
        assert_eq!(server.state.locks.about().sessions, 0);
        execute(&server, &batch(vec![open()]), &anything()).expect("it is not known yet");
    }

    #[test]
    fn bytes_of_another_version_are_rejected() {
        let Err(BatchError::Unreadable(why)) = BatchServer::read(&[9, 1, 1, 0]) else {
            panic!("read");
        };
        assert_eq!(why.to_string(), "it has version 9, and this latchfs knows version 1");
    }
}
