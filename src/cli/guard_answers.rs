//! The answers of guards, whether they have a view or not.

use super::exit::{CliError, CliResult, Exit};
use super::output;
use crate::engine::RefusalKind;
use serde_json::Value;

/// How long a request waits for the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// The guard must answer at once.
    Never,
    /// The guard may take its time, as long as its process was not stopped.
    UntilStopped,
}

/// Returns the answer of a guard, or the error that it names.
pub(super) fn parsed(answer: &[u8]) -> CliResult<Value> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|error| CliError::unavailable(format!("the guard's answer: {error}")))?;
    answered(answer)
}

/// Returns an answer, or the error that it names.
pub(super) fn answered(answer: Value) -> CliResult<Value> {
    let Some(why) = answer["error"].as_str() else { return Ok(answer) };
    let kind = RefusalKind::ALL.into_iter().find(|kind| answer["code"] == kind.as_str());
    let exit = kind.map_or(Exit::Conflict, Exit::of);
    Err(CliError::Said(exit, why.to_owned()))
}

/// Returns what a guard waits for, as its state says.
pub(super) fn progress_of(status: &Value) -> String {
    let text = |name: &str| status[name].as_str().map(output::harmless);
    text("snapshot")
        .or_else(|| text("not_ready"))
        .or_else(|| match (text("holder"), text("holder_away_until")) {
            (Some(holder), Some(until)) => {
                Some(format!("{holder} holds the lock, and is away until {until}"))
            }
            (holder, _) => holder.map(|holder| format!("{holder} holds the lock")),
        })
        .or_else(|| text("trouble"))
        .unwrap_or_default()
}
