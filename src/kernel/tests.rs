//! Tests with a small file system in memory, mounted as a view: they show which operations reach
//! the file system, and which the kernel does itself. They need root and a FUSE device.

use crate::device;
use crate::file_system::{
    DirEntry, DirPage, Errno, FileAttr, FileOffset, FileSystemStats, INodeNo, LockFound,
    LockRequest, NewMode, NodeAttr, NodeEntry, NodeType, Opened, OpenedFlags, PollEvents,
    ReadBytes, ReadRequest, RenameFlags, Requester, SetAttrs, WriteRequest,
};
use crate::file_system::{Done, FileSystem, NameIn, Unsupported};
use crate::machine_facts::DEVICE;
use crate::machine_facts::Users;
use crate::machine_facts::is_root;
use crate::mountinfo::{self, Life};
use crate::notifications::Invalidator;
use crate::notifications::PollWaker;
use crate::session::MountError;
use crate::session::SessionKind;
use crate::session::{self, MountRequest, Mounted, check};
use engine::time::{Span, boot_now};
use parking_lot::Mutex;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::UNIX_EPOCH;

const TOP: u64 = 1;
/// The file `plain`, which only root may change.
const PLAIN: u64 = 2;
/// The file `shared`, whose POSIX ACL lets the user [`NOBODY`] write to it.
const SHARED: u64 = 3;
/// The file that mknod made.
const MADE: u64 = 4;
const NOBODY: u32 = 65_534;
/// The size of each file.
const BYTES: usize = 8_192;
/// The timeout of tests: no answer takes so long, however loaded the machine is.
const PATIENCE: Span = Span::from_secs(30);

/// The kind of the mounts of these tests: a view that several threads serve.
const KIND: SessionKind = SessionKind { threads: 2, ..SessionKind::VIEW };

/// A file system with two files of the same content, which records the operations that reach it.
struct Recorder {
    content: Mutex<Vec<u8>>,
    reached: Mutex<Vec<String>>,
    invalidator: Mutex<Option<Invalidator>>,
}

impl Recorder {
    fn new() -> Self {
        let content = Mutex::new(vec![b'a'; BYTES]);
        Self { content, reached: Mutex::default(), invalidator: Mutex::default() }
    }

    fn reaches(&self, operation: impl Into<String>) {
        self.reached.lock().push(operation.into());
    }

    /// Returns the operations that have reached the file system since the last call.
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.reached.lock())
    }
}

fn attr_of(ino: u64) -> FileAttr {
    let (kind, perm) = match ino {
        TOP => (NodeType::Directory, 0o755),
        PLAIN => (NodeType::RegularFile, 0o644),
        SHARED => (NodeType::RegularFile, 0o664),
        _ => (NodeType::NamedPipe, 0o600),
    };
    FileAttr {
        ino: INodeNo(ino),
        size: if kind == NodeType::RegularFile { BYTES as u64 } else { 0 },
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4_096,
        flags: 0,
    }
}

/// Returns the ACL of [`SHARED`], in the kernel's format of `system.posix_acl_access`.
fn acl() -> Vec<u8> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let mut acl = VERSION.to_le_bytes().to_vec();
    // The owner, one user, the owning group, the mask and all others.
    for (tag, perm, id) in
        [(1, 6, NO_ID), (2, 6, NOBODY), (4, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 4, NO_ID)]
    {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(perm));
        acl.extend(u32::to_le_bytes(id));
    }
    acl
}

impl FileSystem for Recorder {
    fn started(&self) {}

    fn attached(&self, invalidator: Invalidator) {
        *self.invalidator.lock() = Some(invalidator);
    }

    async fn lookup(&self, _who: Requester, at: NameIn<'_>) -> Done<NodeEntry> {
        match at.name.as_bytes() {
            b"plain" => Ok(NodeEntry::uncached(attr_of(PLAIN))),
            b"shared" => Ok(NodeEntry::uncached(attr_of(SHARED))),
            _ => Err(Errno::ENOENT),
        }
    }

    fn forget(&self, _ino: u64, _count: u64) {}

    async fn getattr(&self, _who: Requester, ino: u64, fh: Option<u64>) -> Done<NodeAttr> {
        if let Some(fh) = fh {
            self.reaches(format!("getattr of handle {fh}"));
        }
        Ok(NodeAttr::uncached(attr_of(ino)))
    }

    async fn setattr(&self, _who: Requester, ino: u64, _wanted: &SetAttrs) -> Done<NodeAttr> {
        Ok(NodeAttr::uncached(attr_of(ino)))
    }

