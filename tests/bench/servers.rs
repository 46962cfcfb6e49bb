//! Servers on loopback, each in a directory of its own, which are always stopped at the end; and
//! the protocol of each.

use crate::http::{Line, Speech, Target};
use crate::report::poll;
use crate::scratch::Scratch;
use latchfs::time::Span;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Timeout for a server to start listening.
const START_PATIENCE: Span = Span::from_secs(20);

/// A running latchfs, Redis or etcd server, and the protocol by which clients lock and unlock on
/// it.
pub(crate) struct Serving {
    pub(crate) name: &'static str,
    pub(crate) address: String,
    pub(crate) speech: Box<dyn Speech>,
    child: Child,
    _scratch: Scratch,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    /// Returns the name, address and protocol of this server for the clients of a measurement.
    pub(crate) fn target(&self) -> Target<'_> {
        Target { name: self.name, address: &self.address, speech: &*self.speech }
    }

    /// Returns the processor time that the server has used, in seconds.
    pub(crate) fn work(&self) -> Result<f64, String> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        // The fields utime and stime, in ticks of a hundredth of a second.
        let ticks: u64 =
            fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    listener.local_addr().map(|address| address.port()).map_err(|error| error.to_string())
}

pub(crate) fn start(program: &str, command: &mut Command) -> Result<Child, String> {
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| format!("can't start {program}: {error}; install it"))
}

pub(crate) fn listens(name: &str, address: &str) -> Result<(), String> {
    if poll(START_PATIENCE, || TcpStream::connect(address).is_ok()) {
        Ok(())
    } else {
        Err(format!("{name} does not listen on {address}"))
    }
}

/// The changes that a server recovers after a restart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum State {
    /// The server recovers every change that it has answered, because it syncs each change to the
    /// disk before the answer.
    Synced,
    /// The server recovers most changes: it writes each change to a file, but does not wait for a
    /// sync before the answer.
    Kept,
    /// The server recovers nothing: it keeps its state in memory only.
    None,
}

/// Starts a latchfs server with a directory of its own.
pub(crate) fn latchfs(name: &'static str, state: State) -> Result<Serving, String> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchfs"));
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    match state {
        State::Synced => command.arg("--data").arg(scratch.path().join("data")),
        // As the daemon of a user's own locks does.
        State::Kept => command.args(["--detached", "--state"]).arg(scratch.path()),
        State::None => command.args(["--memory", "--grant-at-once"]),
    };
    let mut child = start("latchfs", command.stdout(Stdio::piped()))?;
    let out = child.stdout.take().ok_or("its output is piped")?;
    let (mut line, mut out) = (String::new(), BufReader::new(out));
    out.read_line(&mut line).map_err(|error| error.to_string())?;
    // A daemon that can't report that it is ready ends.
    child.stdout = Some(out.into_inner());
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
    let address = address.ok_or_else(|| format!("latchfs says {line:?}"))?.to_owned();
    let speech = Box::new(Latchfs);
    Ok(Serving { name, address, speech, child, _scratch: scratch })
}

/// Starts redis-server without snapshots, and with an append-only file unless `state` is `None`.
pub(crate) fn redis(name: &'static str, state: State) -> Result<Serving, String> {
    let (scratch, port) = (Scratch::new()?, free_port()?);
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    // It takes any other address of this machine than 127.0.0.1 for a foreign one.
    command.args(["--protected-mode", "no"]);
    let (log, sync) = match state {
        State::Synced => ("yes", "always"),
        State::Kept => ("yes", "everysec"),
        State::None => ("no", "no"),
    };
    command.args(["--appendonly", log, "--appendfsync", sync]);
    command.arg("--dir").arg(scratch.path()).stdout(Stdio::null());
    let child = start("redis-server", &mut command)?;
    let address = format!("127.0.0.1:{port}");
    listens("redis-server", &address)?;
    Ok(Serving { name, address, speech: Box::new(Redis), child, _scratch: scratch })
}

/// Starts a single etcd with its default settings.
pub(crate) fn etcd() -> Result<Serving, String> {
    let scratch = Scratch::new()?;
    let (port, peer) = (free_port()?, free_port()?);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(scratch.path().join("data"));
    command.args(["--listen-client-urls", &url(port), "--advertise-client-urls", &url(port)]);
    command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
    command.args(["--initial-cluster", &format!("default={}", url(peer))]);
    let log = File::create(scratch.path().join("log")).map_err(|error| error.to_string())?;
    let child = start("etcd", command.stdout(log))?;
    let address = format!("127.0.0.1:{port}");
    listens("etcd", &address)?;
    Ok(Serving { name: "etcd", address, speech: Box::new(Etcd), child, _scratch: scratch })
}

