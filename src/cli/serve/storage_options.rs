//! The options that select a daemon's storage (a state directory, a data directory, or none), and
//! the engine that is opened on it.
//!
//! Warnings at the start of `mount` and `serve`: no state is stored, or the kernel limits how long
//! a program can wait for a lock.
//!
//! The options that make a durable server a node of a cluster.

use crate::cli::argument_types::{
    absolute, address, default_data_dir, host_name, state_dir, ttl, variable,
};
use crate::cli::connect::machine_locks;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::output;
use crate::engine::{Grace, Rules, Ttl};
use crate::raft::{ClusterName, ElectionPace, PeerError, PeerFiles, Peering, RaftNode, Stop};
use crate::server::http::ca;
use crate::service::LockService;
use crate::service::local::Local;
use crate::time::{Span, Wall, boot_now};
use kernel::machine_facts::request_timeout;
use kernel::mountinfo;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options that select where the engine of a mount stores its state.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct MountStorageArgs {
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

/// The options that select where a server stores its state.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ServerStorageArgs {
    /// Where to keep the log: nothing is answered before the disk has it, so that neither a crash
    /// nor a power failure loses an answer [env: `LATCHFS_DATA`] [default: /var/lib/latchfs/data as
    /// root, else latchfs/data in the XDG state directory]
    #[arg(long, value_name = "DIR", conflicts_with = "memory")]
    data: Option<PathBuf>,
    /// Keep nothing on a disk: a restart forgets all leases, and grants nothing until those from
    /// before it are over
    #[arg(long)]
    memory: bool,
    /// With --memory: the longest ttl of a lease, and with the grace for how long nothing is
    /// granted after a start [default: 1m, or --ttl if that is longer]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    max_ttl: Option<Ttl>,
    /// With --memory: grant locks from the start, since no holder from before it can be alive
    #[arg(long, conflicts_with = "max_ttl")]
    grant_at_once: bool,
    /// The journal of a user's own locks, whose daemon must start fast
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["data", "memory"])]
    state: Option<PathBuf>,
}

/// What the command line says about the start of an engine that stores nothing.
#[derive(Debug, Clone, Copy)]
struct StatelessStart {
    /// The option that selects such an engine.
    option: &'static str,
    max_ttl: Option<Ttl>,
    grant_at_once: bool,
    ttl: Ttl,
    grace: Grace,
}

/// The default of `--max-ttl`, unless `--ttl` is longer. After a restart without stored state, no
/// lock is granted for this time plus the grace.
const MAX_TTL_DEFAULT: Span = Span::from_secs(60);

/// Files by which Docker and Podman mark a container, and the variable by which Kubernetes does.
const CONTAINER_FILES: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
const CONTAINER_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";

/// The storage that the command-line options select.
#[derive(Debug)]
pub(in crate::cli) enum StorageChoice {
    /// A state directory, whose content survives a restart of the daemon.
    State(PathBuf),
    /// A data directory, whose content survives a power failure of the machine.
    Data(PathBuf),
    /// Nothing is stored.
    Nowhere {
        /// The option that has selected this.
        option: &'static str,
        /// After a start, no lock is granted for this time, in which every earlier lease expires;
        /// `None` grants locks at once.
        hold_off: Option<Span>,
    },
}

/// The engine of this process, which decides about locks.
pub(in crate::cli) enum LocalBackend {
    /// An engine of a single server, which is called directly.
    Local(Arc<Local>),
    /// An engine that applies the commands of a Raft log: this process is a node of a cluster.
    Node(Arc<RaftNode>),
}

impl MountStorageArgs {
    /// Whether the command line has any option that selects a storage.
    pub(in crate::cli) fn is_said(&self) -> bool {
        self.state.is_some() || self.data.is_some() || self.max_ttl.is_some() || self.grant_at_once
    }

