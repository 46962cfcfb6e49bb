//! Tests how a lock ends, for each kind of lock and for each way to end it. Each test observes the
//! lock from another process of the same owner and from a process of another owner.

use crate::locking::locks_py;
use testing::*;

/// Python code for each way in which a lock that an open file holds can end. Python opens files
/// with `O_CLOEXEC`, so exec is one of the ways: it closes the file.
const ENDS: &str = "
ENDS = {
    'unlock': 'unlock(held[name], form)',
    'close': 'drop(name)',
    'last dup': 'os.close(held.pop(name)); os.close(copy)',
    'exit': 'os._exit(0)',
    'exec': 'os.execvp(\"sleep\", [\"sleep\", \"600\"])',
    'kill': 'os.kill(os.getpid(), 9)',
    'rm': 'os.unlink(name)',
}
";

/// Takes locks on files of a mount by the call that `form` names (flock, fcntl or OFD), and ends
/// each lock in another of the ways in [`ENDS`]. The next waiter must get the lock.
fn by_open_file(form: &str) {
    let m = mount();
    let program = r#"
FORM = '@'
def clash(one, other): return 'ex' in (one[-2:], other[-2:])
for end, code in ENDS.items():
    for who in (A, B):
        name = f'{end}-{who}'.replace(' ', '-')
        holder, other = Peer(A), Peer(who)
        for peer in (holder, other): peer(f'form, name = {FORM!r}, {name!r}')
        holder('take(form, name)')
        if end == 'last dup':
            # fcntl: closing any descriptor would end it, so there it must be the first one.
            holder('copy = os.dup(held[name])')
            if not FORM.startswith('fcntl'):
                holder('os.close(copy); copy = os.dup(held[name])')
        eq(status(name)['mode'], 'exclusive' if FORM.endswith('ex') else 'shared')
        for form in ('mkdir', 'symlink', 'excl', 'ln'):
            eq(other(f'tries({form!r}, name)'), 'EEXIST')
        for form in ('flock_ex', 'flock_sh', 'fcntl_ex', 'fcntl_sh', 'ofd_ex', 'ofd_sh'):
            wanted = 'EAGAIN' if clash(FORM, form) else 'ok'
            eq((form, other(f'tries({form!r}, name)')), (form, wanted))
            if wanted == 'ok': other(f'drop(name)')
        token = status(name)['token']
        other('opened(name)')
        other.start('take("flock_ex", name, wait=True)')
        until(lambda: line(name) == 1)
        assert other.silent()
        holder.start(code)
        eq(other.answer(), None)
        if end in ('unlock', 'close', 'last dup', 'rm'): holder.answer()
        seen = status(name)
        eq((seen['holder'], seen['phase'], seen['mode']), (f'laptop1:{who}', 'held', 'exclusive'))
        assert seen['token'] > token, (seen, token)
        if end not in ('exit', 'kill'): holder('1') if end != 'exec' else None
        other('drop(name)')
        eq(status(name)['phase'], 'free')
        holder.end(); other.end()
eq(listed(), [])
"#;
    locks_py(&m, &format!("{ENDS}{}", program.replace('@', form))).ok();
}

/// An exclusive flock on a file of a mount ends by unlock, by close of the last descriptor of the
/// open file, by exit or SIGKILL of its process, and by exec if the descriptor is close-on-exec.
/// Unlike on other file systems it also ends by removal of the file, because removal releases the
/// lock.
#[test]
fn exclusive_flock_ends() {
    by_open_file("flock_ex");
}

/// A shared flock on a file of a mount ends in each of the ways in [`ENDS`]: by unlock, close,
/// exit, SIGKILL, exec (its descriptor is close-on-exec), and by removal of the file, which in a
/// mount releases the lock.
#[test]
fn shared_flock_ends() {
    by_open_file("flock_sh");
}

/// An fcntl write lock on a file of a mount ends in each of the ways in [`ENDS`]: by unlock, close,
/// exit, SIGKILL, exec (its descriptor is close-on-exec), and by removal of the file, which in a
/// mount releases the lock.
#[test]
fn exclusive_fcntl_lock_ends() {
    by_open_file("fcntl_ex");
}

/// An fcntl read lock on a file of a mount ends in each of the ways in [`ENDS`]: by unlock, close,
/// exit, SIGKILL, exec (its descriptor is close-on-exec), and by removal of the file, which in a
/// mount releases the lock.
#[test]
fn shared_fcntl_lock_ends() {
    by_open_file("fcntl_sh");
}

