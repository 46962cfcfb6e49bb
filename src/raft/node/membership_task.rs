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

use super::membership::Members;
use super::node_pipeline::RequestPipeline;
use crate::raft::cluster_types::{ClusterTypes, PeerTransport};
use crate::raft::leadership::{LeadershipRole, Metrics, metrics};
use crate::raft::node::cluster_admin::ClusterLog;
use crate::raft::node_environment::NodeAddress;
use crate::raft::rpc::messages::{RpcError, RpcRequest, RpcResponse};
use crate::raft::rpc::network::{RpcFailure, RpcIdentity};
use crate::raft::rpc::peer_config::{PeerStore, ask_leader};
use crate::raft::store::data_dir::{Data, Stop};
use crate::raft::store::snapshot::{NodeId, TypeConfig, Vote};
use crate::time::{Span, boot_now};
use futures_util::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use openraft::type_config::TypeConfigExt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::{sleep, timeout};

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
    pub(in crate::raft) book: Mutex<PeerStore>,
}

impl MembershipTask {
    /// Runs until the node must stop, and returns the reason.
    pub(in crate::raft) async fn run(&self, data: &Mutex<Data>) -> Stop {
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
fn stop(data: &Mutex<Data>) -> Stop {
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
