//! Changes of attributes: size, mode, owner, times, and extended attributes.

use super::data::ContentChange;
use crate::guard::disk::acting_as;
use crate::guard::disk::linux_disk::{path_of, reopen, stat};
use crate::guard::disk::operations::ACCESS_ACL;
use crate::guard::stage::staged_file::SaveState;
use crate::guard::view::folder_view::{FolderView, Located, LocatedFile, MayWait, errno};
use crate::guard::view::parts::attributes::type_in;
use kernel::file_system::Done;
use kernel::file_system::{Errno, NodeAttr, NodeType, Requester, SetAttrs, TimeOrNow};
use kernel::interrupts::may_keep_set_gid;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::time::{Duration, SystemTime};

fn os(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

/// Returns a time as utimensat(2) takes it.
fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: i64::from(since.subsec_nanos()),
            },
            Err(before) => {
                let before: Duration = before.duration();
                let up = i64::from(before.subsec_nanos() > 0);
                let nanos = (1_000_000_000 - i64::from(before.subsec_nanos())) % 1_000_000_000;
                Timespec { tv_sec: -(before.as_secs() as i64) - up, tv_nsec: nanos }
            }
        },
    }
}

impl FolderView {
    pub(in crate::guard::view) async fn set_attributes(
        &self,
        who: Requester,
        ino: u64,
        wanted: &SetAttrs,
    ) -> Done<NodeAttr> {
        if crate::guard::view::parts::control_files::is_control(ino) {
            // A program that writes to a control file truncates it first.
            return self.attributes_of(who, ino);
        }
        self.check_no_snapshot(ino)?;
        if let Some(size) = wanted.size {
            self.set_size(who, ino, wanted.fh, size).await?;
        }
        let is_more = wanted.mode.is_some()
            || wanted.owner != (None, None)
            || wanted.times.0.is_some()
            || wanted.times.1.is_some();
        if is_more {
            let path = self.nodes.path(ino).unwrap_or_default();
            let open = wanted.fh.and_then(|fh| self.files.get(fh));
            if let Some(open) = &open {
                self.wake(who, open).await?;
            }
            let tenure = open.as_ref().and_then(|open| Some((open.clone(), open.tenure()?)));
            let _pass = match &tenure {
                Some((open, tenure)) => Some(self.pass_open(who, open, *tenure, false)?),
                None if self.nodes.is_local(ino) => None,
                None => Some(self.pass(who, &path, self.may_wait_for(ino)).await?),
            };
            let located = self.locate_unshared(ino)?;
            change_attributes(&located, wanted)?;
            self.note_change(&located.found, located.as_fd());
        }
        self.attributes_of(who, ino)
    }

    /// Returns how long a change of the attributes of a file may wait. The kernel keeps the file
    /// locked, and so a directory.
    fn may_wait_for(&self, ino: u64) -> MayWait {
        let is_held = self.guard.gate().tenure().is_some();
        let is_dir = |located: LocatedFile| type_in(&located.found) == NodeType::Directory;
        if is_held || self.locate(ino).is_ok_and(is_dir) { MayWait::Briefly } else { MayWait::Long }
    }

