//! A caller that takes as much as it can of each limited table: its share, and not one place more.
//! A victim with another credential, user or address is served meanwhile.

use crate::floods::submit;
use crate::mount_floods::{Attacker, victim};
use crate::patience::prompt;
use crate::peers::Node;
use latchfs::engine::values::lease::GRACE_DEFAULT;
use latchfs::engine::{
    Acquire, ClientId, LeaseTerms, LockName, Mode, Op, OpenSession, QueuePolicy, Ttl,
};
use latchfs::service::batch::batch_messages::{
    ItemReply, RequestBatch, decode_response, encode_batch,
};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use testing::{ALICE, BOB, Lines, Scratch, Server, Setup, eventually, latchfs};

const TOKENS: &str = r#"
[[token]]
name = "eve"
secret = "the secret of the attacker"
clients = ["eve", "eve:*"]

[[token]]
name = "ann"
secret = "the secret of the victim"
clients = ["ann"]
"#;

const EVE: &str = "Authorization: Bearer the secret of the attacker";
const ANN: &str = "Authorization: Bearer the secret of the victim";

/// The number of parts of a full batch.
const PARTS: usize = 256;

/// Starts a server whose shares are this percentage.
fn start(scratch: &Scratch, share: &str) -> Server {
    let path = scratch.path().join("tokens.toml");
    fs::write(&path, TOKENS).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let tokens = path.display().to_string();
    let own = ["--memory", "--grant-at-once", "--tokens", &tokens];
    Server::listen(&[&own[..], &["--share", share]].concat())
}

/// `--limit` lowers the limits that all callers share, also for callers without a share.
#[test]
fn limits_of_all_callers_are_lowered_by_an_option() {
    let limits = "--limit=locks=3,sessions=1,queue=1,waiters=2,connections=8";
    let server = Server::listen(&["--memory", "--grant-at-once", "--share=100", limits]);
    let post = |path: &str| server.curl(&["-X", "POST", path]);
    for lock in ["a", "b", "c"] {
        post(&format!("/locks/{lock}?client=x")).is(200);
    }
    let full = post("/locks/d?client=x").is(429);
    assert_eq!(
        (&full["kind"], full["detail"].as_str()),
        (&"E_LIMIT".into(), Some("3 locks are held, which is the limit; release some"),)
    );
    let op = acquire("d", "x", QueuePolicy::Skip, Mode::Exclusive);
    let replies = crate::floods::send_batch(&server, vec![submit(op)]);
    let [ItemReply::Answered(Err(full))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(full.kind().as_str(), "E_LIMIT", "a mount of this server: {full}");
    let wait = |lock: &str, client: &str| {
        let path = format!("/locks/{lock}?client={client}&wait=60s");
        server.open(&["-X", "POST", &path])
    };
    let _first = wait("a", "one");
    server.in_line("a", 1);
    let full = wait("a", "two").reply().is(429);
    assert!(full["detail"].as_str().is_some_and(|why| why.starts_with("1 wait for this lock")));
    let _second = wait("b", "two");
    server.in_line("b", 1);
    let full = wait("c", "three").reply().is(429);
    assert!(full["detail"].as_str().is_some_and(|why| why.starts_with("2 wait in all queues")));
    // The waiting requests have the one session that there may be: the server's own.
    let full = post("/sessions?client=x").is(429);
    assert!(full["detail"].as_str().is_some_and(|why| why.contains("1 sessions are open")));
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    eventually("a connection beyond the limit ends", || {
        // The server ends connections without a request, so each try opens all of them.
        let connect = |_| TcpStream::connect(address).expect("it listens");
        let _held: Vec<_> = (0..8).map(connect).collect();
        let mut one = TcpStream::connect(address).ok()?;
        one.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
        one.read(&mut [0]).is_ok_and(|count| count == 0).then_some(())
    });
    post("/locks/a?client=x&reentrant=true").is(200);
}

/// Opens a connection, sends a GET request with the attacker's token, and returns the connection
/// and the status line.
fn get(server: &Server, path: &str) -> (BufReader<TcpStream>, String) {
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{EVE}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).expect("it answers");
    (stream, line)
}

