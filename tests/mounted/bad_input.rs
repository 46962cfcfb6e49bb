//! Invalid input to a mount: each kind gets its errno and an error message, and no lock or memory
//! is lost.

use testing::*;

/// Lock names may have 255 bytes per part and 1,024 bytes in total; longer and empty ones are
/// refused.
#[test]
fn name_length_is_limited() {
    let m = mount();
    m.py(r#"
        eq(no(os.mkdir, ''), 'ENOENT')
        os.mkdir('x' * 255); os.rmdir('x' * 255)
        os.mkdir('é' * 127); os.rmdir('é' * 127)
        for make in (os.mkdir, exclusive, lambda name: os.symlink('x', name)):
            eq(no(make, 'x' * 256), 'ENAMETOOLONG')
            assert '255' in why(), why()
            eq(no(make, 'é' * 128), 'ENAMETOOLONG')
        where = ''
        for part in ('a', 'b', 'c', 'd'):
            where += part * 254 + '/'
            os.mkdir(where)
        eq(len(where), 1020)
        for make, undo in ((os.mkdir, os.rmdir), (exclusive, os.remove)):
            eq(no(make, where + 'four!'), 'ENAMETOOLONG')
            assert '1024' in why(), why()
            make(where + 'four')
            eq(status(where + 'four')['phase'], 'held')
            undo(where + 'four')
        os.close(exclusive('mine'))
        eq(no(os.rename, 'mine', 'y' * 256), 'ENAMETOOLONG')
        eq(no(os.link, 'mine', 'y' * 256), 'ENAMETOOLONG')
    "#)
        .ok();
    m.sh("rm -rf a* mine && test -z \"$(ls -A)\"").ok();
}

/// Lock names that are not UTF-8, have control characters, or are reserved for the mount are
/// refused.
#[test]
fn names_are_valid_text() {
    let m = mount();
    m.py(r#"
        os.close(exclusive('mine'))
        for name, word in ((b'\xff\xfe', 'UTF-8'), (b'a\nb', 'control'), (b'tab\t', 'control'),
                           (b'\x7f', 'control'), (b'.latchfs-own', '.latchfs')):
            for make in (os.mkdir, exclusive, lambda name: os.symlink('x', name),
                         lambda name: os.link(b'mine', name),
                         lambda name: os.rename(b'mine', name)):
                eq((name, no(make, name)), (name, 'EINVAL'))
                assert word in why(), (name, why())
            assert no(os.stat, name) in ('ENOENT', 'EINVAL'), name
        eq(listed(), ['mine'])
        for name in ('naïve', 'two words', '*', '"', "'", '\\', '-rf', '日本'):
            os.mkdir(name)
            eq(status(name)['name'], name)
            os.rmdir(name)
    "#)
        .ok();
}

/// A ttl or grace period that is 0, negative, overflowing, too short (`500ms`) or too long (`25h`)
/// gets EINVAL with a message, and the lease stays as it was.
#[test]
fn ttl_and_grace_have_bounds() {
    let m = mount();
    m.py(r#"
        os.close(exclusive('build')); os.mkdir('dir')
        before = (status('build')['ttl_ms'], status('dir')['ttl_ms'])
        for ttl in ('0s', '-1s', '500ms', '999ms', '25h', '24h1s', '9' * 30 + 'h', '1s1'):
            if ttl != '1s1':
                eq((ttl, write('build', ttl)), (ttl, 'EINVAL'))
            for name in ('build', 'dir/ctl'):
                for options in ({'ttl': ttl}, {'grace': '-1s'}, {'grace': '25h'}):
                    eq((options, write(name, json.dumps(options))), (options, 'EINVAL'))
                    assert len(why()) > 10, why()
            eq(no(os.setxattr, 'build', 'user.latchfs.ttl', ttl.encode()), 'EINVAL')
        eq((status('build')['ttl_ms'], status('dir')['ttl_ms']), before)
        for ttl, millis in (('1s', 1_000), ('24h', 86_400_000), ('1.5h', 5_400_000)):
            eq(write('build', ttl), 'ok')
            eq(status('build')['ttl_ms'], millis)
    "#)
        .ok();
    for wrong in ["0s", "-1s", "500ms", "25h", "soon", ""] {
        let said = m.latchfs(&["acquire", "x", &format!("--ttl={wrong}")]).exits(64);
        assert!(!said.is_empty());
    }
    for wrong in ["--ttl=500ms", "--ttl=25h", "--grace=-1s", "--owner=dog", "--content=x"] {
        let scratch = m.scratch().display().to_string();
        m.latchfs(&["mount", wrong, "--state", "none", "--grant-at-once", &scratch]).exits(64);
    }
}

/// Each invalid request that is written to `.latchfs/ctl` gets an answer, and the file accepts the
/// next request.
#[test]
fn invalid_control_requests_are_answered() {
    let m = mount();
    m.py(r#"
        fd = os.open('.latchfs/ctl', os.O_RDWR)
        def ask(text):
            eq((text[:20], no(os.write, fd, text)), (text[:20], 'ok'))
            answer = json.loads(os.read(fd, 65536))
            eq(os.read(fd, 10), b'')
            return answer
        deep = b'[' * 4_000 + b']' * 4_000
        deep_object = b'{"do":' * 1_000 + b'1' + b'}' * 1_000
        for text in (b'{"do":"acquire"', b'', b'null', b'[]', b'"acquire"', b'7', b'{}',
                     b'\xff\x00', b'{"do":"dance"}', b'{"do":1}', b'{"do":"acquire"}',
                     deep, deep_object,
                     b'{"do":"acquire","name":""}', b'{"do":"acquire","name":7}',
                     b'{"do":"acquire","name":"a//b"}', b'{"do":"acquire","name":".latchfs"}',
                     b'{"do":"acquire","name":"a\\u0000b"}', b'{"do":"acquire","name":"../a"}',
                     b'{"do":"acquire","name":"a","ttl":"500ms"}',
                     b'{"do":"acquire","name":"a","ttl":60}',
                     b'{"do":"acquire","name":"a","mode":"dog"}',
                     b'{"do":"renew","name":"a","token":-1}',
                     b'{"do":"renew","name":"a","token":1e300}',
                     b'{"do":"list","limit":-1}',
                     json.dumps({'do': 'acquire', 'name': 'a', 'note': 'n' * 2_000}).encode(),
                     json.dumps({'do': 'acquire', 'name': 'x' * 256}).encode()):
            if text:
                answer = ask(text)
                eq((text[:60], answer['ok'], answer.get('kind')), (text[:60], False, 'E_INVALID'))
                assert len(answer['message']) > 10, answer
        long = json.dumps({'do': 'acquire', 'name': 'a', 'note': 'n' * 9_000}).encode()
        seen = no(os.write, fd, long)
        if seen == 'ok': eq(json.loads(os.read(fd, 65536))['kind'], 'E_INVALID')
        else: assert seen in ('EFBIG', 'EINVAL'), seen
        eq(listed(), [])
        eq(ask(b'{"do":"acquire","name":"a"}')['ok'], True)
    "#)
        .ok();
}

/// A write of 1 MiB gets EFBIG and leaves the content as it was, and so does ftruncate to 2^62.
#[test]
fn content_length_is_limited() {
    let m = mount();
    m.py(r#"
        fd = exclusive('build')
        os.write(fd, b'text')
        eq(no(os.write, fd, b'x' * (1 << 20)), 'EFBIG')
        assert '4096' in why(), why()
        assert no(os.ftruncate, fd, 1 << 62) in ('EFBIG', 'EINVAL')
        assert no(os.truncate, 'build', 4_097) in ('EFBIG', 'EINVAL')
        eq(no(os.lseek, fd, 1 << 40, os.SEEK_SET), 'ok')
        eq(pathlib.Path('build').read_text(), 'text')
        eq(os.stat('build').st_size, 4)
        reader = os.open('build', os.O_RDONLY)
        eq(os.pread(reader, 100, 1 << 40), b'')
        os.mkdir('dir')
        eq(no(pathlib.Path('dir/ctl').write_bytes, b'x' * (1 << 20)) != 'ok', True)
        eq(no(os.symlink, 'x' * 4096, 'link'), 'ENAMETOOLONG')
        # A message is short wherever it is written to.
        assert no(os.pwrite, fd, b'x', 1 << 62) in ('ok', 'EFBIG', 'EINVAL')
        assert os.stat('build').st_size <= 5, os.stat('build')
        eq(status('build')['phase'], 'held')
    "#)
        .ok();
}

/// Unusual open flags and calls that do not fit the file type get their errno, and change nothing.
#[test]
fn unusual_open_flags_are_handled() {
    let m = mount();
    m.py(r#"
        os.close(exclusive('build'))
        for flags in (os.O_DIRECT, os.O_SYNC, os.O_NONBLOCK, os.O_NOATIME, os.O_CLOEXEC, os.O_PATH):
            os.close(os.open('build', os.O_RDONLY | flags))
        eq(no(os.open, 'build', os.O_RDONLY | os.O_DIRECTORY), 'ENOTDIR')
        eq(no(os.open, '.', os.O_RDWR), 'EISDIR')
        eq(no(os.listdir, 'build'), 'ENOTDIR')
        eq(no(os.readlink, 'build'), 'EINVAL')
        eq(no(os.utime, 'free'), 'ENOENT')
        eq(no(os.open, 'free', os.O_RDONLY), 'ENOENT')
        eq(no(os.mkdir, 'build/below'), 'ENOTDIR')
        eq(no(os.mkdir, 'free/below'), 'ENOENT')
        for name in ('.', '..', '/'):
            assert no(os.rmdir, name) != 'ok'
        eq(listed(), ['build'])
    "#)
        .ok();
}

/// The daemon's memory and descriptors do not grow with locks that are acquired and released.
#[test]
fn nothing_leaks() {
    let m = mount();
    let churn = r#"
        for n in range(3_000):
            name = f'n{n}'
            fd = exclusive(name); os.write(fd, b'x' * 100); os.close(fd); os.stat(name)
            os.remove(name)
            os.mkdir(name); no(os.mkdir, name); os.rmdir(name)
            no(os.stat, f'free{n}'); no(os.mkdir, 'x' * 256)
    "#;
    let files = || {
        let path = format!("/proc/{}/fd", m.pid());
        std::fs::read_dir(path).expect("it lives").count()
    };
    m.py(churn).ok();
    let (memory, open) = (memory_kb(&m), files());
    for _ in 0..3 {
        m.py(churn).ok();
    }
    let grown = memory_kb(&m).saturating_sub(memory);
    assert!(grown < 4_096, "grew by {grown} KiB in 18,000 tenures");
    // The daemon may have up to 20 more open files than before: it caches a few processes that have
    // acquired locks, with one descriptor for each.
    assert!(files() <= open + 20, "{} open files, {open} before", files());
}
