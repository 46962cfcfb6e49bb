//! Rolling upgrades, by a build with the feature `planted-version`: a planted version 2 of the
//! encoding adds a field to an acquire and a command. `LATCHFS_KNOWN_VERSION` says which version a
//! process knows.

use crate::load::Load;
use crate::turns::Turns;
use latchfs::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{Acquire, ClientId, LeaseTerms, LockName, Op, Outcome};
use latchfs::service::batch::batch_messages::{
    BatchItem, ItemReply, RequestBatch, decode_response, encode_batch,
};
use std::fs;
use testing::net::know;
use testing::nodes::{Cluster, refusal, serve};
use testing::{eventually_in_cluster, latchfs_path, run};

/// The number of clients that send requests over HTTP.
const CLIENTS: usize = 3;
/// The minimum number of answers between two restarts of nodes.
const ANSWERS: u64 = 200;

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("valid")
}

/// Sends an operation to a node in a batch of the newest version. Returns the answer to it, or the
/// sentence that refuses it.
fn submit(cluster: &Cluster, at: usize, op: Op) -> Result<Outcome, String> {
    let asks = vec![BatchItem::Submit(op.into())];
    let (file, url) = (cluster.clients.path("batch"), cluster.nodes[at].machine.url());
    fs::write(&file, encode_batch(&RequestBatch::new(0, asks))).expect("ours");
    let mut curl = cluster.clients.command("curl");
    curl.args(["-sS", "--max-time", "20", "--data-binary", &format!("@{}", file.display())]);
    let body = curl.arg(format!("{url}/door/v1/ask")).output().expect("curl is there").stdout;
    let replies = decode_response(&body);
    let replies = replies.map_err(|_| String::from_utf8_lossy(&body).into_owned())?;
    match replies.replies.into_iter().next().expect("one reply") {
        ItemReply::Answered(answer) => answer.map_err(|refusal| refusal.to_string()),
        other => Err(format!("{other:?}")),
    }
}

/// Returns an acquire with the planted field.
fn planted_acquire(lock: &str) -> Op {
    let client = ClientId::parse("planted").expect("valid");
    let term = LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT);
    let planted = Some("by the planted field".into());
    Op::Acquire(Acquire { planted, ..Acquire::new(name(lock), client, term) })
}

/// Returns the cluster version that a node names in its metrics.
fn cluster_version(cluster: &Cluster, at: usize) -> Option<String> {
    let url = format!("{}/metrics", cluster.nodes[at].machine.url());
    let page = run(cluster.clients.command("curl").args(["-sS", "--max-time", "5", &url])).out;
    let line = page.lines().find(|line| line.starts_with("latchfs_cluster_version "));
    line.and_then(|line| line.split(' ').nth(1)).map(str::to_owned)
}

/// Restarts a node, which knows the version of [`know`] from then on.
fn restart(cluster: &mut Cluster, at: usize) {
    cluster.nodes[at].daemon.end();
    cluster.nodes[at].daemon.restart();
    cluster.voters(3);
}

