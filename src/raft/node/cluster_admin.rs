//! Cluster administration for the front ends: status reports and membership changes. Front ends
//! request them on threads of their own, and the node carries them out on its async runtime.
//!
//! Log lines about the cluster, as one node sees it: its leader, its members, and the contact with
//! a majority.
//!
//! Builds status reports: the status of this node, and of the whole cluster by calls to the other
//! nodes.

use super::membership::{last_heard, voters};
use crate::base::jittered;
use crate::engine::codec::state_codec;
use crate::raft::leadership::{ElectionCounter, Metrics, metrics};
use crate::raft::linearizable_read::LinearizableReader;
use crate::raft::node::start::RunningNode;
use crate::raft::node_environment::NodeAddress;
use crate::raft::rpc::messages::{RpcError, RpcRequest, RpcResponse};
use crate::raft::rpc::network::{RpcFailure, RpcIdentity};
use crate::raft::rpc::peer_config::PeerContacts;
use crate::raft::store::log::{FsyncLatency, LogStore};
use crate::raft::store::snapshot::{ClusterId, LogId, NodeId, TypeConfig};
use crate::raft::write::state_machine::{Raft, Replica};
use crate::service::backend_status::{
    Behind, ClusterAdmin, ClusterChange, ClusterReport, Member, MemberStatus, Outlook,
    PendingRequest, PendingStage, Standing, Unchanged,
};
use crate::service::{Call, Unavailable};
use crate::time::{Span, steady_now};
use openraft::ServerState;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::sleep;

/// How long a membership change may take: the leader may have to send a snapshot to a learner.
const CHANGE_PATIENCE: Span = Span::from_secs(60);
/// How long a membership change waits for a leader.
const LEADER_PATIENCE: Span = Span::from_secs(5);
/// The pause between two attempts to make a membership change, before jitter.
const PAUSE: Span = Span::from_millis(50);

/// Implements [`ClusterAdmin`] on a running node.
pub(in crate::raft) struct RaftClusterAdmin(pub(super) RunningNode);

impl ClusterAdmin for RaftClusterAdmin {
    fn report(&self, with_state: bool) -> Call<ClusterReport> {
        let reporter = Arc::clone(&self.0.reporter);
        self.begin(async move { reporter.report(with_state).await })
    }

    fn change(&self, change: ClusterChange) -> Call<Result<(), Unchanged>> {
        let node = self.0.clone();
        self.begin(async move { node.change(change).await })
    }

    fn pending(&self, max: usize) -> Vec<PendingRequest> {
        let leads = self.0.reporter.own(false).standing == Standing::Leader;
        let stage = if leads { PendingStage::Replicating } else { PendingStage::Forwarded };
        self.0.requests.queue.pending(max, stage)
    }

    fn own(&self) -> Member {
        self.0.reporter.own(false)
    }

    fn outlook(&self) -> Outlook {
        self.0.reporter.outlook()
    }
}

impl RaftClusterAdmin {
    /// Carries out `work` on the threads of the node.
    fn begin<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Call<T> {
        let (replier, call) = Call::expected();
        self.0.runtime.spawn(async move { replier.keep(Ok(work.await)) });
        call
    }
}

impl RunningNode {
    /// Makes a change of the membership or the leadership: on this node if it leads, else by a call
    /// to the leader. Retries while no leader is known.
    async fn change(&self, change: ClusterChange) -> Result<(), Unchanged> {
        let until = steady_now() + LEADER_PATIENCE;
        loop {
            let unknown = || {
                let why = "whether it was changed is not known yet".into();
                Unchanged::Unavailable(Unavailable::NoQuorum { why })
            };
            let outcome = match self.members.change(change).await {
                Err(RpcError::NotLeader(_)) => self.send_on(change).await,
                here => here.map_err(RpcFailure::Turned),
            };
            let why = match outcome {
                Ok(()) => return Ok(()),
                Err(RpcFailure::Turned(RpcError::Refused(why))) => {
                    return Err(Unchanged::Refused(why.to_string()));
                }
                Err(RpcFailure::Turned(RpcError::Unknown) | RpcFailure::Unheard(_)) => {
                    return Err(unknown());
                }
                Err(error) => error.to_string(),
            };
            if steady_now() >= until {
                let why = why.into();
                return Err(Unchanged::Unavailable(Unavailable::NoQuorum { why }));
            }
            sleep(jittered(PAUSE).as_duration()).await;
        }
    }

