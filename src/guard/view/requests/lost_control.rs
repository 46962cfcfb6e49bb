//! Lists, restores and drops lost files for `latchfs guard lost`.
//!
//! Whether another guard or a person may have changed the lost files.

use crate::auth::FolderAct;
use crate::base::said;
use crate::guard::disk::acting_as;
use crate::guard::disk::acting_as::writable_dir;
use crate::guard::disk::linux_disk::{
    LinuxDisk, copy_content, copy_of_owner, copy_times, open_below, stat, stat_at,
};
use crate::guard::disk::operations::{Disk as _, IfThere, Place};
use crate::guard::lost_files::{LostDescription, LostFiles};
use crate::guard::stage::publish::PublishError;
use crate::guard::view::folder_view::{FolderView, MayWait};
use kernel::file_system::Requester;
use parking_lot::Mutex;
use rustix::fs::{OFlags, StatxTimestamp};
use serde_json::{Value, json};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether the names of the lost files must be read again.
#[derive(Default)]
pub(in crate::guard::view) struct LostListing(Mutex<Option<StatxTimestamp>>);

impl LostListing {
    /// Whether the directory of the lost files has changed since the last call.
    pub(in crate::guard::view) fn has_changed(&self, files: &LostFiles<LinuxDisk>) -> bool {
        let changed = stat(files.dir().as_fd()).ok().map(|found| found.stx_ctime);
        let mut last = self.0.lock();
        let is_same =
            |a: &StatxTimestamp, b: &StatxTimestamp| (a.tv_sec, a.tv_nsec) == (b.tv_sec, b.tv_nsec);
        let has_changed = match (&*last, &changed) {
            (Some(last), Some(changed)) => !is_same(last, changed),
            _ => true,
        };
        *last = changed;
        has_changed
    }
}

/// The number of lost files that one answer lists.
const LISTED_MAX: usize = 200;
/// The size in bytes with which an answer is complete. The next one goes on.
const LISTED_BYTES: usize = 48 << 10;

impl FolderView {
    /// Reads the names of the lost files again.
    pub(super) fn refresh_lost(&self) {
        if let Err(error) = self.guard.lost().refresh(self.guard.disk()) {
            log::warn!("the lost files can't be counted: {error}");
        }
    }

    fn open_lost(&self, name: &str, flags: OFlags) -> std::io::Result<File> {
        let dir = self.guard.lost().dir();
        open_below(dir.as_fd(), Path::new(name), flags | OFlags::NONBLOCK).map(File::from)
    }

    fn description(&self, number: u64) -> std::io::Result<LostDescription> {
        self.guard.lost().description(self.guard.disk(), number)
    }

    /// Whether the rights of a user to an act include a lost file.
    fn may(&self, who: Requester, act: FolderAct, file: &LostDescription) -> bool {
        self.user(who).extent(act).includes(file.uid == who.uid)
    }

    /// Returns lost files that a user may see, newest first: those with numbers below `before`, as
    /// many as one answer holds. If there are more, `next` is the number below which they are.
    pub(in crate::guard::view) async fn lost_list(&self, who: Requester, before: u64) -> Value {
        let listed = self.slowly(who, move |view| {
            if before == u64::MAX {
                view.refresh_lost();
            }
            Ok(view.lost_page(who, before))
        });
        listed.await.unwrap_or_else(|_| json!({"error": "the guard ends"}))
    }

