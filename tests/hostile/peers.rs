//! Attacks on the peer port by a local user with and without the peer secret, and on the cluster
//! administration endpoints by a token with the right to steal.

use crate::floods::{FLOOD_KIB, acquire, peak_kib, submit};
use latchfs::engine::values::lease::GRACE_DEFAULT;
use latchfs::engine::{Acquire, LeaseTerms, Op, Ttl};
use latchfs::service::batch::batch_messages::{RequestBatch, encode_batch};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;
use testing::{Reply, Scratch, Server, eventually, latchfs, run_latchfs};

const TOKENS: &str = r#"
[[token]]
name = "thief"
secret = "the secret of the thief"
clients = ["thief"]
locks = ["team/"]
steal = true

[[token]]
name = "admin"
secret = "the secret of the admin"
clients = ["*"]
steal = true
cluster = true

[[token]]
name = "victim"
secret = "the secret of the victim"
clients = ["victim"]
"#;

const THIEF: &str = "Authorization: Bearer the secret of the thief";
const ADMIN: &str = "Authorization: Bearer the secret of the admin";
const VICTIM: &str = "Authorization: Bearer the secret of the victim";

/// A cluster of one node, which has a peer port and requires bearer tokens of its clients.
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) peers: String,
    pub(crate) scratch: Scratch,
}

impl Node {
    pub(crate) fn start() -> Self {
        let scratch = Scratch::new();
        let path = |name: &str| scratch.path().join(name).display().to_string();
        let (data, tokens, certs) = (path("data"), path("tokens.toml"), path("certs"));
        fs::write(&tokens, TOKENS).expect("a fresh directory");
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).expect("ours");
        let (code, said) = run_latchfs(&["cert", "secret", "--dir", &certs]);
        assert_eq!(code, Some(0), "{said}");
        let mode = fs::metadata(format!("{certs}/peers.pem")).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(Server::listen(&["--data", &data]));
        let secret = format!("{certs}/peers.pem");
        let own = ["--data", &data, "--tokens", &tokens, "--peer-listen", "127.0.0.1:0"];
        let server = Server::listen(&[&own[..], &["--peer-secret-file", &secret]].concat());
        let peers = eventually("an address", || {
            let said = server.curl(&["-H", ADMIN, "/cluster"]).is(200);
            let address = said["nodes"][0]["address"].as_str()?;
            (!address.is_empty()).then(|| address.to_owned())
        });
        Self { server, peers, scratch }
    }

    fn asks(&self, who: &str, method: &str, path: &str) -> Reply {
        self.server.curl(&["-H", who, "-X", method, path])
    }

    /// Sends an RPC to the peer port with the peer secret, and returns curl's output whether or not
    /// the RPC succeeds.
    fn call(&self, call: &str, body: &[u8], options: &[&str]) -> Output {
        let secret = self.scratch.path().join("certs/peers.pem");
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--max-time", "30", "--data-binary", "@-", "--cert"]).arg(&secret);
        curl.arg("--key").arg(&secret).args(["-H", "Expect:"]).args(options);
        curl.arg(format!("https://{}/raft/v1/{call}", self.peers));
        curl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = curl.spawn().expect("curl is there");
        // The error is ignored: the write fails if the node closes the connection before the end of
        // the body.
        let _ = child.stdin.take().expect("piped").write_all(body);
        child.wait_with_output().expect("it ends")
    }

    /// Checks that the victim, a well-behaved client of the attacked node, is served within a
    /// second.
    pub(crate) fn serves_the_victim(&self) {
        let victim = ["--max-time", "1", "-H", VICTIM, "-X", "POST"];
        let granted = |path| self.server.curl(&[&victim[..], &[path]].concat()).is(200);
        assert_eq!(granted("/locks/prod/db?client=victim")["holder"], "victim");
        let victim = ["--max-time", "1", "-H", VICTIM, "-X", "DELETE"];
        let path = "/locks/prod/db?client=victim";
        assert_eq!(self.server.curl(&[&victim[..], &[path]].concat()).is(200)["released"], true);
    }
}

