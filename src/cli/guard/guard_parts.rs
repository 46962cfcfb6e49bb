//! The guard of a folder without a view: a process in the background that holds the folder's lock
//! and answers the requests of `latchfs guard` through a Unix socket.
//!
//! The options of a guard without a view: where it keeps its state, and how it decides.

use super::carry;
use super::carry::Carry;
use crate::base::said;
use crate::cli::argument_types::{DurationArg, absolute, default_state_dir, default_ttl, host};
use crate::cli::background;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::decider;
use crate::cli::guard::decider::DeciderArgs;
use crate::cli::signals::Hangup;
use crate::cli::{output, signals};
use crate::client::Terms;
use crate::engine::values::lease::{GRACE_OF_FOLDER, TTL_DEFAULT};
use crate::engine::{ClientId, Mode, Ttl};
use crate::guard::disk::plain_disk::PlainDisk;
use crate::guard::folder::folder_changes::FirstMarked;
use crate::guard::folder::folder_record::{FolderRecord, StartedRecord};
use crate::guard::folder::state_place::{ChangedThrough, StatePlace};
use crate::guard::folder::unread::UnreadPolicy;
use crate::guard::folder_parts::{PartsRequest, folder_parts};
use crate::guard::lost_files::SpaceLimits;
use crate::guard::tenures::tenure_events::NewsCommands;
use crate::guard::without_view::RequestSocket;
use crate::guard::without_view::{PlainGuard, Wake};
use crate::guard::write_policy::LOCAL_DEFAULT;
use barrier::folder_path::PathPatterns;
use kernel::mountinfo;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Returns the call that records that a folder has markers, if its record does not say so yet.
pub(super) fn write_with_markers(record: &FolderRecord, folder: &Path) -> Option<FirstMarked> {
    let (record, folder) = (record.with_markers()?, folder.to_owned());
    Some(Box::new(move || {
        if let Err(error) = record.write(&folder, true) {
            log::warn!("the record of the folder does not say yet that it has markers: {error}");
        }
    }))
}

pub(in crate::cli) fn unavailable(error: &impl ToString) -> CliError {
    CliError::unavailable(error.to_string())
}

/// Returns the real path of a folder that can be guarded.
pub(super) fn resolved_folder(folder: &Path) -> CliResult<PathBuf> {
    let shown = folder.display();
    let real = std::fs::canonicalize(folder).map_err(|error| {
        CliError::unavailable(format!(
            "{shown} can't be guarded: {}; make the folder first, or name another one",
            said(&error)
        ))
    })?;
    if !real.is_dir() {
        return Err(CliError::usage(format!("{shown} is no directory; name the folder to guard")));
    }
    if real == Path::new("/") {
        return Err(CliError::usage("/ can't be guarded; name a folder with files of your own"));
    }
    let mounts = mountinfo::ours_and_views()
        .map_err(|error| CliError::system("the mounts can't be read", &error))?;
    if let Some(mount) = mounts.iter().find(|mount| real.starts_with(&mount.dir)) {
        let dir = mount.dir.display();
        if mount.is_view() {
            return Err(CliError::usage(format!(
                "{shown} lies in {dir}, which is a view of a guarded folder already; name a folder \
                 outside of it, or use the view as it is"
            )));
        }
        return Err(CliError::usage(format!(
            "{shown} lies in {dir}, which latchfs mounted itself; name the real folder"
        )));
    }
    Ok(real)
}

/// Returns patterns, or the default ones if there are none.
pub(in crate::cli) fn patterns(texts: &[String], default: &[&str]) -> CliResult<PathPatterns> {
    let default: Vec<_> = default.iter().map(|text| (*text).to_owned()).collect();
    let texts = if texts.is_empty() { &default[..] } else { texts };
    PathPatterns::parse(texts).map_err(CliError::usage)
}

/// Returns the patterns of files that belong to this machine.
pub(in crate::cli) fn local_patterns(texts: &[String]) -> CliResult<PathPatterns> {
    patterns(texts, &LOCAL_DEFAULT)
}

/// Runs the guard of a folder until nobody needs it. The process that started it reads its report.
pub(in crate::cli) fn run(folder: &Path, place: &PlaceArgs, start: &StartArgs) -> CliResult {
    background::take_name();
    let done = serve(folder, place, start);
    if let Err(CliError::Said(_, sentence)) = &done {
        output::line(sentence)?;
    }
    done
}

