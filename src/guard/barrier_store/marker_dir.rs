//! Reads the markers and checkpoints in `.latchfs`. A file that is none, or that can't be read, is
//! named and keeps no other one from being read.
//!
//! Writes markers into `.latchfs`, and removes those that nobody needs any more.

use super::disk_tree::CONTROL_DIR;
use crate::base::said;
use crate::guard::barrier_store::disk_tree::open_dir_at;
use crate::guard::barrier_store::small_files::{
    give_name, if_there, read_at_most, remove_if_there, write_temporary,
};
use crate::guard::disk::operations::{Disk, FileStat, IfThere, Place};
use crate::time::Wall;
use barrier::chain::{MarkerFiles, NotAdded};
use barrier::comparison::is_sync_temporary;
use barrier::folder_path::ContentDigest;
use barrier::marker::{MARKER_BYTES_MAX, Marker, MarkerError};
use barrier::marker::{MarkerKind, MarkerLink, MarkerName};
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
    stat: FileStat,
    /// Whether the same look later proves that nothing was changed.
    is_proof: bool,
}

impl Seen {
    /// Returns what a look at this time proves about later ones.
    fn at(stat: FileStat, now: Wall) -> Self {
        let now = i128::from(now.secs) * 1_000_000_000 + i128::from(now.nanos);
        Self { stat, is_proof: stat.changed.max(stat.modified) + CLOCK_STEP_NANOS < now }
    }

    fn is_still(&self, stat: &FileStat) -> bool {
        self.is_proof && self.stat == *stat
    }
}

/// Why a file with the name of a marker was not read.
#[derive(Debug, Clone)]
enum NotRead {
    /// There was no room for a marker that names so many paths, as far as their number is known.
    NoRoom(usize),
    /// The marker is one of another folder, of which this folder is a copy.
    OtherFolder,
    /// The file is no marker, or can't be read.
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

