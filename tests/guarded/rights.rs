//! The rights to a guarded folder: each request of the table that `latchfs guard permissions`
//! prints, made by root, by the user who started the guard, by the owner of the tenure and by
//! another user.
use crate::ordinary_user::{ALICE, in_a_namespace};
use crate::snapshots::{id_of, snapshot, taken};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::{Guard, Output, Scratch, Server, latchfs, python, run, shell, signal, soon};

const ROOT: u32 = 0;
/// The user who owns the tenure.
const OWNER: u32 = 4_001;
const OTHER: u32 = 4_002;

/// Makes one request of the table, and prints whether it was refused for want of a right, and the
/// answer. The arguments are the request, the view or the socket, the name of the lock, and the
/// number of a lost file or the name of a snapshot.
const ACTOR: &str = r"
import errno, json, os, socket, sys
request, place, lock, subject = sys.argv[1:5]
kind, what = request.split(' ')
def about_snapshot(what): return {'do': 'snapshot', 'snapshot': what, 'id': subject}
REQUESTS = {
    'status': {'do': 'status'}, 'lost': {'do': 'lost'}, 'wait': {'do': 'wait'},
    'events': {'do': 'events'}, 'give': {'do': 'give'}, 'use': {'do': 'use', 'token': 1},
    'restore': {'do': 'restore', 'number': int(subject) if subject.isdigit() else 0},
    'drop': {'do': 'drop', 'number': int(subject) if subject.isdigit() else 0},
    'take': {'do': 'take', 'wait_ms': 0},
    'take-for': {'do': 'take', 'wait_ms': 0, 'for_ms': 60000},
    'accept': {'do': 'accept', 'reason': 'x'},
    'accept-from': {'do': 'accept', 'paths': ['a'], 'from': 'b'},
    'end-use': {'do': 'end_use', 'token': 1, 'give': True},
    'snapshot-take': {**about_snapshot('take'), 'best_effort': True},
    'snapshot-list': about_snapshot('list'), 'snapshot-show': about_snapshot('show'),
    'snapshot-verify': about_snapshot('verify'), 'snapshot-remove': about_snapshot('remove'),
}
def why():
    with open(place + '/.latchfs/why') as file: return file.read()
def ask_view():
    with open(place + '/.latchfs/ctl', 'r+') as ctl:
        ctl.write(json.dumps(REQUESTS[what]) + '\n'); ctl.flush(); ctl.seek(0)
        return ctl.read()
def ask_socket():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(place)
        with sock.makefile('rw') as file:
            file.write(json.dumps(REQUESTS[what]) + '\n'); file.flush()
            return file.readline()
def read():
    path = place + '/.latchfs/' + what
    if what == 'snapshots': return ' '.join(os.listdir(path))
    # A read of these waits.
    if what in ('events', 'ready'): return str(os.close(os.open(path, os.O_RDONLY)))
    with open(path) as file: return file.read()
