//! The changes that programs make through the view, as the sync barrier knows them: each is logged
//! before and after it is made, so that a marker names it whatever is killed in between.

use super::acting_as::itself;
use super::barrier::content_digest::ContentDigest;
use super::barrier::coverage::{Coverage, CoverageReport};
use super::barrier::folder_path::FolderPath;
use super::barrier::handover::HandoverId;
use super::barrier::ignored::IgnoreRules;
use super::barrier::ledger::{Ledger, LedgerEntry};
use super::barrier::marking::TenureMarking;
use super::barrier::ready::Arrived;
use super::barrier::tree::{DigestCache, FileStamp};
use super::barrier_store::change_record::ChangeRecord;
use super::barrier_store::disk_tree::{HashedCount, stamp_of};
use super::barrier_store::ignore_files::ToolPatterns;
use super::barrier_store::ledger_store::{LedgerStore, LoadedLedger};
use super::barrier_store::marker_dir::MarkerDir;
use super::barrier_store::unread_file::{read_unread, write_unread};
use super::disk::{Disk, Look};
use super::unread::UnreadVersions;
use super::write_policy::PathPatterns;
use crate::base::said;
use crate::time::this_boot;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The names that markers carry.
#[derive(Debug, Clone)]
pub(crate) struct MarkerNames {
    /// The id of the folder.
    pub(crate) folder: String,
    /// The name of the folder's lock.
    pub(crate) lock: String,
    /// The client of this machine.
    pub(crate) holder: String,
}

/// The directories of the barrier.
pub(crate) struct BarrierDirs<D: Disk> {
    /// The folder.
    pub(crate) folder: D::Dir,
    /// The directory of this machine in the state directory.
    pub(crate) state: D::Dir,
}

/// The sync barrier of one folder on this machine.
pub(crate) struct FolderBarrier<D: Disk> {
    pub(super) disk: Arc<D>,
    pub(super) dirs: BarrierDirs<D>,
    pub(super) names: MarkerNames,
    pub(super) local: PathPatterns,
    pub(super) state: Mutex<BarrierState<D>>,
    /// The results of reading the folder again and again until it is ready. One thread uses them.
    pub(super) looking: Mutex<Looking>,
    /// The number of the list of the next marker: a change in place is logged once for each.
    epoch: AtomicU64,
    /// The call after the first marker of a folder that never had one. As long as it is
    /// there, the first tenure may begin without markers.
    pub(super) first_marked: Mutex<Option<FirstMarked>>,
    /// The versions of other machines that no program has opened.
    pub(super) unread: UnreadVersions,
    /// How much was read to know its digest.
    pub(crate) hashed: HashedCount,
    /// The call after each marker.
    pub(super) on_marked: OnceLock<OnMarked>,
    /// The sync tool of this machine, if it can be asked for its ignore patterns.
    pub(super) tool: OnceLock<AskTool>,
    /// The ignore patterns that it has named last.
    pub(super) tool_patterns: Mutex<ToolPatterns>,
}

/// A call after each marker, with the paths that it names and its own directory, or without paths
/// if it names the whole folder.
pub(crate) type OnMarked = Box<dyn Fn(Vec<String>) + Send + Sync>;

/// A call that asks the sync tool of this machine for its ignore patterns.
pub(crate) type AskTool = Box<dyn Fn() -> ToolPatterns + Send + Sync>;

/// A call after the first marker of a folder.
pub(crate) type FirstMarked = Box<dyn FnOnce() + Send>;

/// The digest of `.latchfs/ignore` in a marker, if there was such a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MarkedIgnore(pub(super) Option<ContentDigest>);

/// The knowledge of the barrier.
pub(super) struct BarrierState<D: Disk> {
    pub(super) ledger: Ledger,
    pub(super) store: LedgerStore<D>,
    /// The announcements and markers of the tenure, once it is ready.
    pub(super) marking: Option<TenureMarking>,
    /// The last handover of the tenure that announced changes.
    pub(super) announced: Option<HandoverId>,
    /// The files that are changed in place, and whose versions the log does not know yet.
    pub(super) in_place: BTreeMap<FolderPath, u64>,
    /// The digest of `.latchfs/ignore` in the last marker, once that is known.
    pub(super) marked_ignore: Option<MarkedIgnore>,
    /// Sentences about files of the folder when it was last compared, for `guard status`.
    pub(super) notes: Vec<String>,
    /// The ignore rules as they were last read.
    pub(super) rules: Arc<IgnoreRules>,
    /// The paths for which they made a difference when the folder was last compared or listed.
    pub(super) coverage: CoverageReport,
}

