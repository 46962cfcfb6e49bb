//! The steps of the sync barrier in one folder: whether everything is here, the announcement of
//! changes, and the markers. The id of a handover is in the ledger's files before it is sent. The
//! last marker is there before a handover or the next marker names it. So a machine knows its own
//! words after it was killed.
//!
//! The thread that makes the steps of the sync barrier which may take long: it compares the folder
//! and writes markers, while the thread of the tenures answers everybody.
//!
//! The changes of a tenure that ended without a marker: the guard that made them tells the others
//! what it left, or puts its versions aside if they went on without them.

use super::folder_changes::{BarrierState, FolderBarrier, KnownFiles, MarkedIgnore};
use super::folder_guard::FolderGuard;
use crate::base::{random, said};
use crate::guard::barrier_store::change_record::ChangeRecord;
use crate::guard::barrier_store::disk_tree::DiskTree;
use crate::guard::barrier_store::marker_dir::{MarkerDir, MarkerWriter, UnreadMarker};
use crate::guard::disk::operations::Disk;
use crate::guard::stage::gate::Gate;
use crate::time::{Span, Time, Wall, boot_now};
use barrier::arrival_target::{Barrier, Unsure};
use barrier::chain::ancestors;
use barrier::coverage::Coverage;
use barrier::folder_path::{FileStamp, FolderPath, FolderTree as _};
use barrier::handover::{
    Handover, HandoverEnd, HandoverId, HandoverKind, PreviousTenure, Remembered,
};
use barrier::ignored::IgnoreRules;
use barrier::ledger::Ledger;
use barrier::marker;
use barrier::marker::{Acceptance, Marker, MarkerKind, MarkerLink};
use barrier::marking::{
    LateMarker, LateStep, Listing, MarkerHead, TenureMarking, copied_before, late_step,
};
use barrier::ready::{Accepted, Decision, NotArrived};
use barrier::tenure_id::TenureId;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// How often a list is made anew because files were changed meanwhile.
const LIST_TRIES: usize = 3;

/// Whether programs may change the folder.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Everything that should be in the folder is here. `true`: something has arrived since the
    /// folder was last ready.
    Ready(bool),
    /// The folder was made before there were markers, and this is its first tenure since then: the
    /// folder is as these files stand, and a checkpoint says so to the others.
    First(Vec<(FolderPath, FileStamp)>),
    /// It is known what should be in the folder, and some of it is not here.
    NotArrived(Box<MissingFiles>),
    /// It is not known what should be in the folder.
    Unsure(Unsure),
}

/// The files that have not arrived, and the tenure that left them.
#[derive(Debug)]
pub(crate) struct MissingFiles {
    /// The client that held the lock in the tenure that left the files.
    pub(crate) client: String,
    /// The fencing token of the tenure that left the files.
    pub(crate) token: u64,
    /// The missing files, with their reasons.
    pub(crate) missing: NotArrived,
}

impl Arrival {
    fn not_arrived(previous: &PreviousTenure, missing: NotArrived) -> Self {
        let (client, token) = (previous.client.clone(), previous.token.as_u64());
        Self::NotArrived(Box::new(MissingFiles { client, token, missing }))
    }
}

/// The next step of a tenure in which nobody changes the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextMark {
    /// There is nothing that the lock service or other machines do not know yet.
    Nothing,
    /// The next marker is due at this time.
    Later(Time),
    /// A marker is due.
    Marker,
    /// Markers name all changes, and the lock service does not know that yet.
    Clean,
}

/// Returns the wall clock in nanoseconds since 1970.
fn wall_nanos() -> i128 {
    let now = Wall::now();
    i128::from(now.secs) * 1_000_000_000 + i128::from(now.nanos)
}

fn new_id() -> HandoverId {
    HandoverId(u128::from(random()) << 64 | u128::from(random()))
}

fn failed(what: &str, error: &io::Error) -> String {
    format!("{what}: {}", said(error))
}

/// Returns a sentence for each file in `.latchfs` that can't be read as a marker.
fn notes_of_markers(markers: &MarkerDir) -> Vec<String> {
    let unread = markers.unread();
    let note = |it: &UnreadMarker| format!("'.latchfs/{}' is not read: {}", it.file_name, it.why);
    unread.iter().map(note).collect()
}

