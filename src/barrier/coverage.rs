//! Decides which paths the sync barrier covers: a machine is ready when each covered path stands as
//! the markers say, and its markers name each covered path that it changed. All parts of the
//! barrier use this decision, and nothing else reads the ignore rules.
//!
//! - Ignore rules come from `.latchfs/ignore`, which all machines share, from the sync tool of this
//!   machine, which answers for itself, and from this guard's own options. They narrow what a *new*
//!   marker names, and nothing else: anybody who can write the folder may have written them.
//! - A path stays covered while the newest marker that names it, the ledger or the change log does,
//!   whatever a rule says. A local file (`--local`) is no exception: a path that markers name is a
//!   file of the folder. Such a rule changes nothing, and `guard status` and `doctor` name it.
//! - `guard accept PATH` gives such a path up: the next marker, a checkpoint, names it as ignored,
//!   and it is covered on no machine until a guard publishes it again. It is in no marker as gone.
//! - Files that sync tools keep for themselves are not covered: at the top of the folder their
//!   directories, in any directory a file with a temporary name.

use super::chain::{Chain, ChainBase};
use super::folder_path::FolderPath;
use super::ignored::{IgnoreRules, IgnoredBecause};
use super::ledger::Ledger;
use super::marker::PathState;
use crate::folder_path::{FolderTree, FoundFile};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The maximum number of paths that a report names: a person reads no more.
pub(crate) const COVERAGE_SHOWN_MAX: usize = 20;

/// Whether the barrier covers a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// The path is covered.
    Covered,
    /// The path is covered because it is named already, although an ignore rule matches.
    Despite(IgnoredBecause),
    /// The path is not covered, for this reason.
    Not(IgnoredBecause),
}

impl Cover {
    fn is_covered(self) -> bool {
        !matches!(self, Self::Not(_))
    }
}

/// Some paths, of which the first are named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountedPaths {
    /// The number of all paths, whether named or not.
    pub count: u64,
    /// The first paths, each with the rule that matches.
    pub first: Vec<(FolderPath, IgnoredBecause)>,
}

impl CountedPaths {
    fn add(&mut self, path: &FolderPath, because: IgnoredBecause) {
        self.count += 1;
        if self.first.len() < COVERAGE_SHOWN_MAX {
            self.first.push((path.clone(), because));
        }
    }
}

/// The paths for which an ignore rule makes a difference, or would.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoverageReport {
    /// The files that stand in the folder and that no marker names. Those that sync tools keep for
    /// themselves are left out.
    pub not_covered: CountedPaths,
    /// The covered paths that a rule would drop.
    pub despite: CountedPaths,
}

impl CoverageReport {
    /// Takes note of covered paths that were given up.
    pub fn give_up(&mut self, paths: &BTreeSet<FolderPath>) {
        let CountedPaths { count, first } = &mut self.despite;
        *count = count.saturating_sub(paths.len() as u64);
        first.retain(|(path, _)| !paths.contains(path));
    }
}

/// The covered part of the folder.
#[derive(Debug, Default)]
pub struct CoveredFiles {
    /// The covered files that stand in the folder.
    pub standing: BTreeMap<FolderPath, FoundFile>,
    /// The named paths under which no file was found, in their order.
    pub absent: Vec<FolderPath>,
    /// The paths under which two files were found, whose names differ by Unicode normalization
    /// alone.
    pub twice: Vec<FolderPath>,
    /// The paths for which a rule makes a difference.
    pub report: CoverageReport,
}

/// All that decides which paths are covered.
#[derive(Debug, Clone, Copy)]
pub struct Coverage<'a> {
    rules: &'a IgnoreRules,
    ledger: &'a Ledger,
    /// The markers that came after those of the ledger.
    chain: Option<&'a Chain>,
}

impl<'a> Coverage<'a> {
    /// Returns what this machine covers before it reads markers of other machines.
    pub fn of(rules: &'a IgnoreRules, ledger: &'a Ledger) -> Self {
        Self { rules, ledger, chain: None }
    }

    /// Returns this coverage with the markers of other machines, if their chain can be followed.
    pub(crate) fn with_chain(self, chain: Option<&'a Chain>) -> Self {
        Self { chain, ..self }
    }

    /// Whether the newest marker, the ledger or the change log names a path; `None` if they say
    /// that it is given up.
    fn is_named(&self, path: &FolderPath) -> Option<bool> {
        if self.ledger.log().get(path).is_some() {
            return Some(true);
        }
        match self.chain.and_then(|chain| chain.wanted.get(path)) {
            Some(wanted) => return (wanted.state != PathState::Ignored).then_some(true),
            None if self.ledger.entry(path).is_some() => return Some(true),
            None => {}
        }
        let is_decided_by_ledger = self.chain.is_none_or(|chain| chain.base == ChainBase::Ledger);
        if is_decided_by_ledger && self.ledger.is_given_up(path) { None } else { Some(false) }
    }

