//! Reads the markers and checkpoints in `.latchfs`. A file that is none, or that can't be read, is
//! named and keeps no other one from being read.

use super::super::barrier::marker::{MARKER_BYTES_MAX, MarkerError};
use super::super::barrier::marker_files::{MarkerFiles, NotAdded};
use super::super::barrier::marker_name::{MarkerLink, MarkerName};
use super::super::barrier::strays::is_sync_temporary;
use super::super::disk::{Disk, Look, Place};
use super::bounded_read::{if_there, read_at_most};
use super::disk_names::open_dir_at;
use super::disk_tree::CONTROL_DIR;
use crate::base::said;
use crate::time::Wall;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;

/// The maximum number of files with names of markers that are looked at.
pub(crate) const MARKER_NAMES_MAX: usize = 16_384;
/// The maximum number of unreadable files that are named.
const UNREAD_SHOWN_MAX: usize = 100;
/// The maximum size of all files in bytes that are read in one refresh.
pub(crate) const REFRESH_BYTES_MAX: u64 = 1_024 * 1_024 * 1_024;
/// A look at something that was changed less than this many nanoseconds ago proves nothing: the
/// clock of a file system may stand still for a while.
const CLOCK_STEP_NANOS: i128 = 2_000_000_000;

/// The directory of markers, relative to the folder.
const MARKERS_DIR: &str = ".latchfs/markers";

/// A file in `.latchfs` that is no marker, or can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadMarker {
    /// The name of the file in `.latchfs`.
    pub(crate) file_name: String,
    /// The reason.
    pub(crate) why: String,
}

/// A version of a file, or of a directory, at which a refresh has looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    look: Look,
    /// Whether the same look later proves that nothing was changed.
    is_proof: bool,
}

impl Seen {
    /// Returns what a look at this time proves about later ones.
    fn at(look: Look, now: Wall) -> Self {
        let now = i128::from(now.secs) * 1_000_000_000 + i128::from(now.nanos);
        Self { look, is_proof: look.changed.max(look.modified) + CLOCK_STEP_NANOS < now }
    }

    fn is_still(&self, look: &Look) -> bool {
        self.is_proof && self.look == *look
    }
}

/// Why a file with the name of a marker was not read.
#[derive(Debug, Clone)]
enum NotRead {
    /// There was no room for it, which names so many paths as far as that is known.
    NoRoom(usize),
    /// It is a marker of another folder, of which this one is a copy.
    OtherFolder,
    /// It is no marker, or can't be read.
    Because(String),
}

/// A file with the name of a marker.
#[derive(Debug, Clone)]
struct KnownFile {
    seen: Seen,
    read: Result<MarkerLink, NotRead>,
}

/// The markers of a folder, and what is known of their files.
#[derive(Debug)]
pub(crate) struct MarkerDir {
    files: MarkerFiles,
    known: BTreeMap<String, KnownFile>,
    /// The directories `.latchfs` and `.latchfs/markers` as they were listed.
    dirs: [Option<Seen>; 2],
    /// The files whose names are no names of markers.
    misnamed: BTreeSet<String>,
    /// Whether there are more files than are looked at.
    is_cut: bool,
}

/// The open directories of markers.
struct OpenDirs<D: Disk> {
    control: Option<D::Dir>,
    markers: Option<D::Dir>,
}

impl<D: Disk> OpenDirs<D> {
    fn open(disk: &D, folder: &D::Dir) -> io::Result<Self> {
        let control = open_dir_at(disk, folder, OsStr::new(CONTROL_DIR))?;
        let markers = open_dir_at(disk, folder, OsStr::new(MARKERS_DIR))?;
        Ok(Self { control, markers })
    }

    fn looks(&self, disk: &D) -> io::Result<[Option<Look>; 2]> {
        let look = |dir: &Option<D::Dir>| match dir {
            Some(dir) => if_there(disk.look(Place::new(dir, "."))),
            None => Ok(None),
        };
        Ok([look(&self.control)?, look(&self.markers)?])
    }

