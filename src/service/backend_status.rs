//! The status of a backend: its kind, the connection to it, and how many locks, waiters and
//! sessions it has.
//!
//! The status of a remote client's connection to its server.
//!
//! The status of a cluster's nodes, and changes of its membership and leadership, for the front
//! ends.

use super::counters::{Count, Histogram};
use crate::engine::{Engine, SessionId};
use crate::service::audit::audit_log::AuditEntry;
use crate::service::call::Call;
use crate::service::event_log::{EventPlace, EventStart};
pub use crate::service::queue_waits::{PendingRequest, PendingStage};
use crate::service::unavailable::Unavailable;
use crate::time::{Span, Wall};
use std::fmt;
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
    /// Whether every call is answered when it returns: the engine is in this process, and no other
    /// node takes part.
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
    /// Returns the encoded state of the engine, as of one moment after all requests before this
    /// one; `None` if the engine is not in this process.
    fn state(&self) -> Call<Option<Vec<u8>>> {
        Call::answered(Ok(None))
    }
    /// Calls `query` with the engine as this process knows it, unless the engine is not in this
    /// process.
    fn inspect_engine(&self, query: &mut dyn FnMut(&Engine)) {
        let _ = query;
    }
    /// Adds an entry to the audit log of this process.
    fn audit(&self, entry: &AuditEntry<'_>) {
        entry.log();
    }
    /// Returns a call that is answered when all entries that were added to the audit log before are
    /// on disk.
    fn audited(&self) -> Call<()> {
        Call::answered(Ok(()))
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

/// The difference of two machines' clocks above which a machine may not steal a lock
/// (`max_clock_skew_ms` of a lock record).
pub(crate) const TOLERATED_SKEW: Span = Span::from_secs(2);

/// The status of the connection to a server, for troubleshooting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStatus {
    /// The name of the server.
    pub server: Arc<str>,
    /// The round-trip time and clock offset of the server's last answer, if there was one.
    pub heard: Option<RttSample>,
    /// The last error on the connection, if there was one.
    pub error: Option<String>,
}

/// The round-trip time and the clock offset measured from one answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RttSample {
    /// The round-trip time.
    pub round_trip: Span,
    /// How far the server's wall clock is ahead of the local one, in milliseconds, within half the
    /// round-trip time.
    pub wall_ahead_ms: i64,
}

impl RemoteStatus {
    /// Returns a sentence that says what to do if the clock of this machine differs so much from
    /// the server's that it may not steal a lock.
    pub(crate) fn refuses_steal(&self) -> Option<String> {
        let skew = self.heard?.skew();
        (skew > TOLERATED_SKEW).then(|| {
            format!(
                "the clock of this machine is wrong by at least {:.1} s, compared with the server \
                 {}, and a lock is stolen only if the two differ by at most {TOLERATED_SKEW}; set \
                 the clock ('timedatectl set-ntp true'), and try again (E_CLOCK_SKEW_EXCEEDED)",
                skew.as_duration().as_secs_f64(),
                self.server
            )
        })
    }
}

impl RttSample {
    /// Returns the measurement from an answer that was received at the local wall-clock time `here`
    /// and sent at the server's wall-clock time `there`.
    pub fn new(round_trip: Span, there: Wall, here: Wall) -> Self {
        let half = i64::try_from(round_trip.as_millis() / 2).unwrap_or(i64::MAX);
        let wall_ahead_ms = there.millis_ahead_of(here).saturating_add(half);
        Self { round_trip, wall_ahead_ms }
    }

    /// Returns by how much the two clocks certainly differ, whenever between the request and the
    /// answer the server has read its own: `max(0, |ts - (t0 + t1) / 2| - (t1 - t0) / 2)`.
    pub fn skew(self) -> Span {
        let half = self.round_trip.as_millis().div_ceil(2);
        Span::from_millis(self.wall_ahead_ms.unsigned_abs().saturating_sub(half))
    }
}

/// Cluster administration: reports on the nodes, and changes of membership and leadership.
pub trait ClusterAdmin: Send + Sync {
    /// Returns the status of all nodes. If `with_state` is set, the report also has a checksum of
    /// each node's state, which takes a moment to compute.
    fn report(&self, with_state: bool) -> Call<ClusterReport>;
    /// Changes the membership of the cluster, or its leader.
    fn change(&self, change: ClusterChange) -> Call<Result<(), Unchanged>>;
    /// Returns the requests that this node has not answered yet, in their order, at most `max`.
    fn pending(&self, max: usize) -> Vec<PendingRequest>;
    /// Returns the status of this node.
    fn own(&self) -> Member;
    /// Returns the status of the cluster as this node knows it, without contacting other nodes.
    fn outlook(&self) -> Outlook;
}

/// The status of the nodes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterReport {
    /// The id of the cluster.
    pub cluster: String,
    /// The node that produced the report.
    pub asked: u64,
    /// The leader, as far as the reporting node knows.
    pub leader: Option<u64>,
    /// The elections that the reporting node has seen.
    pub elections: ElectionStats,
    /// All members of the cluster, ordered by node number.
    pub nodes: Vec<MemberStatus>,
}

/// The elections that a node has seen since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElectionStats {
    /// The number of elections that the node has seen.
    pub count: u64,
    /// How long ago the last election was.
    pub last: Option<Span>,
}

