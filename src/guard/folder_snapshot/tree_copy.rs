//! Copies the tree of a folder, in as many passes as are needed: a pass copies the files that are
//! new or have changed since the one before. The first pass may take long, while programs go on;
//! the last one finds no change, or few, so that programs wait for it only shortly.

use super::super::disk::{Disk, FileId, Look, Place};
use super::super::stage::READY;
use super::super::tree_removal::remove_tree;
use super::descriptor::{SENTENCES_MAX, SnapshotCounts};
use super::snapshot_disk::{CopyMethod, SnapshotDisk, is_own_dir};
use super::tree_walk::{Walked, WalkedKind, is_gone, walk};
use crate::time::Wall;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;

/// A file that was changed so shortly before it was copied may be changed again within the same
/// tick of the file system's clock, so that its times do not show it.
const TICK_NANOS: i128 = 50_000_000;

/// A file as it was when it was copied.
struct CopiedFile {
    kind: WalkedKind,
    look: Look,
    method: CopyMethod,
    /// Whether a later change would show in the times.
    is_settled: bool,
    /// The last pass in which the file was there.
    pass: u32,
}

/// Whether the snapshot may get a further name of a file of the folder.
pub(crate) type MayLink<'a> = &'a (dyn Fn(&OsStr, &Look) -> bool + Sync);

/// A tree that is being copied.
pub(crate) struct TreeCopy<'a, D: SnapshotDisk> {
    disk: &'a D,
    from: &'a D::Dir,
    to: D::Dir,
    may_link: MayLink<'a>,
    files: HashMap<OsString, CopiedFile>,
    /// The first path of each file that has several names in the folder.
    names: HashMap<FileId, (OsString, i128)>,
    pass: u32,
    /// Whether files can share their content; `None` before the first file.
    shares_content: Option<bool>,
    degraded: Vec<String>,
    /// The files that are shared with the folder by a further name.
    pub(crate) linked: Vec<Look>,
}

fn wall_nanos() -> i128 {
    let now = Wall::now();
    i128::from(now.secs) * 1_000_000_000 + i128::from(now.nanos)
}

/// Returns the directory and the last name of a path below the copy.
fn parent_of<D: Disk>(disk: &D, root: &D::Dir, path: &OsStr) -> io::Result<(D::Dir, OsString)> {
    disk.open_parent(root, path)
}

impl<'a, D: SnapshotDisk> TreeCopy<'a, D> {
    /// Begins a copy into an empty directory.
    pub(crate) fn new(
        disk: &'a D,
        (from, to): (&'a D::Dir, D::Dir),
        may_link: MayLink<'a>,
    ) -> Self {
        let (files, names) = (HashMap::new(), HashMap::new());
        let (degraded, linked) = (Vec::new(), Vec::new());
        let shares_content = None;
        Self { disk, from, to, may_link, files, names, pass: 0, shares_content, degraded, linked }
    }

    /// Copies the files that are new or have changed since the last pass, and removes the others.
    /// `on_file` is called for each.
    pub(crate) fn copy_changed(&mut self, on_file: &dyn Fn()) -> io::Result<()> {
        self.pass += 1;
        self.degraded.clear();
        let (disk, from) = (self.disk, self.from);
        walk(disk, from, is_own_dir, |walked| {
            on_file();
            match self.copy_if_changed(&walked) {
                Err(error) if is_gone(&error) && disk.look(walked.at).is_err() => Ok(()),
                Err(error) => Err(named(walked.path, &error)),
                Ok(()) => Ok(()),
            }
        })?;
        self.remove_gone()
    }

    /// Gives the directories of the copy the attributes that they have in the folder. No file can
    /// be added afterwards. Fails if another directory is in the place of one that was copied: the
    /// files of a private directory must not be shown under the mode of another one.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let dirs = self.files.iter().filter(|(_, file)| file.kind == WalkedKind::Dir);
        let mut dirs: Vec<_> = dirs.map(|(path, file)| (path.clone(), file.look.id)).collect();
        // The deepest first: an entry changes the time of its directory.
        dirs.sort_by(|one, other| other.0.cmp(&one.0));
        let disk = self.disk;
        for (path, id) in dirs {
            let from = match disk.open_dir(Place::new(self.from, &path)) {
                Err(error) if is_gone(&error) => continue,
                dir => dir?,
            };
            if disk.id_of(Place::new(&from, "."))? != id {
                return Err(named(&path, &io::Error::from_raw_os_error(libc::ESTALE)));
            }
            let to = disk.open_dir(Place::new(&self.to, &path))?;
            let missed = disk.copy_dir_attributes(&from, &to);
            self.degrade_missed(missed, &path)?;
        }
        let missed = disk.copy_dir_attributes(self.from, &self.to);
        self.degrade_missed(missed, OsStr::new("."))
    }

    /// Returns the numbers of files, and the sentences about those that could not be kept whole.
    pub(crate) fn into_summary(self) -> (SnapshotCounts, Vec<String>) {
        let mut counts = SnapshotCounts { dirs: 1, ..SnapshotCounts::default() };
        for file in self.files.values() {
            match &file.kind {
                WalkedKind::Dir => counts.dirs += 1,
                WalkedKind::Symlink(_) => counts.symlinks += 1,
                WalkedKind::Other(_) => {}
                WalkedKind::File => {
                    counts.files += 1;
                    counts.bytes += file.look.size;
                    match file.method {
                        CopyMethod::Cloned => counts.cloned += 1,
                        CopyMethod::Linked => counts.linked += 1,
                        CopyMethod::Copied => counts.copied += 1,
                    }
                }
            }
        }
        (counts, self.degraded)
    }

