//! The command `hook`: reads one event of a coding agent, and says by its exit code whether the
//! agent may go on. An agent takes every exit code but 2 for leave to go on, so each failure is 2.

use crate::cli::argument_types::ttl;
use crate::cli::background;
use crate::cli::connect::target::{CommandTarget, TargetArgs};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::hook::agent_leases::{AgentLeases, note_of};
use crate::cli::hook::agent_process::WatchedProcess;
use crate::cli::hook::event::{AgentEvent, AgentEventKind};
use crate::cli::hook::file_lock::{canonical, name_of, watcher_of};
use crate::cli::lock::held_lock::HoldTerms;
use crate::cli::lock::lock_commands::{ModeArgs, TermArgs};
use crate::cli::output;
use crate::control::ControlRequest;
use crate::engine::{LockName, Ttl};
use crate::engine::{QueuePolicy, Token};
use crate::log_output;
use crate::time::{Span, Time, boot_now};

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

/// The exit code by which a hook keeps an agent from going on.
pub(in crate::cli) const BLOCKED: u8 = 2;
/// How long a hook may take.
const PATIENCE: Span = Span::from_secs(5);
/// The interval at which a watcher looks whether its session has ended before its agent.
const WATCH_POLL: Span = Span::from_secs(1);
/// How long after the end of its own lease a watcher tries to reach the lock service. The next
/// event of the session starts another one.
const WATCH_SILENCE: Span = Span::from_secs(10);

/// The arguments of `latchfs hook`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct HookArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// How long a file stays the session's after the last event of the session
    #[arg(long, value_name = "DURATION", value_parser = ttl, default_value = "10m")]
    ttl: Ttl,
    /// The process of the agent, with whose end its files are released [default: the nearest
    /// process above this one that is no shell]
    #[arg(long, value_name = "PID")]
    agent_pid: Option<u32>,
    #[arg(long, hide = true, requires = "session")]
    watch: Option<WatchedProcess>,
    #[arg(long, hide = true)]
    session: Option<String>,
    #[arg(long, hide = true)]
    detached: bool,
}

/// Runs the command. The exit code is 0, or 2 with a sentence on standard error.
pub(in crate::cli) fn run(args: &HookArgs) -> ExitCode {
    let done = catch_unwind(AssertUnwindSafe(|| match (&args.watch, &args.session) {
        (Some(agent), Some(session)) if args.detached => watch(args, *agent, session),
        _ => {
            end_after_patience()?;
            answer(args)
        }
    }));
    let code = match done {
        Ok(Ok(())) => Exit::Done.into(),
        Ok(Err(failure)) => {
            output::report_failure(&failure);
            ExitCode::from(BLOCKED)
        }
        // The message of the panic is on standard error already.
        Err(_) => ExitCode::from(BLOCKED),
    };
    log_output::flush();
    code
}

/// Ends this process after a while, whatever it waits for.
fn end_after_patience() -> CliResult {
    let end = || {
        thread::sleep(PATIENCE.as_duration());
        // Other threads may hold the locks of the log.
        let _ = writeln!(
            std::io::stderr(),
            "latchfs: there was no answer for {PATIENCE}, so nothing is written; see 'latchfs \
             doctor', and try again"
        );
        std::process::exit(i32::from(BLOCKED));
    };
    let started = thread::Builder::new().name("patience".into()).spawn(end);
    started.map(drop).map_err(|error| CliError::system("a thread can't be started", &error))
}

fn answer(args: &HookArgs) -> CliResult {
    let event = AgentEvent::read(std::io::stdin().lock()).map_err(CliError::usage)?;
    let watcher = watcher_of(&event.session).map_err(CliError::usage)?;
    let target = args.target.asking(OsStr::new(watcher.as_str()))?;
    let leases = AgentLeases::new(target.ask, &event.session, args.ttl.span());
    match event.kind {
        AgentEventKind::Writes(files) => {
            take_all(&leases, files)?;
            start_watcher(args, &leases, &watcher, &event.session)
        }
        AgentEventKind::Works => leases.renew_all(),
        AgentEventKind::Ends => leases.release_all(),
    }
}

/// Takes the locks of all files, in one order, or none that was not the session's before.
fn take_all(leases: &AgentLeases, files: impl IntoIterator<Item = PathBuf>) -> CliResult {
    let mut locks = BTreeMap::new();
    for file in files {
        let path = canonical(&file).map_err(CliError::usage)?;
        locks.insert(name_of(&path).map_err(CliError::usage)?, path);
    }
    let mut new: Vec<(LockName, u64)> = Vec::new();
    for (name, path) in locks {
        match leases.take(&name, &path) {
            Ok(token) => new.extend(token.map(|token| (name, token))),
            Err(error) => {
                for (name, token) in new {
                    // A lease that is not released expires.
                    let _ = leases.release(&name, Token::named(token));
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Starts the watcher of a session, unless it runs: it releases the leases when the agent has
/// ended.
fn start_watcher(
    args: &HookArgs,
    leases: &AgentLeases,
    watcher: &LockName,
    session: &str,
) -> CliResult {
    let answer = leases.ask.request(&ControlRequest::Status(watcher.clone()))?;
    if answer["status"]["phase"] == "held" {
        return Ok(());
    }
    // Without a watcher the leases end by themselves.
    let Some(agent) = WatchedProcess::of_agent(args.agent_pid)? else { return Ok(()) };
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    arguments.extend([
        "--watch".into(),
        format!("{}.{}", agent.0.pid, agent.0.at).into(),
        "--session".into(),
        session.into(),
    ]);
    background::start_aside(&arguments)
}

/// In the watcher of a session: waits for the end of the agent, and then releases its leases.
fn watch(args: &HookArgs, agent: WatchedProcess, session: &str) -> CliResult {
    background::take_name();
    let name = watcher_of(session).map_err(CliError::usage)?;
    let CommandTarget { ask, place, .. } = args.target.asking(OsStr::new(name.as_str()))?;
    // The working directory must not stay busy.
    std::env::set_current_dir("/").map_err(|error| CliError::system("/", &error))?;
    let terms = HoldTerms {
        mode: ModeArgs::default(),
        term: TermArgs { note: Some(note_of(session)), ..TermArgs::default() },
        queue: QueuePolicy::Skip,
    };
    let dir = place.dir();
    let (held, lease) = match terms.acquire(Arc::clone(&ask), dir, &name) {
        // Another hook of the session has started one at the same time.
        Err(CliError::Said(Exit::Conflict, _)) => return Ok(()),
        held => held?,
    };
    let known = lease.follow(|| {});
    let leases = AgentLeases::new(ask, session, args.ttl.span());
    while !agent.has_ended_within(WATCH_POLL) {
        // The session has ended before its agent, or the lock service is gone.
        if known.sure() == Time::ZERO || known.sure() + WATCH_SILENCE < boot_now() {
            return Ok(());
        }
    }
    let released = leases.release_all();
    held.ctl.close();
    released
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: HookArgs,
    }

    #[test]
    fn a_watcher_is_started_by_options_that_the_parser_takes() {
        let words = ["hook", "--ttl", "1m", "--watch", "7.70", "--session", "s", "--detached"];
        let args = Command::try_parse_from(words).map(|command| command.args);
        let args = args.unwrap_or_else(|error| panic!("{error}"));
        assert!(args.watch.is_some() && args.detached, "{args:?}");
        assert!(Command::try_parse_from(["hook", "--watch", "7.70"]).is_err(), "no session");
    }
}
