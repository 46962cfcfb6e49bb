//! Clusters of servers on loopback.

use crate::command::{eventually, latchfs, run};
use crate::server::Server;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A cluster on loopback, to which a test adds nodes.
pub struct Loopback {
    dir: PathBuf,
    nodes: usize,
    /// The peer address of the first node.
    seed: Option<String>,
}

impl Loopback {
    /// Begins a cluster whose files are in `dir`: its first node runs once without peer options.
    #[track_caller]
    pub fn begin(dir: &Path) -> Self {
        let cluster = Self { dir: dir.to_owned(), nodes: 0, seed: None };
        drop(Server::listen(&["--data", &cluster.data(1).display().to_string()]));
        run(latchfs().args(["cert", "secret", "--dir"]).arg(dir.join("certs"))).ok();
        cluster
    }

    /// Returns the data directory of a node; the first node is number 1.
    pub fn data(&self, number: usize) -> PathBuf {
        self.dir.join(format!("data{number}"))
    }

    /// Starts the next node, with these options besides.
    #[track_caller]
    pub fn node(&mut self, options: &[&str]) -> Server {
        self.nodes += 1;
        let data = self.data(self.nodes).display().to_string();
        let secret = self.dir.join("certs/peers.pem").display().to_string();
        let mut all = vec!["--data", &data, "--peer-listen", "127.0.0.1:0"];
        all.extend(["--peer-secret-file", &secret]);
        all.extend(self.seed.iter().flat_map(|seed| ["--seed", seed.as_str()]));
        all.extend(options);
        let server = Server::listen(&all);
        self.seed.get_or_insert_with(|| {
            eventually("an address", || {
                let said = server.curl(&["/cluster"]).is(200);
                let address = said["nodes"][0]["address"].as_str()?;
                (!address.is_empty()).then(|| address.to_owned())
            })
        });
        server
    }
}

impl Server {
    /// Waits until the cluster of this node has `count` voters and a leader.
    #[track_caller]
    pub fn voters(&self, count: usize) {
        eventually("voters", || {
            let status = self.curl(&["/cluster"]).json();
            let nodes = status["nodes"].as_array()?;
            let does_vote = |node: &&Value| node["role"] == "leader" || node["role"] == "voter";
            let agrees = |node: &&Value| !node["leader"].is_null();
            let voters = nodes.iter().filter(does_vote).filter(agrees).count();
            (voters == count && !status["leader"].is_null()).then_some(())
        });
    }
}
