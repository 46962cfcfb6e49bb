//! Seals the directory below a mount point, so that nothing can be created in it while latchfs is
//! not mounted there.
//!
//! A program that tries to take a lock while latchfs is not mounted must fail, rather than create
//! an ordinary file that excludes nobody. A sealed directory has no permissions at all. If root
//! mounts, it is also immutable where the file system supports that, which stops root as well.

use crate::LOG;
use crate::child_call::ChildCall;
use crate::machine_facts::is_root;
use engine::time::Span;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The permissions of a sealed directory.
const NONE: u32 = 0o000;
/// The permission bits of a sealed directory that a mount has made: the sticky bit, which allows
/// nothing, marks it, so that it can be removed when nothing is mounted there any more.
const MADE: u32 = 0o1000;
/// The permissions of a directory after it is unsealed.
const MODE: u32 = 0o755;
/// The permissions that a sealed directory gets before its owner mounts on it, since mounting needs
/// them.
const MODE_OF_OWNER: u32 = 0o700;
/// `FS_IMMUTABLE_FL` of linux/fs.h: not even root can create entries in an immutable directory.
const IMMUTABLE: libc::c_int = 0x10;
/// `FS_IOC_GETFLAGS` of linux/fs.h, for which libc has no name.
const GET_FLAGS: libc::c_ulong = ioctl_number(2, 1);
/// `FS_IOC_SETFLAGS` of linux/fs.h, for which libc has no name.
const SET_FLAGS: libc::c_ulong = ioctl_number(1, 2);
/// How long [`try_remove_made`] waits for the disk.
const DISK_PATIENCE: Span = Span::from_secs(2);
/// The number of directory entries that an error message names.
const SHOWN_MAX: usize = 3;

/// Encodes an ioctl number as the macros `_IOR('f', number, long)` (direction 2) and `_IOW`
/// (direction 1) do.
const fn ioctl_number(direction: libc::c_ulong, number: libc::c_ulong) -> libc::c_ulong {
    let size = size_of::<libc::c_long>() as libc::c_ulong;
    direction << 30 | size << 16 | (b'f' as libc::c_ulong) << 8 | number
}

/// The directory that a mount is about to cover. If it was sealed when it was opened, dropping this
/// value seals it again.
#[derive(Debug)]
pub(crate) struct Below {
    dir: File,
    was_sealed: bool,
    /// Whether a mount has made the directory.
    is_made: bool,
}

impl Below {
    /// Opens a directory; if it is sealed, first restores the permissions that its owner needs to
    /// mount on it. `is_made` says whether this mount has made the directory.
    pub(crate) fn open(path: &Path, is_made: bool) -> io::Result<Self> {
        let mode = mode_of(&fs::metadata(path)?);
        let was_sealed = is_seal(mode);
        if was_sealed && !is_root() {
            fs::set_permissions(path, Permissions::from_mode(MODE_OF_OWNER))?;
        }
        Ok(Self { dir: File::open(path)?, was_sealed, is_made: is_made || mode == MADE })
    }

    /// Seals the directory after a mount has covered it. Returns whether the seal stops root, and
    /// not only other users.
    pub(crate) fn seal(&mut self) -> io::Result<bool> {
        self.was_sealed = true;
        self.close()
    }

    fn close(&self) -> io::Result<bool> {
        // An immutable directory is sealed already, and not even its permissions can be changed.
        if flags_of(&self.dir).is_ok_and(|flags| flags & IMMUTABLE != 0) {
            return Ok(is_root());
        }
        let mode = if self.is_made { MADE } else { NONE };
        self.dir.set_permissions(Permissions::from_mode(mode))?;
        Ok(is_root() && set_immutable(&self.dir, true).is_ok())
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        if self.was_sealed
            && let Err(error) = self.close()
        {
            log::debug!(target: LOG, "a mount point can't be sealed: {error}");
        }
    }
}

/// Whether a directory is sealed: it has no permissions.
pub fn is_sealed(path: &Path) -> io::Result<bool> {
    Ok(is_seal(mode_of(&fs::metadata(path)?)))
}

fn mode_of(found: &Metadata) -> u32 {
    found.mode() & 0o7777
}

const fn is_seal(mode: u32) -> bool {
    matches!(mode, NONE | MADE)
}

