//! A hostile client of the line protocol's port: a web page, endless lines, binary data, thousands
//! of connections, and unread answers. Also hostile followers, which are programs that register to
//! be sent lock changes: they answer with endless data or never.

use crate::floods::{FLOOD_KIB, peak_kib};
use crate::patience::prompt;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;
use testing::{LineConnection, Lines, Scratch, eventually};

/// A server under attack, and its peak memory in KiB before the attack.
struct Target {
    lines: Lines,
    before: u64,
}

impl Target {
    fn start(options: &[&str]) -> Self {
        let lines = Lines::start(options);
        let before = peak_kib(lines.server.pid());
        let target = Self { lines, before };
        target.serves_the_victim();
        target
    }

    /// Checks that the victim, a well-behaved client of the attacked server, acquires a lock, sees
    /// that it holds the lock, and releases it.
    #[track_caller]
    fn serves_the_victim(&self) {
        prompt("the victim's requests", || {
            let mut victim = self.lines.connect();
            assert_eq!(victim.request("LOCK,victim,ann"), "SUCCESS");
            assert_eq!(victim.request("OWN,victim,ann"), "ann");
            assert_eq!(victim.request("UNLOCK,victim,ann"), "SUCCESS");
        });
    }

    #[track_caller]
    fn has_grown_little(&self) {
        self.serves_the_victim();
        let grown = peak_kib(self.lines.server.pid()) - self.before;
        assert!(grown < FLOOD_KIB, "{grown} KiB");
    }

    fn raw(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.lines.address).expect("it listens");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("a limit");
        stream.set_write_timeout(limit).expect("a limit");
        stream
    }
}

/// A web page makes the browser send an HTTP request whose body contains commands of the line
/// protocol. An earlier version of latchfs executed each of them.
#[test]
fn browser_requests_are_not_executed() {
    let target = Target::start(&[]);
    let follower = TcpListener::bind("127.0.0.1:0").expect("a port");
    follower.set_nonblocking(true).expect("a flag");
    let register = format!("REGISTER,{}", follower.local_addr().expect("bound"));
    for method in ["POST", "GET", "PUT", "OPTIONS", "CONNECT"] {
        for end in ["\r\n", "\n"] {
            let head = [&format!("{method} /a,b HTTP/1.1"), "Host: 127.0.0.1", "a,b,c"];
            let body = ["LOCK,build,eve", &register, "UNLOCK,victim,ann", ""];
            let mut page = target.lines.connect();
            page.send([&head[..], &[""], &body].concat().join(end).as_bytes());
            page.finish();
            let said = String::from_utf8_lossy(&page.rest()).into_owned();
            // The server closes the connection while it has unread input, so TCP resets the
            // connection, and the server's answer may be lost.
            assert!(said == "INVALID_FORMAT\n" || said.is_empty(), "{method}: {said}");
            assert_eq!(target.lines.request("OWN,build,x"), "NONE", "{method}");
        }
    }
    let came = follower.accept().expect_err("nobody was sent there");
    assert_eq!(came.kind(), ErrorKind::WouldBlock);
    target.has_grown_little();
}

/// A browser begins a TLS handshake with the line port, and a page has chosen some of its bytes,
/// lines among them: the first line is none, so the connection ends. Nobody makes the server
/// connect to a third machine.
#[test]
fn other_protocols_and_foreign_followers_are_refused() {
    let target = Target::start(&[]);
    let mut stream = target.raw();
    stream.write_all(b"\x16\x03\x01\x02\x00ticket:\nLOCK,stolen,eve\n").expect("it reads");
    let mut said = String::new();
    // The server may reset the connection, because it does not read the rest.
    let _ = stream.read_to_string(&mut said);
    assert!(matches!(&*said, "INVALID_FORMAT\n" | "INVALID_COMMAND\n" | ""), "{said}");
    assert_eq!(target.lines.request("OWN,stolen,x"), "NONE");
    let mut known = target.lines.connect();
    assert_eq!(known.request("OWN,stolen,x"), "NONE");
    assert_eq!(known.request("WHAT"), "INVALID_FORMAT");
    assert_eq!(known.request("OWN,stolen,x"), "NONE", "a client that has shown that it is one");
    let follower = TcpListener::bind("127.0.0.2:0").expect("a port");
    follower.set_nonblocking(true).expect("a flag");
    let address = follower.local_addr().expect("bound");
    assert_eq!(target.lines.request(&format!("REGISTER,{address}")), "ERROR");
    target.serves_the_victim();
    assert_eq!(follower.accept().expect_err("nobody comes").kind(), ErrorKind::WouldBlock);
    let allowing = Target::start(&["--allow-follower", "127.0.0.2"]);
    assert_eq!(allowing.lines.request(&format!("REGISTER,{address}")), "REGISTERED");
}

