//! Closes and syncs open files: the moments at which a file that was saved as a whole appears in
//! the folder.
//!
//! Tells the guard which versions of files the programs of the view have left, and tells the
//! programs which foreign versions were put aside.

use crate::guard::disk::acting_as;
use crate::guard::disk::acting_as::User;
use crate::guard::disk::linux_disk::{stat, stat_in};
use crate::guard::disk::operations::Place;
use crate::guard::folder::folder_guard::SaveError;
use crate::guard::lost_files::LostReason;
use crate::guard::stage::gate::{Closed, Pass};
use crate::guard::stage::staged_file::SaveState;
use crate::guard::tenures::tenure_events::TenureEvent;
use crate::guard::view::folder_view::{FolderView, errno};
use crate::guard::view::parts::attributes::ChangeTime;
use crate::guard::view::parts::close_rule::{OnClose, Saving};
use crate::guard::view::parts::open_file::{Content, OpenFile, Writing};
use crate::time::Wall;
use kernel::file_system::{Done, Errno, Requester};
use rustix::fs::Statx;
use serde_json::json;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// The caller of a request of the kernel itself.
const KERNEL: Requester = Requester { uid: 0, gid: 0, pid: 0 };

impl FolderView {
    /// Publishes a file under its name in the view, unless it is published already.
    pub(in crate::guard::view) fn publish(
        &self,
        who: Requester,
        ino: u64,
        saving: &Arc<Saving>,
        sync: bool,
    ) -> Done<()> {
        if saving.staged.save_state() == SaveState::Published {
            return Ok(());
        }
        let Ok(path) = self.nodes.path(ino) else {
            // The file was removed before it was published: it has no name to appear under.
            return Ok(());
        };
        saving.staged.set_path(path.as_os_str());
        let published = if let Ok((dir, name)) = &self.directory_of(ino) {
            let is_of = |owner| who.pid == 0 || Self::is_of(owner, who);
            let sync = sync || self.policy.sync_saves;
            let to = Place::new(dir, name);
            let publish = || Ok(self.guard.publish(&saving.staged, is_of, to, sync));
            let before = stat(saving.staged.file.as_fd()).map_err(|error| errno(&error))?;
            // The sticky bit of the directory then keeps the file from replacing one of another
            // user that has just got the name.
            let published = acting_as::naming(User::owning(&before), publish);
            if let Ok(after) = stat(saving.staged.file.as_fd()) {
                self.nodes.published(ino, ChangeTime::of_publish(&before, &after));
            }
            self.tell_displaced(who);
            published.unwrap_or_else(|error| {
                self.guard.put_aside(&saving.staged, LostReason::NotNamed);
                Err(SaveError::Disk(error))
            })
        } else {
            self.guard.put_aside(&saving.staged, LostReason::NoDirectory);
            Err(SaveError::Disk(io::Error::from_raw_os_error(libc::ENOENT)))
        };
        match published {
            Ok(()) => {
                self.nodes.saved(ino);
                self.tenures.saved();
                Ok(())
            }
            Err(error) => {
                let is_aside = matches!(saving.staged.save_state(), SaveState::PutAside(_));
                if is_aside {
                    self.nodes.saved(ino);
                }
                Err(self.unsaved(who, &path, &error))
            }
        }
    }

    pub(in crate::guard::view) fn flush_file(&self, who: Requester, ino: u64, fh: u64) -> Done<()> {
        let open = self.open_of(fh)?;
        let Some(saving) = open.saving().filter(|_| open.is_for_writing()) else {
            return self.check_tenure(who, &open);
        };
        match saving.staged.save_state() {
            SaveState::Published => self.check_tenure(who, &open),
            SaveState::Spoiled(code) => {
                self.guard.put_aside(&saving.staged, LostReason::WriteFailed);
                self.nodes.saved(ino);
                let path = self.nodes.path(ino).unwrap_or_default();
                let why = "a write to it failed, so the version before stays";
                Err(self.say_kept(who, &path, Errno::from_i32(code), why))
            }
            SaveState::PutAside(_) => {
                let path = self.nodes.path(ino).unwrap_or_default();
                let error = SaveError::Closed(Closed::TenureOver);
                Err(self.unsaved(who, &path, &error))
            }
            SaveState::Unpublished => {
                match saving.closed_by(&mut *(self.processes)(ino), who.pid) {
                    OnClose::Publish => self.publish(who, ino, saving, false),
                    OnClose::Killed => Ok(()),
                    // A program that closes its copy of the descriptor learns here that the tenure
                    // is over, even if another program publishes the file.
                    OnClose::Later => {
                        self.pass_open(who, &open, saving.staged.tenure, true).map(drop)
                    }
                }
            }
        }
    }

