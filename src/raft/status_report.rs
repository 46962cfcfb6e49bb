//! Builds status reports: the status of this node, and of the whole cluster by calls to the other
//! nodes.

use super::elections::ElectionCounter;
use super::fsync_latency::FsyncLatency;
use super::leadership::{Metrics, metrics};
use super::linearizable_read::LinearizableReader;
use super::log::LogStore;
use super::membership::{heard, voters};
use super::node_address::NodeAddress;
use super::replica::Replica;
use super::rpc::messages::{RpcRequest, RpcResponse};
use super::rpc::rpc_client::RpcIdentity;
use super::state_machine::Raft;
use super::types::{ClusterId, LogId, NodeId, TypeConfig};
use crate::engine::codec;
use crate::service::cluster_status::{
    Behind, ClusterReport, Member, MemberStatus, Outlook, Standing,
};
use crate::time::Span;
use openraft::ServerState;
use std::sync::Arc;

/// How long a node may take to answer before the report shows it as unreachable.
const STATUS_PATIENCE: Span = Span::from_secs(1);

/// Measurements of a node, for status reports and metrics.
#[derive(Clone)]
pub(super) struct Gauges {
    /// The fsync latency of the log.
    pub(super) syncs: Arc<FsyncLatency>,
    /// The elections that the node has seen.
    pub(super) elections: Arc<ElectionCounter>,
}

impl Gauges {
    /// Returns the measurements of the node that uses this log.
    pub(super) fn of(log: &LogStore) -> Self {
        let elections = Arc::new(ElectionCounter::since(log.vote().as_ref()));
        Self { syncs: Arc::clone(&log.syncs), elections }
    }
}

/// Reports the status of this node and of the cluster.
pub(super) struct Reporter {
    pub(super) cluster: ClusterId,
    pub(super) raft: Raft,
    pub(super) replica: Arc<Replica>,
    pub(super) gauges: Gauges,
    pub(super) caller: Option<Arc<RpcIdentity>>,
    pub(super) reader: Arc<LinearizableReader<TypeConfig>>,
}

impl Reporter {
    /// Returns the leader, unless this node has lost the contact with a majority: openraft then
    /// goes on to name the last one.
    fn leader(&self, metrics: &Metrics) -> Option<NodeId> {
        metrics.current_leader.filter(|_| !self.reader.is_lost())
    }

    /// Returns the status of this node; `with_state` adds a checksum of its state.
    pub(super) fn own(&self, with_state: bool) -> Member {
        let metrics = metrics::<TypeConfig>(&self.raft);
        let mut member = known(&metrics, metrics.id);
        member.standing = match (metrics.state, member.standing) {
            (ServerState::Leader, _) => Standing::Leader,
            (ServerState::Candidate, _) => Standing::Candidate,
            (_, standing) => standing,
        };
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        member.term = metrics.current_term;
        member.leader = self.leader(&metrics);
        member.last_log = metrics.last_log_index.unwrap_or_default();
        member.committed = index(metrics.local_committed);
        member.applied = index(metrics.last_applied);
        member.snapshot = index(metrics.snapshot);
        member.heard_ms = Some(0);
        member.syncing = self.gauges.syncs.recent();
        if with_state {
            let core = self.replica.look();
            let sum = crc32fast::hash(&codec::encode_engine(core.cluster_version, &core.engine));
            member.applied = index(core.meta().last_log_id);
            drop(core);
            member.state = Some(format!("{}:{sum:08x}", member.applied).into());
        }
        member
    }

    /// Returns the status of all members, requested from each of them.
    pub(super) async fn report(&self, with_state: bool) -> ClusterReport {
        let metrics = metrics::<TypeConfig>(&self.raft);
        let members: Vec<_> = metrics.membership_config.nodes().map(|(id, _)| *id).collect();
        let mut asked = Vec::new();
        for id in members {
            asked.push(self.ask(known(&metrics, id), id == metrics.id, with_state));
        }
        let mut nodes = futures_util::future::join_all(asked).await;
        let known_leader = self.leader(&metrics);
        let leads = |node: &&MemberStatus| Some(node.member.id) == known_leader;
        let leader = nodes.iter().find(leads).filter(|leader| leader.trouble.is_none());
        if let Some(last) = leader.map(|leader| leader.member.last_log) {
            for node in &mut nodes {
                let own = Some(node.member.last_log).filter(|own| *own > 0);
                node.lag = own.map(|own| last.saturating_sub(own));
            }
        }
        let (cluster, elections) = (self.cluster.to_string(), self.gauges.elections.seen());
        ClusterReport { cluster, asked: metrics.id, leader: known_leader, elections, nodes }
    }

