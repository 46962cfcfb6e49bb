//! The folder on the disk, as the sync barrier compares it with what should be here.

use super::super::barrier::content_digest::ContentDigest;
use super::super::barrier::folder_path::{FolderPath, FolderPathError};
use super::super::barrier::ignored::IGNORE_BYTES_MAX;
use super::super::barrier::tree::{FileStamp, FolderTree, FoundFile};
use super::super::disk::{Attributes, Disk, Look, Place};
use super::bounded_read::{digest_of, if_there, read_at_most};
use super::disk_names::{find, is_composed, open_dir_at};
use super::ignore_files::IGNORE_FILE;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::ops::ControlFlow;

/// The maximum number of names that a walk passed over and that are shown.
const SKIPPED_SHOWN_MAX: usize = 10;

/// Why a walk passed over a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SkippedBecause {
    /// The name is no valid UTF-8.
    NotUtf8,
    /// No path of a folder can be so long, or have such a part.
    Path(FolderPathError),
    /// Another name in the directory differs by Unicode normalization alone.
    Normalization,
    /// Something is mounted on the name.
    MountPoint,
}

impl fmt::Display for SkippedBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 => f.write_str("its name is no valid UTF-8"),
            Self::Path(error) => error.fmt(f),
            Self::Normalization => {
                f.write_str("another name differs from it by Unicode normalization alone")
            }
            Self::MountPoint => f.write_str("something is mounted on it"),
        }
    }
}

/// The names that a walk passed over: no marker names the files that have them, and no machine
/// waits for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SkippedNames {
    count: u64,
    shown: Vec<(String, SkippedBecause)>,
}

impl SkippedNames {
    fn add(&mut self, path: &OsStr, why: SkippedBecause) {
        self.count += 1;
        if self.shown.len() < SKIPPED_SHOWN_MAX {
            self.shown.push((path.to_string_lossy().into_owned(), why));
        }
    }

    /// Returns the number of names.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first of the names, with the reasons.
    pub(crate) fn shown(&self) -> &[(String, SkippedBecause)] {
        &self.shown
    }
}

/// Returns the stamp in a look at a file.
pub(crate) fn stamp_of(look: &Look) -> FileStamp {
    FileStamp { size: look.size, mtime: look.modified, inode: look.id.inode }
}

fn found_file(attributes: &Attributes) -> Option<FoundFile> {
    let look = &attributes.look;
    (look.is_file && !attributes.is_mount_point).then(|| FoundFile {
        stamp: stamp_of(look),
        changed: look.changed,
        mode: attributes.mode,
        is_downloaded: attributes.is_downloaded,
    })
}

/// The folder on the disk. Symlinks are not followed, and mount points are not crossed.
pub(crate) struct DiskTree<'a, D: Disk> {
    disk: &'a D,
    folder: &'a D::Dir,
    skipped: SkippedNames,
}

/// A walk over the folder.
struct TreeWalk<'a, 'v, D: Disk> {
    disk: &'a D,
    skipped: &'a mut SkippedNames,
    visit: &'v mut dyn FnMut(FolderPath, FoundFile),
    /// The paths of the directories that are still to be read, as on the disk.
    dirs: Vec<OsString>,
}

impl<'a, D: Disk> DiskTree<'a, D> {
    /// Returns the folder that is open as `folder`.
    pub(crate) fn new(disk: &'a D, folder: &'a D::Dir) -> Self {
        Self { disk, folder, skipped: SkippedNames::default() }
    }

    /// Returns the names that the last walk passed over.
    pub(crate) fn skipped(&self) -> &SkippedNames {
        &self.skipped
    }
}

