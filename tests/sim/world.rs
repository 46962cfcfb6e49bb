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
pub struct SimWorld {
    pub dice: SeededRandom,
    pub net: VirtualNetwork,
    pub record: Arc<Record>,
    pub cluster: ClusterId,
    seats: Mutex<BTreeMap<NodeId, Arc<Seat>>>,
    /// Number of machines so far. The id of a removed machine is not reused.
    machines: AtomicU64,
}

/// A machine: the parts that outlive the node which runs on it.
pub struct Seat {
    pub disk: VirtualDisk,
    pub clock: VirtualClock,
    /// Offset of the machine's wall clock from its steady clock, in milliseconds. Leases must not
    /// depend on it.
    pub wall_ahead_ms: Arc<AtomicI64>,
    pub host: Mutex<Option<Arc<Host>>>,
    pub runs: AtomicU64,
}

/// A running node.
pub struct Host {
    pub id: NodeId,
    pub run: u64,
    pub world: Arc<SimWorld>,
    pub requests: RequestPipeline<SimTypeConfig>,
    pub stopped: AtomicBool,
}

impl SimWorld {
    pub fn new(dice: &SeededRandom, nodes: u64, record: Record) -> Arc<Self> {
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
    pub fn add(&self) -> NodeId {
        let id = self.machines.fetch_add(1, Ordering::Relaxed) + 1;
        let (disk, clock) = (VirtualDisk::new(&self.dice), VirtualClock::new(&self.dice));
        let wall_ahead_ms = Arc::new(AtomicI64::new(0));
        let seat = Seat { disk, clock, wall_ahead_ms, host: Mutex::default(), runs: 0.into() };
        self.seats.lock().insert(id, Arc::new(seat));
        id
    }

    /// Removes a machine for good.
    pub fn remove(&self, id: NodeId) {
        self.crash(id);
        self.seats.lock().remove(&id);
        self.record.note(format_args!("node {id} has left"));
    }

    pub fn nodes(&self) -> Vec<NodeId> {
        self.seats.lock().keys().copied().collect()
    }

    pub fn seat(&self, id: NodeId) -> Arc<Seat> {
        Arc::clone(&self.seats.lock()[&id])
    }

    /// Returns the node that runs on a machine, if one does.
    pub fn host(&self, id: NodeId) -> Option<Arc<Host>> {
        let seat = self.seats.lock().get(&id).cloned();
        seat?.host.lock().clone().filter(|host| host.runs())
    }

    /// Returns the leader: of the nodes that consider themselves leader, the one with the highest
    /// term.
    pub fn leader(&self) -> Option<Arc<Host>> {
        let hosts = self.nodes().into_iter().filter_map(|id| self.host(id));
        hosts
            .filter_map(|host| Some((host.leads()?.term, host)))
            .max_by_key(|(term, _)| *term)
            .map(|(_, host)| host)
    }

    /// Simulates a power loss of a machine, if a node runs on it.
    pub fn crash(&self, id: NodeId) {
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
    pub fn failed(&self, id: NodeId, run: u64) {
        if self.host(id).is_some_and(|host| host.run == run) {
            self.crash(id);
        }
    }

    /// Counts a start of a node on its machine, and returns the number of this run.
    pub fn next_run(&self, id: NodeId) -> u64 {
        self.seat(id).runs.fetch_add(1, Ordering::Relaxed) + 1
    }
}
