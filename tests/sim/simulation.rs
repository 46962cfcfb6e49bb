//! One run of the simulation: its options, its phases and its report.

use super::faults;
use super::planted_bugs::{PlantedBug, planted};
use super::world::SimWorld;
use crate::checks::handover_history::{HandoverHistory, Restore};
use crate::checks::recorder::CoveragePoint;
use crate::checks::recorder::{Record, Trace};
use crate::clients::client::SimClient;
use crate::clients::client_actions::HandoverClient;
use crate::machines::virtual_disk::SNAPSHOT_TAKES_MAX;
use crate::machines::virtual_environment::SeededRandom;
use crate::machines::virtual_environment::{SimTypeConfig, now, sleep};
use crate::machines::virtual_node::INSTALL_PATIENCE_MS;
use latchfs::engine::{Engine, HandoverEnd, Rules};
use latchfs::raft::store::snapshot::{InheritedState, Proposal};
use latchfs::time::{Span, Time};
use openraft::type_config::{AsyncRuntime, TypeConfigExt};
use openraft_rt_sim::SimRuntime;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use testing::client_history::{SafetyProperty, Violation};
use testing::promises;

/// Number of clients: enough that every lock is contended and has waiters.
const CLIENTS: u64 = 6;

/// How long the cluster may take to recover once all faults are repaired: twice the time that it
/// takes to give up a snapshot whose transfer failed just before, and to read, send and write
/// another one for each of four followers in turn.
const RECOVERY: Span =
    Span::from_millis(2 * (INSTALL_PATIENCE_MS + 4 * 2 * SNAPSHOT_TAKES_MAX.as_millis()));

/// Number of clients that set handovers, and the number of the first one.
const FOLDER_CLIENTS: u64 = 3;
const FOLDERS_FROM: u64 = 20;

/// How often a backup is tried.
const BACKUP_TRIES: u32 = 50;

/// How often to check whether the cluster works again.
const RECHECK: Span = Span::from_millis(200);

/// The options of one simulation run.
#[derive(Debug, Clone, Copy)]
pub struct SimOptions {
    /// Seed of the random numbers: it determines the whole run.
    pub seed: u64,
    /// Number of voters when the cluster starts.
    pub nodes: u64,
    /// For how long faults are injected, in virtual time.
    pub time: Span,
    /// Whether to keep the whole trace, and not only its end.
    pub trace: bool,
    /// Whether clients set handovers. The cluster is then lost at the end, and another one is
    /// restored from a backup.
    pub handovers: bool,
}

/// The result of one simulation run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimReport {
    /// All violations. Empty if every check passed.
    pub violations: Vec<Violation>,
    /// The whole trace if the options request it, otherwise its last lines.
    pub trace: Vec<String>,
    /// Number of lines of the whole trace.
    pub lines: u64,
    /// SHA-256 of the whole trace, in hexadecimal.
    pub digest: String,
    /// Number of log entries that were applied.
    pub entries: u64,
    /// Number of commands in the applied entries.
    pub commands: u64,
    /// Number of answers that clients received.
    pub answers: u64,
    /// Number of requests whose outcome the client never learned.
    pub unknown: u64,
    /// How often each kind of event occurred.
    pub parts: BTreeMap<CoveragePoint, u64>,
    /// Number of grants that reported the last handover.
    pub handovers: u64,
}

/// Runs one simulation, checks it and returns its report. Equal options give equal reports.
pub fn run(options: &SimOptions) -> SimReport {
    let mut runtime = SimRuntime::with_seed(options.seed);
    let dice = SeededRandom::new(options.seed);
    let report = runtime.block_on(async {
        let world = SimWorld::new(&dice, options.nodes, Record::new(options.trace));
        let first = vec![Proposal::Begin(world.cluster, Rules::default())];
        if !options.handovers {
            simulate(options, &world, first, &[]).await;
            return report(&world);
        }
        let folders: Vec<_> = (FOLDERS_FROM..FOLDERS_FROM + FOLDER_CLIENTS).collect();
        let backup = SimTypeConfig::spawn(take_backup(Arc::clone(&world), options.time));
        simulate(options, &world, first, &folders).await;
        let Ok(Some((backup_at, inherited))) = backup.await else { return report(&world) };
        world.nodes().into_iter().for_each(|id| world.crash(id));
        let before = report(&world);
        let known = world.record.handovers(std::mem::take);
        // Another cluster, whose clients go on from what those of the lost one know.
        let world = SimWorld::new(&dice, options.nodes, Record::new(options.trace));
        let tokens_from = inherited.baseline.tokens_from;
        world.record.handovers(|history| {
            let restore = Some(Restore { backup_at, tokens_from });
            *history = HandoverHistory { restore, reports: vec![], ..known };
        });
        let first = inherited.proposals(world.cluster).collect();
        let time = Span::from_millis(options.time.as_millis() / 2);
        let folders: Vec<_> = folders.iter().map(|number| number + FOLDER_CLIENTS).collect();
        simulate(&SimOptions { time, ..*options }, &world, first, &folders).await;
        before.and(report(&world))
    });
    drop(runtime);
    report
}

