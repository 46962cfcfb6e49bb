//! Forwards the requests of this node's clients to the leader.

use super::leadership::metrics;
use super::node_address::NodeAddress;
use super::rpc::messages::{LeaderProgress, RpcError, RpcRequest, RpcResponse};
use super::rpc::rpc_client::{RpcConnection, RpcFailure, RpcIdentity};
use super::state_machine::Raft;
use super::types::{Answers, NodeId};
use crate::engine::Command;
use crate::time::Span;
use std::sync::Arc;

/// A connection to the leader, kept until another node leads.
pub(super) struct Forwarder {
    raft: Raft,
    caller: Arc<RpcIdentity>,
    line: Option<(NodeId, RpcConnection)>,
}

/// Timeout of one call: shorter than the deadline of an answer, so that there is time to ask the
/// next leader.
const CALL_PATIENCE: Span = Span::from_millis(1_500);

impl Forwarder {
    pub(super) fn new(raft: Raft, caller: Arc<RpcIdentity>) -> Self {
        Self { raft, caller, line: None }
    }

    /// Has the leader apply commands. Returns their answers, and their entry.
    pub(super) async fn forward(
        &mut self,
        commands: Vec<Command>,
        patience: Span,
    ) -> Result<(LeaderProgress, Answers), RpcFailure> {
        let count = commands.len();
        match self.call(RpcRequest::Forward(commands), patience.min(CALL_PATIENCE)).await? {
            RpcResponse::Forwarded(place, answers) if answers.len() == count => {
                Ok((place, answers))
            }
            _ => Err(RpcFailure::Unheard("it sent an unexpected answer".to_owned())),
        }
    }

    /// Returns the leader's read index: the entry that a read must have applied.
    pub(super) async fn read(&mut self, patience: Span) -> Result<LeaderProgress, RpcFailure> {
        match self.call(RpcRequest::Read, patience.min(CALL_PATIENCE)).await? {
            RpcResponse::Read(place) => Ok(place),
            _ => Err(RpcFailure::Unheard("it sent an unexpected answer".to_owned())),
        }
    }

    /// Calls the leader.
    pub(super) async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
    ) -> Result<RpcResponse, RpcFailure> {
        let metrics = metrics(&self.raft);
        let nobody = || RpcFailure::Turned(RpcError::NotLeader(None));
        let leader = metrics.current_leader.filter(|id| *id != metrics.id).ok_or_else(nobody)?;
        let station = metrics.membership_config.get_node(&leader).and_then(NodeAddress::of);
        let station = station.ok_or_else(nobody)?;
        match &self.line {
            Some((id, line)) if *id == leader && line.address == station.address => {}
            _ => self.line = Some((leader, self.caller.line(leader, &station.address))),
        }
        let (_, line) = self.line.as_mut().expect("just made");
        line.call(call, patience).await
    }
}
