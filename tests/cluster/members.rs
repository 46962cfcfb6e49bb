//! Cluster membership: nodes leave, are removed and replaced, and changes that are not allowed are
//! refused.

use crate::load::now;
use std::fs;
use std::process::Stdio;
use testing::net::Daemon;
use testing::nodes::{Cluster, Node, options, refusal, serve};
use testing::{eventually_in_cluster, latchfs_path};

#[test]
fn leadership_is_transferred_at_once() {
    let cluster = Cluster::of(3);
    let elections = || cluster.status(0)?["elections"].as_u64();
    let seen = eventually_in_cluster("elections", elections);
    for _ in 0..5 {
        let before = cluster.leader();
        let asked = now();
        let said = cluster.request((before + 1) % 3, &["transfer"]).ok();
        assert_eq!(said, "another node leads\n");
        let took = now() - asked;
        assert_ne!(cluster.leader(), before);
        assert_eq!(cluster.curl(before, "POST", "/locks/a?client=a&reentrant=1").0, 200);
        println!("a transfer took {} ms, with the command", took / 1_000);
    }
    eventually_in_cluster("they were seen", || (elections()? > seen).then_some(()));
    let (leader, to) = (cluster.leader(), (cluster.leader() + 1) % 3);
    cluster.request(leader, &["transfer", &cluster.id(to).to_string()]).ok();
    assert_eq!(cluster.leader(), to);
    let said = cluster.request(0, &["transfer", "999"]).exits(64);
    assert!(said.contains("there is no node 999; the nodes are "), "{said}");
}

/// The second node stays a learner until an administrator promotes it with `--force`.
#[test]
fn a_second_voter_requires_force() {
    let mut cluster = Cluster::alone();
    cluster.join();
    let id = eventually_in_cluster("a learner", || {
        let status = cluster.status(0)?;
        let nodes = status["nodes"].as_array()?.clone();
        nodes.iter().find(|node| node["role"] == "learner")?["id"].as_u64()
    });
    let id = id.to_string();
    let said = cluster.request(0, &["promote", &id]).exits(75);
    assert!(said.contains("--force"), "{said}");
    assert_eq!(cluster.request(1, &["join", &id, "--force"]).ok(), format!("node {id} votes\n"));
    cluster.voters(2);
    let said = cluster.request(0, &["status"]).ok();
    assert!(said.contains("both voters are needed"), "{said}");
    // A cluster of two voters needs both. When a third node joins, all three are voters.
    cluster.join();
    cluster.voters(3);
}

#[test]
fn a_node_leaves_and_another_is_removed() {
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.curl(0, "POST", "/locks/kept?client=me&ttl=1h").0, 200);
    // The leader can leave the cluster: it first hands over the leadership.
    let leader = cluster.leader();
    let said = cluster.request(leader, &["leave"]).ok();
    assert!(said.contains("has left"), "{said}");
    let gone = cluster.nodes.remove(leader);
    eventually_in_cluster("it ends", || (!gone.is_up()).then_some(()));
    assert!(gone.daemon.log().contains("removed from its cluster"), "{}", gone.daemon.log());
    let said = refusal(&gone.machine, "data", &[]);
    assert!(said.contains("join as a new node with --seed"), "{said}");
    cluster.voters(2);
    // An administrator removes a dead node from the cluster by a command that is sent to another
    // node.
    cluster.join();
    cluster.voters(3);
    let dead = (cluster.leader() + 1) % 3;
    let id = cluster.id(dead).to_string();
    cluster.nodes[dead].daemon.kill();
    cluster.request((dead + 1) % 3, &["remove", &id]).ok();
    let mut dead = cluster.nodes.remove(dead);
    cluster.voters(2);
    let said = cluster.request(0, &["remove", &id]).exits(64);
    assert!(said.contains("there is no node"), "{said}");
    assert_eq!(cluster.curl(1, "GET", "/locks/kept").1["holder"], "me");
    // The dead node does not know of its removal; it learns of it when it restarts, and exits.
    dead.daemon.restart();
    eventually_in_cluster("it ends", || (!dead.is_up()).then_some(()));

    assert!(dead.daemon.log().contains("removed from its cluster"), "{}", dead.daemon.log());
}

/// A learner that is removed while it runs stops, and never becomes a member again.
#[test]
fn a_removed_learner_stays_removed() {
    let mut cluster = Cluster::of(3);
    cluster.join();
    let id = cluster.id(3);
    let is_listed = |cluster: &Cluster| {
        let status = cluster.status(0)?;
        let nodes = status["nodes"].as_array()?.clone();
        Some(nodes.iter().any(|node| node["id"].as_u64() == Some(id)))
    };
    eventually_in_cluster("a learner", || is_listed(&cluster)?.then_some(()));
    cluster.request(0, &["remove", &id.to_string()]).ok();
    eventually_in_cluster("it ends", || {
        let listed = is_listed(&cluster);
        assert_ne!(listed, Some(true), "it is a member again");
        (!cluster.nodes[3].is_up()).then_some(())
    });
    let log = cluster.nodes[3].daemon.log();
    assert!(log.contains("removed from its cluster"), "{log}");
    assert_eq!(is_listed(&cluster), Some(false));
}

