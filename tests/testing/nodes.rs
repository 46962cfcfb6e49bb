//! Clusters of real nodes for the tests, each node on a machine (network namespace) of its own. The
//! machines are removed when the test ends, whatever its result.

use crate::command::{Output, eventually_in_cluster, latchfs, latchfs_path, run};
use crate::http::HttpConnection;
use crate::net::{Daemon, Machine, Net, PORT};
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsRawFd;

/// The port on which nodes listen for their peers.
const PEER_PORT: u16 = 7_100;

/// A cluster of nodes on machines of their own, and a machine for clients.
pub struct Cluster {
    /// The network of the nodes.
    pub net: Net,
    /// The machine of the clients.
    pub clients: Machine,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The path of the file with the bearer token that clients must use, if the nodes require one.
    pub token: Option<String>,
}

/// A node, and the machine on which it runs.
pub struct Node {
    /// The machine of the node.
    pub machine: Machine,
    /// The process of the node.
    pub daemon: Daemon,
}

impl Cluster {
    /// Starts a cluster of a single node that other nodes can join.
    #[track_caller]
    pub fn alone() -> Self {
        let mut net = Net::new();
        let clients = net.machine();
        let mut cluster = Self { net, clients, nodes: vec![], token: None };
        let machine = cluster.net.machine();
        begin(&machine, "data");
        let daemon = serve(&machine, "data", &[]);
        cluster.nodes.push(Node { machine, daemon });
        cluster
    }

    /// Starts a cluster of `count` voters.
    #[track_caller]
    pub fn of(count: usize) -> Self {
        let mut cluster = Self::alone();
        (1..count).for_each(|_| cluster.join());
        cluster.vote();
        cluster
    }

    /// Waits until all nodes are voters. Beyond three voters, each node must be promoted by a
    /// command.
    #[track_caller]
    fn vote(&self) {
        let count = self.nodes.len();
        for at in (0..count).filter(|_| count > 3) {
            let id = self.id(at).to_string();
            eventually_in_cluster("it votes", || {
                (self.request(at, &["join", &id, "--force"]).code == 0).then_some(())
            });
        }
        self.voters(count);
    }

    /// Simulates the loss of a node's data: removes the node from the cluster, and starts a new one
    /// in its place.
    #[track_caller]
    pub fn replace(&mut self, at: usize) {
        let count = self.nodes.len();
        self.voters(count);
        let (id, other) = (self.id(at), (at + 1) % count);
        self.nodes[at].daemon.kill();
        eventually_in_cluster("it is removed", || {
            // The loop may send the command to remove the node again although an earlier try has
            // removed it. Then the command fails, which is ignored.
            let _ = self.request(other, &["remove", &id.to_string()]);
            let status = self.status(other)?;
            let nodes = status["nodes"].as_array()?;
            nodes.iter().all(|node| node["id"].as_u64() != Some(id)).then_some(())
        });
        let others = (1..count).map(|n| self.nodes[(at + n) % count].machine.peers());
        let (seeds, data) = (others.collect::<Vec<_>>().join(","), format!("data-after-{id}"));
        let node = &mut self.nodes[at];
        node.daemon = serve(&node.machine, &data, &["--seed", &seeds]);
        self.vote();
    }

    #[track_caller]
    fn add(&mut self, more: &[&str]) {
        let machine = self.net.machine();
        let daemon = serve(&machine, "data", more);
        self.nodes.push(Node { machine, daemon });
    }

    /// Adds another node, which joins the cluster through the existing ones.
    #[track_caller]
    pub fn join(&mut self) {
        let seeds: Vec<_> = self.nodes.iter().map(|node| node.machine.peers()).collect();
        self.add(&["--seed", &seeds.join(",")]);
    }

