//! Leases bound to a process: the process keeps the lock while it is alive, and its death releases
//! the lock.

use std::process::{Child, Command, Stdio};
use testing::*;

/// A process that sleeps; it is killed and reaped when this value is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("300").stdin(Stdio::null()).spawn().expect("sleep is there"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process and leaves it a zombie, because its lock must be released before it is
    /// reaped.
    fn kill(&self) {
        signal(self.pid().cast_signed(), libc::SIGKILL);
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.kill();
        let _reaped = self.0.wait();
    }
}

/// `echo pid=$$ > NAME` binds the lease to the process `$$`, however short the ttl; the death of
/// the process by `kill -9` releases the lock within 100 ms.
#[test]
fn a_process_keeps_its_lock_until_its_death() {
    let m = Setup::new().with("--ttl 1s --grace 0s").start();
    let sleeper = Sleeper::new();
    m.sh(&format!("touch build && echo pid={} > build && touch other", sleeper.pid())).ok();
    let token = m.token("build");
    // The lock `other` has expired, which shows that more than a ttl has passed.
    m.until("other", "free");
    m.sh("touch other").ok();
    m.until("other", "free");
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
    let freed = format!(
        r#"
        os.kill({}, signal.SIGKILL)
        begun = time.monotonic()
        while status('build')['phase'] != 'free':
            assert time.monotonic() < begun + 0.1, 'not free within 100 ms'
            time.sleep(0.002)
        "#,
        sleeper.pid()
    );
    m.py(&freed).ok();
    assert_eq!(m.sh("ls").ok(), "", "its name goes");
}

/// Every kind of write can name the process to which a lease is bound: a write to the file `ctl` in
/// a lock's directory, JSON that is written to a lock's file, and a write to `.latchfs/ctl`.
#[test]
fn a_process_is_named_by_every_kind_of_write() {
    let m = mount();
    let sleepers = [Sleeper::new(), Sleeper::new(), Sleeper::new(), Sleeper::new()];
    let pids = [0, 1, 2, 3].map(|n: usize| sleepers[n].pid());
    m.sh(&format!("mkdir dir && echo pid={} > dir/ctl", pids[0])).ok();
    let pid = pids[1];
    m.sh(&format!("touch json && echo '{{\"pid\":{pid},\"ttl\":\"2m\"}}' > json")).ok();
    let [c, d] = [pids[2], pids[3]];
    m.py(&format!(
        r#"
        def ctl(**request):
            with open('.latchfs/ctl', 'r+b', buffering=0) as file:
                file.write(json.dumps(request).encode())
                return json.loads(file.read())
        eq(ctl(do='acquire', name='acquired', pid={c})['ok'], True)
        eq(ctl(do='acquire', name='renewed')['ok'], True)
        eq(ctl(do='renew', name='renewed', pid={d})['ok'], True)
        eq(json.load(open('.latchfs/server'))['bound_to_processes'], 4)
        "#
    ))
    .ok();
    for (name, sleeper) in ["dir", "json", "acquired", "renewed"].into_iter().zip(&sleepers) {
        assert_eq!(m.phase(name), "held");
        sleeper.kill();
        m.until(name, "free");
    }
}

/// A moved lock stays bound to its process; a hard link to a lock is bound to the lock's process
/// too.
#[test]
fn a_moved_lock_stays_bound_to_its_process() {
    let m = mount();
    let (mover, linker) = (Sleeper::new(), Sleeper::new());
    m.sh(&format!("touch a && echo pid={} > a && mv a b", mover.pid())).ok();
    m.sh(&format!("touch c && echo pid={} > c && ln c d", linker.pid())).ok();
    mover.kill();
    m.until("b", "free");
    assert_eq!(m.phase("d"), "held");
    linker.kill();
    m.until("c", "free");
    m.until("d", "free");
}

/// A release by name unbinds the lease from its process: the later death of the process releases
/// nothing.
#[test]
fn a_release_unbinds_the_process() {
    let m = mount();
    let sleeper = Sleeper::new();
    m.sh(&format!("touch build && echo pid={} > build && rm build && mkdir build", sleeper.pid()))
        .ok();
    let server = json(&m.sh("cat .latchfs/server").ok());
    assert_eq!(server["bound_to_processes"], 0);
    let token = m.token("build");
    let (witness, name) = (Sleeper::new(), "witness");
    m.sh(&format!("touch {name} && echo pid={} > {name}", witness.pid())).ok();
    sleeper.kill();
    witness.kill();
    m.until(name, "free");
    assert_eq!(m.token("build"), token);
}

