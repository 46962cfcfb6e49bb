//! Seed 003, "Basics": nodes that are connected to each other grant a lock by a majority.

use crate::seeds::cluster::Cluster;
use serde_json::Value;
use std::thread;
use testing::eventually;

// "Obtaining a lock is possible only if half of the "up" nodes have replied to the lock request."
// "As soon as at least 50%+1 of the known nodes have replied OK, the node will confirm to its
// client that the lock could be obtained."
// "Not connected nodes are considered temporarily down, but are still counted in the lock acquiring
// algo."
#[test]
fn a_lock_needs_a_majority_of_all_known_nodes() {
    let cluster = Cluster::of_three(&[]);
    let leader = cluster.leader();
    let (follower, other) = cluster.followers();
    let node = &cluster.nodes[leader].server;
    // One of three is down: two of three are a majority.
    cluster.silence(other, true);
    node.curl(&["-X", "POST", "/locks/two?client=a"]).is(200);
    // Two of three are down. They still count, so one is no majority.
    cluster.silence(follower, true);
    let refused = node.curl(&["-X", "POST", "/locks/one?client=a"]).is(503);
    assert_eq!(refused["kind"], "E_CONSISTENCY_UNAVAILABLE");
    cluster.silence(follower, false);
    cluster.silence(other, false);
    eventually("a majority again", || {
        (node.curl(&["-X", "POST", "/locks/again?client=a"]).code == 200).then_some(())
    });
}

// "If two nodes are requesting the same lock at the same time, only one will be able to get 50%+1
// of the locks."
// "When a lock refuses a lock, it will transmit the ID of the winning lock."
//
// The refusal names the winner's request (`request`), and the token of its tenure: no other grant
// of the cluster has that token.
#[test]
fn refusal_has_the_request_and_the_token_of_the_winner() {
    let cluster = Cluster::of_three(&[]);
    for round in 0..5 {
        let path = format!("/locks/race{round}?client=");
        let answers: Vec<(u16, Value)> = thread::scope(|scope| {
            let race = |at: usize| {
                let (server, path) = (&cluster.nodes[at].server, format!("{path}client{at}"));
                let key = format!("Idempotency-Key: race{round}-of-client{at}");
                scope.spawn(move || {
                    let reply = server.curl(&["-X", "POST", "-H", &key, &path]);
                    (reply.code, reply.json())
                })
            };
            let racers: Vec<_> = (0..3).map(race).collect();
            racers.into_iter().map(|racer| racer.join().expect("no failure")).collect()
        });
        let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|(code, _)| *code == 200);
        let [(_, winner)] = won[..] else { panic!("{answers:?}") };
        for (code, refused) in lost {
            assert_eq!(*code, 409, "{refused}");
            assert_eq!(refused["token"], winner["token"], "{refused}");
            assert_eq!(refused["holder"], winner["holder"], "{refused}");
            let of = winner["holder"].as_str().expect("a client");
            assert_eq!(refused["request"], format!("race{round}-of-{of}"), "{refused}");
        }
    }
    // A winner without an ID has none to transmit, and the request that waited has its own.
    let [node, other, third] = [0, 1, 2].map(|at| &cluster.nodes[at].server);
    node.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let refused = other.curl(&["-X", "POST", "/locks/build?client=b"]).is(409);
    assert_eq!(refused.get("request"), None, "{refused}");
    let key = "Idempotency-Key: queued";
    let waits = other.open(&["-X", "POST", "-H", key, "/locks/build?client=b&wait=60s"]);
    other.in_line("build", 1);
    node.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    waits.reply().is(200);
    let refused = third.curl(&["-X", "POST", "/locks/build?client=c"]).is(409);
    assert_eq!(refused["request"], "queued", "{refused}");
    // The seed's ID is for the one that has lost: it sees that the winner is its own request.
    let repeated =
        third.curl(&["-X", "POST", "-H", "Idempotency-Key: c-1", "/locks/build?client=c"]);
    assert_eq!(repeated.is(409)["request"], "queued");
}

