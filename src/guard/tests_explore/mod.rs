//! The exhaustive exploration of two guards on one storage: the shipped code of begin, publish,
//! fence, give and lose runs over a model of the storage, the lock service and the clock, in every
//! interleaving of its steps with the ticks of the clock and one kill. A guard that is stopped for
//! a while is one whose next step comes late, so that each of these runs is among them.
//!
//! With `LATCHFS_GUARD_EXPLORE=full`, any number of guards are stopped.
//!
//! The modules in reading order:
//!
//! - `replay` runs a guard one step at a time, without a thread.
//! - `storage` is the model of the storage.
//! - `guarantees` are checked at each change of the folder.
//! - `world` is the model: guards, storage, lock service and clock.
//! - `guard_program` is what each guard does.
//! - `explorer` visits all states.
//! - `kills` kills a guard at each step, `power_failures` takes the power away after each.

mod storage;
mod guard_program;
mod world;
mod kills;

use crate::guard::tests_explore::kills::explore;

/// How the programs of a run change files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scenario {
    /// File A is saved as a whole.
    Whole,
    /// File A is written, but not closed before the end of the tenure.
    Unclosed,
    /// File B is saved as a whole under another name, and renamed.
    Renamed,
    /// File C is changed in place.
    InPlace,
    /// File C is changed in place, renamed to D or back, and changed again.
    InPlaceMoved,
    /// File A is saved as a whole, and once a version of it comes past the guards.
    Foreign,
    /// File B is saved by a rename, and once a version of it comes past the guards.
    ForeignRenamed,
    /// The name L is removed, and made anew as a further name of a file.
    Names,
    /// All ways, without versions that come past the guards, and with C at its place.
    All,
}

/// A fault that the exploration must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// The fence does not remove a stage, so that a late rename out of it succeeds.
    FenceWithoutRmdir,
    /// The fence leaves stages whose token is higher, which a replaced server had issued.
    FenceOnlyOlder,
    /// The deadline of a tenure is counted from the reply of the service, not from the request.
    DeadlineFromReply,
    /// A publish takes ENOENT for success.
    PublishIgnoresEnoent,
    /// The guards do not know that they share the storage.
    NotShared,
    /// The gate knows no deadline.
    NoDeadline,
    /// A foreign version is replaced, not exchanged.
    ForeignReplaced,
    /// The copy of a file that gets a new inode lies beside the stages, where no fence finds it.
    CopyBesideStages,
}

/// The scenario that is explored.
#[derive(Debug, Clone, Copy)]
struct Setup {
    scenario: Scenario,
    mutant: Option<Mutant>,
    /// How many tenures there are.
    tenures: u8,
    /// How many guards are killed.
    kills: u8,
    /// How many leases end while their guard lives: it is stopped, or slow.
    stops: u8,
    /// Whether the server is replaced after the first tenure, so that its tokens begin anew.
    is_engine_replaced: bool,
    /// Whether a guard begins its next tenure with what it remembers, and not as a new process.
    /// This multiplies the states.
    is_daemon_kept: bool,
    /// Whether each save is synced.
    is_synced: bool,
}

/// One kill and one stop in three tenures.
const SETUP: Setup = Setup {
    scenario: Scenario::Whole,
    mutant: None,
    tenures: 3,
    kills: 1,
    stops: 1,
    is_engine_replaced: false,
    is_daemon_kept: false,
    is_synced: false,
};

fn is_full() -> bool {
    std::env::var_os("LATCHFS_GUARD_EXPLORE").is_some_and(|form| form == "full")
}

/// Explores a setup, and fails if a state violates a guarantee. Returns the number of states.
fn explore_well(setup: Setup) -> usize {
    let explored = explore(setup);
    println!(
        "{:?}, {} tenures, {} kills, {} stops: {} states, {} transitions, {} ends",
        setup.scenario,
        setup.tenures,
        setup.kills,
        setup.stops,
        explored.states,
        explored.transitions,
        explored.ends,
    );
    assert!(explored.violation.is_none(), "{}", explored.violation.unwrap_or_default());
    assert!(explored.ends > 0, "no run ends");
    explored.states
}

fn explore_scenario(scenario: Scenario) {
    let setup = Setup { scenario, ..SETUP };
    assert!(explore_well(setup) > 100_000);
    explore_well(Setup { tenures: 2, is_daemon_kept: true, ..setup });
    if is_full() {
        explore_well(Setup { stops: 3, ..setup });
        explore_well(Setup { stops: 3, kills: 0, is_daemon_kept: true, ..setup });
    }
}

