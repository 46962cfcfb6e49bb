//! Takes a snapshot: records the intent, builds the snapshot in the stage of the tenure, writes
//! `READY` last, and makes it visible by one rename. The fence of a later tenure removes the stage,
//! so that a guard which was stopped before the rename publishes nothing.

use super::descriptor::{SENTENCES_MAX, SnapshotConsistency, SnapshotDescriptor, SnapshotReady};
use super::snapshot_disk::SnapshotDisk;
use super::snapshot_store::{
    DESCRIPTOR, INTENT, MANIFEST, SnapshotError, SnapshotStore, TREE, write_new,
};
use super::tree_copy::{MayLink, TreeCopy};
use crate::guard::disk::operations::remove_tree;
use crate::guard::disk::operations::{Disk, FileStat, Place};
use crate::guard::folder::folder_guard::FolderGuard;
use crate::guard::folder_snapshot::descriptor::SnapshotId;
use crate::guard::folder_snapshot::descriptor::manifest_text;
use crate::guard::folder_snapshot::tree_copy::entries_of;
use crate::guard::folder_snapshot::tree_copy::walk;
use crate::guard::stage::gate::Pass;
use crate::guard::stage::publish::{READY, SNAPSHOT, Stage};
use crate::time::Wall;
use barrier::folder_path::ContentDigest;
use barrier::tenure_id::TenureId;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

/// The record of a snapshot that is being taken, for a guard that dies meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotIntent {
    /// The name of the snapshot.
    pub(crate) id: String,
    /// The tenure in whose stage the snapshot is built.
    pub(crate) tenure: String,
    /// The name of the machine that takes the snapshot.
    pub(crate) client: String,
}

impl SnapshotIntent {
    /// Whether the guard of another machine may be taking the snapshot, on storage that machines
    /// share: as long as no fence has removed the stage of its tenure. `own` is the name of this
    /// machine.
    pub(crate) fn may_go_on<D: Disk>(&self, own: &str, disk: &D, stages: &D::Dir) -> bool {
        self.client != own && disk.stat(Place::new(stages, &self.tenure)).is_ok()
    }
}

/// Returns the name of the file with the intent of a snapshot.
pub(crate) fn intent_name(id: &SnapshotId) -> OsString {
    format!("{id}{INTENT}").into()
}

/// Returns the name of the directory in a stage in which a snapshot is built.
pub(crate) fn staged_name(id: &SnapshotId) -> OsString {
    format!("{SNAPSHOT}{id}").into()
}

/// The facts that a descriptor names besides the files.
#[derive(Debug, Clone)]
pub(crate) struct TakenAs {
    /// The id of the folder.
    pub(crate) folder: String,
    /// Whether programs may have been changing files.
    pub(crate) consistency: SnapshotConsistency,
    /// The programs that had files open for writing.
    pub(crate) risk: Vec<String>,
}

/// A snapshot that is being taken. When it is dropped before it is published, it is removed.
pub(crate) struct SnapshotTake<'a, D: SnapshotDisk> {
    guard: &'a FolderGuard<D>,
    store: SnapshotStore<'a, D>,
    stage: Arc<Stage<D>>,
    id: SnapshotId,
    at: Wall,
    dir: D::Dir,
    copy: Option<TreeCopy<'a, D>>,
    /// The bytes of the disk that the other snapshots take, and that all may take.
    space: (u64, u64),
    is_published: bool,
}

/// Returns the bytes of the disk that the files of a tree take.
fn allocated_in<D: SnapshotDisk>(disk: &D, tree: &D::Dir) -> io::Result<u64> {
    let (mut bytes, mut seen) = (0_u64, HashSet::new());
    walk(
        disk,
        tree,
        |_| false,
        |walked| {
            let stat = walked.found.stat;
            if stat.is_file && (stat.links == 1 || seen.insert(stat.id)) {
                bytes = bytes.saturating_add(disk.allocated(walked.at)?);
            }
            Ok(())
        },
    )?;
    Ok(bytes)
}

