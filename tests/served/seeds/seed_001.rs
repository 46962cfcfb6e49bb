//! Seed 001, "Lock Service Design": holders and waiters of locks in a Raft cluster, listeners, and
//! a mutex.

use crate::seeds::cluster::Cluster;
use latchfs::Mutex;
use latchfs::mutex::{Listener, LockEvent, LockEvents, Unexpected};
use serde_json::Value;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use testing::{Server, Setup, eventually, latchfs, run};

/// Timeout of every step of the library, which only a hang exceeds.
const LIMIT: Duration = Duration::from_secs(20);

fn post(server: &Server, name: &str, query: &str) -> Value {
    server.curl(&["-X", "POST", &format!("/locks/{name}?{query}")]).is(200)
}

fn status(server: &Server, name: &str) -> Value {
    server.curl(&[&format!("/locks/{name}")]).is(200)
}

#[track_caller]
fn next<T>(events: &Receiver<T>) -> T {
    events.recv_timeout(LIMIT).expect("an event")
}

// "a lock could have only one holder and multiple waiters at same time. The waiters will be queued,
// the first waiter could be changed to holder by the unlocking operation of last holder."
// "LOCK: Hold the lock if possible, otherwise join the waiting queue."
// "TRY_LOCK: Hold the lock if possible."
// "UNLOCK: If the member is the holder then remove it from the holder status, and make the first
// waiter to be the next holder"
#[test]
fn unlock_makes_the_first_waiter_the_holder() {
    let server = Server::start(&[]);
    post(&server, "build", "client=a");
    server.curl(&["-X", "POST", "/locks/build?client=b"]).is(409);
    let first = server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    server.in_line("build", 1);
    let second = server.open(&["-X", "POST", "/locks/build?client=c&wait=60s"]);
    server.in_line("build", 2);
    server.curl(&["-X", "DELETE", "/locks/build?client=a"]).is(200);
    assert_eq!(first.reply().is(200)["holder"], "b");
    server.curl(&["-X", "DELETE", "/locks/build?client=b"]).is(200);
    assert_eq!(second.reply().is(200)["holder"], "c");
}

// "UNLOCK: [...] if the member is a waiter then remove it from the waiting queue."
#[test]
fn unlock_by_a_waiter_leaves_the_queue() {
    let server = Server::start(&[]);
    let mut events = server.events(&["/events"]);
    post(&server, "build", "client=a");
    let waits = server.open(&["-X", "POST", "/locks/build?client=b&wait=60s"]);
    server.in_line("build", 1);
    let left = server.curl(&["-X", "DELETE", "/locks/build?client=b"]).is(200);
    assert_eq!((&left["released"], &left["left"]), (&false.into(), &1.into()), "{left}");
    let event = events.until("left");
    assert_eq!((&event.data["client"], &event.data["why"]), (&"b".into(), &"asked".into()));
    assert_eq!(waits.reply().code, 409, "the waiter gets an answer");
    assert_eq!(status(&server, "build")["holder"], "a");
    // A client that neither holds the lock nor waits for it is refused.
    server.curl(&["-X", "DELETE", "/locks/build?client=b"]).is(403);
}

// "UNLOCK_ALL: With the UUID of the member. Remove the member from all holding and waiting status."
#[test]
fn unlock_all_ends_all_holds_and_waits_of_a_client() {
    let server = Server::start(&[]);
    for name in ["one", "team/two"] {
        post(&server, name, "client=a");
    }
    post(&server, "shared", "client=a&mode=shared");
    post(&server, "shared", "client=b&mode=shared");
    post(&server, "other", "client=b");
    post(&server, "prefix", "client=a2");
    let waits = server.open(&["-X", "POST", "/locks/other?client=a&wait=60s"]);
    server.in_line("other", 1);
    let next = server.open(&["-X", "POST", "/locks/one?client=b&wait=60s"]);
    server.in_line("one", 1);
    let ended = server.curl(&["-X", "DELETE", "/locks?client=a"]).is(200);
    assert_eq!((&ended["holds"], &ended["waits"]), (&3.into(), &1.into()), "{ended}");
    assert_eq!(next.reply().is(200)["holder"], "b", "the first waiter is served at once");
    assert_eq!(waits.reply().code, 409);
    assert_eq!(status(&server, "team/two")["phase"], "free");
    for (name, holder) in [("shared", "b"), ("other", "b"), ("prefix", "a2")] {
        assert_eq!(status(&server, name)["holder"], holder, "{name}");
    }
    let ended = server.curl(&["-X", "DELETE", "/locks?client=a"]).is(200);
    assert_eq!((&ended["holds"], &ended["waits"]), (&0.into(), &0.into()), "{ended}");
    server.curl(&["-X", "DELETE", "/locks"]).is(400);
}

