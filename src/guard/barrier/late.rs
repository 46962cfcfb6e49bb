//! Late markers: what a guard that comes back may still say about a tenure that ended without a
//! marker.

use super::super::tenure::TenureId;
use super::folder_path::FolderPath;
use super::handover::{
    Handover, HandoverEnd, HandoverId, HandoverKind, PreviousTenure, Remembered,
};
use super::ledger::Ledger;
use super::marker::{Change, PathState};
use super::marker_name::MarkerLink;
use super::marking::Listing;

/// The next step for changes that no marker names.
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
pub(crate) fn copied_before(listing: &Listing) -> impl Iterator<Item = &FolderPath> {
    let is_file = |change: &&Change| matches!(change.state, PathState::File { .. });
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

#[cfg(test)]
mod tests {
    use super::super::handover::MarkerCounts;
    use super::super::ignored::IgnoreRules;
    use super::super::marker_name::MarkerKind;
    use super::super::marking::MarkerHead;
    use super::super::test_markers::{ENGINE, TestMarkers};
    use super::super::test_tree::{TestTree, path};
    use super::*;
    use crate::engine::Token;
    use HandoverEnd::{Expired, Open, Released, Session, Stolen, Unknown};
    use HandoverKind::{Accepted, Clean, Dirty};

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