impl<'a, D: SnapshotDisk> SnapshotTake<'a, D> {
    /// Records that a snapshot begins, and makes its directory in the stage of the current tenure.
    /// All snapshots together may take `bytes_max` bytes of the disk.
    pub(crate) fn begin(
        guard: &'a FolderGuard<D>,
        snapshots: &'a D::Dir,
        client: &str,
        may_link: MayLink<'a>,
        bytes_max: u64,
    ) -> Result<Self, SnapshotError> {
        let space = (SnapshotStore { disk: guard.disk(), dir: snapshots }.room()?, bytes_max);
        if space.0 >= bytes_max {
            return Err(SnapshotError::TooLarge(bytes_max));
        }
        let stage = guard.stage.read().clone().ok_or(SnapshotError::TenureOver)?;
        let (disk, at) = (guard.disk(), Wall::now());
        let (store, id) = (SnapshotStore { disk, dir: snapshots }, SnapshotId::new(at));
        let (tenure, client) = (stage.tenure.to_string(), client.to_owned());
        let intent = SnapshotIntent { id: id.to_string(), tenure, client };
        let bytes = serde_json::to_vec(&intent).map_err(io::Error::other)?;
        let made = write_new(disk, Place::new(snapshots, &intent_name(&id)), &bytes)
            .and_then(|()| disk.sync_dir(snapshots))
            .and_then(|()| disk.make_dir(Place::new(&stage.dir, &staged_name(&id))));
        let dir = match made {
            Ok(dir) => dir,
            Err(error) => {
                let _ = disk.remove_file(Place::new(snapshots, &intent_name(&id)));
                return Err(in_stage(error));
            }
        };
        let (copy, is_published) = (None, false);
        let mut take = Self { guard, store, stage, id, at, dir, copy, space, is_published };
        let tree = disk.make_dir(Place::new(&take.dir, TREE))?;
        take.copy = Some(TreeCopy::new(disk, guard.folder(), tree, may_link));
        Ok(take)
    }

    /// Copies the files that have changed since the last call, while programs go on.
    pub(crate) fn copy_changed(&mut self, on_file: &dyn Fn()) -> Result<(), SnapshotError> {
        let copied = self.copy.as_mut().map_or(Ok(()), |copy| copy.copy_changed(on_file));
        copied.map_err(|error| self.failed(error))
    }

    /// Copies the last changes, while programs wait. The copy is then the folder at this moment.
    pub(crate) fn copy_last(&mut self) -> Result<(), SnapshotError> {
        self.copy_changed(&|| ())?;
        let finished = self.copy.as_mut().map_or(Ok(()), TreeCopy::finish);
        finished.map_err(|error| self.failed(error))
    }

    /// Returns the files of the folder of which the snapshot has a further name.
    pub(crate) fn linked(&self) -> &[FileStat] {
        self.copy.as_ref().map_or(&[], |copy| &copy.linked)
    }

