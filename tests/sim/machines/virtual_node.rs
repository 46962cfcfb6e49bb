//! A simulated node: the request pipeline of a real node, over a virtual disk, network and clock.

use super::virtual_environment::VirtualEnvironment;
use super::virtual_links::{VirtualLinks, VirtualTransport};
use super::virtual_state_machine::{Raft, VirtualStateMachine};
use crate::checks::recorder::CoveragePoint;
use crate::machines::virtual_disk::VirtualLog;
use crate::machines::virtual_environment::{Leader, SimTypeConfig, sleep};
use crate::machines::virtual_links::{NodeReply, NodeRequest};
use crate::planted_bugs::{PlantedBug, planted};
use crate::world::{Host, SimWorld};
use latchfs::engine::codec::state_codec;
use latchfs::engine::{Command, Engine, LockName, LockView};
use latchfs::raft::leadership::ElectionCounter;
use latchfs::raft::leadership::LeadershipRole;
use latchfs::raft::node::node_pipeline::{PipelineParts, PipelineTasks};
use latchfs::raft::store::data_dir::FatalError;
use latchfs::raft::store::snapshot::NodeId;
use latchfs::service::Unavailable;
use latchfs::time::{Span, Time};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::impls::BasicNode;
use openraft::type_config::TypeConfigExt;
use openraft::{Config, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testing::client_history::SafetyProperty;

/// Number of entries between snapshots. It is low, so that nodes which were down need a snapshot.
const ENTRIES_A_SNAPSHOT: u64 = 60;
/// Number of log entries kept after a snapshot that contains them.
const ENTRIES_KEPT: u64 = 10;
/// How long a leader waits for a snapshot to be installed.
pub const INSTALL_PATIENCE_MS: u64 = 10_000;
/// How often a follower refreshes its estimate of the leader's time.
const TIME_POLL: Span = Span::from_millis(500);

/// Returns openraft's settings of a real cluster, with shorter heartbeat intervals and election
/// timeouts and more frequent snapshots, so that more happens in a second.
fn config() -> Config {
    Config {
        cluster_name: "latchfs".to_owned(),
        heartbeat_interval: 50,
        election_timeout_min: 150,
        election_timeout_max: 300,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        allow_log_reversion: Some(true),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(ENTRIES_A_SNAPSHOT),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        install_snapshot_timeout: INSTALL_PATIENCE_MS,
        ..Config::default()
    }
}

impl SimWorld {
    /// Starts the node of a machine. A failure is a violation.
    pub async fn start(self: &Arc<Self>, id: NodeId) {
        match start(self, id).await {
            Ok((host, tasks)) => {
                self.record.note(format_args!("node {id} starts"));
                *self.seat(id).host.lock() = Some(Arc::clone(&host));
                host.run_tasks(tasks);
            }
            Err(why) => {
                let what = format_args!("node {id} does not start: {why}");
                self.record.violation(SafetyProperty::NodesStart, what);
            }
        }
    }
}

/// Builds a node from the contents of its machine's disk, by the rules of a real start.
async fn start(
    world: &Arc<SimWorld>,
    id: NodeId,
) -> Result<(Arc<Host>, PipelineTasks<SimTypeConfig>), String> {
    let seat = world.seat(id);
    let run = world.next_run(id);
    let disk = seat.disk.open();
    let environment = Arc::new(VirtualEnvironment {
        clock: seat.clock,
        wall_ahead_ms: Arc::clone(&seat.wall_ahead_ms),
        dice: world.dice.clone(),
        record: Arc::clone(&world.record),
        first: Mutex::default(),
    });
    let machine = VirtualStateMachine::open(id, &disk, environment.clone(), &world.record)?;
    let (vote, last, purged) = disk
        .read(|files| (files.vote, files.last(), files.purged))
        .map_err(|error| error.to_string())?;
    world.record.remembers(id, vote, last, seat.disk.last_crash());
    if purged > machine.applied() {
        return Err("what was forgotten of the log is in no snapshot".to_owned());
    }
    let replica = Arc::clone(&machine.replica);
    let log = VirtualLog { node: id, disk, record: Arc::clone(&world.record) };
    let transport = Arc::new(VirtualTransport { world: Arc::clone(world), from: id, run });
    let links = VirtualLinks(Arc::clone(&transport));
    let raft = Raft::new(id, Arc::new(config()), links, log, machine).await;
    let raft = raft.map_err(|error| error.to_string())?;
    replica.go_live();
    let elections = Arc::new(ElectionCounter::since(vote.as_ref()));
    let (role, fatal) = (LeadershipRole::Waits, FatalError::default());
    let parts = PipelineParts {
        raft,
        replica,
        transport,
        environment,
        elections,
        fatal,
        role,
        is_alone: false,
    };
    let (requests, tasks) = parts.build();
    let (world, stopped) = (Arc::clone(world), AtomicBool::new(false));
    Ok((Arc::new(Host { id, run, world, requests, stopped }), tasks))
}

impl Host {
    pub fn runs(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    /// Initializes a cluster with these nodes as voters.
    pub async fn initialize(&self, nodes: &[NodeId]) {
        let members: BTreeMap<_, _> = nodes.iter().map(|id| (*id, BasicNode::default())).collect();
        if let Err(error) = self.requests.raft.initialize(members).await {
            let what = format_args!("the cluster can't begin: {error}");
            self.world.record.violation(SafetyProperty::NodesStart, what);
        }
    }

    /// Spawns the tasks of the node.
    fn run_tasks(self: &Arc<Self>, tasks: PipelineTasks<SimTypeConfig>) {
        let PipelineTasks { watcher, proposer } = tasks;
        SimTypeConfig::spawn(watcher.run());
        SimTypeConfig::spawn(self.requests.clone().answer_reads());
        let host = Arc::clone(self);
        SimTypeConfig::spawn(async move {
            let ended = SimTypeConfig::spawn(async move { proposer.run().await }).await;
            host.end(ended.map_err(|panic| panic.to_string()));
        });
        let host = Arc::clone(self);
        SimTypeConfig::spawn(async move { host.refresh_leader_time().await });
        let host = Arc::clone(self);
        SimTypeConfig::spawn(async move { host.note_leaderships().await });
    }

    /// Refreshes the follower's estimate of the leader's time at intervals.
    async fn refresh_leader_time(&self) {
        while self.runs() {
            self.requests.refresh_leader_time(TIME_POLL).await;
            sleep(TIME_POLL).await;
        }
    }

    /// Adds a line to the trace whenever this node becomes leader.
    async fn note_leaderships(&self) {
        let mut role = self.requests.role.clone();
        loop {
            let now = *role.borrow_and_update();
            if let LeadershipRole::Leads(leadership) = now {
                let (id, term) = (self.id, leadership.id.term);
                self.world.record.count(CoveragePoint::Leader);
                self.world.record.note(format_args!("node {id} leads in term {term}"));
            }
            if role.changed().await.is_err() {
                return;
            }
        }
    }

    /// Handles the end of the proposer, after a panic or because openraft has ended, for example
    /// after a disk failure. Like a real node, the node then stops.
    fn end(&self, ended: Result<Result<(), Arc<str>>, String>) {
        let (id, record) = (self.id, &self.world.record);
        match ended {
            Err(panic) => {
                let what = format_args!("the proposer of node {id} has panicked: {panic}");
                record.violation(SafetyProperty::NoPanic, what);
            }
            Ok(Err(_)) if self.runs() && self.is_well() => {
                let what = format_args!("openraft has panicked on node {id}");
                record.violation(SafetyProperty::NoPanic, what);
            }
            Ok(Err(why)) if self.runs() => {
                record.count(CoveragePoint::FailedNodeEnd);
                record.note(format_args!("node {id} stops: {why}"));
            }
            Ok(_) => {}
        }
        if !planted(PlantedBug::EndIgnored) {
            self.world.failed(self.id, self.run);
        }
    }

    /// Stops the node, and fails its queued requests.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.requests.queue.fail(&Unavailable::Closing);
        self.requests.reads.fail(&Unavailable::Closing);
        let raft = self.requests.raft.clone();
        SimTypeConfig::spawn(async move { raft.shutdown().await });
    }

    /// Returns the current leadership of this node, if it is the leader.
    pub fn leads(&self) -> Option<Leader> {
        let metrics = self.requests.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state == ServerState::Leader
            && metrics.vote.committed
            && metrics.vote.leader_id.node_id == self.id;
        leads.then_some(metrics.vote.leader_id)
    }

    /// Returns the index of the last entry that the node has applied, and its encoded engine state.
    pub fn state(&self) -> (Option<u64>, Vec<u8>) {
        let core = self.requests.replica.state();
        let applied = core.meta().last_log_id.map(|id| id.index);
        (applied, state_codec::encode_engine(state_codec::known_version(), &core.engine))
    }

    /// Describes the state of openraft and the role of this node.
    pub fn describe(&self) -> String {
        let raft = self.requests.raft.metrics().borrow_watched().running_state.clone();
        format!("openraft {raft:?}, {:?}", *self.requests.role.borrow_watched())
    }

    fn is_well(&self) -> bool {
        self.requests.raft.metrics().borrow_watched().running_state.is_ok()
    }
}

impl Host {
    pub async fn handle(self: Arc<Self>, request: NodeRequest) -> NodeReply {
        match request {
            NodeRequest::Submit(command) => self.submit(*command).await,
            NodeRequest::View(name) => self.view(name).await,
        }
    }

    async fn submit(&self, command: Command) -> NodeReply {
        let id = command.request.as_ref().map(|request| request.id.clone());
        let answer = if planted(PlantedBug::AnswersBeforeCommit) && self.leads().is_some() {
            let mut engine = self.requests.replica.state().engine.clone();
            let answer = engine.apply(engine.clock(), &command, &mut vec![]);
            self.requests.queue.submit(command).detach();
            answer
        } else {
            let Ok(answer) = self.requests.submit(command, 1).await else {
                return NodeReply::Unavailable;
            };
            answer
        };
        if self.runs() {
            self.world.record.answered(self.id, id.as_ref(), &answer);
        }
        NodeReply::Answered(answer)
    }

    async fn view(&self, name: LockName) -> NodeReply {
        let seen = |seen: (LockView, Time)| NodeReply::Seen(Box::new(seen.0), seen.1);
        if planted(PlantedBug::NoBarrier) {
            let core = self.requests.replica.state();
            let now = core.engine.clock();
            return seen((core.engine.view(&name, now), now));
        }
        let own = name.clone();
        let query = move |engine: &Engine, now| (engine.view(&own, now), now);
        match self.requests.read_engine(Some(&name), query).await {
            Ok(answer) => seen(answer),
            Err(_) => NodeReply::Unavailable,
        }
    }
}
