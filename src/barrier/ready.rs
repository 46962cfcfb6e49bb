//! The decision whether the folder is ready: everything that the markers name is here, byte for
//! byte, or somebody must wait or accept.
//!
//! The paths that have not arrived, and the reasons.
//!
//! Acceptance: a person goes on without what has not arrived.

use super::arrival_target::{Barrier, NoTarget, Target, Unsure};
use super::chain::{ChainBase, WantedPath};
use super::comparison::{Comparison, compare};
use super::coverage::CoverageReport;
use super::folder_path::FolderPath;
use super::handover::{Handover, HandoverId, HandoverKind, MarkerCounts};
use super::ledger::{Ledger, LedgerUpdate};
use super::marker::{Acceptance, PathState};
use crate::comparison::original_of;
use crate::folder_path::{DigestCache, FileStamp, FolderTree, hidden};
use crate::marker::MarkerLink;
use crate::tenure_id::TenureId;
use std::collections::BTreeSet;
use std::{fmt, io};

/// The facts that a ready folder adds to the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
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
    pub strays: Vec<FolderPath>,
    /// The paths for which an ignore rule makes a difference, or would.
    pub coverage: CoverageReport,
}

impl Arrived {
    /// Whether the arrival tells the ledger anything new.
    pub fn is_news(&self) -> bool {
        self.top.is_some() || !self.updates.is_empty()
    }

    /// Returns the versions that other machines have published since the ledger was last compared.
    pub fn other_versions(&self, ledger: &Ledger) -> Vec<FileStamp> {
        // If the last handover is this machine's own, no other machine has published anything
        // since.
        if self.top.is_none() {
            return Vec::new();
        }
        let known = |path| ledger.entry(path).map(|entry| entry.digest);
        let news = self.updates.iter().filter_map(|(path, entry)| Some((path, entry.as_ref()?)));
        let other = news.filter(|(path, entry)| known(path) != Some(entry.digest));
        other.map(|(_, entry)| entry.stamp).collect()
    }

    /// Whether the folder is another one than when it was last ready.
    pub fn differs_from(&self, ledger: &Ledger) -> bool {
        self.top.is_some_and(|top| ledger.verified != Some(top)) || !self.updates.is_empty()
    }
}

/// Whether programs may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Everything that should be in the folder is here.
    Ready(Arrived),
    /// It is known what should be in the folder, and some of it is not here.
    NotArrived(NotArrived),
    /// It is not known what should be in the folder.
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
    pub fn decide(
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
    pub fn adopt(&mut self, arrived: Arrived) {
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

/// A version, as a message names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionName {
    /// The client that published the version; `None` if its marker is no longer here.
    pub holder: Option<String>,
    /// The tenure in which it was published.
    pub tenure: TenureId,
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.tenure.token.as_u64();
        match &self.holder {
            Some(holder) => write!(f, "{holder}'s version ({token})"),
            None => write!(f, "the version of tenure {token}"),
        }
    }
}

/// Why a path has not arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingBecause {
    /// No file has the path.
    NotHere,
    /// The sync tool keeps a placeholder in place of the content.
    NotDownloaded,
    /// The content is not the wanted one, and was changed in the last seconds.
    Changing,
    /// The file is gone elsewhere, and a known version still stands here.
    NotYetDeleted,
    /// A known other version stands where this one should be.
    Superseded {
        /// The version that stands here.
        stands: VersionName,
        /// The version that should be here; `None` if this machine changed the path and no marker
        /// names it yet.
        wanted: Option<VersionName>,
    },
    /// The content is one that no guard knows.
    Foreign,
    /// The wanted content stands under the name of a conflict copy.
    Overwritten {
        /// The conflict copy.
        copy: FolderPath,
    },
    /// Two files have names that differ by Unicode normalization alone.
    TwoNames,
}

impl fmt::Display for MissingBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHere => f.write_str("is not here yet"),
            Self::NotDownloaded => f.write_str("is not downloaded"),
            Self::Changing => f.write_str("is still being changed"),
            Self::NotYetDeleted => f.write_str("is not deleted yet, which may take a minute"),
            Self::Superseded { stands, wanted: Some(wanted) } => {
                write!(f, "{stands} stands where {wanted} should be")
            }
            Self::Superseded { stands, wanted: None } => {
                write!(f, "{stands} stands where the version of this machine should be")
            }
            Self::Foreign => f.write_str("was changed by a program that is no guard"),
            Self::Overwritten { copy } => {
                write!(f, "was overwritten from elsewhere; '{copy}' has the wanted content")
            }
            Self::TwoNames => f.write_str("has two names that differ by normalization alone"),
        }
    }
}

