//! Machines that are frozen and woken later, as by a sleep: the processes are in the freezer of the
//! kernel, and the clocks have moved on.

use crate::arriving::{Machines, markers, not_ready, state};
use crate::doctoring::finds_one;
use crate::sleeping::how_it_ended;
use crate::telling::Events;
use crate::watchdog::{Disk, FrozenDisk, wait_for_hanging};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testing::run;
use testing::{Guard, Scratch, Server, latchfs, no_other_stops, pause, soon};

/// A control group of the kernel whose processes are frozen.
struct Frozen(PathBuf);

impl Frozen {
    /// Freezes a guard, and waits until all of its threads are frozen.
    fn freeze(guard: &Guard) -> Self {
        let frozen = Self::begin(guard);
        frozen.wait();
        frozen
    }

    /// Begins to freeze a guard: a thread that sleeps in the disk goes on until it leaves the
    /// kernel.
    fn begin(guard: &Guard) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find(|fields| fields[2] == "cgroup2").expect("a tree of control groups");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("latchfs-test-{}-{number}", std::process::id());
        let frozen = Self(Path::new(root[1]).join(name));
        fs::create_dir(&frozen.0).expect("a fresh name");
        frozen.set("cgroup.procs", &guard.pid().to_string());
        frozen.set("cgroup.freeze", "1");
        frozen
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).expect("writable by root");
    }

    fn wait(&self) {
        soon("a frozen guard", || {
            let events = fs::read_to_string(self.0.join("cgroup.events")).ok()?;
            events.contains("frozen 1").then_some(())
        });
    }

    /// Wakes the guard after its clocks have moved on.
    fn wake(self, clocks: &Clocks, slept: Duration) {
        self.wait();
        clocks.sleep_for(slept);
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        // The group is empty once its processes are elsewhere.
        let procs = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        let root = self.0.parent().expect("below the root").join("cgroup.procs");
        for process in procs.lines() {
            let _ = fs::write(&root, process);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The clocks of a machine, which a test can move on as a sleep does: the boot clock and the wall
/// clock, and not the monotonic clock.
struct Clocks(PathBuf);

impl Clocks {
    fn new(scratch: &Scratch) -> Self {
        let path = scratch.join("clocks");
        fs::write(&path, [0; 8]).expect("written");
        Self(path)
    }

    /// Returns a command that runs latchfs with these clocks.
    fn latchfs(&self) -> Command {
        let mut command = latchfs();
        command.env("LATCHFS_TEST_CLOCK", &self.0);
        command
    }

    fn sleep_for(&self, length: Duration) {
        let file = File::options().read(true).write(true).open(&self.0).expect("there");
        let mut nanos = [0; 8];
        file.read_exact_at(&mut nanos, 0).expect("eight bytes");
        let nanos = u64::from_le_bytes(nanos) + length.as_nanos() as u64;
        file.write_all_at(&nanos.to_le_bytes(), 0).expect("written");
    }
}

/// How long the machines of the tests sleep.
const SLEEPS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(8 * 3_600)];

/// Waits until a guard has seen that its tenure is over.
fn is_lost(guard: &Guard) {
    soon("the loss of the lock", || (state(guard) == "reading").then_some(()));
    let how = how_it_ended(guard);
    assert!(how.contains("lease"), "{how}");
}

#[test]
fn a_machine_that_sleeps_over_a_quiet_folder_leaves_nobody_unsure() {
    let _alone = no_other_stops();
    for sleep in SLEEPS {
        let machines = Machines::new();
        let clocks = Clocks::new(&machines.first);
        let one = machines.start_as(clocks.latchfs(), 1, &[]);
        let two = machines.start(2, &[]);
        fs::write(one.path("a"), "of m1").expect("free");
        soon("the marker", || (markers(&machines.first).len() == 2).then_some(()));
        // The lock service hears of the marker right after it was written.
        pause(Duration::from_millis(300));
        machines.carry_all();
        let frozen = Frozen::freeze(&one);
        two.take_here();
        assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "of m1");
        fs::write(two.path("a"), "of m2").expect("held");
        frozen.wake(&clocks, sleep);
        is_lost(&one);
        let refused = fs::write(one.path("a"), "late").expect_err("m2 holds the lock");
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        let text = fs::read_to_string(machines.first.folder().join("a")).expect("there");
        assert_eq!(text, "of m1");
    }
}

