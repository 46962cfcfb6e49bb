//! The announcement of a tenure before it changes the folder, and the lists of its markers.
//!
//! Late markers: what a guard that comes back may still say about a tenure that ended without a
//! marker.

use super::coverage::{Coverage, CoverageReport};
use super::folder_path::FolderPath;
use super::handover::{
    Handover, HandoverEnd, HandoverId, HandoverKind, MarkerCounts, PreviousTenure, Remembered,
};
use super::ignored::IgnoreRules;
use super::ledger::{Ledger, LedgerEntry};
use super::marker::{Change, Marker, PathState};
use crate::comparison::original_of;
use crate::folder_path::{ContentDigest, FileStamp, FolderTree, FoundFile, hidden};
use crate::ledger::{ChangeProgress, LoggedChange};
use crate::marker::{MarkerKind, MarkerLink, MarkerName};
use crate::tenure_id::TenureId;
use engine::time::{Span, Time};
use std::io;

/// Markers that a tenure writes by itself are at least this far apart.
const MARKER_PAUSE: Span = Span::from_secs(60);
/// The pause between such markers is at least this many times as long as the last one took to
/// write.
const MARKER_PAUSE_FACTOR: u64 = 20;

/// The mode that a checkpoint gives a file on whose directory something is mounted.
const HIDDEN_MODE: u32 = 0o644;

/// The list of a marker: how the paths stood when it was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    kind: MarkerKind,
    /// The number of the newest change in the list.
    number: u64,
    ignore: Option<ContentDigest>,
    changes: Vec<Change>,
    updates: Vec<(FolderPath, Option<(FileStamp, ContentDigest)>)>,
    /// The paths for which an ignore rule makes a difference.
    report: CoverageReport,
}

/// The writer and the time of a marker.
#[derive(Debug, Clone)]
pub struct MarkerHead<'a> {
    /// The id of the folder.
    pub folder: &'a str,
    /// The name of the folder's lock.
    pub lock: &'a str,
    /// The client, for messages only.
    pub holder: &'a str,
    /// The wall clock in milliseconds since 1970, for messages only.
    pub at: u64,
    /// The tenure whose changes the marker names.
    pub tenure: TenureId,
    /// The number of the marker in that tenure.
    pub number: u64,
    /// Whether the tenure's gate had closed for good before the list was made.
    pub is_last: bool,
}

impl Listing {
    /// Returns the paths that the marker names, as they stood.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns the paths for which an ignore rule makes a difference.
    pub fn coverage(&self) -> &CoverageReport {
        &self.report
    }

    /// Returns the marker with this list.
    pub fn marker(&self, ledger: &Ledger, head: &MarkerHead<'_>) -> Marker {
        let (tenure, number) = (head.tenure, head.number);
        Marker {
            name: MarkerName { kind: self.kind, tenure, number },
            folder: head.folder.to_owned(),
            lock: head.lock.to_owned(),
            holder: head.holder.to_owned(),
            previous: ledger.verified,
            checkpoint: ledger.checkpoint,
            at: head.at,
            is_last: head.is_last,
            accepted: ledger.accepted.clone(),
            ignore: self.ignore,
            changes: self.changes.clone(),
        }
    }
}

struct Lister<'a> {
    ledger: &'a Ledger,
    tree: &'a mut dyn FolderTree,
    listing: Listing,
}

