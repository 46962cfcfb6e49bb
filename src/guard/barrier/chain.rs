//! The order of markers. It comes from the chain of their `previous` links alone, and never from
//! tokens, numbers or times.

use super::super::tenure::TenureId;
use super::folder_path::FolderPath;
use super::marker::{Marker, PathState};
use super::marker_files::MarkerFiles;
use super::marker_name::{MarkerKind, MarkerLink};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The maximum number of markers on the way to a verified marker or a checkpoint. Each chain of
/// guards has a checkpoint much sooner.
pub(crate) const LINKS_MAX: usize = 1_024;
/// The maximum number of paths that these markers name.
pub(crate) const WANTED_MAX: usize = 2_097_152;

/// The state of the paths that no marker on the way names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChainBase {
    /// They stand as the ledger says.
    Ledger,
    /// They are gone: a checkpoint names every path.
    Checkpoint,
}

/// The newest naming of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WantedPath {
    /// How the path must stand.
    pub(crate) state: PathState,
    /// The marker that names it.
    pub(crate) by: MarkerLink,
}

/// The sum of the markers on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The newest naming of each path.
    pub(crate) wanted: BTreeMap<FolderPath, WantedPath>,
    /// The state of the other paths.
    pub(crate) base: ChainBase,
}

/// Why the order of the markers can't be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChainError {
    /// A marker is not here.
    Missing(MarkerLink),
    /// The first marker of the chain is no checkpoint, so that nothing says what came before it.
    NoCheckpoint(MarkerLink),
    /// The markers name too many paths, or are too many themselves.
    TooLong,
    /// A tenure has two last markers, and neither builds on the other.
    TwoLast(Box<[MarkerLink; 2]>),
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(link) => write!(f, "the file '.latchfs/{}' is missing", link.file_name()),
            Self::NoCheckpoint(link) => {
                write!(f, "the marker {link} is the first one, and no checkpoint is before it")
            }
            Self::TooLong => write!(
                f,
                "more than {LINKS_MAX} markers or {WANTED_MAX} paths lead to the last checkpoint"
            ),
            Self::TwoLast(both) => {
                let [one, other] = **both;
                write!(f, "the markers {one} and {other} both claim to be the last of one tenure")
            }
        }
    }
}

/// Walks from the marker `top` back to the marker that was verified, or to a checkpoint.
pub(crate) fn walk(
    markers: &MarkerFiles,
    top: MarkerLink,
    verified: Option<MarkerLink>,
) -> Result<Chain, ChainError> {
    walk_within(markers, top, verified, WANTED_MAX)
}

fn walk_within(
    markers: &MarkerFiles,
    top: MarkerLink,
    verified: Option<MarkerLink>,
    most: usize,
) -> Result<Chain, ChainError> {
    let mut wanted: BTreeMap<FolderPath, WantedPath> = BTreeMap::new();
    let mut by = top;
    for _ in 0..LINKS_MAX {
        if Some(by) == verified {
            return Ok(Chain { wanted, base: ChainBase::Ledger });
        }
        let marker = markers.get(&by).ok_or(ChainError::Missing(by))?;
        for change in &marker.changes {
            let state = change.state;
            wanted.entry(change.path.clone()).or_insert(WantedPath { state, by });
        }
        if wanted.len() > most {
            return Err(ChainError::TooLong);
        }
        if by.name.kind == MarkerKind::Checkpoint {
            return Ok(Chain { wanted, base: ChainBase::Checkpoint });
        }
        by = marker.previous.ok_or(ChainError::NoCheckpoint(by))?;
    }
    Err(ChainError::TooLong)
}

/// Returns the markers from `top` back to the first one, as far as they are here.
pub(in super::super) fn ancestors(
    markers: &MarkerFiles,
    top: MarkerLink,
) -> impl Iterator<Item = (MarkerLink, &Marker)> {
    let mut next = Some(top);
    let mut seen = HashSet::new();
    std::iter::from_fn(move || {
        let link = next.filter(|link| seen.insert(*link))?;
        let marker = markers.get(&link)?;
        next = marker.previous;
        Some((link, marker))
    })
}

/// Whether the marker `top` is the marker `link`, or builds on it.
pub(crate) fn contains(markers: &MarkerFiles, top: MarkerLink, link: MarkerLink) -> bool {
    ancestors(markers, top).any(|(at, marker)| at == link || marker.previous == Some(link))
}

/// Returns a tenure with a greater token than `known` of the same engine, one of whose markers
/// builds on `last`, and whose client is not `but`.
pub(crate) fn later_than(
    markers: &MarkerFiles,
    known: TenureId,
    last: MarkerLink,
    but: Option<&str>,
) -> Option<TenureId> {
    let is_of = |link: &MarkerLink| markers.get(link).is_some_and(|it| Some(&*it.holder) == but);
    let later = markers.later_than(known).filter(|link| !is_of(link));
    later.into_iter().find(|link| contains(markers, *link, last)).map(|link| link.name.tenure)
}

/// Returns the marker that a tenure wrote last, after its gate had closed; `None` if it is not
/// here. The numbers of the markers decide nothing beyond the least one.
pub(crate) fn last_of(
    markers: &MarkerFiles,
    tenure: TenureId,
    number: u64,
) -> Result<Option<MarkerLink>, ChainError> {
    let all = markers.last_of(tenure, number);
    let Some((first, others)) = all.split_first() else { return Ok(None) };
    let mut newest = *first;
    for other in others {
        if contains(markers, *other, newest) {
            newest = *other;
        } else if !contains(markers, newest, *other) {
            return Err(ChainError::TwoLast(Box::new([newest, *other])));
        }
    }
    Ok(Some(newest))
}

