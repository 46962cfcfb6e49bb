//! Two mounts of one server: what a mount made and holds stays the same inode there, whatever the
//! kernel is told to forget.

use crate::harness::*;

fn on_a_server() -> Mount {
    Setup::new().behind(Behind::Server).start()
}

/// `ln` of a lock that was made a moment ago: both names are one inode with two links, as often
/// as one looks, also when the kernel has dropped all that it kept, and on the mount that made it.
#[test]
fn linked_locks_stay_one_inode() {
    for m in [on_a_server(), mount()] {
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
            "#)
            .ok();
    }
}

/// A program in a directory that is a lock keeps its working directory while locks below it come
/// and go, on its own mount and on the other one.
#[test]
fn working_directory_outlives_changes_below_it() {
    let m = on_a_server();
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
        "#)
        .ok();
}

/// What another mount changes is seen at once all the same.
#[test]
fn changes_of_another_mount_are_seen() {
    let m = on_a_server();
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
