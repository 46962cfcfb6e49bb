//! The fence: the first act of a new tenure. It removes the stages of all other tenures, so that
//! none of them can publish any more, and gives a new inode to each file that they change in
//! place.

use super::publish::{FILES, IN_PLACE, MADE, MOVED, READY, SNAPSHOT, path_of_staged};
use crate::guard::disk::operations::remove_tree;
use crate::guard::disk::operations::{Disk, FileStat, IfThere, Place};
use crate::guard::lost_files::{LostDescription, LostFiles, LostReason};
use crate::guard::stage::staged_file::remove_made;
use crate::guard::tenure::LiveTenures;
use barrier::tenure_id::TenureId;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// The beginning of the name of a copy that is about to replace a file which an older tenure
/// changes in place. The names of that tenure begin with a digit.
const RENEWED: &str = "renewed-";

/// Why the fence was not completed.
#[derive(Debug)]
pub(crate) enum FenceError {
    /// The new tenure has reached its own deadline. Its fence must not remove a later stage.
    Late,
    /// A system call failed. The fence can be repeated from its start.
    Disk(io::Error),
}

impl From<io::Error> for FenceError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// The effect of a fence.
#[derive(Debug, Default)]
pub(crate) struct Fenced {
    /// The number of files that were put aside.
    pub(crate) kept: usize,
    /// The files that got a new inode.
    pub(crate) renewed: Vec<FileStat>,
}

/// The directories that a fence changes, and the tenure that erects it.
pub(crate) struct Fence<'a, D: Disk> {
    /// The disk on which the folder lies.
    pub(crate) disk: &'a D,
    /// The folder.
    pub(crate) folder: &'a D::Dir,
    /// The directory of all stages.
    pub(crate) stages: &'a D::Dir,
    /// The lost files.
    pub(crate) lost: &'a LostFiles<D>,
    /// Whether the new tenure is certain to hold the lock still.
    pub(crate) is_held: &'a dyn Fn() -> bool,
    /// The tenures that go on, where many share the lock; `None` if no other one holds it.
    pub(crate) live: Option<&'a LiveTenures>,
}

/// Returns success if an error says that the name is gone: another guard, or an earlier attempt,
/// has removed it.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Whether an entry of `in-place` names a file that is changed in place.
fn is_name_in_place(name: &OsStr) -> bool {
    let name = name.as_bytes();
    !name.starts_with(RENEWED.as_bytes()) && !name.starts_with(MOVED.as_bytes())
}

