//! Mounts the view of a folder, and answers the requests of `latchfs guard`.

use super::super::barrier::folder_path::FolderPath;
use super::super::barrier::marker::MARKER_TEXT_BYTES_MAX;
use super::super::folder_guard::FolderGuard;
use super::super::folder_lock::FolderLock;
use super::super::linux_disk::LinuxDisk;
use super::super::tenure::{Owner, TenureId};
use super::super::tenure_news::TenureNews;
use super::super::tenures::{GuardState, Tenures};
use super::super::wish::WishOf;
use super::super::write_policy::{WhenAsked, WritePolicy};
use super::control_files::ControlFiles;
use super::database_files::Databases;
use super::flocks;
use super::folder_view::FolderView;
use super::local_dir::LocalFiles;
use super::nodes::Nodes;
use super::passthrough::Passthrough;
use super::refused_changes::RefusedChanges;
use super::second_opens::SecondOpens;
use crate::fuse::kernel::handles::{HandleNumbers, Handles};
use crate::fuse::kernel::interrupts::InterruptWatcher;
use crate::fuse::kernel::invalidation::StaleName;
use crate::fuse::kernel::mount_error::MountError;
use crate::fuse::kernel::mount_users::Users;
use crate::fuse::kernel::mountinfo::{self, Life};
use crate::fuse::kernel::own_user::own_uid;
use crate::fuse::kernel::session::{self, MountRequest, Mounted};
use crate::fuse::kernel::session_kind::SessionKind;
use crate::fuse::kernel::slow_calls::SlowCalls;
use crate::fuse::kernel::user_shares::Shares;
use crate::fuse::kernel::values::Requester;
use crate::time::{Span, Wall};
use serde_json::{Value, json};
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
    /// The options of the guard.
    pub(crate) policy: Arc<WritePolicy>,
    /// The path of the folder, for messages.
    pub(crate) folder: PathBuf,
    /// Whether a sync tool may carry the folder.
    pub(crate) is_carried: bool,
    /// The commands that are run when a tenure begins or is lost.
    pub(crate) commands: NewsCommands,
}

/// Commands that are run when a tenure begins or is lost.
#[derive(Debug, Clone)]
pub(crate) struct NewsCommands {
    /// The command after the loss of the lock, as `--on-lost` names it.
    pub(crate) lost: Option<String>,
    /// The command when the folder is ready, as `--on-ready` names it.
    pub(crate) ready: Option<String>,
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
    let failed = |error| MountError::Dir { dir: parts.folder.clone(), error };
    let failed_view = |dir: &Path| {
        let dir = dir.to_owned();
        move |error| MountError::Dir { dir, error }
    };
    let root = super::super::linux_disk::stat(parts.guard.folder().as_fd()).map_err(failed)?;
    let slot: Arc<OnceLock<Weak<FolderView>>> = Arc::default();
    let (told, commands) = (Arc::clone(&slot), parts.commands.clone());
    let on_news = Box::new(move |news: &TenureNews| {
        if let Some(view) = told.get().and_then(Weak::upgrade) {
            view.on_news(news, &commands);
        }
    });
    let (guard, policy) = (Arc::clone(&parts.guard), Arc::clone(&parts.policy));
    let tenures = Tenures::start(guard, parts.lock, policy, on_news).map_err(failed)?;
    let shares = Shares::new(own_uid());
    let view = Arc::new_cyclic(|own| FolderView {
        guard: parts.guard,
        tenures,
        local: LocalFiles { root: parts.local, patterns: parts.policy.local.clone() },
        policy: parts.policy,
        nodes: Nodes::new(FolderView::id(&root)),
        numbers: HandleNumbers::default(),
        files: Handles::default(),
        passthrough: Passthrough::default(),
        second_opens: SecondOpens::default(),
        dirs: Handles::default(),
        refused: RefusedChanges::default(),
        control: ControlFiles::default(),
        databases: Databases::default(),
        interrupts: InterruptWatcher::new(shares.clone()),
        shares,
        invalidator: OnceLock::new(),
        slow_calls: SlowCalls::default(),
        own: Weak::clone(own),
        folder: parts.folder,
        is_carried: parts.is_carried,
    });
    let _ = slot.set(Arc::downgrade(&view));
    let wanted = MountRequest { dir, users, nonempty: false, kind: SessionKind::VIEW };
    let mounted = session::mount(wanted, |_| Arc::clone(&view))?;
    if let Some(mount) = mountinfo::at(mounted.dir()).map_err(failed_view(dir))? {
        let users = Arc::downgrade(&view);
        let is_used = move || {
            flocks::are_held(mount.device)
                || users.upgrade().is_some_and(|it| it.has_mapped_files(mount.device))
        };
        view.tenures.look_for_use(Arc::new(is_used));
    }
    Ok(MountedView { view, mounted })
}

