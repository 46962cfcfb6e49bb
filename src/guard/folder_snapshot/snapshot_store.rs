//! The complete snapshots in the state directory. A directory counts as a snapshot if its `READY`
//! fits its descriptor.
//!
//! The answers to requests about snapshots, as JSON.
//!
//! Finds snapshots that were interrupted or damaged, and finishes or removes the interrupted ones.

use super::descriptor::{DESCRIPTOR_BYTES_MAX, SnapshotDescriptor, SnapshotReady, VERSION};
use super::snapshot_take::{SnapshotIntent, intents, staged_name};
use crate::base::said;
use crate::guard::disk::operations::{Disk, IfThere, Place, remove_tree};
use crate::guard::folder_snapshot::descriptor::{
    MANIFEST_BYTES_MAX, ManifestEntry, SnapshotId, parse_manifest,
};
use crate::guard::folder_snapshot::tree_copy::{entries_of, is_gone};
use crate::guard::stage::publish::READY;
use barrier::folder_path::ContentDigest;
use barrier::tenure_id::TenureId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::{fmt, io};

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
    /// The `READY` of the snapshot has this version, which is another one.
    Version(SnapshotId, u32),
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
            Self::Unknown(_) | Self::Version(..) | Self::TenureOver | Self::Disk(_) => None,
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
            Self::Version(id, found) => write!(
                f,
                "the file '{READY}' of the snapshot {id} has version {found}, and this latchfs \
                 knows version {VERSION}; use the latchfs that took the snapshot"
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
    let size = disk.stat_file(&file)?.size;
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

/// Returns the version of the snapshot in a directory, if it is another one than this latchfs
/// knows.
fn other_version_in<D: Disk>(disk: &D, dir: &D::Dir) -> Option<u32> {
    let ready = read_whole(disk, Place::new(dir, READY), DESCRIPTOR_BYTES_MAX).ok()?;
    SnapshotReady::other_version(&ready)
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
            None => Err(match other_version_in(self.disk, &dir) {
                Some(found) => SnapshotError::Version(id, found),
                None => SnapshotError::Partial(id),
            }),
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
        self.disk.stat(at).map_err(|_| unknown())?;
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

/// The maximum number of snapshots that one answer lists: the newest ones.
const LISTED_MAX: usize = 200;
/// The maximum number of sentences about each snapshot in a list of snapshots.
const LISTED_SENTENCES_MAX: usize = 100;

/// Returns the answer for an error.
pub(crate) fn failed(error: &SnapshotError) -> Value {
    let mut answer = json!({"error": error.to_string()});
    if let Some(code) = error.code() {
        answer["code"] = code.into();
    }
    answer
}

/// Returns a descriptor as JSON. A user without the right to see all names gets a number instead of
/// sentences.
pub(crate) fn shown(descriptor: &SnapshotDescriptor, may_see: bool) -> Value {
    let mut value = serde_json::to_value(descriptor).unwrap_or_default();
    for (name, sentences) in [("risk", &descriptor.risk), ("degraded", &descriptor.degraded)] {
        if !may_see && !sentences.is_empty() {
            value[name] = json!([format!("{} files", sentences.len())]);
        }
    }
    value
}

/// Returns the descriptor of a snapshot.
pub(crate) fn describe<D: Disk>(store: &SnapshotStore<'_, D>, id: &str, may_see: bool) -> Value {
    match store.open(id) {
        Ok((_, _, descriptor)) => shown(&descriptor, may_see),
        Err(error) => failed(&error),
    }
}

/// Returns the newest snapshots.
pub(crate) fn list<D: Disk>(store: &SnapshotStore<'_, D>, may_see: bool) -> Value {
    let listed = match store.list() {
        Ok(listed) => listed,
        Err(error) => return failed(&SnapshotError::Disk(error)),
    };
    let newest = listed.iter().rev().take(LISTED_MAX);
    let short = |(_, descriptor): &(SnapshotId, SnapshotDescriptor)| {
        let mut short = descriptor.clone();
        short.risk.truncate(LISTED_SENTENCES_MAX);
        short.degraded.truncate(LISTED_SENTENCES_MAX);
        shown(&short, may_see)
    };
    let all: Vec<_> = newest.map(short).collect();
    json!({ "snapshots": all })
}

/// Compares a snapshot with its manifest. Returns the differences.
pub(crate) fn verify<D: Disk>(store: &SnapshotStore<'_, D>, id: &str, on_file: &dyn Fn()) -> Value {
    match store.verify(id, on_file) {
        Ok(differences) => {
            let count = differences.len();
            json!({"id": id, "ok": count == 0, "count": count, "differences": differences})
        }
        Err(error) => failed(&error),
    }
}

/// Removes a snapshot.
pub(crate) fn remove<D: Disk>(store: &SnapshotStore<'_, D>, id: &str) -> Value {
    match store.remove(id) {
        Ok(()) => json!({ "removed": id }),
        Err(error) => failed(&error),
    }
}

/// Something that is wrong with the snapshots of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SnapshotFinding {
    /// A snapshot was interrupted while it was taken or removed (`snapshot-partial`).
    Partial(String),
    /// A complete snapshot does not fit its manifest any more (`snapshot-corrupt`).
    Corrupt(SnapshotId, Vec<String>),
    /// The `READY` of a snapshot does not fit its descriptor (`snapshot-corrupt`), so that it is
    /// not shown.
    Unproven(SnapshotId),
}

impl fmt::Display for SnapshotFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partial(id) => write!(
                f,
                "snapshot {id} was interrupted and is not shown; the next start of the guard \
                 finishes or removes it"
            ),
            Self::Corrupt(id, differences) => write!(
                f,
                "snapshot {id} is damaged: {}; remove it with 'latchfs folder-snapshot rm {id}'",
                differences.first().map_or("it can't be read", String::as_str)
            ),
            Self::Unproven(id) => write!(
                f,
                "snapshot {id} is not shown, because its READY or its descriptor was changed; \
                 remove it with 'latchfs folder-snapshot rm {id}'"
            ),
        }
    }
}

