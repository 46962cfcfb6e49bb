//! The peer configuration of a node: its listen address, its public peer address, its credentials
//! and the seeds, and the request by which a new node joins the cluster of the seeds.

use super::cluster_name::ClusterName;
use super::cluster_version::ClusterVersion;
use super::data_dir::Identity;
use super::data_dir_error::{DataError, PeerError};
use super::node_address::{NodeAddress, host_and_port};
use super::rpc::messages::{ANYBODY, RpcError, RpcRequest, RpcResponse};
use super::rpc::mutual_tls::{PeerFiles, PeerTls};
use super::rpc::rpc_client::{RpcConnection, RpcFailure, RpcIdentity};
use super::types::{ClusterId, NodeId};
use crate::base::jittered;
use crate::base::said;
use crate::net::connections::listen;
use crate::time::{Span, steady_now};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tokio::time::sleep;

/// The peer configuration of a node, as given on the command line.
#[derive(Debug, Clone)]
pub struct Peering {
    /// The address on which the node listens for its peers.
    pub listen: SocketAddr,
    /// The `HOST:PORT` at which peers reach the node, if it differs from `listen`.
    pub address: Option<String>,
    /// The URL of the node's server for clients.
    pub url: String,
    /// The name of the node, for display only.
    pub name: String,
    /// The addresses of the nodes through which a new node joins a cluster.
    pub seeds: Vec<String>,
    /// The addresses of all nodes with which a declared cluster begins, this one included; empty if
    /// the cluster is not declared.
    pub initial: Vec<String>,
    /// The name of the cluster, if it has one.
    pub cluster_name: Option<ClusterName>,
    /// The credentials with which nodes authenticate each other. A node without them does not
    /// start.
    pub tls: Option<PeerFiles>,
    /// The heartbeat interval and the election timeouts, chosen for the latency of the network.
    pub pace: ElectionPace,
}

/// A choice of heartbeat interval and election timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionPace {
    /// Short timeouts, for servers on a local network.
    Lan,
    /// Longer timeouts, for laptops on a wireless network.
    Wifi,
}

/// How long a new node tries to join.
const JOIN_PATIENCE: Span = Span::from_secs(30);
/// Timeout of one call to one seed or other node.
const SEED_PATIENCE: Span = Span::from_secs(5);
/// The pause between two rounds of calls to all addresses, before jitter.
const JOIN_PAUSE: Span = Span::from_millis(250);

/// A peer configuration whose socket listens and whose certificates are loaded.
pub(super) struct ListeningPeers {
    pub(super) listener: TcpListener,
    pub(super) station: NodeAddress,
    /// The addresses of other nodes: the seeds and those of the declared cluster.
    pub(super) seeds: Vec<String>,
    /// The addresses of all declared nodes, sorted.
    pub(super) initial: Vec<String>,
    pub(super) name: Option<ClusterName>,
    pub(super) tls: PeerTls,
    pub(super) pace: ElectionPace,
}

impl Peering {
    /// Loads the certificates and opens the listening socket. No connection is accepted yet.
    pub(super) fn begin(self) -> Result<ListeningPeers, PeerError> {
        let files = self.tls.as_ref().ok_or(PeerError::Open(self.listen))?;
        let tls = PeerTls::load(files)?;
        for seed in self.seeds.iter().chain(&self.initial) {
            host_and_port(seed).ok_or_else(|| PeerError::Address(seed.clone()))?;
        }
        let refused = |error| PeerError::Listen(self.listen, error);
        let listener = listen(self.listen).map_err(refused)?;
        let heard = listener.local_addr().map_err(refused)?;
        let address = match self.address {
            Some(address) => address,
            // The unspecified addresses 0.0.0.0 and [::] are valid for listening, but other nodes
            // can't connect to them.
            None if heard.ip().is_unspecified() => {
                return Err(PeerError::Address(heard.to_string()));
            }
            None => heard.to_string(),
        };
        let station =
            NodeAddress::new(&address, &self.url, &self.name).ok_or(PeerError::Address(address))?;
        let Self { mut seeds, mut initial, cluster_name, pace, .. } = self;
        initial.sort_unstable();
        initial.dedup();
        let is_declared = initial.iter().any(|listed| **listed == *station.address);
        if !initial.is_empty() && (!is_declared || initial.len() == 1) {
            let address = station.address.to_string();
            return Err(PeerError::Unlisted { address, initial: initial.join(",") });
        }
        seeds.extend(initial.iter().cloned());
        seeds.retain(|seed| **seed != *station.address);
        Ok(ListeningPeers { listener, station, seeds, initial, name: cluster_name, tls, pace })
    }
}

