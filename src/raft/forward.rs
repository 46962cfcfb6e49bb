//! Sending on to whoever leads: what clients of this node ask.

use super::leadership::metrics;
use super::node_address::Station;
use super::rpc::messages::{Call, Place, Told, Turned};
use super::rpc::rpc_client::{Caller, Line, Trouble};
use super::types::{Answers, NodeId, Raft};
use crate::engine::Command;
use crate::time::Span;
use std::sync::Arc;

/// A connection to whoever leads, kept as long as that is the same.
pub(super) struct Forwarder {
    raft: Raft,
    caller: Arc<Caller>,
    line: Option<(NodeId, Line)>,
}

/// How long one call may take before it is given up: less than anybody waits for an answer, so
/// that there is time to ask whoever leads then.
const CALL_PATIENCE: Span = Span::from_millis(1_500);

impl Forwarder {
    pub(super) fn new(raft: Raft, caller: Arc<Caller>) -> Self {
        Self { raft, caller, line: None }
    }

    /// Has commands carried out. Their answers, and their entry.
    pub(super) async fn forward(
        &mut self,
        commands: Vec<Command>,
        patience: Span,
    ) -> Result<(Place, Answers), Trouble> {
        let count = commands.len();
        match self.call(Call::Forward(commands), patience.min(CALL_PATIENCE)).await? {
            Told::Forwarded(place, answers) if answers.len() == count => Ok((place, answers)),
            _ => Err(Trouble::Unheard("it answered what was not asked".to_owned())),
        }
    }

    /// Up to where the log is to be carried out before a look.
    pub(super) async fn read(&mut self, patience: Span) -> Result<Place, Trouble> {
        match self.call(Call::Read, patience.min(CALL_PATIENCE)).await? {
            Told::Read(place) => Ok(place),
            _ => Err(Trouble::Unheard("it answered what was not asked".to_owned())),
        }
    }

    /// Calls whoever leads.
    pub(super) async fn call(&mut self, call: Call, patience: Span) -> Result<Told, Trouble> {
        let metrics = metrics(&self.raft);
        let nobody = || Trouble::Turned(Turned::NotLeader(None));
        let leader = metrics.current_leader.filter(|id| *id != metrics.id).ok_or_else(nobody)?;
        let station = metrics.membership_config.get_node(&leader).and_then(Station::of);
        let station = station.ok_or_else(nobody)?;
        match &self.line {
            Some((id, line)) if *id == leader && line.address == station.address => {}
            _ => self.line = Some((leader, self.caller.line(leader, &station.address))),
        }
        let (_, line) = self.line.as_mut().expect("just made");
        line.call(call, patience).await
    }
}