def act_on_record():
    record = place + '/.latchfs/locks/' + lock + '.lock'
    if what == 'create': return os.open(record, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    if what == 'read':
        with open(record) as file: return file.read()
    if what == 'renew':
        # A part of a record, which changes nothing.
        return os.write(os.open(record, os.O_WRONLY), b'{')
    if what == 'remove': return os.remove(record)
    if what == 'prepare': return os.write(os.open(record + '.tmp', os.O_CREAT | os.O_WRONLY), b'{')
    try: os.close(os.open(record + '.tmp', os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError: pass
    if what == 'steal': return os.rename(record + '.tmp', record)
    if what == 'remove-prepared': return os.remove(record + '.tmp')
    raise KeyError(what)
try:
    acts = {'ctl': ask_view, 'socket': ask_socket, 'read': read, 'locks': act_on_record}
    text, failed = str(acts[kind]()), None
except OSError as error:
    failed = error.errno
    text = errno.errorcode[failed] + ' ' + (why() if kind != 'socket' else '')
refused = 'only root' in text and ' may ' in text
if kind in ('read', 'locks'): refused = refused and failed in (errno.EPERM, errno.EACCES)
print(json.dumps({'refused': refused, 'text': text}), flush=True)
";

/// A row of the table.
struct Row {
    name: String,
    value: Value,
}

impl Row {
    fn requests(&self) -> Vec<String> {
        let requests = self.value["requests"].as_array().expect("a list");
        requests.iter().map(|request| request.as_str().expect("text").to_owned()).collect()
    }

    fn extent(&self, column: &str) -> String {
        self.value[column].as_str().expect("a word").to_owned()
    }
}

/// Returns the table, as the program prints it.
fn table() -> Vec<Row> {
    let printed = run(latchfs().args(["guard", "permissions", "--json"])).ok();
    let rows: Vec<Value> = serde_json::from_str(&printed).expect("JSON");
    let text = run(latchfs().args(["guard", "permissions"])).ok();
    let document = include_str!("../../contrib/doc/permissions.md");
    assert!(document.contains(&text), "print it anew into contrib/doc/permissions.md");
    let row =
        |value: Value| Row { name: value["name"].as_str().expect("a name").to_owned(), value };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    assert!(rows.len() > 20 && rows.iter().all(|row| text.contains(&row.name)), "{text}");
    rows
}

/// Makes a request as a user.
fn act_as(uid: u32, request: &str, place: &Path, (lock, subject): (&str, &str)) -> Value {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), &format!("--regid={uid}")]);
    command.args(["/usr/bin/python3", "-c", ACTOR, request]).arg(place).args([lock, subject]);
    let answer = run(&mut command).ok();
    serde_json::from_str(&answer).unwrap_or_else(|why| panic!("{request}: {answer}: {why}"))
}

/// Runs `latchfs` as a user.
fn latchfs_as(uid: u32, args: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", &format!("--reuid={uid}"), &format!("--regid={uid}")]);
    run(command.arg(testing::latchfs_path()).args(args).env_remove("LATCHFS_SERVER"))
}

/// Whether a request must be refused. A tenure is never that of another session of the caller here.
fn must_refuse(extent: &str, request: &str) -> bool {
    let gives = ["ctl give", "socket give", "locks remove"].contains(&request);
    match extent {
        "no" => true,
        "own" => gives,
        "yes" | "short" | "modes" => false,
        other => panic!("no such extent: {other}"),
    }
}

fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("ours");
}

/// A guard of root that holds tenures for single users.
struct Site {
    guard: Guard,
    lock: String,
    snapshot: String,
    scratch: Scratch,
}

impl Site {
    fn new() -> Self {
        let scratch = Scratch::with_folder();
        for dir in [scratch.path(), &scratch.folder()] {
            open_to_all(dir);
        }
        shell(&scratch.folder(), "mkfifo fifo; echo 1 > public; echo 2 > secret; chmod 600 secret")
            .ok();
        scratch.init(&["--alone"]);
        // A refused change of this file keeps no place in the queue, so that a lock that is given
        // up is free.
        let options = ["--owner", "user", "--never-ask", "refused"];
        let guard = Guard::start(&scratch, "view", &options);
        let snapshot = id_of(&taken(&guard, &[]));
        let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
        Self { guard, lock, snapshot, scratch }
    }

    fn give(&self) {
        self.guard.request_here("{\"do\": \"give\"}");
    }

    /// Has [`OWNER`] hold the lock.
    fn hold(&self) {
        let status = self.guard.status();
        let owner = format!("user {OWNER}");
        if status["state"] != "holding" || status["tenure"]["owner"] != owner.as_str() {
            self.give();
            python(OWNER, &self.guard.view, "open('held', 'w').close()").ok();
            assert_eq!(self.guard.status()["tenure"]["owner"], owner.as_str());
        }
    }

