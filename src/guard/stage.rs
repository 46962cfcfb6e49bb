//! The stage of a tenure: a directory through which each whole file passes on its way into the
//! folder. The next tenure removes the directory, and from then on no file can leave it, however
//! late the system call of a stopped guard goes on. This directory, not a clock, is what keeps an
//! older tenure from publishing.
//!
//! A stage `stage/ENGINE-TOKEN/` holds two directories: `files/`, with the files that are about to
//! be published or renamed, and `in-place/`, with a symlink for each file that the tenure changes
//! in place, and one for each file that it renames.

use super::disk::{Disk, IfThere, Place};
use super::tenure::TenureId;
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory of a stage with the files that are about to be published.
pub(super) const FILES: &str = "files";
/// The directory of a stage with the names of the files that the tenure changes in place.
pub(super) const IN_PLACE: &str = "in-place";
/// The beginning of the name of a file that is being renamed. In `in-place/`, this is the name of
/// a symlink to the old path.
pub(super) const MOVED: &str = "moved-";
/// How many bytes of its path the name of a staged file keeps. A name has 255 bytes at most; each
/// slash of the path takes three in the name.
const PATH_KEPT_MAX: usize = 200;

/// The stage of a tenure that has begun.
pub(crate) struct Stage<D: Disk> {
    /// The tenure to which the stage belongs.
    pub(crate) tenure: TenureId,
    files: D::Dir,
    in_place: D::Dir,
    /// The number of the next file in the stage.
    next: AtomicU64,
    /// The paths of the files that the tenure changes in place.
    changed: Mutex<Vec<PathBuf>>,
}

/// Why a file was not published.
#[derive(Debug)]
pub(crate) enum PublishError {
    /// A later tenure has removed the stage: this tenure is over.
    Fenced {
        /// Whether the file had got its name in the stage, so that the later tenure has moved it
        /// to the lost files.
        is_kept: bool,
    },
    /// The directory in which the file was to appear is gone.
    NoDirectory,
    /// A system call failed. The folder has not changed.
    Disk(io::Error),
}

/// Returns the name of the `number`-th file in a stage. It tells for which path of the folder the
/// file is meant, in case that the guard dies before the file is published.
fn staged_name(number: u64, path: &OsStr) -> OsString {
    let mut name = format!("{number}.").into_bytes();
    let mut kept = Vec::new();
    for byte in path.as_bytes().iter().rev() {
        match byte {
            b'/' => kept.extend_from_slice(b"F2%"),
            b'%' => kept.extend_from_slice(b"52%"),
            _ => kept.push(*byte),
        }
        if kept.len() >= PATH_KEPT_MAX {
            break;
        }
    }
    name.extend(kept.iter().rev());
    OsString::from_vec(name)
}

/// Returns the path for which a file in a stage was meant; its end, if the path is long.
pub(super) fn path_of_staged(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let start = bytes.iter().position(|byte| *byte == b'.').map_or(0, |dot| dot + 1);
    let text = bytes[start..].to_vec();
    let mut path = Vec::new();
    let mut rest = &text[..];
    while let Some((first, tail)) = rest.split_first() {
        rest = match (first, tail) {
            (b'%', [b'2', b'F', tail @ ..]) => {
                path.push(b'/');
                tail
            }
            (b'%', [b'2', b'5', tail @ ..]) => {
                path.push(b'%');
                tail
            }
            _ => {
                path.push(*first);
                tail
            }
        };
    }
    OsString::from_vec(path)
}

impl<D: Disk> Stage<D> {
    /// Makes the stage of a tenure. Fails with EEXIST if the tenure has one already.
    pub(crate) fn begin(disk: &D, stages: &D::Dir, tenure: TenureId) -> io::Result<Self> {
        let dir = disk.make_dir(Place::new(stages, &tenure.to_string()))?;
        let files = disk.make_dir(Place::new(&dir, FILES))?;
        let in_place = disk.make_dir(Place::new(&dir, IN_PLACE))?;
        Ok(Self { tenure, files, in_place, next: AtomicU64::new(1), changed: Mutex::default() })
    }

