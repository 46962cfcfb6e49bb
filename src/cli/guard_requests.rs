//! Requests to a guard that runs: `guard take`, `give`, `wait`, `status` and `lost`.

use super::exit::{CliError, CliResult, Exit};
use super::output;
use crate::fuse::kernel::mountinfo::{self, Life, MountPoint};
use crate::time::Span;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a guard may take to answer a question about its state.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);
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
    /// Returns the mount point of the view.
    fn dir(&self) -> CliResult<PathBuf> {
        let views = mountinfo::read()
            .map_err(|error| CliError::system("the mounts can't be read", &error))?;
        let views: Vec<_> = views.into_iter().filter(MountPoint::is_view).collect();
        if let Some(view) = &self.view {
            let real = mountinfo::resolve(view).unwrap_or_else(|_| view.clone());
            let found = views.iter().rev().find(|mount| real.starts_with(&mount.dir));
            return found.map(|mount| mount.dir.clone()).ok_or_else(|| {
                CliError::unavailable(format!(
                    "{} is no view of a guarded folder; show one with 'latchfs guard FOLDER VIEW'",
                    view.display()
                ))
            });
        }
        let here = std::env::current_dir().unwrap_or_default();
        if let Some(mount) = views.iter().find(|mount| here.starts_with(&mount.dir)) {
            return Ok(mount.dir.clone());
        }
        match &views[..] {
            [one] => Ok(one.dir.clone()),
            [] => Err(CliError::unavailable(
                "no guarded folder is shown on this machine; show one with 'latchfs guard FOLDER \
                 VIEW'",
            )),
            _ => Err(CliError::usage("several guarded folders are shown here; name one of them")),
        }
    }

    /// Sends a request to the guard, and returns its answer. With a `patience` the guard must
    /// answer in that time.
    fn ask(&self, request: &Value, patience: Option<Duration>) -> CliResult<Value> {
        let dir = self.dir()?;
        let Some(patience) = patience else { return answer_of(&dir, exchange(&dir, request)) };
        let (send, answered) = mpsc::channel();
        let (asked, request) = (dir.clone(), request.clone());
        let ask = move || drop(send.send(exchange(&asked, &request)));
        std::thread::Builder::new()
            .name("ask".to_owned())
            .spawn(ask)
            .map_err(|error| CliError::system("a thread can't be started", &error))?;
        match answered.recv_timeout(patience) {
            Ok(answer) => answer_of(&dir, answer),
            Err(_) => Err(CliError::unavailable(format!(
                "the guard of {} has not answered for {patience:?}: it is stopped, or its disk \
                 hangs; look for its process with 'ps', and go on with 'kill -CONT'",
                dir.display()
            ))),
        }
    }
}

/// Writes a request to the guard's control file, and reads the answer.
fn exchange(dir: &Path, request: &Value) -> io::Result<Value> {
    let path = dir.join(".latchfs/ctl");
    let mut ctl = OpenOptions::new().read(true).write(true).open(path)?;
    ctl.write_all(format!("{request}\n").as_bytes())?;
    ctl.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    ctl.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn answer_of(dir: &Path, answer: io::Result<Value>) -> CliResult<Value> {
    match answer {
        Ok(answer) => match answer["error"].as_str() {
            Some(why) => Err(CliError::Said(Exit::Conflict, why.to_owned())),
            None => Ok(answer),
        },
        Err(_) if mountinfo::probe(dir) == Life::Dead => Err(CliError::unavailable(format!(
            "the guard of {0} is dead: what was not saved is gone, the folder is as it was; run \
             'latchfs guard' again, or 'latchfs umount {0}'",
            dir.display()
        ))),
        Err(error) => {
            Err(CliError::system(&format!("the guard of {} can't be asked", dir.display()), &error))
        }
    }
}

pub(super) fn take(args: &TakeArgs) -> CliResult {
    let wait = if args.try_once { 0 } else { WAIT_MAX.as_millis() };
    let status = args.view.ask(&json!({"do": "take", "wait_ms": wait}), None)?;
    output::line(&format!("latchfs: holding (token {})", status["tenure"]["token"]))
}

pub(super) fn give(args: &ViewArg) -> CliResult {
    args.ask(&json!({"do": "give"}), None)?;
    output::line("latchfs: given up")
}

pub(super) fn wait(args: &ViewArg) -> CliResult {
    let path = args.dir()?.join(".latchfs/ready");
    let shown = path.display();
    std::fs::read(&path)
        .map(drop)
        .map_err(|error| CliError::system(&format!("{shown} can't be read"), &error))
}

pub(super) fn status(args: &StatusArgs) -> CliResult {
    let status = args.view.ask(&json!({"do": "status"}), Some(STATUS_PATIENCE))?;
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
    if status["wanted_by"].is_string() {
        output::line(&format!("wanted   by {}", text(&status["wanted_by"])))?;
    }
    output::line(&format!("next     {}", text(&status["next"])))
}

pub(super) fn lost(args: &LostArgs) -> CliResult {
    let request = match (args.restore, args.drop) {
        (Some(number), _) => json!({"do": "restore", "number": number}),
        (None, Some(number)) => json!({"do": "drop", "number": number}),
        (None, None) => json!({"do": "lost"}),
    };
    let answer = args.view.ask(&request, None)?;
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