/// The effect of a recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveredSnapshots {
    /// The snapshots that were complete, and are visible now.
    pub(crate) finished: Vec<SnapshotId>,
    /// The number of snapshots that were removed, because they were not complete.
    pub(crate) removed: usize,
}

/// Returns the findings about the snapshots of a folder. `is_live` says whether a guard may still
/// be taking a snapshot. With `reads_all`, each file is compared with its digest.
pub(crate) fn findings<D: Disk>(
    store: &SnapshotStore<'_, D>,
    is_live: impl Fn(&SnapshotIntent) -> bool,
    reads_all: bool,
) -> io::Result<Vec<SnapshotFinding>> {
    let mut found = Vec::new();
    for (name, intent) in intents(store)? {
        if !intent.as_ref().is_some_and(&is_live) {
            let id = intent.map_or_else(|| name.to_string_lossy().into_owned(), |it| it.id);
            found.push(SnapshotFinding::Partial(id));
        }
    }
    for id in store.names()? {
        let dir = match store.disk.open_dir(Place::new(store.dir, id.as_str())) {
            // The snapshot was removed meanwhile.
            Err(error) if is_gone(&error) => continue,
            dir => dir?,
        };
        let has_ready = || store.disk.stat(Place::new(&dir, READY)).is_ok();
        if complete_in(store.disk, &dir, &id).is_none() {
            found.push(if has_ready() {
                SnapshotFinding::Unproven(id)
            } else {
                SnapshotFinding::Partial(id.to_string())
            });
        } else if reads_all {
            let differences = store.verify(id.as_str(), &|| ());
            let differences = differences.unwrap_or_else(|error| vec![error.to_string()]);
            // A snapshot without READY is being removed, and not damaged.
            if !differences.is_empty() && has_ready() {
                found.push(SnapshotFinding::Corrupt(id, differences));
            }
        }
    }
    Ok(found)
}

/// Finishes the interrupted snapshots that are complete up to `READY`, and removes the others. The
/// caller has made sure that no guard is at work on a snapshot for which `is_live` is false.
pub(crate) fn recover<D: Disk>(
    store: &SnapshotStore<'_, D>,
    stages: &D::Dir,
    is_live: impl Fn(&SnapshotIntent) -> bool,
) -> io::Result<RecoveredSnapshots> {
    let disk = store.disk;
    let mut recovered = RecoveredSnapshots::default();
    for (name, intent) in intents(store)? {
        if intent.as_ref().is_some_and(&is_live) {
            continue;
        }
        let tenure = intent.as_ref().and_then(|intent| TenureId::parse(&intent.tenure));
        let id = intent.as_ref().and_then(|intent| SnapshotId::parse(&intent.id));
        if let (Some(tenure), Some(id)) = (tenure, id)
            && let Ok(stage) = disk.open_dir(Place::new(stages, &tenure.to_string()))
        {
            let name = staged_name(&id);
            let at = Place::new(&stage, &name);
            let half = disk.open_dir(at).ok();
            let other = half.as_ref().and_then(|dir| other_version_in(disk, dir));
            if let Some(found) = other {
                log::warn!("{}", SnapshotError::Version(id, found));
                continue;
            }
            if half.is_some_and(|dir| complete_in(disk, &dir, &id).is_some()) {
                store.adopt(at, &id)?;
                recovered.finished.push(id);
            } else if disk.stat(at).is_ok() {
                remove_tree(disk, at, OsStr::new(READY))?;
                recovered.removed += 1;
            }
        }
        disk.remove_file(Place::new(store.dir, &name))?;
    }
    for id in store.names()? {
        let at = Place::new(store.dir, id.as_str());
        let dir = disk.open_dir(at)?;
        // A snapshot with a READY that does not fit was damaged, and a person decides about it.
        if disk.stat(Place::new(&dir, READY)).is_err() {
            remove_tree(disk, at, OsStr::new(READY))?;
            recovered.removed += 1;
        }
    }
    disk.sync_dir(store.dir)?;
    Ok(recovered)
}
