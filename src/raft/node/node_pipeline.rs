//! Assembles the parts that process requests: the queues, the proposer and the reader. Real and
//! simulated nodes are built from the same parts, in the same order.

use crate::engine::{Command, Engine, LockName};
use crate::raft::cluster_types::{
    ClusterTypes, LeaderProgress, RaftOf, RpcError, RpcRequest, RpcResponse, TransportOf,
};
use crate::raft::leadership::ElectionCounter;
use crate::raft::leadership::{LeadershipRole, LeadershipWatcher, leader_address, metrics};
use crate::raft::linearizable_read::StalenessBound;
use crate::raft::linearizable_read::{LinearizableReader, ReadQueue};
use crate::raft::node_environment::NodeEnvironment;
use crate::raft::store::data_dir::FatalError;
use crate::raft::write::engine_clock::LeaderClock;
use crate::raft::write::proposal_queue::ProposalQueue;
use crate::raft::write::proposer::Forwarder;
use crate::raft::write::proposer::Proposer;
use crate::raft::write::state_machine::Replica;
use crate::service::{Call, Unavailable};
use crate::time::{Span, Time};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::WatchReceiverOf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex as Turn;

/// How old the state of a node may become before it is confirmed with the leader.
const CONFIRMED_EVERY: Span = Span::from_millis(400);

/// The parts of a node that its front ends and its peers use.
#[derive(Clone)]
pub struct RequestPipeline<C: ClusterTypes> {
    /// openraft's handle of this node.
    pub raft: RaftOf<C>,
    /// The engine of this node, to which the entries of the log are applied.
    pub replica: Arc<Replica>,
    /// The queue of commands, and of the reads that must wait for them.
    pub queue: Arc<ProposalQueue>,
    /// The queue of reads that need not wait for any command.
    pub reads: Arc<ReadQueue>,
    pub(in crate::raft) reader: Arc<LinearizableReader<C>>,
    pub(in crate::raft) leader_clock: Arc<LeaderClock>,
    pub(in crate::raft) staleness: Arc<StalenessBound>,
    /// The role of this node, as it changes.
    pub role: WatchReceiverOf<C, LeadershipRole>,
    /// Whether this node is the only member, and so its own quorum.
    pub(in crate::raft) alone: Arc<AtomicBool>,
    pub(in crate::raft) transport: Arc<TransportOf<C>>,
    /// Locked while this node checks whether the process of the leader has ended.
    pub(super) leader_check: Arc<Turn<()>>,
    pub(in crate::raft) environment: Arc<dyn NodeEnvironment>,
}

/// The tasks of a pipeline, which its node runs until openraft ends.
pub struct PipelineTasks<C: ClusterTypes> {
    /// Tracks which node leads.
    pub watcher: LeadershipWatcher<C>,
    /// Makes log entries of the queued requests.
    pub proposer: Proposer<C>,
}

/// The components of which a pipeline is built.
pub struct PipelineParts<C: ClusterTypes> {
    /// openraft's handle of the node.
    pub raft: RaftOf<C>,
    /// The engine of the node, as it was restored.
    pub replica: Arc<Replica>,
    /// Opens connections to other nodes.
    pub transport: Arc<TransportOf<C>>,
    /// The clocks, random numbers and timeouts of the node.
    pub environment: Arc<dyn NodeEnvironment>,
    /// Counts the elections that the node sees.
    pub elections: Arc<ElectionCounter>,
    /// Where the first fatal error of the disk is recorded.
    pub fatal: FatalError,
    /// The role of the node at its start.
    pub role: LeadershipRole,
    /// Whether the node is the only member at its start.
    pub is_alone: bool,
}