impl ListeningPeers {
    /// Returns the identity with which this node calls others.
    pub(super) fn caller(&self, of: Identity, version: ClusterVersion) -> RpcIdentity {
        let (cluster, node) = (Some(of.cluster), of.node);
        let (tls, name) = (Some(self.tls.clone()), self.name.clone());
        RpcIdentity { cluster, node, tls, name, version, contacts: Arc::default() }
    }

    /// Requests a node id in the cluster of the seeds.
    pub(super) fn join(&self, path: &Path) -> Result<(ClusterId, NodeId), DataError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DataError::io(path, error))?;
        let caller = Arc::new(RpcIdentity::nobody(Some(self.tls.clone()), self.name.clone()));
        let call = RpcRequest::Join(self.station.clone());
        let told = runtime.block_on(ask_leader(&caller, &self.seeds, &call, JOIN_PATIENCE));
        match told {
            Ok(RpcResponse::Joined(cluster, node)) => Ok((cluster, node)),
            Ok(_) => Err(self.not_joined("it sent an unexpected answer")),
            Err(trouble) => Err(self.not_joined(&trouble.to_string())),
        }
    }

    /// Fails if a seed belongs to another cluster than this node, which is the only member of its
    /// own: the seeds show that the node was meant to join theirs. A node of the declared cluster
    /// may belong to another one that has no leader: to that before `latchfs cluster recover`.
    pub(super) async fn refuse_strangers(
        &self,
        caller: &Arc<RpcIdentity>,
    ) -> Result<(), DataError> {
        let nobody = Arc::new(RpcIdentity::nobody(Some(self.tls.clone()), self.name.clone()));
        for seed in &self.seeds {
            let status = RpcRequest::Status(false);
            let told = caller.line(ANYBODY, seed).call(status.clone(), SEED_PATIENCE).await;
            let Err(RpcFailure::Turned(RpcError::OtherCluster)) = told else { continue };
            if self.initial.contains(seed) {
                let told = nobody.line(ANYBODY, seed).call(status, SEED_PATIENCE).await;
                if matches!(told, Ok(RpcResponse::Status(member)) if member.leader.is_none()) {
                    continue;
                }
            }
            return Err(PeerError::Settled(seed.clone()).into());
        }
        Ok(())
    }

    fn not_joined(&self, why: &str) -> DataError {
        PeerError::Join { seeds: self.seeds.join(", "), why: why.to_owned() }.into()
    }
}

/// Calls the nodes at `addresses`, and the leaders that they name, until the leader answers. The
/// leader may receive the call more than once. Nodes of another cluster are passed over, unless no
/// other node answers.
pub(super) async fn ask_leader(
    caller: &Arc<RpcIdentity>,
    addresses: &[String],
    call: &RpcRequest,
    patience: Span,
) -> Result<RpcResponse, RpcFailure> {
    let until = steady_now() + patience;
    let (mut has_stranger, mut has_own) = (false, false);
    loop {
        let mut last = None;
        let mut ways: VecDeque<String> = addresses.iter().cloned().collect();
        // Redirects are limited: a node that has just lost its leader may name the previous one.
        let mut hints_left = addresses.len() + 1;
        while let Some(address) = ways.pop_front() {
            let mut line: RpcConnection = caller.line(ANYBODY, &address);
            match line.call(call.clone(), SEED_PATIENCE).await {
                Ok(told) => return Ok(told),
                Err(RpcFailure::Turned(RpcError::NotLeader(Some(leader)))) if hints_left > 0 => {
                    hints_left -= 1;
                    ways.push_front(leader.to_string());
                }
                Err(trouble @ RpcFailure::Turned(RpcError::Refused(_) | RpcError::Removed)) => {
                    return Err(trouble);
                }
                Err(RpcFailure::Turned(RpcError::OtherCluster)) => has_stranger = true,
                Err(trouble) => {
                    has_own |= matches!(trouble, RpcFailure::Turned(_));
                    log::info!("{address}: {}", said(&trouble));
                    last = Some(trouble);
                }
            }
        }
        let is_over = steady_now() >= until;
        if has_stranger && !has_own && (is_over || last.is_none()) {
            return Err(RpcFailure::Turned(RpcError::OtherCluster));
        }
        if is_over {
            let nobody = || RpcFailure::Unsent("there is nobody to ask".to_owned());
            return Err(last.unwrap_or_else(nobody));
        }
        sleep(jittered(JOIN_PAUSE).as_duration()).await;
    }
}
