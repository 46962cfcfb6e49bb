//! Random faults in a cluster under a mount that was given the URL of one node or of all three: the
//! leader is killed, stopped, isolated, loses incoming packets, or runs out of disk space; a
//! majority or all of the nodes are down; or no node accepts the mount's bearer token. After the
//! faults no program is stuck and no lock stays held.

use crate::machines::crowd::{Chance, Crowd, GRACE, TTL, patience, seed};
use crate::machines::server_faults::{SECRET, allow, private};
use std::path::PathBuf;
use std::time::Duration;
use testing::net::Net;
use testing::nodes::{Cluster, Node, begin, serve};
use testing::{SmallDisk, eventually_in_cluster};

/// The kinds of faults. A random one is injected each time, unless `LATCHFS_FAULT` names one.
const FAULTS: [&str; 9] = [
    "a killed leader",
    "a stopped leader",
    "a leader that is cut off",
    "no majority",
    "a power cycle",
    "refused connections",
    "a black hole",
    "a full disk",
    "an unknown token",
];

/// Three nodes that require a bearer token, each with a disk of its own.
struct Victims {
    cluster: Cluster,
    disks: Vec<SmallDisk>,
    tokens: PathBuf,
}

impl Victims {
    fn begin() -> Self {
        let mut net = Net::new();
        let clients = net.machine();
        let (tokens, token) = (clients.path("tokens.toml"), clients.path("token"));
        allow(&tokens, SECRET);
        private(&token, SECRET);
        let token = Some(token.display().to_string());
        let mut cluster = Cluster { net, clients, nodes: vec![], token };
        let mut disks = Vec::new();
        for number in 0..3 {
            let machine = cluster.net.machine();
            disks.push(SmallDisk::new(machine.path("data"), "size=32m,mode=700"));
            let mut more = vec!["--tokens".to_owned(), tokens.display().to_string()];
            if number == 0 {
                begin(&machine, "data");
            } else {
                let seeds: Vec<_> = cluster.nodes.iter().map(|node| node.machine.peers()).collect();
                more.extend(["--seed".to_owned(), seeds.join(",")]);
            }
            let more: Vec<_> = more.iter().map(String::as_str).collect();
            let daemon = serve(&machine, "data", &more);
            cluster.nodes.push(Node { machine, daemon });
        }
        cluster.voters(3);
        Self { cluster, disks, tokens }
    }

    /// Kills the nodes with the indexes `nodes`, waits, and restarts them. Returns how long the
    /// fault lasted.
    fn without(&mut self, nodes: &[usize], mut wait: impl FnMut() -> Duration) -> Duration {
        for node in nodes {
            self.cluster.nodes[*node].daemon.kill();
        }
        let lasted = wait();
        for node in nodes {
            self.cluster.nodes[*node].daemon.restart();
        }
        lasted
    }

    /// Fills the disks of the nodes with these indexes for a while. A node that finds its disk full
    /// exits, so the nodes are restarted when there is space again. Returns how long the fault
    /// lasted.
    fn full(&mut self, nodes: &[usize], mut wait: impl FnMut() -> Duration) -> Duration {
        for node in nodes {
            self.disks[*node].fill();
        }
        let lasted = wait();
        for node in nodes {
            self.disks[*node].empty();
        }
        self.without(nodes, || lasted)
    }

    /// Replaces the bearer token that all nodes accept by `secret`.
    fn know(&self, secret: &str) {
        allow(&self.tokens, secret);
        for node in &self.cluster.nodes {
            node.daemon.signal(libc::SIGHUP);
        }
    }

    fn fail(&mut self, fault: &str, chance: &mut Chance) -> Duration {
        println!("{fault}");
        let leader = self.cluster.leader();
        let (others, all) = ([(leader + 1) % 3, (leader + 2) % 3], [0, 1, 2]);
        let clients = self.cluster.clients.clone();
        let is_of_all = chance.below(2) == 0;
        let mut wait = || chance.linger(&clients);
        let lasted = match fault {
            "a killed leader" => self.without(&[leader], wait),
            "no majority" => self.without(&others, wait),
            "a power cycle" => self.without(&all, || Duration::ZERO),
            "refused connections" => self.without(&all, wait),
            "a full disk" if is_of_all => self.full(&all, wait),
            "a full disk" => self.full(&[leader], wait),
            "an unknown token" => {
                self.know("another secret");
                let lasted = wait();
                self.know(SECRET);
                lasted
            }
            _ => self.fail_leader(fault, leader, wait),
        };
        self.cluster.voters(3);
        lasted
    }

    fn fail_leader(
        &self,
        fault: &str,
        leader: usize,
        mut wait: impl FnMut() -> Duration,
    ) -> Duration {
        let node = &self.cluster.nodes[leader];
        let set = |fails: bool| match fault {
            "a stopped leader" => {
                node.daemon.signal(if fails { libc::SIGSTOP } else { libc::SIGCONT });
            }
            "a leader that is cut off" => node.machine.isolate(fails),
            "a black hole" => node.machine.deaf(fails),
            other => panic!("LATCHFS_FAULT={other}: it is one of {FAULTS:?}"),
        };
        set(true);
        let lasted = wait();
        set(false);
        lasted
    }
}

fn under_faults(urls: impl Fn(&Cluster) -> String) {
    let seed = seed();
    let mut chance = Chance(seed);
    let mut victims = Victims::begin();
    let cluster = &victims.cluster;
    let (servers, token) = (urls(cluster), cluster.token.clone().expect("they ask for one"));
    let options = format!("--ttl {TTL} --grace {GRACE} --token-file {token}");
    let mount = cluster.clients.mount(&servers, &options);
    let crowd = Crowd::begin(&mount, &servers, Some(&token), seed);
    let named = std::env::var("LATCHFS_FAULT").ok();
    let (mut lasted, mut faults) = (Duration::ZERO, 0);
    let patience = patience(15);
    while lasted < patience {
        lasted += chance.linger(&mount.machine);
        let drawn = FAULTS[chance.below(FAULTS.len() as u64) as usize];
        lasted += victims.fail(named.as_deref().unwrap_or(drawn), &mut chance);
        faults += 1;
    }
    println!("{faults} faults");
    crowd.end(&mount);
}

#[test]
fn faults_under_a_mount_of_one_node_leave_no_program_stuck_and_no_lock_held() {
    under_faults(|cluster| cluster.urls().remove(0));
}

#[test]
fn faults_under_a_mount_of_all_nodes_leave_no_program_stuck_and_no_lock_held() {
    under_faults(|cluster| cluster.urls().join(","));
}

/// A mount that is given the URL of one node learns those of the others, and survives the death of
/// the node.
#[test]
fn a_mount_given_one_node_fails_over_to_others() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader();
    let mount = cluster.clients.mount(&cluster.urls()[leader], "--ttl 20s");
    let mut holder = mount.python(
        "
        f = open('held', 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('held')
        sys.stdin.readline()
        ",
        &[],
    );
    holder.says("held");
    cluster.nodes[leader].daemon.kill();
    eventually_in_cluster("another node is asked", || {
        (mount.sh("mkdir more").code == 0).then_some(())
    });
    mount.is("connected");
    holder.send_line("end");
    assert_eq!(holder.ended(), 0);
    let path = "/locks/held";
    eventually_in_cluster("it is given back", || {
        let seen = cluster.curl((leader + 1) % 3, "GET", path).1;
        (seen["phase"] == "free").then_some(())
    });
    cluster.nodes[leader].daemon.restart();
    cluster.voters(3);
}
