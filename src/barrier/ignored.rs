//! Ignore rules: patterns for paths that no new marker names. `coverage` alone applies them.

use super::folder_path::FolderPath;
use crate::comparison::{is_sync_temporary, is_sync_tool_file};
use crate::folder_path::ContentDigest;
use crate::folder_path::PathPatterns;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::fmt;
use std::path::Path;

/// The maximum size of `.latchfs/ignore` in bytes, and of the patterns of the sync tool. Anybody
/// who can write the folder may have written them.
pub const IGNORE_BYTES_MAX: usize = 64 * 1_024;
/// The maximum number of patterns in `.latchfs/ignore`.
pub(crate) const IGNORE_PATTERNS_MAX: usize = 1_000;

/// Why a path is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredBecause {
    /// The pattern in this line of `.latchfs/ignore` matches.
    Pattern(usize),
    /// This pattern of the Syncthing on this machine matches.
    SyncthingPattern(usize),
    /// The file belongs to this machine.
    Local,
    /// The file is one of a sync tool.
    SyncTool,
    /// A person has given the path up.
    GivenUp,
}

impl fmt::Display for IgnoredBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(line) => write!(f, "line {line} of .latchfs/ignore"),
            Self::SyncthingPattern(line) => write!(f, "ignore pattern {line} of Syncthing here"),
            Self::Local => f.write_str("--local"),
            Self::SyncTool => f.write_str("a name that sync tools keep for themselves"),
            Self::GivenUp => f.write_str("given up by 'latchfs guard accept'"),
        }
    }
}

/// The patterns of one file.
#[derive(Debug, Default)]
struct Patterns {
    set: GlobSet,
    /// The line of each pattern, and whether a match means that the path is not ignored.
    lines: Vec<(usize, bool)>,
}

/// The reason why the patterns of a file can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IgnoreError {
    /// The file is too large.
    TooLarge,
    /// The file has too many patterns.
    TooMany,
}

impl fmt::Display for IgnoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => write!(f, "more than {IGNORE_BYTES_MAX} bytes"),
            Self::TooMany => write!(f, "more than {IGNORE_PATTERNS_MAX} patterns"),
        }
    }
}

/// Returns a path and each directory above it, from the longest to the shortest.
fn and_dirs_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('/').map(|(dir, _)| dir))
}

impl Patterns {
    /// Builds patterns with their lines. A pattern that is none matches nothing, as in git.
    fn build<'a>(patterns: impl Iterator<Item = (usize, bool, &'a str)>) -> Self {
        let (mut set, mut lines) = (GlobSetBuilder::new(), Vec::new());
        for (line, is_negated, pattern) in patterns {
            let mut glob = GlobBuilder::new(pattern);
            let Ok(glob) = glob.literal_separator(true).backslash_escape(true).build() else {
                continue;
            };
            set.add(glob);
            lines.push((line, is_negated));
        }
        match set.build() {
            Ok(set) => Self { set, lines },
            Err(_) => Self::default(),
        }
    }
}

/// Returns the parts of a line of gitignore syntax: whether it is negated, whether it matches
/// directories only, and the glob.
fn gitignore_line(line: &str) -> Option<(bool, bool, String)> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let trimmed = line.trim_end_matches(' ');
    // A backslash keeps the first of the spaces at the end of a line.
    let line = if trimmed.ends_with('\\') && trimmed.len() < line.len() {
        &line[..=trimmed.len()]
    } else {
        trimmed
    };
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (is_negated, line) = match line.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let (is_dir, line) = match line.strip_suffix('/') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let glob = match line.strip_prefix('/') {
        Some(rest) => rest.to_owned(),
        None if line.contains('/') => line.to_owned(),
        None => format!("**/{line}"),
    };
    (!line.is_empty()).then_some((is_negated, is_dir, glob))
}

/// The rules by which paths are ignored on this machine.
#[derive(Debug, Default)]
pub struct IgnoreRules {
    /// `.latchfs/ignore`: patterns that match files and directories, and those that match
    /// directories only. They share their lines, and the last match decides.
    any: Patterns,
    dirs: Patterns,
    /// The patterns of Syncthing, of which the first match decides.
    syncthing: Patterns,
    local: PathPatterns,
    /// The digest of `.latchfs/ignore`; `None` if there is no such file, or none that can be used.
    digest: Option<ContentDigest>,
    /// Why `.latchfs/ignore` can't be used, and counts as having no patterns.
    shared_problem: Option<String>,
    /// Why the patterns of the sync tool can't be used.
    tool_problem: Option<String>,
    /// Whether the folder has a `.stignore`, and no sync tool is known that would use it.
    is_stignore_unused: bool,
}