    /// Has a program of a user die while it writes a file. Returns the number of the lost file.
    fn lose(&self, uid: u32, name: &str) -> String {
        self.give();
        let program = format!(
            "import os\nfile = open('{name}', 'w')\nfile.write('half')\nfile.flush()\n\
             os.kill(os.getpid(), 9)"
        );
        python(uid, &self.guard.view, &program).fails();
        let lost: Value =
            serde_json::from_str(&self.guard.request_here("{\"do\": \"lost\"}")).expect("JSON");
        let mut lost = lost["lost"].as_array().expect("a list").iter();
        let found = lost.find(|file| file["path"] == name).expect("it is kept");
        assert_eq!(found["uid"], uid);
        found["number"].to_string()
    }

    fn prepared(&self) -> PathBuf {
        self.guard.path(&format!(".latchfs/locks/{}.lock.tmp", self.lock))
    }

    /// Makes a request in a tenure of [`OWNER`], or while nobody holds the lock if the request
    /// takes it by a record.
    fn act(&self, uid: u32, request: &str, lost: &str) -> Value {
        if request == "locks create" && uid != OWNER {
            self.give();
        } else {
            self.hold();
        }
        let _ = fs::remove_file(self.prepared());
        if ["locks steal", "locks remove-prepared"].contains(&request) {
            fs::write(self.prepared(), "{").expect("root may");
        }
        let subject = match request {
            "ctl restore" | "ctl drop" => lost,
            "ctl snapshot-verify" | "ctl snapshot-show" => &self.snapshot,
            "ctl snapshot-remove" => "20260102T030405-00000000",
            _ => "0",
        };
        act_as(uid, request, &self.guard.view, (&self.lock, subject))
    }
}

/// Checks what an answer shows.
fn check_shown(site: &Site, (request, extent, uid): (&str, &str, u32), text: &str) {
    let context = format!("{request} by {uid} ({extent}): {text}");
    match request {
        "ctl lost" => {
            let sees_both = text.contains("lost-of-other") && text.contains("lost-of-owner");
            assert_eq!(sees_both, extent == "yes", "{context}");
        }
        "ctl restore" | "ctl drop" => {
            assert_eq!(text.contains("no lost file"), extent == "own", "{context}");
        }
        "ctl snapshot-list" | "ctl snapshot-show" => {
            assert!(text.contains(&site.snapshot), "{context}");
            assert_eq!(text.contains("fifo is a FIFO"), extent == "yes", "{context}");
        }
        "read why" => {
            let sees_others = text.contains(&format!("uid {OTHER}:"));
            assert_eq!(sees_others, extent == "yes", "{context}");
        }
        "read snapshots" => {
            assert!(text.contains(&site.snapshot), "{context}");
            let read = format!("print(open('.latchfs/snapshots/{}/secret').read())", site.snapshot);
            let read = python(uid, &site.guard.view, &read);
            assert_eq!(read.code == 0, uid == ROOT, "{read:?}");
        }
        _ => {}
    }
}

