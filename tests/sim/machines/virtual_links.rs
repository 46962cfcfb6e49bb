//! The links between the nodes and clients of a simulation, over the virtual network.
//!
//! The virtual network: it may lose, delay, duplicate and reorder messages, and may partition nodes
//! and clients, in one direction or both.
//!
//! The requests that clients send to a simulated node, and its replies.

use super::virtual_state_machine::VirtualStateMachine;
use crate::checks::recorder::CoveragePoint;
use crate::machines::virtual_environment::{SeededRandom, SimTypeConfig, sleep};
use crate::world::{Host, SimWorld};
use latchfs::engine::{Answer, Command, LockName, LockView};
use latchfs::raft::cluster_types::{
    ClusterTypes, PeerConnection, PeerTransport, RpcFailure, RpcRequest, RpcResponse,
};
use latchfs::raft::store::snapshot::{NodeId, Snapshot, Vote};
use latchfs::time::{Span, Time};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::TypeConfigExt;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

/// Waits for ever, as for a message that was lost.
async fn for_ever<T>() -> T {
    std::future::pending().await
}

impl SimWorld {
    /// Sends a request to a node and returns its reply. `None`: no reply came in time.
    pub fn request(
        self: &Arc<Self>,
        from: End,
        to: NodeId,
        request: NodeRequest,
        patience: Span,
    ) -> Pin<Box<dyn Future<Output = Option<NodeReply>> + Send>> {
        let world = Arc::clone(self);
        let whole = async move {
            if !world.net.pass(from, to).await {
                return for_ever().await;
            }
            let Some(host) = world.host(to) else { return NodeReply::Nobody };
            if let Some(later) = world.net.double() {
                let (host, request) = (Arc::clone(&host), request.clone());
                SimTypeConfig::spawn(async move {
                    sleep(later).await;
                    host.handle(request).await;
                });
            }
            let reply = Arc::clone(&host).handle(request).await;
            if !host.runs() || !world.net.pass(to, from).await {
                return for_ever().await;
            }
            reply
        };
        // The future is boxed, because its type would otherwise contain itself: the node that
        // handles the request may send a request to another node.
        Box::pin(async move { SimTypeConfig::timeout(patience.as_duration(), whole).await.ok() })
    }
}

/// The transport by which one run of a node sends requests to other nodes.
pub struct VirtualTransport {
    pub world: Arc<SimWorld>,
    pub from: NodeId,
    pub run: u64,
}

/// The factory of the links by which openraft reaches other nodes.
pub struct VirtualLinks(pub Arc<VirtualTransport>);

/// The link from one run of a node to another node.
pub struct VirtualLink {
    sender: Arc<VirtualTransport>,
    to: NodeId,
}

impl ClusterTypes for SimTypeConfig {
    type StateMachine = VirtualStateMachine;
    type Transport = VirtualTransport;
}

impl VirtualTransport {
    /// Whether the node still runs, in the same run as when this transport was made.
    fn runs(&self) -> bool {
        self.world.host(self.from).is_some_and(|host| host.run == self.run)
    }
}

impl PeerTransport for VirtualTransport {
    type Connection = VirtualLink;

    fn connection(self: &Arc<Self>, to: NodeId, _: &BasicNode) -> Option<VirtualLink> {
        Some(VirtualLink { sender: Arc::clone(self), to })
    }

    async fn is_refused(&self, to: NodeId, _: &BasicNode) -> bool {
        let net = &self.world.net;
        net.pass(self.from, to).await
            && self.world.host(to).is_none()
            && net.pass(to, self.from).await
    }
}