/// Without the peer secret the peer port accepts no request, neither in plain text nor by TLS.
#[test]
fn a_local_user_without_the_secret_can_not_act_as_a_node() {
    let node = Node::start();
    let mut stream = TcpStream::connect(&node.peers).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let request = "POST /raft/v1/status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    // The error is ignored: the write fails if the node has already closed the connection.
    let _ = stream.write_all(request.as_bytes());
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    assert!(!said.windows(8).any(|part| part == b"HTTP/1.1"), "{said:?}");
    let url = format!("https://{}/raft/v1/status", node.peers);
    let curl = Command::new("curl").args(["-sk", "--max-time", "20", "-X", "POST", &url]).output();
    let curl = curl.expect("curl is there");
    assert!(!curl.status.success() && curl.stdout.is_empty(), "{curl:?}");
    node.serves_the_victim();
    // An attacker's own node neither starts without a peer secret nor joins with a different one.
    let path = |name: &str| node.scratch.path().join(name).display().to_string();
    let (foreign, data) = (path("foreign"), path("mine"));
    let joins = ["serve", "--listen", "127.0.0.1:0", "--data", &data, "--seed", &node.peers];
    let joins = [&joins[..], &["--peer-listen", "127.0.0.1:0"]].concat();
    let (code, said) = run_latchfs(&joins);
    assert!(code == Some(69) && said.contains("--peer-secret-file"), "{said}");
    let (code, said) = run_latchfs(&[&joins[..], &["--insecure"]].concat());
    assert!(code == Some(69) && said.contains("--peer-secret-file"), "{said}");
    assert_eq!(run_latchfs(&["cert", "secret", "--dir", &foreign]).0, Some(0));
    // The joining node would give up after 30 s; the test does not wait that long.
    let secret = format!("{foreign}/peers.pem");
    let mut joining = latchfs();
    joining.args(&joins).args(["--peer-secret-file", &secret]);
    let mut joining = joining.stderr(Stdio::null()).spawn().expect("it starts");
    eventually("the node rejects the foreign secret", || {
        let said = node.server.log();
        said.contains("from 127.0.0.1 were refused, the last to call as a node").then_some(())
    });
    node.serves_the_victim();
    let status = node.asks(ADMIN, "GET", "/cluster").is(200);
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(1), "{status}");
    joining.kill().expect("it is our child");
    let _ = joining.wait();
}

/// The right to steal below `team/` does not permit changes of the cluster, and the audit log names
/// the caller of each change.
#[test]
fn the_right_to_steal_does_not_permit_cluster_changes() {
    let node = Node::start();
    for (method, path) in [
        ("POST", "/cluster/transfer"),
        ("DELETE", "/cluster/nodes/7"),
        ("POST", "/cluster/nodes/7/promote"),
    ] {
        let denied = node.asks(THIEF, method, path).is(403);
        assert_eq!(denied["kind"], "E_DENIED");
        let says = denied["detail"].as_str().unwrap_or_default();
        assert!(says.contains("add 'cluster = true'") && says.contains("'thief'"), "{says}");
    }
    node.serves_the_victim();
    // The bearer token with the right to steal still permits what it should: to steal a lock below
    // `team/`.
    node.asks(VICTIM, "POST", "/locks/team/x").is(200);
    node.asks(THIEF, "POST", "/locks/team/x/steal?reason=why").is(200);
    assert_eq!(node.asks(ADMIN, "DELETE", "/cluster/nodes/7").code, 409);
    let log = fs::read_to_string(node.scratch.path().join("data/audit.log")).expect("a log");
    let acts: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .filter(|entry: &serde_json::Value| entry["operation"] == "remove a node")
        .collect();
    assert_eq!(acts.len(), 2, "{log}");
    for entry in &acts {
        assert_eq!((&entry["actor"], &entry["node"]), (&"admin".into(), &7.into()), "{log}");
        assert_eq!(
            (&entry["credential"], &entry["address"]),
            (&"token".into(), &"127.0.0.1".into())
        );
    }
    assert_eq!(acts[0]["outcome"], "begun");
    assert!(acts[1]["outcome"].as_str().is_some_and(|how| how.starts_with("not done: ")), "{log}");
}

