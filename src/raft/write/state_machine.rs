//! Implements openraft's state machine traits: applies entries to the replica, and builds and
//! installs snapshots, after which the log can be purged.
//!
//! The replicated state of a node: applies log entries to the engine, and publishes the events,
//! counts and audit records that each entry causes.
//!
//! One mutex guards the engine and the order of its events. While the mutex is held, no watcher is
//! woken and no request is answered. The events of entries that a start replays were published
//! before the restart, so nothing is published until [`Replica::go_live`].

use super::engine_clock::LeaderReading;
use crate::engine::codec::state_codec::oldest_version;
use crate::engine::{Answer, Engine, Event, Op, Rules, SessionId};
use crate::raft::node_environment::{ClusterVersion, NodeEnvironment, SystemEnvironment};
use crate::raft::store::data_dir::FatalError;
use crate::raft::store::snapshot;
use crate::raft::store::snapshot::{
    Answers, ClusterId, Commands, Entry, Leader, LogId, Membership, Meta, Proposal, Snapshot,
    SnapshotContents, TypeConfig,
};
use crate::service::audit::audit_log::Audit;
use crate::service::counters::ServiceCounters;
use crate::service::event_log::{EventLog, Wakers};
use crate::service::{EventPlaces, local};
use crate::time::{Span, Time, Wall};
use futures_util::{Stream, TryStreamExt};
use openraft::EntryPayload;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// The openraft handle of a real node.
pub(in crate::raft) type Raft = openraft::Raft<TypeConfig, StateMachine>;

/// The replica and its snapshot file.
pub struct StateMachine {
    pub(in crate::raft) replica: Arc<Replica>,
    file: Arc<SnapshotFile>,
    fatal_error: FatalError,
}

/// Writes one snapshot to disk.
pub struct StateSnapshotBuilder {
    snapshot: Snapshot,
    replica: Arc<Replica>,
    file: Arc<SnapshotFile>,
    fatal_error: FatalError,
}

/// The snapshot file. openraft may build a snapshot in the background while it installs one from
/// the leader: both write this file, one at a time, and the newer snapshot stays.
struct SnapshotFile {
    path: PathBuf,
    /// The last entry of the snapshot in the file. Locked while the file is written.
    newest: Mutex<Option<LogId>>,
}

impl SnapshotFile {
    /// Writes a snapshot, unless the file has a newer one.
    fn write(&self, snapshot: &Snapshot) -> io::Result<()> {
        let mut newest = self.newest.lock();
        if snapshot.meta.last_log_id >= *newest {
            snapshot::write(&self.path, snapshot)?;
            *newest = snapshot.meta.last_log_id;
        }
        Ok(())
    }
}

impl StateMachine {
    /// Returns a state machine with the state `known` of the snapshot at `path`, or with an empty
    /// one.
    pub(in crate::raft) fn new(
        path: &Path,
        known: Option<SnapshotContents>,
        audit: Audit,
        fatal_error: &FatalError,
        version: ClusterVersion,
    ) -> Self {
        let newest = Mutex::new(known.as_ref().and_then(|known| known.meta.last_log_id));
        let file = Arc::new(SnapshotFile { path: path.to_path_buf(), newest });
        let replica = Arc::new(Replica::new(known, audit, Arc::new(SystemEnvironment), version));
        Self { replica, file, fatal_error: fatal_error.clone() }
    }

    /// Returns the id of the last applied entry.
    pub(in crate::raft) fn applied(&self) -> Option<LogId> {
        self.replica.state().meta().last_log_id
    }
}

/// Runs blocking disk I/O on a separate thread, and records an error as fatal.
async fn on_the_disk<T: Send + 'static>(
    fatal_error: &FatalError,
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(act).await.map_err(io::Error::other);
    done.flatten().map_err(|error| fatal_error.note("the snapshot can't be written", error))
}

