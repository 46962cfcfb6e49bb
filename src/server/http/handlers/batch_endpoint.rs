//! The internal endpoints for the clients of latchfs on other machines: batches of requests, and a
//! stream of events, in the binary encoding of `service::batch_messages`. Other programs use the
//! JSON API.

use crate::auth::permissions::{AccessRequest, LockRule, Operation};
use crate::auth::{self, Denial, Grant};
use crate::engine::codec::state_codec::{DecodeError, UnknownVersion, check_version};
use crate::engine::{NameError, Op, Reason, Refusal};
use crate::server::http::app_state::{AppState, ShutdownPhase};
use crate::server::http::bodies::problem::{HandlerResult, Problem};
use crate::server::http::bodies::response::{Response, text};
use crate::server::http::bodies::schema::Schema;
use crate::server::http::request_context::HttpCaller;
use crate::server::http::request_context::{Endpoint, doc, endpoint};
use crate::server::http::request_context::{RequestContext, parent_check};
use crate::service::batch::batch_messages::{
    BATCH_BYTES_MAX, BatchItem, PROTOCOL_PARAMETER, RequestBatch, Submission, SubmissionKey,
    protocol,
};
use crate::service::batch::batch_server::{
    BEAT, BatchError, BatchServer, Following, ItemAccess, Limits,
};
use crate::service::{EventPlace, RequestError, Unavailable};
use crate::shares::{CommandPermit, TableShare};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, StatusCode};
use hyper::body::Frame;
use std::convert::Infallible;
use std::fmt::Display;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// Content type of the binary replies to batches, and of the binary event stream.
const KIND: &str = "application/x-latchfs";

/// Endpoints for the clients of latchfs itself; internal, so not in the `OpenAPI` document.
pub(in crate::server::http) static ENDPOINTS: &[(&str, Endpoint)] = &[
    (
        "/door/v1/ask",
        endpoint(
            Method::POST,
            Operation::SendBatch,
            |call| Box::pin(run_batch(call)),
            doc("doorAsk", "A batch, and its answer.", &[], 200, Schema::Text(KIND), &[]),
        ),
    ),
    (
        "/door/v1/events",
        endpoint(
            Method::GET,
            Operation::FollowEvents,
            |call| Box::pin(ready(events(&call))),
            doc("doorEvents", "Events in frames.", &[], 200, Schema::Text(KIND), &[]),
        ),
    ),
];

/// Handles `POST /door/v1/ask`: executes a batch of requests, and returns the batch of replies.
async fn run_batch(mut call: RequestContext) -> HandlerResult<Response> {
    // The commands of the batch are in memory until they are decided, which takes long without a
    // leader; so the batch counts until it is answered.
    let (bytes, _memory) = call.bytes(BATCH_BYTES_MAX).await?;
    // Every reply carries the engine's time, from which the client computes expiry times, so this
    // node must know that time.
    call.app.locks.ready().map_err(RequestError::Unavailable)?;
    let mut batch = BatchServer::read(&bytes).or_else(turned)?;
    let batch_server = call.app.batch_server.in_protocol(bytes[0]);
    let (mut limits, pending) = limits(&call, &batch).await;
    keep_to_own_session(&call, &mut batch, &mut limits).await?;
    let begins = |ask: &BatchItem, limit: Option<&ItemAccess>| audit(&call, ask, limit);
    let caller = call.grant.caller("batch");
    match batch_server.execute(&caller, batch, limits, begins).keeping(pending).await? {
        Ok(bytes) => {
            Ok(text(StatusCode::OK, HeaderValue::from_static(KIND), Bytes::from_owner(bytes)))
        }
        Err(why) => turned(why),
    }
}

/// Records a part of a batch in the audit log, if it is an administrative command or is refused.
fn audit(call: &RequestContext, ask: &BatchItem, limit: Option<&ItemAccess>) {
    match (limit, ask) {
        (Some(ItemAccess::Nothing(Unavailable::Denied { why })), _) => {
            call.audited().refused(&call.app.locks, operation_of(ask), why);
        }
        (None | Some(ItemAccess::Checked(_)), BatchItem::Submit(command)) => {
            call.audited().commands(&call.app.locks, &command.op);
        }
        _ => {}
    }
}

