//! Where a daemon keeps what a restart needs, and the engine that keeps it there: a state
//! directory, a data directory, or nothing.

use super::exit::{Done, Failure};
use super::mount::{absolute, state_dir};
use crate::cluster::{Node, Peering, Stop};
use crate::engine::Rules;
use crate::locks::local::Local;
use crate::locks::{Door, Locks};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where to keep it.
#[derive(Debug, clap::Args)]
pub(super) struct KeepArgs {
    /// Where to keep what a restart needs, or 'none' [default: /var/lib/latchfs as root, else
    /// latchfs in the XDG state directory]
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    state: Option<OsString>,
    /// Keep it in a log here instead: nothing is answered before the disk has it, so that a power
    /// failure loses nothing either
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Where it is kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// In a state directory: it survives the daemon.
    State(PathBuf),
    /// In a data directory: it survives the machine.
    Data(PathBuf),
    /// Nowhere.
    Nowhere,
}

/// The engine of this process.
pub(super) enum Decider {
    /// Asked directly.
    Local(Arc<Local>),
    /// Behind a log.
    Node(Arc<Node>),
}

impl KeepArgs {
    /// Whether the command line names a place.
    pub(super) fn is_said(&self) -> bool {
        self.state.is_some() || self.data.is_some()
    }

    /// What was said, or the default.
    pub(super) fn kept(&self) -> Done<Kept> {
        if let Some(data) = &self.data {
            if data.as_os_str().is_empty() {
                return Err(Failure::usage("--data needs a directory"));
            }
            return absolute(data).map(Kept::Data);
        }
        let state = state_dir(self.state.as_deref())?;
        Ok(state.map_or(Kept::Nowhere, Kept::State))
    }
}

impl Kept {
    /// The directory, if there is one.
    pub(super) fn dir(&self) -> Option<&Path> {
        match self {
            Self::State(dir) | Self::Data(dir) => Some(dir),
            Self::Nowhere => None,
        }
    }

    /// The engine, with what it remembers.
    pub(super) fn open(&self) -> Done<Decider> {
        self.open_with_peers(None)
    }

    /// The same, as one of several nodes.
    pub(super) fn open_with_peers(&self, peering: Option<Peering>) -> Done<Decider> {
        let rules = Rules::default();
        match self {
            Self::State(dir) => {
                let local = Local::open(dir, rules);
                let local = local.map_err(|error| Failure::unavailable(error.to_string()))?;
                Ok(Decider::Local(Arc::new(local)))
            }
            Self::Data(dir) => {
                let node = match peering {
                    None => Node::open(dir),
                    Some(peering) => Node::open_with_peers(dir, peering),
                };
                let node = node.map_err(|error| Failure::unavailable(error.to_string()))?;
                Ok(Decider::Node(Arc::new(node)))
            }
            Self::Nowhere => {
                let local = Local::in_memory(rules);
                let local = local
                    .map_err(|error| Failure::system("the engine can't be started", &error))?;
                Ok(Decider::Local(Arc::new(local)))
            }
        }
    }
}

impl Decider {
    /// The door to it.
    pub(super) fn locks(&self) -> Locks {
        let door: Arc<dyn Door> = match self {
            Self::Local(local) => Arc::clone(local) as _,
            Self::Node(node) => Arc::clone(node) as _,
        };
        Locks::new(door)
    }

    /// Has `tell` called with a sentence if it can't go on.
    pub(super) fn on_failure(&self, tell: impl FnOnce(Stop) + Send + 'static) {
        match self {
            // It tells whoever asks, and goes on when there is room again.
            Self::Local(_) => {}
            Self::Node(node) => node.on_failure(tell),
        }
    }

    /// Ends its use of the directory in an orderly way.
    pub(super) fn close(&self) -> Done {
        match self {
            Self::Local(local) => {
                local.close().map_err(|error| Failure::unavailable(error.to_string()))
            }
            Self::Node(node) => {
                node.close();
                Ok(())
            }
        }
    }
}

/// What a daemon says that ends because its node does.
pub(super) fn failed(stop: &Stop) -> Failure {
    Failure::unavailable(stop.to_string())
}