impl Lister<'_> {
    fn add(&mut self, path: &FolderPath, state: PathState, is_foreign: bool) {
        self.listing.changes.push(Change { path: path.clone(), state, is_foreign });
    }

    /// Adds a file that stands in the folder. Returns whether it stayed the same meanwhile.
    fn add_standing(&mut self, path: &FolderPath, found: &FoundFile) -> io::Result<bool> {
        let logged = self.ledger.log.get(path);
        let entry = self.ledger.entry(path);
        let is_whole = self.listing.kind == MarkerKind::Checkpoint;
        // A program may have changed the content within the resolution of its time.
        let is_untouched = logged.is_none_or(|change| change.is_accepted);
        let same = entry.filter(|entry| entry.stamp == found.stamp || !found.is_downloaded);
        if let Some(entry) = same.filter(|_| is_untouched) {
            if is_whole || logged.is_some() {
                let (size, digest) = (entry.stamp.size, entry.digest);
                self.add(path, PathState::File { size, digest, mode: found.mode }, false);
                // The marker becomes the one that names this version.
                self.listing.updates.push((path.clone(), Some((entry.stamp, digest))));
            }
            return Ok(true);
        }
        let Some(digest) = self.tree.digest(path, found)? else { return Ok(false) };
        let size = found.stamp.size;
        let is_same = logged.is_none() && entry.is_some_and(|entry| entry.digest == digest);
        let is_foreign = match logged {
            Some(change) => !change.fits(Some(found.stamp)),
            None => !is_same,
        };
        if is_whole || !is_same {
            self.add(path, PathState::File { size, digest, mode: found.mode }, is_foreign);
        }
        self.listing.updates.push((path.clone(), Some((found.stamp, digest))));
        Ok(true)
    }

    /// Adds a path that a walk has not found. Returns whether it stayed the same meanwhile.
    fn add_unfound(&mut self, path: &FolderPath) -> io::Result<bool> {
        let logged = self.ledger.log.get(path);
        let is_removed = logged
            .is_some_and(|it| it.after.is_none() && matches!(it.progress, ChangeProgress::Done));
        if is_removed {
            self.add_gone(path, logged);
            return Ok(true);
        }
        // A walk can miss a file that gets its name while the directory is read.
        if let Some(found) = self.tree.find(path)? {
            return self.add_standing(path, &found);
        }
        if !self.tree.is_hidden(path)? {
            self.add_gone(path, logged);
            return Ok(true);
        }
        if logged.is_some() {
            return Err(hidden(path));
        }
        if let (Some(entry), MarkerKind::Checkpoint) = (self.ledger.entry(path), self.listing.kind)
        {
            let (size, digest) = (entry.stamp.size, entry.digest);
            self.add(path, PathState::File { size, digest, mode: HIDDEN_MODE }, false);
            self.listing.updates.push((path.clone(), Some((entry.stamp, digest))));
        }
        Ok(true)
    }

    /// Adds a path under which no file stands.
    fn add_gone(&mut self, path: &FolderPath, logged: Option<&LoggedChange>) {
        if self.listing.kind == MarkerKind::Marker {
            let is_foreign = logged.is_none_or(|change| !change.fits(None));
            self.add(path, PathState::Gone, is_foreign);
        }
        self.listing.updates.push((path.clone(), None));
    }
}

impl Ledger {
    /// Returns the list of the next marker: each path of the log, and each that differs from the
    /// ledger, as it stands. After the whole folder was accepted, and as long as no marker is known
    /// on which this one can build, the list is that of a checkpoint.
    /// Returns `None` if a file was changed while it was read: then the list must be made again.
    pub fn list_changes(
        &self,
        kind: MarkerKind,
        rules: &IgnoreRules,
        tree: &mut dyn FolderTree,
    ) -> io::Result<Option<Listing>> {
        let is_first = self.log.is_whole || self.verified.is_none();
        let kind = if is_first { MarkerKind::Checkpoint } else { kind };
        let files = Coverage::of(rules, self).covered_files(tree)?;
        let listing = Listing {
            kind,
            number: self.log.number(),
            ignore: rules.digest(),
            changes: Vec::new(),
            updates: Vec::new(),
            report: files.report,
        };
        let mut lister = Lister { ledger: self, tree, listing };
        for (path, standing) in &files.standing {
            let is_known = self.log.get(path).is_some() || self.entry(path).is_some();
            let is_there = |at: &FolderPath| files.standing.contains_key(at);
            if !is_known && original_of(path, is_there).is_some() {
                continue;
            }
            if !lister.add_standing(path, standing)? {
                return Ok(None);
            }
        }
        for path in &files.absent {
            if !lister.add_unfound(path)? {
                return Ok(None);
            }
        }
        if kind == MarkerKind::Checkpoint {
            let is_changed = |path: &&FolderPath| self.log.get(path).is_some();
            for path in self.given_up.iter().filter(|path| !is_changed(path)) {
                lister.add(path, PathState::Ignored, false);
            }
        }
        let mut listing = lister.listing;
        listing.changes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Some(listing))
    }

    /// Records that the marker with a list is on the disk.
    pub fn marked(&mut self, listing: Listing, link: MarkerLink) {
        let from = link.name;
        let paths = listing.changes.len() as u64;
        for (path, found) in listing.updates {
            let entry = found.map(|(stamp, digest)| LedgerEntry { stamp, digest, from });
            self.update(vec![(path, entry)]);
        }
        self.log.forget_to(listing.number);
        self.accepted = None;
        self.verified = Some(link);
        if listing.kind == MarkerKind::Checkpoint {
            (self.checkpoint, self.counts) = (Some(link), MarkerCounts::default());
        } else {
            self.counts.markers = self.counts.markers.saturating_add(1);
            self.counts.paths = self.counts.paths.saturating_add(paths);
        }
    }
}

