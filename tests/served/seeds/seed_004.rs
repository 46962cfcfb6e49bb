//! Seed 004, "Simple Consensus System for Distributed Locks": a replicated map from locks to
//! owners, a leader and followers, and a protocol of lines of text.

use crate::line::follower::{After, Follower};
use crate::seeds::cluster::Cluster;
use latchfs::LineClient;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::thread;
use testing::{Lines, Server, eventually, latchfs, run};

// "(i) one leader and multiple followers; (ii) a replicated map (key → owner) for the locks"
// "(iv) all mutation operations (LOCK/UNLOCK) must be routed to the leader"
// "Followers act as simple routers for write operations, forwarding LOCK/UNLOCK requests to the
// leader."
// "The core challenge is ensuring data consistency, guaranteeing that all servers have the same
// view of who owns which lock"
#[test]
fn a_lock_taken_at_a_follower_is_seen_at_all_nodes() {
    let cluster = Cluster::of_three(&[]);
    let (follower, other) = cluster.followers();
    let leader = cluster.leader();
    assert_eq!(cluster.request(follower, "LOCK,build,a"), "SUCCESS");
    // There is no "small window where a follower might serve stale data": an answer comes after a
    // majority has the entry, and a read asks the leader.
    for at in [leader, other, follower] {
        assert_eq!(cluster.request(at, "OWN,build,x"), "a");
        assert_eq!(cluster.request(at, "LOCK,build,b"), "FAIL");
    }
    assert_eq!(cluster.request(other, "UNLOCK,build,b"), "FAIL");
    assert_eq!(cluster.request(other, "UNLOCK,build,a"), "SUCCESS");
    assert_eq!(cluster.request(follower, "OWN,build,x"), "NONE");
}

// "(iii) multiple clients able to tryLock, tryUnLock, and ownTheLock"
// "Each operation opens a new, short-lived socket, sends its request message via sendMsg(), and
// reads the single-line response from the server."
// "concurrent clients. These clients connect to different servers in the cluster to verify
// concurrent lock acquisition, owner-reading, and lock release."
// "for a single lock, only one client's LOCK request succeeds, while concurrent attempts from other
// clients correctly fail (returning FAIL)"
#[test]
fn clients_of_different_servers_compete() {
    let cluster = Cluster::of_three(&[]);
    let won: Vec<(String, u64)> = thread::scope(|scope| {
        let compete = |number: usize| {
            let address = &cluster.nodes[number % 3].lines;
            scope.spawn(move || {
                let name = format!("client{number}");
                let client = LineClient::new(address, &name).expect("a client");
                client.try_lock("build").expect("answered").map(|token| (name, token))
            })
        };
        let clients: Vec<_> = (0..12).map(compete).collect();
        clients.into_iter().filter_map(|client| client.join().expect("no failure")).collect()
    });
    let [(winner, token)] = &won[..] else { panic!("{won:?}") };
    for node in &cluster.nodes {
        let client = LineClient::new(&node.lines, "other").expect("a client");
        assert_eq!(client.own_the_lock("build").expect("answered").as_ref(), Some(winner));
        assert!(!client.try_unlock("build", None).expect("answered"));
    }
    let client = LineClient::new(&cluster.nodes[0].lines, winner).expect("a client");
    assert!(!client.try_unlock("build", Some(token + 1)).expect("answered"), "another tenure");
    assert!(client.try_unlock("build", Some(*token)).expect("answered"));
    assert_eq!(client.own_the_lock("build").expect("answered"), None);
}