#[test]
fn files_saved_as_a_whole_keep_the_guarantees() {
    explore_scenario(Scenario::Whole);
}

#[test]
fn files_that_are_not_closed_keep_the_guarantees() {
    explore_scenario(Scenario::Unclosed);
}

#[test]
fn files_saved_by_rename_keep_the_guarantees() {
    explore_scenario(Scenario::Renamed);
}

#[test]
fn files_changed_in_place_keep_the_guarantees() {
    explore_scenario(Scenario::InPlace);
}

#[test]
fn files_changed_in_place_and_renamed_keep_the_guarantees() {
    let setup = Setup { scenario: Scenario::InPlaceMoved, ..SETUP };
    explore_well(Setup { kills: 0, ..setup });
    explore_well(Setup { tenures: 2, is_daemon_kept: true, ..setup });
    if is_full() {
        explore_scenario(Scenario::InPlaceMoved);
    }
}

#[test]
fn names_that_are_made_and_removed_keep_the_guarantees() {
    explore_scenario(Scenario::Names);
}

#[test]
fn files_saved_in_all_ways_keep_the_guarantees() {
    let tenures = if is_full() { 3 } else { 2 };
    explore_well(Setup { scenario: Scenario::All, tenures, ..SETUP });
}

#[test]
fn a_foreign_version_is_kept_when_a_save_replaces_it() {
    let setup = Setup { scenario: Scenario::Foreign, ..SETUP };
    explore_well(Setup { tenures: 2, ..setup });
    if is_full() {
        explore_well(setup);
    }
}

#[test]
fn a_foreign_version_is_kept_when_a_rename_replaces_it() {
    let setup = Setup { scenario: Scenario::ForeignRenamed, tenures: 2, ..SETUP };
    explore_well(Setup { stops: 0, ..setup });
    if is_full() {
        explore_well(setup);
    }
}

#[test]
fn a_replaced_server_keeps_the_guarantees() {
    explore_well(Setup { is_engine_replaced: true, ..SETUP });
}

/// Checks that the exploration finds a fault, and that it finds nothing without the fault.
fn find(mutant: Mutant, setup: Setup) {
    explore_well(setup);
    find_fault(mutant, setup);
}

/// Checks that the exploration finds a fault.
fn find_fault(mutant: Mutant, setup: Setup) {
    let explored = explore(Setup { mutant: Some(mutant), ..setup });
    let violation = explored.violation;
    let violation = violation.unwrap_or_else(|| panic!("{mutant:?}: nothing found"));
    let first = violation.lines().next().unwrap_or_default();
    println!("{mutant:?}: {first}, after {} states", explored.states);
}

const TWO_TENURES: Setup = Setup { tenures: 2, kills: 0, ..SETUP };

#[test]
fn a_fence_without_rmdir_is_found() {
    find(Mutant::FenceWithoutRmdir, TWO_TENURES);
}

#[test]
fn a_fence_of_older_numbers_alone_is_found() {
    find(Mutant::FenceOnlyOlder, Setup { is_engine_replaced: true, ..TWO_TENURES });
}

#[test]
fn a_deadline_counted_from_the_reply_is_found() {
    find(Mutant::DeadlineFromReply, TWO_TENURES);
}

#[test]
fn a_publish_that_ignores_enoent_is_found() {
    find(Mutant::PublishIgnoresEnoent, TWO_TENURES);
}

#[test]
fn a_gate_without_a_deadline_is_found() {
    find(Mutant::NoDeadline, TWO_TENURES);
}

#[test]
fn a_rename_in_one_step_on_shared_storage_is_found() {
    find(Mutant::NotShared, Setup { scenario: Scenario::Renamed, ..TWO_TENURES });
}

#[test]
fn a_name_made_or_removed_in_one_step_on_shared_storage_is_found() {
    find(Mutant::NotShared, Setup { scenario: Scenario::Names, ..TWO_TENURES });
}

#[test]
fn a_change_in_place_without_a_name_in_the_stage_is_found() {
    find(Mutant::NotShared, Setup { scenario: Scenario::InPlace, ..TWO_TENURES });
}

#[test]
fn a_replaced_foreign_version_is_found() {
    for scenario in [Scenario::Foreign, Scenario::ForeignRenamed] {
        find(Mutant::ForeignReplaced, Setup { scenario, stops: 0, ..TWO_TENURES });
    }
}

#[test]
fn a_copy_beside_the_stages_is_found() {
    // Without the fault, `files_changed_in_place_keep_the_guarantees` explores the same.
    find_fault(Mutant::CopyBesideStages, Setup { scenario: Scenario::InPlace, ..SETUP });
}
