//! Simulated clusters, run from a fixed set of seeds, and from seeds derived from the commit. The
//! same seed always gives the same run.
//!
//! `SEEDS=1000 FIRST=5000 cargo test -p sim --test cluster_seeds` runs other seeds;
//! `contrib/sim-seeds` runs many.

use latchfs::base::VERSION;
use latchfs::time::Span;
use sha2::{Digest, Sha256};
use sim::{CoveragePoint, SimOptions, SimReport, run};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The number of fixed seeds, and the virtual seconds for which each of their runs injects faults.
const SEEDS: u64 = 200;
const SECONDS: u64 = 20;
/// The number of seeds of a commit, and the virtual seconds of their runs. The runs are short,
/// because a bug is as likely to appear in any second.
const FRESH_SEEDS: u64 = 300;
const FRESH_SECONDS: u64 = 8;

/// The number of seeds with clients that set handovers.
const HANDOVER_SEEDS: u64 = 60;

/// Returns the number of nodes in the cluster that is simulated for a seed: five for every tenth
/// seed, otherwise three.
const fn nodes(seed: u64) -> u64 {
    if seed % 10 == 9 { 5 } else { 3 }
}

fn options(seed: u64, seconds: u64) -> SimOptions {
    let time = Span::from_secs(seconds);
    SimOptions { seed, nodes: nodes(seed), time, trace: false, handovers: false }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Simulates the clusters of `seeds` seeds on all processors; fails if any run violates a
/// guarantee.
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
                    "  sim --seed {seed} --nodes {nodes} --seconds {seconds}\n    {all}"
                ));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().expect("nobody panics");
    assert!(wrong.is_empty(), "{} of {seeds} seeds:\n{}", wrong.len(), wrong.join("\n"));
    // The test fails if the clusters did too little: an idle cluster violates nothing.
    let (commands, answers) = (commands.into_inner(), answers.into_inner());
    let parts: BTreeMap<CoveragePoint, u64> = parts.into_inner().expect("nobody panics");
    println!("{seeds} seeds from {first}: {commands} commands, {answers} answers, {parts:?}");
    let least = seeds * seconds;
    assert!(commands > 5 * least && answers > 10 * least, "{commands}, {answers}");
    // The runs of all fixed seeds together must contain each kind of event and operation that the
    // simulator counts. A rare kind is the move of a lock to another name, which must be free, so
    // the test needs many seeds.
    if (first, seeds) == (1, SEEDS) {
        let missing = CoveragePoint::ALL.iter().find(|part| !parts.contains_key(part));
        assert_eq!(missing, None, "{parts:?}");
    }
}

#[test]
fn fixed_seeds_violate_nothing() {
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(SEEDS));
    nothing_goes_wrong(first, seeds, SECONDS);
}

/// Seeds whose runs once revealed a bug: a late copy of a refused request that made an exclusive
/// lease shared, two bugs of the checker, a node that did not exit although its disk had failed
/// between its election and the confirmation of its leadership, and a leader that panicked because
/// a follower had lost entries that it had acknowledged unsynced, as part of a snapshot.
#[test]
fn seeds_that_once_showed_a_bug_violate_nothing() {
    for seed in [7_002_774, 7_000_298, 9_019_264, 77_000_371] {
        nothing_goes_wrong(seed, 1, SECONDS);
    }
    nothing_goes_wrong(3_165_977_018, 1, FRESH_SECONDS);
    // A node that waited for an entry which its failed disk would never hold.
    let once = SimOptions { nodes: 3, handovers: true, ..options(619_001_579, 20) };
    let found: Vec<_> = run(&once).violations.iter().map(ToString::to_string).collect();
    assert_eq!(found, Vec::<String>::new());
}

