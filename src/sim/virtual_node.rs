//! A node in a simulation: the replica and the clock of the cluster, openraft, and a proposer that
//! turns requests into entries. One entry is in flight at a time, as in a real node.

use super::node_messages::{NodeReply, NodeRequest, PendingCommand};
use super::planted_bugs::{PlantedBug, planted};
use super::recorder::CoveragePoint;
use super::sim_types::{Leader, SimTypeConfig, now, sleep};
use super::violation::Promise;
use super::virtual_environment::VirtualEnvironment;
use super::virtual_links::VirtualLinks;
use super::virtual_log::VirtualLog;
use super::virtual_state_machine::{Raft, VirtualStateMachine};
use super::world::{Host, World};
use crate::engine::{Command, LockName, Op, Rules, codec};
use crate::raft::engine_clock::EngineClock;
use crate::raft::types::{Answers, Commands, NodeId, Proposal};
use crate::time::{Span, Time};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::impls::{BasicNode, ProgressResponder};
use openraft::raft::ReadPolicy;
use openraft::type_config::TypeConfigExt;
use openraft::{Config, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Notify, oneshot};

/// Requests of one entry: few, so that there are many entries.
const REQUESTS_MAX: usize = 8;
/// Entries between snapshots: few, so that nodes that were away need one.
const ENTRIES_A_SNAPSHOT: u64 = 60;
/// Entries kept behind a snapshot.
const ENTRIES_KEPT: u64 = 10;
/// How long a leader waits for a snapshot to be installed.
pub(super) const INSTALL_PATIENCE_MS: u64 = 10_000;
/// How long a node waits for another one to whom it hands a request on.
const HOP_PATIENCE: Span = Span::from_millis(250);
/// How long a reader waits for what it is to see.
const READ_PATIENCE: Span = Span::from_millis(400);
/// How often a node looks whether it has heard the leader's time.
const TIME_LOOK: Span = Span::from_millis(500);
/// How long after a failed attempt the next one is made.
const AGAIN: Span = Span::from_millis(10);

/// The settings of a real cluster, but for the times: thrice as much happens in a second.
fn config() -> Config {
    Config {
        cluster_name: "latchfs".to_owned(),
        heartbeat_interval: 50,
        election_timeout_min: 150,
        election_timeout_max: 300,
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(ENTRIES_A_SNAPSHOT),
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        install_snapshot_timeout: INSTALL_PATIENCE_MS,
        ..Config::default()
    }
}

impl World {
    /// Starts the node of a machine.
    pub(super) async fn start(self: &Arc<Self>, id: NodeId) {
        match start(self, id).await {
            Ok(host) => {
                self.record.note(format_args!("node {id} starts"));
                *self.seat(id).host.lock() = Some(Arc::clone(&host));
                host.begin();
            }
            Err(why) => {
                let what = format_args!("node {id} does not start: {why}");
                self.record.violation(Promise::NodesStart, what);
            }
        }
    }
}

/// Starts the node of a machine with what is on its disk, by the rules of a real start.
async fn start(world: &Arc<World>, id: NodeId) -> Result<Arc<Host>, String> {
    let seat = world.seat(id);
    let run = world.next_run(id);
    let disk = seat.disk.open();
    let environment = VirtualEnvironment { clock: seat.clock, dice: world.dice.clone() };
    let environment = Arc::new(environment);
    let machine = VirtualStateMachine::open(id, &disk, environment, &world.record)?;
    let (vote, last, purged) = disk
        .look(|files| (files.vote, files.last(), files.purged))
        .map_err(|error| error.to_string())?;
    world.record.remembers(id, vote, last, seat.disk.last_crash());
    if purged > machine.applied() {
        return Err("what was forgotten of the log is in no snapshot".to_owned());
    }
    let replica = Arc::clone(&machine.replica);
    let log = VirtualLog { node: id, disk, record: Arc::clone(&world.record) };
    let links = VirtualLinks { world: Arc::clone(world), from: id, run };
    let raft = Raft::new(id, Arc::new(config()), links, log, machine).await;
    let raft = raft.map_err(|error| error.to_string())?;
    Ok(Arc::new(Host {
        id,
        run,
        raft,
        replica,
        world: Arc::clone(world),
        clock: seat.clock,
        wall_ahead_ms: Arc::clone(&seat.wall_ahead_ms),
        desk: Mutex::default(),
        bell: Notify::new(),
        carried: Mutex::default(),
        stopped: AtomicBool::new(false),
    }))
}

