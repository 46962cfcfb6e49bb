//! A local user who exhausts the resources of root's mount that all of its users share: waits,
//! descriptors, memory, and the time of the daemon.

use crate::patience::{VICTIM_LIMIT, prompt};
use latchfs::time::{Time, boot_now};
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use testing::{
    ALICE, BOB, Mount, PRELUDE, Setup, dedent, eventually, json, lines, memory_kb, mount, users,
};

/// The maximum duration of an attack.
const ATTACK_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn since(begun: Time) -> Duration {
    boot_now().since(begun).as_duration()
}

/// A Python program that runs as a given user and prints a line for each stage of its attack.
pub(crate) struct Attacker {
    child: Child,
    said: Receiver<String>,
}

impl Attacker {
    /// Starts `program` in the mount point.
    pub(crate) fn start(m: &Mount, user: &str, program: &str) -> Self {
        users();
        // The interpreter may lie in a directory that only root can read, so the program starts as
        // root and changes its user.
        let become_user = format!(
            "me = pwd.getpwnam('{user}'); os.setgroups([]); os.setgid(me.pw_gid); \
             os.setuid(me.pw_uid)"
        );
        let program = format!("{PRELUDE}\n{become_user}\n{}", dedent(program));
        let mut command = Command::new("python3");
        command.args(["-c", &program]).stdout(Stdio::piped());
        let mut child = m.within(&mut command).spawn().expect("python3 is there");
        let said = lines(child.stdout.take().expect("piped"));
        Self { child, said }
    }

    /// Returns the next line of the attacker.
    #[track_caller]
    pub(crate) fn says(&self) -> String {
        self.said.recv_timeout(ATTACK_LIMIT).expect("the attack goes on")
    }

    /// Waits for the line of the attacking program that begins with `stage`, and returns the rest
    /// of the line. While it waits, checks that root, the victim of the attack, can acquire, renew
    /// and release a lock in time.
    #[track_caller]
    pub(crate) fn until(&self, m: &Mount, stage: &str) -> String {
        let begun = boot_now();
        while since(begun) < ATTACK_LIMIT {
            victim(m);
            match self.said.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => match line.strip_prefix(stage) {
                    Some(rest) => return rest.trim().to_owned(),
                    None => panic!("the attacker says {line:?} before {stage:?}"),
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the attacker ended: {}", m.log()),
            }
        }
        panic!("the attack never came to {stage:?}");
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Checks that root's usual work is done in time, several times: acquire a lock, stat it, renew it,
/// release it.
#[track_caller]
pub(crate) fn victim(m: &Mount) {
    let works = || {
        let lock = m.dir().join("victim");
        fs::create_dir(&lock).expect("root gets its lock");
        assert!(fs::metadata(&lock).expect("it is there").is_dir());
        touch(&lock);
        fs::remove_dir(&lock).expect("root gives it back");
    };
    for _ in 0..3 {
        prompt("root's work", works);
    }
}

/// Renews a lock by setting the times of its file to now, as touch(1) does.
#[allow(unsafe_code)]
fn touch(lock: &Path) {
    let path = CString::new(lock.as_os_str().as_bytes()).expect("no zeros");
    // SAFETY: `path` outlives the call, and utimensat(2) takes a null pointer as the present time.
    let done = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), std::ptr::null(), 0) };
    assert_eq!(done, 0, "root renews it: {}", std::io::Error::last_os_error());
}

/// A program whose waits time out shortly after each other, so that the answer to one coincides
/// with the next timeout. Whether the daemon's calls nest then depends on the speed of the machine;
/// the unit test `wakers_that_make_events_do_not_nest` checks the same without a clock.
const TIMED_WAITS: &str = r#"
    COUNT = 20_000
    ctl = os.open('.latchfs/ctl', os.O_RDWR)
    ends = time.monotonic() + 5
    for n in range(COUNT):
        wait = f'{max(ends + n * 20e-6 - time.monotonic(), 0.001):.6f}s'
        asked = {'do': 'acquire', 'name': f'held{n % 10}', 'wait': wait}
        os.write(ctl, json.dumps(asked).encode())
    print('asked', flush=True)
    seen, conflicts, limits, rest = 0, 0, 0, b''
    while seen < COUNT:
        *answers, rest = (rest + os.read(ctl, 1 << 20)).split(b'\n')
        seen += len(answers)
        conflicts += sum(b'"E_LOCK_CONFLICT"' in answer for answer in answers)
        limits += sum(b'"E_LIMIT"' in answer for answer in answers)
    print('answered', conflicts, limits, flush=True)
