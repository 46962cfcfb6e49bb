//! Nodes are killed under load: no acknowledged change is lost, tokens increase, each lock has one
//! holder, and a failover stretches leases only a little.

use crate::load::{Dice, Load};
use latchfs::time::{Span, Wall, boot_now};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use testing::nodes::Cluster;
use testing::{eventually_in_cluster, rounds};

/// The number of concurrent clients.
const CLIENTS: usize = 6;
/// How often the leader is killed in a short run.
const KILLS: usize = 8;
/// How often the leader is killed in a long run.
const KILLS_LONG: usize = 100;
/// How long no client is answered after a leader was killed: at the median, and in 95 of 100 kills.
const GAP_MEDIAN: Duration = Duration::from_millis(500);
const GAP_MOSTLY: Duration = Duration::from_secs(1);
/// How often the leadership is transferred in a short and in a long run, and how long no client may
/// be answered meanwhile. That is less than the timeout of a forwarded call, which is 1.5 s.
const TRANSFERS: usize = 20;
const TRANSFERS_LONG: usize = 200;
const TRANSFER_GAP_MAX: Duration = Duration::from_secs(1);
/// The minimum number of answers to clients between two kills.
const ANSWERS: u64 = 300;
/// The maximum by which one change of the leader may stretch a lease, as
/// `contrib/doc/guarantees.md` states it.
const STRETCH_MS: u64 = 1_000;

pub(crate) fn seed() -> u64 {
    let named = std::env::var("LATCHFS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = named.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("LATCHFS_SEED={seed}");
    seed
}

/// A cluster of one node grows to three while clients send requests, and every request gets an
/// answer.
#[test]
fn one_becomes_three_under_load() {
    let mut cluster = Cluster::alone();
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, seed());
    load.await_answers(ANSWERS);
    cluster.join();
    load.await_answers(ANSWERS);
    cluster.join();
    cluster.voters(3);
    load.await_answers(ANSWERS);
    let world = load.end();
    assert_eq!(world.unknown.load(std::sync::atomic::Ordering::Relaxed), 0);
    cluster.agree();
}

/// The followers replace a leader that was killed as soon as its connections are closed, and do not
/// wait for the election timeout.
#[test]
fn the_leader_is_killed_again_and_again() {
    let mut cluster = Cluster::of(3);
    let seed = seed();
    let mut dice = Dice(seed);
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, seed);
    let mut gaps = Vec::new();
    let kills = rounds(KILLS, KILLS_LONG);
    for _ in 0..kills {
        load.await_answers(ANSWERS + dice.next() % ANSWERS);
        let leader = cluster.leader();
        load.gap();
        cluster.nodes[leader].daemon.kill();
        load.await_answers(ANSWERS);
        gaps.push(load.gap());
        cluster.nodes[leader].daemon.restart();
        cluster.voters(3);
    }
    load.end();
    cluster.agree();
    gaps.sort();
    let ms = |gap: Duration| gap.as_millis();
    println!("gap after a kill: p50 {} ms, max {} ms", ms(gaps[kills / 2]), ms(gaps[kills - 1]));
    println!("all: {:?}", gaps.iter().map(Duration::as_millis).collect::<Vec<_>>());
    assert!(gaps[kills / 2] <= GAP_MEDIAN, "{gaps:?}");
    assert!(gaps[kills * 95 / 100 - 1] <= GAP_MOSTLY, "{gaps:?}");
}

/// The leadership moves again and again under load, and no client waits until a timeout: neither
/// the old leader nor the new one waits for requests that it has forwarded to the other.
#[test]
fn the_leadership_is_transferred_under_load() {
    let cluster = Cluster::of(3);
    let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, seed());
    let mut gaps = Vec::new();
    let transfers = rounds(TRANSFERS, TRANSFERS_LONG);
    for _ in 0..transfers {
        load.await_answers(ANSWERS);
        let leader = cluster.leader();
        load.gap();
        cluster.request(leader, &["transfer"]).ok();
        load.await_answers(ANSWERS);
        gaps.push(load.gap());
    }
    load.end();
    cluster.agree();
    gaps.sort();
    let (median, longest) = (gaps[transfers / 2], gaps[transfers - 1]);
    println!("gap at a transfer: p50 {median:?}, max {longest:?}");
    assert!(longest < TRANSFER_GAP_MAX, "{gaps:?}");
}

