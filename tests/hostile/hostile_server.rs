//! A hostile server: whatever it sends, each client reports within a bounded time that it got no
//! valid answer, and takes little memory. A mount of another server on the same machine, the
//! victim, is served meanwhile.

use crate::floods::{CLIENT_LIMIT, Client, FLOOD_KIB, beside_victim, peak_kib, run_client};
use crate::mount_floods::victim;
use latchfs::Mutex;
use latchfs::engine::{Event, EventKind, SessionId};
use latchfs::service::batch::batch_messages::{Frame, Stamp, StreamStart, encode_frame};
use latchfs::time::{Time, Wall, boot_now};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex as Guarded};
use std::thread;
use testing::{Behind, Mount, Server, Setup, eventually};

/// How a hostile server answers each request of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// The server answers with a body of a gigabyte.
    HugeBody,
    /// The server answers with a chunked body that never ends.
    EndlessParts,
    /// The server answers with header lines that never end.
    EndlessHeaders,
    /// The server sends interim answers (100 Continue) forever, and no final answer.
    EndlessContinue,
    /// The server answers with an error whose body is JSON with one level of nesting per byte.
    DeepJson,
    /// The server answers with a JSON array of 1.5 million numbers, without its closing bracket.
    WideJson,
    /// The server answers with a content length that is too large to parse.
    NoLength,
    /// The server sends a body that is shorter than its content length, then nothing, and does not
    /// close the connection.
    HalfAnswer,
    /// The server answers every request with an endless event stream.
    EndlessEvents,
    /// The server sends the beginning of an event whose length field says four gigabytes.
    HugeEvent,
}

impl Attack {
    const ALL: [Self; 10] = [
        Self::HugeBody,
        Self::EndlessParts,
        Self::EndlessHeaders,
        Self::EndlessContinue,
        Self::DeepJson,
        Self::WideJson,
        Self::NoLength,
        Self::HalfAnswer,
        Self::EndlessEvents,
        Self::HugeEvent,
    ];

    /// Returns what the server sends in this attack: the bytes that it sends first, the bytes that
    /// it repeats after them, and the number of repetitions.
    fn bytes(self) -> (Vec<u8>, Vec<u8>, usize) {
        let chunked = || b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        let chunk =
            |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let sized = |code: &str, length: u64| {
            format!(
                "HTTP/1.1 {code}\r\ncontent-type: application/json\r\n\
                 content-length: {length}\r\n\r\n"
            )
            .into_bytes()
        };
        let ok = b"HTTP/1.1 200 OK\r\n".to_vec();
        match self {
            Self::HugeBody => (sized("200 OK", 1 << 30), vec![5; 1 << 20], 1 << 10),
            Self::EndlessParts => (chunked(), chunk(&vec![b'x'; 64 << 10]), 1 << 14),
            Self::EndlessHeaders => (ok, b"x-some: header\r\n".repeat(1 << 10), 1 << 16),
            Self::EndlessContinue => {
                (vec![], b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1 << 10), 1 << 14)
            }
            Self::DeepJson => {
                (sized("500 Internal Server Error", 64 << 20), vec![b'['; 1 << 20], 64)
            }
            Self::WideJson => {
                let first = [sized("200 OK", (3 << 20) + 3), b"[0".to_vec()].concat();
                (first, b",0".repeat(3 << 19), 1)
            }
            Self::NoLength => {
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n";
                (head.to_vec(), vec![5; 1 << 20], 64)
            }
            Self::HalfAnswer => (sized("200 OK", 1 << 20), vec![], 0),
            Self::EndlessEvents => (
                [chunked(), chunk(&encode_frame(1, &Frame::Begin(stamp(), START)))].concat(),
                chunk(&encode_frame(1, &Frame::Events(0, events(), None))),
                1 << 14,
            ),
            Self::HugeEvent => {
                let first = [chunked(), chunk(&[0xff, 0xff, 0xff, 0xff])].concat();
                (first, chunk(&vec![7; 64 << 10]), 1 << 14)
            }
        }
    }

    /// Answers the requests of a connection with this attack until the client closes it.
    fn answer(self, mut stream: TcpStream) {
        let _ = stream.set_write_timeout(Some(CLIENT_LIMIT));
        let (first, repeated, times) = self.bytes();
        let mut request = vec![0; 64 << 10];
        while stream.read(&mut request).is_ok_and(|count| count > 0) {
            if stream.write_all(&first).is_err() {
                return;
            }
            for _ in 0..times {
                if stream.write_all(&repeated).is_err() {
                    return;
                }
            }
        }
    }
}

