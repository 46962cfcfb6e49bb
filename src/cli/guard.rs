//! The `guard` command: makes a folder a guarded one, and shows it through a view.

use super::argument_types::DurationArg;
use super::background;
use super::environment::{absolute, default_state_dir, host};
use super::exit::{CliError, CliResult, Exit};
use super::guard_requests;
use super::output;
use super::server_options::{self, ServerKeyArgs};
use super::signals::{self, Hangup};
use crate::client::{Remote, Terms};
use crate::engine::lease_terms::{GRACE_OF_FOLDER, TTL_DEFAULT};
use crate::engine::{ClientId, LockName, Rules, Ttl};
use crate::fuse::kernel::mount_users::Users;
use crate::fuse::kernel::own_user::is_root;
use crate::fuse::kernel::{mountinfo, session};
use crate::guard::folder_guard::FolderGuard;
use crate::guard::folder_lock::FolderLock;
use crate::guard::folder_record::FolderRecord;
use crate::guard::linux_disk::LinuxDisk;
use crate::guard::state_place::StatePlace;
use crate::guard::view::mount_view::{self, ViewParts};
use crate::guard::write_policy::{OnWrite, OwnerKind, PathPatterns, WritePolicy};
use crate::service::local::Local;
use crate::service::{BackendStatus, LockService, Locks};
use crate::time::Span;
use clap::{Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

/// The default of `--in-place`: files to which programs append.
const IN_PLACE_DEFAULT: [&str; 2] = ["*.log", "nohup.out"];
/// The default of `--on-write wait`.
const WAIT_DEFAULT: Span = Span::from_secs(30);

/// The arguments of `latchfs guard`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct GuardArgs {
    #[command(subcommand)]
    command: Option<GuardCommand>,
    #[command(flatten)]
    pub(super) view: ViewArgs,
}

#[derive(Debug, Subcommand)]
enum GuardCommand {
    /// Make a folder a guarded one: once, on one machine
    Init(InitArgs),
    /// Take the folder's lock, and wait for it
    Take(guard_requests::TakeArgs),
    /// Give the folder's lock up
    Give(guard_requests::ViewArg),
    /// Wait until this machine holds the folder's lock
    Wait(guard_requests::ViewArg),
    /// Show the state of a guard
    Status(guard_requests::StatusArgs),
    /// List, restore or drop what was kept out of the folder
    Lost(guard_requests::LostArgs),
}

/// The arguments of `latchfs guard init`.
#[derive(Debug, clap::Args)]
struct InitArgs {
    /// The folder to guard
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// The server that decides who may change the folder, or the nodes of a cluster (URL,URL)
    #[arg(long, value_name = "URL", conflicts_with = "alone", required_unless_present = "alone")]
    server: Option<String>,
    /// Only guards of this machine change the folder
    #[arg(long)]
    alone: bool,
    /// The folder is a copy: give it an id of its own
    #[arg(long)]
    new_id: bool,
    /// Several machines change the same storage, not copies of it
    #[arg(long, conflicts_with = "alone")]
    shared_storage: bool,
    #[command(flatten)]
    key: ServerKeyArgs,
}

