//! Implements openraft's network traits: links to other nodes that carry heartbeats, log entries,
//! votes and snapshots. openraft opens one link per purpose and node.

use super::entry_weight::fitting;
use super::node_address::NodeAddress;
use super::replica::Replica;
use super::rpc::messages::{RpcError, RpcRequest, RpcResponse};
use super::rpc::rpc_client::{RpcConnection, RpcFailure, RpcIdentity};
use super::types::{NodeId, Snapshot, TypeConfig, Vote};
use crate::time::Span;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Timeout of a call that writes little or nothing to a disk. It is short, since a connection that
/// was opened before a partition may stay silent long after the partition has ended.
const CALL_PATIENCE: Span = Span::from_millis(500);
/// The number of bytes per second that a slow disk or network is assumed to transfer: the timeout
/// of a call grows by a second for each such amount of data.
const BYTES_A_SECOND: u64 = 4 << 20;
/// The minimum of the average entry size, in bytes, from which the timeout of a call with log
/// entries is computed.
const ENTRY_BYTES: u64 = 16 << 10;

/// Makes links to other nodes. A lone node has no `caller`, so its links are unreachable.
pub(super) struct Network {
    pub(super) caller: Option<Arc<RpcIdentity>>,
    pub(super) replica: Arc<Replica>,
    /// Set when a leader reports that this node is no longer a member.
    pub(super) removed: Arc<AtomicBool>,
}

/// A link to one node.
pub(super) struct PeerLink {
    line: Option<RpcConnection>,
    to: NodeId,
    caller: Option<Arc<RpcIdentity>>,
    replica: Arc<Replica>,
    removed: Arc<AtomicBool>,
    /// The address that the node had when the link was made. It is used if the membership has no
    /// address of the node.
    known: Option<NodeAddress>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = PeerLink;

    async fn new_client(&mut self, to: NodeId, node: &BasicNode) -> PeerLink {
        PeerLink {
            line: None,
            to,
            caller: self.caller.clone(),
            replica: Arc::clone(&self.replica),
            removed: Arc::clone(&self.removed),
            known: NodeAddress::of(node),
        }
    }
}

impl PeerLink {
    async fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
    ) -> Result<RpcResponse, RPCError<TypeConfig>> {
        let unreachable = |why: &str| RPCError::from(Unreachable::from_string(why));
        let Some(caller) = &self.caller else { return Err(unreachable("this node is alone")) };
        let at = self.replica.look().members().get_node(&self.to).and_then(NodeAddress::of);
        let Some(at) = at.or_else(|| self.known.clone()) else {
            return Err(unreachable("its address is unknown"));
        };
        if self.line.as_ref().is_none_or(|line| line.address != at.address) {
            self.line = Some(caller.line(self.to, &at.address));
        }
        let line = self.line.as_mut().expect("just made");
        line.call(call, patience).await.map_err(|trouble| {
            if matches!(trouble, RpcFailure::Turned(RpcError::Removed)) {
                self.removed.store(true, Ordering::Relaxed);
            }
            log::debug!("node {}: {trouble}", self.to);
            match trouble {
                RpcFailure::Unheard(_) => NetworkError::from_string(trouble).into(),
                RpcFailure::Unsent(_) | RpcFailure::Turned(_) => {
                    Unreachable::from_string(trouble).into()
                }
            }
        })
    }
}

fn foreign() -> RPCError<TypeConfig> {
    Unreachable::from_string("it sent an unexpected answer").into()
}

impl RaftNetworkV2<TypeConfig> for PeerLink {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        mut ask: AppendEntriesRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        // A call carries only the entries that fit, since the receiver refuses larger calls;
        // openraft sends the remaining entries later.
        let (count, weight) = fitting(&ask.entries);
        let is_whole = count == ask.entries.len();
        ask.entries.truncate(count);
        let sent = ask.entries.last().map(|entry| entry.log_id);
        let bytes = (count as u64 * ENTRY_BYTES).max(weight as u64);
        let patience = CALL_PATIENCE.as_millis() + bytes * 1_000 / BYTES_A_SECOND;
        match self.call(RpcRequest::Append(ask), Span::from_millis(patience)).await? {
            RpcResponse::Append(AppendEntriesResponse::Success) if !is_whole => {
                Ok(AppendEntriesResponse::PartialSuccess(sent))
            }
            RpcResponse::Append(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn vote(
        &mut self,
        ask: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::Vote(ask), CALL_PATIENCE).await? {
            RpcResponse::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn pre_vote(
        &mut self,
        ask: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::PreVote(ask), CALL_PATIENCE).await? {
            RpcResponse::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let bytes = snapshot.snapshot.len() as u64;
        let patience = 10 * CALL_PATIENCE.as_millis() + bytes * 1_000 / BYTES_A_SECOND;
        let call = self.call(RpcRequest::Snapshot(vote, snapshot), Span::from_millis(patience));
        let told = tokio::select! {
            told = call => told?,
            closed = cancel => return Err(closed.into()),
        };
        match told {
            RpcResponse::Snapshot(vote) => Ok(SnapshotResponse::new(vote)),
            _ => Err(foreign().into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        ask: TransferLeaderRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        match self.call(RpcRequest::Transfer(ask), CALL_PATIENCE).await? {
            RpcResponse::Transfer(said) => Ok(said),
            _ => Err(foreign()),
        }
    }
}
