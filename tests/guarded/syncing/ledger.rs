//! The ledger of all turns: each acknowledged increment, and what each turn found at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testing::run_within;

/// The program of a turn. Its header says what it prints.
const TURN: &str = include_str!("turn.py");
/// How long a turn may take.
const TURN_LIMIT: Duration = Duration::from_secs(120);

/// The work of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Makes all files.
    Make,
    /// Increments counters and databases.
    Change,
    /// As `Change`, with a new version of a large file.
    ChangeLargeFile,
    /// Reads the whole logs.
    Check,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Make => "make",
            Work::Change => "change",
            Work::ChangeLargeFile => "blob",
            Work::Check => "check",
        }
    }
}

/// Runs the program of a turn on a folder, and returns what it printed.
pub(crate) fn run_turn(dir: &Path, work: Work, turn: &str, seed: u64) -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", TURN, work.name(), turn, &(seed >> 1).to_string()]).arg(dir);
    run_within(TURN_LIMIT, &mut command).ok()
}

/// The logs of files and databases: for each path the turns that incremented it.
pub(crate) type Logs = BTreeMap<String, Vec<String>>;

/// Counts the answers that the turns of a run got.
#[derive(Default)]
pub(crate) struct Ledger {
    acknowledged: Logs,
    pub(crate) turns: usize,
    /// The turns that found old versions only.
    pub(crate) old: usize,
    /// The turns that found a mixture of versions.
    pub(crate) torn: usize,
    /// The increments that failed, with the reason.
    pub(crate) failed: Vec<String>,
    /// The versions that each turn should not have found, for a test that fails.
    pub(crate) findings: Vec<String>,
}

impl Ledger {
    /// Enters what a turn printed.
    pub(crate) fn enter(&mut self, name: &str, printed: &str) {
        let (mut torn, mut old, mut current) = (vec![], vec![], 0);
        let mut done = vec![];
        for line in printed.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["torn", path] => torn.push(path),
                ["found", path, last] if last == self.last(path) => current += 1,
                ["found", path, _] => old.push(path),
                ["done", path] => done.push(path),
                ["has", ..] => {}
                _ => self.failed.push(format!("{name}: {line}")),
            }
        }
        self.turns += 1;
        if !torn.is_empty() || !old.is_empty() && current > 0 {
            self.torn += 1;
        } else if !old.is_empty() {
            self.old += 1;
        }
        if !torn.is_empty() || !old.is_empty() {
            self.findings.push(format!("{name}: torn {torn:?}, old {old:?}"));
        }
        for path in done {
            self.acknowledged.entry(path.to_owned()).or_default().push(name.to_owned());
        }
    }

    /// Returns the last acknowledged turn of a path.
    fn last(&self, path: &str) -> &str {
        self.acknowledged.get(path).and_then(|log| log.last()).map_or("-", String::as_str)
    }

    /// Returns the number of acknowledged increments.
    pub(crate) fn increments(&self) -> usize {
        self.acknowledged.values().map(Vec::len).sum()
    }

    /// Returns how many acknowledged increments are missing in `logs`.
    pub(crate) fn lost(&self, logs: &Logs) -> usize {
        let missing = |(path, turns): (&String, &Vec<String>)| {
            let here: BTreeSet<_> = logs.get(path).into_iter().flatten().collect();
            turns.iter().filter(|turn| !here.contains(turn)).count()
        };
        self.acknowledged.iter().map(missing).sum()
    }
}

/// Returns the logs that a check printed.
pub(crate) fn logs_in(printed: &str) -> Logs {
    let log = |line: &str| {
        let (path, turns) = line.strip_prefix("has ")?.split_once(' ').unwrap_or((&line[4..], ""));
        let turns = turns.split(' ').filter(|turn| !turn.is_empty());
        Some((path.to_owned(), turns.map(str::to_owned).collect()))
    };
    printed.lines().filter_map(log).collect()
}
