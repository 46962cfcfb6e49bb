//! The command line of latchfs: its commands, and the dispatch to their implementations.

use super::exit::{CliResult, Exit};
use super::log_options::{self, LogFormatArg, LogScope};
use super::{background, doctor, generate, output};
use crate::cli::connect::{config, join_command};
#[cfg(target_os = "linux")]
use crate::cli::guard::folder_snapshot;
use crate::cli::guard::guard_command;
use crate::cli::hook::hook_command;
use crate::cli::lock::{held_lock, lock_commands};
#[cfg(target_os = "linux")]
use crate::cli::mount::mount_helper;
use crate::cli::mount::{mount_command, umount};
use crate::cli::run::run_command;
use crate::cli::serve::{access_options, cluster_command, invite_command, serve_command};
use crate::cli::show::{audit, events, ls, top};
use crate::log_output;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use clap_complete::CompleteEnv;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

const ABOUT: &str = "A directory in which a file is a lock";

const LONG_ABOUT: &str = "\
A directory in which a file is a lock.

Create a file there and you hold the lock; write to it or touch it and you renew; remove it and \
you release; read it and you see the status. Any program that can make a file, a directory or a \
symlink can use it.";

const EXAMPLES: &str = "\
Examples:
  latchfs mount ./locks                      mount, until Ctrl-C
  latchfs run build -- ./build               wait for the lock, run, release it
  if mkdir locks/build; then ./build; rmdir locks/build; fi
  cat locks/build                            the holder, and for how long
  latchfs ls --watch                         all locks that are held
  latchfs steal build --reason 'host died'   take it from its holder";

const MORE: &str = "\
More commands, each with its own --help:
  invite, join, devices, renew, hook, config, cert, audit, completions, man, version";

/// The examples of each command, which its long help ends with: a part for each, after a line with
/// `== COMMAND`.
const COMMAND_EXAMPLES: &str = include_str!("examples.txt");

