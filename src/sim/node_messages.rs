//! What the nodes and clients of a simulation ask a node, and what it answers.

use crate::engine::{Answer, Command, LockName, LockView};
use crate::raft::types::NodeId;
use crate::time::Time;
use tokio::sync::oneshot;

/// What a node is asked.
#[derive(Debug, Clone)]
pub(super) enum NodeRequest {
    /// By a client, who may ask any node.
    Submit(Command),
    /// By a node, to whom the client went.
    Forwarded(Command),
    /// By a client.
    View(LockName),
    /// By a node, for its reader: from which entry on what it sees is current.
    ReadIndex,
}

/// What a node says.
#[derive(Debug, Clone)]
pub(super) enum NodeReply {
    /// It has been carried out.
    Answered(Answer),
    /// What there was, and a time that the engine's had not passed when it was asked.
    Seen(Box<LockView>, Time),
    /// The entry, and the same time.
    ReadAt(Option<u64>, Time),
    /// It does not lead; perhaps it knows who does.
    NotLeader(Option<NodeId>),
    /// It may have been carried out, or may be later.
    Unknown,
    /// No such node runs.
    Nobody,
}

/// A command that waits for its entry.
pub(super) struct PendingCommand {
    pub(super) command: Command,
    pub(super) then: oneshot::Sender<NodeReply>,
}
