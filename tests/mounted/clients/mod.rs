//! Unmodified programs that lock by the existence of files and know nothing of latchfs, as their
//! packages install them. Each has the same outcome on one mount, on two mounts of a server, and on
//! mounts of two nodes of a cluster; with two mounts, other users use the second one.

mod locking;

use std::panic::{AssertUnwindSafe, catch_unwind};
use testing::*;

/// A program under test: its name, and the function that tests it on a mount.
pub(crate) type Client = (&'static str, fn(&Mount));

/// Clients that lock by the existence of a file, a directory, a link or a symbolic link.
const CLIENTS: [Client; 17] = [
    ("dotlockfile", dotlockfile),
    ("dotlockfile around a command", dotlockfile_around_a_command),
    ("lockfile-progs", lockfile_progs),
    ("lockfile of procmail", procmail_lockfile),
    ("lockfile of procmail, by force", procmail_lockfile_by_force),
    ("npm lockfile", npm_lockfile),
    ("npm proper-lockfile", |m| npm_proper_lockfile(m, (2_000, 1_000, 4_000))),
    ("python lockfile, links", |m| python_lockfile(m, "lockfile.linklockfile", "LinkLockFile")),
    ("python lockfile, mkdir", |m| python_lockfile(m, "lockfile.mkdirlockfile", "MkdirLockFile")),
    ("python lockfile, symbolic links", |m| {
        python_lockfile(m, "lockfile.symlinklockfile", "SymlinkLockFile");
    }),
    ("python lockfile, pid", python_pid_lock_file),
    ("flufl.lock", flufl_lock),
    ("mercurial", mercurial),
    ("links of a shell", links_of_a_shell),
    ("programs in a lock", programs_in_a_lock),
    ("noclobber", noclobber_has_one_winner),
    ("mkdir and symlink", mkdir_and_symlink_have_one_winner),
];

/// Tests the clients one after another on mounts with the backend `behind`, and fails with the
/// names of those that fail.
#[track_caller]
pub(crate) fn all(clients: &[Client], behind: Behind) {
    let m = Setup::new().behind(behind).start();
    let mut failed = vec![];
    for (name, client) in clients {
        println!("{name}");
        let came = catch_unwind(AssertUnwindSafe(|| {
            client(&m);
            // If the mount uses a server, close(2) may return before the server has released the
            // lock, so the test polls.
            eventually("an empty directory", || m.sh("ls -A").ok().is_empty().then_some(()));
        }));
        if came.is_err() {
            failed.push(*name);
            m.sh("rm -rf -- $(ls -A)");
            m.sh_as(ALICE, "rm -rf -- $(ls -A)");
            m.sh_as(BOB, "rm -rf -- $(ls -A)");
        }
    }
    assert!(failed.is_empty(), "these clients failed: {failed:?}");
}

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

/// dotlockfile acquires a lock by linking a file of its own to the lock's name, and releases it by
/// unlink.
fn dotlockfile(m: &Mount) {
    m.sh("dotlockfile -l -r 0 build.lock").ok();
    assert_eq!(m.status("build.lock")["holder"], "laptop1:root");
    assert_eq!(m.sh("ls -A").ok(), "build.lock\n", "its own file is gone");
    // With `-p`, dotlockfile writes the pid of its caller, which is alive; with no retries, it
    // gives up at once.
    m.sh("dotlockfile -u build.lock && dotlockfile -l -p -r 0 build.lock; echo $$; cat build.lock")
        .ok();
    let held = "exec 2>&1; dotlockfile -l -r 0 build.lock";
    assert_ne!(m.sh_as(ALICE, held).code, 0);
    m.sh("dotlockfile -t build.lock").ok();
    m.sh_as(ALICE, "dotlockfile -u build.lock");
    assert_eq!(m.phase("build.lock"), "held", "another can't unlock it");
    m.sh("dotlockfile -u build.lock").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
    m.sh_as(ALICE, "dotlockfile -l -r 0 build.lock && dotlockfile -u build.lock").ok();
}

/// dotlockfile holds the lock while its command runs, and releases it afterwards.
fn dotlockfile_around_a_command(m: &Mount) {
    let seen = m.sh("dotlockfile -r 0 build.lock cat .latchfs/status/build.lock").ok();
    assert_eq!(json(&seen)["phase"], "held");
    assert_eq!(m.phase("build.lock"), "free");
}

/// Tests lockfile-create, lockfile-touch, lockfile-check and lockfile-remove.
fn lockfile_progs(m: &Mount) {
    m.sh("lockfile-create --retry 0 build").ok();
    assert_eq!(m.sh("ls -A").ok(), "build.lock\n");
    m.sh("lockfile-check build").ok();
    m.sh("lockfile-create --retry 0 build").fails();
    m.sh_as(ALICE, "lockfile-create --retry 0 build").fails();
    let before = m.status("build.lock");
    eventually("a renewal by lockfile-touch", || {
        m.sh("lockfile-touch --oneshot build").ok();
        (m.status("build.lock")["renewed_at"] != before["renewed_at"]).then_some(())
    });
    assert_eq!(m.status("build.lock")["token"], before["token"]);
    m.sh_as(ALICE, "lockfile-touch --oneshot build").fails();
    m.sh("lockfile-remove build").ok();
    m.sh("lockfile-check build").fails();
    assert_eq!(m.sh("ls -A").ok(), "");
}

/// procmail's lockfile acquires by link, and its locks are released by rm -f.
fn procmail_lockfile(m: &Mount) {
    m.sh("lockfile -r 0 build.lock").ok();
    assert_eq!(m.sh("ls -A").ok(), "build.lock\n");
    assert!(m.sh("lockfile -r 0 build.lock").fails().contains("Sorry"));
    m.sh_as(ALICE, "lockfile -r 0 build.lock").fails();
    m.sh("rm -f build.lock && lockfile -r 0 build.lock && rm -f build.lock").ok();
    m.sh_as(ALICE, "lockfile -r 0 build.lock && rm -f build.lock").ok();
}

/// procmail's lockfile breaks a lock whose mtime is older than the given time. It can't break a
/// lock that another user holds: the unlink is refused.
fn procmail_lockfile_by_force(m: &Mount) {
    m.sh_as(ALICE, "touch build.lock && touch -d '1 hour ago' build.lock").ok();
    let tried = m.sh_as(BOB, "timeout 1 lockfile -1 -l 60 -s 0 build.lock").fails();
    assert!(tried.contains("denied"), "{tried}");
    assert_eq!(m.status("build.lock")["holder"], format!("laptop1:{ALICE}"));
    m.sh_as(ALICE, "rm build.lock").ok();
}

/// npm `lockfile` acquires a lock by `O_EXCL`, releases it by unlink, and compares times to find
/// stale locks.
fn npm_lockfile(m: &Mount) {
    let seen = m.node(
        "const lock = require('lockfile');
         lock.lockSync('build.lock', { retries: 0 });
         const again = (options) => {
             try { lock.lockSync('build.lock', options); return 'got' } catch (e) { return e.code }
         };
         console.log(again({}), lock.checkSync('build.lock'));
         lock.unlockSync('build.lock');
         console.log(again({ stale: 60000 }), lock.checkSync('build.lock'));
         lock.lock('build.lock', { wait: 100, pollPeriod: 10 }, (e) => {
             console.log(e.code);
             lock.unlockSync('build.lock');
             console.log(require('fs').readdirSync('.').length);
         });",
    );
    assert_eq!(seen.ok(), "EEXIST true\ngot true\nEEXIST\n0\n");
}

/// Tests proper-lockfile with its usual intervals, for thirty seconds.
#[test]
fn npm_proper_lockfile_with_its_usual_times() {
    let m = Setup::new().with("--ttl 12s --grace 0s").start();
    npm_proper_lockfile(&m, (10_000, 5_000, 30_000));
}

/// npm `proper-lockfile` acquires a lock by mkdir, probes the file system's time resolution, and
/// refreshes its lock every `update` ms. For `span` ms, it never reports its lock as compromised,
/// and a second process always gets ELOCKED.
fn npm_proper_lockfile(m: &Mount, (stale, update, span): (u32, u32, u32)) {
    m.sh("echo data > $T/data").ok();
    let program = "const lockfile = require('proper-lockfile');
         const { spawn } = require('child_process');
         const path = { lockfilePath: 'build.lock', stale: STALE, update: UPDATE };
         const file = process.env.T + '/data';
         const second = `
             const lockfile = require('proper-lockfile');
             const path = { lockfilePath: 'build.lock', stale: STALE };
             const codes = {};
             const ends = Date.now() + SPAN;
             const next = () => lockfile.lock(process.env.T + '/data', path)
                 .then(() => 'got', (e) => e.code)
                 .then((code) => {
                     codes[code] = (codes[code] || 0) + 1;
                     if (Date.now() < ends) setTimeout(next, 50);
                     else console.log(Object.keys(codes).join());
                 });
             next();`;
         let compromised = 'never compromised';
         const onCompromised = (e) => { compromised = e.message };
         lockfile.lock(file, { ...path, onCompromised }).then((release) => {
             const other = spawn(process.execPath, ['-e', second], {
                 stdio: 'inherit', cwd: process.env.OTHERS,
             });
             other.on('exit', async (code) => {
                 console.log(code, compromised, await lockfile.check(file, path));
                 await release();
                 console.log(await lockfile.check(file, path));
             });
         });";
    let program = program.replace("STALE", &stale.to_string());
    let program = program.replace("UPDATE", &update.to_string());
    let seen = m.node(&program.replace("SPAN", &span.to_string()));
    assert_eq!(seen.ok(), "ELOCKED\n0 never compromised true\nfalse\n");
    assert_eq!(m.sh("ls -A").ok(), "");
}

/// Tests a lock class of Python's `lockfile` package: one object holds the lock, and another is
/// refused until the lock is released.
fn python_lockfile(m: &Mount, import: &str, class: &str) {
    m.py_with_packages(&format!(
        r#"
        import threading
        from lockfile import AlreadyLocked, LockTimeout, NotMyLock
        from {import} import {class}
        def refused(lock):
            try: lock.acquire(timeout=0)
            except (AlreadyLocked, LockTimeout): return True
        one = {class}('build')
        one.acquire(timeout=0)
        assert one.is_locked() and one.i_am_locking()
        eq(listed('.latchfs') != [], True)
        held = [name for name in listed() if status(name)['phase'] == 'held']
        assert 'build.lock' in held, held
        child = os.fork()
        if child == 0:
            os.chdir(os.environ['OTHERS'])
            other = {class}('build')
            assert refused(other) and other.is_locked() and not other.i_am_locking()
            try: other.release()
            except NotMyLock: os._exit(0)
            os._exit(1)
        eq(os.waitpid(child, 0)[1], 0)
        assert one.i_am_locking()
        one.release()
        assert not one.is_locked()
        with {class}('build') as again: assert again.i_am_locking()
        eq(listed(), [])
        "#
    ))
    .ok();
}

/// Python's `PIDLockFile` reads its pid back even with `mount --content status`, with which a lock
/// file normally shows its status as its content.
#[test]
fn python_pid_lock_file_with_status_content() {
    python_pid_lock_file(&Setup::new().with("--content status").start());
}

/// Python's `PIDLockFile` writes its pid to the lock file and reads it back.
fn python_pid_lock_file(m: &Mount) {
    m.py_with_packages(
        r#"
        from lockfile import AlreadyLocked
        from lockfile.pidlockfile import PIDLockFile
        one = PIDLockFile('build.pid')
        one.acquire(timeout=0)
        eq(pathlib.Path('build.pid').read_text().strip(), str(os.getpid()))
        assert one.is_locked() and one.i_am_locking() and one.read_pid() == os.getpid()
        child = os.fork()
        if child == 0:
            os.chdir(os.environ['OTHERS'])
            try: PIDLockFile('build.pid').acquire(timeout=0)
            except AlreadyLocked: os._exit(0)
            os._exit(1)
        eq(os.waitpid(child, 0)[1], 0)
        one.release()
        eq(listed(), [])
        "#,
    )
    .ok();
}

/// flufl.lock links a claim file of its own to the lock's name; it checks for two links of one
/// inode, and for the claim's name in the content. The mtime of the file, set to the future, is the
/// end of its lifetime.
fn flufl_lock(m: &Mount) {
    m.py_with_packages(
        r#"
        from datetime import timedelta
        from flufl.lock import AlreadyLockedError, Lock, LockState, NotLockedError, TimeOutError
        one = Lock('build.lock', lifetime=timedelta(seconds=20))
        one.lock(timeout=timedelta(seconds=1))
        assert one.is_locked and one.state is LockState.ours, one.state
        eq(one.details[1], os.getpid())
        eq(status('build.lock')['phase'], 'held')
        try: one.lock()
        except AlreadyLockedError: pass
        else: raise AssertionError('locked twice')
        one.refresh(timedelta(seconds=30))
        child = os.fork()
        if child == 0:
            os.chdir(os.environ['OTHERS'])
            other = Lock('build.lock', lifetime=timedelta(seconds=20))
            assert not other.is_locked
            try: other.lock(timeout=timedelta(milliseconds=300))
            except TimeOutError: os._exit(0)
            os._exit(1)
        eq(os.waitpid(child, 0)[1], 0)
        assert one.is_locked
        one.unlock()
        try: one.unlock()
        except NotLockedError: pass
        else: raise AssertionError('unlocked twice')
        with Lock('build.lock') as again: assert again.is_locked
        eq(listed(), [])
        "#,
    )
    .ok();
}

/// Tests Mercurial's own lock class, and `hg` in a directory that is a lock. The target of a
/// symbolic link names the process that has the lock; the lock of a dead process is broken.
fn mercurial(m: &Mount) {
    m.sh("hg init $T/repo && mkdir d && cd d && : > f && hg -R $T/repo status && rm f && cd .. &&
          rmdir d && rm -r $T/repo")
        .ok();
    let program = r#"
        from mercurial import error, lock, vfs
        def locked(where, timeout=0):
            return lock.lock(vfs.vfs(where), b'wlock', timeout=timeout, signalsafe=False)
        one = locked(b'.')
        assert os.readlink('wlock').endswith(':%d' % os.getpid()), os.readlink('wlock')
        eq(status('wlock')['phase'], 'held')
        child = os.fork()
        if child == 0:
            try: locked(os.fsencode(os.environ['OTHERS']))
            except error.LockHeld as held:
                os._exit(0 if held.locker.endswith(b':%d' % os.getppid()) else 1)
            os._exit(2)
        eq(os.waitpid(child, 0)[1], 0)
        one.release()
        eq(listed(), [])
        child = os.fork()
        if child == 0:
            locked(b'.')
            os._exit(0)
        eq(os.waitpid(child, 0)[1], 0)
        one = locked(b'.', 5)
        eq(listed(), ['wlock'])
        one.release()
        eq(listed(), [])
        "#;
    m.py_by("/usr/bin/python3", program).ok();
}

/// `ln` of a lock that a shell has just made results in one inode with two links.
fn links_of_a_shell(m: &Mount) {
    for _ in 0..10 {
        let seen = m.sh("(set -C; echo x > a) && ln a b && stat -c '%i %h' a b").ok();
        let (one, two) = seen.trim_end().split_once('\n').expect("two lines");
        assert_eq!(one, two);
        assert!(one.ends_with(" 2"), "{seen}");
        m.sh("(set -C; echo x > a) 2>/dev/null").fails();
        m.sh("ln a b 2>/dev/null").fails();
        m.sh("rm a b").ok();
    }
}

/// Tests programs that query their working directory. The directory is a lock, and each program
/// makes locks below it.
fn programs_in_a_lock(m: &Mount) {
    let seen = m.sh("mkdir d && cd d && : > f && node -p 'process.cwd()' && : > g &&
          python3 -c 'import os; print(os.getcwd())' && perl -MCwd -e 'print getcwd, qq(\n)' &&
          rm f && /bin/pwd && rm g && cd .. && rmdir d");
    let dir = m.dir().join("d");
    assert_eq!(seen.ok(), format!("{}\n", dir.display()).repeat(4));
}

/// Of many processes that run a script with `set -C`, as manuals show it, one gets the lock.
fn noclobber_has_one_winner(m: &Mount) {
    let race = "for n in 1 2 3 4 5 6 7 8; do
            (set -C; : > build) 2>/dev/null && echo won &
        done; wait";
    for shell in ["sh", "bash"] {
        for _ in 0..20 {
            assert_eq!(m.sh(&format!("{shell} -c '{race}'; rm build")).ok(), "won\n");
        }
    }
}

/// Of many processes that run `mkdir` or `ln -s`, one gets the lock, also if they use two mounts.
fn mkdir_and_symlink_have_one_winner(m: &Mount) {
    one_of_two_mounts_wins(m, "$OTHERS");
}

/// Of many processes that use two mounts of one daemon, one gets the lock.
#[test]
fn mkdir_and_symlink_have_one_winner_on_two_mounts_of_one_daemon() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    one_of_two_mounts_wins(&m, "$D2");
}

fn one_of_two_mounts_wins(m: &Mount, second: &str) {
    for form in ["mkdir", "ln -s x"] {
        let race = format!(
            "for dir in $D {second} $D {second} $D {second}; do
                 {form} $dir/build 2>/dev/null && echo $dir &
             done; wait"
        );
        for _ in 0..20 {
            let winner = m.sh(&race).ok();
            assert_eq!(winner.lines().count(), 1, "{form}: {winner}");
            m.sh(&format!("rm -d {}/build", winner.trim())).ok();
        }
    }
}
