//! Each sentence of the seed, chapter by chapter, with the test that shows it.

/// Where a sentence is shown.
enum Shown {
    /// By this test, as the seed says it.
    By(&'static str),
    /// By this test, which shows the mended behaviour beside the seed's defect.
    Mended(&'static str),
}

use Shown::{By, Mended};

const HOLDS: &str = "a_client_written_from_the_seed_alone_holds_the_lock";
const RACING: &str = "of_two_racing_clients_one_holds_the_lock";
const STOLEN: &str = "an_expired_lock_is_stolen_from_three_seconds_on_and_for_ever_after";
const FENCED: &str = "a_stale_holder_publishes_nothing";
const WRONG_CLOCK: &str = "a_machine_with_a_wrong_clock_steals_nothing";
const POLICY: &str = "a_record_follows_its_schema_and_the_default_policy";
const STEALERS: &str = "of_two_stealers_one_wins";
const QUIESCED: &str = "a_snapshot_waits_for_writers_or_says_who_they_are";
const READY_ONLY: &str = "a_guard_that_is_killed_while_it_takes_snapshots_shows_complete_ones";

const SENTENCES: &[(&str, Shown)] = &[
    // "Goals"
    ("Enforce SWMR for `exclusive` worktrees.", By(FENCED)),
    ("Prevent stale-holder writes via fencing.", By(FENCED)),
    ("Keep deterministic behavior under bounded clock skew.", Mended(WRONG_CLOCK)),
    // "Lock scope"
    ("Locks are repo-local files in `.jvs/locks/`.", Mended(HOLDS)),
    ("One active writer lock per exclusive worktree.", By(RACING)),
    (
        "`shared` mode does not provide SWMR guarantees.",
        By("many_machines_write_and_a_fence_spares_live_stages"),
    ),
    // "Lock record schema (MUST)"
    ("lock_id", By(HOLDS)),
    ("worktree_id", By(HOLDS)),
    ("holder_id (host:user:pid:start_time)", By(HOLDS)),
    ("holder_nonce", By(RACING)),
    ("session_id", By(RACING)),
    ("acquire_seq", By(HOLDS)),
    ("created_at", By(HOLDS)),
    ("last_renewed_at", By(HOLDS)),
    ("lease_duration_ms", By(POLICY)),
    ("renew_interval_ms", By(POLICY)),
    ("max_clock_skew_ms", By(POLICY)),
    ("steal_grace_ms", By(POLICY)),
    ("lease_expires_at", By(STOLEN)),
    ("fencing_token", By(HOLDS)),
    // "Default policy values"
    ("lease_duration_ms = 30000", By(POLICY)),
    ("renew_interval_ms = 10000", By(POLICY)),
    ("max_clock_skew_ms = 2000", By(POLICY)),
    ("steal_grace_ms = 1000", By(POLICY)),
    // "Acquire"
    (
        "create lock file atomically using `O_CREAT|O_EXCL`",
        By("of_eight_processes_one_makes_the_record"),
    ),
    ("if `open()` returns `EEXIST`, read existing lock and evaluate expiry", By(RACING)),
    ("if active non-expired lock exists, return `E_LOCK_CONFLICT`", By(RACING)),
    ("if expired plus skew+grace, steal flow applies and increments fencing token", By(STOLEN)),
    ("after successful create, fsync lock file and parent directory", By(HOLDS)),
    (
        "on JuiceFS, `O_CREAT|O_EXCL` provides the required atomicity guarantee",
        Mended("of_eight_processes_one_makes_the_record"),
    ),
    // "Renew"
    ("only holder with matching `holder_nonce` and `session_id` may renew", Mended(RACING)),
    ("renewal extends lease by `lease_duration_ms`", By(HOLDS)),
    ("if renewal commit fails, holder must stop writes immediately", Mended(FENCED)),
    // "Steal"
    (
        "allowed only when: `now > lease_expires_at + max_clock_skew_ms + steal_grace_ms`",
        Mended(STOLEN),
    ),
    ("steal MUST use atomic file replacement", By(STOLEN)),
    ("write new lock record to `.jvs/locks/<worktree_id>.lock.tmp`; fsync.", By(STOLEN)),
    ("`rename()` tmp over existing `.lock` file; fsync parent dir.", By(STOLEN)),
    ("`rename()` is atomic on POSIX and JuiceFS metadata engine.", Mended(STEALERS)),
    ("concurrent stealer race: if `rename()` succeeds, that stealer wins", Mended(STEALERS)),
    (
        "the loser's tmp is orphaned and harmless (cleaned by `doctor`)",
        By("prepared_records_of_ended_programs_are_removed"),
    ),
    ("new holder increments fencing token and `acquire_seq`", By(STOLEN)),
    ("audit event is mandatory", By(STOLEN)),
    // "Release"
    ("only holder with matching nonce/session can release", Mended(RACING)),
    ("non-holder release fails with `E_LOCK_NOT_HELD`", By(RACING)),
    // "Fencing token rules (MUST)"
    ("mutating writes in exclusive mode must validate current token", Mended(FENCED)),
    ("stale token fails with `E_FENCING_MISMATCH`", By(FENCED)),
    ("no partial publish after fencing failure", By(FENCED)),
    // "Snapshot consistency levels"
    ("requires quiesced source window", By(QUIESCED)),
    ("in exclusive mode, holder ensures no concurrent payload writers", By(FENCED)),
    ("snapshot allowed without strict quiesce", By(QUIESCED)),
    ("descriptor carries risk label", By(QUIESCED)),
    ("`history`/`info` JSON exposes risk flag", By(QUIESCED)),
    // "READY visibility"
    ("Only READY snapshots are visible.", By(READY_ONLY)),
    (
        "Incomplete snapshots/intents are hidden and recoverable by `doctor --strict`.",
        By("interrupted_snapshots_are_finished_or_removed"),
    ),
    // "Clock skew detection (MUST)"
    ("JVS records `last_renewed_at` using local monotonic + wall clock", By(HOLDS)),
    (
        "compute `observed_skew = abs(local_now - lock.lease_expires_at - lock.lease_duration_ms)`",
        Mended(STOLEN),
    ),
    (
        "If `observed_skew > max_clock_skew_ms`, fail with `E_CLOCK_SKEW_EXCEEDED`",
        Mended(WRONG_CLOCK),
    ),
    ("Operator MUST resolve clock drift before retrying.", By(WRONG_CLOCK)),
    (
        "`jvs doctor --strict` SHOULD warn if system clock offset exceeds `max_clock_skew_ms / 2`.",
        By("servers_and_names_are_checked"),
    ),
    // "Error classes"
    ("E_LOCK_CONFLICT, E_LOCK_EXPIRED, E_LOCK_NOT_HELD", By("error_classes_have_their_names")),
    ("E_FENCING_MISMATCH, E_CLOCK_SKEW_EXCEEDED", By("error_classes_have_their_names")),
    ("E_CONSISTENCY_UNAVAILABLE", By("error_classes_have_their_names")),
    ("E_PARTIAL_SNAPSHOT", By("a_snapshot_stays_as_it_was_taken_and_is_restored_exactly")),
];

#[test]
fn each_sentence_is_shown() {
    let tests = [
        include_str!("view_records.rs"),
        include_str!("../seed_002.rs"),
        include_str!("../../../guarded/shared_mode.rs"),
        include_str!("../../../guarded/snapshots.rs"),
        include_str!("../../../guarded/doctoring.rs"),
        include_str!("../../../guarded/doctoring_snapshots.rs"),
    ]
    .concat();
    for (sentence, By(test) | Mended(test)) in SENTENCES {
        assert!(tests.contains(&format!("\nfn {test}() {{")), "{sentence}: {test}");
    }
}
