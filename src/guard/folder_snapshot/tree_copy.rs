//! Copies the tree of a folder, in as many passes as are needed: a pass copies the files that are
//! new or have changed since the one before. The first pass may take long, while programs go on;
//! the last one finds no change, or few, so that programs wait for it only shortly.
//!
//! Visits the files of a tree, each directory before its entries.
//!
//! Lists the files of a tree with their digests.

use super::descriptor::{SENTENCES_MAX, SnapshotCounts};
use super::snapshot_disk::{CopyMethod, SnapshotDisk, is_own_dir};
use crate::guard::disk::operations::{Attributes, Disk, FileId, FileStat, Place, remove_tree};
use crate::guard::folder_snapshot::descriptor::{EntryKind, ManifestEntry};
use crate::guard::stage::publish::READY;
use crate::time::Wall;
use barrier::folder_path::ContentDigest;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A file that was changed so shortly before it was copied may be changed again within the same
/// tick of the file system's clock, so that its times do not show it.
const TICK_NANOS: i128 = 50_000_000;

/// A file as it was when it was copied.
struct CopiedFile {
    kind: WalkedKind,
    stat: FileStat,
    method: CopyMethod,
    /// Whether a later change would show in the times.
    is_settled: bool,
    /// The last pass in which the file was there.
    pass: u32,
}

/// Whether the snapshot may get a further name of a file of the folder.
pub(crate) type MayLink<'a> = &'a (dyn Fn(&OsStr, &FileStat) -> bool + Sync);

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
    pub(crate) linked: Vec<FileStat>,
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
    pub(crate) fn new(disk: &'a D, from: &'a D::Dir, to: D::Dir, may_link: MayLink<'a>) -> Self {
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
                Err(error) if is_gone(&error) && disk.stat(walked.at).is_err() => Ok(()),
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
        let mut dirs: Vec<_> = dirs.map(|(path, file)| (path.clone(), file.stat.id)).collect();
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
                    counts.bytes += file.stat.size;
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
                && (is_dir && before.stat.id == walked.found.stat.id
                    || before.stat == walked.found.stat && before.is_settled)
                && (before.method != CopyMethod::Linked
                    || (self.may_link)(walked.path, &before.stat));
            if is_same {
                before.pass = self.pass;
                return Ok(());
            }
            self.remove_copy(walked.path)?;
        }
        let (to, name) = parent_of(self.disk, &self.to, walked.path)?;
        let to = Place::new(&to, &name);
        let mut stat = walked.found.stat;
        let method = match &walked.kind {
            WalkedKind::Dir => self.disk.make_dir(to).map(|_| CopyMethod::Copied)?,
            WalkedKind::Symlink(target) => {
                self.disk.make_symlink(to, target)?;
                let missed = self.disk.copy_symlink_attributes(walked.at, to);
                self.degrade_missed(missed, walked.path)?;
                CopyMethod::Copied
            }
            WalkedKind::File | WalkedKind::Other(_) => {
                self.copy_file(walked.at, to, walked.path, &mut stat)?
            }
        };
        let (kind, pass) = (walked.kind.clone(), self.pass);
        // A hard link shares every later change, and making it has itself changed the time of the
        // file.
        let is_linked = method == CopyMethod::Linked;
        let is_settled = is_linked || wall_nanos() - stat.changed > TICK_NANOS;
        let file = CopiedFile { kind, stat, method, is_settled, pass };
        self.files.insert(walked.path.to_owned(), file);
        Ok(())
    }

    /// Copies a regular file. Sets `look` to the file as it was before.
    fn copy_file(
        &mut self,
        at: Place<'_, D::Dir>,
        to: Place<'_, D::Dir>,
        path: &OsStr,
        stat: &mut FileStat,
    ) -> io::Result<CopyMethod> {
        if let Some((first, changed)) = self.names.get(&stat.id)
            && *changed == stat.changed
            && let Some(method) = self.files.get(first).map(|first| first.method)
        {
            let (dir, name) = parent_of(self.disk, &self.to, first)?;
            self.disk.link_name(Place::new(&dir, &name), to)?;
            return Ok(method);
        }
        // The first file shows whether the file system shares content, which is better.
        let may_try = self.shares_content == Some(false);
        if may_try && (self.may_link)(path, stat) && self.disk.link_name(at, to).is_ok() {
            let linked = self.disk.stat(to)?;
            if linked.id == stat.id {
                *stat = linked;
                self.linked.push(linked);
                return Ok(CopyMethod::Linked);
            }
            self.disk.remove_file(to)?;
        }
        let file = self.disk.open_to_read(at)?;
        *stat = self.disk.stat_file(&file)?;
        let copy = self.disk.unnamed_file(to.dir, 0o600)?;
        let method = self.disk.copy_content(&file, &copy)?;
        if stat.size > 0 {
            self.shares_content = Some(method == CopyMethod::Cloned);
        }
        let missed = self.disk.copy_file_attributes(&file, &copy);
        self.degrade_missed(missed, path)?;
        self.disk.link(&copy, to)?;
        if stat.links > 1 {
            self.names.insert(stat.id, (path.to_owned(), stat.changed));
        }
        Ok(method)
    }

    /// Removes a file of the copy.
    fn remove_copy(&mut self, path: &OsStr) -> io::Result<()> {
        let Some(file) = self.files.remove(path) else { return Ok(()) };
        let (to, name) = match parent_of(self.disk, &self.to, path) {
            // The directory of the file was removed before it.
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

/// The type of a visited file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WalkedKind {
    /// A directory, whose entries are visited later.
    Dir,
    /// A regular file.
    File,
    /// A symlink, with its target.
    Symlink(OsString),
    /// A file of another type, with the words for that type.
    Other(&'static str),
}

/// A visited file.
pub(crate) struct Walked<'a, D: Disk> {
    /// The directory in which the file lies.
    pub(crate) at: Place<'a, D::Dir>,
    /// The path below the root.
    pub(crate) path: &'a OsStr,
    /// The attributes.
    pub(crate) found: Attributes,
    /// The type.
    pub(crate) kind: WalkedKind,
}

/// Whether an error says that a file has gone since its name was read.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE))
}

