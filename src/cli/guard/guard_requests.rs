//! Requests to a guard that runs: `guard take`, `accept`, `give`, `wait`, `status` and `lost`.
//!
//! The list of all guards of this machine: `guard ls`.

use crate::cli::argument_types::{absolute, default_state_dir, ttl};
use crate::cli::at_login;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::endpoint::AnswerWait;
use crate::cli::guard::endpoint::{EndpointArgs, GuardEndpoint, hosts, progress_of, status_at};
use crate::cli::guard::guard_parts;
use crate::cli::guard::guard_parts::{PlaceArgs, StartArgs};
use crate::cli::output;
use crate::cli::status_table::aligned;
use crate::engine::Ttl;
use crate::engine::values::lease::{TTL_MAX, TermError};
use crate::time::Span;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How long `guard take` and `guard wait` wait at most.
const WAIT_MAX: Span = Span::from_secs(24 * 3_600);

/// The arguments of `latchfs guard take`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct TakeArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// Fail with exit code 75 if another machine holds the lock
    #[arg(long = "try")]
    try_once: bool,
    /// Take the lock along for so long: it is kept also where the server can't be reached, and no
    /// other machine gets it before
    #[arg(long = "for", value_name = "DURATION", value_parser = away_for)]
    away: Option<Ttl>,
    #[command(flatten)]
    pub(in crate::cli) start: StartArgs,
}

/// The arguments of `latchfs guard accept`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct AcceptArgs {
    /// The view, or the folder where it has none, to accept the whole folder as it stands; or files
    /// in it
    #[arg(value_name = "VIEW|FOLDER|PATH")]
    paths: Vec<PathBuf>,
    /// Why you go on without what has not arrived; other machines are told
    #[arg(long, value_name = "WHY", required_unless_present = "from")]
    reason: Option<String>,
    /// Put the content of a conflict copy back, which 'guard status' names, in the place of PATH
    #[arg(long, value_name = "COPY", conflicts_with = "reason")]
    from: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    pub(in crate::cli) start: StartArgs,
}

/// The arguments of `latchfs guard give`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct GiveArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// Take the lock from this login session, which 'guard status' names as its owner
    #[arg(long, value_name = "SESSION")]
    from: Option<u32>,
}

/// The arguments of `latchfs guard wait`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct GuardWaitArgs {
    #[command(flatten)]
    at: EndpointArgs,
}

