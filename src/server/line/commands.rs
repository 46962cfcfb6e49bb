//! Executes requests of the line protocol: submits a command to the engine, and converts the
//! result to a reply.

use super::followers::{FollowerRights, LineFollowers};
use super::line_server::CONNECTIONS_MAX;
use super::request::{LineReply, LineRequest, OwnOptions};
use crate::auth::engine_shares::{ConnectionLimits, ConnectionOrigin};
use crate::auth::permissions::{AccessRequest, Operation};
use crate::auth::{Authenticator, EngineShares, Grant};
use crate::engine::{
    Acquire, Answer, Command, Engine, Firm, Grace, LeaseKey, LeaseTerms, LockName, Mode, Op,
    Ownership, Patch, Phase, Reason, RefusalKind, Release, Renew, Ttl,
};
use crate::metrics::MetricsPage;
use crate::server::lock_log::AuditedCaller;
use crate::service::{Locks, Unavailable};
use crate::shares::{LimitName, LoweredLimits, SharePercent};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// Timeout for a command or a query, after which the reply is TIMEOUT. Existing clients of the line
/// protocol expect an answer within 10 s.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The state that all connections of the line protocol share.
pub(super) struct LineService {
    pub(super) locks: Locks,
    /// Default ttl of a lock, for requests that name none.
    pub(super) ttl: Ttl,
    /// Grace period of every lock, during which only its holder may renew it.
    pub(super) grace: Grace,
    pub(super) gate: Arc<Authenticator>,
    pub(super) peers: ConnectionLimits,
    pub(super) followers: Arc<LineFollowers>,
    shares: EngineShares,
    /// The addresses that other machines may register as followers.
    follow_addresses: Vec<IpAddr>,
    /// The number of requests of the line protocol that have not been answered yet.
    pending: AtomicUsize,
    phase: watch::Sender<LinePhase>,
}

/// Progress of the line server's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinePhase {
    /// The server serves all requests.
    Serving,
    /// The server grants no more locks, but clients can still release them.
    Draining,
    /// The server closes each connection after its current request.
    Closing,
}

/// Counts one pending request, until it is dropped.
struct PendingLine<'a>(&'a AtomicUsize);

