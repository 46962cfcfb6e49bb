//! `.latchfs/wait/NAME`: a read returns when the reader has got the lock; closing the file before
//! the grant leaves the queue.

use crate::locking::locks_py;
use testing::*;

/// The Python code that precedes the programs of this file: a holder of the lock `x`, and readers
/// of `.latchfs/wait/x`, which waits for that lock.
const WAITER: &str = r#"
        def cat(name, **how):
            return subprocess.Popen(['cat', '.latchfs/wait/' + name], stdout=subprocess.PIPE,
                                    text=True, **how)
        def since(name): return [waiter['since'] for waiter in status(name)['waiters']]
        def reads(name): return json.loads(pathlib.Path('.latchfs/wait/' + name).read_text())
        def released(peer): peer('drop("x")')
        def pause(seconds):
            ends = time.monotonic() + seconds
            until(lambda: time.monotonic() > ends)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        holder = Peer(A)
        holder('take("flock_ex", "x")')
"#;

fn py(m: &Mount, program: &str) {
    locks_py(m, &format!("{WAITER}{program}")).ok();
}

/// `cat .latchfs/wait/x` returns the status when its client has got the lock, as an ordinary lease
/// that lasts after the close. A free lock is granted at once.
#[test]
fn the_read_returns_with_the_lock() {
    let m = mount();
    py(
        &m,
        r#"
        reader = cat('x')
        until(lambda: line('x') == 1)
        eq(status('x')['waiters'][0]['client'], 'laptop1:root')
        assert reader.poll() is None
        released(holder)
        text = reader.communicate(timeout=20)[0]
        assert text.endswith('}\n'), text
        got = json.loads(text)
        eq((got['name'], got['holder'], got['phase'], got['ttl_ms'], got['waiters']),
           ('x', 'laptop1:root', 'held', 30_000, []))
        eq((status('x')['token'], status('x')['holder_id']), (got['token'], got['holder_id']))
        # Another program of the user that has it waits like any other.
        second = cat('x')
        until(lambda: line('x') == 1)
        eq((second.poll(), status('x')['token']), (None, got['token']))
        with user(B): eq(no(os.unlink, 'x'), 'EPERM')
        os.unlink('x')
        later = json.loads(second.communicate(timeout=20)[0])
        assert later['token'] > got['token'], (got, later)
        os.unlink('x')
        # A free lock is there at once as well, also one of several parts.
        eq(reads('team%2Fbuild')['name'], 'team/build')
        eq(reads('team/build')['token'], status('team/build')['token'])
        eq(reads('%2Fteam')['name'], 'team')
        "#,
    );
}

/// Ctrl-C, `kill`, `kill -9` and `timeout` end a waiter, which leaves the queue.
#[test]
fn signals_end_the_wait() {
    let m = mount();
    py(
        &m,
        r#"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            reader = cat('x')
            until(lambda: line('x') == 1)
            reader.send_signal(number)
            eq(reader.wait(timeout=20), -number)
            until(lambda: line('x') == 0)
        eq(subprocess.run(['timeout', '0.3', 'cat', '.latchfs/wait/x']).returncode, 124)
        until(lambda: line('x') == 0)
        released(holder)
        eq(listed(), [])
        "#,
    );
}

/// Two readers of a wait file (`.latchfs/wait/NAME`, whose read returns when the reader has the
/// lock) are served in the order of their arrival, whether they are of one client or of two.
#[test]
fn readers_are_served_in_order() {
    let m = mount();
    py(
        &m,
        r#"
        def as_user(name): return None if name is None else lambda: user_now(name)
        for who in ((B, None), (None, B), (None, None)):
            readers = []
            for name in who:
                readers.append(cat('x', preexec_fn=as_user(name)))
                until(lambda: line('x') == len(readers))
            released(holder)
            first = json.loads(readers[0].communicate(timeout=20)[0])
            eq((line('x'), readers[1].poll()), (1, None))
            os.unlink('x')
            second = json.loads(readers[1].communicate(timeout=20)[0])
            assert second['token'] > first['token'], (first, second)
            eq([first['holder'], second['holder']],
               [f'laptop1:{name or "root"}' for name in who])
            os.unlink('x')
            holder('take("flock_ex", "x")')
        "#,
    );
}