pub(crate) struct Latchfs;

impl Speech for Latchfs {
    fn greet(&self, _: &mut Line) -> Result<String, String> {
        Ok(String::new())
    }

    fn take(&self, client: usize, _: &str) -> Vec<u8> {
        let path = format!("/locks/bench{client}?client=c{client}&ttl=30s");
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into()
    }

    fn give(&self, client: usize, _: &str) -> Vec<u8> {
        let path = format!("/locks/bench{client}?client=c{client}");
        format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into()
    }

    fn answer(&self, line: &mut Line) -> Result<bool, String> {
        Ok(line.http()? == 200)
    }
}

struct Redis;

/// Deletes the key only if the client still holds it: the Lua script of Redis's own manual.
const DELETE: &str = "if redis.call('get',KEYS[1])==ARGV[1] then \
    return redis.call('del',KEYS[1]) else return 0 end";

/// Encodes a command in Redis's protocol.
pub(crate) fn resp(parts: &[&str]) -> Vec<u8> {
    let parts = parts.iter().map(|part| format!("${}\r\n{part}\r\n", part.len()));
    format!("*{}\r\n{}", parts.len(), parts.collect::<String>()).into()
}

impl Speech for Redis {
    /// Returns the digest by which the script [`DELETE`] is called.
    fn greet(&self, line: &mut Line) -> Result<String, String> {
        line.send(&resp(&["SCRIPT", "LOAD", DELETE]))?;
        line.text()?;
        Ok(String::from_utf8_lossy(line.text()?.trim_ascii()).into_owned())
    }

    fn take(&self, client: usize, _: &str) -> Vec<u8> {
        resp(&["SET", &format!("bench{client}"), &format!("c{client}"), "NX", "PX", "30000"])
    }

    fn give(&self, client: usize, script: &str) -> Vec<u8> {
        resp(&["EVALSHA", script, "1", &format!("bench{client}"), &format!("c{client}")])
    }

    fn answer(&self, line: &mut Line) -> Result<bool, String> {
        let answer = line.text()?;
        Ok(answer == b"+OK\r\n" || answer == b":1\r\n")
    }
}

pub(crate) struct Etcd;

/// Encodes a POST request with a JSON body.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
        .into()
}

/// Encodes a text in base64, as etcd's gateway requires for keys and values.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut coded = String::new();
    for three in text.as_bytes().chunks(3) {
        let whole = three.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let whole = whole << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = (whole >> (18 - 6 * place)) as usize & 63;
            coded.push(if place <= three.len() { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    coded
}

impl Speech for Etcd {
    /// Returns an etcd lease for the keys of this client.
    fn greet(&self, line: &mut Line) -> Result<String, String> {
        line.send(&post("/v3/lease/grant", "{\"TTL\":600}"))?;
        if line.http()? != 200 {
            return Err(String::from_utf8_lossy(line.body()).into_owned());
        }
        let body = String::from_utf8_lossy(line.body()).into_owned();
        let id = body.split("\"ID\":\"").nth(1).and_then(|rest| rest.split('"').next());
        id.map(str::to_owned).ok_or_else(|| format!("no lease: {body}"))
    }

    fn take(&self, client: usize, lease: &str) -> Vec<u8> {
        let (key, value) = (base64(&format!("bench{client}")), base64(&format!("c{client}")));
        let free = format!(
            "{{\"key\":\"{key}\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\
             \"create_revision\":\"0\"}}"
        );
        let put = format!("{{\"key\":\"{key}\",\"value\":\"{value}\",\"lease\":\"{lease}\"}}");
        let body = format!("{{\"compare\":[{free}],\"success\":[{{\"request_put\":{put}}}]}}");
        post("/v3/kv/txn", &body)
    }

    fn give(&self, client: usize, _: &str) -> Vec<u8> {
        let (key, value) = (base64(&format!("bench{client}")), base64(&format!("c{client}")));
        let ours = format!(
            "{{\"key\":\"{key}\",\"target\":\"VALUE\",\"result\":\"EQUAL\",\"value\":\"{value}\"}}"
        );
        let delete = format!("{{\"request_delete_range\":{{\"key\":\"{key}\"}}}}");
        post("/v3/kv/txn", &format!("{{\"compare\":[{ours}],\"success\":[{delete}]}}"))
    }

    fn answer(&self, line: &mut Line) -> Result<bool, String> {
        let code = line.http()?;
        Ok(code == 200 && String::from_utf8_lossy(line.body()).contains("\"succeeded\":true"))
    }
}
