//! Compares flock, fcntl and OFD locks on a mount with those on tmpfs, call by call: by random
//! programs of several processes, and by programs that state the assertions of LTP (fcntl11, 17 and
//! 19 to 21, flock01 to 06) and of the lock tests of connectathon. `compare_locks.c` runs the
//! programs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testing::*;

/// Kinds of steps that no random program has: a file that was made by `O_EXCL`, or has text, has a
/// lease of its own, which locks of other open files respect.
const NEVER: &str = "excl,write";

/// Programs of locks of byte ranges by one process; another process then asks for each byte which
/// lock is in its way. Each is the name of an LTP test and lines of kind, type, start and length.
const RANGES: [(&str, &[&str]); 32] = [
    ("fcntl11", &["read 10 5", "write 5 5"]),
    ("fcntl11", &["write 10 5", "read 5 5"]),
    ("fcntl11", &["read 10 5", "write 15 5"]),
    ("fcntl11", &["write 10 5", "read 15 5"]),
    ("fcntl11", &["read 10 5", "write 8 5"]),
    ("fcntl11", &["write 10 5", "read 8 5"]),
    ("fcntl11", &["read 10 5", "write 13 5"]),
    ("fcntl11", &["write 10 5", "read 13 5"]),
    ("fcntl11", &["read 10 5", "write 11 2"]),
    ("fcntl11", &["write 10 5", "read 11 2"]),
    ("fcntl11", &["read 10 5", "write 5 15"]),
    ("fcntl11", &["write 10 5", "read 5 15"]),
    ("fcntl19", &["read 10 5", "unlock 5 5"]),
    ("fcntl19", &["write 10 5", "unlock 8 5"]),
    ("fcntl19", &["read 10 5", "unlock 10 2"]),
    ("fcntl19", &["write 10 5", "unlock 13 5"]),
    ("fcntl19", &["write 10 5", "unlock 13 2"]),
    ("fcntl19", &["read 10 5", "unlock 15 5"]),
    ("fcntl19", &["write 10 5", "unlock 11 2", "unlock 14 1"]),
    ("fcntl19", &["write 10 5", "unlock 5 15"]),
    ("fcntl20", &["read 10 5", "read 5 5"]),
    ("fcntl20", &["read 10 5", "read 8 5"]),
    ("fcntl20", &["read 10 5", "read 11 2"]),
    ("fcntl20", &["read 10 5", "read 5 15"]),
    ("fcntl20", &["read 10 5", "read 13 5", "read 15 5"]),
    ("fcntl20", &["read 10 0", "read 5 5", "unlock 20 0"]),
    ("fcntl21", &["write 10 5", "write 5 5"]),
    ("fcntl21", &["write 10 5", "write 8 5"]),
    ("fcntl21", &["write 10 5", "write 11 2"]),
    ("fcntl21", &["write 10 5", "write 5 15"]),
    ("fcntl21", &["write 10 5", "write 13 5", "write 15 5"]),
    ("fcntl21", &["write 10 0", "write 5 5", "unlock 20 0"]),
];