/// The announcements and markers of one tenure.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TenureMarking {
    tenure: TenureId,
    /// The number of the tenure's next marker.
    next: u64,
    /// Whether the lock service has a handover of this tenure that announces changes.
    is_announced: bool,
    /// Whether the handover at the lock service is certainly not clean.
    is_dirty: bool,
    /// Whether a clean handover was sent, and not answered yet.
    is_unanswered: bool,
    last_change: Option<Time>,
    /// When the last marker was written, and how long it took.
    last_marker: Option<(Time, Span)>,
}

impl TenureMarking {
    /// Returns the state of a tenure that has just become ready. `is_dirty`: it goes on after an
    /// unfinished handover of this machine.
    pub fn new(tenure: TenureId, is_dirty: bool) -> Self {
        Self {
            tenure,
            next: 1,
            is_announced: false,
            is_dirty,
            is_unanswered: false,
            last_change: None,
            last_marker: None,
        }
    }

    /// Returns the state of a tenure whose acceptance the lock service has.
    pub fn accepted(tenure: TenureId) -> Self {
        Self { is_announced: true, is_dirty: true, ..Self::new(tenure, true) }
    }

    /// Returns the number of the tenure's next marker.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether a change must wait until the lock service has a handover that announces it.
    pub fn must_announce(&self) -> bool {
        !self.is_announced
    }

    /// Returns the handover that announces changes, and records its id.
    pub fn announce(&self, ledger: &mut Ledger, id: HandoverId) -> Handover {
        ledger.record_own(id);
        let (marker, counts) = (ledger.verified, ledger.counts);
        Handover { id, kind: HandoverKind::Dirty, next: self.next, marker, counts }
    }

    /// Records that the lock service has the announcement.
    pub fn announced(&mut self) {
        (self.is_announced, self.is_dirty, self.is_unanswered) = (true, true, false);
    }

    /// Whether the tenure may write a marker. As long as the handover may be clean, a marker that
    /// nothing announces would be followed by nobody.
    pub fn may_mark(&self) -> bool {
        self.is_dirty
    }

    /// Records that a change passes the gate.
    pub fn changed(&mut self, now: Time) {
        self.last_change = Some(now);
    }

    /// Records when a change passed the gate at the latest.
    pub fn changed_at_least(&mut self, at: Time) {
        self.last_change = self.last_change.max(Some(at));
    }

    /// Whether the tenure is the one with this number.
    pub fn is_of(&self, tenure: TenureId) -> bool {
        self.tenure == tenure
    }

    /// Whether the lock service may have a handover of this tenure that is not clean.
    pub fn is_unclean(&self) -> bool {
        self.is_dirty || self.is_unanswered
    }

    /// Returns when nothing has changed for `settle`.
    pub fn quiet_at(&self, settle: Span) -> Time {
        self.last_change.map_or(Time::ZERO, |change| change + settle)
    }

    /// Returns when the tenure should write a marker by itself if nothing changes until then.
    pub fn marker_due(&self, ledger: &Ledger, settle: Span) -> Option<Time> {
        let after_pause = |(at, took): (Time, Span)| {
            let nanos = took.as_nanos().saturating_mul(MARKER_PAUSE_FACTOR);
            at + Span::from_nanos(nanos).max(MARKER_PAUSE)
        };
        let is_needed = self.is_dirty && !ledger.log.is_empty();
        is_needed.then(|| {
            let after = self.last_marker.map_or(Time::ZERO, after_pause);
            self.quiet_at(settle).max(after)
        })
    }

    /// Whether the tenure should write a marker by itself: nothing has changed for `settle`.
    #[cfg(test)]
    pub(crate) fn is_marker_due(&self, ledger: &Ledger, now: Time, settle: Span) -> bool {
        self.marker_due(ledger, settle).is_some_and(|at| at <= now)
    }

    /// Records that a marker of the tenure is on the disk. It took from `began` to `now`.
    pub fn marked(&mut self, began: Time, now: Time) {
        self.next += 1;
        self.last_marker = Some((now, now.since(began)));
    }

    /// Returns the handover that says that a marker names everything, and records its id; `None` if
    /// a change has passed the gate since the list of the marker was closed. The gate is closed
    /// meanwhile. From this call on, a change must be announced, whether the handover is answered
    /// or not.
    pub fn clean(&mut self, ledger: &mut Ledger, id: HandoverId) -> Option<Handover> {
        if !ledger.log.is_empty() || !self.is_unclean() {
            return None;
        }
        let marker = Some(ledger.verified?);
        ledger.record_own(id);
        (self.is_announced, self.is_dirty, self.is_unanswered) = (false, false, true);
        let (next, counts) = (self.next, ledger.counts);
        Some(Handover { id, kind: HandoverKind::Clean, next, marker, counts })
    }

