//! The status of a cluster's nodes, and changes of its membership and leadership, for the front
//! ends.

use super::callback::Then;
use super::failure::Unavailable;
pub use super::pending::{PendingRequest, PendingStage};
use crate::time::Span;
use std::fmt;
use std::sync::Arc;

/// Cluster administration: reports on the nodes, and changes of membership and leadership.
pub trait ClusterAdmin: Send + Sync {
    /// Passes the status of all nodes to `then`. If `with_state` is set, the report also has a
    /// checksum of each node's state, which takes a moment to compute.
    fn report(&self, with_state: bool, then: Then<ClusterReport>);
    /// Changes the membership of the cluster, or its leader, and passes the result to `then`.
    fn change(&self, change: ClusterChange, then: Then<Result<(), Unchanged>>);
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
    pub trouble: Option<String>,
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
