//! The status of a backend: its kind, the connection to it, and how many locks, waiters and
//! sessions it has.

use super::audit::AuditEntry;
use super::callback::Then;
use super::cluster_status::ClusterAdmin;
use super::counters::{Count, Histogram};
use super::event_places::{EventPlace, EventStart};
use super::failure::Unavailable;
use super::remote_status::RemoteStatus;
use crate::engine::{Engine, SessionId};
use std::sync::Arc;

/// The information that a backend reports about itself.
pub trait BackendStatus {
    /// Returns the kind of the backend, and the number of its locks, waiters and sessions.
    fn about(&self) -> About;
    /// Returns the status of the connection to the server, if there is one.
    fn connection(&self) -> Option<RemoteStatus> {
        None
    }
    /// Returns the administration of the cluster, if the backend is a node of one.
    fn cluster_admin(&self) -> Option<Arc<dyn ClusterAdmin>> {
        None
    }
    /// Returns the URLs at which clients reach the nodes of the cluster, if the backend is a node
    /// of one.
    fn urls(&self) -> Vec<String> {
        Vec::new()
    }
    /// Returns an error while this node does not know the engine's time: until then no lock can be
    /// shown or acquired.
    fn ready(&self) -> Result<(), Unavailable> {
        Ok(())
    }
    /// Whether this node has contact with a majority of its cluster: without it no lock is granted.
    fn has_majority(&self) -> bool {
        true
    }
    /// Whether this node orders the commands itself, instead of forwarding them to the leader.
    fn leads(&self) -> bool {
        true
    }
    /// Whether every call passes its answer to the callback before it returns: the engine is in
    /// this process, and no other node takes part.
    fn answers_at_once(&self) -> bool {
        false
    }
    /// Returns the id of the engine, which all nodes of a cluster share and which survives
    /// restarts; 0 if it has none.
    fn engine_id(&self) -> u64 {
        0
    }
    /// Returns the place in the replicated log of the event with this number; `None` without such a
    /// log, or if the place is forgotten.
    fn event_place(&self, number: u64) -> Option<EventPlace> {
        let _ = number;
        None
    }
    /// Returns the number of the first event after a place in the replicated log.
    fn events_after(&self, place: EventPlace) -> EventStart {
        let _ = place;
        EventStart::Forgotten
    }
    /// Passes the encoded state of the engine to `then`, as of one moment after all requests before
    /// this one; `None` if the engine is not in this process.
    fn state(&self, then: Then<Result<Option<Vec<u8>>, Unavailable>>) {
        then(Ok(None));
    }
    /// Calls `look` with the engine as this process knows it, unless the engine is not in this
    /// process.
    fn look_at_engine(&self, look: &mut dyn FnMut(&Engine)) {
        let _ = look;
    }
    /// Adds an entry to the audit log of this process.
    fn audit(&self, entry: &AuditEntry<'_>) {
        entry.log();
    }
    /// Calls `then` when all entries that were added to the audit log before are on disk.
    fn when_audited(&self, then: Box<dyn FnOnce() + Send>) {
        then();
    }
    /// Returns counts of events and requests since the start.
    fn counts(&self) -> Vec<Count>;
    /// Returns histograms of durations, such as how long clients wait for locks, how long they hold
    /// them, and how long disk syncs take.
    fn histograms(&self) -> Vec<Histogram> {
        Vec::new()
    }
}

/// The status of the backend, as the file `.latchfs/server` and the command `status` show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Whether the engine runs in this process or behind a server.
    pub kind: BackendKind,
    /// The state of the connection between the front end and the backend.
    pub contact: Contact,
    /// Where the state is stored, or that it is not persisted, as a text for people.
    pub state: String,
    /// The number of locks that are held, in grace or waited for.
    pub locks: usize,
    /// The number of waiters in all queues.
    pub waiters: usize,
    /// The number of open sessions.
    pub sessions: usize,
}

/// Where the engine runs that decides the commands of a front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendKind {
    /// The engine runs in this process.
    Embedded,
    /// The engine runs in another process, behind a server.
    Server,
}

impl BackendKind {
    /// Returns the name of the kind in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Server => "server",
        }
    }
}

/// The state of the connection between a front end and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contact {
    /// The backend answers requests.
    Connected,
    /// The last keep-alive was not answered. The leases are still valid.
    Jeopardy,
    /// The backend has not answered for so long that the session and all its leases are lost.
    Lost,
}

impl Contact {
    /// Returns the name of the state in statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Jeopardy => "in jeopardy",
            Self::Lost => "lost",
        }
    }
}

/// The session to which a front end binds its leases, and which side keeps that session alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionOwner {
    /// The front end opens its own session, which lasts until it is ended: the engine is in this
    /// process, and while the process sleeps it serves no other client either.
    Own,
    /// The lock service keeps this session alive, and reports its end by an event.
    Kept(SessionId),
}
