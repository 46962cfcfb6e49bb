//! Floods: a client that sends batches which would take much memory, and a server that floods its
//! clients with such answers.

use crate::mount_floods::victim;
use crate::mounted_harness::{Behind, Setup};
use crate::patience::prompt;
use crate::server_harness::{LATCHFS, Server, latchfs};
use crate::support::look;
use latchfs::engine::lease_terms::{GRACE_DEFAULT, TTL_DEFAULT};
use latchfs::engine::{
    Acquire, ClientId, LeaseKey, LeaseTerms, LockName, Mode, Op, Outcome, Ownership, Patch,
    QueuePolicy, Renew, Replay,
};
use latchfs::service::List;
use latchfs::service::batch_messages::{
    self, BatchItem, BatchResponse, ItemReply, PROTOCOL, RequestBatch, Stamp, Submission,
    decode_told, encode_batch, encode_told,
};
use latchfs::time::{Time, Wall, boot_now};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The maximum memory in KiB that a flood may add to a process.
pub(crate) const FLOOD_KIB: u64 = 64 << 10;

/// A client that gets no answer reports that within this time.
pub(crate) const CLIENT_LIMIT: Duration = Duration::from_secs(20);

/// Starts a server without access control: any client may send any request.
pub(crate) fn start() -> Server {
    Server::listen(&["--state", "none", "--grant-at-once"])
}

/// Returns the peak memory (`VmHWM`) of a process in KiB, or 0 after it has ended.
pub(crate) fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
}

/// Whether a process runs latchfs already. Between fork and exec a child shares the memory of its
/// parent, which here is the memory of all tests of this suite.
fn runs_latchfs(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|program| program == Path::new(LATCHFS))
}

/// Sends a batch of these bytes; returns the status code and the body of the answer.
pub(crate) fn send(server: &Server, batch: &[u8]) -> (u16, Vec<u8>) {
    let address = server.url.strip_prefix("http://").expect("plain HTTP");
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let length = batch.len();
    let head = "POST /door/v1/ask HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let head = format!("{head}content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    // The server may have refused the body already.
    let _ = stream.write_all(batch);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    let code = String::from_utf8_lossy(&answer[9..12]).parse().expect("a code");
    (code, answer.split_off(end + 4))
}

pub(crate) fn ask(server: &Server, from: u64, asks: Vec<BatchItem>) -> Vec<ItemReply> {
    let batch = RequestBatch { engine: 0, from, number: 1, session: None, asks };
    let (code, body) = send(server, &encode_batch(PROTOCOL, &batch));
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&body));
    decode_told(&body).expect("an answer").replies
}

/// Checks that the victim beside the flood is served within a second.
#[track_caller]
pub(crate) fn serves_the_victim(server: &Server) {
    prompt("the victim's requests", || {
        server.curl(&["-X", "POST", "/locks/victim?client=victim"]).is(200);
        server.curl(&["-X", "DELETE", "/locks/victim?client=victim"]).is(200);
    });
}

pub(crate) fn acquire(lock: &str, note: &str) -> Op {
    Op::Acquire(Acquire {
        name: LockName::parse(lock).expect("a name"),
        client: ClientId::parse("eve").expect("a client"),
        mode: Mode::Exclusive,
        hold: Ownership::Client,
        term: LeaseTerms::Own(TTL_DEFAULT, GRACE_DEFAULT),
        line: QueuePolicy::Skip,
        patch: Patch { note: Some(note.into()), ..Patch::default() },
    })
}

pub(crate) fn submit(op: Op) -> BatchItem {
    BatchItem::Submit(Submission { key: None, op })
}

