//! Databases that a program keeps open while another machine changes them.
//!
//! `SQLite` finds the files of a database by their names. A program that closes a database which it
//! has open since before the change of another machine would remove that machine's log, with the
//! changes in it. It does not if the database's name leads to another file than the one that it has
//! open.
//!
//! `X-shm` is the shared memory of the programs that have the database `X` open. It is a local
//! file, and belongs to the files `X` and `X-wal` for which it was made.

use super::super::disk::{FileId, Look};
use super::super::linux_disk::{id_in, look_in, open_below, stat_at};
use super::database_files::{
    DATABASE_FILES, MadeFor, Pair, database_file, database_of, database_of_shm,
};
use super::folder_view::FolderView;
use super::local_files::Spot;
use super::process_files::may_have_open;
use crate::fuse::kernel::file_system::{Done, NameIn};
use crate::fuse::kernel::file_system::{Errno, Requester};
use rustix::fs::{AtFlags, OFlags};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

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
    fn found_at(&self, path: &Path) -> Option<Look> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let dir = open_below(self.root(), parent, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        Some(look_in(&stat_at(dir.as_fd(), path.file_name()?).ok()?))
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
                let found = super::super::linux_disk::stat(saving.staged.file.as_fd()).ok()?;
                return Some(id_in(&found));
            }
            self.found_at(&path).map(|found| found.id)
        })
    }

    /// Whether a name is the shared memory of a database. Removes it if it was made for other files
    /// than those that are there now; programs that have it open keep it.
    pub(super) fn drop_shared_memory(&self, at: NameIn<'_>, spot: &Spot) -> Done<bool> {
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
            self.nodes.removed(ino, (at.parent, at.name));
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

    fn versions_of(&self, database: &Path) -> [Option<Look>; 2] {
        [b"".as_slice(), b"-wal"].map(|end| self.found_at(&database_file(database, end)))
    }

    /// Returns the database of a shared memory that programs may have open.
    fn database_of_open(&self, memory: FileId) -> Option<PathBuf> {
        let ino = self.nodes.of_file(memory)?;
        database_of_shm(&self.nodes.path(ino).ok()?)
    }

    /// Remembers the versions of all databases with a shared memory: the gate has closed.
    pub(super) fn note_databases(&self) {
        for (memory, made_for) in self.databases.made_for.lock().iter_mut() {
            made_for.closed = self.database_of_open(*memory).map(|it| self.versions_of(&it));
        }
    }

    /// Forgets the shared memories of databases that were changed while the gate was closed: the
    /// next program that opens one of these databases gets a new shared memory.
    pub(super) fn forget_shared_memories(&self) {
        self.databases.made_for.lock().retain(|memory, made_for| {
            let Some(closed) = made_for.closed.take() else { return true };
            let now = self.database_of_open(*memory).map(|database| self.versions_of(&database));
            now == Some(closed)
        });
    }
}