/// Restores the permissions of a sealed directory on which nothing is mounted. Returns whether the
/// directory was sealed; an unsealed one is left unchanged.
pub fn unseal(path: &Path) -> io::Result<bool> {
    let (dir, opened) = open_bare(path)?;
    if !is_seal(mode_of(&dir.metadata()?)) {
        return Ok(false);
    }
    clear_immutable(&opened);
    fs::set_permissions(&opened, Permissions::from_mode(MODE))?;
    Ok(true)
}

/// Removes a sealed directory that a mount has made, and on which nothing is mounted. Returns
/// whether there was one.
pub fn remove_made(path: &Path) -> io::Result<bool> {
    let (dir, opened) = match open_bare(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    if mode_of(&dir.metadata()?) != MADE {
        return Ok(false);
    }
    clear_immutable(&opened);
    fs::remove_dir(path)?;
    Ok(true)
}

/// Does as [`remove_made`], and fails with [`io::ErrorKind::TimedOut`] if the disk hangs.
pub fn try_remove_made(path: &Path) -> io::Result<bool> {
    let mut call = ChildCall::start(|| remove_made(path).map(|was_made| vec![was_made.into()]))?;
    let answer = call.answer(DISK_PATIENCE)?.ok_or(io::ErrorKind::TimedOut)?;
    Ok(answer == [u8::from(true)])
}

/// Opens a directory on which nothing is mounted, and returns the path of the descriptor as well.
/// All steps work on this one descriptor, so that no user can replace the directory by another one
/// between two steps.
fn open_bare(path: &Path) -> io::Result<(File, PathBuf)> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let dir = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let opened = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string());
    Ok((dir, opened))
}

fn clear_immutable(opened: &Path) {
    if is_root() {
        // An error is ignored: a file system that has no immutable flag to clear can't have set one
        // either.
        let _ = File::open(opened).and_then(|dir| set_immutable(&dir, false));
    }
}

/// Returns the names of a few entries of a directory as text for a message; `None` if the directory
/// is empty or can't be read.
pub fn entries(path: &Path) -> Option<String> {
    let found = fs::read_dir(path).ok()?.flatten();
    let mut names: Vec<_> =
        found.map(|entry| format!("'{}'", entry.file_name().to_string_lossy())).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN_MAX);
    names.truncate(SHOWN_MAX);
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(names.join(", ")),
        (false, more) => Some(format!("{} and {more} more", names.join(", "))),
    }
}

/// Returns the entries that a mount at `path` hides, as text for a message. Works only for root.
#[allow(unsafe_code)]
pub fn hidden(path: &Path) -> io::Result<Option<String>> {
    // `OPEN_TREE_CLONE` of linux/mount.h: open_tree(2) returns a copy of one mount, without the
    // mounts on its directories.
    const OPEN_TREE_CLONE: libc::c_int = 1;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let parent = std::ffi::CString::new(parent.as_os_str().as_bytes())?;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC;
    // SAFETY: the path is a valid NUL-terminated string that lives until the call returns; the
    // other arguments are numbers.
    let tree =
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, parent.as_ptr(), flags) };
    let Ok(tree @ 0..) = RawFd::try_from(tree) else { return Err(io::Error::last_os_error()) };
    // SAFETY: open_tree(2) has just returned this descriptor, and nothing else owns it.
    let tree = unsafe { OwnedFd::from_raw_fd(tree) };
    let below = Path::new("/proc/self/fd").join(tree.as_raw_fd().to_string()).join(name);
    fs::metadata(&below)?;
    Ok(entries(&below))
}

#[allow(unsafe_code)]
fn flags_of(dir: &File) -> io::Result<libc::c_int> {
    let mut flags: libc::c_int = 0;
    // SAFETY: ioctl gets an open descriptor and a pointer to a number that outlives the call.
    match unsafe { libc::ioctl(dir.as_raw_fd(), GET_FLAGS as _, &raw mut flags) } {
        0 => Ok(flags),
        _ => Err(io::Error::last_os_error()),
    }
}

#[allow(unsafe_code)]
fn set_immutable(dir: &File, wanted: bool) -> io::Result<()> {
    let before = flags_of(dir)?;
    let flags = if wanted { before | IMMUTABLE } else { before & !IMMUTABLE };
    // SAFETY: ioctl gets an open descriptor and a pointer to a number that outlives the call.
    match unsafe { libc::ioctl(dir.as_raw_fd(), SET_FLAGS as _, &raw const flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