// "If the node's local database already contains a lock with the same name, the node will request a
// queued lock, with a sequence ID matching the next free ID in its local database. Same rule apply
// to acquiring the sequence ID."
#[test]
fn places_in_the_queue_have_one_order_on_all_nodes() {
    let cluster = Cluster::of_three(&[]);
    let post = |at: usize, query: &str| {
        let path = format!("/locks/build?{query}");
        cluster.nodes[at].server.open(&["-X", "POST", &path])
    };
    post(0, "client=holder").reply().is(200);
    let mut waits = Vec::new();
    for (at, client) in ["first", "second", "third"].into_iter().enumerate() {
        waits.push(post(at, &format!("client={client}&wait=60s")));
        cluster.nodes[at].server.in_line("build", at + 1);
    }
    for node in &cluster.nodes {
        let status = node.server.curl(&["/locks/build"]).is(200);
        let waiters = status["waiters"].as_array().expect("a list").iter();
        let clients: Vec<_> = waiters.map(|waiter| waiter["client"].clone()).collect();
        assert_eq!(clients, ["first", "second", "third"], "{status}");
    }
    let mut holder = "holder".to_owned();
    for (wait, client) in waits.into_iter().zip(["first", "second", "third"]) {
        let path = format!("/locks/build?client={holder}");
        cluster.nodes[1].server.curl(&["-X", "DELETE", &path]).is(200);
        assert_eq!(wait.reply().is(200)["holder"], client);
        client.clone_into(&mut holder);
    }
}

// "Each lock request also comes with a unique UUID used to identify it. Any change in a lock
// request will require a new ID."
#[test]
fn a_changed_request_needs_a_new_id() {
    let cluster = Cluster::of_three(&[]);
    let send = |at: usize, path: &str| {
        let key = "Idempotency-Key: 123e4567-e89b-12d3-a456-426614174000";
        cluster.nodes[at].server.curl(&["-X", "POST", "-H", key, path])
    };
    let first = send(0, "/locks/build?client=a").is(200);
    let repeated = send(1, "/locks/build?client=a");
    assert_eq!(repeated.header("idempotent-replayed"), Some("true"));
    assert_eq!(repeated.is(200)["token"], first["token"]);
    send(2, "/locks/build?client=a&ttl=1h").is(422);
    send(2, "/locks/other?client=a").is(422);
}

// "Aborted locks must be notified to all nodes."
// "it will release its own lock and notify other nodes that this other ID won the lock"
#[test]
fn an_aborted_request_is_an_event_on_all_nodes() {
    let cluster = Cluster::of_three(&[]);
    let mut events: Vec<_> =
        cluster.nodes.iter().map(|node| node.server.events(&["/events?prefix=build"])).collect();
    cluster.nodes[0].server.curl(&["-X", "POST", "/locks/build?client=a"]).is(200);
    let waits = cluster.nodes[1].server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    cluster.nodes[1].server.in_line("build", 1);
    waits.cut();
    for events in &mut events {
        assert_eq!(events.until("granted").data["holder"], "a");
        assert_eq!(events.until("joined").data["client"], "b");
        assert_eq!(events.until("left").data["client"], "b");
    }
}

// "A local cache file is kept to ease reconnect, but nodes not seen for more than 24 hours are
// automatically forgotten."
//
// The test of `src/raft/rpc/peer_config.rs` covers the 24 hours, and that all nodes in the file
// count as seen when a daemon starts.
#[test]
fn known_nodes_are_kept_in_a_file() {
    let cluster = Cluster::of_three(&[]);
    let peers = |number: usize| {
        let path = cluster.data(number).join("peers.json");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let book: Value = serde_json::from_str(&text).unwrap_or_default();
        book["peers"].as_array().map_or(0, Vec::len)
    };
    for number in 1..=3 {
        eventually("both others are noted", || (peers(number) == 2).then_some(()));
    }
}
