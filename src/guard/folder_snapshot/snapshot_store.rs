//! The complete snapshots in the state directory. A directory counts as a snapshot if its `READY`
//! fits its descriptor.

use super::super::barrier::content_digest::ContentDigest;
use super::super::disk::{Disk, IfThere, Place};
use super::super::stage::READY;
use super::super::tree_removal::remove_tree;
use super::descriptor::{DESCRIPTOR_BYTES_MAX, SnapshotDescriptor, SnapshotReady};
use super::snapshot_id::SnapshotId;
use super::snapshot_manifest::{MANIFEST_BYTES_MAX, ManifestEntry, parse_manifest};
use super::tree_digest::entries_of;
use crate::base::said;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;

/// The file with the list of files.
pub(crate) const MANIFEST: &str = "manifest";
/// The file with the description of the snapshot.
pub(crate) const DESCRIPTOR: &str = "descriptor.json";
/// The directory with the files of the folder.
pub(crate) const TREE: &str = "tree";
/// The end of the name of the file that says which snapshot is being taken.
pub(crate) const INTENT: &str = ".intent";
/// The maximum number of snapshots of a folder: a list reads the descriptor of each.
pub(crate) const SNAPSHOTS_MAX: usize = 256;
/// The maximum number of differences that one check reports.
pub(crate) const DIFFERENCES_MAX: usize = 1_000;

/// Why a snapshot was not taken, shown or restored.
#[derive(Debug)]
pub(crate) enum SnapshotError {
    /// There is no snapshot of this name.
    Unknown(String),
    /// The directory is there, and its `READY` does not fit.
    Partial(SnapshotId),
    /// These programs had files open for writing for too long.
    NotQuiet(Vec<String>),
    /// Other machines may change the folder at any time.
    Shared,
    /// There are so many snapshots already.
    TooMany,
    /// The snapshots would take more bytes of the disk than this.
    TooLarge(u64),
    /// The tenure has ended meanwhile.
    TenureOver,
    /// A system call failed.
    Disk(io::Error),
}

impl SnapshotError {
    /// Returns the code of the error for programs.
    pub(crate) const fn code(&self) -> Option<&'static str> {
        match self {
            Self::Partial(_) => Some("E_PARTIAL_SNAPSHOT"),
            Self::NotQuiet(_) | Self::Shared => Some("E_CONSISTENCY_UNAVAILABLE"),
            Self::TooMany | Self::TooLarge(_) => Some("E_LIMIT"),
            Self::Unknown(_) | Self::TenureOver | Self::Disk(_) => None,
        }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(
                f,
                "there is no snapshot {id}; 'latchfs folder-snapshot ls' shows those that are there"
            ),
            Self::Partial(id) => write!(
                f,
                "E_PARTIAL_SNAPSHOT: the snapshot {id} is not complete, and nothing is restored \
                 from it; remove it with 'latchfs folder-snapshot rm {id}'"
            ),
            Self::NotQuiet(writers) => write!(
                f,
                "E_CONSISTENCY_UNAVAILABLE: {}; end the program or save there, wait longer with \
                 --wait, or take the snapshot as it is with --best-effort",
                writers.join(", ")
            ),
            Self::Shared => f.write_str(
                "E_CONSISTENCY_UNAVAILABLE: other machines may change the folder at any time \
                 (--mode shared); take the snapshot with --best-effort, or by a guard with --mode \
                 exclusive",
            ),
            Self::TooMany => write!(
                f,
                "E_LIMIT: a folder has at most {SNAPSHOTS_MAX} snapshots; remove those that you do \
                 not need with 'latchfs folder-snapshot rm ID'"
            ),
            Self::TooLarge(max) => write!(
                f,
                "E_LIMIT: the snapshots of the folder would take more than the {max} bytes that \
                 --max-snapshots allows; remove those that you do not need with 'latchfs \
                 folder-snapshot rm ID', or start the guard with a higher limit"
            ),
            Self::TenureOver => {
                f.write_str("the lock of the folder was lost or given up meanwhile; try again")
            }
            Self::Disk(error) => write!(f, "the snapshot failed: {}", said(error)),
        }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// Reads a file that has a maximum size.
