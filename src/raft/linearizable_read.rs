//! Linearizable reads: before a read, the leader confirms with a quorum that it still leads, and
//! this node applies all entries committed until then. Concurrent reads share one confirmation. A
//! leader on the minority side of a partition gets no confirmation, so it never serves a stale read
//! as a linearizable one.
//!
//! Upper bound on the age of a stale read: how long ago the applied state of this node was known to
//! match the commit index of the leader.
//!
//! Only a confirmed read index bounds the age: this node asked the leader, and a quorum confirmed
//! the leader after that. When this node has applied the log up to that index, its state is at
//! least as new as the moment at which it asked. A heartbeat proves less: a leader that is cut off
//! from its quorum still sends heartbeats to the nodes that it reaches, and a heartbeat can be
//! delayed.

use super::cluster_types::{ClusterTypes, LeaderProgress, RaftOf, RpcError};
use super::leadership::{Leadership, LeadershipRole, metrics};
use super::node_environment::NodeEnvironment;
use crate::engine::Op;
use crate::raft::node_environment::timeout;
use crate::raft::store::snapshot::{Commands, Proposal};
use crate::raft::write::engine_clock::LeaderClock;
use crate::raft::write::proposal_queue::PendingRead;
use crate::raft::write::proposer::Forwarder;
use crate::raft::write::state_machine::Replica;
use crate::service::Call;
use crate::service::Unavailable;
use crate::time::{Span, Time};
use openraft::ReadPolicy;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, RaftError};
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResponse;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::WatchReceiverOf;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Mutex as Turn, Notify};

/// Longest pause before a retry. The pause is jittered, since nodes that were refused together must
/// not retry together.
const PAUSE: Span = Span::from_millis(15);

/// Sleeps for a random time of up to [`PAUSE`], before a retry.
pub(super) async fn pause<C: ClusterTypes>(environment: &dyn NodeEnvironment) {
    C::sleep(environment.jittered(PAUSE).as_duration()).await;
}

/// Performs linearizable reads.
pub(crate) struct LinearizableReader<C: ClusterTypes> {
    pub(super) raft: RaftOf<C>,
    pub(super) replica: Arc<Replica>,
    pub(super) leader_clock: Arc<LeaderClock>,
    pub(super) staleness: Arc<StalenessBound>,
    pub(super) role: WatchReceiverOf<C, LeadershipRole>,
    /// Forwards read requests to the leader, by a connection that is used for one request at a
    /// time.
    pub(super) forwarder: Turn<Forwarder<C>>,
    pub(super) environment: Arc<dyn NodeEnvironment>,
}

/// The reads that wait for the next confirmation by a quorum.
#[derive(Default)]
pub struct ReadQueue {
    waiting: Mutex<QueuedReads>,
    bell: Notify,
}

#[derive(Default)]
struct QueuedReads {
    reads: Vec<PendingRead>,
    closed: Option<Unavailable>,
}

impl ReadQueue {
    /// Adds a read, or refuses it at once if the queue is closed.
    pub(crate) fn add(&self) -> Call<Time> {
        let mut waiting = self.waiting.lock();
        if let Some(why) = waiting.closed.clone() {
            return Call::answered(Err(why));
        }
        let (read, call) = Call::expected();
        waiting.reads.push(read);
        drop(waiting);
        self.bell.notify_one();
        call
    }

    /// Closes the queue, and refuses the waiting reads with `why`.
    pub fn fail(&self, why: &Unavailable) {
        let reads = {
            let mut waiting = self.waiting.lock();
            waiting.closed = Some(why.clone());
            std::mem::take(&mut waiting.reads)
        };
        for read in reads {
            read.keep(Err(why.clone()));
        }
    }
}

impl<C: ClusterTypes> LinearizableReader<C> {
    /// Answers the reads in `queue` in an endless loop, which ends when the task that runs it is
    /// dropped.
    pub(crate) async fn run(&self, queue: &ReadQueue) {
        loop {
            let reads = std::mem::take(&mut queue.waiting.lock().reads);
            if reads.is_empty() {
                queue.bell.notified().await;
                continue;
            }
            let answer =
                self.read(self.environment.steady_now() + self.environment.timeouts().answer).await;
            for read in reads {
                read.keep(answer.clone());
            }
        }
    }

