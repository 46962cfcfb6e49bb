//! Floods: a client sends batches whose decoding would take much memory, and a server sends its
//! clients answers whose decoding would take much memory.

use crate::mount_floods::victim;
use crate::patience::prompt;
use latchfs::engine::values::lease::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, LockName, Op, Outcome, Patch, Renew, Replay,
};
use latchfs::service::List;
use latchfs::service::batch::batch_messages;
use latchfs::service::batch::batch_messages::{
    BatchItem, BatchResponse, ItemReply, RequestBatch, Stamp, Submission, decode_response,
    encode_batch, encode_response,
};
use latchfs::time::{Time, Wall, boot_now};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use testing::{Behind, Scratch, Server, Setup, latchfs, latchfs_path, poll, run_latchfs};

/// The maximum memory in KiB that a flood may add to the attacked process.
pub(crate) const FLOOD_KIB: u64 = 64 << 10;

/// The time within which a client must end with an error message if its server gives no valid
/// answer.
pub(crate) const CLIENT_LIMIT: Duration = Duration::from_secs(20);

/// Starts a server without access control: any client may send any request.
pub(crate) fn start() -> Server {
    Server::listen(&["--memory", "--grant-at-once"])
}

/// Returns the peak memory (`VmHWM`) of a process in KiB, or 0 after it has ended.
pub(crate) fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
}

/// Whether the process has executed latchfs already. Between fork and exec a child shares the
/// memory of its parent, so its peak memory would be that of the whole test process.
fn runs_latchfs(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|program| program == Path::new(latchfs_path()))
}

/// Sends the encoded batch `batch` to the server; returns the status code and the body of the
/// answer.
pub(crate) fn send(server: &Server, batch: &[u8]) -> (u16, Vec<u8>) {
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    send_by(stream, batch)
}

fn send_by(mut stream: impl Read + Write, batch: &[u8]) -> (u16, Vec<u8>) {
    let length = batch.len();
    let head = "POST /door/v1/ask HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let head = format!("{head}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    // The error is ignored: the write fails if the server has already refused the body and closed
    // the connection, and the answer can still be read.
    let _ = stream.write_all(batch);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    let code = String::from_utf8_lossy(&answer[9..12]).parse().expect("a code");
    (code, answer.split_off(end + 4))
}

pub(crate) fn send_batch(server: &Server, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    replies(send(server, &batch_of(asks)))
}

/// Sends a batch to the Unix socket of a server, where its own user may ask for everything.
pub(crate) fn ask_at_socket(socket: &Path, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    let stream = UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    replies(send_by(stream, &batch_of(asks)))
}

fn batch_of(asks: Vec<BatchItem>) -> Vec<u8> {
    encode_batch(&RequestBatch::new(0, asks))
}

fn replies((code, body): (u16, Vec<u8>)) -> Vec<ItemReply> {
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
    decode_response(&body).expect("an answer").replies
}

/// Checks that the victim, a well-behaved client of the attacked server, is served within a second.
#[track_caller]
pub(crate) fn serves_the_victim(server: &Server) {
    prompt("the victim's requests", || {
        server.curl(&["-X", "POST", "/locks/victim?client=victim"]).is(200);
        server.curl(&["-X", "DELETE", "/locks/victim?client=victim"]).is(200);
    });
}

pub(crate) fn acquire(lock: &str, note: &str) -> Op {
    Op::Acquire(Acquire {
        patch: Patch { note: Some(note.into()), ..Patch::default() },
        ..Acquire::new(
            LockName::parse(lock).expect("a name"),
            ClientId::parse("eve").expect("a client"),
            LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        )
    })
}

pub(crate) fn submit(op: Op) -> BatchItem {
    BatchItem::Submit(Submission { key: None, op })
}

/// The server refuses a batch (one HTTP request with many commands) of two million one-byte items
/// before it allocates memory for the items.
#[test]
fn a_refused_batch_of_many_parts_takes_no_memory() {
    let server = start();
    serves_the_victim(&server);
    let before = peak_kib(server.pid());
    let count = batch_messages::BATCH_BYTES_MAX - 64;
    let mut batch = encode_batch(&RequestBatch::new(0, vec![BatchItem::Now]));
    // The encoded batch ends with the number of its items, which is 1, and the item itself, one
    // byte each. The number is replaced by a large one, and the item is repeated.
    let part = batch.pop().expect("a part");
    batch.pop();
    for shift in (0..21).step_by(7) {
        let more = if shift == 14 { 0 } else { 0x80 };
        batch.push((count >> shift) as u8 & 0x7f | more);
    }
    batch.resize(batch.len() + count, part);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..4 {
                    assert_eq!(send(&server, &batch).0, 400);
                }
            });
        }
        serves_the_victim(&server);
    });
    let grown = peak_kib(server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for batches that are refused");
}

