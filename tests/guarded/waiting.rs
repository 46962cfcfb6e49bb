//! Waits for the lock of a folder: which changes wait, for how long, and whether they outlive the
//! session of the guard.

use crate::arriving::{Machines, not_ready, state};
use latchfs::time::{Span, boot_now};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;
use testing::run;
use testing::{Guard, Scratch, Server, latchfs, no_other_stops, pause, shell, soon};

/// The server is stopped for longer than the session of the guard lasts. Neither a person nor a
/// program that waits for the lock hears of that.
#[test]
fn a_wait_goes_on_when_the_session_is_lost() {
    let _alone = no_other_stops();
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    fs::write(scratch.folder().join("a"), "before").expect("made");
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    let options = ["--client", "m1", "--ttl", "2s", "--on-write", "wait=50s"];
    let guard = Guard::start(&scratch, "view", &options);
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let other = |arguments: &[&str]| {
        let mut other = latchfs();
        other.args([arguments[0], "--server", &server.url, "--client", "m2", &lock]);
        run(other.args(&arguments[1..])).ok()
    };
    other(&["acquire", "--ttl", "1h"]);
    let taking = crate::arriving::begin_take(&guard);
    let path = guard.path("a");
    let writing = std::thread::spawn(move || fs::write(path, "waited"));
    soon("both waits", || (guard.status()["waiting"] == 2).then_some(()));
    soon("a place in the queue", || guard.status()["holder"].as_str().map(drop));
    server.signal(libc::SIGSTOP);
    pause(Duration::from_secs(5));
    server.signal(libc::SIGCONT);
    pause(Duration::from_secs(3));
    assert_eq!(guard.status()["waiting"], 2, "{}", guard.status());
    other(&["release"]);
    let taken = taking.join().expect("no panic");
    assert!(taken.contains("holding"), "{taken}");
    writing.join().expect("no panic").expect("held");
    assert_eq!(state(&guard), "holding");
}

/// The kernel keeps a directory locked while a name in it is made, renamed or removed, so these
/// changes wait for a second only. A change of a file waits as long as the option says.
#[test]
fn a_change_of_names_waits_a_second_and_says_what_to_do() {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    fs::write(scratch.folder().join("a"), "before\n").expect("made");
    scratch.init(&["--server", &server.url, "--client", "m1"]);
    let options = ["--client", "m1", "--on-write", "wait=1m"];
    let guard = Guard::start(&scratch, "view", &options);
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    let other = |arguments: &[&str]| {
        let mut other = latchfs();
        other.args([arguments[0], "--server", &server.url, "--client", "m2", &lock]);
        run(other.args(&arguments[1..])).ok()
    };
    other(&["acquire", "--ttl", "1h"]);
    let files = || shell(&guard.view, "ls -f | sort | tr '\\n' ' '").ok();
    let before = files();
    for change in ["mkdir dir", "mv a b", "rm a", "sed -i s/before/after/ a", "ln -s a b", ": >new"]
    {
        let began = boot_now();
        let refused = shell(&guard.view, change).fails();
        let took = boot_now().since(began);
        assert!(took < Span::from_secs(10), "{change}: {took:?}");
        assert!(refused.contains("ead-only"), "{change}: {refused}");
        let why = guard.why();
        let next = "after 'latchfs guard wait', or run the command by 'latchfs run --guard'";
        assert!(why.contains("waits for 1s at most") && why.contains(next), "{change}: {why}");
        assert!(why.contains("m2 holds the lock"), "{change}: {why}");
    }
    assert_eq!(files(), before);
    // How long others wait for the directory meanwhile.
    let mut making = Command::new("mkdir").arg(guard.path("dir")).spawn().expect("it starts");
    soon("the wish", || (guard.status()["waiting"] == 1).then_some(()));
    let began = boot_now();
    assert_eq!(files(), before);
    println!("a list of the directory takes {:?} meanwhile", boot_now().since(began));
    assert!(!making.wait().expect("it ends").success());
    // The mode and the content of a file.
    let path = guard.path("a");
    let changing = std::thread::spawn(move || {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("waited");
        fs::write(&path, "waited").expect("held");
    });
    soon("the wish", || (guard.status()["waiting"] == 1).then_some(()));
    pause(Duration::from_secs(3));
    assert_eq!(guard.status()["waiting"], 1, "it waits on");
    other(&["release"]);
    changing.join().expect("no panic");
    let found = fs::metadata(scratch.folder().join("a")).expect("there");
    assert_eq!((found.permissions().mode() & 0o777, found.len()), (0o600, 6));
    guard.request("wait", &[]).ok();
    fs::create_dir(guard.path("dir")).expect("held");
}

/// The program that wanted the folder is gone before everything has arrived.
#[test]
fn a_tenure_that_no_program_wants_any_more_ends_with_that_reason() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &[]), machines.start(2, &["--on-write", "wait=1m"]));
    fs::write(one.path("a"), "of m1").expect("ready");
    one.request("give", &[]).ok();
    let mut saving = Command::new("sh");
    saving.args(["-c", "exec sh -c 'echo x >old'"]).current_dir(&two.view);
    let mut saving = saving.spawn().expect("it starts");
    not_ready(&two, "the marker of m1's tenure");
    saving.kill().expect("it runs");
    saving.wait().expect("it ends");
    let how = soon("the end of the tenure", || {
        two.status()["last_tenure"]["how"].as_str().map(str::to_owned)
    });
    assert!(how.contains("no program waited for the folder any more"), "{how}");
    assert_eq!(state(&two), "reading");
}
