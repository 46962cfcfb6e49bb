//! Membership of the cluster: which nodes vote and which are learners. The leader changes it, one
//! change at a time.
//!
//! A single voter is its own quorum, and three voters tolerate one failure. Two are worse than one,
//! since both are needed. So a node that joins a single node stays a learner until a third node
//! joins, and then both become voters in one step. More than three nodes vote only if an
//! administrator promotes them.

use crate::raft::leadership::{Metrics, leader_address, metrics};
use crate::raft::node_environment::ClusterVersion;
use crate::raft::node_environment::NodeAddress;
use crate::raft::rpc::messages::RpcError;
use crate::raft::store::snapshot::{NodeId, Proposal, TypeConfig};
use crate::raft::write::state_machine::Raft;
use crate::service::backend_status::ClusterChange;
use crate::time::Span;
use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::impls::BasicNode;
use openraft::raft::ClientWriteResponse;
use openraft::type_config::TypeConfigExt;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// The number of voters that the cluster aims for: one of them may fail. A quorum of five voters is
/// slower, and rarely needed.
const VOTERS: usize = 3;
/// A learner has caught up if it lacks at most this many entries of the leader's log.
const NEAR: u64 = 1_000;
/// A node that has not answered a heartbeat for this long is not chosen as a voter or as the next
/// leader, unless an administrator names it.
const SILENT: Duration = Duration::from_secs(2);
/// How long a membership change may take: the leader may have to send a snapshot to a learner.
const CHANGE_PATIENCE: Span = Span::from_secs(60);
/// How long the leader waits for a learner to catch up.
const FIT_PATIENCE: Span = Span::from_secs(3);
/// How long the leader waits for another node to take over leadership.
const TRANSFER_PATIENCE: Span = Span::from_secs(2);

/// Changes the membership of the cluster.
pub(in crate::raft) struct Members {
    raft: Raft,
    /// Whether this node is the only member, and so its own quorum.
    alone: Arc<AtomicBool>,
    /// The nodes whose removal this node has committed as leader. Their repeated requests to enroll
    /// are refused.
    removed: parking_lot::Mutex<BTreeSet<NodeId>>,
    turn: Mutex<()>,
    /// The number of voters to which the cluster grows by itself.
    aim: usize,
    /// The version that a new member must know.
    version: ClusterVersion,
}

type Written =
    Result<ClientWriteResponse<TypeConfig>, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>;

impl Members {
    /// Manages the members of a cluster, of which `declared` nodes are to vote, if that is more
    /// than [`VOTERS`]; an even number counts as the odd one below.
    pub(in crate::raft) fn new(
        raft: Raft,
        alone: Arc<AtomicBool>,
        declared: usize,
        version: ClusterVersion,
    ) -> Self {
        let aim = VOTERS.max(declared.saturating_sub(1) | 1);
        let (removed, turn) = (parking_lot::Mutex::default(), Mutex::new(()));
        Self { raft, alone, removed, turn, aim, version }
    }

    /// Refuses a node that does not know the cluster version.
    pub(super) fn may_join(&self, at: &NodeAddress) -> Result<(), RpcError> {
        let version = self.version.get();
        if at.version >= version {
            return Ok(());
        }
        let why = format!(
            "node '{}' knows cluster version {}, and this cluster has version {version}; upgrade \
             that node, then start it again",
            at.name, at.version
        );
        Err(RpcError::Refused(why.into()))
    }

    /// Raises the cluster version by one if this node leads and all members know the next one.
    pub(super) async fn raise_version(&self) {
        let (Ok(_turn), Ok(metrics)) = (self.turn.try_lock(), self.lead()) else { return };
        let next = self.version.get() + 1;
        let knows = |node| NodeAddress::of(node).is_some_and(|at| at.version >= next);
        if metrics.membership_config.nodes().all(|(_, node)| knows(node)) {
            let raised = self.write(self.raft.client_write(Proposal::Raise(next))).await;
            raised.unwrap_or_else(|error| log::warn!("cluster version {next} is not set: {error}"));
        }
    }

    /// Returns a node id that no node has had or will have: the index of a new blank entry.
    pub(in crate::raft) async fn number(&self) -> Result<NodeId, RpcError> {
        let written = timeout(CHANGE_PATIENCE.as_duration(), self.raft.write_blank()).await;
        match written {
            Ok(written) => written.map(|done| done.log_id.index).map_err(|e| self.turned(&e)),
            Err(_) => Err(RpcError::Unknown),
        }
    }