/// A view of root that holds the lock for a user: each request by root, by that user and by another
/// one.
#[test]
fn every_request_to_a_view_is_decided_by_the_table() {
    let site = Site::new();
    let of_owner = site.lose(OWNER, "lost-of-owner");
    let of_other: Vec<_> =
        ["lost-of-other", "lost-of-other-2"].map(|name| site.lose(OTHER, name)).into();
    site.hold();
    python(OTHER, &site.guard.view, "open('refused', 'w')").fails();
    let mut wrong = Vec::new();
    for row in table() {
        for (column, uid) in [("other", OTHER), ("owner", OWNER), ("root", ROOT)] {
            let extent = row.extent(column);
            let requests = row.requests();
            for request in requests.iter().filter(|request| !request.starts_with("socket ")) {
                // A lost file of somebody else.
                let lost = match (uid, request.as_str()) {
                    (OTHER, _) => &of_owner,
                    (_, "ctl restore") => &of_other[0],
                    _ => &of_other[1],
                };
                let answer = site.act(uid, request, lost);
                let text = answer["text"].as_str().expect("text");
                if answer["refused"] != must_refuse(&extent, request) {
                    wrong.push(format!("{request} by {column}: {extent}: {text}"));
                } else if answer["refused"] == false {
                    check_shown(&site, (request, &extent, uid), text);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(site.scratch.folder().join("secret").exists());
}

/// A guard without a view, of root and of a user: each request by root, by the user who started the
/// guard, and by another user.
#[test]
fn every_request_to_a_socket_is_decided_by_the_table() {
    let mut wrong = Vec::new();
    for guard_uid in [ROOT, OWNER] {
        let scratch = Scratch::with_folder();
        open_to_all(scratch.path());
        let server = Server::of(&scratch);
        std::os::unix::fs::chown(scratch.folder(), Some(guard_uid), Some(guard_uid)).expect("root");
        let (folder, state) = (scratch.folder(), scratch.join("state-of-guard"));
        let [folder, state] = [&folder, &state].map(|dir| dir.to_str().expect("text"));
        let place = ["--stage", state, "--client", "m1"];
        let init = [&["guard", "init", folder, "--server", &server.url], &place[..]].concat();
        latchfs_as(guard_uid, &init).ok();
        let take = [&["guard", "take", folder], &place[..]].concat();
        let status = [&["guard", "status", "--json", folder], &place[..]].concat();
        let mut pid = 0;
        for row in table() {
            for (column, uid) in [("other", OTHER), ("guard", guard_uid), ("root", ROOT)] {
                let (extent, requests) = (row.extent(column), row.requests());
                for request in requests.iter().filter(|request| request.starts_with("socket ")) {
                    latchfs_as(guard_uid, &take).ok();
                    let status = latchfs_as(guard_uid, &status).ok();
                    let status: Value = serde_json::from_str(&status).expect("JSON");
                    pid = status["pid"].as_i64().expect("it runs") as i32;
                    let id = status["lock"].as_str().expect("a name").trim_start_matches("folder-");
                    let host = Path::new(state).join(id).join("m1");
                    // The directories are private. Behind them, the socket asks who has connected.
                    for dir in [Path::new(state), &host.join(".."), &host, &host.join("ctl")] {
                        open_to_all(dir);
                    }
                    let link = scratch.join("ctl-link");
                    let _ = fs::remove_file(&link);
                    std::os::unix::fs::symlink(host.join("ctl"), &link).expect("made");
                    let answer = act_as(uid, request, &link, ("", "0"));
                    // The guard wants its directories private when it starts again.
                    for dir in [&host.join(".."), Path::new(state)] {
                        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("root");
                    }
                    if answer["refused"] != must_refuse(&extent, request) {
                        wrong.push(format!("{request} by {column}: {extent}: {answer}"));
                    }
                }
            }
        }
        signal(pid, libc::SIGTERM);
        // Until it has ended, it may write to the directory that is removed now.
        let words = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        soon("the guard ends", || words().is_empty().then_some(()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The user who started the guard, in a view that serves this user alone.
#[test]
fn every_request_of_the_user_of_a_guard_is_decided_by_the_table() {
    let rows = table();
    let requests: Vec<_> = rows.iter().flat_map(Row::requests).collect();
    let requests = requests.iter().filter(|request| !request.starts_with("socket "));
    let requests: Vec<_> = requests.map(|request| format!("'{request}'")).collect();
    let seen = in_a_namespace(&format!(
        "user latchfs guard init folder --alone >&2 || exit 1
         (as {ALICE} latchfs guard folder view --owner user) >out & guard=$!
         until grep -q shows out; do kill -0 $guard || exit 2; sleep 0.02; done
         lock=$(user latchfs guard status --json view |
             sed -n 's/.*\"lock\": *\"\\([^\"]*\\)\".*/\\1/p')
         for request in {}; do
             user latchfs guard give view >&2
             test \"$request\" = 'locks create' || user sh -c 'echo 1 >view/held' || exit 3
             printf '%s\\t' \"$request\"
             user /usr/bin/python3 -c '{ACTOR_QUOTED}' \"$request\" view $lock 0 || exit 4
         done
         kill -INT $(daemon); wait $guard",
        requests.join(" "),
        ACTOR_QUOTED = ACTOR.replace('\'', "'\\''"),
    ));
    assert_eq!(seen.code, 0, "{}{}", seen.out, seen.err);
    let mut found = BTreeSet::new();
    for line in seen.out.lines() {
        let (request, answer) = line.split_once('\t').expect("a request");
        let answer: Value = serde_json::from_str(answer).expect("JSON");
        let row = rows.iter().find(|row| row.requests().iter().any(|it| it == request));
        let extent = row.expect("a row").extent("guard");
        assert_eq!(extent == "no", answer["refused"] == true, "{request} ({extent}): {answer}");
        found.insert(request.to_owned());
    }
    assert_eq!(found.len(), requests.len());
}

/// A user who owns the tenure of root's guard has no power over files of others.
#[test]
fn the_owner_of_a_tenure_has_no_power_over_files_and_users() {
    let scratch = Scratch::with_folder();
    for dir in [scratch.path(), &scratch.folder()] {
        open_to_all(dir);
    }
    shell(&scratch.folder(), "echo old > shared; cp /bin/true tool; chmod 4755 tool").ok();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "user"]);
    let id = id_of(&taken(&guard, &[]));
    // Root makes a file private, and takes a bit away; another user makes a file.
    shell(&guard.view, "echo new > shared; chmod 600 shared; chmod 755 tool").ok();
    guard.request("give", &[]).ok();
    python(OTHER, &guard.view, "open('theirs', 'w').write('theirs')").ok();
    guard.request("give", &[]).ok();
    python(OWNER, &guard.view, "open('mine', 'w').write('mine')").ok();
    let view = guard.view.to_str().expect("text");
    let attack = |args: &[&str]| latchfs_as(OWNER, &[args, &[view]].concat());
    attack(&["folder-snapshot", "restore", &id, "--in-place"]).fails();
    for file in ["shared", "tool"] {
        attack(&["folder-snapshot", "restore", &id, "--file", file]).fails();
    }
    let request = format!("{{'do': 'snapshot', 'snapshot': 'restore', 'id': '{id}'}}");
    let program = format!(
        "import json
ctl = open('.latchfs/ctl', 'r+'); ctl.write(json.dumps({request}) + '\\n'); ctl.flush(); ctl.seek(0)
assert 'error' in json.loads(ctl.read())"
    );
    python(OWNER, &guard.view, &program).ok();
    for args in [
        &["folder-snapshot", "take"][..],
        &["folder-snapshot", "take", "--best-effort"],
        &["folder-snapshot", "rm", &id],
        &["guard", "take", "--for", "12h"],
        &["guard", "accept", "--reason", "mine"],
    ] {
        let refused = attack(args).fails();
        assert!(refused.contains("only root and the user who started"), "{args:?}: {refused}");
    }
    let mode = |name: &str| guard.path(name).metadata().expect("there").mode() & 0o7777;
    let text = |name: &str| fs::read_to_string(guard.path(name)).expect("there");
    assert_eq!((mode("shared"), text("shared")), (0o600, "new\n".to_owned()));
    assert_eq!((mode("tool"), text("theirs")), (0o755, "theirs".to_owned()));
    assert!(snapshot(&guard, &["ls"]).ok().contains(&id));
    assert!(guard.status()["away_until"].is_null());
    // Root takes a snapshot in the tenure of the user, who may give it up.
    assert_eq!(guard.status()["tenure"]["owner"], format!("user {OWNER}").as_str());
    taken(&guard, &[]);
    attack(&["guard", "give"]).ok();
    python(OTHER, &guard.view, "open('theirs', 'w').write('more')").ok();
    let refused = attack(&["guard", "give"]).fails();
    assert!(refused.contains("only root"), "{refused}");
}
