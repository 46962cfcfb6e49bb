//! The file system of locks: dispatches each operation to the function that implements it, and is
//! mounted on a directory.

use crate::auth::{ClientPattern, Grant};
use crate::engine::ClientId;
use crate::fuse::control_files::control_ops::{self, entries};
use crate::fuse::control_names::{ControlFile, LockFact};
use crate::fuse::credentials;
use crate::fuse::credentials::Caller;
use crate::fuse::inodes::NodePlace;
use crate::fuse::lock_nodes::FOREVER;
pub use crate::fuse::mount_config::{ClientScope, HoldBy, MountConfig, ReadContent, Users};
use crate::fuse::mount_parts::Mount;
use crate::fuse::open_files::OpenTarget;
use crate::fuse::ops::{create, file_io, link, lookup, setattr, unlink, xattr};
use crate::fuse::posix_locks::file_locks;
use crate::fuse::refusals::Act;
use crate::service::LockService;
use kernel::file_system::DirPage;
use kernel::file_system::Done;
use kernel::file_system::Errno;
use kernel::file_system::FileSystem;
use kernel::file_system::FileSystemStats;
use kernel::file_system::LockFound;
use kernel::file_system::LockRequest;
use kernel::file_system::NameIn;
use kernel::file_system::NewMode;
use kernel::file_system::NodeAttr;
use kernel::file_system::NodeEntry;
use kernel::file_system::Opened;
use kernel::file_system::PollEvents;
use kernel::file_system::ReadBytes;
use kernel::file_system::ReadRequest;
use kernel::file_system::RenameFlags;
use kernel::file_system::Requester;
use kernel::file_system::SetAttrs;
use kernel::file_system::Unsupported;
use kernel::file_system::WriteRequest;
use kernel::machine_facts::own_uid;
use kernel::notifications::Invalidator;
use kernel::notifications::PollWaker;
use kernel::session;
pub use kernel::session::MountError;
use kernel::session::MountRequest;
pub use kernel::session::Mounted;
use kernel::session::SessionKind;
pub use kernel::session::Unmounted;
pub use kernel::session::check;
use std::ffi::OsStr;
use std::sync::Arc;

/// Mounts latchfs at `config.dir`, and serves the locks on a thread of its own until the directory
/// is unmounted.
pub fn mount(locks: &Arc<dyn LockService>, config: &MountConfig) -> Result<Mounted, MountError> {
    let MountConfig { dir, users, nonempty, .. } = config;
    let kind = SessionKind::LOCKS;
    let wanted = MountRequest { dir, users: *users, nonempty: *nonempty, kind };
    session::mount(wanted, |found| {
        let config = MountConfig { dir: found.dir.clone(), ..config.clone() };
        LockFs::new(locks, &config, found.follows_symlinks)
    })
}

/// Returns the client of this process's user, as a mount with the host name `host` names it.
pub fn client_of_user(host: &ClientId) -> ClientId {
    credentials::client_of_user(host, own_uid())
}

/// Returns the rights over HTTP that a user of this machine has through the given mounts; `None` if
/// no mount serves that user.
pub fn grant_of_user(mounts: &[MountConfig], uid: u32) -> Option<Grant> {
    if uid == 0 || uid == own_uid() {
        let anybody = vec![ClientPattern::Beginning(String::new())];
        return Some(Grant::of_user(uid, anybody, true));
    }
    let serving = mounts.iter().filter(|mount| mount.users == Users::All);
    let clients = serving.map(|mount| {
        let own = || credentials::client_of_user(&mount.client, uid).to_string();
        match mount.owner {
            ClientScope::Host => ClientPattern::Exactly(mount.client.to_string()),
            ClientScope::User => ClientPattern::Exactly(own()),
            ClientScope::Session => ClientPattern::Beginning(format!("{}:", own())),
        }
    });
    let clients: Vec<_> = clients.collect();
    (!clients.is_empty()).then(|| Grant::of_user(uid, clients, false))
}

/// The file system of one mount.
pub(crate) struct LockFs(Arc<Mount>);

