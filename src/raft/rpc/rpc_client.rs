//! The RPC client: a persistent connection to one node, which is reopened when it is lost.

use super::messages::{
    ANYBODY, Envelope, RpcError, RpcRequest, RpcResponse, decode_answer, encode_letter,
};
use super::mutual_tls::PeerTls;
use super::name_header::{named_in, put_name};
use crate::net::connections::{HttpSender, dial, encrypt, start_http, with_causes};
use crate::raft::cluster_name::{ClusterName, refusal};
use crate::raft::cluster_version::ClusterVersion;
use crate::raft::node_address::host_and_port;
use crate::raft::peer_contacts::PeerContacts;
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

/// The highest length of one answer in bytes: enough for the answers to 512 commands, each of which
/// may be a long refusal.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The identity of the calling node.
#[derive(Clone)]
pub(crate) struct RpcIdentity {
    /// The cluster of the node, or `None` before it has joined one.
    pub(in crate::raft) cluster: Option<ClusterId>,
    /// The id of the node, or [`ANYBODY`] before it has one.
    pub(in crate::raft) node: NodeId,
    /// The TLS configuration of the node's connections.
    pub(in crate::raft) tls: Option<PeerTls>,
    /// The name of the cluster, if it has one.
    pub(in crate::raft) name: Option<ClusterName>,
    /// The version in which the node writes calls.
    pub(in crate::raft) version: ClusterVersion,
    /// Which of the other nodes can be reached, for the log.
    pub(in crate::raft) contacts: Arc<PeerContacts>,
}

impl RpcIdentity {
    /// Returns the identity of a node that has no id yet.
    pub(in crate::raft) fn nobody(tls: Option<PeerTls>, name: Option<ClusterName>) -> Self {
        let (version, contacts) = (ClusterVersion::default(), Arc::default());
        Self { cluster: None, node: ANYBODY, tls, name, version, contacts }
    }

    /// Returns a connection to a node, which is opened at the first call.
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

/// The error of a call to another node.
#[derive(Debug, Clone)]
pub(crate) enum RpcFailure {
    /// The call was never sent, so it had no effect.
    Unsent(String),
    /// The node may have received the call but no valid answer arrived: the outcome is unknown.
    Unheard(String),
    /// The node answered with an error.
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
    /// Calls the node and returns its response. Dropping the future before it completes also drops
    /// the connection.
    pub(in crate::raft) async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
    ) -> Result<RpcResponse, RpcFailure> {
        let path = format!("/raft/v1/{}", call.name());
        let RpcIdentity { cluster, node, .. } = *self.caller;
        let version = self.caller.version.get();
        let letter = Envelope { version, cluster, from: node, to: self.to, call };
        let body = Bytes::from(encode_letter(&letter));
        drop(letter);
        let mut sent = SendOutcome::No;
        let asked = timeout(patience.as_duration(), self.exchange(&path, body, &mut sent)).await;
        let answer = asked.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        if self.to != ANYBODY && node != ANYBODY {
            self.caller.contacts.called(self.to, answer.as_ref().err().map(String::as_str));
        }
        match (answer, sent) {
            (Ok((bytes, named)), _) => match decode_answer(&bytes) {
                Ok(Ok(told)) => match self.strange(named.as_ref()) {
                    None => Ok(told),
                    Some(why) => Err(RpcFailure::Turned(RpcError::Refused(why.into()))),
                },
                Ok(Err(turned)) => Err(RpcFailure::Turned(turned)),
                Err(error) => {
                    Err(RpcFailure::Unheard(format!("its response is unusable: {error}")))
                }
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
    ) -> Result<(Bytes, Option<ClusterName>), String> {
        // The HTTP connection is taken out of `self`, and put back when the response is complete: a
        // connection on which a call has failed can't be reused.
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect().await.map_err(|error| with_causes(&error))?,
        };
        let request = |body| {
            let address: &str = &self.address;
            let request = Request::post(path).header(HOST, address).body(Full::new(body));
            let mut request = request.map_err(|error| with_causes(&error))?;
            put_name(request.headers_mut(), self.caller.name.as_ref());
            Ok::<_, String>(request)
        };
        *sent = SendOutcome::Perhaps;
        let response = match sender.send_request(request(body.clone())?).await {
            // hyper reports that it wrote nothing of the request, because the server had closed the
            // idle connection. The request is sent again on a new connection.
            Err(error) if error.is_canceled() => {
                *sent = SendOutcome::No;
                sender = self.connect().await.map_err(|error| with_causes(&error))?;
                *sent = SendOutcome::Perhaps;
                sender.send_request(request(body)?).await
            }
            answered => answered,
        };
        let response = response.map_err(|error| with_causes(&error))?;
        let (status, named) = (response.status(), named_in(response.headers()));
        let whole_body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = whole_body.map_err(|error| format!("incomplete response: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            return Err(format!("it answers {status}: no node listens there"));
        }
        self.sender = Some(sender);
        Ok((bytes, named))
    }

    /// Returns why this node, which has no cluster yet, does not join that of the called node,
    /// whose name is `named`.
    fn strange(&self, named: Option<&ClusterName>) -> Option<String> {
        let is_new = self.caller.cluster.is_none() && self.caller.name.is_some();
        is_new.then(|| refusal(self.caller.name.as_ref(), named)).flatten()
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
                let stream = encrypt(stream, &tls.connects(), name).await?;
                tls.check(stream.get_ref().1.peer_certificates()).map_err(wrong)?;
                start_http(stream).await
            }
        }
    }
}

/// Whether the node may have received a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendOutcome {
    No,
    Perhaps,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Returns the error of a call that is answered with a body of `bytes` bytes.
    fn answered_with(bytes: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let _ = stream.read(&mut [0; 4_096]).expect("a request");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
            // The caller closes the connection when the answer is too long.
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&vec![0xff; bytes]);
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let answer = runtime.expect("one thread").block_on(async {
            let mut line = Arc::new(RpcIdentity::nobody(None, None)).line(2, &address);
            line.call(RpcRequest::Read, Span::from_secs(20)).await
        });
        server.join().expect("no panic");
        answer.expect_err("no valid answer").to_string()
    }

    #[test]
    fn the_answer_of_a_node_has_a_longest_length() {
        let longest = answered_with(ANSWER_BYTES_MAX);
        assert!(longest.contains("unusable"), "it is read: {longest}");
        let longer = answered_with(ANSWER_BYTES_MAX + 1);
        assert!(longer.contains("length limit exceeded"), "{longer}");
    }
}
