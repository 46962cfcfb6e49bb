//! The RPC service of a node, which answers the calls of other nodes.

use super::membership::Members;
use super::node_pipeline::RequestPipeline;
use crate::raft::leadership::metrics;
use crate::raft::node::cluster_admin::Reporter;
use crate::raft::node_environment::ClusterName;
use crate::raft::node_environment::NodeAddress;
use crate::raft::rpc::accept;
use crate::raft::rpc::messages::{ANYBODY, Envelope, RpcError, RpcRequest, RpcResponse};
use crate::raft::rpc::mutual_tls::PeerCertificate;
use crate::raft::store::data_dir::Data;
use crate::raft::store::snapshot::{ClusterId, NodeId, Snapshot, TypeConfig, Vote};
use crate::service::{ActionTarget, AdminAction, AuditEntry, RefusedRequest};
use crate::shares::Identity;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::RaftError;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;

/// Answers the calls of other nodes.
pub(in crate::raft) struct PeerService {
    pub(in crate::raft) cluster: ClusterId,
    pub(in crate::raft) node: NodeId,
    pub(in crate::raft) requests: RequestPipeline<TypeConfig>,
    pub(in crate::raft) members: Arc<Members>,
    pub(super) reporter: Arc<Reporter>,
    pub(in crate::raft) data: Arc<Mutex<Data>>,
    pub(in crate::raft) name: Option<ClusterName>,
}

impl accept::RpcHandler for PeerService {
    fn cluster_name(&self) -> Option<&ClusterName> {
        self.name.as_ref()
    }

    fn admits(&self, envelope: &Envelope, certificate: &PeerCertificate) -> bool {
        // A node that is new, or has a new address, names the address itself.
        let named = match &envelope.call {
            RpcRequest::Join(station) | RpcRequest::Enroll(station) => Some(station),
            _ => None,
        };
        let members = metrics::<TypeConfig>(&self.requests.raft).membership_config;
        let known = members.get_node(&envelope.from).and_then(NodeAddress::of);
        let is_of = |station: &NodeAddress| certificate.is_of(&station.address);
        named.is_none_or(is_of) && known.as_ref().is_none_or(is_of)
    }

    fn refused(&self, address: IpAddr, reason: &str) {
        let (what, by, credential) = ("call as a node", "a peer", "certificate");
        let network = &*Identity::of_address(address).to_string();
        let address = &*address.to_string();
        let refused =
            RefusedRequest { what, by, credential, is_known: false, address, network, reason };
        self.requests.replica.audit.enter_entry(&AuditEntry::Refused(refused));
    }

    async fn leader_closed(self: Arc<Self>, leader: NodeId) {
        self.requests.leader_connection_closed(leader).await;
    }

