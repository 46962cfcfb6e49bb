//! `latchfs guard FOLDER [VIEW]`: shows a guarded folder through a view.

use super::carry::{self, Carry};
use super::first_record::GuardedFolder;
use super::guard_parts::{self, resolved_folder, unavailable};
use crate::base::said;
use crate::cli::argument_types::{DurationArg, default_ttl, length};
use crate::cli::argument_types::{absolute, default_state_dir, directory_variable, host};
use crate::cli::at_login::{AtLoginArgs, LoginService};
use crate::cli::background;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::decider;
use crate::cli::guard::decider::DeciderArgs;
use crate::cli::guard::endpoint::ViewRecord;
use crate::cli::guard::sleep_inhibitor;
use crate::cli::mount::mount_command;
use crate::cli::mount::mount_command::refused;
use crate::cli::output;
use crate::cli::signals;
use crate::cli::signals::Hangup;
use crate::client::Terms;
use crate::engine::values::lease::{GRACE_OF_FOLDER, TTL_DEFAULT};
use crate::engine::{ClientId, Mode, Ttl};
use crate::guard::disk::acting_as;
use crate::guard::disk::linux_disk::LinuxDisk;
use crate::guard::folder::folder_record::{FolderRecord, StartedRecord};
use crate::guard::folder::state_place::{ChangedThrough, StatePlace};
use crate::guard::folder::unread::UnreadPolicy;
use crate::guard::folder_parts::{PartsRequest, folder_parts};
use crate::guard::lost_files::SpaceLimits;
use crate::guard::tenures::tenure_events::NewsCommands;
use crate::guard::view::mount_view::{self, MountedView, ViewParts};
use crate::guard::view::parts::view_snapshots::ViewSnapshots;
use crate::guard::write_policy::{
    AcceptedByOption, IN_PLACE_DEFAULT, NEVER_ASK_DEFAULT, OnWrite, OwnerKind, WhenAsked,
    WritePolicy,
};
use crate::time::Span;
use clap::ValueEnum;
use kernel::machine_facts::Users;
use kernel::machine_facts::is_root;
use kernel::mountinfo;
use kernel::session;
use kernel::session::MountError;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

/// The default of `--on-write wait`.
const WAIT_DEFAULT: Span = Span::from_secs(30);

