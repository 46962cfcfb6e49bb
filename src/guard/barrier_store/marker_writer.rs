//! Writes markers into `.latchfs`, and removes those that nobody needs any more.

use super::super::barrier::content_digest::ContentDigest;
use super::super::barrier::marker::{MARKER_BYTES_MAX, Marker};
use super::super::barrier::marker_name::{MarkerKind, MarkerLink};
use super::super::disk::{Disk, IfThere, Place};
use super::bounded_read::read_at_most;
use super::disk_names::open_dir_at;
use super::disk_tree::CONTROL_DIR;
use super::whole_write::{give_name, remove_if_there, write_temporary};
use std::ffi::OsStr;
use std::io;

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
                self.disk.make_readable_dir(at)?;
                self.disk.sync_dir(&control)?;
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
        write_temporary(self.disk, &dir, MARKER_MODE, &bytes, temporary)?;
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
        let control = self.control()?;
        let markers = open_dir_at(self.disk, &control, OsStr::new(MARKERS))?;
        for link in links {
            let file_name = link.file_name();
            match (file_name.strip_prefix("markers/"), &markers) {
                (Some(name), Some(dir)) => remove_if_there(self.disk, Place::new(dir, name))?,
                (Some(_), None) => {}
                (None, _) => remove_if_there(self.disk, Place::new(&control, &file_name))?,
            }
        }
        Ok(())
    }
}
