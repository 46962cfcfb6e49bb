//! The lock service of a Raft node: the calls that the front ends make.
//!
//! A read makes no log entry. A lone node answers from its applied state, since no client has been
//! sent anything newer. Such a read waits only for earlier requests for the same lock, and if a
//! deadline has passed, for the entry that applies it. With peers, a read waits until this node has
//! applied the leader's read index (`linearizable_read`).

use super::cluster_admin::RaftClusterAdmin;
use crate::engine::codec::state_codec::encode_state;
use crate::engine::{
    Answer, Child, Command, Engine, LockName, LockView, Op, Reason, Refusal, SessionId,
    SessionView, Token,
};
use crate::raft::node::start;
use crate::raft::node::start::{NodeHandle, RunningNode};
use crate::raft::node_environment::NodeAddress;
use crate::raft::rpc::mutual_tls::PeerTls;
use crate::raft::rpc::peer_config::Peering;
use crate::raft::store::data_dir::{DataError, PeerError, Stop};
use crate::raft::store::snapshot::{InheritedState, Origin};
use crate::raft::write::proposer::RESET_PART_MAX;
use crate::service::audit::audit_log::is_audited;
use crate::service::backend_status::{ClusterAdmin, Standing};
use crate::service::counters::{Count, Histogram};
use crate::service::event_log::EventWatch;
use crate::service::local;
use crate::service::paging::StaleReads;
use crate::service::{
    About, AdminAction, Admission, AuditEntry, BackendKind, BackendStatus, CacheableView, Call,
    Children, Contact, EventPlace, EventStart, List, ListPage, ListedNames, LockService,
    ParentCheck, Retry, SESSION_LEASES_SHOWN_MAX, Unavailable, page_of_children, page_of_leases,
    page_of_locks, submit_in_steps,
};
use crate::shares::CommandPermit;
use crate::time::{Span, Time, Wall, boot_now};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::time::sleep;

/// A Raft node in this process: a lock service whose answers survive a crash.
pub struct RaftNode {
    shared: Arc<NodeShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failures: mpsc::Sender<start::OnFailure>,
    place: String,
    /// What further commands that add to the engine are checked by.
    admissions: Mutex<Vec<Admission>>,
}

struct NodeShared {
    node: RunningNode,
}

/// The pause between two attempts at a command that is retried until it is answered. It is long,
/// since each attempt already waits for a leader.
const RETRY_PAUSE: Span = Span::from_millis(250);

impl RaftNode {
    /// Starts the node whose data is in `path`, or a new one. Returns once it accepts requests.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Self::open_with(path, None)
    }

    /// Starts a node that may have peers. With peers it returns once it listens for them; requests
    /// are answered only after a leader has been elected.
    pub fn open_with(path: &Path, peering: Option<Peering>) -> Result<Self, DataError> {
        let NodeHandle { shared: node, thread, failures } = start::start(path, peering, None)?;
        let shared = Arc::new(NodeShared { node });
        let place = path.display().to_string();
        let (thread, admissions) = (Mutex::new(Some(thread)), Mutex::default());
        Ok(Self { shared, thread, failures, place, admissions })
    }

    /// Creates the data directory of the first node of a new cluster that replaces a lost one.
    /// `inherited` is what the new cluster takes over from the lost one.
    pub(super) fn begin_with(
        path: &Path,
        inherited: InheritedState,
        origin: Origin,
    ) -> Result<(), DataError> {
        let NodeHandle { shared, thread, .. } = start::start(path, None, Some(inherited))?;
        let (what, by) = match origin {
            Origin::Backup => ("restore a backup", "cluster restore"),
            Origin::Survivor => ("recover from a survivor", "cluster recover"),
        };
        let restored = AdminAction {
            what,
            target: None,
            by,
            credential: "command",
            address: "this machine",
            outcome: "done",
        };
        // The returned record is not logged: the command that restores prints its result itself.
        let _ = shared.requests.replica.audit.enter_act(&restored);
        shared.requests.queue.close(Unavailable::Closing);
        let stopped = |()| DataError::Stopped(path.into(), "its thread has panicked".to_owned());
        thread.join().map_err(|_| stopped(()))
    }

    /// Registers a callback for the case that the node can't continue: the disk has failed or is
    /// full, or the cluster has removed the node.
    pub fn on_failure(&self, on_stop: impl FnOnce(Stop) + Send + 'static) {
        if let Err(mpsc::SendError(on_stop)) = self.failures.send(Box::new(on_stop)) {
            // The receiver is gone, since the node has already ended.
            let stopped = self.shared.node.stopped.lock().clone();
            if let Some(stop) = stopped {
                on_stop(stop);
            }
        }
    }

    /// Reads the certificates and keys for connections to peers again. If one is invalid, what was
    /// read before stays in force.
    pub fn reload_peer_certificates(&self) -> Result<(), PeerError> {
        self.shared.node.peer_tls.as_ref().map_or(Ok(()), PeerTls::reload)
    }

    /// Refuses new requests, and returns once all accepted requests are answered.
    pub fn close(&self) {
        self.shared.node.requests.queue.close(Unavailable::Closing);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("the log's thread has panicked");
        }
    }

    /// Calls `query` with the current state of the lock engine. No entry is applied during the
    /// call.
    pub fn inspect<T>(&self, query: impl FnOnce(&Engine) -> T) -> T {
        query(&self.shared.node.requests.replica.state().engine)
    }
}

