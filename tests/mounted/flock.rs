//! flock, fcntl and OFD locks: modes, byte ranges, `F_GETLK`, deadlock detection.

use crate::locking::locks_py;
use testing::*;

/// The only shared holder upgrades its lock to exclusive, which gives it a new token, and
/// downgrades it again under that token. The open file is bound to the new token: it can be
/// unlocked and written to.
#[test]
fn upgrade_and_downgrade() {
    let m = mount();
    locks_py(
        &m,
        r#"
        for kind in ('flock', 'fcntl', 'ofd'):
            one, other = Peer(A), Peer(B)
            for peer in (one, other): peer(f'fd = opened({kind!r})')
            one(f'lock(fd, "{kind}_sh")')
            token = status(kind)['token']
            one(f'lock(fd, "{kind}_ex")')
            alone = status(kind)
            eq((alone['mode'], alone['token'] > token), ('exclusive', True))
            token = alone['token']
            eq(other(f'no(lock, fd, "{kind}_sh")'), 'EAGAIN')
            one(f'lock(fd, "{kind}_sh")')
            eq((status(kind)['mode'], status(kind)['token']), ('shared', token))
            other(f'lock(fd, "{kind}_sh")')
            # Two readers: neither can write at once.
            eq(one(f'no(lock, fd, "{kind}_ex")'), 'EAGAIN')
            one.start(f'lock(fd, "{kind}_ex", wait=True)')
            until(lambda: waits(one.pid))
            other(f'unlock(fd, "{kind}_sh")')
            eq(one.answer(), None)
            eq((status(kind)['holder'], status(kind)['mode']), ('laptop1:' + A, 'exclusive'))
            # What waits for the writer comes in when it only reads.
            other.start(f'lock(fd, "{kind}_sh", wait=True)')
            until(lambda: waits(other.pid))
            one(f'lock(fd, "{kind}_sh")')
            eq(other.answer(), None)
            for peer in (one, other): peer.end()
        until(lambda: listed() == [])
        "#,
    )
    .ok();
}

/// When one open file of the holder upgrades the lock, other open files of the holder stay
/// writable.
#[test]
fn an_upgrade_leaves_other_open_files_writable() {
    let m = mount();
    locks_py(
        &m,
        r#"
        def writes(fd, text):
            os.write(fd, text)
            eq(pathlib.Path('.latchfs/content/' + name).read_bytes()[-len(text):], text)
        for kind in ('flock', 'fcntl', 'ofd'):
            name = 'writes_' + kind
            one = opened(name)
            lock(one, kind + '_sh')
            other = os.open(name, os.O_RDWR)
            shared_by = status(name)['token']
            for part in (b'first', b'second'):
                lock(one, kind + '_ex')
                os.stat(name)
                writes(other, part)
                writes(one, part)
                lock(one, kind + '_sh')
            eq(status(name)['token'] > shared_by + 1, True)
        # By a write, which names the tenure of its own open file.
        one = opened('by_text')
        other = os.open('by_text', os.O_RDWR)
        for mode in ('shared', 'exclusive', 'shared', 'exclusive'):
            os.write(one, json.dumps({'mode': mode}).encode())
            eq(status('by_text')['mode'], mode)
        os.write(other, b'60s')
        "#,
    )
    .ok();
}

/// A refused upgrade behaves as on a local disk: flock(2) has released the old lock, fcntl(2) has
/// kept it.
#[test]
fn a_refused_upgrade_is_as_on_a_local_disk() {
    let m = mount();
    let program = r#"
        for kind in ('flock', 'fcntl', 'ofd'):
            one, other, third = Peer(), Peer(), Peer()
            for peer in (one, other, third): peer(f'fd = opened(where + {kind!r})')
            for peer in (one, other): peer(f'lock(fd, "{kind}_sh")')
            print(kind, one(f'no(lock, fd, "{kind}_ex")'))
            other(f'unlock(fd, "{kind}_sh")')
            # Whether the first one still reads.
            print(third(f'no(lock, fd, "{kind}_ex")'), third(f'no(lock, fd, "{kind}_sh")'))
            for peer in (one, other, third): peer.end()
        "#;
    let at = |place: &str| format!("where = {place}\n{}", dedent(program));
    let ours = locks_py(&m, &at("''")).ok();
    assert_eq!(ours, locks_py(&m, &at("os.environ['T'] + '/'")).ok());
}

