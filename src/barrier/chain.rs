//! The order of markers. It comes from the chain of their `previous` links alone, and never from
//! tokens, numbers or times.
//!
//! The markers and checkpoints that are in this machine's copy of the folder.

use super::folder_path::FolderPath;
use super::marker::{Marker, MarkerError, PathState, StoredMarker};
use crate::folder_path::ContentDigest;
use crate::marker::{MarkerKind, MarkerLink};
use crate::tenure_id::TenureId;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The maximum number of markers on the way to a verified marker or a checkpoint. Each chain of
/// guards has a checkpoint much sooner.
pub const LINKS_MAX: usize = 1_024;
/// The maximum number of paths that these markers name.
pub(crate) const WANTED_MAX: usize = 2_097_152;

/// The state of the paths that no marker on the way names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainBase {
    /// Those paths stand as the ledger says.
    Ledger,
    /// Those paths are gone: the way ends at a checkpoint, which names every path.
    Checkpoint,
}

/// The state of a path by the newest marker that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedPath {
    /// How the path must stand.
    pub state: PathState,
    /// The marker that names the path.
    pub by: MarkerLink,
}

/// The sum of the markers on the way: how each path must stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The paths that these markers name, each as the newest of them names it.
    pub wanted: BTreeMap<FolderPath, WantedPath>,
    /// The state of the paths that none of these markers names.
    pub base: ChainBase,
}

/// Why the order of the markers can't be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainError {
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
pub fn walk(
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
pub fn ancestors(
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
pub fn contains(markers: &MarkerFiles, top: MarkerLink, link: MarkerLink) -> bool {
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
pub fn last_of(
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

/// The maximum number of markers that are read. A guard removes the markers before the last but
/// one checkpoint.
pub const MARKERS_MAX: usize = 4_096;
/// The maximum size of all markers that are read in bytes.
pub(crate) const MARKERS_BYTES_MAX: u64 = 512 * 1_024 * 1_024;

/// The maximum number of paths that all markers which are read name: those of two checkpoints of
/// the largest folder, and of the markers between them. A path takes four times the memory of its
/// shortest text.
pub(crate) const MARKER_PATHS_MAX: usize = 4_194_304;

/// Why a file is not among the markers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdded {
    /// The file is no marker.
    Marker(MarkerError),
    /// The marker is one of another folder.
    OtherFolder,
    /// There are too many markers, or bytes of them, or paths in them.
    Full,
    /// There is no room for a marker that names so many paths.
    TooManyPaths(usize),
}

impl fmt::Display for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marker(error) => error.fmt(f),
            Self::OtherFolder => f.write_str("the marker is one of another folder"),
            Self::Full | Self::TooManyPaths(_) => write!(
                f,
                "there are more than {MARKERS_MAX} markers, {MARKERS_BYTES_MAX} bytes of them or \
                 {MARKER_PATHS_MAX} paths in them; remove those that no guard wrote"
            ),
        }
    }
}

/// The markers of one folder that are here.
#[derive(Debug, Clone, Default)]
pub struct MarkerFiles {
    folder: String,
    /// The markers, each with the size of its file.
    markers: BTreeMap<MarkerLink, (Marker, u64)>,
    bytes: u64,
    /// The number of paths that they name.
    paths: usize,
}

impl MarkerFiles {
    /// Returns no markers of the folder with this id.
    pub fn new(folder: &str) -> Self {
        Self { folder: folder.to_owned(), ..Self::default() }
    }

    /// Whether a file of this size, which names so many paths as far as that is known, can be
    /// added.
    pub fn has_room_for(&self, bytes: u64, paths: usize) -> bool {
        self.markers.len() < MARKERS_MAX
            && self.bytes.saturating_add(bytes) <= MARKERS_BYTES_MAX
            && self.paths.saturating_add(paths.max(1)) <= MARKER_PATHS_MAX
    }

    /// Adds the file with this name in `.latchfs`.
    pub fn add(&mut self, file_name: &str, bytes: &[u8]) -> Result<MarkerLink, NotAdded> {
        if !self.has_room_for(bytes.len() as u64, 0) {
            return Err(NotAdded::Full);
        }
        let stored = StoredMarker::read(file_name, bytes).map_err(NotAdded::Marker)?;
        if stored.marker.folder != self.folder {
            return Err(NotAdded::OtherFolder);
        }
        let link = stored.link;
        let (size, paths) = (bytes.len() as u64, stored.marker.changes.len());
        if !self.has_room_for(size, paths) {
            return Err(NotAdded::TooManyPaths(paths));
        }
        if self.markers.insert(link, (stored.marker, size)).is_none() {
            self.bytes += size;
            self.paths += paths;
        }
        Ok(link)
    }

    /// Whether no marker is here.
    pub fn is_empty(&self) -> bool {
        self.markers.is_empty()
    }

    /// Returns a marker.
    pub fn get(&self, link: &MarkerLink) -> Option<&Marker> {
        self.markers.get(link).map(|(marker, _)| marker)
    }

    /// Removes a marker whose file is no longer here.
    pub fn remove(&mut self, link: &MarkerLink) -> Option<Marker> {
        let (marker, size) = self.markers.remove(link)?;
        self.bytes -= size;
        self.paths -= marker.changes.len();
        Some(marker)
    }

    /// Removes all markers.
    pub fn clear(&mut self) {
        self.markers.clear();
        (self.bytes, self.paths) = (0, 0);
    }

