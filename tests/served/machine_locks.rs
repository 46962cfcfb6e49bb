//! The locks of a machine: a daemon of root for all users, each with rights of its own.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use testing::{LocalUser, Output, Squatter, poll, run, signal, soon};

const ALICE: u32 = 47_110;
const MALLORY: u32 = 47_111;
/// A user in no database.
const NOBODY: u32 = 47_119;
/// The group whose members have every name.
const LATCHFS: u32 = 47_200;
const CI: u32 = 47_201;

/// A machine with files of its own, and a daemon for its users.
struct Machine {
    user: LocalUser,
    daemon: Child,
}

impl Machine {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
        let machine = Self::without_daemon();
        machine.started(options)
    }

    /// Makes a machine on which root has not started a daemon.
    fn without_daemon() -> Self {
        let user = LocalUser::new(ALICE);
        let here = user.home().parent().expect("a directory").to_owned();
        for dir in ["etc", "etc/latchfs", "run", "lib", "lib/latchfs"] {
            fs::create_dir(here.join(dir)).expect("a fresh directory");
        }
        let users = fs::read_to_string(here.join("passwd")).expect("it was written");
        let home = user.home();
        let users = users.replace("tester", "alice");
        let mallory = format!("mallory:*:{MALLORY}:{MALLORY}::{}:/bin/sh\n", home.display());
        for file in ["passwd", "etc/passwd"] {
            fs::write(here.join(file), format!("{users}{mallory}")).expect("writable");
        }
        let groups = format!("latchfs:x:{LATCHFS}:\nci:x:{CI}:\n");
        fs::write(here.join("etc/group"), groups).expect("writable");
        let daemon = Command::new("true").spawn().expect("it starts");
        Self { user, daemon }
    }

    fn started(mut self, options: &[&str]) -> Self {
        self.start(options);
        self
    }

    fn start(&mut self, options: &[&str]) {
        let _ = self.daemon.wait();
        let words = [&["latchfs", "serve", "--machine"], options].concat();
        let mut serve = self.user.by_root(&words);
        self.daemon = serve.stdout(Stdio::null()).spawn().expect("it starts");
        self.wait_until_served();
    }

    fn wait_until_served(&self) {
        let socket = self.path("run/latchfs/socket");
        poll(2_000, "the daemon", || UnixStream::connect(&socket).ok());
    }

    fn kill(&mut self) {
        signal(self.daemon.id() as i32, libc::SIGKILL);
        self.daemon.wait().expect("our child");
    }

    fn path(&self, below: &str) -> PathBuf {
        self.user.home().parent().expect("a directory").join(below)
    }

    fn by_root(&self, words: &[&str]) -> Output {
        run(&mut self.user.by_root(words))
    }

    /// Runs a command as a user with these groups.
    #[track_caller]
    fn by(&self, uid: u32, groups: &[u32], words: &[&str]) -> Output {
        run(&mut self.command(uid, groups, words))
    }

    fn command(&self, uid: u32, groups: &[u32], words: &[&str]) -> Command {
        let uid = uid.to_string();
        let groups: Vec<_> = groups.iter().map(u32::to_string).collect();
        let groups = groups.join(",");
        let user: &[&str] = if groups.is_empty() {
            &["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"]
        } else {
            &["setpriv", "--reuid", &uid, "--regid", &uid, "--groups", &groups]
        };
        self.user.by_root(&[user, words].concat())
    }

    #[track_caller]
    fn alice(&self, words: &[&str]) -> Output {
        self.by(ALICE, &[], &[&["latchfs"], words].concat())
    }

    #[track_caller]
    fn mallory(&self, words: &[&str]) -> Output {
        self.by(MALLORY, &[], &[&["latchfs"], words].concat())
    }

    #[track_caller]
    fn root(&self, words: &[&str]) -> Output {
        self.by_root(&[&["latchfs"], words].concat())
    }

    /// Writes the file of rights, and has the daemon read it.
    fn set_rights(&self, text: &str) {
        fs::write(self.path("etc/latchfs/rights.toml"), text).expect("writable");
        signal(self.daemon.id() as i32, libc::SIGHUP);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        signal(self.daemon.id() as i32, libc::SIGKILL);
        let _ = self.daemon.wait();
    }
}