impl IgnoreRules {
    /// Reads the content of `.latchfs/ignore`, in the syntax of gitignore.
    pub fn parse(text: &str) -> Result<Self, IgnoreError> {
        if text.len() > IGNORE_BYTES_MAX {
            return Err(IgnoreError::TooLarge);
        }
        let lines: Vec<_> = (1..)
            .zip(text.lines())
            .filter_map(|(number, line)| Some((number, gitignore_line(line)?)))
            .collect();
        if lines.len() > IGNORE_PATTERNS_MAX {
            return Err(IgnoreError::TooMany);
        }
        let of = |is_dir: bool| {
            Patterns::build(lines.iter().filter_map(move |(number, (is_negated, dir, glob))| {
                (*dir == is_dir).then_some((*number, *is_negated, glob.as_str()))
            }))
        };
        Ok(Self { any: of(false), dirs: of(true), ..Self::default() })
    }

    /// Returns rules without those of a `.latchfs/ignore` that can't be used.
    pub fn without_shared(why: String) -> Self {
        Self { shared_problem: Some(why), ..Self::default() }
    }

    /// Adds the digest of `.latchfs/ignore`.
    #[must_use]
    pub fn with_digest(self, digest: ContentDigest) -> Self {
        Self { digest: Some(digest), ..self }
    }

    /// Adds why the patterns of the sync tool can't be used.
    #[must_use]
    pub fn with_tool_problem(self, why: String) -> Self {
        Self { tool_problem: Some(why), ..self }
    }

    /// Returns the digest of `.latchfs/ignore`, for markers.
    pub fn digest(&self) -> Option<ContentDigest> {
        self.digest
    }

    /// Adds that a `.stignore` stands in the folder, and that no sync tool is known.
    #[must_use]
    pub fn with_unused_stignore(self) -> Self {
        Self { is_stignore_unused: true, ..self }
    }

