//! Mends what `doctor --strict` finds, as far as that needs no decision of a person. No lock is
//! freed.

use super::folder_site::{FolderSite, ViewLife};
use crate::cli::view_record::ViewRecord;
use crate::fuse::kernel::device;
use crate::guard::disk::Disk as _;
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use crate::guard::fence::Fence;
use crate::guard::lost_files::LostFiles;
use crate::guard::plain_disk::PlainDisk;
use crate::guard::space::{Space, SpaceLimits};
use crate::guard::state_place::{ChangedThrough, StatePlace};
use crate::os_error::said;
use std::fs;
use std::sync::Arc;

/// The result of an attempt to mend a finding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MendedFinding {
    /// The name of the finding.
    pub(super) check: &'static str,
    /// Whether it was mended.
    pub(super) is_done: bool,
    /// What was done, or why nothing was.
    pub(super) says: String,
}

impl MendedFinding {
    /// Returns the result as a sentence.
    pub(super) fn sentence(&self) -> String {
        let (check, says) = (self.check, &self.says);
        if self.is_done {
            format!("mended {check}: {says}")
        } else {
            format!("{check} can't be mended: {says}")
        }
    }
}

/// Mends those of the findings that need no person.
pub(super) fn mend_all(site: &FolderSite, found: &[FolderFinding]) -> Vec<MendedFinding> {
    let (snapshots, others): (Vec<_>, Vec<_>) =
        found.iter().partition(|finding| finding.kind == FindingKind::SnapshotPartial);
    // The snapshots come first: one that is complete may still lie in a stage.
    let of_snapshots = snapshots.first().copied();
    let all = of_snapshots.into_iter().chain(others);
    let mended = all.filter_map(|finding| {
        let done = mend(site, finding.kind)?;
        let check = finding.kind.as_str();
        let is_done = done.is_ok();
        Some(MendedFinding { check, is_done, says: done.unwrap_or_else(|why| why) })
    });
    mended.collect()
}

/// Mends the findings of a kind; `None` if that needs a person.
fn mend(site: &FolderSite, kind: FindingKind) -> Option<Result<String, String>> {
    match kind {
        FindingKind::ViewMissing => Some(mend_view(site)),
        FindingKind::StageLeftover => Some(mend_stages(site)),
        #[cfg(target_os = "linux")]
        FindingKind::SnapshotPartial => Some(mend_snapshots(site)),
        FindingKind::RecordLeftover => Some(remove_prepared_record(site)),
        _ => None,
    }
}

/// Opens and locks the state directory, so that no guard runs meanwhile.
fn locked_place(site: &FolderSite) -> Result<StatePlace, String> {
    let Some(record) = &site.record else { return Err("the folder has no record".to_owned()) };
    let Some(state) = site.host.ancestors().nth(2) else { return Err("no place".to_owned()) };
    let host = (site.client.as_str(), ChangedThrough::Folder);
    StatePlace::open(&site.folder, record, state, host).map_err(|error| error.to_string())
}

/// Moves the content of stages to the lost files.
fn mend_stages(site: &FolderSite) -> Result<String, String> {
    let place = locked_place(site)?;
    let dirs = place.dirs::<PlainDisk>().map_err(|error| error.to_string())?;
    let lost_dir = PlainDisk.reopen_dir(&dirs.lost).map_err(|error| said(&error))?;
    let space = Arc::new(Space::new(SpaceLimits::NONE));
    let lost = LostFiles::open(&PlainDisk, lost_dir, space).map_err(|error| said(&error))?;
    let (folder, stages, lost) = (&dirs.folder, &dirs.stages, &lost);
    // The stages are those of this machine, and none of its guards runs.
    let fence = Fence { disk: &PlainDisk, folder, stages, lost, is_held: &|| true, live: None };
    match fence.erect() {
        Ok(fenced) => Ok(format!("{} files are among the lost files", fenced.kept)),
        Err(error) => Err(format!("{error:?}")),
    }
}

/// Finishes interrupted snapshots that are complete, and removes the others.
#[cfg(target_os = "linux")]
fn mend_snapshots(site: &FolderSite) -> Result<String, String> {
    use crate::guard::folder_snapshot::snapshot_recovery::recover;
    use crate::guard::folder_snapshot::snapshot_store::SnapshotStore;
    let place = locked_place(site)?;
    let (stages, dir) = place.snapshots().map_err(|error| error.to_string())?;
    let is_shared = site.record.as_ref().is_some_and(|record| record.storage.is_some());
    let store = SnapshotStore { disk: &PlainDisk, dir: &dir };
    let done = recover(&store, &stages, |intent| {
        is_shared && intent.may_go_on(&site.client, &PlainDisk, &stages)
    });
    let done = done.map_err(|error| said(&error))?;
    let (finished, removed) = (done.finished.len(), done.removed);
    Ok(format!("{finished} finished and shown now, {removed} removed"))
}

/// Removes a record that a program had prepared for a steal when it ended.
fn remove_prepared_record(site: &FolderSite) -> Result<String, String> {
    let Some(path) = site.prepared_record() else { return Err("it is gone".to_owned()) };
    fs::remove_file(&path).map_err(|error| said(&error))?;
    Ok(format!("{} was removed", path.display()))
}

/// Removes the mount of a guard that was killed, and forgets the view.
fn mend_view(site: &FolderSite) -> Result<String, String> {
    let Some((view, life)) = &site.view else { return Err("there is no view".to_owned()) };
    match life {
        ViewLife::Dead => device::detach(view).map_err(|error| said(&error))?,
        ViewLife::Unmounted => {}
        ViewLife::Live | ViewLife::Silent => {
            return Err("its guard is there, and may go on".to_owned());
        }
    }
    ViewRecord::remove(&site.host);
    Ok(format!("nothing is mounted at {} any more; start the guard again", view.display()))
}
