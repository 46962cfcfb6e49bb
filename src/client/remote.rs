//! The lock service of a remote engine: each call becomes a request in the queue of [`Remote`].

use super::event_stream;
use super::http_transport::{ServerAccess, Unusable};
use super::request_pipeline;
use super::request_queue::{ItemResult, QueuedRequest, REPLY_DEADLINE, RESET_DEADLINE};
use super::shared_state::ClientState;
use crate::client::http_transport::{Transport, TransportError};
use crate::client::session_keep_alive::{SessionKeepAlive, SessionState, Terms};
use crate::engine::{
    Answer, Child, Command, LockName, LockView, Op, Reason, Refusal, RefusalKind, SessionId, Token,
};
use crate::service::batch::batch_messages::{
    BatchItem, ItemReply, Stamp, Submission, SubmissionKey,
};
use crate::service::counters::Count;
use crate::service::event_log::EventWatch;
use crate::service::paging::StaleReads;
use crate::service::{
    About, BackendStatus, CacheableView, Call, Children, Contact, List, ListPage, ListedNames,
    LockService, ParentCheck, RemoteStatus, Retry, SessionOwner, Unavailable, submit_in_steps,
};
use crate::time::{Span, Time, Wall, boot_now};
use common::task::pending;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The lock service of a remote engine.
pub struct Remote {
    pub(super) hub: Arc<ClientState>,
    keeper: Arc<SessionKeepAlive>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Remote {
    /// Starts the threads of the client, and returns without waiting for the connection:
    /// [`Self::is_ready`] waits for it.
    pub fn connect(server: Arc<dyn Transport>, terms: Option<Terms>) -> io::Result<Self> {
        let hub = Arc::new(ClientState::new(server, SessionState::new(terms)));
        let (keeper, keeping) = SessionKeepAlive::start(&hub)?;
        // Nobody waits for the thread of the events: it ends at the next heartbeat after the close.
        drop(event_stream::start(&hub, &keeper)?);
        let threads = Mutex::new(vec![request_pipeline::start(&hub)?, keeping]);
        Ok(Self { hub, keeper, threads })
    }

    /// Waits until the connection works, for at most [`REPLY_DEADLINE`]. Returns whether it does.
    pub fn is_ready(&self) -> bool {
        self.hub.is_ready(boot_now() + REPLY_DEADLINE)
    }

    /// Returns why the connection does not work, as a kind and a sentence, after waiting for it for
    /// at most [`REPLY_DEADLINE`].
    pub fn connection_error(&self) -> Option<(RefusalKind, String)> {
        if self.is_ready() {
            return None;
        }
        if let Some(why) = self.hub.no_majority() {
            return Some((why.kind(), why.to_string()));
        }
        let denial = self.hub.server.denial().map(TransportError::Denied);
        let why = denial.or_else(|| self.hub.last_error());
        let why = why.unwrap_or_else(|| TransportError::Silent("it does not answer".to_owned()));
        let (kind, next) = match why {
            TransportError::Denied(_) => (
                RefusalKind::Denied,
                "pass valid credentials with --token-file, or with --cert and --key",
            ),
            _ => (RefusalKind::ConsistencyUnavailable, "see whether it runs and can be reached"),
        };
        Some((kind, format!("the server {} can't be used: {why}; {next}", self.hub.name)))
    }

    /// Uses these credentials from now on: the token for each request, and the certificates for new
    /// connections. If they can't be used, those before stay in force.
    pub fn renew_keys(&self, access: &ServerAccess) -> Result<(), Unusable> {
        self.hub.server.renew_keys(access)
    }

    /// Returns the state of the connection to the server.
    pub fn contact(&self) -> Contact {
        self.hub.contact()
    }

    /// Ends the session, which releases all its leases at once, and stops all requests.
    pub fn close(&self) {
        let mut threads = std::mem::take(&mut *self.threads.lock());
        // The keep-alive thread is stopped first: it ends the session at the server on its own
        // connection, and does not depend on the other threads.
        let Some(keeping) = threads.pop() else { return };
        self.flush();
        self.keeper.stop();
        joined(keeping);
        self.hub.stop();
        threads.into_iter().for_each(joined);
    }

    /// Waits until the requests that are queued so far have been sent, for at most
    /// [`REPLY_DEADLINE`].
    fn flush(&self) {
        let sent = self.hub.ask(BatchItem::Now, Retry::Never);
        let _ = Call::translated(sent).wait_at_most(REPLY_DEADLINE);
    }
}

/// Returns how long a call waits for its answer. A cluster carries out a reset of many locks in
/// parts, which takes longer than other requests.
const fn reply_deadline(ask: &BatchItem) -> Span {
    match ask {
        BatchItem::Submit(Submission { op: Op::Reset(_), .. }) => RESET_DEADLINE,
        _ => REPLY_DEADLINE,
    }
}

fn joined(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        log::error!("a client thread has panicked");
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns the lock and the fencing token that a renewal or a change of details names. The command
/// is refused once that token is no longer current. Returns `None` for other commands.
fn tenure_named(op: &Op) -> Option<(&LockName, Token)> {
    let key = match op {
        Op::Renew(ask) => &ask.key,
        Op::Annotate(ask) => &ask.key,
        _ => return None,
    };
    Some((&key.name, key.token?))
}

impl ClientState {
    /// Queues a request, and returns the future of its reply.
    fn ask(
        &self,
        ask: BatchItem,
        retry: Retry,
    ) -> impl Future<Output = ItemResult> + Send + 'static + use<> {
        let (replier, reply) = pending();
        let until = boot_now() + reply_deadline(&ask);
        let insists = retry == Retry::UntilAnswered;
        let replier = Some(replier);
        self.enqueue(QueuedRequest { ask, until, replier, insists, numbered_by: None });
        async move { reply.await.unwrap_or(Err(Unavailable::Closing)) }
    }

    /// Queues a read, and returns a call with the part of the reply that `read` finds.
    fn read<T: Send + 'static>(
        self: &Arc<Self>,
        ask: BatchItem,
        retry: Retry,
        read: impl FnOnce(&Self, ItemReply, Stamp) -> Result<T, ItemReply> + Send + 'static,
    ) -> Call<T> {
        let (own, reply) = (Arc::clone(self), self.ask(ask, retry));
        Call::translated(async move {
            let (reply, stamp) = reply.await?;
            read(&own, reply, stamp).map_err(|other| odd(&own, other))
        })
    }

