//! The dispatcher: converts fuser's requests to operations of a [`FileSystem`], runs them, and
//! replies with their results. Outside this module and `replies`, no code uses fuser's request and
//! reply types.
//!
//! Sends the results of operations to the kernel as replies.

use crate::file_system::{
    DirPage, Done, Errno, FileOffset, FileSystem, FileSystemStats, LockRequest, NewMode, NodeAttr,
    NodeEntry, NodeType, Opened, OwnedName, ReadBytes, ReadRequest, Requester, SetAttrs,
    WriteRequest,
};
use crate::notifications::PollWaker;
use crate::session::{CanExpire, SessionKind, negotiate};
use common::task::spawn;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileAttr, FileHandle, Filesystem, Generation,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Implements fuser's interface for one mounted file system.
pub(crate) struct Dispatcher<F>(Arc<F>, SessionKind, CanExpire);

impl<F> Dispatcher<F> {
    /// Returns a dispatcher for `fs`, whose mount is served as `kind` says.
    pub(crate) fn new(fs: Arc<F>, kind: SessionKind) -> Self {
        Self(fs, kind, CanExpire::default())
    }

    /// Returns the flag that says whether the kernel can mark cached names as expired. The flag is
    /// set when the session has begun.
    pub(crate) fn can_expire(&self) -> CanExpire {
        self.2.clone()
    }

    /// Returns the file system and the requester of a request.
    fn asked(&self, request: &Request) -> (Arc<F>, Requester) {
        (Arc::clone(&self.0), requester(request))
    }

    /// Returns the file system, the requester and the name of a request about a name.
    fn asked_in(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
    ) -> (Arc<F>, Requester, OwnedName) {
        (Arc::clone(&self.0), requester(request), OwnedName::new(parent.0, name))
    }
}

