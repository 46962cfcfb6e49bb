//! The links between the nodes and clients of a simulation, over the virtual network.

use super::node_messages::{NodeReply, NodeRequest};
use super::sim_types::{SimTypeConfig, sleep};
use super::virtual_network::End;
use super::virtual_state_machine::Raft;
use super::world::{Host, World};
use crate::raft::types::{NodeId, Snapshot, Vote};
use crate::time::Span;
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
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

/// Waits for what never comes.
async fn for_ever<T>() -> T {
    std::future::pending().await
}

impl World {
    /// Asks a node something. `None`: no answer came in time.
    pub(super) fn ask(
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
        // Boxed, since the node that is asked may ask another one.
        Box::pin(async move { SimTypeConfig::timeout(patience.as_duration(), whole).await.ok() })
    }
}

/// Makes the links of one run of a node.
pub(super) struct VirtualLinks {
    pub(super) world: Arc<World>,
    pub(super) from: NodeId,
    pub(super) run: u64,
}

/// The link from one run of a node to another node.
pub(super) struct VirtualLink {
    world: Arc<World>,
    from: NodeId,
    run: u64,
    to: NodeId,
}

impl RaftNetworkFactory<SimTypeConfig> for VirtualLinks {
    type Network = VirtualLink;

    async fn new_client(&mut self, to: NodeId, _: &BasicNode) -> VirtualLink {
        let Self { world, from, run } = self;
        VirtualLink { world: Arc::clone(world), from: *from, run: *run, to }
    }
}

impl VirtualLink {
    /// Has a message carried to the other node, `act` done there, and the answer carried back.
    async fn carry<Q, R, F>(
        &self,
        what: RPCTypes,
        option: &RPCOption,
        message: Q,
        act: impl Fn(Raft, Q) -> F + Copy + Send + 'static,
    ) -> Result<(R, Arc<Host>), RPCError<SimTypeConfig>>
    where
        Q: Clone + Send + 'static,
        R: Send + 'static,
        F: Future<Output = Option<R>> + Send + 'static,
    {
        let gone = |why: &str| RPCError::Unreachable(Unreachable::new(&io::Error::other(why)));
        if self.world.host(self.from).is_none_or(|host| host.run != self.run) {
            return Err(gone("the sender has crashed"));
        }
        let (world, from, to) = (Arc::clone(&self.world), self.from, self.to);
        let whole = async move {
            if !world.net.pass(from, to).await {
                return for_ever().await;
            }
            let Some(host) = world.host(to) else { return Err(gone("nobody is there")) };
            world.record.note(format_args!("{what} {from} to {to}"));
            if let Some(later) = world.net.double() {
                let (raft, message) = (host.raft.clone(), message.clone());
                SimTypeConfig::spawn(async move {
                    sleep(later).await;
                    act(raft, message).await;
                });
            }
            let done = act(host.raft.clone(), message).await;
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
        let act = |raft: Raft, rpc| async move { raft.append_entries(rpc).await.ok() };
        Ok(self.carry(RPCTypes::AppendEntries, &option, rpc, act).await?.0)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<SimTypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<SimTypeConfig>, RPCError<SimTypeConfig>> {
        let vote = rpc.vote;
        let record = Arc::clone(&self.world.record);
        let act = |raft: Raft, rpc| async move { raft.vote(rpc).await.ok() };
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
        let act = |raft: Raft, rpc| async move { raft.pre_vote(rpc).await.ok() };
        Ok(self.carry(RPCTypes::Vote, &option, rpc, act).await?.0)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<SimTypeConfig>, StreamingError<SimTypeConfig>> {
        let act = |raft: Raft, (vote, snapshot)| async move {
            raft.install_full_snapshot(vote, snapshot).await.ok()
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
        let act = |raft: Raft, rpc| async move { raft.handle_transfer_leader(rpc).await.ok() };
        Ok(self.carry(RPCTypes::TransferLeader, &option, rpc, act).await?.0)
    }
}
