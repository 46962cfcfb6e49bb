//! Membership of the cluster: which nodes vote and which are learners. The leader changes it, one
//! change at a time.
//!
//! A single voter is its own quorum, and three voters tolerate one failure. Two are worse than one,
//! since both are needed. So a node that joins a single node stays a learner until a third node
//! joins, and then both become voters in one step. More than three nodes vote only if an
//! administrator promotes them.
//!
//! The background task of a node with peers: it enrolls the node, keeps the leader's time up to
//! date, and stops the node when it is no longer a member.
//!
//! Calls an election when the process of the leader has ended, without waiting for the election
//! timeout. The evidence is that a connection of the leader was closed and that its machine refuses
//! a new one: no process listens there. A machine that is slow, suspended or cut off refuses
//! nothing, and is not replaced before the timeout.
//!
//! One node with this evidence changes nothing. It asks for a pre-vote, and each other node rejects
//! that while the lease of the leader is valid, unless it has the evidence itself.

use super::node_pipeline::RequestPipeline;
use crate::raft::cluster_types::{ClusterTypes, PeerTransport};
use crate::raft::leadership::{LeadershipRole, Metrics, leader_address, metrics};
use crate::raft::node::cluster_admin::ClusterLog;
use crate::raft::node_environment::{ClusterVersion, NodeAddress};
use crate::raft::rpc::messages::{RpcError, RpcRequest, RpcResponse};
use crate::raft::rpc::network::{RpcFailure, RpcIdentity};
use crate::raft::rpc::peer_config::{PeerStore, ask_leader};
use crate::raft::store::data_dir::{Data, Stop};
use crate::raft::store::snapshot::{NodeId, Proposal, TypeConfig, Vote};
use crate::raft::write::state_machine::Raft;
use crate::service::backend_status::ClusterChange;
use crate::time::{Span, boot_now};
use futures_util::future::join_all;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::impls::BasicNode;
use openraft::raft::{ClientWriteResponse, TransferLeaderRequest};
use openraft::type_config::TypeConfigExt;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

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

/// The longest interval between two checks of the membership.
const POLL: Span = Span::from_millis(500);
/// How long a node waits after it has enrolled, before it checks whether it has become a voter. If
/// it has not, it enrolls again.
const ASK_AGAIN: Span = Span::from_secs(5);
/// The interval at which a node checks which of the other nodes are reachable.
const VISIT_EVERY: Span = Span::from_secs(10);
/// How long one attempt to enroll may take.
const ENROLL_PATIENCE: Span = Span::from_secs(60);

/// The membership task of one node.
pub(in crate::raft) struct MembershipTask {
    pub(in crate::raft) requests: RequestPipeline<TypeConfig>,
    pub(in crate::raft) members: Arc<Members>,
    pub(in crate::raft) caller: Arc<RpcIdentity>,
    pub(in crate::raft) station: NodeAddress,
    pub(in crate::raft) seeds: Vec<String>,
    pub(in crate::raft) removed: Arc<AtomicBool>,
    pub(in crate::raft) book: parking_lot::Mutex<PeerStore>,
}

impl MembershipTask {
    /// Runs until the node must stop, and returns the reason.
    pub(in crate::raft) async fn run(&self, data: &parking_lot::Mutex<Data>) -> Stop {
        let (mut was_member, mut cluster_log) = (false, ClusterLog::default());
        let enrolling = self.enroll();
        let mut enrolling = std::pin::pin!(enrolling);
        let (mut is_enrolled, mut news) = (false, self.requests.raft.server_metrics());
        let visiting = async {
            loop {
                self.visit().await;
                sleep(VISIT_EVERY.as_duration()).await;
            }
        };
        let mut visiting = std::pin::pin!(visiting);
        loop {
            tokio::select! {
                () = &mut visiting => {}
                enrolled = &mut enrolling, if !is_enrolled => {
                    is_enrolled = true;
                    match enrolled {
                        Ok(()) => {}
                        Err(Stop::Removed) => return stop(data),
                        Err(other) => return other,
                    }
                }
                _ = timeout(POLL.as_duration(), news.changed()) => {}
            }
            let known = metrics::<TypeConfig>(&self.requests.raft);
            cluster_log.see(&known, self.requests.is_lost(), &self.caller.contacts);
            self.requests.refresh_age(POLL).await;
            self.requests.refresh_leader_time(POLL).await;
            self.members.raise_version().await;
            let is_member = self.is_member();
            if self.removed.load(Ordering::Relaxed) || (was_member && !is_member) {
                return stop(data);
            }
            was_member |= is_member;
        }
    }

