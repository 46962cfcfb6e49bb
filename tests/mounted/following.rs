//! Following changes: poll(2) on the file of a lock, the queue as `status` and `ls` show it, and
//! events.

use testing::*;

/// Python functions that wait for POLLPRI on the file of a lock. Every Python program of this file
/// begins with them.
const POLLER: &str = r#"
import select, threading
LIMIT = 20_000
def poller(fd, events=select.POLLPRI):
    poller = select.poll()
    poller.register(fd, events)
    return poller
def changed(fd, wait=LIMIT):
    "Whether POLLPRI comes in time."
    return any(seen & select.POLLPRI for _, seen in poller(fd).poll(wait))
def again(fd):
    "Reads what there is, which ends the telling of a change."
    return os.pread(fd, 65536, 0)
def soon(call):
    "Calls it on another thread when the kernel has seen this one poll, or just before."
    thread = threading.Timer(0.05, call)
    thread.start()
    return thread
"#;

/// Runs a Python program, with [`POLLER`] in front of it, in the mount. The program is indented by
/// 8 columns in this file, and the function removes this indentation.
fn py(m: &Mount, program: &str) -> Output {
    behind(m, POLLER, program)
}

fn behind(m: &Mount, prelude: &str, program: &str) -> Output {
    let lines = program.lines().map(|line| line.strip_prefix("        ").unwrap_or(line));
    m.py(&format!("{prelude}\n{}", lines.collect::<Vec<_>>().join("\n")))
}

/// poll(2) on the file of a lock reports when the holder changes, or the phase of the lock (free,
/// held, or in the grace period of an expired lease). It goes on to report the change until the
/// file is read again.
#[test]
fn a_change_wakes_pollers() {
    let m = Setup::new().with("--ttl 1s --grace 1s").start();
    py(
        &m,
        r#"
        os.close(exclusive('build'))
        fd = os.open('build', os.O_RDONLY)
        token = json.loads(again(fd))['token']
        eq(changed(fd, 0), False)
        eq(poller(fd, select.POLLIN).poll(0)[0][1], select.POLLIN)
        # It expires, lapses and is taken anew: each is a change, and none is reported twice.
        eq(changed(fd), True)
        eq(changed(fd, 0), True)
        eq(json.loads(again(fd))['phase'], 'grace')
        eq(changed(fd), True)
        eq(json.loads(again(fd))['phase'], 'free')
        eq(changed(fd, 0), False)
        with user(A):
            thread = soon(lambda: os.close(exclusive('build')))
            eq(changed(fd), True)
            thread.join()
        seen = json.loads(again(fd))
        eq(seen['phase'], 'held')
        assert seen['token'] > token, seen
    "#,
    )
    .ok();
}

/// poll(2) on the file of a lock does not report a renewal as a change, unless the renewal rescues
/// a lease in its grace period. A change between the last read of the file and its first poll is
/// reported by that poll.
#[test]
fn a_renewal_does_not_wake_pollers() {
    let m = Setup::new().with("--ttl 60s --grace 10s").start();
    py(
        &m,
        r#"
        os.close(exclusive('build'))
        fd = os.open('build', os.O_RDONLY)
        report = os.open('.latchfs/status/build', os.O_RDONLY)
        again(fd), again(report)
        eq(changed(fd, 0), False)
        os.utime('build')
        eq(write('build', '1s'), 'ok')
        eq(changed(fd, 50), False)
        eq(changed(fd), True)
        eq(json.loads(again(fd))['phase'], 'grace')
        thread = soon(lambda: os.utime('build'))
        eq(changed(fd), True)
        thread.join()
        eq(json.loads(again(fd))['phase'], 'held')
        # This one was read long ago, and is polled for the first time.
        os.remove('build')
        eq(changed(report, 0), True)
        eq(json.loads(again(report))['phase'], 'free')
        eq(changed(report, 0), False)
    "#,
    )
    .ok();
}

