//! Bugs that are planted. A seed must show each of them by breaking the promise that the bug is
//! about, and the same seed without the bug must break none.

use super::SimOptions;
use super::planted_bugs::{PlantedBug, with_bug};
use super::run;
use super::violation::Promise;
use crate::engine::mutants::{Mutant as Rule, with_bug as with_rule};
use crate::time::Span;

/// How many seeds may be needed to find a bug.
const SEEDS_MAX: u64 = 120;

fn options(seed: u64) -> SimOptions {
    SimOptions { seed, nodes: 3, time: Span::from_secs(20), trace: false }
}

/// Tries seeds with a bug until one breaks `promise`, and then that seed without the bug.
#[track_caller]
fn breaks(
    promise: Promise,
    name: &str,
    first: u64,
    with: impl Fn(&dyn Fn() -> Option<String>) -> Option<String>,
) {
    for seed in first..first + SEEDS_MAX {
        let broken = || {
            let violations = run(&options(seed)).violations;
            let right = violations.into_iter().find(|violation| violation.promise == promise);
            right.map(|violation| violation.to_string())
        };
        let Some(what) = with(&broken) else { continue };
        println!("{name}: seed {seed}: {}", what.chars().take(200).collect::<String>());
        let without = run(&options(seed)).violations;
        assert!(without.is_empty(), "seed {seed} without {name}: {without:?}");
        return;
    }
    panic!("{name} did not break {promise:?} in {SEEDS_MAX} seeds");
}

macro_rules! bugs {
    ($with:ident, $type:ident: $(
        $name:ident: $bug:ident breaks $promise:ident $(from seed $first:literal)?,
    )*) => {
        $(#[test]
        fn $name() {
            let with = |body: &dyn Fn() -> Option<String>| $with($type::$bug, body);
            let first = [1 $(, $first)?];
            breaks(Promise::$promise, stringify!($bug), first[first.len() - 1], with);
        })*
    };
}

bugs! { with_bug, PlantedBug:
    a_skipped_sync_is_found: SyncSkipped breaks EntriesAreKept,
    a_lost_vote_is_found: VoteLost breaks VotesAreKept,
    lost_entries_are_found: TailLost breaks EntriesAreKept,
    an_empty_disk_under_the_old_id_is_found: DiskLost breaks EntriesAreKept,
    an_ignored_disk_error_is_found: DiskErrorIgnored breaks EntriesAreKept,
    a_snapshot_without_the_answers_is_found: SnapshotForgets breaks SameState,
    // A builder has to end just after an installation, which few seeds bring about.
    an_older_snapshot_that_wins_is_found: OlderSnapshotWins breaks NodesStart from seed 125,
    a_snapshot_that_is_never_installed_is_found: InstallNeverEnds breaks Recovers,
    a_panic_is_found: ApplyPanics breaks NoPanic,
    a_read_without_a_barrier_is_found: NoBarrier breaks Linearizable,
    stamps_of_the_wall_clock_are_found: WallStamps breaks TimeIsNotAhead,
    time_that_is_not_carried_on_is_found: ClockNotCarried breaks TimeIsNotAhead,
    the_time_of_an_earlier_term_is_found: StaleCarry breaks TimeIsNotAhead,
    an_answer_before_the_commit_is_found: AnswersBeforeCommit breaks Linearizable,
    a_new_id_for_a_retry_is_found: NewIdOnRetry breaks Linearizable,
    a_lease_counted_from_its_answer_is_found: DeadlineFromReply breaks OneHolder,
}

bugs! { with_rule, Rule:
    repeats_that_are_applied_are_found: RepeatsAreApplied breaks OneEffect,
    a_late_release_is_found: ReleaseIgnoresAcquisition breaks OneHolder,
    a_queue_served_from_behind_is_found: LastServedFirst breaks FirstComeFirstServed,
    a_token_reused_after_a_restore_is_found: TokenReusedByRestore breaks TokensAreUnique,
    a_forgotten_renewal_is_found: RenewalForgets breaks Linearizable,
    a_forgotten_keep_alive_is_found: KeepAliveForgets breaks Linearizable,
    an_upgrade_that_keeps_its_token_is_found: UpgradeKeepsToken breaks Linearizable,
    an_upgrade_beside_others_is_found: UpgradeBesideOthers breaks OneHolder,
    a_shared_request_that_overtakes_is_found: SharedOvertakes breaks FirstComeFirstServed,
    a_move_that_keeps_its_token_is_found: MoveKeepsToken breaks TokensAreUnique,
    a_reset_that_serves_what_it_takes_is_found: ResetServesReset breaks ResetTakesAll,
}