    /// Returns the place of the file with this name in `.latchfs`.
    fn place<'a>(&'a self, file_name: &'a str) -> Option<Place<'a, D::Dir>> {
        match file_name.strip_prefix("markers/") {
            Some(name) => self.markers.as_ref().map(|dir| Place::new(dir, name)),
            None => self.control.as_ref().map(|dir| Place::new(dir, file_name)),
        }
    }
}

impl MarkerDir {
    /// Returns the markers of the folder with this id, of which none are read yet.
    pub(crate) fn new(folder_id: &str) -> Self {
        Self {
            files: MarkerFiles::new(folder_id),
            known: BTreeMap::new(),
            dirs: [None, None],
            misnamed: BTreeSet::new(),
            is_cut: false,
        }
    }

    /// Returns the markers that were read.
    pub(crate) fn files(&self) -> &MarkerFiles {
        &self.files
    }

    /// Returns the first of the files that are no markers, or can't be read.
    pub(crate) fn unread(&self) -> Vec<UnreadMarker> {
        let unread = self.known.iter().filter_map(|(name, file)| match &file.read {
            Ok(_) => None,
            Err(NotRead::NoRoom(_)) => Some((name.clone(), NotAdded::Full.to_string())),
            Err(NotRead::OtherFolder) => Some((name.clone(), NotAdded::OtherFolder.to_string())),
            Err(NotRead::Because(why)) => Some((name.clone(), why.clone())),
        });
        let misnamed = self
            .misnamed
            .iter()
            .map(|name| (name.clone(), "its name is not that of a marker".to_owned()));
        let cut = self.is_cut.then(|| {
            let why = format!("it has more than {MARKER_NAMES_MAX} files; the rest is not read");
            ("markers".to_owned(), why)
        });
        let all = cut.into_iter().chain(unread).chain(misnamed).take(UNREAD_SHOWN_MAX);
        all.map(|(file_name, why)| UnreadMarker { file_name, why }).collect()
    }

    /// Returns the names of the markers of other folders in `.latchfs`.
    pub(super) fn of_other_folders(&self) -> impl Iterator<Item = &str> {
        let is_other = |file: &KnownFile| matches!(file.read, Err(NotRead::OtherFolder));
        self.known.iter().filter(move |(_, file)| is_other(file)).map(|(name, _)| name.as_str())
    }

    /// Reads what has changed since the last refresh. The marker `wanted` and those before it are
    /// read first, so that files of others can't take their room.
    pub(crate) fn refresh<D: Disk>(
        &mut self,
        disk: &D,
        folder: &D::Dir,
        wanted: Option<MarkerLink>,
    ) -> io::Result<()> {
        self.refresh_at(disk, folder, wanted, Wall::now())
    }

    fn refresh_at<D: Disk>(
        &mut self,
        disk: &D,
        folder: &D::Dir,
        wanted: Option<MarkerLink>,
        now: Wall,
    ) -> io::Result<()> {
        let dirs = OpenDirs::open(disk, folder)?;
        let looks = dirs.looks(disk)?;
        let is_same = self.dirs.iter().zip(&looks).all(|(seen, look)| match (seen, look) {
            (Some(seen), Some(look)) => seen.is_still(look),
            _ => false,
        });
        if !is_same {
            // An error below leaves the list to be made again.
            self.dirs = [None, None];
        }
        let mut refresh = Refresh { to: self, disk, dirs, now, budget: REFRESH_BYTES_MAX };
        let names =
            if is_same { refresh.to.known.keys().cloned().collect() } else { refresh.list()? };
        refresh.read_chain(wanted)?;
        for name in &names {
            refresh.read_one(name)?;
        }
        self.dirs = looks.map(|look| look.map(|look| Seen::at(look, now)));
        Ok(())
    }

    fn forget(&mut self, name: &str) {
        if let Some(KnownFile { read: Ok(link), .. }) = self.known.remove(name) {
            self.files.remove(&link);
        }
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<MarkerLink, NotRead> {
        self.files.add(name, bytes).map_err(|error| match error {
            NotAdded::Full => NotRead::NoRoom(0),
            NotAdded::TooManyPaths(paths) => NotRead::NoRoom(paths),
            NotAdded::OtherFolder => NotRead::OtherFolder,
            error @ NotAdded::Marker(_) => NotRead::Because(error.to_string()),
        })
    }
}

/// A refresh of the markers.
struct Refresh<'a, D: Disk> {
    to: &'a mut MarkerDir,
    disk: &'a D,
    dirs: OpenDirs<D>,
    now: Wall,
    /// The number of bytes that may still be read.
    budget: u64,
}