fn serve(folder: &Path, place: &PlaceArgs, start: &StartArgs) -> CliResult {
    let record = FolderRecord::read(folder).map_err(|error| unavailable(&error))?;
    if record.storage.is_some() {
        return Err(CliError::usage(
            "several machines share the storage of this folder, and only a view keeps a machine \
             that has lost the lock from writing; show the folder with 'latchfs guard FOLDER VIEW \
             --shared-storage'",
        ));
    }
    // A send fails only if the main thread has ended, and then it waits for nothing.
    let (wake, wakes) = mpsc::channel();
    let ending = wake.clone();
    signals::on_end(Hangup::Ends, move || ending.send(Wake::Signal).unwrap_or_default())
        .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    let client = place.client()?;
    let through = ChangedThrough::Folder;
    let opened = StatePlace::open(folder, &record, &place.state()?, client.as_str(), through);
    let opened = opened.map_err(|error| unavailable(&error))?;
    // The files that the guard makes have explicit permissions.
    rustix::process::umask(rustix::fs::Mode::empty());
    let terms = Terms { client: client.clone(), ttl: start.ttl.0, grace: GRACE_OF_FOLDER };
    let decider = start.decider.open(&record, &opened.host, terms.clone())?;
    let locks = decider.locks();
    let served = decider::check_engine(&record, &locks).and_then(|()| {
        let wanted = PartsRequest {
            record: &record,
            started: StartedRecord::new(folder, Some(record.clone())),
            place: &opened,
            client: terms.client.clone(),
            ttl: terms.ttl,
            local: local_patterns(&[])?,
            limits: SpaceLimits::NONE,
            unread: UnreadPolicy::NONE,
            mode: Mode::Exclusive,
            first_marked: write_with_markers(&record, folder),
        };
        let (lock, guard) =
            folder_parts(PlainDisk, locks, wanted).map_err(CliError::unavailable)?;
        carry::connect(start.carry.as_ref(), folder, &guard)?;
        let system = |error| CliError::system("the guard can't be started", &error);
        let owner = folder.metadata().map_err(system)?.uid();
        let commands = NewsCommands { lost: start.on_lost.clone(), ready: None };
        let folder = folder.to_owned();
        let guard =
            PlainGuard::start(guard, lock, folder, owner, commands, wake).map_err(system)?;
        let socket = RequestSocket::serve(&opened.host, &guard).map_err(|error| {
            CliError::system(
                "the socket of the guard can't be made in its state directory; name one with a \
                 shorter path by --stage DIR",
                &error,
            )
        })?;
        background::ready()?;
        guard.serve(&wakes);
        // From now on a request finds no guard, and starts another one.
        drop(socket);
        guard.stop();
        Ok(())
    });
    served.and(decider.close())
}

/// The place of a guard without a view.
#[derive(Debug, Clone, Default, clap::Args)]
pub(in crate::cli) struct PlaceArgs {
    /// Without a view: how this machine is named to the server [default: the host's name]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
    /// Without a view: where the guard keeps its state, on the folder's file system [default:
    /// latchfs in the state directory]
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,
}

impl PlaceArgs {
    /// Returns the place of a guard with this client name and this state directory.
    pub(in crate::cli) const fn new(client: Option<ClientId>, stage: Option<PathBuf>) -> Self {
        Self { client, stage }
    }

    /// Returns the options as arguments of a command.
    pub(in crate::cli) fn arguments(&self) -> Vec<OsString> {
        let client = self.client.iter().flat_map(|it| ["--client".into(), it.as_str().into()]);
        let stage = self.stage.iter().flat_map(|it| ["--stage".into(), it.into()]);
        client.chain(stage).collect()
    }

    /// Returns the name of this machine.
    pub(in crate::cli) fn client(&self) -> CliResult<ClientId> {
        self.client.clone().map_or_else(host, Ok)
    }

    /// Returns the state directory.
    pub(in crate::cli) fn state(&self) -> CliResult<PathBuf> {
        self.stage.as_deref().map_or_else(default_state_dir, absolute)
    }

    /// Whether any of these options is given. They are for a guard without a view: the guard of a
    /// view has its own.
    pub(in crate::cli) const fn is_given(&self) -> bool {
        self.client.is_some() || self.stage.is_some()
    }
}

/// The options with which a guard without a view is started.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct StartArgs {
    #[command(flatten)]
    pub(in crate::cli) decider: DeciderArgs,
    /// Without a view: run this when the lock was lost; the event is in `LATCHFS_EVENT`
    #[arg(long, value_name = "CMD")]
    pub(in crate::cli) on_lost: Option<String>,
    /// Without a view: tell a sync tool of the changes that a marker names, so that they are
    /// carried at once: the Syncthing of this user, or a command that reads a path from each line
    #[arg(long, value_name = "syncthing[=DIR]|CMD", value_parser = Carry::parse)]
    pub(in crate::cli) carry: Option<Carry>,
    /// Without a view: how long the lock lasts when this machine does not answer
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = default_ttl)]
    pub(in crate::cli) ttl: DurationArg<Ttl>,
    /// Be the guard in the background, and report to the process that started it
    #[arg(long, hide = true)]
    pub(in crate::cli) detached: bool,
}
