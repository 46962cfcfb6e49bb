//! Who is connected, and the limits on that.

use super::Grant;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Connections at once: some for each of the sessions that the engine can have, and within what
/// a process may have open where nobody has raised that.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;

/// Connections of one address: several machines may be behind one, yet none may take all.
pub(crate) const CONNECTIONS_PER_PEER_MAX: usize = CONNECTIONS_MAX * 3 / 4;

/// Requests of one address that are not answered yet, waiting ones among them: more than any
/// host has programs that wait.
pub(crate) const REQUESTS_PER_PEER_MAX: usize = 4_096;

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// An address.
    Address(IpAddr),
    /// A user of this machine, by a Unix socket.
    User(u32),
}

/// All who are connected.
#[derive(Default)]
pub(crate) struct Peers {
    known: Mutex<HashMap<Source, Arc<Peer>>>,
    connections: AtomicUsize,
    /// Told when a connection has ended.
    ended: Notify,
}

/// One address, or one user.
pub(crate) struct Peer {
    pub(crate) source: Source,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// What all requests of one connection have in common.
pub(crate) struct Origin {
    pub(crate) peer: Arc<Peer>,
    /// What the client's certificate, or the user at the other end, allows.
    pub(crate) certified: Option<Arc<Grant>>,
}

/// One connection, counted as long as this lives.
pub(crate) struct Connected<'a> {
    peers: &'a Peers,
    source: Source,
    peer: Arc<Peer>,
}

/// One request, counted as long as this lives.
pub(crate) struct Asking(Arc<Peer>);

impl Peers {
    /// Counts a connection, if there may be another.
    pub(crate) fn admit(&self, source: Source) -> Option<Connected<'_>> {
        let mut known = self.known.lock();
        let peer = known.entry(source).or_insert_with(|| {
            let (connections, requests) = (AtomicUsize::new(0), AtomicUsize::new(0));
            Arc::new(Peer { source, connections, requests })
        });
        let all = self.connections.load(Ordering::Relaxed);
        let own = peer.connections.load(Ordering::Relaxed);
        if all >= CONNECTIONS_MAX || own >= CONNECTIONS_PER_PEER_MAX {
            return None;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        peer.connections.fetch_add(1, Ordering::Relaxed);
        Some(Connected { peers: self, source, peer: Arc::clone(peer) })
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns when there is no connection.
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

impl Connected<'_> {
    /// Whose it is.
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }
}

impl Drop for Connected<'_> {
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

impl Peer {
    /// Counts a request, if there may be another.
    pub(crate) fn ask(self: &Arc<Self>) -> Option<Asking> {
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        let asking = Asking(Arc::clone(self));
        (before < REQUESTS_PER_PEER_MAX).then_some(asking)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u8) -> Source {
        Source::Address(Ipv4Addr::new(10, 0, 0, number).into())
    }

    #[test]
    fn one_address_can_not_take_all_connections() {
        let peers = Peers::default();
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
        let peers = Peers::default();
        let (one, two) = (peers.admit(address(1)), peers.admit(address(1)));
        let peer = |connected: &Option<Connected<'_>>| {
            Arc::clone(connected.as_ref().expect("there is room").peer())
        };
        let asked: Vec<_> = (0..REQUESTS_PER_PEER_MAX).map(|_| peer(&one).ask()).collect();
        assert!(asked.iter().all(Option::is_some));
        assert!(peer(&two).ask().is_none(), "whichever connection it comes by");
        drop(asked);
        assert!(peer(&two).ask().is_some());
    }
}
