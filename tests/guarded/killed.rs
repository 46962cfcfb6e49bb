//! Programs that end in the middle of a save: by a signal the old version stays, by exit the file
//! is closed and appears.
use crate::recorder::{Recorder, version};
use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use testing::{Guard, Scratch, rounds, soon};

/// How each program begins: it has written half of `data`, and says so.
const HALF: &str = "
import ctypes, mmap, os, resource, signal, sys, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
f = open('data', 'w')
f.write('half'); f.flush()
print('ready', flush=True)
";

/// A way in which a program ends, and the signal by which it does.
const DEATHS: [(&str, &str, i32); 9] = [
    ("killed", "signal.pause()", libc::SIGKILL),
    (
        "killed, with a name that is no text",
        "ctypes.CDLL(None).prctl(15, b'\\xff) Z', 0, 0, 0)\nos.kill(os.getpid(), 9)",
        libc::SIGKILL,
    ),
    ("terminated", "signal.pause()", libc::SIGTERM),
    ("stopped by its user", "signal.pause()", libc::SIGQUIT),
    ("hung up", "signal.pause()", libc::SIGHUP),
    ("a wrong address", "ctypes.string_at(8)", libc::SIGSEGV),
    (
        "no memory, and an abort",
        "
resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
try:
    bytes(1 << 30)
except MemoryError:
    os.abort()",
        libc::SIGABRT,
    ),
    (
        "too much processor time",
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass",
        0,
    ),
    (
        "a signal for one of several threads",
        "
threading.Thread(target=signal.pause, daemon=True).start()
threading.Thread(target=lambda: (f.write('more'), f.flush(), os.kill(os.getpid(), 9))).start()
signal.pause()",
        libc::SIGKILL,
    ),
];

fn start(dir: &Path, program: &str) -> Child {
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", &format!("{HALF}{program}")])
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("python is there");
    let mut ready = [0; 5];
    child.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("it says so");
    child
}

/// Ends a program by a signal, unless it ends itself.
fn end(mut child: Child, is_sent: bool, number: i32) -> ExitStatus {
    if is_sent {
        testing::signal(child.id().cast_signed(), number);
    }
    child.wait().expect("it ends")
}

/// Returns the number of lost files of the path `data`.
fn lost(guard: &Guard) -> usize {
    guard.request("lost", &[]).ok().lines().filter(|line| line.contains("data")).count()
}

#[test]
fn a_signal_in_the_middle_of_a_save_leaves_the_old_version() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let real = scratch.folder().join("data");
    let recorder = Recorder::start(&scratch.folder());
    let mut count = 0;
    for round in 0..rounds(1, 20) {
        for (name, program, number) in DEATHS {
            for old in [Some("old"), None] {
                let _ = fs::remove_file(guard.path("data"));
                if let Some(old) = old {
                    fs::write(guard.path("data"), old).expect("written");
                }
                let status =
                    end(start(&guard.view, program), program.starts_with("signal"), number);
                let by = status.signal().unwrap_or_else(|| panic!("{name}: {status}"));
                assert!(number == 0 || by == number, "{name}: {status}");
                count += 1;
                soon(&format!("{name}, round {round}: a lost file"), || {
                    (lost(&guard) == count).then_some(())
                });
                assert_eq!(fs::read_to_string(&real).ok().as_deref(), old, "{name}");
                assert_eq!(fs::read_to_string(guard.path("data")).ok().as_deref(), old, "{name}");
            }
        }
    }
    recorder.next_round();
    let (seen, _) = recorder.end();
    assert_eq!(seen[Path::new("data")], [version(b"old")].into());
}

/// The kernel kills a program that exceeds the limit of its control group.
#[test]
fn a_program_that_the_kernel_kills_for_its_memory_leaves_the_old_version() {
    let group = Path::new("/sys/fs/cgroup/memory").join(format!("latchfs-{}", std::process::id()));
    let limit = group.join("memory.limit_in_bytes");
    let (group, limit) = if Path::new("/sys/fs/cgroup/memory").is_dir() {
        (group, limit)
    } else {
        let group = Path::new("/sys/fs/cgroup").join(format!("latchfs-{}", std::process::id()));
        let limit = group.join("memory.max");
        (group, limit)
    };
    if fs::create_dir(&group).is_err() || fs::write(&limit, "32000000").is_err() {
        let _ = fs::remove_dir(&group);
        println!("no control group can be made here, so nothing is shown");
        return;
    }
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    fs::write(guard.path("data"), "old").expect("written");
    let procs = group.join("cgroup.procs");
    let program = format!(
        "open({procs:?}, 'w').write(str(os.getpid()))\nkept = []\nwhile True: \
         kept.append(bytearray(b'x' * (1 << 20)))"
    );
    let status = end(start(&guard.view, &program), false, 0);
    let _ = fs::remove_dir(&group);
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    soon("a lost file", || (lost(&guard) == 1).then_some(()));
    let real = scratch.folder().join("data");
    assert_eq!(fs::read_to_string(real).expect("there"), "old");
}

#[test]
fn an_exit_in_the_middle_of_a_save_closes_the_file() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let real = scratch.folder().join("data");
    for program in
        ["os._exit(1)", "sys.exit(1)", "raise ValueError", "os.execv('/bin/false', ['x'])"]
    {
        fs::write(guard.path("data"), "old").expect("written");
        let status = end(start(&guard.view, program), false, 0);
        assert_eq!(status.code(), Some(1), "{program}: {status}");
        assert_eq!(fs::read_to_string(&real).expect("there"), "half", "{program}");
    }
    assert_eq!(lost(&guard), 0);
}
