//! Random faults under mounts: programs make directories and lock files with flock(2), while faults
//! hit the nodes and the mounts.

use crate::chaos::seed;
use crate::load::{Dice, now};
use crate::storm::{Belief, Crowd, Diary, Ear, MARGIN, Observation, TTL, judge, strike};
use latchfs::mutex::Unexpected;
use std::fs::{self, File, FileTimes, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};
use testing::net::Mount;
use testing::nodes::Cluster;
use testing::{eventually_in_cluster, rounds};

const MOUNTS: usize = 3;
/// The number of lock directories. On each mount, one program uses each directory: two programs of
/// one client could remove each other's directories.
const DIRS: usize = 3;
/// The number of lock files, for which all programs that lock files compete.
const FILES: u64 = 3;
/// The number of programs on each mount that lock files.
const LOCKERS: usize = 3;
/// The number of faults after which a short run ends.
const STRIKES: usize = 9;
/// The number of faults after which a long run ends.
const STRIKES_LONG: usize = 16;
/// The maximum number of faults on a loaded machine, where there are fewer answers between two
/// faults.
const STRIKES_MAX: usize = 48;
/// An operation that takes longer than this is taken to hang.
const LIMIT: Duration = Duration::from_secs(20);
/// The minimum number of answers in a run; a run with fewer proves nothing.
const ANSWERS_MIN: u64 = 1_500;

/// Whether a system call on a mount may fail with `error` while nodes fail. The test counts any
/// other error as a violation of the guarantees.
fn is_known(error: &io::Error) -> bool {
    let known = [libc::ETIMEDOUT, libc::ESTALE, libc::EEXIST, libc::EBUSY, libc::ENOENT];
    known.contains(&error.raw_os_error().unwrap_or(0))
}

fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETIMEDOUT)
}

/// Whether `rmdir` was refused because another client holds the lock.
fn is_of_another(answer: &io::Result<()>) -> bool {
    answer.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
}

/// A program that makes directories or locks files on one mount.
struct Program {
    diary: Diary,
    dir: PathBuf,
}

impl Program {
    /// Returns the result of a call, and records an unexpected error as a violation.
    fn checked<T>(&mut self, what: &str, came: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &came
            && !is_known(error)
        {
            self.diary.fault(&format!("{what} came to {error}"));
        }
        came
    }

    /// Returns the token of a lock if its status file says that it is held.
    fn read_token(&mut self, lock: u64, name: &str) -> Option<u64> {
        let asked = now();
        let read = fs::read(self.dir.join(".latchfs/status").join(name));
        let text = self.checked("a read", read).ok()?;
        let answered = now();
        let status: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let token = status["token"].as_u64().filter(|_| status["phase"] == "held");
        self.diary.observations.push(Observation { lock, asked, answered, token });
        token
    }

    /// Makes a lock directory that this program does not hold; or checks, renews or removes one
    /// that it holds.
    fn make(&mut self, lock: u64, dice: &mut Dice) -> io::Result<()> {
        let (name, client) = (format!("dir{lock}"), self.diary.number);
        let path = self.dir.join(&name);
        let asked = now();
        let until = asked + TTL - MARGIN;
        let Some(belief) = self.diary.holds(lock) else {
            let made = fs::create_dir(&path);
            self.checked("mkdir", made)?;
            let from = now();
            let Some(token) = self.read_token(lock, &name).filter(|_| now() < until) else {
                return Ok(());
            };
            self.diary.current.insert(lock, self.diary.beliefs.len());
            let given_back = None;
            self.diary.beliefs.push(Belief { lock, client, token, from, until, given_back });
            return Ok(());
        };
        let at = self.diary.current[&lock];
        let choice = dice.next() % 4;
        let is_removal = choice > 1;
        let done = match choice {
            0 => {
                self.read_token(lock, &name);
                Ok(())
            }
            1 => touch(File::open(&path)).inspect(|()| self.diary.beliefs[at].until = until),
            _ => {
                self.diary.current.remove(&lock);
                self.diary.beliefs[at].until = asked.min(belief.until);
                let removed = fs::remove_dir(&path);
                if removed.is_ok() {
                    self.diary.beliefs[at].given_back = Some(now());
                }
                removed
            }
        };
        let answered = now();
        if let Err(error) = &done
            && !is_unknown(error)
            && answered < belief.until
        {
            self.diary.fault(&format!("{belief:?} was lost: {error}"));
        }
        // The lease may be over, and another client may have the lock by now.
        if is_removal && answered >= belief.until && is_of_another(&done) {
            return done;
        }
        self.checked("a directory", done)
    }

    /// Locks a file and checks repeatedly that it is still locked. Records the interval in which
    /// the file was certainly locked, as the client's belief that it held the lock.
    fn lock(&mut self, lock: u64, dice: &mut Dice) -> io::Result<()> {
        let (name, client) = (format!("file{lock}"), self.diary.number);
        let path = self.dir.join(&name);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = self.checked("open", opened)?;
        let locked = if dice.next().is_multiple_of(4) {
            file.lock()
        } else {
            match file.try_lock() {
                Ok(()) => Ok(()),
                Err(TryLockError::WouldBlock) => return Ok(()),
                Err(TryLockError::Error(error)) => Err(error),
            }
        };
        self.checked("flock", locked)?;
        let from = now();
        let token = self.read_token(lock, &name);
        let mut until = from;
        for _ in 0..dice.next() % 12 {
            self.read_token(lock, &name);
            let asked = now();
            let sure = touch(file.try_clone());
            self.checked("a write", sure)?;
            until = asked;
        }
        // The token was read from the lock's status, which shows the holder of that moment. If a
        // renewal through the open file succeeded afterwards, this program was still the holder, so
        // the token was that of its own lease.
        if let Some(token) = token.filter(|_| until > from) {
            let given_back = None;
            self.diary.beliefs.push(Belief { lock, client, token, from, until, given_back });
        }
        Ok(())
    }
}

