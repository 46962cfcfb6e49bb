//! A cluster of nodes on loopback that also speak the line protocol.

use std::path::PathBuf;
use testing::{LineConnection, Loopback, Scratch, Server, eventually};

/// A cluster of voters.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    loopback: Loopback,
    _scratch: Scratch,
}

/// One node of a cluster.
pub(crate) struct Node {
    pub(crate) server: Server,
    /// The address of its line protocol.
    pub(crate) lines: String,
    /// The number of the node in the cluster.
    pub(crate) id: u64,
}

impl Cluster {
    /// Starts a cluster of three voters, `box1` to `box3`, with these options for each.
    #[track_caller]
    pub(crate) fn of_three(options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let mut loopback = Loopback::begin(scratch.path());
        let nodes = (1..=3).map(|number| {
            let name = format!("box{number}");
            let own = ["--node-name", &name, "--line-listen", "127.0.0.1:0"];
            let mut server = loopback.node(&[&own[..], options].concat());
            let said = server.says();
            let lines = said.strip_prefix("latchfs: line protocol listening on ").expect(&said);
            let lines = lines.trim_end().to_owned();
            Node { server, lines, id: 0 }
        });
        let nodes = nodes.collect();
        let mut cluster = Self { nodes, loopback, _scratch: scratch };
        cluster.voters(3);
        for node in &mut cluster.nodes {
            node.id = node.server.curl(&["/cluster"]).json()["asked"].as_u64().expect("a number");
        }
        cluster
    }

    /// Returns the data directory of the node `box{number}`.
    pub(crate) fn data(&self, number: usize) -> PathBuf {
        self.loopback.data(number)
    }

    /// Waits until `count` voters answer and agree on the leader.
    #[track_caller]
    pub(crate) fn voters(&self, count: usize) {
        self.nodes[0].server.voters(count);
    }

    /// Returns the index of the leader.
    #[track_caller]
    pub(crate) fn leader(&self) -> usize {
        eventually("a leader", || {
            let leader = self.nodes[0].server.curl(&["/cluster"]).json()["leader"].as_u64()?;
            self.nodes.iter().position(|node| node.id == leader)
        })
    }

    /// Returns the index of a node that follows, and of another one.
    #[track_caller]
    pub(crate) fn followers(&self) -> (usize, usize) {
        let leader = self.leader();
        ((leader + 1) % 3, (leader + 2) % 3)
    }

    /// Returns the reply of a node to one line, sent on a new connection.
    #[track_caller]
    pub(crate) fn request(&self, at: usize, line: &str) -> String {
        LineConnection::to(&self.nodes[at].lines).request(line)
    }

    /// Stops a node as if it were cut off, or lets it go on.
    pub(crate) fn silence(&self, at: usize, silent: bool) {
        self.nodes[at].server.signal(if silent { libc::SIGSTOP } else { libc::SIGCONT });
    }
}
