//! The close that publishes a file: no program is left then that has the file open for writing, as
//! far as the guard can see.

use crate::ordinary_user::in_a_namespace;
use crate::recorder::{Recorder, version};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use testing::{Guard, Scratch, no_other_stops, pause, python, soon};
use testing::{rounds, run_within};

/// Runs programs that write a file in two parts, and checks that the folder has only the whole
/// file.
const WHOLE_FILES: &str = include_str!("whole_files.py");

fn alone() -> (Scratch, Guard) {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    (scratch, guard)
}

#[test]
fn a_file_appears_whole_whichever_program_writes_it_by_several_descriptors() {
    let (scratch, guard) = alone();
    let place = scratch.join("place");
    fs::create_dir(&place).expect("made");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", WHOLE_FILES]).arg(&guard.view).arg(scratch.folder()).arg(&place);
    let seen = run_within(Duration::from_secs(120), &mut command).ok();
    println!("{seen}");
    assert_eq!(fs::read_dir(scratch.folder()).expect("there").count(), 1, ".latchfs alone is left");
    assert!(guard.lost().is_empty());
}

#[test]
fn a_file_appears_whole_also_in_the_view_of_a_user() {
    let script = format!(
        "user latchfs guard init folder --alone >&2 || exit 1
         (as 54321 latchfs guard folder view) >out & guard=$!
         until grep -q shows out; do kill -0 $guard || exit 2; sleep 0.02; done
         mkdir -m 777 place
         cat >program <<'END OF PROGRAM'\n{WHOLE_FILES}\nEND OF PROGRAM
         user /usr/bin/python3 program $T/view $T/folder $T/place || exit 3
         kill -INT $(daemon); wait $guard; echo ended $?"
    );
    let seen = in_a_namespace(&script);
    assert!(seen.out.ends_with("programs\nended 0\n") && seen.code == 0, "{seen:?}");
}

/// Writes a file in parts in each round, by duplicates, children and a program in the background.
const ROUNDS: &str = "while read number; do
    rm -f out; exec 3>out
    echo \"half $number\" >&3; (echo child >&3); /bin/echo program >&3 & wait
    { echo group; echo end; } >&3; exec 3>&-; echo done
done";

/// Returns a sequence of numbers that look random.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

#[test]
fn a_guard_that_is_stopped_at_any_moment_shows_no_half_file() {
    let _stops = no_other_stops();
    let (scratch, guard) = alone();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = numbers(seed);
    let recorder = Recorder::start(&scratch.folder());
    let mut expected = BTreeSet::new();
    for shell in ["bash", "dash"] {
        let mut child = Command::new(shell);
        child.args(["-ec", ROUNDS]).current_dir(&guard.view);
        let mut child =
            child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is there");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut input = child.stdin.take().expect("piped");
        for number in 0..rounds(500, 5_000) {
            writeln!(input, "{shell}-{number}").expect("it reads");
            pause(Duration::from_micros(random(6_000)));
            guard.signal(libc::SIGSTOP);
            pause(Duration::from_micros(random(3_000)));
            guard.signal(libc::SIGCONT);
            assert_eq!(lines.next().expect("it writes").expect("a line"), "done");
            let whole = format!("half {shell}-{number}\nchild\nprogram\ngroup\nend\n");
            let real = fs::read_to_string(scratch.folder().join("out")).expect("published");
            assert_eq!(real, whole, "seed {seed}");
            expected.insert(version(whole.as_bytes()));
        }
        drop(input);
        assert!(child.wait().expect("it ends").success());
    }
    recorder.next_round();
    let (versions, count) = recorder.end();
    let versions = &versions[Path::new("out")];
    assert!(versions.is_subset(&expected), "seed {seed}: a half file was seen");
    println!("{} versions were seen in {count} reads", versions.len());
}

/// While a program changes its set of polled files, the kernel has that set locked, and so has to
/// get its answers without the thread that looks at the descriptors of the program.
#[test]
fn a_program_that_polls_files_of_the_view_never_hangs() {
    let (scratch, guard) = alone();
    let program = "
import os, select, threading, time
over = False
def poll():
    polled = open('polled', 'w')
    while not over:
        with select.epoll() as all:
            all.register(polled.fileno(), select.EPOLLIN | select.EPOLLOUT)
            assert all.poll(0) == [(polled.fileno(), select.EPOLLIN | select.EPOLLOUT)]
threads = [threading.Thread(target=poll) for _ in range(2)]
for thread in threads: thread.start()
for number in range(300):
    with open('saved', 'w') as file: file.write(str(number))
    assert open('../folder/saved').read() == str(number)
over = True
for thread in threads: thread.join()
";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", program]).current_dir(&guard.view);
    run_within(Duration::from_secs(30), &mut command).ok();
    assert_eq!(fs::read(scratch.folder().join("saved")).expect("there"), b"299");
}

/// Runs a program that checks its folder, which is `../folder`.
fn check(program: &str) {
    let (_scratch, guard) = alone();
    let head = "
import ctypes, mmap, os, signal, socket, subprocess, time
def folder():
    try: return open('../folder/out').read()
    except FileNotFoundError: return None
def create(): return os.open('out', os.O_RDWR | os.O_CREAT)
";
    python(0, &guard.view, &format!("{head}{program}")).ok();
}

// Events that the guard can't see. Each of these tests records what happens.

