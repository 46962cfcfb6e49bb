//! The changes that programs make through the view, as the sync barrier knows them: each is logged
//! before and after it is made, so that a marker names it whatever is killed in between.
//!
//! Renames of directories, as the sync barrier logs them: each file below has another path.
//!
//! The ignore rules of a folder on this machine, and the paths for which they make a difference, as
//! `guard status` shows them.

use super::unread::UnreadVersions;
use crate::base::said;
use crate::guard::barrier_store::change_record::ChangeRecord;
use crate::guard::barrier_store::disk_tree::{HashedCount, stamp_of};
use crate::guard::barrier_store::ledger_store::{LedgerStore, LoadedLedger};
use crate::guard::barrier_store::marker_dir::MarkerDir;
use crate::guard::barrier_store::small_files::{
    ToolPatterns, read_ignore_rules, read_tool_patterns, write_tool_patterns,
};
use crate::guard::disk::acting_as::itself;
use crate::guard::disk::operations::{Disk, FileStat};
use crate::guard::folder::unread::{read_unread, write_unread};
use crate::time::this_boot;
use barrier::coverage::{CountedPaths, Coverage, CoverageReport};
use barrier::folder_path::PathPatterns;
use barrier::folder_path::{
    ContentDigest, DigestCache, FileStamp, FolderPath, FolderTree as _, FoundFile,
};
use barrier::handover::HandoverId;
use barrier::ignored::{IgnoreRules, IgnoredBecause};
use barrier::ledger::{Ledger, LedgerEntry};
use barrier::marking::TenureMarking;
use barrier::ready::Arrived;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The id and the names that each marker of this machine contains.
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
    pub(in crate::guard) disk: Arc<D>,
    pub(in crate::guard) dirs: BarrierDirs<D>,
    pub(in crate::guard) names: MarkerNames,
    pub(in crate::guard) local: PathPatterns,
    pub(in crate::guard) state: Mutex<BarrierState<D>>,
    /// The results of reading the folder again and again until it is ready. One thread uses them.
    pub(in crate::guard) known: Mutex<KnownFiles>,
    /// The number of the list of the next marker: a change in place is logged once for each.
    epoch: AtomicU64,
    /// What is called once the folder has its first marker; `None` afterwards. As long as it is
    /// set, a tenure may begin although there is no marker.
    pub(in crate::guard) first_marked: Mutex<Option<FirstMarked>>,
    /// The versions of other machines that no program has opened.
    pub(in crate::guard) unread: UnreadVersions,
    /// How many files and bytes were hashed, for a person who waits.
    pub(crate) hashed: HashedCount,
    /// The call after each marker.
    pub(in crate::guard) on_marked: OnceLock<OnMarked>,
    /// The sync tool of this machine, if it can be asked for its ignore patterns.
    pub(in crate::guard) tool: OnceLock<AskTool>,
    /// The ignore patterns that the sync tool has named last.
    pub(in crate::guard) tool_patterns: Mutex<ToolPatterns>,
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
pub(in crate::guard) struct MarkedIgnore(pub(in crate::guard) Option<ContentDigest>);

/// The part of the sync barrier that its mutex guards: what it knows of the folder and of the
/// tenure.
pub(in crate::guard) struct BarrierState<D: Disk> {
    pub(in crate::guard) ledger: Ledger,
    pub(in crate::guard) store: LedgerStore<D>,
    /// The announcements and markers of the tenure, once it is ready.
    pub(in crate::guard) marking: Option<TenureMarking>,
    /// The last handover of the tenure that announced changes.
    pub(in crate::guard) announced: Option<HandoverId>,
    /// The files that are changed in place, and whose versions the log does not know yet.
    pub(in crate::guard) in_place: BTreeMap<FolderPath, u64>,
    /// The digest of `.latchfs/ignore` in the last marker, once that is known.
    pub(super) marked_ignore: Option<MarkedIgnore>,
    /// Sentences about files of the folder when it was last compared, for `guard status`.
    pub(in crate::guard) notes: Vec<String>,
    /// The ignore rules as they were last read.
    pub(in crate::guard) rules: Arc<IgnoreRules>,
    /// The paths for which the ignore rules made a difference when the folder was last compared or
    /// listed.
    pub(in crate::guard) coverage: CoverageReport,
}

/// The markers that are here, and the digests of files.
pub(in crate::guard) struct KnownFiles {
    pub(in crate::guard) markers: MarkerDir,
    pub(in crate::guard) cache: DigestCache,
}

