//! Wall clocks that jump by an hour, those of each node separately, while leases run and the leader
//! changes: no lease expires early, and leases still expire.

use crate::audit::seconds_of_day;
use crate::load::now;
use latchfs::time::Wall;
use std::fs;
use std::path::{Path, PathBuf};
use testing::eventually_in_cluster;
use testing::net::{Daemon, Machine};
use testing::nodes::{Cluster, options};

/// Returns the file that holds the offset of a machine's wall clock.
fn clock(machine: &Machine) -> PathBuf {
    machine.path("clock")
}

/// Sets the offset of a machine's wall clock.
fn set(machine: &Machine, wrong: &str) {
    fs::write(clock(machine), wrong).expect("the scratch directory is ours");
}

/// Returns the environment variables that make a program read the shifted wall clock and the real
/// monotonic clock.
fn environment(machine: &Machine) -> Vec<(&'static str, String)> {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    assert!(Path::new(library).exists(), "libfaketime is missing; contrib/test installs it");
    set(machine, "+0");
    vec![
        ("LD_PRELOAD", library.to_owned()),
        ("FAKETIME_TIMESTAMP_FILE", clock(machine).display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

#[test]
fn jumps_of_wall_clocks_do_not_affect_leases() {
    let mut cluster = Cluster::of(3);
    for at in 0..3 {
        let machine = cluster.nodes[at].machine.clone();
        cluster.nodes[at].daemon.kill();
        let (args, environment) = (options(&machine, "data", &[]), environment(&machine));
        cluster.nodes[at].daemon = Daemon::start_with(&machine, args, "listening", environment);
        cluster.voters(3);
    }
    for (round, wrong) in ["+1h", "-1h", "-1h", "+1h"].into_iter().enumerate() {
        let leader = cluster.leader();
        let path = |who: &str| format!("/locks/clock{round}?client={who}&ttl=2s&grace=0s");
        let asked = now();
        assert_eq!(cluster.curl(leader, "POST", &path("ann")).0, 200);
        let granted = now();
        // In even rounds the wall clock of the current leader jumps, in odd rounds that of the next
        // leader.
        let next = (leader + 1) % 3;
        set(&cluster.nodes[if round % 2 == 0 { leader } else { next }].machine, wrong);
        cluster.request(leader, &["transfer", &cluster.id(next).to_string()]).ok();
        let (code, seen) = cluster.curl(next, "GET", &format!("/locks/clock{round}"));
        if now() - asked < 1_900_000 {
            assert_eq!((code, &seen["holder"]), (200, &"ann".into()), "{seen}");
        }
        eventually_in_cluster("it is free", || {
            (cluster.curl(next, "POST", &path("bob")).0 == 200).then_some(())
        });
        let after = now();
        assert!(after - asked >= 2_000_000, "{wrong}: granted after {} us", after - asked);
        // A change of the leader stretches the lease by about an election timeout at most.
        assert!(after - granted < 8_000_000, "{wrong}: freed after {} us", after - granted);
    }
    let shown = cluster.curl(0, "GET", "/locks/clock0").1;
    assert_eq!(shown["phase"], "free", "{shown}");
}

/// All nodes show the same times, which are those of the wall clock, after each change of the
/// leader and each restart.
#[test]
fn all_nodes_show_the_same_times() {
    let mut cluster = Cluster::of(3);
    let wall = || seconds_of_day(&Wall::now().to_string());
    let mut acquired = Vec::new();
    for round in 0..4 {
        let (name, before) = (format!("/locks/times{round}"), wall());
        eventually_in_cluster("granted", || {
            let path = format!("{name}?client=ann&ttl=1h&reentrant=1");
            (cluster.curl(round % 3, "POST", &path).0 == 200).then_some(())
        });
        acquired.push((name, (before, wall())));
        for at in 0..3 {
            for (name, (before, after)) in &acquired {
                let seen = eventually_in_cluster("it answers", || {
                    let (code, seen) = cluster.curl(at, "GET", name);
                    (code == 200).then_some(seen)
                });
                let shown = seconds_of_day(seen["acquired_at"].as_str().expect("a time"));
                let is_right = (before - 1.0..after + 1.0).contains(&shown);
                assert!(is_right, "round {round}, node {at}: {shown}, not {before} to {after}");
            }
        }
        let leader = cluster.leader();
        if round % 2 == 0 {
            cluster.nodes[leader].daemon.kill();
            cluster.leader();
            cluster.nodes[leader].daemon.restart();
        } else {
            cluster.request(leader, &["transfer"]).ok();
        }
        cluster.voters(3);
    }
}
