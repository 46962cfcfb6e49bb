//! The `folder-snapshot` command: takes, lists, shows, checks, restores and removes snapshots of a
//! guarded folder.

use crate::cli::argument_types::absolute;
use crate::cli::argument_types::{DurationArg, default_ttl};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::guard::endpoint::AnswerWait;
use crate::cli::guard::endpoint::{EndpointArgs, GuardEndpoint};
use crate::cli::guard::stored_snapshots;
use crate::cli::output;

use crate::engine::Ttl;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::{Component, Path, PathBuf};

/// The arguments of `latchfs folder-snapshot`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct FolderSnapshotArgs {
    #[command(subcommand)]
    command: FolderSnapshotCommand,
}

#[derive(Debug, Subcommand)]
enum FolderSnapshotCommand {
    /// Take a snapshot of the folder, once no program has a file open for writing
    Take(SnapshotTakeArgs),
    /// List the snapshots, newest first
    Ls(SnapshotLsArgs),
    /// Show one snapshot
    Show(SnapshotArgs),
    /// Compare each file of a snapshot with its digest
    Verify(SnapshotArgs),
    /// Restore a snapshot to a new directory, or put one file back
    Restore(SnapshotRestoreArgs),
    /// Remove a snapshot
    Rm(SnapshotArgs),
}

/// The arguments of `latchfs folder-snapshot take`.
#[derive(Debug, clap::Args)]
struct SnapshotTakeArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// How long to wait until no program has a file open for writing
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", default_value = "10s",
        value_parser = default_ttl, conflicts_with = "best_effort")]
    wait: DurationArg<Ttl>,
    /// Do not wait: files that programs have open for writing may be half changed
    #[arg(long)]
    best_effort: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `latchfs folder-snapshot ls`.
