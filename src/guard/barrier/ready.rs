//! The decision whether the folder is ready: everything that the markers name is here, byte for
//! byte, or somebody must wait or accept.

use super::arrival_target::{Barrier, NoTarget, Target, Unsure};
use super::chain::{ChainBase, WantedPath};
use super::comparison::{Comparison, compare};
use super::coverage::CoverageReport;
use super::folder_path::FolderPath;
use super::handover::MarkerCounts;
use super::ledger::{Ledger, LedgerUpdate};
use super::marker::PathState;
use super::marker_name::MarkerLink;
use super::missing::NotArrived;
use super::tree::{DigestCache, FileStamp, FolderTree};
use std::collections::BTreeSet;
use std::io;

/// The facts that a ready folder adds to the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The marker up to which everything is here; `None` if the handover is this machine's own.
    pub(super) top: Option<MarkerLink>,
    /// The last checkpoint at or before that marker.
    pub(super) checkpoint: Option<MarkerLink>,
    /// The markers since that checkpoint.
    pub(super) counts: MarkerCounts,
    /// The versions that the ledger does not know yet.
    pub(super) updates: Vec<LedgerUpdate>,
    /// The paths that the markers name as given up; all of them if `is_whole`.
    pub(super) given_up: Vec<FolderPath>,
    /// Whether the markers go back to a checkpoint.
    pub(super) is_whole: bool,
    /// Conflict copies, which keep nobody from being ready.
    pub(crate) strays: Vec<FolderPath>,
    /// The paths for which an ignore rule makes a difference, or would.
    pub(crate) coverage: CoverageReport,
}

impl Arrived {
    /// Whether the ledger learns anything.
    pub(crate) fn is_news(&self) -> bool {
        self.top.is_some() || !self.updates.is_empty()
    }

    /// Returns the versions that other machines have published since the ledger was last compared.
    pub(crate) fn other_versions(&self, ledger: &Ledger) -> Vec<FileStamp> {
        // The handover of this machine itself tells of no other one.
        if self.top.is_none() {
            return Vec::new();
        }
        let known = |path| ledger.entry(path).map(|entry| entry.digest);
        let news = self.updates.iter().filter_map(|(path, entry)| Some((path, entry.as_ref()?)));
        let other = news.filter(|(path, entry)| known(path) != Some(entry.digest));
        other.map(|(_, entry)| entry.stamp).collect()
    }

    /// Whether the folder is another one than when it was last ready.
    pub(crate) fn differs_from(&self, ledger: &Ledger) -> bool {
        self.top.is_some_and(|top| ledger.verified != Some(top)) || !self.updates.is_empty()
    }
}

/// Whether programs may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Everything is here.
    Ready(Arrived),
    /// It is known what should be here, and some of it is not.
    NotArrived(NotArrived),
    /// It is not known what should be here.
    Unsure(Unsure),
}

impl From<NoTarget> for Decision {
    fn from(none: NoTarget) -> Self {
        match none {
            NoTarget::MarkerMissing(link) => Self::NotArrived(NotArrived::of_marker(link)),
            NoTarget::Unsure(why) => Self::Unsure(why),
        }
    }
}

impl Barrier<'_> {
    /// Decides whether the folder is ready.
    pub(crate) fn decide(
        &self,
        tree: &mut dyn FolderTree,
        cache: &mut DigestCache,
    ) -> io::Result<Decision> {
        let target = match self.target() {
            Ok(target) => target,
            Err(none) => return Ok(none.into()),
        };
        let compared = compare(self, &target, &BTreeSet::new(), tree, cache)?;
        Ok(Self::decision(&target, compared))
    }

    pub(super) fn decision(target: &Target, compared: Comparison) -> Decision {
        let coverage = compared.files.report;
        if !compared.missing.is_nothing() {
            return Decision::NotArrived(NotArrived { coverage, ..compared.missing });
        }
        let is_given_up = |wanted: &WantedPath| wanted.state == PathState::Ignored;
        let named = target.chain.wanted.iter().filter(|(_, wanted)| is_given_up(wanted));
        Decision::Ready(Arrived {
            top: target.top,
            checkpoint: target.checkpoint,
            counts: target.counts,
            updates: compared.updates,
            given_up: named.map(|(path, _)| path.clone()).collect(),
            is_whole: target.chain.base == ChainBase::Checkpoint,
            strays: compared.strays,
            coverage,
        })
    }
}

