//! Folder snapshots that were interrupted or damaged.

use super::super::folder_snapshot::snapshot_store::SnapshotStore;
use super::super::folder_snapshot::snapshot_take::SnapshotIntent;
use super::folder_checks::some_of;
use crate::base::said;
use crate::guard::disk::operations::Disk;
use crate::guard::doctor::folder_checks::ExaminedFolder;
use crate::guard::doctor::folder_checks::{FindingKind, FolderFinding};
use crate::guard::folder_snapshot::snapshot_store::{SnapshotFinding, findings};
use barrier::tenure_id::TenureId;

/// Returns the findings about the snapshots. Each file of each snapshot is read.
pub(super) fn snapshot_findings<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Vec<FolderFinding>, String> {
    let Some(dir) = &of.snapshots else { return Ok(Vec::new()) };
    let store = SnapshotStore { disk: of.disk, dir };
    let is_live = |intent: &SnapshotIntent| of.may_be_taking(intent);
    let found = findings(&store, is_live, true);
    let mut found =
        found.map_err(|error| format!("the snapshots can't be read: {}", said(&error)))?;
    // A snapshot that is under way now is not interrupted.
    let is_whole = |found: &SnapshotFinding| {
        matches!(found, SnapshotFinding::Corrupt(..) | SnapshotFinding::Unproven(_))
    };
    if !found.iter().all(is_whole) && (of.changes_snapshots)() {
        found.retain(is_whole);
    }
    Ok(found.into_iter().map(|finding| as_finding(of, finding)).collect())
}

impl<D: Disk> ExaminedFolder<'_, D> {
    /// Whether a guard may be taking a snapshot: this machine's guard in its current tenure, or
    /// that of another machine of a shared storage.
    fn may_be_taking(&self, intent: &SnapshotIntent) -> bool {
        if self.is_shared && intent.client != self.client {
            let stages = self.stages.as_ref();
            return stages.is_some_and(|dir| intent.may_go_on(self.client, self.disk, dir));
        }
        let token = TenureId::parse(&intent.tenure).map(|tenure| tenure.token.as_u64());
        self.is_guarded && token.is_some() && token >= self.tenure
    }
}

fn as_finding<D: Disk>(of: &ExaminedFolder<'_, D>, found: SnapshotFinding) -> FolderFinding {
    let shown = &of.shown;
    match found {
        SnapshotFinding::Partial(id) => FolderFinding::new(
            FindingKind::SnapshotPartial,
            format!(
                "the snapshot {id} was interrupted while it was taken or removed, and is not shown"
            ),
            if of.is_guarded {
                "end the guard, and start it again: it finishes a snapshot that is complete, and \
                 removes any other"
            } else {
                "latchfs doctor --strict --fix: it finishes a snapshot that is complete, and \
                 removes any other; the next start of the guard does so as well"
            },
        ),
        SnapshotFinding::Unproven(id) => FolderFinding::new(
            FindingKind::SnapshotCorrupt,
            format!(
                "the snapshot {id} is not shown, because its READY or its descriptor was changed"
            ),
            format!(
                "its files are in 'snapshots/{id}/tree' of the state directory, and nothing proves \
                 that they are as they were taken: copy what you need, then remove it by 'latchfs \
                 folder-snapshot rm {id} {shown}'"
            ),
        ),
        SnapshotFinding::Corrupt(id, differences) => FolderFinding::new(
            FindingKind::SnapshotCorrupt,
            format!("the snapshot {id} is not as it was taken: {}", some_of(&differences)),
            format!(
                "its other files are still good, and 'latchfs folder-snapshot verify {id} {shown}' \
                 names those that are not: copy what you need from 'snapshots/{id}/tree' of the \
                 state directory, then remove it by 'latchfs folder-snapshot rm {id} {shown}'"
            ),
        ),
    }
}