    /// Whether this node has had no contact to a leader, or as leader no acknowledgement by a
    /// quorum, for longer than the timeout `quorum_lost`.
    pub(super) fn is_lost(&self) -> bool {
        let quiet = match *self.role.borrow_watched() {
            LeadershipRole::Follows(_) | LeadershipRole::Waits | LeadershipRole::Ended => {
                self.staleness.quiet(self.environment.boot_now())
            }
            LeadershipRole::Leads(_) => {
                let metrics = self.raft.metrics();
                let metrics = metrics.borrow_watched();
                let decides_alone = metrics.membership_config.voter_ids().nth(1).is_none();
                // A leader that has no acknowledgement yet was elected by a quorum just now, so it
                // counts as being in contact with its quorum.
                let acked = metrics.last_quorum_acked.filter(|_| !decides_alone);
                acked.map_or(Span::ZERO, |acked| Span::from(C::now() - acked.into_inner()))
            }
        };
        quiet > self.environment.timeouts().quorum_lost
    }

    /// Returns `until`, or an earlier deadline if this node has lost its quorum.
    pub(super) fn patience(&self, until: Time) -> Time {
        if self.is_lost() {
            until.min(self.environment.steady_now() + self.environment.timeouts().without_quorum)
        } else {
            until
        }
    }

    /// Returns the engine time at which to read, once this node has applied every entry that was
    /// committed when the read began. Retries until the deadline `until`.
    pub(super) async fn read(&self, until: Time) -> Result<Time, Unavailable> {
        let until = self.patience(until);
        let mut why: Arc<str> = "the cluster has no leader".into();
        loop {
            let left = until.since(self.environment.steady_now());
            if left == Span::ZERO {
                return Err(self.unanswered(why));
            }
            let role = *self.role.borrow_watched();
            let tried = timeout::<C, _>(left, self.read_once(role, left)).await;
            match tried {
                Ok(Ok(at)) => return Ok(at),
                Ok(Err(said)) => why = said,
                Err(_) => {
                    return Err(self.unanswered("no majority of them has answered yet".into()));
                }
            }
            pause::<C>(&*self.environment).await;
        }
    }

    /// Returns the failure of a request that this node could not decide in time. `why` is what kept
    /// it, unless the cluster has no majority.
    pub(super) fn unanswered(&self, why: Arc<str>) -> Unavailable {
        if self.is_lost() { Unavailable::no_majority() } else { Unavailable::NoQuorum { why } }
    }

    async fn read_once(&self, role: LeadershipRole, left: Span) -> Result<Time, Arc<str>> {
        let asked = self.environment.boot_now();
        match role {
            LeadershipRole::Leads(leadership) => {
                let place = self.lead(leadership).await?;
                self.staleness.confirm(asked, place.index, self.replica.applied());
                Ok(place.now)
            }
            LeadershipRole::Follows(_) => {
                // The node that answers leads under the vote that this node knows, or under a later
                // one.
                let vote = metrics::<C>(&self.raft).vote;
                let place = self.forwarder.lock().await.read(left).await;
                let place = place.map_err(|failure| Arc::from(failure.to_string()))?;
                self.leader_clock.observe(asked, place.now);
                self.staleness.confirm(asked, place.index, self.replica.applied());
                if vote.committed {
                    self.replica.observe_leader_time(vote.leader_id, place.now);
                }
                self.replica.carried_out(place.index).await;
                Ok(place.now)
            }
            LeadershipRole::Waits => Err("the cluster has no leader".into()),
            LeadershipRole::Ended => Err("this node has ended".into()),
        }
    }

    /// Returns the read index on behalf of another node, which must apply the log up to it before
    /// it reads. Fails if this node does not lead.
    pub(super) async fn place(&self) -> Result<LeaderProgress, RpcError> {
        let LeadershipRole::Leads(leadership) = *self.role.borrow_watched() else {
            return Err(RpcError::NotLeader(None));
        };
        self.lead(leadership).await.map_err(|_| RpcError::NotLeader(None))
    }

    /// Returns the read index, once a quorum has confirmed that this node leads. If a lease, wait
    /// or session has reached its deadline, this node instead proposes an entry that applies the
    /// deadline: once it is committed, a quorum has confirmed the leadership as well.
    async fn lead(&self, leadership: Leadership) -> Result<LeaderProgress, Arc<str>> {
        let now = leadership.stamp(&*self.environment);
        if self.replica.next_deadline().is_some_and(|due| due <= now) {
            // The entry can only commit if a quorum still accepts this node as the leader.
            let commands = Commands { now, commands: vec![Op::Settle.into()] };
            let written = propose::<C>(&self.raft, leadership, Arc::new(commands)).await;
            let written = written.map_err(|error| Arc::from(error.to_string()))?;
            return Ok(LeaderProgress { index: written.log_id.index, now });
        }
        let read = self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await;
        let read = read.map_err(|error| Arc::from(error.to_string()))?;
        // If this node has lost its leadership and was elected again since `now` was read, that
        // engine time comes from the clock of the earlier leadership and is not valid in the new
        // one.
        if *read.committed_leader_id() != leadership.id {
            return Err("another has led meanwhile".into());
        }
        Ok(LeaderProgress { index: read.index(), now })
    }
}

