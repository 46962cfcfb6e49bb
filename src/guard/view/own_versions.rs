//! Tells the guard which versions of files the programs of the view have left, and tells the
//! programs which foreign versions were put aside.

use super::super::gate::Pass;
use super::super::linux_disk::{look_in, stat};
use super::super::lost_files::LostReason;
use super::super::tenure_events::TenureEvent;
use super::folder_view::FolderView;
use super::open_file::{Content, OpenFile};
use crate::fuse::kernel::file_system::Done;
use crate::fuse::kernel::file_system::{Errno, Requester};
use crate::time::Wall;
use rustix::fs::Statx;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

impl FolderView {
    /// Records the version of a file whose attributes or names a program has changed, unless the
    /// file was foreign before that.
    pub(super) fn note_change(&self, before: &Statx, file: BorrowedFd<'_>) {
        if !self.guard.is_foreign(&look_in(before))
            && let Ok(found) = stat(file)
        {
            self.guard.record_own(&look_in(&found));
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
            let found = look_in(&found);
            self.guard.record_own(&found);
            self.log_left(open, &found);
        }
    }

    /// Records that a program has opened a file for reading.
    pub(super) fn note_read(&self, who: Requester, found: &Statx) {
        let owner = || self.policy.owner.of(who.uid, who.pid);
        self.guard.note_read(&look_in(found), owner);
    }

    /// Fails if a change must not replace a file, since another machine has published it and no
    /// program has opened it.
    pub(super) fn check_unread(
        &self,
        who: Requester,
        (pass, path): (&Pass<'_>, &Path),
        there: Option<&Statx>,
    ) -> Done<()> {
        let checked =
            there.map_or(Ok(()), |it| self.guard.check_unread(&look_in(it), pass.owner()));
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
            self.refused.record(who.uid, sentence);
            let at = Wall::now().to_string();
            self.control.publish(&TenureEvent::new(serde_json::json!({
                "at": at, "event": event, "path": path, "number": number,
            })));
        }
    }
}
