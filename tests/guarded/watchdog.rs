//! Guards whose disk hangs: the watchdog gets no reports, commands say what hangs, and an unmount
//! ends the waits of programs.
use crate::telling::Events;
use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{Guard, Scratch, Server, latchfs, no_other_stops, run, soon};

/// The interval in which the watchdog of the tests wants a report.
const WATCHDOG: Duration = Duration::from_millis(600);

/// A scratch directory on a file system of its own, which can be frozen.
pub(crate) struct Disk {
    pub(crate) scratch: Scratch,
    image: PathBuf,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::with_folder();
        let image = scratch.path().with_extension("image");
        fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("there is room");
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)).ok();
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(scratch.path())).ok();
        fs::create_dir(scratch.folder()).expect("an empty disk");
        Self { scratch, image }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.scratch.path()).status();
        let _ = fs::remove_file(&self.image);
        let _ = fs::remove_file(self.image.with_extension("socket"));
    }
}

/// A disk on which every change waits, until this value is dropped.
pub(crate) struct FrozenDisk<'a>(&'a Path);

impl<'a> FrozenDisk<'a> {
    pub(crate) fn freeze(disk: &'a Disk) -> Self {
        run(Command::new("fsfreeze").arg("-f").arg(disk.scratch.path())).ok();
        Self(disk.scratch.path())
    }
}

impl Drop for FrozenDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

/// Waits until a thread of the guard sleeps in the kernel.
pub(crate) fn wait_for_hanging(guard: &Guard, thread: &str) {
    let tasks = PathBuf::from(format!("/proc/{}/task", guard.pid()));
    soon("a thread that hangs", || {
        let mut tasks = fs::read_dir(&tasks).expect("it runs").flatten();
        let hangs = tasks.any(|task| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            status.starts_with(&format!("Name:\t{thread}\n")) && status.contains("State:\tD")
        });
        hangs.then_some(())
    });
}

/// A service manager that a guard reports to.
struct Manager(UnixDatagram);

impl Manager {
    fn start(disk: &Disk) -> (Self, Guard) {
        let socket = disk.image.with_extension("socket");
        let manager = UnixDatagram::bind(&socket).expect("a fresh name");
        let mut command = latchfs();
        command.env("NOTIFY_SOCKET", &socket);
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        let guard = Guard::start_as(command, &disk.scratch, "view", &[]);
        (Self(manager), guard)
    }

    /// Returns the next report, if one comes in time.
    fn report(&self, limit: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(limit)).expect("a time");
        let mut text = [0; 64];
        let length = self.0.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    #[track_caller]
    fn gets_reports(&self) {
        for _ in 0..3 {
            assert_eq!(self.report(Duration::from_secs(20)).as_deref(), Some("WATCHDOG=1"));
        }
    }

    #[track_caller]
    fn gets_no_reports(&self) {
        // A report may have been on its way when the thread began to hang.
        while self.report(WATCHDOG / 6).is_some() {}
        assert_eq!(self.report(WATCHDOG * 4), None);
    }
}

#[test]
fn the_watchdog_gets_reports_while_all_threads_work() {
    let _stops = no_other_stops();
    let disk = Disk::new();
    disk.scratch.init(&["--alone"]);
    let (manager, guard) = Manager::start(&disk);
    assert_eq!(manager.report(Duration::from_secs(20)).as_deref(), Some("READY=1"));
    manager.gets_reports();
    fs::write(guard.path("a"), "1").expect("the lock is free");

    let frozen = FrozenDisk::freeze(&disk);
    let mut writer = Command::new("sh");
    writer.args(["-c", "echo 2 >b"]).current_dir(&guard.view);
    let mut writer = writer.spawn().expect("it starts");
    wait_for_hanging(&guard, "fuser-0");
    let why = guard.request("status", &[]).exits(69);
    assert!(why.contains("'fuser-0' of its process") && why.contains("disk"), "{why}");
    manager.gets_no_reports();
    drop(frozen);
    assert!(writer.wait().expect("it ends").success());
    manager.gets_reports();

    guard.request("give", &[]).ok();
    let frozen = FrozenDisk::freeze(&disk);
    let mut take = latchfs();
    let take = take.args(["guard", "take"]).arg(&guard.view).stdout(Stdio::null());
    let mut take = take.spawn().expect("it starts");
    wait_for_hanging(&guard, "tenures");
    manager.gets_no_reports();
    drop(frozen);
    assert!(take.wait().expect("it ends").success());
    manager.gets_reports();
    guard.end();
}

/// A rename that the disk delays past the deadline of its tenure is reported as late.
#[test]
fn a_late_publish_is_reported() {
    let _stops = no_other_stops();
    let disk = Disk::new();
    let server = Server::of(&disk.scratch);
    disk.scratch.init(&["--server", &server.url]);
    let guard = Guard::start(&disk.scratch, "view", &["--ttl", "2s"]);
    let mut file = fs::File::create(guard.path("a")).expect("the lock is free");
    file.write_all(b"late").expect("held");
    let token = guard.status()["tenure"]["token"].clone();
    let events = Events::of(&guard);
    let frozen = FrozenDisk::freeze(&disk);
    let closed = std::thread::spawn(move || drop(file));
    wait_for_hanging(&guard, "fuser-0");
    server.signal(libc::SIGSTOP);
    // The end of the lease makes no event while the disk hangs.
    let (_never, lease) = std::sync::mpsc::channel::<()>();
    assert!(lease.recv_timeout(Duration::from_secs(3)).is_err());
    drop(frozen);
    closed.join().expect("closed");
    assert_eq!(fs::read_to_string(disk.scratch.folder().join("a")).expect("there"), "late");
    assert_eq!(events.next("lost")["token"], token);
    assert_eq!(events.next("late")["token"], token);
}

#[test]
fn an_unmount_ends_the_waits_for_a_guard_that_hangs() {
    let _stops = no_other_stops();
    let disk = Disk::new();
    disk.scratch.init(&["--alone"]);
    let (_manager, guard) = Manager::start(&disk);
    fs::write(guard.path("a"), "1").expect("the lock is free");
    let frozen = FrozenDisk::freeze(&disk);
    let writer = Command::new("/usr/bin/python3")
        .args(["-c", "open('b', 'w')"])
        .current_dir(&guard.view)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    wait_for_hanging(&guard, "fuser-0");
    // The thread that hangs keeps the killed process from ending, and the view with it.
    guard.signal(libc::SIGKILL);
    let said = run(latchfs().arg("umount").arg(&guard.view)).ok();
    assert!(said.contains("stays, sealed, since its disk does not answer"), "{said}");
    let output = writer.wait_with_output().expect("it ends");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("ConnectionAborted") || why.contains("Errno 107"), "{why}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("readable");
    assert!(!mounts.contains(&guard.view.display().to_string()), "{mounts}");
    drop(frozen);
}
