//! A majority of the nodes is lost for good, and a survivor begins a new cluster.

use serde_json::Value;
use testing::net::{Daemon, Machine};
use testing::nodes::{Cluster, options, serve};
use testing::{eventually_in_cluster, latchfs_path, run};

/// Kills all nodes of a cluster of three, and returns the machine of a survivor.
fn survivor(cluster: &mut Cluster) -> Machine {
    let survivor = (cluster.leader() + 1) % 3;
    for node in &mut cluster.nodes {
        node.daemon.kill();
    }
    cluster.nodes[survivor].machine.clone()
}

fn recover(machine: &Machine, more: &[&str]) -> testing::Output {
    let (data, new) = (machine.path("data"), machine.path("new"));
    let mut command = machine.command(latchfs_path());
    command.args(["cluster", "recover", "--data"]).arg(data).arg("--to").arg(new);
    run(command.args(more))
}

fn token(answer: &(u16, Value)) -> u64 {
    assert_eq!(answer.0, 200, "{answer:?}");
    answer.1["token"].as_u64().expect("granted")
}

/// Nothing is granted for the longest ttl, tokens are above all earlier ones, the survivor's old
/// directory never runs again, and new nodes join.
#[test]
fn a_survivor_begins_a_new_cluster_without_a_backup() {
    let mut cluster = Cluster::of(3);
    token(&cluster.curl(0, "POST", "/locks/build?client=a&ttl=1h"));
    let site = token(&cluster.curl(0, "POST", "/locks/site?client=a&ttl=1h&remember=true"));
    let path = format!("/locks/site?client=a&token={site}&handover=clean&counter=1");
    let said = cluster.curl(0, "DELETE", &path);
    assert_eq!(said.0, 200, "{said:?}");
    cluster.agree();
    let machine = survivor(&mut cluster);
    // As an attempt leaves both directories that was killed before it had marked the old one.
    let (data, copy) = (machine.path("data"), machine.path("copy"));
    run(machine.command("cp").arg("-a").arg(&data).arg(&copy)).ok();
    recover(&machine, &[]).ok();
    std::fs::remove_dir_all(&data).and_then(|()| std::fs::rename(&copy, &data)).expect("as before");
    let refused = recover(&machine, &[]).fails();
    assert!(refused.contains("remove this one if an earlier attempt has left it"), "{refused}");
    std::fs::remove_dir_all(machine.path("new")).expect("removed");
    let said = recover(&machine, &[]).ok();
    assert!(said.contains("nothing is held"), "{said}");
    assert!(
        said.contains("for 24h") && said.contains("the longest ttl in its data is 1h"),
        "{said}"
    );
    assert!(said.contains("--old-holders-are-gone") && said.contains("grant-now"), "{said}");
    // The old directory does not run again, so that it can't form a majority with another one.
    let refused = run(machine.command(latchfs_path()).args(options(&machine, "data", &[]))).fails();
    assert!(refused.contains("'latchfs cluster recover' has begun a new cluster"), "{refused}");
    let at = cluster.nodes.iter().position(|node| node.machine.url() == machine.url());
    let at = at.expect("it is one of them");
    cluster.nodes[at].daemon = serve(&machine, "new", &[]);
    eventually_in_cluster("it leads", || {
        (cluster.curl(at, "GET", "/locks/build").0 == 200).then_some(())
    });
    let status = cluster.curl(at, "GET", "/locks/build").1;
    assert_eq!(status["phase"], "free", "{status}");
    let (code, refused) = cluster.curl(at, "POST", "/locks/build?client=b");
    assert_eq!((code, refused["reason"].as_str()), (409, Some("hold_off")), "{refused}");
    let (code, ready) = cluster.curl(at, "GET", "/readyz");
    assert_eq!((code, ready["because"].as_str()), (503, Some("recovered")), "{ready}");
    let site = cluster.curl(at, "GET", "/locks/site").1;
    assert_eq!(site["previous"]["handover"], "clean", "{site}");
    // Others join with empty directories.
    let seed = machine.peers();
    for other in (0..3).filter(|other| *other != at) {
        let node = &mut cluster.nodes[other];
        node.daemon = serve(&node.machine, "new", &["--seed", &seed]);
    }
    cluster.voters(3);
    cluster.agree();
    // The others know it too, and any of them is asked to grant.
    let other = (at + 1) % 3;
    assert_eq!(cluster.curl(other, "GET", "/readyz").0, 503);
    let done = cluster.curl(other, "POST", "/grant-now?client=root&reason=all+are+off");
    assert_eq!(done.0, 200, "{done:?}");
    for node in 0..3 {
        eventually_in_cluster("it grants", || {
            (cluster.curl(node, "GET", "/readyz").0 == 200).then_some(())
        });
    }
    token(&cluster.curl(at, "POST", "/locks/build?client=b"));
    // One directory is recovered once.
    let refused = recover(&machine, &["--force"]).fails();
    assert!(refused.contains("'latchfs cluster recover' has begun a new cluster"), "{refused}");
}

