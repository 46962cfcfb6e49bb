//! Two mounts of the same locks: a lock keeps its inode on the mount that made and holds it,
//! whatever the kernel drops from its caches, and changes made through the other mount become
//! visible. Each test runs on one mount, on two mounts of a server, and on mounts of two nodes of a
//! cluster.

use testing::*;

#[test]
fn on_one_mount() {
    all(Behind::Itself);
}

#[test]
fn on_two_mounts_of_a_server() {
    all(Behind::Server);
}

#[test]
fn on_two_nodes_of_a_cluster() {
    all(Behind::Cluster);
}

#[track_caller]
fn all(behind: Behind) {
    let m = Setup::new().behind(behind).start();
    assert_eq!(m.others() != m.dir(), behind != Behind::Itself);
    linked_locks_stay_one_inode(&m);
    working_directory_outlives_changes_below_it(&m);
    changes_of_another_mount_are_seen(&m);
}

/// After `ln` of a lock that was just made, both names are one inode with two links on the mount
/// that made them: every stat shows that, even after the kernel has dropped its caches.
fn linked_locks_stay_one_inode(m: &Mount) {
    m.py(r#"
        def both():
            a, b = os.stat('a'), os.stat('b')
            eq((a.st_ino == b.st_ino, a.st_nlink, b.st_nlink), (True, 2, 2))
            return a.st_ino
        for _ in range(50):
            write('a', 'x')
            os.link('a', 'b')
            number = both()
            os.remove('b'); os.remove('a')
        write('a', 'x'); os.link('a', 'b'); os.mkdir('d'); write('f', 'x')
        pathlib.Path('e').touch(); held = os.open('e', os.O_RDWR); os.remove('e')
        fcntl.flock(held, fcntl.LOCK_EX)
        number, others = both(), [os.stat(name).st_ino for name in 'def']
        pathlib.Path('/proc/sys/vm/drop_caches').write_text('2')
        eq(both(), number)
        eq([os.stat(name).st_ino for name in 'def'], others)
        eq(sorted(entry.inode() for entry in os.scandir('.')), sorted([number] * 2 + others))
        for name in 'abf': os.remove(name)
        os.rmdir('d'); os.close(held)
        "#)
        .ok();
    eventually("an empty directory", || m.sh("ls -A").ok().is_empty().then_some(()));
}

/// A program whose working directory is a lock keeps that directory while locks below it are
/// created and removed, both through its own mount and through a second mount of the same locks.
fn working_directory_outlives_changes_below_it(m: &Mount) {
    m.py(r#"
        other = pathlib.Path(os.environ['OTHERS'])
        os.mkdir('d'); os.chdir('d')
        for n in range(20):
            pathlib.Path('f').touch()
            (other / 'd/g').touch()
            assert os.getcwd().endswith('/d')
            assert pathlib.Path('g').exists()
            os.remove('f'); os.remove('g')
        eq(listed(), [])
        os.chdir('..'); os.rmdir('d')
        "#)
        .ok();
}

/// Changes made through another mount become visible at once, although the kernel caches names.
fn changes_of_another_mount_are_seen(m: &Mount) {
    m.py(r#"
        other = pathlib.Path(os.environ['OTHERS'])
        def until(what):
            end = time.monotonic() + 5
            while not what(): assert time.monotonic() < end
        for n in range(20):
            assert not os.path.exists('x')
            (other / 'x').mkdir()
            until(lambda: os.path.isdir('x'))
            first = os.stat('x').st_ino
            (other / 'x').rmdir()
            (other / 'x').mkdir()
            until(lambda: os.path.isdir('x') and os.stat('x').st_ino != first)
            (other / 'x').rmdir()
            until(lambda: not os.path.exists('x'))
            (other / 'x').touch()
            until(lambda: os.path.isfile('x'))
            (other / 'x').unlink()
            until(lambda: not os.path.exists('x'))
        "#)
        .ok();
}