#[cfg(test)]
mod tests {
    use super::super::test_markers::{TestMarkers, gone, is};
    use super::super::test_tree::path;
    use super::*;

    #[test]
    fn the_newest_naming_of_each_path_counts() {
        let mut markers = TestMarkers::default();
        let first = markers.checkpoint(1, None, &[is("a", b"1"), is("b", b"1")]);
        let second = markers.marker(9, Some(first), &[is("a", b"2"), is("c", b"2")]);
        // A replaced server counts from 1 again: its token is lower, and it is newer.
        let third = markers.marker(2, Some(second), &[gone("c")]);
        let chain = walk(&markers.files, third, None).expect("all are here");
        assert_eq!(chain.base, ChainBase::Checkpoint);
        let by = |at: &str| chain.wanted.get(&path(at)).map(|wanted| wanted.by);
        assert_eq!((by("a"), by("b"), by("c")), (Some(second), Some(first), Some(third)));
        assert_eq!(chain.wanted[&path("c")].state, PathState::Gone);
        let chain = walk(&markers.files, third, Some(second)).expect("verified");
        assert_eq!((chain.base, chain.wanted.len()), (ChainBase::Ledger, 1));
        let chain = walk(&markers.files, third, Some(third)).expect("verified");
        assert!(chain.wanted.is_empty());
    }

    #[test]
    fn a_missing_marker_is_named() {
        let mut markers = TestMarkers::default();
        let first = markers.checkpoint(1, None, &[]);
        let second = markers.marker(2, Some(first), &[is("a", b"2")]);
        let third = markers.marker(3, Some(second), &[is("a", b"3")]);
        markers.remove(second);
        let error = walk(&markers.files, third, Some(first)).expect_err("missing");
        assert_eq!(error, ChainError::Missing(second));
        assert!(error.to_string().contains(&second.file_name()), "{error}");
        assert!(walk(&markers.files, third, Some(third)).is_ok(), "nobody needs it");
        let alone = markers.marker(4, None, &[]);
        let error = walk(&markers.files, alone, None).expect_err("no checkpoint");
        assert_eq!(error, ChainError::NoCheckpoint(alone));
    }

    #[test]
    fn two_last_markers_of_one_token_are_ordered_by_the_chain() {
        let mut markers = TestMarkers::default();
        let first = markers.checkpoint(1, None, &[]);
        let tenure = |token| first.name.tenure.with_token(token);
        let one = markers.last(5, 7, Some(first), &[is("a", b"1")]);
        let between = markers.marker(5, Some(one), &[]);
        let other = markers.last(5, 3, Some(between), &[is("a", b"2")]);
        assert_eq!(last_of(&markers.files, tenure(5), 1), Ok(Some(other)));
        assert_eq!(last_of(&markers.files, tenure(5), 4), Ok(Some(one)), "3 is no late marker");
        assert_eq!(last_of(&markers.files, tenure(6), 1), Ok(None));
        let fork = markers.last(5, 9, Some(first), &[is("a", b"3")]);
        let error = last_of(&markers.files, tenure(5), 1).expect_err("two branches");
        assert!(matches!(error, ChainError::TwoLast(..)), "{error}");
        assert!(error.to_string().contains(&fork.to_string()), "{error}");
    }

    #[test]
    fn a_marker_of_an_unknown_engine_has_no_effect() {
        let mut markers = TestMarkers::default();
        let first = markers.checkpoint(1, None, &[]);
        let mut other = TestMarkers::made(5, 9, Some(first), &[is("a", b"x")]);
        other.is_last = true;
        other.name.tenure.engine = 0xbad;
        let stranger = markers.put(&other);
        assert_eq!(last_of(&markers.files, first.name.tenure.with_token(5), 1), Ok(None));
        let second = markers.marker(5, Some(first), &[]);
        assert!(walk(&markers.files, second, None).expect("here").wanted.is_empty());
        assert!(!contains(&markers.files, second, stranger));
        assert!(
            contains(&markers.files, stranger, first) && contains(&markers.files, first, first)
        );
    }

    #[test]
    fn a_chain_has_a_bound() {
        let mut markers = TestMarkers::default();
        let mut top = markers.checkpoint(1, None, &[]);
        let first = top;
        for token in 0..LINKS_MAX as u64 {
            top = markers.marker(token, Some(top), &[]);
        }
        assert_eq!(walk(&markers.files, top, None), Err(ChainError::TooLong));
        let before = markers.files.get(&top).and_then(|marker| marker.previous).expect("a chain");
        assert!(walk(&markers.files, before, None).is_ok());
        assert!(contains(&markers.files, top, first));
    }

    #[test]
    fn the_paths_of_a_chain_have_a_bound() {
        let mut markers = TestMarkers::default();
        let first = markers.checkpoint(1, None, &[is("a", b"1"), is("b", b"1")]);
        let second = markers.marker(2, Some(first), &[is("b", b"2"), is("c", b"2")]);
        assert!(walk_within(&markers.files, second, None, 3).is_ok());
        assert_eq!(walk_within(&markers.files, second, None, 2), Err(ChainError::TooLong));
        let said = ChainError::TooLong.to_string();
        assert!(said.contains("2097152 paths"), "{said}");
    }
}
