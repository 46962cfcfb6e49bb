//! The endpoint `GET /events`: server-sent events, resumable by the id of the last event seen.
//!
//! Back-pressure: a stream takes events from the event log no faster than its reader takes them
//! from the stream. The event log is bounded: a reader that falls too far behind gets the number of
//! events that it has lost.

use crate::auth::Grant;
use crate::auth::permissions::Operation;
use crate::engine::{Event, EventKind};
use crate::server::http::app_state::{AppState, ShutdownPhase, entered};
use crate::server::http::bodies::options::RequestOptions;
use crate::server::http::bodies::parameters::LAST_EVENT_ID;
use crate::server::http::bodies::problem::HandlerResult;
use crate::server::http::bodies::response::text;
use crate::server::http::request_context::HttpCaller;
use crate::server::http::request_context::RequestContext;
use crate::service::event_log::EventBatch;
use crate::service::{EventPlace, EventStart};
use crate::shares::TableShare;
use crate::status::{event_of, lost};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode};
use http_body_util::channel::{Channel, Sender};
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Maximum number of events in one write to a stream.
const BATCH: usize = 256;

/// Maximum number of writes buffered for a slow reader. Further events stay in the event log, which
/// is bounded.
const PARTS_MAX: usize = 4;

/// Interval of keep-alive comments on a silent stream: less than the minute after which proxies
/// close idle connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One subscriber of the event stream.
struct EventSubscriber {
    app: Arc<AppState>,
    caller: HttpCaller,
    grant: Arc<Grant>,
    prefix: String,
    /// The place in the log of the cluster after which this stream begins: a node that has not come
    /// so far yet skips the events before.
    after: Option<EventPlace>,
    out: Sender<Bytes, Infallible>,
    _share: TableShare,
}

/// Handles `GET /events`: starts an event stream.
pub(in crate::server::http) async fn stream(mut call: RequestContext) -> HandlerResult {
    let options = RequestOptions::read(&mut call).await?;
    let header = call.head.headers.get(LAST_EVENT_ID.name);
    let last = match header {
        Some(id) => Some(id.to_str().unwrap_or_default().to_owned()),
        None => options.since,
    };
    let share = call.share(&call.app.streams, 1)?;
    let (out, body) = Channel::new(PARTS_MAX);
    let RequestContext { app, caller, grant, .. } = call;
    let reader = EventSubscriber {
        app,
        caller,
        grant,
        prefix: options.prefix,
        after: None,
        out,
        _share: share,
    };
    // The task that sends the events ends when the reader disconnects or the server shuts down.
    tokio::spawn(reader.serve(last));
    let kind = HeaderValue::from_static("text/event-stream");
    Ok(text(StatusCode::OK, kind, Body::new(body)))
}

impl EventSubscriber {
    async fn serve(mut self, last: Option<String>) {
        let (since, restarted) = self.since(last.as_deref());
        let mut watch = self.app.locks.subscribe(since);
        let more = Arc::new(Notify::new());
        let wake = Arc::clone(&more);
        watch.wake_by(Arc::new(move || wake.notify_one()));
        let mut phase = self.app.follow_phase();
        let mut reloads = self.app.gate.follow_reloads();
        let mut hello = String::from(": latchfs\nretry: 1000\n\n");
        if restarted {
            // The stream begins with a `lost` event whose count is 0, which stands for an unknown
            // number: the server has restarted since the last event that the client saw.
            part(&mut hello, None, "lost", &lost(0));
        }
        if last.is_none() {
            // A reader who has seen no event when it loses this server can go on at another one.
            let _ = write!(hello, "id: {}\n\n", self.id_before(watch.next()));
        }
        if self.send(hello).await.is_err() {
            return;
        }
        loop {
            // Each event, and each heartbeat, is for the rights that the caller has by then.
            match self.caller.grant(&self.app.gate) {
                Ok(grant) if grant.may_begin(Operation::FollowEvents).is_ok() => self.grant = grant,
                _ => {
                    let _ = self.send("event: revoked\ndata: {}\n\n".to_owned()).await;
                    return;
                }
            }
            let batch = watch.take(BATCH);
            if batch.events.is_empty() && batch.lost == 0 {
                let waited = tokio::select! {
                    waited = timeout(KEEP_ALIVE, more.notified()) => waited,
                    _ = reloads.changed() => continue,
                    () = entered(&mut phase, ShutdownPhase::Draining) => {
                        let _ = self.send("event: closing\ndata: {}\n\n".to_owned()).await;
                        return;
                    }
                };
                if waited.is_err() && self.send(":\n\n".to_owned()).await.is_err() {
                    return;
                }
                continue;
            }
            let text = self.written(&batch);
            if !text.is_empty() && self.send(text).await.is_err() {
                return;
            }
        }
    }

