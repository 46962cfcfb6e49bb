//! Puts one file of a snapshot back through the view. This process opens, writes and closes the
//! file as its own user, so that the gate, the modes and the owners of the folder decide as they do
//! for any program that saves a file.

use super::exit::{CliError, CliResult};
use super::output;
use crate::guard::linux_disk::open_below;
use crate::os_error::said;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The size of the parts in which a file is copied.
const PART_BYTES: usize = 1 << 20;
/// The bits of a mode that a new file gets from the snapshot. Special bits and owners are never
/// restored.
const PERMISSIONS: u32 = 0o777;

/// Opens a directory.
fn open_dir(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, dir, flags, Mode::empty())?)
}

/// Opens the file in the snapshot. Returns it with its permissions.
fn open_saved(tree: &Path, path: &Path) -> io::Result<(File, Mode)> {
    let tree = open_dir(tree)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = open_below(tree.as_fd(), path, flags).map_err(|error| no_symlink(error, path))?;
    let found = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no regular file in the snapshot"));
    }
    Ok((file.into(), Mode::from_raw_mode(found.st_mode & PERMISSIONS)))
}

/// Opens the file in the view to be written anew. No symlink is followed: others may have put one
/// there for a file of the caller's elsewhere.
fn open_new(view: &Path, path: &Path, mode: Mode) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let opened = rustix::fs::openat2(open_dir(view)?, path, flags, mode, resolve);
    Ok(opened.map_err(|error| no_symlink(error.into(), path))?.into())
}

fn no_symlink(error: io::Error, path: &Path) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => {
            io::Error::other(format!("{} is a symlink, or lies behind one", path.display()))
        }
        _ => error,
    }
}

/// Reads a file to its end, and calls `on_part` with each part.
fn read_all(mut file: &File, mut on_part: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    file.rewind()?;
    let mut part = vec![0; PART_BYTES];
    loop {
        match file.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(length) => on_part(&part[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the sentence of the guard about the last change that it has refused to this user.
fn why_refused(view: &Path, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EROFS | libc::ESTALE | libc::ENOSPC) => {
            let why = std::fs::read_to_string(view.join(".latchfs/why")).unwrap_or_default();
            output::harmless(why.trim_end())
        }
        _ => String::new(),
    }
}

/// Puts the file at `path` in the snapshot with the files `tree` back into the view.
pub(super) fn put_back(tree: &Path, view: &Path, path: &Path) -> CliResult {
    let put = || {
        let (saved, mode) = open_saved(tree, path)?;
        // A file that can't be read whole must not replace anything.
        read_all(&saved, |_| Ok(()))?;
        let mut file = open_new(view, path, mode)?;
        read_all(&saved, |part| file.write_all(part))?;
        // The view publishes the file, or says why it does not.
        file.sync_all()
    };
    put().map_err(|error| {
        let refused = why_refused(view, &error);
        let why = if refused.is_empty() { said(&error) } else { refused };
        CliError::unavailable(format!(
            "{} was not put back: {why}; --to DIR restores the snapshot to a new directory",
            path.display()
        ))
    })
}