/// The result of proposing an entry to openraft.
pub(super) type Written<C> = Result<ClientWriteResponse<C>, WriteError<C>>;
/// The error of proposing an entry to openraft.
pub(super) type WriteError<C> = RaftError<C, ClientWriteError<C>>;

/// Proposes an entry in the given leadership only, and returns its result once this node has
/// applied it.
pub(super) async fn propose<C: ClusterTypes>(
    raft: &RaftOf<C>,
    leadership: Leadership,
    commands: Arc<Commands>,
) -> Written<C> {
    let (responder, _, written) = ProgressResponder::new();
    raft.write(Proposal::Commands(commands))
        .responder(responder)
        .with_leader(leadership.id)
        .await?;
    match written.await {
        Ok(written) => written.map_err(RaftError::APIError),
        Err(_) => Err(RaftError::Fatal(Fatal::Stopped)),
    }
}

/// Tracks the read indexes that were confirmed to this node, and which of them it has applied.
#[derive(Debug)]
pub(super) struct StalenessBound(Mutex<StalenessState>);

#[derive(Debug)]
struct StalenessState {
    /// When this node last received a heartbeat or last led, on the boot clock. Initially it is the
    /// start of the node.
    contact: Time,
    /// When this node asked for the newest read index that is applied here. On the boot clock.
    as_of: Option<Time>,
    /// When this node asked for a read index that is not applied here yet, and that index.
    pending: Option<(Time, u64)>,
}

impl StalenessState {
    fn settle(&mut self, applied: u64) {
        if let Some((asked, index)) = self.pending
            && applied >= index
        {
            (self.as_of, self.pending) = (self.as_of.max(Some(asked)), None);
        }
    }
}

impl StalenessBound {
    /// Returns a tracker for a node that started at `start` and has no confirmed read index yet.
    pub(super) fn since(start: Time) -> Self {
        Self(Mutex::new(StalenessState { contact: start, as_of: None, pending: None }))
    }

    /// Notes that this node received a heartbeat at `now`, or that it leads or led until now.
    pub(super) fn contact(&self, now: Time) {
        let mut known = self.0.lock();
        known.contact = known.contact.max(now);
    }

    /// Returns for how long this node has not received a heartbeat and has not led.
    pub(super) fn quiet(&self, now: Time) -> Span {
        now.since(self.0.lock().contact)
    }

    /// Handles a confirmed read index, for which this node asked at `asked`. This node has applied
    /// the log up to `applied`.
    pub(super) fn confirm(&self, asked: Time, index: u64, applied: u64) {
        let mut known = self.0.lock();
        known.settle(applied);
        if applied >= index {
            known.as_of = known.as_of.max(Some(asked));
        } else {
            // Keep the oldest pending index, which is reached first. If each confirmation replaced
            // it, a node that is always a little behind would never reach any.
            known.pending.get_or_insert((asked, index));
        }
    }

    /// Returns a time up to which the state here is complete: every entry that was committed by
    /// then is applied. `None` before the first confirmed read index that is applied.
    pub(super) fn as_of(&self, applied: u64) -> Option<Time> {
        let mut known = self.0.lock();
        known.settle(applied);
        known.as_of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_as_old_as_the_last_applied_read_index() {
        let (fresh, secs) = (StalenessBound::since(Time::ZERO), Time::from_secs);
        assert_eq!(fresh.as_of(9), None);
        assert_eq!(fresh.quiet(secs(3)), Span::from_secs(3));
        fresh.confirm(secs(1), 5, 5);
        assert_eq!(fresh.as_of(5), Some(secs(1)));
        // Entry 7 is committed on the leader, and not applied here yet.
        fresh.confirm(secs(2), 7, 5);
        assert_eq!(fresh.as_of(6), Some(secs(1)));
        fresh.confirm(secs(3), 9, 6);
        assert_eq!(fresh.as_of(7), Some(secs(2)));
        // An index that was confirmed while an older one was pending counts when it is confirmed
        // again.
        assert_eq!(fresh.as_of(9), Some(secs(2)));
        fresh.confirm(secs(4), 9, 9);
        assert_eq!(fresh.as_of(9), Some(secs(4)));
        // Heartbeats are contact to a leader, but do not make the state newer.
        fresh.contact(secs(8));
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(1)));
        // Answers that arrive out of order do not make the state older.
        fresh.confirm(secs(3), 9, 9);
        fresh.contact(secs(7));
        assert_eq!((fresh.as_of(9), fresh.quiet(secs(9))), (Some(secs(4)), Span::from_secs(1)));
    }
}