"#;

/// Thousands of waits that a user has requested through one open control file (`.latchfs/ctl`) time
/// out one after another. In an earlier version the daemon overflowed its stack, and the number of
/// waits of a user had no bound.
#[test]
fn all_timed_waits_through_one_file_end() {
    let m = mount();
    m.sh_as(BOB, "for n in 0 1 2 3 4 5 6 7 8 9; do echo 10m > held$n; done").ok();
    // An unprivileged user may have a limited number of waits at the same time, and further waits
    // are refused. Root has no such limit.
    for (user, count, share) in [(ALICE, 4_000, 2_048), ("root", 20_000, 20_000)] {
        let program = TIMED_WAITS.replace("20_000", &count.to_string());
        let attacker = Attacker::start(&m, user, &program);
        attacker.until(&m, "asked");
        let answers = attacker.until(&m, "answered");
        let (conflicts, limits) = answers.split_once(' ').expect("two numbers");
        let numbers = [conflicts, limits].map(|number| number.parse::<usize>().expect("it is"));
        assert_eq!(numbers.iter().sum::<usize>(), count, "{user}: {answers}");
        // On a slow machine, some waits time out before the last wait is requested.
        assert!(numbers[0] >= share, "{user}: {answers}");
        assert_eq!(numbers[1] > 0, user == ALICE, "{user}: {answers}");
    }
}

/// The daemon's soft and hard limits of open files, as systemd and shells set them.
const DESCRIPTORS: (u64, u64) = (1_024, 4_096);
/// If the daemon may open 4,096 descriptors, one user may have at most this many locks that are
/// bound to processes, and at most this many waits.
pub(crate) const WATCHED_OF_USER: usize = (4_096 - 256) / 2 / 2 / 4;
/// The maximum memory in kB that a flood may add to the daemon, besides the memory for the locks
/// that the flood acquires.
const MEMORY_MAX_KB: u64 = 64 << 10;

/// Starts a mount whose daemon has the usual limits of open files.
pub(crate) fn limited() -> Mount {
    Setup::new().descriptors(DESCRIPTORS).start()
}

/// The daemon needs a descriptor for each lock that is bound to a process. In an earlier version
/// 1,010 such locks of one user took all descriptors: the journal could not be compacted any more,
/// and every change failed. Now the number of such locks of each user is limited.
#[test]
fn bindings_leave_descriptors_for_storage_and_other_users() {
    const BIND: &str = r"
        bound, full = 0, 0
        for n in range(1_200):
            fd = exclusive(f'{os.getuid()}-{n}')
            said = no(os.write, fd, b'pid=%d' % os.getpid())
            bound += said == 'ok'
            full += said == 'ENOSPC'
            os.close(fd)
        said = why()
        assert 'one user' in said and 'locks bound to processes' in said, said
        print('bound', bound, 'full', full, flush=True)
        time.sleep(60)
    ";
    let m = limited();
    let before = memory_kb(&m);
    for user in [ALICE, BOB] {
        let attacker = Attacker::start(&m, user, BIND);
        let said = attacker.until(&m, "bound");
        assert_eq!(said, format!("{WATCHED_OF_USER} full {}", 1_200 - WATCHED_OF_USER), "{user}");
        // When a process ends, the locks that were bound to it no longer count towards the limit of
        // their user.
        drop(attacker);
        eventually("its locks are free", || (bound(&m) == 0).then_some(()));
    }
    let both = [ALICE, BOB].map(|user| Attacker::start(&m, user, &BIND.replace("-{n}", "+{n}")));
    for attacker in &both {
        attacker.until(&m, "bound");
    }
    assert_eq!(bound(&m), 2 * WATCHED_OF_USER);
    m.sh("(set -C; : > bound-by-root); echo pid=$$ > bound-by-root").ok();
    m.sh("echo x > by-root; rm by-root").ok();
    assert!(memory_kb(&m) < before + MEMORY_MAX_KB, "{} kB", memory_kb(&m) - before);
}

