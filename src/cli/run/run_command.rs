//! The `run` command: runs a command while it holds a lock. The command starts when the lock is
//! held, and is dead before another client can get the lock.

use super::children::{self, Signals, wake};
use super::supervisor::{self, FrontProcess, Inheritance, SupervisedLease};
use crate::cli::argument_types::span;
use crate::cli::connect::mount_client::LockClient;
use crate::cli::connect::target::{CommandPlace, CommandTarget, TargetArgs};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::lock::held_lock::LeaseRenewal;
use crate::cli::lock::held_lock::{HeldLock, HoldTerms};
use crate::cli::lock::held_lock::{LeaseValidity, LeaseWatcher};
use crate::cli::lock::lock_commands::{ModeArgs, TermArgs, completer};
use crate::cli::output;
use crate::cli::status_table::{SLOT_DONE, Status, held_by};
use crate::control::ControlRequest;
use crate::control::control_request::{LeaseOptions, RenewRequest};
use crate::engine::{LockName, Ttl};
use crate::engine::{QueuePolicy, Token};
use crate::time::{Span, Time, boot_now};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

/// Time between SIGTERM and SIGKILL for a command whose lock was stolen: well within the steal
/// grace of 1 s, in which no client may use the lock.
pub(super) const NOTICE_AFTER_STEAL: Span = Span::from_millis(300);
/// Time between SIGTERM and SIGKILL for the command, after the `run` process that the shell started
/// (the front process) was killed by SIGKILL. It is short, since the sender of SIGKILL expects an
/// end at once.
const NOTICE_WHEN_KILLED: Span = Span::from_millis(300);
/// Time between SIGTERM and SIGKILL for processes that remain when the command's first process has
/// ended: well within the steal grace too, in case the lock is stolen meanwhile.
const NOTICE_WHEN_LEFT: Span = Span::from_millis(300);
/// If the grace of the lease is shorter than this, the command gets SIGTERM before the lease
/// expires; otherwise it gets SIGTERM when the lease expires.
const ENOUGH_GRACE: Span = Span::from_secs(1);
/// The default ttl of the lock that `run --slot` takes: for how long, after the command has
/// succeeded, no other host runs the command for the same slot (the same KEY).
const SLOT_TTL: Span = Span::from_secs(3_600);
/// How often a lock is tried that was refused and is free a moment later: its holder may have
/// released it in between, and a refusal for another reason comes again.
const TRIES: usize = 2;

