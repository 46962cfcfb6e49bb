//! Machines that fail while they tell the others what they changed: a guard that is killed at each
//! step of a tenure, and disks that fail or are full. No marker lies: the next machine is ready
//! with what the last one has published, and waits until that is known.

use crate::arriving::{Machines, begin_take, markers, not_ready, state};
use crate::disks::Disk;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testing::{Guard, Scratch, Server, latchfs, pause, shell, soon};
use testing::{rounds, run, signal};

/// The system calls by which a guard changes the folder and its own files.
const DISK_STEPS: &str =
    "linkat,renameat,renameat2,fsync,fdatasync,syncfs,pwrite64,unlinkat,mkdirat,ftruncate";

/// A strace that is attached to a guard.
pub(crate) struct Traced(Child);

impl Traced {
    /// Makes numbered steps of a guard fail: `what` is done at some calls of `steps`, counted in
    /// each thread.
    pub(crate) fn inject(guard: &Guard, steps: &str, what: &str) -> Self {
        let (trace, inject) = (format!("trace={steps}"), format!("inject={steps}:{what}"));
        Self::attach(guard, Path::new("/dev/null"), &["-e", &trace, "-e", &inject])
    }

    /// Attaches to a guard, and writes what it does to a file.
    pub(crate) fn attach(guard: &Guard, out: &Path, options: &[&str]) -> Self {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-p", &guard.pid().to_string(), "-o"]).arg(out).args(options);
        let child =
            strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace is there");
        let tasks = format!("/proc/{}/task", guard.pid());
        soon("strace is attached", || {
            let is_traced = |dir: fs::DirEntry| {
                let status = fs::read_to_string(dir.path().join("status")).unwrap_or_default();
                !status.contains("TracerPid:\t0\n")
            };
            fs::read_dir(&tasks).ok()?.flatten().all(is_traced).then_some(())
        });
        Self(child)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // The kernel detaches what it traced, and lets it go on.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the process of a guard has ended.
pub(crate) fn is_dead(guard: &Guard) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", guard.pid()));
    status.map_or(true, |status| status.contains("State:\tZ"))
}

fn content(scratch: &Scratch, name: &str) -> String {
    fs::read_to_string(scratch.folder().join(name)).unwrap_or_default()
}

/// The result of a save, as its program got it.
struct Saving {
    before: String,
    text: String,
    is_saved: bool,
}

/// Takes the lock, saves a file, and gives the lock up, as far as the guard still can.
fn save_and_give(machines: &Machines, one: &Guard, round: usize) -> Saving {
    let (before, text) = (content(&machines.first, "a"), format!("of m1, round {round}"));
    let ask = |what: &str| run(latchfs().args(["guard", what]).arg(&one.view)).code == 0;
    let is_saved = ask("take") && fs::write(one.path("a"), &text).is_ok();
    let _given = is_saved && ask("give");
    Saving { before, text, is_saved }
}

/// The second machine takes the lock: it is not ready before it has what the first one left, and
/// then works on it. `one` is a guard of the first machine that runs.
fn goes_on(machines: &Machines, (one, two): (&Guard, &Guard), saving: &Saving, round: usize) {
    let left = content(&machines.first, "a");
    assert!(left == saving.text || left == saving.before, "round {round}: a half file: {left}");
    assert!(!saving.is_saved || left == saving.text, "round {round}: an acknowledged save is lost");
    machines.carry_markers();
    let taking = begin_take(two);
    if left != content(&machines.second, "a") {
        // A late marker may change the reason while the machine waits.
        soon("a reason", || two.status()["not_ready"].as_str().map(drop));
        assert_eq!(state(two), "arriving", "round {round}");
    }
    soon("the second machine is ready", || {
        machines.carry_all();
        (state(two) == "holding").then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(content(&machines.second, "a"), left, "round {round}");
    fs::write(two.path("b"), format!("of m2, round {round}")).expect("ready");
    two.request("give", &[]).ok();
    machines.carry_back();
    assert!(one.status()["pid"].is_u64());
}

/// Lets the first machine's guard fail in each round, and returns in how many it died.
fn killed_in_rounds(rounds: usize, kill: impl Fn(&Guard, usize) -> Option<Traced>) -> usize {
    let machines = Machines::new();
    let two = machines.start(2, &["--on-write", "refuse"]);
    let mut died = 0;
    for round in 0..rounds {
        let one = machines.start(1, &[]);
        let injected = kill(&one, round);
        let saving = save_and_give(&machines, &one, round);
        died += usize::from(is_dead(&one));
        drop(injected);
        one.kill();
        let one = machines.start(1, &[]);
        goes_on(&machines, (&one, &two), &saving, round);
        one.end();
    }
    died
}

/// The steps of begin, fence, publish, marker and give, and the messages to the lock service.
#[test]
fn a_guard_killed_at_a_step_leaves_nobody_on_half_of_its_files() {
    let count = rounds(8, 48);
    let every = if count > 8 { 1 } else { 2 };
    let steps = format!("{DISK_STEPS},sendto");
    let died = killed_in_rounds(count, |one, round| {
        let what = format!("signal=SIGKILL:when={}", 1 + round * every);
        Some(Traced::inject(one, &steps, &what))
    });
    println!("the guard died in {died} of {count} rounds");
    assert!(died >= 5, "{died} of {count}");
}

#[test]
fn a_guard_killed_at_a_random_moment_leaves_nobody_on_half_of_its_files() {
    let mut random = File::open("/dev/urandom").expect("there");
    let count = rounds(4, 500);
    let died = killed_in_rounds(count, |one, round| {
        let mut bytes = [0; 2];
        (&random).read_exact(&mut bytes).expect("readable");
        let length = Duration::from_micros(u64::from(u16::from_ne_bytes(bytes)) * 3);
        println!("round {round}: {length:?}");
        let pid = one.pid().cast_signed();
        std::thread::spawn(move || {
            pause(length);
            signal(pid, libc::SIGKILL);
        });
        None
    });
    let _ = random.read(&mut [0]);
    println!("the guard died in {died} of {count} rounds");
}

/// One step of the disk fails in each thread: in the change log, the ledger, a marker or a publish.
#[test]
fn a_step_of_the_disk_that_fails_makes_no_marker_that_lies() {
    let machines = Machines::new();
    let two = machines.start(2, &["--on-write", "refuse"]);
    let (count, mut refused) = (rounds(7, 30), 0);
    for round in 0..count {
        let one = machines.start(1, &[]);
        let what = format!("error=EIO:when={}", 1 + round);
        let injected = Traced::inject(&one, DISK_STEPS, &what);
        let saving = save_and_give(&machines, &one, round);
        refused += usize::from(!saving.is_saved);
        drop(injected);
        // Changes that no marker names yet are named afterwards, by a late marker if the tenure is
        // over.
        run(latchfs().args(["guard", "give"]).arg(&one.view));
        goes_on(&machines, (&one, &two), &saving, round);
        one.end();
    }
    println!("{refused} of {count} saves failed");
}

/// The disk is full when the marker is to be written. No answer says that all changes are named,
/// and the marker comes when there is room again.
#[test]
fn a_full_disk_delays_the_marker() {
    let disk = Disk::new("marking", 24, 64);
    let second = Scratch::with_folder();
    let server = Server::of(&second);
    let first = disk.scratch_with(&["--server", &server.url, "--client", "m1"]);
    let machines = Machines { first, second, server };
    machines.carry_all();
    let (one, two) = (machines.start(1, &["--settle", "1h"]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("ready");
    // So many that their marker needs more blocks than refused saves leave free.
    for number in 0..500 {
        fs::write(one.path(&format!("{number} {}", "n".repeat(120))), "of m1").expect("ready");
    }
    let before = markers(&machines.first);
    let fill = "dd if=/dev/zero of=full bs=1M status=none || dd if=/dev/zero of=rest bs=1k \
                status=none || true";
    let aside = disk.dir.join("disk/aside");
    fs::create_dir(&aside).expect("made");
    shell(&aside, fill).ok();
    let text = |number: usize| format!("{number} ").repeat(2_000);
    let saved: Vec<_> = (0..30)
        .filter(|number| fs::write(one.path(&format!("f{number}")), text(*number)).is_ok())
        .collect();
    println!("{} of 30 saves fitted", saved.len());
    assert!(saved.len() < 30, "the disk is full");
    // The space freed by refused saves is taken as well.
    shell(&aside, &fill.replace("full", "more").replace("rest", "last")).ok();
    one.request("give", &[]).ok();
    let taking = begin_take(&two);
    machines.carry_all();
    not_ready(&two, "has not said what it changed");
    assert_eq!(markers(&machines.first), before);
    assert_eq!(state(&two), "arriving");
    fs::remove_dir_all(&aside).expect("room again");
    soon("the late marker", || {
        machines.carry_all();
        (state(&two) == "holding").then_some(())
    });
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(content(&machines.second, "a"), "of m1");
    for number in saved {
        assert_eq!(content(&machines.second, &format!("f{number}")), text(number));
    }
    drop((one, two));
}
