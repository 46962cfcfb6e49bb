//! The types that differ between a cluster of real nodes and a simulated one: openraft's runtime,
//! the state machine with its disk, and the connections between the nodes.

pub use super::rpc::messages::{LeaderProgress, RpcError, RpcRequest, RpcResponse};
use crate::net::connections::dial;
use crate::raft::node_environment::{NodeAddress, host_and_port};
pub use crate::raft::rpc::network::RpcFailure;
use crate::raft::rpc::network::{RpcConnection, RpcIdentity};
use crate::raft::store::snapshot::{
    Answers, Entry, Leader, NodeId, Payload, Proposal, TypeConfig, Vote,
};
use crate::raft::write::state_machine::StateMachine;
use crate::time::Span;
use openraft::RaftTypeConfig;
use openraft::impls::{BasicNode, ProgressResponder};
use openraft::raft::ClientWriteResult;
use openraft::storage::RaftStateMachine;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::time::timeout;

/// How long a machine has to refuse a connection.
const PROBE_PATIENCE: Span = Span::from_millis(200);

/// openraft's type configuration of a cluster. Log entries have the same type in all clusters; the
/// async runtime may differ.
pub trait ClusterTypes:
    RaftTypeConfig<
        D = Proposal,
        R = Answers,
        NodeId = NodeId,
        Node = BasicNode,
        Term = u64,
        LeaderId = Leader,
        Vote = Vote,
        Payload = Payload,
        Entry = Entry,
        Responder<ClientWriteResult<Self>> = ProgressResponder<Self, ClientWriteResult<Self>>,
    >
{
    /// The state machine to which openraft applies committed entries.
    type StateMachine: RaftStateMachine<Self, SnapshotData = Arc<[u8]>>;
    /// Opens connections to other nodes.
    type Transport: PeerTransport;
}

impl ClusterTypes for TypeConfig {
    type StateMachine = StateMachine;
    type Transport = RpcIdentity;
}

/// The openraft handle of a node in a cluster of type `C`.
pub(crate) type RaftOf<C> = openraft::Raft<C, <C as ClusterTypes>::StateMachine>;

/// The transport that a node in a cluster of type `C` uses to reach other nodes.
pub(crate) type TransportOf<C> = <C as ClusterTypes>::Transport;

/// Opens connections to other nodes.
pub trait PeerTransport: Send + Sync + 'static {
    /// The type of a connection to one other node.
    type Connection: PeerConnection;

    /// Returns a connection to a node, which is opened at the first call, or `None` if the node has
    /// no address.
    fn connection(self: &Arc<Self>, to: NodeId, node: &BasicNode) -> Option<Self::Connection>;

    /// Whether the machine of a node refuses a connection, so that no process accepts any there.
    fn is_refused(&self, to: NodeId, node: &BasicNode) -> impl Future<Output = bool> + Send;
}

/// A connection from this node to one other node.
pub trait PeerConnection: Send + 'static {
    /// Calls the node and returns its response. Dropping the future before it completes also drops
    /// the connection.
    fn call(
        &mut self,
        call: RpcRequest,
        patience: Span,
    ) -> impl Future<Output = Result<RpcResponse, RpcFailure>> + Send;
}

impl PeerTransport for RpcIdentity {
    type Connection = RpcConnection;

    fn connection(self: &Arc<Self>, to: NodeId, node: &BasicNode) -> Option<RpcConnection> {
        NodeAddress::of(node).map(|at| self.line(to, &at.address))
    }

    async fn is_refused(&self, _: NodeId, node: &BasicNode) -> bool {
        let Some(at) = NodeAddress::of(node) else { return false };
        let Some((host, port)) = host_and_port(&at.address) else { return false };
        let dialled = timeout(PROBE_PATIENCE.as_duration(), dial(host, port)).await;
        matches!(dialled, Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl PeerConnection for RpcConnection {
    async fn call(&mut self, call: RpcRequest, patience: Span) -> Result<RpcResponse, RpcFailure> {
        Self::call(self, call, patience).await
    }
}