/// Edge-triggered epoll, several pollers at once, and the exception set of select(2) all report a
/// change of a lock.
#[test]
fn all_ways_of_polling_are_woken() {
    let m = mount();
    py(
        &m,
        r#"
        os.mkdir('build')
        files = [os.open('build/status.json', os.O_RDONLY) for _ in range(3)]
        for fd in files: again(fd)
        edges = select.epoll()
        edges.register(files[0], select.EPOLLPRI | select.EPOLLET)
        eq(edges.poll(0), [])
        eq(select.select([], [], files[1:2], 0)[2], [])
        seen = []
        watch = threading.Thread(target=lambda: seen.append(changed(files[2])))
        watch.start()
        thread = soon(lambda: os.rmdir('build'))
        eq(edges.poll(LIMIT / 1000), [(files[0], select.EPOLLPRI)])
        eq(select.select([], [], files[1:2], LIMIT / 1000)[2], files[1:2])
        watch.join(LIMIT / 1000)
        eq(seen, [True])
        thread.join()
        eq(edges.poll(0), [])
    "#,
    )
    .ok();
}

/// `status` and `ls` show the queue, the caller's own place in it, and how long each waiter has
/// waited.
#[test]
fn the_queue_is_shown() {
    let m = mount();
    m.py(r#"
        holder = os.open('build', os.O_RDWR | os.O_CREAT)
        fcntl.flock(holder, fcntl.LOCK_EX)
        pids = []
        for name in (A, 'root', A):
            pid = os.fork()
            if pid == 0:
                if name != 'root': os.seteuid(pwd.getpwnam(name).pw_uid)
                fcntl.flock(os.open('build', os.O_RDWR), fcntl.LOCK_EX)
                os._exit(0)
            pids.append(pid)
            for _ in range(1000):
                if len(status('build').get('waiters', [])) == len(pids): break
                time.sleep(0.01)
        waiters = status('build')['waiters']
        eq([waiter['client'] for waiter in waiters],
           ['laptop1:' + A, 'laptop1:root', 'laptop1:' + A])
        assert all(waiter['waited_ms'] >= 0 for waiter in waiters), waiters
        def latchfs(*args): return subprocess.check_output(['latchfs', *args], text=True)
        lines = [line for line in latchfs('status', 'build').splitlines() if 'waiting' in line]
        eq(len(lines), 3)
        assert lines[1].startswith('waiting   2. laptop1:root, 1 ahead, for '), lines
        eq([line.endswith(', you') for line in lines], [False, True, False])
        eq(json.loads(latchfs('status', 'build', '--json'))['place'], 2)
        assert '3 (you: 2)' in latchfs('ls'), latchfs('ls')
        fcntl.flock(holder, fcntl.LOCK_UN)
        eq([os.waitpid(pid, 0)[1] for pid in pids], [0, 0, 0])
    "#)
        .ok();
}

/// Python functions that read the event stream `.latchfs/events`. The programs that test this
/// stream begin with them.
const READER: &str = r#"
def opened(process):
    "Waits until a program has the stream open."
    fds = f'/proc/{process.pid}/fd'
    def target(fd):
        "The file behind a descriptor, which the program may close at any time."
        try: return os.readlink(f'{fds}/{fd}')
        except FileNotFoundError: return ''
    for _ in range(1000):
        if any('/events' in target(fd) for fd in os.listdir(fds)): return
        time.sleep(0.02)
    raise AssertionError('it never opened the events')
def events(fd, limit=LIMIT):
    "What there is to read, once there is something, as objects."
    assert poller(fd, select.POLLIN).poll(limit), 'no events came'
    text = b''
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 65536): text += part
    return [json.loads(line) for line in text.splitlines()]
def said(event): return event['event'], event.get('name')
"#;

fn py_events(m: &Mount, program: &str) -> Output {
    behind(m, &format!("{POLLER}\n{READER}"), program)
}