/// The arguments of `latchfs run`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RunArgs {
    /// The lock: its name, or a path below the mount
    #[arg(value_name = "NAME", required_unless_present = "guard", add = completer())]
    name: Option<OsString>,
    /// Take the lock of the guarded folder that VIEW shows, or of FOLDER itself where it has no
    /// view, and start the command once everything is there
    #[arg(long, value_name = "VIEW|FOLDER", conflicts_with_all = ["dir", "server", "shared",
        "max", "grace", "note", "slot"])]
    pub(in crate::cli) guard: Option<PathBuf>,
    /// With --guard FOLDER: where the guard keeps its state, on the folder's file system [default:
    /// latchfs in the state directory]
    #[arg(long, value_name = "DIR", requires = "guard")]
    pub(in crate::cli) stage: Option<PathBuf>,
    #[command(flatten)]
    pub(in crate::cli) target: TargetArgs,
    /// Wait in the queue for at most this long: 10m, 1h30m, or seconds [default: for ever]
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", value_parser = span,
        conflicts_with = "try_only")]
    pub(in crate::cli) wait: Option<Span>,
    /// Do not wait: exit with 75 if another has the lock
    #[arg(long = "try")]
    pub(in crate::cli) try_only: bool,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    pub(in crate::cli) term: TermArgs,
    /// Command to run with sh -c after the lock was lost and the command has ended
    #[arg(long, value_name = "CMD")]
    on_lost: Option<String>,
    /// Run once for each KEY, on whatever host comes first: the lock NAME@KEY stays held for
    /// --ttl [default: 1h] after the command has succeeded, and others exit with 0 at once
    #[arg(long, value_name = "KEY", conflicts_with_all = ["shared", "max", "wait", "try_only"])]
    slot: Option<String>,
    /// The exit code if another has the lock [default: 75, with --slot 0]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// A command for sh, instead of COMMAND
    #[arg(short = 'c', long = "command", value_name = "CMD")]
    script: Option<OsString>,
    /// The command and its arguments; '--' may stand before it
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunArgs {
    /// Returns the name of the lock, and the words of the command. With `--guard` there is no name,
    /// so the first word of the command has its place.
    fn name_and_words(&self) -> (&OsStr, Vec<&OsStr>) {
        let words = self.command.iter().map(OsString::as_os_str);
        let name = self.name.as_deref();
        match self.guard {
            Some(_) => (OsStr::new(""), name.into_iter().chain(words).collect()),
            None => (name.unwrap_or_default(), words.collect()),
        }
    }

    /// Whether a name stands between `--guard VIEW` and the `--` before the command. clap tells
    /// neither that there was a `--` nor where.
    fn names_a_lock_too(&self) -> bool {
        let mut line = std::env::args_os();
        let has_both = self.guard.is_some() && self.name.is_some();
        has_both && line.any(|word| word == "--") && line.eq(self.command.iter().cloned())
    }

    /// Fails unless there is one command to run.
    fn check(&self) -> CliResult {
        if self.names_a_lock_too() {
            return Err(CliError::usage(
                "--guard cannot be used with the name of a lock; leave one of both out",
            ));
        }
        let is_missing = match (&self.script, self.name_and_words().1.first()) {
            (Some(_), None) => return Ok(()),
            (None, Some(first)) => first.is_empty(),
            (None, None) => true,
            (Some(_), Some(_)) => {
                return Err(CliError::usage(
                    "-c names the command, and another one follows; leave one of both out",
                ));
            }
        };
        if is_missing {
            return Err(CliError::usage(
                "no command to run; write 'latchfs run NAME COMMAND', or 'latchfs hold NAME' to \
                 hold the lock until Ctrl-C",
            ));
        }
        Ok(())
    }

    /// Returns the command that is run under the lock.
    pub(in crate::cli) fn command_line(&self) -> Command {
        let words = match &self.script {
            Some(script) => vec![OsStr::new("sh"), OsStr::new("-c"), script],
            None => self.name_and_words().1,
        };
        let mut command = Command::new(words.first().copied().unwrap_or_default());
        command.args(words.iter().skip(1));
        command
    }

    /// Exits since the lock is another's: with the code of the command line, or that of `exit`.
    fn conflict(&self, ctl: &dyn LockClient, exit: Exit) -> ! {
        ctl.close();
        std::process::exit(self.conflict_exit_code.unwrap_or(exit.code()).into())
    }
}

/// How the command that `run` has started ended.
pub(in crate::cli) enum CommandEnd {
    /// The command exited by itself.
    Exited(ExitStatus),
    /// `run` ended the command because the lock was lost.
    Lost,
    /// `run` ended the command because the front process, which the shell has started, was killed.
    Killed,
}

