//! The network of a node that is alone: there is nobody to send anything to.

use super::kind::{Kind, NodeId, Snapshot, Vote};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use std::future::Future;
use std::io;
use std::sync::Arc;

/// Makes connections that reach nobody.
pub(super) struct Lone;

fn nobody() -> Unreachable<Kind> {
    Unreachable::new(&io::Error::other("this node is alone"))
}

impl RaftNetworkFactory<Kind> for Lone {
    type Network = Self;

    async fn new_client(&mut self, _: NodeId, _: &BasicNode) -> Self {
        Self
    }
}

impl RaftNetworkV2<Kind> for Lone {
    type SnapshotData = Arc<[u8]>;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Kind>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Kind>, RPCError<Kind>> {
        Err(nobody().into())
    }

    async fn vote(
        &mut self,
        _: VoteRequest<Kind>,
        _: RPCOption,
    ) -> Result<VoteResponse<Kind>, RPCError<Kind>> {
        Err(nobody().into())
    }

    async fn full_snapshot(
        &mut self,
        _: Vote,
        _: Snapshot,
        _: impl Future<Output = ReplicationClosed> + Send + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Kind>, StreamingError<Kind>> {
        Err(nobody().into())
    }
}
