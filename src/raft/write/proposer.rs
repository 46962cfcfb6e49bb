//! The proposer: turns queued requests into log entries, one at a time. An entry holds all requests
//! that came while the one before was in flight, and the engine time at which they are applied.
//!
//! A leader proposes the entry. A follower forwards its requests to the leader in one call, and
//! answers them when it has applied that entry itself. If a deadline passes and there is no
//! request, the leader proposes an entry that only applies the deadlines due. Idle nodes write
//! nothing.
//!
//! Forwards the requests of this node's clients to the leader.
//!
//! Carries out a reset of many locks in parts, each in a log entry of its own, so that the requests
//! of other clients are carried out between them.
//!
//! The last part resets all locks once more, and answers the request. If a node or the leader fails
//! before it, the request has no answer, and a repeat of it ends what is left.

use super::proposal_queue::{BatchWaiters, NextBatch, ProposalBatch, ProposalQueue};
use crate::engine::{Answer, Command, Op, Outcome, Reset, ResetPart};
use crate::raft::cluster_types::{
    ClusterTypes, LeaderProgress, PeerConnection, PeerTransport, RaftOf, RpcError, RpcFailure,
    RpcRequest, RpcResponse, TransportOf,
};
use crate::raft::leadership::{Leadership, LeadershipRole, metrics};
use crate::raft::linearizable_read::{LinearizableReader, WriteError, pause, propose};
use crate::raft::node::node_pipeline::RequestPipeline;
use crate::raft::node_environment::{NodeEnvironment, timeout};
use crate::raft::store::data_dir::FatalError;
use crate::raft::store::snapshot::{Answers, Commands, NodeId};
use crate::raft::write::engine_clock::LeaderClock;
use crate::raft::write::state_machine::Replica;
use crate::service::{Call, Unavailable};
use crate::time::{Span, Time};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::impls::BasicNode;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::WatchReceiverOf;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Mutex as Turn;

/// How often to drop expired requests while an entry is slow to commit.
const LATE_POLL: Span = Span::from_millis(250);

/// Takes batches from the proposal queue, and proposes or forwards each.
pub struct Proposer<C: ClusterTypes> {
    pub(in crate::raft) raft: RaftOf<C>,
    pub(in crate::raft) replica: Arc<Replica>,
    pub(in crate::raft) queue: Arc<ProposalQueue>,
    pub(in crate::raft) leader_clock: Arc<LeaderClock>,
    pub(in crate::raft) role: WatchReceiverOf<C, LeadershipRole>,
    pub(in crate::raft) reader: Arc<LinearizableReader<C>>,
    pub(in crate::raft) forwarder: Turn<Forwarder<C>>,
    pub(in crate::raft) fatal: FatalError,
    pub(in crate::raft) environment: Arc<dyn NodeEnvironment>,
}

/// The outcome of one attempt to propose or forward a batch.
enum ProposalOutcome {
    /// The batch was applied on this node. Holds the index of its entry, the answers to its
    /// commands, and the leader's engine time.
    Done(u64, Answers, Time),
    /// The batch was not proposed or not accepted, so it may be retried: the reason.
    Nothing(Arc<str>),
    /// The outcome is unknown: the batch may have committed, or may still commit.
    Unknown(Arc<str>),
}

impl<C: ClusterTypes> Proposer<C> {
    /// Processes the queue until it is closed and empty. Returns the reason as an error if the log
    /// fails or openraft ends.
    pub async fn run(&self) -> Result<(), Arc<str>> {
        loop {
            let role = *self.role.borrow_watched();
            match self.queue.next(|| self.now(role)) {
                NextBatch::Batch(batch) => self.carry_out(batch, role).await?,
                NextBatch::Closed => return Ok(()),
                NextBatch::Nothing => self.rest().await?,
            }
        }
    }

    /// Returns the engine time with which to stamp an entry, or zero if this node does not lead.
    fn now(&self, role: LeadershipRole) -> Time {
        match role {
            LeadershipRole::Leads(leadership) => leadership.stamp(&*self.environment),
            LeadershipRole::Follows(_) | LeadershipRole::Waits | LeadershipRole::Ended => {
                Time::ZERO
            }
        }
    }

