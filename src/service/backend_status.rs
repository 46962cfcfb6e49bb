//! The status of a backend: its kind, the connection to it, and how much it holds.

use crate::engine::SessionId;

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
