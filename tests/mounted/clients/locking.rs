//! Tests unmodified programs that lock by flock, fcntl or OFD locks and know nothing of latchfs, as
//! their packages install them. Each program is first run while another process holds the lock, and
//! then while the lock is free. While the program holds the lock itself, no other process gets it.
//! If the test has two mounts of the same locks, the other process uses the second mount.

use crate::clients::{Client, all};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use testing::*;

/// The programs under test, each of which locks an open file by its descriptor.
const CLIENTS: [Client; 9] = [
    ("flock of util-linux", flock_of_util_linux),
    ("python filelock, portalocker, fasteners, lockf", python_locks),
    ("ruby and perl", ruby_and_perl),
    ("java", java_file_channel),
    ("go", go_flock),
    ("rust std", rust_std),
    ("rust fd-lock, fs4, fslock", rust_crates),
    ("dpkg", dpkg),
    ("cargo", cargo),
];

#[test]
fn on_one_mount() {
    all(&CLIENTS, Behind::Itself);
}

#[test]
fn on_two_mounts_of_a_server() {
    all(&CLIENTS, Behind::Server);
}

#[test]
fn on_two_nodes_of_a_cluster() {
    all(&CLIENTS, Behind::Cluster);
}

/// A process that holds a lock by flock(1) until [`Self::end`] is called.
struct Holder(Child, String);

impl Holder {
    /// Starts a holder of the lock, on the second mount where there are two.
    fn new(m: &Mount, name: &str) -> Self {
        let mut command = Command::new("flock");
        command.args([name, "sh", "-c", "echo held; read end; true"]);
        let mut child = m
            .within_others(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
            .spawn()
            .expect("flock is there");
        let said = lines(child.stdout.take().expect("piped"));
        assert_eq!(said.recv().expect("it lives"), "held");
        Self(child, name.to_owned())
    }

    fn end(mut self, m: &Mount) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("our child").success());
        // If the mount uses a server, close(2) may return before the server has released the lock,
        // so the test polls.
        eventually("it is free", || (m.phase(&self.1) == "free").then_some(()));
    }
}

/// Runs a program while another process holds the lock, and twice after that. The program prints
/// `busy` if it did not get the lock. If it got the lock, it prints `got` and the exit code of a
/// `flock -n` that it runs while it holds the lock.
fn tried(m: &Mount, mut client: impl FnMut() -> Output) {
    let holder = Holder::new(m, "x");
    assert_eq!(client().ok().trim(), "busy");
    assert_eq!(m.status("x")["phase"], "held", "the holder has it still");
    holder.end(m);
    for _ in 0..2 {
        assert_eq!(client().ok().trim(), "got 1");
    }
    // The Python package filelock does not remove its file, which stays held as a lock that the
    // creation of the file has acquired.
    m.sh("rm -f x").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
}

/// Tests flock(1) with -n, -w, -s, -u, -c, and with a descriptor as manuals show it.
fn flock_of_util_linux(m: &Mount) {
    tried(m, || m.sh("flock -n x -c 'flock -n x true; echo got $?' || echo busy"));
    tried(m, || m.sh("flock -w 0.1 x sh -c 'flock -n x true; echo got $?' || echo busy"));
    tried(m, || m.sh("flock -s -n x sh -c 'flock -n x true; echo got $?' || echo busy"));
    tried(m, || m.sh("(flock -n 9 && { flock -n x true; echo got $?; } || echo busy) 9>x"));
    // `flock -u` releases the lock before the descriptor is closed.
    m.sh("exec 9>x; flock 9; flock -u 9; flock -n x true").ok();
    m.sh("flock -s x flock -s -n x true").ok();
}

