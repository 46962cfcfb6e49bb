//! Dormant files: files that programs keep open for writing when a tenure ends. A program goes on
//! in the next tenure as if nothing had happened, if nobody else has changed its files meanwhile.
//!
//! A database is a set of files: `X`, `X-wal` and `X-journal`. If one of them has changed, a
//! program that has any of them open must open all of them again.

use super::super::disk::Look;
use super::super::linux_disk::{look_in, open_below, stat_at};
use super::super::staged_file::SaveState;
use super::super::tenure::TenureId;
use super::super::tenure_news::MayGoOn;
use super::database_files::{ClosedVersion, DATABASE_FILES, database_file, database_of};
use super::folder_view::{FolderView, Located, MayWait};
use super::open_file::{Content, OpenFile, Writing};
use super::process_files::process_if_running;
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::file_system::{Errno, Requester, WriteRequest};
use rustix::fs::OFlags;
use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FolderView {
    /// Returns the files of a database as they are now.
    fn database_files(&self, database: &Path) -> [Option<Look>; 3] {
        let parent = database.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let Ok(dir) = open_below(self.root(), parent, flags) else { return [None; 3] };
        DATABASE_FILES.map(|end| {
            let path = database_file(database, end);
            let found = stat_at(dir.as_fd(), path.file_name()?).ok()?;
            Some(look_in(&found))
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
        Some(ClosedVersion { file: look_in(&located.found), database })
    }

    /// Returns the open files through which programs may change the folder.
    fn open_for_writing(&self) -> impl Iterator<Item = Arc<OpenFile>> {
        let nodes = self.nodes.open_nodes();
        let open = nodes.into_iter().flat_map(|ino| self.nodes.open_files(ino));
        open.filter(|open| open.is_for_writing())
    }

    /// Makes the files of a tenure dormant whose gate has closed for good, but for those that are
    /// not in the folder.
    pub(super) fn make_dormant(&self, tenure: TenureId, may_go_on: MayGoOn) {
        for open in self.open_for_writing() {
            let is_there = match &open.content {
                Content::InPlace(_) => true,
                Content::Saving(saving) => saving.staged.save_state() == SaveState::Published,
                Content::Backed(_)
                | Content::Local(..)
                | Content::Control(_)
                | Content::Record(_) => false,
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
    pub(super) fn wake_dormant(&self, tenure: TenureId) {
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
        let process = |open: &OpenFile| process_if_running(open.opener);
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
    pub(super) async fn wake_to_write(
        &self,
        who: Requester,
        open: &OpenFile,
        asked: WriteRequest,
    ) -> Done<()> {
        // The kernel writes the pages of a mapping back while no program waits.
        if asked.from_cache { Ok(()) } else { self.wake(who, open).await }
    }

    /// Takes the lock for a program that changes a dormant file.
    pub(super) async fn wake(&self, who: Requester, open: &OpenFile) -> Done<()> {
        if !open.is_dormant() {
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
