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
use crate::os_error::said;
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
    /// Returns what a look now proves about later ones.
    fn now(look: Look) -> Self {
        let now = Wall::now();
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
    /// There was no room for it.
    NoRoom,
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
            Err(NotRead::NoRoom) => Some((name.clone(), NotAdded::Full.to_string())),
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

    /// Reads what has changed since the last refresh. The marker `wanted` and those before it are
    /// read first, so that files of others can't take their room.
    pub(crate) fn refresh<D: Disk>(
        &mut self,
        disk: &D,
        folder: &D::Dir,
        wanted: Option<MarkerLink>,
    ) -> io::Result<()> {
        let dirs = OpenDirs::open(disk, folder)?;
        let looks = dirs.looks(disk)?;
        let is_same = self.dirs.iter().zip(&looks).all(|(seen, look)| match (seen, look) {
            (Some(seen), Some(look)) => seen.is_still(look),
            _ => false,
        });
        let names =
            if is_same { self.known.keys().cloned().collect() } else { self.list(disk, &dirs)? };
        self.dirs = looks.map(|look| look.map(Seen::now));
        let mut budget = REFRESH_BYTES_MAX;
        self.read_chain(disk, &dirs, wanted, &mut budget)?;
        for name in &names {
            self.read_one(disk, &dirs, name, &mut budget)?;
        }
        Ok(())
    }

    /// Lists the directories, and forgets the files that are gone. Returns the names of markers.
    fn list<D: Disk>(&mut self, disk: &D, dirs: &OpenDirs<D>) -> io::Result<BTreeSet<String>> {
        let (mut names, mut misnamed, mut is_cut) = (BTreeSet::new(), BTreeSet::new(), false);
        for (dir, prefix) in [(&dirs.control, ""), (&dirs.markers, "markers/")] {
            let Some(dir) = dir else { continue };
            disk.visit_entries(dir, &mut |entry| {
                let name = format!("{prefix}{}", entry.name.to_string_lossy());
                let is_marker = MarkerName::parse_file_name(&name).is_some();
                let is_ours = !prefix.is_empty() || name.starts_with("checkpoint-");
                if is_marker {
                    names.insert(name);
                } else if is_ours && misnamed.len() < UNREAD_SHOWN_MAX {
                    let last = entry.name.to_string_lossy();
                    let is_temporary = is_sync_temporary(&last);
                    misnamed.extend((!is_temporary).then_some(name));
                }
                is_cut = names.len() > MARKER_NAMES_MAX;
                if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        (self.misnamed, self.is_cut) = (misnamed, is_cut);
        let gone: Vec<_> =
            self.known.keys().filter(|name| !names.contains(*name)).cloned().collect();
        gone.iter().for_each(|name| self.forget(name));
        Ok(names)
    }

    fn forget(&mut self, name: &str) {
        if let Some(KnownFile { read: Ok(link), .. }) = self.known.remove(name) {
            self.files.remove(&link);
        }
    }

    /// Reads a marker and those before it, as far as they are here.
    fn read_chain<D: Disk>(
        &mut self,
        disk: &D,
        dirs: &OpenDirs<D>,
        wanted: Option<MarkerLink>,
        budget: &mut u64,
    ) -> io::Result<()> {
        let mut next = wanted;
        let mut read = BTreeSet::new();
        while let Some(link) = next.filter(|link| read.insert(*link)) {
            let name = link.file_name();
            self.read_one(disk, dirs, &name, budget)?;
            let known = self.known.get(&name).map(|known| &known.read);
            if read.len() == 1 && matches!(known, Some(Err(NotRead::NoRoom))) {
                // Other files have taken the room.
                self.files.clear();
                self.known.clear();
                self.read_one(disk, dirs, &name, budget)?;
            }
            next = self.files.get(&link).and_then(|marker| marker.previous);
        }
        Ok(())
    }

    /// Reads a file unless it is known as it is.
    fn read_one<D: Disk>(
        &mut self,
        disk: &D,
        dirs: &OpenDirs<D>,
        name: &str,
        budget: &mut u64,
    ) -> io::Result<()> {
        let Some(at) = dirs.place(name) else { return Ok(()) };
        let Some(look) = if_there(disk.look(at))? else {
            self.forget(name);
            return Ok(());
        };
        let has_room = look.size <= *budget && self.files.has_room_for(look.size);
        if let Some(known) = self.known.get(name)
            && known.seen.is_still(&look)
            && !(has_room && matches!(known.read, Err(NotRead::NoRoom)))
        {
            return Ok(());
        }
        self.forget(name);
        let mut seen = Seen::now(look);
        let read = if !look.is_file {
            Err(NotRead::Because("it is no regular file".to_owned()))
        } else if look.size > MARKER_BYTES_MAX {
            Err(NotRead::Because(MarkerError::TooLarge.to_string()))
        } else if !has_room {
            Err(NotRead::NoRoom)
        } else {
            *budget -= look.size;
            match read_at_most(disk, at, look.size) {
                Ok(Some((bytes, _))) => self.add(name, &bytes),
                Ok(None) => return Ok(()),
                Err(error) => {
                    // The next attempt may succeed.
                    seen.is_proof = false;
                    Err(NotRead::Because(said(&error)))
                }
            }
        };
        self.known.insert(name.to_owned(), KnownFile { seen, read });
        Ok(())
    }

    fn add(&mut self, name: &str, bytes: &[u8]) -> Result<MarkerLink, NotRead> {
        self.files.add(name, bytes).map_err(|error| match error {
            NotAdded::Full => NotRead::NoRoom,
            error => NotRead::Because(error.to_string()),
        })
    }
}
