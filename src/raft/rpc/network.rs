//! Implements openraft's network traits: links to other nodes that carry heartbeats, log entries,
//! votes and snapshots. openraft opens one link per purpose and node.
//!
//! The RPC client: a persistent connection to one node, which is reopened when it is lost.

use super::messages::{
    ANYBODY, Envelope, RpcError, RpcRequest, RpcResponse, decode_answer, encode_envelope,
};
use super::mutual_tls::PeerTls;
use crate::net::connections::{HttpSender, dial, encrypt, start_http, with_causes};
use crate::raft::node_environment::{
    ClusterName, ClusterVersion, NodeAddress, host_and_port, refusal,
};
use crate::raft::rpc::accept::BYTES_A_SECOND_MIN;
use crate::raft::rpc::mutual_tls::{named_in, put_name};
use crate::raft::rpc::peer_config::PeerContacts;
use crate::raft::store::snapshot::{ClusterId, NodeId, Snapshot, TypeConfig, Vote};
use crate::raft::write::proposal_queue::fitting;
use crate::raft::write::state_machine::Replica;
use crate::time::{Span, steady_now};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io};
use tokio::time::timeout;

/// Timeout of a call that writes little or nothing to a disk. It is short, since a connection that
/// was opened before a partition may stay silent long after the partition has ended.
const CALL_PATIENCE: Span = Span::from_millis(500);
/// The timeout of a call grows by a second per this many bytes, for slow disks and networks. After
/// a call that took too long, half as many bytes are expected in a second, down to the minimum.
const BYTES_A_SECOND: u64 = 4 << 20;
/// The timeout of a call with a snapshot, which the receiver writes to its disk and decodes.
const SNAPSHOT_PATIENCE: Span = Span::from_secs(5);
/// The size that the timeout of a call assumes for each entry, if the entries weigh less. It counts
/// at the full speed of [`BYTES_A_SECOND`], however slow the link is.
const ENTRY_BYTES: u64 = 16 << 10;

/// Makes links to other nodes. A lone node has no `caller`, so its links are unreachable.
pub(in crate::raft) struct Network {
    pub(in crate::raft) caller: Option<Arc<RpcIdentity>>,
    pub(in crate::raft) replica: Arc<Replica>,
    /// Set when a leader reports that this node is no longer a member.
    pub(in crate::raft) removed: Arc<AtomicBool>,
}

/// A link to one node.
pub(in crate::raft) struct PeerLink {
    line: Option<RpcConnection>,
    to: NodeId,
    caller: Option<Arc<RpcIdentity>>,
    replica: Arc<Replica>,
    removed: Arc<AtomicBool>,
    /// The address that the node had when the link was made. It is used if the membership has no
    /// address of the node.
    known: Option<NodeAddress>,
    speed: LinkSpeed,
}

/// How many bytes the calls of a link are expected to carry in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LinkSpeed(u64);

/// The size of a call, because of which it may take longer than others.
#[derive(Debug, Clone, Copy, Default)]
struct CallSize {
    bytes: u64,
    entries: u64,
}

impl LinkSpeed {
    /// Returns how much longer a call may take because of its size.
    fn patience(self, size: CallSize) -> Span {
        let entries = Self(BYTES_A_SECOND).time_of(size.entries.saturating_mul(ENTRY_BYTES));
        self.time_of(size.bytes).max(entries)
    }

    fn time_of(self, bytes: u64) -> Span {
        Span::from_millis(bytes.saturating_mul(1_000) / self.0)
    }