/// Clients also set handovers, and another cluster is restored from a backup at the end.
#[test]
fn handovers_are_kept_through_faults_and_restores() {
    let (next, wrong, handovers) = (AtomicU64::new(1), Mutex::new(vec![]), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > HANDOVER_SEEDS {
                return;
            }
            let report = run(&SimOptions { handovers: true, ..options(seed, FRESH_SECONDS) });
            handovers.fetch_add(report.handovers, Ordering::Relaxed);
            let found = report.violations.iter().map(|found| format!("seed {seed}: {found}"));
            wrong.lock().expect("nobody panics").extend(found);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(wrong.into_inner().expect("nobody panics"), Vec::<String>::new());
    let handovers = handovers.into_inner();
    println!("{HANDOVER_SEEDS} seeds: {handovers} grants reported the last handover");
    assert!(handovers > 5 * HANDOVER_SEEDS, "{handovers}");
}

/// The commit determines which further seeds are run; without git, the version of latchfs does.
#[test]
fn seeds_of_the_commit_violate_nothing() {
    let mut git = Command::new("git");
    git.args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let commit = git.output().ok().filter(|output| output.status.success());
    let commit = commit.map_or_else(|| VERSION.as_bytes().to_vec(), |output| output.stdout);
    let digest = Sha256::digest(&commit);
    let drawn = digest.iter().take(4).fold(0, |drawn, byte| drawn << 8 | u64::from(*byte));
    // All fixed seeds are below a million, so the seeds that are drawn from the commit are others.
    nothing_goes_wrong(1_000_000 + drawn, FRESH_SEEDS, FRESH_SECONDS);
}

/// A seed always gives the same run, down to each line of the trace.
#[test]
fn a_seed_always_gives_the_same_run() {
    for seed in [3, 9] {
        let rerun = || run(&SimOptions { trace: true, ..options(seed, SECONDS) });
        let (one, two): (SimReport, SimReport) = (rerun(), rerun());
        let differ = one.trace.iter().zip(&two.trace).find(|(one, two)| one != two);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(one, two, "seed {seed}");
        assert!(one.trace.len() > 1_000, "it says what happens");
        let other = run(&SimOptions { seed: seed + 1, ..options(seed, SECONDS) });
        assert_ne!(one.digest, other.digest);
    }
}

/// The program `sim` reproduces the run of a seed, as the failure message of the tests claims.
#[test]
fn the_command_reproduces_the_run_of_a_seed() {
    let report = run(&options(2, SECONDS));
    let mut sim = Command::new(env!("CARGO_BIN_EXE_sim"));
    let output = sim.args(["--seed", "2"]).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("trace {}\nnothing was wrong\n", report.digest)), "{said}");
}

/// A scratch directory for one test, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("latchfs-seeds-{}", std::process::id()));
        fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A stand-in for `sim --seed N`: seed 2 fails, and at seed 4 the calling script is killed
/// once while it writes a result.
const STAND_IN: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
if [ "$2" = 4 ] && mkdir killed; then
    printf '    WRONG: half a sentence\n4 FAI' >>progress
    kill -9 0
fi
if [ "$2" = 2 ]; then
    echo "WRONG: two hold lock 1"
    exit 1
fi
"#;

fn sim_seeds(scratch: &Path) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(folder.join("../../contrib/sim-seeds"));
    script.arg("--file").arg(scratch.join("progress")).args(["--first", "1", "--seeds", "6"]);
    script.process_group(0).env("SIM", scratch.join("stand-in")).output().expect("bash is there")
}

/// After `contrib/sim-seeds` was killed, its next run resumes with the seed whose result is
/// incomplete.
#[test]
fn a_killed_search_resumes_where_it_stopped() {
    let scratch = Scratch::new();
    let stand_in = scratch.0.join("stand-in");
    fs::write(&stand_in, STAND_IN).expect("a fresh directory");
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let killed = sim_seeds(&scratch.0);
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
    let progress = || fs::read_to_string(scratch.0.join("progress")).expect("it is there");
    assert!(progress().ends_with("\n4 FAI"), "{}", progress());
    let done = sim_seeds(&scratch.0);
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "seed 2 has failed: {done:?}");
    assert!(said.starts_with("6 seeds in ") && said.ends_with("failed: 2\n"), "{said}");
    let text = progress();
    // The results are compared without the times that the runs took.
    let results: Vec<_> = text.lines().map(|line| line.trim_end_matches(" ms")).collect();
    let result = |line: &&str| line.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let results: Vec<_> = results.iter().map(result).collect();
    assert_eq!(
        results,
        [
            "# first 1, nodes 3, seconds ",
            "1 ok ",
            "    WRONG: two hold lock ",
            "2 FAILED ",
            "3 ok ",
            "4 ok ",
            "5 ok ",
            "6 ok ",
        ],
        "{text}"
    );
    // If the progress file is that of a run with other options, `contrib/sim-seeds` refuses to run,
    // and does not change the file.
    fs::write(scratch.0.join("progress"), "# of another\nhalf").expect("it is ours");
    assert_eq!(sim_seeds(&scratch.0).status.code(), Some(64));
    assert_eq!(progress(), "# of another\nhalf");
}
