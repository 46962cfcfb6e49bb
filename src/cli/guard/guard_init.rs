//! `latchfs guard init`: makes a folder a guarded one. If several machines have copies of it, the
//! first checkpoint names all files as they stand on this one.
//!
//! Says on standard error how far `guard init` has come, once that takes more than a second.

use super::carry;
use super::guard_parts::{PlaceArgs, local_patterns, resolved_folder, unavailable};
use super::shared_id::{FolderAtServer, shared_name};
use crate::cli::argument_types::{absolute, default_state_dir, host};
use crate::cli::connect::credential_options;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::decider;
use crate::cli::guard::decider::Decider;
use crate::cli::output;
use crate::client::Terms;
use crate::client::http_transport::ServerAccess;
use crate::engine::values::lease::{GRACE_OF_FOLDER, TTL_DEFAULT};
use crate::engine::{ClientId, Mode};
use crate::guard::barrier_store::marker_dir::remove_other_markers;
use crate::guard::disk::plain_disk::PlainDisk;
use crate::guard::folder::folder_guard::FolderGuard;
use crate::guard::folder::folder_record::{FolderRecord, StartedRecord};
use crate::guard::folder::not_ready::Bytes;
use crate::guard::folder::state_place;
use crate::guard::folder::state_place::{ChangedThrough, StatePlace};
use crate::guard::folder::unread::UnreadPolicy;
use crate::guard::folder_parts::{PartsRequest, folder_parts};
use crate::guard::lost_files::SpaceLimits;
use crate::guard::tenure::Owner;
use crate::guard::tenures::sequence::Tenures;
use crate::guard::tenures::wishes::WishOf;
use crate::guard::write_policy::WritePolicy;
use crate::time::{Span, Time, boot_now};
use std::io;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};
use std::sync::{Arc, mpsc};

/// How long `guard init` waits for the lock of the folder, which nobody else knows yet.
const LOCK_PATIENCE: Span = Span::from_secs(30);

/// The arguments of `latchfs guard init`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("decider"))]
pub(in crate::cli) struct InitArgs {
    /// The folder to guard
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The server that decides who may change the folder, or the nodes of a cluster (URL,URL)
    #[arg(long, value_name = "URL", group = "decider")]
    server: Option<String>,
    /// A mount on the server that decides who may change the folder
    #[arg(long, value_name = "MOUNT", group = "decider")]
    dir: Option<PathBuf>,
    /// Only guards of this machine change the folder
    #[arg(long, group = "decider")]
    alone: bool,
    /// The folder is a copy, or its server was replaced: give it an id of its own [default server:
    /// that of the folder's record]
    #[arg(long)]
    new_id: bool,
    /// The name by which the folder's machines ask the server for its id [default: the folder's id
    /// in Syncthing]
    #[arg(long, value_name = "NAME", conflicts_with = "alone")]
    name: Option<String>,
    /// Several machines change the same storage, not copies of it
    #[arg(long, conflicts_with = "alone")]
    shared_storage: bool,
    /// How this machine is named to the server [default: the host's name]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
    /// Where the guard is going to keep its state, on the folder's file system [default: latchfs in
    /// the state directory]
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,
    #[command(flatten)]
    key: ServerKeyArgs,
}

impl InitArgs {
    /// Returns the arguments by which a guard makes the record of its folder.
    #[cfg(target_os = "linux")]
    pub(super) fn of_guard(folder: &Path, at: &FolderAtServer<'_>, stage: Option<PathBuf>) -> Self {
        Self {
            folder: folder.to_owned(),
            server: Some(at.url.to_owned()),
            dir: None,
            alone: false,
            new_id: false,
            name: Some(at.name.clone()),
            shared_storage: false,
            client: Some(at.client.clone()),
            stage,
            key: at.key.clone(),
        }
    }

    /// Returns the access to the server at `url`, which an option or the copied folder names.
    fn access(&self, url: &str) -> CliResult<ServerAccess> {
        if self.key.named_server(self.server.as_ref())?.is_some() || self.dir.is_some() {
            return self.key.access(url);
        }
        self.key.access_of_folder(url)
    }
}