impl<'a> PendingLine<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for PendingLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LineService {
    pub(super) fn new(
        locks: Locks,
        ttl: Ttl,
        grace: Grace,
        gate: Arc<Authenticator>,
        share: SharePercent,
        limits: LoweredLimits,
        follow_addresses: Vec<IpAddr>,
    ) -> Self {
        let followers = Arc::new(LineFollowers::new(locks.clone(), share));
        let (phase, _) = watch::channel(LinePhase::Serving);
        let connections = limits.of(LimitName::Connections, CONNECTIONS_MAX);
        let (peers, pending) = (ConnectionLimits::new(connections, share), <_>::default());
        let shares = EngineShares::new(share).lowered_to(limits);
        Self { locks, ttl, grace, gate, peers, followers, shares, follow_addresses, pending, phase }
    }

    /// Returns the phase of the line server's shutdown.
    pub(super) fn stage(&self) -> LinePhase {
        *self.phase.borrow()
    }

    /// Sets the phase of the line server's shutdown.
    pub(super) fn enter(&self, stage: LinePhase) {
        self.phase.send_replace(stage);
    }

    /// Waits until the shutdown reaches the phase in which connections are closed.
    pub(super) async fn closing(&self) {
        let mut phase = self.phase.subscribe();
        // The wait can't fail, because `self` owns the sender of the phase.
        let _ = phase.wait_for(|stage| *stage == LinePhase::Closing).await;
    }

    /// Executes a request, if the caller may perform the operation, and returns the reply.
    pub(super) async fn answer(
        &self,
        grant: &Grant,
        origin: &ConnectionOrigin,
        secret: Option<&[u8]>,
        request: LineRequest,
    ) -> LineReply {
        let _pending = PendingLine::new(&self.pending);
        let operation = request.operation();
        let caller = AuditedCaller { grant, origin };
        if let Err(denial) = grant.may_begin(operation) {
            return self.refuse(caller, operation, &denial);
        }
        match request {
            LineRequest::Lock(name, client, ttl, shows_token) => {
                if self.stage() != LinePhase::Serving {
                    return LineReply::Error;
                }
                let term = LeaseTerms::Own(ttl.unwrap_or(self.ttl), self.grace);
                let (mode, patch) = (Mode::Exclusive, Patch::default());
                // In the line protocol, LOCK fails for a held lock, even if the same client holds
                // it.
                let hold = Ownership::Exclusive(None);
                let ask = Acquire { mode, hold, patch, ..Acquire::new(name, client, term) };
                self.decide(caller, Op::Acquire(ask), shows_token).await
            }
            LineRequest::Renew(name, client, ttl, token) => {
                let term = ttl.map(|ttl| LeaseTerms::Own(ttl, self.grace));
                let key = LeaseKey { name, client, token };
                let (firm, patch) = (Firm::Keep, Patch::default());
                let ask = Renew { key, term, firm, patch, acquires: false };
                self.decide(caller, Op::Renew(ask), false).await
            }
            LineRequest::Unlock(name, client, token) => {
                let key = LeaseKey { name, client, token };
                self.decide(caller, Op::Release(Release::of(key)), false).await
            }
            LineRequest::Own(name, options) => self.owner(caller, &name, options).await,
            LineRequest::Register(address) => self.register(caller, secret, address),
            // The connection has stored the token of an AUTH line and checked it before this call,
            // so nothing is left to do.
            LineRequest::Auth(_) => LineReply::Success,
        }
    }

    /// Submits a command, and returns the reply: with the token of the tenure if `shows_token` is
    /// set.
    async fn decide(&self, caller: AuditedCaller<'_>, op: Op, shows_token: bool) -> LineReply {
        let grant = caller.grant;
        // Commands of the line protocol name neither a session nor a queue place, so there are no
        // owners to look up.
        if let Err(denial) = grant.may_submit(&op, &[]) {
            return self.refuse(caller, AccessRequest::of_op(&op).operation, &denial);
        }
        let mut pending = None;
        if EngineShares::concern(&op) {
            pending = Some(self.shares.begin(grant, &op));
            let check = |op: &Op, engine: &Engine| self.shares.check(grant, op, engine);
            if let Err(refusal) = self.locks.admit(&op, check) {
                return word_of(&Ok(Err(refusal)), false);
            }
        }
        let (then, answer) = oneshot::channel();
        let then = |answer| {
            drop(pending);
            drop(then.send(answer));
        };
        self.locks.submit(Command::from(op), then);
        match timeout(ANSWER_PATIENCE, answer).await {
            Ok(Ok(answer)) => word_of(&answer, shows_token),
            // The lock service drops a request without a reply only while it shuts down.
            Ok(Err(_)) => LineReply::Error,
            Err(_) => LineReply::Timeout,
        }
    }

    /// Returns the holder of a lock. In the grace period, that is still the last holder, because no
    /// other client may take the lock.
    async fn owner(
        &self,
        caller: AuditedCaller<'_>,
        name: &LockName,
        options: OwnOptions,
    ) -> LineReply {
        let grant = caller.grant;
        if let Err(denial) = grant.may(&AccessRequest::of_lock(Operation::ShowLock, name), &[]) {
            return self.refuse(caller, Operation::ShowLock, &denial);
        }
        let (then, view) = oneshot::channel();
        if options.stale {
            self.locks.known_view(name, |known| drop(then.send(known.map(|known| known.it))));
        } else {
            self.locks.view(name, |view| drop(then.send(view)));
        }
        match timeout(ANSWER_PATIENCE, view).await {
            Ok(Ok(Ok(view))) => match view.holder() {
                Some(holder) if view.phase() != Phase::Free => {
                    let token = options.token.then_some(holder.lease.token);
                    LineReply::Owner(holder.lease.holder.clone(), token)
                }
                Some(_) | None => LineReply::None,
            },
            Ok(Ok(Err(why))) => no_answer(&why),
            Ok(Err(_)) => LineReply::Error,
            Err(_) => LineReply::Timeout,
        }
    }

    /// Records a refused request, and returns its reply.
    fn refuse(
        &self,
        caller: AuditedCaller<'_>,
        operation: Operation,
        why: &dyn Display,
    ) -> LineReply {
        caller.refused(&self.locks, operation, &why.to_string());
        LineReply::Error
    }

    /// Registers a follower, as long as the caller's credentials permit it to follow all locks.
    fn register(
        &self,
        caller: AuditedCaller<'_>,
        secret: Option<&[u8]>,
        address: SocketAddr,
    ) -> LineReply {
        let AuditedCaller { grant, origin } = caller;
        if !self.locks.leads() {
            return LineReply::NotLeader;
        }
        if self.gate.tls().is_some() && !address.ip().is_loopback() {
            log::warn!(
                "{address} is not told of changes: what is sent there would not be encrypted; \
                 register an address of this machine, with a tunnel behind it"
            );
            return LineReply::Error;
        }
        let is_own = origin.is_at(address.ip());
        if !is_own && !self.follow_addresses.contains(&address.ip()) {
            let why = format!(
                "{address} is not told of changes: a follower registers itself, or its address is \
                 named by --allow-follower"
            );
            return self.refuse(caller, Operation::FollowAll, &why);
        }
        if self.stage() != LinePhase::Serving {
            return LineReply::Error;
        }
        let (gate, secret) = (Arc::clone(&self.gate), secret.map(Box::<[u8]>::from));
        let certified = origin.certified.clone();
        let may_follow = move || {
            let grant = gate.grant(secret.as_deref(), certified.as_ref());
            grant.is_ok_and(|grant| grant.may_begin(Operation::FollowAll).is_ok())
        };
        let rights = FollowerRights {
            reloads: self.gate.follow_reloads(),
            may_follow: Box::new(may_follow),
        };
        match self.followers.register(&origin.identity_of(grant), address, rights) {
            Ok(()) => LineReply::Registered,
            Err(full) => {
                log::warn!("{address} is not told of changes: {full}");
                LineReply::Error
            }
        }
    }

    /// Writes the metrics of the line protocol.
    pub(super) fn write_metrics(&self, page: &mut MetricsPage) {
        for (name, help, value) in [
            (
                "latchfs_line_connections",
                "Open connections of the line protocol.",
                self.peers.connections(),
            ),
            (
                "latchfs_line_pending",
                "Requests that are not answered yet.",
                self.pending.load(Ordering::Relaxed),
            ),
        ] {
            page.gauge(name, help, value as u64);
        }
        self.followers.write_metrics(page);
    }
}