/// Whole programs, by the tests whose assertions they are.
const PROGRAMS: [(&str, &str); 35] = [
    (
        "an open file that made a lock by O_EXCL may lock it by fcntl",
        "0 open 0 b rw-excl\n0 posix 0 write 0 5\n0 posix 0 unlock 2 1\n0 posix 0 write 0 0",
    ),
    ("and by an OFD lock", "0 open 0 b rw-excl\n0 ofd 0 write 0 5\n0 ofd 0 write 0 0"),
    ("and by a shared one", "0 open 0 b rw-excl\n0 posix 0 read 3 5\n0 posix 0 write 3 0"),
    (
        "and by flock, after a child has tried in vain",
        "0 open 0 a rw-excl\n0 flock 0 write\n0 fork 1\n1 open 1 a rw\n1 flock 1 read",
    ),
    (
        "an open file that wrote a text may lock it by flock",
        "0 open 0 a rw\n0 write 0\n0 flock 0 write\n0 write 0\n0 flock 0 read\n\
         0 flock 0 unlock\n0 flock 0 write",
    ),
    (
        "and by fcntl, in each mode",
        "0 open 0 b rw\n0 write 0\n0 posix 0 read 0 0\n0 posix 0 write 3 5\n0 write 0\n\
         0 posix 0 unlock 0 0\n0 posix 0 write 0 0 wait",
    ),
    ("and by an OFD lock of a range", "0 open 0 b rw\n0 write 0\n0 ofd 0 write 1 2\n0 write 0"),
    (
        "after an interrupted wait a lock that does not conflict is granted",
        "0 open 0 a rw\n0 flock 0 read\n0 fork 1\n1 open 1 a rw\n1 flock 1 write wait\n\
         1 signal\n1 open 2 a w\n1 flock 2 read",
    ),
    (
        "and after the death of a process that waited",
        "0 open 0 a rw\n0 open 1 a rw\n0 flock 0 read\n0 fork 1\n1 flock 1 write wait\n\
         1 kill\n0 open 2 a rw\n0 flock 2 read",
    ),
    (
        "F_GETLK tells no lock of a process that a signal has interrupted",
        "0 open 0 c rw\n0 posix 0 write 0 0\n0 open 3 c rw\n0 ofd 3 write 0 0 wait\n0 signal\n\
         0 fork 3\n0 posix 0 unlock 0 0\n3 ofd-getlk 0 write 10 2",
    ),
    (
        "F_OFD_GETLK with F_UNLCK tells the locks of the open file itself",
        "0 open 0 b rw\n0 open 1 b rw\n0 ofd-getlk 0 unlock 0 0\n0 ofd 0 write 3 4\n\
         0 ofd-getlk 0 unlock 0 0\n0 ofd-getlk 0 unlock 5 1\n0 ofd-getlk 0 unlock 0 3\n\
         0 ofd-getlk 1 unlock 0 0",
    ),
    (
        "F_GETLK for a read lock tells no other read lock, while a process waits",
        "0 open 0 b rw\n0 ofd 0 read 0 0\n0 open 1 b rw\n0 fork 1\n\
         1 posix 1 write 1 0 wait\n0 getlk 1 read 0 2",
    ),
    (
        "F_GETLK tells a lock of one byte as that",
        "0 open 1 b rw\n0 open 0 b rw\n0 fork 1\n0 posix 0 read 0 0\n1 ofd 1 read 0 1\n\
         0 getlk 1 write 1 0\n0 getlk 1 write 0 0",
    ),
    (
        "OFD locks that wait for each other are no deadlock",
        "0 open 0 b rw\n0 open 1 c rw\n0 fork 1\n1 open 2 b rw\n1 open 3 c rw\n\
         0 ofd 0 write 0 0\n1 ofd 3 write 0 0\n0 ofd 1 write 0 0 wait\n1 ofd 2 write 0 0 wait\n\
         0 kill",
    ),
    (
        "unlocking a part of a lock of the whole file wakes a process that waits for that part",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 0\n1 posix 0 read 3 0 wait\n\
         0 posix 0 unlock 3 0",
    ),
    (
        "so does locking that part again in shared mode",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 0\n1 posix 0 read 3 0 wait\n\
         0 posix 0 read 3 0",
    ),
    (
        "fcntl17: a wait that closes a circle of three processes is refused",
        "0 open 0 b rw\n0 fork 1\n0 fork 2\n0 fork 3\n1 posix 0 write 2 5\n2 posix 0 write 9 5\n\
         3 posix 0 write 17 5\n1 posix 0 write 9 5 wait\n2 posix 0 write 17 5 wait\n\
         3 posix 0 write 2 5 wait\n3 exit\n2 exit\n1 exit\n0 posix 0 write 0 0",
    ),
    (
        "flock01: LOCK_SH, LOCK_UN, LOCK_EX",
        "0 open 0 a rw\n0 flock 0 read\n0 flock 0 unlock\n\
      0 flock 0 write",
    ),
    (
        "flock03: a child that inherited the open file unlocks it for its parent",
        "0 open 0 a rw\n0 flock 0 write\n0 fork 1\n1 flock 0 unlock\n1 open 1 a rw\n\
         1 flock 1 write\n0 flock 0 write",
    ),
    (
        "flock04: shared with shared, and nothing else",
        "0 open 0 a rw\n0 flock 0 read\n0 fork 1\n1 open 1 a rw\n1 flock 1 read\n1 flock 1 write\n\
         0 flock 0 write\n1 flock 1 read",
    ),
    (
        "flock04: an upgrade that is refused loses the lock",
        "0 open 0 a rw\n0 open 1 a rw\n0 open 2 a rw\n0 flock 0 read\n0 flock 1 read\n\
         0 flock 0 write\n0 flock 1 write\n0 flock 2 read",
    ),
    (
        "flock06: two open files of one process",
        "0 open 0 a rw\n0 open 1 a rw\n0 flock 0 write\n0 flock 1 write\n0 flock 1 read\n\
         0 flock 0 unlock\n0 flock 1 write\n0 flock 0 write",
    ),
    (
        "tlock 1: an unlocked file",
        "0 open 0 b rw\n0 fork 1\n1 getlk 0 write 0 1\n\
      1 getlk 0 write 0 0\n1 getlk 0 write 1 0\n1 getlk 0 write 1 1",
    ),
    (
        "tlock 2: the whole file",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 0\n1 posix 0 write 0 1\n\
      1 getlk 0 write 0 1\n1 getlk 0 write 0 0\n1 getlk 0 write 1 0\n1 getlk 0 write 1 1\n\
      0 posix 0 unlock 0 0\n1 posix 0 write 0 0",
    ),
    (
        "tlock 3: the first byte",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 1\n1 getlk 0 write 0 1\n\
      1 getlk 0 write 0 0\n1 getlk 0 write 1 1\n1 getlk 0 write 1 0\n1 posix 0 write 1 0",
    ),
    (
        "tlock 4: the second byte",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 1 1\n\
      1 getlk 0 write 0 1\n1 getlk 0 write 0 2\n1 getlk 0 write 0 0\n1 getlk 0 write 1 1\n\
      1 getlk 0 write 1 0\n1 getlk 0 write 2 0",
    ),
    (
        "tlock 5: two ranges",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 1\n0 posix 0 write 2 1\n\
      1 getlk 0 write 0 1\n1 getlk 0 write 1 1\n1 getlk 0 write 2 1\n1 getlk 0 write 3 0\n\
      1 posix 0 write 1 1\n1 posix 0 write 0 0",
    ),
    (
        "tlock 6: the last byte of all",
        "0 open 0 b rw\n0 fork 1\n\
      0 posix 0 write 9223372036854775806 1\n1 getlk 0 write 9223372036854775806 1\n\
      1 getlk 0 write 9223372036854775807 0\n1 getlk 0 write 0 9223372036854775806\n\
      1 getlk 0 write 0 0\n0 posix 0 write 4294967295 2\n1 getlk 0 write 4294967296 1\n\
      1 getlk 0 write 4294967297 1",
    ),
    (
        "tlock 7: turn by turn",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 0\n\
      1 posix 0 write 0 0 wait\n0 posix 0 unlock 0 0\n0 posix 0 write 0 0 wait\n\
      1 posix 0 unlock 0 0\n1 posix 0 write 0 0",
    ),
    (
        "tlock 10: a range is split",
        "0 open 0 b rw\n0 fork 1\n0 posix 0 write 0 3\n\
      0 posix 0 unlock 1 1\n1 getlk 0 write 0 1\n1 getlk 0 write 2 1\n1 getlk 0 write 3 0\n\
      1 posix 0 write 1 1\n0 posix 0 write 1 1\n1 posix 0 unlock 1 1\n0 posix 0 write 1 1",
    ),
    (
        "tlock 11: closing a duplicate releases",
        "0 open 0 b rw\n0 fork 1\n0 dup 0 1\n\
      0 posix 0 write 0 0\n1 posix 0 write 0 0\n0 close 1\n1 posix 0 write 0 0",
    ),
    (
        "tlock 11: closing another open file releases",
        "0 open 0 b rw\n0 fork 1\n0 open 1 b r\n\
      0 posix 0 write 3 29\n1 posix 0 write 3 29 wait\n0 close 1\n0 posix 0 write 0 0",
    ),
    (
        "tlock 12: death by a signal releases",
        "0 open 0 b rw\n0 fork 1\n1 posix 0 write 0 0\n\
      0 posix 0 write 0 0 wait\n1 kill\n0 posix 0 unlock 0 0",
    ),
    (
        "a process that is killed while it waits gets nothing",
        "0 open 0 b rw\n0 fork 1\n\
      0 posix 0 write 0 0\n1 posix 0 write 0 0 wait\n1 kill\n0 posix 0 unlock 0 0\n0 fork 2\n\
      2 posix 0 write 0 0",
    ),
    (
        "locks of an open file survive exec and go with it, those of a process stay",
        "0 open 0 b rw\n0 open 1 c rw\n0 ofd 0 write 0 5\n0 posix 1 write 0 5\n0 fork 1\n1 fork 2\n\
      1 exec\n2 posix 0 write 0 5\n2 posix 1 write 0 5\n0 exec\n2 posix 1 write 0 5\n0 cloexec 0\n\
      0 cloexec 1\n0 exec\n2 posix 1 write 0 5\n2 posix 0 write 0 5\n1 close 0\n2 close 0\n\
      0 open 3 b rw\n0 posix 3 write 0 5",
    ),
];

