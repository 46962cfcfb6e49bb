//! Opens files, and makes new ones.
//!
//! Opens files for reading.
//!
//! Finds files of the view that programs have mapped: they may change them at any moment without a
//! system call, so the lock is not given up meanwhile.

use super::local_files::Spot;
use crate::guard::disk::acting_as;
use crate::guard::disk::acting_as::User;
use crate::guard::disk::linux_disk::{LinuxDisk, id_in, reopen, stat, stat_at, stat_in};
use crate::guard::disk::operations::{Disk as _, FileId};
use crate::guard::folder::folder_guard::SaveError;
use crate::guard::stage::gate::Pass;
use crate::guard::view::folder_view::{FolderView, Located, LocatedFile, MayWait, errno};
use crate::guard::view::parts::attributes::{
    access_of, copy_attributes, mode_in, truncate_special, type_in,
};
use crate::guard::view::parts::close_rule::Saving;
use crate::guard::view::parts::open_file::{Content, OpenFile, Opening, Writing};
use kernel::file_system::{Done, Errno, NameIn, NewMode, NodeEntry, NodeType, Opened, Requester};
use kernel::handles::Pool;
use kernel::mountinfo::Device;
use rustix::fs::{OFlags, Statx};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether an open with these flags changes the file or lets the program change it. Linux truncates
/// also a file that is opened for reading.
pub(in crate::guard::view) const fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

impl FolderView {
    pub(in crate::guard::view) async fn open_file(
        &self,
        who: Requester,
        ino: u64,
        flags: i32,
    ) -> Done<Opened> {
        if let Some(opened) = self.open_control(who, ino, flags) {
            return opened;
        }
        let path = self.nodes.path(ino).unwrap_or_default();
        let share = self.share(Pool::FolderFiles, who, &path)?;
        if !writes(flags) {
            return self.open_for_reading(Opening { who, share }, ino, flags);
        }
        if self.nodes.is_local(ino) {
            return self.open_local(Opening { who, share }, ino, flags);
        }
        self.check_no_snapshot(ino)?;
        self.check_space(who, &path).await?;
        // An open that truncates a file in place changes it; another one changes nothing yet.
        let pass = if flags & libc::O_TRUNC != 0 {
            self.pass(who, &path, MayWait::Long).await?
        } else {
            self.pass_unannounced(who, &path, MayWait::Long).await?
        };
        let located = self.locate_to_open(who, ino)?;
        if let Located::Saving(saving) = &located.located {
            return self.open_saving(&pass, Opening { who, share }, ino, saving, flags);
        }
        let truncates = flags & libc::O_TRUNC != 0;
        if flags & libc::O_ACCMODE == libc::O_RDONLY && located.found.stx_mode & 0o111 != 0 {
            let why = "the kernel looks only afterwards whether the program runs; open it for \
                       writing";
            return Err(self.say(who, &path, Errno::ETXTBSY, why));
        }
        if truncates && self.is_whole(&located.found, &located.path) {
            return self.replace(&pass, Opening { who, share }, ino, &located);
        }
        self.open_in_place(&pass, Opening { who, share }, ino, &located, flags)
    }

    /// Opens a file for writing that is not published yet: all programs share the one new version.
    fn open_saving(
        &self,
        pass: &Pass<'_>,
        Opening { who, share }: Opening,
        ino: u64,
        saving: &Arc<Saving>,
        flags: i32,
    ) -> Done<Opened> {
        if saving.staged.tenure != pass.tenure() {
            return Err(Errno::ESTALE);
        }
        saving.opened(&mut *(self.processes)(ino), who.pid);
        if flags & libc::O_TRUNC != 0 {
            let cut = acting_as::content(who.into(), || saving.staged.file.set_len(0));
            cut.map_err(|error| errno(&error))?;
            Self::settle_saving(who, saving);
        }
        let content = Content::Saving(Arc::clone(saving));
        Ok(self.opened_for_writing(pass, ino, content, Opening { who, share }))
    }

    fn open_in_place(
        &self,
        pass: &Pass<'_>,
        Opening { who, share }: Opening,
        ino: u64,
        located: &LocatedFile,
        flags: i32,
    ) -> Done<Opened> {
        let is_file = type_in(&located.found) == NodeType::RegularFile;
        if is_file && located.found.stx_nlink > 1 && self.guard.is_shared_storage() {
            return Err(self.unsaved(who, &located.path, &SaveError::Linked));
        }
        self.leave_snapshots(ino, located, false)?;
        let file = reopen(located.as_fd(), access_of(flags)).map_err(|error| errno(&error))?;
        if flags & libc::O_TRUNC != 0 {
            self.name_in_place(pass, who, ino, &located.path, file.as_fd())?;
            self.log_in_place_of(who, &located.path, &file)?;
            acting_as::content(who.into(), || file.set_len(0)).map_err(|error| errno(&error))?;
        }
        if flags & libc::O_ACCMODE == libc::O_RDWR && flags & libc::O_TRUNC == 0 {
            self.note_read(who, &located.found);
        }
        let content = Content::InPlace(file);
        Ok(self.opened_for_writing(pass, ino, content, Opening { who, share }))
    }

