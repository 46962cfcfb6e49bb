//! The log of a server: its lines in both formats, request ids, and a log that nobody reads.

use crate::http::mounting::Dir;
use serde_json::Value;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::process::{Command, Stdio};
use testing::{HttpConnection, Scratch, Server, eventually, latchfs, run, signal};

/// Returns all whole lines of a log in JSON; fails if a line is not one object of JSON.
#[track_caller]
fn all_lines(log: &str) -> Vec<Value> {
    let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole
        .map(|line| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
            assert!(
                ["time", "level", "target", "message"].iter().all(|key| value[*key].is_string()),
                "{line}"
            );
            value
        })
        .collect()
}

/// Returns the lines of a log in JSON with the message `message`.
#[track_caller]
fn lines_in(log: &str, message: &str) -> Vec<Value> {
    all_lines(log).into_iter().filter(|line| line["message"] == message).collect()
}

fn lines(server: &Server, message: &str) -> Vec<Value> {
    lines_in(&server.log(), message)
}

#[test]
fn json_log_has_lines_for_the_server_its_sessions_grants_and_refusals() {
    let server = Server::start(&["--log-format", "json", "--grace", "1s"]);
    let has = |message: &str| eventually(message, || lines(&server, message).first().cloned());
    assert_eq!(has("server started")["address"], server.url["http://".len()..]);
    let session = server.curl(&["-X", "POST", "/sessions?client=a&ttl=1s"]).is(201);
    assert_eq!(has("session opened")["session"], session["session"]);
    let token = server.curl(&["-X", "POST", "/locks/x?client=a&ttl=1s"]).is(200)["token"].clone();
    let granted = has("lock granted");
    assert_eq!((&granted["lock"], &granted["client"]), (&"x".into(), &"a".into()));
    assert_eq!((&granted["token"], &granted["target"]), (&token, &"latchfs::locks".into()));
    server.curl(&["-H", "X-Request-Id: r-1", "-X", "POST", "/locks/x?client=b"]).is(409);
    let refused = has("request refused");
    let fields = ["lock", "client", "kind", "request"].map(|key| refused[key].as_str());
    assert_eq!(fields, [Some("x"), Some("b"), Some("E_LOCK_CONFLICT"), Some("r-1")]);
    assert_eq!(has("lease expired, grace begins")["token"], token);
    assert_eq!(has("lock lost")["reason"], "not renewed");
    assert_eq!(has("session expired")["client"], "a");
}

/// A server that logs in JSON writes nothing else, neither here nor on standard output.
#[test]
fn json_is_the_only_format_of_all_output() {
    let mut server =
        Server::start(&["--log-format", "json", "--line-listen", "127.0.0.1:0", "--grace", "1s"]);
    server.curl(&["-X", "POST", "/locks/x?client=a"]).is(200);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    assert_eq!(server.says(), "", "standard output");
    assert_eq!(lines(&server, "line server started").len(), 1);
}

/// A line has the time of its event, not that of its writing, and a refusal comes after the grant
/// that has caused it.
#[test]
fn lines_have_the_time_and_the_order_of_their_events() {
    const LOCKS: usize = 20;
    let mut server = Server::start(&["--log-format", "json"]);
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    let mut ask = |method: &str, client: &str, number: usize| {
        let path = format!("/locks/n{number}?client={client}");
        talk.request(method, &path).expect("it answers")
    };
    for number in 0..LOCKS {
        assert_eq!(ask("POST", "a", number).0, 200);
        assert_eq!(ask("POST", "b", number).0, 409);
        assert_eq!(ask("DELETE", "a", number).0, 200);
    }
    assert_eq!(ask("POST", "c", 0).0, 200);
    let acquired = server.curl(&["/locks/n0"]).is(200)["acquired_at"].clone();
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    let all = all_lines(&server.log());
    let messages = |number: usize| -> Vec<_> {
        let of_lock = all.iter().filter(|line| line["lock"] == format!("n{number}"));
        of_lock.map(|line| line["message"].as_str().expect("text")).collect()
    };
    for number in 1..LOCKS {
        let expected = ["lock granted", "request refused", "lock released"];
        assert_eq!(messages(number), expected, "n{number}");
    }
    let times: Vec<_> = all.iter().filter(|line| line["target"] == "latchfs::locks").collect();
    let times: Vec<_> = times.iter().map(|line| millis(&line["time"])).collect();
    // The wall clock of an event is computed for each line, which may differ by a millisecond.
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1] + 2), "{times:?}");
    let granted =
        all.iter().find(|line| line["message"] == "lock granted" && line["client"] == "c");
    let granted = millis(&granted.expect("it is logged")["time"]);
    assert!(granted.abs_diff(millis(&acquired)) <= 5, "{granted} for {acquired}");
}