/// Where the streams of hostile servers begin.
const START: StreamStart = StreamStart { next: 1, continues: false, place: None };

fn stamp() -> Stamp {
    Stamp {
        engine: 9,
        start: 8,
        now: Time::from_secs(1),
        wall: Wall { secs: 1_790_000_000, nanos: 0 },
        next_event: 1,
    }
}

/// Returns 1,024 events, the maximum number of events in one frame of the event stream between
/// servers and mounts.
fn events() -> Vec<(u64, Event)> {
    let event = |number| {
        let what = EventKind::SessionKept { session: SessionId::named(number) };
        (number, Event { at: Time::from_secs(1), what })
    };
    (1..=1_024).map(event).collect()
}

/// A server that first proxies all connections to a good server, until a test makes it answer with
/// an attack.
struct Turncoat {
    url: String,
    attack: Arc<Guarded<Option<Attack>>>,
    /// The connections that are being proxied now.
    passed: Arc<Guarded<Vec<TcpStream>>>,
}

impl Turncoat {
    /// Starts a proxy to `server`. Without a server, no request is answered until an attack is set.
    fn start(server: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let to = server.map(|url| url.strip_prefix("http://").expect("plain HTTP").to_owned());
        let (attack, passed) = (Arc::default(), Arc::default());
        let turncoat = Self { url, attack: Arc::clone(&attack), passed: Arc::clone(&passed) };
        // The threads are not joined; they end with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (how, to) = (*attack.lock().expect("no panic"), to.clone());
                let passed = Arc::clone(&passed);
                thread::spawn(move || match (how, to) {
                    (Some(attack), _) => attack.answer(stream),
                    (None, Some(to)) => pass_on(stream, &to, &passed),
                    (None, None) => {}
                });
            }
        });
        turncoat
    }

    /// Makes the server answer all later requests with `attack`, or proxy them if `attack` is
    /// `None`. Closes the connections that are being proxied.
    fn turn(&self, attack: Option<Attack>) {
        *self.attack.lock().expect("no panic") = attack;
        for stream in self.passed.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pass_on(stream: TcpStream, to: &str, passed: &Guarded<Vec<TcpStream>>) {
    let Ok(server) = TcpStream::connect(to) else { return };
    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    passed.lock().expect("no panic").extend([copy(&stream), copy(&server)]);
    let (mut from, mut into) = (copy(&stream), copy(&server));
    let forth = thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
        let _ = into.shutdown(Shutdown::Both);
    });
    let (mut from, mut into) = (server, stream);
    let _ = std::io::copy(&mut from, &mut into);
    let _ = into.shutdown(Shutdown::Both);
    let _ = forth.join();
}