    /// Begins a new version of a file that a program rewrites as a whole. If another program has
    /// the old version open, the new one gets a node of its own, which the kernel looks up after
    /// ESTALE: the reads of the other program must not mix the two versions.
    fn replace(
        &self,
        pass: &Pass<'_>,
        Opening { who, share }: Opening,
        ino: u64,
        located: &LocatedFile,
    ) -> Done<Opened> {
        if !self.nodes.open_files(ino).is_empty() {
            return Err(Errno::ESTALE);
        }
        let (saving, file) = self.new_version(pass, who, ino, located)?;
        if !self.nodes.replace_by_saving(ino, file, &saving, None) {
            return Err(Errno::ESTALE);
        }
        let content = Content::Saving(saving);
        Ok(self.opened_for_writing(pass, ino, content, Opening { who, share }))
    }

    /// Begins an empty version of a file, with the attributes that the file has after `O_TRUNC`.
    fn new_version(
        &self,
        pass: &Pass<'_>,
        who: Requester,
        ino: u64,
        located: &LocatedFile,
    ) -> Done<(Arc<Saving>, FileId)> {
        let (dir, _) = self.directory_of(ino)?;
        let mode = u32::from(located.found.stx_mode) & 0o7777;
        let path = located.path.as_os_str();
        let stage = || self.guard.stage_file(pass, &dir, mode, who.uid, path, false);
        let staged = acting_as::making(User::owning(&located.found), stage);
        let staged = staged.map_err(|error| errno(&error))?;
        copy_attributes(located.as_fd(), &located.found, staged.file.as_fd())
            .and_then(|()| truncate_special(who, &staged.file, mode))
            .map_err(|error| errno(&error))?;
        let found = stat(staged.file.as_fd()).map_err(|error| errno(&error))?;
        let saving = Saving::new(staged, who.pid, &mut *(self.processes)(ino));
        Ok((saving, id_in(&found)))
    }

    /// Begins a new version of a file that a program opened for writing only, and truncates before
    /// it writes: that is how vim and sort save. Returns false if the file is changed in place
    /// instead: if another program has it open, or if it was written by this open file before.
    /// (Databases open their files for reading and writing, and truncate them in the middle.)
    pub(super) fn replace_truncated(
        &self,
        pass: &Pass<'_>,
        who: Requester,
        fh: u64,
        open: &Arc<OpenFile>,
    ) -> Done<bool> {
        let Content::InPlace(file) = &open.content else { return Ok(false) };
        let access = rustix::fs::fcntl_getfl(file).map_or(OFlags::RDWR, |flags| flags);
        if access & OFlags::RWMODE != OFlags::WRONLY || open.has_changed.load(Ordering::Acquire) {
            return Ok(false);
        }
        let located = self.locate(open.ino)?;
        let has_name = matches!(located.located, Located::Path(_));
        if !has_name || !self.is_whole(&located.found, &located.path) {
            return Ok(false);
        }
        let Ok(share) = self.share(Pool::FolderFiles, who, &located.path) else { return Ok(false) };
        let (saving, file) = self.new_version(pass, who, open.ino, &located)?;
        if !self.nodes.replace_by_saving(open.ino, file, &saving, Some(open)) {
            return Ok(false);
        }
        let (ino, content) = (open.ino, Content::Saving(saving));
        let open =
            OpenFile::new(ino, content, open.writing(), Opening { who, share }).of_user(open.user);
        self.files.insert(fh, open);
        if let Some(open) = self.files.get(fh) {
            self.nodes.opened(ino, &open);
        }
        Ok(true)
    }

    /// Whether a file gets a new version when a program rewrites it from the start. The path is
    /// empty if the file has no name; it may have lost that since it was looked up.
    pub(in crate::guard::view) fn is_whole(&self, found: &Statx, path: &Path) -> bool {
        type_in(found) == NodeType::RegularFile
            && self.own_links(found) <= 1
            && !path.as_os_str().is_empty()
            && !self.policy.in_place.matches(path)
    }

    /// Opens the directory of a node, and returns the name of the node there. The path of the
    /// directory may lead to another one by now.
    pub(super) fn directory_of(&self, ino: u64) -> Done<(OwnedFd, OsString)> {
        let (parent, name) = self.nodes.place(ino).ok_or(Errno::ESTALE)?;
        Ok((self.directory(parent)?.0, name))
    }