impl PeerConnection for VirtualLink {
    async fn call(&mut self, call: RpcRequest, patience: Span) -> Result<RpcResponse, RpcFailure> {
        if !self.sender.runs() {
            return Err(RpcFailure::Unsent("the sender has crashed".to_owned()));
        }
        let (world, from, to) = (Arc::clone(&self.sender.world), self.sender.from, self.to);
        let whole = async move {
            if !world.net.pass(from, to).await {
                return for_ever().await;
            }
            let Some(host) = world.host(to) else {
                return Err(RpcFailure::Unsent("no node runs there".to_owned()));
            };
            world.record.note(format_args!("{} {from} to {to}", call.name()));
            if let Some(later) = world.net.double() {
                let (host, call) = (Arc::clone(&host), call.clone());
                SimTypeConfig::spawn(async move {
                    sleep(later).await;
                    host.requests.answer(call).await
                });
            }
            let response = host.requests.answer(call).await;
            if !host.runs() || !world.net.pass(to, from).await {
                return for_ever().await;
            }
            match &response {
                Ok(RpcResponse::Forwarded(..)) => world.record.count(CoveragePoint::Forward),
                Ok(RpcResponse::Read(_)) => world.record.count(CoveragePoint::FollowerRead),
                _ => {}
            }
            response.map_err(RpcFailure::Turned)
        };
        let answer = SimTypeConfig::timeout(patience.as_duration(), whole).await;
        answer.unwrap_or_else(|_| Err(RpcFailure::Unheard("no answer in time".to_owned())))
    }
}

impl RaftNetworkFactory<SimTypeConfig> for VirtualLinks {
    type Network = VirtualLink;

    async fn new_client(&mut self, to: NodeId, _: &BasicNode) -> VirtualLink {
        VirtualLink { sender: Arc::clone(&self.0), to }
    }
}

impl VirtualLink {
    /// Sends a message to the node at the other end of the link, runs `act` there, and returns the
    /// result of `act` and the node.
    async fn carry<Q, R, F>(
        &self,
        what: RPCTypes,
        option: &RPCOption,
        message: Q,
        act: impl Fn(Arc<Host>, Q) -> F + Copy + Send + 'static,
    ) -> Result<(R, Arc<Host>), RPCError<SimTypeConfig>>
    where
        Q: Clone + Send + 'static,
        R: Send + 'static,
        F: Future<Output = Option<R>> + Send + 'static,
    {
        let gone = |why: &str| RPCError::Unreachable(Unreachable::new(&io::Error::other(why)));
        if !self.sender.runs() {
            return Err(gone("the sender has crashed"));
        }
        let (world, from, to) = (Arc::clone(&self.sender.world), self.sender.from, self.to);
        let whole = async move {
            if !world.net.pass(from, to).await {
                return for_ever().await;
            }
            let Some(host) = world.host(to) else { return Err(gone("nobody is there")) };
            world.record.note(format_args!("{what} {from} to {to}"));
            if let Some(later) = world.net.double() {
                let (host, message) = (Arc::clone(&host), message.clone());
                SimTypeConfig::spawn(async move {
                    sleep(later).await;
                    act(host, message).await;
                });
            }
            let done = act(Arc::clone(&host), message).await;
            let Some(done) = done.filter(|_| host.runs()) else { return Err(gone("it stopped")) };
            if !world.net.pass(to, from).await {
                return for_ever().await;
            }
            Ok((done, host))
        };
        let patience = option.hard_ttl();
        match SimTypeConfig::timeout(patience, whole).await {
            Ok(done) => done,
            Err(_) => Err(RPCError::Timeout(Timeout {
                action: what,
                id: from,
                target: to,
                timeout: patience,
            })),
        }
    }
}

