//! The `guard` command: makes a folder a guarded one, shows it through a view, and takes and gives
//! its lock.
//!
//! `guard permissions`: prints the table by which each request to a guard is authorized.

#[cfg(target_os = "linux")]
use super::guard_view;
use super::{guard_init, guard_requests};
use crate::auth::{Extent, FolderAct, FolderRule};
#[cfg(not(target_os = "linux"))]
use crate::cli::exit::CliError;
use crate::cli::exit::CliResult;
use crate::cli::output;
use crate::cli::serve::access_options::wrapped;
use clap::Subcommand;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The arguments of `latchfs guard`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct GuardArgs {
    #[command(subcommand)]
    command: Option<GuardCommand>,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    view: guard_view::ViewArgs,
}

#[derive(Debug, Subcommand)]
enum GuardCommand {
    /// Make a folder a guarded one: once, on one machine
    Init(guard_init::InitArgs),
    /// Take the folder's lock, and wait for it
    Take(Box<guard_requests::TakeArgs>),
    /// Take the folder's lock, and go on without what has not arrived
    Accept(Box<guard_requests::AcceptArgs>),
    /// Give the folder's lock up
    Give(guard_requests::GiveArgs),
    /// Wait until this machine holds the folder's lock and everything is here
    Wait(guard_requests::GuardWaitArgs),
    /// Show the state of a guard
    Status(guard_requests::GuardStatusArgs),
    /// List all guards of this machine, those that run and those that start at login
    #[command(visible_alias = "list")]
    Ls(guard_requests::GuardListArgs),
    /// Print which user may make which request
    Permissions(PermissionsArgs),
    /// List, restore or drop what was kept out of the folder
    #[cfg(target_os = "linux")]
    Lost(guard_requests::LostArgs),
}

impl GuardArgs {
    /// Whether the process is a guard in the background, whose standard error is a log file.
    pub(in crate::cli) fn is_detached(&self) -> bool {
        match &self.command {
            Some(GuardCommand::Take(args)) => args.start.detached,
            Some(GuardCommand::Accept(args)) => args.start.detached,
            #[cfg(target_os = "linux")]
            None => self.view.detached,
            _ => false,
        }
    }
}

pub(in crate::cli) fn run(args: &GuardArgs) -> CliResult {
    match &args.command {
        Some(GuardCommand::Init(args)) => guard_init::init(args),
        Some(GuardCommand::Take(args)) => guard_requests::take(args),
        Some(GuardCommand::Accept(args)) => guard_requests::accept(args),
        Some(GuardCommand::Give(args)) => guard_requests::give(args),
        Some(GuardCommand::Wait(args)) => guard_requests::wait(args),
        Some(GuardCommand::Status(args)) => guard_requests::status(args),
        Some(GuardCommand::Ls(args)) => guard_requests::list(args),
        Some(GuardCommand::Permissions(args)) => permissions(args),
        #[cfg(target_os = "linux")]
        Some(GuardCommand::Lost(args)) => guard_requests::lost(args),
        #[cfg(target_os = "linux")]
        None => guard_view::run(&args.view),
        #[cfg(not(target_os = "linux"))]
        None => Err(CliError::usage(
            "this system has no views; take the lock of a folder with 'latchfs guard take \
             FOLDER', and give it up with 'latchfs guard give FOLDER'",
        )),
    }
}

/// The legend of the table of rights.
const LEGEND: &str = "\
ROOT      root
GUARD     the user who started the guard; at a guard of root, root alone
OWNER     the owner of the tenure: with --owner user the programs of the user who took the lock,
          with --owner session those of that user, and of root, in that login session; otherwise
          nobody
OTHER     any other user
yes       the user may do it
own       the user may do it to what belongs to the user: the refusals of the user's programs, a
          lost file that the user wrote, a use of the lock that the same open file or connection
          began, a tenure of another login session of the user if 'guard give --from' names it
short     without the names of files, unless the folder belongs to the user
modes     as the modes and ACLs of the files say
no        it is refused

ctl is the file '.latchfs/ctl' of a view, socket that of a guard without a view; 'read' is a read of
a file in '.latchfs', and 'locks' an act on '.latchfs/locks/NAME.lock'. At a socket nobody is the
owner of the tenure. Whether a user may change a file is decided by the modes of the folder, and by
the gate: in a ready tenure, for programs of its owner.
";

/// The arguments of `latchfs guard permissions`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct PermissionsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn permissions(args: &PermissionsArgs) -> CliResult {
    if args.json { output::json(&as_json()) } else { output::write(&table()) }
}

/// Formats the table of rights, with its legend.
pub(in crate::cli) fn table() -> String {
    let mut text = String::new();
    row(&mut text, "REQUEST", ["ROOT", "GUARD", "OWNER", "OTHER"], "REQUESTS");
    for act in FolderAct::ALL {
        let FolderRule { name, requests, root, guard, owner, other } = act.rule();
        let lines = wrapped(requests.iter().copied());
        let mut lines = lines.iter().map(String::as_str);
        let extents = [root, guard, owner, other].map(Extent::word);
        row(&mut text, name, extents, lines.next().unwrap_or_default());
        lines.for_each(|more| row(&mut text, "", [""; 4], more));
    }
    text + "\n" + LEGEND
}

fn row(text: &mut String, name: &str, [root, guard, owner, other]: [&str; 4], requests: &str) {
    let extents = format!("{root:<5}  {guard:<5}  {owner:<5}  {other:<5}");
    let _ = writeln!(text, "{}", format!("{name:<29}  {extents}  {requests}").trim_end());
}

fn as_json() -> Value {
    let row = |act: &FolderAct| {
        let FolderRule { name, requests, root, guard, owner, other } = act.rule();
        json!({
            "name": name, "root": root.word(), "guard": guard.word(), "owner": owner.word(),
            "other": other.word(), "requests": requests,
        })
    };
    FolderAct::ALL.iter().map(row).collect()
}
