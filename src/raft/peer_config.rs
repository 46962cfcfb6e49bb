//! How a node speaks with others: where it listens, where they find it, and how it becomes one of
//! them.

use super::data_dir_error::{DataError, PeerError};
use super::node_address::{NodeAddress, host_and_port};
use super::rpc::messages::{ANYBODY, RpcError, RpcRequest, RpcResponse};
use super::rpc::mutual_tls::{PeerFiles, PeerTls};
use super::rpc::rpc_client::{RpcConnection, RpcFailure, RpcIdentity};
use super::types::{ClusterId, NodeId};
use crate::net::listen::listen;
use crate::os_error::said;
use crate::random::jittered;
use crate::time::{Span, steady_now};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tokio::time::sleep;

/// How a node speaks with others.
#[derive(Debug, Clone)]
pub struct Peering {
    /// Where it listens for them.
    pub listen: SocketAddr,
    /// Where they find it, if that is another address.
    pub address: Option<String>,
    /// Where clients find its server.
    pub url: String,
    /// Its name, for people.
    pub name: String,
    /// Nodes to ask when it is new.
    pub seeds: Vec<String>,
    /// How nodes prove to each other that they are nodes. Nothing is served without.
    pub tls: Option<PeerFiles>,
    /// How long the network may take.
    pub pace: ElectionPace,
}

/// How long the network may take before somebody else leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionPace {
    /// Servers beside each other.
    Lan,
    /// Laptops on a wireless network.
    Wifi,
}

/// How long a new node asks to be let in.
const JOIN_PATIENCE: Span = Span::from_secs(30);
/// How long each may take to answer.
const SEED_PATIENCE: Span = Span::from_secs(5);
/// Between two rounds.
const JOIN_PAUSE: Span = Span::from_millis(250);

/// The same, listening and with its certificates read.
pub(super) struct ListeningPeers {
    pub(super) listener: TcpListener,
    pub(super) station: NodeAddress,
    pub(super) seeds: Vec<String>,
    pub(super) tls: PeerTls,
    pub(super) pace: ElectionPace,
}

impl Peering {
    /// Listens. Nothing is answered yet.
    pub(super) fn begin(self) -> Result<ListeningPeers, PeerError> {
        let files = self.tls.as_ref().ok_or(PeerError::Open(self.listen))?;
        let tls = PeerTls::load(files)?;
        for seed in &self.seeds {
            host_and_port(seed).ok_or_else(|| PeerError::Address(seed.clone()))?;
        }
        let refused = |error| PeerError::Listen(self.listen, error);
        let listener = listen(self.listen).map_err(refused)?;
        let heard = listener.local_addr().map_err(refused)?;
        let address = match self.address {
            Some(address) => address,
            // That address is every machine's own.
            None if heard.ip().is_unspecified() => {
                return Err(PeerError::Address(heard.to_string()));
            }
            None => heard.to_string(),
        };
        let station =
            NodeAddress::new(&address, &self.url, &self.name).ok_or(PeerError::Address(address))?;
        Ok(ListeningPeers { listener, station, seeds: self.seeds, tls, pace: self.pace })
    }
}

impl ListeningPeers {
    /// Asks for a number in the cluster of the seeds.
    pub(super) fn join(&self, path: &Path) -> Result<(ClusterId, NodeId), DataError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DataError::io(path, error))?;
        let caller = Arc::new(RpcIdentity::nobody(Some(self.tls.clone())));
        let call = RpcRequest::Join(self.station.clone());
        let told = runtime.block_on(ask_leader(&caller, &self.seeds, &call, JOIN_PATIENCE));
        match told {
            Ok(RpcResponse::Joined(cluster, node)) => Ok((cluster, node)),
            Ok(_) => Err(self.not_joined("it sent an unexpected answer")),
            Err(trouble) => Err(self.not_joined(&trouble.to_string())),
        }
    }

    /// Fails if a seed is of another cluster than this node, which is alone in its own: the seeds
    /// show that it was meant to join theirs.
    pub(super) async fn refuse_strangers(
        &self,
        caller: &Arc<RpcIdentity>,
    ) -> Result<(), DataError> {
        for seed in self.seeds.iter().filter(|seed| **seed != *self.station.address) {
            let mut line = caller.line(ANYBODY, seed);
            let told = line.call(RpcRequest::Status(false), SEED_PATIENCE).await;
            if let Err(RpcFailure::Turned(RpcError::OtherCluster)) = told {
                return Err(PeerError::Settled(seed.clone()).into());
            }
        }
        Ok(())
    }

    fn not_joined(&self, why: &str) -> DataError {
        PeerError::Join { seeds: self.seeds.join(", "), why: why.to_owned() }.into()
    }
}

/// Asks nodes until one that leads has answered. It may be asked more than once.
pub(super) async fn ask_leader(
    caller: &Arc<RpcIdentity>,
    addresses: &[String],
    call: &RpcRequest,
    patience: Span,
) -> Result<RpcResponse, RpcFailure> {
    let until = steady_now() + patience;
    loop {
        let mut last = RpcFailure::Unsent("there is nobody to ask".to_owned());
        let mut ways: VecDeque<String> = addresses.iter().cloned().collect();
        // A node that has just lost its leader may name the one before.
        let mut hints_left = addresses.len() + 1;
        while let Some(address) = ways.pop_front() {
            let mut line: RpcConnection = caller.line(ANYBODY, &address);
            match line.call(call.clone(), SEED_PATIENCE).await {
                Ok(told) => return Ok(told),
                Err(RpcFailure::Turned(RpcError::NotLeader(Some(leader)))) if hints_left > 0 => {
                    hints_left -= 1;
                    ways.push_front(leader.to_string());
                }
                Err(
                    trouble @ RpcFailure::Turned(RpcError::Refused(_) | RpcError::OtherCluster),
                ) => {
                    return Err(trouble);
                }
                Err(trouble) => {
                    log::info!("{address}: {}", said(&trouble));
                    last = trouble;
                }
            }
        }
        if steady_now() >= until {
            return Err(last);
        }
        sleep(jittered(JOIN_PAUSE).as_duration()).await;
    }
}
