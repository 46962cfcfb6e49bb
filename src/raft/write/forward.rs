//! Forwards the requests of this node's clients to the leader.
//!
//! Carries out a reset of many locks in parts, each in a log entry of its own, so that the requests
//! of other clients are carried out between them.
//!
//! The last part resets all locks once more, and answers the request. If a node or the leader fails
//! before it, the request has no answer, and a repeat of it ends what is left.

use super::proposal_queue::ProposalQueue;
use crate::engine::{Answer, Command, Op, Outcome, Reset, ResetPart};
use crate::raft::cluster_types::{
    ClusterTypes, LeaderProgress, PeerConnection, PeerTransport, RaftOf, RpcError, RpcFailure,
    RpcRequest, RpcResponse, TransportOf,
};
use crate::raft::leadership::metrics;
use crate::raft::node::node_pipeline::RequestPipeline;
use crate::raft::node_environment::NodeEnvironment;
use crate::raft::store::snapshot::{Answers, NodeId};
use crate::service::{Then, Unavailable};
use crate::time::Span;
use openraft::impls::BasicNode;
use std::sync::Arc;

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
    parts: std::vec::IntoIter<ResetPart>,
    /// The numbers of leases and queue places that the parts have ended.
    ended: (usize, usize),
    then: Then<Result<Answer, Unavailable>>,
}

impl<C: ClusterTypes> RequestPipeline<C> {
    /// Adds a command to the queue; a reset in parts of `reset_part_max` leases and queue places.
    pub fn submit(
        &self,
        command: Command,
        reset_part_max: usize,
        then: Then<Result<Answer, Unavailable>>,
    ) {
        let reset = match &command.op {
            Op::Reset(reset) if reset.part == ResetPart::ALL => reset,
            _ => return self.queue.submit(command, then),
        };
        let (reset, queue) = (reset.clone(), Arc::clone(&self.queue));
        let parts = self.replica.state().engine.reset_parts(&reset.whose, reset_part_max);
        let parts = parts.into_iter();
        ResetInParts { queue, command, reset, parts, ended: (0, 0), then }.submit_next();
    }
}

impl ResetInParts {
    /// Submits the next part. Its answer submits the part after it.
    fn submit_next(mut self) {
        let (holds, waits) = self.ended;
        let Some(part) = self.parts.next() else {
            let rest = Op::Reset(Reset { part: ResetPart::Rest { holds, waits }, ..self.reset });
            return self.queue.submit(Command { op: rest, ..self.command }, self.then);
        };
        // A part has the key and the order of the request, so that no part of a late copy of the
        // request is carried out.
        let op = Op::Reset(Reset { part, ..self.reset.clone() });
        let part = Command { op, acknowledged: None, ..self.command.clone() };
        let queue = Arc::clone(&self.queue);
        let next = move |answer| match answer {
            Ok(Ok(Outcome::ResetPart { holds: more, waits: left })) => {
                self.ended = (holds + more, waits + left);
                self.submit_next();
            }
            Err(Unavailable::Closing) if self.ended != (0, 0) => {
                let why = "the daemon is being stopped, and a part of the reset is done".into();
                (self.then)(Err(Unavailable::NoQuorum { why }));
            }
            // The request was refused or carried out before.
            answer => (self.then)(answer),
        };
        queue.submit(part, Box::new(next));
    }
}