/// Removes the numbers from a batch if another client owns their session, because no client may use
/// up the request numbers of another client's session. Refuses the numbered commands of a batch
/// whose session is over, or not open yet, unless their answers are remembered.
async fn keep_to_own_session(
    call: &RequestContext,
    batch: &mut RequestBatch,
    limits: &mut Limits,
) -> HandlerResult<()> {
    let Some(numbers) = batch.numbers.filter(|_| !call.grant.may_everything()) else {
        return Ok(());
    };
    let session = numbers.session;
    let Some(owner) = call.owner_of(session).await? else {
        let caller = call.grant.caller("batch");
        for (place, ask) in batch.asks.iter().enumerate() {
            let BatchItem::Submit(command) = ask else { continue };
            let Some(SubmissionKey::Number(_)) = command.key else { continue };
            let id = command.request_id(&caller, batch.numbers);
            let is_answered = id.is_some_and(|id| call.app.locks.remembers(&id));
            let is_denied = matches!(limits.get(&place), Some(ItemAccess::Nothing(_)));
            if !is_answered && !is_denied {
                let (at, reason) = (call.app.locks.now(), Box::new(Reason::NoSession(session)));
                limits.insert(place, ItemAccess::Refused(Refusal { at, reason }));
            }
        }
        return Ok(());
    };
    if call.grant.may_submit(&Op::KeepAlive(session), &[owner]).is_err() {
        batch.numbers = None;
    }
    Ok(())
}

fn turned<T>(why: BatchError) -> HandlerResult<T> {
    Err(match why {
        BatchError::Elsewhere => Problem::plain(
            StatusCode::PRECONDITION_FAILED,
            "this server is of another cluster than the one that was asked before; see whether \
             all servers that --server names are of one",
        ),
        BatchError::Unreadable(DecodeError::Version(unknown)) => other_protocol(unknown),
        BatchError::Unreadable(DecodeError::Malformed) => Problem::invalid("malformed batch"),
    })
}

/// Refuses a client that speaks a version of the batch protocol that this server does not read.
fn other_protocol(unknown: UnknownVersion) -> Problem {
    let side = if unknown.is_older() { "mount or command" } else { "server" };
    let why = format!("the batch protocol has {unknown}; upgrade the {side}, which is older");
    Problem::plain(StatusCode::UPGRADE_REQUIRED, why)
}

/// Returns the items of the batch that this caller may not execute freely, each by its position in
/// the batch: the item is refused, its result is filtered, or it is executed under a condition.
/// Returns also the permit of the commands that are admitted.
async fn limits(call: &RequestContext, batch: &RequestBatch) -> (Limits, CommandPermit) {
    let (mut limits, mut pending) = (Limits::default(), Vec::new());
    let serves = call.app.phase() == ShutdownPhase::Serving;
    let caller = call.grant.caller("batch");
    let mut admit = |command: &Submission| {
        let id = command.request_id(&caller, batch.numbers);
        let admitted = call.admit(&command.op, id.as_ref());
        admitted.map(|admitted| pending.extend(admitted))
    };
    let is_special = |ask: &BatchItem| match ask {
        BatchItem::Submit(command) => deceives(&command.op) || matches!(command.op, Op::Reset(_)),
        _ => false,
    };
    if serves && call.grant.may_everything() && !batch.asks.iter().any(is_special) {
        for (place, ask) in batch.asks.iter().enumerate() {
            if let BatchItem::Submit(command) = ask
                && let Err(refusal) = admit(command)
            {
                limits.insert(place, ItemAccess::Refused(refusal));
            }
        }
        return (limits, pending);
    }
    for (place, ask) in batch.asks.iter().enumerate() {
        let limit = match ask {
            BatchItem::Submit(command) => match may_submit(call, &command.op, serves).await {
                Err(why) => Some(ItemAccess::Nothing(why)),
                Ok(()) => match admit(command) {
                    Err(refusal) => Some(ItemAccess::Refused(refusal)),
                    Ok(()) => parent_check(&call.grant, &command.op).map(ItemAccess::Checked),
                },
            },
            // Only the session's own client may see the leases that the session keeps alive.
            BatchItem::Leases(session, _) => {
                let op = Op::KeepAlive(*session);
                may_submit(call, &op, serves).await.err().map(ItemAccess::Nothing)
            }
            _ => sight(call, ask),
        };
        limits.extend(limit.map(|limit| (place, limit)));
    }
    (limits, pending)
}