pub(in crate::cli) fn run(args: &RunArgs) -> CliResult {
    args.check()?;
    if let Some(path) = &args.guard {
        return crate::cli::run::guard_target::run(args, path);
    }
    // A daemon that this starts must not be a descendant of the two processes, which end theirs.
    args.target.start_own(args.name_and_words().0)?;
    // `split` forks, and only the forking thread continues in the child, so `split` must run before
    // any other thread is started.
    let front = supervisor::split(|lease, step| inherit(args, lease, step))?;
    let CommandTarget { ask: ctl, place, name } = args.target.asking(args.name_and_words().0)?;
    let name = slot_name(name, args.slot.as_deref())?;
    let waits = !args.try_only && args.slot.is_none();
    if waits && args.mode.is_exclusive() {
        place.check_not_within(&name)?;
    }
    // The signals are taken before the first thread is started, which inherits the mask: a signal
    // must not reach a thread that it would kill the process by.
    let signals = Signals::take().map_err(|error| CliError::system("signals", &error))?;
    let acquired = signals.end_or(|| ctl.close(), || acquire(args, &ctl, place.dir(), &name));
    let (held, tenure) = match acquired {
        Ok(Some(acquired)) => acquired,
        Ok(None) => args.conflict(&*ctl, Exit::Done),
        Err(CliError::Said(Exit::Conflict, sentence)) => {
            if args.try_only {
                output::progress(&sentence);
            } else {
                output::say(&sentence);
            }
            args.conflict(&*ctl, Exit::Conflict)
        }
        Err(error) => return Err(error),
    };
    let mut command = args.command_line();
    command.env("LATCHFS_LOCK", name.as_str()).env("LATCHFS_TOKEN", held.token.to_string());
    if let Some(seat) = held.seat {
        command.env("LATCHFS_SEAT", seat.to_string());
    }
    place.set_in(&mut command);
    place.set_held(&mut command, &name);
    let renewal = held.hang_on_command(&front, place.dir().is_some())?;
    let ended = match children::Group::start(command, front.group()) {
        Ok(mut group) => {
            let stop_renewal = || renewal.iter().for_each(LeaseRenewal::stop);
            let watched = Watched {
                known: tenure.follow(wake),
                times: &|sure| held.times(sure),
                at_loss: &stop_renewal,
                lock: name.to_string(),
            };
            watched.supervise(&mut group, &signals, &front)
        }
        Err(error) => {
            let _ = held.release();
            not_run(&args.command_line(), &error);
        }
    };
    match ended {
        CommandEnd::Lost => {
            lost(args, &held, &place);
            Err(CliError::Said(
                Exit::Lost,
                format!(
                    "lock '{name}' was lost (token {}), so the command was ended; see 'latchfs \
                     status {name}' for its holder",
                    held.token
                ),
            ))
        }
        CommandEnd::Killed => held.release(),
        CommandEnd::Exited(status) => {
            let code = code_of(status);
            // Only after all processes of the command have ended is the lock released or, after a
            // success with `--slot`, kept until its ttl is over.
            let ended = if args.slot.is_some() && code == 0 {
                held.keep()
            } else {
                held.release().or_else(|error| ends_by_itself(&held, error))
            };
            ended?;
            held.ctl.close();
            if code == 0 { Ok(()) } else { std::process::exit(code) }
        }
    }
}

/// Says that the lock could not be released after the command, because nobody answers. The exit
/// code stays that of the command, since the lease ends by itself.
fn ends_by_itself(held: &HeldLock, error: CliError) -> CliResult {
    let CliError::Said(Exit::Unavailable, why) = error else { return Err(error) };
    output::say(&format!(
        "the command has ended, and lock '{}' could not be released: {why}; its lease ends by \
         itself, after its ttl and grace",
        held.name
    ));
    Ok(())
}

/// Renews or releases the lease of a supervisor that was killed; runs in the front process.
fn inherit(args: &RunArgs, lease: SupervisedLease, step: Inheritance) {
    let unbind = || {
        let CommandTarget { ask, name, .. } = args.target.asking(args.name_and_words().0)?;
        let name = slot_name(name, args.slot.as_deref())?;
        let token = Token::named(lease.token);
        ask.request(&match step {
            Inheritance::Renew => {
                let ttl = Ttl::new(Span::from_millis(lease.ttl_ms)).ok();
                let token = Some(token);
                let options = LeaseOptions { ttl, token, ..LeaseOptions::default() };
                ControlRequest::renewal(&name, options)
            }
            Inheritance::Release => ControlRequest::end_of(&name, token),
        })
    };
    // A failure of this request is only printed, because the lease expires at the end of its ttl
    // anyway.
    if let Err(CliError::Said(_, why)) = unbind() {
        output::say(&format!("after the supervisor was killed: {why}"));
    }
}

fn slot_name(name: LockName, slot: Option<&str>) -> CliResult<LockName> {
    let Some(key) = slot else { return Ok(name) };
    if key.trim().is_empty() {
        return Err(CliError::usage(
            "the key of a slot is empty; name what runs once, such as the day: --slot 2026-01-15",
        ));
    }
    LockName::parse(&format!("{name}@{key}"))
        .map_err(|error| CliError::usage(format!("'{key}' can't be the key of a slot: {error}")))
}

