//! The lock of a folder is handed over when another machine asks for it: once nothing has changed
//! for a while, or at the latest after `--max`.

use crate::arriving::{Machines, begin_take, state};
use latchfs::time::{Span, Time, boot_now};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{Guard, pause, soon};

/// How long the last marker may take: it is written after all files of the file system are synced,
/// also those of other programs.
const MARKER_LIMIT: Span = Span::from_secs(10);

fn ended_by_request(guard: &Guard) -> bool {
    let status = guard.status();
    let how = status["last_tenure"]["how"].as_str().unwrap_or_default().to_owned();
    status["state"] == "reading" && how.contains("another machine asked for the lock")
}

/// Waits until the guard has given the lock up, and returns how long that took since `asked`.
fn handed_over(guard: &Guard, asked: Time) -> Span {
    soon("the hand-over", || ended_by_request(guard).then_some(()));
    boot_now().since(asked)
}

fn is_wanted(guard: &Guard) {
    soon("the wish of the other machine", || guard.status()["wanted_by"].as_str().map(drop));
}

/// Keeps the second machine's files like those of the first until it holds the lock.
fn carry_until_held(machines: &Machines, guard: &Guard) {
    soon("the lock of the second machine", || {
        machines.carry_all();
        (state(guard) == "holding").then_some(())
    });
}

#[test]
fn an_idle_machine_hands_over_what_another_one_asks_for() {
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s"]);
    let two = machines.start(2, &["--yield", "1s"]);
    fs::write(one.path("a"), "of m1").expect("free");
    let asked = boot_now();
    let taking = begin_take(&two);
    let marked = handed_over(&one, asked);
    carry_until_held(&machines, &two);
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("a")).expect("arrived"), "of m1");
    // Nothing has changed since, so there is nothing to mark.
    let asked = boot_now();
    let taking = begin_take(&one);
    let unmarked = handed_over(&two, asked);
    assert!(taking.join().expect("taken").contains("holding"));
    println!("handed over after {marked:?} with a marker, {unmarked:?} without");
    assert!(marked < Span::from_secs(1) + MARKER_LIMIT, "{marked:?}");
    assert!(unmarked < Span::from_secs(2), "{unmarked:?}");
}

/// A file that is open for writing keeps the lock until `--max`. Then its content is put aside, and
/// what was changed through a mapping is in the folder.
#[test]
fn a_busy_machine_hands_over_at_the_latest_after_the_maximum() {
    let machines = Machines::new();
    let one = machines.start(1, &["--yield", "1s", "--max", "3s"]);
    let two = machines.start(2, &[]);
    fs::write(one.path("mapped"), "0123456789").expect("free");
    let script = "import mmap, sys\n\
                  f = open(sys.argv[1], 'r+b')\n\
                  m = mmap.mmap(f.fileno(), 0)\n\
                  f.close()\n\
                  m[0:4] = b'four'\n\
                  print('changed', flush=True)\n\
                  sys.stdin.read()\n";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(one.path("mapped"));
    let mut python =
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(python.stdout.take().expect("piped")).read_line(&mut line).expect("changed");
    let mut unsaved = File::create(one.path("unsaved")).expect("ready");
    unsaved.write_all(b"half").expect("ready");
    let asked = boot_now();
    let taking = begin_take(&two);
    is_wanted(&one);
    pause(Duration::from_millis(1_500));
    assert_eq!(state(&one), "holding", "a file is open for writing");
    let took = handed_over(&one, asked);
    assert!(took >= Span::from_secs(3) && took < Span::from_secs(3) + MARKER_LIMIT, "{took:?}");
    let mapped = fs::read_to_string(machines.first.folder().join("mapped")).expect("there");
    assert_eq!(mapped, "four456789");
    let refused = unsaved.write_all(b"more").expect_err("the tenure is over");
    assert_eq!(refused.raw_os_error(), Some(libc::ESTALE));
    assert!(one.request("lost", &[]).ok().contains("unsaved"));
    drop(python.stdin.take());
    assert!(python.wait().expect("it ends").success());
    carry_until_held(&machines, &two);
    assert!(taking.join().expect("taken").contains("holding"));
    assert_eq!(fs::read_to_string(two.path("mapped")).expect("arrived"), "four456789");
}

/// A flock on a file of the view keeps the lock, although no file is open for writing.
#[test]
fn a_flock_in_the_view_keeps_the_lock() {
    let machines = Machines::new();
    let (one, two) = (machines.start(1, &["--yield", "1s"]), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("free");
    let file = File::open(one.path("a")).expect("readable");
    file.lock().expect("free");
    // One that waits, or that is held elsewhere, makes no difference.
    let elsewhere = File::open(machines.second.folder().join("old")).expect("readable");
    elsewhere.lock().expect("free");
    let taking = begin_take(&two);
    is_wanted(&one);
    pause(Duration::from_secs(3));
    assert_eq!(state(&one), "holding", "a program holds a flock");
    file.unlock().expect("held");
    soon("the hand-over", || ended_by_request(&one).then_some(()));
    carry_until_held(&machines, &two);
    assert!(taking.join().expect("taken").contains("holding"));
}

#[test]
fn a_flock_does_not_keep_the_lock_beyond_the_maximum() {
    let machines = Machines::new();
    let options = ["--yield", "1s", "--max", "3s"];
    let (one, two) = (machines.start(1, &options), machines.start(2, &[]));
    fs::write(one.path("a"), "of m1").expect("free");
    let file = File::open(one.path("a")).expect("readable");
    file.lock().expect("free");
    let asked = boot_now();
    let taking = begin_take(&two);
    let took = handed_over(&one, asked);
    assert!(took >= Span::from_millis(2_900), "{took:?}");
    carry_until_held(&machines, &two);
    assert!(taking.join().expect("taken").contains("holding"));
}
