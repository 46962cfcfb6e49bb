//! The view of one folder: its parts, how a node's file is opened, and how a change gets its pass
//! through the gate.

use super::super::tenure::Owner;
use super::super::write_policy::{OnWrite, OwnerKind, WritePolicy};
use crate::auth::FolderAct;
use crate::guard::disk::linux_disk::{LinuxDisk, id_in, open_below, stat};
use crate::guard::disk::operations::FileId;
use crate::guard::folder::folder_guard::FolderGuard;
use crate::guard::lock::lock_records::LockRecords;
use crate::guard::stage::gate::{Closed, Pass};
use crate::guard::stage::staged_file::SaveState;
use crate::guard::tenures::sequence::Tenures;
use crate::guard::tenures::wishes::{Denied, WishOf};
use crate::guard::view::parts::close_rule::{ProcessLook, Saving};
use crate::guard::view::parts::control_files::ViewControlFiles;
use crate::guard::view::parts::control_files::{Refused, RefusedChanges, classed};
use crate::guard::view::parts::database_files::Databases;
use crate::guard::view::parts::local_dir::LocalFiles;
use crate::guard::view::parts::nodes::NodeBase;
use crate::guard::view::parts::nodes::Nodes;
use crate::guard::view::parts::open_file::KernelWait;
use crate::guard::view::parts::open_file::OpenFile;
use crate::guard::view::parts::open_file::ViewDirReading;
use crate::guard::view::parts::record_nodes::RecordUse;
use crate::guard::view::parts::second_opens::SecondOpens;
use crate::guard::view::parts::view_snapshots::ViewSnapshots;
use crate::guard::view::requests::lost_control::LostListing;
use crate::holder_id::LoginSession;
use crate::time::Span;
use barrier::tenure_id::TenureId;
use kernel::file_system::Done;
use kernel::file_system::{Errno, Requester};
use kernel::handles::{Full, Pool, Share, Shares};
use kernel::handles::{HandleNumbers, Handles};
use kernel::interrupts::InterruptWatcher;
use kernel::notifications::Invalidator;
use kernel::slow_calls::SlowCalls;
use parking_lot::Mutex;
use rustix::fs::{OFlags, Statx};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

/// How long an operation waits that keeps its directory locked in the kernel: other programs can't
/// use the directory meanwhile.
const DIRECTORY_PATIENCE: Span = Span::from_secs(1);

/// The view of one folder.
pub(crate) struct FolderView {
    pub(super) guard: Arc<FolderGuard<LinuxDisk>>,
    pub(super) tenures: Arc<Tenures<LinuxDisk>>,
    pub(super) policy: Arc<WritePolicy>,
    pub(super) nodes: Nodes,
    pub(super) local: LocalFiles,
    pub(super) snapshots: ViewSnapshots,
    pub(super) numbers: HandleNumbers,
    pub(super) files: Handles<OpenFile>,
    /// The kernel's limit on the time of a request when the view was mounted, in seconds.
    pub(super) request_timeout: Option<u64>,
    pub(super) second_opens: SecondOpens,
    pub(super) dirs: Handles<OpenViewDir>,
    pub(super) refused: RefusedChanges,
    pub(super) control: ViewControlFiles,
    pub(super) records: Arc<LockRecords>,
    pub(super) record_use: RecordUse,
    pub(super) databases: Databases,
    pub(super) shares: Shares,
    pub(super) interrupts: InterruptWatcher,
    pub(super) invalidator: OnceLock<Invalidator>,
    pub(super) slow_calls: SlowCalls,
    pub(super) lost_listing: LostListing,
    pub(super) processes: ProcessLook,
    /// This view, for calls that are made on another thread.
    pub(super) own: Weak<FolderView>,
    /// The path of the folder, for messages.
    pub(super) folder: PathBuf,
    /// The path of the view, for messages.
    pub(super) shown_at: PathBuf,
    /// Whether a sync tool may carry the folder.
    pub(super) is_carried: bool,
}

