//! Lookups of names and attributes.
//!
//! Opens and reads directories.

use super::local_files::Spot;
use crate::guard::disk::linux_disk::{each_entry, id_in, path_of, reopen, stat, stat_at};
use crate::guard::disk::operations::{attribute, attribute_names, is_acl};
use crate::guard::stage::gate::CACHED_FOR;
use crate::guard::view::folder_view::{FolderView, OpenViewDir, errno};
use crate::guard::view::parts::attributes::{ROOT, SNAPSHOTS, attributes, node_type, type_in};
use crate::guard::view::parts::control_files::{CONTROL_DIR, ViewControlFiles, is_control};
use crate::guard::view::parts::open_file::{Added, ViewDirReading};
use crate::guard::view::parts::second_opens::Needs;
use kernel::file_system::{
    DirPage, Done, Errno, FileSystemStats, NameIn, NodeAttr, NodeEntry, NodeType, Opened,
    OpenedFlags, ReadBytes, Requester,
};
use kernel::handles::Pool;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, Statx};
use std::cell::Cell;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use unicode_normalization::UnicodeNormalization as _;

/// The number of names of a directory with which a new one is compared, whatever their Unicode
/// normalization is. All requests wait meanwhile.
const TWIN_NAMES_MAX: usize = 8_192;
/// The number of characters of these names that are normalized: names that begin alike are compared
/// to their ends.
const TWIN_CHARS_MAX: usize = 32_768;

/// Returns how long the kernel may keep the attributes of a file. Those of a file that is not
/// published yet change when it gets its name, at a close that the kernel takes for no change.
const fn attributes_cached_for(found: &Statx, cached_for: Duration) -> Duration {
    if found.stx_nlink == 0 { Duration::ZERO } else { cached_for }
}

impl FolderView {
    /// Returns how long the kernel may cache an answer that is given now. While the lock is not
    /// held, the files of other machines arrive, and the next tenure must not begin on names and
    /// attributes from before. The caller asks before it looks at a file: the gate may open after
    /// the look.
    pub(super) fn cached_for(&self) -> Duration {
        let waits_for_files = self.guard.barrier().is_some();
        if waits_for_files && self.guard.gate().tenure().is_none() {
            return Duration::ZERO;
        }
        CACHED_FOR.as_duration()
    }

    /// Returns the entry of a node, for the kernel.
    pub(in crate::guard::view) fn entry(
        &self,
        ino: u64,
        found: &Statx,
        cached_for: Duration,
    ) -> NodeEntry {
        let mut attr = attributes(ino, &self.shown(ino, found));
        // A file that is not published yet has no name in the folder, and one in the view.
        attr.nlink = attr.nlink.max(1);
        NodeEntry {
            attr,
            attr_ttl: attributes_cached_for(found, cached_for),
            entry_ttl: cached_for,
            until_replied: None,
        }
    }

    /// Returns the attributes of a node, for the kernel.
    fn attr(&self, ino: u64, found: &Statx, cached_for: Duration) -> NodeAttr {
        let ttl = attributes_cached_for(found, cached_for);
        NodeAttr { attr: attributes(ino, &self.shown(ino, found)), ttl, until_replied: None }
    }

    pub(in crate::guard::view) fn look_up(&self, at: NameIn<'_>) -> Done<NodeEntry> {
        if at.parent == SNAPSHOTS {
            return self.look_up_snapshot(at);
        }
        if let Some(entry) = self.control.look_up(at) {
            return entry;
        }
        if self.nodes.is_snapshot(at.parent) {
            return self.look_up_in_snapshot(at);
        }
        let cached_for = self.cached_for();
        let entry = if let Some((ino, saving)) = self.nodes.saving_at(at.parent, at.name) {
            let found = stat(saving.staged.file.as_fd()).map_err(|error| errno(&error))?;
            self.nodes.count_lookup(ino);
            self.entry(ino, &found, cached_for)
        } else {
            let spot = self.spot(at, false)?;
            let found = stat_at(spot.dir.as_fd(), at.name).map_err(|error| errno(&error))?;
            let ino = self.nodes.found(at.parent, at.name, id_in(&found), spot.is_local);
            self.entry(ino, &found, cached_for)
        };
        // The name is about to lead to the new version.
        let is_over = self.second_opens.awaits_version(at);
        Ok(if is_over { NodeEntry { entry_ttl: Duration::ZERO, ..entry } } else { entry })
    }