    /// Requests the status of the other members, and stores the addresses of those that answer.
    async fn visit(&self) {
        let known = metrics::<TypeConfig>(&self.requests.raft);
        let others = known.membership_config.nodes().filter(|(id, _)| **id != known.id);
        let calls = others.filter_map(|(id, node)| Some((*id, NodeAddress::of(node)?))).map(
            async |(id, station)| {
                let mut line = self.caller.line(id, &station.address);
                let response = line.call(RpcRequest::Status(false), POLL).await;
                matches!(response, Ok(RpcResponse::Status(_))).then_some((id, station))
            },
        );
        let seen = join_all(calls).await;
        let (mut book, now) = (self.book.lock(), boot_now());
        for (id, station) in seen.into_iter().flatten() {
            book.see(id, station, now);
        }
        book.keep(now);
    }

    /// Whether this node is in the committed membership that it knows, or in a newer one that is
    /// not committed yet.
    fn is_member(&self) -> bool {
        let metrics = metrics::<TypeConfig>(&self.requests.raft);
        let known = [&metrics.committed_membership_config, &metrics.membership_config];
        known.iter().any(|config| config.get_node(&metrics.id).is_some())
    }

    /// Makes this node a member under its current address, and repeats the request until the
    /// leader has made it a voter.
    async fn enroll(&self) -> Result<(), Stop> {
        loop {
            let now = metrics::<TypeConfig>(&self.requests.raft);
            if self.is_done(&now) {
                return Ok(());
            }
            let addresses = self.addresses(&now);
            if addresses.is_empty() {
                sleep(POLL.as_duration()).await;
                continue;
            }
            // A node that has a new address may be the leader itself, while the membership still
            // has its former address. So the node first tries to enroll itself: other nodes would
            // only redirect it to the former address.
            let enrolled = match self.members.enroll(now.id, &self.station).await {
                Err(RpcError::NotLeader(_)) => {
                    let mut stand = self.requests.role.clone();
                    tokio::select! {
                        asked = self.ask_to_enroll(&addresses) => asked,
                        _ = stand.wait_until(LeadershipRole::is_leader) => continue,
                    }
                }
                done => done.map_err(RpcFailure::Turned),
            };
            match enrolled {
                Ok(()) => sleep(ASK_AGAIN.as_duration()).await,
                Err(RpcFailure::Turned(RpcError::Refused(why))) => {
                    log::warn!("this node is not enrolled: {why}");
                }
                Err(RpcFailure::Turned(RpcError::Removed)) => return Err(Stop::Removed),
                Err(RpcFailure::Turned(turned @ RpcError::OtherCluster)) => {
                    return Err(Stop::Stranger(turned.to_string().into()));
                }
                Err(failure) => log::warn!("this node is not enrolled yet: {failure}"),
            }
            sleep(POLL.as_duration()).await;
        }
    }

    /// Asks the leader to make this node a member. A node that is a member already first asks for a
    /// read index, which the leader refuses to a node that was removed: it must not become a member
    /// again.
    async fn ask_to_enroll(&self, addresses: &[String]) -> Result<(), RpcFailure> {
        if self.is_member() {
            ask_leader(&self.caller, addresses, &RpcRequest::Read, ENROLL_PATIENCE).await?;
        }
        let call = RpcRequest::Enroll(self.station.clone());
        ask_leader(&self.caller, addresses, &call, ENROLL_PATIENCE).await.map(drop)
    }

    /// Whether enrolling is done: this node is a voter, and listed with its current address.
    fn is_done(&self, metrics: &Metrics) -> bool {
        let known = metrics.membership_config.get_node(&metrics.id).and_then(NodeAddress::of);
        let votes = metrics.membership_config.voter_ids().any(|id| id == metrics.id);
        votes && known.as_ref() == Some(&self.station)
    }