/// The maximum number of files that one event names. The rest is counted.
const EVENT_FILES_MAX: usize = 10;
/// The maximum length of a path in an event, in characters: the kernel passes at most 128 KiB to
/// the command of `--on-lost`.
const EVENT_PATH_CHARS_MAX: usize = 512;
/// How long `guard accept` waits for the lock, and until the folder was compared.
const ACCEPT_PATIENCE: Span = Span::from_secs(60);
fn owner_json(owner: Owner) -> Value {
    match owner {
        Owner::Host => json!("host"),
        Owner::User(uid) => json!(format!("user {uid}")),
        Owner::Session(leader) => json!(format!("session {leader}")),
    }
}

impl FolderView {
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
            news => self.tell(news, commands),
        }
    }

    /// Tells programs and people of news.
    fn tell(&self, news: &TenureNews, commands: &NewsCommands) {
        let at = Wall::now().to_string();
        let event = match news {
            TenureNews::Began(tenure, kept) => {
                json!({"at": at, "event": "held", "token": tenure.token.as_u64(),
                    "put_aside": kept})
            }
            TenureNews::Closed(..) | TenureNews::Opens(_) => return,
            TenureNews::NotReady(tenure, why) => {
                let event = |may_see| {
                    let (token, why) = (tenure.token.as_u64(), why.text(may_see));
                    json!({"at": at, "event": "arriving", "token": token, "why": why})
                };
                return self.control.publish_lines(&event(true), &event(false));
            }
            TenureNews::Ended(tenure, end, aside) => {
                let event = if end.is_loss() { "lost" } else { "given" };
                let kept = aside.kept.iter().take(EVENT_FILES_MAX);
                let kept: Vec<_> =
                    kept.map(|(n, path)| json!({"number": n, "path": shown(path)})).collect();
                let failed = aside.failed.iter().take(EVENT_FILES_MAX);
                let failed: Vec<_> = failed.map(|path| shown(path)).collect();
                let all = aside.kept.len() + aside.failed.len();
                json!({"at": at, "event": event, "token": tenure.token.as_u64(),
                    "why": end.clause(), "more": all - kept.len() - failed.len(),
                    "put_aside": kept, "not_kept": failed})
            }
            TenureNews::Wanted(client) => {
                json!({"at": at, "event": "wanted", "client": client})
            }
            TenureNews::Overdue(tenure) => {
                self.yield_written_back(*tenure);
                json!({"at": at, "event": "overdue", "token": tenure.token.as_u64()})
            }
            TenureNews::Late(tenure) => {
                json!({"at": at, "event": "late", "token": tenure.token.as_u64()})
            }
        };
        if let TenureNews::Ended(tenure, end, _) = news {
            log::info!("tenure {} has ended: {}", tenure.token.as_u64(), end.clause());
            self.forget_ended();
            if end.is_loss() {
                run_at_news(commands.lost.as_deref(), &event);
            }
        }
        if let TenureNews::Began(..) = news {
            run_at_news(commands.ready.as_deref(), &event);
        }
        self.control.publish_event(&event);
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

    /// Returns the state of the guard as JSON, as a user may see it.
    pub(super) fn status(&self, who: Requester) -> Value {
        let may_see = self.may_see_names(who.uid);
        let mut notes = self.guard.barrier().map(|barrier| barrier.notes()).unwrap_or_default();
        if !may_see && !notes.is_empty() {
            notes = vec![format!("{} notes name files, for the owner of the folder", notes.len())];
        }
        let (state, tenure) = match self.tenures.state() {
            GuardState::Reading => ("reading", Value::Null),
            GuardState::Asking => ("asking", Value::Null),
            GuardState::Arriving(tenure, owner) => {
                ("arriving", json!({"token": tenure.token.as_u64(), "owner": owner_json(owner)}))
            }
            GuardState::Yielding(tenure) => ("yielding", json!({"token": tenure.token.as_u64()})),
            GuardState::Holding(tenure, owner, since) => (
                "holding",
                json!({"token": tenure.token.as_u64(), "owner": owner_json(owner),
                    "since": since.to_string()}),
            ),
        };
        let next = match (state, self.tenures.other_holder()) {
            ("reading", Some(holder)) if let Some(until) = self.tenures.other_away() => format!(
                "{holder} holds the lock, and is away until {}; wait with 'latchfs guard take'",
                until.to_minute()
            ),
            ("reading", Some(holder)) => {
                format!("{holder} holds the lock; wait with 'latchfs guard take'")
            }
            ("reading", None) => "a change takes the lock, or run 'latchfs guard take'".to_owned(),
            ("arriving", _) => {
                "wait with 'latchfs guard wait', or go on with the folder as it stands by 'latchfs \
                 guard accept --reason WHY'"
                    .to_owned()
            }
            ("yielding", _) => "the last marker is being written".to_owned(),
            ("holding", _) => self.next_while_holding(),
            _ => "the lock service has been asked".to_owned(),
        };
        let last = self
            .tenures
            .last_end()
            .map(|(tenure, end)| json!({"token": tenure.token.as_u64(), "how": end.clause()}));
        json!({
            "folder": self.folder.display().to_string(),
            "lock": self.tenures.lock().name().to_string(),
            "state": state,
            "tenure": tenure,
            "holder": self.tenures.other_holder(),
            "holder_away_until": self.tenures.other_away().map(|until| until.to_string()),
            "away_until": self.tenures.away_until().map(|until| until.to_string()),
            "wanted_by": self.tenures.wanted_by(),
            "last_tenure": last,
            "waiting": self.tenures.waiting(),
            "not_ready": self.tenures.not_ready().map(|why| why.text(may_see).to_owned()),
            "notes": notes,
            "trouble": self.tenures.lock().trouble(),
            "nodes": self.nodes.count(),
            "staged_bytes": self.guard.space_used().0,
            "lost_bytes": self.guard.space_used().1,
            "pid": std::process::id(),
            "next": next,
        })
    }

    fn next_while_holding(&self) -> String {
        if let Some(until) = self.tenures.away_until() {
            let until = until.to_minute();
            return format!("programs may write until {until}, also without the lock service");
        }
        match (self.tenures.wanted_by(), self.policy.when_asked) {
            (None, _) => "programs may write; 'latchfs guard give' gives the lock up".to_owned(),
            (Some(client), WhenAsked::Keep) => {
                format!("{client} waits for the lock; 'latchfs guard give' hands it over")
            }
            (Some(client), WhenAsked::Yield { .. }) => {
                format!("{client} waits for the lock, and gets it once nothing changes any more")
            }
        }
    }

    /// Whether a request may wait for the lock.
    pub(super) fn may_wait(request: &[u8]) -> bool {
        let asked = serde_json::from_slice::<Value>(request).unwrap_or_default();
        matches!(asked["do"].as_str(), Some("take" | "accept"))
    }

    /// Carries out a request of `latchfs guard`. Returns the answer as JSON.
    pub(super) async fn control_request(&self, who: Requester, request: &[u8]) -> Value {
        let refused = |why: String| json!({"error": why});
        let Ok(asked) = serde_json::from_slice::<Value>(request) else {
            return refused("the request is no JSON".to_owned());
        };
        let number = asked["number"].as_u64().unwrap_or(0);
        match asked["do"].as_str() {
            Some("status") => return self.status(who),
            Some("lost") => return self.lost_list(who),
            Some("restore") => return self.lost_restore(who, number).await,
            Some("drop") => return self.lost_drop(who, number),
            _ => {}
        }
        // Of a tenure for all programs of the machine nobody is the owner.
        let is_owner = |owner| owner != Owner::Host && Self::is_of(owner, who);
        let is_holder = self.guard.gate().tenure().is_some_and(|open| is_owner(open.owner));
        if !Self::is_trusted(who.uid) && !is_holder {
            return refused(
                "only root, the user who started the guard and the owner of the tenure may ask \
                 this"
                    .to_owned(),
            );
        }
        match asked["do"].as_str() {
            Some("take") => self.take_request(who, &asked).await,
            Some("accept") => match acceptance(&asked) {
                Ok(acceptance) => {
                    let session = || crate::holder_id::session_of(who.pid);
                    let owner = self.policy.owner.of(who.uid, session);
                    match self.wait_for_tenure(who, (owner, acceptance), ACCEPT_PATIENCE).await {
                        Some(Ok(())) => self.status(who),
                        Some(Err(why)) => refused(why),
                        None => refused("the wait was interrupted".to_owned()),
                    }
                }
                Err(why) => refused(why),
            },
            Some("give") => {
                let (promise, given) = crate::fuse::kernel::pending::pending();
                self.tenures.give(move || promise.keep(()));
                given.await;
                self.status(who)
            }
            _ => refused(
                "the guard knows take, give, accept, status, lost, restore and drop".to_owned(),
            ),
        }
    }
}