/// Readers that come after a waiting writer wait behind it in the queue, so that the writer does
/// not starve.
#[test]
fn a_waiting_writer_does_not_starve() {
    let m = mount();
    locks_py(
        &m,
        r#"
        reader, writer, late = Peer(A), Peer(B), Peer(A)
        for peer in (reader, writer, late): peer('fd = opened("x")')
        reader('fcntl.flock(fd, SH)')
        writer.start('fcntl.flock(fd, EX)')
        until(lambda: line('x') == 1)
        eq(late('no(fcntl.flock, fd, SH | NB)'), 'EAGAIN')
        late.start('fcntl.flock(fd, SH)')
        until(lambda: line('x') == 2)
        reader('fcntl.flock(fd, UN)')
        eq(writer.answer(), None)
        assert late.silent()
        writer('fcntl.flock(fd, UN)')
        eq(late.answer(), None)
        "#,
    )
    .ok();
}

/// Byte ranges of several processes, by fcntl and OFD: only overlapping ranges conflict.
#[test]
fn byte_ranges() {
    let m = mount();
    locks_py(
        &m,
        r#"
        for ofd in (False, True):
            one, other = Peer(A), Peer(B)
            for peer in (one, other): peer(f'ofd, fd = {ofd}, opened("x")')
            one('setlk(fd, W, 0, 10, ofd=ofd)')
            other('setlk(fd, W, 10, 10, ofd=ofd)')
            eq(other('no(setlk, fd, W, 9, 1, ofd=ofd)'), 'EAGAIN')
            eq(one('no(setlk, fd, R, 19, 100, ofd=ofd)'), 'EAGAIN')
            one('setlk(fd, R, 20, 0, ofd=ofd)')
            other('setlk(fd, R, 100, 1, ofd=ofd)')
            eq(other('no(setlk, fd, W, 100, 1, ofd=ofd)'), 'EAGAIN')
            # A hole in the middle.
            one('setlk(fd, U, 4, 2, ofd=ofd)')
            other('setlk(fd, W, 4, 2, ofd=ofd)')
            eq(other('no(setlk, fd, W, 3, 2, ofd=ofd)'), 'EAGAIN')
            # Whoever waits for a range gets it when that range is free, not before.
            other.start('setlk(fd, W, 6, 4, wait=True, ofd=ofd)')
            until(lambda: waits(other.pid))
            one('setlk(fd, U, 0, 4, ofd=ofd)')
            assert other.silent()
            one('setlk(fd, U, 6, 4, ofd=ofd)')
            eq(other.answer(), None)
            # flock and fcntl conflict, as over NFS.
            third = Peer(B)
            eq(third('tries("flock_ex", "x")'), 'EAGAIN')
            one.end()
            other('setlk(fd, U, ofd=ofd)')
            until(lambda: status('x')['phase'] == 'free')
            other.end()
        "#,
    )
    .ok();
}

/// If one client locks any range of a file, other clients can lock no range of it.
#[test]
fn a_range_takes_the_whole_lock_for_other_clients() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    locks_py(
        &m,
        r#"
        one, other = Peer(), Peer()
        one('os.chdir(os.environ["D"]); fd = opened("x"); setlk(fd, W, 0, 10)')
        other('os.chdir(os.environ["D2"]); fd = opened("x")')
        eq(other('no(setlk, fd, W, 50, 1)'), 'EAGAIN')
        assert other('getlk(fd, W, 50, 1)') is not None
        other.start('setlk(fd, W, 50, 1, wait=True)')
        until(lambda: waits(other.pid))
        one('setlk(fd, U, 0, 5)')
        assert other.silent()
        one('setlk(fd, U)')
        eq(other.answer(), None)
        eq(one('no(setlk, fd, R, 0, 1)'), 'EAGAIN')
        "#,
    )
    .ok();
}

