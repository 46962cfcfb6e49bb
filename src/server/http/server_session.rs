//! The server's own session, which keeps the queue places of waiting requests alive: if the server
//! is killed, its waiters leave their queues when the session expires.

use crate::engine::values::lease::Ttl;
use crate::engine::{
    ClientId, EndSession, Grace, Op, OpenId, OpenSession, Outcome, SessionEnd, SessionId,
};
use crate::service::{LockService, RequestError, Retry, Unavailable};
use crate::time::Span;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex as AsyncMutex;

/// The ttl of the server's session: how long waiters stay in their queues after their server was
/// killed. If a server is suspended or partitioned for longer, its waiters lose their queue places
/// and then enter their queues again.
pub(super) const TTL: Span = Span::from_secs(5);

/// How often the server's session is kept alive.
const HEARTBEAT: Span = Span::from_millis(1_250);

/// The server's session, which is open while any request waits.
pub(super) struct ServerSession {
    locks: Arc<dyn LockService>,
    client: ClientId,
    current: Mutex<Option<SessionId>>,
    /// The mutex that a task holds while it opens the session, so that the server opens only one.
    opening: AsyncMutex<()>,
    attempts: AtomicU64,
    waiting: AtomicU64,
}

/// Keeps the server's session open for one waiting request, until this value is dropped.
pub(super) struct SessionUse(Arc<ServerSession>);

impl ServerSession {
    pub(super) fn new(locks: Arc<dyn LockService>, instance: &str) -> Arc<Self> {
        let client = ClientId::parse(&format!("server-{instance}"));
        Arc::new(Self {
            locks,
            client: client.expect("an instance is letters and digits"),
            current: Mutex::default(),
            opening: AsyncMutex::default(),
            attempts: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        })
    }

    /// Counts a waiting request: the session stays open until the result is dropped.
    pub(super) fn in_use(self: &Arc<Self>) -> SessionUse {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        SessionUse(Arc::clone(self))
    }

    /// Forgets a session that is over, so that the next waiting request opens another.
    pub(super) fn forget(&self, over: SessionId) {
        self.current.lock().take_if(|current| *current == over);
    }

    async fn attempt(self: &Arc<Self>) -> Result<Option<OpenId>, RequestError> {
        let known = *self.current.lock();
        let session = match known {
            Some(session) => session,
            // The session is opened in a task of its own. If the client disconnects meanwhile, its
            // request is dropped, but the server still learns the id of the session.
            None => match tokio::spawn(Arc::clone(self).known_or_open()).await {
                Ok(Ok(session)) => session,
                // The limit of sessions may be reached. The queue place is then attached to no
                // session, and outlives the server if that is killed.
                Ok(Err(RequestError::Refused(why))) => {
                    log::warn!("requests wait without a session of this server: {why}");
                    return Ok(None);
                }
                Ok(Err(failure)) => return Err(failure),
                Err(_) => return Err(RequestError::Unavailable(Unavailable::Closing)),
            },
        };
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Some(OpenId { session, number }))
    }

    /// Returns the server's session, and opens it if there is none. Only one call opens it at a
    /// time.
    async fn known_or_open(self: Arc<Self>) -> Result<SessionId, RequestError> {
        let _opening = self.opening.lock().await;
        let known = *self.current.lock();
        match known {
            Some(session) => Ok(session),
            None => self.open().await,
        }
    }

    async fn open(self: &Arc<Self>) -> Result<SessionId, RequestError> {
        let (client, ttl) = (self.client.clone(), Ttl::new(TTL).ok());
        let op = Op::OpenSession(OpenSession { client, ttl, grace: Grace::NONE });
        let Outcome::SessionOpened(session) =
            self.locks.submit(op.into(), Retry::Never).outcome().await?
        else {
            return Err(RequestError::Unavailable(Unavailable::Closing));
        };
        *self.current.lock() = Some(session);
        tokio::spawn(Arc::clone(self).keep_alive(session));
        Ok(session)
    }

    /// Keeps the server's session alive until no request waits any more, and then ends the session.
    async fn keep_alive(self: Arc<Self>, session: SessionId) {
        loop {
            tokio::time::sleep(HEARTBEAT.as_duration()).await;
            if self.waiting.load(Ordering::Relaxed) == 0 {
                let _opening = self.opening.lock().await;
                if self.waiting.load(Ordering::Relaxed) == 0 {
                    self.forget(session);
                    let end = EndSession { session, end: SessionEnd::Closed };
                    return self.locks.give_back(Op::EndSession(end));
                }
            }
            // If the lock service is unavailable, one keep-alive is lost, and the next one follows
            // after [`HEARTBEAT`].
            let kept = self.locks.submit(Op::KeepAlive(session).into(), Retry::Never);
            if let Err(RequestError::Refused(why)) = kept.outcome().await {
                log::warn!("the session of this server is over, so its waiters queue anew: {why}");
                return self.forget(session);
            }
        }
    }
}

impl SessionUse {
    /// Returns a new id for one attempt to acquire a lock, bound to the server's session. `None` if
    /// the session could not be opened.
    pub(super) async fn attempt(&self) -> Result<Option<OpenId>, RequestError> {
        self.0.attempt().await
    }

    /// Forgets a session that is over, so that the next waiting request opens another.
    pub(super) fn forget(&self, over: SessionId) {
        self.0.forget(over);
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