impl Ledger {
    /// Records that the folder is ready.
    pub(crate) fn adopt(&mut self, arrived: Arrived) {
        self.update(arrived.updates);
        if arrived.is_whole {
            self.given_up.clear();
        }
        if let Some(top) = arrived.top {
            self.verified = Some(top);
            self.checkpoint = arrived.checkpoint;
            self.counts = arrived.counts;
            // Another tenure went on after the changes of this log: 'late' has put them aside.
            self.log.clear();
            self.accepted = None;
        }
        arrived.given_up.into_iter().for_each(|path| self.give_up(path));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tenure::TenureId;
    use super::super::content_digest::ContentDigest;
    use super::super::handover::{Handover, HandoverId, HandoverKind};
    use super::super::handover::{HandoverEnd, PreviousTenure, Remembered};
    use super::super::ignored::IgnoreRules;
    use super::super::ledger::LedgerEntry;
    use super::super::marker::Change;
    use super::super::missing::{MissingBecause, MissingPath, VersionName};
    use super::super::test_markers::{ENGINE, TestMarkers, gone, ignored, is};
    use super::super::test_tree::{TestTree, path};
    use super::*;
    use crate::engine::Token;

    /// A machine before the barrier.
    struct Arrival {
        ledger: Ledger,
        markers: TestMarkers,
        rules: IgnoreRules,
        previous: PreviousTenure,
        tree: TestTree,
        cache: DigestCache,
    }

    fn previous(kind: HandoverKind, token: u64, marker: Option<MarkerLink>) -> PreviousTenure {
        let (id, counts) = (HandoverId(77), MarkerCounts::default());
        let handover = Handover { id, kind, next: 2, marker, counts };
        PreviousTenure {
            seq: 1,
            token: Token::named(token),
            client: format!("laptop{token}"),
            at: 0,
            end: HandoverEnd::Released,
            handover: Remembered::Handover(handover),
        }
    }

    impl Arrival {
        /// A machine whose files are those of a checkpoint of tenure 1, with `a` and `b`.
        fn new() -> Self {
            let mut markers = TestMarkers::default();
            let first = markers.checkpoint(1, None, &[is("a", b"a1"), is("b", b"b1")]);
            let mut arrival = Self {
                ledger: Ledger::default(),
                markers,
                rules: IgnoreRules::default(),
                previous: previous(HandoverKind::Clean, 1, Some(first)),
                tree: TestTree::default(),
                cache: DigestCache::default(),
            };
            arrival.tree.put("a", b"a1");
            arrival.tree.put("b", b"b1");
            arrival.adopt();
            arrival
        }

        fn first(&self) -> MarkerLink {
            self.ledger.verified.expect("verified")
        }

        /// Another machine's tenure hands a marker over.
        fn clean(&mut self, token: u64, marker: MarkerLink) {
            self.previous = previous(HandoverKind::Clean, token, Some(marker));
        }

        /// Another machine's tenure changes paths and hands them over.
        fn tenure(&mut self, token: u64, before: MarkerLink, changes: &[Change]) -> MarkerLink {
            let marker = self.markers.marker(token, Some(before), changes);
            self.clean(token, marker);
            marker
        }

        fn decide(&mut self) -> Decision {
            let barrier = Barrier {
                previous: &self.previous,
                engine: ENGINE,
                ledger: &self.ledger,
                markers: &self.markers.files,
                rules: &self.rules,
                now: 100_000_000_000,
            };
            barrier.decide(&mut self.tree, &mut self.cache).expect("no disk")
        }

        /// Expects that the folder is ready, and records it.
        fn adopt(&mut self) {
            match self.decide() {
                Decision::Ready(arrived) => self.ledger.adopt(arrived),
                other => panic!("not ready: {other:?}"),
            }
        }

        /// Says whether the content of a file is here.
        fn download(&mut self, name: &str, is_downloaded: bool) {
            let (found, _) = self.tree.files.get_mut(&path(name)).expect("there");
            found.is_downloaded = is_downloaded;
        }

        /// Expects that these paths, and no others, are missing.
        fn missing(&mut self) -> Vec<(String, MissingBecause)> {
            match self.decide() {
                Decision::NotArrived(missing) => {
                    let of = |path: MissingPath| (path.path.to_string(), path.because);
                    missing.paths.into_iter().map(of).collect()
                }
                other => panic!("{other:?}"),
            }
        }

        fn unsure(&mut self) -> String {
            match self.decide() {
                Decision::Unsure(why) => why.to_string(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn version(token: u64) -> VersionName {
        let tenure = TenureId { engine: ENGINE, token: Token::named(token) };
        VersionName { holder: Some(format!("laptop{token}")), tenure }
    }

    fn superseded(stands: u64, wanted: u64) -> MissingBecause {
        let wanted = Some(version(wanted));
        MissingBecause::Superseded { stands: version(stands), wanted }
    }

    #[test]
    fn the_marker_before_the_data() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let second = arrival.tenure(2, first, &[is("a", b"a2"), is("c", b"c2"), gone("b")]);
        assert_eq!(
            arrival.missing(),
            [
                ("a".to_owned(), superseded(1, 2)),
                ("b".to_owned(), MissingBecause::NotYetDeleted),
                ("c".to_owned(), MissingBecause::NotHere)
            ]
        );
        arrival.tree.put("c", b"c2");
        arrival.tree.remove("b");
        assert_eq!(arrival.missing(), [("a".to_owned(), superseded(1, 2))]);
        let said = arrival.missing().remove(0).1.to_string();
        assert_eq!(said, "laptop1's version (1) stands where laptop2's version (2) should be");
        arrival.tree.put("a", b"a2");
        arrival.adopt();
        assert_eq!(arrival.ledger.verified, Some(second));
        assert!(arrival.ledger.entry(&path("b")).is_none());
    }

    #[test]
    fn the_data_before_the_marker() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let second = arrival.tenure(2, first, &[is("a", b"a2")]);
        let bytes = arrival.markers.files.remove(&second).expect("it was there");
        arrival.tree.put("a", b"a2");
        let Decision::NotArrived(missing) = arrival.decide() else { panic!("no marker") };
        assert_eq!((missing.marker, missing.count), (Some(second), 0));
        arrival.markers.put(&bytes);
        arrival.adopt();
        // A second delivery of the same marker and the same data changes nothing.
        arrival.markers.put(&bytes);
        arrival.tree.put("a", b"a2");
        arrival.adopt();
    }

    #[test]
    fn an_older_marker_that_comes_last() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let second = arrival.tenure(2, first, &[is("a", b"a2"), is("b", b"b2")]);
        let third = arrival.tenure(3, second, &[is("a", b"a3")]);
        let older = arrival.markers.files.remove(&second).expect("it was there");
        arrival.tree.put("a", b"a3");
        let Decision::NotArrived(missing) = arrival.decide() else { panic!("no marker") };
        assert_eq!(missing.marker, Some(second));
        arrival.markers.put(&older);
        assert_eq!(arrival.missing(), [("b".to_owned(), superseded(1, 2))]);
        arrival.tree.put("b", b"b2");
        arrival.adopt();
        assert_eq!(arrival.ledger.verified, Some(third));
    }

    #[test]
    fn one_byte_changed() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tenure(2, first, &[is("a", b"a2")]);
        arrival.tree.put("a", b"a!");
        assert_eq!(arrival.missing(), [("a".to_owned(), MissingBecause::Foreign)]);
        let now = 95_000_000_000;
        arrival.tree.files.get_mut(&path("a")).expect("there").0.changed = now;
        assert_eq!(arrival.missing(), [("a".to_owned(), MissingBecause::Changing)]);
    }

    #[test]
    fn one_file_missing() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tenure(2, first, &[is("a", b"a2")]);
        arrival.tree.put("a", b"a2");
        arrival.tree.remove("b");
        assert_eq!(arrival.missing(), [("b".to_owned(), MissingBecause::NotHere)]);
        let Decision::NotArrived(missing) = arrival.decide() else { panic!("b is missing") };
        assert_eq!((missing.count, missing.of, missing.bytes), (1, 2, 2));
    }