/// `F_GETLK` returns the conflicting lock with the lowest start, and the pid that holds it, or -1
/// for an OFD lock.
#[test]
fn getlk_returns_the_first_conflict() {
    let m = mount();
    locks_py(
        &m,
        r#"
        one, other, asks = Peer(A), Peer(B), Peer(A)
        for peer in (one, other, asks): peer('fd = opened("x")')
        eq(asks('getlk(fd, W)'), None)
        one('setlk(fd, R, 50, 10)')
        eq(asks('getlk(fd, W)'), [R, 50, 10, one.pid])
        eq(asks('getlk(fd, R)'), None)
        other('setlk(fd, W, 20, 5)')
        eq(asks('getlk(fd, W)'), [W, 20, 5, other.pid])
        eq(asks('getlk(fd, R)'), [W, 20, 5, other.pid])
        eq(asks('getlk(fd, W, 30, 0)'), [R, 50, 10, one.pid])
        eq(asks('getlk(fd, W, 0, 20)'), None)
        eq(one('getlk(fd, W, 50, 1)'), None)
        for peer in (one, other): peer('setlk(fd, U)')
        one('setlk(fd, W)')
        eq(asks('getlk(fd, R, 7, 1)'), [W, 0, 0, one.pid])
        one('setlk(fd, U)')
        other('setlk(fd, W, 5, 5, ofd=True)')
        eq(asks('getlk(fd, R)')[:3], [W, 5, 5])
        other('setlk(fd, U, ofd=True)')
        eq(asks('getlk(fd, W)'), None)
        "#,
    )
    .ok();
}

/// `F_GETLK` predicts the result of `F_SETLK` for every kind of holder: it also reports locks that
/// were not taken by fcntl.
#[test]
fn getlk_agrees_with_setlk() {
    let m = Setup::new().dirs(2).with("--client laptop2").start();
    locks_py(
        &m,
        r#"
        asks, own, other = Peer(A), Peer(A), Peer(B)
        def on_the_other_mount(form):
            path = os.environ['D2'] + '/x'
            held['x'] = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            lock(held['x'], form)
        def is_removed():
            # What was open may be let go of only now: close does not wait for its RELEASE, and
            # until then it is the other's.
            try: pathlib.Path('x').unlink(missing_ok=True)
            except PermissionError: return False
            return listed() == []
        cases = {
            'free': lambda: None,
            'touched': lambda: own('pathlib.Path("x").touch()'),
            'with a ttl': lambda: own('write("x", "60s")'),
            'made': lambda: own('os.close(exclusive("x"))'),
            "another's": lambda: other('pathlib.Path("x").touch()'),
            'linked': lambda: own('os.close(exclusive("y")); os.link("y", "x"); os.unlink("y")'),
            **{form: lambda form=form: other(f'take({form!r}, "x")')
               for form in ('flock_ex', 'flock_sh', 'fcntl_ex', 'fcntl_sh', 'ofd_ex', 'ofd_sh')},
            **{'far ' + form: lambda form=form: on_the_other_mount(form)
               for form in ('flock_ex', 'flock_sh')},
        }
        for case, before in cases.items():
            for kind in (R, W):
                # Opened before: opening what is free would take it.
                asks('fd = os.open("x", os.O_RDWR | os.O_CREAT, 0o666); os.unlink("x")')
                before()
                seen = asks(f'getlk(fd, {kind})')
                said = asks(f'no(setlk, fd, {kind})')
                eq((case, kind, seen is None), (case, kind, said == 'ok'))
                assert seen is None or seen[3] > 0, (case, seen)
                asks('os.close(fd)')
                for peer in (own, other): peer('drop("x") if "x" in held else None')
                if 'x' in held: drop('x')
                until(is_removed)
        "#,
    )
    .ok();
}