#[derive(Debug, clap::Args)]
struct SnapshotLsArgs {
    #[command(flatten)]
    at: EndpointArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of commands about one snapshot.
#[derive(Debug, clap::Args)]
struct SnapshotArgs {
    /// The snapshot, as 'ls' names it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    at: EndpointArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `latchfs folder-snapshot restore`.
#[derive(Debug, clap::Args)]
struct SnapshotRestoreArgs {
    /// The snapshot, as 'ls' names it
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    at: EndpointArgs,
    /// Restore to this directory, which must not exist
    #[arg(long, value_name = "DIR", required_unless_present = "file")]
    to: Option<PathBuf>,
    /// Put this one file back through the view, as a program of yours that saves it
    #[arg(long, value_name = "PATH", conflicts_with = "to")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: &FolderSnapshotArgs) -> CliResult {
    match &args.command {
        FolderSnapshotCommand::Take(args) => take(args),
        FolderSnapshotCommand::Ls(args) => ls(args),
        FolderSnapshotCommand::Show(args) => print_snapshot(args),
        FolderSnapshotCommand::Verify(args) => verify(args),
        FolderSnapshotCommand::Restore(args) => restore(args),
        FolderSnapshotCommand::Rm(args) => {
            let removed = about(args, "remove")?;
            say(args.json, &removed, &format!("latchfs: removed {}", args.id))
        }
    }
}

/// Sends a request about snapshots.
fn send_request(endpoint: &GuardEndpoint, request: &Value) -> CliResult<Value> {
    match endpoint {
        GuardEndpoint::Folder(folder) => stored_snapshots::execute(folder, request),
        GuardEndpoint::View(_) => endpoint.request(request, AnswerWait::UntilStopped, None),
    }
}

/// Sends a request about one snapshot.
fn about(args: &SnapshotArgs, what: &str) -> CliResult<Value> {
    send_request(&args.at.find()?, &json!({"do": "snapshot", "snapshot": what, "id": args.id}))
}

/// Prints an answer as JSON, or a sentence.
fn say(json: bool, answer: &Value, sentence: &str) -> CliResult {
    if json { output::json(answer) } else { output::line(sentence) }
}

fn text(value: &Value) -> String {
    output::harmless(value.as_str().unwrap_or("-"))
}

/// Returns the words for a snapshot that was taken while programs changed files, or that is not
/// whole.
fn labels(snapshot: &Value) -> String {
    let count = |name: &str| snapshot[name].as_array().map_or(0, Vec::len);
    let mut words = text(&snapshot["consistency"]);
    if count("risk") > 0 {
        words = format!("{words}, {} files open for writing", count("risk"));
    }
    if count("degraded") > 0 {
        words = format!("{words}, {} degraded", count("degraded"));
    }
    words
}

fn take(args: &SnapshotTakeArgs) -> CliResult {
    let mut request = json!({"do": "snapshot", "snapshot": "take"});
    request["quiet_ms"] = args.wait.0.span().as_millis().into();
    request["best_effort"] = args.best_effort.into();
    let taken = send_request(&args.at.find()?, &request)?;
    for sentence in taken["risk"].as_array().into_iter().flatten() {
        output::say(&text(sentence));
    }
    let (id, files) = (text(&taken["id"]), &taken["counts"]["files"]);
    let sentence = format!("latchfs: snapshot {id} of {files} files ({})", labels(&taken));
    say(args.json, &taken, &sentence)
}

fn ls(args: &SnapshotLsArgs) -> CliResult {
    let answer = send_request(&args.at.find()?, &json!({"do": "snapshot", "snapshot": "list"}))?;
    if args.json {
        return output::json(&answer);
    }
    for snapshot in answer["snapshots"].as_array().into_iter().flatten() {
        let (id, at) = (text(&snapshot["id"]), text(&snapshot["at"]));
        let files = &snapshot["counts"]["files"];
        output::line(&format!("{id}  {at}  {files:>8} files  {}", labels(snapshot)))?;
    }
    Ok(())
}

fn print_snapshot(args: &SnapshotArgs) -> CliResult {
    let shown = about(args, "show")?;
    if args.json {
        return output::json(&shown);
    }
    let counts = &shown["counts"];
    output::line(&format!("snapshot     {}", text(&shown["id"])))?;
    output::line(&format!("taken        {}, token {}", text(&shown["at"]), shown["token"]))?;
    output::line(&format!("consistency  {}", text(&shown["consistency"])))?;
    output::line(&format!(
        "content      {} files, {} directories, {} symlinks, {} bytes",
        counts["files"], counts["dirs"], counts["symlinks"], counts["bytes"]
    ))?;
    output::line(&format!("root         {}", text(&shown["root"])))?;
    for name in ["risk", "degraded"] {
        for sentence in shown[name].as_array().into_iter().flatten() {
            output::line(&format!("{name:<12} {}", text(sentence)))?;
        }
    }
    Ok(())
}

fn verify(args: &SnapshotArgs) -> CliResult {
    let answer = about(args, "verify")?;
    if args.json {
        output::json(&answer)?;
    } else if answer["ok"] == true {
        output::line(&format!("latchfs: {} is as it was taken", args.id))?;
    } else {
        for sentence in answer["differences"].as_array().into_iter().flatten() {
            output::line(&text(sentence))?;
        }
    }
    if answer["ok"] == true {
        return Ok(());
    }
    Err(CliError::Said(
        Exit::Findings,
        format!("{} differs from its manifest in {} places", args.id, answer["count"]),
    ))
}

fn restore(args: &SnapshotRestoreArgs) -> CliResult {
    let endpoint = args.at.find()?;
    let request = json!({"do": "snapshot", "snapshot": "show", "id": args.id});
    let shown = send_request(&endpoint, &request)?;
    let id = shown["id"].as_str().unwrap_or("-");
    let tree = match &endpoint {
        GuardEndpoint::Folder(folder) => stored_snapshots::tree(folder, id),
        GuardEndpoint::View(view) => view.dir.join(".latchfs/snapshots").join(id),
    };
    match (&args.to, &args.file) {
        (Some(to), _) => restore_to(args, &tree, &text(&shown["root"]), &absolute(to)?),
        (None, Some(file)) => restore_file(args, &endpoint, &tree, file),
        (None, None) => Err(CliError::usage("name a new directory with --to, or a --file")),
    }
}

/// Restores a snapshot, whose manifest has the digest `root`, to a new directory.
fn restore_to(args: &SnapshotRestoreArgs, tree: &Path, root: &str, to: &Path) -> CliResult {
    let degraded = stored_snapshots::copy(tree, root, to)?;
    for sentence in &degraded {
        output::say(&output::harmless(sentence));
    }
    let answer = json!({"restored": args.id, "to": to.display().to_string(), "degraded": degraded});
    say(args.json, &answer, &format!("latchfs: restored {} to {}", args.id, to.display()))
}

/// Puts one file of a snapshot back.
fn restore_file(
    args: &SnapshotRestoreArgs,
    endpoint: &GuardEndpoint,
    tree: &Path,
    file: &Path,
) -> CliResult {
    let GuardEndpoint::View(view) = endpoint else {
        return Err(stored_snapshots::needs_view(endpoint.dir()));
    };
    // A path outside of the view's directory is taken as a path in the folder.
    let given = absolute(file)?;
    let path = given.strip_prefix(&view.dir).unwrap_or(file);
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        let dir = view.dir.display();
        return Err(CliError::usage(format!(
            "{} is not in {dir}; name a file in it",
            path.display()
        )));
    }
    stored_snapshots::put_back(tree, &view.dir, path)?;
    let answer = json!({"restored": args.id, "file": path.display().to_string()});
    let path = output::harmless(&path.display().to_string());
    say(args.json, &answer, &format!("latchfs: put {path} back as it is in {}", args.id))
}
