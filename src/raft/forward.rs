//! Forwards the requests of this node's clients to the leader.

use super::cluster_types::{
    ClusterTypes, LeaderProgress, PeerConnection, PeerTransport, RaftOf, RpcError, RpcFailure,
    RpcRequest, RpcResponse, TransportOf,
};
use super::leadership::metrics;
use super::node_environment::NodeEnvironment;
use super::types::{Answers, NodeId};
use crate::engine::Command;
use crate::time::Span;
use openraft::impls::BasicNode;
use std::sync::Arc;

/// A connection to the leader, kept until another node leads.
pub(super) struct Forwarder<C: ClusterTypes> {
    raft: RaftOf<C>,
    transport: Arc<TransportOf<C>>,
    environment: Arc<dyn NodeEnvironment>,
    /// The connection, and the node to which it goes.
    open: Option<(NodeId, BasicNode, ConnectionOf<C>)>,
}

type ConnectionOf<C> = <TransportOf<C> as PeerTransport>::Connection;

impl<C: ClusterTypes> Forwarder<C> {
    pub(super) fn new(
        raft: RaftOf<C>,
        transport: Arc<TransportOf<C>>,
        environment: Arc<dyn NodeEnvironment>,
    ) -> Self {
        Self { raft, transport, environment, open: None }
    }

    /// Sends commands to the leader, which applies them. Returns the index of their log entry, the
    /// leader's time, and the answers to the commands.
    pub(super) async fn forward(
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
    pub(super) async fn read(&mut self, patience: Span) -> Result<LeaderProgress, RpcFailure> {
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
    pub(super) async fn call(
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