/// A path that has not arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPath {
    /// The path.
    pub path: FolderPath,
    /// Why the path has not arrived.
    pub because: MissingBecause,
    /// The size of the wanted content.
    pub bytes: u64,
}

/// The list of what has not arrived.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NotArrived {
    /// A marker that is not here. Nothing is known of the paths that it names.
    pub marker: Option<MarkerLink>,
    /// Whether `.latchfs/ignore` is not the one of the newest marker.
    pub is_other_ignore: bool,
    /// The first of the paths.
    pub paths: Vec<MissingPath>,
    /// The number of all paths that have not arrived.
    pub count: u64,
    /// The bytes of the wanted content of these paths.
    pub bytes: u64,
    /// The number of paths that had to arrive.
    pub of: u64,
    /// The paths for which an ignore rule makes a difference, or would.
    pub coverage: CoverageReport,
}

impl NotArrived {
    pub(super) fn of_marker(marker: MarkerLink) -> Self {
        Self { marker: Some(marker), ..Self::default() }
    }

    /// Returns the paths if nothing is missing but versions that no guard knows. There are none if
    /// the list of paths does not name all.
    pub fn all_foreign(&self) -> Option<BTreeSet<FolderPath>> {
        let is_foreign = |it: &MissingPath| it.because == MissingBecause::Foreign;
        let is_all = self.count == self.paths.len() as u64 && self.paths.iter().all(is_foreign);
        let is_known = self.marker.is_none() && !self.is_other_ignore && self.count > 0;
        (is_all && is_known).then(|| self.paths.iter().map(|it| it.path.clone()).collect())
    }

    /// Whether everything has arrived.
    pub(super) fn is_nothing(&self) -> bool {
        self.marker.is_none() && !self.is_other_ignore && self.count == 0
    }
}

/// The paths that a person accepts. The acceptance takes effect when the lock service has the
/// handover.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// The paths that have arrived beside the accepted ones; `None` if the whole folder is
    /// accepted.
    arrived: Option<Arrived>,
    /// Each accepted path as it stands.
    paths: Vec<(FolderPath, Option<FileStamp>)>,
    /// The paths that a rule ignores, and that are no longer covered.
    given_up: BTreeSet<FolderPath>,
    /// The reason, for the next marker.
    acceptance: Acceptance,
}

impl Accepted {
    /// Returns the reason that the person or the option gave.
    pub fn reason(&self) -> &str {
        &self.acceptance.reason
    }
}

impl Barrier<'_> {
    /// Accepts the whole folder as it stands. The next marker is a checkpoint.
    pub fn accept_all(
        &self,
        tree: &mut dyn FolderTree,
        acceptance: Acceptance,
    ) -> io::Result<Accepted> {
        let target = self.target().ok();
        let wanted = target.as_ref().map(|target| &target.chain);
        let files = self.coverage(target.as_ref()).covered_files(tree)?;
        let is_wanted =
            |path: &FolderPath| wanted.is_some_and(|chain| chain.wanted.contains_key(path));
        let mut paths = Vec::new();
        for path in &files.absent {
            match tree.is_hidden(path)? {
                false => paths.push((path.clone(), None)),
                // A mount hides the path, and the next marker names it as the ledger knows it.
                true if self.ledger.entry(path).is_some() && !is_wanted(path) => {}
                true => return Err(hidden(path)),
            }
        }
        for (path, found_here) in &files.standing {
            let is_known = self.ledger.entry(path).is_some()
                || self.ledger.log().get(path).is_some()
                || is_wanted(path);
            if is_known || original_of(path, |at| files.standing.contains_key(at)).is_none() {
                paths.push((path.clone(), Some(found_here.stamp)));
            }
        }
        let given_up = BTreeSet::new();
        Ok(Accepted { arrived: None, paths, given_up, acceptance })
    }

    /// Accepts some paths as they stand, or returns what has not arrived beside them. A path that a
    /// rule ignores is given up instead, and so is each such path below it.
    pub fn accept_paths(
        &self,
        paths: &BTreeSet<FolderPath>,
        tree: &mut dyn FolderTree,
        cache: &mut DigestCache,
        acceptance: Acceptance,
    ) -> io::Result<Result<Accepted, Decision>> {
        let target = match self.target() {
            Ok(target) => target,
            Err(none) => return Ok(Err(none.into())),
        };
        let coverage = self.coverage(Some(&target));
        let given_up = coverage.despite_rules(paths);
        let passed_over: BTreeSet<_> = paths.union(&given_up).cloned().collect();
        let mut compared = compare(self, &target, &passed_over, tree, cache)?;
        // The person gives paths up by the ignore rules of this machine, so that the rules of the
        // newest marker need not arrive first.
        compared.missing.is_other_ignore &= given_up.is_empty();
        let is_dir = |path: &FolderPath| given_up.iter().any(|at| at.is_below(path));
        let is_meant = |path: &&FolderPath| {
            coverage.covers(path) && !given_up.contains(*path) && !is_dir(path)
        };
        let as_they_stand = paths.iter().filter(is_meant);
        let stamp = |path: &FolderPath| compared.files.standing.get(path).map(|it| it.stamp);
        let paths = as_they_stand.map(|path| (path.clone(), stamp(path))).collect();
        Ok(match Self::decision(&target, compared) {
            Decision::Ready(arrived) => {
                Ok(Accepted { arrived: Some(arrived), paths, given_up, acceptance })
            }
            decision => Err(decision),
        })
    }
}