/// The arguments of `latchfs guard FOLDER VIEW`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag that somebody types
pub(super) struct ViewArgs {
    /// The folder to guard
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Where to show it; made if it is not there
    #[arg(value_name = "VIEW")]
    view: Option<PathBuf>,
    /// The server that decides about the lock [default: as 'guard init' recorded]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// How this machine is named to the server [default: the host's name]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
    #[command(flatten)]
    key: ServerKeyArgs,
    /// Where to keep stages and lost files, on the folder's file system [default: latchfs in the
    /// state directory]
    #[arg(long, value_name = "DIR")]
    stage: Option<PathBuf>,
    /// A change without the lock: take it if it is free, wait for it (wait=30s), or refuse
    #[arg(long, value_name = "take|wait[=30s]|refuse", default_value = "take",
        value_parser = on_write)]
    on_write: OnWrite,
    /// Give the lock up once nothing has changed for so long: a duration, or never
    #[arg(long, value_name = "DURATION", default_value = "never", value_parser = give_after)]
    give_after: GiveAfter,
    /// For which programs the lock is held
    #[arg(long, value_enum, default_value = "host")]
    owner: OwnerArg,
    /// Files that are changed in place even if they are rewritten [default: *.log, nohup.out]
    #[arg(long, value_name = "GLOB")]
    in_place: Vec<String>,
    /// Write each file to the disk before it appears in the folder
    #[arg(long)]
    sync_saves: bool,
    /// Run this when the lock was lost; the event is in `LATCHFS_EVENT`
    #[arg(long, value_name = "CMD")]
    on_lost: Option<String>,
    /// How long the lock lasts when this machine does not answer
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = |text: &str| Ttl::parse(text).map(DurationArg))]
    ttl: DurationArg<Ttl>,
    /// Other machines guard the same storage, as 'guard init --shared-storage' recorded
    #[arg(long)]
    shared_storage: bool,
    /// Serve all users [default: as root]
    #[arg(long, overrides_with = "no_allow_other")]
    allow_other: bool,
    /// Serve only the user who starts the guard [default: as anybody but root]
    #[arg(long, overrides_with = "allow_other")]
    no_allow_other: bool,
    /// Return as soon as the view can be used
    #[arg(long)]
    background: bool,
    /// Report on standard output when the view is ready, to the process that started it
    #[arg(long, hide = true)]
    pub(super) detached: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OwnerArg {
    /// For all programs of this machine
    Host,
    /// For the programs of one user
    User,
    /// For the programs of one login session
    Session,
}

/// The idle time after which the lock is given up, as `--give-after` names it.
#[derive(Debug, Clone, Copy)]
struct GiveAfter(Option<Span>);

fn on_write(text: &str) -> Result<OnWrite, String> {
    match text {
        "take" => Ok(OnWrite::Take),
        "refuse" => Ok(OnWrite::Refuse),
        "wait" => Ok(OnWrite::Wait(WAIT_DEFAULT)),
        _ => match text.strip_prefix("wait=") {
            Some(patience) => Ttl::parse(patience)
                .map(|ttl| OnWrite::Wait(ttl.span()))
                .map_err(|error| error.to_string()),
            None => Err("write take, wait, wait=30s or refuse".to_owned()),
        },
    }
}

fn give_after(text: &str) -> Result<GiveAfter, String> {
    match text {
        "never" => Ok(GiveAfter(None)),
        _ => Ttl::parse(text)
            .map(|ttl| GiveAfter(Some(ttl.span())))
            .map_err(|error| error.to_string()),
    }
}

pub(super) fn run(args: &GuardArgs) -> CliResult {
    match &args.command {
        Some(GuardCommand::Init(args)) => init(args),
        Some(GuardCommand::Take(args)) => guard_requests::take(args),
        Some(GuardCommand::Give(args)) => guard_requests::give(args),
        Some(GuardCommand::Wait(args)) => guard_requests::wait(args),
        Some(GuardCommand::Status(args)) => guard_requests::status(args),
        Some(GuardCommand::Lost(args)) => guard_requests::lost(args),
        None => view(&args.view),
    }
}

fn unavailable(error: &impl ToString) -> CliError {
    CliError::unavailable(error.to_string())
}

fn init(args: &InitArgs) -> CliResult {
    let folder = resolved_folder(&args.folder)?;
    let engine = match &args.server {
        None => 0,
        Some(url) => {
            let remote = server_options::connect(&args.key.access(url)?, None)?;
            let engine = remote.engine_id();
            remote.close();
            engine
        }
    };
    let record = FolderRecord::new(args.server.clone(), engine, args.shared_storage);
    record.write(&folder, args.new_id).map_err(|error| unavailable(&error))?;
    let shown = folder.display();
    output::line(&format!(
        "latchfs: {shown} is guarded (id {}, lock {})",
        record.id,
        record.lock()
    ))?;
    output::line(&format!("latchfs: show it with 'latchfs guard {shown} VIEW'"))
}

