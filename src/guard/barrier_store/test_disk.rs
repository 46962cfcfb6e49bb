//! A disk for tests that fails or stops at a numbered step, and folders for it.

use super::super::folder_snapshot::snapshot_disk::{CopyMethod, SnapshotDisk};
use crate::guard::disk::linux_disk::LinuxDisk;
use crate::guard::disk::operations::{
    Attributes, Disk, DiskEntry, FileId, FileStat, IfThere, Place,
};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A fault at a step. Half of a write is made before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard) enum Fault {
    /// The step fails with this error.
    Errno(i32),
    /// This step and all later ones fail with this error.
    Lasting(i32),
    /// The process ends: the test unwinds.
    Kill,
}

/// The disk of this machine, with faults.
#[derive(Default)]
pub(in crate::guard) struct TestDisk {
    /// The names of the steps that were made.
    pub(in crate::guard) steps: Mutex<Vec<&'static str>>,
    /// The fault, and the number of the step.
    pub(in crate::guard) fault: Option<(usize, Fault)>,
    /// The names whose content is not here.
    pub(in crate::guard) placeholders: Vec<&'static str>,
    /// The names on which something is mounted.
    pub(in crate::guard) mounted: Vec<&'static str>,
    /// Called before each read.
    pub(in crate::guard) on_read: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

impl TestDisk {
    pub(in crate::guard) fn failing(step: usize, fault: Fault) -> Self {
        Self { fault: Some((step, fault)), ..Self::default() }
    }

    /// Returns how often a step was made.
    pub(in crate::guard) fn count(&self, name: &str) -> usize {
        self.steps.lock().iter().filter(|step| **step == name).count()
    }

    /// Begins a step. Returns the fault that happens at it.
    fn begin(&self, name: &'static str) -> Option<Fault> {
        let mut steps = self.steps.lock();
        let number = steps.len();
        steps.push(name);
        let (step, fault) = self.fault?;
        let is_now = number == step || number > step && matches!(fault, Fault::Lasting(_));
        is_now.then_some(fault)
    }

    fn end<T>(fault: Fault) -> io::Result<T> {
        match fault {
            Fault::Errno(errno) | Fault::Lasting(errno) => Err(io::Error::from_raw_os_error(errno)),
            Fault::Kill => resume_unwind(Box::new("killed")),
        }
    }

    fn step<T>(
        &self,
        name: &'static str,
        make: impl FnOnce(LinuxDisk) -> io::Result<T>,
    ) -> io::Result<T> {
        match self.begin(name) {
            Some(fault) => Self::end(fault),
            None => make(LinuxDisk),
        }
    }
}

impl Disk for TestDisk {
    type Dir = OwnedFd;
    type File = File;

    fn make_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<OwnedFd> {
        self.step("make_dir", |disk| disk.make_dir(at))
    }
    fn make_readable_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        self.step("make_readable_dir", |disk| disk.make_readable_dir(at))
    }
    fn open_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<OwnedFd> {
        self.step("open_dir", |disk| disk.open_dir(at))
    }
    fn reopen_dir(&self, dir: &OwnedFd) -> io::Result<OwnedFd> {
        LinuxDisk.reopen_dir(dir)
    }
    fn remove_dir(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        self.step("remove_dir", |disk| disk.remove_dir(at))
    }
    fn entries(&self, dir: &OwnedFd) -> io::Result<Vec<DiskEntry>> {
        self.step("entries", |disk| disk.entries(dir))
    }
    fn visit_entries(
        &self,
        dir: &OwnedFd,
        visit: &mut dyn FnMut(DiskEntry) -> ControlFlow<()>,
    ) -> io::Result<()> {
        self.step("visit_entries", |disk| disk.visit_entries(dir, visit))
    }
    fn id_of(&self, at: Place<'_, OwnedFd>) -> io::Result<FileId> {
        self.step("id_of", |disk| disk.id_of(at))
    }
    fn stat(&self, at: Place<'_, OwnedFd>) -> io::Result<FileStat> {
        self.step("stat", |disk| disk.stat(at))
    }
    fn stat_file(&self, file: &File) -> io::Result<FileStat> {
        self.step("stat_file", |disk| disk.stat_file(file))
    }
    fn attributes(&self, at: Place<'_, OwnedFd>) -> io::Result<Attributes> {
        let found = self.step("attributes", |disk| disk.attributes(at))?;
        let is_one_of = |names: &[&str]| names.iter().any(|name| at.name == *name);
        Ok(Attributes {
            is_downloaded: !is_one_of(&self.placeholders),
            is_mount_point: found.is_mount_point || is_one_of(&self.mounted),
            ..found
        })
    }
    fn open_to_read(&self, at: Place<'_, OwnedFd>) -> io::Result<File> {
        self.step("open_to_read", |disk| disk.open_to_read(at))
    }
    fn read(&self, file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(on_read) = &mut *self.on_read.lock() {
            on_read();
        }
        self.step("read", |disk| disk.read(file, offset, bytes))
    }
    fn open_file(&self, at: Place<'_, OwnedFd>) -> io::Result<File> {
        self.step("open_file", |disk| disk.open_file(at))
    }
    fn unnamed_file(&self, near: &OwnedFd, mode: u32) -> io::Result<File> {
        self.step("unnamed_file", |disk| disk.unnamed_file(near, mode))
    }
    fn give_to_owner(&self, file: &File, of: &OwnedFd) -> io::Result<()> {
        LinuxDisk.give_to_owner(file, of)
    }
    fn make_symlink(&self, at: Place<'_, OwnedFd>, target: &OsStr) -> io::Result<()> {
        self.step("make_symlink", |disk| disk.make_symlink(at, target))
    }
    fn read_symlink(&self, at: Place<'_, OwnedFd>) -> io::Result<OsString> {
        self.step("read_symlink", |disk| disk.read_symlink(at))
    }
    fn open_parent(&self, root: &OwnedFd, path: &OsStr) -> io::Result<(OwnedFd, OsString)> {
        self.step("open_parent", |disk| disk.open_parent(root, path))
    }
    fn set_modified(&self, file: &File, time: i128) -> io::Result<()> {
        self.step("set_modified", |disk| disk.set_modified(file, time))
    }
    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.begin("write") {
            Some(fault) => {
                LinuxDisk.write(file, offset, &bytes[..bytes.len() / 2])?;
                Self::end(fault)
            }
            None => LinuxDisk.write(file, offset, bytes),
        }
    }
    fn reserve(&self, file: &File, offset: u64, bytes: u64) -> io::Result<()> {
        LinuxDisk.reserve(file, offset, bytes)
    }
    fn shorten(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.step("shorten", |disk| disk.shorten(file, bytes))
    }
    fn copy(&self, from: &File, to: &File) -> io::Result<()> {
        self.step("copy", |disk| disk.copy(from, to))
    }
    fn link(&self, file: &File, to: Place<'_, OwnedFd>) -> io::Result<()> {
        self.step("link", |disk| disk.link(file, to))
    }
    fn rename(
        &self,
        from: Place<'_, OwnedFd>,
        to: Place<'_, OwnedFd>,
        if_there: IfThere,
    ) -> io::Result<()> {
        self.step("rename", |disk| disk.rename(from, to, if_there))
    }
    fn exchange(&self, one: Place<'_, OwnedFd>, other: Place<'_, OwnedFd>) -> io::Result<()> {
        self.step("exchange", |disk| disk.exchange(one, other))
    }
    fn remove_file(&self, at: Place<'_, OwnedFd>) -> io::Result<()> {
        self.step("remove_file", |disk| disk.remove_file(at))
    }
    fn sync_file(&self, file: &File) -> io::Result<()> {
        self.step("sync_file", |disk| disk.sync_file(file))
    }
    fn sync_dir(&self, dir: &OwnedFd) -> io::Result<()> {
        self.step("sync_dir", |disk| disk.sync_dir(dir))
    }
    fn sync_file_system(&self, _dir: &OwnedFd) -> io::Result<()> {
        // The tests need its place among the steps, and not a sync of the whole machine.
        self.step("sync_file_system", |_| Ok(()))
    }
}

