//! The place of an open directory in the folder's own directory, with one page of names, however
//! many names there are.

use super::attributes::node_type;
use super::control_files::CONTROL_DIR;
use crate::fuse::kernel::file_system::{DirEntry, NodeType};
use rustix::fs::Dir;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The number of entries in one page of an open directory: more than a reply to the kernel holds.
const PAGE_ENTRIES_MAX: usize = 1_024;

/// The place of an open directory in the folder's own directory.
pub(super) struct DirReading {
    stream: Dir,
    /// Whether the directory is the root of the view, which hides the guard's own directory.
    is_root: bool,
    /// The files that were not published yet when the program began to read, and the local files.
    /// They come last, and names of the folder that are the same are left out.
    added: Vec<Added>,
    added_names: HashSet<OsString>,
    /// The offset in the folder's directory at which each page begins, as far as it was read.
    starts: Vec<i64>,
    /// The number of the page that is read next from the stream.
    next: usize,
    /// The number of the last page, once it was read.
    last: Option<usize>,
    page: (usize, Arc<Vec<DirEntry>>),
}

/// An entry that the folder's directory does not have: a name with its type, and the node of a file
/// that is not published yet.
pub(super) type Added = (OsString, NodeType, Option<u64>);

impl DirReading {
    /// Returns the place before the first name of an open directory.
    pub(super) fn new(dir: File, is_root: bool) -> io::Result<Self> {
        let stream = Dir::new(dir)?;
        let page = (usize::MAX, Arc::default());
        let (added, added_names, starts) = (Vec::new(), HashSet::new(), vec![0]);
        Ok(Self { stream, is_root, added, added_names, starts, next: 0, last: None, page })
    }

    /// Begins again at the first name.
    pub(super) fn begin(&mut self, added: Vec<Added>) -> io::Result<()> {
        self.stream.seek(0)?;
        self.added_names = added.iter().map(|(name, ..)| name.clone()).collect();
        self.added = added;
        self.starts.truncate(1);
        (self.next, self.last, self.page.0) = (0, None, usize::MAX);
        Ok(())
    }

    /// Returns the page with the entry `index`, and the index of its first entry. The page is empty
    /// if there is no such entry.
    pub(super) fn page_of(&mut self, index: usize) -> io::Result<(usize, Arc<Vec<DirEntry>>)> {
        let wanted = index / PAGE_ENTRIES_MAX;
        let wanted = self.last.map_or(wanted, |last| wanted.min(last));
        if self.page.0 != wanted {
            if wanted < self.next {
                self.stream.seek(self.starts[wanted])?;
                self.next = wanted;
            }
            while self.next <= wanted && self.last.is_none_or(|last| self.next <= last) {
                let entries = Arc::new(self.read_next()?);
                self.page = (self.next - 1, entries);
            }
        }
        Ok((self.page.0.saturating_mul(PAGE_ENTRIES_MAX), Arc::clone(&self.page.1)))
    }

    fn read_next(&mut self) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        let mut offset = 0;
        while entries.len() < PAGE_ENTRIES_MAX {
            let Some(entry) = self.stream.read() else {
                let added = self.added.iter().map(|(name, kind, ino)| DirEntry {
                    ino: *ino,
                    kind: *kind,
                    name: name.clone().into(),
                });
                entries.extend(added);
                self.last = Some(self.next);
                break;
            };
            let entry = entry?;
            offset = entry.offset();
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_hidden = name == "." || name == ".." || self.is_root && name == CONTROL_DIR;
            if !is_hidden && !self.added_names.contains(name) {
                let kind = node_type(entry.file_type());
                entries.push(DirEntry { ino: None, kind, name: name.into() });
            }
        }
        self.next += 1;
        if self.last.is_none() && self.starts.len() == self.next {
            self.starts.push(offset);
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn an_open_directory_keeps_one_page_and_finds_each_name_once() {
        let dir = std::env::temp_dir().join(format!("latchfs-names-{}", std::process::id()));
        fs::create_dir(&dir).expect("a fresh directory");
        let count = 3 * PAGE_ENTRIES_MAX + 10;
        for number in 0..count {
            fs::write(dir.join(format!("file{number}")), "").expect("written");
        }
        let opened = File::open(&dir).expect("there");
        let mut reading = DirReading::new(opened, false).expect("readable");
        let staged = |name: &str, ino| (name.into(), NodeType::RegularFile, Some(ino));
        reading.begin(vec![staged("file7", 7), staged("staged", 8)]).expect("readable");
        let read = |reading: &mut DirReading| {
            let (mut names, mut index) = (Vec::new(), 0);
            loop {
                let (first, page) = reading.page_of(index).expect("readable");
                assert!(page.len() <= PAGE_ENTRIES_MAX + 2, "{}", page.len());
                let Some(rest) = page.get(index - first..).filter(|rest| !rest.is_empty()) else {
                    return names;
                };
                names.extend(rest.iter().map(|entry| entry.name.clone()));
                index += rest.len();
            }
        };
        let names = read(&mut reading);
        assert_eq!(names.len(), count + 1);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), count + 1);
        // A program that seeks back reads the same names.
        for index in [2 * PAGE_ENTRIES_MAX + 5, 5, PAGE_ENTRIES_MAX, count, 0] {
            let (first, page) = reading.page_of(index).expect("readable");
            assert_eq!(page[index - first].name, names[index], "{index}");
        }
        assert!(reading.page_of(count + 1).expect("readable").1.len() <= PAGE_ENTRIES_MAX + 2);
        fs::remove_dir_all(&dir).expect("it is there");
    }
}
