//! The exhaustive exploration of the sync barrier: the shipped decisions of readiness, acceptance,
//! markers and late markers run over a model of two or three machines, two files, a lock service
//! and a sync tool that carries any path and any marker at any time, or never. A tenure that
//! becomes ready without an acceptance must see the last published or accepted version of each
//! path, and no version that its machine has not seen may be overwritten unnoticed.
//!
//! With `LATCHFS_GUARD_EXPLORE=full`, more steps are explored.
//!
//! The modules in reading order:
//!
//! - `folder` is a machine's copy of the folder.
//! - `world` is the model, `moves` its actions, `arriving_moves` those of a tenure that is not
//!   ready yet, and `marker_moves` those that write markers.
//! - `explorer` visits all states up to a number of moves.

mod world;
mod moves;

use crate::tests_explore::world::explore;

/// A fault that the exploration must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BarrierMutant {
    /// A restored lock service claims that its last tenure has ended in order.
    RestoredTakenForReleased,
    /// A machine is ready at its own handover, however its files stand.
    OwnUnchecked,
    /// A machine is ready when it has the marker that the handover names.
    MarkerAlone,
    /// The paths that the markers do not name are not compared.
    RestUnchecked,
    /// A tenure that never became ready sets a handover when it ends.
    ArrivingSetsHandover,
    /// An acceptance sets no handover.
    AcceptSetsNoHandover,
    /// A marker names the versions that were written, and not those that stand in the folder.
    NamedAsWritten,
    /// A late marker is written although a later tenure has changed the folder.
    LateAfterOthers,
    /// A late marker leaves out what no longer is as it was written.
    LateLeavesOut,
    /// Files of the same size are taken for the same.
    SizeOnly,
    /// A clean handover is sent although changes came after the list of the marker.
    CleanAfterChange,
    /// A handover is taken for one's own if it has the name of the client.
    OwnByClient,
    /// A path that an ignore rule matches is not compared, although markers name it.
    RuleDropsNamed,
}

/// The ignore rules of all machines in an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ignored {
    Nothing,
    /// The rules match both files, once markers have named them.
    Everything,
}

/// The scope of an exploration: how many moves, and how often each event happens.
#[derive(Debug, Clone, Copy)]
struct BarrierSetup {
    machines: usize,
    /// Whether all machines begin with all files, and not the first one alone.
    have_arrived: bool,
    moves: u32,
    writes: u8,
    /// How many tenures end by expiry.
    crashes: u8,
    /// How often the lock service is restored from a backup.
    restores: u8,
    accepts: u8,
    /// How many versions come past the guards.
    foreign: u8,
    /// How many clean handovers are lost on their way.
    losses: u8,
    /// How many machines are replaced by an older image of them.
    images: u8,
    /// Whether files are removed as well.
    removes: bool,
    /// Whether each marker can be a checkpoint.
    checkpoints: bool,
    ignored: Ignored,
    mutant: Option<BarrierMutant>,
}

const SETUP: BarrierSetup = BarrierSetup {
    machines: 2,
    have_arrived: false,
    moves: 0,
    writes: 3,
    crashes: 1,
    restores: 0,
    accepts: 1,
    foreign: 0,
    losses: 0,
    images: 0,
    removes: false,
    checkpoints: false,
    ignored: Ignored::Nothing,
    mutant: None,
};

fn is_full() -> bool {
    std::env::var_os("LATCHFS_GUARD_EXPLORE").is_some_and(|form| form == "full")
}

/// Explores a setup, with `more` moves in the full form, and fails if a guarantee is violated.
fn explore_well(setup: BarrierSetup, more: u32) -> usize {
    let moves = if is_full() { setup.moves + more } else { setup.moves };
    let setup = BarrierSetup { moves, ..setup };
    let explored = explore(setup);
    println!("{} states, {} became ready: {setup:?}", explored.states, explored.ready);
    assert!(explored.violation.is_none(), "{}", explored.violation.unwrap_or_default());
    assert!(explored.ready > 100, "hardly a tenure becomes ready");
    explored.states
}

#[test]
fn two_machines_see_the_last_version() {
    explore_well(BarrierSetup { moves: 12, ..SETUP }, 3);
}

#[test]
fn two_machines_take_turns() {
    let setup = BarrierSetup { have_arrived: true, writes: 2, crashes: 0, accepts: 0, ..SETUP };
    explore_well(BarrierSetup { moves: 24, writes: 3, ..setup }, 8);
    explore_well(BarrierSetup { moves: 17, crashes: 1, accepts: 1, ..setup }, 3);
}

#[test]
fn three_machines_see_the_last_version() {
    explore_well(
        BarrierSetup { machines: 3, moves: 12, writes: 2, have_arrived: true, ..SETUP },
        3,
    );
}

