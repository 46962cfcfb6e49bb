//! How far an open directory was read. Directories are read page by page, so that neither the time
//! of one request nor what an open directory keeps depends on how many locks there are.
//!
//! Names come in order, and a page begins behind the last name of the page before. A name that is
//! there all the time is listed once; one that comes or goes meanwhile may be listed or not.

use crate::fuse::kernel::user_shares::Share;
use crate::fuse::kernel::values::DirEntry;
use parking_lot::Mutex;
use std::sync::Arc;

/// Names on a page: twice what the usual reply of 4 KiB takes.
pub(crate) const PAGE: usize = 256;
/// Places to which reading can go back without beginning anew.
const MARKS_MAX: usize = 64;

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) reading: Mutex<DirReading>,
    _share: Share,
}

/// How far reading has come.
#[derive(Debug)]
pub(crate) struct DirReading {
    /// The page that was read last, and the number of its first name.
    entries: Arc<Vec<DirEntry>>,
    first: u64,
    /// Where the next page begins; `None`: nowhere.
    next: Option<DirMark>,
    /// How many names were read: no place behind them was ever given out.
    reached: u64,
    /// Places before it, in order.
    marks: Vec<DirMark>,
    /// How far apart they are at least.
    stride: u64,
}

/// A place in a directory.
#[derive(Debug, Clone, Default)]
pub(crate) struct DirMark {
    /// The number of the name that comes next.
    pub(crate) index: u64,
    /// How the engine finds it; `None`: the beginning.
    pub(crate) cursor: Option<String>,
}

/// Where a name is to be found.
pub(crate) enum PageFound {
    /// On this page.
    Here(Arc<Vec<DirEntry>>, u64),
    /// On the page that begins here, or on one behind.
    From(DirMark),
    /// Nowhere.
    End,
}

impl OpenDir {
    /// A directory of which nothing was read.
    pub(crate) fn new(share: Share) -> Self {
        Self { reading: Mutex::new(DirReading::new()), _share: share }
    }
}

impl DirReading {
    /// A directory of which nothing was read.
    pub(crate) fn new() -> Self {
        let (next, marks) = (Some(DirMark::default()), vec![DirMark::default()]);
        Self { entries: Arc::default(), first: 0, next, reached: 0, marks, stride: PAGE as u64 }
    }

    /// Finds the page with the name of this number.
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

    /// A page was read from `mark` on.
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

    /// Reads the page that holds `index`, as the engine would serve it. Gives the pages read.
    fn turn(reading: &mut DirReading, index: u64, count: u64) -> usize {
        let mut pages = 0;
        while let PageFound::From(mark) = reading.find(index) {
            let end = count.min(mark.index + PAGE as u64);
            let entry = |n: u64| DirEntry {
                ino: None,
                kind: NodeType::Directory,
                name: n.to_string().into(),
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
                Some(entries[(index - first) as usize].name.to_string())
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
    fn going_back_reads_few_pages_and_little_is_kept() {
        const COUNT: u64 = 1 << 20;
        let mut reading = DirReading::new();
        for index in (0..COUNT).step_by(PAGE) {
            assert_eq!(turn(&mut reading, index, COUNT), 1);
        }
        for index in [0, 1_000, COUNT / 3, COUNT / 2, COUNT - 70_000] {
            // All pages between two of the marks, which are halved whenever they are too many.
            assert!(turn(&mut reading, index, COUNT) <= 4 * COUNT as usize / PAGE / MARKS_MAX);
            assert!(reading.marks.len() <= MARKS_MAX && reading.entries.len() <= PAGE);
        }
    }
}
