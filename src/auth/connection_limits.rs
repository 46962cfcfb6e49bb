//! Counts connections and open requests per peer, and limits both.

use super::grant::{Credential, Grant};
use super::server_tls::CertifiedCaller;
use crate::home::join_code::EXPORTER_BYTES;
use crate::shares::{Identity, SharePercent, SharedTable, TableFull, TableShare};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// Maximum number of open connections of the HTTP server: few enough for the usual hard limit of
/// open files, up to which the server raises its soft limit.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;

/// Maximum number of unanswered requests: one on each connection, and as many again on connections
/// that carry several.
const REQUESTS_MAX: usize = 2 * CONNECTIONS_MAX;

/// Maximum number of unanswered requests of one peer, including those that wait for a lock: more
/// than the number of waiting programs on any host.
const REQUESTS_PER_PEER_MAX: usize = 4_096;

/// The peer of a connection: an IP address, or a local user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PeerIdentity {
    /// The IP address of a TCP connection.
    Address(IpAddr),
    /// The uid of a local user, for a Unix socket.
    User(u32),
}

/// Counts connections and open requests by peer, and enforces their limits.
pub(crate) struct ConnectionLimits {
    connections: SharedTable,
    requests: SharedTable,
    /// Notified when a connection ends.
    ended: Notify,
}

/// The properties that all requests of one connection share: the peer, and the rights of its
/// certificate or Unix user.
pub(crate) struct ConnectionOrigin {
    pub(crate) source: PeerIdentity,
    /// The identity to which the requests are charged.
    peer: Identity,
    requests: SharedTable,
    /// The caller that the client's certificate or the Unix socket identifies.
    pub(crate) certified: Option<CertifiedCaller>,
    /// The value that both ends of the TLS connection derive from it, by which a machine joins.
    pub(crate) exporter: Option<[u8; EXPORTER_BYTES]>,
}

/// A counted connection. Dropping this value ends the count of the connection and frees its slot.
pub(crate) struct ConnectionSlot<'a> {
    limits: &'a ConnectionLimits,
    share: Option<TableShare>,
}

impl ConnectionLimits {
    /// Returns limits for a server that accepts `connections_max` connections.
    pub(crate) fn new(connections_max: usize, percent: SharePercent) -> Self {
        let connections =
            SharedTable::new("connections", connections_max, percent.of(connections_max));
        let requests =
            SharedTable::new("requests without an answer", REQUESTS_MAX, REQUESTS_PER_PEER_MAX);
        Self { connections, requests, ended: Notify::new() }
    }

    /// Counts a connection, unless the share of `source` or the limit of the server is reached.
    pub(crate) fn admit(&self, source: PeerIdentity) -> Result<ConnectionSlot<'_>, TableFull> {
        let share = self.connections.take(&source.identity(), 1)?;
        Ok(ConnectionSlot { limits: self, share: Some(share) })
    }

    /// Returns the origin of the requests of one connection.
    pub(crate) fn origin(
        &self,
        source: PeerIdentity,
        certified: Option<CertifiedCaller>,
        exporter: Option<[u8; EXPORTER_BYTES]>,
    ) -> Arc<ConnectionOrigin> {
        let (peer, requests) = (source.identity(), self.requests.clone());
        Arc::new(ConnectionOrigin { source, peer, requests, certified, exporter })
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.taken()
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

impl Drop for ConnectionSlot<'_> {
    fn drop(&mut self) {
        drop(self.share.take());
        self.limits.ended.notify_waiters();
    }
}

impl ConnectionOrigin {
    /// Counts a request, unless the peer has reached its limit of open requests.
    pub(crate) fn count_request(&self) -> Result<TableShare, TableFull> {
        self.requests.take(&self.peer, 1)
    }

    /// Whether the peer has this address.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
        let own = |own: IpAddr| own.to_canonical() == address.to_canonical();
        matches!(self.source, PeerIdentity::Address(address) if own(address))
    }

    /// Returns the identity to which a request with this grant is charged: its credential, or the
    /// peer if the server requires none.
    pub(crate) fn identity_of(&self, grant: &Grant) -> Identity {
        match grant.credential {
            Credential::Missing | Credential::Unneeded => self.peer.clone(),
            Credential::Token | Credential::Certificate | Credential::User => {
                let kind = grant.credential.as_str();
                Identity::Credential(format!("{kind} '{}'", grant.name).into())
            }
        }
    }
}

impl PeerIdentity {
    /// Returns the identity to which the connections of the peer are charged.
    pub(crate) fn identity(self) -> Identity {
        match self {
            Self::Address(address) => Identity::of_address(address),
            Self::User(uid) => Identity::User(uid),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(number: u8) -> PeerIdentity {
        PeerIdentity::Address(Ipv4Addr::new(10, 0, 0, number).into())
    }

    #[test]
    fn one_address_leaves_half_of_the_connections_to_others() {
        let peers = ConnectionLimits::new(CONNECTIONS_MAX, SharePercent::default());
        let half = CONNECTIONS_MAX / 2;
        let many: Vec<_> = (0..half).map(|_| peers.admit(address(1)).ok()).collect();
        assert!(many.iter().all(Option::is_some));
        let full = peers.admit(address(1)).err().expect("one more").to_string();
        assert!(full.starts_with("address 10.0.0.1 has 8192 connections, which is"), "{full}");
        let others: Vec<_> = (0..half).map(|_| peers.admit(address(2)).ok()).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(peers.admit(address(3)).is_err());
        drop(many);
        assert!(peers.admit(address(3)).is_ok());
        drop(others);
        assert_eq!(peers.connections(), 0);
    }

    #[test]
    fn requests_of_one_address_are_counted() {
        let peers = ConnectionLimits::new(CONNECTIONS_MAX, SharePercent::default());
        let (one, two) =
            (peers.origin(address(1), None, None), peers.origin(address(1), None, None));
        let asked: Vec<_> = (0..REQUESTS_PER_PEER_MAX).map(|_| one.count_request().ok()).collect();
        assert!(asked.iter().all(Option::is_some));
        assert!(two.count_request().is_err(), "whichever connection it comes by");
        assert!(peers.origin(address(2), None, None).count_request().is_ok());
        drop(asked);
        assert!(two.count_request().is_ok());
    }
}
