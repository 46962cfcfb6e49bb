//! The world of a simulation: the machines, the nodes that run on them, and the network between
//! them.

use crate::checks::recorder::CoveragePoint;
use crate::checks::recorder::Record;
use crate::machines::virtual_disk::VirtualDisk;
use crate::machines::virtual_environment::SeededRandom;
use crate::machines::virtual_environment::SimTypeConfig;
use crate::machines::virtual_environment::VirtualClock;
use crate::machines::virtual_links::VirtualNetwork;
use latchfs::raft::node::node_pipeline::RequestPipeline;
use latchfs::raft::store::snapshot::{ClusterId, NodeId};
use openraft::type_config::TypeConfigExt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// All shared state of a simulation.
pub(super) struct SimWorld {
    pub(super) dice: SeededRandom,
    pub(super) net: VirtualNetwork,
    pub(super) record: Arc<Record>,
    pub(super) cluster: ClusterId,
    seats: Mutex<BTreeMap<NodeId, Arc<Seat>>>,
    /// Number of machines so far. The id of a removed machine is not reused.
    machines: AtomicU64,
}

/// A machine: the parts that outlive the node which runs on it.
pub(super) struct Seat {
    pub(super) disk: VirtualDisk,
    pub(super) clock: VirtualClock,
    /// Offset of the machine's wall clock from its steady clock, in milliseconds. Leases must not
    /// depend on it.
    pub(super) wall_ahead_ms: Arc<AtomicI64>,
    pub(super) host: Mutex<Option<Arc<Host>>>,
    pub(super) runs: AtomicU64,
}

/// A running node.
pub(super) struct Host {
    pub(super) id: NodeId,
    pub(super) run: u64,
    pub(super) world: Arc<SimWorld>,
    pub(super) requests: RequestPipeline<SimTypeConfig>,
    pub(super) stopped: AtomicBool,
}

impl SimWorld {
    pub(super) fn new(dice: &SeededRandom, nodes: u64, record: Record) -> Arc<Self> {
        let (net, record) = (VirtualNetwork::new(dice), Arc::new(record));
        let cluster = ClusterId(u128::from(dice.below(u64::MAX)));
        let (seats, machines, dice) = (Mutex::default(), 0.into(), dice.clone());
        let world = Arc::new(Self { dice, net, record, cluster, seats, machines });
        for _ in 0..nodes {
            world.add();
        }
        world
    }

    /// Adds a machine, on which no node runs yet, and returns its id.
    pub(super) fn add(&self) -> NodeId {
        let id = self.machines.fetch_add(1, Ordering::Relaxed) + 1;
        let (disk, clock) = (VirtualDisk::new(&self.dice), VirtualClock::new(&self.dice));
        let wall_ahead_ms = Arc::new(AtomicI64::new(0));
        let seat = Seat { disk, clock, wall_ahead_ms, host: Mutex::default(), runs: 0.into() };
        self.seats.lock().insert(id, Arc::new(seat));
        id
    }

    /// Removes a machine for good.
    pub(super) fn remove(&self, id: NodeId) {
        self.crash(id);
        self.seats.lock().remove(&id);
        self.record.note(format_args!("node {id} has left"));
    }

    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.seats.lock().keys().copied().collect()
    }

    pub(super) fn seat(&self, id: NodeId) -> Arc<Seat> {
        Arc::clone(&self.seats.lock()[&id])
    }

    /// Returns the node that runs on a machine, if one does.
    pub(super) fn host(&self, id: NodeId) -> Option<Arc<Host>> {
        let seat = self.seats.lock().get(&id).cloned();
        seat?.host.lock().clone().filter(|host| host.runs())
    }

    /// Returns the leader: of the nodes that consider themselves leader, the one with the highest
    /// term.
    pub(super) fn leader(&self) -> Option<Arc<Host>> {
        let hosts = self.nodes().into_iter().filter_map(|id| self.host(id));
        hosts
            .filter_map(|host| Some((host.leads()?.term, host)))
            .max_by_key(|(term, _)| *term)
            .map(|(_, host)| host)
    }

    /// Simulates a power loss of a machine, if a node runs on it.
    pub(super) fn crash(&self, id: NodeId) {
        let seat = self.seat(id);
        let host = seat.host.lock().take();
        if let Some(host) = host {
            self.record.count(CoveragePoint::Crash);
            self.record.note(format_args!("node {id} crashes"));
            seat.disk.crash();
            host.stop();
            // Without power a machine closes no connection.
            if self.dice.percent(50) {
                self.close_connections_of(id);
            }
        }
    }

    /// Tells the other nodes that the process of a node has ended and its connections are closed.
    fn close_connections_of(&self, id: NodeId) {
        for host in self.nodes().into_iter().filter_map(|other| self.host(other)) {
            SimTypeConfig::spawn(async move {
                if host.world.net.pass(id, host.id).await {
                    host.requests.leader_connection_closed(id).await;
                }
            });
        }
    }

    /// Stops the node `id` after its proposer has ended. A run is one start of a node on its
    /// machine; does nothing if the node has been started again since the run `run`.
    pub(super) fn failed(&self, id: NodeId, run: u64) {
        if self.host(id).is_some_and(|host| host.run == run) {
            self.crash(id);
        }
    }

    /// Counts a start of a node on its machine, and returns the number of this run.
    pub(super) fn next_run(&self, id: NodeId) -> u64 {
        self.seat(id).runs.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::virtual_environment::sleep;
    use crate::machines::virtual_links::NetworkFaults;
    use latchfs::time::Span;
    use openraft::type_config::AsyncRuntime;
    use openraft_rt_sim::SimRuntime;

    /// Nodes whose messages take up to 40 ms, so that an answer to a heartbeat can be later than
    /// the next heartbeat, never take the contact with their majority for lost. A node that is cut
    /// off does so, and not any more when it is back.
    #[test]
    fn slow_network_is_no_lost_majority() {
        const SLOW: NetworkFaults = NetworkFaults { loss: 0, doubled: 0, late_ms: 40 };
        let is_lost = |world: &Arc<SimWorld>| {
            let hosts = world.nodes().into_iter().filter_map(|id| world.host(id));
            hosts.map(|host| host.requests.is_lost()).collect::<Vec<_>>()
        };
        SimRuntime::with_seed(1).block_on(async move {
            let world = SimWorld::new(&SeededRandom::new(1), 3, Record::new(false));
            for id in world.nodes() {
                world.start(id).await;
            }
            world.net.set_weather(NetworkFaults::MENDED);
            world.host(1).expect("it runs").initialize(&world.nodes()).await;
            sleep(Span::from_secs(5)).await;
            world.net.set_weather(SLOW);
            for _ in 0..600 {
                sleep(Span::from_millis(100)).await;
                assert_eq!(is_lost(&world), [false; 3]);
            }
            world.net.cut([(1, 2), (2, 1), (1, 3), (3, 1)]);
            sleep(Span::from_secs(10)).await;
            assert_eq!(is_lost(&world), [true, false, false]);
            world.net.mend(SLOW);
            sleep(Span::from_secs(10)).await;
            assert_eq!(is_lost(&world), [false; 3]);
        });
    }
}
