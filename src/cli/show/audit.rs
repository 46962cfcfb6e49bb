//! The `audit` command: checks the chain of an audit log, of a server or of a guarded folder.

use crate::audit_chain::{AUDIT_NAME, AuditReport, check_files};
use crate::cli::argument_types::absolute;
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::guard::endpoint::GuardEndpoint;
use crate::cli::guard::guard_parts::PlaceArgs;
use crate::cli::output;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The arguments of `latchfs audit`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Check that no line of an audit log was changed, removed or added
    Verify(VerifyArgs),
}

/// The arguments of `latchfs audit verify`.
#[derive(Debug, clap::Args)]
struct VerifyArgs {
    /// The state directory of a server or node, a view, or a guarded folder [default: the view or
    /// folder that contains the current directory, or the only view]
    #[arg(value_name = "DIR|VIEW|FOLDER")]
    given: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(args: &AuditArgs) -> CliResult {
    match &args.command {
        AuditCommand::Verify(args) => verify(args),
    }
}

/// Returns the directory whose log is to be checked.
fn dir_of(args: &VerifyArgs) -> CliResult<PathBuf> {
    if let Some(given) = &args.given {
        let given = absolute(given)?;
        // A control file of a view is not looked for: a directory of logs has the file itself.
        if given.file_name().is_some_and(|name| name == AUDIT_NAME) && given.is_file() {
            return Ok(given.parent().map_or(given.clone(), Path::to_owned));
        }
        if given.join(AUDIT_NAME).is_file() {
            return Ok(given);
        }
    }
    GuardEndpoint::find(args.given.as_deref(), &args.place)?.state_dir()
}

fn verify(args: &VerifyArgs) -> CliResult {
    let dir = dir_of(args)?;
    let shown = dir.join(AUDIT_NAME).display().to_string();
    let report = check_files(&dir)
        .map_err(|error| CliError::system(&format!("{shown} can't be read"), &error))?;
    let Some(report) = report else {
        return Err(CliError::unavailable(format!(
            "there is no {shown}: nothing was recorded there; name the state directory of a \
             server, or a guarded folder"
        )));
    };
    if args.json {
        output::json(&to_json(&shown, &report))?;
    } else {
        output::write(&to_text(&shown, &report))?;
    }
    if report.faults.is_empty() { Ok(()) } else { Err(CliError::Silent(Exit::Findings)) }
}

fn to_json(log: &str, report: &AuditReport) -> Value {
    let faults = report
        .faults
        .iter()
        .map(|fault| json!({ "file": fault.file, "line": fault.line, "says": fault.what }));
    json!({
        "ok": report.faults.is_empty(),
        "log": log,
        "chained": report.chained,
        "faults": faults.collect::<Vec<_>>(),
        "notes": report.notes,
    })
}

fn to_text(log: &str, report: &AuditReport) -> String {
    let faults = report.faults.iter().map(|fault| format!("wrong  {fault}\n"));
    let notes = report.notes.iter().map(|note| format!("note   {note}\n"));
    let is_well = report.faults.is_empty();
    let chained = report.chained;
    let well = is_well.then(|| format!("ok     {log}: {chained} lines are as they were written\n"));
    faults.chain(notes).chain(well).collect()
}
