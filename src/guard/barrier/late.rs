//! Late markers: what a guard that comes back may still say about a tenure that ended without a
//! marker.

use super::super::tenure::TenureId;
use super::folder_path::FolderPath;
use super::handover::{Handover, HandoverId, HandoverKind, PreviousTenure, Remembered, TenureEnd};
use super::ledger::Ledger;
use super::marker::{Change, PathState};
use super::marker_name::MarkerLink;
use super::marking::Listing;

/// What to do with changes that no marker names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LateStep {
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
pub(crate) struct LateMarker {
    /// The tenure.
    pub(crate) tenure: TenureId,
    /// The number of the marker.
    pub(crate) number: u64,
    /// The handover that the marker answers.
    pub(crate) handover: HandoverId,
}

/// Returns what a guard that holds no tenure does about changes that no marker names. The list of a
/// late marker is made as that of any other: it compares the whole folder with the ledger, so that
/// a restart of the machine makes no difference.
pub(crate) fn late_step(previous: &PreviousTenure, engine: u64, ledger: &Ledger) -> LateStep {
    let has_changes = !ledger.log.is_empty();
    let Remembered::Handover(handover) = previous.handover else {
        return if has_changes { LateStep::Wait } else { LateStep::Nothing };
    };
    let is_own = ledger.is_own(handover.id);
    if is_own && !ledger.is_unfinished(&handover) || !is_own && !has_changes {
        return LateStep::Nothing;
    }
    match previous.end {
        TenureEnd::Open if is_own => LateStep::Nothing,
        TenureEnd::Unknown => LateStep::Wait,
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
pub(crate) fn copied_before(listing: &Listing) -> impl Iterator<Item = &FolderPath> {
    let is_file = |change: &&Change| change.state != PathState::Gone;
    listing.changes().iter().filter(is_file).map(|change| &change.path)
}

impl Ledger {
    /// Whether a handover is this machine's own, and no marker says yet what came after it.
    pub(crate) fn is_unfinished(&self, handover: &Handover) -> bool {
        self.is_own(handover.id)
            && handover.kind != HandoverKind::Clean
            && self.closed != Some(handover.id)
    }

    /// Records that a late marker is on the disk.
    pub(crate) fn ended_late(&mut self, listing: Listing, link: MarkerLink, late: &LateMarker) {
        self.marked(listing, link);
        self.closed = Some(late.handover);
    }

    /// Records that the changed files are among the lost files.
    pub(crate) fn put_aside(&mut self) {
        self.log.clear();
        self.accepted = None;
    }
}
