//! Who answers the calls of other nodes.

use super::data_dir::Data;
use super::leadership::{Stand, metrics};
use super::linearizable_read::Reader;
use super::membership::{Members, leader_address};
use super::proposal_queue::Desk;
use super::rpc::accept;
use super::rpc::messages::{ANYBODY, Call, Letter, Place, Told, Turned};
use super::staleness::Freshness;
use super::status_report::Reporter;
use super::types::{ClusterId, Kind, NodeId, Raft, Snapshot, Vote};
use crate::engine::Command;
use crate::time::{boot_now, steady_now};
use openraft::errors::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

/// Answers the calls of other nodes.
pub(super) struct Reception {
    pub(super) cluster: ClusterId,
    pub(super) node: NodeId,
    pub(super) raft: Raft,
    pub(super) desk: Arc<Desk>,
    pub(super) freshness: Arc<Freshness>,
    pub(super) reader: Arc<Reader>,
    pub(super) members: Arc<Members>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) stand: watch::Receiver<Stand>,
    pub(super) data: Arc<Mutex<Data>>,
}

impl accept::Answers for Reception {
    async fn answer(self: Arc<Self>, letter: Letter) -> Result<Told, Turned> {
        let Letter { cluster, from, to, call } = letter;
        let is_anybodys = matches!(call, Call::Join(_) | Call::Status(_));
        match cluster {
            Some(cluster) if cluster != self.cluster => return Err(Turned::OtherCluster),
            None if !is_anybodys => return Err(Turned::OtherCluster),
            _ => {}
        }
        if to != self.node && to != ANYBODY {
            return Err(Turned::OtherNode(self.node));
        }
        if !is_anybodys && !matches!(call, Call::Enroll(_)) {
            self.refuse_strangers(from, &call).await?;
        }
        match call {
            Call::Append(_) | Call::Vote(_) | Call::Snapshot(..) => self.promise(call).await,
            // It promises nothing and writes nothing.
            Call::PreVote(ask) => {
                self.raft.pre_vote(ask).await.map(Told::Vote).map_err(|e| broken(&e))
            }
            Call::Transfer(ask) => self
                .raft
                .handle_transfer_leader(ask)
                .await
                .map(Told::Transfer)
                .map_err(|e| ends(&e)),
            Call::Forward(commands) => self.carry_out(commands).await,
            Call::Read => self.reader.place().await.map(Told::Read),
            Call::Join(_) => {
                let id = self.members.number().await?;
                Ok(Told::Joined(self.cluster, id))
            }
            Call::Enroll(station) if from != ANYBODY => {
                self.members.enroll(from, &station).await.map(|()| Told::Done)
            }
            Call::Enroll(_) => Err(Turned::Malformed),
            Call::Change(change) => self.members.change(change).await.map(|()| Told::Done),
            Call::Status(with_state) => Ok(Told::Status(self.reporter.own(with_state))),
        }
    }
}

impl Reception {
    /// Whoever was removed is told so, by a leader that surely leads.
    async fn refuse_strangers(&self, from: NodeId, call: &Call) -> Result<(), Turned> {
        // Who leads knows better than this node who is a member.
        if matches!(call, Call::Append(_) | Call::Snapshot(..) | Call::Transfer(_)) {
            return Ok(());
        }
        let is_member = || metrics(&self.raft).membership_config.get_node(&from).is_some();
        if is_member() || !matches!(*self.stand.borrow(), Stand::Leads(_)) {
            return Ok(());
        }
        self.reader.place().await?;
        if is_member() { Ok(()) } else { Err(Turned::Removed) }
    }

    /// Answers a call whose answer is a promise. From then on the log must be there at a start,
    /// and `node` says so before the answer goes out, but after the log has what it promises: a
    /// node that is killed in between starts again.
    async fn promise(&self, call: Call) -> Result<Told, Turned> {
        let told = match call {
            Call::Append(ask) => self.append(ask).await,
            Call::Vote(ask) => self.raft.vote(ask).await.map(Told::Vote).map_err(|e| broken(&e)),
            Call::Snapshot(vote, snapshot) => self.install(vote, snapshot).await,
            _ => Err(Turned::Malformed),
        }?;
        let begun = self.data.lock().has_begun();
        begun.map_err(|error| Turned::Refused(error.to_string().into()))?;
        Ok(told)
    }

    async fn append(&self, ask: AppendEntriesRequest<Kind>) -> Result<Told, Turned> {
        let (at, decided) = (boot_now(), ask.leader_commit);
        let said = self.raft.append_entries(ask).await.map_err(|error| broken(&error))?;
        if said == AppendEntriesResponse::Success {
            let applied = self.reader.replica.applied();
            self.freshness.hear(at, decided.map_or(0, |decided| decided.index), applied);
        }
        Ok(Told::Append(said))
    }

    async fn install(&self, vote: Vote, snapshot: Snapshot) -> Result<Told, Turned> {
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        installed.map(|said| Told::Snapshot(said.vote)).map_err(|error| ends(&error))
    }

    async fn carry_out(&self, commands: Vec<Command>) -> Result<Told, Turned> {
        let Stand::Leads(reign) = *self.stand.borrow() else {
            return Err(Turned::NotLeader(leader_address(&metrics(&self.raft))));
        };
        let (send, delivered) = oneshot::channel();
        // Whoever has gone meanwhile needs no answer.
        self.desk.send_on(commands, Box::new(move |delivery| drop(send.send(delivery))));
        let (index, answers) = delivered.await.unwrap_or(Err(Turned::Unknown))?;
        let now = reign.clock.at(steady_now());
        Ok(Told::Forwarded(Place { index, now }, answers))
    }
}

fn ends(error: &impl std::fmt::Display) -> Turned {
    Turned::Refused(format!("it stops: {error}").into())
}

fn broken(error: &RaftError<Kind>) -> Turned {
    ends(error)
}