/// Acquires the lock for the command. Returns `None` if the lock of a slot is another's: the work
/// is done, or is being done.
fn acquire(
    args: &RunArgs,
    ctl: &Arc<dyn LockClient>,
    dir: Option<&Path>,
    name: &LockName,
) -> CliResult<Option<(HeldLock, LeaseWatcher)>> {
    let slot_ttl = args.slot.as_ref().and_then(|_| Ttl::new(SLOT_TTL).ok());
    let never_waits = args.try_only || args.slot.is_some();
    let terms = HoldTerms {
        mode: args.mode,
        term: TermArgs { ttl: args.term.ttl.or(slot_ttl), ..args.term.clone() },
        queue: if never_waits { QueuePolicy::Skip } else { QueuePolicy::Join(args.wait) },
    };
    let mut tries = 0;
    loop {
        tries += 1;
        let refused = match terms.acquire(Arc::clone(ctl), dir, name) {
            Err(CliError::Said(Exit::Conflict, sentence)) if never_waits => sentence,
            acquired => return acquired.map(Some),
        };
        let status = ctl.status(&ControlRequest::Status(name.clone()))?;
        let is_free = Status(&status).phase() == "free";
        if !is_free && args.slot.is_some() {
            log::info!("nothing is left to do: lock '{name}' is {}", held_by(Status(&status)));
            return Ok(None);
        }
        if is_free && tries < TRIES {
            continue;
        }
        let sentence = if is_free {
            refused
        } else {
            format!(
                "lock '{name}' is {}; --try does not wait: leave it out to wait in the queue",
                held_by(Status(&status))
            )
        };
        return Err(CliError::Said(Exit::Conflict, sentence));
    }
}

/// The state of a lock that `run` holds while its command runs.
pub(in crate::cli) struct Watched<'a> {
    /// Until when the lock is surely held.
    pub(in crate::cli) known: LeaseValidity,
    /// Returns how long before the end of the lease the command gets SIGTERM, and how long after
    /// SIGTERM it gets SIGKILL.
    pub(in crate::cli) times: &'a dyn Fn(Time) -> (Span, Span),
    /// Called before the command is ended because the lock is lost.
    pub(super) at_loss: &'a dyn Fn(),
    /// The name of the lock, as messages show it.
    pub(in crate::cli) lock: String,
}

impl Watched<'_> {
    /// Forwards signals to the command until it has ended, or the lock is no longer surely held.
    ///
    /// The last known expiry of the lease decides whether the lock is held: a daemon that is
    /// suspended or dead may come back before that time, and until then no other client can get the
    /// lock.
    pub(super) fn supervise(
        &self,
        group: &mut children::Group,
        signals: &Signals,
        front: &FrontProcess,
    ) -> CommandEnd {
        loop {
            let sure = self.known.sure();
            let (margin, notice) = (self.times)(sure);
            let now = boot_now();
            let left = (sure - margin).since(now);
            if left == Span::ZERO {
                (self.at_loss)();
                // SIGTERM may come late, on a busy machine, but SIGKILL must not.
                let end = if sure == Time::ZERO { now } else { sure - margin };
                group.end_all(end + notice);
                return CommandEnd::Lost;
            }
            if !front.lives() {
                self.until_all_are_dead(group, NOTICE_WHEN_KILLED);
                return CommandEnd::Killed;
            }
            match signals.next(left.min(self.known.period()).as_duration()) {
                Some(libc::SIGCHLD) | None => {}
                Some(signal) => group.signal(signal),
            }
            if let Some(status) = group.reap() {
                self.until_all_are_dead(group, NOTICE_WHEN_LEFT);
                return CommandEnd::Exited(status);
            }
        }
    }

    /// Ends all processes that the command has started, and returns when they are dead. The lock
    /// stays held until then.
    fn until_all_are_dead(&self, group: &mut children::Group, notice: Span) {
        let mut is_said = false;
        while !group.end_all(boot_now() + notice) {
            if !std::mem::replace(&mut is_said, true) {
                output::say(&format!(
                    "processes of the command can't be ended, so lock '{}' stays held until they \
                     end",
                    self.lock
                ));
            }
        }
    }
}

