//! Fault injection: nodes crash, disks fail, the network has partitions and periods of heavy loss,
//! wall clocks jump, leadership moves, and voters are replaced. The seed decides which and when.

use super::world::SimWorld;
use crate::checks::recorder::CoveragePoint;
use crate::clients::client::SimClient;
use crate::machines::virtual_environment::{SimTypeConfig, now, sleep};
use crate::machines::virtual_links::{End, NetworkFaults};
use latchfs::raft::store::snapshot::NodeId;
use latchfs::time::{Span, Time};
use openraft::impls::BasicNode;
use openraft::raft::ReadPolicy;
use openraft::type_config::TypeConfigExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use testing::client_history::SafetyProperty;

/// How long a leader may take to confirm its leadership. Only then are the machines shut down that
/// are no longer members of the cluster.
const RETIRE_PATIENCE: Span = Span::from_millis(500);

/// How long a node may take to stop after its disk has failed. A call to another node may have to
/// end first.
const END_PATIENCE: Span = Span::from_millis(700);

/// Injects random faults until `until`, then repairs everything.
pub(super) async fn rage(world: &Arc<SimWorld>, clients: u64, until: Time) {
    let dice = world.dice.clone();
    while now() < until {
        sleep(dice.millis(50, 900)).await;
        let nodes = world.nodes();
        let any = *dice.pick(&nodes);
        match dice.below(100) {
            0..18 => crash_for(world, &[any], dice.millis(5, 900)).await,
            18..30 => {
                let leader = world.leader().map_or(any, |host| host.id);
                crash_for(world, &[leader], dice.millis(5, 900)).await;
            }
            30..36 => crash_for(world, &nodes, dice.millis(5, 400)).await,
            36..44 => fail_disk(world, any).await,
            44..56 => split(world, clients).await,
            56..66 => isolate(world, any).await,
            66..74 => cut_one_way(world, clients).await,
            74..82 => storm(world).await,
            82..90 => {
                if let Some(leader) = world.leader() {
                    world.record.note(format_args!("the lead goes to {any}"));
                    let _ = leader.requests.raft.trigger().transfer_leader(any).await;
                }
            }
            90..94 => replace(world).await,
            _ => {
                let ahead = dice.below(7_200_000) as i64 - 3_600_000;
                world.record.note(format_args!("node {any} sets its wall clock by {ahead} ms"));
                world.seat(any).wall_ahead_ms.store(ahead, Ordering::Relaxed);
            }
        }
    }
    calm(world).await;
}

/// Adds a node and lets it replace a random voter. Either step may time out, and then the node may
/// be removed again.
async fn replace(world: &Arc<SimWorld>) {
    let Some(leader) = world.leader() else { return };
    let fresh = world.add();
    world.start(fresh).await;
    let joins = leader.requests.raft.add_learner(fresh, BasicNode::default(), false);
    let patience = world.dice.millis(200, 1_500).as_duration();
    let joined = SimTypeConfig::timeout(patience, joins).await;
    world.record.note(format_args!("node {fresh} joins: {}", matches!(joined, Ok(Ok(_)))));
    if matches!(joined, Ok(Ok(_))) {
        world.record.count(CoveragePoint::Join);
        sleep(world.dice.millis(0, 400)).await;
        if let Some(leader) = world.leader() {
            let members = leader.requests.replica.state().members().clone();
            let mut voters: BTreeSet<_> = members.voter_ids().collect();
            let leaves = *world.dice.pick(&voters.iter().copied().collect::<Vec<_>>());
            voters.remove(&leaves);
            voters.insert(fresh);
            world.record.note(format_args!("{fresh} is to vote instead of {leaves}"));
            let change = leader.requests.raft.change_membership(voters, false);
            // A membership change that has not completed in time may still complete later.
            if matches!(SimTypeConfig::timeout(patience, change).await, Ok(Ok(_))) {
                world.record.count(CoveragePoint::VoterReplaced);
            }
        }
    }
    if world.dice.percent(30) {
        let any = *world.dice.pick(&world.nodes());
        crash_for(world, &[any], world.dice.millis(5, 300)).await;
    }
    retire(world).await;
}

