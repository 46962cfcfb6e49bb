//! The file system: what the kernel asks, as requests to the one door.
//!
//! Each operation is a thin handler here and a function in the file of its kind: `look` only
//! looks, `make` takes locks, `change` and `files` are what arrives through an inode or an
//! open file, `remove` gives back. None of them knows who may hold what: they parse, ask the
//! engine, and put its answer into an errno by the one table in `errno`.
//!
//! The callback that gets the answer replies, so a slow answer never blocks the thread that reads
//! the kernel's requests. Kernel caches are invalidated by `kept`.

pub mod mount_config;
pub mod kernel;
mod hash_maps;
mod credentials;
mod errno;
mod write_message;
mod last_refusal;
mod join;
mod work_signal;
mod inodes;
mod file_attrs;
mod open_files;
mod shared;
mod kernel_cache;
mod process;
mod posix_locks;
mod queue_wait;
mod poll;
mod ops;
mod control_files;
pub mod mount;

use crate::service::Locks;
use errno::Act;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use locking::ioctls;
use mount::MountConfig;
use owner::Caller;
use remove::End;
pub(crate) use requests::CtlRequest;
use shared::{Fs, Shared};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Requests that the kernel sends without a program waiting for them, such as the closing of
/// files: with fuser's 16, a thousand programs that exit at once would close one by one.
const BACKGROUND_MAX: u16 = 1_024;

/// One mount, as fuser drives it.
pub struct LatchFs(Fs);

impl LatchFs {
    /// A file system on `locks`, mounted as `config` says, in which symlinks are followed or not.
    pub fn new(locks: Locks, config: &MountConfig, follows_symlinks: bool) -> Self {
        Self(Arc::new(Shared::new(locks, config, follows_symlinks)))
    }

    /// The caller of a request, which is counted.
    fn caller(&self, req: &Request, act: Act) -> Caller {
        self.0.counters.act(act);
        self.0.owners.caller(req)
    }

    /// What has no meaning for a lock, and the errno of its manual page.
    fn unsupported(&self, errno: Errno) -> Errno {
        self.0.counters.act(Act::Other);
        self.0.counters.errno(errno);
        errno
    }
}

impl Filesystem for LatchFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // O_TRUNC comes with the open, which shows who truncates. Kernels without one of these
        // work too; without the locking ones locks would be the kernel's own, unseen by others.
        for wanted in [
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
        ] {
            if config.add_capabilities(wanted).is_err() {
                log::debug!("this kernel's FUSE lacks {wanted:?}");
            }
        }
        self.0.kept.set_expires(config.capabilities().contains(InitFlags::FUSE_HAS_EXPIRE_ONLY));
        if let Err(nearest) = config.set_max_background(BACKGROUND_MAX) {
            log::warn!("the kernel takes {nearest} requests in the background at most");
        }
        process::resume(&self.0);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        look::lookup(&self.0, &self.caller(req, Act::Lookup), parent.0, name, reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.0.tree.lock().forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        look::getattr(&self.0, &self.caller(req, Act::Stat), ino.0, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let fh = fh.map(|fh| fh.0);
        let wanted = files::Wanted { mode, user: (uid, gid), size, times: (atime, mtime), fh };
        files::setattr(&self.0, &self.caller(req, wanted.act()), ino.0, &wanted, reply);
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        look::readlink(&self.0, &self.caller(req, Act::Readlink), ino.0, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = self.caller(req, Act::Mkdir);
        make::mkdir(&self.0, &caller, parent.0, name, mode & !umask, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        remove::unlink(&self.0, &self.caller(req, Act::Unlink), parent.0, name, reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        remove::rmdir(&self.0, &self.caller(req, Act::Rmdir), parent.0, name, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let caller = self.caller(req, Act::Symlink);
        make::symlink(&self.0, &caller, parent.0, link_name, target.as_os_str(), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let caller = self.caller(req, Act::Rename);
        let from = End { parent: parent.0, name };
        let to = End { parent: newparent.0, name: newname };
        remove::rename(&self.0, &caller, from, to, flags, reply);
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let caller = self.caller(req, Act::Link);
        make::link(&self.0, &caller, ino.0, newparent.0, newname, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let act = make::act_of(flags);
        let how = (mode & !umask, flags);
        make::create(&self.0, &self.caller(req, act), parent.0, name, how, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        files::open(&self.0, &self.caller(req, Act::Open), ino.0, flags.0, reply);
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        files::read(&self.0, &self.caller(req, Act::Read), fh.0, (offset, size, flags.0), reply);
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        files::write(&self.0, &self.caller(req, Act::Write), fh.0, (offset, data), reply);
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        locking::flushed(&self.0, ino.0, lock_owner.0);
        files::flush(&self.0, &self.caller(req, Act::Close), fh.0, reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // By the handle and not by the kernel's owner: for OFD locks it names none.
        locking::closed(&self.0, ino.0, fh.0);
        files::closed(&self.0, fh.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // A write is answered when the engine has taken it; there is nothing behind it to wait for.
        reply.ok();
    }

    fn opendir(&self, req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        listing::opendir(&self.0, &self.0.owners.caller(req), reply);
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let caller = self.caller(req, Act::List);
        listing::readdir(&self.0, &caller, (ino.0, fh.0), offset, reply);
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.opens.remove_listing(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        look::statfs(&self.0, reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        xattr::set(&self.0, &self.caller(req, Act::SetXattr), ino.0, name, value, reply);
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        xattr::get(&self.0, &self.caller(req, Act::GetXattr), ino.0, name, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        xattr::list(&self.0, &self.caller(req, Act::GetXattr), ino.0, size, reply);
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.unsupported(xattr::remove(name)));
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Who may do what depends on the act; the act itself tells.
        reply.ok();
    }

    fn mknod(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.unsupported(Errno::EPERM));
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let caller = self.0.owners.caller(req);
        match cmd {
            ioctls::TOKEN => ioctls::token(&self.0, &caller, ino.0, fh.0, reply),
            ioctls::GIVE_UP => ioctls::give_up(&self.0, ino.0, fh.0, reply),
            _ => reply.error(self.unsupported(Errno::ENOTTY)),
        }
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let (ino, fh, owner) = (ino.0, fh.0, lock_owner.0);
        let asked = locking::Request { ino, fh, owner, start, end, kind: typ, pid };
        locking::get(&self.0, &self.caller(req, Act::Lock), &asked, reply);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (ino, fh, owner) = (ino.0, fh.0, lock_owner.0);
        let asked = locking::Request { ino, fh, owner, start, end, kind: typ, pid };
        below::lock(&self.0, &self.caller(req, Act::Lock), &asked, sleep, reply);
    }

    fn destroy(&mut self) {
        locking::ended(&self.0);
        process::ended(&self.0);
        kept::ended(&self.0);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        ph: PollNotifier,
        events: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        poll::poll(&self.0, fh.0, ph, (events, flags), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.unsupported(Errno::ENOTSUP));
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        // Only the search for holes comes here, and there are none.
        reply.error(self.unsupported(Errno::EINVAL));
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(self.unsupported(Errno::EXDEV));
    }
}