/// A node behind a slow link catches up, although its calls take longer than those of a LAN may.
#[test]
fn a_node_behind_a_slow_link_catches_up() {
    const CLIENTS: usize = 16;
    const GRANTS_EACH: usize = 300;
    let mut cluster = Cluster::alone();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let cluster = &cluster;
            scope.spawn(move || {
                cluster.clients.enter();
                let mut talk = testing::nodes::talk(&cluster.urls(), 0);
                let note = "n".repeat(1_000);
                for number in 0..GRANTS_EACH {
                    let path = format!("/locks/c{client}n{number}?client=a&ttl=1h&note={note}");
                    assert_eq!(talk.request("POST", &path).expect("it answers").0, 200);
                }
            });
        }
    });
    // One call of 4 MiB takes 4 s.
    let slow = "tc qdisc add dev eth0 root tbf rate 8mbit burst 64kb latency 400ms";
    cluster.nodes[0].machine.sh(slow).ok();
    cluster.join();
    eventually_in_cluster("it has caught up", || {
        let status = cluster.status(0)?;
        let nodes = status["nodes"].as_array()?.clone();
        (nodes.len() == 2 && nodes[0]["state"] == nodes[1]["state"]).then_some(())
    });
}

/// A node that has lost its data never rejoins under its old id: it joins as a new node.
#[test]
fn a_node_that_has_lost_its_data_joins_as_a_new_node() {
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.curl(0, "POST", "/locks/kept?client=me&ttl=1h").0, 200);
    let lost = (cluster.leader() + 1) % 3;
    let old = cluster.id(lost);
    let seeds: Vec<_> = cluster.nodes.iter().map(|node| node.machine.peers()).collect();
    let seeds = seeds.join(",");
    cluster.nodes[lost].daemon.kill();
    let machine = cluster.nodes[lost].machine.clone();
    let data = machine.path("data");
    // If only the log of a node is lost, the node still knows its id and refuses to start.
    fs::rename(data.join("log"), data.join("away")).expect("it is there");
    let said = refusal(&machine, "data", &["--seed", &seeds]);
    assert!(said.contains("is missing"), "{said}");
    fs::create_dir(data.join("log")).expect("it is away");
    let said = refusal(&machine, "data", &["--seed", &seeds]);
    assert!(said.contains("the log is empty"), "{said}");
    // If the whole data directory is lost, the node joins as a new one.
    cluster.nodes[lost].daemon = serve(&machine, "new", &["--seed", &seeds]);
    let new = cluster.id(lost);
    assert_ne!(new, old);
    cluster.request(lost, &["remove", &old.to_string()]).ok();
    cluster.voters(3);
    assert_eq!(cluster.curl(lost, "GET", "/locks/kept").1["holder"], "me");
    cluster.agree();
}

/// A new node starts from a snapshot when the leader has purged the beginning of its log.
#[test]
fn a_new_node_begins_with_a_snapshot() {
    let mut cluster = Cluster::alone();
    let urls = cluster.urls();
    let load = crate::load::Load::begin(&cluster.clients, &urls, 4, 3);
    let snapshot = cluster.nodes[0].machine.path("data").join("snapshot");
    testing::poll(6_000, "a snapshot", || {
        load.await_answers(200);
        snapshot.exists().then_some(())
    });
    cluster.join();
    cluster.join();
    cluster.voters(3);
    load.await_answers(200);
    load.end();
    cluster.agree();
}

/// Nodes change their addresses, one after the other, followers and the leader; the other nodes
/// learn the new addresses.
#[test]
fn nodes_move_to_other_addresses() {
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.curl(0, "POST", "/locks/build?client=ann&ttl=1h").0, 200);
    let leader = cluster.leader();
    for at in [(leader + 1) % 3, leader] {
        let (id, other) = (cluster.id(at), (at + 2) % 3);
        let node = &mut cluster.nodes[at];
        node.daemon.kill();
        let (old, new) = (node.machine.peers(), format!("{}:7200", node.machine.address));
        let args = options(&node.machine, "data", &[]).into_iter();
        let args = args.map(|arg| if arg == old { new.clone() } else { arg }).collect();
        node.daemon = Daemon::start(&node.machine, args, "listening");
        eventually_in_cluster("the others know where it is", || {
            let status = cluster.status(other)?;
            let nodes = status["nodes"].as_array()?;
            let node = nodes.iter().find(|node| node["id"].as_u64() == Some(id))?;
            (node["address"] == *new && node["reachable"] == true).then_some(())
        });
        cluster.voters(3);
        let path = format!("/locks/moved{at}?client=ann");
        eventually_in_cluster("it serves", || {
            (cluster.curl(at, "POST", &path).0 == 200).then_some(())
        });
        assert_eq!(cluster.curl(at, "GET", "/locks/build").1["holder"], "ann");
    }
    cluster.agree();
}

/// A node that is killed while it receives the first append of its leader has acknowledged nothing,
/// so it can be started again. The test kills the node as soon as the file `node` in its data
/// directory contains `stage begun`.
#[test]
fn a_node_killed_at_its_first_append_starts_again() {
    let mut cluster = Cluster::alone();
    let seed = cluster.nodes[0].machine.peers();
    for _ in 0..3 {
        let machine = cluster.net.machine();
        let mut command = machine.command(latchfs_path());
        command.args(options(&machine, "data", &["--seed", &seed]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut first = command.spawn().expect("the program is there");
        let node = machine.path("data").join("node");
        let begun = || fs::read_to_string(&node).is_ok_and(|text| text.contains("stage begun"));
        while !begun() {
            assert_eq!(first.try_wait().expect("our child"), None, "it ended by itself");
            std::thread::yield_now();
        }
        first.kill().expect("it is our child");
        first.wait().expect("it is our child");
        let daemon = serve(&machine, "data", &["--seed", &seed]);
        cluster.nodes.push(Node { machine, daemon });
    }
    cluster.voters(3);
}
