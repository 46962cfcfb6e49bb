//! Many clients at once on one server: idle connections, sessions that share connections, and
//! clients that lock and unlock without a pause.

use latchfs::time::{Span, boot_now};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use testing::{Server, rounds};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

/// The most memory that an idle connection may take, in bytes.
const IDLE_BYTES_MAX: u64 = 16 << 10;

/// The number of files that this process and a server may open: one for each connection, and some
/// more.
const FILES: u64 = 16_000;

/// The source addresses among which connections are spread, because one address alone gets only a
/// share of all connections.
const SOURCES: usize = 8;

/// Clients that open connections at the same time.
const OPENERS: usize = 8;

/// A keep-alive connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(server: SocketAddr, number: usize) -> Self {
        let source = SocketAddr::from(([127, 0, 0, 2 + (number % SOURCES) as u8], 0));
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(source).expect("an address of loopback");
        let stream = socket.connect(server).await.expect("the server listens");
        stream.set_nodelay(true).expect("it is TCP");
        Self(BufReader::with_capacity(1 << 10, stream))
    }

    /// Sends a request, and returns the status and the body of the response.
    async fn request(&mut self, request: &str) -> (u16, String) {
        let text = format!("{request} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.0.get_mut().write_all(text.as_bytes()).await.expect("the connection is open");
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        while line != "\r\n" {
            line.clear();
            let count = self.0.read_line(&mut line).await.expect("the connection is open");
            assert_ne!(count, 0, "the connection was closed before the response to {request}");
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().expect("a status");
            } else if let Some(rest) = line.strip_prefix("content-length: ") {
                length = rest.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.expect("the connection is open");
        (status, String::from_utf8(body).expect("text"))
    }

    /// Sends a request that must succeed, and returns the body of the response.
    async fn done(&mut self, request: &str) -> String {
        let (status, body) = self.request(request).await;
        assert!(status < 300, "{request}: {status} {body}");
        body
    }
}

/// Starts a server that may have as many connections as a test opens, and logs no locks. Only one
/// of these tests runs at a time, because all share the open files of this process.
fn server() -> (Server, SocketAddr, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut files = getrlimit(Resource::Nofile);
    let at_least = |limit: Option<u64>| limit.map(|limit| limit.max(FILES));
    (files.current, files.maximum) = (at_least(files.current), at_least(files.maximum));
    setrlimit(Resource::Nofile, files).expect("root may open many files");
    let server = Server::start(&["--log-locks", "off"]);
    let address = server.url.strip_prefix("http://").expect("TCP").parse().expect("an address");
    (server, address, turn)
}

fn run(clients: impl Future<Output = ()>) {
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(clients);
}

/// Runs `client` for each number below `count`, all at the same time, and returns what they return.
async fn each<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    client: impl Fn(usize) -> F,
) -> Vec<T> {
    (0..count).map(client).collect::<JoinSet<_>>().join_all().await
}

