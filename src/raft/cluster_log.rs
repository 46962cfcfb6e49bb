//! Log lines about the cluster, as one node sees it: its leader, its members, and the contact with
//! a majority.

use super::leadership::Metrics;
use super::peer_contacts::PeerContacts;
use super::types::NodeId;
use std::collections::BTreeMap;

/// The members of a cluster, and whether each votes.
type Membership = BTreeMap<NodeId, bool>;

/// Logs the changes of the cluster since this node has been a member.
#[derive(Debug, Default)]
pub(super) struct ClusterLog {
    members: Option<Membership>,
    leader: Option<NodeId>,
    is_lost: bool,
}

impl ClusterLog {
    /// Logs what has changed. `is_lost` is whether this node has lost the contact with a majority.
    pub(super) fn see(&mut self, metrics: &Metrics, is_lost: bool, contacts: &PeerContacts) {
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
