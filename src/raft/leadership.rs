//! Tracks which node leads, as far as this node knows, and the clock by which this node stamps
//! entries while it leads.
//!
//! A new leader continues the engine time of the previous one from the stamps in the log. It
//! therefore first applies all entries that were committed before, and only then stamps. A stamp
//! is valid for one leadership: an entry that was stamped in one is refused in the next.
//!
//! Counts the elections that a node has seen since its start, and notes the time of the last one. A
//! follower starts an election when the heartbeats of its leader stop.

use super::cluster_types::{ClusterTypes, RaftOf};
use super::node_environment::NodeEnvironment;
use crate::raft::linearizable_read::StalenessBound;
use crate::raft::node_environment::{NodeAddress, timeout};
use crate::raft::store::snapshot::{Leader, NodeId, TypeConfig, Vote};
use crate::raft::write::engine_clock::{EngineClock, LeaderClock};
use crate::raft::write::state_machine::Replica;
use crate::service::backend_status;
use crate::time::{Span, Time, steady_now};
use openraft::ReadPolicy;
use openraft::async_runtime::watch::{WatchReceiver, WatchSender};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::WatchSenderOf;
use openraft::vote::leader_id_adv::LeaderId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long a new leader waits before it again asks a quorum to confirm that it leads.
const BARRIER_PAUSE: Span = Span::from_millis(20);

/// The interval for checking the metrics again while openraft reports no change.
const POLL: Span = Span::from_secs(1);

/// The role of this node in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeadershipRole {
    /// This node leads, and may stamp entries.
    Leads(Leadership),
    /// Another node leads.
    Follows(NodeId),
    /// No leader is known, or this node leads and can't stamp yet.
    Waits,
    /// The openraft instance of this node has shut down.
    Ended,
}

impl LeadershipRole {
    /// Whether this node leads, and may stamp entries.
    pub(crate) const fn is_leader(&self) -> bool {
        matches!(self, Self::Leads(_))
    }
}

/// A period in which this node leads, and its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leadership {
    /// The term and node id of the leadership. An entry is only proposed in the leadership in
    /// which it was stamped.
    pub id: Leader,
    pub(crate) clock: EngineClock,
}

impl Leadership {
    /// Returns the engine time with which this leader stamps an entry now.
    pub(super) fn stamp(self, environment: &dyn NodeEnvironment) -> Time {
        environment.stamp(self.id, self.clock)
    }
}

/// Tracks the leader of the cluster.
pub struct LeadershipWatcher<C: ClusterTypes> {
    pub(super) raft: RaftOf<C>,
    pub(super) replica: Arc<Replica>,
    pub(super) leader_clock: Arc<LeaderClock>,
    pub(super) staleness: Arc<StalenessBound>,
    pub(super) elections: Arc<ElectionCounter>,
    pub(super) role: WatchSenderOf<C, LeadershipRole>,
    /// Whether this node is the only member. openraft reports a metrics change before another
    /// node becomes a member.
    pub(super) alone: Arc<AtomicBool>,
    pub(super) environment: Arc<dyn NodeEnvironment>,
}

impl<C: ClusterTypes> LeadershipWatcher<C> {
    /// Updates the role of this node from openraft's metrics, until openraft ends.
    pub async fn run(self) {
        let mut news = self.raft.server_metrics();
        loop {
            // If the metrics change after this read, `changed` below returns at once.
            let known = news.borrow_and_update().clone();
            let id = self.raft.node_id();
            let vote = known.vote;
            self.elections.see(&vote, self.environment.steady_now());
            let leads = (vote.committed && vote.leader_id.node_id == *id).then_some(vote.leader_id);
            let before = *self.role.borrow_watched();
            let role = match (leads, known.current_leader) {
                (Some(leader), _) => match before {
                    LeadershipRole::Leads(leadership) if leadership.id == leader => {
                        LeadershipRole::Leads(leadership)
                    }
                    _ => self.begin(leader).await,
                },
                (None, Some(leader)) if leader != *id => LeadershipRole::Follows(leader),
                _ => LeadershipRole::Waits,
            };
            self.enter(role);
            if leads.is_some() && role == LeadershipRole::Waits {
                // After openraft has shut down, its last metrics may still name this node as the
                // leader, although the node will never lead again. An error of `changed` reveals
                // the shutdown.
                if let Ok(Err(_)) = timeout::<C, _>(BARRIER_PAUSE, news.changed()).await {
                    return self.enter(LeadershipRole::Ended);
                }
                continue;
            }
            // The metrics are read again after a pause even without a change, since openraft may
            // publish the parts of one change one after the other.
            let checks_again = async {
                // The only member of a cluster can't lose the leadership, so it sleeps until the
                // metrics change.
                if self.alone.load(Ordering::SeqCst) && role.is_leader() {
                    std::future::pending::<()>().await;
                }
                C::sleep(POLL.as_duration()).await;
                Ok(())
            };
            let changed = tokio::select! {
                biased;
                changed = news.changed() => changed,
                checked = checks_again => checked,
            };
            if changed.is_err() {
                return self.enter(LeadershipRole::Ended);
            }
        }
    }

