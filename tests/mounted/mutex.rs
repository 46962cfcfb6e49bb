//! `latchfs::Mutex`: a lock of a mount used as a mutex by Rust programs.

use latchfs::Mutex;
use latchfs::mutex::{MutexMode, Notice, Unexpected};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use testing::*;

/// Timeout of every step of these tests, which only a hang exceeds.
const LIMIT: Duration = Duration::from_secs(20);

fn open(m: &Mount, name: &str) -> Mutex {
    Mutex::open(m.dir(), name).expect("it is mounted")
}

#[track_caller]
fn next<T>(notices: &Receiver<T>) -> T {
    notices.recv_timeout(LIMIT).expect("a notice")
}

/// The example in the documentation of `latchfs::mutex` works.
#[test]
fn the_example_works() {
    fn example(dir: &std::path::Path) -> std::io::Result<u64> {
        let build = Mutex::open(dir, "build")?;
        build.on_unexpected(|what| match what {
            Unexpected::Lost { token } => eprintln!("the lock of token {token} is lost; stopping"),
            Unexpected::Granted { token } => eprintln!("this process held it already, by {token}"),
        });
        let mut seen = 0;
        if let Some(guard) = build.lock_timeout(Duration::from_secs(10))? {
            // Pass the token to the resource that the lock protects, and let the resource refuse
            // lower tokens.
            println!("mine, with token {}", guard.token());
            let repeated = build.lock()?; // The same thread may lock again: this is the same hold.
            assert_eq!(repeated.token(), guard.token());
            seen = guard.token();
        } // Here it is released, and granted to the first waiter.
        Ok(seen)
    }
    let m = mount();
    let first = example(m.dir()).expect("it works");
    assert!(first > 0);
    assert_eq!(m.phase("build"), "free");
    assert!(example(m.dir()).expect("it works") > first, "a new tenure has a greater token");
}

/// Threads exclude each other, even through separate mutexes: a counter that they increment is
/// exact.
#[test]
fn threads_exclude_each_other() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 50;
    let m = mount();
    let (count, last) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mutex = open(&m, "count");
                for _ in 0..ROUNDS {
                    let guard = mutex.lock().expect("granted");
                    let seen = count.load(Ordering::Relaxed);
                    thread::yield_now();
                    count.store(seen + 1, Ordering::Relaxed);
                    let before = last.swap(guard.token(), Ordering::Relaxed);
                    assert!(before < guard.token(), "tokens rise: {before}, {}", guard.token());
                }
            });
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), THREADS * ROUNDS);
    assert_eq!(m.phase("count"), "free");
}

/// The mutex excludes other processes and is excluded by them: it is an ordinary flock.
#[test]
fn processes_exclude_each_other() {
    let m = mount();
    let mutex = open(&m, "build");
    let guard = mutex.try_lock().expect("asked").expect("it is free");
    assert_eq!((m.token("build"), guard.is_held()), (guard.token(), true));
    m.sh("flock -n build true").exits(1);
    drop(guard);
    m.sh("flock -n build true").ok();
    let mut command = Command::new("flock");
    m.within(command.args(["build", "sh", "-c", "echo locked; cat"]));
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let said = lines(other.stdout.take().expect("piped"));
    assert_eq!(next(&said), "locked");
    assert!(mutex.try_lock().expect("asked").is_none());
    assert!(mutex.lock_timeout(Duration::from_millis(50)).expect("asked").is_none());
    // The other process ends at the end of its input, which ends the wait of the mutex.
    thread::scope(|scope| {
        let waits = scope.spawn(|| mutex.lock_timeout(LIMIT).expect("asked").is_some());
        drop(other.stdin.take());
        assert!(waits.join().expect("no panic"));
    });
    assert!(other.wait().expect("our child").success());
}