/// Returns the wish of a request to go on without what has not arrived.
fn acceptance(asked: &Value) -> Result<WishOf, String> {
    if let Some(copy) = asked["from"].as_str() {
        let (Some([path]), true) = (asked["paths"].as_array().map(Vec::as_slice), !copy.is_empty())
        else {
            return Err("name one file whose content is put back".to_owned());
        };
        let parse = |text: &str| FolderPath::parse(text).map_err(|error| error.to_string());
        let path = parse(path.as_str().unwrap_or_default())?;
        return Ok(WishOf::PutBack { path, copy: parse(copy)? });
    }
    let reason = asked["reason"].as_str().unwrap_or_default().to_owned();
    if reason.is_empty() || reason.len() > MARKER_TEXT_BYTES_MAX {
        return Err(format!("name a reason of at most {MARKER_TEXT_BYTES_MAX} bytes"));
    }
    let paths = asked["paths"].as_array().into_iter().flatten();
    let path = |path: &Value| FolderPath::parse(path.as_str().unwrap_or_default());
    let paths = paths.map(path).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(WishOf::Acceptance { paths, reason })
}

/// Returns a path as an event shows it.
fn shown(path: &str) -> String {
    path.chars().take(EVENT_PATH_CHARS_MAX).collect()
}

/// Runs a command with the event in its environment.
fn run_at_news(command: Option<&str>, event: &Value) {
    let Some(command) = command else { return };
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("LATCHFS_EVENT", event.to_string());
    match shell.stdin(std::process::Stdio::null()).spawn() {
        Ok(mut child) => {
            let wait = move || drop(child.wait());
            if let Err(error) = std::thread::Builder::new().name("on-news".into()).spawn(wait) {
                log::warn!("'{command}' is not waited for: {error}");
            }
        }
        Err(error) => log::error!("'{command}' can't be started: {error}"),
    }
}