    fn stats(&self, disk: &D) -> io::Result<[Option<FileStat>; 2]> {
        let stat = |dir: &Option<D::Dir>| match dir {
            Some(dir) => if_there(disk.stat(Place::new(dir, "."))),
            None => Ok(None),
        };
        Ok([stat(&self.control)?, stat(&self.markers)?])
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
        let stats = dirs.stats(disk)?;
        let is_same = self.dirs.iter().zip(&stats).all(|(seen, stat)| match (seen, stat) {
            (Some(seen), Some(stat)) => seen.is_still(stat),
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
        self.dirs = stats.map(|stat| stat.map(|stat| Seen::at(stat, now)));
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

    /// Reads a file, unless it has not changed since it was last read.
    fn read_one(&mut self, name: &str) -> io::Result<()> {
        let Some(at) = self.dirs.place(name) else { return Ok(()) };
        let Some(stat) = if_there(self.disk.stat(at))? else {
            self.to.forget(name);
            return Ok(());
        };
        let known = self.to.known.get(name).filter(|known| known.seen.is_still(&stat));
        let paths = match known.map(|known| &known.read) {
            Some(Err(NotRead::NoRoom(paths))) => Some(*paths),
            Some(_) => return Ok(()),
            None => None,
        };
        let has_room = stat.size <= self.budget
            && self.to.files.has_room_for(stat.size, paths.unwrap_or_default());
        if paths.is_some() && !has_room {
            return Ok(());
        }
        self.to.forget(name);
        let mut seen = Seen::at(stat, self.now);
        let read = if !stat.is_file {
            Err(NotRead::Because("it is no regular file".to_owned()))
        } else if stat.size > MARKER_BYTES_MAX {
            Err(NotRead::Because(MarkerError::TooLarge.to_string()))
        } else if !has_room {
            Err(NotRead::NoRoom(0))
        } else {
            self.budget -= stat.size;
            match read_at_most(self.disk, at, stat.size) {
                Ok(Some((bytes, _))) => self.to.add(name, &bytes),
                Ok(None) => return Ok(()),
                Err(error) => {
                    // The next attempt to read the file may succeed.
                    seen.is_proof = false;
                    Err(NotRead::Because(said(&error)))
                }
            }
        };
        self.to.known.insert(name.to_owned(), KnownFile { seen, read });
        Ok(())
    }
}

/// The mode of markers: a sync tool that runs as another user reads them.
const MARKER_MODE: u32 = 0o644;
/// The name of an unfinished marker in the state directory, which no sync tool carries.
const TEMPORARY: &str = "marker.tmp";
/// The directory of markers in `.latchfs`.
const MARKERS: &str = "markers";

/// Writes the markers of one folder.
pub(crate) struct MarkerWriter<'a, D: Disk> {
    disk: &'a D,
    folder: &'a D::Dir,
    /// The directory of this machine in the state directory, on the file system of the folder.
    state: &'a D::Dir,
}

impl<'a, D: Disk> MarkerWriter<'a, D> {
    /// Returns a writer. `state` is the directory of this machine in the state directory.
    pub(crate) fn new(disk: &'a D, folder: &'a D::Dir, state: &'a D::Dir) -> Self {
        Self { disk, folder, state }
    }

    fn control(&self) -> io::Result<D::Dir> {
        let opened = open_dir_at(self.disk, self.folder, OsStr::new(CONTROL_DIR))?;
        opened.ok_or_else(|| io::Error::other("the folder has no directory '.latchfs'"))
    }

    /// Opens the directory of a kind of markers, which is made if it does not exist.
    fn dir_of(&self, kind: MarkerKind) -> io::Result<D::Dir> {
        let control = self.control()?;
        if kind == MarkerKind::Checkpoint {
            return Ok(control);
        }
        let at = Place::new(&control, MARKERS);
        match self.disk.open_dir(at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The sync of the file system before the marker is written covers the new name.
                self.disk.make_readable_dir(at)?;
                self.disk.open_dir(at)
            }
            opened => opened,
        }
    }

    /// Writes a marker, after all files that it names are on the storage. It appears complete or
    /// not at all, and is on the storage when this returns.
    pub(crate) fn write(&self, marker: &Marker) -> io::Result<MarkerLink> {
        let bytes = marker.write()?;
        let link = MarkerLink { name: marker.name, digest: ContentDigest::of(&bytes) };
        let file_name = link.file_name();
        let name = file_name.rsplit('/').next().unwrap_or(&file_name);
        let dir = self.dir_of(marker.name.kind)?;
        self.disk.sync_file_system(self.folder)?;
        let temporary = Place::new(self.state, TEMPORARY);
        let file = write_temporary(self.disk, &dir, MARKER_MODE, &bytes, temporary)?;
        self.disk.give_to_owner(&file, self.folder)?;
        let at = Place::new(&dir, name);
        match give_name(self.disk, temporary, at, IfThere::Fail) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.check_same(at, &bytes)?;
                self.disk.sync_file(&self.disk.open_to_read(at)?)?;
                self.disk.sync_dir(&dir)?;
            }
            named => named?,
        }
        Ok(link)
    }

    /// Checks that a file that has the name of a marker is that marker: an earlier attempt may have
    /// failed after the marker got its name.
    fn check_same(&self, at: Place<'_, D::Dir>, bytes: &[u8]) -> io::Result<()> {
        let there = read_at_most(self.disk, at, MARKER_BYTES_MAX)?;
        if there.is_some_and(|(there, _)| there == bytes) {
            return Ok(());
        }
        let name = at.name.to_string_lossy();
        Err(io::Error::other(format!("another file has the name of the marker '{name}'")))
    }

    /// Removes markers that nobody needs any more. Those that are gone already are no error.
    pub(crate) fn remove(&self, links: &[MarkerLink]) -> io::Result<()> {
        let names: Vec<_> = links.iter().map(MarkerLink::file_name).collect();
        self.remove_files(names.iter().map(String::as_str))
    }

    fn remove_files<'n>(&self, names: impl Iterator<Item = &'n str>) -> io::Result<()> {
        let control = self.control()?;
        let markers = open_dir_at(self.disk, &control, OsStr::new(MARKERS))?;
        for file_name in names {
            match (file_name.strip_prefix("markers/"), &markers) {
                (Some(name), Some(dir)) => remove_if_there(self.disk, Place::new(dir, name))?,
                (Some(_), None) => {}
                (None, _) => remove_if_there(self.disk, Place::new(&control, file_name))?,
            }
        }
        Ok(())
    }
}