/// A timed wait has a place in the queue like any other, and leaves the queue on its timeout.
#[test]
fn a_timed_wait_has_a_place_in_the_queue() {
    let m = mount();
    let in_line = |count: usize| {
        eventually("so many waiters", || {
            let line = m.status("build")["waiters"].as_array().map_or(0, Vec::len);
            (line == count).then_some(())
        });
    };
    let [holder, timed, other] = [(); 3].map(|()| open(&m, "build"));
    let (send, notices) = channel();
    let (first, second) = (send.clone(), send);
    let guard = holder.lock().expect("granted");
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = timed.lock_timeout(LIMIT).expect("asked");
            first.send("the one with a limit").expect("the test listens");
            drop(guard);
        });
        in_line(1);
        scope.spawn(|| {
            let guard = other.lock().expect("granted");
            second.send("the one without").expect("the test listens");
            drop(guard);
        });
        in_line(2);
        let third = open(&m, "build");
        let patience = Duration::from_millis(20);
        let waits = scope.spawn(move || third.lock_timeout(patience).expect("asked").is_some());
        assert!(!waits.join().expect("no panic"), "its time is over");
        in_line(2);
        drop(guard);
        assert_eq!((next(&notices), next(&notices)), ("the one with a limit", "the one without"));
    });
}

/// A thread that has locked a mutex may lock it again. A lock call that could succeed only after
/// the same thread unlocks the mutex returns an error.
#[test]
fn a_thread_may_lock_again() {
    let m = mount();
    let (mutex, same) = (open(&m, "build"), open(&m, "build"));
    let outer = mutex.lock().expect("granted");
    let inner = same.lock().expect("the same thread");
    let reads = mutex.read().expect("who has it alone may read");
    assert_eq!((inner.token(), reads.mode()), (outer.token(), MutexMode::Exclusive));
    drop((outer, reads));
    assert_eq!(m.phase("build"), "held");
    drop(inner);
    assert_eq!(m.phase("build"), "free");
    let reads = mutex.read().expect("granted");
    assert_eq!(mutex.try_lock().expect_err("itself").kind(), ErrorKind::Deadlock);
    thread::scope(|scope| {
        scope.spawn(|| drop(same.read().expect("readers are many")));
    });
    m.sh("flock -n build true").exits(1);
    m.sh("flock -n -s build true").ok();
    drop(reads);
    assert_eq!(m.phase("build"), "free");
}

/// A listener of a mutex is notified of waiting and of grants.
#[test]
fn a_listener_is_notified() {
    let m = mount();
    let (holder, mutex) = (open(&m, "build"), open(&m, "build"));
    let (send, notices) = channel();
    mutex.listen(move |notice| send.send(notice).expect("the test listens"));
    let guard = holder.lock().expect("granted");
    thread::scope(|scope| {
        let waits = scope.spawn(|| mutex.lock().expect("granted").token());
        assert_eq!(next(&notices), Notice::Waiting);
        // The thread is in the lock's queue already, so it is granted the lock before any client
        // that queues later.
        eventually("a waiter", || {
            let waiting = m.status("build")["waiters"].as_array().is_some_and(|w| w.len() == 1);
            waiting.then_some(())
        });
        drop(guard);
        let token = waits.join().expect("no panic");
        assert_eq!(next(&notices), Notice::Granted { token });
    });
    drop(mutex);
    assert!(notices.recv_timeout(LIMIT).is_err(), "giving it back is no loss");
}

/// If another client steals the lock while a mutex is locked, the listeners of the mutex are
/// notified. The holder then can't lock the mutex again before it has dropped its guard.
#[test]
fn a_loss_is_reported() {
    let m = mount();
    let mutex = open(&m, "build");
    let (send, notices) = channel();
    let (tell_unexpected, unexpected) = channel();
    mutex.listen(move |notice| send.send(notice).expect("the test listens"));
    mutex.on_unexpected(move |what| tell_unexpected.send(what).expect("the test listens"));
    let guard = mutex.lock().expect("granted");
    let token = guard.token();
    assert_eq!(next(&notices), Notice::Granted { token });
    m.latchfs(&["steal", "build", "--reason", "a test"]).ok();
    assert_eq!(next(&notices), Notice::Lost { token });
    assert_eq!(next(&unexpected), Unexpected::Lost { token });
    assert!(!guard.is_held());
    let error = mutex.lock().expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle, "{error}");
    drop(guard);
    assert_eq!(m.phase("build"), "held", "what is lost can't be given back");
    m.latchfs(&["release", "build"]).ok();
    assert!(mutex.lock().expect("granted").token() > token);
}