/// Clients that keep all processors at work delay no heartbeat for so long that a node calls an
/// election.
#[test]
fn a_full_load_causes_no_election() {
    let cluster = Cluster::of(3);
    let elections =
        |at| eventually_in_cluster("elections", || cluster.status(at)?["elections"].as_u64());
    let before: Vec<_> = (0..3).map(elections).collect();
    let load = Load::begin(&cluster.clients, &cluster.urls(), 4 * CLIENTS, seed());
    let until = boot_now() + Span::from_secs(rounds(10, 1_200) as u64);
    while boot_now() < until {
        load.await_answers(ANSWERS);
    }
    let longest = load.gap();
    let world = load.end();
    let answers = world.answers.load(std::sync::atomic::Ordering::Relaxed);
    println!("{answers} answers, the longest pause of a client {longest:?}");
    assert_eq!((0..3).map(elections).collect::<Vec<_>>(), before);
}

#[test]
fn all_are_killed_and_come_back() {
    let mut cluster = Cluster::of(3);
    for round in 0..3 {
        let load = Load::begin(&cluster.clients, &cluster.urls(), CLIENTS, seed());
        load.await_answers(ANSWERS);
        let token = cluster.curl(0, "POST", &format!("/locks/last{round}?client=me&ttl=1h"));
        let token = token.1["token"].as_u64().expect("granted");
        for node in &mut cluster.nodes {
            node.daemon.kill();
        }
        for node in &mut cluster.nodes {
            node.daemon.restart();
        }
        cluster.voters(3);
        let seen = cluster.curl(2, "GET", &format!("/locks/last{round}")).1;
        assert_eq!((&seen["holder"], seen["token"].as_u64()), (&"me".into(), Some(token)));
        let path = format!("/locks/now{round}");
        assert_eq!(cluster.curl(2, "POST", &format!("{path}?client=me")).0, 200);
        let begun = cluster.curl(2, "GET", &path).1["acquired_at"].clone();
        let latest = Wall::at_boot_time(boot_now() + Span::from_secs(1)).to_string();
        assert!(begun.as_str().is_some_and(|begun| begun < latest.as_str()), "{begun} {latest}");
        load.await_answers(ANSWERS);
        load.end();
        cluster.agree();
        for client in 0..CLIENTS {
            release_all(&cluster, client);
        }
    }
}

/// Releases the locks that the client of an earlier round left; they would block the next round.
fn release_all(cluster: &Cluster, client: usize) {
    let list = cluster.curl(0, "GET", "/locks").1;
    for lock in list["locks"].as_array().expect("a list") {
        if lock["holder"] == format!("c{client}") {
            let name = lock["name"].as_str().expect("a name");
            let path = format!("/locks/{name}?client=c{client}");
            assert_eq!(cluster.curl(0, "DELETE", &path).0, 200);
        }
    }
}

/// An acknowledged write through one node is visible in the next read through any other node.
#[test]
fn a_read_through_any_node_sees_what_was_answered_by_another() {
    let cluster = Cluster::of(3);
    for round in 0..60 {
        let (writer, reader) = (round % 3, (round / 3 + 1) % 3);
        let path = format!("/locks/r?client=c{round}");
        let (code, granted) = cluster.curl(writer, "POST", &path);
        assert_eq!(code, 200, "{granted}");
        let (_, seen) = cluster.curl(reader, "GET", "/locks/r");
        assert_eq!(seen["holder"], format!("c{round}"), "{seen}");
        assert_eq!(seen["token"], granted["token"]);
        assert_eq!(cluster.curl(reader, "DELETE", &path).0, 200);
        let (_, seen) = cluster.curl(writer, "GET", "/locks/r");
        assert_eq!(seen["phase"], "free", "{seen}");
    }
}

/// A failover does not end a lease early, and the lease still expires.
#[test]
fn a_lease_is_stretched_by_a_failover_and_not_cut() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.leader();
    let other = (leader + 1) % 3;
    let path = "/locks/lease?client=ann&ttl=3s&grace=0s";
    let asked = crate::load::now();
    assert_eq!(cluster.curl(other, "POST", path).0, 200);
    cluster.nodes[leader].daemon.kill();
    let bob = "/locks/lease?client=bob&ttl=3s";
    eventually_in_cluster("bob has it", || {
        (cluster.curl(other, "POST", bob).0 == 200).then_some(())
    });
    let after = crate::load::now() - asked;
    assert!(after >= 3_000_000, "granted after {after} us");
}