    async fn readlink(&self, _who: Requester, _ino: u64) -> Done<ReadBytes> {
        Err(Errno::EINVAL)
    }

    async fn mknod(
        &self,
        _: Requester,
        _: NameIn<'_>,
        mode: NewMode,
        device: u32,
    ) -> Done<NodeEntry> {
        self.reaches(format!("mknod {:o} {device}", mode.masked()));
        Ok(NodeEntry::uncached(attr_of(MADE)))
    }

    async fn mkdir(&self, _who: Requester, _at: NameIn<'_>, _mode: NewMode) -> Done<NodeEntry> {
        Err(Errno::EPERM)
    }

    async fn unlink(&self, _who: Requester, _at: NameIn<'_>) -> Done<()> {
        Err(Errno::EPERM)
    }

    async fn rmdir(&self, _who: Requester, _at: NameIn<'_>) -> Done<()> {
        Err(Errno::EPERM)
    }

    async fn symlink(&self, _who: Requester, _at: NameIn<'_>, _to: &OsStr) -> Done<NodeEntry> {
        Err(Errno::EPERM)
    }

    async fn rename(
        &self,
        _who: Requester,
        _from: NameIn<'_>,
        _to: NameIn<'_>,
        _flags: RenameFlags,
    ) -> Done<()> {
        Err(Errno::EPERM)
    }

    async fn link(&self, _who: Requester, _ino: u64, _to: NameIn<'_>) -> Done<NodeEntry> {
        Err(Errno::EPERM)
    }

    async fn create(
        &self,
        _who: Requester,
        _at: NameIn<'_>,
        _mode: NewMode,
        _flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        Err(Errno::EPERM)
    }