impl Drop for RaftNode {
    fn drop(&mut self) {
        self.close();
    }
}

impl RaftNode {
    /// Returns the permit of an operation, or why it is refused before it is submitted.
    fn permit(&self, op: &Op) -> Result<CommandPermit, Reason> {
        op.needs_no_more_than(self.shared.node.requests.replica.version.get())?;
        if !op.needs_room() {
            return Ok(Vec::new());
        }
        let admissions = self.admissions.lock();
        let admit = |engine: &Engine| admissions.iter().map(|admit| admit(op, engine)).collect();
        let permits: Result<Vec<_>, _> = self.inspect(admit);
        permits.map(|permits| permits.into_iter().flatten().collect()).map_err(Reason::Limit)
    }
}

impl NodeShared {
    /// Converts an engine time to the boot clock.
    fn boot(&self, at: Time) -> Time {
        self.node.requests.leader_clock.boot_time(at).unwrap_or_else(|| {
            // No leader has been known since the start: assume that engine time has stopped since
            // the last entry.
            let clock = self.node.requests.replica.state().engine.clock();
            let now = boot_now();
            if at >= clock { now + at.since(clock) } else { now - clock.since(at) }
        })
    }
}

/// Returns the answer to a command that was submitted, and submits it again until there is one or
/// this node closes.
async fn until_answered(
    shared: Arc<NodeShared>,
    command: Command,
    submitted: Call<Answer>,
) -> Result<Answer, Unavailable> {
    let requests = &shared.node.requests;
    let mut answer = submitted.await;
    while answer.is_err() && requests.queue.closed().is_none() {
        sleep(RETRY_PAUSE.as_duration()).await;
        answer = requests.submit(command.clone(), RESET_PART_MAX).await;
    }
    answer
}

impl LockService for RaftNode {
    fn submit(&self, command: Command, retry: Retry) -> Call<Answer> {
        let shared = Arc::clone(&self.shared);
        let requests = &self.shared.node.requests;
        let permit = match self.permit(&command.op) {
            Ok(permit) => permit,
            Err(reason) => {
                let (at, reason) = (requests.now(), Box::new(reason));
                return Call::answered(Ok(Err(Refusal { at, reason })));
            }
        };
        let is_audited = is_audited(&command.op);
        let call = match retry {
            Retry::Never => requests.submit(command, RESET_PART_MAX),
            Retry::UntilAnswered => {
                let (replier, call) = Call::expected();
                let submitted = requests.submit(command.clone(), RESET_PART_MAX);
                let steps = until_answered(Arc::clone(&shared), command, submitted);
                shared.node.runtime.spawn(async move { replier.keep(steps.await) });
                call
            }
        };
        let call = if permit.is_empty() { call } else { call.keeping(permit) };
        if !is_audited {
            return call;
        }
        // The answer comes when its audit records are on the disk of this node.
        Call::translated(async move {
            let answer = call.await;
            shared.node.requests.replica.audit.written().await?;
            answer
        })
    }

    fn limit(&self, admission: Admission) {
        self.admissions.lock().push(admission);
    }

    fn submit_checked(
        self: Arc<Self>,
        command: Command,
        check: Option<ParentCheck>,
    ) -> Call<Answer> {
        submit_in_steps(self, command, check)
    }

    fn view(&self, name: &LockName, _: Retry) -> Call<CacheableView> {
        let own = name.clone();
        let query = move |engine: &Engine, now| CacheableView::uncached(engine.view(&own, now));
        self.shared.node.requests.read_engine(Some(name), query)
    }

    fn list(&self, names: ListedNames, query: List) -> Call<ListPage<LockView>> {
        let page = move |engine: &Engine, now| page_of_locks(engine, names, &query, now);
        self.shared.node.requests.read_engine(None, page)
    }

    fn children(&self, query: Children) -> Call<ListPage<Child>> {
        let page = move |engine: &Engine, _| page_of_children(engine, &query);
        self.shared.node.requests.read_engine(None, page)
    }