    /// Returns whether a path is covered. This is the only place that decides it.
    pub fn cover(&self, path: &FolderPath) -> Cover {
        match (self.is_named(path), self.rules.ignored(path)) {
            (None, because) => Cover::Not(because.unwrap_or(IgnoredBecause::GivenUp)),
            (Some(false), Some(because)) => Cover::Not(because),
            (Some(true), Some(because)) => Cover::Despite(because),
            (Some(_), None) => Cover::Covered,
        }
    }

    /// Whether a path is covered.
    pub fn covers(&self, path: &FolderPath) -> bool {
        self.cover(path).is_covered()
    }

    /// Whether the change log names a change that a program makes now. A path that was given up is
    /// covered again, unless a rule matches.
    pub fn covers_change(&self, path: &FolderPath) -> bool {
        self.is_named(path) == Some(true) || self.rules.ignored(path).is_none()
    }

    /// Whether a directory can be renamed as a whole: no file below it can be covered under one of
    /// its names and not under the other.
    pub fn is_same_everywhere(&self) -> bool {
        !self.rules.depend_on_place()
    }

    /// Returns the covered paths that a rule would drop, among some paths and all below them.
    pub fn despite_rules(&self, paths: &BTreeSet<FolderPath>) -> BTreeSet<FolderPath> {
        let is_meant =
            |at: &&FolderPath| paths.contains(at) || paths.iter().any(|dir| at.is_below(dir));
        let all = self.named().filter(is_meant);
        all.filter(|at| matches!(self.cover(at), Cover::Despite(_))).cloned().collect()
    }

