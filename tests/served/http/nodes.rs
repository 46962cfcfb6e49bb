//! A cluster of two nodes on loopback, and the status that they report: roles, lag, elections, and
//! fsync latency.

use serde_json::Value;
use testing::{Loopback, Scratch, Server, eventually, run_latchfs};

/// A cluster of a leader and a learner.
pub(crate) struct Nodes {
    pub(crate) leader: Server,
    pub(crate) learner: Server,
    cluster: Loopback,
    _scratch: Scratch,
}

impl Nodes {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        let mut cluster = Loopback::begin(scratch.path());
        let (leader, learner) = (cluster.node(&[]), cluster.node(&[]));
        let nodes = Self { leader, learner, cluster, _scratch: scratch };
        eventually("a learner that has caught up", || {
            let said = nodes.status();
            let [first, second] = &said["nodes"].as_array()?[..] else { return None };
            let is_there = second["role"] == "learner" && second["reachable"] == true;
            (is_there && first["last_log"] == second["applied"]).then_some(())
        });
        nodes
    }

    /// Starts a third node, and waits until all three are voters.
    #[track_caller]
    pub(crate) fn third(&mut self) -> Server {
        let third = self.cluster.node(&[]);
        self.leader.voters(3);
        third
    }

    /// Returns the cluster status that the leader reports.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        self.leader.curl(&["/cluster"]).is(200)
    }
}

/// Returns the value of a metric in a metrics page, by the metric's name with labels.
#[track_caller]
fn metric(page: &str, name: &str) -> String {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).to_owned()
}

/// The fsync latency of each node is in its own metrics, and in the cluster status of every node.
#[test]
fn fsync_latency_is_reported() {
    let nodes = Nodes::start();
    nodes.leader.curl(&["-X", "POST", "/locks/a?client=x"]).is(200);
    for server in [&nodes.leader, &nodes.learner] {
        let page = server.curl(&["/metrics"]).body;
        let count: u64 = metric(&page, "latchfs_log_sync_seconds_count").parse().expect("a count");
        let most = metric(&page, "latchfs_log_sync_seconds_bucket{le=\"+Inf\"}");
        assert!(count > 0 && most == count.to_string(), "{page}");
        assert!(page.contains("latchfs_log_sync_seconds_bucket{le=\"5e-05\"} "), "{page}");
        // The metrics page also has histograms of other durations, such as how long locks are held.
        // Their bucket bounds differ from those of the fsync latency.
        assert!(page.contains("latchfs_hold_seconds_bucket{le=\"0.001\"} "), "{page}");
        assert!(page.contains("latchfs_hold_seconds_bucket{le=\"43200\"} "), "{page}");
        let said = server.curl(&["/cluster"]).is(200);
        for node in said["nodes"].as_array().expect("a list") {
            let [median, worst] =
                ["sync_median_us", "sync_worst_us"].map(|field| node[field].as_u64());
            assert!(median > Some(0) && median <= worst, "{said}");
        }
    }
    let (code, said) = run_latchfs(&["cluster", "status", "--server", &nodes.leader.url]);
    assert!(code == Some(0) && said.contains("  SYNC ") && said.contains("ms  now\n"), "{said}");
}

/// Leader and learner report lag and elections in status and metrics, even when a node fails.
#[test]
fn lag_and_elections_are_reported() {
    let mut nodes = Nodes::start();
    let said = nodes.status();
    let id = said["nodes"][1]["id"].clone();
    assert_eq!((&said["nodes"][0]["lag"], said["nodes"][1]["lag"].is_u64()), (&0.into(), true));
    assert_eq!((&said["elections"], said["elected_ms_ago"].is_u64()), (&1.into(), true), "{said}");
    let page = nodes.leader.curl(&["/metrics"]).body;
    assert_eq!(metric(&page, "latchfs_cluster_elections_total"), "1");
    assert_eq!(metric(&page, "latchfs_cluster_nodes{role=\"voter\"}"), "1");
    assert_eq!(metric(&page, "latchfs_cluster_nodes{role=\"learner\"}"), "1");
    let (lag, heard) = (
        format!("latchfs_cluster_lag{{node=\"{id}\"}}"),
        format!("latchfs_cluster_heard_seconds{{node=\"{id}\"}}"),
    );
    metric(&page, &heard);
    metric(&page, "latchfs_cluster_elected_seconds");
    // A learner reports its own lag only; `latchfs_cluster_heard_seconds` is a metric of the
    // leader.
    let page = nodes.learner.curl(&["/metrics"]).body;
    metric(&page, &lag);
    assert!(!page.contains("latchfs_cluster_heard_seconds"), "{page}");
    assert_eq!(metric(&page, "latchfs_cluster_votes"), "0");
    // The leader reports for each node how many log entries it lags behind. The lag of a node that
    // is down grows with each new entry.
    nodes.learner.signal(libc::SIGKILL);
    nodes.learner.wait();
    for number in 0..5 {
        nodes.leader.curl(&["-X", "POST", &format!("/locks/lock{number}?client=x")]).is(200);
    }
    eventually("it is behind", || {
        let page = nodes.leader.curl(&["/metrics"]).body;
        (metric(&page, &lag).parse::<u64>().ok()? >= 5).then_some(())
    });
    let said = nodes.status();
    let gone = &said["nodes"][1];
    assert!(gone["reachable"] == false && gone["lag"].as_u64() >= Some(5), "{said}");
    let (_, said) = run_latchfs(&["cluster", "status", "--server", &nodes.leader.url]);
    assert!(said.contains("has seen 1 election since its start"), "{said}");
}