    /// Returns the URLs of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.machine.url()).collect()
    }

    /// Runs `latchfs` with the arguments `args` on the machine of the clients.
    #[track_caller]
    pub fn latchfs(&self, args: &[&str]) -> Output {
        let token = self.token.iter().map(|token| ("LATCHFS_TOKEN_FILE", token));
        run(self.clients.command(latchfs_path()).args(args).envs(token))
    }

    /// Runs a `latchfs cluster` command that is sent to node `at`, and returns its output.
    #[track_caller]
    pub fn request(&self, at: usize, args: &[&str]) -> Output {
        let machine = &self.nodes[at].machine;
        // These nodes require no credentials, and so reset locks over their Unix sockets alone.
        let url = if args[0] == "reset" { socket(machine) } else { machine.url() };
        self.latchfs(&[&["cluster"], args, &["--server", &url]].concat())
    }

    /// Returns the cluster status as node `at` reports it, or `None` if it does not answer.
    pub fn status(&self, at: usize) -> Option<Value> {
        let said = self.request(at, &["status", "--json", "--state"]);
        (said.code == 0).then(|| serde_json::from_str(&said.out).expect("JSON"))
    }

    /// Waits until the cluster has `count` voters that agree on the leader.
    #[track_caller]
    pub fn voters(&self, count: usize) {
        eventually_in_cluster("voters", || {
            let status = self.status(self.nodes.len() - 1)?;
            let nodes = status["nodes"].as_array()?;
            let does_vote = |node: &&Value| node["role"] == "leader" || node["role"] == "voter";
            let agree = |node: &&Value| node["leader"] == status["leader"];
            let voters = nodes.iter().filter(does_vote).filter(agree).count();
            (voters == count && !status["leader"].is_null()).then_some(())
        });
    }

    /// Returns the index of the leader; waits until there is one.
    #[track_caller]
    pub fn leader(&self) -> usize {
        eventually_in_cluster("a leader", || {
            (0..self.nodes.len()).find(|at| {
                let own = || {
                    let status = self.status(*at)?;
                    let asked = status["asked"].as_u64();
                    let nodes = status["nodes"].as_array()?.clone();
                    let node = nodes.into_iter().find(|node| node["id"].as_u64() == asked)?;
                    (node["role"] == "leader").then_some(())
                };
                self.nodes[*at].is_up() && own().is_some()
            })
        })
    }

    /// Returns the id of node `at`.
    #[track_caller]
    pub fn id(&self, at: usize) -> u64 {
        let id = || self.status(at)?["asked"].as_u64();
        eventually_in_cluster("a number", id)
    }

    /// Waits until all nodes report the same state of their locks.
    #[track_caller]
    pub fn agree(&self) {
        eventually_in_cluster("equal states", || {
            let status = self.status(0)?;
            let nodes = status["nodes"].as_array()?;
            let state = |node: &Value| node["state"].as_str().map(str::to_owned);
            let first = state(nodes.first()?)?;
            nodes.iter().all(|node| state(node).as_ref() == Some(&first)).then_some(())
        });
    }

    /// Sends one request to node `at` from the machine of the clients; returns the status code and
    /// the body.
    #[track_caller]
    pub fn curl(&self, at: usize, method: &str, path: &str) -> (u16, Value) {
        curl(&self.clients, &self.nodes[at].machine, method, path)
    }
}

/// Sends one request from one machine to another; returns the status code and the body.
#[track_caller]
pub fn curl(from: &Machine, to: &Machine, method: &str, path: &str) -> (u16, Value) {
    let url = format!("{}{path}", to.url());
    let args = ["-sS", "--max-time", "30", "-X", method, "-w", "\n%{http_code}", &url];
    let said = run(from.command("curl").args(args)).ok();
    let (body, code) = said.rsplit_once('\n').expect("a code");
    (code.parse().expect("a number"), serde_json::from_str(body).unwrap_or_default())
}

impl Node {
    /// Whether the node runs, and is not stopped.
    pub fn is_up(&self) -> bool {
        let stat = format!("/proc/{}/stat", self.daemon.pid());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        // A node that is stopped by SIGSTOP (state T in /proc) is not up, and neither is a zombie
        // (state Z).
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        matches!(state, Some('S' | 'R' | 'D'))
    }
}

impl Machine {
    /// Returns the peer address of the node on this machine.
    pub fn peers(&self) -> String {
        format!("{}:{PEER_PORT}", self.address)
    }

    /// Drops all packets to and from this machine, or stops dropping them. Programs on the machine
    /// still reach each other.
    pub fn isolate(&self, isolated: bool) {
        let script = if isolated {
            "nft add table ip c; nft add chain ip c in '{ type filter hook input priority 0; }'; \
             nft add chain ip c out '{ type filter hook output priority 0; }'; \
             nft add rule ip c in iifname eth0 drop; nft add rule ip c out oifname eth0 drop"
        } else {
            "nft delete table ip c"
        };
        self.sh(script).ok();
    }