/// An open directory.
pub(super) struct OpenViewDir {
    /// The place in the folder's directory; `None` for `.latchfs`.
    pub(super) reading: Option<Mutex<ViewDirReading>>,
    /// The parts of the directory in those of its user: its page of names, and its descriptor.
    pub(super) _shares: (Share, Option<Share>),
}

/// Where an operation may wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MayWait {
    /// As long as the policy says: no directory is locked in the kernel.
    Long,
    /// A second at most: a directory is locked in the kernel.
    Briefly,
}

/// The file behind a node, opened so that it stays the same file.
pub(super) enum Located {
    /// A file with a name, which was opened by its path with `O_PATH`.
    Path(OwnedFd),
    /// A file that is not published yet.
    Saving(Arc<Saving>),
    /// A file without a name that a program has open.
    Open(Arc<OpenFile>),
    /// A file that has lost its name since a lookup found it, opened with `O_PATH`.
    Kept(Arc<OwnedFd>),
}

/// A located file, with its attributes and, unless the file has no name, its path.
pub(super) struct LocatedFile {
    pub(super) located: Located,
    pub(super) found: Statx,
    pub(super) path: PathBuf,
    /// Where the file lies.
    pub(super) base: NodeBase,
}

impl LocatedFile {
    /// Returns a descriptor of the file.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.located {
            Located::Path(fd) => fd.as_fd(),
            Located::Kept(fd) => fd.as_fd(),
            Located::Saving(saving) => saving.staged.file.as_fd(),
            Located::Open(open) => match open.file() {
                Some(file) => file.as_fd(),
                None => rustix::fs::CWD,
            },
        }
    }
}

/// Returns the errno of a failed system call.
pub(super) fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Returns the errno of a failed system call on a path: a path that has become another one makes
/// the kernel look its names up again.
pub(super) fn stale(error: &io::Error) -> Errno {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Errno::ESTALE,
        // A mount point lies in the folder.
        Some(libc::EXDEV) => Errno::EROFS,
        _ => errno(error),
    }
}