#[test]
fn a_descriptor_that_was_passed_to_another_program_is_not_seen() {
    check(
        "
here, there = socket.socketpair()
reply, tell = os.pipe()
receiver = os.fork()
if receiver == 0:
    fd = socket.recv_fds(there, 1, 1)[1][0]
    os.write(tell, b'x')
    there.recv(1)
    os.write(fd, b' and the rest')
    os._exit(0)
sender = os.fork()
if sender == 0:
    fd = create()
    os.write(fd, b'half')
    socket.send_fds(here, [b'x'], [fd])
    os._exit(0)
os.waitpid(sender, 0)
os.read(reply, 1)
assert folder() == 'half', folder()
here.send(b'x')
os.waitpid(receiver, 0)
assert folder() == 'half and the rest', folder()
",
    );
}

#[test]
fn a_store_to_a_mapping_after_the_close_is_made_in_place() {
    check(
        "
fd = create()
os.write(fd, b'half')
pages = mmap.mmap(fd, 4)
# Python's mapping has a descriptor of its own.
os.closerange(3, 100)
assert folder() == 'half', folder()
pages[:] = b'full'
pages.flush()
assert folder() == 'full', folder()
",
    );
}

#[test]
fn a_process_that_becomes_the_child_of_its_grandparent_is_not_seen() {
    check(
        "
CLONE_PARENT, CLONE = 0x8000, {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
(wait, tell), (reply, done) = os.pipe(), os.pipe()
opener = os.fork()
if opener == 0:
    os.close(tell)
    fd = create()
    os.write(fd, b'half')
    if ctypes.CDLL(None).syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os.write(done, b'x')
        os.read(wait, 1)
        os.write(fd, b' and the rest')
        os._exit(0)
    os.read(reply, 1)
    os._exit(0)
os.close(wait)
os.waitpid(opener, 0)
assert folder() == 'half', folder()
os.close(tell)
os.wait()
assert folder() == 'half and the rest', folder()
",
    );
}

#[test]
fn a_thread_with_descriptors_of_its_own_is_not_seen() {
    check(
        "
import threading
CLONE_FILES = 0x400
fd = create()
def other():
    assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
    ready.wait(); over.wait()
    os.write(fd, b' and the rest')
ready, over = threading.Barrier(2), threading.Barrier(2)
thread = threading.Thread(target=other); thread.start(); ready.wait()
os.write(fd, b'half')
os.close(fd)
assert folder() == 'half', folder()
over.wait(); thread.join()
assert folder() == 'half and the rest', folder()
",
    );
}

/// A program that runs in a namespace of processes below that of the guard has a number there.
#[test]
fn a_program_in_a_namespace_of_its_own_is_seen() {
    check(
        "
script = 'exec 3>out; echo half >&3; test ! -e ../folder/out; (echo rest >&3); exec 3>&-'
subprocess.check_call(['unshare', '--pid', '--fork', 'sh', '-ec', script])
assert folder() == 'half\\nrest\\n', folder()
",
    );
}

/// The guard runs in a namespace of processes of its own, so that programs outside have no number
/// there: each of their files is published after its last close.
#[test]
fn a_program_outside_of_the_guards_namespace_publishes_at_its_last_close() {
    let script = "mkdir shared && mount -t tmpfs none shared && mount --make-shared shared
         cd shared && mkdir folder && latchfs guard init folder --alone >&2 || exit 1
         unshare --pid --fork --kill-child --mount --propagation unchanged sh -c '
             mount -t proc proc /proc && exec latchfs guard folder view --stage $PWD/state' \
             >out & guard=$!
         until grep -q shows out; do kill -0 $guard || exit 2; sleep 0.02; done
         exec 3>view/a; echo half >&3; (echo more >&3); test ! -e folder/a || exit 3
         exec 3>&-
         until test -e folder/a; do sleep 0.02; done; cat folder/a
         umount view; kill $guard; wait $guard; cd /; umount -l $T/shared";
    let seen = in_a_namespace(script);
    assert_eq!((seen.out.as_str(), seen.code), ("half\nmore\n", 0), "{seen:?}");
}

/// A guard of a user can't read the descriptors of a program that is protected from its user. It
/// takes the file for open, and publishes it after the last close.
#[test]
fn a_program_that_its_user_may_not_look_at_publishes_at_its_last_close() {
    let script = "user latchfs guard init folder --alone >&2 || exit 1
         (as 54321 latchfs guard folder view) >out & guard=$!
         until grep -q shows out; do kill -0 $guard || exit 2; sleep 0.02; done
         user /usr/bin/python3 -c '
import ctypes, os, time
PR_SET_DUMPABLE = 4
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0) == 0
fd = os.open(\"view/a\", os.O_WRONLY | os.O_CREAT)
os.write(fd, b\"half\")
os.close(os.dup(fd))
assert not os.path.exists(\"folder/a\")
os.write(fd, b\" and the rest\")
os.close(fd)
for _ in range(1000):
    if os.path.exists(\"folder/a\"): break
    time.sleep(0.01)
print(open(\"folder/a\").read())' || exit 3
         kill -INT $(daemon); wait $guard; echo ended $?";
    let seen = in_a_namespace(script);
    assert_eq!((seen.out.as_str(), seen.code), ("half and the rest\nended 0\n", 0), "{seen:?}");
}

/// A file that is closed once by its only program is acknowledged by that close.
#[test]
fn a_close_of_one_program_with_many_descendants_publishes() {
    let (scratch, guard) = alone();
    let program = "
import os
go, children = os.pipe(), []
for number in range(100):
    pid = os.fork()
    if pid == 0:
        os.close(go[1])
        if os.fork() == 0: pass
        os.read(go[0], 1)
        os._exit(0)
with open('out', 'w') as file: file.write('text')
assert open('../folder/out').read() == 'text'
";
    python(0, &guard.view, program).ok();
    assert!(soon("the file", || fs::read(scratch.folder().join("out")).ok()) == b"text");
}