/// Opens streams at `path` until one is refused, and returns the open ones and the refusal.
fn streams(server: &Server, path: &str) -> (Vec<BufReader<TcpStream>>, String) {
    let mut open = Vec::new();
    loop {
        let (mut stream, status) = get(server, path);
        if status.starts_with("HTTP/1.1 200") {
            open.push(stream);
            continue;
        }
        assert!(status.starts_with("HTTP/1.1 429"), "{status}");
        let mut said = vec![0; 4_096];
        let mut length = 0;
        while !said[..length].contains(&b'}') {
            length += stream.read(&mut said[length..]).expect("an answer");
        }
        return (open, String::from_utf8_lossy(&said[..length]).into_owned());
    }
}

/// Sends full batches of the attacker with the commands that `op` returns until one is refused.
/// Returns the number of those that were carried out, and the refusal.
fn fill(server: &Server, scratch: &Scratch, op: impl Fn(usize) -> Op) -> (usize, String) {
    let file = scratch.path().join("batch");
    let mut done = 0;
    for number in 1.. {
        let asks = (0..PARTS).map(|place| submit(op(number * PARTS + place))).collect();
        let batch = RequestBatch::new(0, asks);
        fs::write(&file, encode_batch(&batch)).expect("our directory");
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "-H", EVE, "--data-binary"]);
        curl.arg(format!("@{}", file.display())).args(server.target("/door/v1/ask"));
        let body = curl.output().expect("curl is there").stdout;
        for reply in decode_response(&body).expect("an answer").replies {
            match reply {
                ItemReply::Answered(Ok(_)) => done += 1,
                ItemReply::Answered(Err(refusal)) => {
                    return (done, format!("{} {refusal}", refusal.kind().as_str()));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    unreachable!("there are limits")
}

fn acquire(lock: &str, client: &str, line: QueuePolicy, mode: Mode) -> Op {
    Op::Acquire(Acquire {
        mode,
        line,
        ..Acquire::new(
            LockName::parse(lock).expect("a name"),
            ClientId::parse(client).expect("a client"),
            LeaseTerms::Own(Ttl::parse("1h").expect("a ttl"), GRACE_DEFAULT),
        )
    })
}

/// Checks that the victim gets a lock and a session.
fn serves_the_victim(server: &Server) {
    prompt("the victim's requests", || {
        server.curl(&["-H", ANN, "-X", "POST", "/locks/victim?client=ann"]).is(200);
        server.curl(&["-H", ANN, "-X", "DELETE", "/locks/victim?client=ann"]).is(200);
        let session = server.curl(&["-H", ANN, "-X", "POST", "/sessions?client=ann"]).is(201);
        let path = format!("/sessions/{}", session["session"]);
        server.curl(&["-H", ANN, "-X", "DELETE", &path]).is(200);
    });
}

/// In an earlier version one credential could take all 100,000 sessions for a day.
#[test]
fn one_credential_takes_half_of_the_sessions() {
    let scratch = Scratch::new();
    let server = start(&scratch, "50");
    let open = |number: usize| {
        let client = ClientId::parse(&format!("eve:{number}")).expect("a client");
        let ttl = Some(Ttl::parse("24h").expect("a ttl"));
        Op::OpenSession(OpenSession { client, ttl, grace: GRACE_DEFAULT })
    };
    let (opened, refusal) = fill(&server, &scratch, open);
    assert_eq!(opened, 50_000);
    assert!(refusal.starts_with("E_LIMIT"), "{refusal}");
    let said = server.curl(&["-H", EVE, "-X", "POST", "/sessions?client=eve"]).is(429);
    let why = said["detail"].as_str().expect("a sentence");
    assert!(why.contains("you have 50000 open sessions, which is your share"), "{why}");
    serves_the_victim(&server);
}

/// Locks, shared holds and waiters, with a share of one percent.
#[test]
fn one_credential_takes_its_share_of_locks_and_queues() {
    let scratch = Scratch::new();
    let server = start(&scratch, "1");
    let lock = |number: usize| {
        let (name, client) = (format!("e/{number}"), format!("eve:{}", number % 1_000));
        acquire(&name, &client, QueuePolicy::Skip, Mode::Exclusive)
    };
    let (held, refusal) = fill(&server, &scratch, lock);
    assert_eq!(held, (1 << 20) / 100);
    assert!(refusal.starts_with("E_LIMIT"), "{refusal}");
    let said = server.curl(&["-H", EVE, "-X", "POST", "/locks/more?client=eve"]).is(429);
    let why = said["detail"].as_str().expect("a sentence");
    assert!(why.contains("you have 10485 locks, which is your share"), "{why}");
    // The attacker may renew the locks that it holds already.
    let path = format!("/locks/e/{}?client=eve:{}&reentrant=true", PARTS, PARTS % 1_000);
    server.curl(&["-H", EVE, "-X", "POST", &path]).is(200);
    serves_the_victim(&server);

    let server = start(&scratch, "1");
    let share = |number: usize| {
        let client = format!("eve:{number}");
        acquire("shared", &client, QueuePolicy::Skip, Mode::Shared)
    };
    assert_eq!(fill(&server, &scratch, share).0, 100);
    server.curl(&["-H", ANN, "-X", "POST", "/locks/shared?client=ann&mode=shared"]).is(200);
    server.curl(&["-H", ANN, "-X", "POST", "/locks/queue?client=ann"]).is(200);
    let wait = |number: usize| {
        let client = format!("eve:{number}");
        acquire("queue", &client, QueuePolicy::Join(None), Mode::Exclusive)
    };
    assert_eq!(fill(&server, &scratch, wait).0, 100);
    serves_the_victim(&server);
}

/// In an earlier version four connections took all 1,000 event streams, and those of mounts had no
/// limit.
#[test]
fn one_credential_takes_its_share_of_event_streams_and_waits() {
    let scratch = Scratch::new();
    let server = start(&scratch, "1");
    let (open, refusal) = streams(&server, "/events");
    assert_eq!(open.len(), 10);
    assert!(refusal.contains("E_LIMIT"), "{refusal}");
    let share = "credential token 'eve' has 10 event streams, which is the share of one credential";
    assert!(refusal.contains(share), "{refusal}");
    drop(server.events(&["-H", ANN, "/events"]));
    let (of_mounts, refusal) = streams(&server, "/door/v1/events");
    assert_eq!(of_mounts.len(), 81);
    assert!(refusal.contains("has 81 event streams of mounts"), "{refusal}");
    serves_the_victim(&server);
    drop((open, of_mounts));

    let server = start(&scratch, "1");
    server.curl(&["-H", ANN, "-X", "POST", "/locks/x?client=ann"]).is(200);
    let path = "/locks/x?client=eve&wait=1h";
    let waits: Vec<_> = (0..100).map(|_| server.open(&["-H", EVE, "-X", "POST", path])).collect();
    eventually("the attacker waits", || {
        let seen = server.curl(&["-H", ANN, "/locks/x"]).json();
        (seen["waiters"].as_array().map_or(0, Vec::len) == 100).then_some(())
    });
    let said = server.curl(&["-H", EVE, "-X", "POST", path]).is(429);
    assert_eq!(said["type"], "urn:latchfs:E_LIMIT", "{said}");
    let why = said["detail"].as_str().expect("a sentence");
    assert!(why.contains("has 100 waiting requests, which is the share"), "{why}");
    let said = server.curl(&["-H", ANN, "-X", "POST", "/locks/x?client=ann&wait=1s"]);
    assert_eq!(said.code, 409, "the victim waits as long as it wants: {said:?}");
    serves_the_victim(&server);
    drop(waits);
}

/// Connects to `address` until the server closes a connection at once, and returns the open ones.
fn connections(address: &str) -> Vec<TcpStream> {
    let mut open = Vec::new();
    loop {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
        // A refused connection ends at once; another one waits for a request.
        match stream.read(&mut [0]) {
            Ok(0) => return open,
            Ok(_) => panic!("nothing was asked"),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return open,
            Err(_) => open.push(stream),
        }
    }
}

/// One address takes its share of the connections for HTTP and for lines; the victim has another
/// address.
#[test]
fn one_address_takes_its_share_of_connections() {
    let lines = Lines::start(&["--share", "1"]);
    let address = lines.server.url.strip_prefix("http://").expect("plain HTTP").to_owned();
    let open = connections(&lines.address);
    assert_eq!(open.len(), 20);
    drop(open);
    let mut open: Vec<TcpStream> =
        (0..163).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    eventually("the share is used up", || {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a limit");
        if matches!(stream.read(&mut [0]), Ok(0)) {
            return Some(());
        }
        // It counts, or the server has ended another one that was idle.
        open.push(stream);
        None
    });
    let victim = ["--interface", "127.0.0.2", "-X", "POST", "/locks/victim?client=ann"];
    prompt("the victim's request", || lines.server.curl(&victim).is(200));
    drop(open);
}

/// In an earlier version any user of a mount could take all of its locks through the control file.
#[test]
fn one_user_of_a_mount_takes_its_share_of_locks() {
    let m = Setup::new().with("--share 1").start();
    let program = r#"
        ctl = os.open('.latchfs/ctl', os.O_RDWR)
        asked, held, refused = 0, 0, None
        while not refused:
            for _ in range(100):
                ask = {'do': 'acquire', 'name': f'e{asked}', 'ttl': '1h'}
                os.write(ctl, json.dumps(ask).encode())
                asked += 1
            text = b''
            while text.count(b'\n') < 100:
                text += os.read(ctl, 1 << 20)
            for answer in map(json.loads, text.splitlines()):
                if answer['ok']:
                    held += 1
                else:
                    refused = answer
        print(held, refused['kind'], refused['message'], flush=True)
        try:
            os.mkdir('more')
        except OSError as error:
            print(error.errno, flush=True)
        time.sleep(600)
    "#;
    let attacker = Attacker::start(&m, ALICE, program);
    let held = attacker.says();
    assert!(held.starts_with("10485 E_LIMIT you have 10485 locks, which is your share"), "{held}");
    assert_eq!(attacker.says(), libc::ENOSPC.to_string());
    victim(&m);
    m.sh_as(BOB, "mkdir mine && rmdir mine && latchfs run mine -- true").ok();
}

/// In an earlier version a connection took one of 256 places before its handshake, so a few hundred
/// connections without a certificate kept nodes from each other.
#[test]
fn connections_without_a_certificate_do_not_keep_nodes_out() {
    let node = Node::start();
    let stop = AtomicBool::new(false);
    let connect = || TcpStream::connect(&node.peers).expect("it listens");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut open: Vec<TcpStream> = (0..210).map(|_| connect()).collect();
                while !stop.load(Ordering::Relaxed) {
                    for stream in &mut open {
                        stream.set_nonblocking(true).expect("ours");
                        if matches!(stream.peek(&mut [0]), Ok(0)) {
                            *stream = connect();
                        }
                    }
                    thread::park_timeout(Duration::from_millis(50));
                }
            });
        }
        let joined = prompt_join(&node);
        stop.store(true, Ordering::Relaxed);
        assert!(joined, "a node joins beside the flood: {}", node.server.log());
    });
    node.serves_the_victim();
}

/// Starts a second node, and returns whether it serves clients within ten seconds.
fn prompt_join(node: &Node) -> bool {
    let path = |name: &str| node.scratch.path().join(name).display().to_string();
    let (data, tokens, secret) = (path("late"), path("tokens.toml"), path("certs/peers.pem"));
    let mut command = latchfs();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data", &data, "--tokens", &tokens]);
    command.args(["--peer-listen", "127.0.0.1:0", "--peer-secret-file", &secret]);
    command.args(["--seed", &node.peers]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program is there");
    let said = testing::lines(child.stdout.take().expect("piped"));
    let joined = said
        .recv_timeout(Duration::from_secs(10))
        .is_ok_and(|line| line.starts_with("latchfs: listening on "));
    let _gone = child.kill();
    let _reaped = child.wait();
    joined
}
