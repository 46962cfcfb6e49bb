//! Network partitions and stopped nodes: there is no split brain. The side with the majority
//! continues to grant locks, and a node on the other side reports within the guaranteed time that
//! it can't answer.

use crate::load::{Load, now};
use std::process::Stdio;
use testing::nodes::{Cluster, curl};
use testing::{eventually_in_cluster, latchfs_path, run};

/// The maximum time in microseconds until a node reports that it can't answer: 2 s are guaranteed,
/// and the rest is for a loaded machine.
const IN_TIME_US: u64 = 3_500_000;

/// The time in microseconds after which other nodes start an election, with the default settings
/// for a LAN.
const ELECTION_US: u64 = 800_000;

/// Each node has a session, which keeps the requests that wait at the node in their queues. This is
/// the time in microseconds after which the session of a node that is gone has expired, even on a
/// loaded machine.
const SESSION_OVER_US: u64 = 9_000_000;

/// A node whose connections to the leader are reset, and to which new ones are refused, replaces no
/// leader that the other nodes hear: it alone takes the leader's process for ended.
#[test]
fn one_node_alone_replaces_no_leader() {
    let cluster = Cluster::of(3);
    let elections =
        |at| eventually_in_cluster("elections", || cluster.status(at)?["elections"].as_u64());
    let before: Vec<_> = (0..3).map(elections).collect();
    let leader = cluster.leader();
    let (cut, id) = ((leader + 1) % 3, cluster.id((leader + 1) % 3));
    let machine = &cluster.nodes[cut].machine;
    machine.reset_connections(&cluster.nodes[leader].machine, true);
    eventually_in_cluster("it is cut off for longer than an election takes", || {
        let status = cluster.status(leader)?;
        let node = status["nodes"].as_array()?.iter().find(|node| node["id"] == id)?;
        (node["heard_ms_ago"].as_u64()? > 3_000).then_some(())
    });
    machine.reset_connections(&cluster.nodes[leader].machine, false);
    cluster.voters(3);
    eventually_in_cluster("it is heard again", || {
        let status = cluster.status(leader)?;
        let nodes = status["nodes"].as_array()?;
        nodes.iter().all(|node| node["heard_ms_ago"].as_u64() < Some(1_000)).then_some(())
    });
    assert_eq!((0..3).map(elections).collect::<Vec<_>>(), before);
}

/// A partitioned node never shows a lock as free unless it can know that the lock is free, and soon
/// reports that it can't answer.
#[test]
fn partitioned_nodes_refuse_in_time() {
    let cluster = Cluster::of(3);
    // The first round isolates a follower, the second one the leader.
    for round in 0..2 {
        let leader = cluster.leader();
        let cut = if round == 0 { (leader + 1) % 3 } else { leader };
        let machine = &cluster.nodes[cut].machine;
        let free = format!("/locks/free{round}");
        assert_eq!(cluster.curl(cut, "GET", &free).1["phase"], "free");
        machine.isolate(true);
        for (method, path) in [("GET", free.clone()), ("POST", format!("{free}?client=cut"))] {
            let asked = now();
            let (code, said) = curl(machine, machine, method, &path);
            assert_eq!(code, 503, "{method}: {said}");
            assert_eq!(said["kind"], "E_CONSISTENCY_UNAVAILABLE", "{said}");
            let took = now() - asked;
            assert!(took < IN_TIME_US, "{method} took {took} us");
        }
        let other = (cut + 1) % 3;
        let ask = format!("{free}?client=majority&ttl=1h");
        eventually_in_cluster("the majority grants", || {
            (cluster.curl(other, "POST", &ask).0 == 200).then_some(())
        });
        // A node that has been isolated for some time knows that it has no quorum, and refuses at
        // once, in less than an election timeout.
        for (method, path) in [("GET", free.clone()), ("POST", format!("{free}?client=cut"))] {
            eventually_in_cluster("it says so at once", || {
                let asked = now();
                let (code, said) = curl(machine, machine, method, &path);
                assert_eq!(code, 503, "{said}");
                (now() - asked < ELECTION_US).then_some(())
            });
        }
        machine.isolate(false);
        let holder = eventually_in_cluster("it is back", || {
            let (code, said) = cluster.curl(cut, "GET", &free);
            (code == 200).then(|| said["holder"].clone())
        });
        assert_eq!(holder, "majority");
        cluster.voters(3);
        cluster.agree();
    }
}