pub(crate) fn bound(m: &Mount) -> usize {
    let server = m.sh("cat .latchfs/server").ok();
    json(&server)["bound_to_processes"].as_u64().expect("a number") as usize
}

/// In an earlier version a thousand waits took all descriptors, and a signal could not interrupt
/// the wait of any user.
#[test]
fn waits_of_one_user_leave_waits_of_others_killable() {
    let m = limited();
    m.sh_as(BOB, "echo 10m > held").ok();
    let attacker = Attacker::start(
        &m,
        ALICE,
        r"
        import threading
        threading.stack_size(256 << 10)
        said, all_there = [], threading.Semaphore(0)
        def wait(n):
            fd = os.open('held', os.O_RDONLY)
            all_there.release()
            said.append(no(fcntl.flock, fd, fcntl.LOCK_EX))
        for n in range(1_100):
            threading.Thread(target=wait, args=(n,), daemon=True).start()
        for n in range(1_100):
            all_there.acquire()
        while len(said) < 1_100 - 240:
            time.sleep(0.01)
        assert set(said) == {'ENOSPC'}, set(said)
        assert 'waiting programs' in why(), why()
        print('waiting', 1_100 - len(said), flush=True)
        time.sleep(60)
        ",
    );
    assert_eq!(attacker.until(&m, "waiting"), WATCHED_OF_USER.to_string());
    for program in ["flock held true", "cat .latchfs/wait/held", "cat .latchfs/events"] {
        let mut waiter = Command::new("sh");
        waiter.args(["-c", &format!("exec {program}")]).stdout(Stdio::null());
        let mut waiter = m.within(&mut waiter).spawn().expect("sh is there");
        eventually("it waits", || is_waiting(waiter.id()).then_some(()));
        let begun = boot_now();
        waiter.kill().expect("it runs");
        waiter.wait().expect("it ends");
        let took = since(begun);
        assert!(took < VICTIM_LIMIT, "{program} ended {took:?} after it was killed");
    }
}

/// Whether a process sleeps in a flock or read system call, as it does while a mount handles its
/// request.
pub(crate) fn is_waiting(pid: u32) -> bool {
    let place = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let call = place.split(' ').next().and_then(|number| number.parse::<i64>().ok());
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let sleeps = state.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['S', 'D']));
    sleeps && call.is_some_and(|call| [libc::SYS_flock, libc::SYS_read].contains(&call))
}

/// The memory for answers that no program has read yet is bounded. In an earlier version each open
/// control file (`.latchfs/ctl`) kept 16 MiB of them.
#[test]
fn unread_answers_have_a_bound() {
    let m = mount();
    m.sh("n=0; while [ $n -lt 1500 ]; do n=$((n + 1)); : > $n; done").ok();
    let before = memory_kb(&m);
    let attacker = Attacker::start(
        &m,
        ALICE,
        r#"
        files, answered, full = [], 0, 0
        for n in range(60):
            ctl = os.open('.latchfs/ctl', os.O_RDWR)
            files.append(ctl)
            for n in range(120):
                said = no(os.write, ctl, b'{"do":"list"}')
                answered += said == 'ok'
                full += said == 'ENOSPC'
        assert answered + full == 60 * 120, (answered, full)
        assert 'unread bytes' in why(), why()
        # What is read makes room again.
        for ctl in files:
            while os.read(ctl, 1 << 20):
                pass
        os.write(ctl, b'{"do":"list"}')
        said = b''
        while not said.endswith(b'\n'):
            said += os.read(ctl, 1 << 20)
        said = json.loads(said)
        assert said['ok'] and len(said['locks']) == 512, said
        for ctl in files:
            for n in range(20):
                no(os.write, ctl, b'{"do":"list"}')
        print('answered', answered, flush=True)
        time.sleep(60)
        "#,
    );
    let answered: usize = attacker.until(&m, "answered").parse().expect("a number");
    // The answers to `list` fill most of the memory that the user's unread answers may take.
    // Refusals of about 100 bytes each, which also count as answers, fill the rest.
    assert!((30..3_000).contains(&answered), "{answered} answers were kept");
    let took = memory_kb(&m).saturating_sub(before);
    assert!(took < MEMORY_MAX_KB, "{took} kB for answers that nobody reads");
}