    /// Adds a node as a learner, or updates the address of a member. Once the node has caught up,
    /// promotes learners as [`Self::complete`] does.
    pub(in crate::raft) async fn enroll(
        &self,
        id: NodeId,
        at: &NodeAddress,
    ) -> Result<(), RpcError> {
        let _turn = self.turn.lock().await;
        self.may_join(at)?;
        let metrics = self.lead()?;
        let known = metrics.membership_config.get_node(&id).map(NodeAddress::of);
        match known {
            Some(Some(known)) if known == *at => {}
            Some(_) => {
                let nodes = BTreeMap::from([(id, at.to_node())]);
                self.change_to(ChangeMembers::SetNodes(nodes), true).await?;
            }
            None if self.removed.lock().contains(&id) => return Err(RpcError::Removed),
            None => {
                self.quicken();
                self.write(self.raft.add_learner(id, at.to_node(), true)).await?;
            }
        }
        let fit = |metrics: &Metrics| {
            fit_learners(metrics).contains(&id) || voters(metrics).contains(&id)
        };
        // A learner that needs longer to catch up repeats its request to enroll.
        let patience = Some(FIT_PATIENCE.as_duration());
        let _ = self.raft.wait(patience).metrics(fit, "it has caught up").await;
        self.complete().await
    }

    /// Promotes learners that have caught up, if that gives [`VOTERS`] voters, or two more until
    /// all declared ones vote.
    async fn complete(&self) -> Result<(), RpcError> {
        let metrics = self.lead()?;
        let voters = voters(&metrics).len();
        let wanted = match voters {
            ..VOTERS => VOTERS - voters,
            // An even number of voters, which an administrator may have made, becomes odd.
            _ => self.aim.saturating_sub(voters).min(1 + voters % 2),
        };
        let fit: BTreeSet<_> = fit_learners(&metrics).into_iter().take(wanted).collect();
        if wanted == 0 || fit.len() < wanted {
            return Ok(());
        }
        self.change_to(ChangeMembers::AddVoterIds(fit), true).await
    }

    /// Makes a change that an administrator has requested.
    pub(in crate::raft) async fn change(&self, change: ClusterChange) -> Result<(), RpcError> {
        let _turn = self.turn.lock().await;
        match change {
            ClusterChange::Promote { id, force } => self.promote(id, force).await,
            ClusterChange::Remove { id } => {
                self.remove(id).await?;
                self.removed.lock().insert(id);
                Ok(())
            }
            ClusterChange::Transfer { to } => self.transfer(to).await,
        }
    }

    async fn promote(&self, id: NodeId, force: bool) -> Result<(), RpcError> {
        let metrics = self.lead()?;
        let (voters, learners) = (voters(&metrics), learners(&metrics));
        if voters.contains(&id) {
            return Ok(());
        }
        if !learners.contains(&id) {
            return Err(unknown(id));
        }
        let count = voters.len() + 1;
        if count.is_multiple_of(2) && !force {
            return Err(refused(format!(
                "{count} voters are worse than {}: no more of them may fail, and one more can; \
                 add another node, or insist by --force",
                count - 1
            )));
        }
        self.change_to(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true).await
    }

    async fn remove(&self, id: NodeId) -> Result<(), RpcError> {
        let metrics = self.lead()?;
        let (voters, learners) = (voters(&metrics), learners(&metrics));
        if learners.contains(&id) {
            return self.change_to(ChangeMembers::RemoveNodes(BTreeSet::from([id])), true).await;
        }
        if !voters.contains(&id) {
            return Err(unknown(id));
        }
        if voters.len() == 1 {
            return Err(refused(
                "it is the only voter, and what it knows would be lost; stop it instead, or let \
                 another become a voter first"
                    .to_owned(),
            ));
        }
        if id == metrics.id {
            // A leader that is to be removed first transfers its leadership, and returns an error.
            // The caller then repeats the request at the next leader, which removes this node.
            self.transfer(None).await?;
            return Err(RpcError::NotLeader(None));
        }
        let gone = ChangeMembers::RemoveVoters(BTreeSet::from([id]));
        let heir = fit_learners(&metrics).into_iter().next().filter(|_| voters.len() <= self.aim);
        let change = match heir {
            Some(heir) => {
                let heir = ChangeMembers::AddVoterIds(BTreeSet::from([heir]));
                ChangeMembers::Batch(vec![heir, gone])
            }
            None => gone,
        };
        self.change_to(change, false).await
    }

