//! The options that select a daemon's storage (a state directory, a data directory, or none), and
//! the engine that is opened on it.
//!
//! Warnings at the start of `mount` and `serve`: no state is stored, or the kernel limits how long
//! a program can wait for a lock.
//!
//! The options that make a durable server a node of a cluster.

use crate::cli::argument_types::{absolute, address, host_name, state_dir, ttl};
use crate::cli::exit::{CliError, CliResult};
use crate::cli::output;
use crate::engine::{Grace, Rules, Ttl};
use crate::fuse::kernel::machine_facts::request_timeout;
use crate::raft::{ClusterName, ElectionPace, PeerError, PeerFiles, Peering, RaftNode, Stop};
use crate::server::http::ca;
use crate::service::local::Local;
use crate::service::{LockService, Locks};
use crate::time::{Span, Wall, boot_now};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options that select where a daemon stores its state.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct StorageArgs {
    /// Where to keep what a restart needs, or 'none' [default: /var/lib/latchfs as root, else
    /// latchfs in the XDG state directory]
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    state: Option<OsString>,
    /// Keep it in a log here instead: nothing is answered before the disk has it, so that a power
    /// failure loses nothing either
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// With --state none: the longest ttl of a lease, and with the grace for how long nothing is
    /// granted after a start [default: 1m, or --ttl if that is longer]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    max_ttl: Option<Ttl>,
    /// With --state none: grant locks from the start, since no holder from before it can be alive
    #[arg(long, conflicts_with = "max_ttl")]
    grant_at_once: bool,
}

/// The default of `--max-ttl`, unless `--ttl` is longer. After a restart without stored state, no
/// lock is granted for this time plus the grace.
const MAX_TTL_DEFAULT: Span = Span::from_secs(60);

/// The storage that the command-line options select.
#[derive(Debug)]
pub(in crate::cli) enum StorageChoice {
    /// A state directory, whose content survives a restart of the daemon.
    State(PathBuf),
    /// A data directory, whose content survives a power failure of the machine.
    Data(PathBuf),
    /// Nothing is stored. After a start, no lock is granted for this time, in which every earlier
    /// lease expires; `None` grants locks at once.
    Nowhere(Option<Span>),
}

/// The engine of this process, which decides about locks.
pub(in crate::cli) enum LocalBackend {
    /// An engine of a single server, which is called directly.
    Local(Arc<Local>),
    /// An engine that applies the commands of a Raft log: this process is a node of a cluster.
    Node(Arc<RaftNode>),
}

impl StorageArgs {
    /// Whether the command line has any option that selects a storage.
    pub(in crate::cli) fn is_said(&self) -> bool {
        self.state.is_some() || self.data.is_some() || self.max_ttl.is_some() || self.grant_at_once
    }

    /// Returns the storage that the options or the defaults select. `ttl` and `grace` are the
    /// defaults of a lease.
    pub(in crate::cli) fn kept(&self, ttl: Ttl, grace: Grace) -> CliResult<StorageChoice> {
        let kept = self.place(ttl, grace)?;
        if let (Some(dir), true) = (kept.dir(), self.grant_at_once || self.max_ttl.is_some()) {
            return Err(CliError::usage(format!(
                "--max-ttl and --grant-at-once are for --state none; {} keeps all leases, so that \
                 locks are granted from the start",
                dir.display()
            )));
        }
        Ok(kept)
    }

    fn place(&self, ttl: Ttl, grace: Grace) -> CliResult<StorageChoice> {
        if let Some(data) = &self.data {
            if data.as_os_str().is_empty() {
                return Err(CliError::usage("--data needs a directory"));
            }
            return absolute(data).map(StorageChoice::Data);
        }
        let state = state_dir(self.state.as_deref())?;
        match state {
            Some(dir) => Ok(StorageChoice::State(dir)),
            None if self.grant_at_once => Ok(StorageChoice::Nowhere(None)),
            None => self.longest(ttl, grace).map(|longest| StorageChoice::Nowhere(Some(longest))),
        }
    }

    /// Returns the maximum lifetime of a lease, which is the sum of its maximum ttl and the grace.
    fn longest(&self, ttl: Ttl, grace: Grace) -> CliResult<Span> {
        let longest = self.max_ttl.map_or(MAX_TTL_DEFAULT.max(ttl.span()), Ttl::span);
        if ttl.span() <= longest {
            return Ok(longest + grace.span());
        }
        Err(CliError::usage(format!(
            "--ttl {} is longer than --max-ttl {longest}; shorten one or lengthen the other",
            ttl.span()
        )))
    }
}

