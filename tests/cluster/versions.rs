//! Two versions of latchfs in one cluster: nodes are upgraded and downgraded one by one under load,
//! while programs on mounts of both versions hold locks, take a lock in turn, and rename locked
//! files.

use crate::load::Load;
use crate::net::{Version, eventually, run};
use crate::nodes::Cluster;
use crate::turns::Turns;
use std::sync::atomic::Ordering;

/// The number of clients that send requests over HTTP.
const CLIENTS: usize = 3;
/// The minimum number of answers between two restarts of nodes.
const ANSWERS: u64 = 200;
/// The version number of the log entry format in which a release command may name the open file
/// whose lock it releases.
const NEW_FORMAT: &str = "6";
/// The number of the newest format of log entries that the previous version knows.
const OLD_FORMAT: &str = "5";

/// Restarts a node as another version, or with other options, and waits until it is a voter again.
#[track_caller]
fn restart(cluster: &mut Cluster, at: usize, version: Version, more: &[&str]) {
    let node = &mut cluster.nodes[at];
    let mut args = node.daemon.args().to_vec();
    if let Some(at) = args.iter().position(|arg| arg == "--format-max") {
        args.truncate(at);
    }
    args.extend(more.iter().map(|word| (*word).to_owned()));
    node.daemon.end();
    node.daemon.again_as(version, args);
    cluster.voters(3);
}

/// Returns the newest format of the entries in a node's log.
fn log_format(cluster: &Cluster, at: usize) -> Option<String> {
    let url = format!("{}/metrics", cluster.nodes[at].machine.url());
    let page = run(cluster.clients.command("curl").args(["-sS", "--max-time", "5", &url])).out;
    let line = page.lines().find(|line| line.starts_with("latchfs_cluster_log_format "));
    line.and_then(|line| line.split(' ').nth(1)).map(str::to_owned)
}

/// A cluster of the previous version is upgraded node by node, and downgraded node by node after
/// `--format-max` has prepared it. HTTP clients and mounts of both versions work all the time: no
/// lock is lost, and no lock has two holders.
#[test]
fn nodes_are_upgraded_and_downgraded_one_by_one_under_load() {
    let mut cluster = Cluster::of_version(Version::Previous, 3);
    let urls = cluster.urls().join(",");
    let machines = [cluster.net.machine(), cluster.net.machine()];
    let mounts = [
        machines[0].mount_as(Version::Current, &urls, &["locks-new"], ""),
        machines[1].mount_as(Version::Previous, &urls, &["locks-old"], ""),
    ];
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, crate::chaos::seed());
    let turns = Turns::begin(&mounts, &cluster.clients);
    let go_on = || {
        load.go_on(ANSWERS);
        turns.go_on(4);
    };
    go_on();
    for at in 0..3 {
        restart(&mut cluster, at, Version::Current, &[]);
        go_on();
        let format = log_format(&cluster, at);
        assert!(at == 2 || format.as_deref() == Some(OLD_FORMAT), "node {at}: {format:?}");
    }
    // All nodes run the current version only now, so new log entries may use the new format.
    eventually("a release by open file", || (log_format(&cluster, 0)? == NEW_FORMAT).then_some(()));
    for at in 0..3 {
        restart(&mut cluster, at, Version::Current, &["--format-max", OLD_FORMAT]);
        go_on();
    }
    for at in 0..3 {
        eventually("a log that the previous version can read", || {
            (log_format(&cluster, at)? == OLD_FORMAT).then_some(())
        });
    }
    for at in 0..3 {
        restart(&mut cluster, at, Version::Previous, &[]);
        go_on();
    }
    turns.end();
    let world = load.end();
    cluster.agree();
    let (answers, unknown) =
        (world.answers.load(Ordering::Relaxed), world.unknown.load(Ordering::Relaxed));
    println!("{answers} answers, {unknown} requests with an unknown outcome");
}

/// If the previous version is started on a log with entries of the new format, it refuses to start
/// and says why, and nothing is lost.
#[test]
fn previous_version_refuses_a_log_that_it_cannot_read() {
    let mut cluster = Cluster::alone();
    let machine = cluster.net.machine();
    let mount = machine.mount(&cluster.urls()[0], "");
    mount.sh("mkdir held && flock work true").ok();
    eventually("a release by open file", || (log_format(&cluster, 0)? == NEW_FORMAT).then_some(()));
    let node = &mut cluster.nodes[0];
    node.daemon.end();
    let said = run(node.machine.command(&Version::Previous.program()).args(node.daemon.args()));
    assert!(said.code != 0 && said.err.contains("format 6"), "{said:?}");
    node.daemon.again();
    let held = || cluster.curl(0, "GET", "/locks/held").1["phase"] == "held";
    eventually("nothing is lost", || held().then_some(()));
}

/// While a member of the cluster is of the previous version, no node remembers a name: the request
/// is refused, and not carried out without what it asks for. Once all members are of the current
/// version, a handover is set and told.
#[test]
fn handovers_are_refused_until_all_members_know_them() {
    let mut cluster = Cluster::of_version(Version::Previous, 3);
    for at in 0..2 {
        restart(&mut cluster, at, Version::Current, &[]);
    }
    let remember = "/locks/folder?client=a&remember=true";
    for at in 0..2 {
        eventually("a refusal that says why", || {
            let (code, said) = cluster.curl(at, "POST", remember);
            assert_ne!(code, 200, "{said}");
            let why = said["detail"].as_str()?;
            (code == 400 && why.contains("newer latchfs")).then_some(())
        });
        assert_eq!(cluster.curl(at, "GET", "/locks/folder").1["phase"], "free");
    }
    restart(&mut cluster, 2, Version::Current, &[]);
    let granted = eventually("a grant", || {
        let (code, said) = cluster.curl(0, "POST", remember);
        (code == 200).then_some(said)
    });
    assert_eq!(granted["previous"]["seq"], 1, "{granted}");
    let set = format!(
        "/locks/folder/previous?client=a&token={}&handover=clean&counter=1",
        granted["token"]
    );
    for at in 0..3 {
        let (code, said) = cluster.curl(at, "PATCH", &set);
        assert_eq!(code, if at == 0 { 200 } else { 412 }, "{said}");
        let (_, status) = cluster.curl(at, "GET", "/locks/folder");
        assert_eq!(status["previous"]["handover"], "clean", "{status}");
    }
    // The state has a remembered name, so a leader takes handovers also while a node is down.
    cluster.nodes[2].daemon.kill();
    let set = set.replace("counter=1", "counter=2");
    eventually("a handover without a node", || {
        let (code, _) = cluster.curl(0, "PATCH", &set);
        (code == 200 || code == 412).then_some(())
    });
}