/// Returns the resident memory of the server in bytes.
fn resident_bytes(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Returns a number among the metrics of the server.
fn metric(server: &Server, name: &str) -> u64 {
    let page = server.curl(&["/metrics"]).body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a whole number")
}

/// No lease and no session has ended by its time.
#[track_caller]
fn assert_nothing_expired(server: &Server) {
    for name in ["expiries", "lapses", "sessions_expired"] {
        assert_eq!(metric(server, &format!("latchfs_{name}_total")), 0, "{name}");
    }
}

/// 15,000 connections are open at once, each of which has asked once; another client locks and
/// unlocks as before.
#[test]
fn fifteen_thousand_idle_connections() {
    const COUNT: usize = 15_000;
    let (server, address, _turn) = server();
    run(async {
        let before = resident_bytes(&server);
        let open = each(OPENERS, move |opener| async move {
            let mut open = Vec::with_capacity(COUNT / OPENERS);
            for number in (opener..COUNT).step_by(OPENERS) {
                let mut connection = Connection::open(address, number).await;
                connection.request(&format!("GET /locks/idle{number}")).await;
                open.push(connection);
            }
            open
        });
        let open = open.await;
        let count: usize = open.iter().map(Vec::len).sum();
        let idle = (resident_bytes(&server) - before) / COUNT as u64;
        println!("an idle connection takes {idle} bytes of memory");
        assert_eq!(count, COUNT);
        assert!(metric(&server, "latchfs_http_connections") >= COUNT as u64);
        assert_eq!(server.curl(&["-XPOST", "/locks/other?client=other&ttl=60s"]).code, 200);
        assert_eq!(server.curl(&["-XDELETE", "/locks/other?client=other"]).code, 200);
        assert!(idle <= IDLE_BYTES_MAX, "an idle connection takes {idle} bytes");
    });
}

/// 1,000 connections carry 100,000 sessions. Each session is kept alive once, and none expires.
#[test]
fn a_hundred_thousand_sessions_over_a_thousand_connections() {
    const CONNECTIONS: usize = 1_000;
    const SESSIONS_OF_EACH: usize = 100;
    let (server, address, _turn) = server();
    let before = resident_bytes(&server);
    run(async {
        let kept = each(CONNECTIONS, move |number| async move {
            let mut connection = Connection::open(address, number).await;
            let mut sessions = Vec::with_capacity(SESSIONS_OF_EACH);
            for place in 0..SESSIONS_OF_EACH {
                let path = format!("POST /sessions?client=c{number}-{place}&ttl=10m");
                let (status, body) = connection.request(&path).await;
                assert_eq!(status, 201, "{body}");
                let opened: serde_json::Value = serde_json::from_str(&body).expect("JSON");
                sessions.push(opened["session"].as_u64().expect("the id of a session"));
            }
            for session in &sessions {
                connection.done(&format!("POST /sessions/{session}/keepalive")).await;
            }
            sessions.len()
        });
        let all = CONNECTIONS * SESSIONS_OF_EACH;
        assert_eq!(kept.await.iter().sum::<usize>(), all);
        assert_eq!(metric(&server, "latchfs_sessions"), all as u64);
        let bytes = (resident_bytes(&server) - before) / all as u64;
        println!("a session takes {bytes} bytes of memory, with a hundredth of a connection");
    });
    assert_nothing_expired(&server);
}

/// 1,000 clients lock and unlock without a pause, while each keeps a session and a lock of it
/// alive. The full form takes ten minutes.
#[test]
fn a_thousand_busy_clients_lose_no_lease() {
    const CLIENTS: usize = 1_000;
    const TTL_SECS: u64 = 10;
    const KEEP_ALIVE_EVERY: Span = Span::from_secs(TTL_SECS / 3);
    let length = Span::from_secs(rounds(10, 600) as u64);
    let (server, address, _turn) = server();
    run(async {
        let pairs = each(CLIENTS, move |number| async move {
            let mut connection = Connection::open(address, number).await;
            let path = format!("POST /sessions?client=c{number}&ttl={TTL_SECS}s");
            let opened = connection.done(&path).await;
            let opened: serde_json::Value = serde_json::from_str(&opened).expect("JSON");
            let session = &opened["session"];
            let held = format!("POST /locks/held{number}?client=c{number}&session={session}");
            connection.done(&held).await;
            let lock = format!("POST /locks/busy{number}?client=c{number}&ttl={TTL_SECS}s");
            let unlock = format!("DELETE /locks/busy{number}?client=c{number}");
            let (begun, mut kept, mut pairs) = (boot_now(), boot_now(), 0);
            while boot_now().since(begun) < length {
                if boot_now().since(kept) > KEEP_ALIVE_EVERY {
                    kept = boot_now();
                    connection.done(&format!("POST /sessions/{session}/keepalive")).await;
                }
                connection.done(&lock).await;
                connection.done(&unlock).await;
                pairs += 1;
            }
            connection.done(&format!("GET /locks/held{number}")).await;
            pairs
        });
        let pairs: u64 = pairs.await.iter().sum();
        println!("{CLIENTS} clients locked and unlocked {pairs} times in {length}");
        assert_eq!(metric(&server, "latchfs_locks_by_phase{phase=\"held\"}"), CLIENTS as u64);
    });
    assert_nothing_expired(&server);
}