/// Returns the body of the RPC by which a node forwards client commands to the leader, with `count`
/// commands of three bytes each, in the encoding of `version`.
fn forwards(version: u8, count: usize) -> Vec<u8> {
    // The header of the RPC: no cluster id, no sender, no receiver, the kind "commands". The number
    // of commands follows.
    let mut body = vec![version, 0, 0, 0, 5];
    let mut rest = count;
    while rest >= 0x80 {
        body.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    body.push(rest as u8);
    // Each command consists of three zero bytes: no request id, the operation `Settle`, which only
    // expires what is due, and no acknowledged numbers.
    body.resize(body.len() + 3 * count, 0);
    body
}

/// Hundreds of connections without credentials send as much as they can, in plain text and as a TLS
/// `ClientHello`, and stay open. The node stores none of it, and serves clients meanwhile.
#[test]
fn unauthenticated_peers_take_no_memory() {
    let node = Node::start();
    node.serves_the_victim();
    let before = peak_kib(node.server.pid());
    let body = forwards(0, 12 << 20);
    let head = format!(
        "POST /raft/v1/forward HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    // The beginning of a TLS ClientHello that claims to be 64 KiB long, in records of 16 KiB. The
    // test sends only 48 KiB of it.
    let mut hello = vec![1, 0, 0xff, 0xf0];
    hello.resize(3 << 14, 0);
    let hello: Vec<u8> =
        hello.chunks(1 << 14).flat_map(|part| [&[22, 3, 1, 0x40, 0], part].concat()).collect();
    let mut connections = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..8 {
                let mut stream = TcpStream::connect(&node.peers).expect("it listens");
                // The writes fail when the node closes the connection.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&body);
            }
        });
        for _ in 0..400 {
            let mut stream = TcpStream::connect(&node.peers).expect("it listens");
            let patience = Some(Duration::from_millis(100));
            stream.set_write_timeout(patience).expect("a limit");
            let _ = stream.write_all(&hello);
            connections.push(stream);
        }
        node.serves_the_victim();
    });
    node.serves_the_victim();
    let grown = peak_kib(node.server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for strangers");
}

/// A caller with the peer secret may send any RPC, but the memory for an RPC is bounded as for
/// other floods, and only RPCs with log entries or snapshots may be long.
#[test]
fn memory_of_a_peer_rpc_is_bounded() {
    let node = Node::start();
    let call = |call: &str, body: &[u8]| node.call(call, body, &[]);
    // The call begins with its version. The expected response to a malformed RPC has three bytes:
    // the protocol version, "error", and the error kind "malformed".
    let malformed = call("forward", b"\x01anything").stdout;
    let [version, 1, 0] = malformed[..] else { panic!("{malformed:?}") };
    let stranger = call("forward", &forwards(version, 1));
    assert!(stranger.status.success(), "it is heard: {stranger:?}");
    assert_ne!(stranger.stdout, malformed, "and understood, but of no cluster");
    node.serves_the_victim();
    let before = peak_kib(node.server.pid());
    let (fits, long) = (forwards(version, 1 << 20), forwards(version, 12 << 20));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..4 {
                assert_eq!(call("forward", &fits).stdout, malformed);
                for name in ["forward", "status", "append"] {
                    let response = call(name, &long).stdout;
                    assert!(response.is_empty() || response == malformed, "{name}: {response:?}");
                }
            }
        });
        node.serves_the_victim();
    });
    node.serves_the_victim();
    let grown = peak_kib(node.server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for calls of {} KiB", long.len() >> 10);
}

