//! The status of a backend: its kind, the connection to it, and how much it holds.

use super::callback::Then;
use super::cluster_status::ClusterAdmin;
use super::counters::Histogram;
use super::failure::Unavailable;
use super::remote_status::RemoteStatus;
use crate::engine::SessionId;
use std::sync::Arc;

/// What a backend says of itself.
pub trait BackendStatus {
    /// Returns its kind, and the number of locks, waiters and sessions.
    fn about(&self) -> About;
    /// Returns the status of the connection to the server, if there is one.
    fn connection(&self) -> Option<RemoteStatus> {
        None
    }
    /// Returns the administration of the cluster, if the backend is a node of one.
    fn cluster_admin(&self) -> Option<Arc<dyn ClusterAdmin>> {
        None
    }
    /// Returns the URLs by which clients reach all nodes of the cluster, if it is one.
    fn urls(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether the engine's time is known here: until then no lock can be shown or acquired.
    fn ready(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    /// Whether commands are ordered here, and not forwarded to the leader.
    fn leads(&self) -> bool {
        true
    }
    /// Whether every call is answered before it returns: the engine is in this process, and no
    /// other node takes part.
    fn answers_at_once(&self) -> bool {
        false
    }
    /// Returns the id of the engine, which all nodes of a cluster share, and which outlives
    /// restarts. 0: it has none.
    fn engine_id(&self) -> u64 {
        0
    }
    /// Encodes the whole state of the engine, at one moment after all requests before this one.
    /// `None`: the engine is not here.
    fn state(&self, then: Then<Result<Option<Vec<u8>>, Unavailable>>) {
        then(Ok(None));
    }
    /// Returns counts of events and requests since the start, by metric name.
    fn counts(&self) -> Vec<(&'static str, u64)>;
    /// Returns how long requests and syncs took.
    fn histograms(&self) -> Vec<Histogram> {
        Vec::new()
    }
}

/// The status of the backend, for `.latchfs/server` and `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The kind of backend.
    pub kind: BackendKind,
    /// The state of the connection to it.
    pub contact: Contact,
    /// Where the state is kept, or why it is not.
    pub state: String,
    /// Locks that are held, in grace or waited for.
    pub locks: usize,
    /// Waiters in all lines.
    pub waiters: usize,
    /// Open sessions.
    pub sessions: usize,
}

/// The kind of backend that decides commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// An engine in this process.
    Embedded,
    /// One behind a server.
    Server,
}

impl BackendKind {
    /// As written in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Server => "server",
        }
    }
}

/// How it stands with whoever decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contact {
    /// Requests are answered.
    Connected,
    /// The last sign of life was not answered; what is held is still held.
    Jeopardy,
    /// For so long that all that hung on the session is lost.
    Lost,
}

impl Contact {
    /// As written in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Jeopardy => "in jeopardy",
            Self::Lost => "lost",
        }
    }
}

/// On which session the holds of an edge hang, and who keeps that alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionOwner {
    /// The edge opens one of its own, which lasts until it is ended: the engine is in this
    /// process, and while that sleeps nobody else is served either.
    Own,
    /// The door keeps one alive, and says by an event when it is over.
    Kept(SessionId),
}