/// A stale read returns a node's local state at once, with an upper bound on its age: while the
/// node is connected, while it is isolated, and after it has restarted alone.
#[test]
fn what_may_be_old_says_how_old_it_is() {
    const LOCAL: &str = "/locks/build?consistency=stale";
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.curl(0, "POST", "/locks/build?client=ann&ttl=1h").0, 200);
    let leader = cluster.leader();
    for cut in [(leader + 1) % 3, leader] {
        let machine = &cluster.nodes[cut].machine;
        eventually_in_cluster("it hears the others", || {
            let seen = cluster.curl(cut, "GET", LOCAL).1;
            (seen["holder"] == "ann" && seen["age_ms"].as_u64()? < 1_000).then_some(())
        });
        machine.isolate(true);
        let since = now();
        let (other, name) = ((cut + 1) % 3, format!("while{cut}"));
        let ask = format!("/locks/{name}?client=bob&ttl=1h");
        eventually_in_cluster("the majority grants", || {
            (cluster.curl(other, "POST", &ask).0 == 200).then_some(())
        });
        let asked = now();
        let (code, seen) = curl(machine, machine, "GET", "/locks?consistency=stale");
        assert_eq!(code, 200, "{seen}");
        let took = now() - asked;
        assert!(took < IN_TIME_US / 2, "it asks nobody, and took {took} us");
        let locks = seen["locks"].as_array().expect("a list");
        let known = |of: &str| locks.iter().any(|lock| lock["name"] == of);
        assert!(known("build") && !known(&name), "{seen}");
        let age_ms = seen["age_ms"].as_u64().expect("it has heard of the others");
        assert!(age_ms >= (asked - since) / 1_000, "{age_ms} ms, cut off {since}, now {asked}");
        let (url, own) = (machine.url(), ["--stale", "--client", "me", "--server"]);
        let status = [&["status", "build"], &own[..], &[&url]].concat();
        let said = run(machine.command(latchfs_path()).args(status));
        assert!(said.err.contains(" knew ") && said.err.contains(" ago"), "{}", said.err);
        assert!(said.ok().contains("holder    ann"));
        let list = [&["ls", "--json"], &own[..], &[&url]].concat();
        let said = run(machine.command(latchfs_path()).args(list)).ok();
        let list: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(list[0]["name"], "build");
        assert!(list[0]["age_ms"].as_u64().is_some_and(|older| older >= age_ms), "{list}");
        machine.isolate(false);
        cluster.voters(3);
    }
    cluster.nodes.iter_mut().for_each(|node| node.daemon.kill());
    cluster.nodes[0].daemon.restart();
    let seen = cluster.curl(0, "GET", LOCAL).1;
    assert_eq!((&seen["holder"], &seen["age_ms"]), (&"ann".into(), &serde_json::Value::Null));
    let (code, said) = cluster.curl(0, "GET", "/locks/build");
    assert_eq!((code, &said["kind"]), (503, &"E_CONSISTENCY_UNAVAILABLE".into()));
}

