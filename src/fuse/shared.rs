//! What all file operations of one mount share, and the few steps that they have in common.

use crate::fuse::file_attrs::{self, Sight};
use crate::fuse::kernel::device::own_uid;
use crate::fuse::errno::{Act, errno_of, errno_of_name};
use crate::fuse::join::Join;
use crate::fuse::kernel_cache::Kept;
use crate::fuse::posix_locks::Locking;
use crate::fuse::kernel::interrupts::Lookout;
use crate::fuse::mount::MountConfig;
use crate::fuse::open_files::{Open, Opens, Target};
use crate::fuse::credentials::{Caller, Owners};
use crate::fuse::poll::Polls;
use crate::fuse::process::bindings::Processes;
use crate::fuse::kernel::user_shares::{Full, Shares};
use crate::fuse::inodes::{LockPlace, Place, TOP, Tree};
use crate::fuse::last_refusal::{Said, Whys};
use crate::engine::name::RESERVED_PREFIX;
use crate::engine::{FileType, LockName, LockView, NameError, Op, Outcome, RefusalKind, Token};
use crate::service::{CacheableView, Locks, RequestError};
use crate::time::Wall;
use fuser::{Errno, FileAttr};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Errnos that are counted by number; Linux has fewer than this.
const ERRNOS: usize = 134;

/// What a lock looks like, and as of which event: see [`CacheableView`].
pub(crate) type Looked = (Sight, Option<u64>);

/// One mount.
pub(crate) struct Shared {
    /// The door to the engine.
    pub(crate) locks: Locks,
    /// How it is mounted.
    pub(crate) config: MountConfig,
    /// Which inode stands for what.
    pub(crate) tree: Mutex<Tree>,
    /// Open files.
    pub(crate) opens: Opens,
    /// What open files hold and wait for.
    pub(crate) locking: Locking,
    /// Open files that are polled.
    pub(crate) polls: Polls,
    /// The processes that leases are bound to.
    pub(crate) processes: Processes,
    /// Looks after those who wait in a system call.
    pub(crate) lookout: Lookout,
    /// What the kernel keeps.
    pub(crate) kept: Kept,
    /// Users, sessions and processes.
    pub(crate) owners: Owners,
    /// The last refusals.
    pub(crate) whys: Whys,
    /// What was done, and how often in vain.
    pub(crate) counters: Counters,
    /// When it was mounted: the time of what has no other.
    pub(crate) since: Wall,
    /// Who mounted it.
    pub(crate) mounter: u32,
    /// Whether the kernel follows the symlinks in it: it can't be told not to before Linux 5.10,
    /// nor by a helper that does not know how.
    pub(crate) follows_symlinks: bool,
    /// What each user may have of it.
    pub(crate) shares: Shares,
}

/// A handle that rides in callbacks.
pub(crate) type Fs = Arc<Shared>;

/// What was done, and how often in vain.
pub(crate) struct Counters {
    acts: [AtomicU64; Act::COUNT],
    errnos: [AtomicU64; ERRNOS],
}

impl Counters {
    /// All at zero.
    fn new() -> Self {
        Self {
            acts: [const { AtomicU64::new(0) }; Act::COUNT],
            errnos: [const { AtomicU64::new(0) }; ERRNOS],
        }
    }