    /// Waits for a request, a deadline or a change of the leader. Proposes an entry for a deadline
    /// that is due.
    async fn rest(&self) -> Result<(), Arc<str>> {
        let mut role = self.role.clone();
        let due = match *role.borrow_and_update() {
            LeadershipRole::Leads(leadership) => {
                self.replica.next_deadline().map(|due| (leadership, due))
            }
            LeadershipRole::Follows(_) | LeadershipRole::Waits | LeadershipRole::Ended => None,
        };
        let wait =
            due.map(|(leadership, due)| leadership.clock.until(due, self.environment.steady_now()));
        if let (Some((leadership, _)), Some(Span::ZERO)) = (due, wait) {
            return self.tick(leadership).await;
        }
        let passes = async {
            match wait {
                Some(wait) => C::sleep(wait.as_duration()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.queue.rings() => {}
            () = passes => {}
            changed = role.changed() => {
                if changed.is_err() {
                    return Err(self.stopped("openraft has ended"));
                }
            }
        }
        Ok(())
    }

    fn stopped(&self, why: &str) -> Arc<str> {
        self.fatal.first().unwrap_or_else(|| why.into())
    }

    /// Proposes an entry that applies the deadlines due.
    async fn tick(&self, leadership: Leadership) -> Result<(), Arc<str>> {
        let now = leadership.stamp(&*self.environment);
        let commands = Arc::new(Commands { now, commands: vec![Op::Settle.into()] });
        let came = self.write(leadership, commands, &mut None).await?;
        if let ProposalOutcome::Nothing(_) = came {
            // The entry was refused, since this node no longer leads. Its role is updated within a
            // moment.
            pause::<C>(&*self.environment).await;
        }
        Ok(())
    }

    /// Proposes or forwards a batch, and retries until its deadline. `stamped` is the role of the
    /// node when the batch was stamped.
    async fn carry_out(
        &self,
        batch: ProposalBatch,
        mut stamped: LeadershipRole,
    ) -> Result<(), Arc<str>> {
        let mut batch = batch;
        let latest = self.environment.steady_now() + self.environment.timeouts().answer;
        let until = batch.waiting.until.unwrap_or(latest);
        let until = self.reader.patience(until);
        loop {
            let role = *self.role.borrow_watched();
            if !role.is_leader() {
                batch = batch.turn_away(&RpcError::NotLeader(None));
                self.queue.turn_away_forwarded();
            } else if role != stamped {
                // This node has become leader after the batch was stamped. Each leadership has a
                // clock of its own, so the batch is stamped again.
                let commands = batch.commands.commands.clone();
                batch.commands = Arc::new(Commands { now: self.now(role), commands });
                stamped = role;
            }
            let mut waiting = Some(std::mem::take(&mut batch.waiting));
            let came = self.try_once(role, &batch.commands, &mut waiting, until).await;
            // `waiting` is `None` if all waiters were refused while the entry was in flight.
            batch.waiting = waiting.unwrap_or_default();
            match came {
                Ok(ProposalOutcome::Done(index, answers, at)) => {
                    self.queue.landed();
                    batch.waiting.answer(index, answers, at);
                    return Ok(());
                }
                Ok(ProposalOutcome::Nothing(why)) => {
                    if self.environment.steady_now() >= until {
                        self.queue.landed();
                        batch.waiting.refuse(&self.reader.unanswered(why));
                        return Ok(());
                    }
                }
                Ok(ProposalOutcome::Unknown(why)) => {
                    let why = self.reader.unanswered(why);
                    batch = batch.refuse_unrepeatable(&why);
                }
                Err(why) => {
                    self.queue.landed();
                    batch.waiting.refuse(&Unavailable::Log { why: Arc::clone(&why) });
                    return Err(why);
                }
            }
            if batch.is_empty() {
                self.queue.landed();
                return Ok(());
            }
            pause::<C>(&*self.environment).await;
        }
    }

    async fn try_once(
        &self,
        role: LeadershipRole,
        commands: &Arc<Commands>,
        waiting: &mut Option<BatchWaiters>,
        until: Time,
    ) -> Result<ProposalOutcome, Arc<str>> {
        if role == LeadershipRole::Ended {
            // The method `rest`, which waits while the queue is empty, also reports the end of
            // openraft. It never runs while requests keep arriving, so the end is reported here
            // too.
            return Err(self.stopped("openraft has ended"));
        }
        let left = until.since(self.environment.steady_now());
        if left == Span::ZERO {
            return Ok(ProposalOutcome::Nothing("the cluster has no leader".into()));
        }
        if commands.commands.is_empty() {
            // A batch without commands consists of reads, which make no log entry.
            return Ok(match self.reader.read(until).await {
                Ok(at) => ProposalOutcome::Done(0, vec![], at),
                Err(Unavailable::NoQuorum { why }) => ProposalOutcome::Nothing(why),
                Err(other) => ProposalOutcome::Nothing(other.to_string().into()),
            });
        }
        match role {
            // A leader without a quorum could only write the entry to its own log, and the outcome
            // would be unknown. So it does not propose the entry.
            LeadershipRole::Leads(_) if self.reader.is_lost() => Ok(ProposalOutcome::Nothing(
                "no majority of them has acknowledged the leader".into(),
            )),
            LeadershipRole::Leads(leadership) => {
                self.write(leadership, Arc::clone(commands), waiting).await
            }
            LeadershipRole::Follows(_) => Ok(self.forward(commands, until).await),
            LeadershipRole::Waits | LeadershipRole::Ended => {
                Ok(ProposalOutcome::Nothing("the cluster has no leader".into()))
            }
        }
    }

    /// Forwards commands to the leader, and waits until this node has applied their entry.
    async fn forward(&self, commands: &Commands, until: Time) -> ProposalOutcome {
        let asked = self.environment.boot_now();
        let left = until.since(self.environment.steady_now());
        let sent = self.forwarder.lock().await.forward(commands.commands.clone(), left).await;
        let (place, answers) = match sent {
            Ok(done) => done,
            Err(RpcFailure::Turned(RpcError::Unknown) | RpcFailure::Unheard(_)) => {
                return ProposalOutcome::Unknown("the leader has not answered".into());
            }
            Err(failure) => return ProposalOutcome::Nothing(failure.to_string().into()),
        };
        self.leader_clock.observe(asked, place.now);
        // The leader was confirmed by the commit of the entry.
        self.reader.staleness.confirm(asked, place.index, self.replica.applied());
        let carried_out = self.replica.carried_out(place.index);
        // The leader's answer has taken a part of the time. A node whose disk has failed meanwhile
        // never applies the entry, and must not wait longer than that.
        let left = until.since(self.environment.steady_now());
        match timeout::<C, _>(left, carried_out).await {
            Ok(()) => ProposalOutcome::Done(place.index, answers, place.now),
            Err(_) => ProposalOutcome::Unknown("this node is behind".into()),
        }
    }

    /// Proposes an entry, and returns its outcome once it is applied. If that takes too long, the
    /// waiters get an error and are removed, although the entry may still be applied.
    async fn write(
        &self,
        leadership: Leadership,
        commands: Arc<Commands>,
        waiting: &mut Option<BatchWaiters>,
    ) -> Result<ProposalOutcome, Arc<str>> {
        let began = self.environment.steady_now();
        let mut entry = pin!(propose::<C>(&self.raft, leadership, commands));
        let written = loop {
            tokio::select! {
                biased;
                written = &mut entry => break written,
                () = C::sleep(LATE_POLL.as_duration()) => {
                    self.give_up_on_the_late(began, waiting);
                    if *self.role.borrow_watched() == LeadershipRole::Ended {
                        // openraft has shut down, and the result of the entry may never arrive: the
                        // state machine applies no entry while it reads a snapshot, and the read
                        // may still be going on.
                        return Err(self.stopped("openraft has ended"));
                    }
                }
            }
        };
        match written {
            Ok(done) => {
                let now = leadership.stamp(&*self.environment);
                Ok(ProposalOutcome::Done(done.log_id.index, done.data, now))
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &WriteError<C>) -> Result<ProposalOutcome, Arc<str>> {
        match error {
            RaftError::Fatal(_) => Err(self.stopped(&error.to_string())),
            RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
                Ok(ProposalOutcome::Unknown("another node is leader now".into()))
            }
            RaftError::APIError(
                ClientWriteError::ForwardToLeader(_) | ClientWriteError::PreconditionFailed(_),
            ) => Ok(ProposalOutcome::Nothing("another node is leader now".into())),
            RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => {
                Ok(ProposalOutcome::Nothing(why.to_string().into()))
            }
        }
    }

    /// Gives up on requests that have taken too long. If the entry in flight is older than the
    /// longest time for an answer, its waiters are refused, although the entry may still commit.
    /// Queued requests are refused if their deadline has passed.
    fn give_up_on_the_late(&self, began: Time, waiting: &mut Option<BatchWaiters>) {
        let (now, patience) = (self.environment.steady_now(), self.environment.timeouts().answer);
        let why = format!("no sync by a majority within {patience}").into();
        let late = Unavailable::Log { why };
        let is_late = now.since(began) >= patience;
        if let Some(waiting) = waiting.take_if(|_| is_late) {
            waiting.refuse(&late);
        }
        self.queue.expire(now, &late);
    }
}

/// A connection to the leader, kept until another node leads.
pub(in crate::raft) struct Forwarder<C: ClusterTypes> {
    raft: RaftOf<C>,
    transport: Arc<TransportOf<C>>,
    environment: Arc<dyn NodeEnvironment>,
    /// The connection, and the node to which it goes.
    open: Option<(NodeId, BasicNode, ConnectionOf<C>)>,
}

type ConnectionOf<C> = <TransportOf<C> as PeerTransport>::Connection;

impl<C: ClusterTypes> Forwarder<C> {
    pub(in crate::raft) fn new(
        raft: RaftOf<C>,
        transport: Arc<TransportOf<C>>,
        environment: Arc<dyn NodeEnvironment>,
    ) -> Self {
        Self { raft, transport, environment, open: None }
    }

    /// Sends commands to the leader, which applies them. Returns the index of their log entry, the
    /// leader's time, and the answers to the commands.
    pub(in crate::raft) async fn forward(
        &mut self,
        commands: Vec<Command>,
        patience: Span,
    ) -> Result<(LeaderProgress, Answers), RpcFailure> {
        let count = commands.len();
        match self.call(RpcRequest::Forward(commands), self.within(patience)).await? {
            RpcResponse::Forwarded(place, answers) if answers.len() == count => {
                Ok((place, answers))
            }
            _ => Err(RpcFailure::Unheard("it sent an unexpected answer".to_owned())),
        }
    }

    /// Returns the leader's read index, and the leader's time. A node must have applied the log up
    /// to the read index before it serves a linearizable read.
    pub(in crate::raft) async fn read(
        &mut self,
        patience: Span,
    ) -> Result<LeaderProgress, RpcFailure> {
        match self.call(RpcRequest::Read, self.within(patience)).await? {
            RpcResponse::Read(place) => Ok(place),
            _ => Err(RpcFailure::Unheard("it sent an unexpected answer".to_owned())),
        }
    }

    /// Returns the timeout of one call to the leader, or `patience` if that is shorter.
    fn within(&self, patience: Span) -> Span {
        patience.min(self.environment.timeouts().leader_call)
    }

    /// Calls the leader; opens a new connection if the leader or its address has changed.
    pub(in crate::raft) async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
    ) -> Result<RpcResponse, RpcFailure> {
        let metrics = metrics::<C>(&self.raft);
        let nobody = || RpcFailure::Turned(RpcError::NotLeader(None));
        let leader = metrics.current_leader.filter(|id| *id != metrics.id).ok_or_else(nobody)?;
        let node = metrics.membership_config.get_node(&leader).ok_or_else(nobody)?;
        match &self.open {
            Some((id, known, _)) if *id == leader && known == node => {}
            _ => {
                let connection = self.transport.connection(leader, node).ok_or_else(nobody)?;
                self.open = Some((leader, node.clone(), connection));
            }
        }
        let (_, _, connection) = self.open.as_mut().expect("just made");
        connection.call(call, patience).await
    }
}

/// How many leases and queue places one part of a reset ends, unless one lock has more: few enough
/// that a node applies the part within milliseconds.
pub(in crate::raft) const RESET_PART_MAX: usize = 1_000;

/// A reset that is carried out in parts.
struct ResetInParts {
    queue: Arc<ProposalQueue>,
    /// The request, with its idempotency key and order.
    command: Command,
    reset: Reset,
    parts: Vec<ResetPart>,
    ended: EndedByParts,
}

/// The numbers of leases and queue places that the parts of a reset have ended.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct EndedByParts {
    holds: usize,
    waits: usize,
}

impl<C: ClusterTypes> RequestPipeline<C> {
    /// Adds a command to the queue; a reset in parts of `reset_part_max` leases and queue places.
    pub fn submit(&self, command: Command, reset_part_max: usize) -> Call<Answer> {
        let reset = match &command.op {
            Op::Reset(reset) if reset.part == ResetPart::ALL => reset,
            _ => return self.queue.submit(command),
        };
        let (reset, queue) = (reset.clone(), Arc::clone(&self.queue));
        let parts = self.replica.state().engine.reset_parts(&reset.whose, reset_part_max);
        let ended = EndedByParts::default();
        Call::of_steps(ResetInParts { queue, command, reset, parts, ended }.submit())
    }
}

impl ResetInParts {
    /// Submits one part after the other, and at last the rest.
    async fn submit(mut self) -> Result<Answer, Unavailable> {
        for part in std::mem::take(&mut self.parts) {
            // A part has the id of the request, so that no part of a late copy of the request is
            // carried out.
            let op = Op::Reset(Reset { part, ..self.reset.clone() });
            let part = Command { op, ..self.command.clone() };
            match self.queue.submit(part).await {
                Ok(Ok(Outcome::ResetPart { holds, waits })) => {
                    self.ended.holds += holds;
                    self.ended.waits += waits;
                }
                Err(Unavailable::Closing) if self.ended != EndedByParts::default() => {
                    let why = "the daemon is being stopped, and a part of the reset is done".into();
                    return Err(Unavailable::NoQuorum { why });
                }
                // The request was refused or carried out before.
                answer => return answer,
            }
        }
        let EndedByParts { holds, waits } = self.ended;
        let rest = Op::Reset(Reset { part: ResetPart::Rest { holds, waits }, ..self.reset });
        self.queue.submit(Command { op: rest, ..self.command }).await
    }
}
