//! Mounts the view of a folder, and answers the requests of `latchfs guard`.

use super::super::guard_request::{ACCEPT_PATIENCE, GuardRequest, refused};
use super::super::write_policy::WritePolicy;
use super::folder_view::FolderView;
use crate::auth::FolderAct;
use crate::guard::disk::linux_disk::{LinuxDisk, stat};
use crate::guard::folder::folder_guard::FolderGuard;
use crate::guard::lock::folder_lock::FolderLock;
use crate::guard::lock::lock_records::LockRecords;
use crate::guard::tenures::sequence::Tenures;
use crate::guard::tenures::tenure_events::{NewsCommands, TenureEvent};
use crate::guard::tenures::wishes::TenureNews;
use crate::guard::view::parts::close_rule::{ProcessLook, Processes};
use crate::guard::view::parts::control_files::RefusedChanges;
use crate::guard::view::parts::control_files::{CONTROL_DIR, ViewControlFiles};
use crate::guard::view::parts::database_files::Databases;
use crate::guard::view::parts::local_dir::LocalFiles;
use crate::guard::view::parts::nodes::Nodes;
use crate::guard::view::parts::open_file;
use crate::guard::view::parts::processes::ProcessScan;
use crate::guard::view::parts::record_nodes::RecordUse;
use crate::guard::view::parts::second_opens::SecondOpens;
use crate::guard::view::parts::view_snapshots::ViewSnapshots;
use crate::guard::view::requests::lost_control::LostListing;
use crate::time::Span;
use barrier::tenure_id::TenureId;
use kernel::file_system::Requester;
use kernel::handles::Shares;
use kernel::handles::{HandleNumbers, Handles};
use kernel::interrupts::InterruptWatcher;
use kernel::machine_facts::Users;
use kernel::machine_facts::own_uid;
use kernel::machine_facts::request_timeout;
use kernel::mountinfo::{self, Life};
use kernel::notifications::StaleName;
use kernel::session::MountError;
use kernel::session::SessionKind;
use kernel::session::{self, MountRequest, Mounted};
use kernel::slow_calls::SlowCalls;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

/// The parts from which a view is made.
pub(crate) struct ViewParts {
    /// The guard of the folder.
    pub(crate) guard: Arc<FolderGuard<LinuxDisk>>,
    /// The lock of the folder.
    pub(crate) lock: Arc<FolderLock>,
    /// The directory of the local files.
    pub(crate) local: OwnedFd,
    /// The folder snapshots.
    pub(crate) snapshots: ViewSnapshots,
    /// The options of the guard.
    pub(crate) policy: Arc<WritePolicy>,
    /// The path of the folder, for messages.
    pub(crate) folder: PathBuf,
    /// Whether a sync tool may carry the folder.
    pub(crate) is_carried: bool,
    /// The commands that are run when a tenure begins or is lost.
    pub(crate) commands: NewsCommands,
}

/// A mounted view, which is unmounted when this value is dropped.
pub(crate) struct MountedView {
    view: Arc<FolderView>,
    /// The mount.
    pub(crate) mounted: Mounted,
}

/// How long the threads of a view may take to show that they work.
const LIVENESS_PATIENCE: Span = Span::from_secs(2);

impl MountedView {
    /// Returns a function that tells whether the threads of the view answer: the one that reads the
    /// kernel's requests, and the one of the tenures.
    pub(crate) fn liveness(&self) -> impl Fn() -> bool + Send + use<> {
        let (view, dir) = (Arc::clone(&self.view), self.mounted.dir().to_owned());
        move || mountinfo::probe(&dir) == Life::Live && view.tenures.answers(LIVENESS_PATIENCE)
    }

    /// Returns a function that gives an idle lock up before this machine sleeps.
    pub(crate) fn before_sleep(&self) -> impl Fn(Box<dyn FnOnce() + Send>) + Send + use<> {
        let tenures = Arc::clone(&self.view.tenures);
        move |then| tenures.before_sleep(then)
    }

    /// Gives the lock up, and unmounts the view.
    pub(crate) fn end(&self) -> io::Result<session::Unmounted> {
        self.view.tenures.stop();
        self.mounted.unmount()
    }
}