pub(crate) fn read_whole<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
    bytes_max: u64,
) -> io::Result<Vec<u8>> {
    let file = disk.open_to_read(at)?;
    let size = disk.look_file(&file)?.size;
    if size > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    let length = disk.read(&file, 0, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Writes a new file durably. Its name appears with its content.
pub(crate) fn write_new<D: Disk>(disk: &D, at: Place<'_, D::Dir>, bytes: &[u8]) -> io::Result<()> {
    let file = disk.unnamed_file(at.dir, 0o600)?;
    disk.write(&file, 0, bytes)?;
    disk.sync_file(&file)?;
    disk.link(&file, at)
}

/// Returns the descriptor of the snapshot in a directory if it is complete.
pub(crate) fn complete_in<D: Disk>(
    disk: &D,
    dir: &D::Dir,
    id: &SnapshotId,
) -> Option<SnapshotDescriptor> {
    let read = |name| read_whole(disk, Place::new(dir, name), DESCRIPTOR_BYTES_MAX).ok();
    SnapshotReady::check(&read(READY)?, &read(DESCRIPTOR)?, id.as_str())
}

/// The snapshots of a folder.
pub(crate) struct SnapshotStore<'a, D: Disk> {
    /// The disk.
    pub(crate) disk: &'a D,
    /// The directory `snapshots` of the state directory.
    pub(crate) dir: &'a D::Dir,
}

impl<D: Disk> SnapshotStore<'_, D> {
    /// Returns the names of all directories of snapshots, complete or not.
    pub(crate) fn names(&self) -> io::Result<Vec<SnapshotId>> {
        let entries = self.disk.entries(self.dir)?;
        let id = |name: &OsStr| SnapshotId::parse(name.to_str()?);
        let dirs = entries.iter().filter(|entry| entry.is_dir);
        let mut ids: Vec<_> = dirs.filter_map(|entry| id(&entry.name)).collect();
        ids.sort();
        Ok(ids)
    }

    /// Returns the complete snapshots, oldest first.
    pub(crate) fn list(&self) -> io::Result<Vec<(SnapshotId, SnapshotDescriptor)>> {
        let complete = |id: SnapshotId| {
            let dir = self.disk.open_dir(Place::new(self.dir, id.as_str())).ok()?;
            let descriptor = complete_in(self.disk, &dir, &id)?;
            Some((id, descriptor))
        };
        Ok(self.names()?.into_iter().filter_map(complete).collect())
    }

    /// Returns the bytes of the disk that the complete snapshots take. Fails if there are so many
    /// that none may be added.
    pub(crate) fn room(&self) -> Result<u64, SnapshotError> {
        if self.names()?.len() >= SNAPSHOTS_MAX {
            return Err(SnapshotError::TooMany);
        }
        let listed = self.list()?;
        Ok(listed.iter().map(|(_, descriptor)| descriptor.counts.allocated).sum())
    }

    /// Opens a complete snapshot.
    pub(crate) fn open(
        &self,
        name: &str,
    ) -> Result<(SnapshotId, D::Dir, SnapshotDescriptor), SnapshotError> {
        let unknown = || SnapshotError::Unknown(name.to_owned());
        let id = SnapshotId::parse(name).ok_or_else(unknown)?;
        let dir = match self.disk.open_dir(Place::new(self.dir, id.as_str())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(unknown()),
            dir => dir?,
        };
        match complete_in(self.disk, &dir, &id) {
            Some(descriptor) => Ok((id, dir, descriptor)),
            None => Err(SnapshotError::Partial(id)),
        }
    }

    /// Returns the manifest of a complete snapshot; `None` if it does not fit the descriptor.
    pub(crate) fn manifest(
        &self,
        dir: &D::Dir,
        descriptor: &SnapshotDescriptor,
    ) -> io::Result<Option<Vec<ManifestEntry>>> {
        let text = match read_whole(self.disk, Place::new(dir, MANIFEST), MANIFEST_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        if ContentDigest::of(&text).to_string() != descriptor.root {
            return Ok(None);
        }
        Ok(String::from_utf8(text).ok().as_deref().and_then(parse_manifest))
    }

    /// Compares a complete snapshot with its manifest. Returns the differences as sentences.
    pub(crate) fn verify(
        &self,
        name: &str,
        on_file: &dyn Fn(),
    ) -> Result<Vec<String>, SnapshotError> {
        let (_, dir, descriptor) = self.open(name)?;
        let Some(wanted) = self.manifest(&dir, &descriptor)? else {
            return Ok(vec!["the manifest does not have its digest".to_owned()]);
        };
        let tree = self.disk.open_dir(Place::new(&dir, TREE))?;
        let found = entries_of(self.disk, &tree, |_| false, on_file)?;
        Ok(differences(&wanted, found))
    }

    /// Removes a snapshot, complete or not.
    pub(crate) fn remove(&self, name: &str) -> Result<(), SnapshotError> {
        let unknown = || SnapshotError::Unknown(name.to_owned());
        let id = SnapshotId::parse(name).ok_or_else(unknown)?;
        let at = Place::new(self.dir, id.as_str());
        self.disk.look(at).map_err(|_| unknown())?;
        remove_tree(self.disk, at, OsStr::new(READY))?;
        Ok(self.disk.sync_dir(self.dir)?)
    }

    /// Makes a snapshot that was built in a stage visible.
    pub(crate) fn adopt(&self, from: Place<'_, D::Dir>, id: &SnapshotId) -> io::Result<()> {
        self.disk.rename(from, Place::new(self.dir, id.as_str()), IfThere::Fail)?;
        self.disk.sync_dir(self.dir)
    }
}

/// Returns the differences between a manifest and the files that are there.
fn differences(wanted: &[ManifestEntry], found: Vec<ManifestEntry>) -> Vec<String> {
    let mut found: BTreeMap<OsString, ManifestEntry> =
        found.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    let mut sentences = Vec::new();
    for wanted in wanted {
        let shown = wanted.path.display();
        let Some(found) = found.remove(&wanted.path) else {
            sentences.push(format!("{shown} is missing"));
            continue;
        };
        if found.kind != wanted.kind {
            sentences.push(format!("{shown} is of another type"));
        } else if (found.size, found.digest) != (wanted.size, wanted.digest) {
            sentences.push(format!("{shown} has another content"));
        } else if found.mode != wanted.mode {
            let (is, was) = (found.mode, wanted.mode);
            sentences.push(format!("{shown} has the mode {is:04o}, and not {was:04o}"));
        }
    }
    let added = found.into_keys().map(|path| format!("{} was added", path.display()));
    sentences.extend(added);
    sentences.truncate(DIFFERENCES_MAX);
    sentences
}