    async fn answer(self: Arc<Self>, envelope: Envelope) -> Result<RpcResponse, RpcError> {
        let Envelope { version, cluster, from, to, call } = envelope;
        let is_anybodys = matches!(call, RpcRequest::Join(_) | RpcRequest::Status(_));
        match cluster {
            Some(cluster) if cluster != self.cluster => return Err(RpcError::OtherCluster),
            None if !is_anybodys => return Err(RpcError::OtherCluster),
            _ => {}
        }
        if to != self.node && to != ANYBODY {
            return Err(RpcError::OtherNode(self.node));
        }
        if cluster.is_some() {
            self.requests.replica.version.observe(version);
        }
        if !is_anybodys && !matches!(call, RpcRequest::Enroll(_)) {
            self.refuse_strangers(from, &call).await?;
        }
        match call {
            RpcRequest::Append(_) | RpcRequest::Vote(_) | RpcRequest::Snapshot(..) => {
                self.promise(call).await
            }
            // A pre-vote makes no promise and writes nothing to disk.
            RpcRequest::PreVote(ask) => self
                .requests
                .raft
                .pre_vote(ask)
                .await
                .map(RpcResponse::Vote)
                .map_err(|e| broken(&e)),
            RpcRequest::Transfer(ask) => self
                .requests
                .raft
                .handle_transfer_leader(ask)
                .await
                .map(RpcResponse::Transfer)
                .map_err(|e| ends(&e)),
            RpcRequest::Forward(_) | RpcRequest::Read => self.requests.answer(call).await,
            RpcRequest::Join(station) => {
                self.members.may_join(&station)?;
                let id = self.members.number().await?;
                Ok(RpcResponse::Joined(self.cluster, id))
            }
            RpcRequest::Enroll(station) if from != ANYBODY => {
                self.enroll(from, &station).await.map(|()| RpcResponse::Done)
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
    /// Adds a node to the cluster, or changes its address, and records that if this node leads.
    async fn enroll(&self, from: NodeId, station: &NodeAddress) -> Result<(), RpcError> {
        let members = metrics::<TypeConfig>(&self.requests.raft).membership_config;
        let is_known = members.get_node(&from).and_then(NodeAddress::of).as_ref() == Some(station);
        if !is_known && self.requests.role.borrow_watched().is_leader() {
            self.requests.replica.audit.enter_entry(&AuditEntry::Act(AdminAction {
                what: "add a node",
                target: Some(ActionTarget::Node(from)),
                by: &station.name,
                credential: "node",
                address: &station.address,
                outcome: "begun",
            }));
        }
        self.members.enroll(from, station).await
    }

    /// Fails if the caller was removed from the cluster. Only a leader reports this, after a quorum
    /// has confirmed that it leads. A removal that is not committed yet may still be undone, so it
    /// does not count.
    async fn refuse_strangers(&self, from: NodeId, call: &RpcRequest) -> Result<(), RpcError> {
        // Append, snapshot and transfer calls come from a leader, which knows the members better
        // than this node.
        if matches!(
            call,
            RpcRequest::Append(_) | RpcRequest::Snapshot(..) | RpcRequest::Transfer(_)
        ) {
            return Ok(());
        }
        let replica = &self.requests.replica;
        let is_member = || {
            // The newest membership, which may not be committed yet, and the committed one.
            let newest = metrics::<TypeConfig>(&self.requests.raft).membership_config;
            newest.get_node(&from).is_some() || replica.state().members().get_node(&from).is_some()
        };
        if is_member() || !self.requests.role.borrow_watched().is_leader() {
            return Ok(());
        }
        let place = self.requests.reader.place().await?;
        replica.carried_out(place.index).await;
        if is_member() { Ok(()) } else { Err(RpcError::Removed) }
    }

    /// Handles a call whose answer is a promise: a vote, or an acknowledgement of entries or of a
    /// snapshot. From then on the node must not start without its log, so the file `node` is
    /// updated before the answer is sent, but after the log has been written: a node that is killed
    /// in between can start again.
    async fn promise(&self, call: RpcRequest) -> Result<RpcResponse, RpcError> {
        let response = match call {
            RpcRequest::Append(ask) => {
                let said = self.requests.append_entries(ask).await;
                said.map(RpcResponse::Append).map_err(|error| broken(&error))
            }
            RpcRequest::Vote(ask) => {
                self.requests.raft.vote(ask).await.map(RpcResponse::Vote).map_err(|e| broken(&e))
            }
            RpcRequest::Snapshot(vote, snapshot) => self.install(vote, snapshot).await,
            _ => Err(RpcError::Malformed),
        }?;
        let begun = self.data.lock().has_begun();
        begun.map_err(|error| RpcError::Refused(error.to_string().into()))?;
        Ok(response)
    }

    async fn install(&self, vote: Vote, snapshot: Snapshot) -> Result<RpcResponse, RpcError> {
        let installed = self.requests.raft.install_full_snapshot(vote, snapshot).await;
        installed.map(|said| RpcResponse::Snapshot(said.vote)).map_err(|error| ends(&error))
    }
}

fn ends(error: &impl std::fmt::Display) -> RpcError {
    RpcError::Refused(format!("it stops: {error}").into())
}

fn broken(error: &RaftError<TypeConfig>) -> RpcError {
    ends(error)
}