impl<C: ClusterTypes> PipelineParts<C> {
    /// Builds the pipeline. Its tasks do not run yet.
    pub fn build(self) -> (RequestPipeline<C>, PipelineTasks<C>) {
        let Self { raft, replica, transport, environment, elections, .. } = self;
        let Self { fatal, role, is_alone, .. } = self;
        let leader_clock = Arc::new(LeaderClock::new(Arc::clone(&environment)));
        if let LeadershipRole::Leads(leadership) = role {
            leader_clock.lead(leadership.clock);
        }
        let (sender, role) = C::watch_channel(role);
        let queue = Arc::new(ProposalQueue::new(Arc::clone(&environment)));
        let staleness = Arc::new(StalenessBound::since(environment.boot_now()));
        let alone = Arc::new(AtomicBool::new(is_alone));
        let forwarder =
            || Forwarder::new(raft.clone(), Arc::clone(&transport), Arc::clone(&environment));
        let reader = Arc::new(LinearizableReader {
            raft: raft.clone(),
            replica: Arc::clone(&replica),
            leader_clock: Arc::clone(&leader_clock),
            staleness: Arc::clone(&staleness),
            role: role.clone(),
            forwarder: Turn::new(forwarder()),
            environment: Arc::clone(&environment),
        });
        let watcher = LeadershipWatcher {
            raft: raft.clone(),
            replica: Arc::clone(&replica),
            leader_clock: Arc::clone(&leader_clock),
            staleness: Arc::clone(&staleness),
            elections,
            role: sender,
            alone: Arc::clone(&alone),
            environment: Arc::clone(&environment),
        };
        let proposer = Proposer {
            raft: raft.clone(),
            replica: Arc::clone(&replica),
            queue: Arc::clone(&queue),
            leader_clock: Arc::clone(&leader_clock),
            role: role.clone(),
            reader: Arc::clone(&reader),
            forwarder: Turn::new(forwarder()),
            fatal,
            environment: Arc::clone(&environment),
        };
        let reads = Arc::default();
        let pipeline = RequestPipeline {
            raft,
            replica,
            queue,
            reads,
            reader,
            leader_clock,
            staleness,
            role,
            alone,
            transport,
            leader_check: Arc::default(),
            environment,
        };
        (pipeline, PipelineTasks { watcher, proposer })
    }
}

impl<C: ClusterTypes> RequestPipeline<C> {
    /// Answers the reads in the queue [`Self::reads`], until the task that runs this method is
    /// dropped.
    pub async fn answer_reads(self) {
        self.reader.run(&self.reads).await;
    }

    /// Returns a connection to the leader, for rare requests.
    pub(in crate::raft) fn forwarder(&self) -> Forwarder<C> {
        let (transport, environment) = (Arc::clone(&self.transport), Arc::clone(&self.environment));
        Forwarder::new(self.raft.clone(), transport, environment)
    }

