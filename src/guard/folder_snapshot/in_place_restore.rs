//! Gives the folder the content of a snapshot, file by file: each differing file is published as a
//! whole. The intent is recorded first, with a snapshot of the folder as it was before, so that a
//! restore which was interrupted is known: it is finished, or it is undone by giving the folder the
//! content of that other snapshot.

use super::super::disk::{Disk, FileId, IfThere, Place};
use super::super::folder_guard::FolderGuard;
use super::super::gate::Pass;
use super::super::stage::PublishError;
use super::super::tenure::TenureId;
use super::descriptor::{DESCRIPTOR_BYTES_MAX, SENTENCES_MAX};
use super::snapshot_disk::{SnapshotDisk, is_own_dir};
use super::snapshot_manifest::{EntryKind, ManifestEntry};
use super::snapshot_store::{SnapshotError, SnapshotStore, TREE, read_whole, write_new};
use super::tree_digest::digest_of;
use super::tree_walk::{WalkedKind, is_gone, walk};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;

/// The file in `snapshots` with the intent of a restore in place.
const RESTORE: &str = "restore.json";
/// Its name while it is written.
const RESTORE_NEW: &str = "restore.json.new";

/// The record of a restore in place that is under way, for a guard that dies meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RestoreIntent {
    /// The snapshot whose content the folder is given.
    pub(crate) id: String,
    /// The snapshot of the folder as it was before.
    pub(crate) before: String,
    /// The tenure in which the restore was begun.
    pub(crate) tenure: String,
}

impl RestoreIntent {
    /// Whether a snapshot is needed to finish or to undo the restore.
    pub(crate) fn needs(&self, id: &str) -> bool {
        id == self.id || id == self.before
    }
}

/// Returns the intent of a restore in place that has not ended.
pub(crate) fn interrupted_restore<D: Disk>(store: &SnapshotStore<'_, D>) -> Option<RestoreIntent> {
    let at = Place::new(store.dir, RESTORE);
    let text = read_whole(store.disk, at, DESCRIPTOR_BYTES_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the snapshot whose content the folder gets by a restore in place, or by the undoing of
/// one that was interrupted.
pub(crate) fn restored_content<D: Disk>(
    store: &SnapshotStore<'_, D>,
    id: &str,
    undoes: bool,
) -> Result<String, SnapshotError> {
    if !undoes {
        return Ok(id.to_owned());
    }
    let interrupted = interrupted_restore(store).filter(|it| it.id == id);
    interrupted.map(|it| it.before).ok_or_else(|| SnapshotError::NothingToUndo(id.to_owned()))
}

/// Records the intent of a restore durably. One of the same snapshot that was interrupted stays:
/// it names the folder as it was before its first change. Returns the intent that is recorded.
pub(crate) fn begin_restore<D: Disk>(
    store: &SnapshotStore<'_, D>,
    intent: RestoreIntent,
) -> io::Result<RestoreIntent> {
    if let Some(interrupted) = interrupted_restore(store).filter(|it| it.id == intent.id) {
        return Ok(interrupted);
    }
    let bytes = serde_json::to_vec(&intent).map_err(io::Error::other)?;
    let (new, at) = (Place::new(store.dir, RESTORE_NEW), Place::new(store.dir, RESTORE));
    match store.disk.remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => write_new(store.disk, new, &bytes)?,
    }
    store.disk.rename(new, at, IfThere::Replace)?;
    store.disk.sync_dir(store.dir)?;
    Ok(intent)
}

/// A complete snapshot that was compared with its manifest, so that the folder may be given its
/// content.
pub(crate) struct CheckedSnapshot<'a, D: SnapshotDisk> {
    store: &'a SnapshotStore<'a, D>,
    tree: D::Dir,
    entries: Vec<ManifestEntry>,
}

impl<'a, D: SnapshotDisk> CheckedSnapshot<'a, D> {
    /// Opens a snapshot, and compares each of its files with its digest.
    pub(crate) fn open(
        store: &'a SnapshotStore<'a, D>,
        name: &str,
        on_file: &dyn Fn(),
    ) -> Result<Self, SnapshotError> {
        let (id, dir, descriptor) = store.open(name)?;
        let entries = store.manifest(&dir, &descriptor)?.ok_or(SnapshotError::Partial(id))?;
        if let Some(first) = store.verify(name, on_file)?.first() {
            let why = format!("it does not fit its manifest any more: {first}");
            return Err(io::Error::other(why).into());
        }
        let tree = store.disk.open_dir(Place::new(&dir, TREE))?;
        Ok(Self { store, tree, entries })
    }
}

/// The result of a restore in place.
#[derive(Debug)]
pub(crate) struct RestoredFolder {
    /// The number of files that were changed.
    pub(crate) changed: u64,
    /// Sentences about directories that have another owner than in the snapshot.
    pub(crate) not_given: Vec<String>,
}

/// Waits until the lock service knows that changes follow. Returns the reason if it can't be told.
pub(crate) type AnnounceChanges<'a> = &'a dyn Fn() -> Result<(), String>;

