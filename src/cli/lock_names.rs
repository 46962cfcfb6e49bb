//! Lock names as arguments, and their completion, which asks the mount or server that the command
//! line names so far, and stays silent where there is none.

use super::output;
use super::status_table::{Status, held_by};
use super::target::TargetArgs;
use crate::time::Span;
use clap::Parser;
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc;
use std::thread;

/// The longest time for which a completion waits for the names.
const PATIENCE: Span = Span::from_millis(500);
/// The maximum number of names that a completion shows.
const NAMES_MAX: usize = 200;
/// The options that say which mount or server a command uses, and with which credentials.
const TARGET_OPTIONS: [&str; 8] =
    ["--dir", "--server", "--profile", "--client", "--token-file", "--ca", "--cert", "--key"];

/// The name of a lock as an argument.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct NameArg {
    /// The lock: its name, or a path below the mount
    #[arg(value_name = "NAME", add = completer())]
    pub(super) name: OsString,
}

/// The beginning of the names of locks as an argument.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PrefixArg {
    /// Only locks whose names begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true,
        add = completer())]
    pub(super) prefix: String,
}

/// The options that choose the mount or server, out of a command line that is being written.
#[derive(Parser)]
struct TargetOnly {
    #[command(flatten)]
    target: TargetArgs,
}

/// Returns the completer of arguments that name a lock.
pub(super) fn completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|begun: &OsStr| names(begun))
}

/// Returns the names of locks that begin so, each with its holder.
fn names(begun: &OsStr) -> Vec<CompletionCandidate> {
    output::be_silent();
    let Some(begun) = begun.to_str().map(str::to_owned) else { return Vec::new() };
    let (send, found) = mpsc::channel();
    let ask = move || {
        let _ = send.send(listed(&begun).unwrap_or_default());
    };
    // A daemon that does not answer keeps the thread, which ends with the process.
    if thread::Builder::new().spawn(ask).is_err() {
        return Vec::new();
    }
    found.recv_timeout(PATIENCE.as_duration()).unwrap_or_default()
}

fn listed(begun: &str) -> Option<Vec<CompletionCandidate>> {
    let target = TargetOnly::try_parse_from(target_words(std::env::args_os())).ok()?.target;
    let request = json!({"do": "list", "prefix": begun, "limit": NAMES_MAX});
    let answer = target.ask().ok()?.ask(&request).ok()?;
    let locks = answer["locks"].as_array()?.iter().map(Status);
    let locks = locks.filter(|lock| is_plain(&lock.text("name")));
    let candidate = |lock: Status<'_>| {
        let help = held_by(lock).into();
        CompletionCandidate::new(lock.text("name")).help(Some(help))
    };
    Some(locks.map(candidate).collect())
}

/// Whether a shell takes a name for itself. bash inserts completions as they are, so that the name
/// `$(rm -rf .)`, which another client has chosen, would be a command.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    !name.starts_with('-') && name.chars().all(is_plain)
}

/// Returns those words of a command line that choose the mount or server.
fn target_words(mut line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words = vec!["latchfs".into()];
    while let Some(word) = line.next() {
        let text = word.to_string_lossy();
        let (option, value) = text.split_once('=').map_or((&*text, None), |(a, b)| (a, Some(b)));
        if !TARGET_OPTIONS.contains(&option) {
            continue;
        }
        let has_value = value.is_some();
        words.push(word);
        if !has_value {
            words.extend(line.next());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_completed_that_a_shell_would_read_as_more_than_a_name() {
        for name in ["build", "team/night-job", "deploy@2026-11-28", "größe", "a.b_c%20"] {
            assert!(is_plain(name), "{name}");
        }
        let hostile =
            ["x$(touch${IFS}pwned)", "a b", "it's", "a;b", "`id`", "~root", "-x", "a*", "a\nb"];
        for name in hostile {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn a_begun_command_line_chooses_the_target() {
        let line = "latchfs -- latchfs status --json --dir /a --server=http://b bu --ca";
        let words = target_words(line.split(' ').map(OsString::from));
        assert_eq!(words, ["latchfs", "--dir", "/a", "--server=http://b", "--ca"]);
    }
}