/// `latchfs release --all`, at a server and at a mount.
#[test]
fn unlock_all_by_the_command() {
    let server = Server::start(&[]);
    post(&server, "one", "client=a");
    let release = ["release", "--all", "--client", "a", "--server", &server.url];
    let said = run(latchfs().args(release)).ok();
    assert_eq!(said, "ended 1 holds and 0 waits\n");
    assert_eq!(status(&server, "one")["phase"], "free");
    let mount = Setup::of(&server, "box").start();
    for name in ["one", "two"] {
        std::fs::create_dir(mount.dir().join(name)).expect("the lock is free");
    }
    post(&server, "other", "client=a");
    let mut release = latchfs();
    release.args(["release", "--all", "--dir"]).arg(mount.dir());
    assert_eq!(run(&mut release).ok(), "ended 2 holds and 0 waits\n");
    assert_eq!(status(&server, "one")["phase"], "free");
    assert_eq!(status(&server, "other")["holder"], "a");
    run(latchfs().args(["release"])).exits(64);
    run(latchfs().args(["release", "x", "--all"])).exits(64);
}

// "RESET: With the UUIDs of members that currently connected. Check all holds and waiters if it's
// in the list, if not then remove it from all holding and waiting status, notice the waiter that
// being promoted to the holder during unlocking should be in the list as well."
// "another one is to reset with an empty list which means all state will be cleared"
#[test]
fn reset_keeps_the_clients_in_its_list() {
    let server = Server::with_socket(&[]);
    post(&server, "build", "client=gone");
    post(&server, "kept", "client=here");
    let gone = server.open(&["-X", "POST", "/locks/build?client=gone2&wait=60s"]);
    server.in_line("build", 1);
    let here = server.open(&["-X", "POST", "/locks/build?client=here&wait=60s"]);
    server.in_line("build", 2);
    let done = server.reset("keep=here&client=admin&reason=left").is(200);
    assert_eq!((&done["holds"], &done["waits"]), (&1.into(), &1.into()), "{done}");
    assert_eq!(here.reply().is(200)["holder"], "here", "a waiter of the list is promoted");
    assert_eq!(gone.reply().code, 409);
    assert_eq!(status(&server, "kept")["holder"], "here");
    let done = server.reset("all=true&client=admin&reason=all").is(200);
    assert_eq!(done["holds"], 2, "{done}");
}

// "The holding status is only for connected members. [...] the leader of the cluster will clear
// those leaving members from the locking status"
//
// A member that leaves in good order, and one that is removed, with `--release-on-node-removal`.
#[test]
fn locks_of_a_node_that_leaves_are_cleared() {
    let mut cluster = Cluster::of_three(&["--release-on-node-removal"]);
    let (leaves, _) = cluster.followers();
    let name = |at: usize| format!("box{}", at + 1);
    let held = |client: &str, lock: &str| {
        let server = &cluster.nodes[0].server;
        post(server, lock, &format!("client={client}&ttl=1h"));
    };
    held(&name(leaves), "of-host");
    held(&format!("{}:ann", name(leaves)), "of-user");
    held("stranger", "of-stranger");
    let url = cluster.nodes[leaves].server.url.clone();
    run(latchfs().args(["cluster", "leave", "--server", &url])).ok();
    let gone = cluster.nodes.remove(leaves);
    drop(gone);
    let server = &cluster.nodes[0].server;
    for lock in ["of-host", "of-user"] {
        eventually("it is cleared", || {
            let status = server.curl(&[&format!("/locks/{lock}")]).json();
            (status["phase"] == "free").then_some(())
        });
    }
    assert_eq!(status(server, "of-stranger")["holder"], "stranger");
}

