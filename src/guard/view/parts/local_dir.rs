//! The directory of the local files. Those of a directory of the folder lie together in a directory
//! named after the identity of that one, so that they follow it wherever it is moved, and another
//! directory with its path shows none of them.
//!
//! Beside each of these directories, `ID.of` is a symlink to the path that its directory had when
//! its first local file was made.
//!
//! The space of the local files of a view: bytes on the disk and names, by the users who made them.

use crate::guard::disk::linux_disk::{
    allocated_in, each_entry, id_in, list, open_below, stat, stat_at,
};
use crate::guard::disk::operations::FileId;
use crate::guard::lost_files::GrowingPart;
use crate::guard::stage::fence::leads_to_no_file;
use crate::guard::view::parts::attributes::copy_attributes;
use crate::guard::view::parts::nodes::name_of;
use crate::shares::{Charges, TableFull, TableShare, UserLimits, UserTable};
use barrier::folder_path::PathPatterns;
use kernel::machine_facts::{is_root, own_uid};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Statx};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The local files of a view.
pub(in crate::guard::view) struct LocalFiles {
    /// The directory under which they lie.
    pub(in crate::guard::view) root: OwnedFd,
    /// The paths of the files that are local.
    pub(in crate::guard::view) patterns: PathPatterns,
    /// Their space, by their users.
    pub(in crate::guard::view) shares: LocalShares,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
/// The end of the name of the symlink to the path of a directory.
const PATH_END: &str = ".of";
/// How many levels of the folder are looked through.
const LEVELS: usize = 2_048;
/// The beginning of the name of a directory with local files whose directory of the folder is gone.
const GONE: &str = "gone-";

/// Returns the mode that the directory with the local files gets for this one of the folder.
fn mode_beside(found: &Statx) -> Mode {
    Mode::from_raw_mode(u32::from(found.stx_mode)) | Mode::RWXU
}

/// Removes a directory with everything in it, and calls `removed` for each file.
fn remove_tree(dir: BorrowedFd<'_>, name: &OsStr, removed: &dyn Fn(&Statx)) -> io::Result<()> {
    let tree = open_below(dir, Path::new(name), DIRECTORY)?;
    for (entry, _, kind) in list(tree.as_fd())? {
        if kind == FileType::Directory {
            remove_tree(tree.as_fd(), &entry, removed)?;
            continue;
        }
        let found = stat_at(tree.as_fd(), &entry);
        rustix::fs::unlinkat(&tree, &entry, AtFlags::empty())?;
        found.iter().for_each(removed);
    }
    let found = stat(tree.as_fd());
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?;
    found.iter().for_each(removed);
    Ok(())
}

/// Finds the paths of the directories with these names, in this directory and below it. Takes each
/// name that is found out of `moved`.
fn find_dirs(
    dir: BorrowedFd<'_>,
    path: &Path,
    moved: &mut HashSet<String>,
    found: &mut Vec<(String, PathBuf)>,
) -> io::Result<()> {
    if path.components().count() > LEVELS {
        return Err(io::Error::other("the folder has too many levels"));
    }
    let name = name_of(id_in(&stat(dir)?));
    if moved.remove(&name) {
        found.push((name, path.to_owned()));
    }
    let mut dirs: Vec<OsString> = Vec::new();
    each_entry(dir, |name, _, kind| {
        if matches!(kind, FileType::Directory | FileType::Unknown) {
            dirs.push(name.to_owned());
        }
        ControlFlow::Continue(())
    })?;
    for name in dirs {
        match open_below(dir, Path::new(&name), DIRECTORY) {
            Ok(below) => find_dirs(below.as_fd(), &path.join(&name), moved, found)?,
            // It is a file, was exchanged meanwhile, or another file system is mounted there.
            Err(error) if leads_to_no_file(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl LocalFiles {
    /// Opens the local files of a folder, and counts them. Removes those whose directory of the
    /// folder was removed past the view.
    pub(in crate::guard::view) fn open(
        root: OwnedFd,
        patterns: PathPatterns,
        folder: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let files = Self { root, patterns, shares: LocalShares::default() };
        if let Err(error) = files.sweep(folder) {
            log::warn!("local files of directories that are gone stay: {error}");
        }
        files.count(files.root.as_fd(), true)?;
        Ok(files)
    }

    /// Counts the files below a directory.
    fn count(&self, dir: BorrowedFd<'_>, is_root: bool) -> io::Result<()> {
        for (name, _, kind) in list(dir)? {
            if !is_root {
                self.shares.note(&stat_at(dir, &name)?);
            }
            if kind == FileType::Directory {
                let below = open_below(dir, Path::new(&name), DIRECTORY)?;
                self.count(below.as_fd(), false)?;
            }
        }
        Ok(())
    }

    /// Removes the local files of directories that are not in the folder any more.
    fn sweep(&self, folder: BorrowedFd<'_>) -> io::Result<()> {
        let is_at_its_path = |name: &OsString| {
            let link = Path::new(name).with_extension(&PATH_END[1..]);
            let path = rustix::fs::readlinkat(&self.root, link, Vec::new()).ok()?;
            let path = Path::new(OsStr::from_bytes(path.as_bytes()));
            let dir = open_below(folder, path.strip_prefix("/").ok()?, DIRECTORY).ok()?;
            let found = stat(dir.as_fd()).ok()?;
            Some(name.to_str() == Some(&*name_of(id_in(&found))))
        };
        let listed = list(self.root.as_fd())?.into_iter();
        let dirs = listed.filter(|(_, _, kind)| *kind == FileType::Directory);
        let mut moved: HashSet<_> = dirs
            .map(|(name, ..)| name)
            .filter(|name| is_at_its_path(name) != Some(true))
            .filter_map(|name| name.into_string().ok())
            .collect();
        if moved.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        find_dirs(folder, Path::new(""), &mut moved, &mut found)?;
        for (name, path) in &found {
            self.note_path(name, path);
        }
        moved.iter().try_for_each(|name| self.remove_dir(name))
    }

    /// Records the path of a directory with local files. Without it, the next start of the guard
    /// looks for the directory.
    fn note_path(&self, name: &str, path: &Path) {
        let link = format!("{name}{PATH_END}");
        let _ = rustix::fs::unlinkat(&self.root, &link, AtFlags::empty());
        let _ = rustix::fs::symlinkat(Path::new("/").join(path), &self.root, &link);
    }

    fn remove_dir(&self, name: &str) -> io::Result<()> {
        remove_tree(self.root.as_fd(), OsStr::new(name), &|found| self.shares.removed(found))?;
        let link = format!("{name}{PATH_END}");
        let _ = rustix::fs::unlinkat(&self.root, link, AtFlags::empty());
        Ok(())
    }

    /// Opens the directory with the local files of a directory of the folder, if there is one. It
    /// has the group and the permissions of that directory. One that was made for another owner is
    /// not shown.
    pub(in crate::guard::view) fn beside(
        &self,
        dir: BorrowedFd<'_>,
    ) -> io::Result<Option<OwnedFd>> {
        let original = stat(dir)?;
        let opened =
            open_below(self.root.as_fd(), Path::new(&name_of(id_in(&original))), OFlags::DIRECTORY);
        let beside = match opened {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            opened => opened?,
        };
        let found = stat(beside.as_fd())?;
        if is_root() && found.stx_uid != original.stx_uid {
            return Ok(None);
        }
        let is_same =
            mode_beside(&found) == mode_beside(&original) && found.stx_gid == original.stx_gid;
        if !is_same {
            give_attributes(dir, &original, &beside)?;
        }
        Ok(Some(beside))
    }

    /// Opens the directory with the local files of the directory of the folder at `path`. Makes it
    /// if need be, with the attributes of that directory.
    pub(in crate::guard::view) fn make_beside(
        &self,
        dir: BorrowedFd<'_>,
        path: &Path,
    ) -> io::Result<OwnedFd> {
        if let Some(beside) = self.beside(dir)? {
            return Ok(beside);
        }
        let original = stat(dir)?;
        let name = name_of(id_in(&original));
        match rustix::fs::mkdirat(&self.root, &name, Mode::RWXU) {
            Err(rustix::io::Errno::EXIST) => {
                // It was another user's directory before.
                self.put_away(&name)?;
                rustix::fs::mkdirat(&self.root, &name, Mode::RWXU)?;
            }
            made => made?,
        }
        self.note_path(&name, path);
        let beside = open_below(self.root.as_fd(), Path::new(&name), OFlags::DIRECTORY)?;
        give_attributes(dir, &original, &beside)?;
        Ok(beside)
    }

    /// Moves the local files of a directory away, so that nobody sees them any more. Returns their
    /// new name.
    fn put_away(&self, name: &str) -> io::Result<Option<String>> {
        let mut number = 0;
        loop {
            let gone = format!("{GONE}{name}-{number}");
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&self.root, name, &self.root, &gone, flags) {
                Err(rustix::io::Errno::EXIST) => number += 1,
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                renamed => return Ok(renamed.map(|()| Some(gone))?),
            }
        }
    }

    /// Takes the local files of a directory of the folder away that was removed. Returns the name
    /// under which [`Self::remove_gone`] finds them.
    pub(in crate::guard::view) fn removed(&self, found: &Statx) -> io::Result<Option<String>> {
        let name = name_of(id_in(found));
        let _ = rustix::fs::unlinkat(&self.root, format!("{name}{PATH_END}"), AtFlags::empty());
        self.put_away(&name)
    }

    /// Removes local files that were taken away.
    pub(in crate::guard::view) fn remove_gone(&self, name: &str) {
        if let Err(error) = self.remove_dir(name) {
            log::warn!("the local files of a removed directory stay: {error}");
        }
    }
}

/// Gives the directory with local files the attributes of the one of the folder.
fn give_attributes(original: BorrowedFd<'_>, found: &Statx, beside: &OwnedFd) -> io::Result<()> {
    copy_attributes(original, found, beside.as_fd())?;
    Ok(rustix::fs::fchmod(beside, mode_beside(found))?)
}

/// The maximum number of names of local files, of all users but root and the one who runs the
/// guard. A trash can of a desktop has one for each file in it.
const LOCAL_FILES_MAX: usize = 65_536;
/// The maximum number of bytes of local files on the disk, of the same users.
const LOCAL_BYTES_MAX: u64 = 10 << 30;

/// The tables of the local files.
pub(in crate::guard::view) struct LocalShares {
    names: UserTable,
    bytes: UserTable,
    files: Mutex<HashMap<FileId, Arc<LocalUse>>>,
}

/// The space of one local file. Programs that have it open keep it after its last name was removed.
pub(in crate::guard::view) struct LocalUse {
    owner: u32,
    names: Mutex<TableShare>,
    bytes: Mutex<Charges>,
}

impl Default for LocalShares {
    fn default() -> Self {
        let limits = |max| UserLimits { one: max / 2, users: max, all: usize::MAX };
        let bytes = usize::try_from(LOCAL_BYTES_MAX).unwrap_or(usize::MAX);
        Self {
            names: UserTable::new("local files", limits(LOCAL_FILES_MAX), own_uid()),
            bytes: UserTable::new("bytes of local files", limits(bytes), own_uid()),
            files: Mutex::default(),
        }
    }
}

impl LocalShares {
    /// Fails if a user may make no local file.
    pub(in crate::guard::view) fn check(&self, uid: u32) -> Result<(), TableFull> {
        self.names.room(uid, 1)?;
        self.bytes.room(uid, 1)
    }

    /// Counts a local file that was made or found, or whose names or content have changed. A file
    /// without a name counts as long as the result is kept.
    pub(in crate::guard::view) fn note(&self, found: &Statx) -> Arc<LocalUse> {
        let uid = found.stx_uid;
        let new = || {
            Arc::new(LocalUse {
                owner: uid,
                names: Mutex::new(self.names.take_always(uid, 0)),
                bytes: Mutex::new(Charges::new(self.bytes.clone())),
            })
        };
        let used = match found.stx_nlink {
            0 => new(),
            _ => Arc::clone(self.files.lock().entry(id_in(found)).or_insert_with(new)),
        };
        let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
        // The links of a directory are those of its subdirectories.
        let names = if kind == FileType::Directory { 1 } else { found.stx_nlink as usize };
        used.names.lock().set(names);
        if kind == FileType::RegularFile {
            used.settle(uid, found);
        }
        used
    }

    /// Counts the removal of a name of a local file, which had these attributes before.
    pub(in crate::guard::view) fn removed(&self, found: &Statx) {
        let is_dir = FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::Directory;
        let mut files = self.files.lock();
        if is_dir || found.stx_nlink <= 1 {
            files.remove(&id_in(found));
        } else if let Some(used) = files.get(&id_in(found)) {
            used.names.lock().set(found.stx_nlink as usize - 1);
        }
    }
}

impl LocalUse {
    /// Takes the space for a part of the file that a user is about to write. The kernel names no
    /// user who writes through a mapping: the owner pays then.
    pub(in crate::guard::view) fn reserve(
        &self,
        uid: Option<u32>,
        part: GrowingPart,
    ) -> Result<(), TableFull> {
        let mut bytes = self.bytes.lock();
        let more = part.takes(bytes.amount() as u64);
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        bytes.grow(uid.unwrap_or(self.owner), more)
    }

    /// Sets the bytes of the file to those that it has on the disk after a change by a user.
    pub(in crate::guard::view) fn settle(&self, uid: u32, found: &Statx) {
        let bytes = usize::try_from(allocated_in(found)).unwrap_or(usize::MAX);
        self.bytes.lock().set(uid, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::disk::linux_disk::stat;
    use std::fs::File;

    #[test]
    fn local_files_of_one_user_have_a_share() {
        let shares = LocalShares::default();
        let file = File::open("/proc/self/exe").expect("there");
        let mut found = stat(file.as_fd()).expect("an open file");
        let (eve, ann) = (1_234_567, 1_234_568);
        (found.stx_uid, found.stx_nlink) = (eve, LOCAL_FILES_MAX as u32 / 2 - 1);
        shares.note(&found);
        assert_eq!(shares.check(eve), Ok(()));
        found.stx_nlink += 1;
        let used = shares.note(&found);
        assert_eq!(shares.check(eve).expect_err("no more").user(), Some(eve));
        assert_eq!((shares.check(ann), shares.check(0)), (Ok(()), Ok(())));
        shares.removed(&found);
        assert_eq!(shares.check(eve), Ok(()));
        let half = LOCAL_BYTES_MAX / 2;
        let part = |bytes| GrowingPart { offset: 0, bytes, is_dense: false };
        assert!(used.reserve(Some(eve), part(half)).is_err(), "the file has some bytes already");
        found.stx_blocks = half / 512;
        used.settle(eve, &found);
        assert!(shares.check(eve).is_err() && shares.check(ann).is_ok());
        assert!(
            used.reserve(Some(eve), part(1)).is_err() && used.reserve(Some(0), part(1)).is_ok()
        );
        found.stx_nlink = 1;
        shares.removed(&found);
        drop(used);
        assert_eq!((shares.check(eve), shares.bytes.taken()), (Ok(()), 0));
        found.stx_nlink = 0;
        let open = shares.note(&found);
        assert!(shares.bytes.taken() > 0, "its content is there as long as it is open");
        drop(open);
        assert_eq!(shares.bytes.taken(), 0);
    }
}
