//! Executes requests of the line protocol: submits a command to the engine, and converts the
//! result to a reply.
//!
//! Notifies followers of lock changes. A follower here is a TCP address that a client has
//! registered by the line protocol, and no node of a cluster. Each gets the changes from the event
//! log at its own pace, so that no command waits for a follower.
//!
//! The connection to a registered follower, an address that receives all lock changes: sends a
//! message, waits for its ACK, and reconnects when the connection was closed.

use super::line_server::CONNECTIONS_MAX;
use super::request::{LineReply, LineRequest, OwnOptions};
use crate::auth::connection_limits::{ConnectionLimits, ConnectionOrigin};
use crate::auth::permissions::{AccessRequest, Operation};
use crate::auth::{Authenticator, EngineShares, Grant};
use crate::engine::{
    Acquire, Answer, Engine, Event, EventKind, Firm, Grace, LeaseKey, LeaseTerms, LockName, Op,
    Ownership, Patch, Phase, Reason, RefusalKind, Release, Renew, Ttl,
};
use crate::metrics::{MetricKind, MetricsPage};
use crate::server::lock_log::AuditedCaller;
use crate::service::event_log::EventWatch;
use crate::service::{List, ListedNames, LockService, Retry, Unavailable, scoped_views};
use crate::shares::{
    Identity, LimitName, LoweredLimits, SharePercent, SharedTable, TableFull, TableShare,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout for a command or a query, after which the reply is TIMEOUT. Existing clients of the line
/// protocol expect an answer within 10 s.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The state that all connections of the line protocol share.
pub(super) struct LineService {
    pub(super) locks: Arc<dyn LockService>,
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
        locks: Arc<dyn LockService>,
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
        let shares = EngineShares::new(share, limits);
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
                // In the line protocol, LOCK fails for a held lock, even if the same client holds
                // it.
                let hold = Ownership::Exclusive(None);
                let ask = Acquire { hold, ..Acquire::new(name, client, term) };
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
        let admission = |engine: &Engine| self.shares.admit(grant, &op, engine);
        let permit = match self.locks.admit(&op, admission) {
            Ok(permit) => permit,
            Err(refusal) => return word_of(&Ok(Err(refusal)), false),
        };
        let asked = self.locks.submit(op.into(), Retry::Never).keeping(permit);
        match timeout(ANSWER_PATIENCE, asked).await {
            // The server is shutting down.
            Ok(Err(Unavailable::Closing)) => LineReply::Error,
            Ok(answer) => word_of(&answer, shows_token),
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
        let view = async {
            if options.stale {
                scoped_views::known_view(&*self.locks, name).await.map(|known| known.it)
            } else {
                self.locks.view(name, Retry::Never).await.map(|seen| seen.view)
            }
        };
        match timeout(ANSWER_PATIENCE, view).await {
            Ok(Ok(view)) => match view.holder() {
                Some(holder) if view.phase() != Phase::Free => {
                    let token = options.token.then_some(holder.lease.token);
                    LineReply::Owner(holder.lease.holder.clone(), token)
                }
                Some(_) | None => LineReply::None,
            },
            Ok(Err(why)) => no_answer(&why),
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

/// Maximum number of registered followers: each costs a connection, and a message for each change.
const FOLLOWERS_MAX: usize = 64;

/// Number of attempts to send a lock change to a registered follower, before the follower is
/// dropped.
const TRIES_MAX: u32 = 3;
/// Delay between two attempts to send a lock change to a registered follower.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Number of events taken from the event log at a time. Later events stay in that log, which keeps
/// [`FEED_EVENTS_MAX`](crate::service::event_log::FEED_EVENTS_MAX) and drops the oldest beyond
/// that.
const BATCH: usize = 64;

/// Page size when the held locks are listed for a newly registered follower.
const PAGE: usize = 1_000;

/// All addresses that are registered to receive lock changes.
pub(super) struct LineFollowers {
    locks: Arc<dyn LockService>,
    places: SharedTable,
    known: Mutex<BTreeMap<SocketAddr, LineFollower>>,
    sent: AtomicU64,
    dropped: AtomicU64,
}

/// One address that is registered to receive lock changes.
struct LineFollower {
    delivery: JoinHandle<()>,
    /// The number of the next event to send to this address.
    next: Arc<AtomicU64>,
    _share: TableShare,
}

/// Why the delivery of lock changes to a registered follower has ended.
#[derive(Debug)]
enum DeliveryEnd {
    /// The registered follower is unreachable, or has sent no ACK.
    Silent(io::Error),
    /// The registered follower is too slow: the event log has dropped this many events before they
    /// were sent.
    Slow(u64),
    /// The credentials of the follower were revoked.
    Revoked,
    /// The list of held locks, which a newly registered follower gets first, could not be read.
    Unlisted,
}

/// Whether the credentials of a registered follower still permit it to follow all locks.
pub(super) struct FollowerRights {
    /// Changes when the server has read its credentials again.
    pub(super) reloads: watch::Receiver<u64>,
    pub(super) may_follow: Box<dyn Fn() -> bool + Send + Sync>,
}

impl FollowerRights {
    /// Waits until the follower may not follow all locks any more.
    async fn revoked(&mut self) {
        while (self.may_follow)() && self.reloads.changed().await.is_ok() {}
    }
}

impl LineFollowers {
    pub(super) fn new(locks: Arc<dyn LockService>, share: SharePercent) -> Self {
        let (known, sent, dropped) = <_>::default();
        let places = SharedTable::new("followers", FOLLOWERS_MAX, share.of(FOLLOWERS_MAX));
        Self { locks, places, known, sent, dropped }
    }

    /// Registers an address as a follower: sends it all held locks, and every change from now on.
    /// If the address is registered already, it gets all held locks again.
    pub(super) fn register(
        self: &Arc<Self>,
        who: &Identity,
        address: SocketAddr,
        mut rights: FollowerRights,
    ) -> Result<(), TableFull> {
        let mut known = self.known.lock();
        // A follower that starts over keeps its place until it has the new one.
        let share = if known.contains_key(&address) {
            self.places.take_always(who, 1)
        } else {
            self.places.take(who, 1)?
        };
        // The subscription comes before the listing of held locks, so that no change is missed.
        let watch = self.locks.subscribe(None);
        let next = Arc::new(AtomicU64::new(watch.next()));
        let (all, place) = (Arc::clone(self), Arc::clone(&next));
        let delivery = tokio::spawn(async move {
            let why = tokio::select! {
                why = all.deliver(address, watch, &place) => why,
                () = rights.revoked() => DeliveryEnd::Revoked,
            };
            all.let_go(address, &why);
        });
        if let Some(before) = known.insert(address, LineFollower { delivery, next, _share: share })
        {
            before.delivery.abort();
        }
        log::info!("registered follower {address}");
        Ok(())
    }

    fn let_go(&self, address: SocketAddr, why: &DeliveryEnd) {
        self.known.lock().remove(&address);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        let why = match why {
            DeliveryEnd::Silent(error) => format!("it does not answer: {error}"),
            DeliveryEnd::Slow(lost) => format!("it is too slow, and has missed {lost} events"),
            DeliveryEnd::Revoked => "its credentials were revoked".to_owned(),
            DeliveryEnd::Unlisted => "the locks that are held can't be listed".to_owned(),
        };
        log::warn!("{address} is not told of changes any more: {why}; it has to register again");
    }

    /// Sends a registered follower all held locks and then every lock change, until delivery fails.
    /// Returns why it failed.
    async fn deliver(
        &self,
        address: SocketAddr,
        mut watch: EventWatch,
        place: &AtomicU64,
    ) -> DeliveryEnd {
        let mut wire = FollowerConnection::new(address);
        if let Err(why) = self.send_held(&mut wire).await {
            return why;
        }
        let news = Arc::new(Notify::new());
        let waking = Arc::clone(&news);
        watch.wake_by(Arc::new(move || waking.notify_one()));
        loop {
            let batch = watch.take(BATCH);
            if batch.lost > 0 {
                return DeliveryEnd::Slow(batch.lost);
            }
            for (number, event) in &batch.events {
                if let Some(message) = message_of(event)
                    && let Err(why) = self.send(&mut wire, &message).await
                {
                    return why;
                }
                place.store(number + 1, Ordering::Relaxed);
            }
            if batch.events.is_empty() {
                news.notified().await;
            }
        }
    }

    /// Sends a registered follower all locks that are held now. A lock that changes during the
    /// listing is sent again afterwards, as an event.
    async fn send_held(&self, wire: &mut FollowerConnection) -> Result<(), DeliveryEnd> {
        let mut after = None;
        loop {
            let query = List { prefix: String::new(), after, limit: PAGE };
            let page = self.locks.list(ListedNames::InUse, query).await;
            let Ok(page) = page else { return Err(DeliveryEnd::Unlisted) };
            for view in &page.items {
                for holder in &view.holders {
                    if let Some(message) = message("LOCK", &view.name, &holder.lease.holder) {
                        self.send(wire, &message).await?;
                    }
                }
            }
            after = match page.next.map(|next| LockName::parse(&next)) {
                Some(Ok(next)) => Some(next),
                Some(Err(_)) | None => return Ok(()),
            };
        }
    }

    async fn send(&self, wire: &mut FollowerConnection, message: &str) -> Result<(), DeliveryEnd> {
        let mut tries = 1;
        loop {
            match wire.notify(message).await {
                Ok(()) => {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) if tries == TRIES_MAX => return Err(DeliveryEnd::Silent(error)),
                Err(_) => tokio::time::sleep(TRY_AGAIN).await,
            }
            tries += 1;
        }
    }

    /// Writes the metrics of the registered followers.
    pub(super) fn write_metrics(&self, page: &mut MetricsPage) {
        let now = self.locks.next_event();
        let known = self.known.lock();
        let help = "Addresses that are told of changes.";
        page.gauge("latchfs_line_followers", help, known.len() as u64);
        let help = "Events it has yet to be told.";
        page.family("latchfs_line_follower_behind", help, MetricKind::Gauge);
        for (address, follower) in &*known {
            let behind = now.saturating_sub(follower.next.load(Ordering::Relaxed));
            page.sample(vec![("follower", address.to_string())], behind);
        }
        drop(known);
        for (name, help, count) in [
            ("latchfs_line_sync_total", "Changes that followers have acknowledged.", &self.sent),
            ("latchfs_line_dropped_total", "Followers that were too slow or gone.", &self.dropped),
        ] {
            page.counter(name, help, count.load(Ordering::Relaxed));
        }
    }
}

/// Returns the message that notifies registered followers of an event; `None` if there is none.
/// They are not notified of an expired lease, because during the grace period the lock still
/// belongs to its holder.
fn message_of(event: &Event) -> Option<String> {
    match &event.what {
        EventKind::Granted { name, holder, .. } => message("LOCK", name, holder),
        EventKind::Ended { name, holder, .. } => message("UNLOCK", name, holder),
        EventKind::Renewed { .. }
        | EventKind::Annotated { .. }
        | EventKind::Expired { .. }
        | EventKind::Joined { .. }
        | EventKind::Left { .. }
        | EventKind::SessionOpened { .. }
        | EventKind::SessionKept { .. }
        | EventKind::SessionOver { .. }
        | EventKind::HoldOffEnded { .. } => None,
    }
}

/// Returns a SYNC message of the line protocol. Returns `None` for a lock whose name contains a
/// comma: only other front ends can create such a name, and this protocol can't express it.
fn message(act: &str, name: &LockName, client: &engine::ClientId) -> Option<String> {
    let name = name.as_str();
    (!name.contains(',')).then(|| format!("SYNC,{act},{name},{client}\n"))
}

/// Timeout for connecting to a registered follower, and for each ACK, as the line protocol defines
/// it.
pub(super) const ACK_PATIENCE: Duration = Duration::from_secs(5);

/// Maximum length in bytes of a line from which an ACK is read.
const ACK_BYTES_MAX: u64 = 64;

/// The connection to one registered follower, opened when a message is to be sent.
pub(super) struct FollowerConnection {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl FollowerConnection {
    pub(super) const fn new(address: SocketAddr) -> Self {
        Self { address, stream: None }
    }

    /// Sends a lock change to the registered follower, and waits for its ACK. If the follower has
    /// closed the connection after an earlier message, the message is sent over a new connection.
    pub(super) async fn notify(&mut self, message: &str) -> io::Result<()> {
        if let Some(stream) = self.stream.take()
            && let Ok(stream) = exchange(stream, message).await
        {
            self.stream = Some(stream);
            return Ok(());
        }
        let connecting = timeout(ACK_PATIENCE, TcpStream::connect(self.address));
        let stream = connecting.await.map_err(|_| late())??;
        stream.set_nodelay(true)?;
        self.stream = Some(exchange(BufReader::new(stream), message).await?);
        Ok(())
    }
}

async fn exchange(
    mut stream: BufReader<TcpStream>,
    message: &str,
) -> io::Result<BufReader<TcpStream>> {
    let talk = async {
        stream.get_mut().write_all(message.as_bytes()).await?;
        let mut said = String::new();
        (&mut stream).take(ACK_BYTES_MAX).read_line(&mut said).await?;
        match said.trim_end() {
            "ACK" => Ok(()),
            "" => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            other => Err(io::Error::other(format!("it said {other:?} and not ACK"))),
        }
    };
    timeout(ACK_PATIENCE, talk).await.map_err(|_| late())??;
    Ok(stream)
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "there was no ACK in time")
}