/// Removes the machines that are no longer members, according to the committed membership.
pub(super) async fn retire(world: &Arc<SimWorld>) {
    let Some(leader) = world.leader() else { return };
    let current = leader.requests.raft.ensure_linearizable(ReadPolicy::ReadIndex);
    if !matches!(SimTypeConfig::timeout(RETIRE_PATIENCE.as_duration(), current).await, Ok(Ok(_))) {
        return;
    }
    let members = leader.requests.replica.state().members().clone();
    let members: BTreeSet<_> = members.nodes().map(|(id, _)| *id).collect();
    for id in world.nodes().into_iter().filter(|id| !members.contains(id)) {
        world.remove(id);
    }
}

/// Repairs the network and starts every node that is down.
async fn calm(world: &Arc<SimWorld>) {
    world.record.note(format_args!("all is mended"));
    world.net.mend(NetworkFaults::MENDED);
    for id in world.nodes() {
        if world.host(id).is_none() {
            world.start(id).await;
        }
    }
}

async fn crash_for(world: &Arc<SimWorld>, nodes: &[NodeId], time: Span) {
    for id in nodes {
        world.crash(*id);
    }
    sleep(time).await;
    restart(world).await;
}

async fn restart(world: &Arc<SimWorld>) {
    for id in world.nodes() {
        if world.host(id).is_none() {
            world.start(id).await;
        }
    }
}

async fn fail_disk(world: &Arc<SimWorld>, id: NodeId) {
    world.record.note(format_args!("the disk of node {id} fails"));
    let disk = world.seat(id).disk.clone();
    disk.fail();
    sleep(world.dice.millis(50, 1_500)).await;
    let failed_for = disk.failed_at().map_or(Span::ZERO, |at| now().since(at));
    if failed_for > END_PATIENCE
        && let Some(host) = world.host(id)
    {
        let state = host.describe();
        let what = format_args!("node {id} still runs {failed_for} after a failed sync: {state}");
        world.record.violation(SafetyProperty::FailedNodesEnd, what);
    }
    // The machine restarts with its disk repaired, as if an operator had replaced the disk of a
    // real node.
    world.crash(id);
    restart(world).await;
}

/// Keeps the current network fault for a while, in which a node may crash and restart, then repairs
/// the network.
async fn bear(world: &Arc<SimWorld>) {
    sleep(world.dice.millis(50, 750)).await;
    if world.dice.percent(30) {
        let any = *world.dice.pick(&world.nodes());
        crash_for(world, &[any], world.dice.millis(5, 300)).await;
    }
    sleep(world.dice.millis(50, 750)).await;
    world.net.mend(NetworkFaults::FAIR);
}

/// Partitions nodes and clients at random into two sides that cannot reach each other.
async fn split(world: &Arc<SimWorld>, clients: u64) {
    let mut ends = world.nodes();
    ends.extend((1..=clients).map(SimClient::end));
    let (left, right): (Vec<End>, Vec<End>) = ends.iter().partition(|_| world.dice.percent(50));
    world.record.note(format_args!("{left:?} and {right:?} are apart"));
    cut(world, &left, &right);
    cut(world, &right, &left);
    bear(world).await;
}

async fn isolate(world: &Arc<SimWorld>, id: NodeId) {
    let others: Vec<_> = world.nodes().into_iter().filter(|other| *other != id).collect();
    world.record.note(format_args!("node {id} is alone"));
    cut(world, &[id], &others);
    cut(world, &others, &[id]);
    bear(world).await;
}

/// Drops messages in one direction: from one node to another, or from all nodes to one client,
/// whose requests then arrive but get no answer.
async fn cut_one_way(world: &Arc<SimWorld>, clients: u64) {
    let nodes = world.nodes();
    let (from, to) = if world.dice.percent(50) {
        (vec![*world.dice.pick(&nodes)], *world.dice.pick(&nodes))
    } else {
        (nodes, SimClient::end(world.dice.below(clients) + 1))
    };
    world.record.note(format_args!("{from:?} do not reach {to}"));
    cut(world, &from, &[to]);
    bear(world).await;
}

fn cut(world: &SimWorld, from: &[End], to: &[End]) {
    world.net.cut(from.iter().flat_map(|from| to.iter().map(|to| (*from, *to))));
}

async fn storm(world: &Arc<SimWorld>) {
    let loss = world.dice.below(30);
    let doubled = world.dice.below(30);
    let late_ms = 5 + world.dice.below(45);
    let weather = NetworkFaults { loss, doubled, late_ms };
    world.record.note(format_args!("{weather:?}"));
    world.net.set_weather(weather);
    bear(world).await;
}
