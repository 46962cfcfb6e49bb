//! Tests with planted bugs. For each bug some seed must give a violation with a message that no
//! other planted bug is expected to cause, and the same seed without the bug must give no
//! violation.

mod session_hour;

use latchfs::time::Span;
use openraft::type_config::AsyncRuntime;
use openraft_rt_sim::SimRuntime;
use sim::checks::recorder::Record;
use sim::machines::virtual_environment::{SeededRandom, sleep};
use sim::machines::virtual_links::NetworkFaults;
use sim::planted_bugs::{PlantedBug, with_bug};
use sim::world::SimWorld;
use sim::{SimOptions, run};
use std::panic::catch_unwind;
use std::sync::Arc;
use testing::client_history::{SafetyProperty, Violation};

/// Nodes whose messages take up to 40 ms, so that an answer to a heartbeat can be later than
/// the next heartbeat, never take the contact with their majority for lost. A node that is cut
/// off does so, and not any more when it is back.
#[test]
fn slow_network_is_no_lost_majority() {
    const SLOW: NetworkFaults = NetworkFaults { loss: 0, doubled: 0, late_ms: 40 };
    let is_lost = |world: &Arc<SimWorld>| {
        let hosts = world.nodes().into_iter().filter_map(|id| world.host(id));
        hosts.map(|host| host.requests.is_lost()).collect::<Vec<_>>()
    };
    SimRuntime::with_seed(1).block_on(async move {
        let world = SimWorld::new(&SeededRandom::new(1), 3, Record::new(false));
        for id in world.nodes() {
            world.start(id).await;
        }
        world.net.set_weather(NetworkFaults::MENDED);
        world.host(1).expect("it runs").initialize(&world.nodes()).await;
        sleep(Span::from_secs(5)).await;
        world.net.set_weather(SLOW);
        for _ in 0..600 {
            sleep(Span::from_millis(100)).await;
            assert_eq!(is_lost(&world), [false; 3]);
        }
        world.net.cut([(1, 2), (2, 1), (1, 3), (3, 1)]);
        sleep(Span::from_secs(10)).await;
        assert_eq!(is_lost(&world), [true, false, false]);
        world.net.mend(SLOW);
        sleep(Span::from_secs(10)).await;
        assert_eq!(is_lost(&world), [false; 3]);
    });
}

/// How many seeds a test tries to find a bug. A test that would need more begins near a seed that
/// is known to find it.
const SEEDS_MAX: u64 = 120;

/// The violation message that identifies a bug.
struct Sentence {
    bug: &'static str,
    promise: SafetyProperty,
    /// Texts that the message contains in this order, with any text between them.
    words: &'static [&'static str],
}

impl Sentence {
    fn is(&self, violation: &Violation) -> bool {
        let mut rest = violation.what.as_str();
        let mut has = |word: &&str| {
            let found = rest.find(word).map(|at| &rest[at + word.len()..]);
            rest = found.unwrap_or_default();
            found.is_some()
        };
        self.promise == violation.promise && self.words.iter().all(&mut has)
    }
}

fn options(seed: u64, handovers: bool) -> SimOptions {
    SimOptions { seed, nodes: 3, time: Span::from_secs(20), trace: false, handovers }
}

/// Runs seeds with a bug until one gives the bug's message, then runs that seed without the bug.
#[track_caller]
fn shows(
    bug: &str,
    first: u64,
    with: impl Fn(&dyn Fn() -> Option<Violation>) -> Option<Violation>,
) {
    let own = SENTENCES.iter().find(|sentence| sentence.bug == bug).expect("each bug has one");
    let handovers = own.promise == SafetyProperty::HandoversAreKept;
    for seed in first..first + SEEDS_MAX {
        // A planted bug may also make a node panic at its start. A run with such a panic counts as
        // one that has not found the bug.
        let broken = || {
            let ran = catch_unwind(|| run(&options(seed, handovers)).violations).ok()?;
            ran.into_iter().find(|found| own.is(found))
        };
        let Some(found) = with(&broken) else { continue };
        println!("{bug}: seed {seed}: {}", found.to_string().chars().take(240).collect::<String>());
        let of = SENTENCES.iter().filter(|sentence| sentence.is(&found));
        let of: Vec<_> = of.map(|sentence| sentence.bug).collect();
        assert_eq!(of, [bug], "the sentence of one bug only: {found}");
        let without = run(&options(seed, handovers)).violations;
        assert!(without.is_empty(), "seed {seed} without {bug}: {without:?}");
        return;
    }
    panic!("{bug} was not shown by {:?} {:?} in {SEEDS_MAX} seeds", own.promise, own.words);
}