fn names(listed: Output) -> Vec<String> {
    let all: Value = serde_json::from_str(&listed.ok()).expect("JSON");
    let all = all.as_array().expect("a list").iter();
    all.map(|lock| lock["name"].as_str().expect("a name").to_owned()).collect()
}

/// A user's names are the user's own; those of root's cron are the machine's, and nobody takes them
/// first.
#[test]
fn each_user_has_names_of_its_own() {
    let machine = Machine::new();
    let printed = machine.alice(&["run", "build", "--", "latchfs", "ls", "--json"]);
    assert_eq!(names(printed), ["~alice/build"]);
    assert!(machine.user.daemons().is_empty(), "no daemon of the user is started");
    machine.alice(&["acquire", "build", "--ttl", "1h", "--note", "mine"]).ok();
    machine.mallory(&["acquire", "build", "--ttl", "1h"]).ok();
    machine.mallory(&["acquire", "backup", "--ttl", "1h"]).ok();
    machine.root(&["run", "--try", "backup", "--", "true"]).ok();
    machine.root(&["acquire", "backup", "--ttl", "1h"]).ok();
    assert_eq!(names(machine.alice(&["ls", "--json"])), ["~alice/build"]);
    assert_eq!(names(machine.mallory(&["ls", "--json"])), ["~mallory/backup", "~mallory/build"]);
    assert_eq!(names(machine.mallory(&["ls", "ba", "--json"])), ["~mallory/backup"]);
    let all = ["backup", "~alice/build", "~mallory/backup", "~mallory/build"];
    assert_eq!(names(machine.root(&["ls", "--json"])), all);

    // Whatever a user does with the name of another one, it is refused.
    for words in [
        &["acquire", "~alice/new"][..],
        &["run", "--try", "~alice/build", "--", "true"],
        &["release", "~alice/build"],
        &["status", "~alice/build"],
        &["who", "~alice/build"],
        &["wait", "~alice/build"],
        &["steal", "~alice/build", "--reason", "mine"],
        &["acquire", "~mallory"],
    ] {
        let why = machine.mallory(words).exits(77);
        assert!(why.contains("give no access to lock '~"), "{words:?}: {why}");
    }
    let curl = |path: &str, method: &str| {
        let url = format!("http://localhost{path}");
        let words = ["curl", "-sS", "--unix-socket", "/run/latchfs/socket", "-X", method, &url];
        machine.by(MALLORY, &[], &words).ok()
    };
    for (method, path) in [
        ("POST", "/locks/backup?client=mallory"),
        ("DELETE", "/locks/backup?client=root&token=1"),
        ("GET", "/locks/backup"),
        ("PATCH", "/locks/~alice%2Fbuild?client=mallory&note=x"),
        ("POST", "/locks/backup/steal?client=mallory&reason=x"),
        ("POST", "/reset?all=true&client=mallory&reason=x"),
        ("GET", "/metrics"),
    ] {
        let answer = curl(path, method);
        assert!(answer.contains("\"status\":403"), "{method} {path}: {answer}");
    }
    let as_root = curl("/locks/~mallory%2Fx?client=root", "POST");
    assert!(as_root.contains("may not act as 'root'"), "{as_root}");
    let events = machine.by(MALLORY, &[], &["timeout", "1", "latchfs", "events", "--since", "0"]);
    assert!(events.out.contains("~mallory/build") && !events.out.contains("alice"), "{events:?}");
    assert!(machine.root(&["status", "~alice/build"]).ok().contains("mine"));

    // What is the user's own, the user may take from itself, and root from everybody.
    machine.alice(&["steal", "build", "--reason", "test"]).ok();
    machine.root(&["steal", "~mallory/build", "--reason", "test"]).ok();
    let reset = "http://localhost/reset?all=true&client=root&reason=test";
    let reset = ["curl", "-sSf", "--unix-socket", "/run/latchfs/socket", "-X", "POST", reset];
    machine.by_root(&reset).ok();
    assert!(!machine.root(&["ls", "--json"]).ok().contains(r#""phase":"held""#));
    assert!(machine.by(NOBODY, &[], &["latchfs", "acquire", "x"]).ok().contains("acquired"));
    assert_eq!(names(machine.by(NOBODY, &[], &["latchfs", "ls", "--json"])), ["~47119/x"]);
}

/// The file of rights and the group `latchfs` give more names; a right that is taken away is gone
/// at once, also on connections that are open.
#[test]
fn rights_are_given_by_a_file_and_by_the_group() {
    let mut machine = Machine::without_daemon();
    let deploy = "[[rights]]\nuser = \"alice\"\nlocks = [\"deploy/\"]\n";
    let ci = "[[rights]]\ngroup = \"ci\"\nlocks = [\"ci/\", \"deploy/\"]\nsteal = true\n";
    fs::write(machine.path("etc/latchfs/rights.toml"), format!("{deploy}{ci}")).expect("writable");
    machine.start(&[]);
    machine.alice(&["acquire", "deploy/site", "--ttl", "1h"]).ok();
    machine.alice(&["acquire", "other", "--ttl", "1h"]).ok();
    assert_eq!(names(machine.alice(&["ls", "--json"])), ["deploy/site", "~alice/other"]);
    let ci_runs = |words: &[&str]| machine.by(MALLORY, &[CI], &[&["latchfs"], words].concat());
    ci_runs(&["run", "--try", "deploy/site", "--", "true"]).exits(75);
    machine.alice(&["steal", "deploy/site", "--reason", "x"]).exits(77);
    ci_runs(&["steal", "deploy/site", "--reason", "x"]).ok();
    ci_runs(&["release", "deploy/site"]).ok();
    machine.mallory(&["acquire", "deploy/site"]).ok();
    assert_eq!(names(machine.mallory(&["ls", "--json"])), ["~mallory/deploy/site"]);
    let member = |words: &[&str]| machine.by(MALLORY, &[LATCHFS], &[&["latchfs"], words].concat());
    member(&["acquire", "backup"]).ok();
    assert!(names(member(&["ls", "--json"])).contains(&"backup".to_owned()));
    member(&["steal", "~alice/other", "--reason", "x"]).ok();

    let script =
        "latchfs run --ttl 2s deploy/x -- sh -c 'touch on; until [ -e off ]; do sleep 0.1; done'";
    let words = ["sh", "-c", script];
    let here = machine.path("");
    fs::set_permissions(&here, fs::Permissions::from_mode(0o777)).expect("ours");
    let mut job = machine.command(ALICE, &[], &words);
    let mut job = job.stderr(Stdio::piped()).spawn().expect("it starts");
    soon("the job", || here.join("on").exists().then_some(()));
    machine.set_rights(ci);
    soon("the rights", || machine.alice(&["status", "~alice/deploy/x"]).code.eq(&0).then_some(()));
    machine.alice(&["acquire", "deploy/y"]).ok();
    assert!(names(machine.alice(&["ls", "--json"])).contains(&"~alice/deploy/y".to_owned()));
    let ended = job.wait().expect("our child");
    assert!(!ended.success(), "a run without the right to its lock does not go on: {ended}");

    // An invalid file changes nothing, and one that others may change is refused.
    machine.set_rights("[[rights]]\nuser = \"nosuch\"\nlocks = []\n");
    ci_runs(&["run", "--try", "ci/x", "--", "true"]).ok();
    machine.kill();
    for (text, mode, owner, says) in [
        ("[[rights]]\nuser = \"nosuch\"\nlocks = []\n", 0o644, 0, "knows no 'nosuch'"),
        (ci, 0o666, 0, "mode 666"),
        (ci, 0o644, MALLORY, "it belongs to user 47111"),
    ] {
        let path = machine.path("etc/latchfs/rights.toml");
        fs::write(&path, text).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        chown(&path, Some(owner), None).expect("root may");
        let why = machine.root(&["serve", "--machine"]).fails();
        assert!(why.contains("rights.toml") && why.contains(says), "{why}");
    }
}

/// A name that a user holds at a daemon of its own is not granted by the machine's daemon.
#[test]
fn the_machines_daemon_does_not_grant_what_a_user_holds_already() {
    let mut machine = Machine::without_daemon();
    machine.alice(&["acquire", "build", "--ttl", "1h"]).ok();
    machine.user.daemon();
    machine.start(&[]);
    let why = machine.alice(&["run", "build", "--", "true"]).exits(75);
    assert!(why.contains("your own locks (unix:"), "{why}");
    assert!(why.contains("would use unix:/run/latchfs/socket"), "{why}");
    machine.alice(&["run", "other", "--", "true"]).ok();
    let own = format!("unix:{}/socket", machine.user.own().display());
    machine.alice(&["release", "build", "--server", &own]).ok();
    machine.alice(&["run", "build", "--", "true"]).ok();
    let shown = machine.alice(&["config", "show"]).ok();
    assert!(shown.contains("a daemon of root; your names begin with ~alice/"), "{shown}");

    machine.alice(&["acquire", "build", "--ttl", "1h"]).ok();
    let sudo = ["env", "SUDO_UID=47110", "latchfs", "run", "build", "--", "true"];
    let by_root = machine.by_root(&sudo);
    assert_eq!((by_root.code, by_root.err.lines().count()), (0, 1), "{by_root:?}");
    assert!(by_root.err.contains("begin with ~alice/ are others"), "{by_root:?}");
    let script = "latchfs run build -- true; latchfs run build -- true; latchfs -q ls";
    machine.alice(&["release", "build"]).ok();
    let told = machine.by(ALICE, &[], &["script", "-qec", script, "/dev/null"]).ok();
    assert_eq!(told.matches("these are the locks of this machine").count(), 1, "{told}");
}

/// While root's directory is there, commands use its daemon or fail: never a user's own locks.
#[test]
fn a_killed_daemon_is_not_replaced_by_a_users_own() {
    let mut machine = Machine::new();
    machine.alice(&["acquire", "build", "--ttl", "1h"]).ok();
    let mut job = machine.command(
        ALICE,
        &[],
        &[
            "sh",
            "-c",
            "latchfs run job -- sh -c 'touch on; \
        until [ -e off ]; do sleep 0.1; done'",
        ],
    );
    let here = machine.path("");
    fs::set_permissions(&here, fs::Permissions::from_mode(0o777)).expect("ours");
    let mut job = job.spawn().expect("it starts");
    soon("the job", || here.join("on").exists().then_some(()));
    machine.kill();
    let why = machine.alice(&["run", "build", "--", "true"]).exits(69);
    assert!(why.contains("have root start it ('latchfs serve --machine')"), "{why}");
    assert!(machine.user.daemons().is_empty());
    machine.start(&[]);
    machine.alice(&["run", "--try", "build", "--", "true"]).exits(75);
    fs::write(here.join("off"), "").expect("writable");
    assert!(job.wait().expect("our child").success(), "the job goes on");
}

/// Nobody but root can put a daemon in the way.
#[test]
fn a_place_that_is_not_roots_is_refused() {
    let mut machine = Machine::new();
    machine.kill();
    let dir = machine.path("run/latchfs");
    let refused = |what: &str| {
        let why = machine.alice(&["run", "build", "--", "true"]).exits(69);
        assert!(
            why.contains("this machine's locks in /run/latchfs can't be used"),
            "{what}: {why}"
        );
        assert!(machine.user.daemons().is_empty(), "{what}");
        why
    };
    chown(&dir, Some(MALLORY), None).expect("root may");
    assert!(refused("a directory of another user").contains("root alone may change"));
    chown(&dir, Some(0), None).expect("root may");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("root may");
    assert!(refused("a directory that others may change").contains("root alone may change"));
    let why = machine.root(&["serve", "--machine"]).exits(69);
    assert!(why.contains("root alone may change"), "{why}");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("root may");
    let aside = dir.with_extension("aside");
    fs::rename(&dir, &aside).expect("root may");
    symlink(&aside, &dir).expect("root may");
    assert!(refused("a symlink").contains("root alone may change"));
    fs::remove_file(&dir).expect("root may");
    fs::rename(&aside, &dir).expect("root may");
    let _ = fs::remove_file(dir.join("socket"));
    let squatter = Squatter::listen(&dir.join("socket"), MALLORY);
    fs::set_permissions(dir.join("socket"), fs::Permissions::from_mode(0o666)).expect("root may");
    assert!(refused("a socket of another user").contains("a process of user 47111 listens"));
    drop(squatter);
    fs::remove_file(dir.join("socket")).expect("root may");
    machine.start(&[]);
    let setuid = ["setpriv", "--ruid=47111", "--euid=0", "--clear-groups", "latchfs", "ls"];
    let why = machine.by_root(&setuid).exits(69);
    assert!(why.contains("has the rights of user 0 and was started by user 47111"), "{why}");
    let why = machine.mallory(&["serve", "--machine"]).exits(64);
    assert!(why.contains("--machine is for root alone"), "{why}");
    // Others can't change what the daemon keeps.
    let data = fs::metadata(machine.path("lib/latchfs/machine")).expect("it is kept there");
    assert_eq!(data.permissions().mode() & 0o077, 0);
}

/// The root of a container may take the id of each user, so it has no rights here; the sandbox of a
/// user has the user's.
#[test]
fn a_container_with_the_socket_has_no_rights() {
    let machine = Machine::new();
    let table = ["unshare", "--pid", "--fork"];
    for user in [&["latchfs"][..], &["setpriv", "--reuid", "47110", "--clear-groups", "latchfs"]] {
        let contained = machine.by_root(&[&table, user, &["run", "build", "--", "true"]].concat());
        let why = contained.exits(69);
        assert!(why.contains("process of a container"), "{why}");
    }
    // A command there can't tell root's directory from others, and uses no daemon.
    for map in ["--map-current-user", "--map-root-user"] {
        let sandbox = ["unshare", "--user", map, "--pid", "--fork"];
        let why = machine.by(ALICE, &[], &[&sandbox[..], &["latchfs", "ls"]].concat()).exits(69);
        assert!(why.contains("root alone may change"), "{why}");
        let curl = ["curl", "-sS", "--unix-socket", "/run/latchfs/socket", "http://localhost/me"];
        let me = machine.by(ALICE, &[], &[&sandbox[..], &curl].concat()).ok();
        assert!(me.contains(r#""locks":["~alice/"]"#), "its root is the user: {me}");
    }
}

/// A user fills a share of each table, and leaves the rest to others.
#[test]
fn a_user_can_not_fill_the_tables() {
    let machine = Machine::with(&["--limit", "locks=40"]);
    let script = "for i in $(seq 100); do latchfs acquire lock$i --ttl 1h || exit; done";
    let full = machine.by(MALLORY, &[], &["sh", "-c", script]);
    assert_eq!(full.code, 75, "{full:?}");
    assert!(full.err.contains("20 locks"), "{full:?}");
    machine.alice(&["acquire", "build", "--ttl", "1h"]).ok();
    machine.root(&["acquire", "backup", "--ttl", "1h"]).ok();
}

/// A service manager may bind the socket, start the daemon for the first command, and again after
/// its end.
#[test]
fn the_socket_may_belong_to_a_service_manager() {
    let mut machine = Machine::without_daemon();
    fs::create_dir(machine.path("run/latchfs")).expect("a fresh directory");
    let activate = ["systemd-socket-activate", "--listen", "/run/latchfs/socket", "latchfs"];
    let mut manager = machine.user.by_root(&[&activate[..], &["serve", "--machine"]].concat());
    machine.daemon =
        manager.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let socket = machine.path("run/latchfs/socket");
    soon("the socket", || socket.exists().then_some(()));
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("ours");
    machine.alice(&["acquire", "build", "--ttl", "1h"]).ok();
    // The manager has become the daemon.
    signal(machine.daemon.id() as i32, libc::SIGTERM);
    machine.daemon.wait().expect("our child");
    assert!(socket.exists(), "the socket is the manager's");
}
