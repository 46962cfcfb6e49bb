//! What becomes of a request: a command for the engine, and the word that its answer is.

use super::followers::{Followers, Full};
use super::request::{Reply, Request};
use crate::auth::connection_limits::Peers;
use crate::auth::permissions::{Operation, Request as Asked};
use crate::auth::{Gate, Grant};
use crate::engine::{
    Acquire, Answer, Command, Firm, Grace, LeaseKey, LeaseTerms, LockName, Mode, Op, Ownership,
    Patch, Phase, QueuePolicy, RefusalKind, Release, Renew, Ttl,
};
use crate::metrics::Page;
use crate::service::{Locks, Unavailable};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// After this a request is answered by TIMEOUT: what the seed waits for a forwarded one.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// What all connections share.
pub(super) struct Desk {
    pub(super) locks: Locks,
    /// How long a lock lasts whose line says nothing about it.
    pub(super) ttl: Ttl,
    /// For how long after that only its holder may take it back.
    pub(super) grace: Grace,
    pub(super) gate: Arc<Gate>,
    pub(super) peers: Peers,
    pub(super) followers: Arc<Followers>,
    /// Requests that are not answered yet.
    pending: AtomicUsize,
    phase: watch::Sender<Stage>,
}

/// How far the end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It serves.
    Serving,
    /// It grants nothing any more; what is held can be given back.
    Draining,
    /// Each connection ends after the request at hand.
    Closing,
}

/// A request that is being decided, counted as long as this lives.
struct Pending<'a>(&'a AtomicUsize);

