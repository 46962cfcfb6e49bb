//! Databases that a program keeps open while another machine changes them.
//!
//! `SQLite` finds the files of a database by their names. A program that closes a database which it
//! has open since before the change of another machine would remove that machine's log, with the
//! changes in it. It does not if the database's name leads to another file than the one that it has
//! open.
//!
//! `X-shm` is the shared memory of the programs that have the database `X` open. It is a local
//! file, and belongs to the files `X` and `X-wal` for which it was made.
//!
//! Dormant files: files that programs keep open for writing when a tenure ends. A program goes on
//! in the next tenure as if nothing had happened, if nobody else has changed its files meanwhile.
//!
//! A database is a set of files: `X`, `X-wal` and `X-journal`. If one of them has changed, a
//! program that has any of them open must open all of them again.

use super::local_files::Spot;
use crate::guard::disk::linux_disk::{id_in, open_below, stat_at, stat_in};
use crate::guard::disk::operations::{FileId, FileStat};
use crate::guard::stage::gate::OpenTenure;
use crate::guard::stage::staged_file::SaveState;
use crate::guard::tenures::wishes::MayGoOn;
use crate::guard::view::folder_view::{FolderView, Located, MayWait};
use crate::guard::view::parts::database_files::{
    ClosedVersion, DATABASE_FILES, MadeFor, Pair, database_file, database_of, database_of_shm,
};
use crate::guard::view::parts::open_file::{Content, OpenFile, Writing};
use crate::guard::view::parts::processes::may_have_open;
use barrier::tenure_id::TenureId;
use kernel::file_system::{Done, Errno, NameIn, Requester, WriteRequest};
use rustix::fs::{AtFlags, OFlags};
use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FolderView {
    /// Parts the programs that have a changed database open from those that open it from now on:
    /// the names of its files lead to new files with the same content.
    pub(super) fn part_database(&self, database: &Path) {
        let mut nodes = Vec::new();
        for end in DATABASE_FILES {
            let path = database_file(database, end);
            let open = self.nodes.open_at(&path);
            let Some(found) = self.found_at(&path) else {
                nodes.extend(open);
                continue;
            };
            let is_open = self.nodes.of_file(found.id).is_some_and(|ino| {
                nodes.push(ino);
                !self.nodes.open_files(ino).is_empty()
            });
            nodes.extend(open);
            if !is_open {
                continue;
            }
            match self.guard.give_new_inode(path.as_os_str()) {
                Ok(()) => {}
                Err(error) => log::error!(
                    "{} was changed by another machine while programs have it open, and they \
                     can't be kept from it: {error}; end these programs",
                    path.display()
                ),
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        let mut parted = self.databases.parted.lock();
        parted.retain(|(_, nodes)| nodes.iter().any(|ino| !self.nodes.open_files(*ino).is_empty()));
        parted.push((database.to_owned(), nodes));
    }

    /// Returns the file at a path of the folder.
    fn found_at(&self, path: &Path) -> Option<FileStat> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let dir = open_below(self.root(), parent, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        Some(stat_in(&stat_at(dir.as_fd(), path.file_name()?).ok()?))
    }

    /// Refuses to remove or rename a log or journal for a program that has an older version of the
    /// database open: it decided by that version.
    pub(super) fn check_parted(&self, who: Requester, path: &Path) -> Done<()> {
        let database = database_of(path);
        if database == path {
            return Ok(());
        }
        let parted = self.databases.parted.lock();
        if parted.is_empty() {
            return Ok(());
        }
        let of = parted.iter().filter(|(it, _)| *it == database).flat_map(|(_, nodes)| nodes);
        let nodes: Vec<_> = of.copied().collect();
        drop(parted);
        if nodes.into_iter().any(|ino| may_have_open(who.pid, ino)) {
            let why = "another machine has changed the database since the program opened it; end \
                       the program, and open the database again";
            return Err(self.say(who, path, Errno::ESTALE, why));
        }
        Ok(())
    }

    /// Returns the files of a database, those that are being saved included.
    fn pair_of(&self, parent: u64, database: &Path) -> Pair {
        [b"".as_slice(), b"-wal"].map(|end| {
            let path = database_file(database, end);
            let name = path.file_name()?;
            if let Some((_, saving)) = self.nodes.saving_at(parent, name) {
                let found =
                    crate::guard::disk::linux_disk::stat(saving.staged.file.as_fd()).ok()?;
                return Some(id_in(&found));
            }
            self.found_at(&path).map(|found| found.id)
        })
    }

    /// Whether a name is the shared memory of a database. Removes it if it was made for other files
    /// than those that are there now; programs that have it open keep it.
    pub(super) fn drop_shared_memory(&self, spot: &Spot<'_>) -> Done<bool> {
        let at = spot.at;
        let Some(database) = database_of_shm(&spot.path) else { return Ok(false) };
        let Ok(found) = stat_at(spot.dir.as_fd(), at.name) else { return Ok(false) };
        let made_for = self.databases.made_for.lock().get(&id_in(&found)).map(|it| it.pair);
        if made_for == Some(self.pair_of(at.parent, &database)) {
            return Ok(false);
        }
        rustix::fs::unlinkat(&spot.dir, at.name, AtFlags::empty())
            .map_err(|error| Errno::from_i32(error.raw_os_error()))?;
        self.local.shares.removed(&found);
        self.databases.made_for.lock().remove(&id_in(&found));
        if let Some(ino) = self.nodes.of_file(id_in(&found)) {
            self.nodes.removed(ino, at);
        }
        Ok(true)
    }

    /// Remembers for which files a shared memory was made.
    pub(super) fn made_shared_memory(
        &self,
        who: Requester,
        at: NameIn<'_>,
        path: &Path,
        made: FileId,
    ) -> Done<()> {
        let Some(database) = database_of_shm(path) else { return Ok(()) };
        let closed = self.guard.gate().tenure().is_none().then(|| self.versions_of(&database));
        let made_for = MadeFor { pair: self.pair_of(at.parent, &database), closed };
        if self.databases.made(made, made_for, |file| self.nodes.of_file(file).is_some()) {
            return Ok(());
        }
        let why = "programs of the view have too many databases open; end some of them";
        Err(self.say(who, path, Errno::ENFILE, why))
    }

    fn versions_of(&self, database: &Path) -> [Option<FileStat>; 2] {
        [b"".as_slice(), b"-wal"].map(|end| self.found_at(&database_file(database, end)))
    }

    /// Returns the database of a shared memory that programs may have open.
    fn database_of_open(&self, memory: FileId) -> Option<PathBuf> {
        let ino = self.nodes.of_file(memory)?;
        database_of_shm(&self.nodes.path(ino).ok()?)
    }

    /// Remembers the versions of all databases with a shared memory: the gate has closed.
    pub(in crate::guard::view) fn note_databases(&self) {
        for (memory, made_for) in self.databases.made_for.lock().iter_mut() {
            made_for.closed = self.database_of_open(*memory).map(|it| self.versions_of(&it));
        }
    }

    /// Forgets the shared memories of databases that were changed while the gate was closed: the
    /// next program that opens one of these databases gets a new shared memory.
    pub(in crate::guard::view) fn forget_shared_memories(&self) {
        self.databases.made_for.lock().retain(|memory, made_for| {
            let Some(closed) = made_for.closed.take() else { return true };
            let now = self.database_of_open(*memory).map(|database| self.versions_of(&database));
            now == Some(closed)
        });
    }
}

impl FolderView {
    /// Returns the files of a database as they are now.
    fn database_files(&self, database: &Path) -> [Option<FileStat>; 3] {
        let parent = database.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let Ok(dir) = open_below(self.root(), parent, flags) else { return [None; 3] };
        DATABASE_FILES.map(|end| {
            let path = database_file(database, end);
            let found = stat_at(dir.as_fd(), path.file_name()?).ok()?;
            Some(stat_in(&found))
        })
    }

    /// Returns the version of an open file that the folder has now.
    fn version_of(&self, open: &OpenFile) -> Option<ClosedVersion> {
        let located = self.locate(open.ino).ok()?;
        let database = matches!(located.located, Located::Path(_)).then(|| {
            let database = database_of(&located.path);
            let files = self.database_files(&database);
            (database, files)
        });
        Some(ClosedVersion { file: stat_in(&located.found), database })
    }

    /// Returns the open files through which programs may change the folder.
    fn open_for_writing(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        let nodes = self.nodes.open_nodes();
        let open = nodes.into_iter().flat_map(|ino| self.nodes.open_files(ino));
        open.filter(|open| open.is_for_writing())
    }

    /// Makes the files dormant that are open for writing in a tenure which is over: their writes
    /// fail until the lock is held again. Files that are not in the folder, such as an unpublished
    /// save, stay as they are.
    pub(in crate::guard::view) fn make_dormant(&self, tenure: TenureId, may_go_on: MayGoOn) {
        for open in self.open_for_writing() {
            let is_there = match &open.content {
                Content::InPlace(_) => true,
                Content::Saving(saving) => saving.staged.save_state() == SaveState::Published,
                Content::Local(..) | Content::Control(_) | Content::Record(_) => false,
            };
            if !is_there || !matches!(open.writing(), Some(Writing::In(id)) if id == tenure) {
                continue;
            }
            if let Some(version) = self.version_of(&open) {
                let version = Arc::new(version);
                open.set_writing(match may_go_on {
                    MayGoOn::Unchanged => Writing::Dormant(tenure, version),
                    MayGoOn::Never => Writing::Over(tenure, version),
                });
            }
        }
    }

    /// Ends the sleep of all dormant files, before the gate opens for a tenure. The files of a
    /// program go on together, or none of them does.
    pub(in crate::guard::view) fn wake_dormant(&self, tenure: TenureId) {
        let dormant = |open: Arc<OpenFile>| match open.writing() {
            Some(Writing::Dormant(last, version)) => Some((open, last, version, true)),
            Some(Writing::Over(last, version)) => Some((open, last, version, false)),
            _ => None,
        };
        let dormant: Vec<_> = self.open_for_writing().filter_map(dormant).collect();
        let is_same =
            |(open, _, version, may_go_on): &(Arc<OpenFile>, _, Arc<ClosedVersion>, _)| {
                *may_go_on && self.version_of(open).as_ref() == Some(&**version)
            };
        let (same, other): (Vec<_>, Vec<_>) = dormant.into_iter().partition(is_same);
        // A program whose thread is gone may be any.
        let process = |open: &OpenFile| (self.processes)(open.ino).process_of(open.opener);
        let stopped: HashSet<_> = other.iter().map(|(open, ..)| process(open)).collect();
        let mut databases = BTreeSet::new();
        for (open, last, version, _) in other {
            open.set_writing(Writing::In(last));
            if version.is_of_database()
                || self.version_of(&open).is_some_and(|version| version.is_of_database())
            {
                databases.extend(version.database.as_ref().map(|(path, _)| path.clone()));
            }
        }
        for (open, last, ..) in same {
            let goes_on = stopped.is_empty()
                || !stopped.contains(&None) && !stopped.contains(&process(&open));
            open.set_writing(Writing::In(if goes_on { tenure } else { last }));
            // The log of the new tenure does not know the file yet.
            open.logged.store(0, Ordering::Release);
        }
        for database in databases {
            self.part_database(&database);
        }
    }

    /// Ends the sleep of a file of which the kernel could not write a page back: no program may go
    /// on as if its changes were there.
    pub(super) fn end_dormant(&self, ino: u64) {
        for open in self.nodes.open_files(ino) {
            if let Some(Writing::Dormant(last, _)) = open.writing() {
                open.set_writing(Writing::In(last));
            }
        }
    }

    /// Wakes the file that a program writes to.
    pub(in crate::guard::view) async fn wake_to_write(
        &self,
        who: Requester,
        open: &OpenFile,
        asked: WriteRequest,
    ) -> Done<()> {
        // The kernel writes the pages of a mapping back while no program waits.
        if asked.from_cache { Ok(()) } else { self.wake(who, open).await }
    }

    /// Takes the lock for a program that changes a dormant file, or one that goes on in a tenure of
    /// another owner.
    pub(in crate::guard::view) async fn wake(&self, who: Requester, open: &OpenFile) -> Done<()> {
        let is_excluded =
            |now: OpenTenure| open.tenure() == Some(now.id) && !Self::is_of(now.owner, who);
        if !open.is_dormant() && !self.guard.gate().tenure().is_some_and(is_excluded) {
            return Ok(());
        }
        let path = self.nodes.path(open.ino).unwrap_or_default();
        self.pass_unannounced(who, &path, MayWait::Long).await.map(drop)?;
        // The gate has opened, so the file is not dormant any more, unless it has closed since.
        if open.is_dormant() {
            let why = "the lock was given up again meanwhile; try again";
            return Err(self.say(who, &path, Errno::EROFS, why));
        }
        Ok(())
    }
}