/// The status of the cluster as one node knows it, without contacting other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// The number of voters.
    pub voters: usize,
    /// The number of learners.
    pub learners: usize,
    /// The elections that this node has seen.
    pub elections: ElectionStats,
    /// The replication lag of the other nodes, if this node leads; else that of this node.
    pub behind: Vec<Behind>,
    /// The version in which the nodes write entries, snapshots and calls.
    pub cluster_version: u8,
}

/// How far a node is behind the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// The number of the node.
    pub id: u64,
    /// The number of log entries by which the node is behind, if known.
    pub entries: Option<u64>,
    /// How long ago the leader last heard from the node, if known.
    pub heard: Option<Span>,
}

/// The status of a member and whether the member responded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The status that the member reports, or that other nodes know.
    pub member: Member,
    /// Why the member did not respond; `None` if it did.
    pub error: Option<String>,
    /// How many entries of the leader's log the member lacks, if known.
    pub lag: Option<u64>,
}

/// One member of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The number of the member in the cluster.
    pub id: u64,
    /// The name of the member.
    pub name: Arc<str>,
    /// The address at which other nodes reach the member.
    pub address: Arc<str>,
    /// The URL at which clients reach the member.
    pub url: Arc<str>,
    /// The role of the member, as openraft sees it.
    pub standing: Standing,
    /// The current term of the member.
    pub term: u64,
    /// The leader, as far as the member knows.
    pub leader: Option<u64>,
    /// The index of the last entry in the member's log.
    pub last_log: u64,
    /// The index of the last entry that the member knows to be committed.
    pub committed: u64,
    /// The index of the last entry that the member has applied.
    pub applied: u64,
    /// The index of the last entry in the member's snapshot.
    pub snapshot: u64,
    /// A checksum of the member's state after the log entry `applied`: members that have applied
    /// the same entries have the same checksum.
    pub state: Option<Arc<str>>,
    /// The recent fsync latency of the member's disk.
    pub syncing: Option<Syncing>,
    /// How long ago the leader last heard from the member, in milliseconds, if known.
    pub heard_ms: Option<u64>,
}

impl Member {
    /// Returns the role of the member for reports: without the contact with a majority nobody
    /// leads.
    pub fn role(&self) -> Standing {
        match self.standing {
            Standing::Leader if self.leader != Some(self.id) => Standing::Voter,
            standing => standing,
        }
    }
}

/// The latency of the last few hundred syncs of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syncing {
    /// The median latency.
    pub median: Span,
    /// The highest latency.
    pub worst: Span,
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The member leads: it orders the commands.
    Leader,
    /// The member votes and counts towards the quorum.
    Voter,
    /// The member receives the log, but does not count towards the quorum.
    Learner,
    /// The member is a voter that stands for election.
    Candidate,
    /// The node is not a member of the cluster, or not yet.
    Stranger,
}

impl Standing {
    /// Returns the name of the role in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Voter => "voter",
            Self::Learner => "learner",
            Self::Candidate => "candidate",
            Self::Stranger => "not a member",
        }
    }
}

/// A change of membership or leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterChange {
    /// Promotes a learner to a voter. `force` permits it even if the number of voters becomes even:
    /// such a cluster tolerates no more failures than one with a voter less.
    Promote {
        /// The number of the learner.
        id: u64,
        /// Whether an even number of voters is intended.
        force: bool,
    },
    /// Removes a node from the cluster.
    Remove {
        /// The number of the node.
        id: u64,
    },
    /// Transfers leadership to another node.
    Transfer {
        /// The new leader; `None` for the most suitable voter.
        to: Option<u64>,
    },
}

/// Why a change was not made, or is not known to have been made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unchanged {
    /// The change is not valid. The sentence says why.
    Refused(String),
    /// The cluster gave no answer, so the change may or may not take effect.
    Unavailable(Unavailable),
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Unavailable(why) => why.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status after a request that was sent at 100 s of the local clock, stamped with
    /// `ts` by the server, and answered after `round_trip`.
    fn asked(ts: i64, round_trip: u64) -> RemoteStatus {
        let wall = |ms: i64| Wall { secs: ms / 1_000, nanos: (ms % 1_000) as u32 * 1_000_000 };
        let here = wall(100_000 + round_trip as i64);
        let heard = Some(RttSample::new(Span::from_millis(round_trip), wall(ts), here));
        RemoteStatus { server: "s".into(), heard, error: None }
    }

    fn skew(ts: i64, round_trip: u64) -> u64 {
        asked(ts, round_trip).heard.expect("an answer").skew().as_millis()
    }

    #[test]
    fn skew_is_what_the_round_trip_does_not_explain() {
        assert_eq!(skew(100_000, 0), 0);
        // The server has read its clock at some time of the round trip.
        assert_eq!([100_000, 100_200, 100_400].map(|ts| skew(ts, 400)), [0, 0, 0]);
        assert_eq!((skew(103_400, 400), skew(97_000, 400)), (3_000, 3_000));
        assert_eq!(skew(100_000 - 3_600_000, 20), 3_600_000);
    }

    #[test]
    fn a_steal_is_refused_above_two_seconds() {
        assert_eq!(asked(102_000, 0).refuses_steal(), None);
        assert_eq!(asked(98_000, 0).refuses_steal(), None);
        let why = asked(105_000, 0).refuses_steal().expect("5 s");
        assert!(why.contains("5.0 s") && why.contains("E_CLOCK_SKEW_EXCEEDED"), "{why}");
        let never_heard = RemoteStatus { heard: None, ..asked(0, 0) };
        assert_eq!(never_heard.refuses_steal(), None);
    }
}