/// A program that closes a locked file and opens it again with `O_CREAT` takes the lock anew, so
/// that other programs can open the name, although the close does not wait for the release. The
/// kernel may not have heard then that the name has vanished.
#[test]
fn a_locked_file_that_is_closed_and_opened_again_has_its_name() {
    for behind in [Behind::Itself, Behind::Server, Behind::Cluster] {
        let m = Setup::new().behind(behind).start();
        locks_py(
            &m,
            r#"
            flags, missing = os.O_CREAT | os.O_RDWR, []
            peer = Peer()
            for round in range(100):
                for form in ('flock_ex', 'fcntl_ex', 'ofd_ex'):
                    fd = os.open('file', flags)
                    lock(fd, form)
                    os.close(fd)
                    fd = os.open('file', flags)
                    said = peer("no(lambda: os.close(os.open('file', os.O_RDWR)))")
                    if said != 'ok': missing.append((form, said))
                    os.close(fd)
                    os.unlink('file')
            eq(missing, [])
            # A program that makes nothing finds nothing.
            for round in range(100):
                fd = os.open('file', flags)
                lock(fd, 'flock_ex')
                unlock(fd, 'flock_ex')
                eq(no(os.open, 'file', os.O_RDWR), 'ENOENT')
                os.close(fd)
            "#,
        )
        .ok();
    }
}

/// When the call that unlocks a file returns, the lock is free for clients of another mount too.
#[test]
fn an_unlock_is_decided_when_it_returns() {
    for behind in [Behind::Server, Behind::Cluster] {
        let m = Setup::new().behind(behind).start();
        locks_py(
            &m,
            r#"
            for form in ('flock_ex', 'fcntl_ex', 'ofd_ex'):
                fds = [os.open(os.path.join(dir, form), os.O_RDWR | os.O_CREAT, 0o666)
                    for dir in ('.', os.environ['OTHERS'])]
                lock(fds[0], form)
                refused = 0
                for turn in range(200):
                    unlock(fds[turn % 2], form)
                    if no(lock, fds[1 - turn % 2], form) == 'EAGAIN':
                        refused += 1
                        lock(fds[1 - turn % 2], form, wait=True)
                eq((form, refused), (form, 0))
            "#,
        )
        .ok();
    }
}

/// If the server does not answer an unlock, the call that unlocks succeeds after the timeout of the
/// request, and the lock is released once the server runs again.
#[test]
fn an_unlock_returns_without_an_answer() {
    let m = Setup::new().behind(Behind::Server).start();
    let program = r#"
        for form in ('flock_ex', 'fcntl_ex', 'ofd_ex'):
            fds = [os.open(os.path.join(dir, form), os.O_RDWR | os.O_CREAT, 0o666)
                for dir in ('.', os.environ['OTHERS'])]
            lock(fds[0], form)
            os.kill(SERVER, signal.SIGSTOP)
            until(lambda: all(thread.joinpath('stat').read_text().rsplit(') ')[1][0] == 'T'
                for thread in pathlib.Path('/proc/SERVER/task').iterdir()))
            begun = time.monotonic()
            try: unlock(fds[0], form)
            finally: os.kill(SERVER, signal.SIGCONT)
            took = time.monotonic() - begun
            assert 1 < took < 20, (form, took)
            # Each mount connects again in its own time.
            until(lambda: no(lock, fds[1], form) == 'ok')
            until(lambda: no(lock, fds[0], form) == 'EAGAIN')
        "#;
    locks_py(&m, &program.replace("SERVER", &m.server_pid().to_string())).ok();
}