    /// Expects half the speed, after a call of `bytes` bytes has got no answer for `took`, or a
    /// higher one, after it has got one. A call that could not be sent changes nothing.
    fn learn<T>(&mut self, bytes: u64, took: Span, response: &Result<T, RpcFailure>) {
        match response {
            // A short call that is lost says nothing about the speed of the link.
            Err(RpcFailure::Unheard(_)) if bytes > 0 && took >= self.time_of(bytes) => {
                self.0 = (self.0 / 2).max(BYTES_A_SECOND_MIN);
            }
            Ok(_) | Err(RpcFailure::Turned(_)) if Self(self.0 * 2).time_of(bytes) > took + took => {
                self.0 = (self.0 * 2).min(BYTES_A_SECOND);
            }
            _ => {}
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerLink;

    async fn new_client(&mut self, to: NodeId, node: &BasicNode) -> PeerLink {
        PeerLink {
            line: None,
            to,
            caller: self.caller.clone(),
            replica: Arc::clone(&self.replica),
            removed: Arc::clone(&self.removed),
            known: NodeAddress::of(node),
            speed: LinkSpeed(BYTES_A_SECOND),
        }
    }
}

impl PeerLink {
    /// Sends a call. Waits for its answer for `patience`, and longer by the time that its size is
    /// expected to take.
    async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
        size: CallSize,
    ) -> Result<RpcResponse, RPCError<TypeConfig>> {
        let unreachable = |why: &str| RPCError::from(Unreachable::from_string(why));
        let Some(caller) = &self.caller else { return Err(unreachable("this node is alone")) };
        let at = self.replica.state().members().get_node(&self.to).and_then(NodeAddress::of);
        let Some(at) = at.or_else(|| self.known.clone()) else {
            return Err(unreachable("its address is unknown"));
        };
        if self.line.as_ref().is_none_or(|line| line.address != at.address) {
            self.line = Some(caller.line(self.to, &at.address));
        }
        let line = self.line.as_mut().expect("just made");
        let sent = steady_now();
        let response = line.call(call, patience + self.speed.patience(size)).await;
        self.speed.learn(size.bytes, steady_now().since(sent), &response);
        response.map_err(|failure| {
            if matches!(failure, RpcFailure::Turned(RpcError::Removed)) {
                self.removed.store(true, Ordering::Relaxed);
            }
            log::debug!("node {}: {failure}", self.to);
            match failure {
                RpcFailure::Unheard(_) => NetworkError::from_string(failure).into(),
                RpcFailure::Unsent(_) | RpcFailure::Turned(_) => {
                    Unreachable::from_string(failure).into()
                }
            }
        })
    }
}

fn foreign() -> RPCError<TypeConfig> {
    Unreachable::from_string("it sent an unexpected answer").into()
}

impl RaftNetworkV2<TypeConfig> for PeerLink {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        mut ask: AppendEntriesRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        // A call carries only the entries that fit, since the receiver refuses larger calls;
        // openraft sends the remaining entries later.
        let (count, weight) = fitting(&ask.entries);
        let is_whole = count == ask.entries.len();
        ask.entries.truncate(count);
        let sent = ask.entries.last().map(|entry| entry.log_id);
        let size = CallSize { bytes: weight as u64, entries: count as u64 };
        match self.call(RpcRequest::Append(ask), CALL_PATIENCE, size).await? {
            RpcResponse::Append(AppendEntriesResponse::Success) if !is_whole => {
                Ok(AppendEntriesResponse::PartialSuccess(sent))
            }
            RpcResponse::Append(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn vote(
        &mut self,
        ask: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::Vote(ask), CALL_PATIENCE, CallSize::default()).await? {
            RpcResponse::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn pre_vote(
        &mut self,
        ask: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::PreVote(ask), CALL_PATIENCE, CallSize::default()).await? {
            RpcResponse::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let size = CallSize { bytes: snapshot.snapshot.len() as u64, entries: 0 };
        let call = self.call(RpcRequest::Snapshot(vote, snapshot), SNAPSHOT_PATIENCE, size);
        let response = tokio::select! {
            response = call => response?,
            closed = cancel => return Err(closed.into()),
        };
        match response {
            RpcResponse::Snapshot(vote) => Ok(SnapshotResponse::new(vote)),
            _ => Err(foreign().into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        ask: TransferLeaderRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::Transfer(ask), CALL_PATIENCE, CallSize::default()).await? {
            RpcResponse::Transfer(said) => Ok(said),
            _ => Err(foreign()),
        }
    }
}

/// The highest length of one answer in bytes: enough for the answers to 512 commands, each of which
/// may be a long refusal.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The identity of the calling node.
#[derive(Clone)]
pub struct RpcIdentity {
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
pub struct RpcConnection {
    caller: Arc<RpcIdentity>,
    to: NodeId,
    pub(in crate::raft) address: Arc<str>,
    sender: Option<HttpSender>,
}

/// The error of a call to another node.
#[derive(Debug, Clone)]
pub enum RpcFailure {
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
        let envelope = Envelope { version, cluster, from: node, to: self.to, call };
        let body = Bytes::from(encode_envelope(&envelope));
        drop(envelope);
        let mut sent = SendOutcome::No;
        let asked = timeout(patience.as_duration(), self.exchange(&path, body, &mut sent)).await;
        let answer = asked.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        if self.to != ANYBODY && node != ANYBODY {
            self.caller.contacts.called(self.to, answer.as_ref().err().map(String::as_str));
        }
        match (answer, sent) {
            (Ok((bytes, named)), _) => match decode_answer(&bytes) {
                Ok(Ok(response)) => match self.strange(named.as_ref()) {
                    None => Ok(response),
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
        let bytes = whole_body.map_err(|error| with_causes(&*error))?.to_bytes();
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

    fn no_answer() -> Result<(), RpcFailure> {
        Err(RpcFailure::Unheard("no answer in time".into()))
    }

    /// A link of any speed above the minimum carries the longest call after a few attempts, and a
    /// link that becomes faster is soon expected to be fast.
    #[test]
    fn the_timeout_of_a_call_follows_the_speed_of_the_link() {
        let bytes = 4 << 20;
        for real in [8 << 20, 4 << 20, 1 << 20, 100_000, BYTES_A_SECOND_MIN] {
            let (mut speed, took) = (LinkSpeed(BYTES_A_SECOND), LinkSpeed(real).time_of(bytes));
            let mut attempts = 1;
            while took > speed.time_of(bytes) + CALL_PATIENCE {
                speed.learn(bytes, speed.time_of(bytes) + CALL_PATIENCE, &no_answer());
                attempts += 1;
            }
            assert!(attempts <= 10, "{attempts} attempts at {real} bytes a second");
            // The next call is not given less time than this one needed.
            speed.learn(bytes, took, &Ok(()));
            assert!(took <= speed.time_of(bytes) + CALL_PATIENCE, "{speed:?} for {real}");
        }
        let mut speed = LinkSpeed(BYTES_A_SECOND_MIN);
        for _ in 0..8 {
            speed.learn(bytes, Span::from_millis(10), &Ok(()));
        }
        assert_eq!(speed, LinkSpeed(BYTES_A_SECOND));
        // A lost heartbeat changes nothing.
        speed.learn(0, CALL_PATIENCE, &no_answer());
        assert_eq!(speed, LinkSpeed(BYTES_A_SECOND));
    }

    /// A call with many small entries to a node that is down ends within 2.5 s, also if the
    /// link was slow before; and a connection that is refused says nothing about the speed.
    #[test]
    fn many_small_entries_have_a_short_timeout_at_every_speed() {
        let size = CallSize { bytes: 300 * 100, entries: 300 };
        for speed in [BYTES_A_SECOND, BYTES_A_SECOND_MIN] {
            let patience = CALL_PATIENCE + LinkSpeed(speed).patience(size);
            assert!(patience <= Span::from_millis(2_500), "{patience:?} at {speed}");
        }
        let full = LinkSpeed(BYTES_A_SECOND).patience(size);
        assert_eq!(full, Span::from_millis(300 * ENTRY_BYTES * 1_000 / BYTES_A_SECOND));
        for start in [BYTES_A_SECOND, BYTES_A_SECOND_MIN] {
            let mut speed = LinkSpeed(start);
            for took in [Span::ZERO, Span::from_secs(9)] {
                speed.learn::<()>(size.bytes, took, &Err(RpcFailure::Unsent("refused".into())));
            }
            assert_eq!(speed, LinkSpeed(start));
        }
    }
}

#[cfg(test)]
mod rpc_client_tests {
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