/// The markers that are here, and the digests of files.
pub(super) struct Looking {
    pub(super) markers: MarkerDir,
    pub(super) cache: DigestCache,
}

/// Returns the stamp of a file; `None` for what is no regular file, which no marker names.
pub(super) fn stamp_of_file(found: &Look) -> Option<FileStamp> {
    found.is_file.then(|| stamp_of(found))
}

/// Says what was wrong with the files of the ledger.
fn tell_problems(loaded: &LoadedLedger) {
    if let Some(problem) = loaded.problem {
        log::warn!("{problem}");
    }
    if loaded.is_other_boot {
        log::info!("the machine was started since; the folder is compared with the ledger");
    }
    if loaded.dropped_bytes > 0 {
        log::warn!("the change log ends with {} bytes that are no line", loaded.dropped_bytes);
    }
}

impl<D: Disk> BarrierState<D> {
    /// Returns the path of a file that markers name.
    pub(super) fn marked_path(&self, path: &OsStr) -> Option<FolderPath> {
        // A name that is no text is carried by no marker.
        let path = FolderPath::parse(path.to_str()?).ok()?;
        self.own_coverage().covers_change(&path).then_some(path)
    }

    /// Returns what this machine covers in its own tenure.
    pub(super) fn own_coverage(&self) -> Coverage<'_> {
        Coverage::of(&self.rules, &self.ledger)
    }

    /// Returns the names of the file with an inode number that the ledger and the log know.
    fn names_of(&self, inode: u64) -> Vec<FolderPath> {
        let of = |path: &FolderPath| {
            let found = match self.ledger.log().get(path) {
                Some(change) => change.after,
                None => self.ledger.entry(path).map(|entry| entry.stamp),
            };
            found.is_some_and(|stamp| stamp.inode == inode)
        };
        let all = self.ledger.paths().chain(self.ledger.log().paths());
        let mut names: Vec<_> = all.filter(|path| of(path)).cloned().collect();
        names.sort();
        names.dedup();
        names
    }
}

impl<D: Disk> FolderBarrier<D> {
    /// Returns the barrier of a folder, with what this machine knew of it when it last stopped.
    /// `first_marked` is there if the folder may have no markers yet.
    pub(crate) fn open(
        disk: Arc<D>,
        dirs: BarrierDirs<D>,
        names: MarkerNames,
        (local, first_marked): (PathPatterns, Option<FirstMarked>),
    ) -> io::Result<Self> {
        let state_dir = disk.reopen_dir(&dirs.state)?;
        let (store, loaded) = LedgerStore::open(Arc::clone(&disk), state_dir, this_boot())?;
        tell_problems(&loaded);
        let state = BarrierState {
            ledger: loaded.ledger,
            store,
            marking: None,
            announced: None,
            in_place: BTreeMap::new(),
            marked_ignore: None,
            notes: Vec::new(),
            rules: Arc::new(IgnoreRules::default().with_local(local.clone())),
            coverage: CoverageReport::default(),
        };
        let unread = read_unread(&*disk, &dirs.state)?;
        let markers = MarkerDir::new(&names.folder);
        Ok(Self {
            looking: Mutex::new(Looking { markers, cache: DigestCache::default() }),
            disk,
            dirs,
            names,
            local,
            state: Mutex::new(state),
            epoch: AtomicU64::new(1),
            first_marked: Mutex::new(first_marked),
            unread,
            on_marked: OnceLock::new(),
            tool: OnceLock::new(),
            tool_patterns: Mutex::new(None),
            hashed: HashedCount::default(),
        })
    }

    /// Makes a call after each marker from now on.
    pub(crate) fn on_marked(&self, call: OnMarked) {
        // Nobody sets a second one.
        let _ = self.on_marked.set(call);
    }

    /// Records that everything is here, and which versions of it no program has opened.
    pub(super) fn adopt(
        &self,
        state: &mut BarrierState<D>,
        arrived: Arrived,
    ) -> Result<(), String> {
        let others = arrived.other_versions(&state.ledger);
        state.ledger.adopt(arrived);
        if others.is_empty() {
            return Ok(());
        }
        let ledger = &state.ledger;
        let there: HashSet<_> =
            ledger.paths().filter_map(|path| Some(ledger.entry(path)?.stamp)).collect();
        self.unread.arrived(others.into_iter(), |version| there.contains(version));
        let written = write_unread(&*self.disk, &self.dirs.state, &self.unread);
        written.map_err(|error| format!("the list of unread files can't be written: {error}"))
    }