/// A note (the text of a lease that is shown with its lock) or a holder id that is too long for the
/// HTTP API is refused in a batch of commands, too. Listings of the locks still work after the
/// attempts.
#[test]
fn notes_in_a_batch_have_a_bound() {
    let server = start();
    let long = "x".repeat(1 << 20);
    let mut refused = 0;
    for number in 0..8 {
        let lock = format!("eve/{number}");
        let fits = send_batch(&server, vec![submit(acquire(&lock, "short"))]);
        assert!(matches!(&fits[..], [ItemReply::Answered(Ok(_))]), "{fits:?}");
        let key = LeaseKey {
            name: LockName::parse(&lock).expect("a name"),
            client: ClientId::parse("eve").expect("a client"),
            token: None,
        };
        let patch = Patch { holder_id: Some(long.as_str().into()), ..Patch::default() };
        let renew = Renew { key, term: None, firm: engine::Firm::Keep, patch, acquires: false };
        let parts = vec![submit(acquire(&format!("{lock}x"), &long)), submit(Op::Renew(renew))];
        for part in parts {
            match &send_batch(&server, vec![part])[..] {
                [ItemReply::Answered(Err(refusal))] => {
                    assert_eq!(refusal.kind().as_str(), "E_INVALID");
                    refused += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, 16);
    serves_the_victim(&server);
    let (code, said) = run_latchfs(&["ls", "--server", &server.url]);
    assert!(code == Some(0) && said.contains("eve/7") && !said.contains("eve/7x"), "{said}");
}

/// A sender of batches (HTTP requests of many commands) can repeat a batch, because the server
/// keeps the last answer to each sender. The memory for these answers is bounded: a client that
/// sends each batch under another sender id can't exhaust it.
#[test]
fn answers_for_invented_senders_have_a_bound() {
    let server = start();
    let note = "n".repeat(1_024);
    for block in 0..4 {
        let locks = (0..250).map(|number| format!("eve/{block}/{number}"));
        let asks = locks.map(|lock| submit(acquire(&lock, &note))).collect();
        send_batch(&server, asks);
    }
    let list = || BatchItem::List(List { prefix: "eve/".to_owned(), after: None, limit: 1_024 });
    // One request is sent before the first reading of the memory, so that the reading includes what
    // any request takes.
    send_batch(&server, vec![list()]);
    let before = peak_kib(server.pid());
    for _ in 0..150 {
        let replies = send_batch(&server, vec![list()]);
        let [ItemReply::Listed(page)] = &replies[..] else { panic!("no page") };
        assert_eq!(page.items.len(), 1_000);
    }
    // A batch with 256 list requests gets no more list entries in total than one list request may
    // get.
    let replies = send_batch(&server, (0..256).map(|_| list()).collect());
    let items = |reply: &ItemReply| match reply {
        ItemReply::Listed(page) => page.items.len(),
        _ => 0,
    };
    assert!(
        (1..=1_024).contains(&replies.iter().map(items).sum::<usize>()),
        "a share of one page each"
    );
    serves_the_victim(&server);
    let grown = peak_kib(server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for senders that nobody has seen before");
}

/// A client needs little memory for the answer of a hostile server that consists of millions of
/// one-byte replies or of endless bytes, and an answer with deep nesting does not overflow the
/// client's stack. A mount of another server on the same machine is served meanwhile.
#[test]
fn flood_of_a_hostile_server_takes_no_memory_of_its_clients() {
    let mount = Setup::new().behind(Behind::Server).start();
    let stamp = Stamp {
        engine: 9,
        start: 8,
        now: Time::from_secs(1),
        wall: Wall { secs: 1_790_000_000, nanos: 0 },
        next_event: 1,
    };
    let parts = encode_response(&BatchResponse { stamp, replies: vec![ItemReply::Now; 1 << 20] });
    let mut bytes = parts.clone();
    bytes.resize(256 << 20, 5);
    // The body `many` has 16 times as many replies as the body `parts`. The three bytes in front of
    // the replies encode their number, so they are replaced by a larger number of four bytes.
    let mut many = parts.clone();
    many.truncate(parts.len() - (1 << 20) - 3);
    many.extend([0x80, 0x80, 0x80, 0x08]);
    many.resize(many.len() + (16 << 20), 5);
    // The encoding of `Outcome::Replayed` is two bytes, another outcome, and one byte. The body
    // `nested` has a million of them inside each other.
    let replay = Replay { at: Time::ZERO, first: Outcome::Settled, ends: None };
    let replay = ItemReply::Answered(Ok(Outcome::Replayed(Box::new(replay))));
    let mut nested = encode_response(&BatchResponse { stamp, replies: vec![replay] });
    let innermost = nested.split_off(nested.len() - 2);
    let outer = nested[nested.len() - 2..].repeat(1 << 20);
    nested.extend(outer.into_iter().chain(innermost));
    nested.resize(nested.len() + (1 << 20), 0);
    let bodies = [("parts", parts), ("many parts", many), ("bytes", bytes), ("replays", nested)];
    for (name, body) in bodies {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        // The thread is not joined; it ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                flood(stream, &body);
            }
        });
        let listed = || run_client(CLIENT_LIMIT, &["ls", "--server", &url]);
        let Client { code, peak, .. } = beside_victim(|| victim(&mount), listed);
        assert_eq!(code, Some(69), "{name}");
        assert!((1..FLOOD_KIB).contains(&peak), "{name}: {peak} KiB");
    }
}

/// The result of a client process: its exit code, its standard error, its peak memory in KiB, and
/// its running time.
pub(crate) struct Client {
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
    pub(crate) peak: u64,
    pub(crate) took: Duration,
}

/// Runs a client to its end, or kills it at `limit`; a killed client has no exit code.
pub(crate) fn run_client(limit: Duration, args: &[&str]) -> Client {
    // On a busy machine, a short run may end before its memory has been read even once, so it is
    // repeated.
    const RUNS_MAX: usize = 5;
    let mut runs = (0..RUNS_MAX).map(|_| run_client_once(limit, args));
    runs.find(|run| run.peak > 0).expect("one of five runs lasts until its memory is read")
}

/// Runs a client once. The peak is 0 if the client ended before its memory was read.
fn run_client_once(limit: Duration, args: &[&str]) -> Client {
    const POLLS_MAX: usize = 3_000;
    let begun = boot_now();
    let mut command = latchfs();
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut peak = 0;
    let status = poll(POLLS_MAX, "the end of a client", || {
        if runs_latchfs(child.id()) {
            peak = peak.max(peak_kib(child.id().cast_signed()));
        }
        if boot_now().since(begun).as_duration() > limit {
            let _ = child.kill();
        }
        child.try_wait().expect("our child")
    });
    let took = boot_now().since(begun).as_duration();
    let mut said = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
    Client { code: status.code(), said, peak, took }
}

/// Runs `work`, and at the same time calls `victim` again and again until `work` has ended.
pub(crate) fn beside_victim<T: Send>(victim: impl Fn(), work: impl FnOnce() -> T + Send) -> T {
    let (done, ended) = channel();
    thread::scope(|scope| {
        let work = scope.spawn(move || {
            let done = done;
            let outcome = work();
            drop(done);
            outcome
        });
        loop {
            victim();
            let waited = ended.recv_timeout(Duration::from_millis(20));
            if waited == Err::<(), _>(RecvTimeoutError::Disconnected) {
                return work.join().expect("it does not panic");
            }
        }
    })
}

/// Reads the first request of a connection and answers it with `body`.
fn flood(mut stream: TcpStream, body: &[u8]) {
    let mut request = [0; 4_096];
    let _ = stream.read(&mut request);
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    // The errors are ignored: the writes fail if the client closes the connection before the end of
    // the body.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

/// A client that asks for a place in a queue and disconnects before the answer, again and again,
/// leaves neither sessions of the server nor queue places behind.
#[test]
fn requests_that_disconnect_at_once_leave_no_sessions_behind() {
    const REQUESTS: usize = 300;
    let scratch = Scratch::new();
    let data = scratch.path().join("data").display().to_string();
    // The server has a durable log, so opening its session takes a sync, and clients disconnect
    // during the sync.
    let server = Server::listen(&["--data", &data]);
    server.curl(&["-X", "POST", "/locks/held?client=holder&ttl=1h"]).is(200);
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let request = "POST /locks/held?client=eve&wait=1h HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for _ in 0..REQUESTS {
        let mut stream = TcpStream::connect(address).expect("it listens");
        // The error is ignored: the write fails if the server has already closed the connection.
        let _ = stream.write_all(request.as_bytes());
    }
    serves_the_victim(&server);
    let count = |metric: &str| {
        let page = server.curl(&["/metrics"]).body;
        let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        line.and_then(|count| count.parse::<u64>().ok()).expect("a number")
    };
    poll(500, "all queue places are given up", || (count("latchfs_waiters") == 0).then_some(()));
    // The server keeps one session for the queue places of all requests.
    assert!(count("latchfs_sessions") <= 1, "{} sessions are left", count("latchfs_sessions"));
}
