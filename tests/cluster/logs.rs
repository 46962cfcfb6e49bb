//! The log lines of nodes about their cluster.

use testing::eventually_in_cluster;
use testing::nodes::Cluster;

/// Returns the lines in the log of node `at` with a text.
fn lines(cluster: &Cluster, at: usize, text: &str) -> Vec<String> {
    let log = cluster.nodes[at].daemon.log();
    log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

/// Waits until the log of node `at` has a line with a text.
#[track_caller]
fn has(cluster: &Cluster, at: usize, text: &str) {
    eventually_in_cluster(text, || (!lines(cluster, at, text).is_empty()).then_some(()));
}

/// Members, the death of a leader, an election, and the loss of a majority have lines on a node
/// that sees them; changes of members have one each.
#[test]
fn changes_of_the_cluster_are_logged() {
    let mut cluster = Cluster::of(3);
    let ids: Vec<_> = (0..3).map(|at| cluster.id(at)).collect();
    let mut once = vec!["INFO  member of the cluster nodes=".to_owned()];
    for id in &ids[1..] {
        once.push(format!("INFO  node joined node={id} role=learner"));
        once.push(format!("INFO  node promoted to a voter node={id}"));
    }
    for text in &once {
        has(&cluster, 0, text);
        assert_eq!(lines(&cluster, 0, text).len(), 1, "{text}");
    }
    let first = cluster.leader();
    for at in 0..3 {
        has(&cluster, at, &format!("INFO  leader elected leader={} term=", ids[first]));
    }
    // The leader dies.
    cluster.nodes[first].daemon.kill();
    let second = cluster.leader();
    let left = (0..3).find(|at| ![first, second].contains(at)).expect("three nodes");
    for at in [second, left] {
        has(&cluster, at, &format!("INFO  leader elected leader={} term=", ids[second]));
    }
    has(&cluster, second, &format!("WARN  peer connection lost node={} reason=", ids[first]));
    // The next leader dies as well.
    cluster.nodes[second].daemon.kill();
    has(&cluster, left, "WARN  contact with a majority lost: nothing can be granted");
    cluster.nodes[second].daemon.restart();
    cluster.nodes[first].daemon.restart();
    cluster.voters(3);
    has(&cluster, left, "INFO  contact with a majority restored");
    // A node is removed.
    let gone = (cluster.leader() + 1) % 3;
    let other = (gone + 1) % 3;
    cluster.nodes[gone].daemon.kill();
    cluster.request(other, &["remove", &ids[gone].to_string()]).ok();
    has(&cluster, other, &format!("INFO  node removed node={}", ids[gone]));
}