/// Says that the command can't be run and what to do, and exits as a shell does.
pub(super) fn not_run(command: &Command, error: &io::Error) -> ! {
    let program = command.get_program();
    let is_path = program.as_bytes().contains(&b'/');
    let (code, next) = match error.kind() {
        io::ErrorKind::NotFound if is_path => {
            (127, "check the path, and the first line of a script")
        }
        io::ErrorKind::NotFound => (
            127,
            "check that it is installed, and in a directory of PATH; a builtin of the shell needs \
             -c 'COMMAND'",
        ),
        io::ErrorKind::PermissionDenied => (126, "check that it may be executed: chmod +x"),
        _ => (126, "check that it is a program, or a script with a first line such as #!/bin/sh"),
    };
    let said = crate::base::said(error);
    output::say(&format!("{} can't be run: {said}; {next}", program.display()));
    std::process::exit(code);
}

/// Returns the exit code of a command as a shell reports it.
pub(super) fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

impl HeldLock {
    /// Makes the lease depend on both processes of `run` together. A lease that is bound to this
    /// process alone would end at once when this process dies, before the front process can end the
    /// command. A server's lease is bound to a session, which outlives this process by its ttl; a
    /// mount's lease is unbound, and renewed by a thread of this process.
    fn hang_on_command(
        &self,
        front: &FrontProcess,
        is_of_mount: bool,
    ) -> CliResult<Option<LeaseRenewal>> {
        let lease = SupervisedLease { token: self.token, ttl_ms: self.ttl.as_millis() };
        if !front.outlive(lease)? || !is_of_mount {
            return Ok(None);
        }
        let (name, token) = (&self.name, self.token);
        let unbound = self.unbind(LeaseOptions::default());
        let renewal = unbound.and_then(|()| {
            let renewal = LeaseRenewal::start(Arc::clone(&self.ctl), name, token, self.ttl);
            renewal.map(Some).map_err(|error| CliError::system("no thread can be made", &error))
        });
        renewal.inspect_err(|_| {
            // Either the request to unbind the lease or the start of the renewal thread has failed.
            // If the lease is unbound already, it would outlive this process, so it is released
            // now.
            let _ = self.release();
        })
    }

    /// Returns how long before the end of the lease the command gets SIGTERM, and how long after
    /// SIGTERM it gets SIGKILL. All processes are then dead before another client can be granted
    /// the lock, which is after the grace, or after the steal grace.
    fn times(&self, sure: Time) -> (Span, Span) {
        let part = |span: Span, of: u64| Span::from_nanos(span.as_nanos() / of);
        match sure {
            Time::ZERO => (Span::ZERO, NOTICE_AFTER_STEAL),
            _ if self.grace >= ENOUGH_GRACE => (Span::ZERO, part(self.grace, 2)),
            _ => (part(self.ttl, 5), part(self.ttl, 10)),
        }
    }

    /// Marks the work of `run --slot` as done for all hosts: unbinds the lease from this process,
    /// so that the lock stays held until its ttl is over, and no other host runs the command
    /// meanwhile.
    fn keep(&self) -> CliResult {
        let (ttl, note) = (Ttl::new(self.ttl).ok(), Some(SLOT_DONE.into()));
        self.unbind(LeaseOptions { ttl, note, ..LeaseOptions::default() })
    }

    /// Renews the lease, which outlives this process from now on.
    fn unbind(&self, options: LeaseOptions) -> CliResult {
        let options = LeaseOptions { token: Some(Token::named(self.token)), ..options };
        self.send(&ControlRequest::Renew(RenewRequest {
            name: self.name.clone(),
            options,
            unbinds: true,
        }))
    }
}

/// Runs the command of the option `--on-lost`.
fn lost(args: &RunArgs, held: &HeldLock, place: &CommandPlace) {
    run_on_lost(args, held.name.as_str(), held.token, |command| place.set_in(command));
}

/// Runs the command of the option `--on-lost`, once `prepare` was called with it.
pub(super) fn run_on_lost(
    args: &RunArgs,
    name: &str,
    token: u64,
    prepare: impl FnOnce(&mut Command),
) {
    let Some(script) = &args.on_lost else { return };
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("LATCHFS_LOCK", name);
    command.env("LATCHFS_TOKEN", token.to_string());
    prepare(&mut command);
    children::unblock(&mut command);
    if let Err(error) = command.status() {
        output::say(&format!("'{script}' can't be run: {error}"));
    }
}
