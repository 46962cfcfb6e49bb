//! Starts the servers and clusters that are the backends of a test's mounts.

use crate::loopback::Loopback;
use crate::scratch::Scratch;
use crate::server::Server;

/// The backend of a test's mounts: the processes that decide which client holds which lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// The daemon of the mount decides about its locks itself, without any server.
    Itself,
    /// One latchfs server decides about the locks of all its mounts.
    Server,
    /// A cluster of three latchfs servers decides about the locks of all their mounts.
    Cluster,
}

/// Starts one server, or three nodes of a cluster; waits until all three nodes vote.
#[track_caller]
pub(crate) fn servers(scratch: &Scratch, behind: Behind) -> Vec<Server> {
    if behind == Behind::Server {
        return vec![Server::of(scratch)];
    }
    let mut cluster = Loopback::begin(scratch.path());
    let nodes: Vec<_> = (0..3).map(|_| cluster.node(&[])).collect();
    nodes[2].voters(3);
    nodes
}