fn kind_of<D: Disk>(disk: &D, at: Place<'_, D::Dir>, found: &Attributes) -> io::Result<WalkedKind> {
    if found.is_mount_point {
        return Ok(WalkedKind::Other("a mount point"));
    }
    if found.stat.is_dir {
        return Ok(WalkedKind::Dir);
    }
    if found.stat.is_file {
        return Ok(WalkedKind::File);
    }
    match disk.read_symlink(at) {
        Ok(target) => Ok(WalkedKind::Symlink(target)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(WalkedKind::Other("a FIFO, a socket or a device"))
        }
        Err(error) => Err(error),
    }
}

/// Calls `visit` for each file below `root` for which `is_left_out` is false. A file that goes
/// meanwhile is passed over, and so is a directory in whose place another one is: its files would
/// be taken for those of the one that was visited.
pub(crate) fn walk<D: Disk>(
    disk: &D,
    root: &D::Dir,
    is_left_out: impl Fn(&OsStr) -> bool,
    mut visit: impl FnMut(Walked<'_, D>) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = vec![(OsString::new(), None)];
    while let Some((dir_path, visited)) = left.pop() {
        let dir = match disk.open_dir(Place::new(root, &dir_path)) {
            Err(error) if is_gone(&error) => continue,
            dir => dir?,
        };
        if visited.is_some_and(|id| disk.id_of(Place::new(&dir, ".")).ok() != Some(id)) {
            continue;
        }
        for entry in disk.entries(&dir)? {
            let path = Path::new(&dir_path).join(&entry.name).into_os_string();
            if is_left_out(&path) {
                continue;
            }
            let at = Place::new(&dir, &entry.name);
            let known = disk.attributes(at).and_then(|it| Ok((it, kind_of(disk, at, &it)?)));
            let (found, kind) = match known {
                Err(error) if is_gone(&error) => continue,
                known => known?,
            };
            let (is_dir, id) = (kind == WalkedKind::Dir, found.stat.id);
            visit(Walked { at, path: &path, found, kind })?;
            if is_dir {
                left.push((path, Some(id)));
            }
        }
    }
    Ok(())
}

/// The number of bytes that are read at a time.
const BLOCK_BYTES: usize = 128 * 1_024;

/// Returns the size and the digest of a regular file.
pub(crate) fn digest_of<D: Disk>(
    disk: &D,
    at: Place<'_, D::Dir>,
) -> io::Result<(u64, ContentDigest)> {
    let file = disk.open_to_read(at)?;
    let (mut block, mut digest, mut offset) = (vec![0; BLOCK_BYTES], Sha256::new(), 0);
    loop {
        let length = disk.read(&file, offset, &mut block)?;
        digest.update(&block[..length]);
        offset += length as u64;
        if length < BLOCK_BYTES {
            return Ok((offset, ContentDigest(digest.finalize().into())));
        }
    }
}

/// Returns the entry of a visited file; `None` for one that no snapshot holds.
pub(crate) fn entry_of<D: Disk>(
    disk: &D,
    walked: &Walked<'_, D>,
) -> io::Result<Option<ManifestEntry>> {
    let (kind, size, digest) = match &walked.kind {
        WalkedKind::Dir => (EntryKind::Dir, 0, ContentDigest::of(b"")),
        WalkedKind::Symlink(target) => {
            (EntryKind::Symlink, target.len() as u64, ContentDigest::of(target.as_bytes()))
        }
        WalkedKind::File => {
            let (size, digest) = digest_of(disk, walked.at)?;
            (EntryKind::File, size, digest)
        }
        WalkedKind::Other(_) => return Ok(None),
    };
    let (path, mode) = (walked.path.to_owned(), walked.found.mode);
    Ok(Some(ManifestEntry { kind, path, mode, size, digest }))
}

/// Returns the entries of all files below `root`, and of the root itself. `on_file` is called for
/// each.
pub(crate) fn entries_of<D: Disk>(
    disk: &D,
    root: &D::Dir,
    is_left_out: impl Fn(&OsStr) -> bool,
    on_file: &dyn Fn(),
) -> io::Result<Vec<ManifestEntry>> {
    let mode = disk.attributes(Place::new(root, "."))?.mode;
    let (path, digest) = (OsString::new(), ContentDigest::of(b""));
    let mut all = vec![ManifestEntry { kind: EntryKind::Dir, path, mode, size: 0, digest }];
    walk(disk, root, is_left_out, |walked| {
        on_file();
        all.extend(entry_of(disk, &walked)?);
        Ok(())
    })?;
    Ok(all)
}
