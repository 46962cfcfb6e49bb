//! The audit logs of a cluster: complete after crashes, without repetitions, and written without a
//! delay for other requests.

use crate::load::now;
use latchfs::time::Wall;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use testing::nodes::{Cluster, talk};
use testing::{eventually_in_cluster, run};

/// The number of locks that the reset ends, unless `LATCHFS_RESET_HOLDS` says otherwise.
const HOLDS: usize = 10_000;
/// The number of clients that acquire them.
const CLIENTS: usize = 50;
/// The longest time in microseconds for which the reset may delay another request, in a debug build
/// on a loaded machine.
const DELAY_MAX_US: u64 = 1_000_000;
/// The same for the long form of the test: a release build without other load.
const LONG_DELAY_MAX_US: u64 = 200_000;

/// Returns the lines of a file in the data directory of node `at`.
fn lines(cluster: &Cluster, at: usize, file: &str) -> Vec<Value> {
    let text = text(cluster, at, file);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the text of a file in the data directory of node `at`.
fn text(cluster: &Cluster, at: usize, file: &str) -> String {
    let path = cluster.nodes[at].machine.path("data").join(file);
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the number of lines that record a hold that was taken. While the nodes are measured,
/// this leaves the processors to them: it parses no JSON.
fn steals_in(text: &str) -> usize {
    text.lines().filter(|line| line.contains(r#""operation":"steal""#)).count()
}

/// Returns the number of holds that the audit log of node `at` says were taken.
fn ended(cluster: &Cluster, at: usize) -> usize {
    lines(cluster, at, "audit.log").iter().filter(|line| line["operation"] == "steal").count()
}

/// Acquires `holds` locks through node `at`, all for one client.
fn acquire(cluster: &Cluster, at: usize, holds: usize) {
    let urls = cluster.urls();
    let acquire = |client: usize| {
        cluster.clients.enter();
        let mut talk = talk(&urls[at..=at], 0);
        for number in 0..holds / CLIENTS {
            let path = format!("/locks/n{client}-{number}?client=gone&ttl=1h");
            assert_eq!(talk.request("POST", &path).expect("it is up").0, 200);
        }
    };
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|client| drop(scope.spawn(move || acquire(client))));
    });
}

/// A reset of many locks writes a record for each. Meanwhile other requests are answered, and the
/// leader keeps its place.
#[test]
fn a_reset_of_many_locks_delays_no_other_request() {
    let wanted = std::env::var("LATCHFS_RESET_HOLDS").ok();
    let delay_max = if wanted.is_some() { LONG_DELAY_MAX_US } else { DELAY_MAX_US };
    let holds = wanted.map_or(HOLDS, |count| count.parse().expect("a number"));
    let mut cluster = Cluster::of(3);
    let urls = cluster.urls();
    let leader = cluster.leader();
    let (slowest, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let elections = || cluster.status(leader)?["elections"].as_u64();
    std::thread::scope(|scope| {
        acquire(&cluster, leader, holds);
        let before = eventually_in_cluster("elections", elections);
        for at in 0..3 {
            let (cluster, urls, slowest, is_over) = (&cluster, &urls, &slowest, &is_over);
            scope.spawn(move || {
                cluster.clients.enter();
                let mut talk = talk(&urls[at..=at], 0);
                let path = format!("/locks/other{at}?client=here&reentrant=1&ttl=1h");
                while !is_over.load(Ordering::Relaxed) {
                    let asked = now();
                    assert_eq!(talk.request("POST", &path).expect("it is up").0, 200);
                    slowest.fetch_max(now() - asked, Ordering::Relaxed);
                }
            });
        }
        let follower = (leader + 1) % 3;
        let asked = now();
        let reset = ["reset", "--keep", "here", "--reason", "it left"];
        let said = cluster.request(follower, &reset);
        // If the test fails, the other clients end.
        is_over.store(said.code != 0, Ordering::Relaxed);
        let said = said.ok();
        println!("the reset took {} ms", (now() - asked) / 1_000);
        assert_eq!(said, format!("ended {} holds and 0 waits\n", holds / CLIENTS * CLIENTS));
        // The node that was asked answers when its records are on the disk.
        let written = steals_in(&text(&cluster, follower, "audit.log"));
        assert_eq!(written, holds / CLIENTS * CLIENTS);
        // The locks are free when the steal grace of all of them is over.
        eventually_in_cluster("all are free", || {
            let path = "/locks/n0-0?client=next&ttl=1h";
            (cluster.curl(leader, "POST", path).0 == 200).then_some(())
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(eventually_in_cluster("elections", elections), before, "no election");
    });
    let slowest = slowest.load(Ordering::Relaxed);
    println!("the slowest other request took {} ms", slowest / 1_000);
    assert!(slowest < delay_max, "{slowest} us");
    for at in 0..3 {
        eventually_in_cluster("all records", || {
            let written = steals_in(&text(&cluster, at, "audit.log"));
            (written == holds / CLIENTS * CLIENTS).then_some(())
        });
        assert_eq!(ended(&cluster, at), holds / CLIENTS * CLIENTS);
    }
    cluster.join();
    let join = cluster.nodes.len() - 1;
    eventually_in_cluster("it has joined", || {
        let log = cluster.nodes[join].daemon.log();
        log.contains("member of the cluster").then_some(())
    });
    for at in 0..=join {
        let log = cluster.nodes[at].daemon.log();
        let steals = log.lines().filter(|line| line.contains(" lock stolen ")).count();
        println!("node {at}: {} lines, {steals} of them on steals", log.lines().count());
        // The leader writes 100 lines of each kind in a second.
        let (lines_max, steals_max) = if at == leader { (5_000, 2_000) } else { (100, 0) };
        assert!(log.lines().count() <= lines_max && steals <= steals_max, "{log}");
    }
}

/// The leader is killed during a reset. The administrator learns how many holds have ended, or that
/// this is unknown. A repeat ends the rest, and each hold ends once.
#[test]
fn a_repeat_finishes_a_reset_whose_leader_is_killed() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader();
    acquire(&cluster, leader, HOLDS);
    let follower = (leader + 1) % 3;
    let reset = ["reset", "--of", "gone", "--reason", "it left"];
    let ended = |at| steals_in(&text(&cluster, at, "audit.log"));
    let first = std::thread::scope(|scope| {
        let asking = scope.spawn(|| cluster.request(follower, &reset));
        while ended(leader) == 0 {
            std::thread::yield_now();
        }
        let pid = cluster.nodes[leader].daemon.pid().to_string();
        run(Command::new("kill").args(["-KILL", &pid])).ok();
        asking.join().expect("it ends")
    });
    println!("{} holds had ended when the leader was killed; {first:?}", ended(leader));
    let is_known = first.code == 0 && first.out.starts_with("ended ");
    assert!(is_known || first.err.contains("the outcome is unknown"), "{first:?}");
    eventually_in_cluster("the rest has ended", || {
        (cluster.request(follower, &reset).code == 0).then_some(())
    });
    assert_eq!(ended(follower), HOLDS);
    cluster.nodes[leader].daemon.kill();
    cluster.nodes[leader].daemon.restart();
    for at in 0..3 {
        eventually_in_cluster("all records", || {
            (steals_in(&text(&cluster, at, "audit.log")) == HOLDS).then_some(())
        });
    }
}

/// Each node records a steal and an expired lease once, at the time at which it happened, however
/// often the node is killed.
#[test]
fn audit_records_are_written_once_and_with_their_times() {
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.curl(0, "POST", "/locks/short?client=ann&ttl=1s&grace=0s").0, 200);
    let waits = "/locks/short?client=bob&ttl=1h&wait=1m";
    assert_eq!(cluster.curl(1, "POST", waits).0, 200);
    assert_eq!(cluster.curl(0, "POST", "/locks/build?client=ann&ttl=1h").0, 200);
    let url = cluster.nodes[1].machine.url();
    let steal = ["steal", "build", "--reason", "ann left", "--client", "root", "--server", &url];
    cluster.latchfs(&steal).ok();
    let stolen = seconds_of_day(&Wall::now().to_string());
    let own = |cluster: &Cluster, at: usize, file: &str, act: &str| {
        let all = lines(cluster, at, file).into_iter();
        let acts: Vec<_> = all.filter(|line| line["operation"] == act).collect();
        let [one] = &acts[..] else { panic!("node {at}: {acts:#?}") };
        one.clone()
    };
    cluster.agree();
    for _ in 0..3 {
        for at in 0..3 {
            let steal = own(&cluster, at, "audit.log", "steal");
            assert_eq!((&steal["from"], &steal["actor"]), (&"ann".into(), &"root".into()));
            let expired = own(&cluster, at, "expired.log", "expire");
            assert_eq!((&expired["from"], &expired["actor"]), (&"ann".into(), &"bob".into()));
            let recorded = seconds_of_day(steal["timestamp"].as_str().expect("a time"));
            assert!((recorded - stolen).abs() < 2.0, "node {at}: {recorded}, and not {stolen}");
        }
        for at in 0..3 {
            cluster.nodes[at].daemon.kill();
            cluster.nodes[at].daemon.restart();
            cluster.voters(3);
        }
        cluster.agree();
    }
}

/// Returns the time of day, in seconds, of a time in RFC 3339.
pub(crate) fn seconds_of_day(time: &str) -> f64 {
    let (_, day) = time.trim_end_matches('Z').split_once('T').expect("a date and a time");
    let parts: Vec<f64> = day.split(':').map(|part| part.parse().expect("a number")).collect();
    parts[0] * 3_600.0 + parts[1] * 60.0 + parts[2]
}
