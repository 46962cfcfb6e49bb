//! Prepares a downgrade: removes what the version before can't read from the files of a node's log.

use super::leadership::{Metrics, metrics};
use super::log::LogStore;
use super::replica::Replica;
use super::state_machine::Raft;
use super::status_report::Gauges;
use super::types::{LogId, TypeConfig};
use crate::engine::codec;
use crate::time::Span;
use openraft::errors::Fatal;
use openraft::type_config::TypeConfigExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often a node with `--format-max` looks for entries that an older latchfs can't read.
const LOOK_AT_FORMATS: Span = Span::from_secs(1);

/// Removes what an older latchfs can't read from the files of the log, by snapshots and purges: for
/// a downgrade, which `--format-max` prepares. So is a snapshot file replaced that an older latchfs
/// can't read, once the state of `replica` has a form that it can.
pub(super) async fn keep_readable(
    raft: Raft,
    log: LogStore,
    replica: Arc<Replica>,
    gauges: Gauges,
) {
    let has_newer = || {
        let of_file = gauges.snapshot_format.load(Ordering::Relaxed);
        let is_replaceable =
            || of_file > log.kept && codec::state_format(&replica.look().engine) <= log.kept;
        log.newest.load(Ordering::Relaxed) > 0 || is_replaceable()
    };
    while !has_newer() || take_snapshot_and_purge(&raft).await.is_ok() {
        TypeConfig::sleep(LOOK_AT_FORMATS.as_duration()).await;
        log.forget_newest();
    }
}

/// Purges the log up to a new snapshot. Fails if openraft has ended.
async fn take_snapshot_and_purge(raft: &Raft) -> Result<(), Fatal<TypeConfig>> {
    let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
    let wanted = index(metrics::<TypeConfig>(raft).last_applied);
    raft.trigger().snapshot().await?;
    let covers = |metrics: &Metrics| index(metrics.snapshot) >= wanted;
    let patience = Some(LOOK_AT_FORMATS.as_duration());
    // If the snapshot is not complete in time, the purge below goes only up to the previous
    // snapshot, and a later call of this function purges the remaining entries.
    let _ = raft.wait(patience).metrics(covers, "a snapshot").await;
    let upto = index(metrics::<TypeConfig>(raft).snapshot);
    raft.trigger().purge_log(upto).await
}
