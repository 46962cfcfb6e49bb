//! The commands, policies and refusals of a guard.
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use testing::{Guard, Scratch, Server, latchfs, python, run, shell, signal, soon};

fn status(guard: &Guard) -> Value {
    serde_json::from_str(&guard.request("status", &["--json"]).ok()).expect("JSON")
}

/// The guard of a folder in a work tree of git, in a terminal that ends it.
#[test]
fn a_guard_says_what_it_has_done_and_git_does_not_see_its_record() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let git =
        |words: &[&str]| run(Command::new("git").arg("-C").arg(scratch.folder()).args(words)).ok();
    git(&["init", "-q"]);
    assert_eq!(git(&["status", "--porcelain", "--untracked-files=all"]), "");
    let guard = Guard::start(&scratch, "view", &[]);
    assert_eq!(guard.request("give", &[]).ok(), "latchfs: the lock was not held\n");
    fs::write(guard.path("a"), "1").expect("the lock is free");
    assert_eq!(guard.request("give", &[]).ok(), "latchfs: given up\n");
    guard.end();
    let mut command = latchfs();
    command.arg("guard").arg(scratch.folder()).arg(scratch.join("view")).arg("--stage");
    let mut child =
        command.arg(scratch.join("state")).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert!(line().contains("shows"));
    signal(child.id() as i32, libc::SIGINT);
    assert_eq!(line(), format!("latchfs: unmounted {}", scratch.join("view").display()));
    assert!(child.wait().expect("our child").success());
}

#[test]
fn a_folder_without_a_record_is_not_shown() {
    let scratch = Scratch::with_folder();
    let guard = |options: &[&str]| {
        run(latchfs().arg("guard").arg(scratch.folder()).arg(scratch.join("view")).args(options))
    };
    let why = guard(&[]).exits(69);
    assert!(why.contains("--alone") && why.contains("--server URL"), "{why}");
    scratch.init(&["--alone"]);
    let twice = run(latchfs().args(["guard", "init", "--alone"]).arg(scratch.folder())).exits(69);
    assert!(twice.contains("is guarded already"), "{twice}");
    let full = scratch.join("full");
    fs::create_dir_all(full.join("directory")).expect("made");
    let full = run(latchfs().arg("guard").arg(scratch.folder()).arg(&full)).exits(69);
    assert!(full.contains("name an empty directory"), "{full}");
    let none = run(latchfs().args(["guard", "init", "nowhere", "--alone"])).exits(69);
    assert!(none.contains("make the folder first"), "{none}");
    let far = guard(&["--stage", "/dev/shm/latchfs-guarded"]).exits(69);
    assert!(far.contains("another file system"), "{far}");
    let short = guard(&["--yield", "500ms"]).exits(64);
    assert!(short.contains("the shortest time is 1s") && !short.contains("ttl"), "{short}");
    let _ = fs::remove_dir_all("/dev/shm/latchfs-guarded");
    let root = run(latchfs().args(["guard", "init", "/", "--alone"])).exits(64);
    assert!(root.contains("/ can't be guarded"), "{root}");
    let first = Guard::start(&scratch, "view", &[]);
    let second = latchfs()
        .arg("guard")
        .arg(scratch.folder())
        .arg(scratch.join("other"))
        .arg("--stage")
        .arg(scratch.join("state"))
        .output()
        .expect("it runs");
    let second = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.contains("another guard of this machine"), "{second}");
    let inside = run(latchfs().args(["guard", "init", "--alone"]).arg(&first.view)).exits(64);
    assert!(inside.contains("a view of a guarded folder already"), "{inside}");
}

#[test]
fn two_sessions_do_not_change_a_folder_at_the_same_time() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "session"]);
    shell(&guard.view, "setsid -w sh -c 'echo one > a; exec sleep 0'").ok();
    let other = shell(&guard.view, "setsid -w sh -c 'echo two > a'").fails();
    assert!(other.contains("Read-only file system"), "{other}");
    let owner = guard.status()["tenure"]["owner"].as_str().expect("a session").to_owned();
    let why = guard.why();
    assert!(why.contains(&format!("{owner} holds the lock of this folder since")), "{why}");
    assert_eq!(fs::read_to_string(scratch.folder().join("a")).expect("there"), "one\n");
}

