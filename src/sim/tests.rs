//! Bugs that are planted, each of which some seed finds.

use super::planted::{Bug, with_bug};
use super::{Options, run};
use crate::engine::planted::{Bug as Rule, with_bug as with_rule};
use crate::time::Span;

/// How many seeds may be needed to find a bug.
const SEEDS_MAX: u64 = 40;

fn options(seed: u64) -> Options {
    Options { seed, nodes: 3, time: Span::from_secs(20), trace: false }
}

/// Tries seeds until something is wrong: which seed, and what.
#[track_caller]
fn found(name: &str, with: impl Fn(&dyn Fn() -> Vec<String>) -> Vec<String>) {
    for seed in 1..=SEEDS_MAX {
        let violations = with(&|| run(&options(seed)).violations);
        if let Some(first) = violations.first() {
            let first: String = first.chars().take(200).collect();
            return println!("{name}: seed {seed}: {first}");
        }
    }
    panic!("{name} was not found in {SEEDS_MAX} seeds");
}

#[track_caller]
fn is_found(bug: Bug) {
    found(&format!("{bug:?}"), |simulate| with_bug(bug, simulate));
}

#[track_caller]
fn rule_is_found(rule: Rule) {
    found(&format!("{rule:?}"), |simulate| with_rule(rule, simulate));
}

macro_rules! bugs {
    ($($name:ident: $bug:ident,)*) => {
        $(#[test]
        fn $name() {
            is_found(Bug::$bug);
        })*
    };
}

bugs! {
    skipping_the_sync_is_found: SyncSkipped,
    losing_the_vote_is_found: VoteLost,
    losing_the_last_entries_is_found: TailLost,
    coming_back_empty_under_the_old_id_is_found: DiskLost,
    going_on_after_a_failed_sync_is_found: DiskErrorIgnored,
    a_snapshot_without_the_answers_is_found: SnapshotForgets,
    reading_without_a_barrier_is_found: NoBarrier,
    stamping_by_the_wall_clock_is_found: WallStamps,
    not_carrying_time_on_is_found: ClockNotCarried,
    the_time_of_an_earlier_term_is_found: StaleCarry,
    answering_before_a_majority_has_it_is_found: AnswersBeforeCommit,
    trying_again_under_a_new_id_is_found: NewIdOnRetry,
    counting_a_lease_from_its_answer_is_found: DeadlineFromReply,
}

macro_rules! rules {
    ($($name:ident: $rule:ident,)*) => {
        $(#[test]
        fn $name() {
            rule_is_found(Rule::$rule);
        })*
    };
}

rules! {
    carrying_repeats_out_is_found: RepeatsAreApplied,
    waking_the_line_from_behind_is_found: LastServedFirst,
    giving_a_token_again_after_a_snapshot_is_found: TokenReusedByRestore,
    forgetting_a_renewal_is_found: RenewalForgets,
    forgetting_a_keep_alive_is_found: KeepAliveForgets,
}
