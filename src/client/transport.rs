//! How bytes come to a server and back: what the rest of the remote door needs of a transport.

use crate::time::Span;
use std::fmt;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// Nothing came back in time, or the connection broke: the outcome is unknown.
    Silent(String),
    /// The server does not let this client in: it says why.
    Denied(String),
    /// The server answers, but is none of this version: it says what it is.
    Foreign(String),
    /// It is of another engine than the one that was asked before: it says so, and did nothing.
    Elsewhere(String),
    /// It has forgotten the answer, or is still busy with it.
    Late,
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(why) | Self::Denied(why) | Self::Foreign(why) | Self::Elsewhere(why) => {
                f.write_str(why)
            }
            Self::Late => write!(f, "the server does not know this request any more"),
        }
    }
}

impl std::error::Error for TransportError {}

/// One connection, which one thread uses for requests one after the other. It connects by itself
/// when it has to.
pub trait ServerConnection: Send {
    /// Sends a batch, and waits so long at most for the answer.
    fn ask(&mut self, batch: &[u8], patience: Span) -> Result<Vec<u8>, TransportError>;
    /// The server that answered last could not serve the request: another one is asked next, if
    /// there is one.
    fn pass_over(&mut self, _why: &TransportError) {}
    /// Only the server that answered last is asked from now on.
    fn stay(&mut self) {}
}

/// A stream of frames that is being read.
pub trait FrameStream: Send {
    /// Adds what has come to `bytes`; waits so long at most for more.
    fn read(&mut self, bytes: &mut Vec<u8>, patience: Span) -> Result<(), TransportError>;
}

/// A server, as far as one can connect to it.
pub trait Transport: Send + Sync {
    /// The name that is shown to users.
    fn name(&self) -> &str;
    /// Whether it is several, of which any may be asked.
    fn is_several(&self) -> bool {
        false
    }
    /// The current server is unsuitable: another one is asked next, if there is one.
    fn pass_over(&self, _why: &TransportError) {}
    /// The server has told the URLs of all nodes of its cluster.
    fn learn(&self, _urls: &[String]) {}
    /// A connection for requests.
    fn line(&self) -> Box<dyn ServerConnection>;
    /// A stream of events, from `since` on if this is still the server's same start.
    fn follow(
        &self,
        start: u64,
        since: u64,
        patience: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError>;
}
