//! The calling end: one connection to one node, kept between calls, and opened again when it is
//! gone.

use super::messages::{
    ANYBODY, Envelope, RpcError, RpcRequest, RpcResponse, decode_answer, encode_letter,
};
use super::mutual_tls::{PeerTls, is_peers};
use crate::net::http_connection::{HttpSender, dial, encrypt, start_http, with_causes};
use crate::raft::node_address::host_and_port;
use crate::raft::types::{ClusterId, NodeId};
use crate::time::Span;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};
use tokio::time::timeout;

/// Bytes of one answer: to 512 commands, each of which may be refused in a long sentence.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The identity of the calling node.
#[derive(Clone)]
pub(crate) struct RpcIdentity {
    /// Its cluster, once it has one.
    pub(in crate::raft) cluster: Option<ClusterId>,
    /// Its number, once it has one.
    pub(in crate::raft) node: NodeId,
    /// How connections are encrypted.
    pub(in crate::raft) tls: Option<PeerTls>,
}

impl RpcIdentity {
    /// Returns the identity of a node that has no number yet.
    pub(in crate::raft) fn nobody(tls: Option<PeerTls>) -> Self {
        Self { cluster: None, node: ANYBODY, tls }
    }

    /// A connection to a node, to be opened at the first call.
    pub(in crate::raft) fn line(self: &Arc<Self>, to: NodeId, address: &str) -> RpcConnection {
        RpcConnection { caller: Arc::clone(self), to, address: address.into(), sender: None }
    }
}

/// A connection to one node.
pub(crate) struct RpcConnection {
    caller: Arc<RpcIdentity>,
    to: NodeId,
    pub(in crate::raft) address: Arc<str>,
    sender: Option<HttpSender>,
}

/// Why a call came to nothing.
#[derive(Debug, Clone)]
pub(crate) enum RpcFailure {
    /// It never left.
    Unsent(String),
    /// It may have been heard: the outcome is unknown.
    Unheard(String),
    /// It was turned away.
    Turned(RpcError),
}

impl fmt::Display for RpcFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsent(why) | Self::Unheard(why) => f.write_str(why),
            Self::Turned(turned) => turned.fmt(f),
        }
    }
}

impl Error for RpcFailure {}

impl RpcConnection {
    /// Calls, and waits for the answer. If the caller is dropped meanwhile, so is the connection.
    pub(in crate::raft) async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
    ) -> Result<RpcResponse, RpcFailure> {
        let path = format!("/raft/v1/{}", call.name());
        let RpcIdentity { cluster, node, .. } = *self.caller;
        let letter = Envelope { cluster, from: node, to: self.to, call };
        let body = Bytes::from(encode_letter(&letter));
        drop(letter);
        let mut sent = SendOutcome::No;
        let asked = timeout(patience.as_duration(), self.exchange(&path, body, &mut sent)).await;
        let answer = asked.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        match (answer, sent) {
            (Ok(bytes), _) => match decode_answer(&bytes) {
                Ok(Ok(told)) => Ok(told),
                Ok(Err(turned)) => Err(RpcFailure::Turned(turned)),
                Err(_) => Err(RpcFailure::Unheard("it answers in another language".to_owned())),
            },
            (Err(why), SendOutcome::No) => Err(RpcFailure::Unsent(why)),
            (Err(why), SendOutcome::Perhaps) => Err(RpcFailure::Unheard(why)),
        }
    }

    async fn exchange(
        &mut self,
        path: &str,
        body: Bytes,
        sent: &mut SendOutcome,
    ) -> Result<Bytes, String> {
        // Put back when the answer is there: one that is not is of no use any more.
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect().await.map_err(|error| with_causes(&error))?,
        };
        let request = |body| {
            let address: &str = &self.address;
            let request = Request::post(path).header(HOST, address);
            request.body(Full::new(body)).map_err(|error| with_causes(&error))
        };
        *sent = SendOutcome::Perhaps;
        let response = match sender.send_request(request(body.clone())?).await {
            // The other end had closed it while it was idle, and nothing was written.
            Err(error) if error.is_canceled() => {
                *sent = SendOutcome::No;
                sender = self.connect().await.map_err(|error| with_causes(&error))?;
                *sent = SendOutcome::Perhaps;
                sender.send_request(request(body)?).await
            }
            answered => answered,
        };
        let response = response.map_err(|error| with_causes(&error))?;
        let status = response.status();
        let whole_body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = whole_body.map_err(|error| format!("incomplete response: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            return Err(format!("it answers {status}: no node listens there"));
        }
        self.sender = Some(sender);
        Ok(bytes)
    }

    async fn connect(&self) -> io::Result<HttpSender> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let (host, port) =
            host_and_port(&self.address).ok_or_else(|| wrong("it is no HOST:PORT"))?;
        let stream = dial(host, port).await?;
        match &self.caller.tls {
            None => start_http(stream).await,
            Some(tls) => {
                let name = tls.name(host).ok_or_else(|| wrong("its name can't be checked"))?;
                let stream = encrypt(stream, &tls.connects, name).await?;
                let chain = stream.get_ref().1.peer_certificates();
                if !chain.and_then(|chain| chain.first()).is_some_and(is_peers) {
                    return Err(wrong("its certificate is not one of a node"));
                }
                start_http(stream).await
            }
        }
    }
}

/// Whether a call may have been heard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendOutcome {
    No,
    Perhaps,
}