impl Ledger {
    /// Returns the handover of an acceptance, which is sent at once. It is no own one before the
    /// acceptance is recorded: otherwise the folder would be ready here although it was never
    /// accepted as far as anybody knows.
    pub fn begin_acceptance(&self, accepted: &Accepted, next: u64) -> Handover {
        let id: HandoverId = accepted.acceptance.handover;
        let kind = HandoverKind::Accepted;
        let arrived = accepted.arrived.as_ref();
        let (marker, counts) = match arrived.and_then(|arrived| Some((arrived.top?, arrived))) {
            Some((top, arrived)) => (Some(top), arrived.counts),
            None => (self.verified, self.counts),
        };
        Handover { id, kind, next, marker, counts }
    }

    /// Records an acceptance that the lock service has: the folder is ready.
    pub fn accept(&mut self, accepted: Accepted) {
        self.record_own(accepted.acceptance.handover);
        match accepted.arrived {
            Some(arrived) => self.adopt(arrived),
            None => self.log.accept_whole(),
        }
        for (path, found) in accepted.paths {
            self.log.accept(&path, found);
        }
        if !accepted.given_up.is_empty() {
            self.accept_ignored(accepted.given_up);
        }
        self.accepted = Some(accepted.acceptance);
    }
}

#[cfg(test)]
mod tests {
    use super::super::handover::{Handover, HandoverId, HandoverKind};
    use super::super::handover::{HandoverEnd, PreviousTenure, Remembered};
    use super::super::ignored::IgnoreRules;
    use super::super::ledger::LedgerEntry;
    use super::super::marker::Change;
    use super::super::test_markers::{ENGINE, TestMarkers, gone, ignored, is};
    use super::*;
    use crate::folder_path::ContentDigest;
    use crate::ready::{MissingBecause, MissingPath, VersionName};
    use crate::tenure_id::TenureId;
    use crate::test_markers::{TestTree, path};
    use engine::Token;

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
        // A checkpoint with the same versions as the markers leaves the same paths missing.
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
        // A guard publishes a path again that was given up.
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
        // Two markers that do not end the tenure: one was written while the gate was open, and one
        // before the last announcement.
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
        assert!(arrival.unsure().contains("no handover: its field 'version' is missing"));
        arrival.previous.handover = Remembered::read(Some("2 later"));
        let both = "no handover: it has version 2, and this latchfs knows version 1";
        assert!(arrival.unsure().contains(both));
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

#[cfg(test)]
mod missing_tests {
    use super::*;

