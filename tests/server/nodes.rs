//! Nodes of one cluster on loopback, and what each shows of all: how they stand, how long their
//! disks take.

use crate::harness::{Scratch, Server, eventually, latchfs};
use serde_json::Value;

/// One that leads, and one that learns.
pub(crate) struct Nodes {
    pub(crate) leader: Server,
    pub(crate) learner: Server,
    _scratch: Scratch,
}

impl Nodes {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        let data = |name: &str| scratch.path().join(name).display().to_string();
        let (first, second) = (data("first"), data("second"));
        // Who begins a cluster is alone.
        drop(Server::listen(&["--data", &first]));
        let peers = ["--peer-listen", "127.0.0.1:0"];
        let leader = Server::listen(&[&["--data", first.as_str()], &peers[..]].concat());
        let address = eventually("an address", || {
            let said = leader.curl(&["/cluster"]).is(200);
            said["nodes"][0]["address"].as_str().filter(|address| !address.is_empty())?;
            said["nodes"][0]["address"].as_str().map(str::to_owned)
        });
        let joins = ["--data", &second, "--seed", &address];
        let learner = Server::listen(&[&joins[..], &peers].concat());
        let nodes = Self { leader, learner, _scratch: scratch };
        eventually("a learner that has caught up", || {
            let said = nodes.status();
            let [first, second] = &said["nodes"].as_array()?[..] else { return None };
            let is_there = second["role"] == "learner" && second["reachable"] == true;
            (is_there && first["last_log"] == second["applied"]).then_some(())
        });
        nodes
    }

    /// How they stand, as the leader says.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        self.leader.curl(&["/cluster"]).is(200)
    }
}

/// The value of a line of metrics, by all of it that comes before.
#[track_caller]
fn metric(page: &str, name: &str) -> String {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).to_owned()
}

/// How long the disk of each node takes is told by itself, and by those that ask it.
#[test]
fn syncs_are_timed() {
    let nodes = Nodes::start();
    nodes.leader.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
    for server in [&nodes.leader, &nodes.learner] {
        let page = server.curl(&["/metrics"]).body;
        let count: u64 = metric(&page, "latchfs_log_sync_seconds_count").parse().expect("a count");
        let most = metric(&page, "latchfs_log_sync_seconds_bucket{le=\"+Inf\"}");
        assert!(count > 0 && most == count.to_string(), "{page}");
        assert!(page.contains("latchfs_log_sync_seconds_bucket{le=\"0.00005\"} "), "{page}");
        // As it was before there were finer bounds.
        assert!(page.contains("latchfs_hold_seconds_bucket{le=\"0.001\"} "), "{page}");
        assert!(page.contains("latchfs_hold_seconds_bucket{le=\"43200.000\"} "), "{page}");
        let said = server.curl(&["/cluster"]).is(200);
        for node in said["nodes"].as_array().expect("a list") {
            let [median, worst] =
                ["sync_median_us", "sync_worst_us"].map(|field| node[field].as_u64());
            assert!(median > Some(0) && median <= worst, "{said}");
        }
    }
    let (code, said) = latchfs(&["cluster", "status", "--server", &nodes.leader.url]);
    assert!(code == Some(0) && said.contains("  SYNC ") && said.contains("ms  now\n"), "{said}");
}
