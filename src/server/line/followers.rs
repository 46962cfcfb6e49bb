//! Notifies followers of lock changes. A follower here is a TCP address that a client has
//! registered by the line protocol, and no node of a cluster. Each gets the changes from the event
//! log at its own pace, so that no command waits for a follower.
//!
//! The connection to a registered follower, an address that receives all lock changes: sends a
//! message, waits for its ACK, and reconnects when the connection was closed.

use crate::engine::{Event, EventKind, LockName};
use crate::metrics::{MetricKind, MetricsPage};
use crate::service::event_log::EventWatch;
use crate::service::{List, Locks};
use crate::shares::{Identity, SharePercent, SharedTable, TableFull, TableShare};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

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
    locks: Locks,
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
    pub(super) fn new(locks: Locks, share: SharePercent) -> Self {
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
            let (then, page) = oneshot::channel();
            let query = List { prefix: String::new(), after, limit: PAGE };
            self.locks.list(query, |page| drop(then.send(page)));
            let Ok(Ok(page)) = page.await else { return Err(DeliveryEnd::Unlisted) };
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
fn message(act: &str, name: &LockName, client: &crate::engine::ClientId) -> Option<String> {
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