/// For each open directory, the daemon keeps at most one page of the list of names (a bounded
/// number of directory entries). In an earlier version it kept the whole list.
#[test]
fn open_directories_buffer_one_page() {
    const LOCKS: usize = 12_000;
    let m = mount();
    make_locks(&m, LOCKS);
    let before = memory_kb(&m);
    let attacker = Attacker::start(
        &m,
        ALICE,
        r"
        opened, full = [], 'ok'
        while len(opened) < 600 and full == 'ok':
            def open_one():
                opened.append(os.scandir('many'))
                next(opened[-1])
            full = no(open_one)
        assert 'open directories' in why(), why()
        opened.pop().close()
        names = os.listdir('many')
        assert len(names) == len(set(names)), 'a name twice'
        print('opened', len(opened) + 1, full, len(names), flush=True)
        time.sleep(60)
        ",
    );
    assert_eq!(attacker.until(&m, "opened"), format!("512 ENOSPC {LOCKS}"));
    let took = memory_kb(&m).saturating_sub(before);
    assert!(took < MEMORY_MAX_KB, "{took} kB for open directories");
    going_back_finds_the_same_names(&m.dir().join("many"), LOCKS);
}

/// Reads a directory to its end, then seeks back to some of the positions that telldir returned,
/// and checks that readdir returns the same name at each as before.
#[allow(unsafe_code)]
fn going_back_finds_the_same_names(dir: &Path, count: usize) {
    let path = CString::new(dir.as_os_str().as_bytes()).expect("no zeros");
    // SAFETY: the path outlives the call. The returned stream is checked, and closed at the end.
    let stream = unsafe { libc::opendir(path.as_ptr()) };
    assert!(!stream.is_null(), "root may open directories");
    // SAFETY: the stream is open, and each entry is used before the next readdir.
    let next = || unsafe {
        let entry = libc::readdir(stream).as_ref()?;
        Some(CStr::from_ptr(entry.d_name.as_ptr()).to_string_lossy().into_owned())
    };
    // SAFETY: `stream` comes from opendir, and is not closed yet.
    let place = || unsafe { libc::telldir(stream) };
    let mut seen = Vec::new();
    while let Some(entry) = {
        let at = place();
        next().map(|name| (at, name))
    } {
        seen.push(entry);
    }
    assert_eq!(seen.len(), count + 2, "all names, and the dots");
    for (at, name) in seen.iter().rev().step_by(997).chain([&seen[0]]) {
        // SAFETY: the stream is open, and `at` is a position that it returned.
        unsafe { libc::seekdir(stream, *at) };
        assert_eq!(next().as_ref(), Some(name), "from place {at}");
    }
    // SAFETY: the stream is open, and is not used after this call.
    unsafe { libc::closedir(stream) };
}

/// Makes locks below `many` with a ttl of ten minutes.
fn make_locks(m: &Mount, count: usize) {
    let program = r#"
        ctl = os.open('.latchfs/ctl', os.O_RDWR)
        for n in range(COUNT):
            os.write(ctl, b'{"do":"acquire","name":"many/a-lock-of-root-%d","ttl":"10m"}' % n)
            if n % 1_000 == 0:
                os.read(ctl, 1 << 20)
    "#;
    m.py(&program.replace("COUNT", &count.to_string())).ok();
}

