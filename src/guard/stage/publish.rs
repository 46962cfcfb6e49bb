//! The stage of a tenure: a directory through which each whole file passes on its way into the
//! folder. The next tenure removes the directory, and from then on no file can leave it, however
//! late the system call of a stopped guard goes on. This directory, not a clock, is what keeps an
//! older tenure from publishing.
//!
//! A stage `stage/ENGINE-TOKEN/` holds two directories: `files/`, with the files that are about to
//! be published or renamed, and `in-place/`, with a symlink for each file that the tenure changes
//! in place, and one for each file that it renames.
//!
//! Tells the versions of files that this guard has left in the folder from foreign ones: those that
//! came past the view in this tenure, for example from a sync tool.

use crate::guard::disk::operations::{Disk, FileId, FileStat, FolderName, IfThere, Place};
use barrier::tenure_id::TenureId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of files whose versions are remembered in one tenure.
const VERSIONS_MAX: usize = 1 << 20;

/// The versions of files that this guard has left in the folder in one tenure.
pub(in crate::guard) struct OwnVersions(Mutex<ForeignMemory>);

struct ForeignMemory {
    /// The change time before which every change of a file was made before the tenure.
    since: i128,
    /// The modification time and the size of each file.
    left: HashMap<FileId, (i128, u64)>,
    max: usize,
}

impl OwnVersions {
    /// Returns the versions of a tenure that begins at the change time `since`.
    pub(in crate::guard) fn new(since: i128) -> Self {
        Self(Mutex::new(ForeignMemory { since, left: HashMap::new(), max: VERSIONS_MAX }))
    }

    /// Says that everything was compared that was changed before the change time `since`: what
    /// stands in the folder is what should be there.
    pub(in crate::guard) fn compared(&self, since: i128) {
        self.0.lock().since = since;
    }

    /// Takes over the versions of this guard's last tenure, which ended shortly before this one
    /// began: files that it changed may have a change time that is not earlier than `since`.
    pub(in crate::guard) fn inherit(&self, last: &Self) {
        self.0.lock().left.clone_from(&last.0.lock().left);
    }

    /// Whether a file with one name is a foreign version.
    pub(in crate::guard) fn is_foreign(&self, found: &FileStat) -> bool {
        let memory = self.0.lock();
        found.is_file
            && found.links == 1
            && found.changed >= memory.since
            && memory.left.get(&found.id) != Some(&(found.modified, found.size))
    }

    /// Records the version of a file that this guard leaves in the folder. `is_new` says that the
    /// file was made in this tenure: a wall clock that was set back shows in its change time.
    pub(in crate::guard) fn record(&self, found: &FileStat, is_new: bool) {
        let mut memory = self.0.lock();
        if is_new {
            memory.since = memory.since.min(found.changed);
        }
        if memory.left.len() >= memory.max {
            // There is no room for more: versions from before this moment are no longer
            // distinguished.
            memory.left.clear();
            memory.since = found.changed + 1;
        }
        memory.left.insert(found.id, (found.modified, found.size));
    }

    /// Forgets a file that loses this name, unless it has another one.
    pub(in crate::guard) fn forget(&self, file: &FileStat) {
        if file.links == 1 {
            self.0.lock().left.remove(&file.id);
        }
    }
}

/// The directory of a stage with the files that are about to be published.
pub(in crate::guard) const FILES: &str = "files";
/// The directory of a stage with the names of the files that the tenure changes in place.
pub(super) const IN_PLACE: &str = "in-place";
/// The beginning of the name of a directory in which a folder snapshot is built.
pub(in crate::guard) const SNAPSHOT: &str = "snap-";
/// The file of a folder snapshot that is written last.
pub(in crate::guard) const READY: &str = "READY";
/// The beginning of the name of a file that is being renamed or removed. In `in-place/`, this is
/// the name of a symlink to the old path.
pub(super) const MOVED: &str = "moved-";
/// The beginning of the name of a new directory, link or device that is about to get its name in
/// the folder.
pub(in crate::guard) const MADE: &str = "made-";
/// How many bytes of its path the name of a staged file keeps. A name has 255 bytes at most; each
/// slash of the path takes three in the name.
const PATH_KEPT_MAX: usize = 200;

/// The maximum number of removed files that are remembered.
const REMOVED_MAX: usize = 65_536;

