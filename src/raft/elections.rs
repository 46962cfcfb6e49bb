//! Counts the elections that a node has seen since its start, and notes the time of the last one. A
//! follower starts an election when the heartbeats of its leader stop.

use super::types::{NodeId, Vote};
use crate::service::cluster_status;
use crate::time::{Time, steady_now};
use openraft::vote::leader_id_adv::LeaderId;
use parking_lot::Mutex;

/// Counts the elections that this node has seen, whichever node won.
pub(crate) struct ElectionCounter(Mutex<ElectionsSeen>);

struct ElectionsSeen {
    /// The leader that was elected last, if any is known.
    leader: Option<LeaderId<u64, NodeId>>,
    count: u64,
    /// When this node learned of the last election, on the steady clock.
    last: Option<Time>,
}

impl ElectionCounter {
    /// Returns a counter at zero. `vote` is the vote in the log at the start of the node; the
    /// leader in it does not count.
    pub(crate) fn since(vote: Option<&Vote>) -> Self {
        let leader = vote.filter(|vote| vote.committed).map(|vote| vote.leader_id);
        Self(Mutex::new(ElectionsSeen { leader, count: 0, last: None }))
    }

    /// Counts an election if the leader in `vote` differs from the last one seen. The same node in
    /// another term counts as elected again.
    pub(super) fn see(&self, vote: &Vote, steady: Time) {
        let mut seen = self.0.lock();
        if vote.committed && seen.leader != Some(vote.leader_id) {
            seen.leader = Some(vote.leader_id);
            seen.count += 1;
            seen.last = Some(steady);
        }
    }

    /// Returns the number of elections and the age of the last one, for status reports.
    pub(super) fn seen(&self) -> cluster_status::ElectionStats {
        let seen = self.0.lock();
        let last = seen.last.map(|last| steady_now().since(last));
        cluster_status::ElectionStats { count: seen.count, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(term: u64, node_id: NodeId, committed: bool) -> Vote {
        Vote { leader_id: LeaderId { term, node_id }, committed }
    }

    #[test]
    fn each_leader_is_counted_once() {
        // The vote (3, 1) is not committed: the node has voted in term 3, but does not know that
        // node 1 became leader.
        let elections = ElectionCounter::since(Some(&vote(3, 1, false)));
        assert_eq!(elections.seen(), cluster_status::ElectionStats::default());
        for (seen, count) in [
            (vote(3, 1, true), 1),
            (vote(3, 1, true), 1),
            (vote(4, 7, false), 1),
            (vote(4, 7, true), 2),
            (vote(5, 7, true), 3),
        ] {
            elections.see(&seen, steady_now());
            assert_eq!(elections.seen().count, count, "{seen:?}");
        }
        assert!(elections.seen().last.is_some());
        // A leader that the log knew at the start has not been elected since.
        let elections = ElectionCounter::since(Some(&vote(5, 7, true)));
        elections.see(&vote(5, 7, true), steady_now());
        assert_eq!(elections.seen(), cluster_status::ElectionStats::default());
    }
}
