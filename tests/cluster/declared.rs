//! Clusters whose nodes all start with the same declaration (`--initial-cluster`), in any order.

use latchfs::time::{Span, boot_now};
use std::fs;
use testing::net::{Daemon, Machine, Net, drain};
use testing::nodes::{Cluster, Node, curl, options, serve};
use testing::{eventually_in_cluster, latchfs_path, run};

/// Machines, and the declaration of a cluster of their nodes.
struct Declared {
    cluster: Cluster,
    machines: Vec<Machine>,
    initial: String,
}

impl Declared {
    fn of(count: usize) -> Self {
        let mut net = Net::new();
        let clients = net.machine();
        let machines: Vec<_> = (0..count).map(|_| net.machine()).collect();
        let initial: Vec<_> = machines.iter().map(Machine::peers).collect();
        let cluster = Cluster { net, clients, nodes: vec![], token: None };
        Self { cluster, machines, initial: initial.join(",") }
    }

    /// Returns the options of a node, as all have them. Half of the nodes name the addresses in
    /// another order.
    fn options(&self, at: usize, data: &str) -> Vec<String> {
        let mut addresses: Vec<_> = self.initial.split(',').collect();
        addresses.rotate_left(at % 2);
        let initial = addresses.join(",");
        let declaration = ["--initial-cluster", &initial, "--cluster-name", "prod"];
        options(&self.machines[at], data, &declaration)
    }

    /// Starts the node on a machine, and waits until it says that it waits for others.
    #[track_caller]
    fn start_waiting(&self, at: usize, data: &str) -> Daemon {
        let machine = &self.machines[at];
        let args = self.options(at, data);
        let (daemon, out) = Daemon::spawn(machine, args, "listening", vec![]);
        drain(out);
        eventually_in_cluster("it waits", || daemon.log().contains("and waits for").then_some(()));
        daemon
    }

    fn kill_all(&mut self) {
        for node in &mut self.cluster.nodes {
            node.daemon.kill();
        }
    }

    /// Begins a new cluster with the data of a node, in the directory `new`.
    #[track_caller]
    fn recover(&self, at: usize) {
        let machine = &self.machines[at];
        let mut recover = machine.command(latchfs_path());
        recover.args(["cluster", "recover", "--old-holders-are-gone", "--data"]);
        run(recover.arg(machine.path("data")).arg("--to").arg(machine.path("new"))).ok();
    }

    /// Starts all nodes, the first one of the declaration last, and waits until all vote.
    #[track_caller]
    fn start_all(&mut self) {
        let count = self.machines.len();
        let mut daemons: Vec<_> = (1..count).map(|at| self.start_waiting(at, "data")).collect();
        let first = Daemon::start(&self.machines[0], self.options(0, "data"), "listening");
        daemons.insert(0, first);
        let nodes = self.machines.iter().cloned().zip(daemons);
        self.cluster.nodes = nodes.map(|(machine, daemon)| Node { machine, daemon }).collect();
        // Two voters would be worse than one, so the second node of two is a learner.
        self.cluster.voters(if count == 2 { 1 } else { count });
    }
}

/// All nodes start with empty directories and the same options. They form one cluster, and start
/// again with these options. A node that has lost its data begins no second cluster, also if it is
/// the first of the list and nobody answers: it waits, and then joins.
#[test]
fn declared_nodes_form_one_cluster_in_any_order() {
    let mut declared = Declared::of(3);
    declared.start_all();
    let token = declared.cluster.curl(1, "POST", "/locks/build?client=a&ttl=1h");
    assert_eq!(token.0, 200, "{token:?}");
    declared.kill_all();
    let first = declared.start_waiting(0, "other-data");
    for at in [1, 2] {
        declared.cluster.nodes[at].daemon.restart();
    }
    // The lost first node still is a voter, so the new one stays a learner until that is removed.
    declared.cluster.nodes[0].daemon = first;
    eventually_in_cluster("it joins", || declared.cluster.status(0));
    let (code, status) = declared.cluster.curl(0, "GET", "/locks/build");
    assert_eq!(code, 200, "{status}");
    assert_eq!((&status["phase"], &status["token"]), (&token.1["phase"], &token.1["token"]));
}

/// A node that waits for others, at its first start or to join, ends at SIGTERM.
#[test]
fn a_node_that_waits_for_others_ends_at_sigterm() {
    let declared = Declared::of(2);
    let waiting = declared.start_waiting(0, "data");
    let machine = &declared.machines[1];
    let args = options(machine, "data", &["--seed", "10.9.9.9:7100"]);
    let (joining, out) = Daemon::spawn(machine, args, "listening", vec![]);
    drain(out);
    eventually_in_cluster("it asks", || joining.log().contains("10.9.9.9:7100").then_some(()));
    for daemon in [waiting, joining] {
        let begun = boot_now();
        daemon.signal(libc::SIGTERM);
        let stat = format!("/proc/{}/stat", daemon.pid());
        let is_over = || fs::read_to_string(&stat).expect("not waited for").contains(") Z ");
        eventually_in_cluster("it ends", || is_over().then_some(()));
        assert!(boot_now().since(begun) < Span::from_secs(5), "{}", daemon.log());
        assert!(daemon.log().contains("server stopped before it had begun"), "{}", daemon.log());
    }
}