impl Host {
    pub(super) fn runs(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }

    /// The beginning of a cluster of which these are the voters.
    pub(super) async fn initialize(&self, nodes: &[NodeId]) {
        let members: BTreeMap<_, _> = nodes.iter().map(|id| (*id, BasicNode::default())).collect();
        if let Err(error) = self.raft.initialize(members).await {
            let what = format_args!("the cluster can't begin: {error}");
            self.world.record.violation(Promise::NodesStart, what);
        }
    }

    /// Starts to make entries.
    pub(super) fn begin(self: &Arc<Self>) {
        let host = Arc::clone(self);
        SimTypeConfig::spawn(async move { host.work().await });
        let host = Arc::clone(self);
        SimTypeConfig::spawn(async move { host.hear_time().await });
    }

    /// Hears the leader's time now and then while it follows.
    async fn hear_time(&self) {
        while self.runs() {
            sleep(TIME_LOOK).await;
            if self.leads().is_none() && self.replica.has_old_time() {
                self.read_elsewhere().await;
            }
        }
    }

    /// Stops the node, and drops its queued requests.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.desk.lock().clear();
        self.bell.notify_one();
        let raft = self.raft.clone();
        SimTypeConfig::spawn(async move { raft.shutdown().await });
    }

    /// In which term it leads, if it does.
    pub(super) fn leads(&self) -> Option<Leader> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leads = metrics.state == ServerState::Leader
            && metrics.vote.committed
            && metrics.vote.leader_id.node_id == self.id;
        leads.then_some(metrics.vote.leader_id)
    }

    /// The last entry that it has applied, and all that it knows of locks after it, as bytes.
    pub(super) fn state(&self) -> (Option<u64>, Vec<u8>) {
        let core = self.replica.look();
        let applied = core.meta().last_log_id.map(|id| id.index);
        (applied, codec::encode_engine(&core.engine))
    }

    fn is_well(&self) -> bool {
        self.raft.metrics().borrow_watched().running_state.is_ok()
    }

    fn knows_leader(&self) -> Option<NodeId> {
        self.raft.server_metrics().borrow_watched().current_leader.filter(|id| *id != self.id)
    }

    fn steady(&self) -> Time {
        self.clock.read()
    }

    /// Engine time, while this node leads in that term.
    fn carried(&self, leader: Leader) -> Option<EngineClock> {
        self.carried.lock().filter(|(term, _)| *term == leader).map(|(_, carried)| carried)
    }

    fn stamp(&self, carried: EngineClock) -> Time {
        let steady = self.steady();
        if planted(PlantedBug::WallStamps) {
            let ahead = self.wall_ahead_ms.load(Ordering::Relaxed);
            return Time::from_secs(10_000_000)
                + Span::from_millis((now().as_nanos() as i64 / 1_000_000 + ahead).max(0) as u64);
        }
        if planted(PlantedBug::ClockNotCarried) { steady } else { carried.at(steady) }
    }
}

/// The proposer, which turns requests into entries.
impl Host {
    async fn work(self: &Arc<Self>) {
        let mut metrics = self.raft.server_metrics();
        while self.runs() {
            if let Err(error) = &self.raft.metrics().borrow_watched().running_state {
                // The disk has failed: a real node ends here.
                self.world.record.note(format_args!("node {} stops: {error}", self.id));
                self.world.failed(self.id, self.run);
                return;
            }
            let Some(leader) = self.leads() else {
                self.refuse_all();
                tokio::select! {
                    biased;
                    changed = metrics.changed() => if changed.is_err() { return self.fall() },
                    () = self.bell.notified() => {}
                }
                continue;
            };
            // All that earlier leaders have promised is applied here before time goes on.
            if self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await.is_err() {
                sleep(AGAIN).await;
                continue;
            }
            let earlier = self.carried.lock().filter(|_| planted(PlantedBug::StaleCarry));
            let carried = earlier.map_or_else(
                || {
                    let steady = self.steady();
                    EngineClock::on(self.replica.look().time_at_least(steady), steady)
                },
                |(_, carried)| carried,
            );
            *self.carried.lock() = Some((leader, carried));
            self.world.record.count(CoveragePoint::Leader);
            self.world.record.note(format_args!("node {} leads in term {}", self.id, leader.term));
            if self.replica.look().cluster.is_none() {
                let begin = Proposal::Begin(self.world.cluster, Rules::default());
                let _ = self.propose(leader, begin).await;
            }
            self.lead(leader, carried).await;
        }
    }