    /// Sends a command to the server.
    fn submit(self: &Arc<Self>, command: Submission, retry: Retry) -> Call<Answer> {
        let (own, op) = (Arc::clone(self), command.op.clone());
        let reply = self.ask(BatchItem::Submit(command), retry);
        Call::translated(async move {
            match reply.await {
                Ok((ItemReply::Answered(answer), _)) => Ok(answer),
                Ok((reply, _)) => Err(odd(&own, reply)),
                // The server has not answered. If the client knows that the lease with this token
                // has expired, it returns that refusal itself, because the server could only refuse
                // the command too.
                Err(why) => match tenure_named(&op) {
                    Some((name, token)) if own.is_lost(name, token) => {
                        let (at, name) = (own.clock.lock().now(), name.clone());
                        let reason = Box::new(Reason::Expired { name, token });
                        Ok(Err(Refusal { at, reason }))
                    }
                    _ => Err(why),
                },
            }
        })
    }
}

impl LockService for Remote {
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
        let Command { request, op, .. } = command;
        let key = request.map(|request| SubmissionKey::Text(request.id.key.to_string().into()));
        let command = Submission { key, op };
        if !matches!(command.op, Op::Steal(_)) {
            return self.hub.submit(command, retry);
        }
        // The clocks are compared by an answer that arrives right before the steal.
        let hub = Arc::clone(&self.hub);
        let now = self.hub.ask(BatchItem::Now, Retry::Never);
        Call::of_steps(async move {
            // Without an answer, an earlier one counts.
            let _ = now.await;
            match hub.far().refuses_steal() {
                Some(why) => Err(Unavailable::ClockSkew { why: why.into() }),
                None => hub.submit(command, retry).await,
            }
        })
    }

    fn submit_checked(
        self: Arc<Self>,
        command: Command,
        check: Option<ParentCheck>,
    ) -> Call<Answer> {
        submit_in_steps(self, command, check)
    }

    fn view(&self, name: &LockName, retry: Retry) -> Call<CacheableView> {
        self.hub.read(BatchItem::View(name.clone()), retry, |hub, reply, stamp| match reply {
            ItemReply::Viewed(view) => {
                let as_of = hub.numbers.lock().here(stamp.start, stamp.next_event);
                Ok(CacheableView { view, as_of })
            }
            other => Err(other),
        })
    }

    fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
    ) -> Call<ListPage<(LockName, Token)>> {
        let ask = BatchItem::Leases(session, after);
        self.hub.read(ask, Retry::UntilAnswered, |_, reply, _| match reply {
            ItemReply::Leases(page) => Ok(page),
            other => Err(other),
        })
    }

    fn list(&self, names: ListedNames, query: List) -> Call<ListPage<LockView>> {
        if names == ListedNames::Remembered {
            return Call::answered(Ok(ListPage { items: Vec::new(), next: None }));
        }
        self.hub.read(BatchItem::List(query), Retry::Never, |_, reply, _| match reply {
            ItemReply::Listed(page) => Ok(page),
            other => Err(other),
        })
    }

    fn children(&self, query: Children) -> Call<ListPage<Child>> {
        self.hub.read(BatchItem::Children(query), Retry::Never, |_, reply, _| match reply {
            ItemReply::Found(page) => Ok(page),
            other => Err(other),
        })
    }

    fn subscribe(&self, since: Option<u64>) -> EventWatch {
        self.hub.feed.watch(since)
    }

    fn next_event(&self) -> u64 {
        self.hub.feed.next()
    }

    fn own_session(&self) -> Result<SessionOwner, Unavailable> {
        self.hub
            .session(SessionState::bond)
            .map(SessionOwner::Kept)
            .ok_or_else(|| self.hub.no_answer())
    }

    fn is_session_over(&self, session: SessionId) -> bool {
        self.hub.session(|own, _| own.is_over(session))
    }

    fn surely_until(&self, session: SessionId) -> Time {
        self.hub.session(|own, now| own.surely_until(session, now))
    }

    fn now(&self) -> Time {
        self.hub.clock.lock().now()
    }

    fn wall(&self, at: Time) -> Wall {
        self.hub.clock.lock().wall(at)
    }
}

