//! Acceptance: a person goes on without what has not arrived.

use super::arrival_target::Barrier;
use super::comparison::compare;
use super::folder_path::FolderPath;
use super::handover::{Handover, HandoverId, HandoverKind};
use super::ledger::Ledger;
use super::marker::Acceptance;
use super::ready::{Arrived, Decision};
use super::strays::original_of;
use super::tree::{DigestCache, FileStamp, FolderTree, hidden};
use std::collections::BTreeSet;
use std::io;

/// The paths that a person accepts. The acceptance takes effect when the lock service has the
/// handover.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
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
    pub(crate) fn reason(&self) -> &str {
        &self.acceptance.reason
    }
}

impl Barrier<'_> {
    /// Accepts the whole folder as it stands. The next marker is a checkpoint.
    pub(crate) fn accept_all(
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
                // The next marker names it as the ledger knows it.
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
    pub(crate) fn accept_paths(
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
        // The rules of this machine are those that the person means.
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
    /// accepted as far as anybody was told.
    pub(crate) fn begin_acceptance(&self, accepted: &Accepted, next: u64) -> Handover {
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
    pub(crate) fn accept(&mut self, accepted: Accepted) {
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
    use super::super::content_digest::ContentDigest;
    use super::super::handover::{HandoverEnd, MarkerCounts, PreviousTenure, Remembered};
    use super::super::ignored::IgnoreRules;
    use super::super::marker::PathState;
    use super::super::marker_name::{MarkerKind, MarkerLink};
    use super::super::test_markers::{ENGINE, TestMarkers, gone, is};
    use super::super::test_tree::{TestTree, path};
    use super::*;
    use crate::engine::Token;

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