macro_rules! bugs {
    ($(
        $name:ident: $with:ident $type:ident $bug:ident by $promise:ident
            $words:expr $(, from seed $first:literal)?;
    )*) => {
        const SENTENCES: &[Sentence] = &[$(
            Sentence { bug: stringify!($bug), promise: SafetyProperty::$promise, words: &$words },
        )*];

        $(#[test]
        fn $name() {
            let with = |body: &dyn Fn() -> Option<Violation>| $with($type::$bug, body);
            let first = [1 $(, $first)?];
            shows(stringify!($bug), first[first.len() - 1], with);
        })*
    };
}

bugs! {
    a_skipped_sync_is_found: with_bug PlantedBug SyncSkipped
        by EntriesAreKept ["they had not been synced"];
    a_lost_vote_is_found: with_bug PlantedBug VoteLost
        by VotesAreKept ["has forgotten its vote"];
    lost_entries_are_found: with_bug PlantedBug TailLost
        by EntriesAreKept ["they had been synced"];
    an_empty_disk_under_the_old_id_is_found: with_bug PlantedBug DiskLost
        by EntriesAreKept ["the disk is empty"];
    an_ignored_disk_error_is_found: with_bug PlantedBug DiskErrorIgnored
        by EntriesAreKept ["a sync of the disk had failed"];
    a_node_that_does_not_end_is_found: with_bug PlantedBug EndIgnored
        by FailedNodesEnd ["still runs"];
    a_snapshot_without_the_answers_is_found: with_bug PlantedBug SnapshotForgets
        by SameState ["the state after entry", "is another there"];
    // The bug `OlderSnapshotWins` shows only if a snapshot is built just after another one was
    // installed, which few seeds bring about.
    an_older_snapshot_that_wins_is_found: with_bug PlantedBug OlderSnapshotWins
        by NodesStart ["could not start: its log begins after"], from seed 160;
    a_snapshot_that_is_never_installed_is_found: with_bug PlantedBug InstallNeverEnds
        by Recovers [];
    a_panic_is_found: with_bug PlantedBug ApplyPanics
        by NoPanic [];
    a_read_without_a_barrier_is_found: with_bug PlantedBug NoBarrier
        by ReadsAreCurrent ["but the reads fit an order"];
    stamps_of_the_wall_clock_are_found: with_bug PlantedBug WallStamps
        by TimeIsNotAhead ["while one node led"];
    time_that_is_not_carried_on_is_found: with_bug PlantedBug ClockNotCarried
        by TimeIsNotAhead ["when a node led for the first time"];
    the_time_of_an_earlier_term_is_found: with_bug PlantedBug StaleCarry
        by TimeIsNotAhead ["when a node led that had led before"];
    an_answer_before_the_commit_is_found: with_bug PlantedBug AnswersBeforeCommit
        by AnswersAreApplied ["and no node has applied it"];
    repeats_that_are_applied_are_found: with_bug PlantedBug RequestIdsDropped
        by OneEffect ["was carried out twice"];
    a_late_release_is_found: with_bug PlantedBug AcquisitionDropped
        by OneHolder ["(Alone", "as promised", "(Alone"];
    an_upgrade_that_keeps_its_token_is_found: with_bug PlantedBug UpgradeKeepsToken
        by UpgradesMintTokens ["may have kept token"];
    a_new_id_for_a_retry_is_found: with_bug PlantedBug NewIdOnRetry
        by OneEffect ["had an effect under two ids"];
    // The bug `DeadlineFromReply` shows only if another client gets the lock within the time that
    // one answer takes.
    a_lease_counted_from_its_answer_is_found: with_bug PlantedBug DeadlineFromReply
        by OneHolder ["longer than promised"], from seed 90;
    a_forgotten_handover_is_found: with_bug PlantedBug HandoverForgotten
        by HandoversAreKept ["has forgotten handover"];
    a_handover_of_a_tenure_that_set_none_is_found: with_bug PlantedBug HandoverChanged
        by HandoversAreKept ["that no client has set"];
    an_older_handover_that_counts_is_found: with_bug PlantedBug OldCounterTaken
        by HandoversAreKept ["older than the last one"];
    a_known_end_after_a_restore_is_found: with_bug PlantedBug EndTakenForKnown
        by HandoversAreKept ["it knows how a tenure of the lost cluster ended"];
}