    /// One more.
    pub(crate) fn act(&self, act: Act) {
        self.acts[act as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// One more in vain.
    pub(crate) fn errno(&self, errno: Errno) {
        if let Some(count) = usize::try_from(errno.code()).ok().and_then(|n| self.errnos.get(n)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often each was done.
    pub(crate) fn acts(&self) -> impl Iterator<Item = (Act, u64)> + '_ {
        Act::ALL.iter().map(|act| (*act, self.acts[*act as usize].load(Ordering::Relaxed)))
    }

    /// How often each errno was the answer, where it ever was.
    pub(crate) fn errnos(&self) -> impl Iterator<Item = (Errno, u64)> + '_ {
        let all = self.errnos.iter().enumerate();
        all.map(|(n, count)| (Errno::from_i32(n as i32), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }
}

impl Shared {
    /// A mount of `locks` that nothing was done in yet.
    pub(crate) fn new(locks: Locks, config: &MountConfig, follows_symlinks: bool) -> Self {
        let shares = Shares::new(own_uid());
        Self {
            locks,
            config: config.clone(),
            tree: Mutex::new(Tree::default()),
            opens: Opens::new(shares.clone()),
            locking: Locking::default(),
            polls: Polls::default(),
            processes: Processes::default(),
            lookout: Lookout::new(shares.clone()),
            kept: Kept::default(),
            owners: Owners::new(config),
            whys: Whys::default(),
            counters: Counters::new(),
            since: Wall::now(),
            mounter: own_uid(),
            follows_symlinks,
            shares,
        }
    }

    /// Keeps a refusal for `.latchfs/why`, counts it, and says its errno.
    pub(crate) fn refuse(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        failure: RequestError,
    ) -> Errno {
        let errno = errno_of(&failure, act);
        self.keep(caller, act, name, errno, Said::Failure(failure))
    }

    /// The same for what the file system itself refuses.
    pub(crate) fn refuse_own(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        sentence: impl Into<String>,
    ) -> Errno {
        let kind = match errno.code() {
            libc::EPERM => RefusalKind::LockNotHeld,
            libc::EBUSY => RefusalKind::LockConflict,
            libc::EACCES => RefusalKind::Denied,
            libc::EMLINK | libc::ENOSPC => RefusalKind::Limit,
            _ => RefusalKind::Invalid,
        };
        self.keep(caller, act, name, errno, Said::Own(kind, sentence.into()))
    }

    /// The same for what is more than a user's share.
    pub(crate) fn refuse_full(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        full: Full,
    ) -> Errno {
        self.refuse_own(caller, act, name, Errno::ENOSPC, full.to_string())
    }

    fn keep(
        &self,
        caller: &Caller,
        act: Act,
        name: Option<&LockName>,
        errno: Errno,
        said: Said,
    ) -> Errno {
        self.whys.refused(&caller.client, act, name, errno, said);
        self.counters.errno(errno);
        errno
    }

    /// What an inode stands for.
    pub(crate) fn place(&self, ino: u64) -> Option<Place> {
        // Asked with nearly every name.
        if ino == TOP {
            return Some(Place::Top);
        }
        self.tree.lock().place(ino)
    }

    /// The lock that an inode stands for.
    pub(crate) fn lock_place(&self, ino: u64) -> Option<Arc<LockPlace>> {
        match self.place(ino) {
            Some(Place::Lock(lock)) => Some(lock),
            Some(Place::Top | Place::Control(_)) | None => None,
        }
    }

    /// The tenure that an open file is to be bound to, so that it speaks for `token`.
    pub(crate) fn origin_of(&self, open: &Open, token: Token) -> Token {
        let Target::Lock(ino, _) = &open.target else { return token };
        self.lock_place(*ino).map_or(token, |place| place.origin_of(token))
    }

    /// The name of a lock that `caller` wants to make, change or remove in a directory.
    pub(crate) fn name_in(
        &self,
        caller: &Caller,
        act: Act,
        parent: u64,
        name: &OsStr,
    ) -> Result<LockName, Errno> {
        match self.place(parent) {
            Some(Place::Control(_)) => Err(self.refuse_ours(caller, act)),
            Some(Place::Top) if name == RESERVED_PREFIX => Err(self.refuse_ours(caller, act)),
            Some(place) => place.child(name).map_err(|error| {
                let sentence = wrong_name(name, error);
                self.refuse_own(caller, act, None, errno_of_name(error), sentence)
            }),
            None => Err(Errno::ESTALE),
        }
    }

    fn refuse_ours(&self, caller: &Caller, act: Act) -> Errno {
        let sentence = ".latchfs holds latchfs's own files, and only those; make locks beside it";
        self.refuse_own(caller, act, None, Errno::EPERM, sentence)
    }

    /// Shows a lock, or refuses for want of an answer.
    pub(crate) fn view(
        self: &Arc<Self>,
        caller: &Caller,
        act: Act,
        name: &LockName,
        then: impl FnOnce(&Fs, &Caller, Result<LockView, Errno>) + Send + 'static,
    ) {
        let seen = move |fs: &Fs, caller: &Caller, name: &LockName, view: Result<LockView, _>| {
            let refuse = |why| fs.refuse(caller, act, Some(name), RequestError::Unavailable(why));
            then(fs, caller, view.map_err(refuse));
        };
        // What is known here and now needs nothing to ride in a callback.
        if let Some(view) = self.locks.view_here(name) {
            return seen(self, caller, name, view);
        }
        let (fs, caller, asked) = (Arc::clone(self), caller.clone(), name.clone());
        self.locks.view(name, move |view| seen(&fs, &caller, &asked, view));
    }

    /// Shows a lock as a file, and says whether the kernel may be let keep that.
    pub(crate) fn look(
        self: &Arc<Self>,
        caller: &Caller,
        act: Act,
        name: LockName,
        then: impl FnOnce(&Fs, &Caller, LockName, Result<Looked, Errno>) + Send + 'static,
    ) {
        // What is decided here the kernel keeps nothing of.
        if let Some(sight) = self.locks.glance(&name, |lock| Sight::of_glance(self, lock)) {
            return then(self, caller, name, Ok((sight, None)));
        }
        let (fs, caller) = (Arc::clone(self), caller.clone());
        self.locks.look(&name.clone(), move |seen| {
            let refuse = |why| fs.refuse(&caller, act, Some(&name), RequestError::Unavailable(why));
            let seen = seen.map_err(refuse);
            let seen =
                seen.map(|CacheableView { view, as_of }| (Sight::of_view(&fs, &view), as_of));
            then(&fs, &caller, name, seen);
        });
    }

    /// Has the engine decide; a refusal is kept for `.latchfs/why`.
    pub(crate) fn submit(
        self: &Arc<Self>,
        caller: &Caller,
        act: Act,
        name: &LockName,
        op: Op,
        then: impl FnOnce(&Fs, &Caller, Result<Outcome, Errno>) + Send + 'static,
    ) {
        let asked = name.clone();
        self.ask(caller, op, move |fs, caller, answer| {
            let refuse = |failure| fs.refuse(caller, act, Some(&asked), failure);
            then(fs, caller, answer.map_err(refuse));
        });
    }

    /// Has the engine decide.
    pub(crate) fn ask(
        self: &Arc<Self>,
        caller: &Caller,
        op: Op,
        then: impl FnOnce(&Fs, &Caller, Result<Outcome, RequestError>) + Send + 'static,
    ) {
        let command = op.into();
        if let Some(answer) = self.locks.submit_here(&command) {
            return then(self, caller, flat(answer));
        }
        let (fs, caller) = (Arc::clone(self), caller.clone());
        self.locks.submit(command, move |answer| then(&fs, &caller, flat(answer)));
    }

    /// The attributes of a lock's inode as things are now. An inode whose names are all gone has
    /// no links any more; fstat of an open file still shows it.
    pub(crate) fn attr_now(
        self: &Arc<Self>,
        caller: &Caller,
        ino: u64,
        place: Arc<LockPlace>,
        then: impl FnOnce(&Fs, Result<FileAttr, Errno>) + Send + 'static,
    ) {
        if place.links.len() > 1 {
            let names: Vec<_> = place.links.iter().map(|link| link.name.clone()).collect();
            return views(self, caller, Act::Stat, &names, move |fs, seen| {
                then(fs, seen.map(|seen| attr_of_group(fs, ino, &place, &seen)));
            });
        }
        self.look(caller, Act::Stat, place.name.clone(), move |fs, _, _, seen| {
            then(fs, seen.map(|(sight, _)| attr_of_one(fs, ino, &place, &sight)));
        });
    }
}

/// An answer of the door with both kinds of no in one.
pub(crate) fn flat<T>(
    answer: Result<Result<T, crate::engine::Refusal>, crate::service::Unavailable>,
) -> Result<T, RequestError> {
    answer.map_err(RequestError::Unavailable)?.map_err(RequestError::Refused)
}

/// Returns the views of several locks, in order; of one at least.
pub(crate) fn views(
    fs: &Fs,
    caller: &Caller,
    act: Act,
    names: &[LockName],
    then: impl FnOnce(&Fs, Result<Vec<LockView>, Errno>) + Send + 'static,
) {
    let shared = Arc::clone(fs);
    let join = Join::new(names.len(), move |views: Vec<Result<LockView, Errno>>| {
        then(&shared, views.into_iter().collect());
    });
    for (index, name) in names.iter().enumerate() {
        let join = Arc::clone(&join);
        fs.view(caller, act, name, move |_, _, view| join.answered(index, view));
    }
}

/// The attributes of an inode with one name, or none.
pub(crate) fn attr_of_one(fs: &Shared, ino: u64, place: &LockPlace, sight: &Sight) -> FileAttr {
    let face = place.face;
    let Some(link) = place.links.first() else { return attr::of_nobody(fs, ino, face, 0) };
    let Some((shown, token)) = sight.shown().filter(|(shown, _)| *shown == face) else {
        return attr::of_nobody(fs, ino, face, 0);
    };
    // A file goes on under the next tenure; a directory or symlink of an older one is gone.
    let same = link.token == token || link.token.is_none() || token.is_none();
    match sight {
        Sight::Held(held) if same || shown == FileType::File => {
            attr::of_held(fs, ino, face, attr::LINKS, held)
        }
        Sight::Held(_) => attr::of_nobody(fs, ino, face, 0),
        _ => attr::of_nobody(fs, ino, face, attr::LINKS),
    }
}

/// The attributes of an inode with several names: it has as many links as are still held.
fn attr_of_group(fs: &Shared, ino: u64, place: &LockPlace, seen: &[LockView]) -> FileAttr {
    let held = place.links.iter().zip(seen).filter_map(|(link, view)| {
        let Sight::Held(held) = Sight::of_view(fs, view) else { return None };
        (link.token == Some(held.token)).then_some(held)
    });
    let nlink = held.clone().count() as u32;
    match held.into_iter().next() {
        Some(held) => attr::of_held(fs, ino, place.face, nlink, &held),
        None => attr::of_nobody(fs, ino, place.face, 0),
    }
}

/// The sentence for a name that is none.
pub(crate) fn wrong_name(name: &OsStr, error: NameError) -> String {
    let shown = String::from_utf8_lossy(name.as_bytes());
    let shown = crate::fuse::write_message::short(&shown.escape_debug().to_string());
    format!("'{shown}' can't be the name of a lock: {error}; choose another")
}