/// The arguments of `latchfs guard FOLDER VIEW`.
#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag that somebody types
pub(in crate::cli) struct ViewArgs {
    /// The folder to guard
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Where to show it; made if it is not there [default: the folder's name in latchfs in the
    /// home directory, and for root in /mnt]
    #[arg(value_name = "VIEW")]
    view: Option<PathBuf>,
    /// The name by which the folder's machines ask the server for its id, the same on each of them
    /// [default: the folder's id in Syncthing]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    decider: DeciderArgs,
    /// How this machine is named to the server [default: the host's name]
    #[arg(long, value_name = "CLIENT", value_parser = ClientId::parse)]
    client: Option<ClientId>,
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
    /// When another machine asks for the lock: give it up once nothing has changed for so long
    #[arg(long = "yield", value_name = "DURATION", default_value = "2s", value_parser = length)]
    yield_after: Ttl,
    /// When another machine asks for the lock: keep it
    #[arg(long, conflicts_with_all = ["yield_after", "max"])]
    keep: bool,
    /// When another machine asks for the lock: give it up after so long at the latest
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = length)]
    max: Ttl,
    /// When nobody can say whether everything is here: wait, or go on with the folder as it stands
    #[arg(long, value_enum, default_value = "wait")]
    unsure: UnsureArg,
    /// When a program without a guard has changed files: wait for 'guard accept', or accept them
    #[arg(long, value_enum, default_value = "wait")]
    foreign: ForeignArg,
    /// For which programs the lock is held
    #[arg(long, value_enum, default_value = "host")]
    owner: FolderOwnerArg,
    /// Whether machines that share the storage hold the lock one after the other, or all at once
    #[arg(long, value_enum, default_value = "exclusive")]
    mode: ModeArg,
    /// Files that are changed in place even if they are rewritten [default: *.log, nohup.out]
    #[arg(long, value_name = "GLOB")]
    in_place: Vec<String>,
    /// Files whose changes take a free lock but never wait for it [default: .git/index.lock]
    #[arg(long, value_name = "GLOB")]
    never_ask: Vec<String>,
    /// Files that belong to this machine and never reach the folder [default: *-shm beside *-wal,
    /// .*.swp, .~lock.*#, .DS_Store, Thumbs.db, desktop.ini, .Trash-*]
    #[arg(long, value_name = "GLOB")]
    #[allow(clippy::doc_markdown)] // the help would show backquotes
    local: Vec<String>,
    /// How much content that is not closed yet the guard keeps: bytes, or with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = size)]
    max_stage: u64,
    /// How much the lost files may hold; beyond it changes fail with ENOSPC
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = size)]
    max_lost: u64,
    /// How much of the disk all folder snapshots may take
    #[arg(long, value_name = "SIZE", default_value = "100G", value_parser = size)]
    max_snapshots: u64,
    /// Refuse a save over a version of another machine that no program here has opened
    #[arg(long)]
    careful: bool,
    /// How much of such versions to keep among the lost files when a save replaces them
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    keep_unread: u64,
    /// How long nothing must change before other machines are told of the changes
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = length)]
    settle: Ttl,
    /// Write each file to the disk before it appears in the folder
    #[arg(long)]
    sync_saves: bool,
    /// Run this when the lock was lost; the event is in `LATCHFS_EVENT`
    #[arg(long, value_name = "CMD")]
    on_lost: Option<String>,
    /// Run this when the lock was taken and the folder is ready; the event is in `LATCHFS_EVENT`
    #[arg(long, value_name = "CMD")]
    on_ready: Option<String>,
    /// Tell a sync tool of the changes that a marker names, so that they are carried at once: the
    /// Syncthing of this user, or a command that reads a path from each line
    #[arg(long, value_name = "syncthing[=DIR]|CMD", value_parser = Carry::parse)]
    carry: Option<Carry>,
    /// How long the lock lasts when this machine does not answer
    #[arg(long, value_name = "DURATION", default_value_t = DurationArg(TTL_DEFAULT),
        value_parser = default_ttl)]
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
    /// Show the folder inside a folder that a sync tool carries, which would carry the view as well
    #[arg(long)]
    inside_synced_folder: bool,
    /// Return as soon as the view can be used
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    login: AtLoginArgs,
    /// Report on standard output when the view is ready, to the process that started it
    #[arg(long, hide = true)]
    pub(in crate::cli) detached: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UnsureArg {
    /// Wait for the machine that changed the folder last, or for 'guard accept'
    Wait,
    /// Go on with the folder as it stands
    Go,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ForeignArg {
    /// Wait for 'guard accept'
    Wait,
    /// Accept the versions that stand there, once they have not changed for 10 s
    Accept,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FolderOwnerArg {
    /// For all programs of this machine
    Host,
    /// For the programs of one user
    User,
    /// For the programs of one login session
    Session,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// One machine changes the folder at a time
    Exclusive,
    /// Many machines change the folder at a time: the last save of a file wins
    Shared,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Exclusive => Self::Exclusive,
            ModeArg::Shared => Self::Shared,
        }
    }
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
            Some(patience) => length(patience).map(|length| OnWrite::Wait(length.span())),
            None => Err("write take, wait, wait=30s or refuse".to_owned()),
        },
    }
}

/// Parses a number of bytes such as `4096` or `10G`.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1_u64 << 40,
        _ => 0,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|_| unit > 0).ok_or_else(|| "write a number of bytes, 500M or 10G".to_owned())
}

fn give_after(text: &str) -> Result<GiveAfter, String> {
    match text {
        "never" => Ok(GiveAfter(None)),
        _ => length(text).map(|length| GiveAfter(Some(length.span()))),
    }
}

