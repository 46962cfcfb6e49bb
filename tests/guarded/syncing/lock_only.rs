//! Turns under the lock alone: it excludes other machines, and yet updates are lost, because a
//! turn begins before the files of the last one have arrived.

use crate::syncing::access::LockOnly;
use crate::syncing::course::{
    Course, Tally, folders_of, machines, make_files, run, wait_until_same,
};
use crate::syncing::random::seed;
use crate::syncing::sync_tool::SyncTool;
use crate::syncing::syncthing::Syncthing;
use crate::syncing::toy_sync::{Delays, ToySync};
use std::path::{Path, PathBuf};
use std::time::Duration;
use testing::rounds;

/// Returns the time that sync services take for a path; in the short form half of it.
fn delays() -> Delays {
    let longest = Duration::from_secs(rounds(4, 8) as u64);
    Delays { shortest: Duration::from_millis(50), longest }
}

fn run_lock_only(
    course: &Course,
    start: impl FnOnce(&[PathBuf], &Path) -> Box<dyn SyncTool>,
) -> Tally {
    let machines = machines(course.machines);
    let folders = folders_of(&machines);
    let mut access = LockOnly::new(&folders);
    make_files(&folders[0]);
    let mut tool = start(&folders, machines[0].path());
    wait_until_same(&folders);
    run(course, &folders, &mut *tool, &mut access)
}

#[test]
fn a_lock_alone_loses_updates_with_a_toy_sync_tool() {
    let course = Course {
        name: "lock only, toy sync tool",
        machines: 3,
        turns: rounds(40, 2_000),
        seed: seed(),
        tool_kills: 0,
    };
    let tally = run_lock_only(&course, |folders, _| {
        Box::new(ToySync::start(folders, course.seed, delays()))
    });
    let increments = tally.ledger.increments();
    assert!(tally.lost * 5 > increments, "{} lost of {increments}", tally.lost);
    assert!(tally.ledger.torn > 0 && !tally.conflict_copies.is_empty() && tally.faults.offline > 0);
}

#[test]
fn a_lock_alone_loses_updates_with_syncthing() {
    let course = Course {
        name: "lock only, Syncthing",
        machines: 2,
        turns: rounds(25, 100),
        seed: seed(),
        tool_kills: 1,
    };
    let tally = run_lock_only(&course, |folders, homes| Box::new(Syncthing::start(folders, homes)));
    let findings = tally.ledger.findings.join("\n");
    assert!(tally.lost > 0, "none lost\n{findings}");
    assert!(tally.ledger.torn > 0, "no torn start\n{findings}");
    assert!(!tally.conflict_copies.is_empty(), "no conflict copies\n{findings}");
    assert!(tally.faults.tool_killed > 0, "no tool killed");
}