/// Tests Python: filelock, portalocker, fasteners and `fcntl.lockf`.
fn python_locks(m: &Mount) {
    let ways = [
        "import filelock\ntry: lock = filelock.FileLock('x', timeout=0).acquire()\n\
         except filelock.Timeout: busy()",
        "import portalocker\ntry: lock = portalocker.Lock('x', fail_when_locked=True, timeout=0)\
         .acquire()\nexcept portalocker.exceptions.LockException: busy()",
        "import fasteners\nlock = fasteners.InterProcessLock('x')\n\
         if not lock.acquire(blocking=False): busy()",
        "lock = open('x', 'w')\ntry: fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
         except BlockingIOError: busy()",
    ];
    for way in ways {
        let program = format!(
            "def busy():\n    print('busy')\n    sys.exit()\n{way}\n\
             print('got', subprocess.call(['flock', '-n', 'x', 'true']))"
        );
        tried(m, || m.py_with_packages(&program));
    }
}

/// Tests Ruby's `File#flock` and Perl's `flock`.
fn ruby_and_perl(m: &Mount) {
    tried(m, || {
        m.sh("ruby -e 'f = File.open(\"x\", File::RDWR | File::CREAT)
              (puts \"busy\"; exit) unless f.flock(File::LOCK_EX | File::LOCK_NB)
              system(\"flock -n x true\"); puts \"got #{$?.exitstatus}\"'")
    });
    tried(m, || {
        m.sh("perl -e 'use Fcntl \":flock\"; open(my $f, \">>\", \"x\") or die;
              flock($f, LOCK_EX | LOCK_NB) or do { print \"busy\"; exit };
              system(\"flock -n x true\"); printf \"got %d\", $? >> 8'")
    });
}

/// Tests Java's `FileChannel.tryLock`.
fn java_file_channel(m: &Mount) {
    let source = "import java.nio.channels.*; import java.nio.file.*;
        public class Try { public static void main(String[] args) throws Exception {
            FileChannel file = FileChannel.open(Path.of(\"x\"),
                StandardOpenOption.WRITE, StandardOpenOption.CREATE);
            FileLock lock = file.tryLock();
            if (lock == null) { System.out.println(\"busy\"); return; }
            Process other = new ProcessBuilder(\"flock\", \"-n\", \"x\", \"true\").start();
            System.out.println(\"got \" + other.waitFor());
            lock.release();
        } }";
    std::fs::write(m.scratch().join("Try.java"), source).expect("ours");
    m.sh("javac -d $T $T/Try.java").ok();
    tried(m, || m.sh("java -Xshare:auto -cp $T Try"));
}

/// Tests the Go package gofrs/flock.
fn go_flock(m: &Mount) {
    let source = "package main
        import (\"fmt\"; \"os/exec\"; \"github.com/gofrs/flock\")
        func main() {
            lock := flock.New(\"x\")
            got, err := lock.TryLock()
            if err != nil { panic(err) }
            if !got { fmt.Println(\"busy\"); return }
            other := exec.Command(\"flock\", \"-n\", \"x\", \"true\")
            other.Run()
            fmt.Println(\"got\", other.ProcessState.ExitCode())
            lock.Unlock()
        }";
    std::fs::write(m.scratch().join("try.go"), source).expect("ours");
    m.sh("cd $T && GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE=$T/cache GOFLAGS= \
          go build -o try try.go")
        .ok();
    tried(m, || m.sh("$T/try"));
}

/// Whether `flock -n` fails on the lock `x`, which this process holds.
fn refused(m: &Mount) -> bool {
    m.sh("flock -n x true").code == 1
}

/// Tests Rust's own `File::try_lock` and `File::lock`, on files opened with `O_TRUNC`.
fn rust_std(m: &Mount) {
    let x = m.dir().join("x");
    let holder = Holder::new(m, "x");
    let file = std::fs::File::create(&x).expect("opening never fails");
    assert!(matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
    assert!(matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)));
    holder.end(m);
    file.lock().expect("it is free");
    assert!(refused(m));
    file.unlock().expect("it is ours");
    file.lock_shared().expect("it is free");
    assert!(refused(m));
    m.sh("flock -s -n x true").ok();
    drop(file);
    // A program that has unlocked or closed its file has not lost its lease.
    for round in 0..50 {
        let mut file = std::fs::File::create(&x).unwrap_or_else(|error| panic!("{round}: {error}"));
        file.lock().expect("it is free");
        file.write_all(b"content").expect("it is ours");
        if round % 2 == 0 {
            file.unlock().expect("it is ours");
            file.set_len(0).unwrap_or_else(|error| panic!("{round}: {error}"));
        }
    }
    m.sh("rm -f x").ok();
}

/// Tests the Rust crates fd-lock, fs4 and fslock.
fn rust_crates(m: &Mount) {
    let x = m.dir().join("x");
    let open = || std::fs::File::create(&x).expect("opening never fails");
    let holder = Holder::new(m, "x");
    let mut fd_lock = fd_lock::RwLock::new(open());
    assert!(fd_lock.try_write().is_err());
    let fs4 = open();
    assert!(!fs4::fs_std::FileExt::try_lock_exclusive(&fs4).expect("an answer"));
    let mut fslock = fslock::LockFile::open(&x).expect("opening never fails");
    assert!(!fslock.try_lock().expect("an answer"));
    holder.end(m);
    let guard = fd_lock.try_write().expect("it is free");
    assert!(refused(m));
    drop(guard);
    assert!(fs4::fs_std::FileExt::try_lock_exclusive(&fs4).expect("an answer"));
    assert!(refused(m));
    fs4::fs_std::FileExt::unlock(&fs4).expect("it is ours");
    assert!(fslock.try_lock_with_pid().expect("an answer"));
    assert!(refused(m));
    let unlocked = fslock.unlock();
    let why = || m.sh("cat .latchfs/why").out;
    assert!(unlocked.is_ok(), "it is ours: {unlocked:?}, {}", why());
    m.sh("flock -n x true").ok();
    drop((fd_lock, fs4, fslock));
    m.sh("rm -f x").ok();
}

/// Tests dpkg, whose lock files are symbolic links to the mount: its message names the pid of the
/// holder.
fn dpkg(m: &Mount) {
    m.sh("mkdir -p $T/dpkg/updates $T/dpkg/info && : > $T/dpkg/status &&
          ln -s $D/frontend $T/dpkg/lock-frontend && ln -s $D/lock $T/dpkg/lock")
        .ok();
    let dpkg = "dpkg --admindir=$T/dpkg --configure -a";
    m.sh(dpkg).ok();
    for name in ["frontend", "lock"] {
        m.py(&format!(
            "
             lock = open({name:?}, 'w')
             fcntl.lockf(lock, fcntl.LOCK_EX)
             dpkg = subprocess.run({dpkg:?}, shell=True, stderr=subprocess.PIPE, text=True)
             assert dpkg.returncode != 0 and str(os.getpid()) in dpkg.stderr, dpkg"
        ))
        .ok();
    }
    m.sh(dpkg).ok();
    m.sh("rm -f frontend lock").ok();
}

/// Tests cargo, with a symbolic link from the lock of its target directory to the mount: the second
/// of two builds waits for the first.
fn cargo(m: &Mount) {
    m.sh("cd $T && mkdir -p p/src target/debug && echo 'fn main() {}' > p/src/main.rs &&
          printf '[package]\\nname = \"p\"\\nedition = \"2024\"\\n' > p/Cargo.toml &&
          ln -s $D/cargo target/debug/.cargo-lock")
        .ok();
    let build = "cd $T/p && unset CARGO_BUILD_TARGET && CARGO_TARGET_DIR=$T/target \
                 cargo build --offline 2>&1";
    let holder = Holder::new(m, "cargo");
    let mut command = Command::new("sh");
    let mut cargo = m
        .within(command.args(["-c", build]).stdout(Stdio::piped()))
        .spawn()
        .expect("there is a shell");
    let said = lines(cargo.stdout.take().expect("piped"));
    let first = said.recv().expect("it says that it waits");
    assert!(first.contains("Blocking"), "{first}");
    eventually("it is in line", || {
        (m.status("cargo")["waiters"].as_array().map(Vec::len) == Some(1)).then_some(())
    });
    holder.end(m);
    assert!(cargo.wait().expect("our child").success());
    assert!(said.iter().any(|line| line.contains("Finished")));
    eventually("it is free", || (m.phase("cargo") == "free").then_some(()));
    m.sh("rm -f cargo").ok();
}