#[test]
fn a_machine_that_sleeps_over_unreported_changes_reports_them_late() {
    let _alone = no_other_stops();
    for sleep in SLEEPS {
        let machines = Machines::new();
        let clocks = Clocks::new(&machines.first);
        let one = machines.start_as(clocks.latchfs(), 1, &["--settle", "1h"]);
        let two = machines.start(2, &[]);
        fs::write(one.path("a"), "of m1").expect("free");
        machines.carry_all();
        let frozen = Frozen::freeze(&one);
        let view = two.view.clone();
        let taking = std::thread::spawn(move || fs::read(view.join(".latchfs/ready")));
        let asked = two.view.clone();
        let asking = std::thread::spawn(move || {
            let ctl =
                fs::OpenOptions::new().read(true).write(true).open(asked.join(".latchfs/ctl"));
            let mut ctl = ctl.expect("there");
            ctl.write_all(b"{\"do\": \"take\", \"wait_ms\": 60000}\n").expect("taken");
            let mut answer = [0; 4_096];
            ctl.read_at(&mut answer, 0).expect("an answer")
        });
        not_ready(&two, "nobody can say");
        frozen.wake(&clocks, sleep);
        is_lost(&one);
        soon("the late marker", || (markers(&machines.first).len() == 2).then_some(()));
        machines.carry_all();
        taking.join().expect("no panic").expect("ready");
        asking.join().expect("no panic");
        assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "of m1");
    }
}

/// The save is stale, its content is kept, and the other machine goes on.
#[test]
fn a_machine_that_sleeps_in_the_middle_of_a_save_publishes_nothing_later() {
    let _alone = no_other_stops();
    for sleep in SLEEPS {
        let machines = Machines::new();
        let clocks = Clocks::new(&machines.first);
        let one = machines.start_as(clocks.latchfs(), 1, &["--settle", "1h"]);
        let two = machines.start(2, &["--unsure", "go"]);
        let mut saved = File::create(one.path("old")).expect("free");
        saved.write_all(b"half").expect("held");
        let frozen = Frozen::freeze(&one);
        two.take_here();
        fs::write(two.path("old"), "of m2").expect("held");
        frozen.wake(&clocks, sleep);
        let stale = saved.write_all(b" and half").expect_err("the tenure is over");
        assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
        drop(saved);
        is_lost(&one);
        let text = fs::read_to_string(machines.first.folder().join("old")).expect("there");
        assert_eq!(text, "old");
        let lost = one.request_here("{\"do\": \"lost\"}");
        assert!(lost.contains("old"), "{lost}");
    }
}

/// A machine is often stopped between its check and its rename. On shared storage nothing of it
/// lands after the next tenure has begun, however long it slept.
#[test]
fn a_machine_that_sleeps_between_check_and_rename_changes_nothing_later() {
    let _alone = no_other_stops();
    let scratch = Scratch::with_folder();
    let clocks = Clocks::new(&scratch);
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let options = ["--shared-storage", "--ttl", "2s"];
    let first = [&["--client", "m1"], &options[..]].concat();
    let first = Guard::start_as(clocks.latchfs(), &scratch, "m1", &first);
    let second = Guard::start(&scratch, "m2", &[&["--client", "m2"], &options[..]].concat());
    for (round, sleep) in SLEEPS.into_iter().enumerate() {
        first.request("take", &[]).ok();
        let view = first.view.clone();
        let writes = std::thread::spawn(move || {
            (0_u64..).try_for_each(|n| fs::write(view.join("whole"), format!("m1 {n}")))
        });
        pause(Duration::from_micros(20_000 + round as u64 * 777));
        let frozen = Frozen::freeze(&first);
        second.take_here();
        fs::write(second.path("whole"), format!("m2 {round}")).expect("held");
        frozen.wake(&clocks, sleep);
        writes.join().expect("no panic").expect_err("the tenure is over");
        let text = fs::read_to_string(scratch.folder().join("whole")).expect("there");
        assert_eq!(text, format!("m2 {round}"));
        second.request("give", &[]).ok();
    }
}