impl LockFs {
    /// Returns the file system of a mount of `service`; `follows_symlinks` says whether the kernel
    /// follows symlinks in the mount.
    pub(crate) fn new(
        service: &Arc<dyn LockService>,
        config: &MountConfig,
        follows_symlinks: bool,
    ) -> Arc<Self> {
        Arc::new(Self(Mount::new(service, config, follows_symlinks)))
    }

    /// Counts a request for the file operation `act`, and returns its caller.
    fn caller(&self, who: Requester, act: Act) -> Caller {
        self.0.nodes.refusals.count_act(act);
        self.0.callers.caller(who)
    }

    /// Counts a file operation that locks don't support. Returns its errno.
    fn not_here(&self, errno: Errno) -> Errno {
        let refusals = &self.0.nodes.refusals;
        refusals.count_act(Act::Other);
        refusals.count_errno(errno);
        errno
    }
}

impl FileSystem for LockFs {
    fn started(&self) {
        self.0.bindings.resume();
    }

    fn attached(&self, invalidator: Invalidator) {
        self.0.cache.attach(invalidator);
    }

    async fn lookup(&self, who: Requester, at: NameIn<'_>) -> Done<NodeEntry> {
        let caller = self.caller(who, Act::Lookup);
        match self.0.nodes.place(at.parent) {
            Some(NodePlace::Control(dir)) => {
                control_ops::lookup(&self.0, &caller, &dir, at.name).await
            }
            Some(dir) => lookup::lookup(&self.0, &caller, &dir, at.name).await,
            None => Err(Errno::ESTALE),
        }
    }

    fn forget(&self, ino: u64, count: u64) {
        self.0.nodes.inodes().forget(ino, count);
    }

    async fn getattr(&self, who: Requester, ino: u64, _fh: Option<u64>) -> Done<NodeAttr> {
        let caller = self.caller(who, Act::Stat);
        match self.0.nodes.place(ino) {
            Some(NodePlace::Top) => {
                let attr = self.0.nodes.attrs.of_top();
                Ok(NodeAttr { ttl: FOREVER, ..NodeAttr::uncached(attr) })
            }
            Some(NodePlace::Control(control)) => {
                let attr = self.0.nodes.control_attr_now(&caller, ino, &control).await?;
                Ok(NodeAttr::uncached(attr))
            }
            Some(NodePlace::Lock(node)) => lookup::getattr(&self.0, &caller, ino, &node).await,
            None => Err(Errno::ESTALE),
        }
    }

    async fn setattr(&self, who: Requester, ino: u64, wanted: &SetAttrs) -> Done<NodeAttr> {
        let caller = self.caller(who, setattr::act_of(wanted));
        match self.0.nodes.place(ino) {
            Some(NodePlace::Lock(node)) => {
                setattr::setattr(&self.0, &caller, ino, &node, wanted).await
            }
            Some(NodePlace::Top) => Ok(NodeAttr::uncached(self.0.nodes.attrs.of_top())),
            Some(NodePlace::Control(control)) if wanted.size.is_some() => {
                Ok(NodeAttr::uncached(self.0.nodes.control_attr(ino, &control)))
            }
            Some(NodePlace::Control(_)) => Err(Errno::EPERM),
            None => Err(Errno::ESTALE),
        }
    }

    async fn readlink(&self, who: Requester, ino: u64) -> Done<ReadBytes> {
        let caller = self.caller(who, Act::Readlink);
        lookup::readlink(&self.0, &caller, ino).await
    }

    async fn mkdir(&self, who: Requester, at: NameIn<'_>, mode: NewMode) -> Done<NodeEntry> {
        let caller = self.caller(who, Act::Mkdir);
        create::mkdir(&self.0, &caller, at, mode.masked()).await
    }

    async fn unlink(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        let caller = self.caller(who, Act::Unlink);
        unlink::unlink(&self.0, &caller, at).await
    }

    async fn rmdir(&self, who: Requester, at: NameIn<'_>) -> Done<()> {
        let caller = self.caller(who, Act::Rmdir);
        unlink::rmdir(&self.0, &caller, at).await
    }