/// A restore in place.
pub(crate) struct InPlaceRestore<'a, D: SnapshotDisk> {
    guard: &'a FolderGuard<D>,
    tenure: TenureId,
    announce: AnnounceChanges<'a>,
    tree: &'a D::Dir,
    /// The first path of each file that has several names in the snapshot.
    names: HashMap<FileId, OsString>,
    /// The files of the folder that it has left as they are.
    kept: HashSet<FileId>,
    /// The directories that it has made.
    made: HashSet<FileId>,
    /// The user as whom the guard runs.
    guard_uid: u32,
    /// The number of files that were changed.
    changed: u64,
    /// Sentences about directories that have another owner than in the snapshot.
    not_given: Vec<String>,
}

impl<'a, D: SnapshotDisk> InPlaceRestore<'a, D> {
    /// Gives the folder the content of a snapshot in a tenure, and removes the intent: that of the
    /// snapshot itself, which is finished, or one that names the snapshot as the folder before,
    /// which is undone.
    pub(crate) fn run(
        guard: &'a FolderGuard<D>,
        snapshot: &'a CheckedSnapshot<'a, D>,
        (tenure, announce): (TenureId, AnnounceChanges<'a>),
        on_file: &dyn Fn(),
    ) -> Result<RestoredFolder, SnapshotError> {
        let CheckedSnapshot { store, tree, entries } = snapshot;
        // The state directory belongs to the user of the guard.
        let guard_uid = store.disk.look(Place::new(store.dir, "."))?.uid;
        let mut restore = Self {
            guard,
            tenure,
            announce,
            tree,
            names: HashMap::new(),
            kept: HashSet::new(),
            made: HashSet::new(),
            guard_uid,
            changed: 0,
            not_given: Vec::new(),
        };
        restore.remove_others(entries)?;
        for entry in entries {
            on_file();
            restore.put(entry)?;
        }
        restore.finish_dirs(entries)?;
        store.disk.sync_file_system(guard.folder())?;
        store.disk.remove_file(Place::new(store.dir, RESTORE))?;
        store.disk.sync_dir(store.dir)?;
        Ok(RestoredFolder { changed: restore.changed, not_given: restore.not_given })
    }

    /// Lets a change pass the gate, once it is announced.
    fn pass(&self) -> Result<Pass<'a>, SnapshotError> {
        let gate = self.guard.gate();
        loop {
            let pass = gate.enter(Some(self.tenure), |_| true);
            let pass = pass.map_err(|_| SnapshotError::TenureOver)?;
            if !gate.must_announce() {
                return Ok(pass);
            }
            drop(pass);
            (self.announce)().map_err(io::Error::other)?;
        }
    }

    /// Removes the files of the folder that the snapshot does not have.
    fn remove_others(&mut self, entries: &[ManifestEntry]) -> Result<(), SnapshotError> {
        let wanted: HashMap<&OsStr, EntryKind> =
            entries.iter().map(|entry| (entry.path.as_os_str(), entry.kind)).collect();
        let mut others = Vec::new();
        walk(self.guard.disk(), self.guard.folder(), is_own_dir, |walked| {
            let is_dir = walked.found.look.is_dir;
            let is_other = matches!(walked.kind, WalkedKind::Other(_));
            let keeps = match wanted.get(walked.path) {
                Some(EntryKind::Dir) => is_dir,
                Some(EntryKind::File | EntryKind::Symlink) => !is_dir,
                // No snapshot holds these, so that it does not say that they are too much.
                None => is_other,
            };
            // A mount point is no part of the folder.
            if !keeps && !walked.found.is_mount_point {
                others.push((walked.path.to_owned(), is_dir));
            }
            Ok(())
        })?;
        // The deepest first, so that directories are empty.
        others.sort_by(|one, other| other.0.cmp(&one.0));
        for (path, is_dir) in others {
            self.remove(&path, is_dir)?;
        }
        Ok(())
    }

    fn remove(&mut self, path: &OsStr, is_dir: bool) -> Result<(), SnapshotError> {
        let pass = self.pass()?;
        let (dir, name) = self.guard.disk().open_parent(self.guard.folder(), path)?;
        let at = Place::new(&dir, &name);
        let removed = if is_dir {
            self.guard.disk().remove_dir(at)
        } else {
            self.guard.remove_file(&pass, (at, path))
        };
        match removed {
            Err(error) if is_gone(&error) => {}
            // It holds something that no snapshot holds.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => return Ok(()),
            removed => removed?,
        }
        self.changed += 1;
        Ok(())
    }

