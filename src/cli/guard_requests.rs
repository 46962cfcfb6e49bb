//! Requests to a guard that runs: `guard take`, `give`, `wait`, `status` and `lost`.

use super::environment::absolute;
use super::exit::{CliError, CliResult, Exit};
use super::output;
use super::view_daemon::DaemonState;
use crate::engine::Ttl;
use crate::engine::lease_terms::{TTL_MAX, TermError};
use crate::fuse::kernel::child_call::{ANSWER_BYTES_MAX, ChildCall};
use crate::fuse::kernel::mountinfo::{self, MountPoint};
use crate::fuse::kernel::own_user::own_uid;
use crate::time::Span;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How long a guard may take to answer a question about its state, and how long a request waits
/// before this process looks whether the guard was stopped.
const ANSWER_PATIENCE: Span = Span::from_millis(1_500);
/// How long `guard take` and `guard wait` wait at most.
const WAIT_MAX: Span = Span::from_secs(24 * 3_600);

/// The view that a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct ViewArg {
    /// The view [default: the one that contains the current directory, or the only one]
    #[arg(value_name = "VIEW")]
    view: Option<PathBuf>,
}

/// The arguments of `latchfs guard take`.
#[derive(Debug, clap::Args)]
pub(super) struct TakeArgs {
    #[command(flatten)]
    view: ViewArg,
    /// Fail with exit code 75 if another machine holds the lock
    #[arg(long = "try")]
    try_once: bool,
    /// Take the lock along for so long: it is kept also where the server can't be reached, and no
    /// other machine gets it before
    #[arg(long = "for", value_name = "DURATION", value_parser = away_for)]
    away: Option<Ttl>,
}

/// The arguments of `latchfs guard accept`.
#[derive(Debug, clap::Args)]
pub(super) struct AcceptArgs {
    /// The view, to accept the whole folder as it stands, or files in it
    #[arg(value_name = "VIEW|PATH")]
    paths: Vec<PathBuf>,
    /// Why you go on without what has not arrived; other machines are told
    #[arg(long, value_name = "WHY", required_unless_present = "from")]
    reason: Option<String>,
    /// Put the content of a conflict copy back, which 'guard status' names, in the place of PATH
    #[arg(long, value_name = "COPY", conflicts_with = "reason")]
    from: Option<PathBuf>,
}

/// The arguments of `latchfs guard status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    view: ViewArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `latchfs guard lost`.
#[derive(Debug, clap::Args)]
pub(super) struct LostArgs {
    #[command(flatten)]
    view: ViewArg,
    /// Put a lost file into the folder, beside the file that has its name
    #[arg(long, value_name = "N", conflicts_with = "drop")]
    restore: Option<u64>,
    /// Remove a lost file for good
    #[arg(long, value_name = "N")]
    drop: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ViewArg {
    /// Returns the mount of the view.
    fn mount(&self) -> CliResult<MountPoint> {
        let views = mountinfo::read()
            .map_err(|error| CliError::system("the mounts can't be read", &error))?;
        let mut views: Vec<_> = views.into_iter().filter(MountPoint::is_view).collect();
        let around = |dir: &Path| views.iter().rposition(|mount| dir.starts_with(&mount.dir));
        let found = match &self.view {
            Some(view) => {
                let path = absolute(view)?;
                // A path that lies in a view as it stands is not resolved, because a guard that
                // hangs would not answer.
                let resolved = || around(&mountinfo::resolve(view).ok()?);
                Some(around(&path).or_else(resolved).ok_or_else(|| {
                    CliError::unavailable(format!(
                        "{} is no view of a guarded folder; show one with 'latchfs guard FOLDER \
                         VIEW'",
                        view.display()
                    ))
                })?)
            }
            None => around(&std::env::current_dir().unwrap_or_default()),
        };
        if let Some(at) = found {
            return Ok(views.swap_remove(at));
        }
        // Any user can show a view; a command that names none means one of root or of its own user.
        views.retain(|view| view.mounter == 0 || view.mounter == own_uid());
        match views.len() {
            1 => Ok(views.swap_remove(0)),
            0 => Err(CliError::unavailable(
                "no guarded folder is shown on this machine; show one with 'latchfs guard FOLDER \
                 VIEW'",
            )),
            _ => Err(CliError::usage("several guarded folders are shown here; name one of them")),
        }
    }

    /// Sends a request to the guard, and returns its answer.
    fn ask(&self, request: &Value, waits: Waits) -> CliResult<Value> {
        let mount = self.mount()?;
        let answer = in_child(&mount, waits, || exchange(&mount.dir, request))?;
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| CliError::unavailable(format!("the guard's answer: {error}")))?;
        match answer["error"].as_str() {
            Some(why) => Err(CliError::Said(Exit::Conflict, why.to_owned())),
            None => Ok(answer),
        }
    }
}

