//! The RPC service of a node, which answers the calls of other nodes.

use super::data_dir::Data;
use super::leadership::{LeadershipRole, metrics};
use super::linearizable_read::LinearizableReader;
use super::membership::{Members, leader_address};
use super::proposal_queue::ProposalQueue;
use super::rpc::accept;
use super::rpc::messages::{ANYBODY, Envelope, LeaderProgress, RpcError, RpcRequest, RpcResponse};
use super::staleness::StalenessBound;
use super::state_machine::Raft;
use super::status_report::Reporter;
use super::types::{ClusterId, NodeId, Snapshot, TypeConfig, Vote};
use crate::engine::Command;
use crate::time::{boot_now, steady_now};
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// Answers the calls of other nodes.
pub(super) struct PeerService {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) raft: Raft,
    pub(super) desk: Arc<ProposalQueue>,
    pub(super) freshness: Arc<StalenessBound>,
    pub(super) reader: Arc<LinearizableReader>,
    pub(super) members: Arc<Members>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) stand: watch::Receiver<LeadershipRole>,
    pub(super) data: Arc<Mutex<Data>>,
}

impl accept::RpcHandler for PeerService {
    async fn answer(self: Arc<Self>, letter: Envelope) -> Result<RpcResponse, RpcError> {
        let Envelope { cluster, from, to, call } = letter;
        let is_anybodys = matches!(call, RpcRequest::Join(_) | RpcRequest::Status(_));
        match cluster {
            Some(cluster) if cluster != self.cluster => return Err(RpcError::OtherCluster),
            None if !is_anybodys => return Err(RpcError::OtherCluster),
            _ => {}
        }
        if to != self.node && to != ANYBODY {
            return Err(RpcError::OtherNode(self.node));
        }
        if !is_anybodys && !matches!(call, RpcRequest::Enroll(_)) {
            self.refuse_strangers(from, &call).await?;
        }
        match call {
            RpcRequest::Append(_) | RpcRequest::Vote(_) | RpcRequest::Snapshot(..) => {
                self.promise(call).await
            }
            // It promises nothing and writes nothing.
            RpcRequest::PreVote(ask) => {
                self.raft.pre_vote(ask).await.map(RpcResponse::Vote).map_err(|e| broken(&e))
            }
            RpcRequest::Transfer(ask) => self
                .raft
                .handle_transfer_leader(ask)
                .await
                .map(RpcResponse::Transfer)
                .map_err(|e| ends(&e)),
            RpcRequest::Forward(commands) => self.carry_out(commands).await,
            RpcRequest::Read => self.reader.place().await.map(RpcResponse::Read),
            RpcRequest::Join(_) => {
                let id = self.members.number().await?;
                Ok(RpcResponse::Joined(self.cluster, id))
            }
            RpcRequest::Enroll(station) if from != ANYBODY => {
                self.members.enroll(from, &station).await.map(|()| RpcResponse::Done)
            }
            RpcRequest::Enroll(_) => Err(RpcError::Malformed),
            RpcRequest::Change(change) => {
                self.members.change(change).await.map(|()| RpcResponse::Done)
            }
            RpcRequest::Status(with_state) => {
                Ok(RpcResponse::Status(self.reporter.own(with_state)))
            }
        }
    }
}

impl PeerService {
    /// Fails if the caller was removed. Only a leader says so, after a quorum has confirmed that it
    /// leads.
    async fn refuse_strangers(&self, from: NodeId, call: &RpcRequest) -> Result<(), RpcError> {
        // These calls come from a leader, which knows the members better than this node.
        if matches!(
            call,
            RpcRequest::Append(_) | RpcRequest::Snapshot(..) | RpcRequest::Transfer(_)
        ) {
            return Ok(());
        }
        let is_member = || metrics(&self.raft).membership_config.get_node(&from).is_some();
        if is_member() || !self.stand.borrow().is_leader() {
            return Ok(());
        }
        self.reader.place().await?;
        if is_member() { Ok(()) } else { Err(RpcError::Removed) }
    }

    /// Answers a call whose answer is a promise. From then on the log must be there at a start,
    /// and `node` says so before the answer goes out, but after the log has what it promises: a
    /// node that is killed in between starts again.
    async fn promise(&self, call: RpcRequest) -> Result<RpcResponse, RpcError> {
        let told = match call {
            RpcRequest::Append(ask) => self.append(ask).await,
            RpcRequest::Vote(ask) => {
                self.raft.vote(ask).await.map(RpcResponse::Vote).map_err(|e| broken(&e))
            }
            RpcRequest::Snapshot(vote, snapshot) => self.install(vote, snapshot).await,
            _ => Err(RpcError::Malformed),
        }?;
        let begun = self.data.lock().has_begun();
        begun.map_err(|error| RpcError::Refused(error.to_string().into()))?;
        Ok(told)
    }

    async fn append(&self, ask: AppendEntriesRequest<TypeConfig>) -> Result<RpcResponse, RpcError> {
        let (at, decided) = (boot_now(), ask.leader_commit);
        let said = self.raft.append_entries(ask).await.map_err(|error| broken(&error))?;
        if said == AppendEntriesResponse::Success {
            let applied = self.reader.replica.applied();
            self.freshness.hear(at, decided.map_or(0, |decided| decided.index), applied);
        }
        Ok(RpcResponse::Append(said))
    }

    async fn install(&self, vote: Vote, snapshot: Snapshot) -> Result<RpcResponse, RpcError> {
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        installed.map(|said| RpcResponse::Snapshot(said.vote)).map_err(|error| ends(&error))
    }

    async fn carry_out(&self, commands: Vec<Command>) -> Result<RpcResponse, RpcError> {
        let LeadershipRole::Leads(reign) = *self.stand.borrow() else {
            return Err(RpcError::NotLeader(leader_address(&metrics(&self.raft))));
        };
        let (send, delivered) = oneshot::channel();
        // A caller that has gone meanwhile needs no answer.
        self.desk.send_on(commands, Box::new(move |delivery| drop(send.send(delivery))));
        let (index, answers) = delivered.await.unwrap_or(Err(RpcError::Unknown))?;
        let now = reign.clock.at(steady_now());
        Ok(RpcResponse::Forwarded(LeaderProgress { index, now }, answers))
    }
}

fn ends(error: &impl std::fmt::Display) -> RpcError {
    RpcError::Refused(format!("it stops: {error}").into())
}

fn broken(error: &RaftError<TypeConfig>) -> RpcError {
    ends(error)
}