    async fn send_on(&self, change: ClusterChange) -> Result<(), RpcFailure> {
        let response =
            self.leader.lock().await.call(RpcRequest::Change(change), CHANGE_PATIENCE).await;
        match response? {
            RpcResponse::Done => Ok(()),
            _ => Err(RpcFailure::Unheard("it sent an unexpected answer".to_owned())),
        }
    }
}

/// The members of a cluster, and whether each votes.
type Membership = BTreeMap<NodeId, bool>;

/// Logs the changes of the cluster since this node has been a member.
#[derive(Debug, Default)]
pub(in crate::raft) struct ClusterLog {
    members: Option<Membership>,
    leader: Option<NodeId>,
    is_lost: bool,
}

impl ClusterLog {
    /// Logs what has changed. `is_lost` is whether this node has lost the contact with a majority.
    pub(in crate::raft) fn see(
        &mut self,
        metrics: &Metrics,
        is_lost: bool,
        contacts: &PeerContacts,
    ) {
        let config = &metrics.committed_membership_config;
        let votes = |id: &NodeId| config.voter_ids().any(|voter| voter == *id);
        let members: Membership = config.nodes().map(|(id, _)| (*id, votes(id))).collect();
        if members.contains_key(&metrics.id) {
            contacts.keep(|node| members.contains_key(&node));
            self.see_members(members);
        }
        self.see_leader(metrics.current_leader, metrics.current_term);
        self.see_majority(is_lost);
    }

    fn see_members(&mut self, members: Membership) {
        let Some(before) = self.members.take() else {
            let voters = members.values().filter(|votes| **votes).count();
            log::info!(nodes = members.len(), voters; "member of the cluster");
            self.members = Some(members);
            return;
        };
        for (node, votes) in &members {
            let role = if *votes { "voter" } else { "learner" };
            match before.get(node) {
                None => log::info!(node, role; "node joined"),
                Some(voted) if !voted && *votes => log::info!(node; "node promoted to a voter"),
                Some(voted) if *voted && !votes => log::info!(node; "node demoted to a learner"),
                Some(_) => {}
            }
        }
        for node in before.keys().filter(|node| !members.contains_key(node)) {
            log::info!(node; "node removed");
        }
        self.members = Some(members);
    }

    fn see_leader(&mut self, leader: Option<NodeId>, term: u64) {
        let before = std::mem::replace(&mut self.leader, leader);
        match (before, leader) {
            (before, Some(leader)) if before != Some(leader) => {
                log::info!(leader, term; "leader elected");
            }
            (Some(leader), None) => log::warn!(leader, term; "leader lost"),
            _ => {}
        }
    }

    fn see_majority(&mut self, is_lost: bool) {
        let was_lost = std::mem::replace(&mut self.is_lost, is_lost);
        match (was_lost, is_lost) {
            (false, true) => log::warn!("contact with a majority lost: nothing can be granted"),
            (true, false) => log::info!("contact with a majority restored"),
            _ => {}
        }
    }
}

/// How long a node may take to answer before the report shows it as unreachable.
const STATUS_PATIENCE: Span = Span::from_secs(1);

/// Measurements of a node, for status reports and metrics.
#[derive(Clone)]
pub(in crate::raft) struct Gauges {
    /// The fsync latency of the log.
    pub(in crate::raft) syncs: Arc<FsyncLatency>,
    /// The elections that the node has seen.
    pub(in crate::raft) elections: Arc<ElectionCounter>,
}

