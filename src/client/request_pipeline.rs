//! The request pipeline: one thread sends one batch after the other on one connection, so that the
//! server carries out all requests in the order of the calls.
//!
//! Retry with backoff: a batch that may have acquired a lock is sent again after pauses that
//! double, with the same numbers of its commands, by which the engine recognizes them, until its
//! answer is known, however long the server is unreachable. A caller whose deadline passes gets the
//! error that there is no answer; a lock that is granted after that is released. A part of a batch
//! that the server could not decide is repeated in the batches that follow: see [`RequestQueue`].
//!
//! [`RequestQueue`]: super::request_queue::RequestQueue

use super::request_queue::{BatchRemainder, QueuedRequest, RequestKeys};
use super::shared_state::ClientState;
use crate::base::jittered;
use crate::client::http_transport::{ServerConnection, TransportError};
use crate::client::session_keep_alive::SessionState;
use crate::engine::{Outcome, Reason, SessionId};
use crate::service::batch::batch_messages::{
    BatchItem, BatchNumbers, BatchResponse, ItemReply, RequestBatch,
};
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
/// The longest pause between two tries while the server refuses the credentials. A waiting caller
/// learns of the refusal within this time.
const DENIED_PAUSE_MAX: Span = Span::from_millis(100);

/// The state of the pipeline's thread.
struct Lane {
    hub: Arc<ClientState>,
    line: Box<dyn ServerConnection>,
    keys: RequestKeys,
    /// The last session that the server has reported as over. Until the client has opened another
    /// session, its requests have keys instead of numbers.
    over: Option<SessionId>,
}

pub(super) fn start(hub: &Arc<ClientState>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let (line, keys) = (hub.server.line(), RequestKeys::default());
    let mut asking = Lane { hub: Arc::clone(hub), line, keys, over: None };
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
                numbered_by: None,
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

    fn carry_out(&mut self, batch: Vec<QueuedRequest>) -> bool {
        let session = self.hub.session(SessionState::bond).filter(|id| self.over != Some(*id));
        let (mut batch, numbers) = self.identify(batch, session);
        if batch.is_empty() {
            return self.hub.pause(jittered(PAUSE_MIN));
        }
        let asks: Vec<_> = batch.iter().map(|asked| asked.ask.clone()).collect();
        self.hub.counts.asks.fetch_add(asks.len() as u64, Ordering::Relaxed);
        let engine = self.hub.engine();
        let mut request = RequestBatch { engine, numbers, asks };
        let first_asked_at = boot_now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.try_once(&mut request, &batch) {
                Ok(response) => {
                    self.hub.asks_work(true);
                    let session = numbers.map(|numbers| numbers.session);
                    self.deliver(batch, response, session, first_asked_at);
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
                Err(error @ TransportError::Silent(_)) => {
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

    /// Gives each command of the batch its number in the session, or a key if there is no session.
    /// Returns the batch, and what its numbers belong to.
    ///
    /// Commands that were numbered in an earlier session are sent first, in a batch of their own:
    /// they may have been carried out. If too many requests of the session have no answer, commands
    /// without a number are not sent, and callers that would have to wait get no answer.
    fn identify(
        &mut self,
        mut batch: Vec<QueuedRequest>,
        session: Option<SessionId>,
    ) -> (Vec<QueuedRequest>, Option<BatchNumbers>) {
        let mut queue = self.hub.queue.lock();
        self.keys.begin(session);
        let earlier = batch.iter().filter_map(|asked| asked.numbered_by);
        let earlier = earlier.filter(|of| Some(*of) != session).min();
        if earlier.is_some() {
            let (first, rest) = batch.into_iter().partition(|asked| asked.numbered_by == earlier);
            batch = first;
            queue.put_back(rest);
        }
        let numbers = earlier.or(session).map(|session| {
            let pending = batch.iter().chain(queue.iter());
            let pending = pending.filter(|asked| asked.numbered_by == Some(session));
            let lowest = pending.filter_map(QueuedRequest::number).min();
            BatchNumbers { session, answered_below: lowest.unwrap_or(self.keys.next) }
        });
        let several = self.hub.server.is_several();
        let (sent, mut held_back): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .map(|mut asked| (self.keys.identify(&mut asked, numbers, several), asked))
            .partition(|(has_id, _)| *has_id);
        let late = held_back.iter_mut().filter(|(_, asked)| asked.is_impatient());
        let late: Vec<_> = late.filter_map(|(_, asked)| asked.replier.take()).collect();
        if !held_back.is_empty() {
            let owed = held_back.into_iter().map(|(_, asked)| asked);
            queue.keep(owed.filter(QueuedRequest::is_owed).collect());
        }
        drop(queue);
        for replier in late {
            self.hub.refuse(Some(replier));
        }
        (sent.into_iter().map(|(_, asked)| asked).collect(), numbers)
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
