//! One run of a simulation: its options, its course and its report.

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

/// Clients: as many as make each lock wanted by some, and waited for.
const CLIENTS: u64 = 6;

/// How long after all is mended the cluster may take until it works: twice what it takes to give
/// up a snapshot that was lost on its way just before, and to read, send and write another one for
/// each of four followers, one after the other.
const RECOVERY: Span =
    Span::from_millis(2 * (INSTALL_PATIENCE_MS + 4 * 2 * SNAPSHOT_TAKES_MAX.as_millis()));

/// How often to check whether the cluster works again.
const LOOK_AGAIN: Span = Span::from_millis(200);

/// The options of one simulation run.
#[derive(Debug, Clone, Copy)]
pub struct SimOptions {
    /// Seed of the random numbers: it determines the whole run.
    pub seed: u64,
    /// Voters of the cluster.
    pub nodes: u64,
    /// For how long faults are injected, in virtual time.
    pub time: Span,
    /// Whether to keep the whole trace, and not only its end.
    pub trace: bool,
}

/// The result of one simulation run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimReport {
    /// Every promise that was broken. Empty: all was well.
    pub violations: Vec<Violation>,
    /// The trace, or its end.
    pub trace: Vec<String>,
    /// Lines of the whole trace.
    pub lines: u64,
    /// SHA-256 of the whole trace.
    pub digest: String,
    /// Entries that were applied.
    pub entries: u64,
    /// Commands in them.
    pub commands: u64,
    /// Answers that clients got.
    pub answers: u64,
    /// Requests whose outcome a client never learned.
    pub unknown: u64,
    /// How often each kind of event occurred.
    pub parts: BTreeMap<CoveragePoint, u64>,
}

/// Runs a simulation.
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

/// Makes a cluster of the nodes, and writes its first entry.
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

/// All is mended: all nodes come to the same state, and everybody can see it.
async fn recover(world: &Arc<World>) {
    let until = now() + RECOVERY;
    settle(world, until).await;
    SimClient::new(world, CLIENTS + 1).look_at_all(until).await;
    // Looking may have added entries.
    settle(world, until).await;
}

/// Waits until somebody leads and all nodes have applied as much, and compares their states.
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

/// The last entry that each node has applied, and the state after it. `None`: it does not run.
fn standings(world: &Arc<World>) -> Vec<Option<(Option<u64>, Vec<u8>)>> {
    world.nodes().into_iter().map(|id| Some(world.host(id)?.state())).collect()
}

fn have_applied_the_same(standings: &[Option<(Option<u64>, Vec<u8>)>]) -> bool {
    let applied = |standing: &Option<_>| standing.as_ref().map(|(applied, _)| *applied);
    standings.iter().all(|one| one.is_some() && applied(one) == applied(&standings[0]))
}