    async fn open(&self, who: Requester, ino: u64, flags: i32) -> Done<Opened> {
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            self.reaches(format!("open by {}", who.uid));
        }
        let flags = OpenedFlags::FOPEN_KEEP_CACHE | OpenedFlags::FOPEN_NOFLUSH;
        Ok(Opened { fh: ino, flags })
    }

    async fn read(&self, _who: Requester, asked: ReadRequest) -> Done<ReadBytes> {
        let content = self.content.lock().clone();
        Ok(ReadBytes::window(content.into(), asked.offset, asked.size))
    }

    async fn write(&self, who: Requester, asked: WriteRequest, data: &[u8]) -> Done<u32> {
        let WriteRequest { fh, offset, from_cache } = asked;
        if from_cache {
            assert_eq!(who.pid, 0, "the kernel does not know which program changed the page");
            self.reaches(format!("writeback to {fh} at {offset}"));
        } else {
            self.reaches(format!("write by {} to {fh} at {offset}", who.uid));
        }
        let start = offset as usize;
        self.content.lock()[start..start + data.len()].copy_from_slice(data);
        Ok(data.len() as u32)
    }

    async fn fallocate(
        &self,
        _who: Requester,
        fh: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Done<()> {
        self.reaches(format!("fallocate {fh} {offset} {length} {mode}"));
        Ok(())
    }

    async fn lseek(&self, _who: Requester, fh: u64, offset: i64, whence: i32) -> Done<i64> {
        self.reaches(format!("lseek {fh} {offset} {whence}"));
        Ok(offset + 4)
    }

    async fn copy_file_range(
        &self,
        _who: Requester,
        from: FileOffset,
        to: FileOffset,
        length: u64,
    ) -> Done<u32> {
        let (read, written) = ((from.fh, from.offset), (to.fh, to.offset));
        self.reaches(format!("copy {read:?} {written:?} {length}"));
        Ok(length as u32)
    }

    async fn fsync(&self, _who: Requester, ino: u64, fh: u64, data_only: bool) -> Done<()> {
        self.reaches(format!("fsync {ino} {fh} {data_only}"));
        Ok(())
    }

    async fn fsyncdir(&self, _who: Requester, ino: u64, fh: u64) -> Done<()> {
        self.reaches(format!("fsyncdir {ino} {fh}"));
        Ok(())
    }

    async fn flush(&self, _who: Requester, _ino: u64, _fh: u64, _owner: u64) -> Done<()> {
        self.reaches("flush");
        Ok(())
    }

    fn release(&self, _ino: u64, _fh: u64) {}

    fn opendir(&self, _who: Requester, _ino: u64) -> Done<Opened> {
        Ok(Opened { fh: 99, flags: OpenedFlags::empty() })
    }

    async fn readdir(
        &self,
        _who: Requester,
        _ino: u64,
        _fh: u64,
        index: u64,
        _anew: bool,
    ) -> Done<DirPage> {
        let name = OsStr::from_bytes(b"no-utf8-\xff").into();
        let entry = DirEntry { ino: Some(PLAIN), kind: NodeType::RegularFile, name };
        let entries = if index == 0 { vec![entry] } else { Vec::new() };
        Ok(DirPage { entries: Arc::new(entries), first: index })
    }

    fn releasedir(&self, _fh: u64) {}

    fn statfs(&self) -> FileSystemStats {
        FileSystemStats {
            blocks: 1_000,
            blocks_free: 300,
            blocks_available: 200,
            files: 50,
            files_free: 40,
            block_bytes: 4_096,
            fragment_bytes: 1_024,
            name_bytes: 255,
        }
    }

    async fn setxattr(
        &self,
        _who: Requester,
        _ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Done<()> {
        self.reaches(format!("setxattr {} {value:?} {flags}", name.display()));
        Ok(())
    }

    async fn getxattr(&self, _who: Requester, ino: u64, name: &OsStr) -> Done<Vec<u8>> {
        match (ino, name.as_bytes()) {
            (SHARED, b"system.posix_acl_access") => Ok(acl()),
            _ => Err(Errno::ENODATA),
        }
    }

    async fn listxattr(&self, _who: Requester, _ino: u64) -> Done<Vec<u8>> {
        Ok(Vec::new())
    }

    async fn removexattr(&self, who: Requester, ino: u64, name: &OsStr) -> Done<()> {
        self.reaches(format!("removexattr by {} of {ino} {}", who.uid, name.display()));
        Ok(())
    }

    async fn ioctl(&self, _who: Requester, _ino: u64, _fh: u64, _command: u32) -> Done<Vec<u8>> {
        Err(Errno::ENOTTY)
    }

    async fn getlk(&self, _who: Requester, _asked: LockRequest) -> Done<LockFound> {
        self.reaches("getlk");
        Err(Errno::EIO)
    }

    async fn setlk(&self, _who: Requester, _asked: LockRequest, _sleep: bool) -> Done<()> {
        self.reaches("setlk");
        Err(Errno::EIO)
    }

    async fn poll(
        &self,
        _fh: u64,
        events: PollEvents,
        _waker: Option<PollWaker>,
    ) -> Option<PollEvents> {
        Some(events)
    }

    fn unsupported(&self, _operation: Unsupported) -> Errno {
        Errno::ENOTSUP
    }

    fn ended(&self) {}
}

/// A view on a temporary directory, which is unmounted and removed at the end of a test.
struct View {
    mounted: Option<Mounted>,
    fs: Arc<Recorder>,
    dir: PathBuf,
}

impl View {
    /// Mounts a view; `None` where the test may not mount.
    fn new() -> Option<Self> {
        let dir = temporary_dir()?;
        let (mounted, fs) = mount(&dir).expect("it is mounted");
        Some(Self { mounted: Some(mounted), fs, dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn open(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).open(self.path(name)).expect("it opens")
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.mounted.take();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Returns a new directory for a mount; `None` where the test may not mount.
fn temporary_dir() -> Option<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    if !is_root() || !Path::new(DEVICE).exists() {
        return None;
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir();
    let dir = fs::canonicalize(dir).expect("there is one");
    let dir = dir.join(format!("latchfs-view-{}-{number}", std::process::id()));
    fs::DirBuilder::new().mode(0o755).create(&dir).expect("it is created");
    Some(dir)
}

fn mount(dir: &Path) -> Result<(Mounted, Arc<Recorder>), MountError> {
    let fs = Arc::new(Recorder::new());
    let wanted = MountRequest { dir, users: Users::All, nonempty: true, kind: KIND };
    let mounted = session::mount(wanted, |found| {
        assert!(found.follows_symlinks);
        Arc::clone(&fs)
    });
    Ok((mounted?, fs))
}

/// Runs a command of the shell in the view as the user [`NOBODY`]. Returns whether it succeeded.
fn nobody_may(view: &View, command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).current_dir(&view.dir).uid(NOBODY).gid(NOBODY);
    shell.stderr(std::process::Stdio::null());
    shell.status().expect("the shell runs").success()
}

fn text(text: &[u8]) -> CString {
    CString::new(text).expect("it has no NUL")
}

/// Returns the result of a system call that returns -1 on failure.
fn checked(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

#[test]
fn a_view_has_a_type_of_its_own() {
    let Some(view) = View::new() else { return };
    let found = mountinfo::at(&view.dir).expect("readable").expect("it is mounted");
    assert_eq!(found.kind, "fuse.latchfs-view");
    assert!(found.is_view() && !found.is_latchfs() && found.follows_symlinks);
    let is_here = |mount: &mountinfo::MountPoint| mount.dir == view.dir;
    assert!(!mountinfo::ours().expect("readable").iter().any(is_here), "it is no lock mount");
    assert!(mountinfo::ours_and_views().expect("readable").iter().any(is_here));
    assert!(matches!(check(&view.dir, true), Err(MountError::Already(_))));
    let inside = check(&view.path("below"), true).expect_err("it lies in the view");
    assert!(matches!(&inside, MountError::InsideView { .. }), "{inside}");
    let names = fs::read_dir(&view.dir).expect("readable").map(|name| name.expect("readable"));
    let names: Vec<_> = names.map(|name| name.file_name()).collect();
    assert_eq!(names, [OsStr::from_bytes(b"no-utf8-\xff")]);
}

#[test]
fn the_kernel_checks_the_permissions_of_a_view() {
    let Some(view) = View::new() else { return };
    assert!(!nobody_may(&view, "echo x >> plain"), "its mode is 0644");
    assert!(!nobody_may(&view, "mkfifo made"), "the directory is root's");
    assert_eq!(view.fs.taken(), [""; 0], "nothing reached the file system");
    assert!(nobody_may(&view, "echo x > shared"), "its ACL has an entry for the user");
    let by_nobody = [format!("open by {NOBODY}"), format!("write by {NOBODY} to {SHARED} at 0")];
    assert_eq!(view.fs.taken(), by_nobody);
    view.open("plain").write_all(b"x").expect("root may");
    assert_eq!(view.fs.taken(), ["open by 0", "write by 0 to 2 at 0"]);
    assert!(nobody_may(&view, "cat plain > /dev/null"), "all may read it");
}

#[test]
#[allow(unsafe_code)]
fn the_kernel_grants_the_locks_of_a_view() {
    let Some(view) = View::new() else { return };
    let (first, second) = (view.open("plain"), view.open("plain"));
    view.fs.taken();
    first.try_lock().expect("it is free");
    assert!(second.try_lock().is_err(), "the first has it");
    first.unlock().expect("it is held");
    second.try_lock().expect("it is free");
    // SAFETY: all zeros is a valid lock: the whole file.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as _;
    for command in [libc::F_SETLK, libc::F_OFD_SETLK] {
        // SAFETY: `range` outlives the call.
        let result = unsafe { libc::fcntl(first.as_raw_fd(), command, &raw const range) };
        match checked(result) {
            Ok(_) => assert_eq!(command, libc::F_SETLK),
            // The lock of the process excludes that of the open file.
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    drop((first, second));
    assert_eq!(view.fs.taken(), [""; 0], "no lock reached the file system");
}

#[test]
#[allow(unsafe_code)]
fn operations_on_open_files_reach_the_file_system() {
    let Some(view) = View::new() else { return };
    let (plain, shared) = (view.open("plain"), view.open("shared"));
    let (from, to) = (plain.as_raw_fd(), shared.as_raw_fd());
    view.fs.taken();
    // SAFETY: fallocate takes only numbers.
    checked(unsafe { libc::fallocate(from, libc::FALLOC_FL_KEEP_SIZE, 5, 10) }).expect("it does");
    // SAFETY: lseek takes only numbers.
    assert_eq!(checked(unsafe { libc::lseek(from, 3, libc::SEEK_HOLE) }).expect("it does"), 7);
    // SAFETY: lseek takes only numbers.
    let end = checked(unsafe { libc::lseek(from, 0, libc::SEEK_END) }).expect("it does");
    assert_eq!(end, BYTES as i64);
    let (mut at, mut into) = (100_i64, 200_i64);
    // SAFETY: both offsets outlive the call.
    let copied = unsafe { libc::copy_file_range(from, &raw mut at, to, &raw mut into, 50, 0) };
    assert_eq!(checked(copied as i64).expect("it does"), 50);
    plain.sync_all().expect("it does");
    plain.sync_data().expect("it does");
    File::open(&view.dir).expect("it opens").sync_all().expect("it does");
    let keep_size = libc::FALLOC_FL_KEEP_SIZE;
    let expected = [
        format!("fallocate 2 5 10 {keep_size}"),
        format!("lseek 2 3 {}", libc::SEEK_HOLE),
        "getattr of handle 2".to_owned(),
        "copy (2, 100) (3, 200) 50".to_owned(),
        "fsync 2 2 false".to_owned(),
        "fsync 2 2 true".to_owned(),
        "fsyncdir 1 99".to_owned(),
    ];
    let mut reached = view.fs.taken();
    reached.dedup();
    assert_eq!(reached, expected);
}

#[test]
#[allow(unsafe_code)]
fn operations_on_names_reach_the_file_system() {
    let Some(view) = View::new() else { return };
    let (made, plain) = (view.path("made"), view.path("plain"));
    let (made, plain) = (text(made.as_os_str().as_bytes()), text(plain.as_os_str().as_bytes()));
    let (name, value) = (text(b"user.x"), b"v");
    // SAFETY: the path is a valid NUL-terminated string.
    checked(unsafe { libc::mknod(made.as_ptr(), libc::S_IFIFO | 0o600, 0) }).expect("it does");
    // SAFETY: the strings are NUL-terminated, and the value has the length that is passed.
    checked(unsafe {
        let value = value.as_ptr().cast::<libc::c_void>();
        libc::setxattr(plain.as_ptr(), name.as_ptr(), value, 1, libc::XATTR_CREATE)
    })
    .expect("it does");
    // SAFETY: the strings are NUL-terminated.
    checked(unsafe { libc::removexattr(plain.as_ptr(), name.as_ptr()) }).expect("it does");
    let reached = ["mknod 10600 0", "setxattr user.x [118] 1", "removexattr by 0 of 2 user.x"];
    assert_eq!(view.fs.taken(), reached);
    // SAFETY: all zeros is a valid value of this structure of numbers.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, and `found` outlives the call.
    checked(unsafe { libc::statvfs(plain.as_ptr(), &raw mut found) }).expect("it does");
    assert_eq!((found.f_blocks, found.f_bfree, found.f_bavail), (1_000, 300, 200));
    assert_eq!((found.f_bsize, found.f_frsize), (4_096, 1_024));
}

/// A program changes a page through a shared mapping, and the kernel writes the page back.
#[test]
#[allow(unsafe_code)]
fn the_writeback_of_a_mapping_is_distinguished_from_a_write() {
    let Some(view) = View::new() else { return };
    let file = view.open("plain");
    view.fs.taken();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address of the mapping, and the descriptor is open.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), 4_096, access, libc::MAP_SHARED, file.as_raw_fd(), 4_096)
    };
    assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    // SAFETY: the mapping is 4,096 bytes long, and nothing else uses it.
    unsafe { page.cast::<u8>().write(b'z') };
    // SAFETY: address and length are those of the mapping.
    checked(unsafe { libc::msync(page, 4_096, libc::MS_SYNC) }).expect("it is written");
    // SAFETY: address and length are those of the mapping, which is not used any more.
    checked(unsafe { libc::munmap(page, 4_096) }).expect("it is unmapped");
    let reached = view.fs.taken();
    assert!(reached.contains(&"writeback to 2 at 4096".to_owned()), "{reached:?}");
    assert_eq!(view.fs.content.lock()[4_096], b'z');
}

#[test]
fn cached_content_is_dropped_on_request() {
    let Some(view) = View::new() else { return };
    let file = view.open("plain");
    let first_byte = || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).expect("it is read");
        byte[0]
    };
    assert_eq!(first_byte(), b'a');
    view.fs.content.lock()[0] = b'b';
    assert_eq!(first_byte(), b'a', "the kernel has cached the page");
    view.fs.invalidator.lock().as_ref().expect("there is one").forget_node(PLAIN);
    let since = boot_now();
    while first_byte() != b'b' {
        assert!(boot_now().since(since) < PATIENCE, "the page was not dropped");
        std::thread::yield_now();
    }
}

#[test]
fn the_mount_of_a_killed_daemon_is_removed() {
    let Some(dir) = temporary_dir() else { return };
    let device = device::mount(&dir, Users::All, &KIND).expect("it is mounted");
    drop(device);
    assert_eq!(mountinfo::probe(&dir), Life::Dead);
    let (mounted, _) = mount(&dir).expect("the dead mount is removed");
    assert_eq!(mountinfo::probe(&dir), Life::Live);
    drop(mounted);
    assert_eq!(mountinfo::at(&dir).expect("readable"), None, "one mount was there");
    fs::remove_dir(&dir).expect("it is empty");
}
