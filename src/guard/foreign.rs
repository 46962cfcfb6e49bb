//! Tells the versions of files that this guard has left in the folder from foreign ones: those that
//! came past the view in this tenure, for example from a sync tool.

use super::disk::{FileId, Look};
use parking_lot::Mutex;
use std::collections::HashMap;

/// The maximum number of files whose versions are remembered in one tenure.
const VERSIONS_MAX: usize = 1 << 20;

/// The versions of files that this guard has left in the folder in one tenure.
pub(super) struct OwnVersions(Mutex<Memory>);

struct Memory {
    /// The change time before which every change of a file was made before the tenure.
    since: i128,
    /// The modification time and the size of each file.
    left: HashMap<FileId, (i128, u64)>,
    max: usize,
}

impl OwnVersions {
    /// Returns the versions of a tenure that begins at the change time `since`.
    pub(super) fn new(since: i128) -> Self {
        Self(Mutex::new(Memory { since, left: HashMap::new(), max: VERSIONS_MAX }))
    }

    /// Says that everything was compared that was changed before the change time `since`: what
    /// stands in the folder is what should be there.
    pub(super) fn compared(&self, since: i128) {
        self.0.lock().since = since;
    }

    /// Takes over the versions of this guard's last tenure, which ended shortly before this one
    /// began: files that it changed may have a change time that is not earlier than `since`.
    pub(super) fn inherit(&self, last: &Self) {
        self.0.lock().left.clone_from(&last.0.lock().left);
    }

    /// Whether a file with one name is a foreign version.
    pub(super) fn is_foreign(&self, found: &Look) -> bool {
        let memory = self.0.lock();
        found.is_file
            && found.links == 1
            && found.changed >= memory.since
            && memory.left.get(&found.id) != Some(&(found.modified, found.size))
    }

    /// Records the version of a file that this guard leaves in the folder. `is_new` says that the
    /// file was made in this tenure: a wall clock that was set back shows in its change time.
    pub(super) fn record(&self, found: &Look, is_new: bool) {
        let mut memory = self.0.lock();
        if is_new {
            memory.since = memory.since.min(found.changed);
        }
        if memory.left.len() >= memory.max {
            // Versions from before this moment are no longer told apart.
            memory.left.clear();
            memory.since = found.changed + 1;
        }
        memory.left.insert(found.id, (found.modified, found.size));
    }

    /// Forgets a file that loses this name, unless it has another one.
    pub(super) fn forget(&self, file: &Look) {
        if file.links == 1 {
            self.0.lock().left.remove(&file.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(inode: u64, modified: i128, changed: i128) -> Look {
        let id = FileId { device: 1, inode, born: 0 };
        Look { id, is_file: true, is_dir: false, links: 1, uid: 0, size: 5, modified, changed }
    }

    #[test]
    fn a_change_past_the_view_is_foreign() {
        let own = OwnVersions::new(100);
        assert!(!own.is_foreign(&look(1, 99, 99)) && own.is_foreign(&look(1, 99, 100)));
        own.record(&look(1, 99, 100), true);
        assert!(!own.is_foreign(&look(1, 99, 300)), "its mode was changed");
        assert!(own.is_foreign(&look(1, 98, 300)) && own.is_foreign(&look(2, 99, 300)));
        assert!(own.is_foreign(&Look { size: 6, ..look(1, 99, 300) }));
        assert!(!own.is_foreign(&Look { links: 2, ..look(2, 99, 300) }));
        own.forget(&Look { links: 2, ..look(1, 0, 0) });
        assert!(!own.is_foreign(&look(1, 99, 300)), "it has another name");
        own.forget(&look(1, 0, 0));
        assert!(own.is_foreign(&look(1, 99, 300)));
        own.record(&look(3, 50, 50), true);
        assert!(own.is_foreign(&look(4, 60, 60)), "the wall clock was set back");
    }

    #[test]
    fn what_was_compared_is_not_foreign() {
        let own = OwnVersions::new(100);
        assert!(own.is_foreign(&look(1, 150, 150)), "it came while the tenure waited");
        own.compared(200);
        assert!(!own.is_foreign(&look(1, 150, 150)) && own.is_foreign(&look(1, 200, 200)));
    }

    #[test]
    fn a_tenure_knows_the_versions_of_the_last_one() {
        let last = OwnVersions::new(100);
        last.record(&look(1, 99, 199), false);
        let next = OwnVersions::new(200);
        assert!(next.is_foreign(&look(1, 99, 200)));
        next.inherit(&last);
        assert!(!next.is_foreign(&look(1, 99, 200)));
        assert!(next.is_foreign(&look(1, 98, 200)) && next.is_foreign(&look(2, 99, 200)));
    }

    #[test]
    fn the_versions_of_a_tenure_have_a_bound() {
        let own = OwnVersions::new(0);
        own.0.lock().max = 3;
        (1..=4).for_each(|inode| own.record(&look(inode, 7, 7), true));
        assert_eq!(own.0.lock().left.len(), 1);
        assert!(!own.is_foreign(&look(1, 7, 7)), "no false alarm");
        assert!(own.is_foreign(&look(1, 8, 8)));
    }
}