    /// Fails if the tenure in which a file was opened for writing is over: programs that only look
    /// at the result of close(2) learn of it there.
    fn check_tenure(&self, who: Requester, open: &OpenFile) -> Done<()> {
        let Some(Writing::In(tenure) | Writing::Over(tenure, _)) = open.writing() else {
            return Ok(());
        };
        if !self.nodes.is_changed(open.ino, tenure) {
            return Ok(());
        }
        self.note_written(open);
        self.pass_open(who, open, tenure, true).map(drop)
    }

    /// Handles the close of the last descriptor of an open file.
    pub(in crate::guard::view) fn release_file(&self, ino: u64, fh: u64) {
        let Some(open) = self.files.remove(fh) else { return };
        if open.is_for_writing() {
            self.note_written(&open);
        }
        let saving = open.saving().filter(|_| open.is_for_writing()).cloned();
        let Some(saving) = saving else {
            drop(open);
            self.nodes.closed(ino);
            return self.snapshots.writer_left();
        };
        let is_unannounced = self.is_unannounced(&open, true);
        drop(open);
        let end = move |view: &Self| {
            view.release_saving(ino, &saving);
            view.tenures.saved();
            view.nodes.closed(ino);
            view.snapshots.writer_left();
        };
        if is_unannounced {
            self.after_announcement(end);
        } else {
            end(self);
        }
    }

    fn release_saving(&self, ino: u64, saving: &Arc<Saving>) {
        let others = self.nodes.open_files(ino);
        if others.iter().any(|open| open.is_for_writing() && open.saving().is_some()) {
            return;
        }
        match saving.staged.save_state() {
            SaveState::Unpublished if saving.was_killed() => {
                self.guard.put_aside(&saving.staged, LostReason::Killed);
                self.nodes.saved(ino);
            }
            SaveState::Unpublished => {
                let writer = Requester { uid: saving.staged.uid, ..KERNEL };
                let path = self.nodes.path(ino).unwrap_or_default();
                if self.publish(writer, ino, saving, false).is_err() {
                    let number = self.guard.put_aside(&saving.staged, LostReason::TenureOver);
                    self.tell_unsaved(&path, number);
                }
                self.nodes.saved(ino);
            }
            SaveState::Spoiled(_) => {
                self.guard.put_aside(&saving.staged, LostReason::WriteFailed);
                self.nodes.saved(ino);
            }
            SaveState::Published | SaveState::PutAside(_) => self.nodes.saved(ino),
        }
    }

    /// Tells of a file that could not be published at its last close: close(2) had returned. The
    /// user who wrote it finds the reason in `.latchfs/why`.
    fn tell_unsaved(&self, path: &Path, number: Option<u64>) {
        let (at, path) = (Wall::now().to_string(), path.display().to_string());
        self.control.publish(&TenureEvent::new(json!({
            "at": at, "event": "unsaved", "path": path, "number": number,
        })));
    }

    pub(in crate::guard::view) fn sync_file(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        data_only: bool,
    ) -> Done<()> {
        let open = self.open_of(fh)?;
        let Some(file) = open.file() else { return Ok(()) };
        if let Some(saving) = open.saving().filter(|_| open.is_for_writing()) {
            match saving.staged.save_state() {
                SaveState::Unpublished => return self.publish(who, ino, saving, true),
                SaveState::Published => {}
                SaveState::Spoiled(code) => return Err(Errno::from_i32(code)),
                SaveState::PutAside(_) => {
                    let path = self.nodes.path(ino).unwrap_or_default();
                    let error = SaveError::Closed(Closed::TenureOver);
                    return Err(self.unsaved(who, &path, &error));
                }
            }
        }
        if open.is_for_writing() {
            self.check_tenure(who, &open)?;
        }
        if let (Some(barrier), true) = (self.guard.barrier(), open.logged.load(Acquire) > 0) {
            // After a power failure nobody would know of content that is on the storage.
            barrier.sync_changes().map_err(|error| errno(&error))?;
        }
        let synced = if data_only { file.sync_data() } else { file.sync_all() };
        synced.map_err(|error| errno(&error))
    }

    pub(in crate::guard::view) fn sync_dir(&self, ino: u64) -> Done<()> {
        if crate::guard::view::parts::control_files::is_control(ino) {
            return Ok(());
        }
        let (dir, _) = self.directory(ino)?;
        let synced = crate::guard::disk::operations::Disk::sync_dir(self.guard.disk(), &dir);
        synced.map_err(|error| errno(&error))
    }