    fn degrade(&mut self, sentence: String) {
        if self.degraded.len() < SENTENCES_MAX && !self.degraded.contains(&sentence) {
            self.degraded.push(sentence);
        }
    }

    /// Names the attributes that this process could not give.
    fn degrade_missed(
        &mut self,
        missed: io::Result<Vec<&'static str>>,
        path: &OsStr,
    ) -> io::Result<()> {
        for what in missed.map_err(|error| named(path, &error))? {
            self.degrade(format!("{}: its {what} can't be kept by this user", path.display()));
        }
        Ok(())
    }

    fn copy_if_changed(&mut self, walked: &Walked<'_, D>) -> io::Result<()> {
        if let WalkedKind::Other(what) = walked.kind {
            self.degrade(format!("{} is {what}", walked.path.display()));
            return Ok(());
        }
        if let Some(before) = self.files.get_mut(walked.path) {
            let is_dir = walked.kind == WalkedKind::Dir;
            let is_same = before.kind == walked.kind
                && (is_dir && before.look.id == walked.found.look.id
                    || before.look == walked.found.look && before.is_settled)
                && (before.method != CopyMethod::Linked
                    || (self.may_link)(walked.path, &before.look));
            if is_same {
                before.pass = self.pass;
                return Ok(());
            }
            self.remove_copy(walked.path)?;
        }
        let (to, name) = parent_of(self.disk, &self.to, walked.path)?;
        let to = Place::new(&to, &name);
        let mut look = walked.found.look;
        let method = match &walked.kind {
            WalkedKind::Dir => self.disk.make_dir(to).map(|_| CopyMethod::Copied)?,
            WalkedKind::Symlink(target) => {
                self.disk.make_symlink(to, target)?;
                let missed = self.disk.copy_symlink_attributes(walked.at, to);
                self.degrade_missed(missed, walked.path)?;
                CopyMethod::Copied
            }
            WalkedKind::File | WalkedKind::Other(_) => {
                self.copy_file((walked.at, to), walked.path, &mut look)?
            }
        };
        let (kind, pass) = (walked.kind.clone(), self.pass);
        // A further name shows every change, and has itself changed the time of the file.
        let is_linked = method == CopyMethod::Linked;
        let is_settled = is_linked || wall_nanos() - look.changed > TICK_NANOS;
        let file = CopiedFile { kind, look, method, is_settled, pass };
        self.files.insert(walked.path.to_owned(), file);
        Ok(())
    }

    /// Copies a regular file. Sets `look` to the file as it was before.
    fn copy_file(
        &mut self,
        (at, to): (Place<'_, D::Dir>, Place<'_, D::Dir>),
        path: &OsStr,
        look: &mut Look,
    ) -> io::Result<CopyMethod> {
        if let Some((first, changed)) = self.names.get(&look.id)
            && *changed == look.changed
            && let Some(method) = self.files.get(first).map(|first| first.method)
        {
            let (dir, name) = parent_of(self.disk, &self.to, first)?;
            self.disk.link_name(Place::new(&dir, &name), to)?;
            return Ok(method);
        }
        // The first file shows whether the file system shares content, which is better.
        let may_try = self.shares_content == Some(false);
        if may_try && (self.may_link)(path, look) && self.disk.link_name(at, to).is_ok() {
            let linked = self.disk.look(to)?;
            if linked.id == look.id {
                *look = linked;
                self.linked.push(linked);
                return Ok(CopyMethod::Linked);
            }
            self.disk.remove_file(to)?;
        }
        let file = self.disk.open_to_read(at)?;
        *look = self.disk.look_file(&file)?;
        let copy = self.disk.unnamed_file(to.dir, 0o600)?;
        let method = self.disk.copy_content(&file, &copy)?;
        if look.size > 0 {
            self.shares_content = Some(method == CopyMethod::Cloned);
        }
        let missed = self.disk.copy_file_attributes(&file, &copy);
        self.degrade_missed(missed, path)?;
        self.disk.link(&copy, to)?;
        if look.links > 1 {
            self.names.insert(look.id, (path.to_owned(), look.changed));
        }
        Ok(method)
    }

    /// Removes a file of the copy.
    fn remove_copy(&mut self, path: &OsStr) -> io::Result<()> {
        let Some(file) = self.files.remove(path) else { return Ok(()) };
        let (to, name) = match parent_of(self.disk, &self.to, path) {
            // Its directory was removed before it.
            Err(error) if is_gone(&error) => return Ok(()),
            found => found?,
        };
        if file.kind == WalkedKind::Dir {
            return remove_tree(self.disk, Place::new(&to, &name), OsStr::new(READY));
        }
        match self.disk.remove_file(Place::new(&to, &name)) {
            Err(error) if is_gone(&error) => Ok(()),
            removed => removed,
        }
    }

    /// Removes the files of the copy that the folder does not have any more.
    fn remove_gone(&mut self) -> io::Result<()> {
        let gone: Vec<_> = self
            .files
            .iter()
            .filter(|(_, file)| file.pass != self.pass)
            .map(|(path, _)| path.clone())
            .collect();
        gone.iter().try_for_each(|path| self.remove_copy(path))
    }
}

/// Returns an error that names the file at which a system call failed.
fn named(path: &OsStr, error: &io::Error) -> io::Error {
    let said = crate::base::said(error);
    io::Error::new(error.kind(), format!("{} can't be copied: {said}", path.display()))
}