    /// openraft is no more.
    fn fall(&self) {
        if self.runs() && self.is_well() {
            let id = self.id;
            let what = format_args!("openraft has panicked on node {id}");
            self.world.record.violation(Promise::NoPanic, what);
        }
        self.world.failed(self.id, self.run);
    }

    async fn lead(&self, leader: Leader, carried: EngineClock) {
        let mut metrics = self.raft.server_metrics();
        while self.runs() && self.is_well() && self.leads() == Some(leader) {
            let batch: Vec<PendingCommand> = {
                let mut desk = self.desk.lock();
                let count = desk.len().min(REQUESTS_MAX);
                desk.drain(..count).collect()
            };
            let due = self.replica.next_deadline();
            let wait = due.map(|due| carried.until(due, self.steady()));
            if !batch.is_empty() {
                self.carry_out(leader, carried, batch).await;
            } else if wait == Some(Span::ZERO) {
                let now = self.stamp(carried);
                let commands = Arc::new(Commands { now, commands: vec![Op::Settle.into()] });
                if self.propose(leader, Proposal::Commands(commands)).await.is_err() {
                    // A leader that hands over its leadership still leads, and rejects proposals.
                    sleep(AGAIN).await;
                }
            } else {
                let wait = wait.unwrap_or(Span::from_secs(3_600));
                tokio::select! {
                    biased;
                    changed = metrics.changed() => if changed.is_err() { return self.fall() },
                    () = self.bell.notified() => {}
                    () = sleep(self.clock.virtual_span(wait)) => {}
                }
            }
        }
        self.refuse_all();
    }

    async fn carry_out(&self, leader: Leader, carried: EngineClock, batch: Vec<PendingCommand>) {
        let (commands, thens): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|asked| (asked.command, asked.then)).unzip();
        let now = self.stamp(carried);
        let id = |command: &Command| command.request.as_ref().map(|request| request.id.clone());
        let ids: Vec<_> = commands.iter().map(id).collect();
        let mut thens = Some(thens);
        if planted(PlantedBug::AnswersBeforeCommit) {
            let mut engine = self.replica.look().engine.clone();
            let mut apply = |command| engine.apply(now, command, &mut vec![]);
            let answers: Answers = commands.iter().map(&mut apply).collect();
            self.world.record.answered(self.id, &ids, &answers);
            answer(thens.take().unwrap_or_default(), answers);
        }
        let commands = Arc::new(Commands { now, commands });
        match (self.propose(leader, Proposal::Commands(commands)).await, thens) {
            (_, None) => {}
            (Ok(answers), Some(thens)) => {
                self.world.record.answered(self.id, &ids, &answers);
                answer(thens, answers);
            }
            (Err(reply), Some(thens)) => {
                for then in thens {
                    let _ = then.send(reply.clone());
                }
            }
        }
    }

    /// Has an entry written by the leader of that very term, and carried out. Its stamp is one of
    /// that term, so in another it must not be written.
    async fn propose(&self, leader: Leader, proposal: Proposal) -> Result<Answers, NodeReply> {
        if let Proposal::Commands(commands) = &proposal {
            self.world.record.proposed(leader.term, leader.node_id, commands.now);
        }
        let (responder, done) = ProgressResponder::complete_only();
        let write = self.raft.write(proposal).responder(responder);
        let write = if planted(PlantedBug::StaleCarry) { write } else { write.with_leader(leader) };
        if write.await.is_err() {
            return Err(NodeReply::Unknown);
        }
        match done.await {
            Ok(Ok(done)) => Ok(done.data),
            Ok(Err(openraft::errors::ClientWriteError::ForwardToLeader(to))) => {
                Err(NodeReply::NotLeader(to.leader_id))
            }
            Ok(Err(_)) | Err(_) => Err(NodeReply::Unknown),
        }
    }

    fn refuse_all(&self) {
        let leader = self.knows_leader();
        for asked in self.desk.lock().drain(..) {
            let _ = asked.then.send(NodeReply::NotLeader(leader));
        }
    }
}