/// The server stops reading an endless line, even if many connections send one, and binary data
/// changes no lock.
#[test]
fn endless_lines_and_binary_bytes_take_no_memory() {
    let target = Target::start(&[]);
    let endless = vec![b'x'; 16 << 20];
    // The bytes have all values, in an order that resembles no line of the protocol.
    let binary: Vec<u8> =
        (0..4_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    thread::scope(|scope| {
        for number in 0..8 {
            let bytes = if number % 2 == 0 { &endless } else { &binary };
            let target = &target;
            scope.spawn(move || {
                for _ in 0..4 {
                    let mut stream = target.raw();
                    let mut answers = stream.try_clone().expect("a descriptor");
                    let reading = thread::spawn(move || {
                        let mut said = Vec::new();
                        let _ = answers.read_to_end(&mut said);
                        said
                    });
                    // The error is ignored: the write fails if the server closes the connection
                    // before all bytes are sent.
                    let _ = stream.write_all(bytes);
                    let _ = stream.shutdown(std::net::Shutdown::Write);
                    let said = reading.join().expect("it reads");
                    let said = String::from_utf8(said).expect("words");
                    let is_wrong =
                        |word: &str| word == "INVALID_FORMAT" || word == "INVALID_COMMAND";
                    assert!(said.lines().all(is_wrong), "{said}");
                }
            });
        }
        for _ in 0..5 {
            target.serves_the_victim();
        }
    });
    target.has_grown_little();
}

/// Two thousand connections, each in the middle of a line, do not delay the answer to the victim.
#[test]
fn two_thousand_connections_do_not_delay_the_victim() {
    may_open_files(4_096);
    let target = Target::start(&["--share", "100"]);
    let held: Vec<TcpStream> = (0..2_000)
        .map(|_| {
            let mut stream = target.raw();
            stream.write_all(b"LOCK,build").expect("it listens");
            stream
        })
        .collect();
    eventually("all are connected", || {
        let count = target.lines.metric("latchfs_line_connections")?;
        target.serves_the_victim();
        (count >= held.len() as u64).then_some(())
    });
    target.has_grown_little();
    assert_eq!(target.lines.request("OWN,build,x"), "NONE");
    // A line that does not end is not executed.
    drop(held);
    eventually("all are gone", || {
        (target.lines.metric("latchfs_line_connections")? == 0).then_some(())
    });
    assert_eq!(target.lines.request("OWN,build,x"), "NONE");
}

/// Clients send requests as fast as they can and never read the answers: the server reads only as
/// many requests as it can answer, and closes the connection.
#[test]
fn unread_answers_are_not_buffered() {
    let target = Target::start(&[]);
    let name = "n".repeat(200);
    let client = "c".repeat(250);
    assert_eq!(target.lines.request(&format!("LOCK,{name},{client}")), "SUCCESS");
    let asked = format!("OWN,{name},x\n").repeat(1_000);
    thread::scope(|scope| {
        let senders: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = target.raw();
                    let mut sent = 0;
                    // If the server continued to read, each connection could send a gigabyte.
                    while sent < 1 << 30 {
                        match stream.write(asked.as_bytes()) {
                            Ok(count) => sent += count,
                            Err(_) => return sent,
                        }
                    }
                    sent
                })
            })
            .collect();
        while !senders.iter().all(thread::ScopedJoinHandle::is_finished) {
            target.serves_the_victim();
            thread::yield_now();
        }
        for sender in senders {
            let sent = sender.join().expect("it ends");
            assert!(sent < 64 << 20, "{sent} bytes of requests were read");
        }
    });
    target.has_grown_little();
}

const TOKENS: &str = r#"
[[token]]
name = "eve"
secret = "the secret of the attacker"
clients = ["eve"]
locks = ["sandbox/"]

[[token]]
name = "ops"
secret = "the secret of the operator"
clients = ["*"]
"#;