/// A leader that has lost its quorum, and a learner that only this leader reaches, never claim that
/// their state is newer than it is.
#[test]
fn the_age_of_a_stale_read_is_an_upper_bound() {
    let mut cluster = Cluster::of(3);
    cluster.join();
    let learner = 3;
    let id = cluster.id(learner);
    eventually_in_cluster("a learner", || {
        let status = cluster.status(0)?;
        let nodes = status["nodes"].as_array()?.clone();
        let node = nodes.iter().find(|node| node["id"].as_u64() == Some(id))?.clone();
        (node["role"] == "learner" && node["reachable"] == true).then_some(())
    });
    assert_eq!(cluster.curl(0, "POST", "/locks/build?client=ann&ttl=1h").0, 200);
    let leader = cluster.leader();
    let stale = |at: usize| cluster.curl(at, "GET", "/locks/build?consistency=stale").1;
    for at in [leader, learner] {
        eventually_in_cluster("it knows the holder", || {
            let seen = stale(at);
            (seen["holder"] == "ann" && seen["age_ms"].as_u64()? < 1_000).then_some(())
        });
    }
    let voters = [(leader + 1) % 3, (leader + 2) % 3];
    let others = voters.map(|at| &cluster.nodes[at].machine);
    cluster.nodes[leader].machine.part_from(&others);
    cluster.nodes[learner].machine.part_from(&others);
    eventually_in_cluster("the majority releases", || {
        let path = "/locks/build?client=ann";
        let (code, said) = cluster.curl(voters[0], "DELETE", path);
        (code == 200 || said["kind"] == "E_LOCK_NOT_HELD").then_some(())
    });
    assert_eq!(cluster.curl(voters[0], "POST", "/locks/build?client=bob&ttl=1h").0, 200);
    let granted = now();
    let mut seen_old = [0; 2];
    while now() - granted < 5_000_000 {
        for (number, at) in [leader, learner].into_iter().enumerate() {
            let asked = now();
            let seen = stale(at);
            if seen["holder"] != "ann" {
                continue;
            }
            seen_old[number] += 1;
            let age_ms = seen["age_ms"].as_u64().unwrap_or(u64::MAX);
            let old_ms = (asked - granted) / 1_000;
            assert!(age_ms >= old_ms, "node {at}: old for {old_ms} ms, and claims {age_ms} ms");
        }
    }
    assert!(seen_old.iter().all(|count| *count > 0), "both had an old state: {seen_old:?}");
}

/// A stopped leader is replaced; when it resumes, its pending proposals have no effect.
#[test]
fn a_leader_that_stops_is_replaced() {
    let cluster = Cluster::of(3);
    let urls = cluster.urls();
    for _ in 0..3 {
        let leader = cluster.leader();
        let mut others = urls.clone();
        others.remove(leader);
        let load = Load::begin(&cluster.clients, &others, 4, 7);
        load.await_answers(100);
        cluster.nodes[leader].daemon.signal(libc::SIGSTOP);
        load.await_answers(200);
        cluster.nodes[leader].daemon.signal(libc::SIGCONT);
        load.await_answers(200);
        load.end();
        cluster.voters(3);
        cluster.agree();
        let list = cluster.curl(0, "GET", "/locks").1;
        for lock in list["locks"].as_array().expect("a list") {
            let text = |field: &str| lock[field].as_str().expect("text").to_owned();
            let path = format!("/locks/{}?client={}", text("name"), text("holder"));
            assert_eq!(cluster.curl(0, "DELETE", &path).0, 200);
        }
    }
}

/// A request that waits at one node is granted when the lock is released through another node.
#[test]
fn waiters_at_one_node_are_served_by_a_release_at_another() {
    let cluster = Cluster::of(3);
    for at in 0..3 {
        let path = "/locks/line?client=first&ttl=1h";
        assert_eq!(cluster.curl((at + 1) % 3, "POST", path).0, 200);
        let waits = "/locks/line?client=second&ttl=1h&wait=1m";
        let served = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| cluster.curl(at, "POST", waits));
            eventually_in_cluster("in line", || {
                let seen = cluster.curl((at + 2) % 3, "GET", "/locks/line").1;
                (seen["waiters"].as_array()?.len() == 1).then_some(())
            });
            let path = "/locks/line?client=first";
            assert_eq!(cluster.curl((at + 1) % 3, "DELETE", path).0, 200);
            waiter.join().expect("it is well")
        });
        assert_eq!((served.0, &served.1["holder"]), (200, &"second".into()), "{}", served.1);
        assert_eq!(cluster.curl(at, "DELETE", "/locks/line?client=second").0, 200);
    }
}

