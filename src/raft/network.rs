//! The network as openraft sees it: one link for each purpose and node, for heartbeats, log
//! entries, votes and snapshots.

use super::node_address::Station;
use super::replica::Replica;
use super::rpc::messages::{Call, Told, Turned};
use super::rpc::rpc_client::{Caller, Line, Trouble};
use super::types::{Kind, NodeId, Snapshot, Vote};
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

/// A call that changes nothing on a disk, or little. Who is cut off is found out soon, for a
/// connection that was opened before the cut may stay dumb for long after it.
const CALL_PATIENCE: Span = Span::from_millis(500);
/// Entries in so many bytes may take longer by a second: a disk and a network that are slow.
const BYTES_A_SECOND: u64 = 4 << 20;
/// Bytes that an entry has at most where it is only counted.
const ENTRY_BYTES: u64 = 16 << 10;

/// Makes links. Whoever has no peers has none that they could reach.
pub(super) struct Network {
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) replica: Arc<Replica>,
    /// Set when a leader says that this node is a member no more.
    pub(super) removed: Arc<AtomicBool>,
}

/// A way to one node.
pub(super) struct Link {
    line: Option<Line>,
    to: NodeId,
    caller: Option<Arc<Caller>>,
    replica: Arc<Replica>,
    removed: Arc<AtomicBool>,
    /// Where it was when the link was made.
    known: Option<Station>,
}

impl RaftNetworkFactory<Kind> for Network {
    type Network = Link;

    async fn new_client(&mut self, to: NodeId, node: &BasicNode) -> Link {
        Link {
            line: None,
            to,
            caller: self.caller.clone(),
            replica: Arc::clone(&self.replica),
            removed: Arc::clone(&self.removed),
            known: Station::of(node),
        }
    }
}

impl Link {
    async fn call(&mut self, call: Call, patience: Span) -> Result<Told, RPCError<Kind>> {
        let unreachable = |why: &str| RPCError::from(Unreachable::from_string(why));
        let Some(caller) = &self.caller else { return Err(unreachable("this node is alone")) };
        let at = self.replica.look().members().get_node(&self.to).and_then(Station::of);
        let Some(at) = at.or_else(|| self.known.clone()) else {
            return Err(unreachable("nobody knows where it is"));
        };
        if self.line.as_ref().is_none_or(|line| line.address != at.address) {
            self.line = Some(caller.line(self.to, &at.address));
        }
        let line = self.line.as_mut().expect("just made");
        line.call(call, patience).await.map_err(|trouble| {
            if matches!(trouble, Trouble::Turned(Turned::Removed)) {
                self.removed.store(true, Ordering::Relaxed);
            }
            log::debug!("node {}: {trouble}", self.to);
            match trouble {
                Trouble::Unheard(_) => NetworkError::from_string(trouble).into(),
                Trouble::Unsent(_) | Trouble::Turned(_) => Unreachable::from_string(trouble).into(),
            }
        })
    }
}

fn foreign() -> RPCError<Kind> {
    Unreachable::from_string("it answered what was not asked").into()
}

impl RaftNetworkV2<Kind> for Link {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        ask: AppendEntriesRequest<Kind>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Kind>, RPCError<Kind>> {
        let bytes = ask.entries.len() as u64 * ENTRY_BYTES;
        let patience = CALL_PATIENCE.as_millis() + bytes * 1_000 / BYTES_A_SECOND;
        match self.call(Call::Append(ask), Span::from_millis(patience)).await? {
            Told::Append(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn vote(
        &mut self,
        ask: VoteRequest<Kind>,
        _: RPCOption,
    ) -> Result<VoteResponse<Kind>, RPCError<Kind>> {
        match self.call(Call::Vote(ask), CALL_PATIENCE).await? {
            Told::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn pre_vote(
        &mut self,
        ask: VoteRequest<Kind>,
        _: RPCOption,
    ) -> Result<VoteResponse<Kind>, RPCError<Kind>> {
        match self.call(Call::PreVote(ask), CALL_PATIENCE).await? {
            Told::Vote(said) => Ok(said),
            _ => Err(foreign()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Kind>, StreamingError<Kind>> {
        let bytes = snapshot.snapshot.len() as u64;
        let patience = 10 * CALL_PATIENCE.as_millis() + bytes * 1_000 / BYTES_A_SECOND;
        let call = self.call(Call::Snapshot(vote, snapshot), Span::from_millis(patience));
        let told = tokio::select! {
            told = call => told?,
            closed = cancel => return Err(closed.into()),
        };
        match told {
            Told::Snapshot(vote) => Ok(SnapshotResponse::new(vote)),
            _ => Err(foreign().into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        ask: TransferLeaderRequest<Kind>,
        _: RPCOption,
    ) -> Result<TransferLeaderResponse<Kind>, RPCError<Kind>> {
        match self.call(Call::Transfer(ask), CALL_PATIENCE).await? {
            Told::Transfer(said) => Ok(said),
            _ => Err(foreign()),
        }
    }
}