pub(in crate::cli) fn run(args: &ViewArgs) -> CliResult {
    let Some(folder) = &args.folder else {
        return Err(CliError::usage(
            "name the folder: 'latchfs guard FOLDER [VIEW]'; see 'latchfs guard --help'",
        ));
    };
    // A unit can be removed after its folder.
    let find = if args.login.no_at_login { absolute } else { resolved_folder };
    let folder = find(folder)?;
    let view = args.view.as_deref().map_or_else(|| default_view(&folder), absolute)?;
    let about = json!({"folder": folder, "view": view});
    let service = LoginService::new("guard", vec![view.clone()], about);
    if args.login.no_at_login {
        return service.remove();
    }
    check_apart(&folder, &view)?;
    let guarded = GuardedFolder {
        dir: &folder,
        decider: &args.decider,
        name: args.name.as_deref(),
        client: args.client.as_ref(),
        stage: args.stage.as_ref(),
        carry: args.carry.as_ref(),
    };
    // The rights are given up before other threads start, because a thread inherits the rights of
    // this one.
    let record = take_rights(args).and_then(|()| {
        if args.detached {
            // The process that has started this one has waited for the record.
            FolderRecord::read(&folder).map_err(|error| unavailable(&error))
        } else {
            guarded.record()
        }
    });
    let state = match &args.stage {
        Some(dir) => absolute(dir)?,
        None => default_state_dir()?,
    };
    if args.login.at_login {
        check_storage(args, &record?)?;
        return service.install::<ViewArgs>();
    }
    if args.background && !args.detached {
        record?;
        return background::start(Some(&state));
    }
    if args.detached {
        background::take_name();
    }
    let done = record.and_then(|record| {
        check_storage(args, &record)?;
        serve(args, &folder, &view, &record, &state)
    });
    if let (true, Err(CliError::Said(_, sentence))) = (args.detached, &done) {
        output::line(sentence)?;
    }
    done
}

/// Returns where a folder is shown whose view nobody has named: where no sync tool carries files,
/// on most machines. Root's guard serves other users, who can't enter root's home.
fn default_view(folder: &Path) -> CliResult<PathBuf> {
    let views = if is_root() {
        Some(PathBuf::from("/mnt"))
    } else {
        directory_variable("HOME").map(|home| home.join("latchfs"))
    };
    match (views, folder.file_name()) {
        (Some(views), Some(name)) => Ok(views.join(name)),
        _ => Err(CliError::usage(
            "there is no HOME, or the folder has no name, so say where to show it: 'latchfs guard \
             FOLDER VIEW'",
        )),
    }
}