// "(v) read operations (OWN) can be served locally by followers"
// "This operation is handled locally by whichever server receives it to ensure low latency. [...] a
// follower might return slightly stale data"
// "TIMEOUT: A network operation (e.g., forwarding) timed out."
// "Timeouts are implemented on socket operations (e.g., 10s for forwarding to leader [...]) to
// prevent threads from hanging indefinitely on network issues."
#[test]
fn stale_owner_comes_from_the_follower_alone() {
    let cluster = Cluster::of_three(&[]);
    let (follower, other) = cluster.followers();
    let token = cluster.nodes[follower].server.curl(&["-X", "POST", "/locks/build?client=a"]);
    let token = token.is(200)["token"].clone();
    eventually("the follower has applied it", || {
        (cluster.request(follower, "OWN,build,x,stale") == "a").then_some(())
    });
    let leader = cluster.leader();
    cluster.silence(leader, true);
    cluster.silence(other, true);
    assert_eq!(cluster.request(follower, "OWN,build,x,stale"), "a");
    assert_eq!(cluster.request(follower, "OWN,build,x,stale,token"), format!("a,{token}"));
    assert_eq!(cluster.request(follower, "OWN,free,x,stale"), "NONE");
    assert_eq!(cluster.request(follower, "OWN,build,x"), "TIMEOUT");
    assert_eq!(cluster.request(follower, "LOCK,other,x"), "TIMEOUT");
    let client = LineClient::new(&cluster.nodes[follower].lines, "x").expect("a client");
    assert_eq!(client.own_the_lock_stale("build").expect("answered").as_deref(), Some("a"));
    assert_eq!(client.own_the_lock("build").expect_err("unknown").kind(), ErrorKind::TimedOut);
    cluster.silence(leader, false);
    cluster.silence(other, false);
}

// "(vi) the leader updates its map and propagates an update proposal to all followers"
// "Leader → Followers: SYNC,$cmd,$name,$client: State replication", "Followers → Leader: ACK"
// "Followers → Leader: REGISTER,$ip:$port", "Leader → Follower: REGISTERED"
// "NOT_LEADER: Response when non-leader receives REGISTER"
#[test]
fn registered_follower_receives_each_change() {
    let cluster = Cluster::of_three(&[]);
    let (follower, _) = cluster.followers();
    let registered = Follower::start(After::Ends);
    let register = format!("REGISTER,{}", registered.address);
    assert_eq!(cluster.request(follower, &register), "NOT_LEADER");
    assert_eq!(cluster.request(cluster.leader(), &register), "REGISTERED");
    assert_eq!(cluster.request(follower, "LOCK,build,a"), "SUCCESS");
    assert_eq!(registered.next_message(), "SYNC,LOCK,build,a");
    assert_eq!(cluster.request(follower, "UNLOCK,build,a"), "SUCCESS");
    assert_eq!(registered.next_message(), "SYNC,UNLOCK,build,a");
}

// "Preemption (LOCK): Success if the lock (key) does not exist in the lockMap. Failure otherwise."
// "Release (UNLOCK): Success if the lock (key) exists and the caller's clientId matches the one
// stored in the map. Failure otherwise."
// "Read (OWN): Any client can query the owner. The request is handled by any server and returns the
// owner's clientId or NONE if the lock does not exist."
// "INVALID_FORMAT: Message format is invalid (not enough parts)."
// "INVALID_COMMAND: Command type is not recognized (not LOCK/UNLOCK/OWN)."
#[test]
fn rules_and_response_codes() {
    let lines = Lines::start(&[]);
    for (line, reply) in [
        ("OWN,build,a", "NONE"),
        ("UNLOCK,build,a", "FAIL"),
        ("LOCK,build,a", "SUCCESS"),
        ("LOCK,build,a", "FAIL"),
        ("LOCK,build,b", "FAIL"),
        ("OWN,build,b", "a"),
        ("UNLOCK,build,b", "FAIL"),
        ("UNLOCK,build,a", "SUCCESS"),
        ("OWN,build,a", "NONE"),
        ("LOCK,build", "INVALID_FORMAT"),
        ("OWN", "INVALID_FORMAT"),
        ("STEAL,build,a", "INVALID_COMMAND"),
    ] {
        assert_eq!(lines.request(line), reply, "{line}");
    }
}

// The seed's server reads by `BufferedReader.readLine`, which takes a last line without its end.
#[test]
fn the_last_line_needs_no_newline() {
    let lines = Lines::start(&[]);
    for (line, reply) in [("LOCK,build,a", "SUCCESS\n"), ("OWN,build,b\r", "a\n"), ("", "")] {
        let mut talk = lines.connect();
        talk.send(line.as_bytes());
        talk.finish();
        assert_eq!(String::from_utf8_lossy(&talk.rest()), reply, "{line:?}");
    }
}