    /// Looks a name up that a program opens for the second time, and keeps the file for that open.
    pub(in crate::guard::view) fn look_up_again(
        &self,
        who: Requester,
        at: NameIn<'_>,
        needs: Needs,
    ) -> Done<NodeEntry> {
        let is_snapshot = at.parent == SNAPSHOTS || self.nodes.is_snapshot(at.parent);
        if is_snapshot || self.control.look_up(at).is_some() {
            return self.look_up(at);
        }
        let (cached_for, spot) = (self.cached_for(), self.spot(at, false)?);
        let staged = self.nodes.saving_at(at.parent, at.name);
        let file = if let Some((_, saving)) = &staged {
            saving.staged.file.as_fd().try_clone_to_owned()
        } else {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&spot.dir, at.name, flags, Mode::empty());
            file.map_err(std::io::Error::from)
        };
        let file = file.map_err(|error| errno(&error))?;
        let found = stat(file.as_fd()).map_err(|error| errno(&error))?;
        let ino = match staged {
            Some((ino, _)) => {
                self.nodes.count_lookup(ino);
                ino
            }
            None => self.nodes.found(at.parent, at.name, id_in(&found), spot.is_local),
        };
        let begins = needs == Needs::NewVersion && !spot.is_local;
        if begins && self.is_whole(&found, &spot.path) {
            let ino = self.nodes.for_new_version(ino);
            self.second_opens.keep(who, ino, file);
            // The name leads other programs to the version before until the new one is there.
            let entry = self.entry(ino, &found, cached_for);
            return Ok(NodeEntry { entry_ttl: Duration::ZERO, ..entry });
        }
        // Names below a directory that has lost its name are not found anyway.
        if type_in(&found) != NodeType::Directory {
            self.second_opens.keep(who, ino, file);
        }
        Ok(self.entry(ino, &found, cached_for))
    }

    /// Expects that the kernel looks the name of a node up once more, if a request on the way to an
    /// open has failed because the name leads to another file by now.
    pub(in crate::guard::view) fn note_failed<T>(
        &self,
        who: Requester,
        ino: u64,
        needs: Needs,
        result: &Done<T>,
    ) {
        if matches!(result, Err(Errno::ESTALE))
            && let Some(place) = self.nodes.last_place(ino)
        {
            self.second_opens.failed(who, place, needs);
        }
    }

    pub(in crate::guard::view) fn attributes_of(&self, who: Requester, ino: u64) -> Done<NodeAttr> {
        if let Some(attr) = self.control.attributes_of(ino) {
            return attr;
        }
        let cached_for = self.cached_for();
        let located = match self.locate_found(who, ino) {
            Ok(located) => located,
            Err(error) => {
                let removed = self.nodes.last_of_removed_dir(ino).ok_or(error)?;
                return Ok(self.attr(ino, &removed, cached_for));
            }
        };
        let mut attr = self.attr(ino, &located.found, cached_for);
        if !located.path.as_os_str().is_empty() {
            attr.attr.nlink = attr.attr.nlink.max(1);
        }
        Ok(attr)
    }

    pub(in crate::guard::view) fn link_target(&self, ino: u64) -> Done<ReadBytes> {
        let located = self.locate(ino)?;
        let target = rustix::fs::readlinkat(located.as_fd(), "", Vec::new());
        let target = target.map_err(|error| Errno::from_i32(error.raw_os_error()))?;
        Ok(ReadBytes::from(target.into_bytes()))
    }

    pub(in crate::guard::view) fn statistics(&self) -> FileSystemStats {
        let none = FileSystemStats {
            blocks: 0,
            blocks_free: 0,
            blocks_available: 0,
            files: 0,
            files_free: 0,
            block_bytes: 4_096,
            fragment_bytes: 4_096,
            name_bytes: 255,
        };
        let Ok(dir) = rustix::fs::fstatvfs(self.guard.folder()) else { return none };
        FileSystemStats {
            blocks: dir.f_blocks,
            blocks_free: dir.f_bfree,
            blocks_available: dir.f_bavail,
            files: dir.f_files,
            files_free: dir.f_ffree,
            block_bytes: dir.f_bsize as u32,
            fragment_bytes: dir.f_frsize as u32,
            name_bytes: dir.f_namemax as u32,
        }
    }

    pub(in crate::guard::view) fn attribute(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
    ) -> Done<Vec<u8>> {
        if is_control(ino) {
            return Err(Errno::ENODATA);
        }
        let located = self.locate_found(who, ino)?;
        let value = attribute(&path_of(located.as_fd()), name);
        value.map_err(|error| match error {
            // The kernel reads the ACLs of a view, and would refuse each access.
            rustix::io::Errno::OPNOTSUPP if is_acl(name) => Errno::ENODATA,
            error => Errno::from_i32(error.raw_os_error()),
        })
    }

    pub(in crate::guard::view) fn attribute_names(
        &self,
        who: Requester,
        ino: u64,
    ) -> Done<Vec<u8>> {
        if is_control(ino) {
            return Ok(Vec::new());
        }
        let located = self.locate(ino)?;
        let names = attribute_names(&path_of(located.as_fd()));
        let names = names.map_err(|error| Errno::from_i32(error.raw_os_error()))?;
        if who.uid == 0 {
            return Ok(names);
        }
        // The folder's file system shows these to root alone, as which the guard may run.
        let names = names.split_inclusive(|byte| *byte == 0);
        Ok(names.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect())
    }

    /// Fails if a new name would differ from one that is there by its Unicode normalization alone:
    /// a sync tool would rename one of the two. `renamed` is the name that a rename removes. Beyond
    /// [`TWIN_NAMES_MAX`] names of a directory, or [`TWIN_CHARS_MAX`] characters of them, only one
    /// that is wholly composed or decomposed is found: another one is rare, and the barrier names
    /// it.
    pub(super) fn check_twin(
        &self,
        who: Requester,
        spot: &Spot<'_>,
        renamed: Option<NameIn<'_>>,
    ) -> Done<()> {
        let at = spot.at;
        let Some(text) = at.name.to_str().filter(|text| !text.is_ascii()) else { return Ok(()) };
        if !self.is_carried || spot.is_local || stat_at(spot.dir.as_fd(), at.name).is_ok() {
            return Ok(());
        }
        let renamed = renamed.filter(|from| from.parent == at.parent).map(|from| from.name);
        let composed: String = text.nfc().collect();
        let chars = Cell::new(0);
        let is_twin = |other: &OsStr| {
            let count = |_: &char| chars.set(chars.get() + 1);
            let is_same = |it: &str| it.chars().inspect(count).nfc().eq(composed.chars());
            let may_compare = chars.get() < TWIN_CHARS_MAX;
            may_compare && renamed != Some(other) && other.to_str().is_some_and(is_same)
        };
        let is_there = |form: &str| {
            renamed != Some(OsStr::new(form)) && stat_at(spot.dir.as_fd(), form.as_ref()).is_ok()
        };
        let staged = self.nodes.savings_in(at.parent);
        let mut has_twin = staged.iter().any(|(name, _)| is_twin(name))
            || is_there(&composed)
            || is_there(&text.nfd().collect::<String>());
        let mut left = if has_twin { 0 } else { TWIN_NAMES_MAX };
        let compared = each_entry(spot.dir.as_fd(), |name, _, _| {
            has_twin = has_twin || left > 0 && is_twin(name);
            left = if chars.get() < TWIN_CHARS_MAX { left.saturating_sub(1) } else { 0 };
            if left > 0 && !has_twin { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        compared.map_err(|error| errno(&error))?;
        if has_twin {
            let why = "a file is there whose name looks the same and differs in its Unicode \
                       normalization; use that name, or rename the file first";
            return Err(self.say(who, &spot.path, Errno::EEXIST, why));
        }
        Ok(())
    }

    /// Fails if a name must not be changed through the view: the guard's own directory.
    pub(super) fn check_name(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        if is_control(at.parent) {
            return Err(Errno::EPERM);
        }
        self.check_no_snapshot(at.parent)?;
        if at.parent == ROOT && at.name.as_bytes() == CONTROL_DIR.as_bytes() {
            let why = "the name belongs to the guard; pick another one";
            return Err(self.say(who, std::path::Path::new(CONTROL_DIR), Errno::EPERM, why));
        }
        Ok(())
    }
}

impl FolderView {
    pub(in crate::guard::view) fn open_dir(&self, who: Requester, ino: u64) -> Done<Opened> {
        let path = self.nodes.path(ino).unwrap_or_default();
        let share = self.share(Pool::Directories, who, &path)?;
        let (reading, descriptor) = if is_control(ino) {
            (None, None)
        } else {
            let descriptor = self.share(Pool::FolderFiles, who, &path)?;
            let (dir, _) = self.directory(ino)?;
            let opened = reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
            let reading = opened.and_then(|dir| ViewDirReading::new(dir, ino == ROOT));
            (Some(Mutex::new(reading.map_err(|error| errno(&error))?)), Some(descriptor))
        };
        let fh = self.numbers.next();
        self.dirs.insert(fh, OpenViewDir { reading, _shares: (share, descriptor) });
        Ok(Opened { fh, flags: OpenedFlags::empty() })
    }

    fn added_entries(&self, ino: u64) -> Done<Vec<Added>> {
        let (dir, path) = self.directory(ino)?;
        let local = self.local_entries(ino, &dir, &path)?;
        let local = local.into_iter().map(|(name, kind)| (name, node_type(kind), None));
        let staged = self.nodes.savings_in(ino).into_iter();
        let staged = staged.map(|(name, ino)| (name, NodeType::RegularFile, Some(ino)));
        Ok(local.chain(staged).collect())
    }

    /// Returns entries of a directory, among them the entry `first`. The names are read again when
    /// the program begins at the start, since it may have made or removed files since it opened the
    /// directory.
    pub(in crate::guard::view) fn read_dir(
        &self,
        ino: u64,
        fh: u64,
        first: u64,
        anew: bool,
    ) -> Done<DirPage> {
        let open = self.dirs.get(fh).ok_or(Errno::EBADF)?;
        let Some(reading) = &open.reading else {
            let entries = match ino {
                SNAPSHOTS => self.snapshot_entries()?,
                _ => ViewControlFiles::entries(ino).unwrap_or_default(),
            };
            let entries = Arc::new(entries);
            return Ok(DirPage { entries, first: 0 });
        };
        let mut reading = reading.lock();
        if anew {
            let added = self.added_entries(ino)?;
            reading.begin(added).map_err(|error| errno(&error))?;
        }
        let index = usize::try_from(first).unwrap_or(usize::MAX);
        let (first, entries) = reading.page_of(index).map_err(|error| errno(&error))?;
        Ok(DirPage { entries, first: first as u64 })
    }
}