    /// Returns the errno for a file that could not be saved, and records the reason.
    pub(super) fn unsaved(&self, who: Requester, path: &Path, error: &SaveError) -> Errno {
        match error {
            SaveError::Closed(closed) => {
                let errno = self.say_kept(who, path, Errno::ESTALE, &self.reason(who, *closed));
                if *closed == Closed::TenureOver {
                    self.tenures.recheck();
                }
                errno
            }
            SaveError::Unannounced => self.unannounced(who, path),
            SaveError::Exists => {
                let why = "another program has made a file of this name meanwhile";
                self.say_kept(who, path, Errno::EEXIST, why)
            }
            SaveError::Unread(unread) => self.say_kept(who, path, Errno::ESTALE, unread),
            SaveError::Linked => self.say(
                who,
                path,
                Errno::EROFS,
                "on storage that machines share, a file with several names is not changed in \
                 place; replace it by a new file, or remove its other names",
            ),
            SaveError::Disk(error) => self.say_kept(who, path, errno(error), error),
        }
    }

    /// Records why a file is not saved whose content is among the lost files. Returns the errno.
    pub(in crate::guard::view) fn say_kept(
        &self,
        who: Requester,
        path: &Path,
        errno: Errno,
        why: &(impl Display + ?Sized),
    ) -> Errno {
        self.say(who, path, errno, &format!("{why}; {}", self.kept()))
    }

    /// Says where the content is that could not be saved.
    pub(in crate::guard::view) fn kept(&self) -> String {
        format!("your text is kept: latchfs guard lost {}", self.shown_at.display())
    }
}

impl FolderView {
    /// Records the version of a file whose attributes or names a program has changed, unless the
    /// file was foreign before that.
    pub(super) fn note_change(&self, before: &Statx, file: BorrowedFd<'_>) {
        if !self.guard.is_foreign(&stat_in(before))
            && let Ok(found) = stat(file)
        {
            self.guard.record_own(&stat_in(&found));
        }
    }

    /// Records the version of a file that a program has changed in place.
    pub(super) fn note_written(&self, open: &OpenFile) {
        let now = self.guard.gate().tenure();
        let is_current = now.is_some_and(|now| open.tenure() == Some(now.id));
        let is_file = matches!(open.content, Content::InPlace(_) | Content::Saving(_));
        if is_current
            && is_file
            && let Some(file) = open.file()
            && let Ok(found) = stat(file.as_fd())
        {
            let found = stat_in(&found);
            self.guard.record_own(&found);
            self.log_left(open, &found);
        }
    }

    /// Records that a program has opened a file for reading.
    pub(in crate::guard::view) fn note_read(&self, who: Requester, found: &Statx) {
        let owner = || self.policy.owner.of(who.uid, who.pid);
        self.guard.note_read(&stat_in(found), owner);
    }

    /// Fails if a change must not replace a file, since another machine has published it and no
    /// program has opened it.
    pub(in crate::guard::view) fn check_unread(
        &self,
        who: Requester,
        pass: &Pass<'_>,
        path: &Path,
        there: Option<&Statx>,
    ) -> Done<()> {
        let checked =
            there.map_or(Ok(()), |it| self.guard.check_unread(&stat_in(it), pass.owner()));
        checked.map_err(|unread| self.say(who, path, Errno::ESTALE, &unread))
    }

    /// Records the version of a file that is about to lose its name, if a program still changes it
    /// in place.
    pub(super) fn note_open(&self, found: &Statx) {
        if let Some(ino) = self.nodes.of_file(Self::id(found)) {
            self.nodes.open_files(ino).iter().for_each(|open| self.note_written(open));
        }
    }

    /// Tells of the versions that a change has replaced and put aside.
    pub(super) fn tell_displaced(&self, who: Requester) {
        for (number, path, reason) in self.guard.take_displaced() {
            let (event, which) = match reason {
                LostReason::Unread => ("unread", "of another machine that no program had opened"),
                _ => ("foreign", "that came past the view"),
            };
            let sentence = format!(
                "{path} had a version {which}; it is kept, and 'latchfs guard lost --restore \
                 {number}' puts it beside the other"
            );
            self.refused.record(self.refused_of(who), sentence);
            let at = Wall::now().to_string();
            self.control.publish(&TenureEvent::new(serde_json::json!({
                "at": at, "event": event, "path": path, "number": number,
            })));
        }
    }
}