impl<F: FileSystem> Filesystem for Dispatcher<F> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.2.set(negotiate(config, &self.1));
        self.0.started();
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (fs, who, at) = self.asked_in(req, parent, name);
        spawn(async move { entry(reply, fs.lookup(who, at.name_in()).await) });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.0.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let (fs, who) = self.asked(req);
        spawn(async move { attr(reply, fs.getattr(who, ino.0, fh.map(|fh| fh.0)).await) });
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
        let (fs, who) = self.asked(req);
        let (owner, times, fh) = ((uid, gid), (atime, mtime), fh.map(|fh| fh.0));
        let wanted = SetAttrs { mode, owner, size, times, fh };
        spawn(async move { attr(reply, fs.setattr(who, ino.0, &wanted).await) });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let (fs, who) = self.asked(req);
        spawn(async move {
            data(reply, &fs.readlink(who, ino.0).await);
        });
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
        let (fs, who, at) = self.asked_in(req, parent, name);
        spawn(
            async move { entry(reply, fs.mkdir(who, at.name_in(), NewMode { mode, umask }).await) },
        );
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, who, at) = self.asked_in(req, parent, name);
        spawn(async move { empty(reply, fs.unlink(who, at.name_in()).await) });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (fs, who, at) = self.asked_in(req, parent, name);
        spawn(async move { empty(reply, fs.rmdir(who, at.name_in()).await) });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (fs, who, at) = self.asked_in(req, parent, link_name);
        let target = target.as_os_str().to_owned();
        spawn(async move { entry(reply, fs.symlink(who, at.name_in(), &target).await) });
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
        let (fs, who, from) = self.asked_in(req, parent, name);
        let to = OwnedName::new(newparent.0, newname);
        spawn(async move {
            empty(reply, fs.rename(who, from.name_in(), to.name_in(), flags).await);
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (fs, who, to) = self.asked_in(req, newparent, newname);
        spawn(async move { entry(reply, fs.link(who, ino.0, to.name_in()).await) });
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
        let (fs, who, at) = self.asked_in(req, parent, name);
        spawn(async move {
            created(reply, fs.create(who, at.name_in(), NewMode { mode, umask }, flags).await);
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, who) = self.asked(req);
        spawn(async move {
            opened(reply, &fs.open(who, ino.0, flags.0).await);
        });
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
        let (fs, who) = self.asked(req);
        let asked = ReadRequest { fh: fh.0, offset, size, flags: flags.0 };
        spawn(async move {
            data(reply, &fs.read(who, asked).await);
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let ((fs, who), bytes) = (self.asked(req), bytes.to_vec());
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let asked = WriteRequest { fh: fh.0, offset, from_cache };
        spawn(async move { written(reply, fs.write(who, asked, &bytes).await) });
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let (fs, who) = self.asked(req);
        spawn(async move { empty(reply, fs.flush(who, ino.0, fh.0, lock_owner.0).await) });
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
        self.0.release(ino.0, fh.0);
        reply.ok();
    }

    fn fsync(&self, req: &Request, ino: INodeNo, fh: FileHandle, data: bool, reply: ReplyEmpty) {
        let (fs, who) = self.asked(req);
        spawn(async move { empty(reply, fs.fsync(who, ino.0, fh.0, data).await) });
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        opened(reply, &self.0.opendir(requester(req), ino.0));
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let (fs, who) = self.asked(req);
        let (index, anew) = (offset.saturating_sub(DOTS), offset == 0);
        spawn(async move {
            let page = fs.readdir(who, ino.0, fh.0, index, anew).await;
            directory(reply, ino.0, offset, page);
        });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.releasedir(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let (fs, who) = self.asked(req);
        spawn(async move { empty(reply, fs.fsyncdir(who, ino.0, fh.0).await) });
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        stats(reply, &self.0.statfs());
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let ((fs, who), name) = (self.asked(req), name.to_owned());
        let value = value.to_vec();
        spawn(async move { empty(reply, fs.setxattr(who, ino.0, &name, &value, flags).await) });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let ((fs, who), name) = (self.asked(req), name.to_owned());
        spawn(async move { sized(reply, fs.getxattr(who, ino.0, &name).await, size) });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (fs, who) = self.asked(req);
        spawn(async move { sized(reply, fs.listxattr(who, ino.0).await, size) });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let ((fs, who), name) = (self.asked(req), name.to_owned());
        spawn(async move { empty(reply, fs.removexattr(who, ino.0, &name).await) });
    }

    // Each operation checks permissions itself; only execution needs a check here.
    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if !mask.contains(AccessFlags::X_OK) {
            return reply.ok();
        }
        let (fs, who) = self.asked(req);
        spawn(async move { executable(reply, &fs.getattr(who, ino.0, None).await) });
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (fs, who, at) = self.asked_in(req, parent, name);
        spawn(async move {
            entry(reply, fs.mknod(who, at.name_in(), NewMode { mode, umask }, device).await);
        });
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
        let (fs, who) = self.asked(req);
        spawn(async move {
            match fs.ioctl(who, ino.0, fh.0, cmd).await {
                Ok(bytes) => reply.ioctl(0, &bytes),
                Err(errno) => reply.error(errno),
            }
        });
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
        let (fs, who) = self.asked(req);
        let (ino, fh, owner) = (ino.0, fh.0, lock_owner.0);
        let asked = LockRequest { ino, fh, owner, start, end, kind: typ, pid };
        spawn(async move {
            match fs.getlk(who, asked).await {
                Ok(found) => reply.locked(found.start, found.end, found.kind, found.pid),
                Err(errno) => reply.error(errno),
            }
        });
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
        let (fs, who) = self.asked(req);
        let (ino, fh, owner) = (ino.0, fh.0, lock_owner.0);
        let asked = LockRequest { ino, fh, owner, start, end, kind: typ, pid };
        spawn(async move { empty(reply, fs.setlk(who, asked, sleep).await) });
    }

    fn destroy(&mut self) {
        self.0.ended();
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
        let fs = Arc::clone(&self.0);
        let waits = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY);
        let waker = waits.then(|| PollWaker::new(move || ph.notify()));
        spawn(async move {
            match fs.poll(fh.0, events, waker).await {
                Some(events) => reply.poll(events),
                None => reply.error(Errno::ENOSYS),
            }
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (fs, who) = self.asked(req);
        spawn(async move { empty(reply, fs.fallocate(who, fh.0, offset, length, mode).await) });
    }

    fn lseek(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        from: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (fs, who) = self.asked(req);
        spawn(async move { offset(reply, fs.lseek(who, fh.0, from, whence).await) });
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (fs, who) = self.asked(req);
        let from = FileOffset { fh: fh_in.0, offset: offset_in };
        let to = FileOffset { fh: fh_out.0, offset: offset_out };
        spawn(async move { written(reply, fs.copy_file_range(who, from, to, length).await) });
    }
}

/// The generation in each entry that is sent to the kernel. It tells apart inodes that have had the
/// same inode number; here no inode number is used twice, so it is constant.
const GENERATION: Generation = Generation(0);
/// The inode number of a directory entry whose inode the kernel does not know, as libfuse reports
/// it. With 0 the entry would be hidden.
const INO_UNKNOWN: u64 = 0xffff_ffff;
/// The number of directory offsets that `.` and `..` take; they precede the other names.
pub(super) const DOTS: u64 = 2;

/// Returns the user, group and thread that made a request.
pub(super) fn requester(request: &Request) -> Requester {
    Requester { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// Sends a directory entry, or an errno, as the reply to a request.
pub(super) fn entry(reply: ReplyEntry, result: Done<NodeEntry>) {
    match result {
        Ok(entry) => {
            let NodeEntry { attr, attr_ttl, entry_ttl, until_replied } = entry;
            reply.entry_with_ttls(&attr_ttl, &entry_ttl, &attr, GENERATION);
            drop(until_replied);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends a directory entry and an open file, or an errno, as the reply to a request.
pub(super) fn created(reply: ReplyCreate, result: Done<(NodeEntry, Opened)>) {
    match result {
        Ok((entry, Opened { fh, flags })) => {
            let NodeEntry { attr, entry_ttl, until_replied, .. } = entry;
            reply.created(&entry_ttl, &attr, GENERATION, FileHandle(fh), flags);
            drop(until_replied);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends the attributes of an inode, or an errno, as the reply to a request.
pub(super) fn attr(reply: ReplyAttr, result: Done<NodeAttr>) {
    match result {
        Ok(NodeAttr { attr, ttl, until_replied }) => {
            reply.attr(&ttl, &attr);
            drop(until_replied);
        }
        Err(errno) => reply.error(errno),
    }
}

/// Sends whether a file may be executed, as the reply to a check by access(2): not even by root, if
/// it is a regular file without an execute permission.
pub(super) fn executable(reply: ReplyEmpty, result: &Done<NodeAttr>) {
    let refuses = |attr: &FileAttr| attr.kind == NodeType::RegularFile && attr.perm & 0o111 == 0;
    match result {
        Ok(NodeAttr { attr, .. }) if refuses(attr) => reply.error(Errno::EACCES),
        Ok(_) | Err(_) => reply.ok(),
    }
}

/// Sends an open file or directory, or an errno, as the reply to a request.
pub(super) fn opened(reply: ReplyOpen, result: &Done<Opened>) {
    match result {
        Ok(Opened { fh, flags }) => reply.opened(FileHandle(*fh), *flags),
        Err(errno) => reply.error(*errno),
    }
}

/// Sends bytes, or an errno, as the reply to a request.
pub(super) fn data(reply: ReplyData, result: &Done<ReadBytes>) {
    match result {
        Ok(bytes) => reply.data(bytes.as_slice()),
        Err(errno) => reply.error(*errno),
    }
}

/// Sends the number of bytes written, or an errno, as the reply to a request.
pub(super) fn written(reply: ReplyWrite, result: Done<u32>) {
    match result {
        Ok(written) => reply.written(written),
        Err(errno) => reply.error(errno),
    }
}

/// Sends an offset in a file, or an errno, as the reply to a request.
pub(super) fn offset(reply: ReplyLseek, result: Done<i64>) {
    match result {
        Ok(offset) => reply.offset(offset),
        Err(errno) => reply.error(errno),
    }
}

/// Sends the numbers of blocks and names of a file system as the reply to a statfs.
pub(super) fn stats(reply: ReplyStatfs, stats: &FileSystemStats) {
    reply.statfs(
        stats.blocks,
        stats.blocks_free,
        stats.blocks_available,
        stats.files,
        stats.files_free,
        stats.block_bytes,
        stats.name_bytes,
        stats.fragment_bytes,
    );
}

/// Sends success without a value, or an errno, as the reply to a request.
pub(super) fn empty(reply: ReplyEmpty, result: Done<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Sends the value of an extended attribute as the reply, or its size if the program passed a
/// buffer of size 0.
pub(super) fn sized(reply: ReplyXattr, result: Done<Vec<u8>>, size: u32) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

/// Sends the directory entries from `offset` on, as many as fit, as the reply to a readdir.
pub(super) fn directory(mut reply: ReplyDirectory, ino: u64, offset: u64, result: Done<DirPage>) {
    let DirPage { entries, first } = match result {
        Ok(page) => page,
        Err(errno) => return reply.error(errno),
    };
    let dots = (0..DOTS).zip([".", ".."].map(OsStr::new));
    let dots = dots.map(|(at, name)| (at, ino, NodeType::Directory, name));
    let names = (first + DOTS..).zip(&*entries);
    let names = names.map(|(at, e)| (at, e.ino.unwrap_or(INO_UNKNOWN), e.kind, &*e.name));
    for (at, ino, kind, name) in dots.chain(names).skip_while(|(at, ..)| *at < offset) {
        if reply.add(INodeNo(ino), at + 1, kind, name) {
            break;
        }
    }
    reply.ok();
}
