//! Pending requests: the commands that a node has received and not answered yet.

use crate::engine::{ClientId, LockName, Op};
use crate::time::Span;

/// A command that a node has received and not answered yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRequest {
    /// How far the command has come.
    pub stage: PendingStage,
    /// The kind of the command.
    pub command: &'static str,
    /// The lock that the command names.
    pub lock: Option<LockName>,
    /// The client that the command names.
    pub client: Option<ClientId>,
    /// How long ago this node received the command.
    pub age: Span,
}

/// How far a pending command has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingStage {
    /// The command waits for the next entry.
    Queued,
    /// The command was sent to the leader, or will be when there is one.
    Forwarded,
    /// The command is in an entry that this node, the leader, replicates.
    Replicating,
}

impl PendingStage {
    /// Returns the name of the stage in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Forwarded => "forwarded",
            Self::Replicating => "replicating",
        }
    }
}

impl PendingRequest {
    /// Returns the description of a command.
    pub fn of(op: &Op, stage: PendingStage, age: Span) -> Self {
        let (command, lock, client) = match op {
            Op::Settle => ("settle", None, None),
            Op::Acquire(ask) => ("acquire", Some(&ask.name), Some(&ask.client)),
            Op::Renew(ask) => ("renew", Some(&ask.key.name), Some(&ask.key.client)),
            Op::Annotate(ask) => ("annotate", Some(&ask.key.name), Some(&ask.key.client)),
            Op::Release(ask) => ("release", Some(&ask.key.name), Some(&ask.key.client)),
            Op::Leave(ask) => ("leave", Some(&ask.name), None),
            Op::Move(ask) => ("move", Some(&ask.from.name), Some(&ask.from.client)),
            Op::Steal(ask) => ("steal", Some(&ask.name), Some(&ask.client)),
            Op::OpenSession(ask) => ("open-session", None, Some(&ask.client)),
            Op::KeepAlive(_) => ("keep-alive", None, None),
            Op::EndSession(_) => ("end-session", None, None),
            Op::Forget(ask) => ("forget", Some(&ask.name), Some(&ask.by)),
            Op::Reset(ask) => ("reset", None, Some(&ask.by)),
            Op::EndHoldOff(ask) => ("grant-now", None, Some(&ask.by)),
            #[cfg(feature = "planted-version")]
            Op::Planted(name) => ("planted", Some(name), None),
        };
        Self { stage, command, lock: lock.cloned(), client: client.cloned(), age }
    }
}