    /// Returns the sentence for a `.stignore` that counts for nothing.
    pub fn unused_stignore(&self) -> Option<&'static str> {
        self.is_stignore_unused.then_some(
            "'.stignore' stands in the folder and counts for nothing here, since no Syncthing of \
             this user is known to carry the folder; patterns that all machines need belong into \
             '.latchfs/ignore'",
        )
    }

    /// Whether `.latchfs/ignore` can be used, if there is such a file.
    pub fn is_usable(&self) -> bool {
        self.shared_problem.is_none()
    }

    /// Whether `.latchfs/ignore` is another one than a marker names. No machine waits for a file
    /// that can't be used: the marker of a machine with such a file names none, and a machine with
    /// such a file waits for no other.
    pub fn differ_from(&self, named: Option<ContentDigest>) -> bool {
        self.is_usable() && named.is_some() && named != self.digest
    }

    /// Returns a sentence for each source of rules that can't be used.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.shared_problem.iter().chain(&self.tool_problem).map(String::as_str)
    }

    /// Adds the patterns of a Syncthing, one in each line. `#include` is not followed.
    pub fn add_syncthing(&mut self, text: &str) -> Result<(), IgnoreError> {
        if text.len() > IGNORE_BYTES_MAX {
            return Err(IgnoreError::TooLarge);
        }
        let mut all = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut line = line.trim();
            if line.is_empty() || line.starts_with("//") || line.starts_with('#') {
                continue;
            }
            let mut is_negated = false;
            loop {
                let rest = ["!", "(?d)", "(?i)"]
                    .iter()
                    .find_map(|mark| line.strip_prefix(mark).map(|rest| (*mark == "!", rest)));
                let Some((is_not, rest)) = rest else { break };
                (is_negated, line) = (is_negated != is_not, rest);
            }
            let glob = line.strip_prefix('/').map_or_else(|| format!("**/{line}"), str::to_owned);
            all.push((number, is_negated, glob));
        }
        if all.len() > IGNORE_PATTERNS_MAX {
            return Err(IgnoreError::TooMany);
        }
        let all = all.iter().map(|(number, is_not, glob)| (*number, *is_not, glob.as_str()));
        self.syncthing = Patterns::build(all);
        Ok(())
    }

    /// Adds the patterns of files that belong to this machine.
    #[must_use]
    pub fn with_local(mut self, local: PathPatterns) -> Self {
        self.local = local;
        self
    }

    /// Whether a file may be ignored in one directory and not in another one, neither of which is
    /// ignored itself.
    pub(crate) fn depend_on_place(&self) -> bool {
        let own = [&self.any, &self.dirs, &self.syncthing];
        own.iter().any(|patterns| !patterns.lines.is_empty()) || self.local.have_paths()
    }

    /// Returns why a path is ignored, if it is. Everything below an ignored directory is ignored.
    pub(super) fn ignored(&self, path: &FolderPath) -> Option<IgnoredBecause> {
        let top = path.as_str().split('/').next().unwrap_or_default();
        if is_sync_tool_file(top) || is_sync_temporary(path.name()) {
            return Some(IgnoredBecause::SyncTool);
        }
        if self.local.matches(Path::new(path.as_str())) {
            return Some(IgnoredBecause::Local);
        }
        let pattern = self.pattern(path.as_str()).map(IgnoredBecause::Pattern);
        pattern.or_else(|| self.syncthing_line(path.as_str()).map(IgnoredBecause::SyncthingPattern))
    }

    /// Returns the pattern of Syncthing that keeps a path back, which may be one of the guards'
    /// own.
    pub fn syncthing_line(&self, path: &str) -> Option<usize> {
        let matched = and_dirs_above(path).find_map(|at| {
            let first = self.syncthing.set.matches(at).into_iter().min()?;
            Some(self.syncthing.lines[first])
        });
        matched.filter(|(_, is_negated)| !is_negated).map(|(line, _)| line)
    }

    /// Returns the line of the pattern that ignores a path, or the highest directory above it.
    fn pattern(&self, path: &str) -> Option<usize> {
        if self.any.lines.is_empty() && self.dirs.lines.is_empty() {
            return None;
        }
        let mut found = None;
        for at in and_dirs_above(path) {
            let last = |patterns: &Patterns| {
                let matched = patterns.set.matches(at).into_iter().max();
                matched.map(|index| patterns.lines[index])
            };
            let as_dir = last(&self.dirs).filter(|_| at.len() < path.len());
            let decides = last(&self.any).max(as_dir);
            if let Some((line, is_negated)) = decides
                && !is_negated
            {
                found = Some(line);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_markers::path;

    fn rules(text: &str) -> IgnoreRules {
        IgnoreRules::parse(text).expect("few patterns")
    }

    #[test]
    fn patterns_are_those_of_gitignore() {
        let text =
            "# comment\n*.log\n!keep.log\n/build/\ndocs/*.txt\ntarget/\nspace\\ \n\\#x\n\na/**/z\n";
        let rules = rules(text);
        for (at, line) in [
            ("a.log", Some(2)),
            ("d/a.log", Some(2)),
            ("keep.log", None),
            ("build/x", Some(4)),
            ("d/build/x", None),
            ("build", None),
            ("docs/a.txt", Some(5)),
            ("docs/d/a.txt", None),
            ("d/target/deep/er", Some(6)),
            ("target", None),
            ("space ", Some(7)),
            ("#x", Some(8)),
            ("a/z", Some(10)),
            ("a/b/c/z", Some(10)),
            ("b", None),
        ] {
            assert_eq!(rules.ignored(&path(at)), line.map(IgnoredBecause::Pattern), "{at}");
        }
    }

    #[test]
    fn no_pattern_brings_back_a_path_below_an_ignored_directory() {
        let rules = rules("d\n!d/keep\n!*.md\n");
        assert_eq!(rules.ignored(&path("d/keep")), Some(IgnoredBecause::Pattern(1)));
        assert_eq!(rules.ignored(&path("d/a.md")), Some(IgnoredBecause::Pattern(1)));
        assert_eq!(rules.ignored(&path("a.md")), None);
    }

    #[test]
    fn damaged_patterns_match_nothing_and_the_rest_counts() {
        let rules = rules("[\n*.o\n!\n/\n");
        assert_eq!(rules.ignored(&path("a.o")), Some(IgnoredBecause::Pattern(2)));
        assert_eq!(rules.ignored(&path("[")), None);
    }

    #[test]
    fn syncthing_decides_by_the_first_match() {
        let text = "// comment\n#include other\n!/keep/a\n(?d)(?i)*.bak\n/keep\n";
        let mut rules = IgnoreRules::default();
        rules.add_syncthing(text).expect("few patterns");
        let ignored = |at| rules.ignored(&path(at));
        assert_eq!(ignored("x/a.bak"), Some(IgnoredBecause::SyncthingPattern(4)));
        assert_eq!(ignored("keep/b"), Some(IgnoredBecause::SyncthingPattern(5)));
        assert_eq!((ignored("keep/a"), ignored("x/keep/b")), (None, None));
    }

    #[test]
    fn local_files_and_files_of_sync_tools_are_ignored() {
        let local = PathPatterns::parse(&[".*.swp".to_owned()]).expect("valid");
        let rules = IgnoreRules::default().with_local(local);
        for (at, because) in [
            ("d/.a.swp", Some(IgnoredBecause::Local)),
            (".stversions/a", Some(IgnoredBecause::SyncTool)),
            ("d/.syncthing.a.tmp", Some(IgnoredBecause::SyncTool)),
            ("d/a", None),
            // A directory with the name of a sync tool's file hides no file in it.
            ("d/.stversions/a", None),
            (".dropbox.cache.d/a", None),
            ("d.partial/a", None),
        ] {
            assert_eq!(rules.ignored(&path(at)), because, "{at}");
        }
    }

    #[test]
    fn ignore_rules_have_bounds() {
        let longest = "#".repeat(IGNORE_BYTES_MAX);
        assert!(IgnoreRules::parse(&longest).is_ok());
        let error = IgnoreRules::parse(&format!("{longest}#")).expect_err("too large");
        assert!(error.to_string().contains("65536 bytes"), "{error}");
        assert!(IgnoreRules::default().add_syncthing(&format!("{longest}#")).is_err());
        let most = "*.a\n".repeat(IGNORE_PATTERNS_MAX);
        assert!(IgnoreRules::parse(&most).is_ok());
        assert_eq!(IgnoreRules::parse(&format!("{most}b")).err(), Some(IgnoreError::TooMany));
    }
}