    async fn symlink(&self, who: Requester, at: NameIn<'_>, target: &OsStr) -> Done<NodeEntry> {
        let caller = self.caller(who, Act::Symlink);
        create::symlink(&self.0, &caller, at, target).await
    }

    async fn rename(
        &self,
        who: Requester,
        from: NameIn<'_>,
        to: NameIn<'_>,
        flags: RenameFlags,
    ) -> Done<()> {
        let caller = self.caller(who, Act::Rename);
        unlink::rename(&self.0, &caller, from, to, flags).await
    }

    async fn link(&self, who: Requester, ino: u64, to: NameIn<'_>) -> Done<NodeEntry> {
        let caller = self.caller(who, Act::Link);
        link::link(&self.0, &caller, ino, to).await
    }

    async fn create(
        &self,
        who: Requester,
        at: NameIn<'_>,
        mode: NewMode,
        flags: i32,
    ) -> Done<(NodeEntry, Opened)> {
        let caller = self.caller(who, create::act_of(flags));
        create::create(&self.0, &caller, at, mode.masked(), flags).await
    }

    async fn open(&self, who: Requester, ino: u64, flags: i32) -> Done<Opened> {
        let caller = self.caller(who, Act::Open);
        match self.0.nodes.place(ino) {
            Some(NodePlace::Lock(node)) => {
                file_io::open(&self.0, &caller, ino, node.name.clone(), flags).await
            }
            Some(NodePlace::Control(ControlFile::Fact(LockFact::Ctl, name))) => {
                let ino = self.0.nodes.inodes().number(&name);
                match ino {
                    Some(ino) => file_io::open(&self.0, &caller, ino, name, flags).await,
                    None => Err(Errno::ENOENT),
                }
            }
            Some(NodePlace::Control(control)) => {
                control_ops::open(&self.0, &caller, control, flags)
            }
            Some(NodePlace::Top) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
    }

    async fn read(&self, who: Requester, asked: ReadRequest) -> Done<ReadBytes> {
        let caller = self.caller(who, Act::Read);
        let Some(open) = self.0.opens.get(asked.fh) else { return Err(Errno::EBADF) };
        match &open.target {
            OpenTarget::Lock(ino, name) => {
                file_io::read(&self.0, &caller, &open, *ino, name, asked).await
            }
            OpenTarget::Control(control) => {
                // A read at offset 0 clears the file's change flag for poll. A read of a file in
                // `wait/` does not: it waits for the lock, and does not look at its state.
                if asked.offset == 0 && open.waits_for().is_none() {
                    self.0.polls.reads(asked.fh);
                }
                control_ops::read(&self.0, &caller, &open, control, asked).await
            }
        }
    }

    async fn write(&self, who: Requester, asked: WriteRequest, data: &[u8]) -> Done<u32> {
        let WriteRequest { fh, offset, .. } = asked;
        let caller = self.caller(who, Act::Write);
        let Some(open) = self.0.opens.get(fh) else { return Err(Errno::EBADF) };
        match &open.target {
            OpenTarget::Lock(ino, name) => {
                file_io::write(&self.0, &caller, &open, *ino, name, offset, data).await
            }
            OpenTarget::Control(control) => {
                control_ops::write(&self.0, &caller, fh, &open, control, data).await
            }
        }
    }

    async fn flush(&self, who: Requester, ino: u64, fh: u64, owner: u64) -> Done<()> {
        self.0.posix_locks.flushed(ino, owner);
        let caller = self.caller(who, Act::Close);
        file_io::flush(&self.0, &caller, fh).await
    }

    fn release(&self, ino: u64, fh: u64) {
        // All that was locked through the open file is released by its file handle, and not by the
        // kernel's number of the lock owner, because RELEASE does not contain the owner of OFD
        // locks. The fcntl locks of a process were released already, at the FLUSH of its close.
        let open = file_io::release(&self.0, fh);
        self.0.waits.closed(fh);
        self.0.posix_locks.closed(ino, fh);
        if let Some(open) = open {
            control_ops::closed(&self.0, &open);
        }
    }

    fn opendir(&self, who: Requester, _ino: u64) -> Done<Opened> {
        lookup::open_dir(&self.0, &self.0.callers.caller(who))
    }

    async fn readdir(
        &self,
        who: Requester,
        ino: u64,
        fh: u64,
        index: u64,
        anew: bool,
    ) -> Done<DirPage> {
        let caller = self.caller(who, Act::List);
        let place = self.0.nodes.place(ino);
        let fixed = match &place {
            Some(NodePlace::Control(dir)) => Some(entries(dir)),
            _ => None,
        };
        let dir = lookup::reading(&self.0, fh, anew, fixed)?;
        let parent = match &place {
            Some(NodePlace::Lock(node)) => Some(&node.name),
            Some(NodePlace::Top | NodePlace::Control(_)) => None,
            None => return Err(Errno::ESTALE),
        };
        lookup::page(&self.0, &caller, parent, &dir, index).await
    }

    fn releasedir(&self, fh: u64) {
        lookup::close_dir(&self.0, fh);
    }

    fn statfs(&self) -> FileSystemStats {
        lookup::statfs(&self.0)
    }

    async fn setxattr(
        &self,
        who: Requester,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        _flags: i32,
    ) -> Done<()> {
        let caller = self.caller(who, Act::SetXattr);
        xattr::set(&self.0, &caller, ino, name, value).await
    }

    async fn getxattr(&self, who: Requester, ino: u64, name: &OsStr) -> Done<Vec<u8>> {
        let caller = self.caller(who, Act::GetXattr);
        xattr::get(&self.0, &caller, ino, name).await
    }

    async fn listxattr(&self, who: Requester, ino: u64) -> Done<Vec<u8>> {
        let caller = self.caller(who, Act::GetXattr);
        xattr::list(&self.0, &caller, ino).await
    }

    async fn removexattr(&self, _who: Requester, _ino: u64, name: &OsStr) -> Done<()> {
        Err(self.not_here(xattr::remove(name)))
    }

    async fn ioctl(&self, who: Requester, ino: u64, fh: u64, command: u32) -> Done<Vec<u8>> {
        let caller = self.0.callers.caller(who);
        match command {
            file_locks::TOKEN => {
                file_locks::token(&self.0.posix_locks, &self.0.nodes, &caller, ino, fh).await
            }
            file_locks::GIVE_UP => {
                file_locks::give_up(&self.0.posix_locks, ino, fh);
                Ok(Vec::new())
            }
            _ => Err(self.not_here(Errno::ENOTTY)),
        }
    }

    async fn getlk(&self, who: Requester, asked: LockRequest) -> Done<LockFound> {
        let caller = self.caller(who, Act::Lock);
        self.0.posix_locks.get(&caller, &asked).await
    }

    async fn setlk(&self, who: Requester, asked: LockRequest, sleep: bool) -> Done<()> {
        let caller = self.caller(who, Act::Lock);
        self.0.parents.check_lock(&caller, &asked).await?;
        self.0.posix_locks.set(&caller, &asked, sleep).await?;
        if asked.kind != libc::F_UNLCK
            && let Some(name) = self.0.opens.get(asked.fh).as_ref().and_then(|open| open.lock())
        {
            self.0.nodes.users.locked(&caller, name);
        }
        Ok(())
    }

    async fn poll(
        &self,
        fh: u64,
        events: PollEvents,
        waker: Option<PollWaker>,
    ) -> Option<PollEvents> {
        Some(self.0.polls.poll(fh, events, waker).await)
    }

    fn unsupported(&self, operation: Unsupported) -> Errno {
        self.not_here(match operation {
            Unsupported::Mknod => Errno::EPERM,
            Unsupported::Fallocate => Errno::ENOTSUP,
            // `SEEK_DATA` and `SEEK_HOLE` are not supported, because the files of locks have no
            // holes.
            Unsupported::Lseek => Errno::EINVAL,
            Unsupported::CopyFileRange => Errno::EXDEV,
        })
    }

    fn ended(&self) {
        self.0.posix_locks.end();
        self.0.bindings.end();
        self.0.cache.end();
    }
}