    fn lost_page(&self, who: Requester, before: u64) -> Value {
        let extent = self.user(who).extent(FolderAct::ListLost);
        let may_see = |uid| extent.includes(uid == who.uid);
        let numbers = self.guard.lost().newest(before, LISTED_MAX, may_see);
        let (mut files, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        for number in &numbers {
            if bytes >= LISTED_BYTES {
                break;
            }
            looked_at += 1;
            let Some(file) = self.shown_lost(who, *number) else { continue };
            bytes += file.to_string().len();
            files.push(file);
        }
        let has_more = looked_at < numbers.len() || numbers.len() == LISTED_MAX;
        let next = numbers[..looked_at].last().filter(|_| has_more);
        json!({ "lost": files, "next": next })
    }

    /// Returns a lost file as an answer shows it.
    fn shown_lost(&self, who: Requester, number: u64) -> Option<Value> {
        // Another guard may have removed it, and another file may have its number.
        let about = self.description(number).ok()?;
        let about = Some(about).filter(|about| self.may(who, FolderAct::ListLost, about))?;
        let size = self.open_lost(&number.to_string(), OFlags::RDONLY);
        let size = size.and_then(|file| file.metadata()).map_or(0, |found| found.len());
        let mut shown = json!({
            "number": number, "path": about.path, "uid": about.uid, "at": about.at,
            "size": size, "tenure": about.tenure, "why": about.reason.clause(),
        });
        if let Some(bytes) = about.path_bytes {
            shown["path_bytes"] = bytes.into();
        }
        Some(shown)
    }

    /// Puts a lost file into the folder: under its own name if that is free, else beside the file
    /// that has the name. Others are answered while it is copied.
    pub(in crate::guard::view) async fn lost_restore(&self, who: Requester, number: u64) -> Value {
        let refused = |why: String| json!({"error": why});
        let about = match self.description(number) {
            Ok(about) if self.may(who, FolderAct::RestoreLost, &about) => about,
            Ok(_) | Err(_) => return refused(format!("there is no lost file {number} of yours")),
        };
        let path = about.place();
        // A copy may take long, and nobody who wants the lock waits for it: the gate is passed once
        // more when the copy is there.
        if self.pass(who, &path, MayWait::Long).await.map(drop).is_err() {
            return refused(self.refused.last(self.refused_of(who)));
        }
        let file = match self.open_lost(&number.to_string(), OFlags::RDWR) {
            Ok(file) => Arc::new(file),
            Err(error) => return refused(format!("lost file {number} can't be opened: {error}")),
        };
        let dir = match self.place_of_lost(who, &path) {
            Ok(dir) => Arc::new(dir),
            Err(error) => return refused(no_place(who, &path, &error)),
        };
        for to in [path.clone(), beside(&path, number)] {
            let Some(name) = to.file_name() else { break };
            if stat_at(dir.as_fd(), name).is_ok() {
                continue;
            }
            // A copy that was refused one name can't get another one.
            let (lost, into) = (Arc::clone(&file), Arc::clone(&dir));
            let copied = self.slowly(who, move |_| Ok(restored_copy(who, &lost, &into))).await;
            let copied = copied.unwrap_or_else(|_| Err(std::io::ErrorKind::Interrupted.into()));
            let Ok(pass) = self.pass(who, &path, MayWait::Long).await else {
                return refused(self.refused.last(self.refused_of(who)));
            };
            let restored = copied.and_then(|copy| {
                let (at, to) = (Place::new(&*dir, name), to.as_os_str());
                let publish = || Ok(self.guard.publish_made(&pass, &copy, at, to, IfThere::Fail));
                acting_as::naming(who.into(), publish)
            });
            match restored.unwrap_or_else(|error| Err(PublishError::Disk(error))) {
                Ok(()) => {
                    self.drop_lost(number);
                    return json!({ "restored": to.display().to_string() });
                }
                Err(PublishError::Disk(error))
                    if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return refused(not_restored(number, &error)),
            }
        }
        refused(format!("{} and the name beside it are taken", path.display()))
    }

    /// Opens the directory of a path, if the user may make files there: it may be another directory
    /// than the one in which the user wrote.
    fn place_of_lost(&self, who: Requester, path: &Path) -> std::io::Result<OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        writable_dir(who.into(), || open_below(self.root(), parent, flags))
    }

    /// Removes a lost file for good.
    pub(in crate::guard::view) async fn lost_drop(&self, who: Requester, number: u64) -> Value {
        let dropped = self.slowly(who, move |view| {
            let may = |about: &LostDescription| view.may(who, FolderAct::DropLost, about);
            Ok(view.description(number).ok().filter(may).map(|about| {
                view.drop_lost(number);
                about.path
            }))
        });
        match dropped.await {
            Ok(Some(path)) => json!({ "dropped": path }),
            _ => json!({"error": format!("there is no lost file {number} of yours")}),
        }
    }

    fn drop_lost(&self, number: u64) {
        if let Err(error) = self.guard.lost().remove(self.guard.disk(), number) {
            log::debug!("lost file {number} can't be removed: {error}");
        }
    }
}

/// Returns the sentence for a lost file whose directory can't take it.
fn no_place(who: Requester, path: &Path, error: &std::io::Error) -> String {
    let shown = path.display();
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return format!(
            "user {} may not make files in the directory of {shown}; ask its owner, or restore the \
             file as root",
            who.uid
        );
    }
    format!("the directory of {shown} is gone; make it again, and restore then")
}

/// Makes a copy of a lost file that has no name yet. It belongs to the user who restores it,
/// whoever wrote it, and has no right that this user could not give to a file.
fn restored_copy(who: Requester, lost: &File, dir: &OwnedFd) -> std::io::Result<File> {
    let copy = acting_as::making(who.into(), || LinuxDisk.unnamed_file(dir, 0o600))?;
    acting_as::content(who.into(), || {
        copy_content(lost, &copy)?;
        copy_of_owner(lost.as_fd(), copy.as_fd())?;
        copy_times(lost.as_fd(), &copy)
    })?;
    LinuxDisk.sync_file(&copy)?;
    Ok(copy)
}

/// Returns the sentence for a lost file that could not be restored.
fn not_restored(number: u64, error: &PublishError) -> String {
    let why = match error {
        PublishError::Disk(error) | PublishError::Stays { error, .. } => said(error),
        PublishError::Fenced { .. } => "another machine has taken the folder over".to_owned(),
    };
    format!("lost file {number} was not restored, and is still there: {why}; try again then")
}

/// Returns the path of a restored file beside the one that has its name: `a (restored 7).md`.
fn beside(path: &Path, number: u64) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(" (restored {number})"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_file_keeps_its_extension() {
        assert_eq!(beside(Path::new("a/notes.md"), 7), Path::new("a/notes (restored 7).md"));
        assert_eq!(beside(Path::new("Makefile"), 1), Path::new("Makefile (restored 1)"));
    }

    #[test]
    fn a_failed_restore_is_reported_as_a_sentence() {
        let full = PublishError::Disk(std::io::Error::from_raw_os_error(libc::ENOSPC));
        let sentence = not_restored(7, &full);
        assert!(sentence.contains("lost file 7") && sentence.contains("no space"), "{sentence}");
        let fenced = not_restored(7, &PublishError::Fenced { is_kept: false });
        assert!(fenced.contains("another machine"), "{fenced}");
    }
}