/// Returns the milliseconds of a time of the same day or the next.
#[track_caller]
fn millis(time: &Value) -> u64 {
    let time = time.as_str().expect("a time");
    let number = |from: usize, to: usize| time[from..to].parse::<u64>().expect("a number");
    let seconds = ((number(8, 10) * 24 + number(11, 13)) * 60 + number(14, 16)) * 60;
    (seconds + number(17, 19)) * 1_000 + number(20, 23)
}

/// A refusal is logged with the client, the token and the lock of the refused command, wherever the
/// request names them; a second name that does not count is not logged.
#[test]
fn refusals_are_logged_with_the_client_that_counts() {
    let server = Server::start(&["--log-format", "json"]);
    server.curl(&["-X", "POST", "/locks/x?client=a"]).is(200);
    let refusal = |arguments: &[&str]| {
        let before = lines(&server, "request refused").len();
        assert!(server.curl(arguments).code >= 400, "{arguments:?}");
        eventually("a line", || lines(&server, "request refused").get(before).cloned())
    };
    let form = refusal(&["-d", "client=b", "/locks/x"]);
    assert_eq!((&form["client"], &form["lock"]), (&"b".into(), &"x".into()));
    let json = ["-H", "Content-Type: application/json", "-d", "{\"client\":\"b\"}", "/locks/x"];
    assert_eq!(refusal(&json)["client"], "b");
    assert_eq!(refusal(&["-X", "POST", "/locks/x?client=victim&client=b"])["client"], "b");
    let fenced = refusal(&["-X", "DELETE", "/locks/x?client=a&token=7"]);
    assert_eq!((&fenced["client"], &fenced["token"]), (&"a".into(), &7.into()));
    assert_eq!(refusal(&["-X", "DELETE", "/lock?client=c"])["lock"], "default");
}

/// Clients whose names are not UTF-8 are refused, since two of them could not be distinguished.
#[test]
fn options_that_are_not_utf8_are_refused() {
    let server = Server::start(&[]);
    server.curl(&["-X", "POST", "/locks/x?client=%ff"]).is(400);
    server.curl(&["-d", "client=%fe", "/locks/x"]).is(400);
    server.curl(&["-X", "POST", "/locks/x?client=%c3%a4+b"]).is(200);
}

#[test]
fn request_ids_are_returned_and_logged() {
    let server = Server::listen(&["--memory", "-vv", "--log-format", "json"]);
    let id_of = |arguments: &[&str]| {
        let reply = server.curl(arguments);
        let id = reply.header("x-request-id").expect("each answer has an id").to_owned();
        (id, reply)
    };
    let (given, reply) = id_of(&["-H", "X-Request-Id: job-7", "/nothing"]);
    assert_eq!((&*given, &reply.json()["request_id"]), ("job-7", &"job-7".into()));
    let long = format!("X-Request-Id: {}", "a".repeat(65));
    for bad in ["X-Request-Id: a b", "X-Request-Id: a\"b", &long] {
        assert_eq!(id_of(&["-H", bad, "/me"]).0.len(), 16, "a new id instead");
    }
    let line = eventually("the access", || {
        lines(&server, "request answered").into_iter().find(|line| line["request"] == "job-7")
    });
    assert_eq!((&line["path"], &line["status"]), (&"/nothing".into(), &404.into()));
    assert!(line["took_ms"].is_u64() && line["method"] == "GET", "{line}");
}

