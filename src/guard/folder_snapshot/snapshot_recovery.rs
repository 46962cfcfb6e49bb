//! Finds snapshots that were interrupted or damaged, and finishes or removes the interrupted ones.

use super::super::disk::{Disk, Place};
use super::super::stage::READY;
use super::super::tenure::TenureId;
use super::super::tree_removal::remove_tree;
use super::snapshot_id::SnapshotId;
use super::snapshot_store::{SnapshotStore, complete_in};
use super::snapshot_take::{SnapshotIntent, intents, staged_name};
use super::tree_walk::is_gone;
use std::ffi::OsStr;
use std::fmt;
use std::io;

/// Something that is wrong with the snapshots of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SnapshotFinding {
    /// A snapshot was interrupted while it was taken or removed (`snapshot-partial`).
    Partial(String),
    /// A complete snapshot does not fit its manifest any more (`snapshot-corrupt`).
    Corrupt(SnapshotId, Vec<String>),
    /// The `READY` of a snapshot does not fit its descriptor (`snapshot-corrupt`), so that it is
    /// not shown.
    Unproven(SnapshotId),
}

impl fmt::Display for SnapshotFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partial(id) => write!(
                f,
                "snapshot {id} was interrupted and is not shown; the next start of the guard \
                 finishes or removes it"
            ),
            Self::Corrupt(id, differences) => write!(
                f,
                "snapshot {id} is damaged: {}; remove it with 'latchfs folder-snapshot rm {id}'",
                differences.first().map_or("it can't be read", String::as_str)
            ),
            Self::Unproven(id) => write!(
                f,
                "snapshot {id} is not shown, because its READY or its descriptor was changed; \
                 remove it with 'latchfs folder-snapshot rm {id}'"
            ),
        }
    }
}

/// The effect of a recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveredSnapshots {
    /// The snapshots that were complete, and are visible now.
    pub(crate) finished: Vec<SnapshotId>,
    /// The number of snapshots that were removed, because they were not.
    pub(crate) removed: usize,
}

/// Returns the findings about the snapshots of a folder. `is_live` says whether a guard may still
/// be taking a snapshot. With `reads_all`, each file is compared with its digest.
pub(crate) fn findings<D: Disk>(
    store: &SnapshotStore<'_, D>,
    is_live: impl Fn(&SnapshotIntent) -> bool,
    reads_all: bool,
) -> io::Result<Vec<SnapshotFinding>> {
    let mut found = Vec::new();
    for (name, intent) in intents(store)? {
        if !intent.as_ref().is_some_and(&is_live) {
            let id = intent.map_or_else(|| name.to_string_lossy().into_owned(), |it| it.id);
            found.push(SnapshotFinding::Partial(id));
        }
    }
    for id in store.names()? {
        let dir = match store.disk.open_dir(Place::new(store.dir, id.as_str())) {
            // It was removed meanwhile.
            Err(error) if is_gone(&error) => continue,
            dir => dir?,
        };
        let has_ready = || store.disk.look(Place::new(&dir, READY)).is_ok();
        if complete_in(store.disk, &dir, &id).is_none() {
            found.push(if has_ready() {
                SnapshotFinding::Unproven(id)
            } else {
                SnapshotFinding::Partial(id.to_string())
            });
        } else if reads_all {
            let differences = store.verify(id.as_str(), &|| ());
            let differences = differences.unwrap_or_else(|error| vec![error.to_string()]);
            // A removal begins with READY.
            if !differences.is_empty() && has_ready() {
                found.push(SnapshotFinding::Corrupt(id, differences));
            }
        }
    }
    Ok(found)
}

/// Finishes the interrupted snapshots that are complete up to `READY`, and removes the others. The
/// caller has made sure that no guard is at work on a snapshot for which `is_live` is false.
pub(crate) fn recover<D: Disk>(
    store: &SnapshotStore<'_, D>,
    stages: &D::Dir,
    is_live: impl Fn(&SnapshotIntent) -> bool,
) -> io::Result<RecoveredSnapshots> {
    let disk = store.disk;
    let mut recovered = RecoveredSnapshots::default();
    for (name, intent) in intents(store)? {
        if intent.as_ref().is_some_and(&is_live) {
            continue;
        }
        let tenure = intent.as_ref().and_then(|intent| TenureId::parse(&intent.tenure));
        let id = intent.as_ref().and_then(|intent| SnapshotId::parse(&intent.id));
        if let (Some(tenure), Some(id)) = (tenure, id)
            && let Ok(stage) = disk.open_dir(Place::new(stages, &tenure.to_string()))
        {
            let half = staged_name(&id);
            let at = Place::new(&stage, &half);
            let is_complete =
                disk.open_dir(at).is_ok_and(|dir| complete_in(disk, &dir, &id).is_some());
            if is_complete {
                store.adopt(at, &id)?;
                recovered.finished.push(id);
            } else if disk.look(at).is_ok() {
                remove_tree(disk, at, OsStr::new(READY))?;
                recovered.removed += 1;
            }
        }
        disk.remove_file(Place::new(store.dir, &name))?;
    }
    for id in store.names()? {
        let at = Place::new(store.dir, id.as_str());
        let dir = disk.open_dir(at)?;
        // One with a READY that does not fit was damaged, and a person decides.
        if disk.look(Place::new(&dir, READY)).is_err() {
            remove_tree(disk, at, OsStr::new(READY))?;
            recovered.removed += 1;
        }
    }
    disk.sync_dir(store.dir)?;
    Ok(recovered)
}