/// Returns a path of the folder as messages show it.
fn shown(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Returns the sentence for a file that was not opened because too many are open.
fn cannot_open(path: &Path, full: &Full) -> String {
    format!("{} was not opened: {full}", shown(path).display())
}

impl FolderView {
    /// Makes a call for a program that may take long, while other requests are answered.
    pub(super) async fn slowly<T: Send + 'static>(
        &self,
        who: Requester,
        call: impl FnOnce(&Self) -> Done<T> + Send + 'static,
    ) -> Done<T> {
        let Some(own) = self.own.upgrade() else { return Err(Errno::ESTALE) };
        self.slow_calls.make(who.uid, move || call(&own)).await.unwrap_or(Err(Errno::EIO))
    }

    /// Returns the user to whom the folder belongs.
    pub(super) fn owner_of_folder(&self) -> Option<u32> {
        stat(self.root()).ok().map(|found| found.stx_uid)
    }

    /// Returns the descriptor of the folder.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.guard.folder().as_fd()
    }

    /// Returns the directory below which the paths of nodes lie.
    pub(super) fn base(&self, base: NodeBase) -> BorrowedFd<'_> {
        match base {
            NodeBase::Folder => self.root(),
            NodeBase::Local => self.local.root.as_fd(),
            NodeBase::Snapshot(_) => self.snapshots.dir.as_fd(),
        }
    }

    /// Opens the file behind a node, and checks that it is that file: its path may lead to another
    /// one by now.
    pub(super) fn locate(&self, ino: u64) -> Done<LocatedFile> {
        let known = self.nodes.known(ino)?;
        let (base, below) = (known.base, known.below.unwrap_or_default());
        if let Some(saving) = known.saving {
            let found = stat(saving.staged.file.as_fd()).map_err(|error| errno(&error))?;
            let path = known.path.unwrap_or_default();
            return Ok(LocatedFile { located: Located::Saving(saving), found, path, base });
        }
        let by_path = known.path.ok_or(Errno::ESTALE).and_then(|path| {
            let fd = open_below(self.base(base), &below, OFlags::PATH);
            let fd = fd.map_err(|error| stale(&error))?;
            let found = stat(fd.as_fd()).map_err(|error| errno(&error))?;
            if id_in(&found) != known.file {
                return Err(Errno::ESTALE);
            }
            Ok(LocatedFile { located: Located::Path(fd), found, path, base })
        });
        if by_path.is_ok() {
            return by_path;
        }
        // The file has no name any more, or another program has renamed it past the view.
        let Some(open) = known.open else { return by_path };
        let Some(file) = open.file() else { return by_path };
        let found = stat(file.as_fd()).map_err(|error| errno(&error))?;
        Ok(LocatedFile { located: Located::Open(open), found, path: PathBuf::new(), base })
    }

    /// Opens a directory by its node.
    pub(super) fn directory(&self, ino: u64) -> Done<(OwnedFd, PathBuf)> {
        let located = self.locate(ino)?;
        match located.located {
            Located::Path(fd) => Ok((fd, located.path)),
            Located::Saving(_) => Err(Errno::ENOTDIR),
            Located::Open(_) | Located::Kept(_) => Err(Errno::ENOENT),
        }
    }

    /// Returns the path of a name in a directory.
    pub(super) fn path_in(&self, parent: u64, name: &std::ffi::OsStr) -> Done<PathBuf> {
        Ok(self.nodes.path(parent)?.join(name))
    }

    /// Whether the program that made a request belongs to the owner of a tenure.
    pub(super) fn is_of(owner: Owner, who: Requester) -> bool {
        match owner {
            Owner::Host => true,
            Owner::User(uid) => who.uid == uid,
            Owner::Session(session) => session.includes(LoginSession::of(who.pid, who.uid)),
        }
    }

    /// Returns for whom the lock is held and since when, if the program is of another owner.
    pub(super) fn excluded_by(&self, who: Requester) -> Option<String> {
        let (owner, since) = self.tenures.holding()?;
        (!Self::is_of(owner, who)).then(|| owner.holds(Some(since)))
    }

    /// Returns the next step of a program, while the lock is held for another owner of this
    /// machine.
    pub(super) fn next_of_excluded(&self, who: Requester) -> String {
        if self.user(who).check(FolderAct::Take).is_err() {
            return "wait with 'latchfs guard wait', and try again".to_owned();
        }
        let view = self.shown_at.display();
        format!(
            "wait with 'latchfs guard take', or run the command by 'latchfs run --guard {view} \
             --wait 10m -- COMMAND'"
        )
    }

    /// Lets a change by path pass the gate, once it is announced. Takes the lock first if the
    /// policy says so.
    pub(super) async fn pass(
        &self,
        who: Requester,
        path: &Path,
        may_wait: MayWait,
    ) -> Done<Pass<'_>> {
        let pass = self.pass_unannounced(who, path, may_wait).await?;
        if !self.guard.gate().must_announce() {
            return Ok(pass);
        }
        drop(pass);
        self.announce(who, path, may_wait).await?;
        let pass = self.pass_unannounced(who, path, may_wait).await?;
        self.check_announced(who, path)?;
        Ok(pass)
    }

    /// Lets something pass the gate that is no change of the folder yet. Takes the lock first if
    /// the policy says so.
    pub(super) async fn pass_unannounced(
        &self,
        who: Requester,
        path: &Path,
        may_wait: MayWait,
    ) -> Done<Pass<'_>> {
        self.after_jump(who, path, may_wait).await?;
        self.check_renewed(who, path, Errno::EROFS)?;
        let closed = match self.guard.gate().enter(None, |owner| Self::is_of(owner, who)) {
            Ok(pass) => return Ok(pass),
            Err(closed) => closed,
        };
        // Another owner of this machine may hold the lock, as another machine may.
        if let Closed::NotHeld | Closed::OtherOwner(_) = closed {
            self.take(who, path, may_wait).await?;
        } else {
            return Err(self.refuse(who, path, Errno::EROFS, closed));
        }
        let entered = self.guard.gate().enter(None, |owner| Self::is_of(owner, who));
        entered.map_err(|closed| self.refuse(who, path, Errno::EROFS, closed))
    }

    /// Lets a change of an open file pass the gate: only in the tenure in which it was opened.
    pub(super) fn pass_open(
        &self,
        who: Requester,
        open: &OpenFile,
        tenure: TenureId,
        is_writeback: bool,
    ) -> Done<Pass<'_>> {
        if !is_writeback {
            let path = self.nodes.path(open.ino).unwrap_or_default();
            self.check_renewed(who, &path, Errno::ESTALE)?;
        }
        let is_of = |owner| is_writeback || Self::is_of(owner, who);
        self.guard.gate().enter(Some(tenure), is_of).map_err(|closed| {
            let path = self.nodes.path(open.ino).unwrap_or_default();
            let state = open.saving().map(|saving| saving.staged.save_state());
            let errno = match closed {
                Closed::OtherOwner(_) => Errno::EROFS,
                // The program may go on in the next tenure.
                _ if open.is_dormant() && !is_writeback => Errno::EROFS,
                Closed::NotHeld | Closed::TenureOver | Closed::Deadline => Errno::ESTALE,
            };
            if matches!(state, Some(SaveState::PutAside(_))) {
                return self.say_kept(who, &path, errno, &self.reason(who, closed));
            }
            self.refuse(who, &path, errno, closed)
        })
    }

    /// Requests the lock for a program, and waits as long as the policy and the operation allow.
    async fn take(&self, who: Requester, path: &Path, may_wait: MayWait) -> Done<()> {
        let patience =
            match (self.policy.on_write, may_wait) {
                (OnWrite::Refuse, _) if let Some(holds) = self.excluded_by(who) => {
                    let why = format!("{holds}; {}", self.next_of_excluded(who));
                    return Err(self.say(who, path, Errno::EROFS, &why));
                }
                (OnWrite::Refuse, _) => {
                    let next = "run 'latchfs guard take' first";
                    return Err(self.say(who, path, Errno::EROFS, &format!(
                    "this machine does not hold the lock of the folder, and --on-write refuse \
                     takes it for nobody; {next}"
                )));
                }
                (OnWrite::Take, _) => Span::ZERO,
                (OnWrite::Wait(_), _) if self.policy.never_ask.matches(path) => Span::ZERO,
                (OnWrite::Wait(patience), MayWait::Long) => patience,
                (OnWrite::Wait(patience), MayWait::Briefly) => patience.min(DIRECTORY_PATIENCE),
            };
        let owner = self.policy.owner.of(who.uid, who.pid);
        let is_cut = matches!(self.policy.on_write, OnWrite::Wait(wanted) if patience < wanted);
        let asks = is_cut || self.policy.on_write == OnWrite::Take;
        let asks = asks && !self.policy.never_ask.matches(path);
        match self.wait_for_tenure(who, owner, WishOf::Program { asks }, patience).await {
            None => Err(Errno::EINTR),
            Some(Ok(())) => Ok(()),
            Some(Err(sentence)) if is_cut => Err(self.say(
                who,
                path,
                Errno::EROFS,
                &format!(
                    "{sentence}; a change of names, or of a directory, waits for \
                     {DIRECTORY_PATIENCE} at most, since no program can use the directory \
                     meanwhile: try again after 'latchfs guard wait', or run the command by \
                     'latchfs run --guard'"
                ),
            )),
            Some(Err(sentence)) if self.excluded_by(who).is_some() => {
                let next = self.next_of_excluded(who);
                Err(self.say(who, path, Errno::EROFS, &format!("{sentence}; {next}")))
            }
            Some(Err(sentence)) => Err(self.say(
                who,
                path,
                Errno::EROFS,
                &format!(
                    "{sentence}; wait with 'latchfs guard wait', or ask for it with 'latchfs guard \
                 take'"
                ),
            )),
        }
    }

    /// Takes the part of one more open file or directory for the program's user.
    pub(super) fn share(&self, pool: Pool, who: Requester, path: &Path) -> Done<Share> {
        let share = self.shares.take(pool, who.uid, 1);
        share.map_err(|full| self.say_to(who, Errno::ENFILE, &cannot_open(path, &full)))
    }

    /// Waits for a tenure of `owner`. Returns `None` if a signal ended the wait.
    pub(super) async fn wait_for_tenure(
        &self,
        who: Requester,
        owner: Owner,
        of: WishOf,
        patience: Span,
    ) -> Option<Result<(), String>> {
        let (wait, held) = KernelWait::new();
        if let Err(full) = self.shares.room(Pool::Threads, who.uid) {
            return Some(Err(full.to_string()));
        }
        if patience > Span::ZERO {
            self.interrupts.watch(self.numbers.next(), who.pid, wait.clone());
        }
        let waiting = wait.clone();
        let is_wanted = Box::new(move || waiting.is_open());
        let then = Box::new(move |answer: Result<(), Denied>| {
            wait.keep(answer.map_err(|denied| denied.sentence));
        });
        self.tenures.hold(owner, of, patience, is_wanted, then);
        let answer = held.await;
        if answer.is_none() {
            self.tenures.recheck();
        }
        answer.map(|answer| answer.map_err(|sentence| self.with_names(who, sentence)))
    }

    /// Returns the reason of a refusal with the names of files, if the user may know them.
    fn with_names(&self, who: Requester, sentence: String) -> String {
        let not_ready = self.tenures.not_ready().filter(|why| why.text(false) == sentence);
        match not_ready {
            Some(why) => why.text(self.sees_names(who, FolderAct::ShowState)).to_owned(),
            None => sentence,
        }
    }

    /// Records why a change is refused by the gate. Returns the errno.
    pub(super) fn refuse(
        &self,
        who: Requester,
        path: &Path,
        errno: Errno,
        closed: Closed,
    ) -> Errno {
        self.say(who, path, errno, &self.reason(who, closed))
    }

    /// Returns why the gate refuses a change.
    pub(super) fn reason(&self, who: Requester, closed: Closed) -> String {
        match closed {
            Closed::NotHeld => "this machine does not hold the lock of the folder".to_owned(),
            Closed::OtherOwner(owner) => {
                let holding = self.tenures.holding().filter(|(held_for, _)| *held_for == owner);
                let holds = owner.holds(holding.map(|(_, since)| since));
                format!("{holds}; {}", self.next_of_excluded(who))
            }
            Closed::TenureOver => match self.tenures.last_end() {
                Some((tenure, end)) => format!(
                    "it was opened in a tenure that is over ({}; last token {}); open it again",
                    end.clause(),
                    tenure.token.as_u64()
                ),
                None => "it was opened in a tenure that is over; open it again".to_owned(),
            },
            Closed::Deadline => "the lock service has not answered for so long that the lock may \
                                 be another's; see 'latchfs guard status' \
                                 (E_CONSISTENCY_UNAVAILABLE)"
                .to_owned(),
        }
    }

    /// Records why a change is refused. Returns the errno.
    pub(super) fn say(
        &self,
        who: Requester,
        path: &Path,
        errno: Errno,
        why: &(impl Display + ?Sized),
    ) -> Errno {
        self.say_to(who, errno, &format!("{} was not changed: {why}", shown(path).display()))
    }

    /// Records a refusal as a sentence. Returns the errno.
    pub(super) fn say_to(&self, who: Requester, errno: Errno, sentence: &str) -> Errno {
        self.refused.record(self.refused_of(who), classed(errno, sentence));
        errno
    }

    /// Returns the programs that share the last refusal of a program.
    pub(super) fn refused_of(&self, who: Requester) -> Refused {
        // The kernel names no process for a close that has returned already.
        let session = (self.policy.owner == OwnerKind::Session && who.pid != 0)
            .then(|| LoginSession::of(who.pid, who.uid));
        Refused { uid: who.uid, session }
    }

    /// Returns the identity in the attributes of a file.
    pub(super) fn id(found: &Statx) -> FileId {
        id_in(found)
    }
}