    /// Returns the addresses at which other nodes may be reached: from the membership, the peer
    /// store and the seeds.
    fn addresses(&self, metrics: &Metrics) -> Vec<String> {
        let others = metrics.membership_config.nodes().filter(|(id, _)| **id != metrics.id);
        let known = others.filter_map(|(_, node)| NodeAddress::of(node));
        let mut all: Vec<_> = known.map(|station| station.address.to_string()).collect();
        all.extend(self.book.lock().addresses().map(str::to_owned));
        all.extend(self.seeds.iter().cloned());
        all.sort_unstable();
        all.retain(|address| *address != *self.station.address);
        all.dedup();
        all
    }
}

/// Records in the data directory that this node was removed, so that it never starts again.
fn stop(data: &parking_lot::Mutex<Data>) -> Stop {
    if let Err(error) = data.lock().is_removed() {
        log::error!("{error}");
    }
    Stop::Removed
}

/// How often, and after which pauses, the machine of the leader is asked for a new connection. A
/// process that is being killed may still accept one after it has closed the first.
const PROBES: u32 = 3;
const PROBE_PAUSE: Span = Span::from_millis(20);
/// How much later than the voter with the next lower id a voter calls an election, so that they do
/// not split the votes.
const HEAD_START: Span = Span::from_millis(30);
/// How often, and after which pauses, an election is called. Another node may get the evidence a
/// little later, and may have to write its vote to a slow disk.
const ELECTIONS: u32 = 3;
const ELECTION_PAUSE: Span = Span::from_millis(120);

impl<C: ClusterTypes> RequestPipeline<C> {
    /// Handles the end of a connection on which the node `leader` has sent entries.
    pub async fn leader_connection_closed(&self, leader: NodeId) {
        // A leader has more than one connection, and all of them end with its process.
        let Ok(_only_check) = self.leader_check.try_lock() else { return };
        let Some(vote) = self.vote_for(leader) else { return };
        let Some(head_start) = self.head_start(leader) else { return };
        if !self.has_ended(leader).await {
            return;
        }
        log::info!("the process of node {leader}, which led, has ended");
        for _ in 0..ELECTIONS {
            // openraft drops the lease of a leader that is about to transfer the leadership.
            let drop_lease = TransferLeaderRequest::new(vote, leader, None);
            let dropped = self.raft.handle_transfer_leader(drop_lease).await;
            C::sleep(head_start.as_duration()).await;
            // Another node may have been elected, or may be about to.
            if dropped.is_err() || self.vote_for(leader) != Some(vote) {
                return;
            }
            let called = self.raft.trigger().elect(true).await;
            C::sleep(ELECTION_PAUSE.as_duration()).await;
            if called.is_err() || self.vote_for(leader) != Some(vote) {
                return;
            }
        }
    }

    /// Returns the vote of this node if that is for `leader`, and the node was elected.
    fn vote_for(&self, leader: NodeId) -> Option<Vote> {
        let vote = self.raft.server_metrics().borrow_watched().vote;
        (vote.committed && vote.leader_id.node_id == leader).then_some(vote)
    }

    /// Returns how long this node leaves the election to the voters with lower ids; `None` if it
    /// does not vote.
    fn head_start(&self, leader: NodeId) -> Option<Span> {
        let metrics = metrics::<C>(&self.raft);
        let mut others = metrics.membership_config.voter_ids().filter(|id| *id != leader);
        let before = others.position(|id| id == metrics.id)?;
        Some(Span::from_nanos(HEAD_START.as_nanos() * before as u64))
    }

    /// Whether the machine of a node says that no process accepts connections there.
    async fn has_ended(&self, node: NodeId) -> bool {
        let address = metrics::<C>(&self.raft).membership_config.get_node(&node).cloned();
        let Some(address) = address else { return false };
        for _ in 0..PROBES {
            if self.transport.is_refused(node, &address).await {
                return true;
            }
            C::sleep(PROBE_PAUSE.as_duration()).await;
        }
        false
    }
}
