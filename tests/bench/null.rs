//! A FUSE file system that only keeps a table of names and lock queues: its latency is the cost of
//! the kernel and fuser alone. Its settings are those of latchfs.

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyCreate, ReplyEmpty, ReplyEntry, ReplyOpen, Request, Session, TimeOrNow,
};
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TTL: Duration = Duration::ZERO;
/// How long the kernel may cache the attributes of the root, which never change.
const ROOT_TTL: Duration = Duration::from_secs(3_600);
/// The maximum number of background requests, as in latchfs: RELEASE goes through the kernel's
/// queue of background requests.
const MAX_BACKGROUND: u16 = 1_024;

/// The file system that does no work: its files have odd inode numbers, its directories even ones.
#[derive(Default)]
struct Null {
    names: Mutex<HashMap<OsString, u64>>,
    made: AtomicU64,
    queues: Mutex<HashMap<u64, Queue>>,
}

/// The exclusive holder of a locked file, and its waiters in order.
#[derive(Default)]
struct Queue {
    holder: Option<LockOwner>,
    waiting: VecDeque<(LockOwner, ReplyEmpty)>,
}

impl Null {
    fn names(&self) -> MutexGuard<'_, HashMap<OsString, u64>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self, name: &OsStr, is_file: bool) -> FileAttr {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let ino = 2 * number + u64::from(is_file);
        self.names().insert(name.to_owned(), ino);
        attributes(ino)
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<u64, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks a file, and passes its lock to the waiter that has waited longest.
    fn unlock(&self, ino: INodeNo, owner: LockOwner) {
        let mut queues = self.queues();
        let queue = queues.entry(ino.0).or_default();
        if queue.holder != Some(owner) {
            return;
        }
        let next = queue.waiting.pop_front();
        queue.holder = next.as_ref().map(|(owner, _)| *owner);
        drop(queues);
        if let Some((_, reply)) = next {
            reply.ok();
        }
    }

    fn remove(&self, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.names().remove(name);
        match removed {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }
}

fn attributes(ino: u64) -> FileAttr {
    let is_file = ino > 1 && ino % 2 == 1;
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file { FileType::RegularFile } else { FileType::Directory },
        perm: if is_file { 0o644 } else { 0o755 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4_096,
        flags: 0,
    }
}

impl Filesystem for Null {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.names().get(name).copied();
        match found {
            Some(ino) => reply.entry(&TTL, &attributes(ino), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = if ino == INodeNo::ROOT { ROOT_TTL } else { TTL };
        reply.attr(&ttl, &attributes(ino.0));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &attributes(ino.0));
    }

    fn mkdir(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.entry(&TTL, &self.make(name, false), Generation(0));
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let attributes = self.make(name, true);
        let flags = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(&TTL, &attributes, Generation(0), FileHandle(1), flags);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(owner) = owner {
            self.unlock(ino, owner);
        }
        reply.ok();
    }

    fn setlk(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        _: u64,
        _: u64,
        kind: i32,
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        if kind == libc::F_UNLCK {
            self.unlock(ino, owner);
            return reply.ok();
        }
        let mut queues = self.queues();
        let queue = queues.entry(ino.0).or_default();
        match queue.holder {
            Some(holder) if holder != owner && sleep => queue.waiting.push_back((owner, reply)),
            Some(holder) if holder != owner => reply.error(Errno::EAGAIN),
            _ => {
                queue.holder = Some(owner);
                drop(queues);
                reply.ok();
            }
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(name, reply);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(name, reply);
    }
}

/// Mounts the file system at `dir`, and serves it until it is unmounted.
pub(crate) fn serve(dir: &str) -> Result<(), String> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("latchfs-bench-null".to_owned())];
    config.n_threads = Some(1);
    let session = Session::new(Null::default(), dir, &config);
    let session = session.map_err(|error| format!("can't mount on {dir}: {error}"))?;
    session.run().map_err(|error| format!("serving {dir} ended: {error}"))
}