#[test]
fn the_lock_of_another_machine_keeps_changes_out() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let first = Guard::start(&scratch, "one", &["--client", "m1", "--shared-storage"]);
    let second = Guard::start(&scratch, "two", &["--client", "m2", "--shared-storage"]);
    fs::write(first.path("a"), "one").expect("the lock is free");
    let refused = fs::write(second.path("a"), "two").expect_err("m1 holds the lock");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert!(second.why().contains("m1 holds the lock"), "{}", second.why());
    let tried = second.request("take", &["--try"]).exits(75);
    assert!(tried.contains("m1 holds the lock"), "{tried}");
    let waiting = std::thread::spawn({
        let view = second.view.clone();
        move || run(latchfs().args(["guard", "take"]).arg(view)).ok()
    });
    soon("the wish of m2", || {
        status(&first)["wanted_by"].as_str().filter(|client| *client == "m2").map(drop)
    });
    first.request("give", &[]).ok();
    assert!(waiting.join().expect("no panic").contains("holding"));
    fs::write(second.path("a"), "two").expect("m2 holds the lock");
    assert_eq!(fs::read_to_string(scratch.folder().join("a")).expect("there"), "two");
}

/// A user may take less than half of the descriptors of a guard. The refusal is ENFILE with a
/// sentence, and other users still open files.
#[test]
fn one_user_can_not_open_all_files_of_a_view() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    fs::write(scratch.folder().join("a"), "1").expect("written");
    let guard = Guard::start_limited(&scratch, "view", 1_256);
    let hog = "
import errno, os
held = []
try:
    while len(held) < 2000: held.append(os.open('a', os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.ENFILE, error
print(len(held))
del held[0]
os.close(3)
os.close(4)
print(open('.latchfs/why').read())
import subprocess
subprocess.run(['sh', '-c', 'touch ../is-full; while [ -e ../is-full ]; do sleep 0.01; done'])
";
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).expect("its owner");
    let view = guard.view.clone();
    let hog = std::thread::spawn(move || python(4_001, &view, hog).ok());
    let is_full = scratch.join("is-full");
    soon("the hog", || is_full.exists().then_some(()));
    let other = python(4_002, &guard.view, "print(open('a').read())").ok();
    assert_eq!(other.trim(), "1");
    fs::remove_file(is_full).expect("it is there");
    let hog = hog.join().expect("no panic");
    assert!(hog.starts_with("219\n"), "{hog}");
    assert!(hog.contains("user 4001 has 219 open files"), "{hog}");
}

/// Programs that wait in `.latchfs` get events, and a signal ends their wait.
#[test]
fn events_are_followed_and_a_signal_ends_the_wait() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let follow = |name: &str| {
        let mut cat = Command::new("cat");
        let cat = cat.arg(guard.path(".latchfs").join(name)).stdout(Stdio::piped());
        cat.spawn().expect("it starts")
    };
    let has_read = |child: &Child| {
        let io = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
        // 0 is the number of read(2) on x86-64, 63 on arm64.
        let number = if cfg!(target_arch = "x86_64") { "0 " } else { "63 " };
        io.starts_with(number).then_some(())
    };
    let (mut events, mut ready) = (follow("events"), follow("ready"));
    soon("the readers", || has_read(&events).and(has_read(&ready)));
    guard.request("take", &[]).ok();
    assert!(ready.wait().expect("it ends").success());
    let mut lines = BufReader::new(events.stdout.take().expect("piped")).lines();
    let line = lines.next().expect("a line").expect("readable");
    let held: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(held["event"], "held");
    assert!(held["token"].as_u64() > Some(0));
    guard.request("give", &[]).ok();
    assert!(lines.next().expect("a line").expect("readable").contains("\"given\""));
    let mut waits = follow("ready");
    soon("the reader", || has_read(&waits).and(has_read(&events)));
    for child in [&mut events, &mut waits] {
        signal(child.id() as i32, libc::SIGTERM);
        assert!(child.wait().expect("it ends").signal() == Some(libc::SIGTERM));
    }
}

