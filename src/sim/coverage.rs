//! The kinds of events and operations that a simulation counts, to show what the run exercised.

/// A kind of event or operation in a simulation. The report counts each: a kind that never occurs
/// was not tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoveragePoint {
    /// A node began to lead.
    Leader,
    /// A node crashed.
    Crash,
    /// A node stopped because its disk had failed.
    FailedNodeEnd,
    /// A leader applied commands that a follower had forwarded for its clients.
    Forward,
    /// A leader gave a follower the read index that the follower needs for a linearizable read.
    FollowerRead,
    /// A node joined the cluster.
    Join,
    /// A voter was replaced.
    VoterReplaced,
    /// A node installed a snapshot that the leader had sent.
    SnapshotInstalled,
    /// A snapshot took a second or more to be written.
    SlowSnapshotWrite,
    /// A snapshot took a second or more to be read.
    SlowSnapshotRead,
    /// A shared lock was granted.
    SharedGrant,
    /// An open file was granted a lock.
    OpenFileGrant,
    /// The mode of a lease was changed.
    ModeChange,
    /// A client began to wait in a queue.
    Wait,
    /// A lease was moved to another lock name.
    Move,
    /// A lock was stolen.
    Steal,
    /// An administrator reset the locks.
    Reset,
    /// A part of a reset was carried out in an entry of its own.
    ResetPart,
}

impl CoveragePoint {
    /// Returns the key of this counter in the JSON report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leaders",
            Self::Crash => "crashes",
            Self::FailedNodeEnd => "failed_node_ends",
            Self::Forward => "forwards",
            Self::FollowerRead => "follower_reads",
            Self::Join => "joins",
            Self::VoterReplaced => "voters_replaced",
            Self::SnapshotInstalled => "snapshots_installed",
            Self::SlowSnapshotWrite => "slow_snapshot_writes",
            Self::SlowSnapshotRead => "slow_snapshot_reads",
            Self::SharedGrant => "shared_grants",
            Self::OpenFileGrant => "open_file_grants",
            Self::ModeChange => "mode_changes",
            Self::Wait => "waits",
            Self::Move => "moves",
            Self::Steal => "steals",
            Self::Reset => "resets",
            Self::ResetPart => "reset_parts",
        }
    }

    /// All variants, in the order of their declaration.
    pub const ALL: [Self; 18] = [
        Self::Leader,
        Self::Crash,
        Self::FailedNodeEnd,
        Self::Forward,
        Self::FollowerRead,
        Self::Join,
        Self::VoterReplaced,
        Self::SnapshotInstalled,
        Self::SlowSnapshotWrite,
        Self::SlowSnapshotRead,
        Self::SharedGrant,
        Self::OpenFileGrant,
        Self::ModeChange,
        Self::Wait,
        Self::Move,
        Self::Steal,
        Self::Reset,
        Self::ResetPart,
    ];
}
