//! The steps of the sync barrier in one folder: whether everything is here, the announcement of
//! changes, and the markers. The id of a handover is in the ledger's files before it is sent. The
//! last marker is there before a handover or the next marker names it. So a machine knows its own
//! words after it was killed.

use super::barrier::acceptance::Accepted;
use super::barrier::arrival_target::{Barrier, Unsure};
use super::barrier::checkpoint;
use super::barrier::coverage::Coverage;
use super::barrier::folder_path::FolderPath;
use super::barrier::handover::{Handover, HandoverId, HandoverKind, PreviousTenure, Remembered};
use super::barrier::ignored::IgnoreRules;
use super::barrier::ledger::Ledger;
use super::barrier::marker::{Acceptance, Marker};
use super::barrier::marker_name::{MarkerKind, MarkerLink};
use super::barrier::marking::{Listing, MarkerHead, TenureMarking};
use super::barrier::missing::NotArrived;
use super::barrier::ready::Decision;
use super::barrier::tree::{FileStamp, FolderTree as _};
use super::barrier_store::change_record::ChangeRecord;
use super::barrier_store::disk_tree::DiskTree;
use super::barrier_store::marker_dir::{MarkerDir, UnreadMarker};
use super::barrier_store::marker_writer::MarkerWriter;
use super::disk::Disk;
use super::folder_changes::{BarrierState, FolderBarrier, Looking, MarkedIgnore};
use super::gate::Gate;
use super::tenure::TenureId;
use crate::base::random;
use crate::base::said;
use crate::time::{Span, Time, Wall, boot_now};
use std::collections::BTreeSet;
use std::io;

/// How often a list is made anew because files were changed meanwhile.
const LIST_TRIES: usize = 3;

/// Whether programs may change the folder.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Everything is here. `true`: something has arrived since it was last so.
    Ready(bool),
    /// The folder was made before there were markers, and this is its first tenure since then: the
    /// folder is as these files stand, and a checkpoint says so to the others.
    First(Vec<(FolderPath, FileStamp)>),
    /// It is known what should be here, and some of it is not.
    NotArrived(Box<MissingFiles>),
    /// It is not known what should be here.
    Unsure(Unsure),
}

/// The files that have not arrived, and the tenure that left them.
#[derive(Debug)]
pub(crate) struct MissingFiles {
    /// The client that left it.
    pub(crate) client: String,
    /// The fencing token of its tenure.
    pub(crate) token: u64,
    /// The list of the files.
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
    /// There is nothing to tell.
    Nothing,
    /// The next marker is due at this time.
    Later(Time),
    /// A marker is due.
    Marker,
    /// All changes are named, and the lock service does not know it yet.
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

/// Returns a sentence for each file of the guards that is not read.
fn notes_of_markers(markers: &MarkerDir) -> Vec<String> {
    let unread = markers.unread();
    let note = |it: &UnreadMarker| format!("'.latchfs/{}' is not read: {}", it.file_name, it.why);
    unread.iter().map(note).collect()
}

impl<D: Disk> BarrierState<D> {
    pub(super) fn save(&mut self) -> Result<(), String> {
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
    pub(super) fn tree(&self) -> DiskTree<'_, D> {
        DiskTree::new(&*self.disk, &self.dirs.folder).counting(&self.hashed)
    }

    pub(super) fn read_markers(
        &self,
        looking: &mut Looking,
        wanted: Option<MarkerLink>,
    ) -> Result<(), String> {
        let read = looking.markers.refresh(&*self.disk, &self.dirs.folder, wanted);
        read.map_err(|error| failed("the markers in '.latchfs' can't be read", &error))
    }

    /// Looks whether everything is here that the last tenure left. The gate is closed.
    pub(crate) fn look(&self, previous: &PreviousTenure, engine: u64) -> Result<Arrival, String> {
        let rules = self.new_rules();
        let mut looking = self.looking.lock();
        let wanted =
            if let Remembered::Handover(it) = previous.handover { it.marker } else { None };
        self.read_markers(&mut looking, wanted)?;
        let Looking { markers, cache } = &mut *looking;
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
            Decision::Unsure(why) => Ok(Arrival::Unsure(why.told_by(&self.names.holder))),
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
        // Files are changed in place by other open files now.
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
            // A marker that was about to be due waits for the change that is announced.
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
            // A path that can't be looked at is named as it is found later.
            let mut look = |path: &FolderPath| Some(tree.look(path).ok()??.stamp);
            state.settle_in_place(&mut look);
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
            let is_due = checkpoint::is_due(counts, ledger.file_count());
            let kind = if is_due { MarkerKind::Checkpoint } else { MarkerKind::Marker };
            let Some((listing, marker)) =
                self.list(&ledger, (kind, &rules), (tenure, number, is_last))?
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
    pub(super) fn has_marked(&self) {
        let first_marked = self.first_marked.lock().take();
        if let Some(call) = first_marked {
            call();
        }
    }

    /// Returns the list of a marker, and the marker; `None` if a file was changed meanwhile.
    pub(super) fn list(
        &self,
        ledger: &Ledger,
        (kind, rules): (MarkerKind, &IgnoreRules),
        (tenure, number, is_last): (TenureId, u64, bool),
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
        let mut looking = self.looking.lock();
        let removed = self.read_markers(&mut looking, Some(newest)).and_then(|()| {
            let old = checkpoint::removable(looking.markers.files(), newest);
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
        (paths, reason): (&BTreeSet<FolderPath>, String),
    ) -> Result<Result<(Accepted, Handover), Arrival>, String> {
        let rules = self.new_rules();
        let mut looking = self.looking.lock();
        self.read_markers(&mut looking, None)?;
        let Looking { markers, cache } = &mut *looking;
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
                return Ok(Err(Arrival::Unsure(why.told_by(&self.names.holder))));
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
        (accepted, handover): (Accepted, &Handover),
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