/// Hundreds of waiters for ranges of a file are unblocked by one unlock. In an earlier version each
/// grant recursed into the next one, and the daemon overflowed its stack.
#[test]
fn ranges_unblocked_at_once_are_granted_without_recursion() {
    let m = mount();
    let attacker = Attacker::start(
        &m,
        ALICE,
        r"
        import struct, threading
        COUNT = 450
        def lock(fd, call, kind, start, length):
            fcntl.fcntl(fd, call, struct.pack('hhqqi4x', kind, 0, start, length, 0))
        OFD_SETLK, OFD_SETLKW = 37, 38
        threading.stack_size(256 << 10)
        all_there, granted, end = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
        def wait(n):
            fd = os.open('big', os.O_RDWR)
            all_there.release()
            lock(fd, OFD_SETLKW, fcntl.F_WRLCK, 2 * n, 1)
            granted.release()
            end.wait()
        holder = os.open('big', os.O_RDWR | os.O_CREAT)
        lock(holder, OFD_SETLK, fcntl.F_WRLCK, 0, 1_000_000)
        for n in range(COUNT):
            threading.Thread(target=wait, args=(n,), daemon=True).start()
        for n in range(COUNT):
            all_there.acquire()
        def working():
            tasks = [t for t in os.listdir('/proc/self/task') if int(t) != os.getpid()]
            stats = [open(f'/proc/self/task/{t}/stat').read() for t in tasks]
            return [stat for stat in stats if stat.rsplit(') ', 1)[1][0] not in 'SD']
        while working():
            time.sleep(0.05)
        print('waiting', flush=True)
        lock(holder, OFD_SETLK, fcntl.F_UNLCK, 0, 1_000_000)
        for n in range(COUNT):
            granted.acquire()
        print('granted', flush=True)
        time.sleep(60)
        ",
    );
    attacker.until(&m, "waiting");
    attacker.until(&m, "granted");
}

/// The number of locked ranges of a file is bounded, as in the kernel: each lock request scans all
/// of them, and the daemon handles requests one after another. In an earlier version a few thousand
/// ranges kept all users from locking.
#[test]
fn ranges_of_one_file_have_a_bound() {
    let m = mount();
    let before = memory_kb(&m);
    let attacker = Attacker::start(
        &m,
        ALICE,
        r"
        import struct
        def lock(fd, kind, start, length):
            fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack('hhqqi4x', kind, 0, start, length, 0))
        locked = []
        for name in range(20):
            fd = os.open(f'file{name}', os.O_RDWR | os.O_CREAT)
            for n in range(4_000):
                said = no(lock, fd, fcntl.F_WRLCK, 2 * n, 1)
                if said != 'ok':
                    locked.append((n, said))
                    break
            # Nor has one that is unlocked in pieces.
            lock(fd, fcntl.F_UNLCK, 0, 0)
            lock(fd, fcntl.F_WRLCK, 0, 0)
            for n in range(1_500):
                lock(fd, fcntl.F_UNLCK, 2 * n, 1)
        assert locked == [(511, 'ENOLCK')] * 20, locked
        print('locked', flush=True)
        time.sleep(60)
        ",
    );
    attacker.until(&m, "locked");
    let took = memory_kb(&m).saturating_sub(before);
    assert!(took < MEMORY_MAX_KB, "{took} kB for ranges");
}

/// An exec waits for the mount's answer to each lock file that it closes, and a read of `/proc` of
/// the process may block until the exec is over. A daemon that read it would deadlock with itself.
#[test]
fn a_process_that_closes_lock_files_in_exec_blocks_nobody() {
    let m = mount();
    let (done, ended) = channel::<()>();
    let daemon = m.pid().to_string();
    // Programs that wait for a deadlocked daemon end only when it is killed, so a watchdog kills
    // it.
    let watchdog = thread::spawn(move || {
        let is_stuck = ended.recv_timeout(ATTACK_LIMIT) == Err(RecvTimeoutError::Timeout);
        if is_stuck {
            Command::new("kill").args(["-9", &daemon]).status().expect("kill is there");
        }
        is_stuck
    });
    let attacker = Attacker::start(
        &m,
        ALICE,
        r#"
        ended, alive = os.pipe()
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        files = [os.open(f'file{n}', how) for n in range(8)]
        for n in range(200):
            child = os.fork()
            if child == 0: os.execv('/bin/true', ['true'])
            bound = os.open('bound', how)
            try: os.write(bound, f'pid={child}'.encode())
            except OSError: pass
            os.close(bound)
            os.waitpid(child, 0)
            # The same of the leader of a session, of which a lock made in it tells.
            child = os.fork()
            if child == 0:
                os.setsid()
                if os.fork() == 0:
                    os.close(os.open(f'made{n % 4}', how))
                    os._exit(0)
                os.execv('/bin/true', ['true'])
            os.waitpid(child, 0)
        # The grandchildren that still run have the pipe as well.
        os.close(alive)
        os.read(ended, 1)
        print('done', flush=True)
        "#,
    );
    attacker.until(&m, "done");
    drop(done);
    assert!(!watchdog.join().expect("it does not panic"), "the daemon waited for itself");
}