/// The leadership is transferred from node to node, without any writes: the lease of a client that
/// is gone expires neither early nor late by more than `STRETCH_MS` per transfer.
#[test]
fn changes_of_the_leader_hardly_stretch_a_lease() {
    const TTL_MS: u64 = 6_000;
    const BETWEEN_US: u64 = 1_500_000;
    let cluster = Cluster::of(3);
    let mut leader = cluster.leader();
    let began = crate::load::now();
    let ms_since = |then: u64| (crate::load::now() - then) / 1_000;
    let path = format!("/locks/lease?client=ann&ttl={TTL_MS}ms&grace=0s");
    assert_eq!(cluster.curl(leader, "POST", &path).0, 200);
    let granted = crate::load::now();
    let mut changes = 0;
    loop {
        eventually_in_cluster("some time has passed", || {
            (crate::load::now() - began >= (changes + 1) * BETWEEN_US).then_some(())
        });
        let next = (leader + 1) % 3;
        cluster.request(leader, &["transfer", &cluster.id(next).to_string()]).ok();
        (leader, changes) = (next, changes + 1);
        let (code, seen) = cluster.curl(leader, "GET", "/locks/lease");
        assert_eq!(code, 200, "{seen}");
        if seen["phase"] == "free" {
            break;
        }
        let left = seen["expires_in_ms"].as_u64().expect("it is held");
        // The time since the grant and `expires_in_ms` are both rounded down to milliseconds, so
        // their sum may be a little less than the ttl; the tolerance is 5 ms.
        assert!(ms_since(began) + left + 5 >= TTL_MS, "cut: {left} ms left: {seen}");
        let latest = TTL_MS + changes * STRETCH_MS;
        assert!(ms_since(granted) <= latest, "{changes} changes: not over yet: {seen}");
    }
    let ended = ms_since(began);
    assert!(ended >= TTL_MS, "free after {ended} ms");
}

/// The leader is killed repeatedly, each time as soon as the previous one has rejoined: an election
/// stretches the lease of a client that is gone by no more than a leadership transfer does.
#[test]
fn kills_of_the_leader_hardly_stretch_a_lease() {
    const TTL_MS: u64 = 18_000;
    /// How long the test waits after a restarted node is a voter again, in microseconds. In this
    /// time the leader's heartbeats tell the node the leader's time, which it otherwise knows only
    /// from old log entries.
    const BACK_US: u64 = 2_500_000;
    let mut cluster = Cluster::of(3);
    let began = crate::load::now();
    let path = format!("/locks/lease?client=ann&ttl={TTL_MS}ms&grace=0s");
    assert_eq!(cluster.curl(cluster.leader(), "POST", &path).0, 200);
    let granted = crate::load::now();
    let mut kills = 0;
    loop {
        let leader = cluster.leader();
        cluster.nodes[leader].daemon.kill();
        kills += 1;
        let other = (leader + 1) % 3;
        let look = || cluster.curl(other, "GET", "/locks/lease");
        eventually_in_cluster("another leads", || (look().0 == 200).then_some(()));
        let asked = crate::load::now();
        let (code, seen) = look();
        assert_eq!(code, 200, "{seen}");
        if seen["phase"] == "free" {
            break;
        }
        let left = seen["expires_in_ms"].as_u64().expect("it is held");
        let (now, latest) = (crate::load::now(), TTL_MS + kills * STRETCH_MS);
        println!("{kills} kills: {left} ms left {} ms after the grant", (asked - granted) / 1_000);
        // The time since the grant and `expires_in_ms` are both rounded down to milliseconds, so
        // their sum may be a little less than the ttl; the tolerance is 5 ms.
        assert!((now - began) / 1_000 + left + 5 >= TTL_MS, "cut: {left} ms left: {seen}");
        let lasts = (asked - granted) / 1_000 + left;
        assert!(lasts <= latest, "{kills} kills: it lasts for {lasts} ms: {seen}");
        cluster.nodes[leader].daemon.restart();
        cluster.voters(3);
        let back = crate::load::now();
        eventually_in_cluster("the node that is back has heard the leader", || {
            (crate::load::now() - back >= BACK_US).then_some(())
        });
    }
    let ended = (crate::load::now() - began) / 1_000;
    assert!(ended >= TTL_MS, "free after {ended} ms");
    assert!(kills >= 3, "{kills} kills only");
}