    fn enter(&self, role: LeadershipRole) {
        match role {
            LeadershipRole::Leads(leadership) => self.leader_clock.lead(leadership.clock),
            LeadershipRole::Follows(_) | LeadershipRole::Waits | LeadershipRole::Ended => {
                self.leader_clock.follow();
            }
        }
        if self.role.borrow_watched().is_leader() {
            self.staleness.contact(self.environment.boot_now());
        }
        self.role.send_if_modified(|before| {
            let changed = *before != role;
            *before = role;
            changed
        });
    }

    /// Begins to lead once a quorum confirms the leadership and all earlier entries are applied.
    /// Returns [`LeadershipRole::Waits`] if that fails, so that the caller retries.
    async fn begin(&self, id: Leader) -> LeadershipRole {
        self.enter(LeadershipRole::Waits);
        let barrier = self.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        match timeout::<C, _>(self.environment.timeouts().barrier, barrier).await {
            Ok(Ok(read)) if *read.committed_leader_id() == id => {
                LeadershipRole::Leads(self.carry_on(id))
            }
            // Either another node has become leader meanwhile, or no quorum has answered in time.
            Ok(Ok(_)) | Err(_) => LeadershipRole::Waits,
            Ok(Err(error)) => {
                log::debug!("it can't lead yet: {error}");
                LeadershipRole::Waits
            }
        }
    }

    /// Returns the new leadership, with an engine clock that continues from a lower bound of the
    /// previous leader's engine time.
    fn carry_on(&self, id: Leader) -> Leadership {
        let steady = self.environment.steady_now();
        let engine = self.replica.state().time_at_least(steady);
        Leadership { id, clock: EngineClock::on(engine, steady) }
    }
}

/// Returns the leadership that the only member of a cluster has from its start, if openraft says
/// that it leads.
pub(super) fn alone<C: ClusterTypes>(
    raft: &RaftOf<C>,
    replica: &Replica,
    environment: &dyn NodeEnvironment,
) -> Option<Leadership> {
    let id = raft.as_leader().ok()?.to_committed_leader_id();
    let engine = replica.state().engine.clock();
    Some(Leadership { id, clock: EngineClock::on(engine, environment.steady_now()) })
}

/// openraft's metrics, which include the members of the cluster and the leader.
pub(super) type MetricsOf<C> = openraft::RaftMetrics<C>;
/// openraft's metrics on a real node, as opposed to a simulated one.
pub(super) type Metrics = MetricsOf<TypeConfig>;

/// Returns a copy of openraft's current metrics.
pub(super) fn metrics<C: ClusterTypes>(raft: &RaftOf<C>) -> MetricsOf<C> {
    raft.metrics().borrow_watched().clone()
}

/// Returns the address of the leader, if that is another node.
pub(super) fn leader_address<C: ClusterTypes>(metrics: &MetricsOf<C>) -> Option<Arc<str>> {
    let leader = metrics.current_leader.filter(|leader| *leader != metrics.id)?;
    metrics.membership_config.get_node(&leader).and_then(NodeAddress::of).map(|at| at.address)
}

/// Counts the elections that this node has seen, whichever node won.
pub struct ElectionCounter(Mutex<ElectionsSeen>);

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
    pub fn since(vote: Option<&Vote>) -> Self {
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
    pub(super) fn seen(&self) -> backend_status::ElectionStats {
        let seen = self.0.lock();
        let last = seen.last.map(|last| steady_now().since(last));
        backend_status::ElectionStats { count: seen.count, last }
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
        assert_eq!(elections.seen(), backend_status::ElectionStats::default());
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
        assert_eq!(elections.seen(), backend_status::ElectionStats::default());
    }
}