/// A waiter disconnects while two of three nodes are stopped. It leaves the queue after they
/// resume.
#[test]
fn a_departure_without_a_quorum_is_made_up_for() {
    let cluster = Cluster::of(3);
    let leader = cluster.leader();
    assert_eq!(cluster.curl(leader, "POST", "/locks/line?client=first&ttl=1h").0, 200);
    let waiters = |at: usize| {
        let seen = cluster.curl(at, "GET", "/locks/line").1;
        seen["waiters"].as_array().map(Vec::len)
    };
    let url = format!("{}/locks/line?client=second&wait=10m", cluster.nodes[leader].machine.url());
    let mut curl = cluster.clients.command("curl");
    let mut waiter = curl.args(["-s", "-X", "POST", &url]).spawn().expect("curl");
    eventually_in_cluster("in the queue", || (waiters(leader) == Some(1)).then_some(()));
    let others = || (1..3).map(|n| &cluster.nodes[(leader + n) % 3].daemon);
    others().for_each(|daemon| daemon.signal(libc::SIGSTOP));
    waiter.kill().expect("it waits");
    waiter.wait().expect("it ends");
    // The leader refuses these two acquire requests for lack of a quorum. They come after the
    // disconnect, so the leader has by now also failed to remove the disconnected waiter from its
    // queue.
    for name in ["one", "two"] {
        assert_eq!(cluster.curl(leader, "POST", &format!("/locks/{name}?client=me")).0, 503);
    }
    others().for_each(|daemon| daemon.signal(libc::SIGCONT));
    eventually_in_cluster("it has left the queue", || (waiters(leader) == Some(0)).then_some(()));
}

/// Requests that wait at a killed node leave the queues of their locks when the session by which
/// the node keeps them in the queues expires, soon after the kill. They delay the clients behind
/// them by none of their ttls.
#[test]
fn waiters_at_a_killed_node_leave_the_queue() {
    const WAITERS: usize = 5;
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.curl(0, "POST", "/locks/build?client=a&ttl=10m").0, 200);
    let killed = (cluster.leader() + 1) % 3;
    let waiters = |cluster: &Cluster, count: usize| {
        eventually_in_cluster("waiters", || {
            let seen = cluster.curl((killed + 1) % 3, "GET", "/locks/build").1;
            (seen["waiters"].as_array().map_or(0, Vec::len) == count).then_some(())
        });
    };
    let wait = |cluster: &Cluster, at: usize, client: &str| {
        let path = format!("/locks/build?client={client}&wait=10m&ttl=10m");
        let url = format!("{}{path}", cluster.nodes[at].machine.url());
        let mut command = cluster.clients.command("curl");
        command.args(["-sS", "--max-time", "60", "-X", "POST", &url]);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("curl is there")
    };
    let dead: Vec<_> = (0..WAITERS)
        .map(|number| {
            let child = wait(&cluster, killed, &format!("dead{number}"));
            waiters(&cluster, number + 1);
            child
        })
        .collect();
    cluster.nodes[killed].daemon.kill();
    let since = now();
    let live = wait(&cluster, (killed + 1) % 3, "live");
    waiters(&cluster, 1);
    let took = now() - since;
    assert!(took < SESSION_OVER_US, "{took} us");
    assert_eq!(cluster.curl((killed + 1) % 3, "DELETE", "/locks/build?client=a").0, 200);
    let answer = live.wait_with_output().expect("our child").stdout;
    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(answer["holder"], "live", "{answer}");
    for mut child in dead {
        assert!(!child.wait().expect("our child").success(), "its server is gone");
    }
}