    /// Records that the lock service has the clean handover.
    pub fn cleaned(&mut self) {
        self.is_unanswered = false;
    }
}

/// The next step for changes that no marker names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateStep {
    /// There is nothing to do.
    Nothing,
    /// It is not known whether a later tenure has changed the folder: the changes stay.
    Wait,
    /// The guard copies each file that the marker will name to the lost files, and writes a marker
    /// that ends the tenure.
    Write(LateMarker),
    /// A later tenure has changed the folder, or accepted it without the changes: the guard copies
    /// the changed files to the lost files.
    PutAside(Vec<FolderPath>),
}

/// The tenure that a late marker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateMarker {
    /// The tenure.
    pub tenure: TenureId,
    /// The number of the marker.
    pub number: u64,
    /// The handover that the marker answers.
    pub handover: HandoverId,
}

/// Returns what a guard that holds no tenure does about changes that no marker names. The list of a
/// late marker is made as that of any other: it compares the whole folder with the ledger, so that
/// a restart of the machine makes no difference.
pub fn late_step(previous: &PreviousTenure, engine: u64, ledger: &Ledger) -> LateStep {
    let has_changes = !ledger.log.is_empty();
    let Remembered::Handover(handover) = previous.handover else {
        return if has_changes { LateStep::Wait } else { LateStep::Nothing };
    };
    let is_own = ledger.is_own(handover.id);
    if is_own && !ledger.is_unfinished(&handover) || !is_own && !has_changes {
        return LateStep::Nothing;
    }
    match previous.end {
        HandoverEnd::Open if is_own => LateStep::Nothing,
        HandoverEnd::Unknown => LateStep::Wait,
        _ if is_own => LateStep::Write(LateMarker {
            tenure: TenureId { engine, token: previous.token },
            number: handover.next,
            handover: handover.id,
        }),
        _ => LateStep::PutAside(ledger.log.paths().cloned().collect()),
    }
}

/// Returns the files that a late marker names. They are copied to the lost files before the marker
/// is written, and leave them when the chain of a later handover contains the marker.
pub fn copied_before(listing: &Listing) -> impl Iterator<Item = &FolderPath> {
    let is_file = |change: &&Change| matches!(change.state, PathState::File { .. });
    listing.changes().iter().filter(is_file).map(|change| &change.path)
}

impl Ledger {
    /// Whether a handover is this machine's own, and no marker says yet what came after it.
    pub fn is_unfinished(&self, handover: &Handover) -> bool {
        self.is_own(handover.id)
            && handover.kind != HandoverKind::Clean
            && self.closed != Some(handover.id)
    }

    /// Records that a late marker is on the disk.
    pub fn ended_late(&mut self, listing: Listing, link: MarkerLink, late: &LateMarker) {
        self.marked(listing, link);
        self.closed = Some(late.handover);
    }

    /// Records that the changed files are among the lost files.
    pub fn put_aside(&mut self) {
        self.log.clear();
        self.accepted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_markers::{ENGINE, TestMarkers};
    use super::*;
    use crate::test_markers::{TestTree, path};
    use engine::Token;

    const TENURE: TenureId = TenureId { engine: ENGINE, token: Token::named(3) };

    fn head(number: u64) -> MarkerHead<'static> {
        let (tenure, at, is_last) = (TENURE, 0, false);
        MarkerHead { folder: "f", lock: "l", holder: "h", at, tenure, number, is_last }
    }

    /// A machine that holds the lock.
    struct Holder {
        ledger: Ledger,
        markers: TestMarkers,
        rules: IgnoreRules,
        tree: TestTree,
        next: u64,
    }

    impl Holder {
        /// A holder whose ledger knows these files.
        fn new(files: &[&str]) -> Self {
            let (ledger, markers, rules) =
                (Ledger::default(), TestMarkers::default(), IgnoreRules::default());
            let tree = TestTree::default();
            let mut holder = Self { ledger, markers, rules, tree, next: 1 };
            for name in files {
                holder.save(name, name.as_bytes());
            }
            holder.mark(MarkerKind::Checkpoint);
            holder
        }

        fn stamp(&self, name: &str) -> Option<FileStamp> {
            self.tree.files.get(&path(name)).map(|(found, _)| found.stamp)
        }