impl Gauges {
    /// Returns the measurements of the node that uses this log.
    pub(in crate::raft) fn of(log: &LogStore) -> Self {
        let elections = Arc::new(ElectionCounter::since(log.vote().as_ref()));
        Self { syncs: Arc::clone(&log.syncs), elections }
    }
}

/// Reports the status of this node and of the cluster.
pub(in crate::raft) struct Reporter {
    pub(in crate::raft) cluster: ClusterId,
    pub(in crate::raft) raft: Raft,
    pub(in crate::raft) replica: Arc<Replica>,
    pub(super) gauges: Gauges,
    pub(in crate::raft) caller: Option<Arc<RpcIdentity>>,
    pub(in crate::raft) reader: Arc<LinearizableReader<TypeConfig>>,
}

impl Reporter {
    /// Returns the leader, unless this node has lost the contact with a majority: openraft then
    /// goes on to name the last one.
    fn leader(&self, metrics: &Metrics) -> Option<NodeId> {
        metrics.current_leader.filter(|_| !self.reader.is_lost())
    }

    /// Returns the status of this node; `with_state` adds a checksum of its state.
    pub(in crate::raft) fn own(&self, with_state: bool) -> Member {
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
            let core = self.replica.state();
            let sum =
                crc32fast::hash(&state_codec::encode_engine(core.cluster_version, &core.engine));
            member.applied = index(core.meta().last_log_id);
            drop(core);
            member.state = Some(format!("{}:{sum:08x}", member.applied).into());
        }
        member
    }

    /// Returns the status of all members, requested from each of them.
    pub(in crate::raft) async fn report(&self, with_state: bool) -> ClusterReport {
        let metrics = metrics::<TypeConfig>(&self.raft);
        let members: Vec<_> = metrics.membership_config.nodes().map(|(id, _)| *id).collect();
        let mut asked = Vec::new();
        for id in members {
            asked.push(self.member_status(known(&metrics, id), id == metrics.id, with_state));
        }
        let mut nodes = futures_util::future::join_all(asked).await;
        let known_leader = self.leader(&metrics);
        let leads = |node: &&MemberStatus| Some(node.member.id) == known_leader;
        let leader = nodes.iter().find(leads).filter(|leader| leader.error.is_none());
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
    pub(in crate::raft) fn outlook(&self) -> Outlook {
        let metrics = metrics::<TypeConfig>(&self.raft);
        let nodes: Vec<_> = metrics.membership_config.nodes().map(|(id, _)| *id).collect();
        let voters = voters(&metrics).len();
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        let last = metrics.last_log_index.unwrap_or_default();
        let other = |id: &NodeId| Behind {
            id: *id,
            entries: matched(&metrics, *id).map(|matched| last.saturating_sub(matched)),
            heard: last_heard(&metrics, *id).map(Span::from),
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

    async fn member_status(&self, known: Member, is_own: bool, with_state: bool) -> MemberStatus {
        if is_own {
            return MemberStatus { member: self.own(with_state), error: None, lag: None };
        }
        let silent =
            |error: String| MemberStatus { member: known.clone(), error: Some(error), lag: None };
        let Some(caller) = &self.caller else {
            return silent("this node has no --peer-listen".to_owned());
        };
        let mut line = caller.line(known.id, &known.address);
        match line.call(RpcRequest::Status(with_state), STATUS_PATIENCE).await {
            Ok(RpcResponse::Status(said)) => {
                let heard_ms = known.heard_ms;
                MemberStatus { member: Member { heard_ms, ..said }, error: None, lag: None }
            }
            Ok(_) => silent("it sent an unexpected answer".to_owned()),
            Err(error) => silent(error.to_string()),
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
        heard_ms: last_heard(metrics, id).map(|ago| ago.as_millis() as u64),
    }
}