/// Returns the real path of a folder that can be guarded.
fn resolved_folder(folder: &Path) -> CliResult<PathBuf> {
    let shown = folder.display();
    let real = std::fs::canonicalize(folder)
        .map_err(|error| CliError::system(&format!("{shown} can't be guarded"), &error))?;
    if !real.is_dir() {
        return Err(CliError::usage(format!("{shown} is no directory; name the folder to guard")));
    }
    if real == Path::new("/") {
        return Err(CliError::usage("/ can't be guarded; name a folder with files of your own"));
    }
    let mounts = mountinfo::ours_and_views()
        .map_err(|error| CliError::system("the mounts can't be read", &error))?;
    if let Some(mount) = mounts.iter().find(|mount| real.starts_with(&mount.dir)) {
        return Err(CliError::usage(format!(
            "{shown} lies in {}, which latchfs mounted itself; name the real folder",
            mount.dir.display()
        )));
    }
    Ok(real)
}

/// The lock service that decides about a folder's lock.
enum Decider {
    /// An engine in this process.
    Alone(Arc<Local>),
    /// A server.
    Server(Arc<Remote>),
}

impl Decider {
    fn locks(&self) -> Locks {
        let service: Arc<dyn LockService> = match self {
            Self::Alone(local) => Arc::clone(local) as _,
            Self::Server(remote) => Arc::clone(remote) as _,
        };
        Locks::new(service)
    }

    fn close(&self) -> CliResult {
        match self {
            Self::Alone(local) => local.close().map_err(|error| unavailable(&error)),
            Self::Server(remote) => {
                remote.close();
                Ok(())
            }
        }
    }
}

fn view(args: &ViewArgs) -> CliResult {
    let (Some(folder), Some(view)) = (&args.folder, &args.view) else {
        return Err(CliError::usage(
            "name the folder and the view: 'latchfs guard FOLDER VIEW'; see 'latchfs guard --help'",
        ));
    };
    let folder = resolved_folder(folder)?;
    let record = FolderRecord::read(&folder).map_err(|error| unavailable(&error))?;
    let state = match &args.stage {
        Some(dir) => absolute(dir)?,
        None => default_state_dir()?,
    };
    if args.background && !args.detached {
        return background::start(Some(&state));
    }
    if args.detached {
        background::take_name();
    }
    let done = serve(args, (&folder, &absolute(view)?), &record, &state);
    if let (true, Err(CliError::Said(_, sentence))) = (args.detached, &done) {
        output::line(sentence)?;
    }
    done
}

/// Refuses an option about shared storage that does not fit the folder's record.
fn check_storage(args: &ViewArgs, record: &FolderRecord) -> CliResult {
    match (record.storage.is_some(), args.shared_storage) {
        (false, true) => Err(CliError::usage(
            "the folder's record names no shared storage; run 'latchfs guard init' with \
             --shared-storage, or leave the option out",
        )),
        (true, false) => Err(CliError::usage(
            "several machines share the storage of this folder, says its record; add \
             --shared-storage",
        )),
        _ => Ok(()),
    }
}