impl<D: Disk> TreeWalk<'_, '_, D> {
    /// Visits the entries of a directory, except those whose names are not in form C. Returns
    /// those names in their order.
    fn visit_composed(&mut self, dir: &D::Dir, path: &OsStr) -> io::Result<BTreeSet<OsString>> {
        let (disk, mut others, mut failed) = (self.disk, BTreeSet::new(), None);
        disk.visit_entries(dir, &mut |entry| {
            if entry.name.to_str().is_some_and(|name| !is_composed(name)) {
                others.insert(entry.name);
                return ControlFlow::Continue(());
            }
            match self.visit_name(dir, path, &entry.name) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(others), Err)
    }

    /// Visits the entries of a directory.
    fn visit_dir(&mut self, dir: &D::Dir, path: &OsStr) -> io::Result<()> {
        let mut seen = BTreeSet::new();
        for name in self.visit_composed(dir, path)? {
            let Some(text) = name.to_str() else { continue };
            let composed: String = unicode_normalization::UnicodeNormalization::nfc(text).collect();
            let is_there = if_there(self.disk.look(Place::new(dir, &composed)))?.is_some();
            if is_there || !seen.insert(composed) {
                self.skipped.add(&joined(path, &name), SkippedBecause::Normalization);
            } else {
                self.visit_name(dir, path, &name)?;
            }
        }
        Ok(())
    }

    /// Visits a name in the directory that has a path on the disk.
    fn visit_name(&mut self, dir: &D::Dir, parent: &OsStr, name: &OsStr) -> io::Result<()> {
        let on_disk = joined(parent, name);
        let Some(text) = on_disk.to_str() else {
            self.skipped.add(&on_disk, SkippedBecause::NotUtf8);
            return Ok(());
        };
        let path = match FolderPath::parse(text) {
            Ok(path) => path,
            Err(FolderPathError::Control) => return Ok(()),
            Err(error) => {
                self.skipped.add(&on_disk, SkippedBecause::Path(error));
                return Ok(());
            }
        };
        let Some(found) = if_there(self.disk.attributes(Place::new(dir, name)))? else {
            return Ok(());
        };
        if found.is_mount_point {
            self.skipped.add(&on_disk, SkippedBecause::MountPoint);
        } else if found.look.is_dir {
            self.dirs.push(on_disk);
        } else if let Some(file) = found_file(&found) {
            (self.visit)(path, file);
        }
        Ok(())
    }
}

fn joined(parent: &OsStr, name: &OsStr) -> OsString {
    if parent.is_empty() {
        return name.to_owned();
    }
    let mut path = OsString::with_capacity(parent.len() + 1 + name.len());
    path.push(parent);
    path.push("/");
    path.push(name);
    path
}

/// Returns an error that names the path, unless the file is gone by now.
fn at_path(path: &OsStr, error: &io::Error) -> io::Error {
    let said = crate::os_error::said(error);
    io::Error::new(error.kind(), format!("{}: {said}", path.to_string_lossy()))
}

impl<D: Disk> FolderTree for DiskTree<'_, D> {
    fn walk(&mut self, visit: &mut dyn FnMut(FolderPath, FoundFile)) -> io::Result<()> {
        self.skipped = SkippedNames::default();
        let mut walk = TreeWalk {
            disk: self.disk,
            skipped: &mut self.skipped,
            visit,
            dirs: vec![OsString::new()],
        };
        while let Some(path) = walk.dirs.pop() {
            let opened = open_dir_at(self.disk, self.folder, &path);
            let Some(dir) = opened.map_err(|error| at_path(&path, &error))? else { continue };
            match walk.visit_dir(&dir, &path) {
                // The directory was removed while it was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                visited => visited.map_err(|error| at_path(&path, &error))?,
            }
        }
        Ok(())
    }

    fn look(&mut self, path: &FolderPath) -> io::Result<Option<FoundFile>> {
        let Some((dir, name)) = find(self.disk, self.folder, path)? else { return Ok(None) };
        let found = if_there(self.disk.attributes(Place::new(&dir, &name)))?;
        Ok(found.as_ref().and_then(found_file))
    }

    fn digest(
        &mut self,
        path: &FolderPath,
        found: &FoundFile,
    ) -> io::Result<Option<ContentDigest>> {
        if !found.is_downloaded {
            // A read would make the sync tool fetch the content, and wait for it.
            return Err(io::Error::other(format!("{path} is not downloaded")));
        }
        let Some((dir, name)) = find(self.disk, self.folder, path)? else { return Ok(None) };
        let opened = if_there(self.disk.open_to_read(Place::new(&dir, &name)))?;
        let Some(file) = opened else { return Ok(None) };
        let look = self.disk.look_file(&file)?;
        if stamp_of(&look) != found.stamp || look.changed != found.changed {
            return Ok(None);
        }
        digest_of(self.disk, &file, &look)
    }

    fn ignore_digest(&mut self) -> io::Result<Option<ContentDigest>> {
        let Some(dir) = open_dir_at(self.disk, self.folder, OsStr::new(CONTROL_DIR))? else {
            return Ok(None);
        };
        let at = Place::new(&dir, IGNORE_FILE);
        let read = read_at_most(self.disk, at, IGNORE_BYTES_MAX as u64);
        let read = read.map_err(|error| at_path(OsStr::new(".latchfs/ignore"), &error))?;
        Ok(read.map(|(bytes, _)| ContentDigest::of(&bytes)))
    }
}

/// The directory of the guard in the folder.
pub(super) const CONTROL_DIR: &str = ".latchfs";