/// Mounts the view of a folder at `dir`.
pub(crate) fn mount(parts: ViewParts, dir: &Path, users: Users) -> Result<MountedView, MountError> {
    let failed = |dir: &Path| {
        let dir = dir.to_owned();
        move |error| MountError::Dir { dir, error }
    };
    let failed_folder = failed(&parts.folder);
    let look = Box::new(|ino| Box::new(ProcessScan::at(ino)) as Box<dyn Processes>);
    let view = FolderView::start(parts, dir, look).map_err(failed_folder)?;
    let wanted = MountRequest { dir, users, nonempty: false, kind: SessionKind::VIEW };
    let mounted = session::mount(wanted, |_| Arc::clone(&view))?;
    if let Err(error) = poll_once(mounted.dir()) {
        log::warn!("the view can't be polled: {error}");
    }
    if let Some(mount) = mountinfo::at(mounted.dir()).map_err(failed(dir))? {
        let users = Arc::downgrade(&view);
        let is_used = move || {
            open_file::are_held(mount.device)
                || users.upgrade().is_some_and(|it| it.has_mapped_files(mount.device))
        };
        view.tenures.watch_use(Arc::new(is_used));
    }
    Ok(MountedView { view, mounted })
}

/// Polls a file of the view, after whose answer the kernel polls none of its files again. While a
/// program waits for such an answer, its set of polled files (epoll) is locked, and the thread that
/// has to answer could be reading the descriptor of that set in `/proc`.
fn poll_once(view: &Path) -> io::Result<()> {
    let status = File::open(view.join(CONTROL_DIR).join("status"))?;
    let mut polled = [PollFd::new(&status, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(())
}

impl FolderView {
    /// Makes the view of a folder that is to be shown at `dir`, and starts its tenures.
    pub(super) fn start(
        parts: ViewParts,
        dir: &Path,
        processes: ProcessLook,
    ) -> io::Result<Arc<Self>> {
        let root = stat(parts.guard.folder().as_fd())?;
        let slot: Arc<OnceLock<Weak<Self>>> = Arc::default();
        let (own_slot, commands) = (Arc::clone(&slot), parts.commands);
        let on_news = Box::new(move |news: &TenureNews| {
            if let Some(view) = own_slot.get().and_then(Weak::upgrade) {
                view.on_news(news, &commands);
            }
        });
        let (guard, policy) = (Arc::clone(&parts.guard), Arc::clone(&parts.policy));
        let records = LockRecords::new(Arc::clone(&parts.lock));
        let tenures = Tenures::start(guard, parts.lock, policy, on_news)?;
        let shares = Shares::new(own_uid());
        let patterns = parts.policy.local.clone();
        let local = LocalFiles::open(parts.local, patterns, parts.guard.folder().as_fd())?;
        let view = Arc::new_cyclic(|own| Self {
            guard: parts.guard,
            tenures,
            local,
            snapshots: parts.snapshots,
            policy: parts.policy,
            nodes: Nodes::new(Self::id(&root)),
            numbers: HandleNumbers::default(),
            files: Handles::default(),
            request_timeout: request_timeout().map(|limit| limit.seconds),
            second_opens: SecondOpens::default(),
            dirs: Handles::default(),
            refused: RefusedChanges::default(),
            control: ViewControlFiles::default(),
            records,
            record_use: RecordUse::default(),
            databases: Databases::default(),
            interrupts: InterruptWatcher::new(shares.clone()),
            shares,
            invalidator: OnceLock::new(),
            slow_calls: SlowCalls::new(own_uid()),
            lost_listing: LostListing::default(),
            processes,
            own: Weak::clone(own),
            folder: parts.folder,
            shown_at: dir.to_owned(),
            is_carried: parts.is_carried,
        });
        let _ = slot.set(Arc::downgrade(&view));
        Ok(view)
    }

    fn on_news(&self, news: &TenureNews, commands: &NewsCommands) {
        match news {
            TenureNews::Closed(tenure, may_go_on) => {
                self.make_dormant(*tenure, *may_go_on);
                self.note_databases();
            }
            TenureNews::Opens(tenure) => {
                self.forget_shared_memories();
                self.wake_dormant(*tenure);
            }
            news => self.notify(news, commands),
        }
    }

    /// Notifies programs and people of news.
    fn notify(&self, news: &TenureNews, commands: &NewsCommands) {
        match news {
            TenureNews::Overdue(tenure) => self.yield_written_back(*tenure),
            TenureNews::Ended(..) => self.forget_ended(),
            _ => {}
        }
        if let Some(event) = TenureEvent::of(news) {
            commands.run(news, &event);
            self.control.publish(&event);
        }
    }

    /// Gives the lock up after the kernel has written back what programs changed through shared
    /// mappings.
    fn yield_written_back(&self, tenure: TenureId) {
        let Some(invalidator) = self.invalidator.get() else { return };
        self.nodes.open_nodes().into_iter().for_each(|ino| invalidator.forget_node(ino));
        let tenures = Arc::clone(&self.tenures);
        invalidator.then(move || tenures.yield_now(tenure));
    }

    /// Makes the view forget the unpublished files of an ended tenure, and the kernel what it has
    /// cached of open files: pages that a program has changed through a shared mapping and that
    /// can't be written any more.
    fn forget_ended(&self) {
        let aside = self.nodes.drop_put_aside();
        let Some(invalidator) = self.invalidator.get() else { return };
        let stale = |(parent, name)| StaleName { parent, name, ino: None };
        invalidator.forget(aside.into_iter().map(stale).collect());
        for ino in self.nodes.open_nodes() {
            invalidator.forget_node(ino);
        }
    }

    /// Returns the state of the guard as JSON, as a program may see it.
    pub(super) fn status(&self, who: Requester) -> Value {
        let mut status =
            self.tenures.status(&self.folder, self.sees_names(who, FolderAct::ShowState));
        status["nodes"] = self.nodes.count().into();
        status["request_timeout_s"] = self.request_timeout.into();
        status["leftover_record"] = self.leftover_record().into();
        if status["lost_bytes"].as_u64().is_some_and(|bytes| bytes > 0) {
            status["kept"] = self.kept().into();
        }
        if let Some(holds) = self.excluded_by(who) {
            status["next"] = format!("{holds}; {}", self.next_of_excluded(who)).into();
            status["excluded_by"] = holds.into();
        }
        if let Some(progress) = self.snapshots.progress() {
            status["snapshot"] = progress.into();
        }
        status
    }

    /// Carries out a request of `latchfs guard`. Returns the answer as JSON.
    pub(super) async fn control_request(&self, who: Requester, request: &[u8]) -> Value {
        let request = match GuardRequest::parse(request) {
            Ok(request) => request,
            Err(why) => return refused(why),
        };
        if let Some(Err(why)) = request.act().map(|act| self.user(who).check(act)) {
            return refused(why);
        }
        match request {
            GuardRequest::Status => self.status(who),
            GuardRequest::Lost { before } => self.lost_list(who, before).await,
            GuardRequest::Restore(number) => self.lost_restore(who, number).await,
            GuardRequest::Drop(number) => self.lost_drop(who, number).await,
            GuardRequest::Snapshot(request) => self.snapshot_request(who, request).await,
            GuardRequest::Take { patience, away } => self.take_request(who, patience, away).await,
            GuardRequest::Accept(Ok(acceptance)) => {
                let owner = self.policy.owner.of(who.uid, who.pid);
                match self.wait_for_tenure(who, owner, acceptance, ACCEPT_PATIENCE).await {
                    Some(Ok(())) => self.status(who),
                    Some(Err(why)) => refused(why),
                    None => refused("the wait was interrupted"),
                }
            }
            GuardRequest::Accept(Err(why)) => refused(why),
            GuardRequest::Give { from } => match self.give_request(who, from).await {
                Ok(()) => self.status(who),
                Err(why) => refused(why),
            },
            // The uses of the lock belong to an open file, which begins and ends them itself.
            GuardRequest::Use(_)
            | GuardRequest::EndUse { .. }
            | GuardRequest::Wait
            | GuardRequest::Events
            | GuardRequest::Unknown => refused(
                "the guard knows take, give, use, accept, status, lost, restore, drop and snapshot",
            ),
        }
    }
}