        /// A program saves a file through the view.
        fn save(&mut self, name: &str, content: &[u8]) {
            let before = self.stamp(name);
            self.tree.put(name, content);
            let after = self.stamp(name);
            self.ledger.log_mut().begin(&path(name), before, after);
            self.ledger.log_mut().end(&path(name), after);
        }

        fn list(&mut self, kind: MarkerKind) -> Option<Listing> {
            self.ledger.list_changes(kind, &self.rules, &mut self.tree).expect("no disk")
        }

        fn mark(&mut self, kind: MarkerKind) -> MarkerLink {
            let listing = self.list(kind).expect("no change meanwhile");
            let marker = listing.marker(&self.ledger, &head(self.next));
            let link = self.markers.put(&marker);
            self.ledger.marked(listing, link);
            self.next += 1;
            link
        }

        /// Returns what the next marker names: each path, whether a file stands there, and whether
        /// it is foreign.
        fn named(&mut self, kind: MarkerKind) -> Vec<(String, bool, bool)> {
            let listing = self.list(kind).expect("no change meanwhile");
            let of = |change: &Change| {
                let is_there = change.state != PathState::Gone;
                (change.path.to_string(), is_there, change.is_foreign)
            };
            listing.changes().iter().map(of).collect()
        }
    }

    fn named(name: &str, is_there: bool, is_foreign: bool) -> (String, bool, bool) {
        (name.to_owned(), is_there, is_foreign)
    }

    #[test]
    fn a_marker_names_each_changed_path_as_it_stands() {
        let mut holder = Holder::new(&["same", "saved", "removed", "over", "edited", "touched"]);
        holder.save("saved", b"2");
        holder.save("over", b"2");
        holder.save("made", b"1");
        holder.tree.remove("removed");
        holder.ledger.log_mut().end(&path("removed"), None);
        // Programs change these files past the view.
        holder.tree.put("over", b"phone");
        holder.tree.put("edited", b"phone");
        holder.tree.put("touched", b"touched");
        holder.tree.put("new", b"phone");
        holder.tree.put("new (conflicted copy)", b"phone");
        holder.rules = IgnoreRules::parse("*.o").expect("valid");
        holder.tree.put("x.o", b"ignored");
        let all = [
            named("edited", true, true),
            named("made", true, false),
            named("new", true, true),
            named("over", true, true),
            named("removed", false, false),
            named("saved", true, false),
        ];
        assert_eq!(holder.named(MarkerKind::Marker), all);
        let link = holder.mark(MarkerKind::Marker);
        assert_eq!(holder.named(MarkerKind::Marker), []);
        assert!(holder.ledger.log().is_empty());
        let marker = holder.markers.files.get(&link).expect("written");
        let of = |name: &str| marker.state_of(&path(name));
        let digest = ContentDigest::of(b"phone");
        assert_eq!(of("over"), Some(PathState::File { size: 5, digest, mode: 0o644 }));
        let touched = holder.ledger.entry(&path("touched")).expect("known");
        assert_eq!(Some(touched.stamp), holder.stamp("touched"));
    }

    /// A rule that comes later changes nothing for the files that markers name.
    #[test]
    fn an_ignored_path_is_in_no_marker_as_gone() {
        let mut holder = Holder::new(&["a", "b", "c"]);
        holder.rules = IgnoreRules::parse("*").expect("valid");
        holder.tree.put("new", b"1");
        assert_eq!(holder.named(MarkerKind::Marker), []);
        let all = ["a", "b", "c"].map(|name| named(name, true, false));
        assert_eq!(holder.named(MarkerKind::Checkpoint), all);
        // A marker names the changes of programs.
        holder.save("a", b"2");
        holder.tree.remove("b");
        holder.ledger.log_mut().end(&path("b"), None);
        let changed = [named("a", true, false), named("b", false, false)];
        assert_eq!(holder.named(MarkerKind::Marker), changed);
        holder.mark(MarkerKind::Marker);
        holder.ledger.accept_ignored([path("c")]);
        let listing = holder.list(MarkerKind::Marker).expect("no change meanwhile");
        let states: Vec<_> = listing.changes().iter().map(|it| (&it.path, it.state)).collect();
        assert_eq!((listing.kind, states.len()), (MarkerKind::Checkpoint, 2));
        assert_eq!(states[1], (&path("c"), PathState::Ignored));
        holder.mark(MarkerKind::Marker);
        assert!(holder.ledger.is_given_up(&path("c")));
        // Each checkpoint names 'c' as ignored, until a program changes the file where no rule
        // matches.
        assert_eq!(holder.named(MarkerKind::Checkpoint).len(), 2);
        holder.rules = IgnoreRules::default();
        holder.save("c", b"2");
        let all = [named("c", true, false), named("new", true, true)];
        assert_eq!(holder.named(MarkerKind::Marker), all);
        holder.mark(MarkerKind::Marker);
        assert!(!holder.ledger.is_given_up(&path("c")));
    }