    /// Returns the markers with which a tenure ended after its gate had closed, and whose numbers
    /// are at least `number`.
    pub fn last_of(&self, tenure: TenureId, number: u64) -> Vec<MarkerLink> {
        let is_last = |(link, (marker, _)): &(&MarkerLink, &(Marker, u64))| {
            link.name.tenure == tenure && link.name.number >= number && marker.is_last
        };
        self.markers.iter().filter(is_last).map(|(link, _)| *link).collect()
    }

    /// Returns the markers of the tenures of one engine that have a greater token than this one.
    pub(crate) fn later_than(&self, known: TenureId) -> impl Iterator<Item = MarkerLink> + '_ {
        let is_later = move |link: &MarkerLink| {
            let TenureId { engine, token } = link.name.tenure;
            engine == known.engine && token > known.token
        };
        self.markers.keys().copied().filter(is_later)
    }

    /// Returns the client that wrote the markers of a tenure, if one of them is here.
    pub fn holder_of(&self, tenure: TenureId) -> Option<String> {
        let of_tenure = self.markers.iter().find(|(link, _)| link.name.tenure == tenure);
        of_tenure.map(|(_, (marker, _))| marker.holder.clone())
    }

    /// Returns the versions of a path with this size that markers name, and their tenures.
    pub fn versions<'a>(
        &'a self,
        path: &'a FolderPath,
        size: u64,
    ) -> impl Iterator<Item = (ContentDigest, TenureId)> + 'a {
        self.markers.iter().filter_map(move |(link, (marker, _))| match marker.state_of(path)? {
            PathState::File { size: named, digest, .. } if named == size => {
                Some((digest, link.name.tenure))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_markers::{TestMarkers, gone, is};
    use super::*;
    use crate::test_markers::path;

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

#[cfg(test)]
mod marker_files_tests {
    use super::super::test_markers::{TestMarkers, is};
    use super::*;
    use crate::test_markers::path;

    /// A file of 30 MB can name a million paths.
    #[test]
    fn the_paths_of_all_markers_have_a_bound() {
        let mut markers = TestMarkers::default();
        markers.files.paths = MARKER_PATHS_MAX - 3;
        let link = markers.marker(1, None, &[is("a", b"1"), is("b", b"1")]);
        assert!(markers.files.has_room_for(1, 1) && !markers.files.has_room_for(1, 2));
        let mut add = |number: u64, changes| {
            let more = TestMarkers::made(number, 1, None, changes);
            let bytes = more.write().expect("memory suffices");
            markers.files.add(&more.name.file_name(&ContentDigest::of(&bytes)), &bytes)
        };
        let two = [is("a", b"1"), is("b", b"1")];
        assert_eq!(add(2, &two).expect_err("full"), NotAdded::TooManyPaths(2));
        add(3, &two[..1]).expect("there is room for one");
        assert_eq!(add(4, &[]).expect_err("full"), NotAdded::Full);
        markers.files.remove(&link);
        assert!(markers.files.has_room_for(1, 2));
    }

    #[test]
    fn the_markers_of_a_folder_have_a_bound() {
        let mut markers = TestMarkers::default();
        for number in 0..MARKERS_MAX as u64 {
            markers.marker(number, None, &[]);
        }
        let more = TestMarkers::made(0, 2, None, &[]);
        let bytes = more.write().expect("memory suffices");
        let name = more.name.file_name(&ContentDigest::of(&bytes));
        let error = markers.files.add(&name, &bytes).expect_err("full");
        assert_eq!(error, NotAdded::Full);
        assert!(error.to_string().contains("4096 markers"), "{error}");
        assert!(MarkerFiles::new("f").has_room_for(MARKERS_BYTES_MAX, 0));
        assert!(!MarkerFiles::new("f").has_room_for(MARKERS_BYTES_MAX + 1, 0));
    }

    #[test]
    fn a_removed_marker_leaves_room() {
        let mut markers = TestMarkers::default();
        let link = markers.marker(1, None, &[is("a", b"one")]);
        let again = TestMarkers::made(1, 1, None, &[is("a", b"one")]);
        assert_eq!((markers.put(&again), markers.files.markers.len()), (link, 1));
        assert!(!markers.files.has_room_for(MARKERS_BYTES_MAX, 0));
        assert_eq!(markers.files.remove(&link), Some(again));
        assert_eq!(markers.files.remove(&link), None);
        assert!(markers.files.has_room_for(MARKERS_BYTES_MAX, 0));
        markers.marker(1, None, &[]);
        markers.files.clear();
        assert!(
            markers.files.has_room_for(MARKERS_BYTES_MAX, 0) && markers.files.get(&link).is_none()
        );
    }

    #[test]
    fn markers_of_another_folder_and_damaged_ones_are_refused() {
        let mut other = TestMarkers::made(1, 1, None, &[]);
        other.folder = "another".to_owned();
        let bytes = other.write().expect("memory suffices");
        let name = other.name.file_name(&ContentDigest::of(&bytes));
        let mut files = MarkerFiles::new("f");
        assert_eq!(files.add(&name, &bytes), Err(NotAdded::OtherFolder));
        assert!(matches!(files.add(&name, &bytes[1..]), Err(NotAdded::Marker(_))));
    }

    #[test]
    fn a_version_is_found_by_its_size() {
        let mut markers = TestMarkers::default();
        markers.marker(1, None, &[is("a", b"one"), is("b", b"two")]);
        markers.marker(2, None, &[is("a", b"three")]);
        let at = path("a");
        let found: Vec<_> = markers.files.versions(&at, 3).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, ContentDigest::of(b"one"));
        let holder = markers.files.holder_of(found[0].1);
        assert_eq!(holder.as_deref(), Some("laptop1"));
    }
}