// "ERROR: A generic connection or processing error occurred."
#[test]
fn refused_requests_are_errors() {
    let mut lines = Lines::start(&[]);
    let mut talk = lines.connect();
    // An open connection of HTTP keeps the server draining for a moment.
    let mut events = lines.server.events(&["/events"]);
    lines.server.signal(libc::SIGTERM);
    events.until("closing");
    assert_eq!(talk.request("LOCK,build,a"), "ERROR");
    assert_eq!(lines.server.wait(), Some(0));
}

// The token is an optional last field: it names a tenure, which the seed's messages can't.
#[test]
fn token_is_an_optional_last_field() {
    let lines = Lines::start(&["--grace", "0s"]);
    let granted = lines.request("LOCK,build,a,token");
    let token = granted.strip_prefix("SUCCESS,").expect(&granted).to_owned();
    assert_eq!(lines.request("OWN,build,b,token"), format!("a,{token}"));
    assert_eq!(lines.request("OWN,build,b"), "a");
    // A refusal names the tenure that is in the way.
    assert_eq!(lines.request("LOCK,build,b,token"), format!("FAIL,{token}"));
    assert_eq!(lines.request("LOCK,build,b"), "FAIL");
    assert_eq!(lines.request(&format!("RENEW,build,a,{token}")), "SUCCESS");
    assert_eq!(lines.request(&format!("RENEW,build,a,1h,{token}")), "SUCCESS");
    assert_eq!(lines.request(&format!("UNLOCK,build,a,{token}")), "SUCCESS");
    // A late copy ends no newer tenure of the same client.
    assert_eq!(lines.request("LOCK,build,a,1m"), "SUCCESS");
    assert_eq!(lines.request(&format!("UNLOCK,build,a,{token}")), "FAIL");
    assert_eq!(lines.request(&format!("RENEW,build,a,{token}")), "FAIL");
    assert_eq!(lines.request("UNLOCK,build,a"), "SUCCESS");
    assert_eq!(lines.request("UNLOCK,build,a,x"), "INVALID_FORMAT");
}

// "The project subject mentioned checking if a request is "pending". [...] A more advanced
// implementation could have the follower track "pending" requests it has forwarded but not yet
// received a SYNC confirmation for."
#[test]
fn pending_requests_are_listed_with_age_and_place() {
    let cluster = Cluster::of_three(&[]);
    let (follower, other) = cluster.followers();
    let leader = cluster.leader();
    let node = &cluster.nodes[follower].server;
    let empty = node.curl(&["/cluster/pending"]).is(200);
    assert_eq!(empty["pending"], Value::Array(vec![]), "{empty}");
    cluster.silence(leader, true);
    cluster.silence(other, true);
    let waits: Vec<_> = ["first", "second"]
        .map(|name| {
            let path = format!("/locks/{name}?client=a");
            let open = node.open(&["-X", "POST", &path]);
            eventually("it is pending", || {
                let body = node.curl(&["/cluster/pending"]).body;
                body.contains(name).then_some(())
            });
            open
        })
        .into();
    let seen = node.curl(&["/cluster/pending"]).is(200);
    let pending = seen["pending"].as_array().expect("a list");
    assert_eq!(seen["asked"].as_u64(), Some(cluster.nodes[follower].id), "{seen}");
    for (number, name) in (1..).zip(["first", "second"]) {
        let request = pending.iter().find(|request| request["name"] == name).expect("listed");
        assert_eq!((&request["command"], &request["client"]), (&"acquire".into(), &"a".into()));
        assert_eq!(request["place"], number, "{seen}");
        assert!(request["age_ms"].is_u64(), "{seen}");
    }
    let ages = [0, 1].map(|at| pending[at]["age_ms"].as_u64());
    assert!(ages[0] >= ages[1], "{seen}");
    let url = &node.url;
    let said = run(latchfs().args(["cluster", "pending", "--server", url])).ok();
    assert!(said.starts_with("PLACE  AGE") && said.contains("first"), "{said}");
    drop(waits);
    cluster.silence(leader, false);
    cluster.silence(other, false);
    eventually("nothing is pending", || {
        let said = run(latchfs().args(["cluster", "pending", "--server", url]));
        said.out.contains("has no pending request").then_some(())
    });
    // A server that is no node has no such list.
    Server::listen(&["--memory", "--grant-at-once"]).curl(&["/cluster/pending"]).is(409);
}

