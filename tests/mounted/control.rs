//! The control directory `DIR/.latchfs` and its files.

use testing::*;

/// `DIR/.latchfs/` exists, but the mount does not list it, and it can't be changed.
#[test]
fn control_directory_exists_but_is_not_listed() {
    let m = mount();
    assert_eq!(m.sh("ls -A").ok(), "");
    let inside = m.sh("ls .latchfs").ok();
    for name in ["README", "status", "content", "metrics", "server", "why"] {
        assert!(inside.lines().any(|line| line == name), "{name} is not in {inside}");
    }
    assert!(m.sh("cat .latchfs/README").ok().contains("mkdir"));
    m.sh("find . -delete 2>/dev/null; cat .latchfs/README").ok();
    m.py(r#"
        for call, name in (
            (os.mkdir, '.latchfs/new'), (exclusive, '.latchfs/new'), (os.rmdir, '.latchfs'),
            (os.remove, '.latchfs/README'), (os.rmdir, '.latchfs/status'),
            (exclusive, '.latchfs/README'), (os.mkdir, '.latchfs'),
        ):
            assert no(call, name) in ('EPERM', 'EACCES', 'EEXIST', 'EBUSY'), (name, no(call, name))
        eq(no(os.rename, '.latchfs', 'x') == 'ok', False)
        os.close(exclusive('build'))
        eq(no(os.rename, 'build', '.latchfs/x') == 'ok', False)
        eq(no(os.link, 'build', '.latchfs/status/y') == 'ok', False)
        eq(listed(), ['build'])
    "#)
        .ok();
}

/// `status/NAME` contains the lock's status as JSON, even if the lock is free, and `content/NAME`
/// contains the text that was written to the lock.
#[test]
fn status_and_content_are_found_by_name() {
    let m = mount();
    m.sh("mkdir -p team && touch team/build && echo hello > team/build").ok();
    assert_eq!(m.status("team/build")["holder"], "laptop1:root");
    assert_eq!(json(&m.sh("cat team/build").ok())["token"], m.status("team/build")["token"]);
    assert_eq!(m.sh("cat .latchfs/content/team%2Fbuild").ok(), "hello\n");
    assert_eq!(m.status("no/such/lock")["phase"], "free");
    assert_eq!(m.phase("team"), "held");
    assert_eq!(m.sh("ls").ok(), "team\n", "looking is not taking");
    // Each open of the file in `status/` shows the lock's current status.
    m.py(r#"
        eq(status('build')['phase'], 'free')
        os.mkdir('build')
        eq(status('build')['phase'], 'held')
        os.rmdir('build')
        eq(status('build')['phase'], 'free')
    "#)
        .ok();
}

/// A path below `.latchfs/status/` or `.latchfs/content/` is a directory while the lock of that
/// name has locks below it, and a file otherwise. A path in which each slash of the lock's name is
/// written as `%2F`, or which begins with `%2F`, is always a file.
#[test]
fn a_status_can_always_be_read() {
    let m = mount();
    m.py(r#"
        def of(path):
            text = pathlib.Path('.latchfs/status/' + path).read_text()
            return json.loads(text)['name'], json.loads(text)['phase']
        def always():
            eq(of('team%2Fbuild')[0], 'team/build')
            eq(of('%2Fteam')[0], 'team')
            eq(of('%2Fteam%2Fbuild')[0], 'team/build')
        # Nothing is held; then team alone; then a lock below it; then only that.
        always()
        eq(of('team'), ('team', 'free'))
        os.mkdir('team')
        always()
        eq(of('team'), ('team', 'held'))
        os.mkdir('team/build')
        always()
        eq(of('team/build'), ('team/build', 'held'))
        eq(of('team/other'), ('team/other', 'free'))
        eq(no(of, 'team'), 'EISDIR')
        eq(of('%2Fteam'), ('team', 'held'))
        eq(listed('.latchfs/status/team'), [])
        os.mkdir('team/build/deep')
        always()
        eq(of('team/build/deep'), ('team/build/deep', 'held'))
        eq(of('team/build%2Fdeep'), ('team/build/deep', 'held'))
        eq(of('%2Fteam%2Fbuild')[1], 'held')
        os.rmdir('team/build/deep')
        subprocess.run(['latchfs', 'release', 'team'], check=True, stdout=subprocess.DEVNULL)
        always()
        eq((of('team/build')[1], of('%2Fteam')[1]), ('held', 'free'))
        # The sentence that sends a program there names a file.
        with user(B):
            fd = os.open('team/build/ctl', os.O_WRONLY)
            eq(no(os.close, fd), 'EBUSY')
            path = why().split('read ')[1].split(' for')[0]
            eq(json.loads(pathlib.Path(path).read_text())['name'], 'team/build')
        "#)
        .ok();
}

/// The file `.latchfs/metrics` contains metrics in the Prometheus text format. Its counters change
/// when locks are acquired and released.
#[test]
fn metrics_change_with_each_lease() {
    let m = mount();
    let acquired = || {
        let shown = m.sh("cat .latchfs/metrics").ok();
        for line in shown.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("name and value");
            assert!(["latchfs_", "process_"].iter().any(|it| name.starts_with(it)), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(shown.contains("# TYPE latchfs_"), "{shown}");
        shown
    };
    let before = acquired();
    m.sh("mkdir build; rmdir build; mkdir build").ok();
    assert_ne!(acquired(), before, "two tenures show in the numbers");
}

/// The file `.latchfs/server` describes the backend of the mount as JSON.
#[test]
fn server_file_describes_the_backend() {
    let m = mount();
    m.sh("mkdir a b").ok();
    let server = json(&m.sh("cat .latchfs/server").ok());
    assert_eq!(server["kind"], "embedded");
    assert_eq!(server["locks"], 2);
    assert!(text(&server["state"]).contains(&m.state().display().to_string()), "{server}");
}

/// The file `.latchfs/why` contains the message of the last refusal of a request by the calling
/// user; the message suggests what the user can do next.
#[test]
fn why_shows_the_callers_own_refusal() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build").ok();
    m.sh_as(BOB, "mkdir other").ok();
    m.py(r#"
        with user(B):
            eq(no(os.mkdir, 'build'), 'EEXIST')
            said = why()
            assert said.startswith(f"lock 'build' is held by laptop1:{A} for "), said
            assert 'wait' in said or 'try again' in said, said
            eq(json.loads(pathlib.Path('.latchfs/why').read_text())['kind'], 'E_LOCK_CONFLICT')
        with user(A):
            eq(no(os.rmdir, 'other'), 'EPERM')
            assert "'other'" in why(), why()
            eq(json.loads(pathlib.Path('.latchfs/why').read_text())['kind'], 'E_LOCK_NOT_HELD')
        with user(B): assert "'build'" in why(), why()
    "#)
        .ok();
    json(&m.sh("cat .latchfs/why").ok());
}

/// A program sends requests through the file `.latchfs/ctl`: each write is one request, and the
/// program then reads the answer up to the end of the file.
#[test]
fn ctl_answers_requests() {
    let m = mount();
    m.py(r#"
        fd = os.open('.latchfs/ctl', os.O_RDWR)
        def ask(**request):
            os.write(fd, json.dumps(request).encode())
            answer = b''
            while part := os.read(fd, 65536): answer += part
            assert answer.endswith(b'\n') and answer.count(b'\n') == 1, answer
            return json.loads(answer)
        got = ask(do='acquire', name='team/build', ttl='60s', note='nightly')
        eq((got['ok'], got['status']['holder'], got['status']['note']),
           (True, 'laptop1:root', 'nightly'))
        token = got['status']['token']
        again = ask(do='acquire', name='team/build', reentrant=True)
        eq(again['status']['token'], token)
        eq(ask(do='acquire', name='team/build')['kind'], 'E_LOCK_CONFLICT')
        eq(ask(do='renew', name='team/build', token=token, ttl='90s')['status']['ttl_ms'], 90_000)
        eq(ask(do='renew', name='team/build', token=token + 1)['kind'], 'E_FENCING_MISMATCH')
        eq(ask(do='renew', name='free')['kind'], 'E_LOCK_NOT_HELD')
        eq(ask(do='status', name='free')['status']['phase'], 'free')
        for name in ('a', 'b', 'c'): ask(do='acquire', name=name)
        first = ask(do='list', limit=3)
        eq([lock['name'] for lock in first['locks']], ['a', 'b', 'c'])
        rest = ask(do='list', after=first['next'])
        eq(([lock['name'] for lock in rest['locks']], rest['next']), (['team/build'], None))
        eq(len(ask(do='list', prefix='team/')['locks']), 1)
        eq(ask(do='about')['kind'], 'embedded') if 'kind' in ask(do='about') else None
        gone = ask(do='release', name='team/build', token=token)
        eq((gone['ok'], gone['status']['phase']), (True, 'free'))
        eq(ask(do='release', name='team/build')['ok'], False)
        eq(listed(), ['a', 'b', 'c'])
    "#)
        .ok();
}

/// A request to `.latchfs/ctl` can acquire a shared lock, which may have several holders, each with
/// a lease of its own.
#[test]
fn ctl_acquires_shared_locks() {
    let m = mount();
    m.py(r#"
        def ask(**request):
            fd = os.open('.latchfs/ctl', os.O_RDWR)
            os.write(fd, json.dumps(request).encode())
            answer = json.loads(os.read(fd, 65536))
            os.close(fd)
            return answer
        with user(A): eq(ask(do='acquire', name='db', mode='shared')['status']['mode'], 'shared')
        with user(B): eq(ask(do='acquire', name='db', mode='shared')['ok'], True)
        eq(ask(do='acquire', name='db')['kind'], 'E_LOCK_CONFLICT')
        with user(A): eq(ask(do='release', name='db')['ok'], True)
        eq(status('db')['holder'], 'laptop1:' + B)
    "#)
        .ok();
}

/// A request to `.latchfs/ctl` can steal a lock, if it gives a reason and its user has the
/// permission. The new holder gets a new token.
#[test]
fn ctl_steals_for_root() {
    let m = mount();
    m.py(r#"
        def ask(**request):
            fd = os.open('.latchfs/ctl', os.O_RDWR)
            os.write(fd, json.dumps(request).encode())
            answer = json.loads(os.read(fd, 65536))
            os.close(fd)
            return answer
        with user(A):
            fd = exclusive('build')
            token = status('build')['token']
        with user(B):
            eq(ask(do='steal', name='build', reason='because')['kind'], 'E_DENIED')
        eq(ask(do='steal', name='build', reason='')['kind'], 'E_INVALID')
        eq(ask(do='steal', name='build')['kind'], 'E_INVALID')
        eq(status('build')['token'], token)
        got = ask(do='steal', name='build', reason='its host is gone')
        eq((got['ok'], got['status']['holder']), (True, 'laptop1:root'))
        assert got['status']['token'] > token
        # For a moment nobody may use it: the old holder has time to stop.
        assert got['status']['expires_in_ms'] > 30_000, got
        with user(A):
            eq(no(os.write, fd, b'60s'), 'ESTALE')
            eq(no(os.remove, 'build'), 'EPERM')
            eq(no(os.mkdir, 'build'), 'EEXIST')
            assert 'taken over' in why(), why()
    "#)
        .ok();
}
