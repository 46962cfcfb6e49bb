//! Syncthing on several machines, each an instance with a home of its own. They listen on loopback
//! alone, know each other by address, and are driven by their REST interface.

use crate::syncing::sync_tool::SyncTool;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::{free_port, poll, run, signal};

/// The number of polls until an instance answers, or has connected.
const POLLS_MAX: usize = 3_000;
/// How long an instance may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The speed of a slow machine, in KiB a second.
const SLOW: u64 = 300;
/// How many lines of each log are printed when a test fails.
const LINES_SHOWN: usize = 60;
/// The variables of all instances. One that is not monitored is one process, so that a kill ends
/// it, and it does not try how fast it hashes before it begins.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("STMONITORED", "yes"),
    ("STHASHING", "standard"),
    ("STNOUPGRADE", "1"),
    ("STNODEFAULTFOLDER", "1"),
];
/// The options that differ from those of a new instance: nothing leaves loopback.
const OPTIONS: [(&str, &str); 15] = [
    ("globalAnnounceEnabled", "false"),
    ("localAnnounceEnabled", "false"),
    ("relaysEnabled", "false"),
    ("natEnabled", "false"),
    ("startBrowser", "false"),
    ("crashReportingEnabled", "false"),
    ("crashReportingURL", ""),
    ("urAccepted", "-1"),
    ("urURL", ""),
    ("autoUpgradeIntervalH", "0"),
    ("releasesURL", ""),
    ("stunServer", ""),
    ("stunKeepaliveStartS", "0"),
    ("reconnectionIntervalS", "1"),
    ("limitBandwidthInLan", "true"),
];

/// An instance of Syncthing.
struct Instance {
    home: PathBuf,
    folder: PathBuf,
    id: String,
    key: String,
    /// The port of the REST interface.
    api: u16,
    /// The port to which the other instances connect.
    port: u16,
    child: Option<Child>,
}

/// Returns what stands between two texts.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let start = text.find(before).unwrap_or_else(|| panic!("no {before} in {text}")) + before.len();
    let end = text[start..].find(after).unwrap_or_else(|| panic!("no {after} in {text}"));
    &text[start..start + end]
}

/// Returns a part of a configuration with another content of the element `name`.
fn with_element(text: &str, name: &str, content: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let old = format!("{open}{}{close}", between(text, &open, &close));
    text.replacen(&old, &format!("{open}{content}{close}"), 1)
}

fn syncthing() -> Command {
    let mut command = Command::new("syncthing");
    command.envs(ENVIRONMENT);
    command
}

impl Instance {
    /// Makes the keys and the configuration of an instance.
    fn generate(home: PathBuf, folder: PathBuf) -> Self {
        let mut command = syncthing();
        command.args(["generate", "--no-default-folder", "--skip-port-probing", "--home"]);
        run(command.arg(&home)).ok();
        let config = fs::read_to_string(home.join("config.xml")).expect("it was made");
        let id = between(&config, "<device id=\"", "\"").to_owned();
        let key = between(&config, "<apikey>", "</apikey>").to_owned();
        Self { home, folder, id, key, api: free_port(), port: free_port(), child: None }
    }

    /// Adds the folder and the other instances to the configuration. Both are copies of the
    /// elements for new ones: an element without its parts would have other values than those of
    /// a new folder, such as no conflict copies at all.
    fn configure(&self, all: &[(String, u16)]) {
        let path = self.home.join("config.xml");
        let config = fs::read_to_string(&path).expect("it was made");
        let defaults = between(&config, "<defaults>", "</defaults>");
        let device = format!(
            "<device id=\"\"{}</device>",
            between(defaults, "<device id=\"\"", "</device>")
        );
        let folder = format!(
            "<folder id=\"\"{}</folder>",
            between(defaults, "<folder id=\"\"", "</folder>")
        );
        let others: Vec<_> = all.iter().filter(|(id, _)| *id != self.id).collect();
        let (mut parts, mut members) = (String::new(), String::new());
        for (id, port) in &others {
            let other = device.replace("id=\"\"", &format!("id=\"{id}\""));
            parts += &with_element(&other, "address", &format!("tcp://127.0.0.1:{port}"));
            members.extend(["<device id=\"", id, "\"></device>"]);
        }
        let path_shown = self.folder.display().to_string();
        parts += &folder
            .replacen("id=\"\"", "id=\"shared\"", 1)
            .replacen("path=\"~\"", &format!("path=\"{path_shown}\""), 1)
            .replacen("fsWatcherDelayS=\"10\"", "fsWatcherDelayS=\"1\"", 1)
            // After a failure, as when a machine goes offline, it would try again in a minute.
            .replacen("<pullerPauseS>0<", "<pullerPauseS>1<", 1)
            .replacen("</folder>", &format!("{members}</folder>"), 1);
        let gui = between(&config, "<gui", "</gui>");
        let own_gui = with_element(gui, "address", &format!("127.0.0.1:{}", self.api));
        let options = between(&config, "<options>", "</options>");
        let listen = format!("tcp://127.0.0.1:{}", self.port);
        let mut own_options = with_element(options, "listenAddress", &listen);
        for (name, value) in OPTIONS {
            own_options = with_element(&own_options, name, value);
        }
        let changed = config
            .replacen(gui, &own_gui, 1)
            .replacen(options, &own_options, 1)
            .replacen("<gui", &format!("{parts}<gui"), 1);
        fs::write(path, changed).expect("written");
    }

    fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.home.join("log"));
        let log = log.expect("writable");
        let mut command = syncthing();
        command.args(["serve", "--no-browser", "--no-restart", "--home"]).arg(&self.home);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("open")).stderr(log);
        self.child = Some(command.spawn().expect("syncthing is there"));
        poll(POLLS_MAX, "an answer of Syncthing", || {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                panic!("Syncthing ended: {status}");
            }
            self.request("GET", "/rest/system/ping", &Value::Null).ok()
        });
    }

    /// Ends the process without giving it time for anything.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id().cast_signed(), libc::SIGKILL);
            let _ = child.wait();
        }
    }

    /// Sends a request, and returns the body of the answer.
    fn request(&self, method: &str, path: &str, body: &Value) -> io::Result<String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(("127.0.0.1", self.api))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        // An answer in HTTP/1.0 ends with the connection, and has no chunks.
        write!(stream, "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n")?;
        write!(stream, "X-API-Key: {}\r\nContent-Length: {}\r\n\r\n", self.key, body.len())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            _ => Err(io::Error::other(format!("{method} {path}: {answer}"))),
        }
    }

    #[track_caller]
    fn expect(&self, method: &str, path: &str, body: &Value) -> String {
        self.request(method, path, body).unwrap_or_else(|error| panic!("Syncthing: {error}"))
    }

    fn set_speed(&self, kib_per_second: u64) {
        let speed = json!({"maxRecvKbps": kib_per_second});
        self.expect("PATCH", "/rest/config/options", &speed);
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.home.join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the log of Syncthing in {}:\n{}", self.home.display(), self.log_end());
        }
    }
}

/// Syncthing on all machines.
pub(crate) struct Syncthing {
    instances: Vec<Instance>,
}

impl Syncthing {
    /// Starts an instance for each folder; each has its home in `homes`.
    pub(crate) fn start(folders: &[PathBuf], homes: &Path) -> Self {
        let instance = |(at, folder): (usize, &PathBuf)| {
            Instance::generate(homes.join(format!("syncthing{at}")), folder.clone())
        };
        let mut instances: Vec<_> = folders.iter().enumerate().map(instance).collect();
        let all: Vec<_> = instances.iter().map(|one| (one.id.clone(), one.port)).collect();
        for instance in &mut instances {
            fs::create_dir_all(instance.folder.join(".stfolder")).expect("made");
            instance.configure(&all);
            instance.start();
        }
        Self { instances }
    }

    /// The directory with the configuration of a machine's instance.
    pub(crate) fn home(&self, machine: usize) -> &Path {
        &self.instances[machine].home
    }

    /// Has a machine find changes of its folder only on request, or after an hour.
    pub(crate) fn stop_watching(&self, machine: usize) {
        let off = json!({"fsWatcherEnabled": false});
        self.instances[machine].expect("PATCH", "/rest/config/folders/shared", &off);
    }
}

impl SyncTool for Syncthing {
    fn stop(&mut self, machine: usize) {
        self.instances[machine].expect("POST", "/rest/system/pause", &Value::Null);
    }

    fn resume(&mut self, machine: usize) {
        self.instances[machine].expect("POST", "/rest/system/resume", &Value::Null);
    }

    fn changed(&mut self, machine: usize) {
        // The answer comes when the look is over. A folder that is not ready yet is looked through
        // soon anyway.
        let _ =
            self.instances[machine].request("POST", "/rest/db/scan?folder=shared", &Value::Null);
    }

    fn slow_down(&mut self, machine: usize) -> bool {
        self.instances[machine].set_speed(SLOW);
        true
    }

    fn kill_while_receiving(&mut self, machine: usize, name: &str) -> bool {
        let instance = &mut self.instances[machine];
        let part = instance.folder.join(format!(".syncthing.{name}.tmp"));
        poll(POLLS_MAX, "a file that is being received", || part.exists().then_some(()));
        instance.kill();
        let is_hit = part.exists();
        instance.start();
        instance.set_speed(0);
        is_hit
    }
}

#[path = "syncthing_tests.rs"]
mod tests;
