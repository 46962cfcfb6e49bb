//! The `guard` command: makes a folder a guarded one, shows it through a view, and takes and gives
//! its lock.

#[cfg(not(target_os = "linux"))]
use super::exit::CliError;
use super::exit::CliResult;
use super::guard_init;
use super::guard_permissions;
use super::guard_requests;
#[cfg(target_os = "linux")]
use super::guard_view;
use clap::Subcommand;

/// The arguments of `latchfs guard`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct GuardArgs {
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
    Wait(guard_requests::WaitArgs),
    /// Show the state of a guard
    Status(guard_requests::StatusArgs),
    /// Print which user may make which request
    Permissions(guard_permissions::PermissionsArgs),
    /// List, restore or drop what was kept out of the folder
    #[cfg(target_os = "linux")]
    Lost(guard_requests::LostArgs),
}

impl GuardArgs {
    /// Whether the process is a guard in the background, whose standard error is a log file.
    pub(super) fn is_detached(&self) -> bool {
        match &self.command {
            Some(GuardCommand::Take(args)) => args.start.detached,
            Some(GuardCommand::Accept(args)) => args.start.detached,
            #[cfg(target_os = "linux")]
            None => self.view.detached,
            _ => false,
        }
    }
}

pub(super) fn run(args: &GuardArgs) -> CliResult {
    match &args.command {
        Some(GuardCommand::Init(args)) => guard_init::init(args),
        Some(GuardCommand::Take(args)) => guard_requests::take(args),
        Some(GuardCommand::Accept(args)) => guard_requests::accept(args),
        Some(GuardCommand::Give(args)) => guard_requests::give(args),
        Some(GuardCommand::Wait(args)) => guard_requests::wait(args),
        Some(GuardCommand::Status(args)) => guard_requests::status(args),
        Some(GuardCommand::Permissions(args)) => guard_permissions::permissions(args),
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