    /// Whether this node is the only member of its cluster: then no client has been sent anything
    /// newer than its applied state. For a read, call it while the replica is locked.
    pub(in crate::raft) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }

    /// Returns the engine time or an upper bound of it; [`Time::NEVER`] if it is not known yet.
    pub(in crate::raft) fn now(&self) -> Time {
        self.leader_clock.now().unwrap_or(Time::NEVER)
    }

    /// Calls `query` with the engine at once, without waiting, if this node is the only member, no
    /// deadline is due, and no command is pending that may change the lock `name` (or any lock, if
    /// `name` is `None`). If one of these conditions fails, does not call `query`, and returns it
    /// to the caller as the error.
    fn read_engine_here<T, L: FnOnce(&Engine, Time) -> T>(
        &self,
        name: Option<&LockName>,
        query: L,
    ) -> Result<Result<T, Unavailable>, L> {
        if let Some(why) = self.queue.closed().filter(|why| *why != Unavailable::Closing) {
            return Ok(Err(why));
        }
        if self.queue.is_busy_with(name) {
            return Err(query);
        }
        let core = self.replica.state();
        // The membership is checked while the replica is locked: if this node is the only member at
        // that moment, no other node can have committed an entry that the replica lacks.
        if !self.is_alone() {
            return Err(query);
        }
        let now = self.now();
        if core.engine.next_deadline().is_some_and(|due| due <= now) {
            return Err(query);
        }
        Ok(Ok(query(&core.engine, now)))
    }

    /// Calls `query` with the engine, and returns the result. First applies the deadlines
    /// that are due, and the earlier commands that may change the lock `name` (or any lock, if
    /// `name` is `None`).
    pub fn read_engine<T: Send + 'static>(
        &self,
        name: Option<&LockName>,
        query: impl FnOnce(&Engine, Time) -> T + Send + 'static,
    ) -> Call<T> {
        let query = match self.read_engine_here(name, query) {
            Ok(seen) => return Call::answered(seen),
            Err(query) => query,
        };
        // A read that must see an earlier command waits in the queue behind that command. All other
        // reads share one confirmation of the leadership by a quorum.
        let ready = if self.is_alone() || self.queue.is_busy_with(name) {
            self.queue.read()
        } else {
            self.reads.add()
        };
        let replica = Arc::clone(&self.replica);
        Call::translated(async move { Ok(replica.inspect_at(ready.await?, query)) })
    }

    /// Returns an upper bound on the age of this node's state, or `None` if it is unknown.
    pub(in crate::raft) fn age(&self) -> Option<Span> {
        if self.is_alone() {
            return Some(Span::ZERO);
        }
        let as_of = self.staleness.as_of(self.replica.applied())?;
        Some(self.environment.boot_now().since(as_of))
    }

    /// Whether this node has lost the contact with a majority.
    pub fn is_lost(&self) -> bool {
        self.reader.is_lost()
    }

    /// Confirms the state of this node with the leader if it was not confirmed for a while, so that
    /// the age of a stale read is known.
    pub(super) async fn refresh_age(&self, patience: Span) {
        if self.age().is_none_or(|age| age > CONFIRMED_EVERY) {
            let _ = self.reader.read(self.environment.steady_now() + patience).await;
        }
    }

    /// Requests the leader's time if it is not known, or if this node follows and has not received
    /// it for long.
    pub async fn refresh_leader_time(&self, patience: Span) {
        let follows = matches!(*self.role.borrow_watched(), LeadershipRole::Follows(_));
        if self.leader_clock.now().is_none() || (follows && self.replica.has_old_time()) {
            // The read has no other purpose than its response, which contains the leader's time.
            let _ = self.reader.read(self.environment.steady_now() + patience).await;
        }
    }

    /// Appends the entries that a leader has sent, and notes the contact to it.
    pub async fn append_entries(
        &self,
        ask: AppendEntriesRequest<C>,
    ) -> Result<AppendEntriesResponse<C>, RaftError<C>> {
        let at = self.environment.boot_now();
        let said = self.raft.append_entries(ask).await?;
        if said == AppendEntriesResponse::Success {
            self.staleness.contact(at);
        }
        Ok(said)
    }

    /// Answers a call by which another node forwards the requests of its clients.
    pub async fn answer(&self, call: RpcRequest) -> Result<RpcResponse, RpcError> {
        match call {
            RpcRequest::Forward(commands) => self.apply_forwarded(commands).await,
            RpcRequest::Read => self.reader.place().await.map(RpcResponse::Read),
            _ => Err(RpcError::Malformed),
        }
    }

    async fn apply_forwarded(&self, commands: Vec<Command>) -> Result<RpcResponse, RpcError> {
        let LeadershipRole::Leads(leadership) = *self.role.borrow_watched() else {
            return Err(RpcError::NotLeader(leader_address(&metrics::<C>(&self.raft))));
        };
        let delivered = self.queue.forward(commands);
        if !self.role.borrow_watched().is_leader() {
            // The leadership has ended before the commands were queued.
            self.queue.turn_away_forwarded();
        }
        let (index, answers) = delivered.await.unwrap_or(Err(RpcError::Unknown))?;
        let now = leadership.stamp(&*self.environment);
        Ok(RpcResponse::Forwarded(LeaderProgress { index, now }, answers))
    }
}
