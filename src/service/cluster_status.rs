//! The nodes that decide together, for the edges: who they are, how they stand, and what may be
//! changed about them. Locks have nothing to do with it.

pub use super::audit::AdminAction;
use super::callback::Then;
use super::failure::Unavailable;
use crate::time::Span;
use std::fmt;
use std::sync::Arc;

/// Cluster administration: reports of the nodes, and changes of membership and leadership.
pub trait ClusterAdmin: Send + Sync {
    /// Reports the status of all nodes. `with_state`: also a checksum of each node's state, which
    /// takes a moment.
    fn report(&self, with_state: bool, then: Then<ClusterReport>);
    /// Changes the membership of the cluster, or its leader.
    fn change(&self, change: ClusterChange, then: Then<Result<(), Unchanged>>);
    /// Writes an entry to the audit log of the node that is asked, and returns when it is on the
    /// disk.
    fn audit(&self, act: &AdminAction<'_>);
    /// Returns the status of this node.
    fn own(&self) -> Member;
    /// Returns the status of the cluster as this node knows it, without asking the others.
    fn outlook(&self) -> Outlook;
}

/// How the nodes of a cluster stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterReport {
    /// Which cluster.
    pub cluster: String,
    /// The node that was asked.
    pub asked: u64,
    /// The leader, as far as that node knows.
    pub leader: Option<u64>,
    /// The elections that that node has seen.
    pub elections: ElectionStats,
    /// All members, by number.
    pub nodes: Vec<MemberStatus>,
}

/// The elections that a node has seen since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ElectionStats {
    /// How many.
    pub count: u64,
    /// How long ago the last was.
    pub last: Option<Span>,
}

/// The status of the cluster as one node knows it, without asking the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// The number of voters.
    pub voters: usize,
    /// The number of learners.
    pub learners: usize,
    /// The elections that this node has seen.
    pub elections: ElectionStats,
    /// The others, if it leads; else itself.
    pub behind: Vec<Behind>,
}

/// How far a node is behind the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// Which.
    pub id: u64,
    /// By how many entries, as far as is known.
    pub entries: Option<u64>,
    /// How long ago the leader has heard of it, if it leads that knows.
    pub heard: Option<Span>,
}

/// A member, and whether it has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The status as the member reports it, or as other nodes know it.
    pub member: Member,
    /// Why it has not answered.
    pub trouble: Option<String>,
    /// How many entries of the leader's log it has not got, as far as is known.
    pub lag: Option<u64>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number in the cluster.
    pub id: u64,
    /// Its name.
    pub name: Arc<str>,
    /// Where its peers find it.
    pub address: Arc<str>,
    /// Where clients find it.
    pub url: Arc<str>,
    /// Its role.
    pub standing: Standing,
    /// The term that it is in.
    pub term: u64,
    /// The leader, as far as it knows.
    pub leader: Option<u64>,
    /// Its last entry.
    pub last_log: u64,
    /// The last entry that it knows to be decided.
    pub committed: u64,
    /// The last entry that it has carried out.
    pub applied: u64,
    /// The last entry of its snapshot.
    pub snapshot: u64,
    /// A sum of all that it knows at `applied`: equal entries, equal sums.
    pub state: Option<Arc<str>>,
    /// How long its disk takes lately.
    pub syncing: Option<Syncing>,
    /// How long ago the leader has heard of it, if it leads itself or knows.
    pub heard_ms: Option<u64>,
}

/// How long the last few hundred syncs of a log took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syncing {
    /// Half of them took no longer.
    pub median: Span,
    /// The longest.
    pub worst: Span,
}

/// The role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It orders the commands.
    Leader,
    /// It votes, and counts for the majority.
    Voter,
    /// It follows, and does not count.
    Learner,
    /// It votes, and wants to lead.
    Candidate,
    /// It is no member, or not yet.
    Stranger,
}

impl Standing {
    /// As written in reports.
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
    /// A learner becomes a voter; `force`: also when that makes two, of which both are needed.
    Promote {
        /// Which.
        id: u64,
        /// Whether two are wanted.
        force: bool,
    },
    /// A node is a member no more.
    Remove {
        /// Which.
        id: u64,
    },
    /// Another leads.
    Transfer {
        /// The new leader; `None`: the most suitable voter.
        to: Option<u64>,
    },
}

/// Why nothing was changed, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unchanged {
    /// It makes no sense, in a sentence.
    Refused(String),
    /// There is no answer.
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
