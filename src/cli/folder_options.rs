//! The options of a guard without a view: where it keeps its state, and how it decides.

use super::argument_types::{DurationArg, default_ttl};
use super::carry::Carry;
use super::environment::{absolute, default_state_dir, host};
use super::exit::CliResult;
use super::guard_decider::DeciderArgs;
use crate::engine::lease_terms::TTL_DEFAULT;
use crate::engine::{ClientId, Ttl};
use std::ffi::OsString;
use std::path::PathBuf;

/// The place of a guard without a view.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct PlaceArgs {
    /// Without a view: how this machine is named to the server [default: the host's name]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
    /// Without a view: where the guard keeps its state, on the folder's file system [default:
    /// latchfs in the state directory]
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,
}

impl PlaceArgs {
    /// Returns the options that these values stand for.
    pub(super) const fn new(client: Option<ClientId>, stage: Option<PathBuf>) -> Self {
        Self { client, stage }
    }

    /// Returns the options as arguments of a command.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let client = self.client.iter().flat_map(|it| ["--client".into(), it.as_str().into()]);
        let stage = self.stage.iter().flat_map(|it| ["--stage".into(), it.into()]);
        client.chain(stage).collect()
    }

    /// Returns the name of this machine.
    pub(super) fn client(&self) -> CliResult<ClientId> {
        self.client.clone().map_or_else(host, Ok)
    }

    /// Returns the state directory.
    pub(super) fn state(&self) -> CliResult<PathBuf> {
        self.stage.as_deref().map_or_else(default_state_dir, absolute)
    }

    /// Whether an option is given that the guard of a view has itself.
    pub(super) const fn is_given(&self) -> bool {
        self.client.is_some() || self.stage.is_some()
    }
}

/// The options with which a guard without a view is started.
#[derive(Debug, clap::Args)]
pub(super) struct StartArgs {
    #[command(flatten)]
    pub(super) decider: DeciderArgs,
    /// Without a view: run this when the lock was lost; the event is in `LATCHFS_EVENT`
    #[arg(long, value_name = "CMD")]
    pub(super) on_lost: Option<String>,
    /// Without a view: tell a sync tool of the changes that a marker names, so that they are
    /// carried at once: the Syncthing of this user, or a command that reads a path from each line
    #[arg(long, value_name = "syncthing[=DIR]|CMD", value_parser = Carry::parse)]
    pub(super) carry: Option<Carry>,
    /// Without a view: how long the lock lasts when this machine does not answer
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = default_ttl)]
    pub(super) ttl: DurationArg<Ttl>,
    /// Be the guard in the background, and report to the process that started it
    #[arg(long, hide = true)]
    pub(super) detached: bool,
}