impl RaftNetworkV2<SimTypeConfig> for VirtualLink {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<SimTypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<SimTypeConfig>, RPCError<SimTypeConfig>> {
        let act =
            |host: Arc<Host>, rpc| async move { host.requests.append_entries(rpc).await.ok() };
        Ok(self.carry(RPCTypes::AppendEntries, &option, rpc, act).await?.0)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<SimTypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimTypeConfig>, RPCError<SimTypeConfig>> {
        let vote = rpc.vote;
        let record = Arc::clone(&self.sender.world.record);
        let act = |host: Arc<Host>, rpc| async move { host.requests.raft.vote(rpc).await.ok() };
        let (done, host) = self.carry(RPCTypes::Vote, &option, rpc, act).await?;
        if done.vote_granted {
            record.voted(host.id, vote);
        }
        Ok(done)
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<SimTypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimTypeConfig>, RPCError<SimTypeConfig>> {
        let act = |host: Arc<Host>, rpc| async move { host.requests.raft.pre_vote(rpc).await.ok() };
        Ok(self.carry(RPCTypes::Vote, &option, rpc, act).await?.0)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<SimTypeConfig>, StreamingError<SimTypeConfig>> {
        let act = |host: Arc<Host>, (vote, snapshot)| async move {
            host.requests.raft.install_full_snapshot(vote, snapshot).await.ok()
        };
        let sent = self.carry(RPCTypes::InstallSnapshot, &option, (vote, snapshot), act);
        tokio::select! {
            biased;
            sent = sent => match sent {
                Ok((done, _)) => Ok(done),
                Err(RPCError::Timeout(late)) => Err(StreamingError::Timeout(late)),
                Err(error) => Err(StreamingError::Network(NetworkError::new(&error))),
            },
            closed = cancel => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<SimTypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<SimTypeConfig>, RPCError<SimTypeConfig>> {
        let act = |host: Arc<Host>, rpc| async move {
            host.requests.raft.handle_transfer_leader(rpc).await.ok()
        };
        Ok(self.carry(RPCTypes::TransferLeader, &option, rpc, act).await?.0)
    }
}

/// The address of a node (its id) or of a client (a higher number).
pub type End = u64;

/// How often the network loses or duplicates a message, and how long it may delay one.
#[derive(Debug, Clone, Copy)]
pub struct NetworkFaults {
    /// The percentage of messages that are lost.
    pub loss: u64,
    /// The percentage of messages that arrive twice.
    pub doubled: u64,
    /// The longest delay of a message, in milliseconds.
    pub late_ms: u64,
}

impl NetworkFaults {
    /// The faults of a network in normal operation.
    pub const FAIR: Self = Self { loss: 2, doubled: 2, late_ms: 3 };

    /// The faults after the final repair: a message may be late or duplicated, and none is lost.
    pub const MENDED: Self = Self { loss: 0, ..Self::FAIR };
}

/// The virtual network between nodes and clients.
pub struct VirtualNetwork {
    state: Mutex<NetworkState>,
    dice: SeededRandom,
}

struct NetworkState {
    weather: NetworkFaults,
    /// Pairs of sender and receiver between which no message arrives.
    cut: BTreeSet<(End, End)>,
}

impl VirtualNetwork {
    pub fn new(dice: &SeededRandom) -> Self {
        let state = NetworkState { weather: NetworkFaults::FAIR, cut: BTreeSet::new() };
        Self { state: Mutex::new(state), dice: dice.clone() }
    }

    pub fn set_weather(&self, weather: NetworkFaults) {
        self.state.lock().weather = weather;
    }

    /// Drops all messages from now on between these pairs of sender and receiver.
    pub fn cut(&self, pairs: impl IntoIterator<Item = (End, End)>) {
        self.state.lock().cut.extend(pairs);
    }

    /// Removes all partitions, and replaces the probabilities of lost, late and duplicated
    /// messages.
    pub fn mend(&self, weather: NetworkFaults) {
        let mut state = self.state.lock();
        state.weather = weather;
        state.cut.clear();
    }

    /// Waits until a message has arrived. Returns `false` if the message is lost.
    pub async fn pass(&self, from: End, to: End) -> bool {
        let delay = {
            let state = self.state.lock();
            if state.cut.contains(&(from, to)) || self.dice.percent(state.weather.loss) {
                None
            } else {
                Some(self.dice.millis(0, state.weather.late_ms))
            }
        };
        let Some(delay) = delay else { return false };
        sleep(delay).await;
        true
    }

    /// Returns the delay of a duplicate, if this message is duplicated.
    pub fn double(&self) -> Option<Span> {
        let NetworkFaults { doubled, late_ms, .. } = self.state.lock().weather;
        self.dice.percent(doubled).then(|| self.dice.millis(0, 20 * late_ms))
    }
}

/// A request of a client. Any node accepts it.
#[derive(Debug, Clone)]
pub enum NodeRequest {
    /// Applies a command.
    Submit(Box<Command>),
    /// Reads a lock.
    View(LockName),
}

/// The reply of a node.
#[derive(Debug, Clone)]
pub enum NodeReply {
    /// The command has been applied.
    Answered(Answer),
    /// The state of the lock, and the engine time at a moment after the request.
    Seen(Box<LockView>, Time),
    /// The node has no answer. The command may have committed, or may still commit.
    Unavailable,
    /// The addressed node is not running.
    Nobody,
}