/// Clients choose names and ids; none of them can write a line of its own, and no token is logged.
#[test]
fn hostile_names_forge_no_line_and_secrets_are_not_logged() {
    for format in ["text", "json"] {
        let mut server = Server::listen(&["--memory", "-vvv", "--log-format", format]);
        let hostile = "/locks/a%0AINFO%20forged%1b%5b2J?client=b%0Aforged%1b";
        server.curl(&["-H", "Authorization: Bearer secret-1", "-X", "POST", hostile]);
        server.curl(&["-H", "X-Request-Id: forged", "-X", "DELETE", hostile]);
        server.signal(libc::SIGTERM);
        server.wait();
        let log = server.log();
        assert!(log.contains("forged") && !log.contains('\x1b'), "{log}");
        assert!(!log.contains("secret-1"), "{log}");
        if format == "json" {
            all_lines(&log);
            continue;
        }
        let is_line = |line: &str| line.starts_with('2') || line.starts_with("latchfs: ");
        assert!(log.lines().all(is_line), "{log}");
    }
}

/// A server whose log nobody reads goes on, and ends on request.
#[test]
fn full_pipe_blocks_no_request() {
    let mut command = latchfs();
    command.args(["serve", "--listen", "127.0.0.1:0", "--memory", "--grant-at-once"]);
    command.arg("-vv").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program is there");
    let (mut said, mut out) = (String::new(), BufReader::new(child.stdout.take().expect("piped")));
    out.read_line(&mut said).expect("an address");
    let url = said.split(' ').nth(3).expect("an address").trim().to_owned();
    // A pipe has 16 pages of 4 KiB, of which a line leaves some empty, and each of these requests
    // has a line of 800 bytes at least. There are several kinds of them, and two clients, each of
    // which has half of the lines of a kind.
    let name = ["n".repeat(212).as_str(); 4].join("/");
    for way in ["POST", "GET", "DELETE"] {
        let urls: Vec<_> =
            (0..99).map(|n| format!("{url}/locks/{name}{n}?client=a{}", n % 2)).collect();
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "-o", "/dev/null", "-X", way]).args(&urls);
        let done = curl.output().expect("curl is there");
        assert!(done.status.success(), "{done:?}");
    }
    signal(child.id().cast_signed(), libc::SIGTERM);
    let ended = child.wait().expect("it is our child");
    assert!(ended.success(), "{ended:?}");
    let mut log = String::new();
    let mut pipe = child.stderr.take().expect("piped");
    // Another writer of the same pipe finds no page free: the server had to leave lines out.
    let end = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let mut options = fs::OpenOptions::new();
    let writer = options.write(true).custom_flags(libc::O_NONBLOCK).open(end);
    let full = writer.expect("its other end").write(&[b' '; 4_096]).expect_err("the pipe is full");
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
    pipe.read_to_string(&mut log).expect("text");
    assert!(log.len() >= 48_000, "the pipe was full: {}", log.len());
    assert!(!log.contains("server stopped"), "the pipe was full before the last line");
}

/// The thread of the log starts before the signals are blocked that end a server in order.
#[test]
fn sigterm_ends_a_server_in_order_and_its_last_lines_are_written() {
    for format in ["text", "json"] {
        let mut server = Server::start(&["--log-format", format]);
        server.curl(&["-X", "POST", "/locks/x?client=a"]).is(200);
        server.signal(libc::SIGTERM);
        assert_eq!(server.wait(), Some(0), "{}", server.log());
        let log = server.log();
        let last = log.lines().last().unwrap_or_default();
        assert!(last.contains("server stopped") && log.ends_with('\n'), "{log}");
        assert!(log.contains("lock granted"), "{log}");
    }
}

/// Warnings at the start, a reload, a refused option of the engine and the error of a server that
/// can't start are sentences in text, and records in JSON.
#[test]
fn each_line_of_a_json_log_is_one_object() {
    let scratch = Scratch::new();
    let tokens = scratch.path().join("tokens.toml");
    let token =
        "[[token]]\nname = \"t\"\nsecret = \"a secret of some length\"\nclients = [\"*\"]\n";
    fs::write(&tokens, token).expect("our directory");
    let path = tokens.to_str().expect("text");
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&tokens, private).expect("our file");
    let mut server = Server::listen(&["--memory", "--log-format", "json", "--tokens", path]);
    fs::write(&tokens, "[[nonsense").expect("our directory");
    server.signal(libc::SIGHUP);
    eventually("the reload", || server.log().contains("all stays as it was").then_some(()));
    let mut command = latchfs();
    command.args(["serve", "--memory", "--listen", &server.url["http://".len()..]]);
    command.args(["--insecure", "--log-format", "json"]).env("RUST_LOG", "latchfs=nonsense");
    let failed = run(&mut command);
    assert_eq!(failed.code, 69, "{failed:?}");
    let said = all_lines(&failed.err);
    let of = |level: &str, part: &str| {
        let is_it = |line: &&Value| {
            line["level"] == level && line["message"].as_str().is_some_and(|it| it.contains(part))
        };
        said.iter().filter(is_it).count()
    };
    assert_eq!(of("WARN", "RUST_LOG is ignored: "), 1, "{said:?}");
    assert_eq!(of("ERROR", "in use"), 1, "{said:?}");
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    assert_eq!(lines(&server, "server stopped").len(), 1);
}

