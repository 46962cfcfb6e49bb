//! The folder snapshots of a view: which files of the folder they share, and the one that is being
//! taken.

use crate::guard::disk::linux_disk::LinuxDisk;
use crate::guard::disk::operations::{Disk as _, FileId, FileStat, Place};
use crate::guard::folder_snapshot::descriptor::SnapshotDescriptor;
use crate::guard::folder_snapshot::snapshot_store::{RecoveredSnapshots, findings, recover};
use crate::guard::folder_snapshot::snapshot_store::{SnapshotStore, TREE};
use crate::guard::folder_snapshot::snapshot_take::SnapshotIntent;
use crate::guard::folder_snapshot::tree_copy::walk;
use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a wait for programs lasts before they are looked at again, if none of them is heard of.
const WRITERS_CHECK: Span = Span::from_millis(100);

/// Files of the folder that have further names in snapshots.
#[derive(Default)]
struct SharedFiles {
    /// The number of complete snapshots that have each file.
    complete: HashMap<FileId, u32>,
    /// The files of the snapshot that is being taken.
    taken: HashSet<FileId>,
}

/// The folder snapshots of a view.
pub(crate) struct ViewSnapshots {
    /// The directory `snapshots` of the state directory.
    pub(in crate::guard::view) dir: OwnedFd,
    /// The id of the folder.
    pub(in crate::guard::view) folder_id: String,
    /// Whether snapshots may share files with the folder: only the guard changes it.
    pub(in crate::guard::view) may_link: bool,
    /// The bytes of the disk that all snapshots together may take.
    pub(in crate::guard::view) bytes_max: u64,
    shared: RwLock<SharedFiles>,
    /// Held while a snapshot is taken, checked or removed.
    pub(in crate::guard::view) one_change: Mutex<()>,
    /// The work under way, as a waiting person reads it.
    work: Mutex<Option<&'static str>>,
    files_done: AtomicU64,
    /// The number of writable open files that were closed.
    writers_left: Mutex<u64>,
    news: Condvar,
}

impl ViewSnapshots {
    /// Recovers interrupted snapshots, and looks which files the complete ones share with the
    /// folder. `may_link` says that only this guard changes the folder, and `shared_by` names this
    /// machine if others share the storage; all snapshots together may take `bytes_max` bytes of
    /// the disk.
    pub(crate) fn open(
        stages: &OwnedFd,
        dir: OwnedFd,
        folder_id: &str,
        may_link: bool,
        shared_by: Option<&str>,
        bytes_max: u64,
    ) -> io::Result<Self> {
        let store = SnapshotStore { disk: &LinuxDisk, dir: &dir };
        let is_live = |intent: &SnapshotIntent| {
            shared_by.is_some_and(|own| intent.may_go_on(own, &LinuxDisk, stages))
        };
        let RecoveredSnapshots { finished, removed } = recover(&store, stages, is_live)?;
        if !finished.is_empty() || removed > 0 {
            let count = finished.len();
            log::info!("interrupted folder snapshots: {count} finished, {removed} removed");
        }
        for finding in findings(&store, is_live, false)? {
            log::warn!("{finding}");
        }
        let found = Self {
            dir,
            folder_id: folder_id.to_owned(),
            may_link,
            bytes_max,
            shared: RwLock::default(),
            one_change: Mutex::default(),
            work: Mutex::default(),
            files_done: AtomicU64::new(0),
            writers_left: Mutex::default(),
            news: Condvar::new(),
        };
        for (id, descriptor) in found.store().list()? {
            found.count_linked(&found.linked(id.as_str(), &descriptor)?, 1);
        }
        Ok(found)
    }

    /// Returns the snapshots on the disk.
    pub(in crate::guard::view) const fn store(&self) -> SnapshotStore<'_, LinuxDisk> {
        SnapshotStore { disk: &LinuxDisk, dir: &self.dir }
    }

    /// Returns the files that a snapshot shares with the folder.
    pub(in crate::guard::view) fn linked(
        &self,
        id: &str,
        descriptor: &SnapshotDescriptor,
    ) -> io::Result<Vec<FileStat>> {
        let mut found = Vec::new();
        if descriptor.counts.linked == 0 {
            return Ok(found);
        }
        let dir = LinuxDisk.open_dir(Place::new(&self.dir, id))?;
        let tree = LinuxDisk.open_dir(Place::new(&dir, TREE))?;
        walk(
            &LinuxDisk,
            &tree,
            |_| false,
            |walked| {
                if walked.found.stat.is_file && walked.found.stat.links > 1 {
                    found.push(walked.found.stat);
                }
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// Counts, or no longer counts, the files that a snapshot shares with the folder.
    pub(in crate::guard::view) fn count_linked(&self, linked: &[FileStat], change: i32) {
        let mut shared = self.shared.write();
        for stat in linked {
            let count = shared.complete.entry(stat.id).or_default();
            *count = count.saturating_add_signed(change);
        }
        shared.complete.retain(|_, count| *count > 0);
    }

    /// Records that the snapshot that is being taken gets a further name of a file.
    pub(in crate::guard::view) fn share(&self, file: FileId) {
        self.shared.write().taken.insert(file);
    }

    /// Records that the snapshot that was being taken is complete, with these files, or is not.
    pub(in crate::guard::view) fn taken(&self, complete: &[FileStat]) {
        let mut shared = self.shared.write();
        shared.taken.clear();
        for stat in complete {
            *shared.complete.entry(stat.id).or_default() += 1;
        }
    }

    /// Returns the number of names that a file has in snapshots.
    pub(in crate::guard::view) fn links_of(&self, file: FileId) -> u32 {
        let shared = self.shared.read();
        if shared.complete.is_empty() && shared.taken.is_empty() {
            return 0;
        }
        let complete = shared.complete.get(&file).copied().unwrap_or(0);
        complete + u32::from(shared.taken.contains(&file))
    }

    /// Records that a file was closed that was open for writing.
    pub(in crate::guard::view) fn writer_left(&self) {
        *self.writers_left.lock() += 1;
        self.news.notify_all();
    }

    /// Waits until `writers` returns nothing, at most until `until`. Returns its last answer.
    pub(in crate::guard::view) fn wait_for_writers(
        &self,
        until: Time,
        writers: impl Fn() -> Vec<String>,
    ) -> Vec<String> {
        loop {
            let before = *self.writers_left.lock();
            let found = writers();
            let left = until.since(boot_now());
            if found.is_empty() || left == Span::ZERO {
                return found;
            }
            let mut closed = self.writers_left.lock();
            if *closed == before {
                let _ = self.news.wait_for(&mut closed, left.min(WRITERS_CHECK).as_duration());
            }
        }
    }

    /// Begins a part of the work that is reported as progress.
    pub(in crate::guard::view) fn begin_work(&self, work: Option<&'static str>) {
        self.files_done.store(0, Ordering::Relaxed);
        *self.work.lock() = work;
    }

    /// Counts one more file of the work.
    pub(in crate::guard::view) fn count_file(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the progress of the work as words.
    pub(in crate::guard::view) fn progress(&self) -> Option<String> {
        let work = (*self.work.lock())?;
        let files = self.files_done.load(Ordering::Relaxed);
        Some(if files == 0 { work.to_owned() } else { format!("{work}: {files} files") })
    }
}
