//! Events of a cluster, followed by a command or in a mount whose node dies: every event comes
//! once, or the reader is told how many are missing.

use serde_json::Value;
use std::time::Duration;
use testing::net::{Mount, Program};
use testing::nodes::{Cluster, talk};
use testing::{eventually_in_cluster, latchfs_path};

/// Starts `latchfs events` with these servers, and waits until it shows events.
fn follow(cluster: &Cluster, servers: &str) -> Program {
    let mut command = cluster.clients.command(latchfs_path());
    let reader = Program::start(command.args(["events", "--json", "--server", servers]));
    eventually_in_cluster("its first event", || {
        pair(cluster, 1, "before");
        reader.line_within(Duration::from_millis(100))
    });
    reader
}

/// Starts a reader of the events in a mount, and waits until it shows events.
fn follow_mount(cluster: &Cluster, mount: &Mount) -> Program {
    let mut command = mount.machine.command("cat");
    let reader = Program::start(command.arg(mount.dir().join(".latchfs/events")));
    eventually_in_cluster("its first event", || {
        pair(cluster, 1, "before");
        reader.line_within(Duration::from_millis(100))
    });
    reader
}

/// Takes a lock by node `at`, and gives it back. Each request is repeated while there is no leader.
fn pair(cluster: &Cluster, at: usize, name: &str) {
    for (method, more) in [("POST", "&reentrant=1"), ("DELETE", "")] {
        let path = format!("/locks/{name}?client=a{more}");
        let code = || Some(cluster.curl(at, method, &path).0).filter(|code| *code != 503);
        let code = eventually_in_cluster("an answer", code);
        // An earlier try may have given it back.
        assert!(code == 200 || (method, code) == ("DELETE", 403), "{method} {code}");
    }
}

/// Returns the events of a reader from the lock `begin` on and up to the lock `end`, and the number
/// of those that it was reported to have lost. Numbers and times of an event are those of a node.
fn seen(reader: &Program) -> (Vec<Value>, u64) {
    let (mut events, mut lost, mut has_begun) = (Vec::new(), 0, false);
    loop {
        let mut event: Value = serde_json::from_str(&reader.line()).expect("JSON");
        has_begun |= event["name"] == "begin";
        if event["event"] == "lost" {
            let count = event["count"].as_u64().expect("a number");
            assert_ne!(count, 0, "the number is known");
            lost += count;
        } else if event["name"] == "end" {
            return (events, lost);
        } else if has_begun {
            let fields = event.as_object_mut().expect("an object");
            fields.retain(|name, _| name != "n" && name != "at");
            events.push(event);
        }
    }
}

#[test]
fn a_reader_of_events_moves_between_nodes_without_loss_or_repeat() {
    let mut cluster = Cluster::of(3);
    let urls = cluster.urls();
    // The first learns the other nodes from the one that it names.
    let readers = [&*urls[0], &urls.join(",")].map(|servers| follow(&cluster, servers));
    let witness = follow(&cluster, &urls[1]);
    pair(&cluster, 1, "begin");
    for round in 0..2 {
        for number in 0..60 {
            pair(&cluster, 1, &format!("lock-{round}-{number}"));
            if number == 30 {
                cluster.nodes[if round == 0 { 0 } else { 2 }].daemon.kill();
            }
        }
        cluster.nodes[if round == 0 { 0 } else { 2 }].daemon.restart();
        cluster.voters(3);
    }
    pair(&cluster, 1, "end");
    let (wanted, lost) = seen(&witness);
    assert!(wanted.len() >= 2 * 121 && lost == 0, "{} {lost}", wanted.len());
    for reader in &readers {
        let (events, lost) = seen(reader);
        let differs = events.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
        assert_eq!((differs, events.len(), lost), (None, wanted.len(), 0));
    }
}

#[test]
fn events_of_a_mount_go_on_when_it_moves_to_another_node() {
    let mut cluster = Cluster::of(3);
    let urls = cluster.urls();
    let orders = [[0, 2, 1], [2, 0, 1]].map(|order| order.map(|at| &*urls[at]).join(","));
    let mounts = orders.map(|servers| cluster.net.machine().mount(&servers, ""));
    let readers = [0, 1].map(|at| follow_mount(&cluster, &mounts[at]));
    let witness = follow(&cluster, &urls[1]);
    pair(&cluster, 1, "begin");
    for (round, dies) in [0, 2].into_iter().enumerate() {
        for number in 0..60 {
            pair(&cluster, 1, &format!("lock-{round}-{number}"));
            if number == 30 {
                cluster.nodes[dies].daemon.kill();
            }
        }
        for mount in &mounts {
            mount.is("connected");
        }
        cluster.nodes[dies].daemon.restart();
        cluster.voters(3);
    }
    pair(&cluster, 1, "end");
    let (wanted, lost) = seen(&witness);
    assert!(wanted.len() >= 2 * 121 && lost == 0, "{} {lost}", wanted.len());
    for (reader, mount) in readers.iter().zip(&mounts) {
        let (events, lost) = seen(reader);
        let differs = events.iter().zip(&wanted).position(|(seen, wanted)| seen != wanted);
        assert_eq!((differs, events.len(), lost), (None, wanted.len(), 0));
        assert!(mount.daemon.log().contains("failover from"), "it has moved");
    }
}

/// Kills the node of a reader that follows the events of a cluster, after it was stopped while more
/// happened than is kept. `stopped` is the process to stop.
fn learns_the_true_number(cluster: &mut Cluster, reader: &Program, stopped: i32) {
    const PAIRS: usize = 5_000;
    const WRITERS: usize = 10;
    let urls = cluster.urls();
    let witness = follow(cluster, &urls[1]);
    pair(cluster, 1, "begin");
    testing::signal(stopped, libc::SIGSTOP);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (urls, clients) = (&urls[1..=1], &cluster.clients);
            scope.spawn(move || {
                clients.enter();
                let mut talk = talk(urls, 0);
                for number in 0..PAIRS / WRITERS {
                    for method in ["POST", "DELETE"] {
                        let path = format!("/locks/lock-{writer}-{number}?client=a");
                        assert_eq!(talk.request(method, &path).expect("it is up").0, 200);
                    }
                }
            });
        }
    });
    cluster.nodes[0].daemon.kill();
    testing::signal(stopped, libc::SIGCONT);
    pair(cluster, 1, "end");
    let (all, none) = seen(&witness);
    // Sessions of mounts have events as well.
    assert!(all.len() >= 2 * PAIRS + 2 && none == 0, "{} and {none} lost", all.len());
    let (events, lost) = seen(reader);
    assert!(lost > 0 && events.len() > 4_000, "{} and {lost} lost", events.len());
    assert_eq!(events.len() as u64 + lost, all.len() as u64);
    let is_same = events[events.len() - 4_000..] == all[all.len() - 4_000..];
    assert!(is_same, "none is missing later");
}

#[test]
fn a_reader_that_is_far_behind_when_its_node_dies_learns_the_true_number() {
    let mut cluster = Cluster::of(3);
    let reader = follow(&cluster, &cluster.urls().join(","));
    learns_the_true_number(&mut cluster, &reader, reader.pid());
}

#[test]
fn a_mount_that_is_far_behind_when_its_node_dies_learns_the_true_number() {
    let mut cluster = Cluster::of(3);
    let mount = cluster.net.machine().mount(&cluster.urls().join(","), "--ttl 10m");
    let reader = follow_mount(&cluster, &mount);
    learns_the_true_number(&mut cluster, &reader, mount.daemon.pid());
}
