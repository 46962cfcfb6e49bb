//! Compares the files that stand in the folder with what should be there.
//!
//! Conflict copies and temporary files of sync tools, known by their names.

use super::arrival_target::{Barrier, Target};
use super::chain::{ChainBase, WantedPath};
use super::coverage::CoveredFiles;
use super::folder_path::{FolderPath, FolderPathError};
use super::ledger::{LedgerEntry, LedgerUpdate};
use super::marker::PathState;
use crate::folder_path::{ContentDigest, DigestCache, FolderTree, FoundFile};
use crate::ledger::LoggedChange;
use crate::ready::{MissingBecause, MissingPath, NotArrived, VersionName};
use crate::tenure_id::TenureId;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// The maximum number of paths that a decision names.
pub(crate) const MISSING_SHOWN_MAX: usize = 1_000;
/// How long content that nobody knows must be unchanged before it counts as foreign, in
/// nanoseconds. A sync tool may still be writing it.
const QUIET: i128 = 10_000_000_000;

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// The paths that have not arrived.
    pub(super) missing: NotArrived,
    /// The versions that the ledger does not know yet.
    pub(super) updates: Vec<LedgerUpdate>,
    /// Conflict copies that nothing names.
    pub(super) strays: Vec<FolderPath>,
    /// The covered files.
    pub(super) files: CoveredFiles,
}