impl StaleReads for Remote {}

impl BackendStatus for Remote {
    fn engine_id(&self) -> u64 {
        self.hub.engine()
    }

    fn about(&self) -> About {
        self.hub.about()
    }

    fn connection(&self) -> Option<RemoteStatus> {
        Some(self.hub.far())
    }

    fn counts(&self) -> Vec<Count> {
        let counts = &self.hub.counts;
        [
            ("latchfs_server_requests_total", "Batches sent to the server.", &counts.batches),
            ("latchfs_server_asks_total", "Requests sent to the server.", &counts.asks),
            ("latchfs_server_repeats_total", "Requests that were sent again.", &counts.repeats),
            ("latchfs_server_unanswered_total", "Requests without answer.", &counts.unanswered),
            ("latchfs_server_breaks_total", "Lost connections.", &counts.breaks),
            (
                "latchfs_server_sessions_lost_total",
                "Sessions of this mount that expired at the server.",
                &counts.sessions_lost,
            ),
        ]
        .map(|(name, help, count)| Count {
            name,
            help,
            label: None,
            value: count.load(Ordering::Relaxed),
        })
        .to_vec()
    }
}

/// Returns the failure to report when a reply does not contain the expected data.
fn odd(hub: &ClientState, reply: ItemReply) -> Unavailable {
    match reply {
        ItemReply::Unavailable(why) => why,
        other => {
            log::warn!("{} sent an unexpected answer: {other:?}", hub.name);
            hub.no_answer()
        }
    }
}