    #[test]
    fn only_foreign_versions_are_accepted_by_an_option() {
        let path = |name: &str, because| MissingPath {
            path: FolderPath::parse(name).expect("valid"),
            because,
            bytes: 1,
        };
        let of = |paths: Vec<MissingPath>, count| {
            let missing = NotArrived { paths, count, ..NotArrived::default() };
            missing.all_foreign().map(|paths| paths.len())
        };
        let foreign = |name| path(name, MissingBecause::Foreign);
        assert_eq!(of(vec![foreign("a"), foreign("b")], 2), Some(2));
        assert_eq!(of(vec![foreign("a"), path("b", MissingBecause::NotHere)], 2), None);
        assert_eq!(of(vec![foreign("a")], 2), None, "one of the paths is not in the list");
        assert_eq!(of(Vec::new(), 0), None);
        let other = NotArrived {
            is_other_ignore: true,
            paths: vec![foreign("a")],
            count: 1,
            ..NotArrived::default()
        };
        assert_eq!(other.all_foreign(), None);
    }
}

#[cfg(test)]
mod acceptance_tests {
    use super::super::handover::{HandoverEnd, MarkerCounts, PreviousTenure, Remembered};
    use super::super::ignored::IgnoreRules;
    use super::super::marker::PathState;
    use super::super::test_markers::{ENGINE, TestMarkers, gone, is};
    use super::*;
    use crate::folder_path::ContentDigest;
    use crate::marker::{MarkerKind, MarkerLink};
    use crate::test_markers::{TestTree, path};
    use engine::Token;

    struct Waiting {
        ledger: Ledger,
        markers: TestMarkers,
        rules: IgnoreRules,
        previous: PreviousTenure,
        tree: TestTree,
    }

    fn clean(marker: MarkerLink) -> PreviousTenure {
        let counts = MarkerCounts { markers: 3, paths: 9 };
        let (id, kind) = (HandoverId(77), HandoverKind::Clean);
        let handover = Handover { id, kind, next: 2, marker: Some(marker), counts };
        PreviousTenure {
            seq: 1,
            token: Token::named(2),
            client: "laptop2".to_owned(),
            at: 0,
            end: HandoverEnd::Released,
            handover: Remembered::Handover(handover),
        }
    }

    impl Waiting {
        /// A machine that has neither `a` nor `b` of another one's tenure.
        fn new() -> Self {
            let mut markers = TestMarkers::default();
            let first = markers.checkpoint(1, None, &[is("a", b"a1"), is("old", b"x")]);
            let changes = [is("a", b"a2"), is("b", b"b2"), gone("old")];
            let second = markers.marker(2, Some(first), &changes);
            let (ledger, rules, tree) =
                (Ledger::default(), IgnoreRules::default(), TestTree::default());
            Self { ledger, markers, rules, previous: clean(second), tree }
        }

        fn barrier(&self) -> Barrier<'_> {
            let (previous, ledger, rules) = (&self.previous, &self.ledger, &self.rules);
            let markers = &self.markers.files;
            Barrier { previous, engine: ENGINE, ledger, markers, rules, now: 0 }
        }

        fn accept(&mut self, paths: &[&str]) -> Result<Handover, Box<Decision>> {
            let acceptance = Acceptance { handover: HandoverId(5), reason: "lost".to_owned() };
            let mut tree = self.tree.clone();
            let accepted = if paths.is_empty() {
                self.barrier().accept_all(&mut tree, acceptance).expect("no disk")
            } else {
                let paths = paths.iter().map(|at| path(at)).collect();
                let mut cache = DigestCache::default();
                let barrier = self.barrier();
                let accepted = barrier.accept_paths(&paths, &mut tree, &mut cache, acceptance);
                accepted.expect("no disk").map_err(Box::new)?
            };
            let handover = self.ledger.begin_acceptance(&accepted, 1);
            self.ledger.accept(accepted);
            Ok(handover)
        }

        fn listed(&self, kind: MarkerKind) -> (MarkerKind, Vec<(String, bool)>) {
            let head = super::super::marking::MarkerHead {
                folder: "f",
                lock: "l",
                holder: "h",
                at: 0,
                tenure: TestMarkers::made(3, 1, None, &[]).name.tenure,
                number: 1,
                is_last: false,
            };
            let listing = self.ledger.list_changes(kind, &self.rules, &mut self.tree.clone());
            let listing = listing.expect("no disk").expect("no change meanwhile");
            let marker = listing.marker(&self.ledger, &head);
            assert_eq!(marker.accepted.as_ref().map(|it| &*it.reason), Some("lost"));
            assert!(marker.changes.iter().all(|change| !change.is_foreign));
            let is_there = |change: &super::super::marker::Change| change.state != PathState::Gone;
            let of =
                |change: &super::super::marker::Change| (change.path.to_string(), is_there(change));
            (marker.name.kind, marker.changes.iter().map(of).collect())
        }
    }