/// Returns the names of all kinds of batch items, each with the operation whose permissions it
/// needs.
pub(crate) fn batch_requests() -> [(&'static str, Operation); 21] {
    [
        ("settle", Operation::ShowTime),
        ("acquire", Operation::Acquire),
        ("renew", Operation::Renew),
        ("annotate", Operation::Annotate),
        ("release", Operation::Release),
        ("leave", Operation::LeaveQueue),
        ("move", Operation::MoveLock),
        ("steal", Operation::Steal),
        ("open-session", Operation::OpenSession),
        ("keep-alive", Operation::KeepAlive),
        ("end-session", Operation::EndSession),
        ("reset", Operation::Reset),
        ("grant-now", Operation::GrantNow),
        ("forget", Operation::ForgetName),
        ("view", Operation::LookUpLock),
        ("list", Operation::ListLocks),
        ("children", Operation::ListLocks),
        ("about", Operation::ShowCounts),
        ("now", Operation::ShowTime),
        ("leases", Operation::ShowSession),
        ("urls", Operation::ListNodes),
    ]
}

/// Returns the operation whose permissions an item of a batch needs.
pub(super) fn operation_of(ask: &BatchItem) -> Operation {
    match ask {
        BatchItem::Submit(command) => AccessRequest::of_op(&command.op).operation,
        BatchItem::View(_) => Operation::LookUpLock,
        BatchItem::List(_) | BatchItem::Children(_) => Operation::ListLocks,
        BatchItem::About => Operation::ShowCounts,
        BatchItem::Now => Operation::ShowTime,
        BatchItem::Leases(..) => Operation::ShowSession,
        BatchItem::Urls => Operation::ListNodes,
    }
}

/// Returns the restriction on what a query in a batch may show to this caller; `None` if the caller
/// may see everything that the query returns.
fn sight(call: &RequestContext, ask: &BatchItem) -> Option<ItemAccess> {
    let (grant, operation) = (&call.grant, operation_of(ask));
    if let Err(denial) = grant.may_begin(operation) {
        return Some(ItemAccess::Nothing(no(&denial)));
    }
    if operation.rule().locks != LockRule::Visible {
        return None;
    }
    match ask {
        BatchItem::View(name) => limit(grant.sight_of(name), || no(&Denial::Lock(name.clone()))),
        BatchItem::List(query) => limit(grant.sight(&query.prefix), || unseen(&query.prefix)),
        BatchItem::Children(query) => {
            let dir = query.parent.as_ref().map_or_else(String::new, |dir| format!("{dir}/"));
            limit(grant.sight(&dir), || unseen(&dir))
        }
        BatchItem::About
        | BatchItem::Now
        | BatchItem::Leases(..)
        | BatchItem::Urls
        | BatchItem::Submit(_) => (!grant.may_see_all()).then(|| ItemAccess::Within(Vec::new())),
    }
}

/// Checks whether the caller may submit the command `op`. A server that is shutting down takes no
/// command that grants a lock or opens a session.
async fn may_submit(call: &RequestContext, op: &Op, serves: bool) -> Result<(), Unavailable> {
    if !serves && op.needs_room() {
        return Err(Unavailable::Closing);
    }
    if deceives(op) {
        return Err(no(&NameError::Invisible));
    }
    match call.check(op).await {
        // Only a denial matters to this check: the engine itself reports any other problem.
        Err(problem) => problem.denial().map_or(Ok(()), |why| Err(no(&why))),
        Ok(()) => Ok(()),
    }
}

/// Whether a command would make a name that does not look like what it is. Decoding accepts such
/// names, which may have been made before they were refused.
fn deceives(op: &Op) -> bool {
    match op {
        Op::Acquire(ask) => ask.name.is_deceptive() || ask.client.is_deceptive(),
        Op::Steal(ask) => ask.name.is_deceptive() || ask.client.is_deceptive(),
        Op::OpenSession(ask) => ask.client.is_deceptive(),
        Op::Move(ask) => ask.to.is_deceptive(),
        _ => false,
    }
}

fn no(why: &dyn Display) -> Unavailable {
    Unavailable::Denied { why: why.to_string().into() }
}

/// Handles `GET /door/v1/events?start=&since=&after=`: a stream of events as they happen, with
/// heartbeats.
fn events(call: &RequestContext) -> HandlerResult<Response> {
    let query = call.head.uri.query().unwrap_or_default();
    let value = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value)
    };
    let number =
        |name: &str| value(name).map_or(Ok(0), |value| value.parse::<u64>().map_err(|_| ()));
    let (Ok(start), Ok(since)) = (number("start"), number("since")) else {
        return Err(Problem::invalid("'start' and 'since' are numbers"));
    };
    call.app.locks.ready().map_err(RequestError::Unavailable)?;
    let share = call.share(&call.app.mount_streams, 1)?;
    let version = match number(PROTOCOL_PARAMETER) {
        Ok(0) | Err(()) => protocol(),
        Ok(number) => u8::try_from(number).unwrap_or(u8::MAX),
    };
    check_version(version).map_err(other_protocol)?;
    let cluster = call.app.locks.engine_id();
    let after = value("after").and_then(|id| EventPlace::parse(&id, cluster));
    let mut following = call.app.batch_server.in_protocol(version).follow(start, since, after);
    let grant = Arc::clone(&call.grant);
    if !grant.may_see_all() {
        following.only(move |event| grant.may_receive(event));
    }
    let news = Arc::new(Notify::new());
    let waking = Arc::clone(&news);
    following.watch.wake_by(Arc::new(move || waking.notify_one()));
    let phase = call.app.follow_phase();
    let right = StreamRight::of(call);
    let first = next_frame(EventFrames { following, news, phase, right, _share: share });
    let kind = HeaderValue::from_static(KIND);
    Ok(text(StatusCode::OK, kind, Body::new(FramedBody(Box::pin(first)))))
}

