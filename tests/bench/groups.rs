//! Clusters of latchfs and of etcd on loopback for the benchmark, which are always stopped at the
//! end.

use crate::http::{Line, Speech, Target};
use crate::report::poll;
use crate::scratch::Scratch;
use crate::servers::{Etcd, Latchfs, free_port, listens, post, start};
use latchfs::time::Span;
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// Timeout until the nodes of a cluster agree on a leader.
const AGREE_PATIENCE: Span = Span::from_secs(60);

/// A running cluster of latchfs or etcd, under measurement.
pub(crate) struct Group {
    name: &'static str,
    speech: Box<dyn Speech>,
    nodes: Vec<Node>,
    leader: String,
}

/// A node of a latchfs or etcd cluster: a server process.
struct Node {
    /// The address on which the node serves clients.
    address: String,
    program: &'static str,
    arguments: Vec<String>,
    child: Child,
    _scratch: Scratch,
}

impl Node {
    fn start(
        program: &'static str,
        address: String,
        arguments: Vec<String>,
        scratch: Scratch,
    ) -> Result<Self, String> {
        let child = spawn(program, &arguments)?;
        Ok(Self { address, program, arguments, child, _scratch: scratch })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &str, arguments: &[String]) -> Result<Child, String> {
    start(program, Command::new(program).args(arguments).stdout(Stdio::null()))
}

impl Group {
    /// Starts a cluster of `count` nodes of latchfs: the first creates it, the others join.
    pub(crate) fn latchfs(name: &'static str, count: usize) -> Result<Self, String> {
        let (mut nodes, mut seed) = (Vec::<Node>::new(), None);
        let (program, mut secret) = (env!("CARGO_BIN_EXE_latchfs"), None);
        for _ in 0..count {
            let scratch = Scratch::new()?;
            let address = format!("127.0.0.1:{}", free_port()?);
            let peer = format!("127.0.0.1:{}", free_port()?);
            let data = scratch.path().join("data").display().to_string();
            let mut arguments: Vec<String> =
                ["serve", "--listen", &address, "--data", &data, "--peer-listen", &peer]
                    .map(str::to_owned)
                    .to_vec();
            // The peer secret is in the directory of the first node, which exists as long as the
            // nodes.
            let dir = scratch.path().display().to_string();
            let secret = secret.get_or_insert_with(|| format!("{dir}/peers.pem"));
            if seed.is_none() {
                let made = Command::new(program).args(["cert", "secret", "--dir", &dir]).output();
                made.map_err(|error| error.to_string())?;
            }
            arguments.extend(["--peer-secret-file".to_owned(), secret.clone()]);
            if let Some(seed) = &seed {
                arguments.extend(["--seed".to_owned(), String::clone(seed)]);
            } else {
                // The first node of a new cluster runs once without peer options, which initializes
                // the cluster.
                let alone = arguments[..5].to_vec();
                let alone = Node::start(program, address.clone(), alone, Scratch::new()?)?;
                listens("latchfs", &alone.address)?;
            }
            nodes.push(Node::start(program, address.clone(), arguments, scratch)?);
            listens("latchfs", &address)?;
            seed = seed.or(Some(peer));
        }
        let mut group = Self { name, speech: Box::new(Latchfs), nodes, leader: String::new() };
        group.agree()?;
        Ok(group)
    }