/// After close(2) of a wait file (`.latchfs/wait/NAME`), the wait has left the queue of the lock,
/// and a lock that was granted but whose grant was never read is released. A signal ends a read but
/// not the wait: a program that reads again has the same queue place.
#[test]
fn closing_leaves_the_queue() {
    let m = mount();
    py(
        &m,
        r#"
        how = os.O_RDONLY | os.O_NONBLOCK
        fd = os.open('.latchfs/wait/x', how)
        eq(line('x'), 0)
        for _ in range(3):
            eq((no(os.read, fd, 65_536), line('x')), ('EAGAIN', 1))
        os.close(fd)
        until(lambda: line('x') == 0)

        fd = os.open('.latchfs/wait/x', how)
        eq((no(os.read, fd, 65_536), line('x')), ('EAGAIN', 1))
        released(holder)
        until(lambda: status('x')['holder'] == 'laptop1:root')
        os.close(fd)
        until(lambda: status('x')['phase'] == 'free')

        holder('take("flock_ex", "x")')
        fd = os.open('.latchfs/wait/x', how)
        eq(no(os.read, fd, 65_536), 'EAGAIN')
        released(holder)
        until(lambda: status('x')['holder'] == 'laptop1:root')
        # The grant is seen in `status` a moment before it reaches the open file.
        os.set_blocking(fd, True)
        token = json.loads(os.read(fd, 65_536))['token']
        os.close(fd)
        eq(status('x')['token'], token)
        os.unlink('x')
        "#,
    );
}

/// A program that reads a wait file (`.latchfs/wait/NAME`) and is stopped and continued keeps its
/// queue place, and so does one whose read a signal handler interrupts.
#[test]
fn a_stopped_reader_keeps_its_place() {
    let m = mount();
    py(
        &m,
        r#"
        first = Peer()
        first('signal.signal(signal.SIGUSR1, lambda *_: None)')
        first.start('json.loads(pathlib.Path(".latchfs/wait/x").read_text())["token"]')
        until(lambda: line('x') == 1)
        last = cat('x')
        until(lambda: line('x') == 2)
        before = since('x')
        for number in (signal.SIGUSR1, signal.SIGSTOP):
            first.signal(number)
            pause(0.4)
            eq(since('x'), before)
        first.signal(signal.SIGCONT)
        pause(0.4)
        assert first.silent()
        eq(since('x'), before)
        released(holder)
        token = first.answer()
        eq((status('x')['token'], line('x')), (token, 1))
        os.unlink('x')
        last.communicate(timeout=20)
        "#,
    );
}

/// Invalid names of wait files (`.latchfs/wait/NAME`), and operations that these files do not
/// support, are refused with an errno.
#[test]
fn invalid_names_and_operations_are_refused() {
    let m = mount();
    py(
        &m,
        r#"
        for dir in ('wait', 'status', 'content'):
            for name, wanted in (('.latchfs', 'EINVAL'), ('a\nb', 'EINVAL'), ('%', 'EINVAL'),
                                 ('%2F', 'EINVAL'), ('b' * 256, 'ENAMETOOLONG')):
                eq((name, no(os.stat, f'.latchfs/{dir}/{name}')), (name, wanted))
        eq(no(os.stat, '.latchfs/wait/100%'), 'EINVAL')
        assert '%25' in why(), why()
        eq(no(os.open, '.latchfs/wait/x', os.O_WRONLY), 'EACCES')
        eq(no(os.unlink, '.latchfs/wait/x'), 'EPERM')
        eq(no(os.mkdir, '.latchfs/wait/new'), 'EEXIST')
        eq(line('x'), 0)
        "#,
    );
}