    /// Writes the manifest, the descriptor and, last, `READY`.
    pub(crate) fn complete(
        &mut self,
        taken_as: TakenAs,
        on_file: &dyn Fn(),
    ) -> Result<SnapshotDescriptor, SnapshotError> {
        let disk = self.guard.disk();
        let summary = self.copy.take().map(TreeCopy::into_summary).unwrap_or_default();
        let tree = disk.open_dir(Place::new(&self.dir, TREE)).map_err(in_stage)?;
        let allocated = allocated_in(disk, &tree).map_err(in_stage)?;
        let (others, bytes_max) = self.space;
        if others.saturating_add(allocated) > bytes_max {
            return Err(SnapshotError::TooLarge(bytes_max));
        }
        let mut entries = entries_of(disk, &tree, |_| false, on_file).map_err(in_stage)?;
        let manifest = manifest_text(&mut entries);
        let newest = self.store.list()?.pop().map(|(id, _)| id.to_string());
        let mut descriptor = SnapshotDescriptor::new(self.id.as_str(), taken_as.consistency);
        descriptor.folder = taken_as.folder;
        descriptor.parent = newest;
        descriptor.token = self.stage.tenure.token.as_u64();
        descriptor.engine = format!("{:016x}", self.stage.tenure.engine);
        descriptor.at = self.at.to_string();
        descriptor.risk = taken_as.risk;
        descriptor.risk.truncate(SENTENCES_MAX);
        (descriptor.counts, descriptor.degraded) = summary;
        descriptor.counts.allocated = allocated;
        descriptor.root = ContentDigest::of(manifest.as_bytes()).to_string();
        let ready = SnapshotReady::of(&descriptor).bytes();
        let write = |name: &str, bytes: &[u8]| write_new(disk, Place::new(&self.dir, name), bytes);
        let written = write(MANIFEST, manifest.as_bytes())
            .and_then(|()| write(DESCRIPTOR, &descriptor.bytes()))
            .and_then(|()| disk.sync_file_system(&self.dir))
            .and_then(|()| write(READY, &ready))
            .and_then(|()| disk.sync_dir(&self.dir));
        written.map_err(in_stage)?;
        Ok(descriptor)
    }

    /// Makes the snapshot visible, under the gate of its tenure.
    pub(crate) fn publish(mut self, pass: &Pass<'_>) -> Result<(), SnapshotError> {
        if pass.tenure() != self.stage.tenure {
            return Err(SnapshotError::TenureOver);
        }
        let name = staged_name(&self.id);
        self.store.adopt(Place::new(&self.stage.dir, &name), &self.id).map_err(in_stage)?;
        self.is_published = true;
        let intent = intent_name(&self.id);
        Ok(self.store.disk.remove_file(Place::new(self.store.dir, &intent))?)
    }

    /// Returns the tenure in whose stage the snapshot is built.
    pub(crate) fn tenure(&self) -> TenureId {
        self.stage.tenure
    }

    fn failed(&self, error: io::Error) -> SnapshotError {
        let is_there = self.store.disk.stat(Place::new(&self.stage.dir, &staged_name(&self.id)));
        if is_there.is_err() { SnapshotError::TenureOver } else { SnapshotError::Disk(error) }
    }
}

impl<D: SnapshotDisk> Drop for SnapshotTake<'_, D> {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        let (disk, name) = (self.store.disk, staged_name(&self.id));
        let removed = remove_tree(disk, Place::new(&self.stage.dir, &name), OsStr::new(READY));
        let intent = intent_name(&self.id);
        let removed = removed.and_then(|()| disk.remove_file(Place::new(self.store.dir, &intent)));
        if let Err(error) = removed {
            log::warn!("the unfinished snapshot {} stays in the stage: {error}", self.id);
        }
    }
}

/// Returns the error of a system call in the stage: one that is gone was fenced.
fn in_stage(error: io::Error) -> SnapshotError {
    match error.kind() {
        io::ErrorKind::NotFound => SnapshotError::TenureOver,
        _ => SnapshotError::Disk(error),
    }
}

/// Reads the intents of snapshots that are being taken, or whose guard has died.
pub(crate) fn intents<D: Disk>(
    store: &SnapshotStore<'_, D>,
) -> io::Result<Vec<(OsString, Option<SnapshotIntent>)>> {
    let names = store.disk.entries(store.dir)?.into_iter().filter(|entry| !entry.is_dir);
    let names = names.map(|entry| entry.name);
    let is_intent = |name: &OsString| name.to_str().is_some_and(|name| name.ends_with(INTENT));
    let read = |name: OsString| {
        let at = Place::new(store.dir, &name);
        let bytes = super::snapshot_store::read_whole(store.disk, at, 4_096).ok();
        let intent = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        (name, intent)
    };
    Ok(names.filter(is_intent).map(read).collect())
}
