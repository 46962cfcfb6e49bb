//! Calls an election when the process of the leader has ended, without waiting for the election
//! timeout. The evidence is that a connection of the leader was closed and that its machine refuses
//! a new one: no process listens there. A machine that is slow, suspended or cut off refuses
//! nothing, and is not replaced before the timeout.
//!
//! One node with this evidence changes nothing. It asks for a pre-vote, and each other node rejects
//! that while the lease of the leader is valid, unless it has the evidence itself.

use super::cluster_types::{ClusterTypes, PeerTransport};
use super::leadership::metrics;
use super::node_pipeline::RequestPipeline;
use super::types::{NodeId, Vote};
use crate::time::Span;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use openraft::type_config::TypeConfigExt;

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
    pub(crate) async fn leader_connection_closed(&self, leader: NodeId) {
        // A leader has more than one connection, and all of them end with its process.
        let Ok(_only_look) = self.looks_for_leader.try_lock() else { return };
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
