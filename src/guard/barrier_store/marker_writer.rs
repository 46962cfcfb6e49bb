//! Writes markers into `.latchfs`, and removes those that nobody needs any more.

use super::super::barrier::content_digest::ContentDigest;
use super::super::barrier::marker::{MARKER_BYTES_MAX, Marker};
use super::super::barrier::marker_name::{MarkerKind, MarkerLink};
use super::super::disk::{Disk, IfThere, Place};
use super::bounded_read::read_at_most;
use super::disk_names::open_dir_at;
use super::disk_tree::CONTROL_DIR;
use super::marker_dir::MarkerDir;
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
    use super::super::super::barrier::test_markers::{TestMarkers, is};
    use super::super::super::linux_disk::LinuxDisk;
    use super::super::test_disk::{Fault, TestDisk, TestFolder};
    use super::*;
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
