//! Files that several programs write through one inherited descriptor, and programs that execute
//! others while they have files open.
use crate::recorder::{Recorder, version};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testing::{Guard, Scratch, rounds, run_within, soon};

/// Scripts that write `one` to the file `out`, wait for the FIFO `GATE`, and write `two`.
const SCRIPTS: [(&str, &[&str]); 10] = [
    ("a subshell", &["SHELL", "-ec", "(echo one; read x <GATE; echo two) >out"]),
    ("a group", &["SHELL", "-ec", "{ echo one; cat GATE; } >out"]),
    ("commands only", &["SHELL", "-ec", "{ /bin/echo one; cat GATE; } >out"]),
    ("the shell itself", &["SHELL", "-ec", "exec >out; echo one; read x <GATE; echo two"]),
    ("a pipeline", &["SHELL", "-ec", "{ echo one; cat GATE; } | tee out >/dev/null"]),
    (
        "a loop",
        &[
            "SHELL",
            "-ec",
            "for i in one $(:) GATE; do case $i in one) echo one;; *) cat $i;; \
                  esac; done >out",
        ],
    ),
    ("make", &["SHELL", "-ec", "make -s -f ../makefile >out"]),
    (
        "a child of python",
        &[
            "python3",
            "-c",
            "
import subprocess
with open('out', 'w') as f:
    subprocess.check_call(['/bin/echo', 'one'], stdout=f)
    subprocess.check_call(['cat', 'GATE'], stdout=f)",
        ],
    ),
    (
        "a child that outlives python's copy",
        &[
            "python3",
            "-c",
            "
import subprocess
with open('out', 'w') as f:
    child = subprocess.Popen(['SHELL', '-ec', 'echo one; cat GATE'], stdout=f)
child.wait()",
        ],
    ),
    (
        "xargs",
        &[
            "SHELL",
            "-ec",
            "printf '%s\\n' 'echo one' 'cat GATE' | xargs -d '\\n' -n 1 SHELL -c >out",
        ],
    ),
];

/// Makes a FIFO.
fn fifo(path: PathBuf) -> PathBuf {
    let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo is there");
    assert!(made.success());
    path
}

#[test]
fn a_file_of_several_programs_appears_whole() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let gate = fifo(scratch.join("gate"));
    let gate = gate.to_str().expect("text");
    let makefile = format!("all: first second\nfirst: ; @echo one\nsecond: first ; @cat {gate}\n");
    fs::write(scratch.join("makefile"), makefile).expect("written");
    let real = scratch.folder().join("out");
    let recorder = Recorder::start(&scratch.folder());
    for _ in 0..rounds(1, 10) {
        for (name, script) in SCRIPTS {
            for shell in ["bash", "dash"] {
                let _ = fs::remove_file(guard.path("out"));
                let said = format!("{name} in {shell}");
                let mut words =
                    script.iter().map(|word| word.replace("GATE", gate).replace("SHELL", shell));
                let mut child = Command::new(words.next().expect("a program"))
                    .args(words)
                    .current_dir(&guard.view)
                    .spawn()
                    .expect("it is there");
                // The open returns when the program waits for the gate: it has written `one`.
                let mut open = OpenOptions::new().write(true).open(gate).expect("opened by both");
                soon(&said, || {
                    let text = fs::read_to_string(guard.path("out")).unwrap_or_default();
                    (text == "one\n").then_some(())
                });
                assert!(!real.exists(), "{said}: a program would go on writing");
                open.write_all(b"two\n").expect("written");
                drop(open);
                assert!(child.wait().expect("it ends").success(), "{said}");
                // The kernel reports the last close only after the program has ended.
                let text = soon(&said, || fs::read_to_string(&real).ok());
                assert_eq!(text, "one\ntwo\n", "{said}");
            }
        }
    }
    recorder.next_round();
    let (seen, _) = recorder.end();
    assert_eq!(seen[Path::new("out")], [version(b"one\ntwo\n")].into(), "whole versions only");
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// A program that executes another one closes its files while the kernel keeps most of `/proc/PID`
/// locked. A guard that looked there would hang, and with it each `ps`.
#[test]
fn a_program_that_executes_another_one_never_hangs() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &[]);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let watching = std::thread::spawn(move || {
        let mut count = 0;
        while !over.load(Ordering::Acquire) {
            let mut ps = Command::new("ps");
            ps.args(["-e", "-o", "pid,stat,wchan,args"]);
            assert!(ps.stdout(Stdio::null()).status().expect("ps is there").success());
            count += 1;
        }
        count
    });
    let count = rounds(300, 10_000);
    // Half of the files have a second writer, so that the guard looks at the descriptors of both.
    let program = format!(
        "
import os
for number in range({count}):
    name = 'file%d' % (number % 50)
    pid = os.fork()
    if pid == 0:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        if number % 2:
            other = os.fork()
            if other == 0:
                os.write(fd, b'first ')
                os._exit(0)
            os.waitpid(other, 0)
        os.write(fd, b'%d' % number)
        os.execv('/bin/true', ['true'])
    assert os.waitpid(pid, 0)[1] == 0
    text = open('../folder/' + name).read()
    assert text == ('first ' if number % 2 else '') + str(number), (number, text)
"
    );
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &program]).current_dir(&guard.view);
    run_within(Duration::from_secs(if count > 300 { 1_800 } else { 30 }), &mut command).ok();
    is_over.store(true, Ordering::Release);
    let seen = watching.join().expect("no panic");
    assert!(seen > 0);
    println!("{count} programs were executed beside {seen} runs of ps");
}

/// The recorder of these tests sees a file in parts, if the guard shows it in parts.
#[test]
fn a_file_that_is_changed_in_place_is_seen_in_parts() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--in-place", "*"]);
    let recorder = Recorder::start(&scratch.folder());
    let mut file = File::create(guard.path("out")).expect("made");
    for part in ["one\n", "two\n"] {
        file.write_all(part.as_bytes()).expect("written");
        recorder.next_round();
    }
    drop(file);
    let (seen, _) = recorder.end();
    let seen = &seen[Path::new("out")];
    assert!(seen.contains(&version(b"one\n")) && seen.contains(&version(b"one\ntwo\n")));
}