    pub(in crate::guard::view) async fn create_file(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        self.check_name(who, at)?;
        let spot = self.spot(at, true)?;
        self.check_twin(who, &spot, None)?;
        let share = self.share(Pool::FolderFiles, who, &spot.path)?;
        if !spot.is_local {
            self.check_space(who, &spot.path).await?;
        }
        let pass = self.pass_to(who, &spot).await?;
        let Spot { dir, path, .. } = &spot;
        let mode = mode_in(dir, mode);
        let is_exclusive = flags & libc::O_EXCL != 0;
        let exists = self.nodes.saving_at(at.parent, at.name).is_some()
            || stat_at(dir.as_fd(), at.name).is_ok();
        if exists {
            // Another program has made it past the view after the kernel looked for the name. The
            // kernel looks once more then, and checks whether the program may open the file.
            return Err(if is_exclusive { Errno::EEXIST } else { Errno::ESTALE });
        }
        let Some(pass) = pass else {
            return self.create_local(Opening { who, share }, &spot, mode, flags);
        };
        if self.policy.in_place.matches(path) {
            return self.create_in_place(&pass, Opening { who, share }, &spot, mode, flags);
        }
        let path = path.as_os_str();
        let stage = || self.guard.stage_file(&pass, dir, mode, who.uid, path, is_exclusive);
        let staged = acting_as::making(who.into(), stage).map_err(|error| errno(&error))?;
        let found = stat(staged.file.as_fd()).map_err(|error| errno(&error))?;
        let saving = Saving::new(staged, who.pid, &mut *(self.processes)(0));
        let ino = self.nodes.add_saving(at.parent, at.name, id_in(&found), Arc::clone(&saving));
        let content = Content::Saving(saving);
        let opened = self.opened_for_writing(&pass, ino, content, Opening { who, share });
        Ok((self.entry(ino, &found, self.cached_for()), opened))
    }

    /// Makes a file that is written in place from the start, for example a log.
    fn create_in_place(
        &self,
        pass: &Pass<'_>,
        Opening { who, share }: Opening,
        spot: &Spot<'_>,
        mode: u32,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        let Spot { at, dir, path, .. } = spot;
        let log = |made| self.guard.log_made(path.as_os_str(), made).map_err(|error| errno(&error));
        log(None)?;
        let file = acting_as::making(who.into(), || LinuxDisk.unnamed_file(dir, mode));
        let file = file.map_err(|error| errno(&error))?;
        let named = self.make_name(Some(pass), spot.place(), &|at| LinuxDisk.link(&file, at));
        named.map_err(|error| match error {
            // It was made past the view meanwhile: the kernel looks once more.
            Errno::EEXIST if flags & libc::O_EXCL == 0 => Errno::ESTALE,
            error => error,
        })?;
        let found = stat(file.as_fd()).map_err(|error| errno(&error))?;
        log(Some(&stat_in(&found)))?;
        let ino = self.nodes.found(at.parent, at.name, id_in(&found), false);
        let content = Content::InPlace(file);
        let opened = self.opened_for_writing(pass, ino, content, Opening { who, share });
        Ok((self.entry(ino, &found, self.cached_for()), opened))
    }

    fn opened_for_writing(
        &self,
        pass: &Pass<'_>,
        ino: u64,
        content: Content,
        by: Opening,
    ) -> Opened {
        let writing = Some(Writing::In(pass.tenure()));
        self.opened(OpenFile::new(ino, content, writing, by))
    }
}

impl FolderView {
    /// Locates a file that a program opens, or is about to open for the second time. A file that
    /// was replaced after the second lookup is opened nevertheless, as if the open had come before.
    pub(super) fn locate_found(&self, who: Requester, ino: u64) -> Done<LocatedFile> {
        self.locate(ino).or_else(|error| {
            let kept = self.second_opens.found(who, ino).ok_or(error)?;
            let (known, found) = (self.nodes.known(ino)?, stat(kept.as_fd()).map_err(|_| error)?);
            if id_in(&found) != known.file {
                return Err(error);
            }
            let (located, path) = (Located::Kept(kept), known.path.unwrap_or_default());
            Ok(LocatedFile { located, found, path, base: known.base })
        })
    }

    /// Locates a file that a program opens. If its name leads to another file by now, the kernel
    /// has to look the name up: a program must not get an older version, whose content nobody would
    /// find after it was changed.
    pub(super) fn locate_to_open(&self, who: Requester, ino: u64) -> Done<LocatedFile> {
        let located = self.locate_found(who, ino)?;
        let is_old = matches!(located.located, Located::Open(_));
        if is_old && self.second_opens.found(who, ino).is_none() && self.nodes.leave_place(ino) {
            return Err(Errno::ESTALE);
        }
        Ok(located)
    }