/// A pid to which the caller may not bind a lease is refused: that of another user's process, of no
/// process, or 0.
#[test]
fn only_ones_own_process_can_be_named() {
    let m = mount();
    let roots = Sleeper::new();
    let line = format!("touch build && echo pid={} > build", roots.pid());
    m.sh_as(ALICE, &line).fails();
    let why = m.sh_as(ALICE, "cat .latchfs/why").ok();
    assert!(why.contains("belongs to another user") && why.contains("EPERM"), "{why}");
    assert_eq!(m.status("build")["holder"], format!("laptop1:{ALICE}"), "and still is held");
    m.sh_as(ALICE, "sleep 100 & echo pid=$! > build; kill -9 $!").ok();
    m.until("build", "free");
    m.py(r#"
        gone = subprocess.Popen(['true'])
        gone.wait()
        os.close(exclusive('build'))
        eq(write('build', f'pid={gone.pid}'), 'ESRCH')
        assert 'there is no process' in why(), why()
        eq(write('build', 'pid=0'), 'EINVAL')
        eq(status('build')['phase'], 'held')
    "#)
        .ok();
}

/// A pid that is written from another pid namespace is refused, because the same number is another
/// process for the daemon.
#[test]
fn a_pid_of_another_namespace_is_refused() {
    let m = mount();
    m.sh("touch build && unshare --pid --fork --mount-proc sh -c 'echo pid=1 > build'").fails();
    let why = m.sh("cat .latchfs/why").ok();
    assert!(why.contains("pid namespace"), "{why}");
}

/// A lease stays bound to its process across a restart of the daemon, if the process is still
/// alive; otherwise the restarted daemon releases the lease.
#[test]
fn a_restart_binds_processes_again() {
    let mut m = Setup::new().with("--ttl 10s").prepare();
    m.start();
    let (lives, dies) = (Sleeper::new(), Sleeper::new());
    m.sh(&format!("touch lives && echo pid={} > lives", lives.pid())).ok();
    m.sh(&format!("touch dies && echo pid={} > dies", dies.pid())).ok();
    let token = m.token("lives");
    m.crash();
    dies.kill();
    m.start();
    m.until("dies", "free");
    assert_eq!((m.phase("lives").as_str(), m.token("lives")), ("held", token));
    assert_eq!(json(&m.sh("cat .latchfs/server").ok())["bound_to_processes"], 1);
    lives.kill();
    m.until("lives", "free");
}

/// A lease that is bound to a process and has no ttl of its own survives any suspension or downtime
/// of the daemon, because the daemon grants no lock to another client in that time. A bound lease
/// that has a ttl of its own as well expires during a suspension.
#[test]
fn a_pause_of_the_daemon_loses_no_bound_lease() {
    let mut m = Setup::new().with("--ttl 1s --grace 0s").prepare();
    m.start();
    let clock = Setup::new().with("--ttl 1s --grace 0s").start();
    // Waits until more time has passed than a lease with a ttl of 1 s and no grace period lasts, by
    // two such leases on another mount.
    let pass = || {
        for _ in 0..2 {
            clock.sh("mkdir passes").ok();
            clock.until("passes", "free");
        }
    };
    let sleeper = Sleeper::new();
    let pid = sleeper.pid();
    m.sh(&format!("touch build && echo pid={pid} > build")).ok();
    let timed = format!(r#"{{"pid":{pid},"ttl":"1s","grace":"0s"}}"#);
    m.sh(&format!("touch timed && echo '{timed}' > timed")).ok();
    let token = m.token("build");
    let daemon = m.pid();
    signal(daemon, libc::SIGSTOP);
    pass();
    signal(daemon, libc::SIGCONT);
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token), "stopped");
    m.until("timed", "free");
    m.sh("touch build").ok();
    m.crash();
    pass();
    m.start();
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token), "killed");
    pass();
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token), "and later");
    sleeper.kill();
    m.until("build", "free");
}

/// `mount --hold session`: a lease that a program takes by a file lasts as long as the login
/// session in which it was taken.
#[test]
fn a_login_session_keeps_its_locks() {
    let m = Setup::new().with("--ttl 1s --grace 0s --hold session").start();
    let script = "mkdir dir && touch file && ln -s x link && echo made && exec sleep 300";
    let mut command = Command::new("setsid");
    let mut session = m
        .within(command.args(["sh", "-c", script]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("setsid is there");
    let said = lines(session.stdout.take().expect("piped"));
    said.recv_timeout(std::time::Duration::from_secs(20)).expect("it makes them");
    let sleeper = Sleeper(session);
    // On a second mount with a ttl of 1 s, a lock is acquired and expires, twice. That shows that
    // more than a ttl has passed on the first mount.
    let other = Setup::new().with("--ttl 1s --grace 0s").start();
    for _ in 0..2 {
        other.sh("mkdir other").ok();
        other.until("other", "free");
    }
    for name in ["dir", "file", "link"] {
        assert_eq!(m.phase(name), "held", "{name}");
    }
    sleeper.kill();
    for name in ["dir", "file", "link"] {
        m.until(name, "free");
    }
}

/// `mount --hold session`: if the leader of the login session has ended, a lease lasts for its ttl,
/// and the daemon logs why.
#[test]
fn a_session_without_a_leader_keeps_nothing() {
    let m = Setup::new().with("--ttl 1s --grace 0s --hold session").start();
    // The leader ends before its child takes the lock.
    m.sh("setsid sh -c '(while kill -0 $$; do :; done; mkdir build; mkdir more) 2> /dev/null &'")
        .ok();
    m.until("more", "held");
    let log = m.log();
    assert_eq!(log.matches("has ended, so the leases of process").count(), 1, "{log}");
    m.until("build", "free");
}
