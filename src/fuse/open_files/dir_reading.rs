//! The read position of an open directory. Directories are read page by page, so that neither the
//! time of one request nor the memory of an open directory depends on the number of locks.
//!
//! Names come in order, and a page begins after the last name of the previous one. A name that
//! exists all the time is listed once; one that is created or removed meanwhile may be listed or
//! not.

use crate::fuse::kernel::user_shares::Share;
use crate::fuse::kernel::values::DirEntry;
use parking_lot::Mutex;
use std::sync::Arc;

/// The number of names on a page: twice as many as a usual readdir reply of 4 KiB holds.
pub(crate) const PAGE: usize = 256;
/// The maximum number of marks: positions in the directory from which reading can continue without
/// starting over.
const MARKS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) reading: Mutex<DirReading>,
    _share: Share,
}

/// The read position in a directory, with the page of names that was read last, and with marks,
/// which are remembered earlier positions.
#[derive(Debug)]
pub(crate) struct DirReading {
    /// The names of the page that was read last, and the index of its first name.
    entries: Arc<Vec<DirEntry>>,
    first: u64,
    /// The beginning of the next page; `None` at the end of the directory.
    next: Option<DirMark>,
    /// The number of names read so far. The kernel knows no directory offset beyond it.
    reached: u64,
    /// Remembered positions in the directory, in order, from which reading can go on without
    /// starting over.
    marks: Vec<DirMark>,
    /// The minimum distance between two remembered positions, in names.
    stride: u64,
}

/// A position in a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirMark {
    /// The index of the name that comes next.
    pub(crate) index: u64,
    /// The engine's list cursor for the position; `None` at the beginning of the directory.
    pub(crate) cursor: Option<String>,
}

/// The page that contains a requested entry of the directory.
pub(crate) enum PageFound {
    /// The page that was read last contains the entry. Holds the names of that page, and the index
    /// of its first name.
    Here(Arc<Vec<DirEntry>>, u64),
    /// The entry is on the page that begins at the contained position, or on a later page.
    From(DirMark),
    /// No page contains the entry: its index is beyond the end of the directory.
    End,
}

impl OpenDir {
    /// Returns an open directory whose reading starts at the beginning.
    pub(crate) fn new(share: Share) -> Self {
        Self { reading: Mutex::new(DirReading::new()), _share: share }
    }
}

impl DirReading {
    /// Returns the position at the beginning of a directory.
    pub(crate) fn new() -> Self {
        let (next, marks) = (Some(DirMark::default()), vec![DirMark::default()]);
        Self { entries: Arc::default(), first: 0, next, reached: 0, marks, stride: PAGE as u64 }
    }

    /// Finds the page of the directory with the entry number `index`.
    pub(crate) fn find(&self, index: u64) -> PageFound {
        let end = self.first + self.entries.len() as u64;
        if (self.first..end).contains(&index) {
            return PageFound::Here(Arc::clone(&self.entries), self.first);
        }
        if index > self.reached || (self.next.is_none() && index >= end) {
            return PageFound::End;
        }
        let places = self.marks.iter().chain(&self.next).filter(|mark| mark.index <= index);
        PageFound::From(places.max_by_key(|mark| mark.index).cloned().unwrap_or_default())
    }

    /// Records a page of the directory, which was read from the position `mark` on.
    pub(crate) fn turn_to(
        &mut self,
        mark: &DirMark,
        entries: Vec<DirEntry>,
        cursor: Option<String>,
    ) {
        let index = mark.index + entries.len() as u64;
        self.first = mark.index;
        self.reached = self.reached.max(index);
        self.entries = Arc::new(entries);
        self.next = cursor.map(|cursor| DirMark { index, cursor: Some(cursor) });
        let last = self.marks.last().map_or(0, |last| last.index);
        if mark.index < last + self.stride {
            return;
        }
        if self.marks.len() == MARKS_MAX {
            let mut keep = false;
            self.marks.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
        self.marks.push(mark.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::kernel::values::NodeType;
    use std::ffi::OsString;

    /// Reads pages in a test until one contains `index`, as if the engine had `count` names.
    /// Returns the number of pages read.
    fn turn(reading: &mut DirReading, index: u64, count: u64) -> usize {
        let mut pages = 0;
        while let PageFound::From(mark) = reading.find(index) {
            let end = count.min(mark.index + PAGE as u64);
            let entry = |n: u64| DirEntry {
                ino: None,
                kind: NodeType::Directory,
                name: OsString::from(n.to_string()).into(),
            };
            let next = (end < count).then(|| end.to_string());
            assert_eq!(mark.cursor.as_deref().unwrap_or("0"), mark.index.to_string());
            reading.turn_to(&mark, (mark.index..end).map(entry).collect(), next);
            pages += 1;
        }
        pages
    }

    fn name_at(reading: &mut DirReading, index: u64, count: u64) -> Option<String> {
        turn(reading, index, count);
        match reading.find(index) {
            PageFound::Here(entries, first) => {
                Some(entries[(index - first) as usize].name.display().to_string())
            }
            _ => None,
        }
    }

    #[test]
    fn every_name_is_found_in_any_order() {
        const COUNT: u64 = 100_000;
        let mut reading = DirReading::new();
        for index in (0..COUNT).chain([5, COUNT - 1, 70_000, 0, 256, 255]) {
            assert_eq!(name_at(&mut reading, index, COUNT), Some(index.to_string()));
        }
        assert_eq!(name_at(&mut reading, COUNT, COUNT), None);
        assert_eq!(name_at(&mut reading, u64::MAX, COUNT), None);
        assert_eq!(name_at(&mut DirReading::new(), 0, 0), None);
        assert_eq!(turn(&mut DirReading::new(), COUNT, COUNT), 0, "no place that was given out");
    }

    #[test]
    fn seeking_back_reads_few_pages_and_keeps_few_marks() {
        const COUNT: u64 = 1 << 20;
        let mut reading = DirReading::new();
        for index in (0..COUNT).step_by(PAGE) {
            assert_eq!(turn(&mut reading, index, COUNT), 1);
        }
        for index in [0, 1_000, COUNT / 3, COUNT / 2, COUNT - 70_000] {
            // Reading backwards visits all pages between two marks (remembered positions in the
            // directory). When there are too many marks, every second one is dropped.
            assert!(turn(&mut reading, index, COUNT) <= 4 * COUNT as usize / PAGE / MARKS_MAX);
            assert!(reading.marks.len() <= MARKS_MAX && reading.entries.len() <= PAGE);
        }
    }
}
