//! The request pipeline: one thread sends one batch after the other on one connection, so that the
//! server carries out all requests in the order of the calls.
//!
//! Retry with backoff: a batch that may have acquired a lock is sent again after pauses that
//! double, under the same number, by which the server recognizes it, until its answer is known,
//! however long the server is unreachable. A caller whose deadline passes gets the error that there
//! is no answer; a lock that is granted after that is released. A part of a batch that the server
//! could not decide is repeated in the batches that follow: see [`RequestQueue`].
//!
//! [`RequestQueue`]: super::request_queue::RequestQueue

use super::request_queue::{BatchRemainder, QueuedRequest};
use super::shared_state::ClientState;
use crate::base::{jittered, random};
use crate::client::http_transport::{ServerConnection, TransportError};
use crate::client::session_keep_alive::SessionState;
use crate::engine::{AcknowledgedKeys, Outcome, Reason, SessionId};
use crate::service::batch::batch_messages::{BatchItem, BatchResponse, ItemReply, RequestBatch};
use crate::service::{Contact, Unavailable};
use crate::time::{Span, Time, boot_now};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long one try to send a batch may take: a connection that lost a packet recovers in this
/// time.
const TRY_MAX: Span = Span::from_secs(1);
/// The shortest timeout of a try, since an answer needs some time on any network.
const TRY_MIN: Span = Span::from_millis(20);
/// The first pause after a failure, which doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Span = Span::from_millis(20);
/// The longest pause after a failure. When a server is back, the client notices it within this
/// time.
const PAUSE_MAX: Span = Span::from_millis(500);
/// How long the server may be busy with one batch before the client gives up on its answer.
const LATE_MAX: Span = Span::from_secs(10);
/// The longest pause between two tries while the server refuses the credentials. A waiting caller
/// learns of the refusal within this time.
const DENIED_PAUSE_MAX: Span = Span::from_millis(100);

/// The state of the pipeline's thread.
struct Lane {
    hub: Arc<ClientState>,
    line: Box<dyn ServerConnection>,
    from: u64,
    number: u64,
    /// The last session that the server has reported as over. Until the client has opened another
    /// session, batches name no session, so the server can't order their requests by one.
    over: Option<SessionId>,
}

pub(super) fn start(hub: &Arc<ClientState>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let (line, from) = (hub.server.line(), random());
    let mut asking = Lane { hub: Arc::clone(hub), line, from, number: 0, over: None };
    let thread = std::thread::Builder::new().name("asks".to_owned());
    thread.spawn(move || while asking.send_next_batch() {})
}

impl Lane {
    /// Sends one batch. Returns false once the client has stopped.
    fn send_next_batch(&mut self) -> bool {
        let Some(batch) = self.next_batch() else { return false };
        if batch.is_empty() {
            // An empty batch means that no request waits, and that the server did not answer
            // before. So a request for the time is sent, to find out whether the server answers
            // again.
            let now = QueuedRequest {
                ask: BatchItem::Now,
                until: Time::ZERO,
                replier: None,
                insists: false,
            };
            return self.carry_out(vec![now]);
        }
        self.carry_out(batch)
    }

    /// Waits for requests. Returns an empty batch if the server must be probed, `None` once the
    /// client has stopped.
    fn next_batch(&self) -> Option<Vec<QueuedRequest>> {
        let mut queue = self.hub.queue.lock();
        while queue.is_empty() && self.hub.is_reached() {
            if self.hub.is_stopped() {
                return None;
            }
            match queue.due().map(|due| due.since(boot_now())) {
                Some(Span::ZERO) => break,
                Some(left) => drop(self.hub.asked.wait_for(&mut queue, left.as_duration())),
                None => self.hub.asked.wait(&mut queue),
            }
        }
        Some(queue.take())
    }