    #[test]
    fn the_whole_folder_is_accepted_as_it_stands() {
        let mut waiting = Waiting::new();
        waiting.tree.put("a", b"own");
        let copy = "b (conflicted copy)";
        waiting.tree.put(copy, b"b1");
        let handover = waiting.accept(&[]).expect("everything can be accepted");
        assert_eq!((handover.kind, handover.marker), (HandoverKind::Accepted, None));
        assert!(waiting.ledger.is_own(HandoverId(5)));
        // The next marker is a checkpoint, whatever was asked for: 'b' and 'old' are gone.
        let (kind, named) = waiting.listed(MarkerKind::Marker);
        assert_eq!((kind, named), (MarkerKind::Checkpoint, vec![("a".to_owned(), true)]));
        let logged: Vec<_> = waiting.ledger.log().paths().map(FolderPath::as_str).collect();
        assert_eq!(logged, ["a", "b", "old"]);
    }

    #[test]
    fn one_path_is_accepted_once_the_others_are_here() {
        let mut waiting = Waiting::new();
        waiting.tree.put("b", b"b1");
        let refused = waiting.accept(&["b"]).map_err(|decision| *decision);
        let Err(Decision::NotArrived(missing)) = refused else {
            panic!("a is missing");
        };
        assert_eq!((missing.count, missing.paths[0].path.as_str()), (1, "a"));
        assert!(!waiting.ledger.is_own(HandoverId(5)) && waiting.ledger.log().is_empty());
        waiting.tree.put("a", b"a2");
        let handover = waiting.accept(&["b"]).expect("a is here");
        assert_eq!(handover.marker, waiting.ledger.verified());
        assert_eq!(handover.counts, MarkerCounts { markers: 3, paths: 9 });
        let entry = waiting.ledger.entry(&path("a")).expect("adopted");
        assert_eq!(entry.digest, ContentDigest::of(b"a2"));
        let (kind, named) = waiting.listed(MarkerKind::Marker);
        assert_eq!((kind, named), (MarkerKind::Marker, vec![("b".to_owned(), true)]));
    }

    /// A path that the sync tool keeps back never comes.
    #[test]
    fn a_path_that_a_rule_ignores_is_given_up() {
        let mut waiting = Waiting::new();
        waiting.tree.put("a", b"a2");
        waiting.rules = IgnoreRules::parse("b").expect("valid");
        let handover = waiting.accept(&["b"]).expect("a is here");
        assert_eq!(handover.kind, HandoverKind::Accepted);
        assert!(waiting.ledger.is_given_up(&path("b")) && !waiting.ledger.log().is_empty());
        let listing = waiting.ledger.list_changes(
            MarkerKind::Marker,
            &waiting.rules,
            &mut waiting.tree.clone(),
        );
        let listing = listing.expect("no disk").expect("no change meanwhile");
        let named: Vec<_> =
            listing.changes().iter().map(|it| (it.path.as_str(), it.state)).collect();
        assert_eq!((named.len(), named[1]), (2, ("b", PathState::Ignored)));
        // The acceptance of the whole folder gives nothing up.
        let mut waiting = Waiting::new();
        waiting.tree.put("a", b"a2");
        waiting.rules = IgnoreRules::parse("*").expect("valid");
        waiting.accept(&[]).expect("everything can be accepted");
        assert!(!waiting.ledger.is_given_up(&path("a")));
        assert_eq!(waiting.listed(MarkerKind::Marker).1, [("a".to_owned(), true)]);
    }

    #[test]
    fn a_missing_path_is_accepted_as_gone() {
        let mut waiting = Waiting::new();
        waiting.tree.put("a", b"a2");
        waiting.accept(&["b"]).expect("a is here");
        assert_eq!(waiting.listed(MarkerKind::Marker).1, [("b".to_owned(), false)]);
        waiting.previous.handover = Remembered::Nothing;
        let refused = waiting.accept(&["b"]).map_err(|decision| *decision);
        assert!(matches!(refused, Err(Decision::Unsure(_))), "no handover");
        waiting.accept(&[]).expect("everything can be accepted");
    }
}
