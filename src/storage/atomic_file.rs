//! Files that are replaced atomically: a reader sees the old file, if any, or the complete new one,
//! also after a power failure if the file is durable. State and data directories use the same code.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file name suffix of a file that is not completely written yet.
pub(super) const TEMPORARY: &str = ".tmp";

/// Whether a file must be on disk when the call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    Yes,
    No,
}

/// Replaces a file atomically by one with the content `parts`. Returns the new file.
pub(crate) fn replace(to: &Path, parts: &[&[u8]], durable: Durable) -> io::Result<File> {
    replace_with(to, durable, |file| write_parts(file, parts))
}

/// Replaces a file atomically like [`replace`]; `fill` writes its content.
pub(super) fn replace_with(
    to: &Path,
    durable: Durable,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    let mut name = to.as_os_str().to_owned();
    name.push(TEMPORARY);
    let temporary = PathBuf::from(name);
    let written = write_new(&temporary, durable, fill);
    let renamed = written.and_then(|file| {
        crash::point()?;
        fs::rename(&temporary, to)?;
        if durable == Durable::Yes {
            to.parent().map_or(Ok(()), sync_names)?;
        }
        Ok(file)
    });
    if renamed.is_err() && !crash::happened() {
        // The temporary file is removed, because it takes disk space, and the replacement may have
        // failed for lack of space.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

/// Syncs a directory, so that the names in it are on disk.
pub(crate) fn sync_names(dir: &Path) -> io::Result<()> {
    crash::point()?;
    File::open(dir)?.sync_all()
}

/// Creates a directory that only its owner may enter, and its missing ancestors, and syncs their
/// names to disk.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let missing: Vec<_> = path.ancestors().take_while(|above| !above.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    missing.iter().filter_map(|made| made.parent()).try_for_each(sync_names)
}

/// Appends a line with the checksum of `text` to it.
pub(crate) fn with_sum(text: &str) -> String {
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text}sum {sum:08x}\n")
}

/// Creates a file that only its owner may read, with the content that `write` writes.
pub(super) fn write_new(
    path: &Path,
    durable: Durable,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    crash::point()?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path)?;
    write(&mut file)?;
    if durable == Durable::Yes {
        crash::point()?;
        file.sync_all()?;
    }
    Ok(file)
}

/// Writes `parts` to `file`, one after the other.
pub(super) fn write_parts(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        if let Err(error) = crash::point() {
            file.write_all(&part[..part.len() / 2])?;
            return Err(error);
        }
        file.write_all(part)?;
    }
    Ok(())
}

/// Simulates, for tests, a crash of the process between any two steps on the disk.
#[cfg(test)]
pub(super) mod crash {
    use std::cell::Cell;
    use std::io;

    thread_local! {
        static POINTS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Simulates a crash after this many steps on the disk, on this thread: no later step reaches
    /// the disk. `None` simulates no crash.
    pub(crate) fn after(points: Option<u32>) {
        POINTS_LEFT.set(points);
    }

    pub(crate) fn happened() -> bool {
        POINTS_LEFT.get() == Some(0)
    }

    pub(crate) fn point() -> io::Result<()> {
        match POINTS_LEFT.get() {
            Some(0) => Err(io::Error::other("crashed")),
            left => {
                POINTS_LEFT.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}

#[cfg(not(test))]
pub(super) mod crash {
    pub(crate) const fn happened() -> bool {
        false
    }

    #[allow(clippy::unnecessary_wraps)] // the version for tests fails
    pub(crate) const fn point() -> std::io::Result<()> {
        Ok(())
    }
}