impl<D: Disk> Refresh<'_, D> {
    /// Lists the directories, and forgets the files that are gone. Returns the names of markers.
    fn list(&mut self) -> io::Result<BTreeSet<String>> {
        let (mut names, mut misnamed, mut is_cut) = (BTreeSet::new(), BTreeSet::new(), false);
        for (dir, prefix) in [(&self.dirs.control, ""), (&self.dirs.markers, "markers/")] {
            let Some(dir) = dir else { continue };
            self.disk.visit_entries(dir, &mut |entry| {
                let last = entry.name.to_string_lossy();
                let name = format!("{prefix}{last}");
                let is_ours = !prefix.is_empty() || name.starts_with("checkpoint-");
                if MarkerName::parse_file_name(&name).is_some() {
                    is_cut = names.len() == MARKER_NAMES_MAX;
                    if is_cut {
                        return ControlFlow::Break(());
                    }
                    names.insert(name);
                } else if is_ours && misnamed.len() < UNREAD_SHOWN_MAX && !is_sync_temporary(&last)
                {
                    misnamed.insert(name);
                }
                ControlFlow::Continue(())
            })?;
        }
        (self.to.misnamed, self.to.is_cut) = (misnamed, is_cut);
        let is_gone = |name: &&String| !names.contains(*name);
        let gone: Vec<_> = self.to.known.keys().filter(is_gone).cloned().collect();
        for name in &gone {
            self.to.forget(name);
        }
        Ok(names)
    }

    /// Reads a marker and those before it, as far as they are here.
    fn read_chain(&mut self, wanted: Option<MarkerLink>) -> io::Result<()> {
        let mut next = wanted;
        let mut read = BTreeSet::new();
        while let Some(link) = next.filter(|link| read.insert(*link)) {
            let name = link.file_name();
            self.read_one(&name)?;
            let known = self.to.known.get(&name).map(|known| &known.read);
            if matches!(known, Some(Err(NotRead::NoRoom(_)))) && !self.has_only(&read) {
                // Other files have taken the room: it is given back, and the chain read anew.
                self.to.files.clear();
                self.to.known.clear();
                self.budget = REFRESH_BYTES_MAX;
                (next, read) = (wanted, BTreeSet::new());
                continue;
            }
            next = self.to.files.get(&link).and_then(|marker| marker.previous);
        }
        Ok(())
    }

    /// Whether no other files than these markers were read.
    fn has_only(&self, links: &BTreeSet<MarkerLink>) -> bool {
        self.to.known.values().all(|known| match &known.read {
            Ok(link) => links.contains(link),
            Err(_) => true,
        })
    }

    /// Reads a file unless it is known as it is.
    fn read_one(&mut self, name: &str) -> io::Result<()> {
        let Some(at) = self.dirs.place(name) else { return Ok(()) };
        let Some(look) = if_there(self.disk.look(at))? else {
            self.to.forget(name);
            return Ok(());
        };
        let known = self.to.known.get(name).filter(|known| known.seen.is_still(&look));
        let paths = match known.map(|known| &known.read) {
            Some(Err(NotRead::NoRoom(paths))) => Some(*paths),
            Some(_) => return Ok(()),
            None => None,
        };
        let has_room = look.size <= self.budget
            && self.to.files.has_room_for(look.size, paths.unwrap_or_default());
        if paths.is_some() && !has_room {
            return Ok(());
        }
        self.to.forget(name);
        let mut seen = Seen::at(look, self.now);
        let read = if !look.is_file {
            Err(NotRead::Because("it is no regular file".to_owned()))
        } else if look.size > MARKER_BYTES_MAX {
            Err(NotRead::Because(MarkerError::TooLarge.to_string()))
        } else if !has_room {
            Err(NotRead::NoRoom(0))
        } else {
            self.budget -= look.size;
            match read_at_most(self.disk, at, look.size) {
                Ok(Some((bytes, _))) => self.to.add(name, &bytes),
                Ok(None) => return Ok(()),
                Err(error) => {
                    // The next attempt may succeed.
                    seen.is_proof = false;
                    Err(NotRead::Because(said(&error)))
                }
            }
        };
        self.to.known.insert(name.to_owned(), KnownFile { seen, read });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::barrier::content_digest::ContentDigest;
    use super::super::super::barrier::marker::Marker;
    use super::super::super::barrier::marker_files::MARKERS_MAX;
    use super::super::super::barrier::test_markers::TestMarkers;
    use super::super::super::linux_disk::LinuxDisk;
    use super::super::test_disk::{Fault, TestDisk, TestFolder};
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Returns a time long after every test.
    fn later() -> Wall {
        Wall { secs: Wall::now().secs + 60, nanos: 0 }
    }

    fn put(test: &TestFolder, marker: &Marker) -> MarkerLink {
        let bytes = marker.write().expect("memory suffices");
        let link = MarkerLink { name: marker.name, digest: ContentDigest::of(&bytes) };
        test.put(&format!(".latchfs/{}", link.file_name()), &bytes);
        link
    }

    fn marker(token: u64, previous: Option<MarkerLink>) -> Marker {
        TestMarkers::made(token, 1, previous, &[])
    }

    fn checkpoint(token: u64) -> Marker {
        let mut marker = marker(token, None);
        marker.name.kind = super::super::super::barrier::marker_name::MarkerKind::Checkpoint;
        marker
    }

    /// Returns the name of a file that a marker could have.
    fn name(number: usize) -> String {
        format!(".latchfs/markers/0000000000000007-{number}-1-00000000.json")
    }

    fn unread(dir: &MarkerDir) -> Vec<(String, String)> {
        dir.unread().into_iter().map(|unread| (unread.file_name, unread.why)).collect()
    }

    #[test]
    fn markers_and_checkpoints_are_read() {
        let test = TestFolder::new();
        let mut dir = MarkerDir::new("f");
        let first = put(&test, &checkpoint(1));
        let second = put(&test, &marker(2, Some(first)));
        for file in ["folder", "ignore", "README", "folder.12.tmp", "markers/.syncthing.x.tmp"] {
            test.put(&format!(".latchfs/{file}"), b"x");
        }
        dir.refresh(&LinuxDisk, &test.folder(), None).expect("readable");
        assert!(dir.files().get(&first).is_some() && dir.files().get(&second).is_some());
        assert_eq!(unread(&dir), []);
        // A marker that is gone is forgotten, and one that comes is read.
        fs::remove_file(test.path(".latchfs").join(second.file_name())).expect("there");
        let third = put(&test, &marker(3, Some(first)));
        dir.refresh(&LinuxDisk, &test.folder(), None).expect("readable");
        let there = [first, second, third].map(|link| dir.files().get(&link).is_some());
        assert_eq!(there, [true, false, true]);
        fs::remove_dir_all(test.path(".latchfs")).expect("there");
        dir.refresh(&LinuxDisk, &test.folder(), Some(first)).expect("readable");
        assert!(dir.files().get(&first).is_none());
    }

    #[test]
    fn hostile_files_are_named_and_keep_no_marker_from_being_read() {
        let test = TestFolder::new();
        let good = put(&test, &marker(1, None));
        let mut other = marker(2, None);
        other.folder = "another".to_owned();
        let other = put(&test, &other);
        let damaged = put(&test, &marker(3, None));
        let path = test.path(".latchfs").join(damaged.file_name());
        let content = fs::read_to_string(&path).expect("written").replace("laptop3", "laptop4");
        fs::write(&path, content).expect("written");
        symlink("/etc/passwd", test.path(&name(1))).expect("a symlink");
        test.make_fifo(&name(2));
        fs::create_dir(test.path(&name(3))).expect("a directory");
        TestFolder::make_sparse(&test.path(&name(4)), MARKER_BYTES_MAX + 1);
        test.put(&name(5), b"{");
        test.put(".latchfs/markers/x.sync-conflict-1.json", b"");
        test.put(".latchfs/checkpoint-1.json", b"");
        let mut dir = MarkerDir::new("f");
        dir.refresh(&LinuxDisk, &test.folder(), Some(other)).expect("readable");
        assert!(dir.files().get(&good).is_some());
        let whys: BTreeMap<_, _> = unread(&dir).into_iter().collect();
        let why = |name: &str| whys[name.strip_prefix(".latchfs/").unwrap_or(name)].as_str();
        assert_eq!(whys.len(), 9, "{whys:?}");
        assert!(why(&other.file_name()).contains("another folder"));
        assert!(why(&damaged.file_name()).contains("not that of its content"));
        for at in 1..=3 {
            assert_eq!(why(&name(at)), "it is no regular file");
        }
        assert!(why(&name(4)).contains("more than 268435456 bytes"));
        assert!(why(&name(5)).contains("no marker"));
        assert_eq!(why("checkpoint-1.json"), "its name is not that of a marker");
    }

    #[test]
    fn no_symlink_leads_to_markers() {
        for link in [".latchfs", ".latchfs/markers"] {
            let (test, elsewhere) = (TestFolder::new(), TestFolder::new());
            let there = put(&elsewhere, &marker(1, None));
            fs::remove_dir_all(test.path(link)).expect("there");
            symlink(elsewhere.path(link), test.path(link)).expect("a symlink");
            let mut dir = MarkerDir::new("f");
            dir.refresh(&LinuxDisk, &test.folder(), Some(there)).expect("no error");
            assert!(dir.files().get(&there).is_none(), "{link}");
        }
    }

    #[test]
    fn what_has_not_changed_is_not_read_again() {
        let test = TestFolder::new();
        let first = put(&test, &marker(1, None));
        test.put(&name(1), b"{");
        let disk = TestDisk::default();
        let mut dir = MarkerDir::new("f");
        let folder = test.folder();
        dir.refresh(&disk, &folder, None).expect("readable");
        dir.refresh(&disk, &folder, None).expect("readable");
        let counts = |disk: &TestDisk| (disk.count("visit_entries"), disk.count("open_to_read"));
        assert_eq!(counts(&disk), (4, 4), "a look at a new file proves nothing");
        dir.refresh_at(&disk, &folder, Some(first), later()).expect("readable");
        let before = counts(&disk);
        dir.refresh_at(&disk, &folder, Some(first), later()).expect("readable");
        assert_eq!(counts(&disk), before, "nothing was changed");
        // A file that is changed under its name is read again, alone.
        let bytes = fs::read(test.path(".latchfs").join(first.file_name())).expect("there");
        test.put(&name(1), b"{}");
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert_eq!(counts(&disk), (before.0, before.1 + 1));
        test.put(&format!(".latchfs/{}", first.file_name()), &bytes[1..]);
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert!(dir.files().get(&first).is_none());
        test.put(&format!(".latchfs/{}", first.file_name()), &bytes);
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert!(dir.files().get(&first).is_some());
        assert_eq!(counts(&disk), (before.0, before.1 + 3));
        let second = put(&test, &marker(2, None));
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert!(dir.files().get(&second).is_some());
        assert_eq!(counts(&disk), (before.0 + 2, before.1 + 4));
    }

    #[test]
    fn a_file_that_could_not_be_read_is_read_again() {
        let test = TestFolder::new();
        let link = put(&test, &marker(1, None));
        let path = test.path(".latchfs").join(link.file_name());
        let (folder, mut dir) = (test.folder(), MarkerDir::new("f"));
        let counted = TestDisk::default();
        MarkerDir::new("f").refresh(&counted, &folder, None).expect("readable");
        let read = counted.steps.lock().iter().position(|step| *step == "read").expect("it reads");
        let disk = TestDisk::failing(read, Fault::Errno(libc::EIO));
        dir.refresh_at(&disk, &folder, None, later()).expect("only a marker fails");
        assert_eq!(unread(&dir), [(link.file_name(), "input/output error".to_owned())]);
        let (disk, bytes) = (TestDisk::default(), fs::read(&path).expect("there"));
        let grown = [&bytes[..], b" "].concat();
        let target = path.clone();
        *disk.on_read.lock() = Some(Box::new(move || {
            fs::write(&target, &grown).expect("written");
        }));
        dir.refresh_at(&disk, &folder, None, later()).expect("only a marker fails");
        fs::write(&path, &bytes).expect("written");
        let changed = "it was changed while it was read".to_owned();
        assert_eq!(unread(&dir), [(link.file_name(), changed)]);
        *disk.on_read.lock() = None;
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert_eq!((unread(&dir), dir.files().get(&link).is_some()), (vec![], true));
        // An error of a directory is one of the refresh, and the next one lists it again.
        let steps = counted.steps.lock().clone();
        for (step, name) in steps.iter().enumerate().filter(|(_, name)| **name == "visit_entries") {
            let disk = TestDisk::failing(step, Fault::Errno(libc::EIO));
            let mut dir = MarkerDir::new("f");
            dir.refresh_at(&disk, &folder, None, later()).expect_err(name);
            dir.refresh_at(&LinuxDisk, &folder, None, later()).expect("readable");
            assert!(dir.files().get(&link).is_some());
        }
    }

    #[test]
    fn the_marker_that_is_wanted_has_room() {
        let test = TestFolder::new();
        for token in 0..MARKERS_MAX as u64 {
            put(&test, &marker(1_000_000 + token, None));
        }
        let (folder, mut dir) = (test.folder(), MarkerDir::new("f"));
        dir.refresh_at(&LinuxDisk, &folder, None, later()).expect("readable");
        let first = put(&test, &checkpoint(1));
        let second = put(&test, &marker(9_999_999, Some(first)));
        dir.refresh_at(&LinuxDisk, &folder, None, later()).expect("readable");
        assert!(dir.files().get(&second).is_none());
        assert!(unread(&dir).iter().any(|(_, why)| why.contains("more than 4096 markers")));
        for _ in 0..2 {
            dir.refresh_at(&LinuxDisk, &folder, Some(second), later()).expect("readable");
            assert!(dir.files().get(&second).is_some() && dir.files().get(&first).is_some());
        }
        // Room that becomes free is used.
        let others = fs::read_dir(test.path(".latchfs/markers")).expect("there");
        for other in others.take(100) {
            fs::remove_file(other.expect("readable").path()).expect("there");
        }
        dir.refresh_at(&LinuxDisk, &folder, None, later()).expect("readable");
        assert_eq!(unread(&dir), []);
    }

    #[test]
    fn the_files_that_are_looked_at_have_a_bound() {
        let test = TestFolder::new();
        for number in 0..100_000 {
            fs::File::create(test.path(&name(number))).expect("made");
        }
        let wanted = put(&test, &marker(1, None));
        let disk = TestDisk::default();
        let (folder, mut dir) = (test.folder(), MarkerDir::new("f"));
        for _ in 0..2 {
            dir.refresh_at(&disk, &folder, Some(wanted), later()).expect("readable");
            assert!(dir.files().get(&wanted).is_some());
            assert!(dir.known.len() <= MARKER_NAMES_MAX + 1);
            let unread = unread(&dir);
            assert_eq!(unread.len(), UNREAD_SHOWN_MAX);
            assert!(unread[0].1.contains("more than 16384 files"), "{unread:?}");
        }
        assert!(disk.count("open_to_read") <= MARKER_NAMES_MAX + 1);
    }

    #[test]
    fn a_refresh_reads_so_many_bytes() {
        let test = TestFolder::new();
        for number in 0..5 {
            TestFolder::make_sparse(&test.path(&name(number)), MARKER_BYTES_MAX);
        }
        let disk = TestDisk::default();
        let (folder, mut dir) = (test.folder(), MarkerDir::new("f"));
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert_eq!(disk.count("open_to_read"), 4);
        let no_room = NotAdded::Full.to_string();
        assert_eq!(unread(&dir).iter().filter(|(_, why)| *why == no_room).count(), 1);
        dir.refresh_at(&disk, &folder, None, later()).expect("readable");
        assert_eq!(disk.count("open_to_read"), 5);
    }
}
