//! A cluster of nodes on loopback that also speak the line protocol.

use serde_json::Value;
use std::path::PathBuf;
use testing::{LineConnection, Scratch, Server, eventually, run_latchfs};

/// A cluster of voters.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    scratch: Scratch,
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
        let path = |name: &str| scratch.path().join(name).display().to_string();
        // A cluster begins with one node that has no peer options.
        drop(Server::listen(&["--data", &path("data1")]));
        let certs = path("certs");
        let (code, said) = run_latchfs(&["cert", "secret", "--dir", &certs]);
        assert_eq!(code, Some(0), "{said}");
        let secret = format!("{certs}/peers.pem");
        let start = |number: usize, seed: &str| {
            let (data, name) = (path(&format!("data{number}")), format!("box{number}"));
            let mut all = vec!["--data", &data, "--node-name", &name, "--line-listen"];
            all.extend(["127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]);
            all.extend(["--peer-secret-file", &secret]);
            if !seed.is_empty() {
                all.extend(["--seed", seed]);
            }
            all.extend(options);
            let mut server = Server::listen(&all);
            let said = server.says();
            let lines = said.strip_prefix("latchfs: line protocol listening on ").expect(&said);
            let lines = lines.trim_end().to_owned();
            Node { server, lines, id: 0 }
        };
        let first = start(1, "");
        let seed = eventually("an address", || {
            let said = first.server.curl(&["/cluster"]).json();
            let address = said["nodes"][0]["address"].as_str()?;
            (!address.is_empty()).then(|| address.to_owned())
        });
        let nodes = vec![first, start(2, &seed), start(3, &seed)];
        let mut cluster = Self { nodes, scratch };
        cluster.voters(3);
        for node in &mut cluster.nodes {
            node.id = node.server.curl(&["/cluster"]).json()["asked"].as_u64().expect("a number");
        }
        cluster
    }

    /// Returns the data directory of the node `box{number}`.
    pub(crate) fn data(&self, number: usize) -> PathBuf {
        self.scratch.path().join(format!("data{number}"))
    }

    /// Waits until `count` voters answer and agree on the leader.
    #[track_caller]
    pub(crate) fn voters(&self, count: usize) {
        eventually("voters", || {
            let status = self.nodes[0].server.curl(&["/cluster"]).json();
            let nodes = status["nodes"].as_array()?;
            let does_vote = |node: &&Value| node["role"] == "leader" || node["role"] == "voter";
            let agrees = |node: &&Value| !node["leader"].is_null();
            let voters = nodes.iter().filter(does_vote).filter(agrees).count();
            (voters == count && !status["leader"].is_null()).then_some(())
        });
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
