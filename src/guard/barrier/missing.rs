//! The paths that have not arrived, and the reasons.

use super::super::tenure::TenureId;
use super::coverage::CoverageReport;
use super::folder_path::FolderPath;
use super::marker_name::MarkerLink;
use std::collections::BTreeSet;
use std::fmt;

/// A version, as a message names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionName {
    /// The client that published the version; `None` if its marker is no longer here.
    pub(crate) holder: Option<String>,
    /// The tenure in which it was published.
    pub(crate) tenure: TenureId,
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
pub(crate) enum MissingBecause {
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
pub(crate) struct MissingPath {
    /// The path.
    pub(crate) path: FolderPath,
    /// Why it has not arrived.
    pub(crate) because: MissingBecause,
    /// The size of the wanted content.
    pub(crate) bytes: u64,
}

/// The list of what has not arrived.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NotArrived {
    /// A marker that is not here. Nothing is known of the paths that it names.
    pub(crate) marker: Option<MarkerLink>,
    /// Whether `.latchfs/ignore` is not the one of the newest marker.
    pub(crate) is_other_ignore: bool,
    /// The first of the paths.
    pub(crate) paths: Vec<MissingPath>,
    /// The number of all paths that have not arrived.
    pub(crate) count: u64,
    /// The bytes of their wanted content.
    pub(crate) bytes: u64,
    /// The number of paths that had to arrive.
    pub(crate) of: u64,
    /// The paths for which an ignore rule makes a difference, or would.
    pub(crate) coverage: CoverageReport,
}

impl NotArrived {
    pub(super) fn of_marker(marker: MarkerLink) -> Self {
        Self { marker: Some(marker), ..Self::default() }
    }

    /// Returns the paths if nothing is missing but versions that no guard knows. There are none if
    /// the list of paths does not name all.
    pub(crate) fn all_foreign(&self) -> Option<BTreeSet<FolderPath>> {
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

#[cfg(test)]
mod tests {
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