/// The arguments of `latchfs guard status`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct GuardStatusArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `latchfs guard lost`.
#[cfg(target_os = "linux")]
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct LostArgs {
    #[command(flatten)]
    at: EndpointArgs,
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

/// Is the guard of a folder without a view, in the background.
fn serve(endpoint: &GuardEndpoint, place: &PlaceArgs, start: &StartArgs) -> CliResult {
    match endpoint {
        GuardEndpoint::Folder(folder) => guard_parts::run(&folder.dir, place, start),
        #[cfg(target_os = "linux")]
        GuardEndpoint::View(_) => Err(CliError::usage("a view has a guard already")),
    }
}

/// Returns the arguments of this process, by which a guard without a view is started.
fn own_arguments() -> Vec<OsString> {
    std::env::args_os().skip(1).collect()
}

pub(in crate::cli) fn take(args: &TakeArgs) -> CliResult {
    let endpoint = args.at.find()?;
    if args.start.detached {
        return serve(&endpoint, args.at.place(), &args.start);
    }
    let wait = if args.try_once { 0 } else { WAIT_MAX.as_millis() };
    let mut request = json!({"do": "take", "wait_ms": wait});
    if let Some(length) = args.away {
        request["for_ms"] = json!(length.span().as_millis());
    }
    let status = endpoint.request(&request, AnswerWait::UntilStopped, Some(&own_arguments()))?;
    let until = status["away_until"].as_str().map(output::harmless);
    let until = until.map(|until| format!(", until {until}")).unwrap_or_default();
    output::line(&format!("latchfs: holding (token {}){until}", status["tenure"]["token"]))
}

/// Parses the time for which a lock is taken along.
fn away_for(text: &str) -> Result<Ttl, String> {
    ttl(text).map_err(|error| match error {
        TermError::TooLong => format!("a server keeps a lock for at most {TTL_MAX}"),
        error => error.to_string(),
    })
}

pub(in crate::cli) fn accept(args: &AcceptArgs) -> CliResult {
    let endpoint = GuardEndpoint::find(args.paths.first().map(PathBuf::as_path), &args.place)?;
    if args.start.detached {
        return serve(&endpoint, &args.place, &args.start);
    }
    let dir = endpoint.dir().to_owned();
    // A path outside of the view's directory is taken as a path in the folder.
    let inside = |given: &Path| -> CliResult<String> {
        let path = absolute(given)?;
        Ok(path.strip_prefix(&dir).unwrap_or(given).to_string_lossy().into_owned())
    };
    let paths = args.paths.iter().map(|given| inside(given));
    let mut paths = paths.collect::<CliResult<Vec<_>>>()?;
    paths.retain(|path| !path.is_empty());
    let mut request = json!({"do": "accept", "paths": paths, "reason": args.reason});
    if let Some(copy) = &args.from {
        request["from"] = json!(inside(copy)?);
    }
    let status = endpoint.request(&request, AnswerWait::UntilStopped, Some(&own_arguments()))?;
    output::line(&format!("latchfs: holding (token {})", status["tenure"]["token"]))
}

pub(in crate::cli) fn give(args: &GiveArgs) -> CliResult {
    let request = json!({"do": "give", "from": args.from});
    let endpoint = args.at.find()?;
    let had_it = !endpoint.status()?["tenure"].is_null();
    let answer = endpoint.request(&request, AnswerWait::UntilStopped, None)?;
    if answer["untold"] == true {
        output::say(
            "files were changed while the last marker was written; end the programs that change \
             them, and the guard tells the other machines within a minute, or at the next 'latchfs \
             guard take'",
        );
    }
    output::line(if had_it { "latchfs: given up" } else { "latchfs: the lock was not held" })
}

pub(in crate::cli) fn wait(args: &GuardWaitArgs) -> CliResult {
    args.at.find()?.wait()
}

pub(in crate::cli) fn status(args: &GuardStatusArgs) -> CliResult {
    let found = args.at.find()?;
    let endpoint = if args.at.place().is_given() { found } else { found.or_view()? };
    let status = endpoint.status()?;
    if args.json {
        return output::json(&status);
    }
    let text = |value: &Value| output::harmless(value.as_str().unwrap_or("-"));
    output::line(&format!("folder   {}", text(&status["folder"])))?;
    output::line(&format!("lock     {}", text(&status["lock"])))?;
    output::line(&format!("state    {}", text(&status["state"])))?;
    if let Some(token) = status["tenure"]["token"].as_u64() {
        let since = status["tenure"]["since"].as_str().map(output::harmless);
        let since = since.map_or_else(String::new, |since| format!(", since {since}"));
        output::line(&format!("token    {token}{since}"))?;
    }
    if let Some(owner) = status["tenure"]["owner"].as_str().filter(|owner| *owner != "host") {
        output::line(&format!("owner    {}", output::harmless(owner)))?;
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
    ignored_lines(&status["ignored"])?;
    if status["wanted_by"].is_string() {
        output::line(&format!("wanted   by {}", text(&status["wanted_by"])))?;
    }
    if let Some(failure) = status["trouble"].as_str() {
        output::line(&format!("trouble  {failure}"))?;
    }
    if let Some(kept) = status["kept"].as_str() {
        output::line(&format!("lost     {}", output::harmless(kept)))?;
    }
    output::line(&format!("next     {}", text(&status["next"])))
}

/// How many paths a line of the status names.
const PATHS_SHOWN: usize = 3;

/// Prints the paths for which an ignore rule makes a difference, or would.
fn ignored_lines(ignored: &Value) -> CliResult {
    let problems = ignored["problems"].as_array().into_iter().flatten();
    for problem in problems.chain([&ignored["note"]].into_iter().filter(|note| note.is_string())) {
        let problem = output::harmless(problem.as_str().unwrap_or_default());
        output::line(&format!("ignored  {problem}"))?;
    }
    let says = [
        ("not_covered", "are in no marker, so that nobody waits for them", ""),
        (
            "covered_despite_a_rule",
            "stay covered although a rule matches",
            "; 'latchfs guard accept PATH --reason WHY' gives one up",
        ),
    ];
    for (part, says, next) in says {
        let Some(count @ 1..) = ignored[part]["count"].as_u64() else { continue };
        let name = |it: &Value| {
            let of = |field: &str| output::harmless(it[field].as_str().unwrap_or_default());
            format!("'{}' ({})", of("path"), of("rule"))
        };
        let first = ignored[part]["paths"].as_array().into_iter().flatten();
        let names: Vec<_> = first.take(PATHS_SHOWN).map(name).collect();
        let names =
            if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        output::line(&format!("ignored  {count} paths {says}{names}{next}"))?;
    }
    Ok(())
}

/// The arguments of `latchfs guard ls`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct GuardListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn list(args: &GuardListArgs) -> CliResult {
    let guards = guards()?;
    if args.json {
        return output::json(&json!({"guards": guards}));
    }
    let mut rows = vec![["FOLDER", "VIEW", "STATE", "UNIT", "WAITS FOR"].map(str::to_owned)];
    for guard in &guards {
        let text = |key: &str| guard[key].as_str().map_or_else(|| "-".to_owned(), output::harmless);
        rows.push(["folder", "view", "state", "unit", "waits_for"].map(text));
    }
    output::line(&aligned(&rows, None).join("\n"))
}

/// Returns the guards of this user, for root those of all users.
fn guards() -> CliResult<Vec<Value>> {
    let mut guards = Vec::new();
    for endpoint in GuardEndpoint::of_views()? {
        let view = endpoint.dir().to_string_lossy();
        guards.push(match endpoint.status() {
            Ok(status) => running(&status, Some(&view)),
            Err(CliError::Said(_, why)) => {
                json!({"view": view, "state": "unknown", "waits_for": why, "unit": null})
            }
            Err(error) => return Err(error),
        });
    }
    let state = default_state_dir()?;
    let without_view = hosts(&state).filter_map(|host| status_at(&host));
    guards.extend(without_view.map(|status| running(&status, None)));
    for mut unit in at_login::guards() {
        if let Some(guard) = guards.iter_mut().find(|guard| guard["view"] == unit["view"]) {
            guard["unit"] = unit["unit"].take();
        } else {
            unit["state"] = json!("ended");
            guards.push(unit);
        }
    }
    Ok(guards)
}

fn running(status: &Value, view: Option<&str>) -> Value {
    let waits_for = Some(progress_of(status)).filter(|text| !text.is_empty());
    let (folder, state) = (&status["folder"], &status["state"]);
    json!({"folder": folder, "view": view, "state": state, "waits_for": waits_for, "unit": null})
}

#[cfg(target_os = "linux")]
pub(in crate::cli) fn lost(args: &LostArgs) -> CliResult {
    let request = match (args.restore, args.drop) {
        (Some(number), _) => json!({"do": "restore", "number": number}),
        (None, Some(number)) => json!({"do": "drop", "number": number}),
        (None, None) => json!({"do": "lost"}),
    };
    let place = args.at.find()?;
    let send = |request: &Value| place.request(request, AnswerWait::UntilStopped, None);
    let mut answer = send(&request)?;
    let mut last = u64::MAX;
    while let Some(before) = answer["next"].as_u64().filter(|next| *next < last) {
        last = before;
        let page = send(&json!({"do": "lost", "before": before}))?;
        answer["next"] = page["next"].clone();
        if let (Value::Array(files), Value::Array(more)) = (&mut answer["lost"], &page["lost"]) {
            files.extend(more.iter().cloned());
        }
    }
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