    /// Changes the size of a file by its open file, or by its path.
    async fn set_size(&self, who: Requester, ino: u64, fh: Option<u64>, size: u64) -> Done<()> {
        if let Some(open) = fh.and_then(|fh| self.files.get(fh)).filter(|o| o.is_for_writing()) {
            self.wake(who, &open).await?;
            self.announce_open(who, &open, false).await?;
            if let (0, Some(fh), Some(tenure)) = (size, fh, open.tenure()) {
                let pass = self.pass_open(who, &open, tenure, false)?;
                if self.replace_truncated(&pass, who, fh, &open)? {
                    return Ok(());
                }
            }
            return self.change(who, &open, ContentChange::NOTHING, |file| file.set_len(size));
        }
        if self.nodes.is_local(ino) {
            let located = self.locate(ino)?;
            let file = reopen(located.as_fd(), OFlags::WRONLY | OFlags::NONBLOCK);
            let cut = |file: File| acting_as::content(who.into(), || file.set_len(size));
            file.and_then(cut).map_err(|error| errno(&error))?;
            if let Ok(found) = stat(located.as_fd()) {
                drop(self.local.shares.note(&found));
            }
            return Ok(());
        }
        let path = self.nodes.path(ino).unwrap_or_default();
        let pass = self.pass(who, &path, MayWait::Long).await?;
        let located = self.locate_unshared(ino)?;
        match &located.located {
            Located::Saving(saving) => {
                if saving.staged.tenure != pass.tenure() {
                    return Err(Errno::ESTALE);
                }
                if saving.staged.save_state() == SaveState::Unpublished {
                    saving.wrote(&mut *(self.processes)(ino), who.pid);
                }
                let file = &saving.staged.file;
                let changed = acting_as::content(who.into(), || file.set_len(size));
                if changed.is_ok() {
                    Self::settle_saving(who, saving);
                }
                changed.map_err(|error| errno(&error))
            }
            Located::Path(_) | Located::Open(_) | Located::Kept(_) => {
                self.name_in_place(&pass, who, ino, &located.path, located.as_fd())?;
                self.log_in_place_of(who, &located.path, &located.as_fd())?;
                let file = reopen(located.as_fd(), OFlags::WRONLY | OFlags::NONBLOCK);
                let cut = |file: File| acting_as::content(who.into(), || file.set_len(size));
                let changed = file.and_then(cut);
                self.note_change(&located.found, located.as_fd());
                changed.map_err(|error| errno(&error))
            }
        }
    }

    /// Sets an extended attribute. A program that does not belong to the group of a file can't
    /// leave it set-group-id when it sets its ACL: the kernel leaves this check to the guard, whose
    /// own call passes it.
    pub(in crate::guard::view) async fn set_xattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Done<()> {
        let set = |path: &str| {
            rustix::fs::setxattr(path, name, value, flags)?;
            let found = rustix::fs::stat(path)?;
            let is_set = found.st_mode & libc::S_ISGID != 0;
            if name == ACCESS_ACL && is_set && !may_keep_set_gid(who, found.st_gid) {
                rustix::fs::chmod(path, Mode::from_raw_mode(found.st_mode & 0o5777))?;
            }
            Ok(())
        };
        self.set_attribute(who, ino, set).await
    }

    pub(in crate::guard::view) async fn set_attribute(
        &self,
        who: Requester,
        ino: u64,
        change: impl FnOnce(&str) -> rustix::io::Result<()>,
    ) -> Done<()> {
        if crate::guard::view::parts::control_files::is_control(ino) {
            return Err(Errno::EPERM);
        }
        self.check_no_snapshot(ino)?;
        let path = self.nodes.path(ino).unwrap_or_default();
        let _pass = if self.nodes.is_local(ino) {
            None
        } else {
            Some(self.pass(who, &path, self.may_wait_for(ino)).await?)
        };
        let located = self.locate_unshared(ino)?;
        let changed = acting_as::naming(who.into(), || Ok(change(&path_of(located.as_fd()))?));
        changed.map_err(|error| errno(&error))?;
        self.note_change(&located.found, located.as_fd());
        Ok(())
    }
}

/// Changes mode, owner and times of a located file, on its descriptor.
fn change_attributes(located: &LocatedFile, wanted: &SetAttrs) -> Done<()> {
    let fd = located.as_fd();
    if let Some(mode) = wanted.mode {
        rustix::fs::chmod(path_of(fd), Mode::from_raw_mode(mode & 0o7777)).map_err(os)?;
    }
    if wanted.owner != (None, None) {
        let (user, group) = wanted.owner;
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        rustix::fs::chownat(fd, "", user, group, AtFlags::EMPTY_PATH).map_err(os)?;
    }
    if wanted.times.0.is_some() || wanted.times.1.is_some() {
        let times = Timestamps {
            last_access: timespec(wanted.times.0),
            last_modification: timespec(wanted.times.1),
        };
        rustix::fs::utimensat(fd, "", &times, AtFlags::EMPTY_PATH).map_err(os)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        let at = SystemTime::UNIX_EPOCH - Duration::from_millis(1_500);
        let time = timespec(Some(TimeOrNow::SpecificTime(at)));
        assert_eq!((time.tv_sec, time.tv_nsec), (-2, 500_000_000));
        let whole = SystemTime::UNIX_EPOCH - Duration::from_secs(3);
        let time = timespec(Some(TimeOrNow::SpecificTime(whole)));
        assert_eq!((time.tv_sec, time.tv_nsec), (-3, 0));
    }
}
