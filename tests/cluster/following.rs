//! Events of a cluster, followed by a command whose node dies: every event comes once, or the
//! command says how many are missing.

use crate::net::{LATCHFS, Program, eventually};
use crate::nodes::{Cluster, talk};
use serde_json::Value;
use std::time::Duration;

/// Starts `latchfs events` with these servers, and waits until it shows events.
fn follow(cluster: &Cluster, servers: &str) -> Program {
    let mut command = cluster.clients.command(LATCHFS);
    let reader = Program::start(command.args(["events", "--json", "--server", servers]));
    eventually("its first event", || {
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
        let code = eventually("an answer", code);
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
fn a_reader_that_is_far_behind_when_its_node_dies_learns_the_true_number() {
    const PAIRS: usize = 5_000;
    let mut cluster = Cluster::of(3);
    let urls = cluster.urls();
    let reader = follow(&cluster, &urls.join(","));
    let witness = follow(&cluster, &urls[1]);
    pair(&cluster, 1, "begin");
    crate::support::signal(reader.pid(), libc::SIGSTOP);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            cluster.clients.enter();
            let mut talk = talk(&urls[1..=1], 0);
            for number in 0..PAIRS {
                for method in ["POST", "DELETE"] {
                    let path = format!("/locks/lock-{number}?client=a");
                    assert_eq!(talk.request(method, &path).expect("it is up").0, 200);
                }
            }
        });
        writer.join().expect("no panic");
    });
    cluster.nodes[0].daemon.kill();
    crate::support::signal(reader.pid(), libc::SIGCONT);
    pair(&cluster, 1, "end");
    let (all, none) = seen(&witness);
    assert_eq!((all.len(), none), (2 * PAIRS + 2, 0));
    let (events, lost) = seen(&reader);
    assert!(lost > 0 && events.len() > 4_000, "{} and {lost} lost", events.len());
    assert_eq!(events.len() as u64 + lost, all.len() as u64);
    let is_same = events[events.len() - 4_000..] == all[all.len() - 4_000..];
    assert!(is_same, "none is missing later");
}