/// Whether an error says that a path of the folder leads to no regular file of the folder any more:
/// anybody who may write there may have exchanged its directories and files for others.
pub(in crate::guard) fn leads_to_no_file(error: &io::Error) -> bool {
    let codes = [
        libc::ENOENT,
        libc::ENOTDIR,
        libc::ELOOP,
        libc::EISDIR,
        libc::ENXIO,
        libc::EXDEV,
        libc::ENAMETOOLONG,
    ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
        || matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl<D: Disk> Fence<'_, D> {
    /// Removes all stages that are there, but for those of live tenures.
    pub(crate) fn erect(&self) -> Result<Fenced, FenceError> {
        let mut fenced = Fenced::default();
        loop {
            let mut entries = self.disk.entries(self.stages)?;
            entries.retain(|entry| !self.stays(&entry.name));
            if entries.is_empty() {
                return Ok(fenced);
            }
            for entry in entries {
                let at = Place::new(self.stages, &entry.name);
                if !entry.is_dir {
                    // A guard of this version makes only directories here, so the file is removed.
                    self.check()?;
                    unless_gone(self.disk.remove_file(at))?;
                    continue;
                }
                match self.disk.open_dir(at) {
                    Ok(stage) => self.remove_stage(at, &stage, &mut fenced)?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Whether a stage is kept. The stage of a live tenure is. So is, while other tenures are live,
    /// a stage that only has the names of files which its tenure changed in place: these files get
    /// new inodes, by which the changes of a live tenure to the same files would be lost. The next
    /// tenure that is alone does it.
    fn stays(&self, stage: &OsStr) -> bool {
        let Some(live) = self.live else { return false };
        let has = |part: &str| {
            let dir = self.disk.open_dir(Place::new(self.stages, stage));
            dir.is_ok_and(|dir| self.disk.stat(Place::new(&dir, part)).is_ok())
        };
        live.spares(stage) || has(IN_PLACE) && !has(FILES)
    }

    fn check(&self) -> Result<(), FenceError> {
        if (self.is_held)() { Ok(()) } else { Err(FenceError::Late) }
    }

    /// Removes one stage. First `files`, so that its tenure publishes no file any more that a copy
    /// of an older version would replace; then the names of the files that are changed in place.
    fn remove_stage(
        &self,
        at: Place<'_, D::Dir>,
        stage: &D::Dir,
        fenced: &mut Fenced,
    ) -> Result<(), FenceError> {
        let tenure = at.name.to_str().and_then(TenureId::parse);
        let files = Place::new(stage, FILES);
        let in_place = Place::new(stage, IN_PLACE);
        fenced.kept += self.empty(files, |from| {
            let mut path = path_of_staged(from.name);
            let name = from.name.as_bytes();
            if name.starts_with(MADE.as_bytes()) {
                return unless_gone(remove_made(self.disk, from)).map(|()| false);
            }
            if name.starts_with(MOVED.as_bytes()) {
                match self.put_back(in_place, from)? {
                    Some(old) => path = old,
                    None => return Ok(false),
                }
            }
            let about = LostDescription::now(&path, 0, tenure, LostReason::Interrupted);
            match self.lost.keep_name(self.disk, from, &about) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                kept => kept.map(|_| true),
            }
        })?;
        if self.live.is_some() && self.has_names(in_place)? {
            return Ok(());
        }
        self.empty(in_place, |from| {
            // The copy of a file that an interrupted fence was about to give a new inode, or the
            // record of a rename that is over.
            if is_name_in_place(from.name) {
                let path = match self.disk.read_symlink(from) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                    path => path?,
                };
                match self.renew_inode(from.dir, &path) {
                    // Another fence has removed the copy, or the directory: the next round looks.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                    renewed => fenced.renewed.extend(renewed?),
                }
            }
            unless_gone(self.disk.remove_file(from)).map(|()| false)
        })?;
        // An entry with another name was not made by a guard of this version. The tenure may still
        // be about to begin, so the two directories can appear now; the next round removes them.
        for entry in self.disk.entries(stage)? {
            self.check()?;
            if entry.is_dir && entry.name.as_bytes().starts_with(SNAPSHOT.as_bytes()) {
                // Without READY first, a late rename of its tenure can't show a part of it.
                remove_tree(self.disk, Place::new(stage, &entry.name), READY.as_ref())?;
            } else if entry.name != FILES && entry.name != IN_PLACE {
                unless_gone(self.disk.remove_file(Place::new(stage, &entry.name)))?;
            }
        }
        self.check()?;
        match self.disk.remove_dir(at) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            gone => unless_gone(gone).map_err(FenceError::Disk),
        }
    }

    /// Whether a tenure has changed files in place.
    fn has_names(&self, in_place: Place<'_, D::Dir>) -> io::Result<bool> {
        match self.disk.open_dir(in_place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            dir => {
                let entries = self.disk.entries(&dir?)?;
                Ok(entries.iter().any(|entry| is_name_in_place(&entry.name)))
            }
        }
    }

    /// Puts a file back that an interrupted rename or removal has left in a stage. Returns its old
    /// path if that is taken or gone.
    fn put_back(
        &self,
        in_place: Place<'_, D::Dir>,
        from: Place<'_, D::Dir>,
    ) -> io::Result<Option<OsString>> {
        let records = self.disk.open_dir(in_place);
        let record = records.and_then(|dir| self.disk.read_symlink(Place::new(&dir, from.name)));
        let path = match record {
            // Another fence was faster, or a power failure took the record.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(from.name.to_owned()));
            }
            path => path?,
        };
        let back = self
            .disk
            .open_parent(self.folder, &path)
            .and_then(|(dir, name)| self.disk.rename(from, Place::new(&dir, &name), IfThere::Fail));
        match back {
            Ok(()) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Some(path)),
            Err(error) if leads_to_no_file(&error) => Ok(Some(path)),
            Err(error) => Err(error),
        }
    }

    /// Empties a directory by `remove`, and removes it. Its tenure may still make names in it, so
    /// this is repeated until the removal succeeds. Returns the number of names for which `remove`
    /// returned true.
    fn empty(
        &self,
        at: Place<'_, D::Dir>,
        mut remove: impl FnMut(Place<'_, D::Dir>) -> io::Result<bool>,
    ) -> Result<usize, FenceError> {
        let mut kept = 0;
        loop {
            let dir = match self.disk.open_dir(at) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(kept),
                dir => dir?,
            };
            for entry in self.disk.entries(&dir)? {
                self.check()?;
                kept += usize::from(remove(Place::new(&dir, &entry.name))?);
            }
            self.check()?;
            match self.disk.remove_dir(at) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                gone => {
                    unless_gone(gone)?;
                    return Ok(kept);
                }
            }
        }
    }

    /// Gives the file at `path` a new inode with the same content, so that a late write of an
    /// older tenure reaches the old inode, which has no name any more. The copy passes through the
    /// directory `in_place` of the stage that is being removed. A later fence removes it, and then
    /// this fence replaces no file any more, however late its system call goes on: it fails with
    /// ENOENT. A file that has got the name meanwhile stays: the next round of the fence looks at
    /// it.
    pub(in crate::guard) fn renew_inode(
        &self,
        in_place: &D::Dir,
        path: &OsStr,
    ) -> io::Result<Option<FileStat>> {
        let (dir, name) = match self.disk.open_parent(self.folder, path) {
            Err(error) if leads_to_no_file(&error) => return Ok(None),
            parent => parent?,
        };
        let at = Place::new(&dir, &name);
        let old = match self.disk.open_file(at) {
            Err(error) if leads_to_no_file(&error) => return Ok(None),
            old => old?,
        };
        let new = self.disk.unnamed_file(&dir, 0o600)?;
        self.disk.copy(&old, &new)?;
        self.disk.sync_file(&new)?;
        let stat = self.disk.stat_file(&new)?;
        let named = format!("{RENEWED}{}", stat.id.inode);
        let copy = Place::new(in_place, &named);
        self.disk.link(&new, copy)?;
        let is_replaced = self.replace_file(&old, copy, at)?;
        self.disk.sync_dir(&dir)?;
        Ok(is_replaced.then_some(stat))
    }

    /// Gives the name `at` to the file `copy` if the file `old` still has it, and removes `old`.
    /// The copy may have taken long, so another file may have got the name meanwhile: it keeps it.
    fn replace_file(
        &self,
        old: &D::File,
        copy: Place<'_, D::Dir>,
        at: Place<'_, D::Dir>,
    ) -> io::Result<bool> {
        let old = self.disk.stat_file(old)?.id;
        if self.disk.id_of(at)? != old {
            return Ok(false);
        }
        self.disk.exchange(copy, at)?;
        let is_old = self.disk.id_of(copy)? == old;
        if is_old {
            self.disk.remove_file(copy)?;
        } else {
            self.disk.exchange(copy, at)?;
        }
        Ok(is_old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::barrier_store::test_disk::{Fault, TestDisk, TestFolder};
    use crate::guard::disk::linux_disk::LinuxDisk;
    use crate::guard::disk::operations::FolderName;
    use crate::guard::lost_files::{Space, SpaceLimits};
    use crate::guard::stage::publish::{PublishError, Stage};
    use crate::guard::stage::staged_file::Removed;
    use std::fs;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    fn fence_of<'a, D: Disk>(
        disk: &'a D,
        folder: &'a D::Dir,
        stages: &'a D::Dir,
        lost: &'a LostFiles<D>,
    ) -> Fence<'a, D> {
        Fence { disk, folder, stages, lost, is_held: &|| true, live: None }
    }

    /// A file gets the name while the copy of the old one is made.
    #[test]
    fn a_file_that_gets_the_name_during_a_copy_stays() {
        let test = TestFolder::new();
        for (path, content) in [("file", "old"), ("stages/copy", "copy"), ("lost/none", "")] {
            test.put(path, content.as_bytes());
        }
        let (folder, disk) = (test.folder(), LinuxDisk);
        let dir = |name: &str| disk.open_dir(Place::new(&folder, name)).expect("made");
        let space = Arc::new(Space::new(SpaceLimits::NONE));
        let lost = LostFiles::open(&disk, dir("lost"), space).expect("a dir");
        let stages = dir("stages");
        let fence = fence_of(&disk, &folder, &stages, &lost);
        let (copy, at) = (Place::new(&stages, "copy"), Place::new(&folder, "file"));
        let old = disk.open_file(at).expect("a file");
        test.put("new", b"new");
        fs::rename(test.path("new"), test.path("file")).expect("renamed past the view");
        assert!(!fence.replace_file(&old, copy, at).expect("nothing fails"));
        assert_eq!(fs::read(test.path("file")).expect("there"), b"new");
        let new = disk.open_file(at).expect("a file");
        assert!(fence.replace_file(&new, copy, at).expect("it has the name"));
        assert_eq!(fs::read(test.path("file")).expect("there"), b"copy");
        assert!(!test.path("stages/copy").exists(), "the old file is gone");
    }

    /// A guard dies, or is fenced, at each step of the removal of an empty directory.
    #[test]
    fn a_directory_whose_removal_is_interrupted_is_back_or_gone() {
        let tenure = TenureId::parse("0000000000000001-2").expect("a tenure");
        for (step, is_killed) in (0..6).flat_map(|step| [(step, true), (step, false)]) {
            let test = TestFolder::new();
            for (path, content) in [("stages/none", ""), ("lost/none", ""), ("dir/none", "")] {
                test.put(path, content.as_bytes());
            }
            fs::remove_file(test.path("dir/none")).expect("made");
            let fault = if is_killed { Fault::Kill } else { Fault::Errno(libc::EIO) };
            let (folder, disk) = (test.folder(), TestDisk::default());
            let dir = |name: &str| disk.open_dir(Place::new(&folder, name)).expect("made");
            let space = Arc::new(Space::new(SpaceLimits::NONE));
            let lost = LostFiles::open(&disk, dir("lost"), space).expect("a dir");
            let stages = dir("stages");
            let stage = Stage::begin(&disk, &stages, tenure, false).expect("made");
            let failing = TestDisk::failing(step, fault);
            let name = FolderName { at: Place::new(&folder, "dir"), path: "dir".as_ref() };
            let removal = || stage.remove_name(&failing, name, Removed::Dir);
            let _ = catch_unwind(AssertUnwindSafe(removal));
            let fence = fence_of(&disk, &folder, &stages, &lost);
            assert_eq!(fence.erect().expect("nothing fails").kept, 0, "step {step}");
            // The steps of the removal are the record, the move, a look and the removal itself.
            assert_eq!(test.path("dir").exists(), step < 4, "step {step}");
            if test.path("dir").exists() {
                let late = stage.remove_name(&disk, name, Removed::Dir);
                assert!(matches!(late, Err(PublishError::Fenced { .. })), "step {step}: {late:?}");
                assert!(test.path("dir").exists(), "step {step}");
            }
        }
    }
}