impl SnapshotDisk for TestDisk {
    fn copy_content(&self, from: &File, to: &File) -> io::Result<CopyMethod> {
        self.step("copy_content", |disk| disk.copy_content(from, to))
    }
    fn copy_file_attributes(&self, from: &File, to: &File) -> io::Result<Vec<&'static str>> {
        self.step("copy_file_attributes", |disk| disk.copy_file_attributes(from, to))
    }
    fn copy_dir_attributes(&self, from: &OwnedFd, to: &OwnedFd) -> io::Result<Vec<&'static str>> {
        self.step("copy_dir_attributes", |disk| disk.copy_dir_attributes(from, to))
    }
    fn copy_symlink_attributes(
        &self,
        from: Place<'_, OwnedFd>,
        to: Place<'_, OwnedFd>,
    ) -> io::Result<Vec<&'static str>> {
        self.step("copy_symlink_attributes", |disk| disk.copy_symlink_attributes(from, to))
    }
    fn link_name(&self, from: Place<'_, OwnedFd>, to: Place<'_, OwnedFd>) -> io::Result<()> {
        self.step("link_name", |disk| disk.link_name(from, to))
    }
}

/// A directory with a folder and a state directory, which is removed at the end.
pub(in crate::guard) struct TestFolder {
    root: PathBuf,
}

impl TestFolder {
    /// Returns a folder with the directory of a guard.
    pub(in crate::guard) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-barrier-store-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for dir in ["folder/.latchfs/markers", "state"] {
            fs::create_dir_all(root.join(dir)).expect("a directory");
        }
        Self { root }
    }

    pub(in crate::guard) fn path(&self, below: &str) -> PathBuf {
        self.root.join("folder").join(below)
    }

    pub(in crate::guard) fn state_path(&self, below: &str) -> PathBuf {
        self.root.join("state").join(below)
    }

    pub(in crate::guard) fn folder(&self) -> OwnedFd {
        open(&self.path(""))
    }

    pub(in crate::guard) fn state(&self) -> OwnedFd {
        open(&self.state_path(""))
    }

    /// Writes a file of the folder, with the directories above it.
    pub(in crate::guard) fn put(&self, below: &str, content: &[u8]) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
        fs::write(path, content).expect("written");
    }

    pub(in crate::guard) fn make_fifo(&self, below: &str) {
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, self.path(below), kind, mode, 0).expect("a FIFO");
    }

    /// Makes a file of this size without content.
    pub(in crate::guard) fn make_sparse(path: &Path, size: u64) {
        File::create(path).and_then(|file| file.set_len(size)).expect("a sparse file");
    }
}

fn open(path: &Path) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).expect("it is there")
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.root);
        if !std::thread::panicking() {
            removed.expect("it is there");
        }
    }
}
