//! The options that make a durable server a node of a cluster.

use super::argument_types::address;
use super::environment::{absolute, host_name};
use super::exit::{CliError, CliResult};
use super::storage_options::StorageChoice;
use crate::raft::{ClusterName, ElectionPace, PeerFiles, Peering};
use crate::server::http::ca;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The options that make a server a node of a cluster: addresses, seeds and peer credentials.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With other nodes")]
pub(super) struct PeerArgs {
    /// Listen for other nodes, of which a majority decides
    #[arg(long, value_name = "ADDRESS", requires = "data", value_parser = address)]
    peer_listen: Option<SocketAddr>,
    /// Where other nodes find this one, if that is another address
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen")]
    peer_address: Option<String>,
    /// Nodes that know the others: a new node joins them
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen", value_delimiter = ',')]
    seed: Vec<String>,
    /// All nodes with which a new cluster begins, this one included: the same list on each
    #[arg(long, value_name = "HOST:PORT", requires = "peer_listen", value_delimiter = ',')]
    initial_cluster: Vec<String>,
    /// Name of the cluster: this node joins no cluster of another name
    #[arg(long, value_name = "NAME", requires = "peer_listen", value_parser = cluster_name)]
    cluster_name: Option<ClusterName>,
    /// This node's certificate, in PEM, made by 'latchfs cert peer'
    #[arg(long, value_name = "FILE", requires_all = ["peer_key", "peer_ca", "peer_listen"])]
    peer_cert: Option<PathBuf>,
    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
    /// CA certificate (PEM) that has signed the certificates of all nodes
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,
    /// The secret that all nodes share instead of certificates, made by 'latchfs cert secret'
    #[arg(long, value_name = "FILE", requires = "peer_listen", conflicts_with = "peer_cert")]
    peer_secret_file: Option<PathBuf>,
    /// Name of this node [default: the name of this machine]
    #[arg(long, value_name = "NAME", requires = "peer_listen")]
    node_name: Option<String>,
    /// Where clients find this node's server [default: its address]
    #[arg(long, value_name = "URL", requires = "peer_listen")]
    url: Option<String>,
    /// How long the network may take: 'lan' for servers beside each other, 'wifi' for laptops
    #[arg(long, value_name = "PACE", default_value = "lan", value_parser = pace)]
    pace: ElectionPace,
}

fn pace(text: &str) -> Result<ElectionPace, &'static str> {
    match text {
        "lan" => Ok(ElectionPace::Lan),
        "wifi" => Ok(ElectionPace::Wifi),
        _ => Err("there are 'lan' and 'wifi'"),
    }
}

fn cluster_name(text: &str) -> Result<ClusterName, &'static str> {
    ClusterName::parse(text).ok_or("a name has 1 to 63 letters, digits, '-', '_' and '.'")
}

impl PeerArgs {
    /// Returns the peer configuration of a server that serves clients at `serves`; `None` without
    /// `--peer-listen`.
    pub(super) fn peering(
        &self,
        kept: &StorageChoice,
        (scheme, serves): (&str, Option<SocketAddr>),
        refused: Option<&Path>,
    ) -> CliResult<Option<Peering>> {
        let Some(listen) = self.peer_listen else { return Ok(None) };
        if !matches!(kept, StorageChoice::Data { .. }) {
            return Err(CliError::usage("--peer-listen needs --data DIR"));
        }
        let serves = serves.ok_or_else(|| {
            CliError::usage(
                "--peer-listen needs an address for clients: --listen IP:PORT,unix:PATH",
            )
        })?;
        let whole = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let files = (whole(&self.peer_cert)?, whole(&self.peer_key)?, whole(&self.peer_ca)?);
        let refused = refused.map(absolute).transpose()?;
        let tls = match files {
            (Some(cert), Some(key), Some(ca)) => {
                Some(PeerFiles { cert, key, ca, shared: None, refused })
            }
            _ => whole(&self.peer_secret_file)?.map(|file| PeerFiles::secret(file, ca::NODES)),
        };
        // The default URL for clients has the host of the listening address of this node's server.
        // If that address is `0.0.0.0` or `[::]`, it has the host at which the other nodes reach
        // this node.
        let host = match &self.peer_address {
            _ if !serves.ip().is_unspecified() => serves.to_string(),
            Some(address) => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                format!("{host}:{}", serves.port())
            }
            None => SocketAddr::new(listen.ip(), serves.port()).to_string(),
        };
        let url = self.url.clone().unwrap_or_else(|| format!("{scheme}://{host}"));
        let name = self.node_name.clone();
        let name = name.unwrap_or_else(|| host_name().trim().to_owned());
        let words = |list: &[String]| list.iter().filter(|it| !it.is_empty()).cloned().collect();
        Ok(Some(Peering {
            listen,
            address: self.peer_address.clone(),
            url,
            name,
            seeds: words(&self.seed),
            initial: words(&self.initial_cluster),
            cluster_name: self.cluster_name.clone(),
            tls,
            pace: self.pace,
        }))
    }
}
