//! Lists, restores and drops lost files for `latchfs guard lost`.

use super::super::disk::{IfThere, Place};
use super::super::linux_disk::{list, open_below};
use super::super::lost_files::DESCRIPTION_BYTES_MAX;
use super::super::lost_files::LostDescription;
use super::super::stage::PublishError;
use super::folder_view::{FolderView, MayWait};
use crate::fuse::kernel::caller_identity::writable_dir;
use crate::fuse::kernel::values::Requester;
use crate::os_error::said;
use rustix::fs::{AtFlags, OFlags};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The maximum number of lost files that one answer lists.
const LISTED_MAX: usize = 1_000;
impl FolderView {
    fn open_lost(&self, name: &str, flags: OFlags) -> std::io::Result<File> {
        let dir = self.guard.lost().dir();
        open_below(dir.as_fd(), Path::new(name), flags | OFlags::NONBLOCK).map(File::from)
    }

    fn description(&self, number: u64) -> std::io::Result<LostDescription> {
        let mut text = Vec::new();
        let file = self.open_lost(&format!("{number}.json"), OFlags::RDONLY)?;
        file.take(DESCRIPTION_BYTES_MAX as u64).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Whether a user may see a lost file: its writer and root may.
    fn may_see(who: Requester, file: &LostDescription) -> bool {
        Self::rights(who.uid).may_see_lost(file.uid)
    }

    /// Returns the lost files that a user may see, newest first.
    pub(super) fn lost_list(&self, who: Requester) -> Value {
        let entries = match list(self.guard.lost().dir().as_fd()) {
            Ok(entries) => entries,
            Err(error) => return json!({"error": format!("the lost files can't be read: {error}")}),
        };
        let number = |name: &OsString| name.to_str()?.parse::<u64>().ok();
        let mut numbers: Vec<_> = entries.iter().filter_map(|(name, ..)| number(name)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let mut files = Vec::new();
        for number in numbers {
            let Ok(about) = self.description(number) else { continue };
            if !Self::may_see(who, &about) {
                continue;
            }
            let size = self.open_lost(&number.to_string(), OFlags::RDONLY);
            let size = size.and_then(|file| file.metadata()).map_or(0, |found| found.len());
            files.push(json!({
                "number": number, "path": about.path, "uid": about.uid, "at": about.at,
                "size": size, "tenure": about.tenure, "why": about.reason.clause(),
            }));
            if files.len() >= LISTED_MAX {
                break;
            }
        }
        json!({ "lost": files })
    }

    /// Puts a lost file into the folder: under its own name if that is free, else beside the file
    /// that has the name.
    pub(super) async fn lost_restore(&self, who: Requester, number: u64) -> Value {
        let refused = |why: String| json!({"error": why});
        let about = match self.description(number) {
            Ok(about) if Self::may_see(who, &about) => about,
            Ok(_) | Err(_) => return refused(format!("there is no lost file {number} of yours")),
        };
        let path = PathBuf::from(&about.path);
        let Ok(pass) = self.pass(who, &path, MayWait::Long).await else {
            return refused(self.refused.text(who.uid).trim_end().to_owned());
        };
        let file = match self.open_lost(&number.to_string(), OFlags::RDWR) {
            Ok(file) => file,
            Err(error) => return refused(format!("lost file {number} can't be opened: {error}")),
        };
        let dir = match self.place_of_lost(who, &path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let shown = path.display();
                return refused(format!(
                    "user {} may not make files in the directory of {shown}; ask its owner, or \
                     restore the file as root",
                    who.uid
                ));
            }
            Err(_) => {
                return refused(format!(
                    "the directory of {} is gone; make it again, and restore then",
                    path.display()
                ));
            }
        };
        for to in [path.clone(), beside(&path, number)] {
            let Some(name) = to.file_name() else { break };
            let place = Place::new(&dir, name);
            match self.guard.publish_copy(&pass, &file, place, to.as_os_str(), IfThere::Fail) {
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
        writable_dir(who, || open_below(self.root(), parent, flags))
    }

    /// Removes a lost file for good.
    pub(super) fn lost_drop(&self, who: Requester, number: u64) -> Value {
        match self.description(number) {
            Ok(about) if Self::may_see(who, &about) => {
                self.drop_lost(number);
                json!({ "dropped": about.path })
            }
            Ok(_) | Err(_) => json!({"error": format!("there is no lost file {number} of yours")}),
        }
    }

    fn drop_lost(&self, number: u64) {
        let dir = self.guard.lost().dir();
        for name in [number.to_string(), format!("{number}.json")] {
            if let Err(error) = rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
                log::debug!("lost file {name} can't be removed: {error}");
            }
        }
        if let Err(error) = self.guard.count_lost() {
            log::warn!("the lost files can't be counted: {error}");
        }
    }
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
    fn a_failed_restore_is_told_as_a_sentence() {
        let full = PublishError::Disk(std::io::Error::from_raw_os_error(libc::ENOSPC));
        let sentence = not_restored(7, &full);
        assert!(sentence.contains("lost file 7") && sentence.contains("no space"), "{sentence}");
        let fenced = not_restored(7, &PublishError::Fenced { is_kept: false });
        assert!(fenced.contains("another machine"), "{fenced}");
    }
}