impl<D: Disk> BarrierState<D> {
    pub(in crate::guard) fn save(&mut self) -> Result<(), String> {
        let saved = self.store.save(&self.ledger);
        saved.map_err(|error| failed("the ledger of the folder can't be written", &error))
    }

    /// Logs that another `.latchfs/ignore` than that of the last marker is here: the other machines
    /// would wait for the one before as long as no marker names this one.
    /// Returns whether that is so.
    fn note_ignore(&mut self, now: &IgnoreRules) -> bool {
        let is_other = self
            .marked_ignore
            .is_some_and(|marked| now.is_usable() && MarkedIgnore(now.digest()) != marked);
        if is_other {
            self.ledger.log_mut().note_unnamed();
        }
        is_other
    }

    /// Writes the id of a handover to the storage before it is sent. The ledger knows it already.
    fn note_own(&mut self, id: HandoverId) -> Result<(), String> {
        let noted = self.store.append(&ChangeRecord::Own(id)).and_then(|()| self.store.sync());
        noted.map_err(|error| failed("the change log can't be written", &error))
    }
}

impl<D: Disk> FolderBarrier<D> {
    pub(in crate::guard) fn tree(&self) -> DiskTree<'_, D> {
        DiskTree::new(&*self.disk, &self.dirs.folder).counting(&self.hashed)
    }

    pub(super) fn read_markers(
        &self,
        known: &mut KnownFiles,
        wanted: Option<MarkerLink>,
    ) -> Result<(), String> {
        let read = known.markers.refresh(&*self.disk, &self.dirs.folder, wanted);
        read.map_err(|error| failed("the markers in '.latchfs' can't be read", &error))
    }

    /// Checks whether everything is here that the last tenure left. The gate is closed.
    pub(crate) fn check_arrival(
        &self,
        previous: &PreviousTenure,
        engine: u64,
    ) -> Result<Arrival, String> {
        let rules = self.new_rules();
        let mut known = self.known.lock();
        let wanted =
            if let Remembered::Handover(it) = previous.handover { it.marker } else { None };
        self.read_markers(&mut known, wanted)?;
        let KnownFiles { markers, cache } = &mut *known;
        let ledger = self.state.lock().ledger.clone();
        if previous.handover == Remembered::Nothing
            && markers.files().is_empty()
            && self.first_marked.lock().is_some()
        {
            let files = Coverage::of(&rules, &ledger).covered_files(&mut self.tree());
            let files = files.map_err(|error| failed("the folder can't be read", &error))?;
            self.state.lock().coverage = files.report;
            let files = files.standing.into_iter();
            return Ok(Arrival::First(files.map(|(path, found)| (path, found.stamp)).collect()));
        }
        let mut notes = notes_of_markers(markers);
        let (markers, ledger, rules) = (markers.files(), &ledger, &*rules);
        let barrier = Barrier { previous, engine, ledger, markers, rules, now: wall_nanos() };
        let mut tree = self.tree();
        let decided = barrier.decide(&mut tree, cache);
        notes.extend(tree.skipped().notes());
        self.state.lock().notes = notes;
        match decided.map_err(|error| failed("the folder can't be compared", &error))? {
            Decision::Ready(mut arrived) => {
                let mut state = self.state.lock();
                state.coverage = std::mem::take(&mut arrived.coverage);
                let (is_news, has_arrived) =
                    (arrived.is_news(), arrived.differs_from(&state.ledger));
                self.adopt(&mut state, arrived)?;
                let last = state.ledger.verified().and_then(|link| markers.get(&link));
                state.marked_ignore = last.map(|marker| MarkedIgnore(marker.ignore));
                state.store.compared();
                if is_news {
                    state.save()?;
                }
                Ok(Arrival::Ready(has_arrived))
            }
            Decision::NotArrived(missing) => {
                self.state.lock().coverage = missing.coverage.clone();
                Ok(Arrival::not_arrived(previous, missing))
            }
            Decision::Unsure(why) => Ok(Arrival::Unsure(why.seen_from(&self.names.holder))),
        }
    }

    /// Begins a tenure that is ready. `first`: the files of a folder that never had a marker.
    /// Returns whether the tenure has to tell something although no program has changed anything.
    pub(crate) fn begin_tenure(
        &self,
        gate: &Gate,
        tenure: TenureId,
        previous: &PreviousTenure,
        first: Option<Vec<(FolderPath, FileStamp)>>,
    ) -> Result<bool, String> {
        let rules = self.rules();
        let mut state = self.state.lock();
        let tells = state.note_ignore(&rules) || first.is_some();
        let is_dirty = match previous.handover {
            Remembered::Handover(handover) => state.ledger.is_unfinished(&handover),
            Remembered::Nothing | Remembered::Damaged(_) => false,
        };
        if let Some(files) = first {
            state.ledger.log_mut().accept_whole();
            for (path, stamp) in files {
                state.ledger.log_mut().accept(&path, Some(stamp));
            }
            state.save()?;
        }
        state.marking = Some(TenureMarking::new(tenure, is_dirty));
        // The files that are changed in place are recorded anew: other open files change them now.
        state.in_place.clear();
        gate.set_must_announce(true);
        Ok(tells)
    }

    /// Ends a tenure. Returns whether the lock service may not know that a marker names everything.
    pub(crate) fn end_tenure(&self) -> bool {
        let mut state = self.state.lock();
        state.announced = None;
        let is_unclean = state.marking.take().is_some_and(|marking| marking.is_unclean());
        is_unclean || !state.ledger.log().is_empty()
    }

    /// Returns the handover that announces changes. It is in the ledger's file before it is sent.
    /// `None` if nothing must be announced.
    pub(crate) fn announce(&self) -> Result<Option<Handover>, String> {
        let mut state = self.state.lock();
        let BarrierState { ledger, marking, .. } = &mut *state;
        let Some(marking) = marking.as_mut().filter(|marking| marking.must_announce()) else {
            return Ok(None);
        };
        let handover = marking.announce(ledger, new_id());
        state.note_own(handover.id)?;
        Ok(Some(handover))
    }

    /// Records that the lock service has the announcement.
    pub(crate) fn announced(&self, gate: &Gate, id: HandoverId) {
        let mut state = self.state.lock();
        state.announced = Some(id);
        if let Some(marking) = &mut state.marking {
            marking.announced();
            // The announced change comes next. Its time starts the wait before a marker anew, so
            // that no marker is written just before the change.
            marking.changed(boot_now());
            gate.set_must_announce(false);
        }
    }

    /// Returns the next step if nobody changes the folder until then. `last_change` is when the
    /// last change passed the gate.
    pub(crate) fn next_mark(&self, last_change: Time, settle: Span) -> NextMark {
        let mut state = self.state.lock();
        let BarrierState { ledger, marking, .. } = &mut *state;
        let Some(marking) = marking else { return NextMark::Nothing };
        marking.changed_at_least(last_change);
        let now = boot_now();
        let due = |at: Time, step: NextMark| if at <= now { step } else { NextMark::Later(at) };
        if let Some(at) = marking.marker_due(ledger, settle) {
            return due(at, NextMark::Marker);
        }
        if marking.is_unclean() && ledger.log().is_empty() {
            return due(marking.quiet_at(settle), NextMark::Clean);
        }
        NextMark::Nothing
    }

    /// Returns the handover that says that a marker names everything; `None` if that is not so, or
    /// is known. It is in the ledger's file before it is sent. From now on a change is announced.
    pub(crate) fn clean(&self, gate: &Gate) -> Result<Option<Handover>, String> {
        let handover = gate.exclusively(|| {
            let mut state = self.state.lock();
            let BarrierState { ledger, marking, .. } = &mut *state;
            let handover = marking.as_mut()?.clean(ledger, new_id())?;
            gate.set_must_announce(true);
            Some(handover)
        });
        if let Some(handover) = &handover {
            self.state.lock().note_own(handover.id)?;
        }
        Ok(handover)
    }

    /// Records that the lock service has the clean handover.
    pub(crate) fn cleaned(&self) {
        if let Some(marking) = &mut self.state.lock().marking {
            marking.cleaned();
        }
    }

    /// Whether the tenure has something to tell that no marker names yet, and may write one.
    pub(crate) fn needs_marker(&self) -> bool {
        let rules = self.rules();
        let mut state = self.state.lock();
        state.note_ignore(&rules);
        let may = state.marking.as_ref().is_some_and(TenureMarking::may_mark);
        may && !state.ledger.log().is_empty()
    }

    /// Begins a list: returns what is known when it begins, and the number of the marker. Changes
    /// that begin later are logged for the next one. `None` if the tenure is over.
    fn begin_list(&self, gate: &Gate, tenure: TenureId) -> Option<(Ledger, u64)> {
        gate.exclusively(|| {
            let mut state = self.state.lock();
            let number = state.marking.as_ref().filter(|it| it.is_of(tenure) && it.may_mark())?;
            let number = number.next();
            let mut tree = self.tree();
            // A path that can't be compared at is named as it is found later.
            let mut stat = |path: &FolderPath| Some(tree.find(path).ok()??.stamp);
            state.settle_in_place(&mut stat);
            self.begin_epoch();
            Some((state.ledger.clone(), number))
        })
    }

    /// Writes a marker of the current tenure. `is_last`: its gate has closed for good. Returns its
    /// foreign paths; `None` if the tenure is over, or if files changed all the time.
    pub(crate) fn mark(
        &self,
        gate: &Gate,
        tenure: TenureId,
        is_last: bool,
    ) -> Result<Option<Vec<FolderPath>>, String> {
        let (began, rules) = (boot_now(), self.rules());
        for _ in 0..LIST_TRIES {
            let Some((ledger, number)) = self.begin_list(gate, tenure) else { return Ok(None) };
            let (_, counts) = ledger.since_checkpoint();
            let is_due = marker::is_due(counts, ledger.file_count());
            let kind = if is_due { MarkerKind::Checkpoint } else { MarkerKind::Marker };
            let Some((listing, marker)) =
                self.list(&ledger, kind, &rules, tenure, number, is_last)?
            else {
                continue;
            };
            let link = self.write_marker(&marker)?;
            let mut state = self.state.lock();
            state.marked_ignore = Some(MarkedIgnore(marker.ignore));
            state.coverage = listing.coverage().clone();
            let BarrierState { ledger, marking, announced, .. } = &mut *state;
            let Some(marking) = marking.as_mut().filter(|marking| marking.is_of(tenure)) else {
                return Ok(None);
            };
            ledger.marked(listing, link);
            if let (true, Some(id)) = (is_last, *announced) {
                ledger.end(id);
            }
            marking.marked(began, boot_now());
            state.save()?;
            drop(state);
            self.has_marked();
            return Ok(Some(marker.foreign_paths()));
        }
        Ok(None)
    }

    /// Takes note of a marker on the disk: no tenure begins without markers any more.
    pub(in crate::guard) fn has_marked(&self) {
        let first_marked = self.first_marked.lock().take();
        if let Some(call) = first_marked {
            call();
        }
    }

    /// Returns the list of a marker, and the marker; `None` if a file was changed meanwhile.
    pub(in crate::guard) fn list(
        &self,
        ledger: &Ledger,
        kind: MarkerKind,
        rules: &IgnoreRules,
        tenure: TenureId,
        number: u64,
        is_last: bool,
    ) -> Result<Option<(Listing, Marker)>, String> {
        let listing = ledger.list_changes(kind, rules, &mut self.tree());
        let listing = listing.map_err(|error| failed("the changes can't be listed", &error))?;
        let Some(listing) = listing else { return Ok(None) };
        let head = MarkerHead {
            folder: &self.names.folder,
            lock: &self.names.lock,
            holder: &self.names.holder,
            at: u64::try_from(wall_nanos() / 1_000_000).unwrap_or(0),
            tenure,
            number,
            is_last,
        };
        let marker = listing.marker(ledger, &head);
        Ok(Some((listing, marker)))
    }

    pub(super) fn write_marker(&self, marker: &Marker) -> Result<MarkerLink, String> {
        let writer = MarkerWriter::new(&*self.disk, &self.dirs.folder, &self.dirs.state);
        let written = writer.write(marker);
        let link = written.map_err(|error| failed("a marker can't be written", &error))?;
        if let Some(call) = self.on_marked.get() {
            call(match marker.name.kind {
                MarkerKind::Checkpoint => Vec::new(),
                MarkerKind::Marker => {
                    let changed = marker.changes.iter().map(|change| change.path.to_string());
                    changed.chain([".latchfs".to_owned()]).collect()
                }
            });
        }
        Ok(link)
    }

    /// Whether a marker names everything that this machine has changed.
    pub(crate) fn is_marked(&self) -> bool {
        let ledger = &self.state.lock().ledger;
        ledger.verified().is_some() && ledger.log().is_empty()
    }

    /// Removes the markers that nobody needs any more after a checkpoint was handed over.
    pub(crate) fn remove_old_markers(&self) {
        let newest = self.state.lock().ledger.verified();
        let Some(newest) = newest.filter(|link| link.name.kind == MarkerKind::Checkpoint) else {
            return;
        };
        let mut known = self.known.lock();
        let removed = self.read_markers(&mut known, Some(newest)).and_then(|()| {
            let old = marker::removable(known.markers.files(), newest);
            let writer = MarkerWriter::new(&*self.disk, &self.dirs.folder, &self.dirs.state);
            writer.remove(&old).map_err(|error| failed("old markers stay", &error))
        });
        if let Err(why) = removed {
            log::warn!("{why}");
        }
    }

    /// Prepares an acceptance of the folder, or of some paths, as they stand: returns it with its
    /// handover. The gate is closed.
    pub(crate) fn begin_acceptance(
        &self,
        previous: &PreviousTenure,
        engine: u64,
        paths: &BTreeSet<FolderPath>,
        reason: String,
    ) -> Result<Result<(Accepted, Handover), Arrival>, String> {
        let rules = self.new_rules();
        let mut known = self.known.lock();
        self.read_markers(&mut known, None)?;
        let KnownFiles { markers, cache } = &mut *known;
        let ledger = self.state.lock().ledger.clone();
        let (markers, ledger, rules) = (markers.files(), &ledger, &*rules);
        let barrier = Barrier { previous, engine, ledger, markers, rules, now: wall_nanos() };
        let acceptance = Acceptance { handover: new_id(), reason };
        let mut tree = self.tree();
        let accepted = if paths.is_empty() {
            barrier.accept_all(&mut tree, acceptance).map(Ok)
        } else {
            barrier.accept_paths(paths, &mut tree, cache, acceptance)
        };
        let accepted = accepted.map_err(|error| failed("the folder can't be compared", &error))?;
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(Decision::NotArrived(missing)) => {
                return Ok(Err(Arrival::not_arrived(previous, missing)));
            }
            Err(Decision::Unsure(why)) => {
                return Ok(Err(Arrival::Unsure(why.seen_from(&self.names.holder))));
            }
            Err(Decision::Ready(_)) => return Ok(Err(Arrival::Ready(true))),
        };
        let handover = ledger.begin_acceptance(&accepted, 1);
        Ok(Ok((accepted, handover)))
    }

    /// Records that the lock service has an acceptance: the tenure is ready.
    pub(crate) fn accept(
        &self,
        gate: &Gate,
        tenure: TenureId,
        accepted: Accepted,
        handover: &Handover,
    ) -> Result<(), String> {
        debug_assert_eq!(handover.kind, HandoverKind::Accepted);
        let mut state = self.state.lock();
        state.ledger.accept(accepted);
        state.save()?;
        state.marking = Some(TenureMarking::accepted(tenure));
        state.in_place.clear();
        state.announced = Some(handover.id);
        gate.set_must_announce(false);
        Ok(())
    }
}