fn serve(
    args: &ViewArgs,
    (folder, view): (&Path, &Path),
    record: &FolderRecord,
    state: &Path,
) -> CliResult {
    check_storage(args, record)?;
    // A send fails only if the main thread has ended, and then it waits for nothing.
    let (send, news) = mpsc::channel();
    let ending = send.clone();
    signals::on_end(Hangup::Ends, move || ending.send(()).unwrap_or_default())
        .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    session::check(view, false).map_err(|error| unavailable(&error))?;
    let client = args.client.clone().map_or_else(host, Ok)?;
    let place = StatePlace::open(folder, record, state, client.as_str());
    let place = place.map_err(|error| unavailable(&error))?;
    // Programs apply their own umask; what the guard makes for itself has explicit permissions.
    rustix::process::umask(rustix::fs::Mode::empty());
    let decider = decider(args, record, &place.host, &client)?;
    let locks = decider.locks();
    let served = check_engine(record, &locks).and_then(|()| {
        let name = LockName::parse(&record.lock()).map_err(|error| unavailable(&error))?;
        let record = place.host.join("session");
        let lock = FolderLock::new(locks, name, client.clone(), record);
        lock.end_previous();
        let dirs = place.dirs().map_err(|error| unavailable(&error))?;
        let guard = FolderGuard::new(
            Arc::new(LinuxDisk),
            dirs,
            Arc::clone(&lock) as _,
            args.shared_storage,
        )
        .map_err(|error| unavailable(&error))?;
        let parts = ViewParts {
            guard: Arc::new(guard),
            lock,
            policy: Arc::new(policy(args)?),
            folder: folder.to_owned(),
            on_lost: args.on_lost.clone(),
        };
        let users = match () {
            () if args.allow_other => Users::All,
            () if args.no_allow_other => Users::Mounter,
            () if is_root() => Users::All,
            () => Users::Mounter,
        };
        let mounted = mount_view::mount(parts, view, users).map_err(|error| unavailable(&error))?;
        mounted.mounted.on_end(move || send.send(()).unwrap_or_default());
        output::line(&format!(
            "latchfs: {} shows {} (client {client})",
            mounted.mounted.dir().display(),
            folder.display()
        ))?;
        if args.detached {
            background::ready()?;
        }
        background::notify_manager();
        let _ = news.recv();
        mounted
            .end()
            .map(drop)
            .map_err(|error| CliError::system("the view can't be unmounted", &error))
    });
    served.and(decider.close())
}

/// Opens the lock service that the options, or else the folder's record, name.
fn decider(
    args: &ViewArgs,
    record: &FolderRecord,
    host_dir: &Path,
    client: &ClientId,
) -> CliResult<Decider> {
    match args.server.as_ref().or(record.server.as_ref()) {
        None => {
            let local = Local::open(&host_dir.join("engine"), Rules::default());
            local.map(|local| Decider::Alone(Arc::new(local))).map_err(|error| {
                unavailable(&format!(
                    "{error}; if the folder is a copy of a guarded one, give it an id of its own \
                     by 'latchfs guard init --new-id'"
                ))
            })
        }
        Some(url) => {
            let access = args.key.access(url)?;
            let terms = Terms { client: client.clone(), ttl: args.ttl.0, grace: GRACE_OF_FOLDER };
            server_options::connect(&access, Some(terms)).map(Decider::Server)
        }
    }
}

/// Refuses a folder whose lock another engine decides.
fn check_engine(record: &FolderRecord, locks: &Locks) -> CliResult {
    let (recorded, found) = (record.engine_id(), locks.engine_id());
    if recorded == found {
        return Ok(());
    }
    Err(CliError::Said(
        Exit::Unavailable,
        format!(
            "the folder's lock is decided by the engine {recorded:016x}, and this is \
             {found:016x}: the server was replaced, or its URL leads to another one; use the right \
             server"
        ),
    ))
}

fn policy(args: &ViewArgs) -> CliResult<WritePolicy> {
    let patterns = |texts: &[String]| PathPatterns::parse(texts).map_err(CliError::usage);
    let in_place = if args.in_place.is_empty() {
        IN_PLACE_DEFAULT.map(str::to_owned).to_vec()
    } else {
        args.in_place.clone()
    };
    Ok(WritePolicy {
        on_write: args.on_write,
        give_after: args.give_after.0,
        owner: match args.owner {
            OwnerArg::Host => OwnerKind::Host,
            OwnerArg::User => OwnerKind::User,
            OwnerArg::Session => OwnerKind::Session,
        },
        in_place: patterns(&in_place)?,
        sync_saves: args.sync_saves,
    })
}
