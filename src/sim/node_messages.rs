//! The requests that nodes and clients send to a simulated node, and its replies.

use crate::engine::{Answer, Command, LockName, LockView};
use crate::raft::types::NodeId;
use crate::time::Time;
use tokio::sync::oneshot;

/// A request to a node.
#[derive(Debug, Clone)]
pub(super) enum NodeRequest {
    /// By a client, who may ask any node.
    Submit(Command),
    /// By a node, to whom the client went.
    Forwarded(Command),
    /// By a client.
    View(LockName),
    /// By a follower that serves a read: the index of the entry that it must have applied.
    ReadIndex,
}

/// The reply of a node.
#[derive(Debug, Clone)]
pub(super) enum NodeReply {
    /// It has been carried out.
    Answered(Answer),
    /// The lock, and an upper bound of the engine time at the moment of the request.
    Seen(Box<LockView>, Time),
    /// The index of the entry, and the same bound.
    ReadAt(Option<u64>, Time),
    /// It does not lead; perhaps it knows who does.
    NotLeader(Option<NodeId>),
    /// The outcome is unknown: the command may have committed, or may still commit.
    Unknown,
    /// No such node runs.
    Nobody,
}

/// A command that waits for its entry.
pub(super) struct PendingCommand {
    pub(super) command: Command,
    pub(super) then: oneshot::Sender<NodeReply>,
}