/// A step that may take long.
pub(in crate::guard) enum Job {
    /// Names the changes of an ended tenure in a late marker.
    Late(PreviousTenure, u64),
    /// Checks whether the folder is ready for a tenure.
    FileStat(PreviousTenure, TenureId),
    /// Writes a marker of a tenure. `true`: its gate has closed for good.
    Mark(TenureId, bool),
    /// Prepares the acceptance of some paths, or of the whole folder, with this reason.
    Accept(PreviousTenure, TenureId, BTreeSet<FolderPath>, String),
    /// Puts the content of a conflict copy, the second path, back.
    PutBack(PreviousTenure, TenureId, FolderPath, FolderPath),
    /// Removes markers that nobody needs any more.
    CleanUp,
}

/// The result of a step.
pub(in crate::guard) enum JobDone {
    Late(Result<Late, String>),
    /// The result of the comparison, with the change time before which the folder was compared.
    Compared(TenureId, Option<i128>, Result<Arrival, String>),
    Marked(TenureId, bool, Result<Option<Vec<FolderPath>>, String>),
    Accepting(TenureId, Option<i128>, Accepting),
}

/// The acceptance with its handover, or why it can't be made.
type Accepting = Result<Result<Box<(Accepted, Handover)>, Arrival>, String>;

/// The thread that makes the long steps, and the way to send it one.
pub(in crate::guard) struct BarrierWorker(Sender<Job>);

