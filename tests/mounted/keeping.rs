//! Operations that renew a lock or write to it: times, ttls and text; and open files whose lease is
//! over.

use testing::*;

/// `touch NAME` and utimensat renew the lease of a lock.
#[test]
fn touch_renews() {
    let m = mount();
    m.sh("touch build").ok();
    let before = m.status("build");
    eventually("a later renewal", || {
        m.sh("touch build").ok();
        let now = m.status("build");
        let later = |field: &str| text(&now[field]) > text(&before[field]);
        (later("renewed_at") && later("expires_at")).then_some(())
    });
    let after = m.status("build");
    assert_eq!(after["token"], before["token"]);
    assert_eq!(after["acquired_at"], before["acquired_at"]);
    m.sh("mkdir dir && touch dir && ln -s x link && touch -h link").ok();
}

/// utimensat stores the times exactly as given, to the nanosecond, even if they are in the future.
#[test]
fn times_are_kept_as_given() {
    let m = mount();
    m.py(r#"
        os.close(exclusive('file')); os.mkdir('dir'); os.symlink('x', 'link')
        for name in ('file', 'dir', 'link'):
            for mtime in (1, 1_700_000_000_123_456_789, 4_102_444_800_987_654_321):
                os.utime(name, ns=(mtime + 5, mtime), follow_symlinks=False)
                seen = os.lstat(name)
                eq((seen.st_atime_ns, seen.st_mtime_ns), (mtime + 5, mtime))
        # Node and proper-lockfile look at milliseconds.
        os.utime('file', (1_700_000_000.005, 1_700_000_000.005))
        eq(os.stat('file').st_mtime_ns // 1_000_000, 1_700_000_000_005)
        before = time.time_ns() - 1_000_000_000
        os.utime('file')
        assert before < os.stat('file').st_mtime_ns < before + 60_000_000_000
    "#)
        .ok();
    m.sh("touch -d '2001-02-03 04:05:06.789012345 UTC' file").ok();
    assert_eq!(m.sh("date -u -r file +%FT%T.%N").ok(), "2001-02-03T04:05:06.789012345\n");
}

/// `touch` of a lock that another client holds gets EBUSY.
#[test]
fn touch_by_another_is_busy() {
    let m = mount();
    m.sh_as(ALICE, "touch file; mkdir dir; ln -s x link").ok();
    for name in ["file", "dir"] {
        assert!(m.sh_as(BOB, &format!("touch {name}")).exits(1).contains("busy"), "{name}");
        assert!(m.sh(&format!("touch {name}")).exits(1).contains("busy"), "{name}, root");
    }
    m.py(r#"
        for name in ('file', 'dir', 'link'):
            token = status(name)['token']
            with user(B):
                eq(no(os.utime, name, follow_symlinks=False), 'EBUSY')
                eq(no(os.utime, name, ns=(1, 1), follow_symlinks=False), 'EBUSY')
                assert name in why() and 'laptop1:' + A in why(), why()
            eq((status(name)['token'], status(name)['holder']), (token, 'laptop1:' + A))
    "#)
        .ok();
}

/// If a client that does not hold a lock opens the lock's file for writing, and neither writes to
/// it nor locks it, its close(2) fails with EBUSY. After a write, even a refused one, close returns
/// 0.
#[test]
fn closing_a_lock_of_another_is_busy() {
    let m = mount();
    m.py(r#"
        with user(A): os.close(exclusive('build'))
        with user(B):
            eq(no(pathlib.Path('build').touch), 'EBUSY')
            fd = os.open('build', os.O_WRONLY)
            eq(no(os.write, fd, b'60s\n'), 'EBUSY')
            eq(no(os.close, fd), 'ok')
            fd = os.open('build', os.O_RDONLY)
            eq(no(os.close, fd), 'ok')
        with user(A): pathlib.Path('build').touch()
    "#)
        .ok();
    let touch = "try { const f = require('fs'); f.closeSync(f.openSync('build', 'w')); \
                 console.log('ok') } catch (e) { console.log(e.code) }";
    assert_eq!(m.node(touch).ok(), "EBUSY\n");
    m.sh_as(ALICE, "rm build").ok();
    assert_eq!(m.node(touch).ok(), "ok\n");
}

/// `echo 60s > NAME` by the holder renews the lease with that ttl; for other clients the write gets
/// EBUSY.
#[test]
fn writing_a_ttl_renews_with_it() {
    let m = mount();
    m.sh_as(ALICE, "mkdir dir; touch build; echo 60s > build").ok();
    let status = m.status("build");
    assert_eq!(status["ttl_ms"], 60_000);
    let left = status["expires_in_ms"].as_u64().expect("a number");
    assert!((50_000..=60_000).contains(&left), "{left}");
    m.sh_as(ALICE, "echo 1m30s > build && touch build").ok();
    assert_eq!(m.status("build")["ttl_ms"], 90_000, "a touch keeps the ttl");
    m.sh_as(BOB, "echo 60s > build").fails();
    m.py(r#"
        for who in (B, 'root'):
            with user(who):
                eq(write('build', '60s\n'), 'EBUSY')
                assert "'build'" in why() and 'laptop1:' + A in why(), why()
        eq(status('build')['ttl_ms'], 90_000)
        with user(A):
            for wrong in ('500ms', '0s', '-5s', '25h', '99999999999999999999h'):
                eq(write('build', wrong), 'EINVAL')
                assert 'ttl' in why(), why()
        eq(status('build')['ttl_ms'], 90_000)
    "#)
        .ok();
}

/// Truncation by the holder empties the lock's text; by other clients it does nothing. It never
/// fails.
#[test]
fn truncation_empties_the_holders_text_only() {
    let m = mount();
    m.py(r#"
        with user(A):
            fd = exclusive('build')
            os.write(fd, b'hello\n')
            os.close(fd)
        with user(B):
            os.truncate('build', 0)
            fd = os.open('build', os.O_WRONLY | os.O_TRUNC)
            eq(no(os.close, fd), 'EBUSY')
        eq(pathlib.Path('build').read_text(), 'hello\n')
        with user(A): os.truncate('build', 0)
        eq(pathlib.Path('build').read_text(), '')
        eq(status('build')['phase'], 'held')
    "#)
        .ok();
}

/// `echo '{"ttl":"60s","note":"..."}' > NAME` renews the lease and sets its ttl and its note (a
/// text that is shown with the lock), if all keys of the JSON object are known.
#[test]
fn writing_json_renews_with_options() {
    let m = mount();
    m.py(r#"
        os.close(exclusive('build'))
        eq(write('build', '{"ttl":"60s","grace":"3s","note":"nightly"}\n'), 'ok')
        seen = status('build')
        eq((seen['ttl_ms'], seen['grace_ms'], seen['note']), (60_000, 3_000, 'nightly'))
        eq(write('build', '{"note":"later"}'), 'ok')
        seen = status('build')
        eq((seen['ttl_ms'], seen['grace_ms'], seen['note']), (60_000, 3_000, 'later'))
        for wrong in ('{"ttl":"500ms"}', '{"ttl":"soon"}', '{"ttl":60}', '{"grace":"-1s"}'):
            eq((wrong, write('build', wrong)), (wrong, 'EINVAL'))
            assert why(), wrong
        eq(status('build')['ttl_ms'], 60_000)
        with user(A): eq(write('build', '{"ttl":"60s"}'), 'EBUSY')

        # Another program's JSON is that program's text.
        eq(write('build', '{"ttl":"20s","user":"me"}'), 'ok')
        seen = status('build')
        eq((seen['ttl_ms'], seen['note']), (60_000, 'later'))
        eq(pathlib.Path('.latchfs/content/build').read_text(), '{"ttl":"20s","user":"me"}')
    "#)
        .ok();
}

/// A write of any other text, even a bare number (programs write their pid), renews the lease and
/// becomes the content of the lock: 4 KiB at most, otherwise it gets EFBIG. `O_APPEND` appends;
/// each WRITE request is one message.
#[test]
fn other_text_is_stored() {
    let m = mount();
    m.py(r#"
        kept = lambda: pathlib.Path('.latchfs/content/build').read_bytes()
        os.close(exclusive('build'))
        for text in (b'60', b'4711\n', b'host:4711', b'\x00\xff binary', b'x' * 4096):
            eq(write('build', text), 'ok')
            eq(kept(), text)
        eq(write('build', b'y' * 4097), 'EFBIG')
        assert "'build'" in why() and '4096' in why(), why()
        eq(write('build', b'one\n'), 'ok')
        fd = os.open('build', os.O_WRONLY | os.O_APPEND)
        os.write(fd, b'two\n')
        os.write(fd, b'60s')
        os.close(fd)
        with open('build', 'a') as file: file.write('three\n')
        assert kept().startswith(b'one\ntwo\n') and kept().endswith(b'three\n'), kept()
        fd = os.open('build', os.O_WRONLY | os.O_APPEND)
        eq(no(os.write, fd, b'z' * 4096), 'EFBIG')
        os.fsync(fd)
        os.close(fd)
        with user(A): eq(write('build', 'text'), 'EBUSY')
        assert kept().startswith(b'one\n'), kept()
    "#)
        .ok();
    m.sh("echo 4711 > build && test \"$(cat .latchfs/content/build)\" = 4711").ok();
}

/// A write to an open file gets ESTALE if the lease under which the file was opened is over, even
/// when the same owner has acquired the lock again since.
#[test]
fn a_file_of_an_ended_tenure_is_stale() {
    let m = mount();
    m.py(r#"
        old = exclusive('build')
        os.remove('build')
        eq(no(os.write, old, b'60s\n'), 'ESTALE')
        new = exclusive('build')
        eq(no(os.write, old, b'60s\n'), 'ESTALE')
        eq(no(os.write, old, b'text\n'), 'ESTALE')
        assert "'build'" in why(), why()
        eq(no(os.write, new, b'text\n'), 'ok')
        eq(status('build')['ttl_ms'], 30_000)
        os.remove('build')
        with user(A): os.close(exclusive('build'))
        eq(no(os.write, new, b'text\n'), 'ESTALE')
        eq(no(os.close, new), 'ok')
    "#)
        .ok();
}

/// When the ttl and the grace period of a lock are over, writes through the open file that acquired
/// the lock get ESTALE, and other clients can get the lock.
#[test]
fn a_file_of_a_lost_lock_is_stale() {
    let m = Setup::new().with("--ttl 1s --grace 0s").start();
    m.py(r#"
        fd = exclusive('build')
        token = status('build')['token']
        assert any(status('build')['phase'] == 'free' or time.sleep(0.02) for _ in range(500))
        eq(no(os.write, fd, b'60s\n'), 'ESTALE')
        assert 'acquire' in why() or 'stop' in why(), why()
        eq(listed(), [])
        with user(A): os.close(exclusive('build'))
        assert status('build')['token'] > token
        eq(no(os.write, fd, b'60s\n'), 'ESTALE')
    "#)
        .ok();
}

/// While a lock is in the grace period after its ttl, requests of other clients for it are refused,
/// and the message says so. The holder can still renew the lease, under the same token.
#[test]
fn grace_is_the_holders() {
    let m = Setup::new().with("--ttl 1s --grace 1h").start();
    m.sh_as(ALICE, "mkdir build").ok();
    let token = m.token("build");
    m.until("build", "grace");
    assert_eq!(m.status("build")["is_expired"], true);
    m.py(r#"
        with user(B):
            eq(no(os.utime, 'build'), 'EBUSY')
            eq(no(os.mkdir, 'build'), 'EEXIST')
            assert 'grace' in why() and 'laptop1:' + A in why(), why()
    "#)
        .ok();
    m.sh_as(ALICE, "echo 1h > build/ctl").ok();
    assert_eq!((m.phase("build").as_str(), m.token("build")), ("held", token));
}