    /// Opens a file for a program that only reads it.
    pub(super) fn open_for_reading(&self, by: Opening, ino: u64, flags: i32) -> Done<Opened> {
        let located = self.locate_to_open(by.who, ino)?;
        self.note_read(by.who, &located.found);
        let content = match &located.located {
            Located::Saving(saving) => Content::Saving(Arc::clone(saving)),
            Located::Path(_) | Located::Open(_) | Located::Kept(_) => {
                let file = reopen(located.as_fd(), access_of(flags));
                Content::InPlace(file.map_err(|error| errno(&error))?)
            }
        };
        Ok(self.opened(OpenFile::new(ino, content, None, by)))
    }

    /// Records an open file.
    pub(in crate::guard::view) fn opened(&self, open: OpenFile) -> Opened {
        let (fh, ino, flags) = (self.numbers.next(), open.ino, open.flags());
        let open = Arc::new(open);
        self.nodes.opened(ino, &open);
        self.files.insert_shared(fh, open);
        Opened { fh, flags }
    }
}

/// How much of a line of `maps` is read: the fields before the path are shorter.
const LINE_BYTES: u64 = 256;

/// Whether a line of `/proc/PID/maps` is a shared mapping of one of these files. A program may make
/// a mapping writable later, if it has the file open for writing.
fn is_shared_mapping(line: &[u8], device: Device, files: &HashSet<u64>) -> bool {
    let Ok(text) = std::str::from_utf8(line) else { return false };
    let mut fields = text.split_ascii_whitespace();
    let (Some(permissions), Some(found), Some(ino)) = (fields.nth(1), fields.nth(1), fields.next())
    else {
        return false;
    };
    permissions.ends_with('s')
        && found == format!("{:02x}:{:02x}", device.major, device.minor)
        && ino.parse().is_ok_and(|ino| files.contains(&ino))
}

/// Whether a process has one of the files mapped. One that is gone, or that may not be read because
/// it is another user's, does not: a view that serves one user is closed to other users.
fn has_mapped(process: &str, device: Device, files: &HashSet<u64>) -> bool {
    let Ok(maps) = File::open(format!("/proc/{process}/maps")) else { return false };
    let mut maps = BufReader::new(maps);
    loop {
        let mut line = Vec::new();
        let Ok(count) = std::io::Read::take(&mut maps, LINE_BYTES).read_until(b'\n', &mut line)
        else {
            return false;
        };
        if count == 0 {
            return false;
        }
        // Only the fields before a path can be cut off from text of one.
        if !line.ends_with(b"\n") {
            let _ = maps.skip_until(b'\n');
            let end = line.iter().rposition(|byte| *byte == b' ').unwrap_or(0);
            line.truncate(end);
            while std::str::from_utf8(&line).is_err() {
                line.pop();
            }
        }
        if is_shared_mapping(&line, device, files) {
            return true;
        }
    }
}

impl FolderView {
    /// Whether a program has a file mapped that is open for writing in the current tenure.
    pub(in crate::guard::view) fn has_mapped_files(&self, device: Device) -> bool {
        let now = self.guard.gate().tenure().map(|open| open.id);
        let may_change = |open: &OpenFile| {
            matches!(open.content, Content::InPlace(_) | Content::Saving(_))
                && matches!(open.writing(), Some(Writing::In(tenure)) if Some(tenure) == now)
        };
        let files: HashSet<_> = self.nodes.open_nodes().into_iter().collect();
        let is_open = |ino: &u64| self.nodes.open_files(*ino).iter().any(|open| may_change(open));
        let files: HashSet<_> = files.into_iter().filter(is_open).collect();
        if files.is_empty() {
            return false;
        }
        let Ok(processes) = fs::read_dir("/proc") else { return true };
        let names = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut processes = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        processes.any(|process| has_mapped(&process, device, &files))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_mapping_of_a_file_is_found() {
        let device = Device { major: 0, minor: 0x2f };
        let files = HashSet::from([1_099_511_627_777]);
        let is = |line: &str| is_shared_mapping(line.as_bytes(), device, &files);
        let line = "7f00-7f01 rw-s 00000000 00:2f 1099511627777      /view/a";
        assert!(is(line) && is(&line.replace("rw-s", "r--s")));
        assert!(!is(&line.replace("rw-s", "rw-p")));
        assert!(!is(&line.replace("00:2f", "00:30")));
        assert!(!is(&line.replace("777 ", "778 ")));
        assert!(!is("7f00-7f01 rw-s 00000000") && !is(""));
    }
}
