//! Follows the events of a server by its HTTP API. A reader that loses its server goes on at
//! another node of the cluster, after the last event that it has read: each node gives an event the
//! same id.

use super::failover::{SERVERS_MAX, worse};
use super::http_transport::{Http, ResponseBody, silent};
use crate::base::jittered;
use crate::client::http_transport::{Transport as _, TransportError};
use crate::service::batch::batch_messages::{BatchItem, ItemReply, RequestBatch};
use crate::time::Span;
use std::thread;

/// How long a server may take to begin an answer.
const PATIENCE: Span = Span::from_secs(2);
/// The silence of a stream after which its server is asked whether it still answers.
const SILENCE: Span = Span::from_secs(2);
/// The first pause after no server has answered; it doubles each time, up to [`PAUSE_MAX`].
const PAUSE_MIN: Span = Span::from_millis(20);
/// The longest pause before the servers are asked again.
const PAUSE_MAX: Span = Span::from_millis(500);
/// The maximum size of one event in bytes: several times that of the longest name and client.
const EVENT_BYTES_MAX: usize = 64 << 10;

/// Returns the server at a URL that another one has reported; `None` if the credentials must not be
/// sent there.
pub type LearnServer = Box<dyn Fn(&str) -> Option<Http> + Send>;

/// The events of a server, or of a cluster.
pub struct ServerEvents {
    servers: Vec<Http>,
    learn: LearnServer,
    /// The index of the server that is read.
    at: usize,
    stream: ResponseBody,
    /// The bytes that were received and not read yet.
    received: Vec<u8>,
    /// The id of the last event that was read.
    last: Option<String>,
}

/// One event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct SentEvent {
    id: Option<String>,
    kind: String,
    data: String,
}

impl ServerEvents {
    /// Opens the events of the first of these servers that answers: from its event number `since`
    /// on, or from now on.
    pub fn open(
        servers: Vec<Http>,
        learn: LearnServer,
        since: Option<u64>,
    ) -> Result<Self, TransportError> {
        let path = since.map_or_else(|| "/events".to_owned(), |n| format!("/events?since={n}"));
        let mut error = None;
        for at in 0..servers.len() {
            match servers[at].stream(&path, PATIENCE) {
                Ok(stream) => {
                    let (received, last) = (Vec::new(), None);
                    let mut opened = Self { servers, learn, at, stream, received, last };
                    opened.learn();
                    return Ok(opened);
                }
                Err(why) => error = Some(worse(error, why)),
            }
        }
        Err(error.unwrap_or_else(silent))
    }

    /// Returns the next event as a line of JSON; `None` if events may be missing here, and nobody
    /// knows how many. Waits for it, and for a server that answers.
    pub fn next_event(&mut self) -> Result<Option<String>, TransportError> {
        loop {
            let error = match take_event(&mut self.received) {
                None => match self.receive() {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Some(event) if event.kind == "closing" => {
                    TransportError::Silent("the server ends".to_owned())
                }
                Some(event) if event.kind == "revoked" => {
                    let why = "the credentials give no right to the events any more";
                    return Err(TransportError::Denied(why.to_owned()));
                }
                Some(event) => {
                    self.last = event.id.or_else(|| self.last.take());
                    if event.data.is_empty() {
                        continue;
                    }
                    return Ok(Some(event.data));
                }
            };
            self.resume(&error)?;
            if self.last.is_none() {
                // No server knows after which event to go on.
                return Ok(None);
            }
        }
    }

    fn receive(&mut self) -> Result<(), TransportError> {
        check_length(&self.received)?;
        if !self.stream.wait(&mut self.received, SILENCE)? {
            // A server where nothing happens is as silent as one that can't be reached.
            self.servers[self.at].stream("/healthz", PATIENCE)?;
        }
        Ok(())
    }

    /// Goes on at the next server that answers.
    fn resume(&mut self, error: &TransportError) -> Result<(), TransportError> {
        log::info!("no events from {}: {error}", self.servers[self.at].name());
        let since = self.last.as_ref().map(|id| format!("?since={id}")).unwrap_or_default();
        let path = format!("/events{since}");
        let mut pause = PAUSE_MIN;
        loop {
            let mut error = None;
            for _ in 0..self.servers.len() {
                self.at = (self.at + 1) % self.servers.len();
                match self.servers[self.at].stream(&path, PATIENCE) {
                    Ok(stream) => {
                        self.stream = stream;
                        self.received.clear();
                        self.learn();
                        return Ok(());
                    }
                    Err(why) => error = Some(worse(error, why)),
                }
            }
            if let Some(denied @ TransportError::Denied(_)) = error {
                return Err(denied);
            }
            thread::sleep(jittered(pause).as_duration());
            pause = (pause + pause).min(PAUSE_MAX);
        }
    }

    /// Asks the server for the other nodes of its cluster.
    fn learn(&mut self) {
        let ask = RequestBatch::new(0, vec![BatchItem::Urls]);
        let Ok(mut response) = self.servers[self.at].line().send_batch(&ask, PATIENCE) else {
            return;
        };
        let Some(ItemReply::Urls(urls)) = response.replies.pop() else { return };
        for url in urls {
            let is_known = |server: &Http| server.name() == url.trim_end_matches('/');
            if self.servers.len() < SERVERS_MAX
                && !self.servers.iter().any(is_known)
                && let Some(server) = (self.learn)(&url)
            {
                self.servers.push(server);
            }
        }
    }
}

/// Checks the length of a part of an event.
fn check_length(received: &[u8]) -> Result<(), TransportError> {
    if received.len() > EVENT_BYTES_MAX {
        return Err(TransportError::Foreign("it sends an event that is too long".to_owned()));
    }
    Ok(())
}

/// Takes the first whole event from received bytes.
fn take_event(received: &mut Vec<u8>) -> Option<SentEvent> {
    let end = received.windows(2).position(|pair| pair == b"\n\n")?;
    let whole: Vec<u8> = received.drain(..end + 2).collect();
    let mut event = SentEvent::default();
    for line in String::from_utf8_lossy(&whole).lines() {
        match line.split_once(": ") {
            // The id becomes a part of a URL, so it may have no other characters.
            Some(("id", id))
                if id.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b)) =>
            {
                event.id = Some(id.to_owned());
            }
            Some(("event", kind)) => kind.clone_into(&mut event.kind),
            Some(("data", data)) => data.clone_into(&mut event.data),
            _ => {}
        }
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_server_has_a_longest_length() {
        assert!(check_length(&vec![b'x'; EVENT_BYTES_MAX]).is_ok());
        assert!(check_length(&vec![b'x'; EVENT_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn whole_events_are_taken_from_a_stream() {
        let mut received = b": latchfs\nretry: 1000\n\nid: a.1.0\n\n".to_vec();
        received.extend(b"id: a.2.0\nevent: granted\ndata: {\"n\":1}\n\nid");
        let event = |id: Option<&str>, kind: &str, data: &str| {
            let id = id.map(str::to_owned);
            Some(SentEvent { id, kind: kind.to_owned(), data: data.to_owned() })
        };
        assert_eq!(take_event(&mut received), event(None, "", ""));
        assert_eq!(take_event(&mut received), event(Some("a.1.0"), "", ""));
        assert_eq!(take_event(&mut received), event(Some("a.2.0"), "granted", "{\"n\":1}"));
        assert_eq!(take_event(&mut received), None);
        assert_eq!(received, b"id");
        let mut hostile = b"id: a&prefix=b c\nevent: x\n\n".to_vec();
        assert_eq!(take_event(&mut hostile), event(None, "x", ""));
    }
}
