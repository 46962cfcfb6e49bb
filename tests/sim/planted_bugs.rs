//! Bugs that the tests plant into a simulated cluster, to prove that the checks find them.

use latchfs::engine::{Annotate, Command, Engine, Handover, Op, Phase, Release};
use latchfs::time::Time;
use std::cell::Cell;

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A sync reports success without syncing anything.
    SyncSkipped,
    /// A crash loses the vote.
    VoteLost,
    /// A crash loses the last entries, although they were synced.
    TailLost,
    /// A crash may wipe the disk, and the node comes back under its old id.
    DiskLost,
    /// A failed sync is reported as a success, although its writes do not survive a crash.
    DiskErrorIgnored,
    /// A node keeps running after its proposer has ended.
    EndIgnored,
    /// A snapshot leaves out the answers that the engine stores for repeated requests.
    SnapshotForgets,
    /// A snapshot that was built late replaces a newer one that was installed meanwhile.
    OlderSnapshotWins,
    /// A snapshot of another node is never installed.
    InstallNeverEnds,
    /// A leader panics while it applies an entry.
    ApplyPanics,
    /// A read does not confirm that this node is still the leader, or that its state is up to date.
    NoBarrier,
    /// A leader stamps proposals with its wall clock.
    WallStamps,
    /// A new leader stamps proposals with its own steady clock, instead of continuing from the last
    /// stamp in the log.
    ClockNotCarried,
    /// A node that becomes leader again reuses the clock of its earlier term.
    StaleCarry,
    /// The leader answers before a majority has the entry.
    AnswersBeforeCommit,
    /// The state machine drops the request ids of commands, so that a repeated command is applied a
    /// second time.
    RequestIdsDropped,
    /// The state machine drops the number of the acquire that a release names, so that a late
    /// release also ends a lease that was acquired again after it.
    AcquisitionDropped,
    /// A lease keeps its token when it changes from shared to exclusive: the state machine renews
    /// it as a shared one.
    UpgradeKeepsToken,
    /// The state machine drops handovers that a tenure sets while it runs.
    HandoverForgotten,
    /// The state machine sets a handover at each release that has none.
    HandoverChanged,
    /// The state machine numbers handovers in the order in which they arrive.
    OldCounterTaken,
    /// A restore takes each tenure of the lost cluster for one that was released.
    EndTakenForKnown,
    /// A retry of a request gets a new request id.
    NewIdOnRetry,
    /// A client counts the ttl of its lease from the arrival of the answer instead of from the
    /// sending of the request.
    DeadlineFromReply,
}

/// Returns a copy of the engine without the answers that it stores for repeated requests.
pub fn forgetful(engine: &Engine) -> Engine {
    let mut engine = engine.clone();
    engine.forget_replies();
    engine
}

/// Returns a command as a state machine with a planted bug would apply it to `engine` at `at`.
pub fn distorted(command: &Command, engine: &Engine, at: Time) -> Command {
    let mut command = command.clone();
    if planted(PlantedBug::RequestIdsDropped) {
        command.request = None;
    }
    match &mut command.op {
        Op::Acquire(ask) if planted(PlantedBug::UpgradeKeepsToken) => {
            let view = engine.view(&ask.name, at);
            let is_own = view.holders.iter().all(|holder| holder.lease.holder == ask.client);
            if view.phase() == Phase::Held && is_own {
                ask.mode = view.mode;
            }
        }
        Op::Annotate(ask) if planted(PlantedBug::HandoverForgotten) => ask.handover = None,
        Op::Annotate(Annotate { handover: Some(handover), .. })
        | Op::Release(Release { handover: Some(handover), .. })
            if planted(PlantedBug::OldCounterTaken) =>
        {
            handover.counter = at.as_nanos();
        }
        Op::Release(release)
            if planted(PlantedBug::HandoverChanged)
                && release.key.name.as_str().starts_with("folder") =>
        {
            let counter = u64::MAX;
            release.handover.get_or_insert_with(|| Handover { text: "nothing".into(), counter });
        }
        _ => {}
    }
    if let Op::Release(release) = &mut command.op
        && planted(PlantedBug::AcquisitionDropped)
    {
        release.acquisition = None;
    }
    command
}

thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
}

/// Runs `body` with `bug` in the simulations of this thread.
pub fn with_bug<T>(bug: PlantedBug, body: impl FnOnce() -> T) -> T {
    struct BugGuard;
    impl Drop for BugGuard {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
    PLANTED.set(Some(bug));
    let _uproot = BugGuard;
    body()
}

/// Whether a test has planted this bug.
pub fn planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether a test has planted a bug.
pub fn is_any_planted() -> bool {
    PLANTED.get().is_some()
}
