//! One run of the simulation: its options, its phases and its report.

use super::client::SimClient;
use super::coverage::CoveragePoint;
use super::faults;
use super::promises;
use super::recorder::{Record, Trace};
use super::seeded_random::SeededRandom;
use super::sim_types::{SimTypeConfig, now, sleep};
use super::violation::{Promise, Violation};
use super::virtual_disk::SNAPSHOT_TAKES_MAX;
use super::virtual_node::INSTALL_PATIENCE_MS;
use super::world::World;
use crate::engine::Rules;
use crate::raft::types::Proposal;
use crate::time::{Span, Time};
use openraft::type_config::{AsyncRuntime, TypeConfigExt};
use openraft_rt_sim::SimRuntime;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of clients: enough that every lock is contended and has waiters.
const CLIENTS: u64 = 6;

/// How long the cluster may take to recover once all faults are repaired: twice the time that it
/// takes to give up a snapshot whose transfer failed just before, and to read, send and write
/// another one for each of four followers in turn.
const RECOVERY: Span =
    Span::from_millis(2 * (INSTALL_PATIENCE_MS + 4 * 2 * SNAPSHOT_TAKES_MAX.as_millis()));

/// How often to check whether the cluster works again.
const LOOK_AGAIN: Span = Span::from_millis(200);

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
}

/// Runs one simulation, checks it and returns its report. Equal options give equal reports.
pub fn run(options: &SimOptions) -> SimReport {
    let mut runtime = SimRuntime::with_seed(options.seed);
    let record = Record::new(options.trace);
    let (world, answers, unknown) = runtime.block_on(async {
        let world = simulate(options, record).await;
        let (answers, unknown) = world.record.history(|seen| (seen.answered, seen.unknown));
        let history = world.record.history(std::mem::take);
        world.record.violations(promises::check(&history));
        (world, answers, unknown)
    });
    drop(runtime);
    let Trace { digest, lines, count, violations, entries, commands, parts } = world.record.close();
    let (trace, lines) = (lines, count);
    SimReport { violations, trace, lines, digest, entries, commands, answers, unknown, parts }
}

async fn simulate(options: &SimOptions, record: Record) -> Arc<World> {
    let dice = SeededRandom::new(options.seed);
    let world = World::new(&dice, options.nodes, record);
    for id in world.nodes() {
        world.start(id).await;
    }
    begin(&world).await;
    let until = now() + options.time;
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|number| SimTypeConfig::spawn(SimClient::new(&world, number).live(until)))
        .collect();
    faults::rage(&world, CLIENTS, until).await;
    for client in clients {
        if let Err(error) = client.await {
            let what = format_args!("a client ended: {error}");
            world.record.violation(Promise::NoPanic, what);
        }
    }
    recover(&world).await;
    world
}

/// Initializes a cluster of all nodes, and writes its first entry.
async fn begin(world: &Arc<World>) {
    if let Some(first) = world.host(1) {
        first.initialize(&world.nodes()).await;
    }
    let begins = Proposal::Begin(world.cluster, Rules::default());
    loop {
        sleep(LOOK_AGAIN).await;
        let Some(leader) = world.leader() else { continue };
        if leader.requests.raft.client_write(begins.clone()).await.is_ok() {
            return;
        }
    }
}

/// Checks after the repair of all faults that the nodes reach the same state and that every lock
/// can be read.
async fn recover(world: &Arc<World>) {
    let until = now() + RECOVERY;
    settle(world, until).await;
    SimClient::new(world, CLIENTS + 1).look_at_all(until).await;
    // The reads may have added log entries, so the states of the nodes are compared once more.
    settle(world, until).await;
}

/// Waits until there is a leader and all nodes have applied the same entries, and compares their
/// states.
async fn settle(world: &Arc<World>, until: Time) {
    faults::retire(world).await;
    let mut standings = standings(world);
    while world.leader().is_none() || !have_applied_the_same(&standings) {
        if now() > until {
            return world
                .record
                .violation(Promise::Recovers, format_args!("the cluster does not recover"));
        }
        sleep(LOOK_AGAIN).await;
        faults::retire(world).await;
        standings = self::standings(world);
    }
    if standings.windows(2).any(|pair| pair[0] != pair[1]) {
        let what = format_args!("nodes that have applied the same entries end in different states");
        world.record.violation(Promise::SameState, what);
    }
}

/// Returns the last applied entry of each node and its state after it. `None`: the node is not
/// running.
fn standings(world: &Arc<World>) -> Vec<Option<(Option<u64>, Vec<u8>)>> {
    world.nodes().into_iter().map(|id| Some(world.host(id)?.state())).collect()
}

fn have_applied_the_same(standings: &[Option<(Option<u64>, Vec<u8>)>]) -> bool {
    let applied = |standing: &Option<_>| standing.as_ref().map(|(applied, _)| *applied);
    standings.iter().all(|one| one.is_some() && applied(one) == applied(&standings[0]))
}