/// Removes the markers of other folders from a folder that was a copy of them: nobody reads them.
pub(crate) fn remove_other_markers<D: Disk>(
    disk: &D,
    folder: &D::Dir,
    folder_id: &str,
) -> io::Result<()> {
    let mut markers = MarkerDir::new(folder_id);
    markers.refresh(disk, folder, None)?;
    MarkerWriter::new(disk, folder, folder).remove_files(markers.of_other_folders())
}

#[cfg(test)]
mod tests {
    use super::super::test_disk::{Fault, TestDisk, TestFolder};
    use super::*;
    use crate::guard::disk::linux_disk::LinuxDisk;
    use crate::guard::test_markers::TestMarkers;
    use barrier::chain::MARKERS_MAX;
    use barrier::folder_path::ContentDigest;
    use barrier::marker::Marker;
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
        marker.name.kind = MarkerKind::Checkpoint;
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
        // Only a file that is changed under its name is read again.
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
        // Markers for which there was no room are read once there is room.
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

#[cfg(test)]
mod marker_writer_tests {
    use super::super::test_disk::{Fault, TestDisk, TestFolder};
    use super::*;
    use crate::guard::disk::linux_disk::LinuxDisk;
    use crate::guard::test_markers::{TestMarkers, is};
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn marker(kind: MarkerKind) -> Marker {
        let mut marker = TestMarkers::made(1, 1, None, &[is("a", b"1"), is("b", b"2")]);
        marker.name.kind = kind;
        marker
    }

    const KINDS: [MarkerKind; 2] = [MarkerKind::Marker, MarkerKind::Checkpoint];

    fn write<D: Disk<Dir = std::os::fd::OwnedFd>>(
        disk: &D,
        test: &TestFolder,
        marker: &Marker,
    ) -> io::Result<MarkerLink> {
        MarkerWriter::new(disk, &test.folder(), &test.state()).write(marker)
    }

    /// Returns the markers that are there, each of which must be whole.
    fn read(test: &TestFolder) -> MarkerDir {
        let mut dir = MarkerDir::new("f");
        dir.refresh(&LinuxDisk, &test.folder(), None).expect("readable");
        assert_eq!(dir.unread(), []);
        dir
    }

    /// Returns the number of the files in `.latchfs`.
    fn count(test: &TestFolder) -> usize {
        let in_dir = |path: &str| {
            let Ok(entries) = fs::read_dir(test.path(path)) else { return 0 };
            entries.filter(|entry| entry.as_ref().is_ok_and(|it| it.path().is_file())).count()
        };
        in_dir(".latchfs") + in_dir(".latchfs/markers")
    }

    #[test]
    fn a_marker_is_written_after_the_files_that_it_names() {
        for kind in KINDS {
            let (test, disk) = (TestFolder::new(), TestDisk::default());
            fs::remove_dir(test.path(".latchfs/markers")).expect("empty");
            let marker = marker(kind);
            let link = write(&disk, &test, &marker).expect("there is space");
            assert_eq!(read(&test).files().get(&link), Some(&marker));
            let path = test.path(".latchfs").join(link.file_name());
            let mode = |path: &std::path::Path| fs::metadata(path).expect("there").mode() & 0o777;
            assert_eq!((mode(&path), count(&test)), (0o644, 1));
            if kind == MarkerKind::Marker {
                assert_eq!(mode(&test.path(".latchfs/markers")), 0o755);
            }
            assert!(fs::read_dir(test.state_path("")).expect("there").next().is_none());
            let steps = disk.steps.lock().clone();
            let at = |name| steps.iter().rposition(|step| *step == name).expect(name);
            let order = ["sync_file_system", "write", "sync_file", "link", "rename", "sync_dir"];
            assert!(order.map(at).is_sorted(), "{steps:?}");
            // A second attempt finds the marker and changes nothing.
            assert_eq!(write(&disk, &test, &marker).expect("the same"), link);
            assert_eq!(count(&test), 1);
            assert!(fs::read_dir(test.state_path("")).expect("there").next().is_none());
        }
    }