impl BarrierWorker {
    /// Starts the thread for a guard that has a barrier. It calls `done` with each result.
    pub(in crate::guard) fn start<D: Disk>(
        guard: Arc<FolderGuard<D>>,
        done: impl Fn(JobDone) + Send + 'static,
    ) -> io::Result<Option<Self>> {
        let Some(barrier) = guard.barrier().cloned() else { return Ok(None) };
        let (send, jobs) = channel();
        let work = move || run(&guard, &barrier, &jobs, &done);
        std::thread::Builder::new().name("barrier".to_owned()).spawn(work)?;
        Ok(Some(Self(send)))
    }

    /// Gives the thread a step.
    pub(in crate::guard) fn begin(&self, job: Job) {
        // The send fails only if the thread has panicked; then nothing is ready any more.
        let _ = self.0.send(job);
    }
}

/// Returns the change time before which no change is made from now on. Without one, all that came
/// since the tenure began counts as foreign, and is kept.
fn since<D: Disk>(guard: &FolderGuard<D>) -> Option<i128> {
    let time = guard.change_time();
    time.inspect_err(|error| log::warn!("no file can be made: {}", said(error))).ok()
}

fn run<D: Disk>(
    guard: &FolderGuard<D>,
    barrier: &FolderBarrier<D>,
    jobs: &Receiver<Job>,
    done: &dyn Fn(JobDone),
) {
    let keep = |paths: &[&FolderPath], marker: Option<&str>| guard.keep_copies(paths, marker);
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Late(previous, engine) => {
                done(JobDone::Late(barrier.late(&previous, engine, &keep)));
            }
            Job::FileStat(previous, tenure) => {
                let (engine, since) = (tenure.engine, since(guard));
                // Changes of an ended tenure are named or put aside before the folder is compared:
                // afterwards nobody could tell that they are of that tenure.
                let compared = barrier.late(&previous, engine, &keep);
                let compared = compared.and_then(|_| barrier.check_arrival(&previous, engine));
                let is_ready = matches!(compared, Ok(Arrival::Ready(_)));
                done(JobDone::Compared(tenure, since, compared));
                if is_ready {
                    guard.remove_marked_copies(barrier, &previous);
                }
            }
            Job::Mark(tenure, is_last) => {
                let marked = barrier.mark(guard.gate(), tenure, is_last);
                done(JobDone::Marked(tenure, is_last, marked));
            }
            Job::Accept(previous, tenure, paths, reason) => {
                let since = since(guard);
                let accepted = barrier.begin_acceptance(&previous, tenure.engine, &paths, reason);
                let accepted = accepted.map(|accepted| accepted.map(Box::new));
                done(JobDone::Accepting(tenure, since, accepted));
            }
            Job::PutBack(previous, tenure, path, copy) => {
                let since = since(guard);
                let put = guard.put_back(barrier, &previous, tenure, &path, &copy);
                done(match put.and_then(|()| barrier.check_arrival(&previous, tenure.engine)) {
                    Ok(Arrival::Ready(arrived)) => {
                        JobDone::Compared(tenure, since, Ok(Arrival::Ready(arrived)))
                    }
                    put => JobDone::Accepting(tenure, since, put.map(Err)),
                });
            }
            Job::CleanUp => barrier.remove_old_markers(),
        }
    }
}

