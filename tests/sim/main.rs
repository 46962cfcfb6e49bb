//! Simulated clusters: seeds that are always the same, and seeds that each commit draws anew. The
//! same seed always gives the same run.
//!
//! `SEEDS=1000 FIRST=5000 cargo test --test sim` tries others; `contrib/sim-seeds` tries many.

use latchfs::sim::{CoveragePoint, SimOptions, SimReport, run};
use latchfs::time::Span;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds that are always tried, and for how long faults happen in each, in virtual seconds.
const SEEDS: u64 = 200;
const SECONDS: u64 = 20;
/// Seeds that the commit draws. They are short: a fault is as likely in any second.
const FRESH_SEEDS: u64 = 300;
const FRESH_SECONDS: u64 = 8;

/// Every tenth cluster has five nodes.
const fn nodes(seed: u64) -> u64 {
    if seed % 10 == 9 { 5 } else { 3 }
}

fn options(seed: u64, seconds: u64) -> SimOptions {
    SimOptions { seed, nodes: nodes(seed), time: Span::from_secs(seconds), trace: false }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Runs seeds on all processors. None of them may break a promise.
#[track_caller]
fn nothing_goes_wrong(first: u64, seeds: u64, seconds: u64) {
    let (next, wrong) = (AtomicU64::new(first), Mutex::new(vec![]));
    let (commands, answers) = (AtomicU64::new(0), AtomicU64::new(0));
    let parts = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let report = run(&options(seed, seconds));
            commands.fetch_add(report.commands, Ordering::Relaxed);
            answers.fetch_add(report.answers, Ordering::Relaxed);
            for (part, count) in report.parts {
                *parts.lock().expect("nobody panics").entry(part).or_insert(0) += count;
            }
            if !report.violations.is_empty() {
                let all: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
                let (all, nodes) = (all.join("\n    "), nodes(seed));
                wrong.lock().expect("nobody panics").push(format!(
                    "  latchfs sim --seed {seed} --nodes {nodes} --seconds {seconds}\n    {all}"
                ));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().expect("nobody panics");
    assert!(wrong.is_empty(), "{} of {seeds} seeds:\n{}", wrong.len(), wrong.join("\n"));
    // A cluster that does nothing does nothing wrong.
    let (commands, answers) = (commands.into_inner(), answers.into_inner());
    let parts: BTreeMap<CoveragePoint, u64> = parts.into_inner().expect("nobody panics");
    println!("{seeds} seeds from {first}: {commands} commands, {answers} answers, {parts:?}");
    let least = seeds * seconds;
    assert!(commands > 5 * least && answers > 10 * least, "{commands}, {answers}");
    // All of it takes part in the seeds that are always tried. A move is rare: its new name must be
    // free.
    if (first, seeds) == (1, SEEDS) {
        let missing = CoveragePoint::ALL.iter().find(|part| !parts.contains_key(part));
        assert_eq!(missing, None, "{parts:?}");
    }
}

#[test]
fn fixed_seeds_break_no_promise() {
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(SEEDS));
    nothing_goes_wrong(first, seeds, SECONDS);
}

/// Other seeds with every commit; without git, with every version.
#[test]
fn seeds_of_the_commit_break_no_promise() {
    let mut git = Command::new("git");
    git.args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let commit = git.output().ok().filter(|output| output.status.success());
    let commit = commit
        .map_or_else(|| env!("CARGO_PKG_VERSION").as_bytes().to_vec(), |output| output.stdout);
    let digest = Sha256::digest(&commit);
    let drawn = digest.iter().take(4).fold(0, |drawn, byte| drawn << 8 | u64::from(*byte));
    // Beyond the fixed ones.
    nothing_goes_wrong(1_000_000 + drawn, FRESH_SEEDS, FRESH_SECONDS);
}

/// To the byte of the trace.
#[test]
fn a_seed_gives_the_same_run() {
    for seed in [3, 9] {
        let again = || run(&SimOptions { trace: true, ..options(seed, SECONDS) });
        let (one, two): (SimReport, SimReport) = (again(), again());
        let differ = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(one, two, "seed {seed}");
        assert!(one.trace.len() > 1_000, "it says what happens");
        let other = run(&SimOptions { seed: seed + 1, ..options(seed, SECONDS) });
        assert_ne!(one.digest, other.digest);
    }
}

/// What the test prints of a seed is what anybody can run.
#[test]
fn the_command_runs_the_same() {
    let report = run(&options(2, SECONDS));
    let mut latchfs = Command::new(env!("CARGO_BIN_EXE_latchfs"));
    let output = latchfs.args(["sim", "--seed", "2"]).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("trace {}\nnothing was wrong\n", report.digest)), "{said}");
}