    /// Starts a cluster of `count` nodes of etcd.
    pub(crate) fn etcd(name: &'static str, count: usize) -> Result<Self, String> {
        let mut places = Vec::new();
        for _ in 0..count {
            places.push((Scratch::new()?, free_port()?, free_port()?));
        }
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(number, (_, _, peer))| format!("n{number}={}", url(*peer)))
            .collect();
        let (all, mut nodes) = (all.join(","), Vec::new());
        for (number, (scratch, port, peer)) in places.into_iter().enumerate() {
            let data = scratch.path().join("data").display().to_string();
            let (own, peer) = (url(port), url(peer));
            let arguments = [
                ["--name", &format!("n{number}")],
                ["--data-dir", &data],
                ["--listen-client-urls", &own],
                ["--advertise-client-urls", &own],
                ["--listen-peer-urls", &peer],
                ["--initial-advertise-peer-urls", &peer],
                ["--initial-cluster", &all],
            ];
            let arguments = arguments.concat().into_iter().map(str::to_owned).collect();
            nodes.push(Node::start("etcd", format!("127.0.0.1:{port}"), arguments, scratch)?);
        }
        let mut group = Self { name, speech: Box::new(Etcd), nodes, leader: String::new() };
        let leads = |node: &Node| {
            let status = request(&node.address, &post("/v3/maintenance/status", "{}"))?;
            Some(status["leader"].as_str()? == status["header"]["member_id"].as_str()?)
        };
        let mut leader = None;
        poll(AGREE_PATIENCE, || {
            leader = group.nodes.iter().find(|node| leads(node) == Some(true));
            leader.is_some()
        });
        group.leader = leader.map(|node| node.address.clone()).ok_or("etcd has elected nobody")?;
        Ok(group)
    }

    /// Returns the leader, as the target for the clients of a measurement.
    pub(crate) fn target(&self) -> Target<'_> {
        Target { name: self.name, address: &self.leader, speech: &*self.speech }
    }

    /// Returns the addresses on which the nodes serve clients.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.address.clone()).collect()
    }

    /// Waits until all nodes vote and agree on a leader.
    pub(crate) fn agree(&mut self) -> Result<(), String> {
        let count = self.nodes.len();
        let mut leader = None;
        let agreed = poll(AGREE_PATIENCE, || {
            let reports: Vec<_> = self.nodes.iter().filter_map(report).collect();
            leader = reports.first().and_then(leader_of);
            let same = |report: &Value| leader_of(report) == leader && voters(report) == count;
            leader.is_some() && reports.len() == count && reports.iter().all(same)
        });
        match leader {
            Some(address) if agreed => self.leader = address,
            _ => return Err(format!("{} does not agree on who leads", self.name)),
        }
        Ok(())
    }

    /// Kills the leader, and returns its index among the nodes.
    pub(crate) fn kill_leader(&mut self) -> Result<usize, String> {
        let place = self.nodes.iter().position(|node| node.address == self.leader);
        let place = place.ok_or("nobody leads")?;
        let child = &mut self.nodes[place].child;
        child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
        Ok(place)
    }

    /// Restarts the node number `index`, which was killed.
    pub(crate) fn restart(&mut self, place: usize) -> Result<(), String> {
        let node = &mut self.nodes[place];
        node.child = spawn(node.program, &node.arguments)?;
        listens(self.name, &node.address)
    }

    /// Requests that the leader transfers leadership.
    pub(crate) fn transfer(&self) -> Result<(), String> {
        let mut line = Line::to(&self.leader)?;
        line.send(
            b"POST /cluster/transfer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n",
        )?;
        match line.http()? {
            200..300 => Ok(()),
            _ => Err(String::from_utf8_lossy(line.body()).into_owned()),
        }
    }
}

/// Returns the report of one node about the whole cluster.
fn report(node: &Node) -> Option<Value> {
    request(&node.address, b"GET /cluster HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

fn request(address: &str, request: &[u8]) -> Option<Value> {
    let mut line = Line::to(address).ok()?;
    line.send(request).ok()?;
    line.http().ok().filter(|code| *code == 200)?;
    serde_json::from_slice(line.body()).ok()
}

fn nodes(report: &Value) -> impl Iterator<Item = &Value> {
    report["nodes"].as_array().into_iter().flatten()
}

/// Returns the address on which the leader in a report serves clients.
fn leader_of(report: &Value) -> Option<String> {
    let leader = nodes(report).find(|node| node["role"] == "leader")?;
    leader["url"].as_str()?.strip_prefix("http://").map(str::to_owned)
}

fn voters(report: &Value) -> usize {
    let votes = |node: &&Value| node["role"] == "leader" || node["role"] == "voter";
    nodes(report).filter(votes).count()
}