#[test]
fn a_mount_on_a_server_decides_about_the_lock() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    let mount = |name: &str, options: &[&str]| {
        let dir = scratch.join(name);
        run(latchfs().arg("mount").arg(&dir).args(options).arg("--background")).ok();
        dir
    };
    let locks = mount("locks", &["--server", &server.url]);
    let own = mount("own", &["--state", "none", "--grant-at-once"]);
    let init = |mount: &std::path::Path| {
        let mut init = latchfs();
        init.args(["guard", "init", "--dir"]).arg(mount).arg(scratch.folder());
        run(init.arg("--stage").arg(scratch.join("state")))
    };
    let why = init(&own).exits(64);
    assert!(why.contains("has its own engine") && why.contains("--server URL"), "{why}");
    let why = init(scratch.path()).exits(69);
    assert!(why.contains("no latchfs is mounted at"), "{why}");
    init(&locks).ok();
    let record = fs::read_to_string(scratch.folder().join(".latchfs/folder")).expect("there");
    assert!(record.contains(&server.url), "{record}");
    let locks = locks.display().to_string();
    let guard = Guard::start(&scratch, "view", &["--dir", &locks]);
    fs::write(guard.path("a"), "1").expect("the lock is free");
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let held = run(latchfs().args(["status", &lock, "--dir", &locks, "--json"])).ok();
    assert!(held.contains("\"held\""), "{held}");
    guard.end();
    let mut state = latchfs();
    state.arg("guard").arg(scratch.folder()).arg(scratch.join("other"));
    state.arg("--stage").arg(scratch.join("state"));
    let why = run(state.arg("--state").arg(scratch.join("engine"))).exits(64);
    assert!(why.contains("leave --state out"), "{why}");
    run(latchfs().args(["umount", &locks]).arg(&own)).ok();
}

#[test]
fn the_engine_of_a_folder_alone_is_kept_where_the_user_says() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let engine = scratch.join("engine");
    let options = ["--state", &engine.display().to_string()];
    let token = |guard: &Guard| {
        fs::write(guard.path("a"), "1").expect("the lock is free");
        guard.status()["tenure"]["token"].as_u64().expect("a token")
    };
    let guard = Guard::start(&scratch, "view", &options);
    let first = token(&guard);
    guard.end();
    assert!(engine.is_dir());
    let guard = Guard::start(&scratch, "view", &options);
    assert!(token(&guard) > first);
}

#[test]
fn a_dead_server_is_named_in_the_refusal() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &[]);
    server.signal(libc::SIGKILL);
    let refused = fs::write(guard.path("a"), "1").expect_err("the lock can't be had");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let wanted = format!("the server {} does not answer", server.url);
    assert!(guard.why().contains(&wanted), "{}", guard.why());
}

#[test]
fn who_waits_for_the_lock_gets_it_when_the_server_is_back() {
    let scratch = Scratch::with_folder();
    // A program that creates a file waits for a second only, since its directory is locked.
    fs::write(scratch.folder().join("a"), "0").expect("written");
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &["--on-write", "wait=5m"]);
    let address = server.url.trim_start_matches("http://").to_owned();
    drop(server);
    let mut take = latchfs();
    let mut take = take.args(["guard", "take"]).arg(&guard.view).spawn().expect("it starts");
    let path = guard.path("a");
    let writer = std::thread::spawn(move || fs::write(path, "1"));
    // Both have asked in vain by now, and wait.
    soon("the refused request", || {
        (guard.status()["trouble"].is_string() && guard.status()["waiting"] == 2).then_some(())
    });
    let data = scratch.join("server").display().to_string();
    let _server = Server::at(&address, &["--data", &data]);
    assert!(take.wait().expect("it ends").success());
    writer.join().expect("no panic").expect("written");
    assert_eq!(fs::read_to_string(guard.path("a")).expect("readable"), "1");
    guard.end();
}

