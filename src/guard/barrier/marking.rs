//! What a tenure announces before it changes the folder, and what its markers name.

use super::super::tenure::TenureId;
use super::change_log::LoggedChange;
use super::content_digest::ContentDigest;
use super::folder_path::FolderPath;
use super::handover::{Handover, HandoverId, HandoverKind, MarkerCounts};
use super::ignored::IgnoreRules;
use super::ledger::{Ledger, LedgerEntry};
use super::marker::{Change, Marker, PathState};
use super::marker_name::{MarkerKind, MarkerLink, MarkerName};
use super::strays::original_of;
use super::tree::{FileStamp, FolderTree, Standing};
use crate::time::{Span, Time};
use std::collections::BTreeMap;
use std::io;

/// Markers that a tenure writes by itself are at least this far apart.
const MARKER_PAUSE: Span = Span::from_secs(60);
/// They are at least this many times as far apart as the last one took.
const MARKER_PAUSE_FACTOR: u64 = 20;

/// The list of a marker: how the paths stood when it was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listing {
    kind: MarkerKind,
    /// The number of the newest change in the list.
    number: u64,
    ignore: Option<ContentDigest>,
    changes: Vec<Change>,
    updates: Vec<(FolderPath, Option<(FileStamp, ContentDigest)>)>,
}

/// Who writes a marker, and when.
#[derive(Debug, Clone)]
pub(crate) struct MarkerHead<'a> {
    /// The id of the folder.
    pub(crate) folder: &'a str,
    /// The name of the folder's lock.
    pub(crate) lock: &'a str,
    /// The client, for messages only.
    pub(crate) holder: &'a str,
    /// The wall clock in milliseconds since 1970, for messages only.
    pub(crate) at: u64,
    /// The tenure whose changes the marker names.
    pub(crate) tenure: TenureId,
    /// The number of the marker in that tenure.
    pub(crate) number: u64,
    /// Whether the tenure's gate had closed for good before the list was made.
    pub(crate) is_last: bool,
}

impl Listing {
    /// Returns the paths that the marker names, as they stood.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns the marker with this list.
    pub(crate) fn marker(&self, ledger: &Ledger, head: &MarkerHead<'_>) -> Marker {
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
    fn add_standing(&mut self, path: &FolderPath, found: &Standing) -> io::Result<bool> {
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
    /// ledger, as it stands. After the whole folder was accepted the list is that of a checkpoint.
    /// Returns `None` if a file was changed while it was read: then the list must be made again.
    pub(crate) fn list_changes(
        &self,
        kind: MarkerKind,
        rules: &IgnoreRules,
        tree: &mut dyn FolderTree,
    ) -> io::Result<Option<Listing>> {
        let kind = if self.log.is_whole { MarkerKind::Checkpoint } else { kind };
        let (number, ignore) = (self.log.number(), tree.ignore_digest()?);
        let mut found: BTreeMap<FolderPath, Standing> = BTreeMap::new();
        tree.walk(&mut |path, standing| {
            if rules.ignored(&path).is_none() {
                found.insert(path, standing);
            }
        })?;
        let listing = Listing { kind, number, ignore, changes: Vec::new(), updates: Vec::new() };
        let mut lister = Lister { ledger: self, tree, listing };
        for (path, standing) in &found {
            let is_known = self.log.get(path).is_some() || self.entry(path).is_some();
            if !is_known && original_of(path, |at| found.contains_key(at)).is_some() {
                continue;
            }
            if !lister.add_standing(path, standing)? {
                return Ok(None);
            }
        }
        let mut gone: Vec<_> = self
            .paths()
            .chain(self.log.paths())
            .filter(|path| !found.contains_key(path) && rules.ignored(path).is_none())
            .collect();
        gone.sort();
        gone.dedup();
        for path in gone {
            lister.add_gone(path, self.log.get(path));
        }
        let mut listing = lister.listing;
        listing.changes.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Some(listing))
    }

    /// Records that the marker with a list is on the disk.
    pub(crate) fn marked(&mut self, listing: Listing, link: MarkerLink) {
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
pub(crate) struct TenureMarking {
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
    pub(crate) fn new(tenure: TenureId, is_dirty: bool) -> Self {
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
    pub(crate) fn accepted(tenure: TenureId) -> Self {
        Self { is_announced: true, is_dirty: true, ..Self::new(tenure, true) }
    }

    /// Returns the number of the tenure's next marker.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a change must wait until the lock service has a handover that announces it.
    pub(crate) fn must_announce(&self) -> bool {
        !self.is_announced
    }

    /// Returns the handover that announces changes, and records its id.
    pub(crate) fn announce(&self, ledger: &mut Ledger, id: HandoverId) -> Handover {
        ledger.record_own(id);
        let (marker, counts) = (ledger.verified, ledger.counts);
        Handover { id, kind: HandoverKind::Dirty, next: self.next, marker, counts }
    }

    /// Records that the lock service has the announcement.
    pub(crate) fn announced(&mut self) {
        (self.is_announced, self.is_dirty, self.is_unanswered) = (true, true, false);
    }

    /// Whether the tenure may write a marker. As long as the handover may be clean, a marker that
    /// nothing announces would be followed by nobody.
    pub(crate) fn may_mark(&self) -> bool {
        self.is_dirty
    }

    /// Records that a change passes the gate.
    pub(crate) fn changed(&mut self, now: Time) {
        self.last_change = Some(now);
    }

    /// Whether the tenure should write a marker by itself: nothing has changed for `settle`.
    pub(crate) fn is_marker_due(&self, ledger: &Ledger, now: Time, settle: Span) -> bool {
        let pause = |(at, took): (Time, Span)| {
            let nanos = took.as_nanos().saturating_mul(MARKER_PAUSE_FACTOR);
            now.since(at) >= Span::from_nanos(nanos).max(MARKER_PAUSE)
        };
        self.is_dirty
            && !ledger.log.is_empty()
            && self.last_change.is_none_or(|change| now.since(change) >= settle)
            && self.last_marker.is_none_or(pause)
    }

    /// Records that a marker of the tenure is on the disk. It took from `began` to `now`.
    pub(crate) fn marked(&mut self, began: Time, now: Time) {
        self.next += 1;
        self.last_marker = Some((now, now.since(began)));
    }

    /// Returns the handover that says that a marker names everything, and records its id; `None` if
    /// a change has passed the gate since the list of the marker was closed. The gate is closed
    /// meanwhile. From this call on, a change must be announced, whether the handover is answered
    /// or not.
    pub(crate) fn clean(&mut self, ledger: &mut Ledger, id: HandoverId) -> Option<Handover> {
        if !ledger.log.is_empty() || !(self.is_dirty || self.is_unanswered) {
            return None;
        }
        let marker = Some(ledger.verified?);
        ledger.record_own(id);
        (self.is_announced, self.is_dirty, self.is_unanswered) = (false, false, true);
        let (next, counts) = (self.next, ledger.counts);
        Some(Handover { id, kind: HandoverKind::Clean, next, marker, counts })
    }

    /// Records that the lock service has the clean handover.
    pub(crate) fn cleaned(&mut self) {
        self.is_unanswered = false;
    }
}
