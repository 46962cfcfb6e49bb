//! The maximum number of locks in a mount, a million, and one more.

use latchfs::engine::{
    Acquire, ClientId, Grace, LeaseKey, LeaseTerms, LockName, Op, Release, Rules, Ttl,
};
use latchfs::service::local::Local;
use latchfs::service::{LockService, Retry};
use latchfs::time::Span;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use testing::*;

/// The maximum number of locks in one mount or server, as latchfs sets it.
const LOCKS_MAX: usize = 1 << 20;

/// Opens the state directory of a daemon that is not running, and applies one operation, which
/// `work` returns, to each of a million locks.
fn each_lock(state: &Path, work: impl Fn(LockName) -> Op) {
    let local = Arc::new(Local::open(state, Rules::default()).expect("no daemon runs"));
    for n in 0..LOCKS_MAX {
        let name = LockName::parse(&format!("lock-{n:07}")).expect("a name");
        let answer = local.submit(work(name).into(), Retry::Never).wait();
        assert!(matches!(answer, Ok(Ok(_))), "{answer:?}");
    }
    local.close().expect("there is room");
    drop(local);
    // A snapshot that is still being made keeps the directory locked.
    let lock = File::open(state.join("lock")).expect("it was locked");
    soon("the last snapshot is made", || lock.try_lock().ok());
}

fn root() -> ClientId {
    ClientId::parse("laptop1:root").expect("a client")
}

fn acquire(name: LockName) -> Op {
    let ttl = Ttl::new(Span::from_secs(24 * 3_600)).expect("within bounds");
    let grace = Grace::new(Span::ZERO).expect("within bounds");
    Op::Acquire(Acquire::new(name, root(), LeaseTerms::Own(ttl, grace)))
}

fn release(name: LockName) -> Op {
    Op::Release(Release::of(LeaseKey { name, client: root(), token: None }))
}

/// 1,048,576 locks survive a restart. The next lock is refused with ENOSPC and a message, by every
/// operation, until one is released. The daemon's memory stays within its bound.
#[test]
fn the_maximum_number_of_locks_is_enforced() {
    let mut m = Setup::new().prepare();
    each_lock(&m.state(), acquire);
    m.start();
    assert_eq!(json(&m.sh("cat .latchfs/server").ok())["locks"], LOCKS_MAX);
    m.py(r#"
        for make in (os.mkdir, exclusive, lambda name: os.symlink('x', name),
                     lambda name: os.link('lock-0000001', name),
                     lambda name: open(name, 'w')):
            eq(no(make, 'more'), 'ENOSPC')
            assert '1048576' in why() and 'release' in why(), why()
        eq(json.loads(pathlib.Path('.latchfs/why').read_text())['kind'], 'E_LIMIT')
        eq(no(os.utime, 'lock-0000001'), 'ok')
        os.rename('lock-0000001', 'moved')
        eq(no(os.mkdir, 'more'), 'ENOSPC')
        os.remove('moved')
        os.mkdir('more')
        eq(no(os.mkdir, 'one-more'), 'ENOSPC')
        os.rmdir('more')
        eq(sum(1 for _ in os.scandir('.')), 1_048_575)
        with user(A): eq(no(exclusive, 'lock-0500000'), 'EEXIST')
    "#)
        .ok();
    m.latchfs(&["acquire", "mine"]).ok();
    let said = m.latchfs(&["acquire", "more"]).exits(75);
    assert!(said.contains("1048576"), "{said}");
    // The bound on the memory of the daemon is 700 MiB: some 400 MB for the locks, and the rest for
    // the names that a listing of the directory has made known to the kernel.
    let memory = memory_kb(&m);
    assert!(memory < 700 << 10, "{memory} KiB");
    m.sh("rmdir mine || rm mine; mkdir lock-0000001").ok();
    assert_eq!(m.stop(libc::SIGTERM), 0, "{}", m.log());

    each_lock(&m.state(), release);
    m.start();
    assert_eq!(json(&m.sh("ls -A; cat .latchfs/server").ok())["locks"], 0);
}

/// 20,000 locks are acquired through the file `.latchfs/ctl`, one after the other. Half of them are
/// then released through this file, and half by `rm`.
#[test]
fn many_by_the_control_file() {
    let m = mount();
    m.py(r#"
        fd = os.open('.latchfs/ctl', os.O_RDWR)
        def ask(**request):
            os.write(fd, json.dumps(request).encode())
            eq(os.read(fd, 4_096)[:10], b'{"ok":true')
        for n in range(20_000): ask(do='acquire', name=f'lock-{n}', ttl='1h')
        eq(len(os.listdir('.')), 20_000)
        for n in range(0, 20_000, 2): ask(do='release', name=f'lock-{n}')
        for n in range(1, 20_000, 2): os.remove(f'lock-{n}')
        eq(listed(), [])
    "#)
        .ok();
}