    /// Returns the storage that the options or the defaults select. `ttl` and `grace` are the
    /// defaults of a lease.
    pub(in crate::cli) fn kept(&self, ttl: Ttl, grace: Grace) -> CliResult<StorageChoice> {
        let Self { max_ttl, grant_at_once, .. } = *self;
        let start = StatelessStart { option: "--state none", max_ttl, grant_at_once, ttl, grace };
        if let Some(data) = &self.data {
            return start.is_unused_by(StorageChoice::Data(named_data_dir(data)?));
        }
        match state_dir(self.state.as_deref())? {
            Some(dir) => start.is_unused_by(StorageChoice::State(dir)),
            None => start.choice(),
        }
    }
}

/// Whose locks a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerRole {
    /// Those of its clients.
    Server,
    /// Those of the user that runs it.
    OwnLocks,
    /// Those of all users of the machine.
    Machine,
}

impl ServerStorageArgs {
    /// Returns the storage that the options or the defaults select. `ttl` and `grace` are the
    /// defaults of a lease. The daemon of a user's own locks alone keeps a journal.
    pub(super) fn kept(
        &self,
        ttl: Ttl,
        grace: Grace,
        role: ServerRole,
    ) -> CliResult<StorageChoice> {
        let Self { max_ttl, grant_at_once, .. } = *self;
        let start = StatelessStart { option: "--memory", max_ttl, grant_at_once, ttl, grace };
        if self.memory {
            return start.choice();
        }
        let storage = match &self.state {
            None => StorageChoice::Data(match &self.data {
                Some(dir) => named_data_dir(dir)?,
                None if role == ServerRole::Machine => machine_locks::DATA.into(),
                None => default_data_dir()?,
            }),
            Some(dir) if role == ServerRole::OwnLocks => StorageChoice::State(absolute(dir)?),
            Some(_) => return Err(refused_state()),
        };
        start.is_unused_by(storage)
    }
}

/// Returns the error of `serve --state`: the option is one of mounts.
fn refused_state() -> CliError {
    let place = match default_data_dir() {
        Ok(dir) => format!(", by default {}", dir.display()),
        Err(_) => String::new(),
    };
    CliError::usage(format!(
        "--state is an option of 'mount': a server keeps its state in a data directory{place}; \
         name another one by --data DIR, or keep nothing by --memory"
    ))
}

fn named_data_dir(dir: &Path) -> CliResult<PathBuf> {
    if dir.as_os_str().is_empty() {
        return Err(CliError::usage("--data needs a directory"));
    }
    absolute(dir)
}

impl StatelessStart {
    /// Returns the storage of an engine that stores nothing.
    fn choice(self) -> CliResult<StorageChoice> {
        let hold_off = if self.grant_at_once { None } else { Some(self.longest()?) };
        Ok(StorageChoice::Nowhere { option: self.option, hold_off })
    }

    /// Returns `storage`, which keeps all leases; refuses the options of an engine that does not.
    fn is_unused_by(self, storage: StorageChoice) -> CliResult<StorageChoice> {
        let (Some(dir), true) = (storage.dir(), self.grant_at_once || self.max_ttl.is_some())
        else {
            return Ok(storage);
        };
        Err(CliError::usage(format!(
            "--max-ttl and --grant-at-once are for {}; {} keeps all leases, so that locks are \
             granted from the start",
            self.option,
            dir.display()
        )))
    }

    /// Returns the maximum lifetime of a lease, which is the sum of its maximum ttl and the grace.
    fn longest(self) -> CliResult<Span> {
        let ttl = self.ttl.span();
        let longest = self.max_ttl.map_or(MAX_TTL_DEFAULT.max(ttl), Ttl::span);
        if ttl <= longest {
            return Ok(longest + self.grace.span());
        }
        Err(CliError::usage(format!(
            "--ttl {ttl} is longer than --max-ttl {longest}; shorten one or lengthen the other"
        )))
    }
}

impl StorageChoice {
    /// Returns the state directory or the data directory; `None` if nothing is stored.
    pub(in crate::cli) fn dir(&self) -> Option<&Path> {
        match self {
            Self::State(dir) | Self::Data(dir) => Some(dir),
            Self::Nowhere { .. } => None,
        }
    }

