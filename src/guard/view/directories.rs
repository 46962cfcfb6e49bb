//! Reads of directories. An open directory keeps its place in the folder's own directory and one page
//! of names, however many names there are.

use super::super::linux_disk::reopen;
use super::attributes::{ROOT, node_type};
use super::control_files::{CONTROL_DIR, ControlFiles, is_control};
use super::folder_view::{FolderView, OpenDir, errno};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::user_shares::Pool;
use crate::fuse::kernel::values::{
    DirEntry, DirPage, Errno, NodeType, Opened, OpenedFlags, Requester,
};
use parking_lot::Mutex;
use rustix::fs::{Dir, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// The number of entries in one page of an open directory: more than a reply to the kernel holds.
const PAGE_ENTRIES_MAX: usize = 1_024;

/// The place of an open directory in the folder's own directory.
pub(super) struct DirReading {
    stream: Dir,
    /// Whether the directory is the root of the view, which hides the guard's own directory.
    is_root: bool,
    /// The files that were not published yet when the program began to read. They come last, and
    /// names of the folder that are the same are left out.
    staged: Vec<(OsString, u64)>,
    /// The offset in the folder's directory at which each page begins, as far as it was read.
    starts: Vec<i64>,
    /// The number of the page that is read next from the stream.
    next: usize,
    /// The number of the last page, once it was read.
    last: Option<usize>,
    page: (usize, Arc<Vec<DirEntry>>),
}

impl DirReading {
    fn new(dir: File, is_root: bool) -> io::Result<Self> {
        let stream = Dir::new(dir)?;
        let page = (usize::MAX, Arc::default());
        let (staged, starts) = (Vec::new(), vec![0]);
        Ok(Self { stream, is_root, staged, starts, next: 0, last: None, page })
    }

    /// Begins again at the first name.
    fn begin(&mut self, staged: Vec<(OsString, u64)>) -> io::Result<()> {
        self.stream.seek(0)?;
        self.staged = staged;
        self.starts.truncate(1);
        (self.next, self.last, self.page.0) = (0, None, usize::MAX);
        Ok(())
    }

    /// Returns the page with the entry `index`, and the index of its first entry. The page is empty
    /// if there is no such entry.
    fn page_of(&mut self, index: usize) -> io::Result<(usize, Arc<Vec<DirEntry>>)> {
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
                let staged = self.staged.iter().map(|(name, ino)| DirEntry {
                    ino: Some(*ino),
                    kind: NodeType::RegularFile,
                    name: name.clone().into(),
                });
                entries.extend(staged);
                self.last = Some(self.next);
                break;
            };
            let entry = entry?;
            offset = entry.offset();
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_hidden = name == "." || name == ".." || self.is_root && name == CONTROL_DIR;
            if !is_hidden && !self.staged.iter().any(|(staged, _)| staged == name) {
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

impl FolderView {
    pub(super) fn open_dir(&self, who: Requester, ino: u64) -> Done<Opened> {
        let path = self.nodes.path(ino).unwrap_or_default();
        let (pool, reading) = if is_control(ino) {
            (Pool::Directories, None)
        } else {
            let (dir, _) = self.directory(ino)?;
            let opened = reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
            let reading = opened.and_then(|dir| DirReading::new(dir, ino == ROOT));
            (Pool::FolderFiles, Some(Mutex::new(reading.map_err(|error| errno(&error))?)))
        };
        let share = self.share(pool, who, &path)?;
        let fh = self.numbers.next();
        self.dirs.insert(fh, OpenDir { reading, _share: share });
        Ok(Opened { fh, flags: OpenedFlags::empty() })
    }

    /// Returns entries of a directory, among them the entry `first`. The names are read again when
    /// the program begins at the start, since it may have made or removed files since it opened the
    /// directory.
    pub(super) fn read_dir(&self, ino: u64, fh: u64, first: u64, anew: bool) -> Done<DirPage> {
        let open = self.dirs.get(fh).ok_or(Errno::EBADF)?;
        let Some(reading) = &open.reading else {
            let entries = Arc::new(ControlFiles::entries(ino).unwrap_or_default());
            return Ok(DirPage { entries, first: 0 });
        };
        let mut reading = reading.lock();
        if anew {
            reading.begin(self.nodes.savings_in(ino)).map_err(|error| errno(&error))?;
        }
        let index = usize::try_from(first).unwrap_or(usize::MAX);
        let (first, entries) = reading.page_of(index).map_err(|error| errno(&error))?;
        Ok(DirPage { entries, first: first as u64 })
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
        let staged = vec![("file7".into(), 7), ("staged".into(), 8)];
        reading.begin(staged).expect("readable");
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
