//! The same turns through guards: nothing is lost, no turn begins on a mixture of versions, and no
//! conflict copy is made.

use crate::syncing::course::{
    Course, Faults, Tally, folders_of, machines, make_files, run, wait_until_same,
};
use crate::syncing::guarded::{self, Guarded};
use crate::syncing::pair_tool::PairTool;
use crate::syncing::random::seed;
use crate::syncing::sync_tool::SyncTool;
use crate::syncing::syncthing::Syncthing;
use crate::syncing::toy_sync::{Delays, ToySync};
use std::path::{Path, PathBuf};
use std::time::Duration;
use testing::rounds;

/// Takes all turns through guards, and checks that nothing was lost.
fn run_guarded(
    course: &Course,
    start: impl FnOnce(&[PathBuf], &Path) -> Box<dyn SyncTool>,
) -> Faults {
    let machines = machines(course.machines);
    let folders = folders_of(&machines);
    make_files(&folders[0]);
    let server = guarded::init(&machines);
    let mut tool = start(&folders, machines[0].path());
    wait_until_same(&folders);
    let mut access = Guarded::start(server, &machines, course.seed);
    let Tally { ledger, lost, conflict_copies, faults } =
        run(course, &folders, &mut *tool, &mut access);
    let findings = ledger.findings.join("\n");
    assert_eq!((lost, ledger.torn, ledger.old), (0, 0, 0), "lost, torn and old:\n{findings}");
    assert_eq!(conflict_copies, Vec::<PathBuf>::new());
    assert_eq!(ledger.failed, Vec::<String>::new());
    assert_eq!(ledger.turns, course.turns);
    assert_eq!(ledger.increments(), 12 * course.turns);
    faults
}

#[test]
fn guards_lose_nothing_with_a_toy_sync_tool() {
    let course = Course {
        name: "with the barrier, toy sync tool",
        machines: 3,
        turns: rounds(25, 2_000),
        seed: seed(),
        tool_kills: 0,
    };
    // In the full form a quarter of the time that sync services take, so that it ends in hours.
    let longest = Duration::from_millis(rounds(400, 2_000) as u64);
    let delays = Delays { shortest: Duration::from_millis(5), longest };
    let faults =
        run_guarded(&course, |folders, _| Box::new(ToySync::start(folders, course.seed, delays)));
    assert!(faults.offline > 0 && faults.given_up > 0 && faults.killed > 0, "{faults:?}");
}

#[test]
fn guards_lose_nothing_with_syncthing() {
    let course = Course {
        name: "with the barrier, Syncthing",
        machines: 3,
        turns: rounds(25, 300),
        seed: seed(),
        tool_kills: rounds(1, 10),
    };
    let faults = run_guarded(&course, |folders, homes| Box::new(Syncthing::start(folders, homes)));
    assert!(faults.offline > 0 && faults.given_up > 0 && faults.killed > 0, "{faults:?}");
    assert!(faults.tool_killed > 0, "{faults:?}");
}

/// The turns of two machines with a tool that makes two folders the same each time it is run.
fn pair_course(name: &'static str) -> Course {
    Course { name, machines: 2, turns: rounds(12, 50), seed: seed(), tool_kills: 0 }
}

fn run_with_pair_tool(course: &Course, start: fn(&[PathBuf], &Path) -> PairTool) {
    let faults = run_guarded(course, |folders, home| Box::new(start(folders, home)));
    // In the few turns of the short form there may be none.
    assert!(course.turns < 50 || faults.given_up + faults.killed > 0, "{faults:?}");
}

#[test]
fn guards_lose_nothing_with_unison() {
    let course = pair_course("with the barrier, Unison");
    run_with_pair_tool(&course, PairTool::unison);
}

#[test]
fn guards_lose_nothing_with_rclone_bisync() {
    let course = pair_course("with the barrier, rclone bisync");
    run_with_pair_tool(&course, PairTool::rclone);
}