#[test]
fn a_restored_server_leaves_no_stale_machine_ready() {
    explore_well(
        BarrierSetup { moves: 13, restores: 1, writes: 2, have_arrived: true, ..SETUP },
        3,
    );
}

#[test]
fn foreign_versions_are_never_overwritten_unseen() {
    explore_well(BarrierSetup { moves: 12, foreign: 1, writes: 2, have_arrived: true, ..SETUP }, 3);
}

#[test]
fn removed_files_and_checkpoints_arrive() {
    let setup = BarrierSetup {
        moves: 14,
        writes: 2,
        removes: true,
        checkpoints: true,
        have_arrived: true,
        ..SETUP
    };
    explore_well(setup, 3);
}

/// Anybody who can write the folder can write ignore rules: they change nothing for named files.
#[test]
fn ignore_rules_leave_no_stale_machine_ready() {
    let setup =
        BarrierSetup { ignored: Ignored::Everything, have_arrived: true, writes: 2, ..SETUP };
    explore_well(BarrierSetup { moves: 12, accepts: 0, ..setup }, 3);
    explore_well(
        BarrierSetup {
            moves: 12,
            removes: true,
            checkpoints: true,
            accepts: 0,
            crashes: 0,
            ..setup
        },
        3,
    );
}

#[test]
fn a_lost_clean_handover_and_an_old_image_leave_no_stale_machine_ready() {
    explore_well(
        BarrierSetup { moves: 13, writes: 2, losses: 1, images: 1, have_arrived: true, ..SETUP },
        3,
    );
}

/// Checks that the exploration finds a fault, and that it finds nothing without the fault.
fn find(mutant: BarrierMutant, setup: BarrierSetup) {
    let explored = explore(BarrierSetup { mutant: Some(mutant), ..setup });
    let violation = explored.violation;
    let violation = violation.unwrap_or_else(|| panic!("{mutant:?}: nothing found"));
    println!("{mutant:?}, after {} states:\n{violation}", explored.states);
    // The same states and more were visited without the fault.
    let without = explore(BarrierSetup { moves: explored.moves, ..setup });
    assert!(without.violation.is_none(), "{mutant:?}: {}", without.violation.unwrap_or_default());
}

const FINDING: BarrierSetup = BarrierSetup { moves: 20, writes: 2, accepts: 0, ..SETUP };

#[test]
fn a_restored_server_that_hides_it_is_found() {
    find(BarrierMutant::RestoredTakenForReleased, BarrierSetup { restores: 1, ..FINDING });
}

#[test]
fn an_own_handover_without_a_look_at_the_files_is_found() {
    find(BarrierMutant::OwnUnchecked, BarrierSetup { foreign: 1, ..FINDING });
}

#[test]
fn a_marker_without_its_files_is_found() {
    find(BarrierMutant::MarkerAlone, FINDING);
}

#[test]
fn paths_that_no_marker_names_are_found() {
    find(BarrierMutant::RestUnchecked, BarrierSetup { foreign: 1, ..FINDING });
}

#[test]
fn a_trace_of_an_arriving_tenure_is_found() {
    find(BarrierMutant::ArrivingSetsHandover, FINDING);
}

#[test]
fn an_acceptance_without_a_handover_is_found() {
    find(BarrierMutant::AcceptSetsNoHandover, BarrierSetup { accepts: 1, ..FINDING });
}

#[test]
fn a_marker_that_names_what_was_written_is_found() {
    find(BarrierMutant::NamedAsWritten, BarrierSetup { foreign: 1, ..FINDING });
}

#[test]
fn a_late_marker_after_others_is_found() {
    find(
        BarrierMutant::LateAfterOthers,
        BarrierSetup { accepts: 1, crashes: 2, writes: 3, ..FINDING },
    );
}

#[test]
fn a_late_marker_that_leaves_something_out_is_found() {
    find(BarrierMutant::LateLeavesOut, BarrierSetup { foreign: 1, ..FINDING });
}

#[test]
fn a_comparison_by_size_is_found() {
    find(BarrierMutant::SizeOnly, FINDING);
}

#[test]
fn a_clean_handover_after_a_change_is_found() {
    find(BarrierMutant::CleanAfterChange, FINDING);
}

#[test]
fn a_rule_that_drops_a_named_path_is_found() {
    find(BarrierMutant::RuleDropsNamed, BarrierSetup { ignored: Ignored::Everything, ..FINDING });
}

#[test]
fn an_own_handover_by_the_name_of_the_client_is_found() {
    find(BarrierMutant::OwnByClient, BarrierSetup { images: 1, ..FINDING });
}