    #[test]
    fn the_first_marker_is_a_checkpoint() {
        let mut holder = Holder::new(&["a"]);
        holder.ledger.verified = None;
        assert_eq!(holder.mark(MarkerKind::Marker).name.kind, MarkerKind::Checkpoint);
        assert_eq!(holder.mark(MarkerKind::Marker).name.kind, MarkerKind::Marker);
    }

    #[test]
    fn a_checkpoint_names_every_file() {
        let mut holder = Holder::new(&["a", "b"]);
        holder.tree.remove("a");
        holder.save("c", b"1");
        let all = [named("b", true, false), named("c", true, false)];
        assert_eq!(holder.named(MarkerKind::Checkpoint), all);
        assert_eq!(holder.named(MarkerKind::Marker)[0], named("a", false, true));
        let link = holder.mark(MarkerKind::Checkpoint);
        assert_eq!(holder.ledger.since_checkpoint(), (Some(link), MarkerCounts::default()));
        holder.save("c", b"2");
        let next = holder.mark(MarkerKind::Marker);
        let counts = MarkerCounts { markers: 1, paths: 1 };
        assert_eq!(holder.ledger.since_checkpoint(), (Some(link), counts));
        let marker = holder.markers.files.get(&next).expect("written");
        assert_eq!((marker.previous, marker.checkpoint), (Some(link), Some(link)));
    }

    #[test]
    fn each_name_of_a_renamed_directory_and_of_a_linked_file_is_named() {
        let mut holder = Holder::new(&["d/one", "d/two"]);
        for name in ["one", "two"] {
            let moved = holder.tree.files.remove(&path(&format!("d/{name}"))).expect("there");
            holder.tree.files.insert(path(&format!("e/{name}")), moved);
        }
        holder.ledger.log_renamed_dir(&path("d"), &path("e"));
        // A hard link, and a change of the file through it.
        holder.tree.put("link", b"changed");
        let linked = holder.tree.files[&path("link")].clone();
        holder.tree.files.insert(path("e/one"), linked);
        let stamp = holder.stamp("link");
        for name in ["link", "e/one"] {
            holder.ledger.log_mut().end(&path(name), stamp);
        }
        let all = [
            named("d/one", false, false),
            named("d/two", false, false),
            named("e/one", true, false),
            named("e/two", true, false),
            named("link", true, false),
        ];
        assert_eq!(holder.named(MarkerKind::Marker), all);
    }

    #[test]
    fn a_change_within_the_resolution_of_the_time_is_named() {
        let mut holder = Holder::new(&["a"]);
        let stamp = holder.stamp("a");
        holder.tree.files.get_mut(&path("a")).expect("there").1 = b"b".to_vec();
        holder.ledger.log_mut().end(&path("a"), stamp);
        let link = holder.mark(MarkerKind::Marker);
        let state = holder.markers.files.get(&link).and_then(|it| it.state_of(&path("a")));
        let digest = ContentDigest::of(b"b");
        assert_eq!(state, Some(PathState::File { size: 1, digest, mode: 0o644 }));
    }

    #[test]
    fn a_file_below_a_mount_point_stays_as_it_was() {
        let mut holder = Holder::new(&["d/a", "d/b", "e/c"]);
        holder.tree.mounted = Some(path("d"));
        holder.save("e/c", b"2");
        assert_eq!(holder.named(MarkerKind::Marker), [named("e/c", true, false)]);
        let all = ["d/a", "d/b", "e/c"].map(|name| named(name, true, false));
        assert_eq!(holder.named(MarkerKind::Checkpoint), all);
        holder.ledger.log_mut().end(&path("d/b"), None);
        let all = [named("d/b", false, false), named("e/c", true, false)];
        assert_eq!(holder.named(MarkerKind::Marker), all);
        let stamp = holder.stamp("d/a");
        holder.ledger.log_mut().end(&path("d/a"), stamp);
        let rules = IgnoreRules::default();
        let listed = holder.ledger.list_changes(MarkerKind::Marker, &rules, &mut holder.tree);
        let error = listed.expect_err("a change that nobody can name").to_string();
        assert!(error.contains("d/a") && error.contains("unmount"), "{error}");
    }