/// How long a request waits for the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The guard must answer at once.
    Never,
    /// The guard may take its time, as long as its process was not stopped.
    UntilStopped,
}

/// Runs an operation on a view in a child process, and returns what it has read.
fn in_child(
    view: &MountPoint,
    waits: Waits,
    work: impl FnOnce() -> io::Result<Vec<u8>>,
) -> CliResult<Vec<u8>> {
    let dir = view.dir.display();
    let failed = |error| CliError::system(&format!("the guard of {dir} can't be asked"), &error);
    // The first byte tells an answer from an error number.
    let call = ChildCall::start(|| match work() {
        Ok(read) => [&[0], &read[..]].concat(),
        Err(error) => [&[1], &error.raw_os_error().unwrap_or(0).to_le_bytes()[..]].concat(),
    });
    let mut call = call.map_err(failed)?;
    let mut told = String::new();
    let answer = loop {
        if let Some(answer) = call.answer(ANSWER_PATIENCE).map_err(failed)? {
            break answer;
        }
        let state = DaemonState::of(view);
        if waits == Waits::Never || state.is_stopped() {
            return Err(CliError::unavailable(format!(
                "the guard of {dir} has not answered for {ANSWER_PATIENCE}: {state}; then \
                 'latchfs umount {dir}' removes the view"
            )));
        }
        tell_progress(view, &mut told);
    };
    let code = match answer.split_first() {
        Some((0, read)) => return Ok(read.to_vec()),
        Some((_, code)) => <[u8; 4]>::try_from(code).map_or(0, i32::from_le_bytes),
        None => 0,
    };
    match io::Error::from_raw_os_error(code) {
        error if mountinfo::is_dead(&error) => Err(CliError::unavailable(format!(
            "the guard of {dir} is dead: what was not saved is gone, the folder is as it was; run \
             'latchfs guard' again, or 'latchfs umount {dir}'"
        ))),
        error => Err(failed(error)),
    }
}

/// Says on standard error what a request waits for, whenever that has changed.
fn tell_progress(view: &MountPoint, told: &mut String) {
    let request = json!({"do": "status"});
    let Ok(answer) = in_child(view, Waits::Never, || exchange(&view.dir, &request)) else { return };
    let status: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let text = |name: &str| status[name].as_str().map(output::harmless);
    let waits_for = text("not_ready")
        .or_else(|| match (text("holder"), text("holder_away_until")) {
            (Some(holder), Some(until)) => {
                Some(format!("{holder} holds the lock, and is away until {until}"))
            }
            (holder, _) => holder.map(|holder| format!("{holder} holds the lock")),
        })
        .or_else(|| text("trouble"))
        .unwrap_or_default();
    if !waits_for.is_empty() && waits_for != *told {
        output::say(&format!("waiting: {waits_for}"));
        *told = waits_for;
    }
}

/// Writes a request to the guard's control file, and reads the answer.
fn exchange(dir: &Path, request: &Value) -> io::Result<Vec<u8>> {
    let path = dir.join(".latchfs/ctl");
    let mut ctl = OpenOptions::new().read(true).write(true).open(path)?;
    ctl.write_all(format!("{request}\n").as_bytes())?;
    ctl.seek(SeekFrom::Start(0))?;
    read(ctl)
}

/// Reads a file of a view. The daemon may be another user's, so its answer is bounded.
fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

pub(super) fn take(args: &TakeArgs) -> CliResult {
    let wait = if args.try_once { 0 } else { WAIT_MAX.as_millis() };
    let mut request = json!({"do": "take", "wait_ms": wait});
    if let Some(length) = args.away {
        request["for_ms"] = json!(length.span().as_millis());
    }
    let status = args.view.ask(&request, Waits::UntilStopped)?;
    let until = status["away_until"].as_str().map(output::harmless);
    let until = until.map(|until| format!(", until {until}")).unwrap_or_default();
    output::line(&format!("latchfs: holding (token {}){until}", status["tenure"]["token"]))
}