/// What tells a sync tool that a file is another one than before: its time and its size.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SeenVersion {
    modified: i128,
    size: u64,
}

impl SeenVersion {
    fn of(found: &FileStat) -> Self {
        Self { modified: found.modified, size: found.size }
    }
}

/// The version of each file that was removed.
struct RemovedFiles {
    known: Mutex<HashMap<OsString, SeenVersion>>,
    max: usize,
}

impl RemovedFiles {
    fn add(&self, path: &OsStr, version: SeenVersion) {
        let mut known = self.known.lock();
        if known.len() >= self.max {
            known.clear();
        }
        known.insert(path.to_owned(), version);
    }
}

/// The stage of a tenure that has begun.
pub(crate) struct Stage<D: Disk> {
    /// The tenure to which the stage belongs.
    pub(crate) tenure: TenureId,
    /// The versions of files that the tenure has left in the folder.
    pub(in crate::guard) own: Arc<OwnVersions>,
    /// Whether a sync tool carries the folder, and tells a new version by its size and time.
    is_carried: bool,
    removed: RemovedFiles,
    /// The directory of the stage.
    pub(in crate::guard) dir: D::Dir,
    pub(in crate::guard) files: D::Dir,
    pub(in crate::guard) in_place: D::Dir,
    /// The number of the next file in the stage.
    pub(in crate::guard) next: AtomicU64,
    /// The paths of the files that the tenure changes in place.
    changed: Mutex<Vec<PathBuf>>,
}

/// Whether a version must be kept that a change is about to replace.
pub(in crate::guard) type IsKept<'a> = &'a dyn Fn(&FileStat) -> bool;

/// Why a file was not published.
#[derive(Debug)]
pub(crate) enum PublishError {
    /// A later tenure has removed the stage: this tenure is over.
    Fenced {
        /// Whether the file had got its name in the stage, so that the later tenure has moved it
        /// to the lost files.
        is_kept: bool,
    },
    /// The file has its name in the stage, and can't leave it: its directory is gone, or another
    /// file has its place.
    Stays {
        /// The name in the stage.
        name: OsString,
        /// The error of the system call.
        error: io::Error,
    },
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
    pub(crate) fn begin(
        disk: &D,
        stages: &D::Dir,
        tenure: TenureId,
        is_carried: bool,
    ) -> io::Result<Self> {
        let name = tenure.to_string();
        let dir = disk.make_dir(Place::new(stages, &name))?;
        let files = disk.make_dir(Place::new(&dir, FILES))?;
        let in_place = disk.make_dir(Place::new(&dir, IN_PLACE))?;
        let own = Arc::new(OwnVersions::new(disk.stat(Place::new(stages, &name))?.changed));
        let (next, changed) = (AtomicU64::new(1), Mutex::default());
        let removed = RemovedFiles { known: Mutex::default(), max: REMOVED_MAX };
        Ok(Self { tenure, own, is_carried, removed, dir, files, in_place, next, changed })
    }