/// Copies files of the folder to the lost files, all of them or none. The second argument is the
/// file of the late marker that will name them.
pub(crate) type KeepCopies<'a> = &'a dyn Fn(&[&FolderPath], Option<&str>) -> Result<(), String>;

/// The fate of the changes that no marker names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Late {
    /// No marker has to name any more changes.
    Nothing,
    /// It is not known yet what to do with the changes: their tenure is about to end, or a file
    /// changed while a late marker was listed.
    Soon,
    /// It is not known what to do with the changes before another tenure sets a handover.
    Unknown,
    /// A late marker names the changes.
    Marked,
    /// The changed files were put aside: other machines have gone on without them.
    PutAside(usize),
}

impl<D: Disk> FolderBarrier<D> {
    /// Whether a marker may still have to name changes of an ended tenure.
    pub(crate) fn may_have_late_changes(&self) -> bool {
        let state = self.state.lock();
        state.marking.is_none() && (!state.ledger.log().is_empty() || state.ledger.has_own())
    }

    /// Tells other machines what an ended tenure of this machine left, or puts it aside. This
    /// machine has no tenure that is ready.
    pub(crate) fn late(
        &self,
        previous: &PreviousTenure,
        engine: u64,
        keep: KeepCopies<'_>,
    ) -> Result<Late, String> {
        let (step, is_open) = {
            let state = self.state.lock();
            let is_own = matches!(previous.handover,
                Remembered::Handover(handover) if state.ledger.is_unfinished(&handover));
            let is_open = is_own && previous.end == HandoverEnd::Open;
            (late_step(previous, engine, &state.ledger), is_open)
        };
        match step {
            LateStep::Nothing if is_open => Ok(Late::Soon),
            LateStep::Nothing => Ok(Late::Nothing),
            LateStep::Wait => Ok(Late::Unknown),
            LateStep::Write(late) => self.write_late(&late, keep),
            LateStep::PutAside(paths) => {
                keep(&paths.iter().collect::<Vec<_>>(), None)?;
                let mut state = self.state.lock();
                state.ledger.put_aside();
                state.save()?;
                Ok(Late::PutAside(paths.len()))
            }
        }
    }

