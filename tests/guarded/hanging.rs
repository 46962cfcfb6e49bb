//! Guards that hang or are dead: a command about a view always ends, and says what hangs.
use latchfs::time::{Span, Time, boot_now};
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use testing::{Guard, Output, Scratch, Server, latchfs, no_other_stops, run, signal, soon};

/// How long `guard status` may take on a machine that runs other tests; 2 s are promised.
const ANSWER_LIMIT: Span = Span::from_secs(5);

#[track_caller]
fn says_stopped(guard: &Guard, asked: Time, answer: Output) {
    let took = boot_now().since(asked);
    let why = answer.exits(69);
    let pid = guard.pid();
    assert!(why.contains(&format!("process {pid} was stopped by a signal")), "{why}");
    assert!(why.contains(&format!("'kill -CONT {pid}'")), "{why}");
    assert!(took < ANSWER_LIMIT, "{took}");
}

#[test]
fn a_stopped_guard_is_reported_from_outside() {
    let _stops = no_other_stops();
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("a"), "1").expect("the lock is free");
    for _ in 0..testing::rounds(2, 50) {
        guard.stop();
        std::thread::scope(|scope| {
            for _ in 0..25 {
                scope.spawn(|| says_stopped(&guard, boot_now(), guard.request("status", &[])));
            }
        });
        guard.signal(libc::SIGCONT);
        guard.request("status", &[]).ok();
    }
}

/// A guard that is stopped until this value is dropped.
struct Stopped<'a>(&'a Guard);

impl<'a> Stopped<'a> {
    fn new(guard: &'a Guard) -> Self {
        guard.stop();
        Self(guard)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(libc::SIGCONT);
    }
}

/// Programs that use a view without a pause, until this value is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(guard: &Guard) -> Self {
        let script = "while :; do cat a .latchfs/status .latchfs/none; echo b >b; done";
        let start = |_| {
            let mut program = Command::new("sh");
            program.args(["-c", script]).current_dir(&guard.view);
            program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            program.spawn().expect("it starts")
        };
        Self((0..6).map(start).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for program in &mut self.0 {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

#[test]
fn a_guard_that_is_stopped_while_it_works_is_reported_from_outside() {
    let _stops = no_other_stops();
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("a"), "1").expect("the lock is free");
    let load = Load::start(&guard);
    for _ in 0..testing::rounds(6, 50) {
        let mut stopped = None;
        // Half of the commands start before the guard is stopped.
        std::thread::scope(|scope| {
            (0..3).for_each(|_| drop(scope.spawn(|| guard.request("status", &[]))));
            stopped = Some(Stopped::new(&guard));
            for _ in 0..3 {
                scope.spawn(|| says_stopped(&guard, boot_now(), guard.request("status", &[])));
            }
        });
        drop(stopped);
    }
    drop(load);
    guard.request("status", &[]).ok();
}

/// Starts a request that waits, and returns when the guard has read it.
fn start_waiting(guard: &Guard, request: &str) -> Child {
    let mut command = latchfs();
    command.args(["guard", request]).arg(&guard.view);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    soon("the request reaches the guard", || {
        let status = fs::read_to_string(guard.path(".latchfs/status")).expect("readable");
        let is_there = status.contains("\"waiting\": 1") || request == "wait" && waits(&child);
        is_there.then_some(())
    });
    child
}

/// Whether a child of a process sleeps in a request of FUSE.
fn waits(parent: &Child) -> bool {
    let id = parent.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let child = children.unwrap_or_default().trim().to_owned();
    let wchan = fs::read_to_string(format!("/proc/{child}/wchan")).unwrap_or_default();
    wchan.contains("request_wait") || wchan.contains("fuse")
}

#[track_caller]
fn ends_by_interrupt(mut command: Child) {
    signal(command.id().cast_signed(), libc::SIGINT);
    let status = soon("the end by Ctrl-C", || command.try_wait().expect("our child"));
    assert_eq!(status.signal(), Some(libc::SIGINT));
    // The descendants of the command keep none of its descriptors.
    let output = command.wait_with_output().expect("its output has ended");
    assert!(output.stdout.is_empty());
}

#[test]
fn requests_that_wait_end_by_interrupt_stop_and_death() {
    let _stops = no_other_stops();
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&scratch, "view", &["--client", "m1"]);
    let lock = guard.status()["lock"].as_str().expect("a name").to_owned();
    run(latchfs().args(["acquire", &lock, "--client", "m2", "--server", &server.url])).ok();
    for request in ["take", "wait"] {
        ends_by_interrupt(start_waiting(&guard, request));
        soon("the guard forgets the request", || (guard.status()["waiting"] == 0).then_some(()));
        let stopped = start_waiting(&guard, request);
        guard.stop();
        ends_by_interrupt(stopped);
        guard.signal(libc::SIGCONT);
        let waiting = start_waiting(&guard, request);
        guard.stop();
        let output = waiting.wait_with_output().expect("it ends");
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.contains("was stopped by a signal"), "{why}");
        guard.signal(libc::SIGCONT);
    }
    let waiting = start_waiting(&guard, "take");
    guard.signal(libc::SIGKILL);
    let output = waiting.wait_with_output().expect("it ends");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("is dead") && why.contains("latchfs umount"), "{why}");
    for request in ["status", "take", "give", "wait", "lost"] {
        let why = guard.request(request, &[]).exits(69);
        assert!(why.contains("is dead"), "{request}: {why}");
    }
    run(latchfs().arg("umount").arg(&guard.view)).ok();
}