/// Returns the stamp of a file; `None` for what is no regular file, which no marker names.
pub(super) fn stamp_of_file(found: &FileStat) -> Option<FileStamp> {
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

    /// Returns which paths the sync barrier covers in a tenure of this machine.
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
        local: PathPatterns,
        first_marked: Option<FirstMarked>,
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
            known: Mutex::new(KnownFiles { markers, cache: DigestCache::default() }),
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
        // The call is set only once, so this does not fail.
        let _ = self.on_marked.set(call);
    }

    /// Records that everything is here, and which versions of it no program has opened.
    pub(in crate::guard) fn adopt(
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
    pub(in crate::guard) fn published(&self, path: &OsStr) -> Option<LedgerEntry> {
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
    pub(crate) fn begin_in_place(&self, path: &OsStr, found: &FileStat) -> io::Result<u64> {
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
    pub(crate) fn end_in_place(&self, path: &OsStr, found: &FileStat) {
        let mut state = self.state.lock();
        let Some(path) = state.marked_path(path) else { return };
        if state.in_place.get(&path) == Some(&found.id.inode) {
            state.end(path, stamp_of_file(found));
        }
    }
}

impl<D: Disk> BarrierState<D> {
    /// Makes a change in the change log and in the ledger.
    pub(in crate::guard) fn record(&mut self, change: &ChangeRecord) -> io::Result<()> {
        itself(|| self.store.record(&mut self.ledger, change))
    }

    pub(in crate::guard) fn end(&mut self, path: FolderPath, after: Option<FileStamp>) {
        // Without this line the log says that the change may be under way, which is no error.
        if let Err(error) = self.record(&ChangeRecord::End { path, after }) {
            log::warn!("the change log can't be written: {}", said(&error));
        }
    }

    /// Logs how the files stand that are being changed in place. They stay files that are changed.
    pub(super) fn settle_in_place(
        &mut self,
        mut stat: impl FnMut(&FolderPath) -> Option<FileStamp>,
    ) {
        for (path, inode) in std::mem::take(&mut self.in_place) {
            if let Some(stamp) = stat(&path).filter(|stamp| stamp.inode == inode) {
                self.end(path, Some(stamp));
            }
        }
    }
}

fn folder_path(path: &OsStr) -> Option<FolderPath> {
    FolderPath::parse(path.to_str()?).ok()
}

impl<D: Disk> BarrierState<D> {
    /// Returns the paths of a renamed directory if the ledger and the log know all files below that
    /// have a path for markers: no file below was ignored before and is not any more.
    fn plain_rename(&self, from: &OsStr, to: &OsStr) -> Option<(FolderPath, FolderPath)> {
        let paths = (self.marked_path(from)?, self.marked_path(to)?);
        self.own_coverage().is_same_everywhere().then_some(paths)
    }

    /// Returns the paths below two directories that the ledger and the log know.
    fn known_below(&self, dirs: [&OsStr; 2]) -> impl Iterator<Item = &FolderPath> {
        let dirs = dirs.map(folder_path);
        let all = self.ledger.paths().chain(self.ledger.log().paths());
        all.filter(move |path| dirs.iter().flatten().any(|dir| path.is_below(dir)))
    }
}

impl<D: Disk> FolderBarrier<D> {
    /// Logs that a directory is about to be renamed, or to be exchanged with another file.
    pub(super) fn begin_dir_rename(
        &self,
        from: &OsStr,
        to: &OsStr,
        is_exchange: bool,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut tree = self.tree();
        // The files below that are changed in place keep their versions under the new path.
        state.settle_in_place(|path| Some(tree.find(path).ok()??.stamp));
        if let Some((from, to)) = state.plain_rename(from, to).filter(|_| !is_exchange) {
            return state.record(&ChangeRecord::RenamedDir { from, to });
        }
        state.ledger.log_mut().note_unnamed();
        Ok(())
    }

    /// Logs each file below a directory that was renamed, or exchanged with another file, unless
    /// the log has them already.
    pub(super) fn end_dir_rename(&self, from: &OsStr, to: &OsStr, is_exchange: bool) {
        if !is_exchange && self.state.lock().plain_rename(from, to).is_some() {
            return;
        }
        let mut found: BTreeMap<FolderPath, FileStamp> = BTreeMap::new();
        for dir in [from, to] {
            let mut visit = |path, file: FoundFile| {
                found.insert(path, file.stamp);
            };
            if let Err(error) = self.tree().walk_below(dir, &mut visit) {
                // The list of the next marker compares the whole folder.
                log::warn!("the files of a renamed directory can't be read: {}", said(&error));
                return;
            }
        }
        let mut state = self.state.lock();
        let known = state.known_below([from, to]);
        let coverage = state.own_coverage();
        let all = known.chain(found.keys()).filter(|path| coverage.covers_change(path));
        let paths: BTreeSet<_> = all.cloned().collect();
        for path in paths {
            let after = found.get(&path).copied();
            state.end(path, after);
        }
    }
}

impl<D: Disk> FolderBarrier<D> {
    /// Asks the sync tool for its ignore patterns by this call when a tenure begins.
    pub(crate) fn ask_tool_by(&self, call: AskTool) {
        // The call is set only once, so this does not fail.
        let _ = self.tool.set(call);
    }

    /// Asks the sync tool for its patterns. One that does not answer has those that it has named
    /// last, also before this guard was started.
    fn ask_tool(&self) {
        let Some(ask) = self.tool.get() else { return };
        let answer = ask();
        let mut known = self.tool_patterns.lock();
        *known = match (answer, known.take()) {
            (Some(Ok(text)), known) => {
                if known != Some(Ok(text.clone())) {
                    let written = write_tool_patterns(&*self.disk, &self.dirs.state, &text);
                    if let Err(error) = written {
                        log::warn!("the ignore patterns of Syncthing are not kept: {error}");
                    }
                }
                Some(Ok(text))
            }
            (Some(Err(_)), Some(Ok(last))) => Some(Ok(last)),
            (Some(Err(why)), _) => {
                let last = read_tool_patterns(&*self.disk, &self.dirs.state);
                Some(last.ok_or(why))
            }
            (None, _) => None,
        };
    }

    /// Reads the ignore rules, and asks the sync tool.
    pub(super) fn new_rules(&self) -> Arc<IgnoreRules> {
        self.ask_tool();
        let rules = Arc::new(self.read_rules());
        self.state.lock().rules = Arc::clone(&rules);
        rules
    }

    /// Reads the ignore rules again in a tenure. Those of the sync tool stay as they were when it
    /// began, and so do those of a `.latchfs/ignore` that can't be used any more.
    pub(in crate::guard) fn rules(&self) -> Arc<IgnoreRules> {
        if self.tool_patterns.lock().is_none() {
            self.ask_tool();
        }
        let rules = self.read_rules();
        let mut state = self.state.lock();
        if rules.is_usable() {
            state.rules = Arc::new(rules);
        }
        Arc::clone(&state.rules)
    }

    fn read_rules(&self) -> IgnoreRules {
        let tool = self.tool_patterns.lock().clone();
        read_ignore_rules(&*self.disk, &self.dirs.folder, self.local.clone(), &tool)
    }

    /// Gives up those of some paths, and of the paths below them, that a rule ignores and that are
    /// covered. The folder is ready, and no marker is being listed. Returns whether there are any.
    pub(in crate::guard) fn give_up(&self, paths: &BTreeSet<FolderPath>) -> Result<bool, String> {
        self.rules();
        let mut state = self.state.lock();
        let given_up = state.own_coverage().despite_rules(paths);
        if given_up.is_empty() {
            return Ok(false);
        }
        let BarrierState { coverage, ledger, .. } = &mut *state;
        coverage.give_up(&given_up);
        ledger.accept_ignored(given_up);
        state.save()?;
        Ok(true)
    }

    /// Returns the paths for which an ignore rule makes a difference, or would, as JSON.
    pub(crate) fn coverage_json(&self, may_see: bool) -> Value {
        let state = self.state.lock();
        let paths = |of: &CountedPaths| {
            let path = |(path, rule): &(FolderPath, IgnoredBecause)| {
                let (path, rule) = (path.as_str(), rule.to_string());
                json!({"path": path, "rule": rule})
            };
            let first = of.first.iter().filter(|_| may_see).map(path);
            json!({"count": of.count, "paths": first.collect::<Vec<_>>()})
        };
        json!({
            "not_covered": paths(&state.coverage.not_covered),
            "covered_despite_a_rule": paths(&state.coverage.despite),
            "problems": state.rules.problems().collect::<Vec<_>>(),
            "note": state.rules.unused_stignore(),
        })
    }
}