    /// Drops all packets between this machine and the others.
    pub fn part_from(&self, others: &[&Self]) {
        let others: Vec<_> = others.iter().map(|other| other.address.as_str()).collect();
        let others = others.join(", ");
        let script = format!(
            "nft add table ip p; nft add chain ip p in '{{ type filter hook input priority 0; }}'; \
             nft add chain ip p out '{{ type filter hook output priority 0; }}'; \
             nft add rule ip p in ip saddr '{{ {others} }}' drop; \
             nft add rule ip p out ip daddr '{{ {others} }}' drop"
        );
        self.sh(&script).ok();
    }

    /// Resets all connections between this machine and another one, and refuses new ones, as a
    /// machine does on which nothing listens; or stops that.
    pub fn reset_connections(&self, other: &Self, is_reset: bool) {
        let script = if is_reset {
            let at = &other.address;
            format!(
                "nft add table ip r; nft add chain ip r in '{{ type filter hook input priority 0; \
                 }}'; nft add chain ip r out '{{ type filter hook output priority 0; }}'; \
                 nft add rule ip r in ip saddr {at} ip protocol tcp reject with tcp reset; \
                 nft add rule ip r out ip daddr {at} ip protocol tcp reject with tcp reset"
            )
        } else {
            "nft delete table ip r".to_owned()
        };
        self.sh(&script).ok();
    }

    /// Moves the calling thread into the machine's network namespace, for all connections that it
    /// makes from now on.
    #[allow(unsafe_code)]
    pub fn enter(&self) {
        let ns = File::open(format!("/run/netns/{}", self.ns)).expect("the machine is there");
        // SAFETY: the descriptor is open, and setns touches no memory of this process.
        let entered = unsafe { libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Returns the command-line options of a node on a machine.
pub fn options(machine: &Machine, data: &str, more: &[&str]) -> Vec<String> {
    let listen = format!("{}:{PORT}", machine.address);
    let data = machine.path(data).display().to_string();
    let peers = machine.peers();
    let own = ["serve", "--listen", &listen, "--data", &data, "--peer-listen", &peers];
    let secret = secret(machine);
    let trust = ["--insecure", "--peer-secret-file", &secret];
    let has_own = more.contains(&"--peer-cert");
    let own = [&own[..], if has_own { &trust[..1] } else { &trust[..] }, more].concat();
    own.into_iter().map(str::to_owned).collect()
}

/// Returns the path of the peer secret that all nodes of a test network share; the first call
/// creates it.
pub fn secret(machine: &Machine) -> String {
    let path = machine.path("certs").with_file_name("peers.pem");
    if !path.exists() {
        let dir = path.parent().expect("a directory");
        run(latchfs().args(["cert", "secret", "--dir"]).arg(dir)).ok();
    }
    path.display().to_string()
}

/// Starts a node on a machine.
#[track_caller]
pub fn serve(machine: &Machine, data: &str, more: &[&str]) -> Daemon {
    let mut args = options(machine, data, more);
    let listen = args.iter().position(|arg| arg == "--listen").expect("one") + 1;
    args[listen] = format!("{},{}", args[listen], socket(machine));
    Daemon::start(machine, args, "listening")
}

/// Returns the URL of the Unix socket of the node on a machine.
fn socket(machine: &Machine) -> String {
    format!("unix:{}", machine.path("http.sock").display())
}

/// Initializes a new cluster on a machine: runs a node without a peer port once, and stops it.
#[track_caller]
pub fn begin(machine: &Machine, data: &str) {
    drop(serve_alone(machine, data));
}

/// Starts a node without a peer port, which initializes a new cluster.
#[track_caller]
pub fn serve_alone(machine: &Machine, data: &str) -> Daemon {
    let mut args = options(machine, data, &[]);
    // The first five arguments, up to the data directory, are kept; the peer options are removed.
    args.truncate(5);
    args.push("--insecure".to_owned());
    Daemon::start(machine, args, "listening")
}

/// Returns the error message of a node that must refuse to start.
#[track_caller]
pub fn refusal(machine: &Machine, data: &str, more: &[&str]) -> String {
    run(machine.command(latchfs_path()).args(options(machine, data, more))).fails()
}

/// Returns a connection to one of `urls`: tries them in turn after `first` until one accepts.
pub fn talk(urls: &[String], first: usize) -> HttpConnection {
    let mut at = first;
    eventually_in_cluster("a node that listens", || {
        at += 1;
        HttpConnection::to(&urls[at % urls.len()])
    })
}