    /// Returns what was wrong with files of the folder when it was last compared.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.state.lock().notes.clone()
    }

    /// Notes that programs may change the folder from now on, past the guard: the next marker names
    /// each path that differs from the ledger.
    pub(crate) fn note_unseen(&self) {
        self.state.lock().ledger.log_mut().note_unnamed();
    }

    /// Returns the number of the list of the next marker. A change in place that was logged under
    /// another number must be logged again.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Makes each open file log its next change in place once more: the list of the next marker
    /// begins while the gate is closed, or a file has got other names.
    pub(crate) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the version of a path that the markers name.
    pub(super) fn published(&self, path: &OsStr) -> Option<LedgerEntry> {
        let path = FolderPath::parse(path.to_str()?).ok()?;
        self.state.lock().ledger.entry(&path).copied()
    }

    /// Logs that a path is about to be changed.
    pub(crate) fn begin_change(
        &self,
        path: &OsStr,
        before: Option<FileStamp>,
        after: Option<FileStamp>,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(path) = state.marked_path(path) else { return Ok(()) };
        state.in_place.remove(&path);
        state.record(&ChangeRecord::Begin { path, before, after })
    }

    /// Logs how a change left a path.
    pub(crate) fn end_change(&self, path: &OsStr, after: Option<FileStamp>) {
        let mut state = self.state.lock();
        let Some(path) = state.marked_path(path) else { return };
        state.end(path, after);
    }

    /// Logs that a file is about to be changed in place, under each of its names. The path is empty
    /// if the name was removed by which the file was known last. Returns the number of the list
    /// that names the change.
    pub(crate) fn begin_in_place(&self, path: &OsStr, found: &Look) -> io::Result<u64> {
        let mut state = self.state.lock();
        let epoch = self.epoch();
        let Some(stamp) = stamp_of_file(found) else { return Ok(epoch) };
        let mut names: Vec<_> = state.marked_path(path).into_iter().collect();
        let has_other_names = found.links > u32::from(!path.is_empty());
        if has_other_names {
            names.extend(state.names_of(stamp.inode));
        }
        if names.is_empty() && path.is_empty() && has_other_names {
            state.ledger.log_mut().note_unnamed();
        }
        for path in names {
            if state.in_place.get(&path) != Some(&stamp.inode) {
                let (before, after) = (Some(stamp), Some(stamp));
                state.record(&ChangeRecord::Begin { path: path.clone(), before, after })?;
                state.in_place.insert(path, stamp.inode);
            }
        }
        Ok(epoch)
    }

    /// Writes the change log to the storage, before content that was changed in place is synced.
    pub(crate) fn sync_changes(&self) -> io::Result<()> {
        self.state.lock().store.sync_new()
    }

    /// Logs how changes in place left a file.
    pub(crate) fn end_in_place(&self, path: &OsStr, found: &Look) {
        let mut state = self.state.lock();
        let Some(path) = state.marked_path(path) else { return };
        if state.in_place.get(&path) == Some(&found.id.inode) {
            state.end(path, stamp_of_file(found));
        }
    }
}

impl<D: Disk> BarrierState<D> {
    /// Makes a change in the change log and in the ledger.
    pub(super) fn record(&mut self, change: &ChangeRecord) -> io::Result<()> {
        itself(|| self.store.record(&mut self.ledger, change))
    }

    pub(super) fn end(&mut self, path: FolderPath, after: Option<FileStamp>) {
        // Without this line the log says that the change may be under way, which is no error.
        if let Err(error) = self.record(&ChangeRecord::End { path, after }) {
            log::warn!("the change log can't be written: {}", said(&error));
        }
    }

    /// Logs how the files stand that are being changed in place. They stay files that are changed.
    pub(super) fn settle_in_place(
        &mut self,
        mut look: impl FnMut(&FolderPath) -> Option<FileStamp>,
    ) {
        for (path, inode) in std::mem::take(&mut self.in_place) {
            if let Some(stamp) = look(&path).filter(|stamp| stamp.inode == inode) {
                self.end(path, Some(stamp));
            }
        }
    }
}
