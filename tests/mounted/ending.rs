//! Operations that release or move a lock: `rm`, `rmdir`, `mv`.

use testing::*;

/// `rm NAME` and `rmdir NAME` release a lock. A client that is not the holder gets EPERM; `rmdir`
/// gets ENOTEMPTY if the holder has locks below NAME.
#[test]
fn removing_releases() {
    let m = mount();
    m.sh("touch file && mkdir dir && ln -s x link").ok();
    for name in ["file", "dir", "link"] {
        m.py(&format!(
            r#"
            remove = os.rmdir if '{name}' == 'dir' else os.remove
            with user(B):
                eq(no(remove, '{name}'), 'EPERM')
                assert "'{name}'" in why() and 'laptop1:root' in why(), why()
            eq(status('{name}')['phase'], 'held')
            remove('{name}')
            eq(status('{name}')['phase'], 'free')
            eq(no(remove, '{name}'), 'ENOENT')
            eq(no(os.lstat, '{name}'), 'ENOENT')
            "#
        ))
        .ok();
    }
    m.py(r#"
        os.mkdir('team'); os.mkdir('team/build'); os.close(exclusive('file'))
        eq(no(os.rmdir, 'team'), 'ENOTEMPTY')
        eq(no(os.rmdir, 'file'), 'ENOTDIR')
        eq(no(os.remove, 'team'), 'EISDIR')
        os.rmdir('team/build'); os.rmdir('team'); os.remove('file')
        eq(listed(), [])
    "#)
        .ok();
    let node = "const f = require('fs'); f.mkdirSync('d'); f.rmdirSync('d'); \
                f.writeFileSync('x', 'text'); f.unlinkSync('x')";
    m.node(node).ok();
}

/// A file that was open when its lock was released stays readable, and has no links.
#[test]
fn a_released_file_stays_readable_and_has_no_links() {
    let m = mount();
    m.py(r#"
        fd = os.open('build', os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.write(fd, b'text')
        eq(os.fstat(fd).st_nlink, 1)
        os.remove('build')
        eq(os.fstat(fd).st_nlink, 0)
        eq(no(os.pread, fd, 100, 0), 'ok')
        eq(no(os.close, fd), 'ok')
    "#)
        .ok();
}

/// `mv A NAME` moves a lock of the caller to NAME, under a new token, if NAME is free or held by
/// the caller.
#[test]
fn mv_moves_the_lock() {
    let m = mount();
    m.py(r#"
        fd = exclusive('a')
        os.write(fd, b'text')
        os.utime('a', ns=(5, 7))
        first = status('a')['token']
        os.rename('a', 'build')
        eq((status('a')['phase'], status('build')['phase']), ('free', 'held'))
        second = status('build')['token']
        assert second > first, (first, second)
        eq(pathlib.Path('build').read_text(), 'text')
        eq(os.stat('build').st_mtime_ns, 7)

        # An open file speaks of the lock that it holds.
        eq(no(os.write, fd, b'77s'), 'ok')
        eq(status('build')['ttl_ms'], 77_000)
        eq(status('a')['phase'], 'free')

        os.close(exclusive('other'))
        third = status('other')['token']
        os.rename('build', 'other')
        assert status('other')['token'] > third
        eq(listed(), ['other'])
        eq(pathlib.Path('other').read_text(), 'text')

        os.mkdir('dir')
        os.rename('dir', 'moved')
        os.symlink('x', 'link')
        os.rename('link', 'link2')
        eq(os.readlink('link2'), 'x')
        eq(listed(), ['link2', 'moved', 'other'])
        assert os.path.isdir('moved')
    "#)
        .ok();
    m.sh("mkdir team && mv other team/build && test -f team/build").ok();
    assert_eq!(m.phase("team/build"), "held");
}

/// `mv` to the name of a lock that another client holds gets EBUSY (EEXIST with
/// `RENAME_NOREPLACE`), and `mv` of a lock that another client holds gets EPERM.
#[test]
fn mv_over_the_lock_of_another_is_busy() {
    let m = mount();
    m.py(r#"
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def renameat2(old, new, flags):
            if libc.renameat2(-100, old.encode(), -100, new.encode(), flags):
                raise OSError(ctypes.get_errno(), 'renameat2')
        NOREPLACE, EXCHANGE = 1, 2
        with user(A): os.close(exclusive('build'))
        with user(B):
            os.close(exclusive('mine')); os.close(exclusive('mine2'))
            eq(no(os.rename, 'mine', 'build'), 'EBUSY')
            assert "'build'" in why() and 'laptop1:' + A in why(), why()
            eq(no(os.rename, 'build', 'new'), 'EPERM')
            eq(no(renameat2, 'mine', 'build', NOREPLACE), 'EEXIST')
            eq(no(renameat2, 'mine', 'mine2', NOREPLACE), 'EEXIST')
            eq(no(renameat2, 'mine', 'new', NOREPLACE), 'ok')
            assert no(renameat2, 'new', 'mine2', EXCHANGE) in ('EINVAL', 'ENOTSUP', 'EPERM')
        eq(listed(), ['build', 'mine2', 'new'])
        eq(status('build')['holder'], 'laptop1:' + A)
    "#)
        .ok();
    assert!(m.sh_as(BOB, "mv -f new build").fails().contains("busy"));
}
