//! Checkpoints: markers that name every path of the folder, so that a machine can start from one,
//! and older markers can be removed.

use super::chain::ancestors;
use super::handover::MarkerCounts;
use super::marker_files::MarkerFiles;
use super::marker_name::{MarkerKind, MarkerLink};

/// A checkpoint is due when more markers than this follow the last one.
const MARKERS_DUE: u64 = 64;

/// Whether the next marker should be a checkpoint: many markers follow the last one, or they name
/// more than a quarter of the files.
pub(crate) fn is_due(since: MarkerCounts, files: usize) -> bool {
    since.markers > MARKERS_DUE || since.paths.saturating_mul(4) > files as u64
}

/// Returns the markers that nobody needs any more after the checkpoint `newest` was handed over:
/// those before the checkpoint before it. A machine that is as far behind as that starts from the
/// checkpoint.
pub(crate) fn removable(markers: &MarkerFiles, newest: MarkerLink) -> Vec<MarkerLink> {
    let is_checkpoint = |link: &MarkerLink| link.name.kind == MarkerKind::Checkpoint;
    let mut before = ancestors(markers, newest).map(|(link, _)| link).skip(1);
    let Some(_previous) = before.by_ref().find(is_checkpoint) else { return Vec::new() };
    before.collect()
}

#[cfg(test)]
mod tests {
    use super::super::chain::walk;
    use super::super::test_markers::TestMarkers;
    use super::*;

    #[test]
    fn a_checkpoint_is_due_after_many_markers_or_changes() {
        let due = |markers, paths, files| is_due(MarkerCounts { markers, paths }, files);
        assert!(!due(64, 0, 0) && due(65, 0, 0));
        assert!(!due(1, 250, 1_000) && due(1, 251, 1_000));
        assert!(due(0, u64::MAX, 1_000));
    }

    #[test]
    fn markers_before_the_previous_checkpoint_can_be_removed() {
        let mut markers = TestMarkers::default();
        let zero = markers.checkpoint(1, None, &[]);
        let one = markers.marker(2, Some(zero), &[]);
        let two = markers.checkpoint(3, Some(one), &[]);
        let three = markers.marker(4, Some(two), &[]);
        let four = markers.checkpoint(5, Some(three), &[]);
        assert_eq!(removable(&markers.files, four), [one, zero]);
        assert_eq!(removable(&markers.files, two), []);
        for link in removable(&markers.files, four) {
            markers.remove(link);
        }
        assert!(walk(&markers.files, four, None).is_ok());
        assert!(walk(&markers.files, three, None).is_ok());
        assert_eq!(removable(&markers.files, four), []);
    }
}