    /// Returns the number of the first event to send (`None` for new events only), and whether
    /// events may be missing before it: the last event that the client saw came from another run
    /// of the server, or this node of its cluster has no record of it any more.
    fn since(&mut self, last: Option<&str>) -> (Option<u64>, bool) {
        let Some(last) = last else { return (None, false) };
        if let Some(place) = EventPlace::parse(last, self.app.locks.engine_id()) {
            return match self.app.locks.events_after(place) {
                EventStart::At(number) => (Some(number), false),
                EventStart::NotYet => {
                    self.after = Some(place);
                    (None, false)
                }
                EventStart::Forgotten => (Some(0), true),
            };
        }
        if let Ok(first) = last.parse() {
            return (Some(first), false);
        }
        match last.split_once('-').filter(|(server, _)| *server == self.app.instance) {
            Some((_, "")) => (Some(0), false),
            Some((_, number)) => match number.parse::<u64>() {
                Ok(number) => (Some(number.saturating_add(1)), false),
                Err(_) => (Some(0), true),
            },
            None => (Some(0), true),
        }
    }

    /// Returns the id of the event with this number at this node.
    fn id(&self, number: u64) -> String {
        match self.app.locks.event_place(number) {
            Some(place) => place.id_in(self.app.locks.engine_id()),
            None => format!("{}-{number}", self.app.instance),
        }
    }

    /// Returns the id of the event before the one with number `next`.
    fn id_before(&self, next: u64) -> String {
        next.checked_sub(1).map_or_else(|| format!("{}-", self.app.instance), |last| self.id(last))
    }

    async fn send(&mut self, text: String) -> Result<(), ()> {
        self.out.send_data(text.into()).await.map_err(|_| ())
    }

    fn written(&self, batch: &EventBatch) -> String {
        let mut written = String::new();
        if let Some(count) = batch.missing() {
            part(&mut written, None, "lost", &lost(count));
        }
        for (number, event) in batch.events.iter().filter(|(_, event)| self.sees(event)) {
            let place = self.app.locks.event_place(*number);
            if place.is_some() && place <= self.after {
                continue;
            }
            let value = event_of(*number, event, |at| self.app.locks.wall(at));
            let id = self.id(*number);
            let kind = value["event"].as_str().unwrap_or_default();
            part(&mut written, Some(&id), kind, &value);
        }
        written
    }

    fn sees(&self, event: &Event) -> bool {
        match name_of(&event.what) {
            Some(name) => name.starts_with(&self.prefix) && self.grant.may_receive(event),
            None => self.prefix.is_empty() && self.grant.may_receive(event),
        }
    }
}

fn part(written: &mut String, id: Option<&str>, kind: &str, value: &Value) {
    if let Some(id) = id {
        let _ = writeln!(written, "id: {id}");
    }
    let _ = write!(written, "event: {kind}\ndata: {value}\n\n");
}

/// Returns the name of the lock that an event concerns.
fn name_of(what: &EventKind) -> Option<&str> {
    match what {
        EventKind::Granted { name, .. }
        | EventKind::Renewed { name, .. }
        | EventKind::Annotated { name, .. }
        | EventKind::Expired { name, .. }
        | EventKind::Ended { name, .. }
        | EventKind::Joined { name, .. }
        | EventKind::Left { name, .. } => Some(name.as_str()),
        EventKind::SessionOpened { .. }
        | EventKind::SessionKept { .. }
        | EventKind::SessionOver { .. }
        | EventKind::HoldOffEnded { .. } => None,
    }
}
