//! The virtual network: what is sent may be lost, late, doubled and overtaken, and some ends may
//! not reach others, in one direction or both.

use super::seeded_random::SeededRandom;
use super::sim_types::{Raft, SimTypeConfig, sleep};
use super::virtual_node::{Host, NodeReply, NodeRequest};
use super::world::World;
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
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

/// An end: a node by its number, a client by a higher one.
pub(super) type End = u64;

/// What the network does to what is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkFaults {
    /// Lost, of a hundred.
    pub(super) loss: u64,
    /// Doubled, of a hundred.
    pub(super) doubled: u64,
    /// On its way for up to so many milliseconds.
    pub(super) late_ms: u64,
}

impl NetworkFaults {
    /// As on a good day.
    pub(super) const FAIR: Self = Self { loss: 2, doubled: 2, late_ms: 3 };

    /// When all is mended: a message may be late or doubled, and none is lost.
    pub(super) const MENDED: Self = Self { loss: 0, ..Self::FAIR };
}

/// The network.
pub(super) struct Net {
    state: Mutex<NetworkState>,
    dice: SeededRandom,
}

struct NetworkState {
    weather: NetworkFaults,
    /// Who does not reach whom.
    cut: BTreeSet<(End, End)>,
}

impl Net {
    pub(super) fn new(dice: &SeededRandom) -> Self {
        let state = NetworkState { weather: NetworkFaults::FAIR, cut: BTreeSet::new() };
        Self { state: Mutex::new(state), dice: dice.clone() }
    }

    pub(super) fn set_weather(&self, weather: NetworkFaults) {
        self.state.lock().weather = weather;
    }

    /// From now on these do not reach those.
    pub(super) fn cut(&self, pairs: impl IntoIterator<Item = (End, End)>) {
        self.state.lock().cut.extend(pairs);
    }

    /// Everybody reaches everybody, in this weather.
    pub(super) fn mend(&self, weather: NetworkFaults) {
        let mut state = self.state.lock();
        state.weather = weather;
        state.cut.clear();
    }

    /// Returns when a message has arrived: `false` if it never does.
    async fn pass(&self, from: End, to: End) -> bool {
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

    /// If this message is doubled: how much later the second one comes.
    fn double(&self) -> Option<Span> {
        let NetworkFaults { doubled, late_ms, .. } = self.state.lock().weather;
        self.dice.percent(doubled).then(|| self.dice.millis(0, 20 * late_ms))
    }
}

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
pub(super) struct Links {
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

impl RaftNetworkFactory<SimTypeConfig> for Links {
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

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::type_config::AsyncRuntime;
    use openraft_rt_sim::SimRuntime;

    #[test]
    fn a_network_that_is_mended_loses_nothing() {
        let lost = |weather| {
            SimRuntime::with_seed(1).block_on(async move {
                let net = Net::new(&SeededRandom::new(1));
                net.cut([(1, 2)]);
                net.mend(weather);
                let mut lost = 0;
                for _ in 0..1_000 {
                    lost += u64::from(!net.pass(1, 2).await);
                }
                lost
            })
        };
        assert_eq!(lost(NetworkFaults::MENDED), 0);
        assert!(lost(NetworkFaults::FAIR) > 0);
    }
}