#[test]
fn locks_of_a_removed_node_are_cleared() {
    let cluster = Cluster::of_three(&["--release-on-node-removal"]);
    let (dead, other) = cluster.followers();
    let server = &cluster.nodes[other].server;
    post(server, "of-host", &format!("client=box{}&ttl=1h", dead + 1));
    let waits = server.open(&["-X", "POST", "/locks/of-host?client=next&wait=60s"]);
    server.in_line("of-host", 1);
    cluster.nodes[dead].server.signal(libc::SIGKILL);
    let id = cluster.nodes[dead].id.to_string();
    run(latchfs().args(["cluster", "remove", &id, "--server", &server.url])).ok();
    assert_eq!(waits.reply().is(200)["holder"], "next");
}

/// Without the option a removal leaves the locks to their leases.
#[test]
fn a_removal_alone_clears_nothing() {
    let cluster = Cluster::of_three(&[]);
    let (dead, other) = cluster.followers();
    let server = &cluster.nodes[other].server;
    post(server, "of-host", &format!("client=box{}&ttl=1h", dead + 1));
    cluster.nodes[dead].server.signal(libc::SIGKILL);
    let id = cluster.nodes[dead].id.to_string();
    run(latchfs().args(["cluster", "remove", &id, "--server", &server.url])).ok();
    assert_eq!(status(server, "of-host")["phase"], "held");
}

// "Leader leave, and majority still there", "Above scenario 2 will reset to current members,
// because the cluster has majority members all the time, these members won't resign."
//
// A lease belongs to the cluster and to no node, so a new leader has nothing to reset.
#[test]
fn an_election_ends_no_tenure() {
    let mut cluster = Cluster::of_three(&[]);
    let token = post(&cluster.nodes[0].server, "build", "client=a&ttl=1h")["token"].clone();
    let leader = cluster.leader();
    cluster.nodes.remove(leader).server.signal(libc::SIGKILL);
    let server = &cluster.nodes[0].server;
    eventually("another leader", || {
        (server.curl(&["/locks/build"]).json()["token"] == token).then_some(())
    });
    post(server, "after", "client=a");
    assert_eq!(status(server, "build")["token"], token);
}

// "if all subgroups are minority, the new elected leader will force clear all previous locking
// status after cluster resumed"
//
// Here nothing is granted without a majority, and a lease ends no earlier than its client stops by
// its own clock: when a majority is back, at most the length of the outage has passed.
#[test]
fn locks_outlive_the_loss_of_a_majority() {
    let cluster = Cluster::of_three(&[]);
    let (one, two) = cluster.followers();
    let leader = cluster.leader();
    let server = &cluster.nodes[leader].server;
    let asked = latchfs::time::boot_now();
    post(server, "build", "client=a&ttl=1h");
    let granted = status(server, "build");
    let left = |status: &Value| status["expires_in_ms"].as_u64().expect("a number");
    cluster.silence(one, true);
    cluster.silence(two, true);
    server.curl(&["-X", "POST", "/locks/other?client=b"]).is(503);
    server.curl(&["-X", "POST", "/locks/build?client=b"]).is(503);
    cluster.silence(one, false);
    cluster.silence(two, false);
    let held = eventually("a majority again", || {
        let status = server.curl(&["/locks/build"]).json();
        (status["token"] == granted["token"]).then_some(status)
    });
    let passed = latchfs::time::boot_now().since(asked).as_millis();
    assert!(left(&held) + passed >= left(&granted), "{passed} ms later: {granted} {held}");
    assert!(left(&held) <= left(&granted), "{granted} {held}");
}

// "A new started cluster will clear all previous locking status as well"
//
// Here the locks are in the log on the disks, so a cluster that is started again has them.
#[test]
fn a_node_that_starts_again_has_its_locks() {
    let scratch = testing::Scratch::new();
    let data = scratch.path().join("data").display().to_string();
    let server = Server::listen(&["--data", &data]);
    let token = post(&server, "build", "client=a&ttl=1h")["token"].clone();
    drop(server);
    let server = Server::listen(&["--data", &data]);
    assert_eq!(status(&server, "build")["token"], token);
}