    fn session(&self, id: SessionId) -> Call<Option<SessionView>> {
        let shown = move |engine: &Engine, _| engine.session(id, SESSION_LEASES_SHOWN_MAX);
        self.shared.node.requests.read_engine(None, shown)
    }

    fn leases(
        &self,
        session: SessionId,
        after: Option<LockName>,
    ) -> Call<ListPage<(LockName, Token)>> {
        let page = move |engine: &Engine, _| page_of_leases(engine, session, after.as_ref());
        self.shared.node.requests.read_engine(None, page)
    }

    fn subscribe(&self, since: Option<u64>) -> EventWatch {
        self.shared.node.requests.replica.feed.watch(since)
    }

    fn next_event(&self) -> u64 {
        self.shared.node.requests.replica.feed.next()
    }

    fn now(&self) -> Time {
        self.shared.node.requests.now()
    }

    fn wall(&self, at: Time) -> Wall {
        Wall::at_boot_time(self.shared.boot(at))
    }
}

impl StaleReads for RaftNode {
    fn stale(&self, query: &mut dyn FnMut(&Engine, Time)) -> Option<Option<Span>> {
        // Take the age before the state: a state that is newer than its stated age does no harm.
        let age = self.shared.node.requests.age();
        let now = self.shared.node.requests.leader_clock.now().unwrap_or_default();
        self.shared.node.requests.replica.inspect_at(now, |engine, at| query(engine, at));
        Some(age)
    }
}

impl BackendStatus for RaftNode {
    fn audit(&self, entry: &AuditEntry<'_>) {
        self.shared.node.requests.replica.audit.enter_entry(entry);
    }

    fn audited(&self) -> Call<()> {
        self.shared.node.requests.replica.audit.written()
    }

    fn cluster_admin(&self) -> Option<Arc<dyn ClusterAdmin>> {
        Some(Arc::new(RaftClusterAdmin(self.shared.node.clone())))
    }

    fn urls(&self) -> Vec<String> {
        let core = self.shared.node.requests.replica.state();
        let stations = core.members().nodes().filter_map(|(_, node)| NodeAddress::of(node));
        stations.map(|station| station.url.to_string()).collect()
    }

    fn ready(&self) -> Result<(), Unavailable> {
        match self.shared.node.requests.leader_clock.now() {
            Some(_) => Ok(()),
            None => Err(Unavailable::NoQuorum { why: "no leader has been elected yet".into() }),
        }
    }

    fn has_majority(&self) -> bool {
        !self.shared.node.requests.is_lost()
    }

    fn about(&self) -> About {
        let hold_off = self.inspect(Engine::hold_off);
        let state = local::shown_place(&self.place, hold_off, |at| self.wall(at));
        let core = self.shared.node.requests.replica.state();
        About {
            kind: BackendKind::Embedded,
            contact: Contact::Connected,
            state,
            locks: core.engine.locks(),
            waiters: core.engine.waiters(),
            sessions: core.engine.sessions(),
        }
    }

    fn inspect_engine(&self, query: &mut dyn FnMut(&Engine)) {
        query(&self.shared.node.requests.replica.state().engine);
    }

    fn leads(&self) -> bool {
        self.shared.node.reporter.own(false).standing == Standing::Leader
    }

    fn engine_id(&self) -> u64 {
        let cluster = self.shared.node.requests.replica.state().cluster;
        // 64 bits are enough to tell clusters apart; 0 stands for an engine without a cluster id.
        cluster.map_or(0, |id| ((id.0 >> 64) as u64 ^ id.0 as u64).max(1))
    }

    fn event_place(&self, number: u64) -> Option<EventPlace> {
        self.shared.node.requests.replica.places.place_of(number)
    }

    fn events_after(&self, place: EventPlace) -> EventStart {
        let replica = &self.shared.node.requests.replica;
        replica.places.after(place, replica.applied())
    }

    fn state(&self) -> Call<Option<Vec<u8>>> {
        let version = self.shared.node.requests.replica.version.get();
        let query = move |engine: &Engine, _| Some(encode_state(version, engine));
        self.shared.node.requests.read_engine(None, query)
    }

    fn counts(&self) -> Vec<Count> {
        let replica = &self.shared.node.requests.replica;
        let mut counts = replica.tally.counts();
        for (name, help, count) in [
            ("latchfs_log_entries_total", "Log entries that were applied.", &replica.entries),
            ("latchfs_log_commands_total", "Commands that were applied.", &replica.commands),
        ] {
            let value = count.load(Ordering::Relaxed);
            counts.push(Count { name, help, label: None, value });
        }
        counts
    }

    fn histograms(&self) -> Vec<Histogram> {
        let mut histograms = self.shared.node.requests.replica.tally.histograms();
        histograms.push(self.shared.node.reporter.gauges.syncs.histogram());
        histograms
    }
}