#[test]
fn a_directory_in_a_view_is_no_place_for_a_view() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::create_dir(guard.path("dir")).expect("free");
    let mut command = latchfs();
    command.arg("guard").arg(scratch.folder()).arg(guard.path("dir"));
    command.arg("--stage").arg(scratch.join("other"));
    let refused = run(&mut command);
    assert!(refused.err.contains("which is a view of a guarded folder"), "{}", refused.err);
    assert!(!refused.err.contains("is a lock"), "{}", refused.err);
}

/// A person who waits for a large folder sees how far it has come.
#[test]
fn init_says_how_much_it_has_read() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    for name in ["a", "b", "c", "d"] {
        // Without content on the disk.
        let file = File::create(scratch.folder().join(name)).expect("made");
        file.set_len(1 << 30).expect("long");
    }
    let mut command = latchfs();
    command.args(["guard", "init", "--server", &server.url]).arg(scratch.folder());
    let output = run(command.arg("--stage").arg(scratch.join("state")));
    assert!(output.out.contains("is guarded"), "{}{}", output.out, output.err);
    let progress = output.err.lines().filter(|line| line.starts_with("latchfs: read "));
    assert!(progress.clone().count() > 0, "{}", output.err);
    assert!(progress.clone().all(|line| line.contains(" file")), "{}", output.err);
    // A pipe gets no line that is written anew.
    assert!(!output.err.contains('\r'), "{}", output.err);
}

/// Any user who can read a folder can lock it.
#[test]
fn a_lock_on_the_folder_itself_stops_no_guard() {
    let scratch = Scratch::with_folder();
    fs::set_permissions(scratch.folder(), fs::Permissions::from_mode(0o777)).expect("ours");
    scratch.init(&["--alone"]);
    let mut flock = Command::new("setpriv");
    flock.args(["--clear-groups", "--reuid=4242", "flock"]).arg(scratch.folder());
    flock.args(["sh", "-c", "echo locked; cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut flock = flock.spawn().expect("it starts");
    let mut line = String::new();
    let mut out = BufReader::new(flock.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("it is locked");
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("a"), "1").expect("the lock is free");
    let other = |user: &str, state: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--clear-groups", &format!("--reuid={user}"), testing::latchfs_path()]);
        command.arg("guard").arg(scratch.folder()).arg(scratch.join("other"));
        run(command.arg("--stage").arg(scratch.join(state))).fails()
    };
    assert!(other("0", "state").contains("another guard of this machine, process "));
    let mut doctor = latchfs();
    doctor.args(["doctor", "--strict", "--json"]).arg(&guard.view);
    let said = run(&mut doctor).out;
    let pid = format!("process {} (flock) of user 4242", flock.id());
    assert!(said.contains("\"folder-locked\"") && said.contains(&pid), "{said}");
    // With the lock free, the guard has it, so that the guard of another user sees it.
    drop(flock.stdin.take());
    flock.wait().expect("it ends");
    soon("the guard's lock", || {
        run(&mut doctor).out.contains("nothing is to be fixed").then_some(())
    });
    let theirs = scratch.join("theirs");
    fs::create_dir(&theirs).expect("made");
    std::os::unix::fs::chown(&theirs, Some(4242), Some(4242)).expect("root may");
    let seen = other("4242", "theirs");
    assert!(seen.contains(&format!("process {} (latchfs) of user 0", guard.pid())), "{seen}");
}

/// A directory that the guard can't use is refused before the folder is a guarded one.
#[test]
fn init_of_a_folder_alone_checks_the_state_directory_that_it_is_given() {
    let scratch = Scratch::with_folder();
    let folder = scratch.folder();
    let init = |stage: &std::path::Path| {
        run(latchfs().args(["guard", "init", "--alone"]).arg(&folder).arg("--stage").arg(stage))
    };
    let inside = init(&folder.join("state")).exits(69);
    assert!(inside.contains("lies in") && inside.contains("beside the folder"), "{inside}");
    let state = scratch.join("state");
    let said = init(&state).ok();
    let next = format!("VIEW --stage {}'", state.display());
    assert!(said.contains(&next), "{said}");
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("a"), "1").expect("the lock is free");
}