/// Where each machine has a folder of its own, nothing can stop a rename that is under way when the
/// machine falls asleep. It is reported as late, and no marker names it once another machine has
/// gone on.
#[test]
fn a_rename_that_lands_after_the_sleep_is_reported_as_late() {
    let _alone = no_other_stops();
    for sleep in SLEEPS {
        let (disk, second) = (Disk::new(), Scratch::with_folder());
        let clocks = Clocks::new(&disk.scratch);
        let server = Server::of(&second);
        disk.scratch.init(&["--server", &server.url, "--client", "m1"]);
        let from = format!("{}/", disk.scratch.folder().display());
        run(Command::new("rsync").args(["-a", &from]).arg(second.folder())).ok();
        let options = ["--client", "m1", "--ttl", "2s"];
        let one = Guard::start_as(clocks.latchfs(), &disk.scratch, "view", &options);
        let two = Guard::start(&second, "view", &["--client", "m2", "--unsure", "go"]);
        let mut file = File::create(one.path("a")).expect("free");
        file.write_all(b"late").expect("held");
        let token = one.status()["tenure"]["token"].clone();
        let events = Events::of(&one);
        let frozen_disk = FrozenDisk::freeze(&disk);
        let closed = std::thread::spawn(move || drop(file));
        wait_for_hanging(&one, "fuser-0");
        let frozen = Frozen::begin(&one);
        two.take_here();
        fs::write(two.path("a"), "of m2").expect("held");
        // The rename lands, and the guard is frozen before it knows of that.
        drop(frozen_disk);
        frozen.wake(&clocks, sleep);
        closed.join().expect("closed");
        assert_eq!(fs::read_to_string(disk.scratch.folder().join("a")).expect("there"), "late");
        assert_eq!(events.next("lost")["token"], token);
        assert_eq!(events.next("late")["token"], token);
        finds_one(&one.view, "late-publish");
        // The version that m2 does not know is put aside.
        soon("the copy", || one.request("lost", &[]).ok().contains(" a\n").then_some(()));
        let count = markers(&disk.scratch).len();
        assert_eq!(count, 1, "a marker names what another machine has replaced");
    }
}

/// After a sleep that is shorter than the lease a change waits until the lock service has said that
/// the lock is still held.
#[test]
fn after_a_short_sleep_a_change_waits_for_the_lock_service() {
    let _alone = no_other_stops();
    let machines = Machines::new();
    let clocks = Clocks::new(&machines.first);
    let one = machines.start_as(clocks.latchfs(), 1, &["--settle", "1h", "--ttl", "2m"]);
    let mut saved = File::create(one.path("a")).expect("free");
    saved.write_all(b"before").expect("held");
    fs::write(one.path("b"), "before").expect("held");
    let token = one.status()["tenure"]["token"].clone();
    machines.server.signal(libc::SIGSTOP);
    clocks.sleep_for(Duration::from_secs(5));
    let (view, (send, written)) = (one.view.clone(), std::sync::mpsc::channel());
    for change in 0..2 {
        let (send, view) = (send.clone(), view.clone());
        let saved = saved.try_clone().expect("one more");
        std::thread::spawn(move || {
            let written = match change {
                0 => (&saved).write_all(b", after"),
                _ => fs::write(view.join("b"), "after"),
            };
            let _ = send.send(written);
        });
    }
    let early = written.recv_timeout(Duration::from_millis(1_500));
    assert!(early.is_err(), "written before the lock service has answered: {early:?}");
    machines.server.signal(libc::SIGCONT);
    for _ in 0..2 {
        written.recv_timeout(Duration::from_secs(20)).expect("answered").expect("still held");
    }
    assert_eq!(one.status()["tenure"]["token"], token, "the tenure goes on");
    // The next change does not wait.
    machines.server.signal(libc::SIGSTOP);
    fs::write(one.path("b"), "at once").expect("held");
    machines.server.signal(libc::SIGCONT);
}
