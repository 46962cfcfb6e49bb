//! The first start of a cluster whose nodes are declared (`--initial-cluster`): all nodes have the
//! same set of addresses, and may start in any order.
//!
//! The node with the smallest address begins the cluster, but only after all others have said that
//! they have no cluster either, and are declared with the same addresses. The others join it. So
//! two nodes never both begin one, and a node that has lost its data begins no second cluster:
//! either another node knows the first one, or does not answer, and then this node waits.

use super::cluster_name::ClusterName;
use super::data_dir;
use super::data_dir_error::{DataError, PeerError};
use super::peer_config::ListeningPeers;
use super::rpc::accept::{RpcHandler, accept};
use super::rpc::messages::{ANYBODY, Envelope, RpcError, RpcRequest, RpcResponse};
use super::rpc::mutual_tls::PeerCertificate;
use super::rpc::rpc_client::{RpcFailure, RpcIdentity};
use super::types::{ClusterId, NodeId};
use crate::base::jittered;
use crate::time::Span;
use futures_util::future::join_all;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::time::sleep;

/// Timeout of the question whether another node has a cluster.
const ASK_PATIENCE: Span = Span::from_secs(5);
/// The pause between two rounds of questions, before jitter.
const ASK_PAUSE: Span = Span::from_millis(250);

/// What an empty node does once the other nodes have answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstStart {
    Begin,
    Join,
}

/// Answers the calls of other nodes while this node has no cluster.
struct EmptyNode {
    name: Option<ClusterName>,
    /// The declared addresses.
    declared: Arc<str>,
}

impl RpcHandler for EmptyNode {
    fn cluster_name(&self) -> Option<&ClusterName> {
        self.name.as_ref()
    }

    fn admits(&self, _: &Envelope, _: &PeerCertificate) -> bool {
        true
    }

    fn refused(&self, address: IpAddr, why: &str) {
        // Anyone who reaches the port can cause this line. A node with wrong credentials says so
        // itself, when it asks others.
        log::debug!("a call from {address} is refused: {why}");
    }

    async fn leader_closed(self: Arc<Self>, _: NodeId) {}

    async fn answer(self: Arc<Self>, _: Envelope) -> Result<RpcResponse, RpcError> {
        Err(RpcError::NoCluster(Arc::clone(&self.declared)))
    }
}

impl ListeningPeers {
    /// Waits until it is sure whether the declared cluster exists. Returns the ids of a new cluster
    /// and of its first node, or those with which this node has joined.
    pub(super) fn bootstrap(&self, path: &Path) -> Result<(ClusterId, NodeId), DataError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DataError::io(path, error))?;
        let first = runtime.block_on(self.first_start(path))?;
        drop(runtime);
        match first {
            FirstStart::Begin => Ok(data_dir::first()),
            FirstStart::Join => self.join(path),
        }
    }

    async fn first_start(&self, path: &Path) -> Result<FirstStart, DataError> {
        let listener = self.listener.try_clone().map_err(|error| DataError::io(path, error))?;
        let declared = self.initial.join(",").into();
        let empty = Arc::new(EmptyNode { name: self.name.clone(), declared });
        let answers = accept(listener, self.tls.clone(), empty);
        tokio::select! {
            first = self.ask_all() => first,
            () = answers => Err(DataError::Stopped(
                path.to_path_buf(),
                "its address for other nodes accepts no connections".to_owned(),
            )),
        }
    }

    /// Asks all other declared nodes and seeds whether they have a cluster, until one has or none
    /// has.
    async fn ask_all(&self) -> Result<FirstStart, DataError> {
        let caller = Arc::new(RpcIdentity::nobody(Some(self.tls.clone()), self.name.clone()));
        let is_first = self.initial.first().is_some_and(|first| **first == *self.station.address);
        let declared = self.initial.join(",");
        let mut told_before = String::new();
        loop {
            let all = self.seeds.iter().map(async |address| {
                let mut line = caller.line(ANYBODY, address);
                (address, line.call(RpcRequest::Status(false), ASK_PATIENCE).await)
            });
            let mut missing = Vec::new();
            for (address, told) in join_all(all).await {
                match told {
                    Ok(_) => return Ok(FirstStart::Join),
                    Err(RpcFailure::Turned(RpcError::NoCluster(other))) if *other == *declared => {}
                    Err(RpcFailure::Turned(RpcError::NoCluster(other))) => {
                        let (address, other) = (address.clone(), other.escape_debug().to_string());
                        return Err(PeerError::Declared { address, other, declared }.into());
                    }
                    Err(RpcFailure::Turned(RpcError::Refused(why))) => {
                        let seeds = address.clone();
                        return Err(PeerError::Join { seeds, why: why.to_string() }.into());
                    }
                    Err(trouble) => missing.push(format!("{address} ({trouble})")),
                }
            }
            let told = match (missing.is_empty(), is_first) {
                (true, true) => return Ok(FirstStart::Begin),
                (true, false) => format!("the node at {} to begin it", self.initial[0]),
                (false, _) => missing.join(", "),
            };
            if told != told_before {
                log::warn!("this node has no cluster yet, and waits for {told}");
                told_before = told;
            }
            sleep(jittered(ASK_PAUSE).as_duration()).await;
        }
    }
}