pub(in crate::cli) fn init(args: &InitArgs) -> CliResult {
    let shown = make(args)?;
    let shown = shown.display();
    let place = PlaceArgs::new(args.client.clone(), args.stage.clone());
    let options = place.arguments().into_iter().chain(args.key.arguments());
    let same = options.fold(String::new(), |same, word| format!("{same} {}", word.display()));
    output::line(&if cfg!(target_os = "linux") {
        format!("latchfs: show it with 'latchfs guard {shown} VIEW{same}'")
    } else {
        format!("latchfs: take its lock with 'latchfs guard take {shown}{same}'")
    })
}

/// Makes a folder a guarded one, and returns its path.
pub(super) fn make(args: &InitArgs) -> CliResult<PathBuf> {
    let folder = resolved_folder(&args.folder)?;
    let (server, is_shared) = lock_service(args, &folder)?;
    let engine = match &server {
        None => 0,
        Some(url) => decider::engine_of(&args.access(url)?)?,
    };
    let mut record = FolderRecord::new(server, engine, is_shared);
    // A guard that runs would go on under the id that it knows.
    let locked = match &args.stage {
        _ if record.has_copies() => None,
        // If the guard can't use this directory, that is reported now.
        Some(dir) if args.alone => {
            let client = args.client.clone().map_or_else(host, Ok)?;
            let through = ChangedThrough::Folder;
            let place =
                StatePlace::open(&folder, &record, &absolute(dir)?, client.as_str(), through);
            Some(place.map(|place| place.folder))
        }
        _ => Some(state_place::lock_folder(&folder)),
    };
    let _locked = locked.transpose().map_err(|error| unavailable(&error))?;
    FolderRecord::make_dir(&folder, args.new_id).map_err(|error| unavailable(&error))?;
    if let Some(url) = record.server.clone().filter(|_| record.has_copies()) {
        record.id = id_at_server(args, &url, &folder, record.id)?;
        write_checkpoint(args, &url, &folder, &record)?;
    }
    // Only now other machines guard the folder: until here nobody knows what should be in it.
    record.write(&folder, args.new_id).map_err(|error| unavailable(&error))?;
    if args.new_id {
        remove_markers_of_the_copied(&folder, &record)?;
    }
    let shown = folder.display();
    output::line(&format!(
        "latchfs: {shown} is guarded (id {}, lock {})",
        record.id,
        record.lock()
    ))?;
    Ok(folder)
}

/// Returns the id of a folder that its machines call by a name: the one that the server has, or
/// `own`, which the server has from then on. Of an id that the server has, another machine may have
/// made the first checkpoint; the folder is guarded then once all that it names is here.
fn id_at_server(args: &InitArgs, url: &str, folder: &Path, own: String) -> CliResult<String> {
    let Some(name) = shared_name(folder, None, args.name.as_deref())? else { return Ok(own) };
    let client = args.key.machine_at(url, args.client.as_ref())?;
    let at = FolderAtServer { name, url, key: &args.key, client };
    Ok(at.claim(&own, args.new_id)?.id)
}

/// Removes the markers of the folder of which this one was a copy.
fn remove_markers_of_the_copied(folder: &Path, record: &FolderRecord) -> CliResult {
    let failed = |error| CliError::system("the markers of the copied folder stay", &error);
    let opened = std::fs::File::open(folder).map_err(failed)?.into();
    remove_other_markers(&PlainDisk, &opened, &record.id).map_err(failed)
}

/// Returns the server that decides about the lock, if there is one, and whether machines share the
/// storage: as the options say, or else, for a folder that gets a new id, as its record does.
fn lock_service(args: &InitArgs, folder: &Path) -> CliResult<(Option<String>, bool)> {
    let named = args.key.named_server(args.server.as_ref())?;
    match (named, &args.dir, args.alone) {
        (Some(url), None, false) => Ok((Some(url), args.shared_storage)),
        (_, Some(mount), _) => Ok((Some(decider::server_of_mount(mount)?), args.shared_storage)),
        (_, None, true) => Ok((None, false)),
        (None, None, false) if args.new_id => {
            let copied = FolderRecord::read(folder).map_err(|error| unavailable(&error))?;
            let is_shared = args.shared_storage || copied.storage.is_some();
            Ok((copied.server, is_shared))
        }
        (None, None, false) if let Some(server) = args.key.default_server()? => {
            Ok((Some(server.value), args.shared_storage))
        }
        (None, None, false) => Err(CliError::usage(
            "say who decides about the lock of the folder: --alone if only this machine changes \
             it, or --server URL, --profile NAME or --dir MOUNT if several do",
        )),
    }
}