    /// Gives one path of the folder the file of the snapshot.
    fn put(&mut self, entry: &ManifestEntry) -> Result<(), SnapshotError> {
        if entry.path.is_empty() {
            return Ok(());
        }
        let disk = self.guard.disk();
        let (from, name) = disk.open_parent(self.tree, &entry.path)?;
        let (to, _) = disk.open_parent(self.guard.folder(), &entry.path)?;
        let (from, to) = (Place::new(&from, &name), Place::new(&to, &name));
        let there = disk.attributes(to).ok();
        if entry.kind == EntryKind::Dir {
            if there.is_none() {
                let _pass = self.pass()?;
                let dir = disk.make_dir(to)?;
                self.made.insert(disk.id_of(Place::new(&dir, "."))?);
                self.changed += 1;
            }
            return Ok(());
        }
        let look = disk.look(from)?;
        let first = (look.links > 1).then(|| self.names.get(&look.id).cloned()).flatten();
        if let Some(first) = first {
            return self.link(&first, (to, &entry.path));
        }
        if look.links > 1 {
            self.names.insert(look.id, entry.path.clone());
        }
        // A file that is another name of one that was kept is a file of its own in the snapshot.
        if let Some(there) = &there
            && self.is_same(entry, (from, to))
            && self.kept.insert(there.look.id)
        {
            return Ok(());
        }
        let pass = self.pass()?;
        self.changed += 1;
        match entry.kind {
            EntryKind::File => {
                let file = disk.open_to_read(from)?;
                let copy = disk.unnamed_file(to.dir, 0o600)?;
                disk.copy_content(&file, &copy)?;
                disk.copy_file_attributes(&file, &copy)?;
                disk.sync_file(&copy)?;
                let replace = IfThere::Replace;
                let done = self.guard.publish_made(&pass, &copy, to, &entry.path, replace);
                done.map_err(|error| not_published(&entry.path, error))
            }
            EntryKind::Symlink | EntryKind::Dir => {
                if there.is_some() {
                    self.guard.remove_file(&pass, (to, &entry.path))?;
                }
                disk.make_symlink(to, &disk.read_symlink(from)?)?;
                disk.copy_symlink_attributes(from, to)?;
                Ok(())
            }
        }
    }

    fn is_same(
        &self,
        entry: &ManifestEntry,
        (from, to): (Place<'_, D::Dir>, Place<'_, D::Dir>),
    ) -> bool {
        let disk = self.guard.disk();
        let has_content = match entry.kind {
            EntryKind::File => {
                digest_of(disk, to).is_ok_and(|found| found == (entry.size, entry.digest))
            }
            EntryKind::Symlink => {
                let target = |at| disk.read_symlink(at).ok();
                target(from).is_some() && target(from) == target(to)
            }
            EntryKind::Dir => true,
        };
        has_content && disk.has_same_attributes(from, to).unwrap_or(false)
    }

    /// Makes a path of the folder a further name of the file at `first`.
    fn link(
        &mut self,
        first: &OsStr,
        (to, path): (Place<'_, D::Dir>, &OsStr),
    ) -> Result<(), SnapshotError> {
        let disk = self.guard.disk();
        let (dir, name) = disk.open_parent(self.guard.folder(), first)?;
        let from = Place::new(&dir, &name);
        let there = disk.id_of(to).ok();
        if there.is_some() && there == disk.id_of(from).ok() {
            return Ok(());
        }
        let pass = self.pass()?;
        self.changed += 1;
        if there.is_some() {
            self.guard.remove_file(&pass, (to, path))?;
        }
        self.guard.log_made(path, None)?;
        disk.link_name(from, to)?;
        let linked = disk.look(to)?;
        self.guard.record_own(&linked);
        self.guard.log_made(path, Some(&linked))?;
        Ok(())
    }

    /// Gives the directories the attributes that they have in the snapshot, the deepest first.
    fn finish_dirs(&mut self, entries: &[ManifestEntry]) -> Result<(), SnapshotError> {
        for entry in entries.iter().rev().filter(|entry| entry.kind == EntryKind::Dir) {
            let _pass = self.pass()?;
            self.finish_dir(&entry.path)?;
        }
        Ok(())
    }

    /// A directory that was there before is not given to another user: whoever may rename in the
    /// directory above could have put one of root's in its place.
    fn finish_dir(&mut self, path: &OsStr) -> Result<(), SnapshotError> {
        let disk = self.guard.disk();
        let from = disk.open_dir(Place::new(self.tree, path))?;
        let to = disk.open_dir(Place::new(self.guard.folder(), path))?;
        let (own, there) = (Place::new(&from, "."), Place::new(&to, "."));
        if disk.has_same_attributes(own, there)? {
            return Ok(());
        }
        let (wanted, found) = (disk.look(own)?, disk.look(there)?);
        let is_kept = wanted.uid == found.uid || wanted.uid == self.guard_uid;
        if is_kept || self.made.contains(&found.id) {
            disk.copy_dir_attributes(&from, &to)?;
        } else if self.not_given.len() < SENTENCES_MAX {
            let path = if path.is_empty() { OsStr::new(".") } else { path };
            self.not_given.push(format!(
                "{} belongs to uid {} and not to uid {} as in the snapshot, and was not given away",
                path.display(),
                found.uid,
                wanted.uid
            ));
        }
        Ok(())
    }
}

fn not_published(path: &OsStr, error: PublishError) -> SnapshotError {
    match error {
        PublishError::Fenced { .. } => SnapshotError::TenureOver,
        PublishError::Disk(error) | PublishError::Stays { error, .. } => {
            let why = crate::os_error::said(&error);
            io::Error::new(error.kind(), format!("{} was not restored: {why}", path.display()))
                .into()
        }
    }
}
