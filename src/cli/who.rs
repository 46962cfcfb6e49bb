//! The `who` command: says who holds the lock of a file, which is a lock in a mount, or a file in a
//! guarded folder.

use super::environment::absolute;
use super::exit::{CliError, CliResult, Exit};
use super::folder_options::PlaceArgs;
use super::guard_endpoint::GuardEndpoint;
use super::lock_names::completer;
use super::mount_client::LockClient as _;
use super::output::{self, harmless};
use super::status_table::{Status, held_by};
use super::target::{CommandTarget, TargetArgs};
use crate::engine::LockName;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

/// The arguments of `latchfs who`.
#[derive(Debug, clap::Args)]
pub(super) struct WhoArgs {
    /// A file in a guarded folder, or a lock: its name, or a path below the mount
    #[arg(value_name = "FILE", add = completer())]
    file: OsString,
    #[command(flatten)]
    target: TargetArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &WhoArgs) -> CliResult {
    let path = absolute(Path::new(&args.file))?;
    let is_there = path.symlink_metadata().is_ok();
    if !args.target.names_lock(&args.file)? {
        match GuardEndpoint::find_any(Some(&path), &PlaceArgs::default()) {
            Ok(endpoint) => return of_folder(args, &endpoint.or_view()?),
            // A name alone is that of a lock, also where a file has it.
            Err(_) if is_there && args.file.as_encoded_bytes().contains(&b'/') => {
                return Err(CliError::usage(format!(
                    "'{}' lies in no guarded folder and in no mount of locks, so it has no lock; \
                     name a lock, or a file in a folder that 'latchfs guard' guards",
                    args.file.display()
                )));
            }
            Err(_) => {}
        }
    }
    let CommandTarget { ask, name, .. } = args.target.asking(&args.file)?;
    let status = ask.status(&json!({"do": "status", "name": name.as_str()}))?;
    if args.json {
        return output::json(&json!({"lock": name.as_str(), "status": status}));
    }
    output::write(&lines(&status))
}

/// Says who holds the lock of the guarded folder in which the file lies.
fn of_folder(args: &WhoArgs, endpoint: &GuardEndpoint) -> CliResult {
    let guard = endpoint.status()?;
    let text = |field: &str| guard[field].as_str().map(harmless);
    let (folder, lock) = (text("folder").unwrap_or_default(), text("lock").unwrap_or_default());
    let status = match endpoint.server_without_guard() {
        // Without a guard only the server knows.
        Some(url) => Some(at_server(args, &url, &lock)?),
        // A guard learns of another holder when it asks for the lock itself.
        None if guard["tenure"].is_null() && guard["holder"].is_null() => {
            guard["server"].as_str().and_then(|url| at_server(args, url, &lock).ok())
        }
        None => None,
    };
    if args.json {
        return output::json(
            &json!({"folder": folder, "lock": lock, "guard": guard, "status": status}),
        );
    }
    let holder = match (&status, guard["tenure"]["token"].as_u64(), text("holder")) {
        (Some(status), _, _) => return output::write(&(in_folder(&folder) + &lines(status))),
        (None, Some(token), _) => {
            let since = guard["tenure"]["since"].as_str().map(harmless);
            let since = since.map_or_else(String::new, |since| format!(" since {since}"));
            format!(
                "held by this machine, {}{since}; token {token}",
                text("client").unwrap_or_default()
            )
        }
        (None, None, Some(holder)) => format!("held by {holder}"),
        (None, None, None) => "not held, as far as this machine knows".to_owned(),
    };
    let next = text("next").unwrap_or_default();
    output::write(&format!("{}{lock}: {holder}\n{next}\n", in_folder(&folder)))
}

/// Returns the status of a folder's lock at its server.
fn at_server(args: &WhoArgs, url: &str, lock: &str) -> CliResult<Value> {
    let name = LockName::parse(lock).map_err(|error| CliError::usage(error.to_string()))?;
    let server = args.target.direct_to_server_of_folder(url)?;
    let status = server.status(&json!({"do": "status", "name": name.as_str()}));
    status.map_err(|error| match error {
        CliError::Said(Exit::Denied, sentence) => CliError::Said(
            Exit::Denied,
            format!(
                "{sentence}; credentials are sent to the server that a folder names only if your \
                 configuration names it too: set LATCHFS_SERVER={url} if you trust it, or pass \
                 --profile NAME"
            ),
        ),
        other => other,
    })
}

fn in_folder(folder: &str) -> String {
    format!("guarded folder {folder}\n")
}

/// Formats who holds a lock, and who waits for it.
fn lines(status: &Value) -> String {
    let status = Status(status);
    let name = status.text("name");
    let mut text = match (status.phase().as_str(), status.not_granting()) {
        ("free", None) if status.waiters().is_empty() => return format!("{name}: free\n"),
        ("free", Some(said)) => format!("{name}: free; {said}\n"),
        _ => format!("{name}: {}; {}\n", held_by(status), status.terms()),
    };
    let process = status.text("holder_id");
    if !process.is_empty() {
        let _ = writeln!(text, "process {process}");
    }
    for (place, waiter) in (1..).zip(status.waiters()) {
        let _ = writeln!(text, "waiting {}", waiter.waiting(place, status.number("place")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_and_the_waiters_are_named() {
        let status = json!({"name": "x", "phase": "held", "holder": "a", "token": 7,
            "expires_in_ms": 30_000, "grace_ms": 5_000, "holder_id": "a:12:34", "note": "n",
            "waiters": [{"client": "b", "waited_ms": 1_000, "since": "then"}]});
        assert_eq!(
            lines(&status),
            "x: held by a (note: n); token 7, expires in 30s, grace 5s\nprocess a:12:34\n\
             waiting 1. b, for 1s, since then\n"
        );
        assert_eq!(lines(&json!({"name": "x", "phase": "free"})), "x: free\n");
        let detail = json!({"detail": "nothing is granted before then"});
        let held_off = json!({"name": "x", "phase": "free", "hold_off": detail,
            "waiters": [{"client": "b", "waited_ms": 1_000, "since": "then"}]});
        assert_eq!(
            lines(&held_off),
            "x: free; nothing is granted before then\nwaiting 1. b, for 1s, since then\n"
        );
    }
}