    fn write_late(&self, late: &LateMarker, keep: KeepCopies<'_>) -> Result<Late, String> {
        let rules = self.rules();
        self.find_unrecorded(late)?;
        let ledger = self.state.lock().ledger.clone();
        let listed =
            self.list(&ledger, MarkerKind::Marker, &rules, late.tenure, late.number, true)?;
        // No list of changes was made, since a program changed the folder directly meanwhile: the
        // marker is written by a later call.
        let Some((listing, marker)) = listed else { return Ok(Late::Soon) };
        let file_name = marker.link().map_err(|error| error.to_string())?.file_name();
        keep(&copied_before(&listing).collect::<Vec<_>>(), Some(&file_name))?;
        let link = self.write_marker(&marker)?;
        let mut state = self.state.lock();
        let BarrierState { ledger, .. } = &mut *state;
        ledger.ended_late(listing, link, late);
        state.save()?;
        drop(state);
        self.has_marked();
        Ok(Late::Marked)
    }

    /// Looks for a last marker of the tenure that this machine has written, and that its ledger
    /// does not know since the guard was killed in between. The late marker builds on it: of two
    /// that do not, nobody could tell which one is the last.
    fn find_unrecorded(&self, late: &LateMarker) -> Result<(), String> {
        let mut known = self.known.lock();
        self.read_markers(&mut known, None)?;
        let files = known.markers.files();
        let mut state = self.state.lock();
        let verified = state.ledger.verified();
        let own = files.last_of(late.tenure, late.number).into_iter().find(|link| {
            let marker = files.get(link);
            marker.is_some_and(|marker| {
                marker.previous == verified && marker.holder == self.names.holder
            })
        });
        if let Some(link) = own {
            state.ledger.build_on(link);
        }
        Ok(())
    }

    /// Returns those of the markers, by the names of their files, on which the markers build that
    /// the handover of the last tenure names.
    pub(super) fn built_on(&self, previous: &PreviousTenure, wanted: &[&str]) -> Vec<String> {
        let Remembered::Handover(Handover { kind: HandoverKind::Clean, marker, .. }) =
            previous.handover
        else {
            return Vec::new();
        };
        let known = self.known.lock();
        let chain = marker.into_iter().flat_map(|top| ancestors(known.markers.files(), top));
        let links = chain.flat_map(|(link, marker)| [Some(link), marker.previous]).flatten();
        let names = links.map(|link| link.file_name());
        names.filter(|name| wanted.contains(&name.as_str())).collect()
    }
}