    #[test]
    fn a_kill_at_each_step_leaves_no_marker_or_a_whole_one() {
        for kind in KINDS {
            for step in 0.. {
                let test = TestFolder::new();
                fs::remove_dir(test.path(".latchfs/markers")).expect("empty");
                let disk = TestDisk::failing(step, Fault::Kill);
                let written = catch_unwind(AssertUnwindSafe(|| write(&disk, &test, &marker(kind))));
                let there = count(&test);
                read(&test);
                let link = write(&LinuxDisk, &test, &marker(kind)).expect("the next start");
                assert!(read(&test).files().get(&link).is_some());
                assert_eq!(count(&test), 1, "step {step}");
                assert!(fs::read_dir(test.state_path("")).expect("there").next().is_none());
                if let Ok(written) = written {
                    assert_eq!((written.expect("no fault"), there), (link, 1));
                    assert!(step >= 9, "{step} steps");
                    break;
                }
            }
        }
    }

    #[test]
    fn an_error_at_each_step_is_returned_and_leaves_no_torn_marker() {
        for kind in KINDS {
            for fault in [Fault::Errno, Fault::Lasting] {
                for errno in [libc::ENOSPC, libc::EIO] {
                    for step in 0.. {
                        let test = TestFolder::new();
                        fs::remove_dir(test.path(".latchfs/markers")).expect("empty");
                        let disk = TestDisk::failing(step, fault(errno));
                        let written = write(&disk, &test, &marker(kind));
                        let is_over = disk.steps.lock().len() <= step;
                        assert_eq!(written.is_ok(), is_over, "step {step}: {written:?}");
                        read(&test);
                        let link = write(&LinuxDisk, &test, &marker(kind)).expect("space again");
                        assert!(read(&test).files().get(&link).is_some());
                        assert_eq!(count(&test), 1, "step {step}");
                        if is_over {
                            break;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn another_file_under_the_name_of_a_marker_stays() {
        for kind in KINDS {
            let test = TestFolder::new();
            let link = write(&LinuxDisk, &test, &marker(kind)).expect("there is space");
            let path = format!(".latchfs/{}", link.file_name());
            test.put(&path, b"of another program");
            let error = write(&LinuxDisk, &test, &marker(kind)).expect_err("it is another");
            assert!(error.to_string().contains("another file has the name"), "{error}");
            assert_eq!(fs::read(test.path(&path)).expect("there"), b"of another program");
            assert!(fs::read_dir(test.state_path("")).expect("there").next().is_none());
        }
    }

    #[test]
    fn no_symlink_leads_a_marker_out_of_the_folder() {
        for link in [".latchfs", ".latchfs/markers"] {
            let (test, elsewhere) = (TestFolder::new(), TestFolder::new());
            let written = write(&LinuxDisk, &elsewhere, &marker(KINDS[0])).expect("there");
            fs::remove_dir_all(test.path(link)).expect("there");
            symlink(elsewhere.path(link), test.path(link)).expect("a symlink");
            let other = TestMarkers::made(2, 1, None, &[]);
            write(&LinuxDisk, &test, &other).expect_err("a symlink is in the way");
            let (folder, state) = (test.folder(), test.state());
            let writer = MarkerWriter::new(&LinuxDisk, &folder, &state);
            let _ = writer.remove(&[written]);
            assert!(read(&elsewhere).files().get(&written).is_some(), "{link}");
            assert_eq!(count(&elsewhere), 1);
        }
    }

    #[test]
    fn markers_are_removed() {
        let test = TestFolder::new();
        let links = KINDS.map(|kind| write(&LinuxDisk, &test, &marker(kind)).expect("written"));
        let stays = write(&LinuxDisk, &test, &TestMarkers::made(2, 1, None, &[])).expect("written");
        let (folder, state) = (test.folder(), test.state());
        let writer = MarkerWriter::new(&LinuxDisk, &folder, &state);
        for _ in 0..2 {
            writer.remove(&links).expect("those that are gone are no error");
            assert_eq!(count(&test), 1);
            assert!(read(&test).files().get(&stays).is_some());
        }
        let fault = TestDisk { fault: Some((2, Fault::Lasting(libc::EIO))), ..TestDisk::default() };
        let writer = MarkerWriter::new(&fault, &folder, &state);
        writer.remove(&[stays]).expect_err("the disk fails");
    }
}