/// A wrong `RUST_LOG` changes nothing, and a sentence says so.
#[test]
fn wrong_rust_log_is_reported() {
    let mut command = latchfs();
    command.args(["ls", "--server", "http://127.0.0.1:1"]).env("RUST_LOG", "info,latchfs=nonsense");
    let lines = run(&mut command).exits(69);
    let (first, rest) = lines.split_once('\n').expect("a line");
    assert_eq!(
        first,
        "latchfs: RUST_LOG is ignored: error parsing logger filter: invalid logging spec \
         'nonsense'; write a level, such as RUST_LOG=debug or RUST_LOG=latchfs::access=debug"
    );
    assert!(rest.starts_with("latchfs: the server "), "{lines}");
}

/// The lines of a reset say how many more there would be.
#[test]
fn reset_of_30_000_locks_has_few_lines() {
    const LOCKS: usize = 30_000;
    const CLIENTS: usize = 4;
    let mut server = Server::with_socket(&["--log-format", "json"]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let url = &server.url;
            scope.spawn(move || {
                let mut talk = HttpConnection::to(url).expect("it listens");
                for number in 0..LOCKS / CLIENTS {
                    let path = format!("/locks/c{client}n{number}?client=c{client}&ttl=1h");
                    assert_eq!(talk.request("POST", &path).expect("it answers").0, 200);
                }
            });
        }
    });
    let before = server.log().lines().count();
    server.reset("client=admin&reason=r&all=true").is(200);
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0));
    let log = server.log();
    let lines: Vec<_> = all_lines(&log).split_off(before);
    println!("{before} lines for {LOCKS} grants, and {} for the reset", lines.len());
    assert!(lines.len() < 1_000, "{} lines", lines.len());
    let written = lines.iter().filter(|line| line["message"] == "lock stolen").count() as u64;
    let counted = |line: &Value| line["suppressed"].as_u64().or_else(|| line["lost"].as_u64());
    let others: u64 = lines.iter().filter_map(counted).sum();
    assert!(written >= 1 && written + others >= LOCKS as u64, "{written} and {others}");
}

/// A mount of a server logs its begin and its end, and the loss and the return of the server.
#[test]
fn mount_logs_its_server() {
    let (dir, scratch) = (Dir::new(), Scratch::new());
    let mut server = Server::start(&[]);
    let path = scratch.path().join("log");
    let mut mount = latchfs();
    mount.arg("mount").arg(dir.path()).args(["--foreground", "--client", "m", "--ttl", "2s"]);
    mount.args(["--server", &server.url, "--log-format", "json"]).stdin(Stdio::null());
    mount.stdout(Stdio::null()).stderr(fs::File::create(&path).expect("our directory"));
    let mut mount = mount.spawn().expect("the program is there");
    let log = || fs::read_to_string(&path).unwrap_or_default();
    let has = |message: &str| eventually(message, || lines_in(&log(), message).first().cloned());
    assert_eq!(
        (&has("mounted")["client"], &has("mounted")["dir"]),
        (&"m".into(), &dir.path().to_str().expect("text").into(),)
    );
    server.signal(libc::SIGKILL);
    server.wait();
    assert_eq!(has("connection to the server lost")["server"], server.url);
    let repeated = ["--memory", "--grant-at-once"];
    let _server = Server::at(&server.url["http://".len()..], &repeated);
    eventually("it is connected again", || {
        (lines_in(&log(), "connected to the server").len() == 2).then_some(())
    });
    signal(mount.id().cast_signed(), libc::SIGTERM);
    assert!(mount.wait().expect("it is our child").success(), "{}", log());
    has("unmounted");
    for once in ["mounted", "connection to the server lost", "unmounted"] {
        assert_eq!(lines_in(&log(), once).len(), 1, "{once}: {}", log());
    }
}
