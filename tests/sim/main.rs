//! Simulated clusters: many seeds, and a seed gives always the same run.
//!
//! `SEEDS=1000 cargo test --test sim` tries more of them; `FIRST=5000` begins there.

use latchfs::sim::{Options, Report, run};
use latchfs::time::Span;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// How many seeds are tried unless the environment says otherwise.
const SEEDS: u64 = 200;
/// For how long things go wrong in each of them, in virtual seconds.
const SECONDS: u64 = 20;

/// Every tenth cluster has five nodes.
const fn nodes(seed: u64) -> u64 {
    if seed % 10 == 9 { 5 } else { 3 }
}

fn options(seed: u64) -> Options {
    Options { seed, nodes: nodes(seed), time: Span::from_secs(SECONDS), trace: false }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

#[test]
fn nothing_goes_wrong_whatever_does() {
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(SEEDS));
    let (next, wrong) = (AtomicU64::new(first), Mutex::new(vec![]));
    let (commands, answers) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let report = run(&options(seed));
            commands.fetch_add(report.commands, Ordering::Relaxed);
            answers.fetch_add(report.answers, Ordering::Relaxed);
            if !report.violations.is_empty() {
                let all = report.violations.join("\n    ");
                let nodes = nodes(seed);
                wrong.lock().expect("nobody panics").push(format!(
                    "  latchfs sim --seed {seed} --nodes {nodes} --seconds {SECONDS}\n    {all}"
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
    println!("{seeds} seeds: {commands} commands, {answers} answers");
    assert!(commands > 100 * seeds && answers > 200 * seeds, "{commands}, {answers}");
}

/// To the byte of the trace.
#[test]
fn a_seed_gives_the_same_run() {
    for seed in [3, 9] {
        let again = || run(&Options { trace: true, ..options(seed) });
        let (one, two): (Report, Report) = (again(), again());
        let differ = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(one, two, "seed {seed}");
        assert!(one.trace.len() > 1_000, "it says what happens");
        let other = run(&Options { seed: seed + 1, ..options(seed) });
        assert_ne!(one.digest, other.digest);
    }
}

/// What the test prints of a seed is what anybody can run.
#[test]
fn the_command_runs_the_same() {
    let report = run(&options(2));
    let mut latchfs = Command::new(env!("CARGO_BIN_EXE_latchfs"));
    let output = latchfs.args(["sim", "--seed", "2"]).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("trace {}\nnothing was wrong\n", report.digest)), "{said}");
}