    /// Returns this node's view of the cluster, without calls to other nodes.
    pub(super) fn outlook(&self) -> Outlook {
        let metrics = metrics::<TypeConfig>(&self.raft);
        let nodes: Vec<_> = metrics.membership_config.nodes().map(|(id, _)| *id).collect();
        let voters = voters(&metrics).len();
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let last = metrics.last_log_index.unwrap_or_default();
        let other = |id: &NodeId| Behind {
            id: *id,
            entries: matched(&metrics, *id).map(|matched| last.saturating_sub(matched)),
            heard: heard(&metrics, *id).map(Span::from),
        };
        // A follower does not know how far other nodes have got, so it reports only its own lag.
        let own = || {
            let decided = index(metrics.cluster_committed);
            let entries = Some(decided.saturating_sub(index(metrics.last_applied)));
            Behind { id: metrics.id, entries, heard: None }
        };
        let behind = if metrics.replication.is_some() {
            nodes.iter().filter(|id| **id != metrics.id).map(other).collect()
        } else {
            vec![own()]
        };
        let elections = self.gauges.elections.seen();
        let learners = nodes.len().saturating_sub(voters);
        let cluster_version = self.replica.version.get();
        Outlook { voters, learners, elections, behind, cluster_version }
    }

    async fn ask(&self, known: Member, is_own: bool, with_state: bool) -> MemberStatus {
        if is_own {
            return MemberStatus { member: self.own(with_state), trouble: None, lag: None };
        }
        let silent = |trouble: String| MemberStatus {
            member: known.clone(),
            trouble: Some(trouble),
            lag: None,
        };
        let Some(caller) = &self.caller else {
            return silent("this node has no --peer-listen".to_owned());
        };
        let mut line = caller.line(known.id, &known.address);
        match line.call(RpcRequest::Status(with_state), STATUS_PATIENCE).await {
            Ok(RpcResponse::Status(said)) => {
                let heard_ms = known.heard_ms;
                MemberStatus { member: Member { heard_ms, ..said }, trouble: None, lag: None }
            }
            Ok(_) => silent("it sent an unexpected answer".to_owned()),
            Err(trouble) => silent(trouble.to_string()),
        }
    }
}

/// Returns the index up to which the log of the node `id` is known to match the leader's log.
/// `None` if this node does not lead, or does not know.
fn matched(metrics: &Metrics, id: NodeId) -> Option<u64> {
    metrics.replication.as_ref()?.get(&id)?.map(|matched| matched.index)
}

/// Returns what this node knows of the status of the node `id`, without a call to that node.
fn known(metrics: &Metrics, id: NodeId) -> Member {
    let node = metrics.membership_config.get_node(&id);
    let station = node.and_then(NodeAddress::of);
    let part = |part: fn(&NodeAddress) -> &Arc<str>| {
        station.as_ref().map_or_else(|| "".into(), |station| Arc::clone(part(station)))
    };
    let standing = match node {
        None => Standing::Stranger,
        Some(_) if voters(metrics).contains(&id) => Standing::Voter,
        Some(_) => Standing::Learner,
    };
    Member {
        id,
        name: part(|station| &station.name),
        address: part(|station| &station.address),
        url: part(|station| &station.url),
        standing,
        term: 0,
        leader: None,
        last_log: matched(metrics, id).unwrap_or_default(),
        committed: 0,
        applied: 0,
        snapshot: 0,
        state: None,
        syncing: None,
        heard_ms: heard(metrics, id).map(|ago| ago.as_millis() as u64),
    }
}