// "Listeners could be registered to listen on the status change of locks."
// "I choose not to assume that just simply notify it in a timely and orderly manner, completely
// consistent with the local state machine."
// "Those messages must be in order and can't be lost or duplicated"
#[test]
fn a_listener_is_notified_in_order() {
    let server = Server::start(&[]);
    let mount = Setup::of(&server, "box").start();
    let (send, events) = channel::<LockEvent>();
    let listener = Listener::start(mount.dir(), "team/", None, move |event| {
        let _ = send.send(event);
    });
    let listener = listener.expect("it is mounted");
    for number in 0..100 {
        post(&server, &format!("team/lock{number}"), "client=a");
        post(&server, &format!("other{number}"), "client=a");
    }
    let mut last = None;
    for number in 0..100 {
        let event = next(&events);
        assert_eq!(event.name, format!("team/lock{number}"));
        assert_eq!((event.kind.as_str(), event.client.as_str()), ("granted", "a"));
        assert!(last < Some(event.number), "{event:?} after {last:?}");
        last = Some(event.number);
    }
    // A listener that is dropped hears nothing more.
    drop(listener);
    post(&server, "team/after", "client=a");
    assert!(events.recv_timeout(LIMIT).is_err(), "the thread has ended");
}

/// A reader goes on where another one has ended: it misses nothing, and sees nothing twice.
#[test]
fn events_resume_after_the_last_one_that_was_read() {
    let server = Server::start(&[]);
    let mount = Setup::of(&server, "box").start();
    let read = |events: &mut LockEvents, count: usize| -> Vec<(u64, String)> {
        let granted = events.map(|event| event.expect("an event"));
        let granted = granted.filter(|event| event.kind == "granted");
        granted.take(count).map(|event| (event.number, event.name)).collect()
    };
    let mut events = LockEvents::open(mount.dir(), None).expect("it is mounted");
    for number in 0..10 {
        post(&server, &format!("lock{number}"), "client=a");
    }
    let mut seen = read(&mut events, 4);
    let resume = events.resume_at();
    drop(events);
    for number in 10..20 {
        post(&server, &format!("lock{number}"), "client=a");
    }
    let mut events = LockEvents::open(mount.dir(), Some(resume)).expect("it is mounted");
    seen.extend(read(&mut events, 16));
    let names: Vec<_> = seen.iter().map(|(_, name)| name.clone()).collect();
    let all: Vec<_> = (0..20).map(|number| format!("lock{number}")).collect();
    assert_eq!(names, all);
    assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0), "{seen:?}");
}

// "With the lock service and the ReentrantLock could implement an exclusive lock cross JVMs."
// "a timeout could be set to control the waiting time"
// "so handlers could be set to handle the unexpected status, let users know the risks and decide
// how to deal with them"
#[test]
fn the_mutex_excludes_waits_for_so_long_and_reports_a_loss() {
    let server = Server::start(&[]);
    let mount = Setup::of(&server, "box").start();
    let other = Setup::of(&server, "laptop").start();
    let mutex = Mutex::open(mount.dir(), "build").expect("it is mounted");
    let far = Mutex::open(other.dir(), "build").expect("it is mounted");
    let (send, lost) = channel();
    mutex.on_unexpected(move |what| {
        let _ = send.send(what);
    });
    let guard = mutex.lock().expect("it is free");
    assert_eq!(mutex.lock().expect("the same thread").token(), guard.token());
    let waited = thread::scope(|scope| {
        scope
            .spawn(|| far.lock_timeout(Duration::from_millis(100)).expect("answered").is_none())
            .join()
    });
    assert!(waited.expect("no failure"), "another machine is excluded");
    let steal = "/locks/build/steal?client=admin&reason=test";
    server.curl(&["-X", "POST", steal]).is(200);
    assert_eq!(next(&lost), Unexpected::Lost { token: guard.token() });
    assert!(!guard.is_held());
}