/// Parses the time for which a lock is taken along.
fn away_for(text: &str) -> Result<Ttl, String> {
    Ttl::parse(text).map_err(|error| match error {
        TermError::TooLong => format!("a server keeps a lock for at most {TTL_MAX}"),
        error => error.to_string(),
    })
}

pub(super) fn accept(args: &AcceptArgs) -> CliResult {
    let view = ViewArg { view: args.paths.first().cloned() };
    let mount = view.mount()?;
    // After the view itself, a path may be one in the folder.
    let inside = |given: &Path| -> CliResult<String> {
        let path = absolute(given)?;
        Ok(path.strip_prefix(&mount.dir).unwrap_or(given).to_string_lossy().into_owned())
    };
    let paths = args.paths.iter().map(|given| inside(given));
    let mut paths = paths.collect::<CliResult<Vec<_>>>()?;
    paths.retain(|path| !path.is_empty());
    let mut request = json!({"do": "accept", "paths": paths, "reason": args.reason});
    if let Some(copy) = &args.from {
        request["from"] = json!(inside(copy)?);
    }
    let status = view.ask(&request, Waits::UntilStopped)?;
    output::line(&format!("latchfs: holding (token {})", status["tenure"]["token"]))
}

pub(super) fn give(args: &ViewArg) -> CliResult {
    args.ask(&json!({"do": "give"}), Waits::UntilStopped)?;
    output::line("latchfs: given up")
}

pub(super) fn wait(args: &ViewArg) -> CliResult {
    let mount = args.mount()?;
    let path = mount.dir.join(".latchfs/ready");
    in_child(&mount, Waits::UntilStopped, || read(File::open(path)?)).map(drop)
}

pub(super) fn status(args: &StatusArgs) -> CliResult {
    let status = args.view.ask(&json!({"do": "status"}), Waits::Never)?;
    if args.json {
        return output::json(&status);
    }
    let text = |value: &Value| output::harmless(value.as_str().unwrap_or("-"));
    output::line(&format!("folder   {}", text(&status["folder"])))?;
    output::line(&format!("lock     {}", text(&status["lock"])))?;
    output::line(&format!("state    {}", text(&status["state"])))?;
    if let Some(token) = status["tenure"]["token"].as_u64() {
        let since = text(&status["tenure"]["since"]);
        output::line(&format!("token    {token}, since {since}"))?;
    }
    if let Some(until) = status["away_until"].as_str() {
        output::line(&format!("away     until {}", output::harmless(until)))?;
    }
    if let Some(why) = status["not_ready"].as_str() {
        output::line(&format!("missing  {}", output::harmless(why)))?;
    }
    for note in status["notes"].as_array().into_iter().flatten() {
        output::line(&format!("note     {}", text(note)))?;
    }
    if status["wanted_by"].is_string() {
        output::line(&format!("wanted   by {}", text(&status["wanted_by"])))?;
    }
    if let Some(trouble) = status["trouble"].as_str() {
        output::line(&format!("trouble  {trouble}"))?;
    }
    output::line(&format!("next     {}", text(&status["next"])))
}

pub(super) fn lost(args: &LostArgs) -> CliResult {
    let request = match (args.restore, args.drop) {
        (Some(number), _) => json!({"do": "restore", "number": number}),
        (None, Some(number)) => json!({"do": "drop", "number": number}),
        (None, None) => json!({"do": "lost"}),
    };
    let answer = args.view.ask(&request, Waits::UntilStopped)?;
    if args.json {
        return output::json(&answer);
    }
    if let Some(path) = answer["restored"].as_str() {
        return output::line(&format!("latchfs: restored as {}", output::harmless(path)));
    }
    if let Some(path) = answer["dropped"].as_str() {
        return output::line(&format!("latchfs: dropped {}", output::harmless(path)));
    }
    for file in answer["lost"].as_array().into_iter().flatten() {
        let text = |key: &str| output::harmless(file[key].as_str().unwrap_or_default());
        output::line(&format!(
            "{:>4}  {}  {} bytes  {}\n      {}",
            file["number"],
            text("at"),
            file["size"],
            text("path"),
            text("why")
        ))?;
    }
    Ok(())
}