/// After SIGHUP a follower whose token was revoked is notified of no more changes.
#[test]
fn revoked_follower_is_notified_of_nothing() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    let write = |text: &str| {
        fs::write(&path, text).expect("a fresh directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    };
    write(TOKENS);
    let tokens = path.display().to_string();
    let lines = Lines::start(&["--tokens", &tokens]);
    let follower = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = follower.local_addr().expect("bound");
    let mut ops = lines.connect();
    assert_eq!(ops.request("AUTH,the secret of the operator"), "SUCCESS");
    assert_eq!(ops.request(&format!("REGISTER,{address}")), "REGISTERED");
    let reload = || {
        let count = || lines.server.log().matches("were read again").count();
        let before = count();
        lines.server.signal(libc::SIGHUP);
        eventually("a reload", || (count() > before).then_some(()));
    };
    reload();
    let dropped = || lines.server.log().contains("its credentials were revoked");
    assert!(!dropped(), "the token is the same");
    write(TOKENS.split("\n[[token]]\nname = \"ops\"").next().expect("the first token"));
    reload();
    eventually("the follower is dropped", || dropped().then_some(()));
}

/// A follower is a program that registers an address at the server by `REGISTER`, so that the
/// server connects to it and sends it lock changes. A caller who may not see all locks can't make
/// the server connect anywhere. A caller who may can register a limited number of followers, and
/// the server reads no more of a follower's answer than an `ACK` takes.
#[test]
fn followers_and_their_answers_are_bounded() {
    let scratch = Scratch::new();
    let path = scratch.path().join("tokens.toml");
    fs::write(&path, TOKENS).expect("a fresh directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    let tokens = path.display().to_string();
    let lines = Lines::start(&["--tokens", &tokens, "--share", "100"]);
    let before = peak_kib(lines.server.pid());
    let ops = || {
        let mut talk = lines.connect();
        assert_eq!(talk.request("AUTH,the secret of the operator"), "SUCCESS");
        talk
    };
    let serves_the_victim = || {
        prompt("the victim's requests", || {
            let mut victim = ops();
            assert_eq!(victim.request("LOCK,victim,ann"), "SUCCESS");
            assert_eq!(victim.request("UNLOCK,victim,ann"), "SUCCESS");
        });
    };
    let unreached = TcpListener::bind("127.0.0.1:0").expect("a port");
    unreached.set_nonblocking(true).expect("a flag");
    let address = unreached.local_addr().expect("bound");
    assert_eq!(lines.request(&format!("REGISTER,{address}")), "ERROR", "without a token");
    let mut eve = lines.connect();
    assert_eq!(eve.request("AUTH,the secret of the attacker"), "SUCCESS");
    assert_eq!(eve.request(&format!("REGISTER,{address}")), "ERROR");
    serves_the_victim();
    let nobody = unreached.accept().expect_err("nobody was sent there");
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
    // Half of the registered followers (receivers of lock changes) never answer the server; the
    // other half send endless answers.
    let followers: Vec<TcpListener> =
        (0..80).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let mut answers = Vec::new();
    for (number, follower) in followers.iter().enumerate() {
        let address = follower.local_addr().expect("bound");
        if number % 2 == 0 {
            let follower = follower.try_clone().expect("a descriptor");
            // The thread is not joined; it ends with the test process.
            thread::spawn(move || {
                for mut stream in follower.incoming().flatten() {
                    let words = vec![b'A'; 1 << 20];
                    while stream.write_all(&words).is_ok() {}
                }
            });
        }
        answers.push(ops().request(&format!("REGISTER,{address}")));
        serves_the_victim();
    }
    let count = |word: &str| answers.iter().filter(|answer| *answer == word).count();
    assert_eq!(count("REGISTERED") + count("ERROR"), 80, "{answers:?}");
    // The server accepts 64 registered followers (receivers of lock changes) at a time. It may have
    // dropped some of them during the test, so more than 64 may have registered in total.
    assert!((64..80).contains(&count("REGISTERED")), "{answers:?}");
    let owner = |talk: &mut LineConnection| talk.request("OWN,victim,ann");
    assert_eq!(owner(&mut ops()), "NONE");
    serves_the_victim();
    let grown = peak_kib(lines.server.pid()) - before;
    assert!(grown < FLOOD_KIB, "{grown} KiB for followers");
}

/// Raises the limit of open files of the test process.
#[allow(unsafe_code)]
fn may_open_files(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid and outlives both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_cur.max(count.min(limit.rlim_max));
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}