/// Returns the body of an append RPC whose single log entry holds `count` commands. The entry has
/// no end, so the node decodes all commands before it finds the RPC malformed.
fn appends(version: u8, count: usize) -> Vec<u8> {
    let commands = forwards(version, count);
    // The header of the RPC: no cluster id, no sender, no receiver, the kind "append", its vote, no
    // previous entry, one entry.
    let mut body = vec![version, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    // The log entry: its id, its kind "commands", their time. The number of commands follows.
    body.extend([0, 0, 0, 1, 1, 0]);
    body.extend(&commands[5..]);
    body
}

/// Many connections at once send the RPCs that take the most memory, and other connections slowly
/// send long malformed RPCs. All RPCs together may take only as much memory as the longest RPC may
/// take.
#[test]
fn peer_rpcs_of_many_connections_share_one_memory_bound() {
    let node = Node::start();
    let version = node.call("forward", b"\x01anything", &[]).stdout[0];
    node.serves_the_victim();
    let before = peak_kib(node.server.pid());
    // The shortest commands take hundreds of times as much memory as they have bytes.
    let dense = [("forward", forwards(version, 24_000)), ("append", appends(version, 24_000))];
    let long = ("append", vec![version; 10 << 20]);
    thread::scope(|scope| {
        let calls: Vec<_> = (0..36)
            .map(|number| {
                let (node, dense, long) = (&node, &dense, &long);
                scope.spawn(move || {
                    let (name, body) = if number % 3 == 2 { long } else { &dense[number % 3] };
                    let slow = ["--limit-rate", "3M", "--max-time", "6"];
                    let slow = if number % 3 == 2 { &slow[..] } else { &[] };
                    (0..2).filter(|_| !node.call(name, body, slow).stdout.is_empty()).count()
                })
            })
            .collect();
        while !calls.iter().all(thread::ScopedJoinHandle::is_finished) {
            node.serves_the_victim();
        }
        let answered: usize = calls.into_iter().map(|call| call.join().expect("it ends")).sum();
        assert!(answered > 16, "{answered} calls were answered");
    });
    node.serves_the_victim();
    let grown = peak_kib(node.server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for calls of nodes");
}

/// A node that joins late receives 17 MiB of log entries. They exceed the limit of one RPC, so the
/// leader sends several, and the node gets all of them.
#[test]
fn entries_beyond_the_limit_of_one_rpc_are_sent_in_several() {
    let node = Node::start();
    let path = |name: &str| node.scratch.path().join(name).display().to_string();
    let text = "n".repeat(1_000);
    for block in 0..64 {
        let lock = |number| {
            let Op::Acquire(ask) = acquire(&format!("many/{block}/{number}"), &text) else {
                panic!("it acquires");
            };
            let term = LeaseTerms::Own(Ttl::parse("1h").expect("a ttl"), GRACE_DEFAULT);
            submit(Op::Acquire(Acquire { term, ..ask }))
        };
        let asks = (0..256).map(lock).collect();
        let batch = encode_batch(&RequestBatch::new(0, asks));
        fs::write(path("batch"), batch).expect("ours");
        let sent = ["-H", ADMIN, "--data-binary", &format!("@{}", path("batch"))];
        let response = node.server.curl(&[&sent[..], &["/door/v1/ask"]].concat());
        assert_eq!(response.code, 200, "{response:?}");
    }
    let (data, tokens, secret) = (path("late"), path("tokens.toml"), path("certs/peers.pem"));
    let own = ["--data", &data, "--tokens", &tokens, "--peer-listen", "127.0.0.1:0"];
    let more = ["--peer-secret-file", &secret, "--seed", &node.peers];
    let late = Server::listen(&[&own[..], &more].concat());
    eventually("the late node has all entries", || {
        let seen = late.curl(&["-H", ADMIN, "/locks/many/63/255?consistency=local"]);
        (seen.code == 200 && seen.json()["holder"] == "eve").then_some(())
    });
    let first = late.curl(&["-H", ADMIN, "/locks/many/0/0"]).is(200);
    assert_eq!(first["note"].as_str().map(str::len), Some(1_000));
    // The node got the entries by replication of the log, not by a snapshot.
    let cluster = node.asks(ADMIN, "GET", "/cluster").is(200);
    assert_eq!(cluster["nodes"][1]["snapshot"], 0, "{cluster}");
    node.serves_the_victim();
}