    /// Publishes a file that has no name yet: gives it a name in the stage, and from there its
    /// place in the folder. `path` is its path in the folder.
    pub(crate) fn publish(
        &self,
        disk: &D,
        file: &D::File,
        to: Place<'_, D::Dir>,
        path: &OsStr,
        if_there: IfThere,
    ) -> Result<(), PublishError> {
        let name = staged_name(self.next.fetch_add(1, Ordering::Relaxed), path);
        let staged = Place::new(&self.files, &name);
        disk.link(file, staged).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PublishError::Fenced { is_kept: false },
            _ => PublishError::Disk(error),
        })?;
        disk.rename(staged, to, if_there).map_err(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                // The file has no second name, so a failed removal leaves it to the next fence.
                let _ = disk.remove_file(staged);
                return PublishError::Disk(error);
            }
            match disk.remove_file(staged) {
                Ok(()) => PublishError::NoDirectory,
                Err(_) => PublishError::Fenced { is_kept: true },
            }
        })
    }

    /// Records that this tenure is about to change a file in place for the first time. The next
    /// tenure gives the file a new inode, so that a late write reaches the old one.
    pub(crate) fn name_in_place(&self, disk: &D, path: &OsStr) -> Result<(), PublishError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let made = disk.make_symlink(Place::new(&self.in_place, &number), path);
        made.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PublishError::Fenced { is_kept: false },
            _ => PublishError::Disk(error),
        })?;
        self.changed.lock().push(PathBuf::from(path));
        Ok(())
    }

    /// Names the files at or below a path that the tenure changes in place, under the paths that
    /// they are about to get: a late write reaches them there.
    fn name_moved(&self, disk: &D, from: &OsStr, to: &OsStr) -> Result<(), PublishError> {
        let moved = |path: &PathBuf| {
            let rest = path.strip_prefix(from).ok()?;
            // A join with an empty path would end the name with a slash.
            let is_same = rest.as_os_str().is_empty();
            Some(if is_same { PathBuf::from(to) } else { Path::new(to).join(rest) })
        };
        let changed: Vec<_> = self.changed.lock().iter().filter_map(moved).collect();
        for path in changed {
            self.name_in_place(disk, path.as_os_str())?;
        }
        Ok(())
    }

    /// Moves a file or directory of the folder by way of the stage, so that a late rename fails.
    /// Each place has its path in the folder: if the guard dies between the two steps, the next
    /// fence puts the file back to its old path.
    pub(crate) fn rename(
        &self,
        disk: &D,
        (from, path): (Place<'_, D::Dir>, &OsStr),
        (to, new_path): (Place<'_, D::Dir>, &OsStr),
        if_there: IfThere,
    ) -> Result<(), PublishError> {
        self.name_moved(disk, path, new_path)?;
        let name = format!("{MOVED}{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (staged, record) = (Place::new(&self.files, &name), Place::new(&self.in_place, &name));
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        // The fence removes `in-place` last, so the record is there as long as the file may be.
        disk.make_symlink(record, path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PublishError::Fenced { is_kept: true },
            _ => PublishError::Disk(error),
        })?;
        let moved = match disk.rename(from, staged, IfThere::Fail) {
            Ok(()) => disk.rename(staged, to, if_there).map_err(|error| {
                match disk.rename(staged, from, IfThere::Fail) {
                    Ok(()) if is_gone(&error) => PublishError::NoDirectory,
                    Ok(()) => PublishError::Disk(error),
                    // The fence has put the file back.
                    Err(back) if is_gone(&back) => PublishError::Fenced { is_kept: true },
                    Err(back) => {
                        log::error!("{} stays in the stage: {back}", path.display());
                        PublishError::Disk(error)
                    }
                }
            }),
            Err(error) if is_gone(&error) && disk.id_of(from).is_ok() => {
                Err(PublishError::Fenced { is_kept: true })
            }
            Err(error) => Err(PublishError::Disk(error)),
        };
        // The next fence needs the record of a file that stays in the stage.
        if disk.id_of(staged).is_err() {
            let _ = disk.remove_file(record);
        }
        moved
    }

    /// Removes the stage after the tenure has been given up in good order, when no change is under
    /// way. The next tenure would remove it otherwise.
    pub(crate) fn end(&self, disk: &D, stages: &D::Dir) -> io::Result<()> {
        let dir = disk.open_dir(Place::new(stages, &self.tenure.to_string()))?;
        disk.remove_dir(Place::new(&dir, FILES))?;
        for entry in disk.entries(&self.in_place)? {
            disk.remove_file(Place::new(&self.in_place, &entry.name))?;
        }
        disk.remove_dir(Place::new(&dir, IN_PLACE))?;
        disk.remove_dir(Place::new(stages, &self.tenure.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_staged_file_tells_its_path() {
        for path in ["a", "dir/with.dot/100%/2F", "%2F", "übung/x"] {
            let name = staged_name(17, OsStr::new(path));
            assert!(!name.as_bytes().contains(&b'/') && name.len() < 255, "{name:?}");
            assert_eq!(path_of_staged(&name), path);
        }
        let long = format!("{}/end", "x".repeat(4_000));
        let name = staged_name(1, OsStr::new(&long));
        assert!(name.len() < 255 && path_of_staged(&name).as_bytes().ends_with(b"x/end"));
    }
}