    #[test]
    fn a_file_that_a_walk_misses_is_not_gone() {
        let mut holder = Holder::new(&["a", "b"]);
        holder.tree.missed = Some(path("a"));
        assert_eq!(holder.named(MarkerKind::Marker), []);
        let all = ["a", "b"].map(|name| named(name, true, false));
        assert_eq!(holder.named(MarkerKind::Checkpoint), all);
        holder.save("a", b"2");
        assert_eq!(holder.named(MarkerKind::Marker), [named("a", true, false)]);
    }

    #[test]
    fn a_list_is_made_again_if_a_file_changes_meanwhile() {
        let mut holder = Holder::new(&["a"]);
        holder.save("a", b"2");
        holder.tree.busy = Some(path("a"));
        assert_eq!(holder.list(MarkerKind::Marker), None);
    }

    #[test]
    fn a_clean_handover_needs_a_marker_of_every_change() {
        let mut holder = Holder::new(&["a"]);
        let mut marking = TenureMarking::new(TENURE, false);
        assert!(marking.must_announce() && !marking.may_mark());
        assert_eq!(marking.clean(&mut holder.ledger, HandoverId(9)), None, "nothing was announced");
        let dirty = marking.announce(&mut holder.ledger, HandoverId(1));
        assert_eq!((dirty.kind, dirty.next), (HandoverKind::Dirty, 1));
        marking.announced();
        assert!(!marking.must_announce() && marking.may_mark());
        holder.save("a", b"2");
        assert_eq!(marking.clean(&mut holder.ledger, HandoverId(2)), None, "no marker");
        let listing = holder.list(MarkerKind::Marker).expect("no change meanwhile");
        let late = holder.stamp("a");
        holder.ledger.log_mut().end(&path("a"), late);
        let link = holder.markers.put(&listing.marker(&holder.ledger, &head(1)));
        holder.ledger.marked(listing, link);
        marking.marked(Time::ZERO, Time::ZERO);
        assert_eq!(marking.clean(&mut holder.ledger, HandoverId(2)), None, "a change came after");
        let link = holder.mark(MarkerKind::Marker);
        marking.marked(Time::ZERO, Time::ZERO);
        let clean = marking.clean(&mut holder.ledger, HandoverId(2)).expect("all is named");
        assert_eq!((clean.kind, clean.marker, clean.next), (HandoverKind::Clean, Some(link), 3));
        assert!(holder.ledger.is_own(HandoverId(1)) && holder.ledger.is_own(HandoverId(2)));
        assert!(marking.must_announce() && !marking.may_mark(), "answered or not");
        // No answer to the handover comes, so it is sent again.
        assert!(marking.clean(&mut holder.ledger, HandoverId(3)).is_some());
        marking.cleaned();
        assert_eq!(marking.clean(&mut holder.ledger, HandoverId(4)), None);
        let dirty = marking.announce(&mut holder.ledger, HandoverId(5));
        assert_eq!((dirty.next, dirty.marker), (3, Some(link)));
    }

    #[test]
    fn markers_are_written_after_a_pause() {
        let mut holder = Holder::new(&["a"]);
        let mut marking = TenureMarking::new(TENURE, false);
        let settle = Span::from_secs(2);
        marking.announced();
        let at = Time::from_secs;
        assert!(!marking.is_marker_due(&holder.ledger, at(100), settle), "nothing changed");
        holder.save("a", b"2");
        marking.changed(at(100));
        let due = |marking: &TenureMarking, holder: &Holder, secs| {
            marking.is_marker_due(&holder.ledger, at(secs), settle)
        };
        assert!(!due(&marking, &holder, 101) && due(&marking, &holder, 102));
        marking.marked(at(102), at(103));
        assert!(!due(&marking, &holder, 162) && due(&marking, &holder, 163), "once a minute");
        marking.marked(at(200), at(210));
        assert!(!due(&marking, &holder, 409) && due(&marking, &holder, 410), "20 times 10 s");
    }
}

#[cfg(test)]
mod late_tests {
    use super::super::handover::MarkerCounts;
    use super::super::ignored::IgnoreRules;
    use super::super::test_markers::{ENGINE, TestMarkers};
    use super::*;
    use crate::marker::MarkerKind;
    use crate::marking::MarkerHead;
    use crate::test_markers::{TestTree, path};
    use HandoverEnd::{Expired, Open, Released, Session, Stolen, Unknown};
    use HandoverKind::{Accepted, Clean, Dirty};
    use engine::Token;

