//! Counts connections and open requests per peer, and limits both.

use super::grant::Grant;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Maximum number of open connections of the server: few enough for the usual hard limit of open
/// files, up to which the server raises its soft limit.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;

/// Maximum number of open connections of one peer. Several machines may share one address (NAT),
/// yet no address may use up all connections.
pub(crate) const CONNECTIONS_PER_PEER_MAX: usize = CONNECTIONS_MAX * 3 / 4;

/// Maximum number of unanswered requests of one peer, including those that wait for a lock: more
/// than the number of waiting programs on any host.
pub(crate) const REQUESTS_PER_PEER_MAX: usize = 4_096;

/// The peer of a connection: an IP address, or a local user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PeerIdentity {
    /// The IP address of a TCP connection.
    Address(IpAddr),
    /// The uid of a local user, for a Unix socket.
    User(u32),
}

/// Counts connections and open requests by peer, and enforces their limits.
#[derive(Default)]
pub(crate) struct ConnectionLimits {
    known: Mutex<HashMap<PeerIdentity, Arc<PeerUsage>>>,
    connections: AtomicUsize,
    /// Notified when a connection ends.
    ended: Notify,
}

/// The connections and open requests of one peer.
pub(crate) struct PeerUsage {
    pub(crate) source: PeerIdentity,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// The properties that all requests of one connection share: the peer, and the rights of its
/// certificate or Unix user.
pub(crate) struct ConnectionOrigin {
    pub(crate) peer: Arc<PeerUsage>,
    /// The grant of the client's certificate, or of the Unix user at the other end of the socket.
    pub(crate) certified: Option<Arc<Grant>>,
}

/// A counted connection. Dropping this value ends the count of the connection and frees its slot.
pub(crate) struct ConnectionSlot<'a> {
    peers: &'a ConnectionLimits,
    source: PeerIdentity,
    peer: Arc<PeerUsage>,
}

/// A counted request. Dropping this value ends the count of the request and frees its slot.
pub(crate) struct RequestSlot(Arc<PeerUsage>);

impl ConnectionLimits {
    /// Counts a connection. Returns `None` if the limit of `source` or of the server is reached.
    pub(crate) fn admit(&self, source: PeerIdentity) -> Option<ConnectionSlot<'_>> {
        let mut known = self.known.lock();
        let peer = known.entry(source).or_insert_with(|| {
            let (connections, requests) = (AtomicUsize::new(0), AtomicUsize::new(0));
            Arc::new(PeerUsage { source, connections, requests })
        });
        let all = self.connections.load(Ordering::Relaxed);
        let own = peer.connections.load(Ordering::Relaxed);
        if all >= CONNECTIONS_MAX || own >= CONNECTIONS_PER_PEER_MAX {
            return None;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        peer.connections.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionSlot { peers: self, source, peer: Arc::clone(peer) })
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Waits until no connection is open.
    pub(crate) async fn none_left(&self) {
        loop {
            let ended = self.ended.notified();
            if self.connections() == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl ConnectionSlot<'_> {
    /// Returns the usage counters of the connection's peer.
    pub(crate) fn peer(&self) -> &Arc<PeerUsage> {
        &self.peer
    }
}

impl Drop for ConnectionSlot<'_> {
    fn drop(&mut self) {
        let mut known = self.peers.known.lock();
        if self.peer.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            known.remove(&self.source);
        }
        drop(known);
        self.peers.connections.fetch_sub(1, Ordering::Relaxed);
        self.peers.ended.notify_waiters();
    }
}

impl PeerUsage {
    /// Counts a request. Returns `None` if the peer has reached its limit of open requests.
    pub(crate) fn ask(self: &Arc<Self>) -> Option<RequestSlot> {
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        let asking = RequestSlot(Arc::clone(self));
        (before < REQUESTS_PER_PEER_MAX).then_some(asking)
    }
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u8) -> PeerIdentity {
        PeerIdentity::Address(Ipv4Addr::new(10, 0, 0, number).into())
    }

    #[test]
    fn one_address_can_not_take_all_connections() {
        let peers = ConnectionLimits::default();
        let many: Vec<_> = (0..CONNECTIONS_PER_PEER_MAX).map(|_| peers.admit(address(1))).collect();
        assert!(many.iter().all(Option::is_some));
        assert!(peers.admit(address(1)).is_none());
        let left = CONNECTIONS_MAX - CONNECTIONS_PER_PEER_MAX;
        let others: Vec<_> = (0..left).map(|_| peers.admit(address(2))).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(peers.admit(address(3)).is_none());
        drop(many);
        assert!(peers.admit(address(3)).is_some());
        drop(others);
        assert_eq!((peers.connections(), peers.known.lock().len()), (0, 0));
    }

    #[test]
    fn requests_of_one_address_are_counted() {
        let peers = ConnectionLimits::default();
        let (one, two) = (peers.admit(address(1)), peers.admit(address(1)));
        let peer = |connected: &Option<ConnectionSlot<'_>>| {
            Arc::clone(connected.as_ref().expect("there is room").peer())
        };
        let asked: Vec<_> = (0..REQUESTS_PER_PEER_MAX).map(|_| peer(&one).ask()).collect();
        assert!(asked.iter().all(Option::is_some));
        assert!(peer(&two).ask().is_none(), "whichever connection it comes by");
        drop(asked);
        assert!(peer(&two).ask().is_some());
    }
}