/// The program that compares, and its two directories.
struct Comparison {
    mount: Mount,
    tmpfs: PathBuf,
}

impl Comparison {
    /// Compiles the program, and mounts.
    fn new(name: &str) -> Self {
        let mount = mount();
        let tmpfs = Path::new("/dev/shm").join(format!("latchfs-{}-{name}", std::process::id()));
        fs::create_dir(&tmpfs).expect("memory for files");
        let source = mount.scratch().join("compare.c");
        fs::write(&source, include_str!("compare_locks.c")).expect("ours");
        mount.sh("cc -O1 -Wall -Wextra -Werror -o $T/compare $T/compare.c").ok();
        Self { mount, tmpfs }
    }

    /// Compares; the exit code is 0 without a difference, and 1 with one.
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.mount.scratch().join("compare"));
        let command = command.arg(&self.tmpfs).arg(self.mount.dir()).args(args);
        run_within(std::time::Duration::from_secs(3_000), self.mount.within(command))
    }

    fn program(&self, program: &str) -> Output {
        let path = self.mount.scratch().join("program");
        fs::write(&path, program).expect("ours");
        self.run(&["program", &path.display().to_string()])
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.tmpfs);
    }
}

/// Random programs have the same results on the mount as on tmpfs. `LATCHFS_LOCK_PROGRAMS` is their
/// number; a difference prints its program and seed, and `LATCHFS_LOCK_SEED` repeats it.
#[test]
fn random_programs_of_locks_agree_with_tmpfs() {
    let comparison = Comparison::new("random");
    let setting = |name| std::env::var(name).ok();
    let count = setting("LATCHFS_LOCK_PROGRAMS").unwrap_or_else(|| "300".to_owned());
    let seed = setting("LATCHFS_LOCK_SEED")
        .unwrap_or_else(|| (latchfs::time::boot_now().as_nanos() % 1_000_000_007).to_string());
    println!("{count} programs from seed {seed}");
    let output = comparison.run(&["seeds", &seed, &count, NEVER]);
    assert_eq!(output.code, 0, "{}{}", output.out, output.err);
}

#[test]
fn programs_of_ltp_and_connectathon_agree_with_tmpfs() {
    let comparison = Comparison::new("suites");
    let mut failed = String::new();
    let mut check = |name: &str, program: &str| {
        let seen = comparison.program(program);
        if seen.code != 0 {
            writeln!(failed, "{name}:\n{}{}", seen.out, seen.err).expect("memory suffices");
        }
    };
    for (name, steps) in RANGES {
        for kind in ["posix", "ofd"] {
            let mut program = "0 open 0 b rw\n0 fork 1\n1 open 1 b rw\n".to_owned();
            for step in steps {
                writeln!(program, "0 {kind} 0 {step}").expect("memory suffices");
            }
            for byte in 4..22 {
                writeln!(program, "1 getlk 1 write {byte} 1").expect("memory suffices");
                writeln!(program, "1 getlk 1 read {byte} 1").expect("memory suffices");
            }
            writeln!(program, "1 getlk 1 write 0 0\n1 getlk 1 read 0 0").expect("memory suffices");
            check(&format!("{name} {steps:?} {kind}"), &program);
        }
    }
    for (name, program) in PROGRAMS {
        check(name, program);
    }
    assert!(failed.is_empty(), "{failed}");
}