/// A reader of events goes on at another node by the id of the last event that it saw: it misses
/// none, and sees none twice.
#[test]
fn reader_of_events_goes_on_at_another_node() {
    let nodes = Nodes::start();
    let locks = 6;
    let mut at_leader = nodes.leader.events(&["/events?prefix=lock"]);
    let mut at_learner = nodes.learner.events(&["/events?prefix=lock"]);
    for number in 0..locks {
        nodes.leader.curl(&["-X", "POST", &format!("/locks/lock{number}?client=x")]).is(200);
    }
    let seen: Vec<_> = (0..locks).map(|_| at_leader.until("granted")).collect();
    let also: Vec<_> = (0..locks).map(|_| at_learner.until("granted")).collect();
    let ids = |events: &[testing::Event]| -> Vec<String> {
        events.iter().map(|event| event.id.clone()).collect()
    };
    assert_eq!(ids(&seen), ids(&also), "each node gives an event the same id");
    for (last, event) in seen.iter().enumerate() {
        let header = format!("Last-Event-ID: {}", event.id);
        let mut goes_on = nodes.learner.events(&["-H", &header, "/events?prefix=lock"]);
        nodes.leader.curl(&["-X", "DELETE", &format!("/locks/lock{last}?client=x")]).is(200);
        for next in &seen[last + 1..] {
            assert_eq!(goes_on.event().id, next.id);
        }
        for released in 0..=last {
            let event = goes_on.event();
            let name = format!("lock{released}");
            assert_eq!((&*event.kind, &event.data["name"]), ("released", &Value::from(name)));
        }
    }
    // A node that has no record of the id says that events may be missing.
    let cluster = seen[0].id.split('.').next().expect("a cluster");
    let header = format!("Last-Event-ID: {cluster}.1.0");
    let mut old = nodes.learner.events(&["-H", &header, "/events"]);
    assert_eq!(old.event().kind, "lost");
}

/// Returns doctor's findings about the cluster: the level, text and advice of each.
#[track_caller]
fn doctor(url: &str) -> Vec<(String, String, String)> {
    let (_, said) = run_latchfs(&["doctor", "--json", "--server", url]);
    let found: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = found["findings"].as_array().expect("a list").iter();
    let ours = findings.filter(|finding| finding["check"] == "cluster");
    let ours = ours.map(|one| (text(one, "level"), text(one, "says"), text(one, "fix")));
    // A finding about a slow disk is ignored, because the disk of a busy test machine may really be
    // slow.
    ours.filter(|(_, says, _)| !says.starts_with("the disk of node")).collect()
}

#[test]
fn doctor_finds_problems_of_nodes() {
    let mut nodes = Nodes::start();
    let (leader, learner) = (nodes.leader.url.clone(), nodes.learner.url.clone());
    for url in [leader.clone(), format!("{learner},{leader}")] {
        let found = doctor(&url);
        let [(level, says, fix)] = &found[..] else { panic!("{found:?}") };
        assert!(level == "odd" && says.contains("learns and does not vote"), "{says}");
        assert!(fix.contains("start a third"), "{fix}");
    }
    let id = nodes.status()["nodes"][1]["id"].to_string();
    let force = ["cluster", "join", &id, "--force", "--server", &leader];
    assert_eq!(run_latchfs(&force).0, Some(0));
    let found = doctor(&learner);
    assert!(found.len() == 1 && found[0].1.contains("neither may fail"), "{found:?}");
    nodes.learner.signal(libc::SIGKILL);
    nodes.learner.wait();
    let found = eventually("it is missed", || {
        // `doctor` is given the URLs of the learner, which has been killed, and of the leader.
        let found = doctor(&format!("{learner},{leader}"));
        (found.len() == 3).then_some(found)
    });
    assert!(found[0].1.contains("1 of 2 voters answer"), "{found:?}");
    assert!(found[1].1.contains("does not answer"), "{found:?}");
    assert!(found[0].2.contains("latchfs cluster recover"), "{found:?}");
    // Without a majority no node can be removed.
    assert!(!found[1].2.contains("cluster remove"), "{found:?}");
    // Doctor has no findings about nodes if the server is not a node of a cluster.
    let server = Server::listen(&["--memory", "--grant-at-once"]);
    assert_eq!(doctor(&server.url), []);
}