/// An OFD write lock on a file of a mount ends in each of the ways in [`ENDS`], such as close. When
/// the last descriptor of the open file is closed, the kernel sends the mount no unlock request for
/// an OFD lock, so the mount must unlock the file when it gets the RELEASE request.
#[test]
fn exclusive_ofd_lock_ends() {
    by_open_file("ofd_ex");
}

/// An OFD read lock on a file of a mount ends in each of the ways in [`ENDS`]: by unlock, close,
/// exit, SIGKILL, exec (its descriptor is close-on-exec), and by removal of the file, which in a
/// mount releases the lock.
#[test]
fn shared_ofd_lock_ends() {
    by_open_file("ofd_sh");
}

/// A lock that was acquired by mkdir, `O_EXCL`, `ln -s` or `ln` outlives the close of its file and
/// the exit or SIGKILL of its process. Any process of its owner can end it by rmdir or unlink;
/// another client gets EPERM.
#[test]
fn leases_end_by_removal() {
    let m = Setup::new().with("--ttl 1h").start();
    locks_py(
        &m,
        r#"
        KINDS = {'mkdir': os.rmdir, 'excl': os.unlink, 'ln': os.unlink, 'symlink': os.unlink}
        for kind, remove in KINDS.items():
            for end in ('os._exit(0)', 'os.kill(os.getpid(), 9)', 'held and drop(name)'):
                name = kind
                holder, same, other = Peer(A), Peer(A), Peer(B)
                for peer in (holder, same, other): peer(f'name = {name!r}')
                holder(f'take({kind!r}, name)')
                holder.start(end)
                holder.answer()
                for peer in (same, other):
                    for form in KINDS: eq(peer(f'tries({form!r}, name)'), 'EEXIST')
                    if kind in ('excl', 'ln'):
                        for form in ('flock_ex', 'flock_sh', 'fcntl_ex', 'ofd_sh'):
                            eq((form, peer(f'tries({form!r}, name)')), (form, 'EAGAIN'))
                eq(other(f'no(os.{remove.__name__}, name)'), 'EPERM')
                eq(status(name)['holder'], 'laptop1:' + A)
                if kind in ('excl', 'ln'):
                    other('opened(name)')
                    other.start('take("flock_ex", name, wait=True)')
                    until(lambda: line(name) == 1)
                    same(f'os.{remove.__name__}(name)')
                    eq(other.answer(), None)
                    eq(status(name)['holder'], 'laptop1:' + B)
                    other('drop(name)')
                else:
                    same(f'os.{remove.__name__}(name)')
                eq(status(name)['phase'], 'free')
                eq(other(f'tries({kind!r}, name)'), 'ok')
                other(f'os.{remove.__name__}(name)')
                for peer in (holder, same, other): peer.end()
        "#,
    )
    .ok();
}

/// A lease that is not renewed ends after its ttl and its grace period, and the next waiter gets
/// the lock. A lock that an open file holds (flock, fcntl or OFD) does not expire.
#[test]
fn leases_end_by_their_ttl() {
    let m = Setup::new().with("--ttl 1s --grace 1s").start();
    locks_py(
        &m,
        r#"
        waiters = []
        began = time.monotonic()
        holder = Peer(A)
        holder('take("flock_ex", "open")')
        for kind in ('excl', 'ln'):
            holder(f'take({kind!r}, {kind!r})')
            for number, who in enumerate((A, B)):
                peer = Peer(who)
                peer(f'fd = os.open({kind!r}, os.O_RDWR)')
                peer.start('fcntl.flock(fd, EX)')
                until(lambda: line(kind) == number + 1)
                waiters.append((kind, peer))
        for kind, peer in waiters:
            eq(peer.answer(), None)
            took = time.monotonic() - began
            assert 2 <= took < 10, took
            peer('os.close(fd)')
        for kind in ('mkdir', 'symlink'):
            holder(f'take({kind!r}, {kind!r})')
            for who in (A, B):
                peer = Peer(who)
                until(lambda: peer(f'tries({kind!r}, {kind!r})') == 'ok')
        eq(status('open')['phase'], 'held')
        "#,
    )
    .ok();
}