impl<'a> Pending<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Desk {
    pub(super) fn new(locks: Locks, (ttl, grace): (Ttl, Grace), gate: Arc<Gate>) -> Self {
        let followers = Arc::new(Followers::new(locks.clone()));
        let (phase, _) = watch::channel(Stage::Serving);
        let (peers, pending) = (Peers::default(), AtomicUsize::new(0));
        Self { locks, ttl, grace, gate, peers, followers, pending, phase }
    }

    /// How far the end is.
    pub(super) fn stage(&self) -> Stage {
        *self.phase.borrow()
    }

    /// The end comes nearer.
    pub(super) fn enter(&self, stage: Stage) {
        self.phase.send_replace(stage);
    }

    /// Returns when connections are to end.
    pub(super) async fn closing(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as this.
        let _ = phase.wait_for(|stage| *stage == Stage::Closing).await;
    }

    /// The word that answers a request of a caller who may do this.
    pub(super) async fn answer(&self, grant: &Grant, request: Request) -> Reply {
        let _pending = Pending::new(&self.pending);
        if let Err(denial) = grant.may_begin(request.operation()) {
            log::info!("a line is refused: {denial}");
            return Reply::Error;
        }
        match request {
            Request::Lock(name, client, ttl) => {
                if self.stage() != Stage::Serving {
                    return Reply::Error;
                }
                let term = LeaseTerms::Own(ttl.unwrap_or(self.ttl), self.grace);
                let (mode, patch) = (Mode::Exclusive, Patch::default());
                // As the seed has it: a lock that exists is refused, to its owner, too.
                let (hold, line) = (Ownership::Exclusive(None), QueuePolicy::Skip);
                self.decide(
                    grant,
                    Op::Acquire(Acquire { name, client, mode, hold, term, line, patch }),
                )
                .await
            }
            Request::Renew(name, client, ttl) => {
                let term = ttl.map(|ttl| LeaseTerms::Own(ttl, self.grace));
                let key = LeaseKey { name, client, token: None };
                let (firm, patch) = (Firm::Keep, Patch::default());
                self.decide(grant, Op::Renew(Renew { key, term, firm, patch, acquires: false }))
                    .await
            }
            Request::Unlock(name, client) => {
                let key = LeaseKey { name, client, token: None };
                self.decide(grant, Op::Release(Release::of(key))).await
            }
            Request::Own(name) => self.owner(grant, &name).await,
            Request::Register(address) => self.register(address),
            // The connection keeps what it was told.
            Request::Auth(_) => Reply::Success,
        }
    }

    async fn decide(&self, grant: &Grant, op: Op) -> Reply {
        // A line names no session and no place in a line, so all that it leans on is in it.
        if let Err(denial) = grant.may_submit(&op, &[]) {
            log::info!("a line is refused: {denial}");
            return Reply::Error;
        }
        let (then, answer) = oneshot::channel();
        self.locks.submit(Command::from(op), |answer| drop(then.send(answer)));
        match timeout(ANSWER_PATIENCE, answer).await {
            Ok(Ok(answer)) => word_of(&answer),
            // Whoever drops the question without an answer is closing.
            Ok(Err(_)) => Reply::Error,
            Err(_) => Reply::Timeout,
        }
    }

    /// Who has a lock. In grace it is still its owner's, for nobody else may take it.
    async fn owner(&self, grant: &Grant, name: &LockName) -> Reply {
        if let Err(denial) = grant.may(&Asked::of_lock(Operation::ShowLock, name), &[]) {
            log::info!("a line is refused: {denial}");
            return Reply::Error;
        }
        let (then, view) = oneshot::channel();
        self.locks.view(name, |view| drop(then.send(view)));
        match timeout(ANSWER_PATIENCE, view).await {
            Ok(Ok(Ok(view))) => match view.holder() {
                Some(holder) if view.phase() != Phase::Free => {
                    Reply::Owner(holder.lease.holder.clone())
                }
                Some(_) | None => Reply::None,
            },
            Ok(Ok(Err(why))) => no_answer(&why),
            Ok(Err(_)) => Reply::Error,
            Err(_) => Reply::Timeout,
        }
    }

    fn register(&self, address: SocketAddr) -> Reply {
        if !self.locks.leads() {
            return Reply::NotLeader;
        }
        if self.gate.tls().is_some() && !address.ip().is_loopback() {
            log::warn!(
                "{address} is not told of changes: what is sent there would not be encrypted; \
                 register an address of this machine, with a tunnel behind it"
            );
            return Reply::Error;
        }
        if self.stage() != Stage::Serving {
            return Reply::Error;
        }
        match self.followers.register(address) {
            Ok(()) => Reply::Registered,
            Err(Full) => Reply::Error,
        }
    }

    /// What there is to see of it, for a page of metrics.
    pub(super) fn show(&self, page: &mut Page) {
        for (name, help, value) in [
            ("latchfs_line_connections", "Open connections.", self.peers.connections()),
            (
                "latchfs_line_pending",
                "Requests that are not answered yet.",
                self.pending.load(Ordering::Relaxed),
            ),
        ] {
            page.family(name, help, "gauge");
            page.line("", value as u64);
        }
        self.followers.show(page);
    }
}

/// The word that an answer is.
fn word_of(answer: &Result<Answer, Unavailable>) -> Reply {
    match answer {
        Ok(Ok(_)) => Reply::Success,
        Ok(Err(refusal)) => match refusal.kind() {
            RefusalKind::LockConflict
            | RefusalKind::LockNotHeld
            | RefusalKind::LockExpired
            | RefusalKind::FencingMismatch => Reply::Fail,
            RefusalKind::ClockSkewExceeded
            | RefusalKind::ConsistencyUnavailable
            | RefusalKind::Invalid
            | RefusalKind::Limit
            | RefusalKind::Denied => {
                log::info!("a line is answered by ERROR: {refusal}");
                Reply::Error
            }
        },
        Err(why) => no_answer(why),
    }
}

/// The word for no answer: whether the outcome is known to be nothing, or not known.
fn no_answer(why: &Unavailable) -> Reply {
    log::info!("a line has no answer: {why}");
    match why {
        Unavailable::NoAnswer { .. } | Unavailable::Log { .. } | Unavailable::NoQuorum { .. } => {
            Reply::Timeout
        }
        Unavailable::State { .. } | Unavailable::Closing | Unavailable::Denied { .. } => {
            Reply::Error
        }
    }
}
