//! The options that select a daemon's storage (a state directory, a data directory, or none), and
//! the engine that is opened on it.

use super::argument_types::ttl;
use super::environment::{absolute, state_dir};
use super::exit::{CliError, CliResult};
use crate::engine::{Grace, Rules, Ttl};
use crate::raft::{PeerError, Peering, RaftNode, Stop};
use crate::service::local::Local;
use crate::service::{LockService, Locks};
use crate::time::{Span, Wall, boot_now};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options that select where a daemon stores its state.
#[derive(Debug, clap::Args)]
pub(super) struct StorageArgs {
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
pub(super) enum StorageChoice {
    /// A state directory, whose content survives a restart of the daemon.
    State(PathBuf),
    /// A data directory, whose content survives a power failure of the machine.
    Data(PathBuf),
    /// Nothing is stored. After a start, no lock is granted for this time, in which every earlier
    /// lease expires; `None` grants locks at once.
    Nowhere(Option<Span>),
}

/// The engine of this process, which decides about locks.
pub(super) enum LocalBackend {
    /// An engine of a single server, which is called directly.
    Local(Arc<Local>),
    /// An engine that applies the commands of a Raft log: this process is a node of a cluster.
    Node(Arc<RaftNode>),
}

impl StorageArgs {
    /// Whether the command line has any option that selects a storage.
    pub(super) fn is_said(&self) -> bool {
        self.state.is_some() || self.data.is_some() || self.max_ttl.is_some() || self.grant_at_once
    }

    /// Returns the storage that the options or the defaults select. `ttl` and `grace` are the
    /// defaults of a lease.
    pub(super) fn kept(&self, ttl: Ttl, grace: Grace) -> CliResult<StorageChoice> {
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
    pub(super) fn dir(&self) -> Option<&Path> {
        match self {
            Self::State(dir) | Self::Data(dir) => Some(dir),
            Self::Nowhere(_) => None,
        }
    }

    /// Returns the warning that a restart forgets all leases, if no state is stored.
    pub(super) fn warning(&self) -> Option<String> {
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
    pub(super) fn open(&self) -> CliResult<LocalBackend> {
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
    pub(super) fn locks(&self) -> Locks {
        let door: Arc<dyn LockService> = match self {
            Self::Local(local) => Arc::clone(local) as _,
            Self::Node(node) => Arc::clone(node) as _,
        };
        Locks::new(door)
    }

    /// Registers the callback `tell`, which is called if a failure stops the engine for good.
    pub(super) fn on_failure(&self, tell: impl FnOnce(Stop) + Send + 'static) {
        match self {
            // An engine without a Raft log never stops for good: while its disk is full it returns
            // an error to each caller, and it continues when the disk has room again.
            Self::Local(_) => {}
            Self::Node(node) => node.on_failure(tell),
        }
    }

    /// Reads the certificates of a node for its peers again.
    pub(super) fn reload(&self) -> Result<(), PeerError> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Node(node) => node.reload_peer_certificates(),
        }
    }

    /// Closes the engine together with its storage.
    pub(super) fn close(&self) -> CliResult {
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
pub(super) fn failed(stop: &Stop) -> CliError {
    CliError::unavailable(stop.to_string())
}