/// Takes the lock, writes a checkpoint of the whole folder, and hands over.
fn write_checkpoint(args: &InitArgs, url: &str, folder: &Path, record: &FolderRecord) -> CliResult {
    let client = args.key.machine_at(url, args.client.as_ref())?;
    let state = match &args.stage {
        Some(dir) => absolute(dir)?,
        None => default_state_dir()?,
    };
    let place = StatePlace::open(folder, record, &state, client.as_str(), ChangedThrough::Folder);
    let place = place.map_err(|error| unavailable(&error))?;
    let terms = Terms { client: client.clone(), ttl: TTL_DEFAULT, grace: GRACE_OF_FOLDER };
    let decider =
        Decider::Server(credential_options::connect(&args.access(url)?, Some(terms.clone()))?);
    let wanted = PartsRequest {
        record,
        started: StartedRecord::new(folder, FolderRecord::read(folder).ok()),
        place: &place,
        client: terms.client.clone(),
        ttl: terms.ttl,
        local: local_patterns(&[])?,
        limits: SpaceLimits::NONE,
        unread: UnreadPolicy::NONE,
        mode: Mode::Exclusive,
        first_marked: Some(Box::new(|| {})),
    };
    let parts = folder_parts(PlainDisk, decider.locks(), wanted).map_err(CliError::unavailable);
    let written = parts.and_then(|(lock, guard)| {
        carry::connect(None, folder, &guard)?;
        let tenures = Tenures::start(
            Arc::clone(&guard),
            lock,
            Arc::new(WritePolicy::without_view()),
            Box::new(|_| {}),
        );
        let tenures = tenures.map_err(|error| unavailable(&error))?;
        let (send, held) = mpsc::channel();
        let then = Box::new(move |answer| send.send(answer).unwrap_or_default());
        tenures.hold(Owner::Host, WishOf::Person, LOCK_PATIENCE, Box::new(|| true), then);
        let mut progress = Progress::new(&guard);
        let done = match progress.wait(&held) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(denied)) => Err(CliError::unavailable(denied.sentence)),
            Err(closed) => Err(unavailable(&closed)),
        };
        let (send, given) = mpsc::channel();
        tenures.give(None, move || send.send(()).unwrap_or_default());
        let given = progress.wait(&given).map_err(|closed| unavailable(&closed));
        drop(progress);
        tenures.stop();
        done.and(given)?;
        if guard.barrier().is_some_and(|barrier| barrier.is_marked()) {
            return Ok(());
        }
        Err(CliError::unavailable(
            "the first checkpoint of the folder was not written, because files were changed \
             meanwhile or could not be read; run 'latchfs guard init' again",
        ))
    });
    written.and(decider.close())
}

/// How often progress is reported on a terminal, and when it is reported first.
const REPORT_EVERY: Span = Span::from_secs(1);
/// How often progress is reported to a file or a pipe.
const REPORT_SELDOM: Span = Span::from_secs(10);

/// The progress of `guard init`. On a terminal it is one line, which is removed at the end.
pub(in crate::cli) struct Progress<'a> {
    guard: &'a FolderGuard<PlainDisk>,
    is_terminal: bool,
    next: Time,
}

impl<'a> Progress<'a> {
    pub(in crate::cli) fn new(guard: &'a FolderGuard<PlainDisk>) -> Self {
        Self { guard, is_terminal: io::stderr().is_terminal(), next: boot_now() + REPORT_EVERY }
    }

    /// Waits for a result, and says meanwhile what was read.
    pub(in crate::cli) fn wait<T>(&mut self, result: &Receiver<T>) -> Result<T, RecvError> {
        loop {
            let wait = self.next.since(boot_now());
            match result.recv_timeout(wait.as_duration()) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
                Err(RecvTimeoutError::Timeout) => self.report(),
            }
        }
    }

    fn report(&mut self) {
        self.next = boot_now() + if self.is_terminal { REPORT_EVERY } else { REPORT_SELDOM };
        let Some(barrier) = self.guard.barrier() else { return };
        let (files, bytes) = barrier.hashed.now();
        let text = format!("latchfs: read {}, {}", output::counted(files, "file"), Bytes(bytes));
        if self.is_terminal {
            eprint!("\r{text}\x1b[K");
        } else {
            eprintln!("{text}");
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