/// Three nodes are upgraded one by one under load and under mounts of the version before. The new
/// field and the new command are refused until the last node is new, and carried out from then on.
/// No lock is lost, and none has two holders.
#[test]
fn nodes_are_upgraded_one_by_one_under_load() {
    know(1);
    let mut cluster = Cluster::of(3);
    let urls = cluster.urls().join(",");
    let machines = [cluster.net.machine(), cluster.net.machine()];
    let mounts = machines.each_ref().map(|machine| machine.mount(&urls, ""));
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, crate::chaos::seed());
    let turns = Turns::begin(&mounts, &cluster.clients);
    let await_progress = || {
        load.await_answers(ANSWERS);
        turns.await_turns(4);
    };
    await_progress();
    know(2);
    for at in 0..3 {
        restart(&mut cluster, at);
        await_progress();
        if at == 2 {
            break;
        }
        assert_eq!(cluster_version(&cluster, at).as_deref(), Some("1"));
        for op in [planted_acquire("planted"), Op::Planted(name("planted"))] {
            let said = submit(&cluster, at, op).expect_err("not yet");
            assert!(
                said.contains("needs cluster version 2, and the cluster has version 1"),
                "{said}"
            );
        }
        let (_, status) = cluster.curl(at, "GET", "/locks/planted");
        assert_eq!(status["phase"], "free", "it is not carried out without the field");
    }
    for at in 0..3 {
        eventually_in_cluster("version 2", || {
            (cluster_version(&cluster, at)? == "2").then_some(())
        });
        let lock = format!("planted-{at}");
        let granted = submit(&cluster, at, planted_acquire(&lock));
        assert!(matches!(granted, Ok(Outcome::Granted(_))), "{granted:?}");
        assert_eq!(submit(&cluster, at, Op::Planted(name(&lock))), Ok(Outcome::Annotated));
        let (_, status) = cluster.curl((at + 1) % 3, "GET", &format!("/locks/{lock}"));
        assert_eq!(status["note"], "by the planted field", "{status}");
    }
    await_progress();
    turns.end();
    load.end();
    cluster.agree();
}

/// A node that does not know the version of a cluster is not let in.
#[test]
fn a_node_of_version_1_does_not_join_a_cluster_at_2() {
    know(2);
    let mut cluster = Cluster::alone();
    eventually_in_cluster("version 2", || (cluster_version(&cluster, 0)? == "2").then_some(()));
    know(1);
    let (machine, seed) = (cluster.net.machine(), cluster.nodes[0].machine.peers());
    let said = refusal(&machine, "data", &["--seed", &seed]);
    assert!(said.contains("knows cluster version 1, and this cluster has version 2"), "{said}");
    know(2);
    drop(serve(&machine, "data", &["--seed", &seed]));
}

/// A node does not start on a log or a snapshot that it can't read, and nothing is lost.
#[test]
fn a_log_and_a_snapshot_at_2_are_refused_by_a_node_of_version_1() {
    know(2);
    let mut cluster = Cluster::alone();
    let machine = cluster.nodes[0].machine.clone();
    let (code, _) = cluster.curl(0, "POST", "/locks/held?client=a&ttl=1h");
    assert_eq!(code, 200);
    let both = "version 2, and this latchfs knows version 1";
    let refused = |cluster: &mut Cluster, file: &str| {
        cluster.nodes[0].daemon.end();
        know(1);
        let path = machine.path("data").join(file).display().to_string();
        let said = refusal(&machine, "data", &[]);
        assert!(said.contains(&path) && said.contains(both), "{said}");
        know(2);
        cluster.nodes[0].daemon.restart();
    };
    refused(&mut cluster, "log");
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, crate::chaos::seed());
    let snapshot = cluster.nodes[0].machine.path("data").join("snapshot");
    eventually_in_cluster("a snapshot", || snapshot.exists().then_some(()));
    load.end();
    refused(&mut cluster, "snapshot");
    assert_eq!(cluster.curl(0, "GET", "/locks/held").1["phase"], "held");
}

/// A server reads the last two versions of the batch protocol. A mount of an older one learns which
/// side to upgrade, and so is a mount that is newer than the server.
#[test]
fn a_mount_two_versions_back_learns_which_side_to_upgrade() {
    know(3);
    let mut cluster = Cluster::alone();
    let (url, machine) = (cluster.urls()[0].clone(), cluster.net.machine());
    know(2);
    machine.mount(&url, "").sh("touch one && test -e one").ok();
    let dir = machine.path("other").display().to_string();
    for (version, side) in [(1, "upgrade the mount or command"), (4, "upgrade the server")] {
        know(version);
        let mount = ["mount", &dir, "--server", &url, "--client", "other", "--foreground"];
        let said = run(machine.command(latchfs_path()).args(mount)).fails();
        let both = format!("version {version}, and this latchfs knows version 2 and 3");
        assert!(said.contains(&both) && said.contains(side), "{said}");
    }
}
