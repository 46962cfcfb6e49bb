//! The directory of the local files: each lies there under the path that it has in the view.

use super::super::linux_disk::{open_below, path_of, stat, stat_at};
use super::super::write_policy::PathPatterns;
use super::new_files::copy_attributes;
use rustix::fs::{Mode, OFlags, RenameFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The local files of a view.
pub(super) struct LocalFiles {
    /// The directory under which they lie.
    pub(super) root: OwnedFd,
    /// The paths of the files that are local.
    pub(super) patterns: PathPatterns,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

impl LocalFiles {
    /// Opens the directory with the local files of the directory `path`, if there is one.
    pub(super) fn beside(&self, path: &Path) -> io::Result<Option<OwnedFd>> {
        match open_below(self.root.as_fd(), path, DIRECTORY) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the directory with the local files of the directory `path`. Makes it and its parents
    /// with the attributes that they have in the folder.
    pub(super) fn make_beside(&self, folder: &impl AsFd, path: &Path) -> io::Result<OwnedFd> {
        let mut made = PathBuf::new();
        let mut dir = self.root.try_clone()?;
        for name in path {
            made.push(name);
            let next = open_below(dir.as_fd(), Path::new(name), DIRECTORY);
            dir = match next {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    let original = open_below(folder.as_fd(), &made, DIRECTORY)?;
                    rustix::fs::mkdirat(&dir, name, Mode::RWXU)?;
                    let copy = open_below(dir.as_fd(), Path::new(name), OFlags::DIRECTORY)?;
                    copy_attributes(original.as_fd(), &stat(original.as_fd())?, copy.as_fd())?;
                    let bits = u32::from(stat(copy.as_fd())?.stx_mode);
                    rustix::fs::fchmod(&copy, Mode::from_raw_mode(bits) | Mode::RWXU)?;
                    copy
                }
                next => next?,
            };
        }
        Ok(dir)
    }

    /// Moves the local files of a directory of the folder that was renamed, or exchanged.
    pub(super) fn renamed(
        &self,
        folder: &impl AsFd,
        from: &Path,
        to: &Path,
        flags: RenameFlags,
    ) -> io::Result<()> {
        if flags.contains(RenameFlags::EXCHANGE) {
            // No file of a view has this name.
            let aside = Path::new(".latchfs");
            self.moved(folder, to, aside)?;
            self.moved(folder, from, to)?;
            return self.moved(folder, aside, from);
        }
        // The rename has replaced a directory whose only files were local.
        self.removed(to)?;
        self.moved(folder, from, to)
    }

    fn moved(&self, folder: &impl AsFd, from: &Path, to: &Path) -> io::Result<()> {
        let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
        let (Some(old_name), Some(new_name)) = (from.file_name(), to.file_name()) else {
            return Ok(());
        };
        let Some(old) = self.beside(&parent(from))? else { return Ok(()) };
        if stat_at(old.as_fd(), old_name).is_err() {
            return Ok(());
        }
        let new = self.make_beside(folder, &parent(to))?;
        Ok(rustix::fs::renameat_with(&old, old_name, &new, new_name, RenameFlags::NOREPLACE)?)
    }

    /// Removes the local files of a directory that was removed.
    pub(super) fn removed(&self, path: &Path) -> io::Result<()> {
        let parent = self.beside(path.parent().unwrap_or(Path::new("")))?;
        let (Some(parent), Some(name)) = (parent, path.file_name()) else { return Ok(()) };
        match std::fs::remove_dir_all(Path::new(&path_of(parent.as_fd())).join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}