/// Each client command under each attack ends by itself, with an error message and the exit code
/// for a missing answer.
#[test]
fn commands_against_a_hostile_server_fail_in_time_and_take_no_memory() {
    let good = Setup::new().behind(Behind::Server).start();
    let commands: [&[&str]; 5] = [
        &["run", "--try", "build", "--", "true"],
        &["status", "build"],
        &["ls"],
        &["cluster", "status"],
        &["acquire", "build", "--client", "box"],
    ];
    let servers = Attack::ALL.map(|attack| {
        let server = Turncoat::start(None);
        server.turn(Some(attack));
        (attack, server)
    });
    let run_all = || {
        thread::scope(|scope| {
            let pairs = servers.iter().flat_map(|of| commands.map(|command| (of, command)));
            let running: Vec<_> = pairs
                .map(|((attack, server), command)| {
                    let (verb, rest) =
                        command.split_at(if command[0] == "cluster" { 2 } else { 1 });
                    let args = [verb, &["--server", &server.url], rest].concat();
                    scope.spawn(move || (*attack, command, run_client(CLIENT_LIMIT, &args)))
                })
                .collect();
            running.into_iter().map(|running| running.join().expect("it ends")).collect::<Vec<_>>()
        })
    };
    for (attack, command, ended) in beside_victim(|| victim(&good), run_all) {
        let Client { code, said, peak, took } = ended;
        let context = format!("{command:?} with {attack:?}, {peak} KiB, {took:?}: {said}");
        assert_eq!(code, Some(69), "{context}");
        assert!(said.starts_with("latchfs: ") && said.len() < 1_024, "{context}");
        assert!((1..FLOOD_KIB).contains(&peak) && took < CLIENT_LIMIT, "{context}");
    }
}

/// A mount whose server turns hostile: the daemon takes little memory, programs and a
/// `latchfs::Mutex` get an error, and everything works again when the server behaves.
#[test]
fn a_mount_of_a_hostile_server_fails_in_time_and_takes_no_memory() {
    let real = Server::start(&[]);
    let good = Setup::new().behind(Behind::Server).start();
    let halves = Attack::ALL.chunks(Attack::ALL.len() / 2);
    let attack_all = || {
        thread::scope(|scope| {
            let attacked: Vec<_> =
                halves.map(|attacks| scope.spawn(|| attack_a_mount(&real.url, attacks))).collect();
            for attacked in attacked {
                attacked.join().expect("it goes well");
            }
        });
    };
    beside_victim(|| victim(&good), attack_all);
}

/// Mounts the locks of a server that turns hostile, once with each of `attacks`.
fn attack_a_mount(real: &str, attacks: &[Attack]) {
    let server = Turncoat::start(Some(real));
    let m = Setup::new().no_state().with(&format!("--server {}", server.url)).start();
    // Two tests mount the same server and share its locks, so each uses a lock of its own.
    let own = m.dir().join(format!("{:?}", attacks[0]));
    let works = || fs::create_dir(&own).and_then(|()| fs::remove_dir(&own));
    works().expect("the server is good");
    let before = peak_kib(m.pid());
    for attack in attacks {
        server.turn(Some(*attack));
        let tried = try_all(&m);
        let grown = peak_kib(m.pid()).saturating_sub(before);
        assert_eq!(tried, Ok(()), "{attack:?}");
        assert!(grown < FLOOD_KIB, "{attack:?}: {grown} KiB");
        server.turn(None);
        eventually("it works again", || works().ok());
    }
}

/// Tries typical operations in a mount; each must fail within the limit.
fn try_all(m: &Mount) -> Result<(), String> {
    let in_time = |what: &str, tried: &dyn Fn() -> bool| {
        let begun = boot_now();
        let failed = tried();
        let took = boot_now().since(begun).as_duration();
        if failed && took < CLIENT_LIMIT {
            return Ok(());
        }
        Err(format!("{what} failed: {failed}, after {took:?}"))
    };
    in_time("mkdir", &|| fs::create_dir(m.dir().join("x")).is_err())?;
    in_time("the mutex", &|| {
        let mutex = Mutex::open(m.dir(), "mutex");
        mutex.and_then(|mutex| mutex.try_lock().map(|guard| guard.is_some())).is_err()
    })?;
    in_time("run", &|| m.latchfs(&["run", "--try", "x", "--", "true"]).code != 0)?;
    in_time("why", &|| !m.sh("mkdir x; cat .latchfs/why").out.is_empty())
}