/// If this process holds the lock by other means than a mutex, here because it has created the file
/// of the lock, the callback for unexpected events is called before the mutex is locked.
#[test]
fn an_unrequested_hold_is_reported() {
    let m = mount();
    let mutex = open(&m, "build");
    let (send, notices) = channel();
    mutex.on_unexpected(move |what| send.send(what).expect("the test listens"));
    drop(mutex.lock().expect("granted"));
    let file = File::create(m.dir().join("build")).expect("it is free");
    let token = m.token("build");
    let guard = mutex.lock().expect("a plain lease is taken over");
    assert_eq!(next(&notices), Unexpected::Granted { token });
    assert!(guard.is_held());
    drop((guard, file));
    assert!(notices.try_recv().is_err(), "notified once");
}

/// The token of a mutex guard is always the token of the guard's own lease and never that of
/// another holder, whatever happens between the grant of the lock and the request for the token.
#[test]
fn the_token_of_another_holder_is_never_given_out() {
    // The number of times that each of the two threads gets the lock.
    let times = rounds(50, 200);
    let m = mount();
    let mutex = open(&m, "build");
    let (thefts, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (taken, seen) = thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let file = m.dir().join("build");
            let mut tokens = Vec::new();
            while !ended.load(Ordering::Acquire) {
                // Root may remove any lock. After each removal, this thread can hold the lock
                // itself for a moment: from its mkdir to its rmdir.
                let _gone = fs::remove_file(&file);
                if fs::create_dir(&file).is_ok() {
                    tokens.extend(m.status("build")["token"].as_u64());
                    thefts.fetch_add(1, Ordering::AcqRel);
                    let _gone = fs::remove_dir(&file);
                }
            }
            tokens
        });
        let mut seen = Vec::new();
        while seen.len() < times || thefts.load(Ordering::Acquire) < times {
            // `try_lock` fails if the other thread removes the lock just after the grant, or if the
            // other thread has made a directory of that name.
            if let Ok(Some(guard)) = mutex.try_lock() {
                seen.push(guard.token());
            }
        }
        ended.store(true, Ordering::Release);
        (thief.join().expect("no panic"), seen)
    });
    let stolen: Vec<_> = seen.iter().filter(|token| taken.contains(token)).collect();
    assert!(stolen.is_empty(), "tokens of others: {stolen:?}");
}

/// An open file returns the token of its own lease, and ESTALE once the lock is stolen, even when
/// another holder has the lock.
#[test]
fn an_open_file_returns_its_own_token() {
    let m = mount();
    let seen = m.py(r#"
        def token(fd):
            return int.from_bytes(fcntl.ioctl(fd, 0x80084c02, b'\0' * 8), sys.byteorder)
        own, other = os.open('build', os.O_RDWR | os.O_CREAT), os.open('build', os.O_RDWR)
        eq(no(token, own), 'ESTALE')
        fcntl.flock(own, fcntl.LOCK_EX)
        eq(token(own), status('build')['token'])
        eq(no(token, other), 'ESTALE')
        subprocess.run(['latchfs', 'steal', 'build', '--reason', 'test'], check=True)
        assert status('build')['phase'] == 'held'
        eq(no(token, own), 'ESTALE')
        assert 'has lost it' in why(), why()
        eq(no(token, os.open('.latchfs/ctl', os.O_RDWR)), 'ESTALE')
    "#);
    seen.ok();
}

/// Regression test: while there are locks below a lock's name, the lock's path in `.latchfs/status`
/// is a directory. An earlier `Mutex` could not read it, and reported the lock as lost.
#[test]
fn a_lock_below_the_name_makes_no_difference() {
    let m = mount();
    let mutex = open(&m, "build");
    let guard = mutex.lock().expect("granted");
    assert!(guard.is_held());
    let below = r#"
        ctl = os.open('.latchfs/ctl', os.O_RDWR)
        os.write(ctl, b'{"do":"acquire","name":"build/below"}')
        assert json.loads(os.read(ctl, 1 << 20))['ok']
    "#;
    m.py(below).ok();
    assert!(guard.is_held());
    assert_eq!(mutex.lock().expect("the same thread").token(), guard.token());
}