/// A batch of two million parts of one byte each is refused before memory for any of them is
/// allocated.
#[test]
fn a_refused_batch_of_many_parts_takes_no_memory() {
    let server = start();
    serves_the_victim(&server);
    let before = peak_kib(server.pid());
    let count = batch_messages::BATCH_BYTES_MAX - 64;
    let mut batch = encode_batch(
        PROTOCOL,
        &RequestBatch { engine: 0, from: 7, number: 1, session: None, asks: vec![BatchItem::Now] },
    );
    // The last two bytes of the batch are the number of its parts and the single part.
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

/// A note that the HTTP API refuses is refused in a batch as well, and listings still work.
#[test]
fn notes_in_a_batch_have_a_bound() {
    let server = start();
    let long = "x".repeat(1 << 20);
    let mut refused = 0;
    for number in 0..8 {
        let lock = format!("eve/{number}");
        let fits = ask(&server, number + 1, vec![submit(acquire(&lock, "short"))]);
        assert!(matches!(&fits[..], [ItemReply::Answered(Ok(_))]), "{fits:?}");
        let key = LeaseKey {
            name: LockName::parse(&lock).expect("a name"),
            client: ClientId::parse("eve").expect("a client"),
            token: None,
        };
        let patch = Patch { holder_id: Some(long.as_str().into()), ..Patch::default() };
        let renew =
            Renew { key, term: None, firm: latchfs::engine::Firm::Keep, patch, acquires: false };
        let parts = vec![submit(acquire(&format!("{lock}x"), &long)), submit(Op::Renew(renew))];
        for part in parts {
            match &ask(&server, number * 10 + 100 + refused, vec![part])[..] {
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
    let (code, said) = latchfs(&["ls", "--server", &server.url]);
    assert!(code == Some(0) && said.contains("eve/7") && !said.contains("eve/7x"), "{said}");
}

/// The server keeps the last answer of each sender for a repeated request, but the memory for it is
/// bounded: thousands of invented senders don't exhaust it.
#[test]
fn answers_for_invented_senders_have_a_bound() {
    let server = start();
    let note = "n".repeat(1_024);
    for block in 0..4 {
        let locks = (0..250).map(|number| format!("eve/{block}/{number}"));
        let asks = locks.map(|lock| submit(acquire(&lock, &note))).collect();
        ask(&server, 1_000 + block, asks);
    }
    let list = || BatchItem::List(List { prefix: "eve/".to_owned(), after: None, limit: 1_024 });
    // Warm-up: one request before the first reading of the memory.
    ask(&server, 1, vec![list()]);
    let before = peak_kib(server.pid());
    for from in 0..150 {
        let replies = ask(&server, 2_000 + from, vec![list()]);
        let [ItemReply::Listed(page)] = &replies[..] else { panic!("no page") };
        assert_eq!(page.items.len(), 1_000);
    }
    // Several pages in one batch share the limit of one page.
    let replies = ask(&server, 3_000, (0..256).map(|_| list()).collect());
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

/// A server that answers each batch with millions of empty parts, or with an endless body, does not
/// make a client take much memory, and a deeply nested answer does not overflow the stack. A mount
/// of another server on the same machine is served meanwhile.
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
    let parts = encode_told(&BatchResponse { stamp, replies: vec![ItemReply::Now; 1 << 20] });
    let mut bytes = parts.clone();
    bytes.resize(256 << 20, 5);
    // The same parts 16 times: the three bytes before them are their number.
    let mut many = parts.clone();
    many.truncate(parts.len() - (1 << 20) - 3);
    many.extend([0x80, 0x80, 0x80, 0x08]);
    many.resize(many.len() + (16 << 20), 5);
    // Nested replays: each level adds two bytes before the outcome that it repeats, and one after
    // it.
    let replay = Replay { at: Time::ZERO, first: Outcome::Settled, ends: None };
    let replay = ItemReply::Answered(Ok(Outcome::Replayed(Box::new(replay))));
    let mut nested = encode_told(&BatchResponse { stamp, replies: vec![replay] });
    let innermost = nested.split_off(nested.len() - 2);
    let outer = nested[nested.len() - 2..].repeat(1 << 20);
    nested.extend(outer.into_iter().chain(innermost));
    nested.resize(nested.len() + (1 << 20), 0);
    let bodies = [("parts", parts), ("many parts", many), ("bytes", bytes), ("replays", nested)];
    for (name, body) in bodies {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        // The thread ends with the test.
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
    // On a busy machine a short run may end before its memory is read once.
    const RUNS_MAX: usize = 5;
    let mut runs = (0..RUNS_MAX).map(|_| run_client_once(limit, args));
    runs.find(|run| run.peak > 0).expect("one of five runs lasts until its memory is read")
}

/// Runs a client once. The peak is 0 if the client ended before its memory was read.
fn run_client_once(limit: Duration, args: &[&str]) -> Client {
    const LOOKS_MAX: usize = 3_000;
    let begun = boot_now();
    let mut command = Command::new(LATCHFS);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut peak = 0;
    let status = look(LOOKS_MAX, "the end of a client", || {
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

/// Runs `work`, and `victim` again and again until `work` has ended.
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
    // The client may close the connection before the end.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}
