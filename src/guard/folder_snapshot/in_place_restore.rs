//! Gives the folder the content of a snapshot, file by file: each differing file is published as a
//! whole. The intent is recorded first, so that an interrupted restore is known, and the same
//! restore finishes it.

use super::super::disk::{Disk, FileId, IfThere, Place};
use super::super::folder_guard::FolderGuard;
use super::super::gate::Pass;
use super::super::stage::PublishError;
use super::super::tenure::TenureId;
use super::descriptor::SENTENCES_MAX;
use super::snapshot_disk::{SnapshotDisk, is_own_dir};
use super::snapshot_manifest::{EntryKind, ManifestEntry};
use super::snapshot_store::{SnapshotError, SnapshotStore, TREE, read_whole, write_new};
use super::tree_digest::digest_of;
use super::tree_walk::{WalkedKind, is_gone, walk};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;

/// The file in `snapshots` that names the snapshot which is being restored.
const RESTORE: &str = "restore.json";

/// Why a restore in place has stopped.
#[derive(Debug)]
pub(crate) enum RestoreError {
    /// The lock service must be told of changes first; then the restore goes on.
    Unannounced,
    /// It failed.
    Failed(SnapshotError),
}

impl From<io::Error> for RestoreError {
    fn from(error: io::Error) -> Self {
        Self::Failed(SnapshotError::Disk(error))
    }
}

impl From<SnapshotError> for RestoreError {
    fn from(error: SnapshotError) -> Self {
        Self::Failed(error)
    }
}

/// Returns the name of the snapshot whose restore was interrupted.
pub(crate) fn interrupted_restore<D: Disk>(store: &SnapshotStore<'_, D>) -> Option<String> {
    let text = read_whole(store.disk, Place::new(store.dir, RESTORE), 4_096).ok()?;
    let intent: serde_json::Value = serde_json::from_slice(&text).ok()?;
    Some(intent["id"].as_str().unwrap_or("?").to_owned())
}

/// The result of a restore in place.
#[derive(Debug)]
pub(crate) struct RestoredFolder {
    /// The number of files that were changed.
    pub(crate) changed: u64,
    /// Sentences about directories that have another owner than in the snapshot.
    pub(crate) not_given: Vec<String>,
}

/// A restore in place.
pub(crate) struct InPlaceRestore<'a, D: SnapshotDisk> {
    guard: &'a FolderGuard<D>,
    tenure: TenureId,
    tree: D::Dir,
    /// The first path of each file that has several names in the snapshot.
    names: HashMap<FileId, OsString>,
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
    /// Gives the folder the content of a snapshot in a tenure.
    pub(crate) fn run(
        guard: &'a FolderGuard<D>,
        store: &SnapshotStore<'_, D>,
        name: &str,
        (tenure, on_file): (TenureId, &dyn Fn()),
    ) -> Result<RestoredFolder, RestoreError> {
        let (id, dir, descriptor) = store.open(name)?;
        let Some(entries) = store.manifest(&dir, &descriptor)? else {
            return Err(SnapshotError::Partial(id).into());
        };
        let differences = store.verify(name, on_file)?;
        if let Some(first) = differences.first() {
            let why = format!("it does not fit its manifest any more: {first}");
            return Err(io::Error::other(why).into());
        }
        let tree = store.disk.open_dir(Place::new(&dir, TREE))?;
        let at = Place::new(store.dir, RESTORE);
        match interrupted_restore(store) {
            Some(other) if other != id.as_str() => store.disk.remove_file(at)?,
            _ => {}
        }
        if interrupted_restore(store).is_none() {
            let intent = serde_json::json!({"id": id.as_str(), "tenure": tenure.to_string()});
            write_new(store.disk, at, intent.to_string().as_bytes())?;
            store.disk.sync_dir(store.dir)?;
        }
        // The state directory belongs to the user of the guard.
        let guard_uid = store.disk.look(Place::new(store.dir, "."))?.uid;
        let (names, made, not_given) = (HashMap::new(), HashSet::new(), Vec::new());
        let mut restore =
            Self { guard, tenure, tree, names, made, guard_uid, changed: 0, not_given };
        restore.remove_others(&entries)?;
        for entry in &entries {
            on_file();
            restore.put(entry)?;
        }
        restore.finish_dirs(&entries)?;
        store.disk.sync_file_system(guard.folder())?;
        store.disk.remove_file(at)?;
        store.disk.sync_dir(store.dir)?;
        Ok(RestoredFolder { changed: restore.changed, not_given: restore.not_given })
    }

    fn pass(&self) -> Result<Pass<'a>, RestoreError> {
        let gate = self.guard.gate();
        let pass = gate.enter(Some(self.tenure), |_| true);
        let pass = pass.map_err(|_| SnapshotError::TenureOver)?;
        if gate.must_announce() { Err(RestoreError::Unannounced) } else { Ok(pass) }
    }

    /// Removes the files of the folder that the snapshot does not have.
    fn remove_others(&mut self, entries: &[ManifestEntry]) -> Result<(), RestoreError> {
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

    fn remove(&mut self, path: &OsStr, is_dir: bool) -> Result<(), RestoreError> {
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
    fn put(&mut self, entry: &ManifestEntry) -> Result<(), RestoreError> {
        if entry.path.is_empty() {
            return Ok(());
        }
        let disk = self.guard.disk();
        let (from, name) = disk.open_parent(&self.tree, &entry.path)?;
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
        if there.is_some() && self.is_same(entry, (from, to)) {
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
    ) -> Result<(), RestoreError> {
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
        self.guard.log_made(path, Some(&disk.look(to)?))?;
        Ok(())
    }

    /// Gives the directories the attributes that they have in the snapshot, the deepest first.
    fn finish_dirs(&mut self, entries: &[ManifestEntry]) -> Result<(), RestoreError> {
        for entry in entries.iter().rev().filter(|entry| entry.kind == EntryKind::Dir) {
            let _pass = self.pass()?;
            self.finish_dir(&entry.path)?;
        }
        Ok(())
    }

    /// A directory that was there before is not given to another user: whoever may rename in the
    /// directory above could have put one of root's in its place.
    fn finish_dir(&mut self, path: &OsStr) -> Result<(), RestoreError> {
        let disk = self.guard.disk();
        let from = disk.open_dir(Place::new(&self.tree, path))?;
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

fn not_published(path: &OsStr, error: PublishError) -> RestoreError {
    match error {
        PublishError::Fenced { .. } => SnapshotError::TenureOver.into(),
        PublishError::Disk(error) | PublishError::Stays { error, .. } => {
            let why = crate::os_error::said(&error);
            io::Error::new(error.kind(), format!("{} was not restored: {why}", path.display()))
                .into()
        }
    }
}