/// A process that opens a locked file and locks it by flock, fcntl or OFD may take over the lease,
/// if the same user acquired the lease by open with `O_CREAT` or by `touch`. It can't take over a
/// lease that was given a ttl or a text by a write. A lease of a file that was created with
/// `O_EXCL` can be taken over only by the open file that created it.
#[test]
fn an_open_file_may_take_over_a_lease() {
    let m = Setup::new().with("--ttl 1h").start();
    locks_py(
        &m,
        r#"
        for form in ('flock_ex', 'fcntl_ex', 'ofd_ex'):
            one, same, other = Peer(A), Peer(A), Peer(B)
            one('os.close(os.open("loose", os.O_WRONLY | os.O_CREAT))')
            token = status('loose')['token']
            eq(other(f'tries({form!r}, "loose")'), 'EAGAIN')
            eq(same(f'tries({form!r}, "loose")'), 'ok')
            eq(one(f'tries({form!r}, "loose")'), 'EAGAIN')
            same('drop("loose")')
            eq(status('loose')['phase'], 'free')
            for text in ('60s', 'a text', '{"ttl":"60s"}'):
                one(f'write("firm", {text!r})')
                eq(status('firm')['holder'], 'laptop1:' + A)
                for peer in (one, same, other):
                    eq((text, peer(f'tries({form!r}, "firm")')), (text, 'EAGAIN'))
                one('os.unlink("firm")')
            one('take("excl", "mine")')
            for peer in (same, other): eq(peer(f'tries({form!r}, "mine")'), 'EAGAIN')
            eq(one(f'no(lock, os.open("mine", os.O_RDWR), {form!r})'), 'EAGAIN')
            one(f'lock(held["mine"], {form!r})')
            one('drop("mine")')
            eq(status('mine')['phase'], 'free')
            for peer in (one, same, other): peer.end()
        "#,
    )
    .ok();
}

/// The process that locked a file and its descendants may `rm` or `mv` the lock that the open file
/// holds. Other processes of the owner get EBUSY, other clients EPERM; `mv` of another lock over it
/// gets EBUSY.
#[test]
fn removing_a_lock_that_an_open_file_holds() {
    let m = mount();
    locks_py(
        &m,
        r#"
        for form in ('flock_ex', 'fcntl_ex', 'ofd_ex', 'flock_sh'):
            one, same, other = Peer(A), Peer(A), Peer(B)
            one(f'take({form!r}, "x")')
            for act in ('no(os.unlink, "x")', 'no(os.rename, "x", "y")'):
                eq((form, act, same(act)), (form, act, 'EBUSY'))
                eq((form, act, other(act)), (form, act, 'EPERM'))
            same('take("excl", "z")')
            eq(same('no(os.rename, "z", "x")'), 'EBUSY')
            same('os.unlink("z")')
            eq(status('x')['phase'], 'held')
            eq((form, one('subprocess.call(["sh", "-c", "mv x y && rm y"])')), (form, 0))
            eq([status(name)['phase'] for name in 'xy'], ['free', 'free'])
            for peer in (one, same, other): peer.end()
        "#,
    )
    .ok();
    m.sh("flock x sh -c 'rm x' && test ! -e x").ok();
}

/// A hard link to a lock that an open file holds lasts as long as that open file holds the lock: no
/// ttl ends it, and it ends with the unlock, with the close and with the end of the process.
#[test]
fn a_link_to_the_lock_of_an_open_file_ends_with_it() {
    for behind in [Behind::Itself, Behind::Server] {
        let m = Setup::new().with("--ttl 1s --grace 0s").behind(behind).start();
        // A lock that is made after the link and has the ttl of the mount ends before the link.
        m.sh("flock build sh -c 'ln build other && test other -ef build && touch brief && \
              timeout 10 sh -c \"while test -e brief; do sleep 0.01; done\" && \
              mv other moved && ! test -e other && grep -q held .latchfs/status/moved'")
            .ok();
        m.sh("test ! -e build && test ! -e moved").ok();
        locks_py(
            &m,
            r#"
            for form in 'flock_ex', 'posix_ex', 'ofd_ex', 'ofd_sh':
                for end in 'unlock', 'close', 'kill':
                    holder = Peer()
                    holder(f'lock(opened("a"), "{form}")')
                    os.link('a', 'b')
                    holder('os.link("b", "c")')
                    eq([status(name)['phase'] for name in 'abc'], ['held'] * 3)
                    if end == 'unlock': holder(f'unlock(opened("a"), "{form}")')
                    elif end == 'close': holder('drop("a")')
                    else: os.kill(holder.pid, signal.SIGKILL)
                    until(lambda: listed() == [])
                    if end != 'kill': holder.end()
            # The names that remain after `rm` of the first one end with the open file too.
            holder = Peer()
            holder('lock(opened("a"), "flock_ex")')
            holder('os.link("a", "b")')
            holder('os.unlink("a")')
            eq(listed(), ['b'])
            holder('drop("a")')
            until(lambda: listed() == [])
            holder.end()
            "#,
        )
        .ok();
    }
}