    /// Publishes a file that has no name yet: gives it a name in the stage, and from there its
    /// place in the folder. `path` is its path in the folder. Returns the name in the stage of the
    /// version that was there, if that is to be kept.
    pub(crate) fn publish(
        &self,
        disk: &D,
        file: &D::File,
        to: Place<'_, D::Dir>,
        path: &OsStr,
        if_there: IfThere,
        is_kept: IsKept<'_>,
    ) -> Result<Option<OsString>, PublishError> {
        let name = staged_name(self.next.fetch_add(1, Ordering::Relaxed), path);
        let staged = Place::new(&self.files, &name);
        let mut own = disk.stat_file(file).map_err(PublishError::Disk)?;
        if self.is_carried {
            self.tell_apart(disk, file, &mut own, to, path).map_err(PublishError::Disk)?;
        }
        disk.link(file, staged).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PublishError::Fenced { is_kept: false },
            _ => PublishError::Disk(error),
        })?;
        let there = disk.stat(to).ok().filter(|_| if_there == IfThere::Replace);
        let mut is_displaced = false;
        if there.as_ref().is_some_and(is_kept) {
            // A rename would make ext4 write the content first; an exchange does not.
            let exchanged = disk.sync_file(file).and_then(|()| Self::exchange(disk, staged, to));
            match exchanged {
                Ok(done) => is_displaced = done,
                Err(error) => return Err(PublishError::Stays { name, error }),
            }
        }
        if is_displaced {
            self.own.record(&own, true);
            return Ok(Some(name));
        }
        if let Err(error) = disk.rename(staged, to, if_there) {
            // A file without its last name can't get another one: it stays until it is kept.
            let is_fenced = error.kind() == io::ErrorKind::NotFound && disk.stat(staged).is_err();
            return Err(if is_fenced {
                PublishError::Fenced { is_kept: true }
            } else {
                PublishError::Stays { name, error }
            });
        }
        if let Some(there) = there {
            self.own.forget(&there);
        }
        self.own.record(&own, true);
        Ok(None)
    }

    /// Adds a nanosecond to the time of a file that has the size and the time of the version before
    /// it: a sync tool would not carry it.
    fn tell_apart(
        &self,
        disk: &D,
        file: &D::File,
        own: &mut FileStat,
        to: Place<'_, D::Dir>,
        path: &OsStr,
    ) -> io::Result<()> {
        let removed = self.removed.known.lock().remove(path);
        let before = disk.stat(to).ok().as_ref().map(SeenVersion::of).or(removed);
        if before == Some(SeenVersion::of(own)) {
            own.modified += 1;
            disk.set_modified(file, own.modified)?;
        }
        Ok(())
    }

    /// Remembers a file that is about to be removed, in case that a program makes it anew.
    pub(in crate::guard) fn note_removed(&self, path: &OsStr, found: &FileStat) {
        if self.is_carried {
            self.removed.add(path, SeenVersion::of(found));
        }
    }

    /// Exchanges a file in the stage with one in the folder. Returns false if one of them is gone.
    fn exchange(disk: &D, staged: Place<'_, D::Dir>, to: Place<'_, D::Dir>) -> io::Result<bool> {
        match disk.exchange(staged, to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            exchanged => exchanged?,
        }
        // An exchange takes a directory without complaint.
        if disk.stat(staged).is_ok_and(|found| found.is_dir) {
            disk.exchange(staged, to)?;
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        Ok(true)
    }

    /// Returns the place in the stage of a displaced version.
    pub(in crate::guard) fn displaced<'a>(&'a self, name: &'a OsStr) -> Place<'a, D::Dir> {
        Place::new(&self.files, name)
    }

    /// Moves a file of the folder into the stage. Returns its name there.
    pub(in crate::guard) fn displace(
        &self,
        disk: &D,
        at: Place<'_, D::Dir>,
        path: &OsStr,
    ) -> Result<OsString, PublishError> {
        let name = staged_name(self.next.fetch_add(1, Ordering::Relaxed), path);
        let staged = Place::new(&self.files, &name);
        let displaced = disk.rename(at, staged, IfThere::Fail);
        displaced.map_err(|error| self.fenced_if_gone(disk, error))?;
        if disk.stat(staged).is_ok_and(|found| found.is_dir) {
            let back = disk.rename(staged, at, IfThere::Fail);
            return Err(PublishError::Disk(match back {
                Ok(()) => io::Error::from_raw_os_error(libc::EISDIR),
                Err(error) => error,
            }));
        }
        Ok(name)
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
    /// fence puts the file back to its old path. A version that is there and is to be kept is
    /// exchanged; its name in the stage is returned.
    pub(crate) fn rename(
        &self,
        disk: &D,
        from: FolderName<'_, D::Dir>,
        to: FolderName<'_, D::Dir>,
        if_there: IfThere,
        is_kept: IsKept<'_>,
    ) -> Result<Option<OsString>, PublishError> {
        self.name_moved(disk, from.path, to.path)?;
        let name = format!("{MOVED}{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (staged, record) = (Place::new(&self.files, &name), Place::new(&self.in_place, &name));
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        // The fence removes `in-place` last, so the record is there as long as the file may be.
        disk.make_symlink(record, from.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PublishError::Fenced { is_kept: true },
            _ => PublishError::Disk(error),
        })?;
        let moved = match disk.rename(from.at, staged, IfThere::Fail) {
            Ok(()) => Self::leave(disk, staged, to.at, if_there, is_kept).map_err(|error| {
                match disk.rename(staged, from.at, IfThere::Fail) {
                    Ok(()) => PublishError::Disk(error),
                    // The fence has put the file back.
                    Err(back) if is_gone(&back) => PublishError::Fenced { is_kept: true },
                    Err(back) => {
                        log::error!("{} stays in the stage: {back}", from.path.display());
                        PublishError::Disk(error)
                    }
                }
            }),
            Err(error) if is_gone(&error) && disk.id_of(from.at).is_ok() => {
                Err(PublishError::Fenced { is_kept: true })
            }
            Err(error) => Err(PublishError::Disk(error)),
        };
        // The next fence needs the record of a file that stays in the stage.
        if disk.id_of(staged).is_err() {
            let _ = disk.remove_file(record);
        }
        moved.map(|is_displaced| is_displaced.then(|| name.into()))
    }

    /// Moves a file from the stage to its place, or exchanges it with the one there. Returns
    /// whether it was exchanged: a version that is to be kept.
    fn leave(
        disk: &D,
        staged: Place<'_, D::Dir>,
        to: Place<'_, D::Dir>,
        if_there: IfThere,
        is_kept: IsKept<'_>,
    ) -> io::Result<bool> {
        let keeps = if_there == IfThere::Replace && disk.stat(to).is_ok_and(|it| is_kept(&it));
        if keeps && Self::exchange(disk, staged, to)? {
            return Ok(true);
        }
        disk.rename(staged, to, if_there).map(|()| false)
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

    fn version(inode: u64, modified: i128, changed: i128) -> FileStat {
        let id = FileId { device: 1, inode, born: 0 };
        FileStat { id, is_file: true, is_dir: false, links: 1, uid: 0, size: 5, modified, changed }
    }

    #[test]
    fn a_change_past_the_view_is_foreign() {
        let own = OwnVersions::new(100);
        assert!(!own.is_foreign(&version(1, 99, 99)) && own.is_foreign(&version(1, 99, 100)));
        own.record(&version(1, 99, 100), true);
        assert!(!own.is_foreign(&version(1, 99, 300)), "its mode was changed");
        assert!(own.is_foreign(&version(1, 98, 300)) && own.is_foreign(&version(2, 99, 300)));
        assert!(own.is_foreign(&FileStat { size: 6, ..version(1, 99, 300) }));
        assert!(!own.is_foreign(&FileStat { links: 2, ..version(2, 99, 300) }));
        own.forget(&FileStat { links: 2, ..version(1, 0, 0) });
        assert!(!own.is_foreign(&version(1, 99, 300)), "it has another name");
        own.forget(&version(1, 0, 0));
        assert!(own.is_foreign(&version(1, 99, 300)));
        own.record(&version(3, 50, 50), true);
        assert!(own.is_foreign(&version(4, 60, 60)), "the wall clock was set back");
    }

    #[test]
    fn what_was_compared_is_not_foreign() {
        let own = OwnVersions::new(100);
        assert!(own.is_foreign(&version(1, 150, 150)), "it came while the tenure waited");
        own.compared(200);
        assert!(!own.is_foreign(&version(1, 150, 150)) && own.is_foreign(&version(1, 200, 200)));
    }

    #[test]
    fn a_tenure_knows_the_versions_of_the_last_one() {
        let last = OwnVersions::new(100);
        last.record(&version(1, 99, 199), false);
        let next = OwnVersions::new(200);
        assert!(next.is_foreign(&version(1, 99, 200)));
        next.inherit(&last);
        assert!(!next.is_foreign(&version(1, 99, 200)));
        assert!(next.is_foreign(&version(1, 98, 200)) && next.is_foreign(&version(2, 99, 200)));
    }

    #[test]
    fn the_versions_of_a_tenure_have_a_bound() {
        let own = OwnVersions::new(0);
        own.0.lock().max = 3;
        (1..=4).for_each(|inode| own.record(&version(inode, 7, 7), true));
        assert_eq!(own.0.lock().left.len(), 1);
        assert!(!own.is_foreign(&version(1, 7, 7)), "no false alarm");
        assert!(own.is_foreign(&version(1, 8, 8)));
    }
}

#[cfg(test)]
mod stage_tests {
    use super::*;

    #[test]
    fn removed_files_are_remembered_up_to_a_bound() {
        let removed = RemovedFiles { known: Mutex::default(), max: 3 };
        let version = SeenVersion { modified: 1, size: 2 };
        for name in ["a", "b", "c"] {
            removed.add(OsStr::new(name), version);
        }
        assert_eq!(removed.known.lock().len(), 3);
        removed.add(OsStr::new("d"), version);
        assert_eq!(removed.known.lock().len(), 1);
    }

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