/// The parsed arguments of a call of `latchfs`.
#[derive(Debug, Parser)]
#[command(
    name = "latchfs",
    version,
    long_version = crate::base::with_commit(),
    about = ABOUT,
    long_about = LONG_ABOUT,
    after_long_help = format!("{EXAMPLES}\n\n{MORE}\n\n{}", Exit::table()),
    // clap's help template without the usual blank lines between its parts, so that the help fits a
    // screen.
    help_template = "{about-with-newline}{usage-heading} {usage}\nCommands:\n{subcommands}\n\
                     Options:\n{options}{after-help}",
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(super) struct Cli {
    #[command(subcommand)]
    command: CliCommand,
    #[arg(
        short,
        long,
        global = true,
        hide_short_help = true,
        long_help = "Print no progress of a wait, and not that --try got no lock"
    )]
    quiet: bool,
    #[arg(short, long, global = true, hide_short_help = true, action = clap::ArgAction::Count,
        long_help = "Log more on standard error; -vv logs still more")]
    verbose: u8,
    #[arg(long, global = true, hide_short_help = true, value_name = "FORMAT", value_enum,
        long_help = "Format of the log on standard error: text, or json with one object per line",
        hide_possible_values = true, env = "LATCHFS_LOG_FORMAT",
        default_value_t = LogFormatArg::Text)]
    log_format: LogFormatArg,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Mount a directory in which files are locks
    Mount(mount_command::MountArgs),
    /// Serve locks to other machines over HTTP
    Serve(serve_command::ServeArgs),
    /// Make a certificate authority, and certificates for a server, clients
    #[command(hide = true)]
    Cert(access_options::CertArgs),
    /// Let another machine join the server of this one, by a code
    ///
    /// Prints a code that can be used once and within 10 minutes, and waits until a machine has
    /// joined. The server was started by 'latchfs serve --home', and this is for its user and root.
    #[command(hide = true)]
    Invite(invite_command::InviteArgs),
    /// Join a server by a code that 'latchfs invite' shows there
    ///
    /// Asks for the code, or reads it from standard input. Makes a key, which stays on this
    /// machine, and writes a profile by which commands use the server.
    #[command(hide = true)]
    Join(join_command::JoinArgs),
    /// Show the machines that have joined the server of this one, and remove some
    #[command(hide = true)]
    Devices(invite_command::DevicesArgs),
    /// Show the nodes of the cluster, and change its members
    Cluster(cluster_command::ClusterArgs),
    /// Unmount it; a busy mount is detached, a stale one removed
    #[command(visible_alias = "unmount")]
    Umount(umount::UmountArgs),
    /// Show the held locks and their holders
    #[command(visible_alias = "list")]
    Ls(ls::ListArgs),
    /// Show the status of a lock, whether it is held or free
    Status(lock_commands::StatusArgs),
    /// Take a lock that nobody holds; with --reentrant also renew your own
    #[command(visible_alias = "lock")]
    Acquire(lock_commands::AcquireArgs),
    /// Wait in the queue of a lock, and hold it when this returns
    Wait(lock_commands::WaitArgs),
    /// Renew a lease for another ttl
    #[command(hide = true)]
    Renew(lock_commands::RenewArgs),
    /// Release a lock
    #[command(visible_alias = "unlock")]
    Release(lock_commands::ReleaseArgs),
    /// Take a lock from its holder; for root and the user who mounted
    ///
    /// The holder is notified, the reason is logged, and for a second no client may use the lock:
    /// this command returns when you may.
    Steal(lock_commands::StealArgs),
    /// Say who holds the lock of a file: of a lock, or of a guarded folder
    Who(lock_commands::WhoArgs),
    /// Show the locks, their queues and rates on the terminal, live
    Top(top::TopArgs),
    /// Show events as they happen, until Ctrl-C
    Events(events::EventsArgs),
    /// Hold a lock until Ctrl-C
    Hold(held_lock::HoldArgs),
    /// Run a command under a lock, and give the lock back when it ends
    Run(run_command::RunArgs),
    /// Show a folder so that it changes only under its lock
    Guard(guard_command::GuardArgs),
    /// Take, check and restore snapshots of a guarded folder
    #[cfg(target_os = "linux")]
    #[command(alias = "snapshot")]
    FolderSnapshot(folder_snapshot::FolderSnapshotArgs),
    /// Take a lease on the file that a coding agent is about to write
    ///
    /// Reads one event of Claude Code or Codex on standard input. Exits with 0, or with 2 if the
    /// agent must not go on: the file is another session's, or something has failed. Standard error
    /// says why, and what to do.
    #[command(hide = true)]
    Hook(hook_command::HookArgs),
    /// Check all that a mount needs, and say how to fix what is wrong
    Doctor(doctor::DoctorArgs),
    /// Show the server and credentials that commands use, and where they come from
    #[command(hide = true)]
    Config(config::ConfigArgs),
    /// Check that an audit log is as it was written
    #[command(hide = true)]
    Audit(audit::AuditArgs),
    // These and others are hidden, so that the short list of commands fits a screen; the long help
    // and the manual name them.
    /// Print the version, as --version does
    #[command(hide = true)]
    Version,
    /// Print the shell completions of these commands
    #[command(hide = true)]
    Completions(generate::CompletionsArgs),
    /// Print the manual page: 'latchfs man | man -l -'
    #[command(hide = true)]
    Man(generate::ManArgs),
}

/// Returns the definition of the command line, with the examples of all commands.
pub(super) fn definition() -> clap::Command {
    let parts = COMMAND_EXAMPLES.split("== ").skip(1).filter_map(|part| part.split_once('\n'));
    parts.fold(Cli::command(), |all, (command, text)| {
        with_examples(all, &command.split(' ').collect::<Vec<_>>(), text.trim_end())
    })
}

fn with_examples(command: clap::Command, path: &[&str], text: &'static str) -> clap::Command {
    match path {
        [] => command.after_long_help(text),
        // Some commands are missing on some systems.
        [first, ..] if command.find_subcommand(first).is_none() => command,
        [first, rest @ ..] => command.mut_subcommand(first, |it| with_examples(it, rest, text)),
    }
}

fn parsed(args: Vec<OsString>) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&definition().try_get_matches_from(args)?)
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = mount_helper::run_by_name() {
        return code;
    }
    // A shell that completes a command line sets this variable; then the call ends here.
    CompleteEnv::with_factory(Cli::command).var(generate::COMPLETE).complete();
    let cli = match parsed(with_help_first(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => return misused(&error),
    };
    log_options::start(&log_scope(&cli.command), cli.verbose, cli.log_format);
    if cli.quiet {
        output::be_quiet();
    }
    if let CliCommand::Hook(args) = &cli.command {
        return hook_command::run(args);
    }
    let done = match run(&cli.command) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            background::tell_manager_why(&failure);
            output::report_failure(&failure).into()
        }
    };
    log_output::flush();
    done
}

