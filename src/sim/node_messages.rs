//! The requests that clients send to a simulated node, and its replies.

use crate::engine::{Answer, Command, LockName, LockView};
use crate::time::Time;

/// A request of a client. Any node accepts it.
#[derive(Debug, Clone)]
pub(super) enum NodeRequest {
    /// Applies a command.
    Submit(Box<Command>),
    /// Reads a lock.
    View(LockName),
}

/// The reply of a node.
#[derive(Debug, Clone)]
pub(super) enum NodeReply {
    /// The command has been applied.
    Answered(Answer),
    /// The state of the lock, and the engine time at a moment after the request.
    Seen(Box<LockView>, Time),
    /// The node has no answer. The command may have committed, or may still commit.
    Unavailable,
    /// The addressed node is not running.
    Nobody,
}