/// The file `.latchfs/events` is a stream of JSON lines. `cat` prints each event as it happens, and
/// any signal ends `cat` at once.
#[test]
fn cat_follows_events() {
    let m = mount();
    py_events(
        &m,
        r#"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            cat = subprocess.Popen(['cat', '.latchfs/events'], stdout=subprocess.PIPE, text=True)
            opened(cat)
            os.mkdir('build')
            event = json.loads(cat.stdout.readline())
            eq(said(event), ('granted', 'build'))
            eq((event['holder'], event['token']), ('laptop1:root', status('build')['token']))
            os.rmdir('build')
            eq(said(json.loads(cat.stdout.readline())), ('released', 'build'))
            # Nothing more comes, so it waits in its next read.
            cat.send_signal(number)
            eq(cat.wait(timeout=20), -number)
    "#,
    )
    .ok();
}

/// A reader of `.latchfs/events` starts at the time at which it opened the file, and a reader of
/// `.latchfs/events@N` starts at event N. Both can be polled, and a non-blocking read never waits.
#[test]
fn each_reader_has_its_own_position() {
    let m = mount();
    py_events(
        &m,
        r#"
        how = os.O_RDONLY | os.O_NONBLOCK
        os.mkdir('before')
        fd = os.open('.latchfs/events', how)
        eq(no(os.read, fd, 100), 'EAGAIN')
        eq(poller(fd, select.POLLIN).poll(0), [])
        thread = soon(lambda: os.mkdir('build'))
        (event,) = events(fd)
        eq(said(event), ('granted', 'build'))
        thread.join()
        os.rmdir('build')
        (last,) = events(fd)
        eq((said(last), last['n']), (('released', 'build'), event['n'] + 1))
        assert last['held_ms'] >= 1, last
        first = events(os.open('.latchfs/events@0', how))
        eq(said(first[0]), ('granted', 'before'))
        eq([event['n'] for event in first], list(range(len(first))))
        again = os.open(f".latchfs/events@{event['n']}", how)
        # A small buffer gets lines in parts, and none of them twice.
        text = b''
        with contextlib.suppress(BlockingIOError):
            while part := os.read(again, 7): text += part
        eq([json.loads(line) for line in text.splitlines()], [event, last])
        eq(no(os.pread, again, 10, 0), 'ESPIPE')
        eq(no(os.open, '.latchfs/events@x', how), 'ENOENT')
        eq(no(os.open, '.latchfs/events', os.O_WRONLY), 'EACCES')
    "#,
    )
    .ok();
}

/// A reader of `.latchfs/events` that is too slow gets a line of kind `lost` with the number of
/// missed events, and blocks no other client.
#[test]
fn a_slow_reader_learns_how_many_events_it_missed() {
    let m = mount();
    py_events(
        &m,
        r#"
        slow = os.open('.latchfs/events', os.O_RDONLY | os.O_NONBLOCK)
        for _ in range(5_000):
            os.mkdir('build')
            os.rmdir('build')
        seen = events(slow)
        eq(seen[0]['event'], 'lost')
        eq(seen[0]['count'] + len(seen) - 1, 10_000)
        assert seen[0]['count'] > 0, seen[0]
        os.mkdir('build')
        eq([said(event) for event in events(slow)], [('granted', 'build')])
    "#,
    )
    .ok();
}

/// `latchfs events` prints sentences or JSON lines, and ends when the reader of its output has
/// closed the pipe.
#[test]
fn the_command_follows_events() {
    let m = mount();
    m.sh("mkdir build team && touch team/a && rmdir build").ok();
    let first = m.sh("timeout 20 latchfs events --since 0 --json | head -n 1").ok();
    assert_eq!(json(&first)["event"], "granted", "{first}");
    let of_team = m.sh("timeout 20 latchfs events --since 0 team/ | head -n 1").ok();
    assert!(of_team.contains("  team/a  granted to laptop1:root, token "), "{of_team}");
    py_events(
        &m,
        r#"
        def follow(*args):
            command = ['latchfs', 'events', *args]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            opened(process)
            return process
        people = follow()
        os.mkdir('build')
        line = people.stdout.readline()
        assert '  build  granted to laptop1:root, token ' in line, line
        people.send_signal(signal.SIGINT)
        eq(people.wait(timeout=20), -signal.SIGINT)
        # Nothing happens any more, and still it ends with its reader.
        unread = follow()
        unread.stdout.close()
        eq(unread.wait(timeout=20), 0)
    "#,
    )
    .ok();
}