    #[test]
    fn a_placeholder_is_not_downloaded() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tenure(2, first, &[is("a", b"a2")]);
        arrival.tree.put("a", b"a2");
        arrival.download("a", false);
        let missing = [("a".to_owned(), MissingBecause::NotDownloaded)];
        assert_eq!(arrival.missing(), missing);
        assert_eq!(missing[0].1.to_string(), "is not downloaded");
        arrival.download("a", true);
        arrival.adopt();
        // A file that was here before, and whose content the sync tool has removed since.
        arrival.download("b", false);
        let missing = [("b".to_owned(), MissingBecause::NotDownloaded)];
        assert_eq!(arrival.missing(), missing);
        arrival.download("b", true);
        arrival.adopt();
    }

    #[test]
    fn one_conflict_copy() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tenure(2, first, &[is("a", b"a2")]);
        let copy = "a.sync-conflict-20240101-120000-ABCDEFG";
        arrival.tree.put("a", b"phone");
        arrival.tree.put(copy, b"a2");
        let overwritten = MissingBecause::Overwritten { copy: path(copy) };
        assert_eq!(arrival.missing(), [("a".to_owned(), overwritten.clone())]);
        arrival.tree.remove("a");
        assert_eq!(arrival.missing(), [("a".to_owned(), overwritten)]);
        // A copy beside the wanted content keeps nobody from being ready.
        arrival.tree.put("a", b"a2");
        let Decision::Ready(arrived) = arrival.decide() else { panic!("a is here") };
        assert_eq!(arrived.strays, [path(copy)]);
        assert!(arrived.updates.iter().all(|(path, _)| path.as_str() == "a"));
    }

    #[test]
    fn a_foreign_edit_and_a_foreign_file() {
        let mut arrival = Arrival::new();
        arrival.tree.put("b", b"phone");
        arrival.tree.put("new", b"phone");
        let foreign = |name: &str| (name.to_owned(), MissingBecause::Foreign);
        assert_eq!(arrival.missing(), [foreign("b"), foreign("new")]);
        // The same content with another time is no edit.
        arrival.tree.put("b", b"b1");
        arrival.tree.remove("new");
        arrival.adopt();
        let hashed = arrival.tree.hashed;
        arrival.adopt();
        assert_eq!(arrival.tree.hashed, hashed, "the ledger knows it now");
    }

    #[test]
    fn an_ignored_path() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let rules = || IgnoreRules::parse("*.o\n").expect("valid");
        let digest = ContentDigest::of(b"*.o\n");
        let mut marker = TestMarkers::made(2, 1, Some(first), &[]);
        marker.ignore = Some(digest);
        let link = arrival.markers.put(&marker);
        arrival.clean(2, link);
        arrival.rules = rules();
        arrival.tree.put("y.o", b"here");
        let Decision::NotArrived(missing) = arrival.decide() else { panic!("other rules") };
        assert!(missing.is_other_ignore && missing.count == 0);
        arrival.rules = rules().with_digest(digest);
        let Decision::Ready(arrived) = arrival.decide() else { panic!("the same rules") };
        assert_eq!(arrived.coverage.not_covered.first[0].0, path("y.o"));
        arrival.adopt();
    }

    /// Anybody who can write the folder can write ignore rules.
    #[test]
    fn a_rule_lets_no_machine_go_on_without_a_path_that_a_marker_names() {
        let mut shared = IgnoreRules::parse("*").expect("valid");
        shared.add_syncthing("*").expect("short");
        let mut arrival = Arrival::new();
        arrival.rules = shared;
        let first = arrival.first();
        let second = arrival.tenure(2, first, &[is("a", b"a2"), gone("b"), is("c", b"c2")]);
        let all = [
            ("a".to_owned(), superseded(1, 2)),
            ("b".to_owned(), MissingBecause::NotYetDeleted),
            ("c".to_owned(), MissingBecause::NotHere),
        ];
        assert_eq!(arrival.missing(), all);
        let Decision::NotArrived(missing) = arrival.decide() else { panic!("a is missing") };
        assert_eq!(missing.coverage.despite.count, 3, "the rule is named");
        // A checkpoint of the same says the same.
        let again = arrival.markers.checkpoint(2, Some(second), &[is("a", b"a2"), is("c", b"c2")]);
        arrival.clean(2, again);
        assert_eq!(arrival.missing(), all);
        arrival.tree.put("a", b"a2");
        arrival.tree.put("c", b"c2");
        arrival.tree.remove("b");
        arrival.adopt();
        arrival.tree.put("a", b"old");
        assert_eq!(arrival.missing(), [("a".to_owned(), MissingBecause::Foreign)]);
    }

    #[test]
    fn a_path_that_was_given_up_elsewhere_keeps_nobody_waiting() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tree.put("a", b"anything");
        arrival.tree.remove("b");
        let named = [is("c", b"c"), ignored("a"), ignored("b")];
        let top = arrival.markers.checkpoint(2, Some(first), &named);
        arrival.clean(2, top);
        arrival.tree.put("c", b"c");
        arrival.adopt();
        let ledger = &arrival.ledger;
        assert_eq!(ledger.paths().collect::<Vec<_>>(), [&path("c")]);
        assert!(ledger.is_given_up(&path("a")) && ledger.is_given_up(&path("b")));
        arrival.tree.put("b", b"something");
        arrival.adopt();
        // A guard publishes one of them again.
        arrival.tenure(3, top, &[is("a", b"a3")]);
        assert_eq!(arrival.missing(), [("a".to_owned(), MissingBecause::Foreign)]);
        arrival.tree.put("a", b"a3");
        arrival.adopt();
        assert!(!arrival.ledger.is_given_up(&path("a")));
        assert!(arrival.ledger.entry(&path("a")).is_some());
    }

    #[test]
    fn two_tenures_on_one_file() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let second = arrival.tenure(2, first, &[is("a", b"a2"), gone("b")]);
        arrival.tenure(3, second, &[is("a", b"a3"), is("b", b"b3")]);
        arrival.tree.put("a", b"a2");
        assert_eq!(
            arrival.missing(),
            [("a".to_owned(), superseded(2, 3)), ("b".to_owned(), superseded(1, 3))]
        );
        arrival.tree.put("a", b"a3");
        arrival.tree.put("b", b"b3");
        arrival.adopt();
    }

    #[test]
    fn after_a_checkpoint() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let second = arrival.markers.marker(2, Some(first), &[is("a", b"a2")]);
        let third = arrival.markers.checkpoint(3, Some(second), &[is("a", b"a2"), is("c", b"c3")]);
        arrival.clean(3, third);
        // The older markers were removed, and this machine never saw one of them.
        arrival.markers.remove(second);
        arrival.markers.remove(first);
        let not_deleted = ("b".to_owned(), MissingBecause::NotYetDeleted);
        arrival.tree.put("a", b"a2");
        assert_eq!(arrival.missing(), [not_deleted, ("c".to_owned(), MissingBecause::NotHere)]);
        arrival.tree.put("c", b"c3");
        arrival.tree.remove("b");
        arrival.adopt();
        assert_eq!(arrival.ledger.since_checkpoint(), (Some(third), MarkerCounts::default()));
        let mut fresh = Arrival { ledger: Ledger::default(), ..arrival };
        fresh.adopt();
        assert_eq!(fresh.ledger.file_count(), 2);
    }

    #[test]
    fn the_own_handover_needs_no_marker_and_all_files() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.previous = previous(HandoverKind::Dirty, 5, None);
        assert!(arrival.unsure().contains("laptop5 (token 5) changed the folder"));
        arrival.ledger.record_own(HandoverId(77));
        arrival.ledger.log_mut().end(&path("new"), None);
        arrival.adopt();
        assert_eq!(arrival.ledger.verified, Some(first));
        assert!(!arrival.ledger.log().is_empty(), "the log goes on");
        arrival.tree.put("new", b"x");
        assert_eq!(arrival.missing(), [("new".to_owned(), MissingBecause::Foreign)]);
        let stamp = arrival.tree.files[&path("new")].0.stamp;
        arrival.ledger.log_mut().end(&path("new"), Some(stamp));
        arrival.adopt();
        arrival.tree.remove("new");
        assert_eq!(arrival.missing(), [("new".to_owned(), MissingBecause::NotHere)]);
    }

    #[test]
    fn a_dirty_tenure_is_ended_by_its_last_marker() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.previous = previous(HandoverKind::Accepted, 5, None);
        // One that was written while the gate was open, and one before the last announcement.
        let open = TestMarkers::made(5, 2, Some(first), &[is("a", b"a5")]);
        arrival.markers.put(&open);
        arrival.markers.last(5, 1, Some(first), &[is("a", b"early")]);
        arrival.unsure();
        let last = arrival.markers.last(5, 2, Some(first), &[is("a", b"a6")]);
        assert_eq!(arrival.missing(), [("a".to_owned(), superseded(1, 5))]);
        arrival.tree.put("a", b"a6");
        arrival.adopt();
        assert_eq!(arrival.ledger.verified, Some(last));
        assert_eq!(arrival.ledger.counts, MarkerCounts { markers: 1, paths: 1 });
    }

    #[test]
    fn nobody_is_sure_without_a_handover() {
        let mut arrival = Arrival::new();
        arrival.previous.end = HandoverEnd::Unknown;
        assert!(arrival.unsure().contains("was restored"));
        arrival.previous.handover = Remembered::Nothing;
        assert!(arrival.unsure().contains("does not know the folder"));
        arrival.previous.handover = Remembered::read(Some("x"));
        assert!(arrival.unsure().contains("no handover: it is not of version 1"));
        let alone = arrival.markers.marker(4, None, &[]);
        arrival.clean(4, alone);
        assert!(arrival.unsure().contains("no checkpoint"));
    }

    /// The data of the lock service was put back: it names an older marker, and the markers of the
    /// tenures since then are here.
    #[test]
    fn a_service_that_has_forgotten_tenures_decides_nothing() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let second = arrival.tenure(2, first, &[is("a", b"a2")]);
        let third = arrival.markers.marker(3, Some(second), &[is("b", b"b3")]);
        assert!(arrival.unsure().contains("a marker of the tenure 3 is here"));
        arrival.clean(3, third);
        assert_eq!(arrival.missing().len(), 2, "the service knows it again");
        // A machine that goes on from its own handover has not seen the third tenure.
        arrival.ledger.record_own(HandoverId(77));
        arrival.previous = previous(HandoverKind::Clean, 1, Some(first));
        assert!(arrival.unsure().contains("an older copy of its data was put back"));
        // Its own marker, which its ledger does not know, was written right before it was killed.
        arrival.previous.client = "laptop3".to_owned();
        let tenure = |token| TenureId { engine: ENGINE, token: Token::named(token) };
        let of_others =
            |but| super::super::chain::later_than(&arrival.markers.files, tenure(2), first, but);
        assert_eq!((of_others(None), of_others(Some("laptop3"))), (Some(tenure(3)), None));
        // An accepted marker builds on the first one, and the forgotten ones decide nothing more.
        let accepted = arrival.markers.marker(2, Some(first), &[is("b", b"b1"), is("c", b"c2")]);
        arrival.ledger = Ledger::default();
        arrival.clean(2, accepted);
        assert_eq!(arrival.missing(), [("c".to_owned(), MissingBecause::NotHere)]);
    }

    #[test]
    fn a_decision_names_so_many_paths() {
        use super::super::comparison::MISSING_SHOWN_MAX;
        let mut arrival = Arrival::new();
        let first = arrival.first();
        let all: Vec<_> =
            (0..=MISSING_SHOWN_MAX).map(|number| is(&format!("{number:04}"), b"x")).collect();
        arrival.tenure(2, first, &all);
        let Decision::NotArrived(missing) = arrival.decide() else { panic!("none is here") };
        assert_eq!(missing.paths.len(), MISSING_SHOWN_MAX);
        assert_eq!((missing.count, missing.bytes), (1_001, 1_001));
    }

    #[test]
    fn names_that_differ_by_normalization_are_one_path() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tenure(2, first, &[is("caf\u{e9}", b"x")]);
        arrival.tree.put("cafe\u{301}", b"x");
        arrival.adopt();
        let entry: &LedgerEntry = arrival.ledger.entry(&path("caf\u{e9}")).expect("known");
        assert_eq!(entry.digest, ContentDigest::of(b"x"));
    }

    #[test]
    fn only_files_of_the_wanted_size_are_hashed() {
        let mut arrival = Arrival::new();
        let first = arrival.first();
        arrival.tenure(2, first, &[is("a", b"longer")]);
        arrival.tree.put("a", b"now");
        let hashed = arrival.tree.hashed;
        arrival.missing();
        arrival.missing();
        assert_eq!(arrival.tree.hashed, hashed);
        arrival.tree.put("a", b"long!!");
        arrival.missing();
        arrival.missing();
        assert_eq!(arrival.tree.hashed, hashed + 1);
        arrival.tree.put("a", b"longer");
        arrival.tree.busy = Some(path("a"));
        assert_eq!(arrival.missing(), [("a".to_owned(), MissingBecause::Foreign)]);
        arrival.tree.busy = None;
        arrival.adopt();
    }
}