    /// Returns the paths that are named, some of them more than once.
    fn named(&self) -> impl Iterator<Item = &'a FolderPath> {
        let of_chain = self.chain.into_iter().flat_map(|chain| chain.wanted.keys());
        self.ledger.paths().chain(self.ledger.log().paths()).chain(of_chain)
    }

    /// Returns the covered files of the folder, and the covered paths without a file.
    pub fn covered_files(&self, tree: &mut dyn FolderTree) -> io::Result<CoveredFiles> {
        let mut all = CoveredFiles::default();
        tree.walk(&mut |path, found| {
            match self.cover(&path) {
                Cover::Covered => {}
                Cover::Despite(because) => all.report.despite.add(&path, because),
                Cover::Not(IgnoredBecause::SyncTool) => return,
                Cover::Not(because) => return all.report.not_covered.add(&path, because),
            }
            if all.standing.contains_key(&path) {
                all.twice.push(path.clone());
            }
            all.standing.insert(path, found);
        })?;
        let is_absent = |path: &&FolderPath| !all.standing.contains_key(*path);
        let mut absent: Vec<_> =
            self.named().filter(is_absent).filter(|path| self.covers(path)).collect();
        absent.sort();
        absent.dedup();
        for path in &absent {
            if let Cover::Despite(because) = self.cover(path) {
                all.report.despite.add(path, because);
            }
        }
        all.absent = absent.into_iter().cloned().collect();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::walk;
    use super::super::ledger::LedgerEntry;
    use super::super::test_markers::{ENGINE, TestMarkers, gone, ignored, is};
    use super::*;
    use crate::folder_path::ContentDigest;
    use crate::folder_path::FileStamp;
    use crate::folder_path::PathPatterns;
    use crate::marker::{MarkerKind, MarkerName};
    use crate::tenure_id::TenureId;
    use crate::test_markers::{TestTree, path};
    use engine::Token;

    /// Returns the rules that ignore everything, each by one source.
    fn all_rules() -> [(IgnoreRules, IgnoredBecause); 3] {
        let shared = IgnoreRules::parse("*").expect("valid");
        let mut tool = IgnoreRules::default();
        tool.add_syncthing("*").expect("short");
        let local = PathPatterns::parse(&["*".to_owned()]).expect("valid");
        [
            (shared, IgnoredBecause::Pattern(1)),
            (tool, IgnoredBecause::SyncthingPattern(1)),
            (IgnoreRules::default().with_local(local), IgnoredBecause::Local),
        ]
    }

    /// Returns a ledger that knows these files.
    fn ledger(files: &[&str]) -> Ledger {
        let tenure = TenureId { engine: ENGINE, token: Token::named(1) };
        let from = MarkerName { kind: MarkerKind::Marker, tenure, number: 1 };
        let stamp = FileStamp { size: 1, mtime: 1, inode: 1 };
        let entry = LedgerEntry { stamp, digest: ContentDigest::of(b"x"), from };
        let mut ledger = Ledger::default();
        ledger.update(files.iter().map(|name| (path(name), Some(entry))).collect());
        ledger
    }

    #[test]
    fn no_rule_of_any_source_drops_a_named_path() {
        let mut ledger = ledger(&["in-ledger", "given-up"]);
        ledger.log_mut().end(&path("in-log"), None);
        ledger.accept_ignored([path("given-up")]);
        let mut markers = TestMarkers::default();
        let first = markers.checkpoint(1, None, &[]);
        let named = [is("d/file", b"1"), gone("removed"), ignored("accepted")];
        let top = markers.marker(2, Some(first), &named);
        let chain = walk(&markers.files, top, Some(first)).expect("all are here");
        for (rules, because) in all_rules() {
            let coverage = Coverage::of(&rules, &ledger).with_chain(Some(&chain));
            for name in ["in-ledger", "in-log", "d/file", "removed"] {
                assert_eq!(coverage.cover(&path(name)), Cover::Despite(because), "{name}");
            }
            for name in ["new", "d/new", "given-up", "accepted"] {
                assert_eq!(coverage.cover(&path(name)), Cover::Not(because), "{name}");
                assert!(!coverage.covers_change(&path(name)), "{name}");
            }
        }
        let rules = IgnoreRules::default();
        let coverage = Coverage::of(&rules, &ledger).with_chain(Some(&chain));
        for name in ["in-ledger", "in-log", "d/file", "removed", "new"] {
            assert_eq!(coverage.cover(&path(name)), Cover::Covered, "{name}");
        }
        // A path that a person has given up stays so without the rule, until a program changes it.
        for name in ["given-up", "accepted"] {
            assert_eq!(coverage.cover(&path(name)), Cover::Not(IgnoredBecause::GivenUp), "{name}");
            assert!(coverage.covers_change(&path(name)), "{name}");
        }
        ledger.log_mut().end(&path("given-up"), None);
        assert!(Coverage::of(&rules, &ledger).covers(&path("given-up")));
    }

    #[test]
    fn a_checkpoint_decides_what_is_given_up() {
        let mut ledger = Ledger::default();
        ledger.accept_ignored([path("before"), path("still")]);
        let mut markers = TestMarkers::default();
        let top = markers.checkpoint(2, None, &[ignored("still")]);
        let chain = walk(&markers.files, top, None).expect("here");
        let rules = IgnoreRules::default();
        let coverage = Coverage::of(&rules, &ledger).with_chain(Some(&chain));
        assert!(coverage.covers(&path("before")) && !coverage.covers(&path("still")));
    }

    #[test]
    fn files_of_sync_tools_hide_no_named_path_and_no_other_file() {
        let ledger = ledger(&[".stignore", "a.partial"]);
        let rules = IgnoreRules::default();
        let coverage = Coverage::of(&rules, &ledger);
        let by_name = IgnoredBecause::SyncTool;
        for (name, cover) in [
            (".stignore", Cover::Despite(by_name)),
            ("a.partial", Cover::Despite(by_name)),
            (".stfolder/x", Cover::Not(by_name)),
            ("d/.syncthing.a.tmp", Cover::Not(by_name)),
            ("d/.stfolder/x", Cover::Covered),
            ("d/.stignore", Cover::Covered),
            ("docs.partial/x", Cover::Covered),
        ] {
            assert_eq!(coverage.cover(&path(name)), cover, "{name}");
        }
    }

    #[test]
    fn a_report_names_what_is_not_covered_and_the_rules_that_change_nothing() {
        let (rules, because) = all_rules().into_iter().next().expect("three");
        let ledger = ledger(&["a", "absent"]);
        let mut tree = TestTree::default();
        for name in ["a", ".stfolder/x"] {
            tree.put(name, b"1");
        }
        let new: Vec<_> = (0..=COVERAGE_SHOWN_MAX).map(|n| format!("new{n:02}")).collect();
        for name in &new {
            tree.put(name, b"1");
        }
        let files = Coverage::of(&rules, &ledger).covered_files(&mut tree).expect("no disk");
        assert_eq!(files.standing.keys().collect::<Vec<_>>(), [&path("a")]);
        assert_eq!(files.absent, [path("absent")]);
        let CoverageReport { not_covered, mut despite } = files.report;
        assert_eq!(despite.first, [(path("a"), because), (path("absent"), because)]);
        let names: Vec<_> = not_covered.first.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(names, new[..COVERAGE_SHOWN_MAX]);
        assert_eq!((not_covered.count, despite.count), (COVERAGE_SHOWN_MAX as u64 + 1, 2));
        let mut report = CoverageReport { despite: std::mem::take(&mut despite), not_covered };
        report.give_up(&[path("a")].into());
        assert_eq!(report.despite.first, [(path("absent"), because)]);
    }

    #[test]
    fn a_person_gives_up_paths_and_all_below_them() {
        let (rules, _) = all_rules().into_iter().next().expect("three");
        let ledger = ledger(&["d/a", "d/e/b", "da", "c"]);
        let coverage = Coverage::of(&rules, &ledger);
        let given_up = coverage.despite_rules(&[path("d"), path("c")].into());
        assert_eq!(given_up, [path("c"), path("d/a"), path("d/e/b")].into());
        let rules = IgnoreRules::default();
        let coverage = Coverage::of(&rules, &ledger);
        assert!(coverage.despite_rules(&[path("d")].into()).is_empty());
    }
}