    async fn transfer(&self, to: Option<NodeId>) -> Result<(), RpcError> {
        let metrics = self.lead()?;
        let voters = voters(&metrics);
        let to = match to {
            Some(to) if to == metrics.id => return Ok(()),
            Some(to) if voters.contains(&to) => to,
            Some(to) => {
                return Err(refused(format!("node {to} is no voter, and so it can't lead")));
            }
            None => best(&metrics)
                .ok_or_else(|| refused("no other voter is there that could lead".to_owned()))?,
        };
        self.raft.trigger().transfer_leader(to).await.map_err(|e| refused(e.to_string()))?;
        let leads = |metrics: &Metrics| metrics.current_leader.is_some_and(|id| id != metrics.id);
        let patience = Some(TRANSFER_PATIENCE.as_duration());
        let waited = self.raft.wait(patience).metrics(leads, "another leads").await;
        waited
            .map(drop)
            .map_err(|_| refused(format!("node {to} has not taken over in time; this one goes on")))
    }

    /// Notes that this node is no longer the only member of its cluster, and starts to send
    /// heartbeats. Must be called before another node is added.
    fn quicken(&self) {
        self.alone.store(false, Ordering::SeqCst);
        self.raft.runtime_config().tick(true);
    }

    async fn change_to(
        &self,
        change: ChangeMembers<NodeId, BasicNode>,
        retain: bool,
    ) -> Result<(), RpcError> {
        self.write(self.raft.change_membership(change, retain)).await
    }

    async fn write(&self, write: impl Future<Output = Written>) -> Result<(), RpcError> {
        match timeout(CHANGE_PATIENCE.as_duration(), write).await {
            Ok(written) => written.map(drop).map_err(|error| self.turned(&error)),
            Err(_) => Err(RpcError::Unknown),
        }
    }

    /// Returns openraft's metrics if this node leads. Otherwise returns an error with the address
    /// of the leader.
    fn lead(&self) -> Result<Metrics, RpcError> {
        let metrics = metrics::<TypeConfig>(&self.raft);
        if metrics.current_leader == Some(metrics.id) {
            Ok(metrics)
        } else {
            Err(RpcError::NotLeader(leader_address(&metrics)))
        }
    }

    fn turned(&self, error: &RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> RpcError {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => {
                RpcError::NotLeader(leader_address(&metrics::<TypeConfig>(&self.raft)))
            }
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => RpcError::Unknown,
            other => refused(other.to_string()),
        }
    }
}

fn refused(why: String) -> RpcError {
    RpcError::Refused(why.into())
}

fn unknown(id: NodeId) -> RpcError {
    refused(format!("there is no node {id}; 'latchfs cluster status' shows all"))
}

pub(in crate::raft) fn voters(metrics: &Metrics) -> BTreeSet<NodeId> {
    metrics.membership_config.voter_ids().collect()
}

fn learners(metrics: &Metrics) -> BTreeSet<NodeId> {
    metrics.membership_config.membership().learner_ids().collect()
}

/// Returns how long ago this leader last heard from a node, if known.
pub(in crate::raft) fn last_heard(metrics: &Metrics, id: NodeId) -> Option<Duration> {
    let at = metrics.heartbeat.as_ref()?.get(&id)?.as_ref()?;
    Some(TypeConfig::now() - at.into_inner())
}

/// Returns the learners that have caught up and are reachable, ordered by id.
fn fit_learners(metrics: &Metrics) -> Vec<NodeId> {
    let last = metrics.last_log_index.unwrap_or_default();
    let near = |id: &NodeId| {
        let matched = metrics.replication.as_ref().and_then(|all| all.get(id)).copied().flatten();
        matched.is_some_and(|matched| matched.index + NEAR >= last)
    };
    let there = |id: &NodeId| last_heard(metrics, *id).is_none_or(|ago| ago < SILENT);
    learners(metrics).into_iter().filter(|id| near(id) && there(id)).collect()
}

/// Returns the voter, other than this node, that is best fit to lead: the reachable one with the
/// most complete log.
pub(in crate::raft) fn best(metrics: &Metrics) -> Option<NodeId> {
    let matched = |id: &NodeId| metrics.replication.as_ref()?.get(id).copied().flatten();
    let there = |id: &NodeId| last_heard(metrics, *id).is_some_and(|ago| ago < SILENT);
    let others = voters(metrics).into_iter().filter(|id| *id != metrics.id && there(id));
    others.max_by_key(matched)
}