/// How a path should stand.
enum Expected<'a> {
    /// No file has the path. `false`: nothing knows the path at all.
    Gone(bool),
    /// The file is that of the ledger.
    Entry(&'a LedgerEntry),
    /// The file is as this machine's change left it.
    Logged(&'a LoggedChange),
    /// The file is as a marker names it.
    Wanted(&'a WantedPath),
}

struct Comparing<'a, 'b> {
    barrier: &'a Barrier<'b>,
    target: &'a Target,
    tree: &'a mut dyn FolderTree,
    cache: &'a mut DigestCache,
    found: &'a BTreeMap<FolderPath, FoundFile>,
    missing: NotArrived,
    updates: Vec<LedgerUpdate>,
    strays: Vec<FolderPath>,
    /// The conflict copies of each path, once they are needed.
    copies: Option<BTreeMap<FolderPath, Vec<FolderPath>>>,
}

/// Compares the folder with what should be there. The paths in `accepted` may stand in any way.
pub(super) fn compare(
    barrier: &Barrier<'_>,
    target: &Target,
    accepted: &BTreeSet<FolderPath>,
    tree: &mut dyn FolderTree,
    cache: &mut DigestCache,
) -> io::Result<Comparison> {
    let top = target.top.and_then(|top| barrier.markers.get(&top));
    let is_other_ignore = top.is_some_and(|top| barrier.rules.differ_from(top.ignore));
    let files = barrier.coverage(Some(target)).covered_files(tree)?;
    let missing = NotArrived { is_other_ignore, ..NotArrived::default() };
    let mut comparing = Comparing {
        barrier,
        target,
        tree,
        cache,
        found: &files.standing,
        missing,
        updates: Vec::new(),
        strays: Vec::new(),
        copies: None,
    };
    for path in &files.twice {
        comparing.add_missing(path, 0, MissingBecause::TwoNames);
    }
    for (path, standing) in &files.standing {
        if !accepted.contains(path) {
            comparing.check(path, standing)?;
        }
    }
    comparing.check_absent(&files.absent, accepted)?;
    let Comparing { missing, updates, strays, .. } = comparing;
    Ok(Comparison { missing, updates, strays, files })
}

impl<'a> Comparing<'a, '_> {
    fn expected(&self, path: &FolderPath) -> Expected<'a> {
        let ledger = self.barrier.ledger;
        let is_own = self.target.top.is_none();
        if is_own && let Some(change) = ledger.log().get(path) {
            return Expected::Logged(change);
        }
        if let Some(wanted) = self.target.chain.wanted.get(path) {
            return match wanted.state {
                // A path that was given up stays gone here: only a change of this machine can bring
                // it back.
                PathState::Gone | PathState::Ignored => Expected::Gone(true),
                PathState::File { .. } => Expected::Wanted(wanted),
            };
        }
        match (ledger.entry(path), self.target.chain.base) {
            (Some(entry), ChainBase::Ledger) => Expected::Entry(entry),
            (Some(_), ChainBase::Checkpoint) => Expected::Gone(true),
            (None, _) => Expected::Gone(ledger.log().get(path).is_some()),
        }
    }

    /// Returns the digest of a file; `None` if the file is changing. A file that the ledger knows
    /// is not hashed again.
    fn digest(
        &mut self,
        path: &FolderPath,
        found: &FoundFile,
    ) -> io::Result<Option<ContentDigest>> {
        match self.barrier.ledger.entry(path) {
            Some(entry) if entry.stamp == found.stamp => Ok(Some(entry.digest)),
            _ => self.cache.digest(self.tree, path, found),
        }
    }

    fn add_missing(&mut self, path: &FolderPath, bytes: u64, because: MissingBecause) {
        self.missing.count += 1;
        self.missing.bytes = self.missing.bytes.saturating_add(bytes);
        if self.missing.paths.len() < MISSING_SHOWN_MAX {
            self.missing.paths.push(MissingPath { path: path.clone(), because, bytes });
        }
    }

    /// Checks a file that stands in the folder.
    fn check(&mut self, path: &FolderPath, found: &FoundFile) -> io::Result<()> {
        let (size, wanted, from) = match self.expected(path) {
            Expected::Gone(is_named) => return self.check_further(path, found, is_named),
            Expected::Logged(change) => {
                self.missing.of += 1;
                if !found.is_downloaded {
                    self.add_missing(path, found.stamp.size, MissingBecause::NotDownloaded);
                } else if !change.fits(Some(found.stamp)) {
                    let because = self.because(path, found, None)?;
                    self.add_missing(path, 0, because);
                }
                return Ok(());
            }
            Expected::Entry(entry) => (entry.stamp.size, entry.digest, entry.from),
            Expected::Wanted(wanted) => match wanted.state {
                PathState::Gone | PathState::Ignored => return Ok(()),
                PathState::File { size, digest, .. } => (size, digest, wanted.by.name),
            },
        };
        self.missing.of += 1;
        if !found.is_downloaded {
            self.add_missing(path, size, MissingBecause::NotDownloaded);
            return Ok(());
        }
        let is_here = found.stamp.size == size && self.digest(path, found)? == Some(wanted);
        if is_here {
            let entry = LedgerEntry { stamp: found.stamp, digest: wanted, from };
            if self.barrier.ledger.entry(path) != Some(&entry) {
                self.updates.push((path.clone(), Some(entry)));
            }
            return Ok(());
        }
        let because = self.because(path, found, Some((size, wanted, from.tenure)))?;
        self.add_missing(path, size, because);
        Ok(())
    }

    /// Checks a file where none should be.
    fn check_further(
        &mut self,
        path: &FolderPath,
        found: &FoundFile,
        is_named: bool,
    ) -> io::Result<()> {
        let is_there = |at: &FolderPath| self.found.contains_key(at);
        if !is_named && original_of(path, is_there).is_some() {
            self.strays.push(path.clone());
            return Ok(());
        }
        let because = match self.known_version(path, found)? {
            Some(_) => MissingBecause::NotYetDeleted,
            None => self.unknown_content(found),
        };
        self.missing.of += 1;
        self.add_missing(path, 0, because);
        Ok(())
    }

    fn unknown_content(&self, found: &FoundFile) -> MissingBecause {
        if self.barrier.now.saturating_sub(found.changed) < QUIET {
            MissingBecause::Changing
        } else {
            MissingBecause::Foreign
        }
    }

    /// Returns why a file that stands in the folder is not the wanted one.
    fn because(
        &mut self,
        path: &FolderPath,
        found: &FoundFile,
        wanted: Option<(u64, ContentDigest, TenureId)>,
    ) -> io::Result<MissingBecause> {
        if self.missing.paths.len() >= MISSING_SHOWN_MAX {
            // So many paths are missing that no report shows the reason for this one.
            return Ok(MissingBecause::Changing);
        }
        if let Some((size, digest, _)) = wanted
            && let Some(copy) = self.copy_of(path, size, digest)?
        {
            return Ok(MissingBecause::Overwritten { copy });
        }
        Ok(match self.known_version(path, found)? {
            Some(stands) => {
                let wanted = wanted.map(|(_, _, tenure)| self.version_name(tenure));
                MissingBecause::Superseded { stands, wanted }
            }
            None => self.unknown_content(found),
        })
    }

    fn version_name(&self, tenure: TenureId) -> VersionName {
        VersionName { holder: self.barrier.markers.holder_of(tenure), tenure }
    }

    /// Returns which known version of a path a file is. It is hashed only if its size is that of a
    /// known version.
    fn known_version(
        &mut self,
        path: &FolderPath,
        found: &FoundFile,
    ) -> io::Result<Option<VersionName>> {
        let mut known = Vec::new();
        if let Some(entry) = self.barrier.ledger.entry(path) {
            if entry.stamp == found.stamp {
                return Ok(Some(self.version_name(entry.from.tenure)));
            }
            if entry.stamp.size == found.stamp.size {
                known.push((entry.digest, entry.from.tenure));
            }
        }
        known.extend(self.barrier.markers.versions(path, found.stamp.size));
        if known.is_empty() || !found.is_downloaded {
            return Ok(None);
        }
        let digest = self.digest(path, found)?;
        let version = known.iter().find(|(known, _)| Some(*known) == digest);
        Ok(version.map(|(_, tenure)| self.version_name(*tenure)))
    }

    /// Returns the conflict copy of a path that has the wanted content.
    fn copy_of(
        &mut self,
        path: &FolderPath,
        size: u64,
        digest: ContentDigest,
    ) -> io::Result<Option<FolderPath>> {
        let found = self.found;
        let target = self.target;
        let copies = self.copies.get_or_insert_with(|| {
            let mut copies: BTreeMap<_, Vec<_>> = BTreeMap::new();
            let is_there =
                |at: &FolderPath| found.contains_key(at) || target.chain.wanted.contains_key(at);
            for copy in found.keys() {
                if let Some(original) = original_of(copy, is_there) {
                    copies.entry(original).or_default().push(copy.clone());
                }
            }
            copies
        });
        for copy in copies.get(path).cloned().unwrap_or_default() {
            let Some(standing) = found.get(&copy) else { continue };
            let is_wanted = standing.stamp.size == size
                && standing.is_downloaded
                && self.digest(&copy, standing)? == Some(digest);
            if is_wanted {
                return Ok(Some(copy));
            }
        }
        Ok(None)
    }

    /// Checks that each file that should stand in the folder does, and records what is gone.
    fn check_absent(
        &mut self,
        absent: &[FolderPath],
        accepted: &BTreeSet<FolderPath>,
    ) -> io::Result<()> {
        for path in absent.iter().filter(|path| !accepted.contains(path)) {
            match self.expected(path) {
                Expected::Gone(_) => {
                    if self.barrier.ledger.entry(path).is_some() {
                        self.updates.push((path.clone(), None));
                    }
                }
                Expected::Logged(change) => {
                    if !change.fits(None) {
                        self.missing.of += 1;
                        self.add_missing(path, 0, MissingBecause::NotHere);
                    }
                }
                Expected::Entry(entry) => self.add_absent(path, entry.stamp.size, entry.digest)?,
                Expected::Wanted(wanted) => {
                    if let PathState::File { size, digest, .. } = wanted.state {
                        self.add_absent(path, size, digest)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn add_absent(
        &mut self,
        path: &FolderPath,
        size: u64,
        digest: ContentDigest,
    ) -> io::Result<()> {
        self.missing.of += 1;
        let copy = if self.missing.paths.len() < MISSING_SHOWN_MAX {
            self.copy_of(path, size, digest)?
        } else {
            None
        };
        let because = match copy {
            Some(copy) => MissingBecause::Overwritten { copy },
            None => MissingBecause::NotHere,
        };
        self.add_missing(path, size, because);
        Ok(())
    }
}

/// Whether a name is one under which a sync tool writes a file before it gets its place.
pub fn is_sync_temporary(name: &str) -> bool {
    let within = |start: &str, end: &str| {
        name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
    };
    within(".syncthing.", ".tmp")
        || name.starts_with("~syncthing~")
        || within(".unison.", ".unison.tmp")
        || within("", ".partial")
}

/// Whether a name is one of the files and directories that sync tools keep for themselves.
pub(crate) fn is_sync_tool_file(name: &str) -> bool {
    [".stfolder", ".stversions", ".stignore", ".dropbox", ".dropbox.cache"].contains(&name)
}

/// Splits a name before its last dot. The first character belongs to the stem.
fn split_end(name: &str) -> (&str, &str) {
    match name.rfind('.') {
        Some(at) if at > 0 => name.split_at(at),
        _ => (name, ""),
    }
}

/// Returns the name without `mark` and what follows it, up to the last dot after the mark.
fn without_mark(name: &str, mark: &str) -> Option<String> {
    let (stem, rest) = name.split_once(mark)?;
    let end = rest.rfind('.').map_or("", |at| &rest[at..]);
    Some(format!("{stem}{end}"))
}

/// Returns the name without the part in parentheses that `is_mark` accepts.
fn without_parentheses(name: &str, is_mark: impl Fn(&str) -> bool) -> Option<String> {
    let (stem, rest) = name.rsplit_once('(')?;
    let (inside, end) = rest.split_once(')')?;
    is_mark(inside).then(|| format!("{}{end}", stem.trim_end()))
}

/// Returns the name without ` 2` or a higher number before the last dot.
fn without_number(name: &str) -> Option<String> {
    let (stem, end) = split_end(name);
    let (stem, number) = stem.rsplit_once(' ')?;
    let is_number = (1..=4).contains(&number.len())
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && !number.starts_with('0')
        && number != "1";
    is_number.then(|| format!("{stem}{end}"))
}

/// Returns the path of which this path is a conflict copy by its name; `None` if its name is no
/// such name. `is_there` says whether a file stands, or should stand, under another path: a number
/// at the end of a name means a conflict only beside the name without it.
pub fn original_of(
    path: &FolderPath,
    is_there: impl Fn(&FolderPath) -> bool,
) -> Option<FolderPath> {
    let name = path.name();
    let marked = without_mark(name, ".sync-conflict-")
        .or_else(|| without_parentheses(name, |inside| inside.contains("conflicted copy")))
        .or_else(|| without_parentheses(name, |inside| inside.starts_with("SFConflict ")))
        .or_else(|| without_mark(name, "_conflict-"))
        .or_else(|| name.split_once(".conflict on ").map(|(stem, _)| stem.to_owned()));
    let beside = |name: String| -> Result<FolderPath, FolderPathError> { path.beside(&name) };
    if let Some(name) = marked {
        // A copy of a file that has no other name than the mark is a stray as well.
        return Some(beside(name).unwrap_or_else(|_| path.clone()));
    }
    let original = beside(without_number(name)?).ok()?;
    is_there(&original).then_some(original)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_markers::path;

    #[test]
    fn conflict_copies_are_known_by_their_names() {
        let cases = [
            ("d/note.sync-conflict-20240101-120000-ABCDEFG.md", Some("d/note.md")),
            (".sync-conflict-20240101-120000-ABCDEFG.bashrc", Some(".bashrc")),
            ("Makefile.sync-conflict-20240101-120000-ABCDEFG", Some("Makefile")),
            ("a (laptop1's conflicted copy 2024-01-01).txt", Some("a.txt")),
            ("a b (conflicted copy)", Some("a b")),
            ("a (SFConflict me@home 2024-01-01-12-00-00).txt", Some("a.txt")),
            ("a_conflict-20240101-120000.txt", Some("a.txt")),
            ("a.txt.conflict on 2024-01-01", Some("a.txt")),
            ("there 2.txt", Some("there.txt")),
            ("there 12", None),
            ("chapter 2.txt", None),
            ("there 1.txt", None),
            ("there 02.txt", None),
            ("a (1).txt", None),
            ("a.txt", None),
        ];
        for (name, original) in cases {
            let found = original_of(&path(name), |at| at.as_str() == "there.txt");
            assert_eq!(found, original.map(path), "{name}");
        }
    }

    #[test]
    fn temporary_names_are_no_conflict_copies() {
        for name in
            [".syncthing.a.txt.tmp", "~syncthing~a.txt", ".unison.a.1.unison.tmp", "a.partial"]
        {
            assert!(is_sync_temporary(name), "{name}");
            assert_eq!(original_of(&path(name), |_| true), None, "{name}");
        }
        for name in [".syncthing.tmp", "a.tmp", "unison.tmp", "partial"] {
            assert!(!is_sync_temporary(name), "{name}");
        }
        assert!(is_sync_tool_file(".stfolder") && !is_sync_tool_file("stfolder"));
    }
}
