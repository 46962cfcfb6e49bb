//! Request ids under load: a client that fills the table of remembered answers, and a mount that
//! sends more requests in ten minutes than the table can hold.

use crate::mount_floods::since;
use crate::request_ids::{ADMIN, EVE, VICTIM, keyed, start};
use latchfs::engine::{Op, Rules};
use latchfs::service::batch::batch_messages::{
    ASKS_MAX, BatchItem, ItemReply, RequestBatch, decode_response, encode_batch,
};
use latchfs::time::{Time, boot_now};
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use testing::{Scratch, Server, Setup, rounds};

/// A connection to a server that stays open.
struct Connection(BufReader<TcpStream>);

/// The answer to a request: its status code, its head and its body.
struct Answer {
    code: u16,
    head: String,
    body: Vec<u8>,
}

impl Connection {
    fn to(server: &Server) -> Self {
        let address = server.url.strip_prefix("http://").expect("plain HTTP");
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        Self(BufReader::new(stream))
    }

    fn request(&mut self, line: &str, header: &str, body: &[u8]) -> Answer {
        let head = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n");
        let length = format!("content-length: {}\r\n\r\n", body.len());
        let request = [head.as_bytes(), length.as_bytes(), body].concat();
        self.0.get_mut().write_all(&request).expect("sent");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = self.0.read_line(&mut head).expect("an answer in time");
            assert_ne!(read, 0, "the server has closed the connection: {head}");
        }
        let head = head.to_lowercase();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().expect("a number"))];
        self.0.read_exact(&mut body).expect("the body");
        Answer { code, head, body }
    }

    /// Acquires (an even `number`) or releases the lock `own` under the key of this number.
    fn acquire_or_release(&mut self, header: &str, number: usize) -> Answer {
        let method = if number.is_multiple_of(2) { "POST" } else { "DELETE" };
        let header = format!("{header}\r\nidempotency-key: own-{number}");
        let answer = self.request(&format!("{method} /locks/prod/own?client=ci"), &header, b"");
        assert_eq!(answer.code, 200, "{}", String::from_utf8_lossy(&answer.body));
        answer
    }
}

impl Answer {
    fn is_replayed(&self) -> bool {
        self.head.contains("\r\nidempotent-replayed: true")
    }
}

/// Returns the number of answers that the server remembers.
fn request_ids(server: &Server, header: &str) -> usize {
    let page = server.curl(&["-H", header, "/metrics"]).body;
    let count = page.lines().find_map(|line| line.strip_prefix("latchfs_request_ids "));
    count.and_then(|count| count.parse().ok()).expect("the metric")
}

/// The attacker sends more ids than the server remembers. The victim's earlier id is still known,
/// its new ids are accepted, and the attacker has lost only its own oldest ids.
#[test]
fn a_flood_of_ids_takes_no_id_from_another_caller() {
    let scratch = Scratch::new();
    let server = start(&scratch);
    let mut victim = Connection::to(&server);
    assert!(!victim.acquire_or_release(VICTIM, 0).is_replayed());
    let mut eve = Connection::to(&server);
    let mut settle = |number: usize| {
        let keys = number * ASKS_MAX..(number + 1) * ASKS_MAX;
        let asks: Vec<BatchItem> = keys.map(|key| keyed(&key.to_string(), Op::Settle)).collect();
        let batch = encode_batch(&RequestBatch::new(0, asks));
        let replies = eve.request("POST /door/v1/ask", EVE, &batch);
        let replies = decode_response(&replies.body).expect("an answer to a batch").replies;
        let done = |reply: &ItemReply| matches!(reply, ItemReply::Answered(Ok(_)));
        assert!(replies.iter().all(done), "{:?}", replies.iter().find(|reply| !done(reply)));
    };
    let full = Rules::default().requests_max;
    (0..full / ASKS_MAX + 2).for_each(&mut settle);
    assert!(victim.acquire_or_release(VICTIM, 0).is_replayed(), "it was sent before the flood");
    for number in 1..100 {
        assert!(!victim.acquire_or_release(VICTIM, number).is_replayed());
        settle(1_000 + number);
    }
    for number in 0..100 {
        assert!(victim.acquire_or_release(VICTIM, number).is_replayed(), "{number}");
    }
    assert_eq!(request_ids(&server, ADMIN), full);
}

/// Sends 20,000 requests under new ids over HTTP, spread over the time from `begun` on, and repeats
/// random earlier ones. Repeats all of them at the end. Returns the number of ids.
fn own_ids(server: &Server, begun: Time, limit: Duration) -> usize {
    let mut http = Connection::to(server);
    let (mut own, mut random) = (0, 1_u64);
    let repeat = |http: &mut Connection, number: usize| {
        assert!(
            http.acquire_or_release("x: y", number).is_replayed(),
            "the id {number} is forgotten"
        );
    };
    while since(begun) < limit {
        if own == 0 || (own as u128) < 20_000 * since(begun).as_millis() / limit.as_millis() {
            assert!(!http.acquire_or_release("x: y", own).is_replayed());
            own += 1;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        repeat(&mut http, (random >> 33) as usize % own);
    }
    (0..own).for_each(|number| repeat(&mut http, number));
    own
}

/// A mount with two URLs of its server locks and unlocks files as fast as it can: each request has
/// an id. Beside it a client sends its own ids over HTTP. The server forgets none of the client's
/// ids, and remembers of the mount only the ids in flight.
#[test]
fn a_busy_mount_beside_ids_of_others() {
    const THREADS: usize = 32;
    let limit = Duration::from_secs(rounds(4, 60) as u64);
    let server = Server::listen(&["--memory", "--grant-at-once"]);
    let other_url = server.url.replace("127.0.0.1", "localhost");
    let urls = format!("--client laptop1 --server {},{other_url}", server.url);
    let mount = Setup::new().no_state().only(&urls).start();
    let (pairs, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let begun = boot_now();
    let own = thread::scope(|scope| {
        for number in 0..THREADS {
            let path = mount.dir().join(format!("file{number}"));
            let (pairs, over) = (&pairs, &over);
            scope.spawn(move || {
                let open =
                    || OpenOptions::new().write(true).create(true).truncate(false).open(&path);
                let file: File = open().expect("a file in the mount");
                while !over.load(Ordering::Relaxed) {
                    file.lock().expect("locked");
                    file.unlock().expect("unlocked");
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let client = scope.spawn(|| own_ids(&server, begun, limit));
        let own = client.join();
        over.store(true, Ordering::Relaxed);
        own.expect("the client keeps its ids")
    });
    let (pairs, took) = (pairs.into_inner(), since(begun));
    let known = request_ids(&server, "x: y");
    println!("{pairs} pairs of the mount and {own} ids over HTTP in {took:?}: {known} remembered");
    assert!(pairs > 1_000, "{pairs} pairs");
    assert!((own..own + 2 * THREADS + 300).contains(&known), "{known} ids of {own} are remembered");
}