/// Converts the answer of the lock service to a reply of the line protocol.
fn word_of(answer: &Result<Answer, Unavailable>, shows_token: bool) -> LineReply {
    match answer {
        Ok(Ok(outcome)) => match outcome.tenure().filter(|_| shows_token) {
            Some(tenure) => LineReply::Granted(tenure.token),
            None => LineReply::Success,
        },
        Ok(Err(refusal)) => match refusal.kind() {
            RefusalKind::LockConflict => match &*refusal.reason {
                Reason::Conflict(conflict) if shows_token => LineReply::Refused(conflict.token),
                _ => LineReply::Fail,
            },
            RefusalKind::LockNotHeld | RefusalKind::LockExpired | RefusalKind::FencingMismatch => {
                LineReply::Fail
            }
            RefusalKind::ClockSkewExceeded
            | RefusalKind::ConsistencyUnavailable
            | RefusalKind::Invalid
            | RefusalKind::Limit
            | RefusalKind::Denied => {
                log::info!("a line is answered by ERROR: {refusal}");
                LineReply::Error
            }
        },
        Err(why) => no_answer(why),
    }
}

/// Returns the reply if the lock service is unavailable: TIMEOUT if the outcome is unknown, ERROR
/// if the request was certainly not executed.
fn no_answer(why: &Unavailable) -> LineReply {
    log::info!("a line has no answer: {why}");
    match why {
        Unavailable::NoAnswer { .. } | Unavailable::Log { .. } | Unavailable::NoQuorum { .. } => {
            LineReply::Timeout
        }
        Unavailable::State { .. }
        | Unavailable::Closing
        | Unavailable::ClockSkew { .. }
        | Unavailable::Denied { .. } => LineReply::Error,
    }
}