/// If one thread renames a locked file while another thread unlocks it, the lock is free
/// afterwards.
#[test]
fn a_lock_that_is_moved_during_its_release_is_free() {
    let m = mount();
    locks_py(
        &m,
        r#"
        import threading
        moved, refused = 0, set()
        over, tried = threading.Event(), threading.Event()
        def move():
            global moved
            while not over.is_set():
                for names in (('a', 'b'), ('b', 'a')):
                    try:
                        os.rename(*names)
                        moved += 1
                    except OSError as error: refused.add(errno.errorcode[error.errno])
                    tried.set()
        mover = threading.Thread(target=move, daemon=True)
        mover.start()
        # On a loaded machine the mover has its turn less often.
        for turn in range(100_000):
            if turn > 900 and moved > 50: break
            kind = ('flock', 'fcntl', 'ofd')[turn % 3]
            fd = os.open('a', os.O_RDWR | os.O_CREAT, 0o666)
            lock(fd, kind + '_ex')
            # Without this the threads may take turns for minutes, and nothing is ever moved.
            if turn % 2:
                tried.clear()
                tried.wait()
            unlock(fd, kind + '_ex')
            os.close(fd)
        over.set()
        mover.join()
        assert moved > 50, moved
        # There is nothing to move, or both are locked.
        assert refused <= {'ENOENT', 'EBUSY'}, refused
        # What open(2) had made was a lease, and stays one if it is moved before it is locked. It
        # becomes the hold of whoever locks it, as nobody else's hold would.
        for name in ('a', 'b'):
            fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
            lock(fd, 'flock_ex')
            unlock(fd, 'flock_ex')
            os.close(fd)
        until(lambda: listed() == [])
        "#,
    )
    .ok();
}

/// A deadlock of waiting fcntl locks on two or three files is detected (EDEADLK), for whole files
/// and for ranges.
#[test]
fn deadlocks_are_detected() {
    let m = mount();
    locks_py(
        &m,
        r#"
        for count in (2, 3):
            for span in ('', ', 3, 4'):
                peers = [Peer(A) for _ in range(count)]
                for number, peer in enumerate(peers):
                    peer(f'fds = [opened(str(n)) for n in range({count})]')
                    peer(f'setlk(fds[{number}], W{span})')
                for number, peer in enumerate(peers[:-1]):
                    peer.start(f'setlk(fds[{number + 1}], W{span}, wait=True)')
                    until(lambda: waits(peer.pid))
                said = peers[-1](f'no(setlk, fds[0], W{span}, wait=True)')
                eq(said, errno.errorcode[errno.EDEADLK])
                # It keeps what it has; the others go on when it lets go.
                assert all(peer.silent() for peer in peers[:-1])
                for peer in reversed(peers):
                    if peer is not peers[-1]: eq(peer.answer(), None)
                    peer('[os.close(fd) for fd in fds]')
                for peer in peers: peer.end()
        "#,
    )
    .ok();
}

/// The open file that wrote a text, a ttl or a process may lock its own lock, in every form. The
/// lock keeps its token and its text, and other open files of the same user are refused before and
/// after.
#[test]
fn an_open_file_that_wrote_may_lock_its_lock() {
    let m = mount();
    let program = r#"
        for form in 'flock_ex', 'flock_sh', 'posix_ex', 'ofd_ex', 'ofd_sh':
            for text in 'text', '1m', f'pid={os.getpid()}':
                fd, other = opened('x'), os.open('x', os.O_RDWR)
                os.write(fd, text.encode())
                token = status('x')['token']
                assert no(lock, other, 'flock_ex') == 'EAGAIN', (form, text)
                ino = os.fstat(fd).st_ino
                lock(fd, form)
                eq((form, text, status('x')['token']), (form, text, token))
                assert no(lock, other, 'ofd_ex') == 'EAGAIN' or form.startswith('posix')
                assert os.pread(fd, 99, 0) == (b'text' if text == 'text' else b'')
                os.write(fd, b'more')
                assert os.fstat(fd).st_ino == ino == os.stat('x').st_ino
                unlock(fd, form)
                assert not os.path.exists('x')
                os.close(other)
                drop('x')
        "#;
    locks_py(&m, program).ok();
}