    fn previous(id: u128, kind: HandoverKind, end: HandoverEnd) -> PreviousTenure {
        let (marker, counts) = (None, MarkerCounts::default());
        let handover = Handover { id: HandoverId(id), kind, next: 4, marker, counts };
        let handover = Remembered::Handover(handover);
        let (token, client) = (Token::named(9), "laptop9".to_owned());
        PreviousTenure { seq: 1, token, client, at: 0, end, handover }
    }

    /// A machine that set the handover 7, with or without changes that no marker names.
    fn ledger(has_changes: bool) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.record_own(HandoverId(7));
        if has_changes {
            ledger.log_mut().end(&path("a"), None);
        }
        ledger
    }

    #[test]
    fn a_late_marker_is_written_as_long_as_nobody_went_on() {
        let write = LateStep::Write(LateMarker {
            tenure: TenureId { engine: ENGINE, token: Token::named(9) },
            number: 4,
            handover: HandoverId(7),
        });
        let aside = LateStep::PutAside(vec![path("a")]);
        for (id, kind, end, has_changes, step) in [
            (7, Dirty, Expired, true, &write),
            (7, Dirty, Stolen, true, &write),
            (7, Dirty, Session, false, &write),
            (7, Accepted, Released, true, &write),
            (7, Dirty, Open, true, &LateStep::Nothing),
            (7, Dirty, Unknown, true, &LateStep::Wait),
            (7, Clean, Released, false, &LateStep::Nothing),
            (8, Dirty, Open, true, &aside),
            (8, Accepted, Expired, true, &aside),
            (8, Clean, Released, true, &aside),
            (8, Clean, Unknown, true, &LateStep::Wait),
            (8, Clean, Released, false, &LateStep::Nothing),
        ] {
            let found = late_step(&previous(id, kind, end), ENGINE, &ledger(has_changes));
            assert_eq!(found, *step, "{id} {kind:?} {end:?} {has_changes}");
        }
        let mut unknown = previous(7, Dirty, Expired);
        unknown.handover = Remembered::Nothing;
        assert_eq!(late_step(&unknown, ENGINE, &ledger(true)), LateStep::Wait);
        assert_eq!(late_step(&unknown, ENGINE, &ledger(false)), LateStep::Nothing);
    }

    #[test]
    fn a_late_marker_names_everything_and_is_written_once() {
        let (mut ledger, mut tree) = (ledger(false), TestTree::default());
        ledger.verified = Some(TestMarkers::default().checkpoint(1, None, &[]));
        tree.put("own", b"1");
        let stamp = tree.files[&path("own")].0.stamp;
        ledger.log_mut().end(&path("own"), Some(stamp));
        ledger.log_mut().end(&path("over"), Some(stamp));
        ledger.log_mut().end(&path("gone"), None);
        tree.put("over", b"phone");
        tree.put("new", b"phone");
        let previous = previous(7, Dirty, Expired);
        let LateStep::Write(late) = late_step(&previous, ENGINE, &ledger) else {
            panic!("nobody went on");
        };
        let rules = IgnoreRules::default();
        let listing = ledger.list_changes(MarkerKind::Marker, &rules, &mut tree);
        let listing = listing.expect("no disk").expect("no change meanwhile");
        let named: Vec<_> = listing
            .changes()
            .iter()
            .map(|change| (change.path.as_str().to_owned(), change.is_foreign))
            .collect();
        let all = [("gone", false), ("new", true), ("over", true), ("own", false)];
        assert_eq!(named, all.map(|(name, is_foreign)| (name.to_owned(), is_foreign)));
        let copied: Vec<_> = copied_before(&listing).map(FolderPath::as_str).collect();
        assert_eq!(copied, ["new", "over", "own"]);
        let (tenure, number) = (late.tenure, late.number);
        let (folder, lock, holder) = ("f", "l", "h");
        let head = MarkerHead { folder, lock, holder, at: 0, tenure, number, is_last: true };
        let link = TestMarkers::default().put(&listing.marker(&ledger, &head));
        ledger.ended_late(listing, link, &late);
        assert_eq!(late_step(&previous, ENGINE, &ledger), LateStep::Nothing);
        assert_eq!((ledger.verified(), ledger.log().is_empty()), (Some(link), true));
    }

    #[test]
    fn changes_that_were_put_aside_are_forgotten() {
        let mut ledger = ledger(true);
        let previous = previous(8, Accepted, Open);
        assert!(matches!(late_step(&previous, ENGINE, &ledger), LateStep::PutAside(_)));
        ledger.put_aside();
        assert_eq!(late_step(&previous, ENGINE, &ledger), LateStep::Nothing);
    }
}