/// A node of the lost cluster that comes back keeps neither the recovered node from starting, nor a
/// new one from joining, although all are started with the declaration of before.
#[test]
fn an_old_node_does_not_stop_a_recovered_cluster() {
    let mut declared = Declared::of(3);
    declared.start_all();
    declared.kill_all();
    declared.recover(2);
    declared.cluster.nodes[0].daemon.restart();
    let begun = |at: usize| {
        let machine = &declared.machines[at];
        Daemon::start(machine, declared.options(at, "new"), "listening")
    };
    let (recovered, joined) = (begun(2), begun(1));
    declared.cluster.nodes[2].daemon = recovered;
    declared.cluster.nodes[1].daemon = joined;
    let granted = eventually_in_cluster("it grants", || {
        let answer = declared.cluster.curl(1, "POST", "/locks/build?client=a");
        (answer.0 == 200).then_some(answer.1)
    });
    assert_eq!(declared.cluster.curl(2, "GET", "/locks/build").1["token"], granted["token"]);
    let (code, old) = declared.cluster.curl(0, "GET", "/locks/build");
    assert_eq!(code, 503, "{old}");
}

/// Two survivors must not begin clusters beside each other, both of which would grant each lock:
/// the second one does not start while the first one grants.
#[test]
fn a_second_recovered_cluster_does_not_start() {
    let mut declared = Declared::of(3);
    declared.start_all();
    declared.kill_all();
    declared.recover(1);
    declared.recover(2);
    let _first = Daemon::start(&declared.machines[2], declared.options(2, "new"), "listening");
    eventually_in_cluster("it leads", || {
        (curl(&declared.machines[2], &declared.machines[2], "GET", "/locks/x").0 == 200)
            .then_some(())
    });
    let second = &declared.machines[1];
    let refused = run(second.command(latchfs_path()).args(declared.options(1, "new"))).fails();
    assert!(refused.contains("is of another cluster than this data directory"), "{refused}");
}

/// More than three declared nodes become voters without a command.
#[test]
fn five_declared_nodes_vote() {
    Declared::of(5).start_all();
}

/// A node joins no cluster of another name, and a directory stays with the name of its cluster.
#[test]
fn a_node_joins_only_a_cluster_of_its_name() {
    let mut declared = Declared::of(2);
    declared.start_all();
    let seed = declared.machines[0].peers();
    let other = declared.cluster.net.machine();
    let join = |more: &[&str]| {
        let more = [&["--seed", &seed], more].concat();
        run(other.command(latchfs_path()).args(options(&other, "data", &more))).fails()
    };
    let refused = join(&["--cluster-name", "staging"]);
    assert!(refused.contains("its cluster is named 'prod' and not 'staging'"), "{refused}");
    let refused = join(&[]);
    assert!(refused.contains("join it by --cluster-name prod"), "{refused}");
    let daemon = serve(&other, "data", &["--seed", &seed, "--cluster-name", "prod"]);
    drop(daemon);
    let refused = join(&["--cluster-name", "staging"]);
    assert!(refused.contains("is of the cluster 'prod'"), "{refused}");
    // Two nodes that are declared as parts of different clusters find that out before one begins.
    let strangers = Declared::of(2);
    let _first = strangers.start_waiting(0, "data");
    let machine = &strangers.machines[1];
    let declaration = ["--initial-cluster", &strangers.initial, "--cluster-name", "test"];
    let refused =
        run(machine.command(latchfs_path()).args(options(machine, "data", &declaration))).fails();
    assert!(refused.contains("its cluster is named 'prod' and not 'test'"), "{refused}");
    // Neither does a node begin if another one is declared with other addresses.
    let more = format!("{},10.9.9.9:7100", strangers.initial);
    let declaration = ["--initial-cluster", &more, "--cluster-name", "prod"];
    let refused =
        run(machine.command(latchfs_path()).args(options(machine, "data", &declaration))).fails();
    assert!(refused.contains("give all nodes the same addresses"), "{refused}");
    // The declaration must name this node, and another one.
    for addresses in [machine.peers(), "10.9.9.8:7100,10.9.9.9:7100".to_owned()] {
        let declaration = ["--initial-cluster", &addresses];
        let refused =
            run(machine.command(latchfs_path()).args(options(machine, "data", &declaration)))
                .fails();
        assert!(refused.contains("must name all nodes"), "{refused}");
    }
}