/// Refuses an option about shared storage that does not fit the folder's record.
fn check_storage(args: &ViewArgs, record: &FolderRecord) -> CliResult {
    if args.mode == ModeArg::Shared && record.storage.is_none() {
        return Err(CliError::usage(
            "--mode shared is for machines that share one storage, and the folder's record names \
             none: copies that a sync tool carries have one writer at a time; leave the option out",
        ));
    }
    if args.mode == ModeArg::Shared && !matches!(args.owner, FolderOwnerArg::Host) {
        return Err(CliError::usage(
            "with --mode shared all programs of this machine may change the folder; leave --owner \
             out",
        ));
    }
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

/// Gives up the rights that no act of a guard may have, and checks that the others are there.
fn take_rights(args: &ViewArgs) -> CliResult {
    acting_as::drop_resource_rights()
        .map_err(|error| CliError::system("CAP_SYS_RESOURCE can't be given up", &error))?;
    let serves_others = is_root() && matches!(users(args), Users::All);
    let checked = if serves_others { acting_as::check() } else { Ok(()) };
    checked.map_err(|error| {
        CliError::unavailable(format!(
            "this guard can't act as the users that it serves: {}; it needs CAP_SETUID, \
             CAP_SETGID, CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, and the system calls setfsuid, \
             setfsgid, setgroups and capset; add them to its unit or container, or serve root \
             alone with --no-allow-other",
            said(&error)
        ))
    })
}

/// Returns the name of this machine at the server of a folder.
fn client_of(args: &ViewArgs, record: &FolderRecord) -> CliResult<ClientId> {
    match args.decider.server_of(Some(record))? {
        Some(url) => args.decider.key.machine_at(&url, args.client.as_ref()),
        None => args.client.clone().map_or_else(host, Ok),
    }
}

fn serve(
    args: &ViewArgs,
    folder: &Path,
    view: &Path,
    record: &FolderRecord,
    state: &Path,
) -> CliResult {
    // A send fails only if the main thread has ended, and then it waits for nothing.
    let (send, news) = mpsc::channel();
    let ending = send.clone();
    signals::on_end(Hangup::Ends, move || ending.send(()).unwrap_or_default())
        .map_err(|error| CliError::system("signals can't be waited for", &error))?;
    check_view(args, view)?;
    let client = client_of(args, record)?;
    let place = StatePlace::open(folder, record, state, client.as_str(), ChangedThrough::View);
    let place = place.map_err(|error| unavailable(&error))?;
    // Programs apply their own umask; what the guard makes for itself has explicit permissions.
    rustix::process::umask(rustix::fs::Mode::empty());
    let terms = Terms { client: client.clone(), ttl: args.ttl.0, grace: GRACE_OF_FOLDER };
    let decider = args.decider.open(record, &place.host, terms.clone())?;
    let locks = decider.locks();
    let served = decider::check_engine(record, &locks).and_then(|()| {
        let policy = policy(args)?;
        let wanted = PartsRequest {
            record,
            started: StartedRecord::new(folder, Some(record.clone())),
            place: &place,
            client: terms.client.clone(),
            ttl: terms.ttl,
            local: policy.local.clone(),
            limits: limits(args),
            mode: args.mode.into(),
            unread: unread(args),
            first_marked: guard_parts::write_with_markers(record, folder),
        };
        let parts = folder_parts(LinuxDisk, locks, wanted);
        let (lock, guard) = parts.map_err(CliError::unavailable)?;
        let server = lock.server();
        carry::connect(args.carry.as_ref(), folder, &guard)?;
        let parts = ViewParts {
            snapshots: snapshots_of(record, &place, client.as_str(), args.max_snapshots)?,
            guard,
            lock,
            local: place.local().map_err(|error| unavailable(&error))?,
            policy: Arc::new(policy),
            folder: folder.to_owned(),
            commands: NewsCommands { lost: args.on_lost.clone(), ready: args.on_ready.clone() },
            is_carried: record.server.is_some(),
        };
        let mounted =
            mount_view::mount(parts, view, users(args)).map_err(|error| refused(&error))?;
        ViewRecord::note(&place.host, folder, mounted.mounted.dir(), server);
        mounted.mounted.on_end(move || send.send(()).unwrap_or_default());
        output::line(&format!(
            "latchfs: {} shows {} (client {client})",
            mounted.mounted.dir().display(),
            folder.display()
        ))?;
        args.detached.then(background::ready).transpose()?;
        give_up_before_sleep(&mounted);
        let watchdog = background::start_watchdog(mounted.liveness())?;
        background::notify_manager();
        let _ = news.recv();
        drop(watchdog);
        end_view(args, &mounted, &place)
    });
    served.and(decider.close())
}

/// Ends a view, and says in a terminal that it is gone.
fn end_view(args: &ViewArgs, mounted: &MountedView, place: &StatePlace) -> CliResult {
    let shown = mounted.mounted.dir().to_owned();
    let ended = mounted.end().map(drop);
    ViewRecord::remove(&place.host);
    if ended.is_ok() && !args.detached {
        // Nobody may read the output any more.
        let _ = output::line(&format!("latchfs: unmounted {}", shown.display()));
    }
    ended.map_err(|error| CliError::system("the view can't be unmounted", &error))
}

/// Has the guard give the lock up before this machine sleeps, where logind says when.
fn give_up_before_sleep(mounted: &MountedView) {
    if let Err(error) = sleep_inhibitor::start(Box::new(mounted.before_sleep())) {
        log::warn!("the lock is not given up before this machine sleeps: {error}");
    }
}

/// Opens the snapshots of a folder.
fn snapshots_of(
    record: &FolderRecord,
    place: &StatePlace,
    client: &str,
    bytes_max: u64,
) -> CliResult<ViewSnapshots> {
    let (is_carried, is_shared) = (record.server.is_some(), record.storage.is_some());
    let (stages, snapshots) = place.snapshots().map_err(|error| unavailable(&error))?;
    let (may_link, shared_by) = (!is_carried && !is_shared, is_shared.then_some(client));
    ViewSnapshots::open(&stages, snapshots, &record.id, may_link, shared_by, bytes_max)
        .map_err(|error| CliError::system("the folder snapshots can't be read", &error))
}

/// Refuses a view that can't be mounted, or that a sync tool would carry.
fn check_view(args: &ViewArgs, view: &Path) -> CliResult {
    session::check(view, false).map_err(|error| not_a_view(&error))?;
    match mount_command::check(view, args.inside_synced_folder)? {
        Some(warning) if args.detached => output::line(&format!("latchfs: {warning}")),
        Some(warning) => {
            output::say(&warning);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Refuses a view that lies in its folder, or a folder that lies in its view.
fn check_apart(folder: &Path, view: &Path) -> CliResult {
    let shown = view.display();
    let real = mountinfo::resolve(view)
        .map_err(|error| CliError::system(&format!("{shown} can't be found"), &error))?;
    if !real.starts_with(folder) && !folder.starts_with(&real) {
        return Ok(());
    }
    let folder = folder.display();
    Err(CliError::usage(format!(
        "{shown} can't show {folder}, because one of them lies in the other; name a directory \
         beside the folder"
    )))
}

/// Returns the error for a directory at which a folder can't be shown.
fn not_a_view(error: &MountError) -> CliError {
    match error {
        MountError::Entries { dir, .. } => CliError::unavailable(format!(
            "{} is not empty, and a view would hide what is there; name an empty directory, or a \
             path where one can be made",
            dir.display()
        )),
        MountError::Already(dir) => CliError::unavailable(format!(
            "{0} is a view already, of this folder or of another one ('latchfs guard status {0}'); \
             name another directory, or run 'latchfs umount {0}' first",
            dir.display()
        )),
        error => refused(error),
    }
}

/// Returns the users that the view serves.
fn users(args: &ViewArgs) -> Users {
    match () {
        () if args.allow_other => Users::All,
        () if args.no_allow_other => Users::Mounter,
        () if is_root() => Users::All,
        () => Users::Mounter,
    }
}

fn limits(args: &ViewArgs) -> SpaceLimits {
    SpaceLimits { staged: args.max_stage, lost: args.max_lost }
}

fn unread(args: &ViewArgs) -> UnreadPolicy {
    UnreadPolicy { is_careful: args.careful, keep_bytes: args.keep_unread }
}

fn policy(args: &ViewArgs) -> CliResult<WritePolicy> {
    Ok(WritePolicy {
        sees_changes: true,
        on_write: args.on_write,
        give_after: args.give_after.0,
        when_asked: if args.keep {
            WhenAsked::Keep
        } else {
            WhenAsked::Yield { idle: args.yield_after.span(), max: args.max.span() }
        },
        accepts: AcceptedByOption {
            unsure: args.unsure == UnsureArg::Go,
            foreign: args.foreign == ForeignArg::Accept,
        },
        owner: match args.owner {
            FolderOwnerArg::Host => OwnerKind::Host,
            FolderOwnerArg::User => OwnerKind::User,
            FolderOwnerArg::Session => OwnerKind::Session,
        },
        in_place: guard_parts::patterns(&args.in_place, &IN_PLACE_DEFAULT)?,
        settle: args.settle.span(),
        never_ask: guard_parts::patterns(&args.never_ask, &NEVER_ASK_DEFAULT)?,
        local: guard_parts::local_patterns(&args.local)?,
        sync_saves: args.sync_saves,
    })
}