/// Whether an entry may change so many locks that it is applied on a thread of its own: a reset of
/// 100,000 takes a sixth of a second. Meanwhile the thread of openraft goes on to send and answer
/// messages, so that all nodes apply the entry at the same time, and none misses heartbeats.
fn is_long(entry: &Entry) -> bool {
    let EntryPayload::Normal(Proposal::Commands(body)) = &entry.payload else { return false };
    body.commands.iter().any(|command| matches!(command.op, Op::Reset(_)))
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Arc<[u8]>;
    type SnapshotBuilder = StateSnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, Membership)> {
        let meta = self.replica.state().meta();
        Ok((meta.last_log_id, meta.last_membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let answers = if is_long(&entry) {
                let replica = Arc::clone(&self.replica);
                let applied = tokio::task::spawn_blocking(move || replica.apply(entry)).await;
                applied.map_err(io::Error::other)?
            } else {
                self.replica.apply(entry)
            };
            if let Some(responder) = responder {
                responder.send(answers);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> StateSnapshotBuilder {
        let core = self.replica.state();
        let bytes = snapshot::to_bytes(core.cluster_version, core.cluster, &core.engine);
        let snapshot = Snapshot { meta: core.meta(), snapshot: bytes };
        StateSnapshotBuilder {
            snapshot,
            replica: Arc::clone(&self.replica),
            file: Arc::clone(&self.file),
            fatal_error: self.fatal_error.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &Meta, data: Arc<[u8]>) -> io::Result<()> {
        let snapshot = Snapshot { meta: meta.clone(), snapshot: data };
        let known = snapshot::unpack(&snapshot).map_err(io::Error::other)?;
        let file = Arc::clone(&self.file);
        on_the_disk(&self.fatal_error, move || file.write(&snapshot)).await?;
        self.replica.replace(known);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let path = self.file.path.clone();
        let read = move || snapshot::read(&path).map_err(io::Error::other);
        on_the_disk(&self.fatal_error, read).await
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateSnapshotBuilder {
    type SnapshotData = Arc<[u8]>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let (file, snapshot) = (Arc::clone(&self.file), self.snapshot.clone());
        let replica = Arc::clone(&self.replica);
        let write = move || {
            // A start does not replay the entries that the snapshot covers, so their audit records
            // must be on disk before it.
            replica.audit.flush();
            file.write(&snapshot)
        };
        on_the_disk(&self.fatal_error, write).await?;
        Ok(self.snapshot.clone())
    }
}

/// A follower requests the leader's engine time if the last one that it received is older than this
/// interval.
const TIME_EVERY: Span = Span::from_secs(2);

/// The replicated state of a node, and its event log and counters.
pub struct Replica {
    core: Mutex<ReplicaState>,
    pub(crate) feed: Arc<EventLog>,
    /// The places of the events in the log of the cluster.
    pub(crate) places: EventPlaces,
    pub(crate) tally: ServiceCounters,
    pub(crate) audit: Audit,
    /// The numbers of entries with commands, and of commands, applied since the start.
    pub(crate) entries: AtomicU64,
    pub(crate) commands: AtomicU64,
    /// The index of the last entry that was applied and whose events have been published.
    published: AtomicU64,
    /// Notified after each change of `published`.
    progress: Notify,
    environment: Arc<dyn NodeEnvironment>,
    /// The version in which this node writes entries and calls.
    pub(crate) version: ClusterVersion,
}

/// The state of a replica that its mutex guards.
pub struct ReplicaState {
    /// The engine, with all entries up to the last applied one.
    pub engine: Engine,
    /// The id of the cluster, or `None` until the entry that begins the cluster has been applied.
    pub cluster: Option<ClusterId>,
    /// The cluster version, as of the last applied entry.
    pub(crate) cluster_version: u8,
    applied: Option<LogId>,
    members: Membership,
    /// The best report of a leader's engine time that this node has received: the one from which it
    /// would continue if it became leader.
    reading: Option<LeaderReading>,
    /// The events of the current entry. Emptied after each entry, but kept to reuse its memory.
    events: Vec<Event>,
    publishing: EventPublishing,
}

/// Whether the events that entries cause are published to watchers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EventPublishing {
    /// Events are dropped: they are those of entries that a start replays, and were published
    /// before the restart.
    Not,
    /// The events of an entry are new, and are published to watchers.
    All,
}

impl Replica {
    /// Returns a replica with the state of a snapshot, or with an empty one.
    pub fn new(
        known: Option<SnapshotContents>,
        audit: Audit,
        environment: Arc<dyn NodeEnvironment>,
        version: ClusterVersion,
    ) -> Self {
        let known = known.unwrap_or_else(|| SnapshotContents {
            meta: Meta::default(),
            cluster: None,
            version: oldest_version(),
            engine: Engine::new(Rules::default()),
        });
        let SnapshotContents { meta, cluster, version: cluster_version, engine } = known;
        version.observe(cluster_version);
        let core = ReplicaState {
            engine,
            cluster,
            cluster_version,
            applied: meta.last_log_id,
            members: meta.last_membership,
            reading: None,
            events: Vec::new(),
            publishing: EventPublishing::Not,
        };
        let (feed, tally) = (Arc::default(), ServiceCounters::default());
        let (entries, commands) = (AtomicU64::new(0), AtomicU64::new(0));
        let published = AtomicU64::new(core.applied.map_or(0, |applied| applied.index));
        let (core, progress) = (Mutex::new(core), Notify::new());
        let places = EventPlaces::default();
        Self {
            core,
            feed,
            places,
            tally,
            audit,
            entries,
            commands,
            published,
            progress,
            environment,
            version,
        }
    }

    /// Locks the state. No entry is applied while the guard is held, so hold it only briefly.
    pub fn state(&self) -> MutexGuard<'_, ReplicaState> {
        self.core.lock()
    }

    /// Calls `query` with the engine and the time at which to read: `at`, unless a deadline that is
    /// not applied yet has passed by then. In that case the time is that of the last applied entry.
    pub(in crate::raft) fn inspect_at<T>(
        &self,
        at: Time,
        query: impl FnOnce(&Engine, Time) -> T,
    ) -> T {
        let core = self.state();
        let at = at.max(core.engine.clock());
        let is_due = core.engine.next_deadline().is_some_and(|due| due <= at);
        query(&core.engine, if is_due { core.engine.clock() } else { at })
    }

    /// Publishes the events of entries to watchers from now on. Until this call, they are the
    /// events of entries that the start replays, and are dropped.
    pub fn go_live(&self) {
        let mut core = self.core.lock();
        core.publishing = EventPublishing::All;
        let (now, boot) = (core.engine.clock(), self.environment.boot_now());
        local::log_begin(&core.engine, |at| Wall::at_boot_time(boot + at.since(now)));
    }

    /// Applies an entry. Returns the answers to its commands, in order.
    pub fn apply(&self, entry: Entry) -> Answers {
        let index = entry.log_id.index;
        let answers = self.apply_unpublished(entry);
        self.publish(index);
        answers
    }

    fn publish(&self, index: u64) {
        self.published.store(index, Ordering::SeqCst);
        self.progress.notify_waiters();
    }

    /// Returns the index of the last entry that was applied and published on this node.
    pub(in crate::raft) fn applied(&self) -> u64 {
        self.published.load(Ordering::SeqCst)
    }

    /// Waits until this node has applied entry `index`.
    pub(in crate::raft) async fn carried_out(&self, index: u64) {
        loop {
            // The future is created before the check of the index, so that no notification is
            // missed.
            let progress = self.progress.notified();
            if self.applied() >= index {
                return;
            }
            progress.await;
        }
    }

    fn apply_unpublished(&self, entry: Entry) -> Answers {
        let mut core = self.core.lock();
        core.applied = Some(entry.log_id);
        let (answers, wakers) = match entry.payload {
            EntryPayload::Blank => return vec![],
            EntryPayload::Membership(members) => {
                core.members = Membership::new(Some(entry.log_id), members);
                return vec![];
            }
            EntryPayload::Normal(Proposal::Begin(cluster, rules)) => {
                // Only the first entry that begins a cluster has an effect. A later leader that did
                // not know of that entry may have proposed another.
                if core.cluster.is_none() {
                    core.cluster = Some(cluster);
                    core.engine.set_rules(rules);
                }
                return vec![];
            }
            EntryPayload::Normal(Proposal::Inherit(cluster, inherited)) => {
                if core.cluster.is_none() {
                    core.cluster = Some(cluster);
                    core.engine = Engine::from_baseline(&inherited);
                }
                return vec![];
            }
            EntryPayload::Normal(Proposal::Remember(names)) => {
                for name in names {
                    core.engine.take_over(name);
                }
                return vec![];
            }
            EntryPayload::Normal(Proposal::Raise(version)) => {
                core.cluster_version = core.cluster_version.max(version);
                self.version.observe(version);
                log::info!("the cluster has version {version}");
                return vec![];
            }
            EntryPayload::Normal(Proposal::Commands(body)) => {
                core.observe_leader_time(
                    entry.log_id.leader_id,
                    body.now,
                    self.environment.steady_now(),
                );
                self.carry_out(&mut core, entry.log_id.index, &body)
            }
        };
        drop(core);
        wakers.wake();
        answers
    }

    fn carry_out(&self, core: &mut ReplicaState, index: u64, body: &Commands) -> (Answers, Wakers) {
        let ReplicaState { engine, events, publishing, .. } = core;
        let commands = &body.commands;
        // Time never goes back, whatever leader stamped the entry.
        let now = body.now.max(engine.clock());
        let answers: Vec<Answer> =
            commands.iter().map(|command| engine.apply(now, command, events)).collect();
        // Also the events of a replay: a crash may have kept their records from the disk.
        if !events.is_empty() {
            let boot = self.environment.boot_now();
            let guess = |at| Wall::at_boot_time(boot - now.since(at));
            self.audit.enter(Some(index), events, guess);
        }
        if *publishing == EventPublishing::Not {
            events.clear();
            return (answers, Wakers::default());
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.commands.fetch_add(commands.len() as u64, Ordering::Relaxed);
        for answer in &answers {
            self.tally.count_answer(answer);
        }
        for event in &*events {
            self.tally.count_event(event);
        }
        local::log_end(events);
        if events.is_empty() {
            return (answers, Wakers::default());
        }
        // No other entry is applied meanwhile, so these events get the next numbers.
        self.places.add(index, self.feed.next(), events.len());
        (answers, self.feed.publish(events))
    }

    /// Replaces the state with a snapshot of another node.
    pub fn replace(&self, known: SnapshotContents) {
        let mut core = self.core.lock();
        core.engine = known.engine;
        core.cluster = known.cluster;
        core.cluster_version = known.version;
        self.version.observe(known.version);
        core.applied = known.meta.last_log_id;
        core.members = known.meta.last_membership;
        if let Some(applied) = core.applied {
            let stamped = core.engine.clock();
            core.observe_leader_time(applied.leader_id, stamped, self.environment.steady_now());
        }
        // The snapshot does not contain the events that led to its state. Skipping an event number
        // tells watchers that they have missed events and must read the state again.
        let wakers = self.feed.skip(1);
        self.places.clear();
        let index = core.applied.map_or(0, |applied| applied.index);
        drop(core);
        wakers.wake();
        self.publish(index);
    }

    /// Records a report from a leader that its engine time is `now`. The leader was elected under
    /// the id `leader` or a later one.
    pub(crate) fn observe_leader_time(&self, leader: Leader, now: Time) {
        self.core.lock().observe_leader_time(leader, now, self.environment.steady_now());
    }

    /// Whether this node has not received the leader's engine time for [`TIME_EVERY`]. If it became
    /// leader in that state, engine time would continue from an old stamp, and leases would last
    /// longer than promised.
    pub(crate) fn has_old_time(&self) -> bool {
        let reading = self.core.lock().reading;
        reading.is_none_or(|reading| reading.age(self.environment.steady_now()) > TIME_EVERY)
    }

    /// Returns the engine time of the next deadline, such as the expiry of a lease.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.core.lock().engine.next_deadline()
    }

    /// Returns the sessions without a ttl. At a start they belong to the previous process.
    pub(crate) fn orphans(&self) -> Vec<SessionId> {
        self.core.lock().engine.unending_sessions()
    }
}

impl ReplicaState {
    /// Returns the members of the cluster, as of the last applied entry.
    pub const fn members(&self) -> &Membership {
        &self.members
    }

    /// Returns a lower bound of the engine time when the steady clock shows `steady`. A new leader
    /// that has applied all earlier entries continues from it.
    pub(crate) fn time_at_least(&self, steady: Time) -> Time {
        let stamped = self.engine.clock();
        self.reading.map_or(stamped, |reading| reading.at_least(steady).max(stamped))
    }

    fn observe_leader_time(&mut self, leader: Leader, now: Time, steady: Time) {
        let heard = LeaderReading::of(leader, now, steady);
        self.reading = Some(heard.better(self.reading));
    }

    /// Returns the snapshot metadata of this state.
    pub fn meta(&self) -> Meta {
        Meta { last_log_id: self.applied, last_membership: self.members.clone() }
    }
}