    /// Returns the warning that a restart forgets all leases, if no state is stored.
    pub(in crate::cli) fn warning(&self) -> Option<String> {
        let Self::Nowhere { option, hold_off } = self else { return None };
        let forgets = format!("with {option} a restart forgets all leases at once");
        Some(match hold_off {
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

    /// Returns the warning that the data directory is lost with its container: this process runs in
    /// a container, and the directory is on the container's root file system, not on a volume.
    pub(super) fn container_warning(&self) -> Option<String> {
        let Self::Data(dir) = self else { return None };
        let has_file = || CONTAINER_FILES.iter().any(|file| Path::new(file).exists());
        let is_container = variable(CONTAINER_VARIABLE).is_some() || has_file();
        (is_container && mountinfo::is_on_root(dir).unwrap_or(false)).then(|| {
            format!(
                "the data directory {} is in the container, not on a volume: all locks are lost \
                 when the container is removed; mount a volume there",
                dir.display()
            )
        })
    }

    /// Refuses a directory in a mount of latchfs, where each file would become a lock.
    fn check_place(&self) -> CliResult {
        let Some(dir) = self.dir().filter(|dir| mountinfo::is_on_ours(dir).unwrap_or(false)) else {
            return Ok(());
        };
        Err(CliError::usage(format!(
            "{} is in a mount of latchfs, where each file is a lock, so nothing can be kept there; \
             name a directory on a disk",
            dir.display()
        )))
    }

    /// Opens the engine with its stored state.
    pub(in crate::cli) fn open(&self) -> CliResult<LocalBackend> {
        self.open_with_peers(None)
    }

    /// Opens the engine with its stored state, as a node of a cluster if `peering` is given.
    pub(super) fn open_with_peers(&self, peering: Option<Peering>) -> CliResult<LocalBackend> {
        let rules = Rules::default();
        self.check_place()?;
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
            Self::Nowhere { hold_off, .. } => {
                let local = Local::afresh(rules, Wall::now(), *hold_off).map_err(|error| {
                    CliError::unavailable(format!(
                        "the engine can't be started: {error}; set the clock"
                    ))
                })?;
                Ok(LocalBackend::Local(Arc::new(local)))
            }
        }
    }
}

impl LocalBackend {
    /// Returns the lock service of this engine.
    pub(in crate::cli) fn locks(&self) -> Arc<dyn LockService> {
        let backend: Arc<dyn LockService> = match self {
            Self::Local(local) => Arc::clone(local) as _,
            Self::Node(node) => Arc::clone(node) as _,
        };
        backend
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
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "With other nodes")]
pub(in crate::cli) struct PeerArgs {
    /// Listen for other nodes, of which a majority decides
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
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
    /// Whether the server has no data because it was never started.
    #[arg(skip)]
    begins: bool,
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
    /// Returns the options of a server that machines join. It listens for other nodes at the port
    /// after that for clients, and others find it as `host` unless it listens at one address alone.
    pub(super) fn at_home(
        &self,
        clients: SocketAddr,
        host: String,
        seed: Vec<String>,
        home: &Path,
    ) -> Self {
        let port = if clients.port() == 0 { 0 } else { clients.port().saturating_add(1) };
        let listen = SocketAddr::new(clients.ip(), port);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let address = clients.ip().is_unspecified().then(|| format!("{host}:{port}"));
        Self {
            peer_listen: Some(listen),
            peer_address: address,
            seed,
            peer_secret_file: Some(home.join(ca::SECRET)),
            begins: home.join(ca::BEGINS).exists(),
            ..self.clone()
        }
    }

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
        if !matches!(kept, StorageChoice::Data(_)) {
            return Err(CliError::usage(
                "a node of a cluster must keep what it has promised, and --memory keeps nothing; \
                 leave out --memory, or --peer-listen",
            ));
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
            begins: self.begins,
            cluster_name: self.cluster_name.clone(),
            tls,
            pace: self.pace,
        }))
    }
}