fn answer(thens: Vec<oneshot::Sender<NodeReply>>, answers: Answers) {
    for (then, answer) in thens.into_iter().zip(answers) {
        // The requester may have given up.
        let _ = then.send(NodeReply::Answered(answer));
    }
}

/// Handling of requests.
impl Host {
    pub(super) async fn handle(self: Arc<Self>, request: NodeRequest) -> NodeReply {
        match request {
            NodeRequest::Submit(command) => {
                if self.leads().is_some() {
                    return self.decide(command).await;
                }
                self.hand_on(NodeRequest::Forwarded(command)).await
            }
            NodeRequest::Forwarded(command) => self.decide(command).await,
            NodeRequest::ReadIndex => match self.barrier().await {
                Some((at, now)) => NodeReply::ReadAt(at, now),
                None => NodeReply::NotLeader(self.knows_leader()),
            },
            NodeRequest::View(name) => self.view(&name).await,
        }
    }

    async fn hand_on(&self, request: NodeRequest) -> NodeReply {
        let Some(leader) = self.knows_leader() else { return NodeReply::NotLeader(None) };
        let reply = self.world.ask(self.id, leader, request, HOP_PATIENCE).await;
        reply.unwrap_or(NodeReply::Unknown)
    }

    async fn decide(&self, command: Command) -> NodeReply {
        if self.leads().is_none() {
            return NodeReply::NotLeader(self.knows_leader());
        }
        let (then, reply) = oneshot::channel();
        self.desk.lock().push_back(PendingCommand { command, then });
        self.bell.notify_one();
        reply.await.unwrap_or(NodeReply::Unknown)
    }

    /// As the leader: the entry up to which somebody must have applied to see all that anybody
    /// was told before this was asked, and what is due by now.
    async fn barrier(&self) -> Option<(Option<u64>, Time)> {
        let carried = self.carried(self.leads()?)?;
        let due = |now| self.replica.next_deadline().is_some_and(|due| due <= now);
        if due(self.stamp(carried)) {
            self.decide(Op::Settle.into()).await;
        }
        let linearizer = self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.ok()?;
        let at = linearizer.read_log_id().index();
        let now = self.stamp(self.carried(self.leads()?)?);
        Some((Some(at), now))
    }

    /// Asks the leader for its barrier, and hears its time.
    async fn read_elsewhere(&self) -> Option<(Option<u64>, Time)> {
        // The node that answers is the leader of this vote, or of a later one.
        let vote = self.raft.server_metrics().borrow_watched().vote;
        let NodeReply::ReadAt(at, now) = self.hand_on(NodeRequest::ReadIndex).await else {
            return None;
        };
        if vote.committed {
            self.replica.hear(vote.leader_id, now);
        }
        Some((at, now))
    }

    async fn view(&self, name: &LockName) -> NodeReply {
        let barrier = if planted(PlantedBug::NoBarrier) {
            Some((None, self.replica.look().engine.clock()))
        } else if self.leads().is_some() {
            self.barrier().await
        } else {
            self.read_elsewhere().await
        };
        let Some((at, now)) = barrier else { return NodeReply::NotLeader(self.knows_leader()) };
        let wait = self.raft.wait(Some(READ_PATIENCE.as_duration()));
        if wait.applied_index_at_least(at, "to look").await.is_err() {
            return NodeReply::Unknown;
        }
        let core = self.replica.look();
        let view = core.engine.view(name, core.engine.clock());
        NodeReply::Seen(Box::new(view), now)
    }
}
