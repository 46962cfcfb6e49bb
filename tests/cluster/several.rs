//! Failover of a client that knows all nodes: it switches to another node by itself when its node
//! dies or stops.

use std::fs;
use testing::nodes::{Cluster, Node, serve};
use testing::{eventually_in_cluster, latchfs_path};

/// A command runs under a lock while the leader is killed or stopped several times. The session and
/// the lease belong to the cluster and not to a node, so the command runs to its own end.
#[test]
fn a_lease_outlives_the_node_that_granted_it() {
    let mut cluster = Cluster::of(3);
    let servers = cluster.urls().join(",");
    let (begun, stop) = (cluster.clients.path("begun"), cluster.clients.path("stop"));
    let script = format!(
        "touch {}; while ! test -e {}; do sleep 0.1; done",
        begun.display(),
        stop.display()
    );
    let mut command = cluster.clients.command(latchfs_path());
    command.args(["run", "build", "--server", &servers, "--client", "ann", "--ttl", "20s", "--"]);
    let mut child = command.args(["sh", "-c", &script]).spawn().expect("it starts");
    eventually_in_cluster("the command runs", || begun.exists().then_some(()));
    let token = cluster.curl(0, "GET", "/locks/build").1["token"].as_u64().expect("held");
    for round in 0..4 {
        let leader = cluster.leader();
        let other = (leader + 1) % 3;
        if round % 2 == 0 {
            cluster.nodes[leader].daemon.kill();
        } else {
            testing::signal(cluster.nodes[leader].daemon.pid(), libc::SIGSTOP);
        }
        // `latchfs acquire` is started while one node is down, so it first has to find a node that
        // answers.
        let name = format!("round{round}");
        let take = ["acquire", &name, "--server", &servers, "--client", "bob"];
        eventually_in_cluster("another leads", || (cluster.latchfs(&take).code == 0).then_some(()));
        let seen = cluster.curl(other, "GET", "/locks/build").1;
        assert_eq!((&seen["holder"], seen["token"].as_u64()), (&"ann".into(), Some(token)));
        if round % 2 == 0 {
            cluster.nodes[leader].daemon.restart();
        } else {
            testing::signal(cluster.nodes[leader].daemon.pid(), libc::SIGCONT);
        }
        cluster.voters(3);
    }
    assert!(child.try_wait().expect("it is ours").is_none(), "it still runs");
    fs::write(&stop, "").expect("it is ours");
    assert_eq!(child.wait().expect("it is ours").code(), Some(0));
    eventually_in_cluster("it is given back", || {
        (cluster.curl(0, "GET", "/locks/build").1["phase"] == "free").then_some(())
    });
    cluster.agree();
}

/// A follower accepts the requests for a backup and for a reset, which takes the locks of many
/// clients from them. Both apply to the whole cluster.
#[test]
fn a_reset_and_a_backup_through_any_node() {
    let cluster = Cluster::of(3);
    let follower = (cluster.leader() + 1) % 3;
    for name in ["one", "two"] {
        assert_eq!(cluster.curl(follower, "POST", &format!("/locks/{name}?client=gone")).0, 200);
    }
    let file = cluster.clients.path("backup").display().to_string();
    let said = cluster.request(follower, &["backup", &file]).ok();
    assert!(said.contains(": 2 locks, "), "{said}");
    let said = cluster.request(follower, &["reset", "--keep", "here", "--reason", "it left"]).ok();
    assert_eq!(said, "ended 2 holds and 0 waits\n");
    cluster.agree();
}

/// A mount that knows all nodes: an open file keeps its lock through the death of each leader, and
/// calls succeed again as soon as there is a new leader.
#[test]
fn a_mount_survives_the_death_of_each_leader() {
    let mut cluster = Cluster::of(3);
    let mount = cluster.clients.mount(&cluster.urls().join(","), "--ttl 20s");
    let mut holder = mount.python(
        "
        f = open('held', 'w')
        fcntl.flock(f, fcntl.LOCK_EX)
        print('held')
        for line in sys.stdin:
            print(said(os.utime, f.fileno()), said(os.mkdir, line.strip()))
        ",
        &[],
    );
    holder.says("held");
    let token = cluster.curl(0, "GET", "/locks/held").1["token"].as_u64().expect("held");
    for round in 0..3 {
        let leader = cluster.leader();
        cluster.nodes[leader].daemon.kill();
        let make = format!("mkdir round{round}");
        eventually_in_cluster("another leads", || (mount.sh(&make).code == 0).then_some(()));
        let seen = cluster.curl((leader + 1) % 3, "GET", "/locks/held").1;
        assert_eq!((&seen["phase"], seen["token"].as_u64()), (&"held".into(), Some(token)));
        cluster.nodes[leader].daemon.restart();
        cluster.voters(3);
    }
    mount.is("connected");
    holder.send_line("last");
    holder.says("OK OK");
    assert_eq!(holder.ended(), 0);
    eventually_in_cluster("it is given back", || {
        (cluster.curl(0, "GET", "/locks/held").1["phase"] == "free").then_some(())
    });
    cluster.agree();
}

/// The line protocol on each node of a cluster: followers forward requests, and only the leader
/// accepts registrations of change notifications.
#[test]
fn the_line_protocol_works_through_any_node() {
    let mut cluster = Cluster::alone();
    for _ in 0..2 {
        let seeds: Vec<_> = cluster.nodes.iter().map(|node| node.machine.peers()).collect();
        let machine = cluster.net.machine();
        let listen = format!("{}:7500", machine.address);
        let line = ["--line-listen", &*listen, "--allow-follower", "127.0.0.1"];
        let seed = seeds.join(",");
        let options = [&["--seed", &*seed][..], &line].concat();
        let daemon = serve(&machine, "data", &options);
        cluster.nodes.push(Node { machine, daemon });
    }
    cluster.voters(3);
    let say = |cluster: &Cluster, at: usize, lines: &str| {
        let address = cluster.nodes[at].machine.address.clone();
        let script = format!("printf '{lines}' | nc -N {address} 7500");
        cluster.clients.sh(&script).ok()
    };
    assert_eq!(cluster.leader(), 0, "the first one leads");
    let lines = "LOCK,build,a\\nLOCK,build,b\\nREGISTER,127.0.0.1:9\\n";
    assert_eq!(say(&cluster, 1, lines), "SUCCESS\nFAIL\nNOT_LEADER\n");
    assert_eq!(say(&cluster, 2, "OWN,build,x\\n"), "a\n", "what one has said another knows");
    assert_eq!(cluster.request(0, &["transfer", &cluster.id(1).to_string()]).code, 0);
    assert_eq!(cluster.leader(), 1);
    assert_eq!(
        say(&cluster, 1, "REGISTER,127.0.0.1:9\\nUNLOCK,build,a\\n"),
        "REGISTERED\nSUCCESS\n"
    );
    assert_eq!(say(&cluster, 2, "OWN,build,x\\n"), "NONE\n");
}

/// A mount whose node has lost its majority reports that it has no contact, although the node
/// answers.
#[test]
fn a_mount_without_a_majority_is_not_connected() {
    let mut cluster = Cluster::of(3);
    let mount = cluster.clients.mount(&cluster.urls()[0], "--ttl 20s");
    mount.sh("mkdir held").ok();
    mount.is("connected");
    cluster.nodes[1].daemon.kill();
    cluster.nodes[2].daemon.kill();
    mount.is("in jeopardy");
    assert_ne!(mount.sh("mkdir other").code, 0);
    cluster.nodes[1].daemon.restart();
    mount.is("connected");
}
