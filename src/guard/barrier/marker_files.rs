//! The markers and checkpoints that are in this machine's copy of the folder.

use super::super::tenure::TenureId;
use super::content_digest::ContentDigest;
use super::folder_path::FolderPath;
use super::marker::{Marker, MarkerError, PathState, StoredMarker};
use super::marker_name::MarkerLink;
use std::collections::BTreeMap;
use std::fmt;

/// The maximum number of markers that are read. A guard removes the markers before the last but
/// one checkpoint.
pub(crate) const MARKERS_MAX: usize = 4_096;
/// The maximum size of all markers that are read in bytes.
pub(crate) const MARKERS_BYTES_MAX: u64 = 512 * 1_024 * 1_024;

/// The maximum number of paths that all markers which are read name: those of two checkpoints of
/// the largest folder, and of the markers between them. A path takes four times the memory of its
/// shortest text.
pub(crate) const MARKER_PATHS_MAX: usize = 4_194_304;

/// Why a file is not among the markers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotAdded {
    /// The file is no marker.
    Marker(MarkerError),
    /// The marker is one of another folder.
    OtherFolder,
    /// There are too many markers, or bytes of them, or paths in them.
    Full,
    /// There is no room for this one, which names so many paths.
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
pub(crate) struct MarkerFiles {
    folder: String,
    /// The markers, each with the size of its file.
    markers: BTreeMap<MarkerLink, (Marker, u64)>,
    bytes: u64,
    /// The number of paths that they name.
    paths: usize,
}

impl MarkerFiles {
    /// Returns no markers of the folder with this id.
    pub(crate) fn new(folder: &str) -> Self {
        Self { folder: folder.to_owned(), ..Self::default() }
    }

    /// Whether a file of this size, which names so many paths as far as that is known, can be
    /// added.
    pub(crate) fn has_room_for(&self, bytes: u64, paths: usize) -> bool {
        self.markers.len() < MARKERS_MAX
            && self.bytes.saturating_add(bytes) <= MARKERS_BYTES_MAX
            && self.paths.saturating_add(paths.max(1)) <= MARKER_PATHS_MAX
    }

    /// Adds the file with this name in `.latchfs`.
    pub(crate) fn add(&mut self, file_name: &str, bytes: &[u8]) -> Result<MarkerLink, NotAdded> {
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
    pub(crate) fn is_empty(&self) -> bool {
        self.markers.is_empty()
    }

    /// Returns a marker.
    pub(crate) fn get(&self, link: &MarkerLink) -> Option<&Marker> {
        self.markers.get(link).map(|(marker, _)| marker)
    }

    /// Removes a marker whose file is no longer here.
    pub(crate) fn remove(&mut self, link: &MarkerLink) -> Option<Marker> {
        let (marker, size) = self.markers.remove(link)?;
        self.bytes -= size;
        self.paths -= marker.changes.len();
        Some(marker)
    }

    /// Removes all markers.
    pub(crate) fn clear(&mut self) {
        self.markers.clear();
        (self.bytes, self.paths) = (0, 0);
    }

    /// Returns the markers with which a tenure ended after its gate had closed, and whose numbers
    /// are at least `number`.
    pub(crate) fn last_of(&self, tenure: TenureId, number: u64) -> Vec<MarkerLink> {
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
    pub(crate) fn holder_of(&self, tenure: TenureId) -> Option<String> {
        let of_tenure = self.markers.iter().find(|(link, _)| link.name.tenure == tenure);
        of_tenure.map(|(_, (marker, _))| marker.holder.clone())
    }

    /// Returns the versions of a path with this size that markers name, and their tenures.
    pub(crate) fn versions<'a>(
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
    use super::super::test_markers::{TestMarkers, is};
    use super::super::test_tree::path;
    use super::*;

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