fn touch(file: io::Result<File>) -> io::Result<()> {
    // Setting the file's times renews the lease, whatever the times are.
    file?.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH))
}

/// Runs the program `diary.number` until there are enough answers: on each mount, the programs with
/// the lowest numbers make directories, the others lock files.
fn program(diary: Diary, dirs: &[PathBuf], mut dice: Dice, ear: &Ear) -> Diary {
    let (number, mount) = (diary.number / MOUNTS, diary.number % MOUNTS);
    let mut program = Program { diary, dir: dirs[mount].clone() };
    while !ear.has_enough() {
        let done = if number < DIRS {
            program.make(number as u64, &mut dice)
        } else {
            program.lock(DIRS as u64 + dice.next() % FILES, &mut dice)
        };
        if done.is_ok() {
            ear.report_answer();
        }
    }
    program.diary
}

/// Injects a fault at a mount: isolates its machine, or stops its daemon, for a while.
fn strike_mount(mount: &Mount, crowd: &mut Crowd, dice: &mut Dice) {
    let lasts = 200 + dice.next() % 4_000;
    if dice.next().is_multiple_of(2) {
        mount.machine.isolate(true);
        crowd.pass(lasts);
        mount.machine.isolate(false);
    } else {
        mount.daemon.signal(libc::SIGSTOP);
        crowd.pass(lasts);
        mount.daemon.signal(libc::SIGCONT);
    }
    crowd.pass(500);
}

#[test]
fn mounts_in_a_storm() {
    let seed = seed();
    let (mut cluster, mut dice) = (Cluster::of(3), Dice(seed));
    let servers = cluster.urls().join(",");
    let mount = |_| cluster.net.machine().mount(&servers, "--ttl 2s --grace 0s");
    let mounts: Vec<_> = (0..MOUNTS).map(mount).collect();
    let dirs: Vec<_> = mounts.iter().map(|mount| mount.dir().to_owned()).collect();
    let mut crowd = Crowd::begin(MOUNTS * (DIRS + LOCKERS), seed, move |diary, dice, ear| {
        program(diary, &dirs, dice, ear)
    });
    let mut round = 0;
    let strikes = rounds(STRIKES, STRIKES_LONG);
    while round < strikes || (crowd.count < ANSWERS_MIN && round < STRIKES_MAX) {
        round += 1;
        if round.is_multiple_of(3) {
            strike_mount(&mounts[dice.next() as usize % MOUNTS], &mut crowd, &mut dice);
        } else {
            strike(&mut cluster, &mut crowd, &mut dice);
        }
    }
    cluster.voters(3);
    for mount in &mounts {
        mount.is("connected");
    }
    crowd.pass(2_000);
    let answers = crowd.count;
    let diaries = crowd.end();
    drop(mounts);
    cluster.agree();
    judge(&format!("{MOUNTS} mounts, {round} strikes"), &diaries, answers, ANSWERS_MIN);
}

fn mutex(dir: &Path) -> latchfs::Mutex {
    latchfs::Mutex::open(dir, "build").expect("it is mounted")
}

/// `latchfs::Mutex` on mounts of a cluster: a held mutex survives a failover, a waiter on another
/// machine is served by another node, and an isolated holder is notified of its loss before the
/// waiter is served.
#[test]
fn a_mutex_is_the_clusters() {
    let mut cluster = Cluster::of(3);
    let servers = cluster.urls().join(",");
    let mounts = [(); 2].map(|()| cluster.net.machine().mount(&servers, "--ttl 6s"));
    let (own, other) = (mutex(mounts[0].dir()), mutex(mounts[1].dir()));
    let (send, losses) = channel();
    own.on_unexpected(move |what| {
        if let Unexpected::Lost { token } = what {
            let _ = send.send((token, now()));
        }
    });
    let guard = own.lock().expect("it is free");
    let leader = cluster.leader();
    cluster.nodes[leader].daemon.kill();
    eventually_in_cluster("another leads", || {
        (cluster.curl((leader + 1) % 3, "GET", "/locks/build").0 == 200).then_some(())
    });
    assert!(guard.is_held(), "a failover takes nothing");
    let had = eventually_in_cluster("an answer", || other.try_lock().ok());
    assert!(had.is_none(), "it is held");
    cluster.nodes[leader].daemon.restart();
    cluster.voters(3);
    let first = guard.token();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let guard = other.lock().expect("its turn comes");
            (guard.token(), now())
        });
        eventually_in_cluster("it waits", || {
            let status = cluster.curl(0, "GET", "/locks/build").1;
            (status["waiters"].as_array()?.len() == 1).then_some(())
        });
        mounts[0].machine.isolate(true);
        let (token, had) = waiting.join().expect("it is well");
        assert!(token > first);
        let (lost, at) = losses.recv_timeout(LIMIT).expect("a loss");
        assert_eq!(lost, first);
        assert!(at < had, "reported at {at}, and the other had it at {had}");
        assert!(!guard.is_held());
        mounts[0].machine.isolate(false);
    });
    drop(guard);
    mounts[0].is("connected");
    let reacquired = own.lock().expect("it is free again");
    assert!(reacquired.token() > first);
}
