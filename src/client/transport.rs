//! The transport between a client and its servers: the interface that the rest of the client needs.

use super::http_transport::{ServerAccess, Unusable};
use crate::service::batch_messages::{BatchResponse, RequestBatch};
use crate::time::Span;
use std::fmt;

/// Why a server has given no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportError {
    /// No answer arrived in time, or the connection broke: the outcome is unknown.
    Silent(String),
    /// The server refuses the credentials, for this reason.
    Denied(String),
    /// The peer answers, but is not a latchfs server of a version that this client supports.
    /// Contains the peer's message.
    Foreign(String),
    /// The server has another engine than the client has used so far. The server reports this, and
    /// did not execute the request.
    Elsewhere(String),
    /// The server has forgotten the answer to the batch, or is still busy with it.
    Late,
}

impl TransportError {
    /// Whether the server refuses the credentials.
    pub(super) const fn is_denial(&self) -> bool {
        matches!(self, Self::Denied(_))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(why) | Self::Denied(why) | Self::Foreign(why) | Self::Elsewhere(why) => {
                f.write_str(why)
            }
            Self::Late => write!(
                f,
                "the server no longer has the answer to this request, or is \
                still busy with it"
            ),
        }
    }
}

impl std::error::Error for TransportError {}

/// One connection, on which one thread sends requests one after the other. Reconnects by itself.
pub trait ServerConnection: Send {
    /// Sends a batch, and waits for the answer for at most `patience`.
    fn ask(
        &mut self,
        batch: &RequestBatch,
        patience: Span,
    ) -> Result<BatchResponse, TransportError>;
    /// Reports that the server that answered last could not serve the request: the next request
    /// goes to another server, if there is one.
    fn pass_over(&mut self, _why: &TransportError) {}
    /// Restricts all further requests to the server that answered last.
    fn stay(&mut self) {}
}

/// A server's event stream that is open for reading.
pub trait FrameStream: Send {
    /// Appends received bytes to `bytes`; waits for at most `patience` if there are none.
    fn read(&mut self, bytes: &mut Vec<u8>, patience: Span) -> Result<(), TransportError>;
}

/// A server, or several of one cluster, to which a client can connect.
pub trait Transport: Send + Sync {
    /// The name of the server that is shown to users.
    fn name(&self) -> &str;
    /// Whether there are several servers, any of which can serve a request.
    fn is_several(&self) -> bool {
        false
    }
    /// Reports that the current server is unsuitable: the next request goes to another server, if
    /// there is one.
    fn pass_over(&self, _why: &TransportError) {}
    /// Returns why a server refused the credentials, if none has answered a request since. A user
    /// must know it even if another server can't be reached, which could accept them.
    fn denial(&self) -> Option<String> {
        None
    }
    /// Records the URLs of all nodes of the cluster, as a server reported them.
    fn learn(&self, _urls: &[String]) {}
    /// Uses these credentials from now on: the token for each request, and the certificates for new
    /// connections. If they can't be used, those before stay in force.
    fn renew_keys(&self, _access: &ServerAccess) -> Result<(), Unusable> {
        Ok(())
    }
    /// Returns a connection on which requests can be sent.
    fn line(&self) -> Box<dyn ServerConnection>;
    /// Opens the event stream, from `since` on if the server's start still has the id `start`.
    fn follow(
        &self,
        start: u64,
        since: u64,
        patience: Span,
    ) -> Result<Box<dyn FrameStream>, TransportError>;
}