impl StorageChoice {
    /// Returns the state directory or the data directory; `None` if nothing is stored.
    pub(in crate::cli) fn dir(&self) -> Option<&Path> {
        match self {
            Self::State(dir) | Self::Data(dir) => Some(dir),
            Self::Nowhere(_) => None,
        }
    }

    /// Returns the warning that a restart forgets all leases, if no state is stored.
    pub(in crate::cli) fn warning(&self) -> Option<String> {
        let Self::Nowhere(longest) = self else { return None };
        let forgets = "with --state none a restart forgets all leases at once";
        Some(match longest {
            None => format!(
                "{forgets}; --grant-at-once: a client that holds a lock from before this start may \
                 meet a second holder"
            ),
            Some(longest) => format!(
                "{forgets}, and nothing is granted before {}: {longest}, which is how long a lease \
                 from before this start can last; pass --grant-at-once if there is none",
                Wall::at_boot_time(boot_now() + *longest)
            ),
        })
    }

    /// Opens the engine with its stored state.
    pub(in crate::cli) fn open(&self) -> CliResult<LocalBackend> {
        self.open_with_peers(None)
    }

    /// Opens the engine with its stored state, as a node of a cluster if `peering` is given.
    pub(super) fn open_with_peers(&self, peering: Option<Peering>) -> CliResult<LocalBackend> {
        let rules = Rules::default();
        match self {
            Self::State(dir) => {
                let local = Local::open(dir, rules);
                let local = local.map_err(|error| CliError::unavailable(error.to_string()))?;
                Ok(LocalBackend::Local(Arc::new(local)))
            }
            Self::Data(dir) => {
                let node = RaftNode::open_with(dir, peering);
                let node = node.map_err(|error| CliError::unavailable(error.to_string()))?;
                Ok(LocalBackend::Node(Arc::new(node)))
            }
            Self::Nowhere(longest) => {
                let local = Local::afresh(rules, Wall::now(), *longest).map_err(|error| {
                    CliError::unavailable(format!(
                        "the engine can't be started: {error}; set the clock, or keep the tokens \
                         by --state DIR"
                    ))
                })?;
                Ok(LocalBackend::Local(Arc::new(local)))
            }
        }
    }
}

impl LocalBackend {
    /// Returns the lock service of this engine.
    pub(in crate::cli) fn locks(&self) -> Locks {
        let backend: Arc<dyn LockService> = match self {
            Self::Local(local) => Arc::clone(local) as _,
            Self::Node(node) => Arc::clone(node) as _,
        };
        Locks::new(backend)
    }

    /// Registers the callback `on_stop`, which is called if a failure stops the engine for good.
    pub(in crate::cli) fn on_failure(&self, on_stop: impl FnOnce(Stop) + Send + 'static) {
        match self {
            // An engine without a Raft log never stops for good: while its disk is full it returns
            // an error to each caller, and it continues when the disk has room again.
            Self::Local(_) => {}
            Self::Node(node) => node.on_failure(on_stop),
        }
    }

    /// Reads the certificates of a node for its peers again.
    pub(in crate::cli) fn reload(&self) -> Result<(), PeerError> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Node(node) => node.reload_peer_certificates(),
        }
    }

    /// Closes the engine together with its storage.
    pub(in crate::cli) fn close(&self) -> CliResult {
        match self {
            Self::Local(local) => {
                local.close().map_err(|error| CliError::unavailable(error.to_string()))
            }
            Self::Node(node) => {
                node.close();
                Ok(())
            }
        }
    }
}

/// Returns the error of a daemon that ends because its Raft node has stopped.
pub(in crate::cli) fn failed(stop: &Stop) -> CliError {
    CliError::unavailable(stop.to_string())
}

/// Prints the warnings about storage and about the kernel's limit on requests, which a user should
/// read before relying on the mount or server.
pub(in crate::cli) fn warn(of_state: Option<String>) {
    if let Some(warning) = of_state {
        output::warn(&warning);
    }
    if let Some(limit) = request_timeout() {
        output::warn(&format!(
            "{limit}: a program that waits longer for a lock ends the whole mount; set it to 0 by \
             'sysctl {}=0'",
            limit.setting
        ));
    }
}

/// The options that make a server a node of a cluster: addresses, seeds and peer credentials.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With other nodes")]
pub(in crate::cli) struct PeerArgs {
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
    pub(in crate::cli) fn peering(
        &self,
        kept: &StorageChoice,
        scheme: &str,
        serves: Option<SocketAddr>,
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