// "Fault Tolerance: The system has a single point of failure (SPOF): the leader. [...] A robust
// system would require a fault-tolerance mechanism, such as leader election"
#[test]
fn followers_elect_another_leader() {
    let mut cluster = Cluster::of_three(&[]);
    assert_eq!(cluster.request(0, "LOCK,build,a,1h"), "SUCCESS");
    let leader = cluster.leader();
    let gone = cluster.nodes.remove(leader);
    gone.server.signal(libc::SIGKILL);
    eventually("another leader", || {
        (cluster.request(0, "LOCK,after,b") == "SUCCESS").then_some(())
    });
    assert_eq!(cluster.request(1, "OWN,build,x"), "a");
}

// "Network: Communication is unencrypted (plaintext), and there is no client authentication. This
// is insecure for a production environment."
#[test]
fn clients_can_be_authenticated() {
    let scratch = testing::Scratch::new();
    let path = scratch.path().join("tokens.toml");
    let secret = "a secret of sixteen bytes or more";
    let tokens = format!("[[token]]\nname = \"a\"\nsecret = \"{secret}\"\nclients = [\"a\"]\n");
    std::fs::write(&path, tokens).expect("a fresh directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("it is ours");
    let lines = Lines::start(&["--tokens", &path.display().to_string()]);
    assert_eq!(lines.request("LOCK,build,a"), "ERROR");
    let mut talk = lines.connect();
    assert_eq!(talk.request(&format!("AUTH,{secret}")), "SUCCESS");
    assert_eq!(talk.request("LOCK,build,b"), "ERROR", "the token is for another client");
    assert_eq!(talk.request("LOCK,build,a"), "SUCCESS");
}

// The clients of contrib/examples have the seed's three operations.
fn small_client(mut client: impl FnMut(&[&str]) -> Command, address: &str) {
    let mut said = |words: &[&str]| {
        let mut command = client(words);
        command.env("LATCHFS_LINES", address);
        run(&mut command).ok()
    };
    assert_eq!(said(&["own", "build", "a"]), "NONE\n");
    let locked = said(&["lock", "build", "a"]);
    let token = locked.strip_prefix("SUCCESS ").expect(&locked).trim_end().to_owned();
    assert!(token.parse::<u64>().is_ok(), "{locked}");
    assert_eq!(said(&["lock", "build", "b"]), "FAIL\n");
    assert_eq!(said(&["own", "build", "b"]), "a\n");
    assert_eq!(said(&["unlock", "build", "b"]), "FAIL\n");
    assert_eq!(said(&["unlock", "build", "a", "1000"]), "FAIL\n");
    assert_eq!(said(&["unlock", "build", "a", &token]), "SUCCESS\n");
    assert_eq!(said(&["own", "build", "b"]), "NONE\n");
}

fn example(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/examples").join(file)
}

#[test]
fn the_line_client_says_how_it_is_used() {
    for words in [&[][..], &["lock"], &["lock", "build"], &["steal", "build", "a"]] {
        let seen = run(Command::new("python3").arg(example("line_client.py")).args(words));
        assert_eq!(seen.code, 1, "{seen:?}");
        assert_eq!(seen.err, "usage: line_client.py lock|unlock|own NAME CLIENT [TOKEN]\n");
    }
}

#[test]
fn small_client_in_python() {
    let lines = Lines::start(&[]);
    let client = |words: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(example("line_client.py")).args(words);
        command
    };
    small_client(client, &lines.address);
}

#[test]
fn small_client_in_go() {
    let lines = Lines::start(&[]);
    let scratch = testing::Scratch::new();
    let mut build = Command::new("go");
    build.args(["build", "-o", "client"]).arg(example("line_client.go"));
    run(build.env("GO111MODULE", "off").current_dir(scratch.path())).ok();
    let client = |words: &[&str]| {
        let mut command = Command::new(scratch.path().join("client"));
        command.args(words);
        command
    };
    small_client(client, &lines.address);
}
