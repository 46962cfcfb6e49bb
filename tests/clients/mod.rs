//! Programs that lock by files and know nothing of latchfs, as their packages bring them.

use crate::harness::*;

/// dotlockfile: a file of its own, linked to the lock's name; release by unlink.
#[test]
fn dotlockfile() {
    let m = mount();
    m.sh("dotlockfile -l -r 0 build.lock").ok();
    assert_eq!(m.status("build.lock")["holder"], "laptop1:root");
    assert_eq!(m.sh("ls -A").ok(), "build.lock\n", "its own file is gone");
    // -p writes the pid of the caller, who lives; without retries it gives up at once.
    m.sh("dotlockfile -u build.lock && dotlockfile -l -p -r 0 build.lock; echo $$; cat build.lock")
        .ok();
    let held = "exec 2>&1; dotlockfile -l -r 0 build.lock";
    assert_ne!(m.sh_as(ALICE, held).code, 0);
    m.sh("dotlockfile -t build.lock").ok();
    m.sh_as(ALICE, "dotlockfile -u build.lock").code.to_string();
    assert_eq!(m.phase("build.lock"), "held", "another can't unlock it");
    m.sh("dotlockfile -u build.lock").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
    m.sh_as(ALICE, "dotlockfile -l -r 0 build.lock").ok();
}

/// dotlockfile around a command: held while it runs, free behind it.
#[test]
fn dotlockfile_around_a_command() {
    let m = mount();
    m.sh("dotlockfile -r 0 build.lock sh -c 'grep -q held .latchfs/status/build.lock'").ok();
    assert_eq!(m.phase("build.lock"), "free");
}

/// lockfile-create, -touch, -check, -remove.
#[test]
fn lockfile_progs() {
    let m = mount();
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

/// procmail's lockfile: linked into place, released by rm -f.
#[test]
fn procmail_lockfile() {
    let m = mount();
    m.sh("lockfile -r 0 build.lock").ok();
    assert_eq!(m.sh("ls -A").ok(), "build.lock\n");
    assert!(m.sh("lockfile -r 0 build.lock").fails().contains("Sorry"));
    m.sh_as(ALICE, "lockfile -r 0 build.lock").fails();
    m.sh("rm -f build.lock && lockfile -r 0 build.lock && rm -f build.lock").ok();
    m.sh_as(ALICE, "lockfile -r 0 build.lock").ok();
}

/// procmail's lockfile takes a lock by force when its time is older than told. A lock that is
/// held by another is not taken: the unlink is refused.
#[test]
fn procmail_lockfile_by_force() {
    let m = mount();
    m.sh_as(ALICE, "touch build.lock && touch -d '1 hour ago' build.lock").ok();
    let tried = m.sh_as(BOB, "timeout 1 lockfile -1 -l 60 -s 0 build.lock").fails();
    assert!(tried.contains("denied"), "{tried}");
    assert_eq!(m.status("build.lock")["holder"], format!("laptop1:{ALICE}"));
}

/// npm `lockfile`: `O_EXCL`, unlink, and a look at times for stale ones.
#[test]
fn npm_lockfile() {
    let m = mount();
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

/// npm `proper-lockfile`: mkdir, a probe of the file system's time, and its own refresh every
/// five seconds for thirty: never compromised, and a second process gets ELOCKED all the time.
#[test]
fn npm_proper_lockfile() {
    let m = Setup::new().with("--ttl 12s --grace 0s").start();
    m.sh("echo data > $T/data").ok();
    let seen = m.node(
        "const lockfile = require('proper-lockfile');
         const { spawn } = require('child_process');
         const path = { lockfilePath: 'build.lock', stale: 10000, update: 5000 };
         const file = process.env.T + '/data';
         const second = `
             const lockfile = require('proper-lockfile');
             const path = { lockfilePath: 'build.lock', stale: 10000 };
             const codes = {};
             const ends = Date.now() + 30000;
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
             const other = spawn(process.execPath, ['-e', second], { stdio: 'inherit' });
             other.on('exit', async (code) => {
                 console.log(code, compromised, await lockfile.check(file, path));
                 await release();
                 console.log(await lockfile.check(file, path));
             });
         });",
    );
    assert_eq!(seen.ok(), "ELOCKED\n0 never compromised true\nfalse\n");
    assert_eq!(m.sh("ls -A").ok(), "");
}

/// What a lock class of Python's `lockfile` package does: held by one object, refused to
/// another, given back, had by the other.
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

/// Python lockfile, by hard links.
#[test]
fn python_link_lock_file() {
    python_lockfile(&mount(), "lockfile.linklockfile", "LinkLockFile");
}

/// Python lockfile, by directories.
#[test]
fn python_mkdir_lock_file() {
    python_lockfile(&mount(), "lockfile.mkdirlockfile", "MkdirLockFile");
}

/// Python lockfile, by symlinks.
#[test]
fn python_symlink_lock_file() {
    python_lockfile(&mount(), "lockfile.symlinklockfile", "SymlinkLockFile");
}

/// Python lockfile, by a pid in the file, which it reads back.
#[test]
fn python_pid_lock_file() {
    for content in ["note", "status"] {
        let m = Setup::new().with(&format!("--content {content}")).start();
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
}

/// `set -C` in a script, as manuals show it: one of many wins.
#[test]
fn noclobber_has_one_winner() {
    let m = mount();
    let race = "for n in 1 2 3 4 5 6 7 8; do
            (set -C; : > build) 2>/dev/null && echo won &
        done; wait";
    for shell in ["sh", "bash"] {
        for _ in 0..20 {
            assert_eq!(m.sh(&format!("{shell} -c '{race}'; rm build")).ok(), "won\n");
        }
    }
}

/// The same with `mkdir` and `ln -s`, from two mounts.
#[test]
fn mkdir_and_symlink_have_one_winner() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    for form in ["mkdir", "ln -s x"] {
        let race = format!(
            "for dir in $D $D2 $D $D2 $D $D2; do
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