/// Returns the report of one cluster.
fn report(world: &SimWorld) -> SimReport {
    let (answers, unknown) = world.record.history(|seen| (seen.answered, seen.unknown));
    let history = world.record.history(std::mem::take);
    world.record.violations(promises::check(&history));
    let (found, reports) =
        world.record.handovers(|seen| (seen.check(&history.resets), seen.reports.len() as u64));
    world.record.violations(found);
    let Trace { digest, lines, count, violations, entries, commands, parts } = world.record.close();
    let (trace, lines, handovers) = (lines, count, reports);
    SimReport {
        violations,
        trace,
        lines,
        digest,
        entries,
        commands,
        answers,
        unknown,
        parts,
        handovers,
    }
}

impl SimReport {
    /// Returns the report of this cluster and of the one after it together.
    fn and(mut self, later: Self) -> Self {
        self.violations.extend(later.violations);
        self.trace.extend(later.trace);
        self.lines += later.lines;
        self.digest = format!("{:x}", Sha256::digest(self.digest + &later.digest));
        self.entries += later.entries;
        self.commands += later.commands;
        self.answers += later.answers;
        self.unknown += later.unknown;
        later.parts.into_iter().for_each(|(part, n)| *self.parts.entry(part).or_default() += n);
        self.handovers += later.handovers;
        self
    }
}

/// Runs a cluster whose log begins with the proposals `first`, with clients that compete for locks,
/// and with clients that set handovers, which have the numbers `folders`.
async fn simulate(
    options: &SimOptions,
    world: &Arc<SimWorld>,
    first: Vec<Proposal>,
    folders: &[u64],
) {
    for id in world.nodes() {
        world.start(id).await;
    }
    begin(world, first).await;
    let until = now() + options.time;
    let mut clients: Vec<_> = (1..=CLIENTS)
        .map(|number| SimTypeConfig::spawn(SimClient::new(world, number).live(until)))
        .collect();
    let folders = folders.iter().map(|number| HandoverClient::new(world, *number));
    clients.extend(folders.map(|client| SimTypeConfig::spawn(client.live(until))));
    faults::rage(world, CLIENTS, until).await;
    for client in clients {
        if let Err(error) = client.await {
            let what = format_args!("a client ended: {error}");
            world.record.violation(SafetyProperty::NoPanic, what);
        }
    }
    recover(world).await;
}

/// Takes a backup at a random moment within `time`. Returns when it was requested, and what a
/// cluster takes over from it; `None` if no node could take one.
async fn take_backup(world: Arc<SimWorld>, time: Span) -> Option<(Time, InheritedState)> {
    sleep(world.dice.millis(time.as_millis() / 4, time.as_millis())).await;
    for _ in 0..BACKUP_TRIES {
        sleep(RECHECK).await;
        let Some(leader) = world.leader() else { continue };
        let asked = now();
        let query = |engine: &Engine, _| InheritedState::of(engine, 0, None);
        let backup = leader.requests.read_engine(None, query);
        if let Ok(Ok(Some(mut inherited))) =
            SimTypeConfig::timeout(RECHECK.as_duration(), backup).await
        {
            world.record.note(format_args!("a backup as of {asked}"));
            if planted(PlantedBug::EndTakenForKnown) {
                let last =
                    inherited.names.iter_mut().filter_map(|name| name.previous.last.as_mut());
                last.for_each(|last| last.end = HandoverEnd::Released);
            }
            return Some((asked, inherited));
        }
    }
    None
}

/// Initializes a cluster of all nodes, and writes its first entries.
async fn begin(world: &Arc<SimWorld>, first: Vec<Proposal>) {
    if let Some(first) = world.host(1) {
        first.initialize(&world.nodes()).await;
    }
    for proposal in first {
        loop {
            sleep(RECHECK).await;
            let Some(leader) = world.leader() else { continue };
            if leader.requests.raft.client_write(proposal.clone()).await.is_ok() {
                break;
            }
        }
    }
}

/// Checks after the repair of all faults that the nodes reach the same state and that every lock
/// can be read.
async fn recover(world: &Arc<SimWorld>) {
    let until = now() + RECOVERY;
    settle(world, until).await;
    SimClient::new(world, CLIENTS + 1).read_all_locks(until).await;
    // The reads may have added log entries, so the states of the nodes are compared once more.
    settle(world, until).await;
}

/// Waits until there is a leader and all nodes have applied the same entries, and compares their
/// states.
async fn settle(world: &Arc<SimWorld>, until: Time) {
    faults::retire(world).await;
    let mut standings = standings(world);
    while world.leader().is_none() || !have_applied_the_same(&standings) {
        if now() > until {
            return world
                .record
                .violation(SafetyProperty::Recovers, format_args!("the cluster does not recover"));
        }
        sleep(RECHECK).await;
        faults::retire(world).await;
        standings = self::standings(world);
    }
    if standings.windows(2).any(|pair| pair[0] != pair[1]) {
        let what = format_args!("nodes that have applied the same entries end in different states");
        world.record.violation(SafetyProperty::SameState, what);
    }
}

/// Returns the last applied entry of each node and its state after it. `None`: the node is not
/// running.
fn standings(world: &Arc<SimWorld>) -> Vec<Option<(Option<u64>, Vec<u8>)>> {
    world.nodes().into_iter().map(|id| Some(world.host(id)?.state())).collect()
}

fn have_applied_the_same(standings: &[Option<(Option<u64>, Vec<u8>)>]) -> bool {
    let applied = |standing: &Option<_>| standing.as_ref().map(|(applied, _)| *applied);
    standings.iter().all(|one| one.is_some() && applied(one) == applied(&standings[0]))
}