/// A survivor of a lost majority says so to load balancers and alerts, whether it was the leader or
/// not, and is ready again when the majority is back.
#[test]
fn a_survivor_is_not_ready_and_has_no_leader() {
    for is_leader in [false, true] {
        let mut cluster = Cluster::of(3);
        let survivor = (cluster.leader() + usize::from(!is_leader)) % 3;
        let is_ready = |cluster: &Cluster| {
            let ready = cluster.curl(survivor, "GET", "/readyz").0;
            let report = cluster.curl(survivor, "GET", "/cluster").1;
            let mut nodes = report["nodes"].as_array().expect("nodes").iter();
            let leads = nodes.any(|node| node["role"] == "leader");
            let leader = report["leader"].is_u64();
            let machine = &cluster.nodes[survivor].machine;
            let mut curl = cluster.clients.command("curl");
            let metrics = run(curl.args(["-s", &format!("{}/metrics", machine.url())])).ok();
            let has_leader = metrics.contains("\nlatchfs_cluster_has_leader 1\n");
            (ready, leads, leader, has_leader)
        };
        eventually_in_cluster("all is well", || {
            (is_ready(&cluster) == (200, true, true, true)).then_some(())
        });
        for at in (0..3).filter(|at| *at != survivor) {
            cluster.nodes[at].daemon.kill();
        }
        eventually_in_cluster("it knows", || {
            (is_ready(&cluster) == (503, false, false, false)).then_some(())
        });
        says_that_no_majority_is_there(&cluster, survivor);
        for at in (0..3).filter(|at| *at != survivor) {
            cluster.nodes[at].daemon.restart();
        }
        eventually_in_cluster("all is well", || {
            (is_ready(&cluster) == (200, true, true, true)).then_some(())
        });
    }
}

/// Checks that a node without a majority, and a client of all nodes, say so and name the way out.
fn says_that_no_majority_is_there(cluster: &Cluster, survivor: usize) {
    let own = cluster.nodes[survivor].machine.url();
    let ready = cluster.curl(survivor, "GET", "/readyz").1;
    assert_eq!(ready["reason"], "no_majority", "{ready}");
    let all = cluster.urls().join(",");
    for server in [&own, &all] {
        for words in [&["ls"][..], &["status", "build"], &["acquire", "build"], &["doctor"]] {
            let mut command = cluster.clients.command(latchfs_path());
            let said = run(command.args(words).args(["--server", server]));
            let said = said.out + &said.err;
            assert!(said.contains("the cluster has no majority"), "{words:?} {server}: {said}");
            assert!(said.contains("latchfs cluster recover"), "{words:?} {server}: {said}");
        }
    }
    let mut command = cluster.clients.command(latchfs_path());
    let status = run(command.args(["cluster", "status", "--server", &own])).ok();
    assert!(status.contains("the cluster has no majority: 1 of 3 voters answer"), "{status}");
    assert!(status.contains("latchfs cluster recover"), "{status}");
    assert!(!status.contains("cluster remove"), "{status}");
}

#[test]
fn locks_are_granted_at_once_if_the_old_holders_are_gone() {
    let mut cluster = Cluster::of(3);
    let last = token(&cluster.curl(0, "POST", "/locks/build?client=a&ttl=1h"));
    cluster.agree();
    let machine = survivor(&mut cluster);
    recover(&machine, &["--old-holders-are-gone"]).ok();
    let _node: Daemon = serve(&machine, "new", &[]);
    let at = cluster.nodes.iter().position(|node| node.machine.url() == machine.url());
    let at = at.expect("it is one of them");
    let granted = eventually_in_cluster("it grants", || {
        let answer = cluster.curl(at, "POST", "/locks/build?client=b");
        (answer.0 == 200).then_some(answer)
    });
    assert!(token(&granted) > last, "{granted:?} after {last}");
}

/// Nothing is begun, and nothing is changed, while the node runs, while a majority runs, or where
/// no node is.
#[test]
fn a_cluster_that_is_not_lost_is_not_recovered() {
    let mut cluster = Cluster::of(3);
    let machine = cluster.nodes[0].machine.clone();
    let refused = recover(&machine, &[]).fails();
    assert!(refused.contains("is in use"), "{refused}");
    cluster.nodes[0].daemon.kill();
    let refused = recover(&machine, &[]).fails();
    assert!(refused.contains("nothing is lost: of 3 voters a majority"), "{refused}");
    let refused = recover(&machine, &["--hold-off", "48h", "--force"]);
    assert_eq!(refused.code, 64, "{refused:?}");
    assert!(!machine.path("new").exists());
    let mut command = machine.command(latchfs_path());
    command.args(["cluster", "recover", "--data", "/nowhere", "--to"]).arg(machine.path("new"));
    let refused = run(&mut command);
    assert_eq!(refused.code, 64, "{refused:?}");
    cluster.nodes[0].daemon.restart();
    cluster.voters(3);
}
