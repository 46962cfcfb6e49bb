//! Truncations of the files of locks: heartbeats of the lease's own programs, and the first half of
//! `exec 9>NAME; flock -n 9` in programs that have nothing to do with the lease.

use testing::*;

/// The functions that the Python programs of these tests use.
const HELPERS: &str = r#"
def renewed_by(call, name='build'):
    'Whether the call moves the end of the lease, under the same token.'
    before = status(name)
    time.sleep(0.02)
    call()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        after = status(name)
        eq(after['token'], before['token'])
        if after['expires_at'] > before['expires_at']: return True
        time.sleep(0.01)
    return False

def shell(script, **how):
    return subprocess.run(['bash', '-c', script], stderr=subprocess.DEVNULL, **how).returncode
"#;

fn py(m: &Mount, program: &str) {
    m.py(&format!("{HELPERS}\n{}", dedent(program))).ok();
}

/// Every form of truncation by the process that made the lease renews it.
#[test]
fn a_truncation_by_its_maker_renews() {
    let m = mount();
    py(
        &m,
        r#"
        def opened(): open('build', 'w').close()
        def by_flags(): os.close(os.open('build', os.O_WRONLY | os.O_TRUNC))
        def by_path(): os.truncate('build', 0)
        def by_file():
            with open('build', 'r+') as file: os.ftruncate(file.fileno(), 0)
        def of_a_text():
            fd = os.open('build', os.O_WRONLY | os.O_TRUNC)
            eq(no(os.close, fd), 'ok')
        os.close(exclusive('build'))
        for call in (opened, by_flags, by_path, by_file, of_a_text):
            assert renewed_by(call), call
    "#,
    );
}

/// Every form by another process of the maker's login session renews when the file is closed.
#[test]
fn a_truncation_by_the_login_session_renews() {
    let m = mount();
    py(
        &m,
        r#"
        os.close(exclusive('build'))
        for script in (': > build', 'truncate -s 0 build', 'cp /dev/null build',
                       'python3 -c "open(\\"build\\", \\"w\\")"', 'true > build'):
            assert renewed_by(lambda: eq(shell(script), 0)), script
        # A heartbeat in the background of the script that made the lock.
        eq(shell('''
            set -C; > held; set +C
            first=$(grep -o '"expires_at".*' .latchfs/status/held)
            ( sleep 0.05; : > held ) & wait $!
            for i in $(seq 500); do
                [ "$first" != "$(grep -o '"expires_at".*' .latchfs/status/held)" ] && exit 0
                sleep 0.01
            done
            exit 1
        '''), 0)
    "#,
    );
}

/// A heartbeat of `: >` that has lost its lease fails as long as it goes on, also when another
/// program of the same user has the lock by then, and begins no new tenure.
#[test]
fn a_heartbeat_that_has_lost_its_lease_fails() {
    let m = Setup::new().with("--ttl 1s --grace 100ms").start();
    py(
        &m,
        r#"
        beat = subprocess.Popen(
            ['bash', '-c', 'set -C; > beat; set +C; echo made; '
             'while read -r _; do { : > beat; } && echo renewed || echo lost; done'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        def line(): return beat.stdout.readline().strip()
        def next_beat():
            beat.stdin.write('\n'); beat.stdin.flush()
            return line()
        eq(line(), 'made')
        token = status('beat')['token']
        eq(next_beat(), 'renewed')
        while status('beat')['phase'] != 'free': time.sleep(0.05)
        # The lock is free, and a plain `>` by this program would take it.
        for _ in range(3): eq(next_beat(), 'lost')
        eq(status('beat')['phase'], 'free')
        assert str(token) in why() and 'over' in why(), why()
        # Another program of the user has the lock.
        os.close(exclusive('beat'))
        eq(next_beat(), 'lost')
        later = status('beat')['token']
        assert later > token
        os.remove('beat')
        eq(next_beat(), 'lost')
        eq(status('beat')['phase'], 'free')
        beat.stdin.close(); beat.wait()
    "#,
    );
}

/// A process that has lost its lease takes the lock by `touch` or `O_EXCL` again, and then
/// truncations renew the new lease. After a release, a plain `>` takes the lock.
#[test]
fn a_lost_lease_is_forgotten_when_the_lock_is_taken_anew() {
    let m = Setup::new().with("--ttl 1s --grace 100ms").start();
    py(
        &m,
        r#"
        def lose():
            while status('build')['phase'] != 'free': time.sleep(0.05)
        os.close(exclusive('build'))
        lose()
        eq(no(open, 'build', 'w'), 'ESTALE')
        eq(no(os.open, 'build', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 'ESTALE')
        os.close(exclusive('build'))
        token = status('build')['token']
        open('build', 'w').close()
        eq(status('build')['token'], token)
        os.remove('build')
        open('build', 'w').close()
        assert status('build')['token'] > token
        lose()
        eq(no(open, 'build', 'w'), 'ESTALE')
        # A file that is locked: opening it in any way is the first half of flock for others.
        eq(shell('exec 9> build; flock -n 9'), 0)
        fd = os.open('build', os.O_WRONLY | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.close(fd)
        with open('build', 'w') as file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    "#,
    );
}

/// A job that polls by `exec 9>NAME; flock -n 9` does not keep the lock of a killed holder alive,
/// whether it runs in the holder's login session or in another one, and none of its opens fails.
#[test]
fn a_job_that_polls_does_not_keep_the_lock_of_a_killed_holder() {
    let m = Setup::new().with("--ttl 2s --grace 100ms").start();
    py(
        &m,
        r#"
        for apart in (False, True):
            for made_by in ('set -C; > build', '> build', 'touch build'):
                holder = subprocess.Popen(['bash', '-c', made_by + '; set +C; echo text > build; '
                                           ': > build; echo made; read'],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                eq(holder.stdout.readline(), b'made\n')
                token = status('build')['token']
                holder.kill(); holder.wait()
                deadline = time.monotonic() + 30
                while True:
                    assert time.monotonic() < deadline, (apart, made_by, status('build'))
                    poll = 'exec 9> build || exit 7; flock -n 9 || exit 8'
                    done = shell(poll, start_new_session=apart)
                    if done == 0: break
                    eq(done, 8)
                    time.sleep(0.1)
                eq(status('build')['phase'], 'free')
    "#,
    );
}

/// A truncation by a process of another login session changes nothing, and never fails.
#[test]
fn a_truncation_by_other_processes_changes_nothing() {
    let m = mount();
    py(
        &m,
        r#"
        fd = exclusive('build')
        os.write(fd, b'mine\n')
        os.close(fd)
        before = status('build')
        for script in (': > build', 'truncate -s 0 build', 'cp /dev/null build', 'exec 9> build'):
            eq((script, shell(script, start_new_session=True)), (script, 0))
        after = status('build')
        eq((after['token'], after['expires_at']), (before['token'], before['expires_at']))
        eq(pathlib.Path('build').read_text(), 'mine\n')
    "#,
    );
}