/// The open file that made a lock by `O_EXCL`, or that wrote a text to it, may lock it while other
/// programs wait for it, in every form. The lock keeps its token and its text, and the first waiter
/// gets it after the unlock.
#[test]
fn an_open_file_locks_its_own_lock_before_the_waiters() {
    let program = r#"
        WAITS = {form: f'lock(opened("x"), "{form}", wait=True)'
                 for form in ('flock_ex', 'posix_ex', 'ofd_ex')}
        WAITS['wait'] = 'pathlib.Path(".latchfs/wait/x").read_text() and None'
        def written():
            fd = opened('x')
            os.write(fd, b'text')
            return fd
        def made():
            held['x'] = fd = os.open('x', os.O_RDWR | os.O_CREAT | os.O_EXCL)
            return fd
        FORMS = 'flock_ex', 'flock_sh', 'posix_ex', 'ofd_ex', 'ofd_sh'
        cases = [(form, waiting, begin, wait)
                 for form in FORMS for waiting in WAITS for begin in (written, made)
                 for wait in (False, True)]
        for case in cases:
            form, waiting, begin, wait = case
            one, two, fd = Peer(), Peer(), begin()
            token = status('x')['token']
            # A program without a lock of its own is refused.
            eq(two('no(lock, opened("x"), "ofd_ex")'), 'EAGAIN')
            one.start(WAITS[waiting])
            until(lambda: line('x') == 1)
            eq((case, no(lock, fd, form, wait)), (case, 'ok'))
            now = status('x')
            eq((case, now['token'], now['mode']),
               (case, token, 'shared' if form.endswith('sh') else 'exclusive'))
            eq(os.pread(fd, 99, 0), b'text' if begin is written else b'')
            os.write(fd, b'more')
            assert one.silent()
            eq(two('no(lock, opened("x"), "ofd_ex")'), 'EAGAIN')
            unlock(fd, form)
            eq(one.answer(), None)
            assert status('x')['token'] > token
            one('os.unlink("x")')
            for peer in (one, two): peer.end()
            drop('x')
            until(lambda: listed() == [])
        "#;
    for setup in [Setup::new(), Setup::new().behind(Behind::Server)] {
        locks_py(&setup.start(), program).ok();
    }
}

/// While an open file locks the lock to which it wrote a text, no client of another mount can
/// create the name or lock it.
#[test]
fn a_written_lock_is_not_lost_to_another_mount() {
    let one_daemon = Setup::new().only("--client laptop1 --client laptop2").dirs(2);
    let program = r#"
        fd = os.open(os.environ['T'] + '/now', os.O_RDWR | os.O_CREAT, 0o666)
        os.write(fd, bytes(4))
        now = mmap.mmap(fd, 4)
        def at(): return struct.unpack('i', now)[0]
        def tries():
            os.chdir(os.environ[OTHERS])
            while (n := at()) >= 0:
                if n == 0: continue
                fd = os.open(f'x{n}', os.O_RDWR)
                # The kernel itself may answer that a name exists, but not whether it is locked.
                while at() == n:
                    said = no(exclusive, f'x{n}'), no(lock, fd, 'flock_ex')
                    if said != ('EEXIST', 'EAGAIN'): return said, n
        others = [Peer(A), Peer(B)]
        for other in others: other.start('tries()')
        for n in range(1, 201):
            own = opened(f'x{n}')
            os.write(own, b'text')
            now[:] = struct.pack('i', n)
            lock(own, ('flock_ex', 'posix_ex', 'ofd_sh')[n % 3])
        now[:] = struct.pack('i', -1)
        for other in others: eq(other.answer(), None)
        for other in others: other.end()
        eq(len(listed()), 200)
        "#;
    for (setup, others) in [(one_daemon, "D2"), (Setup::new().behind(Behind::Server), "OTHERS")] {
        let program = format!("import mmap\nOTHERS = '{others}'\n{}", dedent(program));
        locks_py(&setup.start(), &program).ok();
    }
}