    fn carry_out(&mut self, mut batch: Vec<QueuedRequest>) -> bool {
        self.number += 1;
        let asks: Vec<_> = batch.iter().map(|asked| asked.ask.clone()).collect();
        self.hub.counts.asks.fetch_add(asks.len() as u64, Ordering::Relaxed);
        let engine = self.hub.engine();
        let session = self.hub.session(SessionState::bond).filter(|id| self.over != Some(*id));
        let (from, number) = (self.from, self.number);
        let acknowledged = self.acknowledged(&batch, session);
        let mut request = RequestBatch { engine, from, number, session, acknowledged, asks };
        let first_asked_at = boot_now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.try_once(&mut request, &batch) {
                Ok(response) => {
                    self.hub.asks_work(true);
                    self.deliver(batch, response, request.session, first_asked_at);
                    return true;
                }
                Err(error @ (TransportError::Denied(_) | TransportError::Foreign(_))) => {
                    self.hub.record_error("no entry", &error);
                    self.deny(&mut batch, &error.to_string().into());
                    if self.hub.is_stopped() || !batch.iter().any(is_wanted) {
                        return self.hub.pause(jittered(PAUSE_MIN));
                    }
                    // The batch is sent again although the server refuses the credentials: it
                    // contains a release, or an earlier copy of it may have acquired a lock.
                    self.hub.pause(jittered(pause));
                    pause = (pause + pause).min(DENIED_PAUSE_MAX);
                }
                Err(TransportError::Elsewhere(why)) => {
                    self.hub.record_error("another engine", &TransportError::Elsewhere(why));
                    self.hub.engine_gone(request.engine);
                    // The server has another engine than the one that these requests were meant
                    // for, so each of them fails.
                    for asked in batch {
                        self.hub.refuse(asked.replier);
                    }
                    return self.hub.pause(jittered(PAUSE_MIN));
                }
                // The server has been executing the batch for so long that its answer may never
                // come: the requests whose outcome must be known are sent again in a batch with a
                // new number.
                Err(TransportError::Late) if boot_now().since(first_asked_at) > LATE_MAX => {
                    self.hub.record_error("no answer", &TransportError::Late);
                    self.expire(&mut batch);
                    self.hub.queue.lock().keep(batch.into_iter().filter(is_wanted).collect());
                    return self.hub.pause(jittered(pause));
                }
                Err(error @ (TransportError::Silent(_) | TransportError::Late)) => {
                    self.hub.record_error("no answer", &error);
                    self.hub.counts.repeats.fetch_add(1, Ordering::Relaxed);
                    self.expire(&mut batch);
                    if self.hub.is_stopped() || !batch.iter().any(is_wanted) {
                        // The batch is dropped: no caller waits for its answer, and it contains no
                        // release and no acquire whose outcome must be known.
                        return self.hub.pause(jittered(pause));
                    }
                    self.hub.pause(jittered(pause));
                    pause = (pause + pause).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Returns the keys of requests that this batch can acknowledge, if it has a part with a key.
    fn acknowledged(
        &self,
        batch: &[QueuedRequest],
        session: Option<SessionId>,
    ) -> Option<AcknowledgedKeys> {
        let mut own = batch.iter().filter_map(QueuedRequest::key).peekable();
        own.peek()?;
        let queue = self.hub.queue.lock();
        self.hub.keys.lock().acknowledged(session, own.chain(queue.keys()))
    }

    fn try_once(
        &mut self,
        request: &mut RequestBatch,
        batch: &[QueuedRequest],
    ) -> Result<BatchResponse, TransportError> {
        let waits = batch.iter().filter(|asked| asked.is_impatient()).map(|asked| asked.until);
        let until = waits.min().unwrap_or(Time::NEVER);
        // After a sleep of the machine, another client may hold the locks of this one: nothing is
        // sent until it is known whether the session is alive.
        if !self.hub.session_is_clear(until.min(boot_now() + TRY_MAX)) {
            let why = "it is not known yet whether the session still lives";
            return Err(TransportError::Silent(why.to_owned()));
        }
        let asked_at = boot_now();
        // No try outlasts the session, so that lock holders are notified as soon as the session is
        // lost.
        let until =
            self.hub.session(SessionState::until).map_or(until, |session| session.min(until));
        let patience = until.since(asked_at).clamp(TRY_MIN, TRY_MAX);
        self.hub.counts.batches.fetch_add(1, Ordering::Relaxed);
        let engine = self.hub.introduce(&mut *self.line, patience)?;
        if request.engine == 0 {
            request.engine = engine;
        }
        let response = self.line.send_batch(request, patience)?;
        let response = self.hub.able(&mut *self.line, response)?;
        if response.replies.len() != batch.len() {
            return Err(TransportError::Foreign(
                "the response does not answer all requests of the \
                batch"
                    .to_owned(),
            ));
        }
        self.hub.observe_stamp(asked_at, &response.stamp);
        Ok(response)
    }

    /// Tells the callers whose deadline has passed that there is no answer. From then on, no caller
    /// waits for this server until it answers again.
    fn expire(&self, batch: &mut [QueuedRequest]) {
        let (now, lost) = (boot_now(), self.hub.contact() == Contact::Lost);
        let nobody_waits = !batch.iter().any(|asked| asked.replier.is_some());
        let is_over = |asked: &QueuedRequest| lost || asked.until <= now;
        let is_late = batch.iter().any(|asked| asked.replier.is_some() && is_over(asked));
        if !is_late && !nobody_waits {
            return;
        }
        self.hub.asks_work(false);
        let over = batch.iter_mut().filter(|asked| asked.is_impatient() && is_over(asked));
        let late: Vec<_> = over.filter_map(|asked| asked.replier.take()).collect();
        let given_up = self.hub.queue.lock().give_up();
        for replier in late.into_iter().chain(given_up) {
            self.hub.refuse(Some(replier));
        }
    }

    /// Tells all waiting callers that the server denied access.
    fn deny(&self, batch: &mut [QueuedRequest], why: &Arc<str>) {
        let impatient = batch.iter_mut().filter(|asked| asked.is_impatient());
        let mut denied: Vec<_> = impatient.filter_map(|asked| asked.replier.take()).collect();
        denied.extend(self.hub.queue.lock().give_up());
        for replier in denied {
            replier.keep(Err(Unavailable::Denied { why: Arc::clone(why) }));
        }
    }

    fn deliver(
        &mut self,
        batch: Vec<QueuedRequest>,
        response: BatchResponse,
        session: Option<SessionId>,
        asked_at: Time,
    ) {
        let mut left = BatchRemainder::of_session(session);
        for (asked, reply) in batch.into_iter().zip(response.replies) {
            self.learn(&asked.ask, &reply, asked_at);
            if is_over(&reply, session) {
                self.over = session;
            }
            left.sort(asked, reply, response.stamp);
        }
        self.hub.queue.lock().keep(left);
    }

    /// Remembers the lease that a reply grants or renews, so that the client knows its expiry while
    /// the server does not answer.
    fn learn(&self, ask: &BatchItem, reply: &ItemReply, asked_at: Time) {
        let (BatchItem::Submit(command), ItemReply::Answered(Ok(outcome))) = (ask, reply) else {
            return;
        };
        let (Outcome::Granted(tenure)
        | Outcome::Renewed(tenure)
        | Outcome::Moved(tenure)
        | Outcome::Stolen(tenure)) = outcome
        else {
            return;
        };
        let subject = command.op.subject();
        let Some(name) = subject.new_name.or(subject.name) else { return };
        self.hub.keep_in_mind(name, tenure, asked_at);
    }
}

/// Whether `reply` says that the session `session` is over.
pub(super) fn is_over(reply: &ItemReply, session: Option<SessionId>) -> bool {
    let ItemReply::Answered(Err(refusal)) = reply else { return false };
    matches!(*refusal.reason, Reason::NoSession(id) if Some(id) == session)
}

/// Whether the request `asked` is a reason to send its batch again: a caller waits for the reply,
/// or the outcome must be known.
fn is_wanted(asked: &QueuedRequest) -> bool {
    asked.replier.is_some() || asked.leaves_traces()
}