fn run(command: &CliCommand) -> CliResult {
    match command {
        CliCommand::Mount(args) => mount_command::run(args),
        CliCommand::Serve(args) => serve_command::run(args),
        CliCommand::Cert(args) => access_options::run(args),
        CliCommand::Invite(args) => invite_command::invite(args),
        CliCommand::Join(args) => join_command::run(args),
        CliCommand::Devices(args) => invite_command::devices(args),
        CliCommand::Cluster(args) => cluster_command::run(args),
        CliCommand::Umount(args) => umount::run(args),
        CliCommand::Ls(args) => ls::run(args),
        CliCommand::Status(args) => lock_commands::status(args),
        CliCommand::Acquire(args) => lock_commands::acquire(args),
        CliCommand::Wait(args) => lock_commands::wait(args),
        CliCommand::Renew(args) => lock_commands::renew(args),
        CliCommand::Release(args) => lock_commands::release(args),
        CliCommand::Steal(args) => lock_commands::steal(args),
        CliCommand::Who(args) => lock_commands::run(args),
        CliCommand::Top(args) => top::run(args),
        CliCommand::Events(args) => events::run(args),
        CliCommand::Hold(args) => held_lock::run(args),
        CliCommand::Run(args) => run_command::run(args),
        CliCommand::Guard(args) => guard_command::run(args),
        #[cfg(target_os = "linux")]
        CliCommand::FolderSnapshot(args) => folder_snapshot::run(args),
        // A hook has exit codes of its own.
        CliCommand::Hook(_) => Ok(()),
        CliCommand::Doctor(args) => doctor::run(args),
        CliCommand::Config(args) => config::run(args),
        CliCommand::Audit(args) => audit::run(args),
        CliCommand::Completions(args) => generate::completions(args),
        CliCommand::Version => output::line(&format!("latchfs {}", crate::base::with_commit())),
        CliCommand::Man(args) => generate::man(args, definition()),
    }
}

/// Turns `latchfs help COMMAND` into `latchfs COMMAND --help`. clap's own command would be listed
/// twice in the manual.
fn with_help_first(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    args
}

/// Prints the output of clap itself (help, version or usage error), and returns the exit code.
fn misused(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A write error is ignored: it means that the reader of the output has closed the pipe, for
        // example `head`.
        let _ = error.print();
        return Exit::Done.into();
    }
    let mut text = error.to_string();
    // `latchfs build make`, as flock(1) would have it.
    if error.kind() == ErrorKind::InvalidSubcommand {
        text += "To run a command under a lock: latchfs run NAME -- COMMAND\n";
    }
    let mut words = std::env::args_os().skip(1);
    let command = words.find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let is_hook = command.is_some_and(|word| word == "hook");
    let _ = match text.strip_prefix("error: ") {
        Some(wrong) => write!(std::io::stderr().lock(), "latchfs: {wrong}"),
        // clap prints the help without an error message if the subcommand is missing.
        None => write!(std::io::stderr().lock(), "{text}"),
    };
    if is_hook { hook_command::BLOCKED.into() } else { Exit::Usage.into() }
}