fn limit(sight: auth::Visibility, denied: impl FnOnce() -> Unavailable) -> Option<ItemAccess> {
    match sight {
        auth::Visibility::All => None,
        auth::Visibility::Within(prefixes) => Some(ItemAccess::Within(prefixes)),
        auth::Visibility::Nothing => Some(ItemAccess::Nothing(denied())),
    }
}

fn unseen(prefix: &dyn Display) -> Unavailable {
    no(&format!(
        "these credentials may not list what begins with '{prefix}'; ask for less, or have the \
         prefix added to them"
    ))
}

/// The future of the next frame of an event stream; it also returns the stream's state.
type NextFrame = Pin<Box<dyn Future<Output = (Option<Vec<u8>>, EventFrames)> + Send>>;

/// The position and the state of one client's binary event stream.
struct EventFrames {
    following: Following,
    news: Arc<Notify>,
    phase: tokio::sync::watch::Receiver<ShutdownPhase>,
    right: StreamRight,
    _share: TableShare,
}

/// The right of a caller to follow an event stream, as of its start.
struct StreamRight {
    app: Arc<AppState>,
    caller: HttpCaller,
    grant: Arc<Grant>,
    reloads: tokio::sync::watch::Receiver<u64>,
}

impl StreamRight {
    fn of(call: &RequestContext) -> Self {
        let (app, caller) = (Arc::clone(&call.app), call.caller.clone());
        let (grant, reloads) = (Arc::clone(&call.grant), call.app.gate.follow_reloads());
        Self { app, caller, grant, reloads }
    }

    /// Whether the caller has the rights with which the stream began. A stream for other rights is
    /// another stream, which the client opens by itself.
    fn holds(&self) -> bool {
        self.caller.grant(&self.app.gate).is_ok_and(|grant| grant == self.grant)
    }
}

/// Waits for the next frame of an event stream: events, or a heartbeat if there are none for a
/// while. Returns `None` if the server is closing.
async fn next_frame(mut state: EventFrames) -> (Option<Vec<u8>>, EventFrames) {
    loop {
        if !state.right.holds() {
            return (None, state);
        }
        if let Some(frame) = state.following.frame() {
            return (Some(frame), state);
        }
        let woken = tokio::select! {
            () = state.news.notified() => StreamWake::News,
            _ = state.right.reloads.changed() => StreamWake::News,
            () = tokio::time::sleep(BEAT.as_duration()) => StreamWake::Silence,
            // An error of this wait means that the server has ended and dropped the sender, so the
            // event stream ends as well.
            _ = state.phase.wait_for(|phase| *phase == ShutdownPhase::Closing) => StreamWake::End,
        };
        match woken {
            StreamWake::News => {}
            StreamWake::Silence => return (Some(state.following.beat()), state),
            StreamWake::End => return (None, state),
        }
    }
}

/// The reason why an idle event stream wakes.
enum StreamWake {
    News,
    Silence,
    End,
}

/// A response body that yields the frames of an event stream.
struct FramedBody(NextFrame);

impl hyper::body::Body for FramedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Poll::Ready((frame, state)) = self.0.as_mut().poll(context) else {
            return Poll::Pending;
        };
        self.0 = Box::pin(next_frame(state));
        Poll::Ready(frame.map(|frame| Ok(Frame::data(frame.into()))))
    }
}