/// Returns what the command logs.
fn log_scope(command: &CliCommand) -> LogScope {
    let (is_daemon, has_locks) = match command {
        CliCommand::Serve(args) => (true, args.log_locks.is_on(false)),
        CliCommand::Mount(args) => {
            (args.detached || !args.background, args.log_locks.is_on(args.detached))
        }
        CliCommand::Guard(args) => (args.is_detached(), true),
        _ => (false, true),
    };
    LogScope { is_daemon, has_locks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        definition().debug_assert();
    }

    /// Returns the words of the first command of a shell line; a gap of two spaces ends it as well.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quoted, mut word) = (Vec::new(), false, String::new());
        let mut before = ' ';
        for letter in line.chars() {
            match letter {
                '\'' => quoted = !quoted,
                '|' | '&' | ';' | '>' if !quoted => break,
                ' ' if !quoted && before == ' ' => break,
                ' ' if !quoted => words.push(std::mem::take(&mut word)),
                _ => word.push(letter),
            }
            before = letter;
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }

    /// Checks the examples of a command and of those below it. Returns their number.
    fn check_examples(command: &clap::Command, path: &str) -> usize {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace(" \\\n    ", " ");
        assert!(help.contains("Examples:\n"), "latchfs{path} --help has no example");
        let lines = help.lines().filter_map(|line| line.strip_prefix("  latchfs "));
        let own = lines.map(|line| {
            let arguments = ["latchfs".to_owned()].into_iter().chain(words(line));
            if let Err(error) = definition().try_get_matches_from(arguments) {
                panic!("latchfs{path} --help: 'latchfs {line}': {error}");
            }
        });
        let below = command
            .get_subcommands()
            .map(|below| check_examples(below, &format!("{path} {}", below.get_name())));
        own.count() + below.sum::<usize>()
    }

    #[test]
    fn each_command_has_examples_that_are_parsed() {
        assert!(check_examples(&definition(), "") > 100);
    }

    /// The chapter about commands, and the list that the long help shows, have every command.
    #[test]
    fn each_command_is_listed() {
        let chapter = include_str!("../../contrib/doc/commands.md");
        let table = chapter.lines().filter(|line| line.starts_with("| `")).collect::<String>();
        for command in definition().get_subcommands() {
            let name = command.get_name();
            assert!(table.contains(&format!("`{name}")), "{name} is not in the table of commands");
            let more = MORE.split([' ', ',', '\n']).any(|word| word == name);
            assert_eq!(command.is_hide_set(), more, "{name} is in one list");
        }
    }

    /// Returns the arguments with which a launchd property list in `contrib/launchd` starts the
    /// program.
    fn arguments(plist: &str) -> Vec<&str> {
        let (_, rest) = plist.split_once("<key>ProgramArguments</key>").expect("it starts one");
        let (array, _) = rest.split_once("</array>").expect("the arguments are a list");
        if array.contains("<string>/bin/sh</string>") {
            let script = "exec /usr/local/bin/latchfs serve $LATCHFS_SERVE_OPTIONS\n";
            assert!(array.contains(script), "{array}");
            let key = "<key>LATCHFS_SERVE_OPTIONS</key>";
            let (_, rest) = plist.split_once(key).expect("it has options");
            let options =
                rest.lines().map(str::trim).find_map(|line| line.strip_prefix("<string>"));
            let options = options.and_then(|line| line.strip_suffix("</string>"));
            let options = options.expect("the options are a text").split(' ');
            return ["latchfs", "serve"].into_iter().chain(options).collect();
        }
        let lines = array.lines().map(str::trim).filter_map(|line| line.strip_prefix("<string>"));
        lines.filter_map(|line| line.strip_suffix("</string>")).collect()
    }

    #[test]
    fn launchd_arguments_are_valid() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/launchd");
        let mut commands = Vec::new();
        for file in std::fs::read_dir(folder).expect("it is there") {
            let path = file.expect("readable").path();
            let plist = std::fs::read_to_string(&path).expect("text");
            let parsed = Cli::try_parse_from(arguments(&plist));
            commands.push(
                match parsed.unwrap_or_else(|error| panic!("{path:?}: {error}")).command {
                    CliCommand::Serve(_) => "serve",
                    CliCommand::Run(_) => "run",
                    other => panic!("{path:?}: {other:?}"),
                },
            );
        }
        commands.sort_unstable();
        assert_eq!(commands, ["run", "serve"]);
    }

    #[test]
    fn the_short_help_fits_a_screen() {
        let help = Cli::command().render_help().to_string();
        assert!(help.lines().count() <= 24, "{help}");
    }

    #[test]
    fn the_long_help_ends_with_the_exit_codes() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.trim_end().ends_with(Exit::table().as_str()), "{help}");
    }

    #[test]
    fn durations_are_checked_by_the_parser() {
        let wrong = |args: &[&str]| Cli::try_parse_from(args).expect_err("refused").to_string();
        let short = wrong(&["latchfs", "mount", "x", "--ttl", "500ms"]);
        assert!(short.contains("a ttl is at least 1s"), "{short}");
        let odd = wrong(&["latchfs", "acquire", "x", "--ttl", "60x"]);
        assert!(odd.contains("a duration reads like"), "{odd}");
    }
}
