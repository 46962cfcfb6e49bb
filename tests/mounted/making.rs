//! Operations that acquire a lock: `mkdir`, `O_EXCL`, `O_CREAT`, `ln -s`, `ln`.

use testing::*;

/// `mkdir NAME` acquires the lock, or gets EEXIST. The lock looks like a directory.
#[test]
fn mkdir_acquires() {
    let m = mount();
    m.sh("mkdir build && test -d build").ok();
    assert_eq!(m.sh("ls").ok(), "build\n");
    assert!(m.sh("mkdir build").exits(1).contains("File exists"));
    assert!(m.sh_as(ALICE, "mkdir build").exits(1).contains("File exists"));
    let status = m.status("build");
    assert_eq!(status["holder"], "laptop1:root");
    assert_eq!(status["phase"], "held");
    assert_eq!(status["mode"], "exclusive");
    let token = m.token("build");

    m.sh("rmdir build").ok();
    assert_eq!(m.sh("ls").ok(), "");
    assert_eq!(m.phase("build"), "free");
    m.sh_as(ALICE, "mkdir build").ok();
    assert!(m.token("build") > token, "a new tenure has a greater token");
    m.node("require('fs').mkdirSync('node'); require('fs').rmdirSync('node')").ok();
    let refused = "try { require('fs').mkdirSync('build') } catch (e) { console.log(e.code) }";
    assert_eq!(m.node(refused).ok(), "EEXIST\n");
}

/// `open(O_CREAT|O_EXCL)` and `set -C; > NAME` acquire the lock exclusively, or get EEXIST.
#[test]
fn create_exclusively_acquires() {
    let m = mount();
    for shell in ["sh", "bash"] {
        m.sh(&format!("{shell} -c 'set -C; : > build'")).ok();
        let repeated = format!("{shell} -c 'set -C; : > build'");
        assert!(m.sh(&repeated).fails().to_lowercase().contains("exist"), "{shell}");
        assert!(m.sh_as(BOB, &repeated).fails().to_lowercase().contains("exist"), "{shell}");
        m.sh("rm build").ok();
    }
    m.py(r#"
        with user(A): os.close(exclusive('build'))
        eq(status('build')['holder'], 'laptop1:' + A)
        with user(A): eq(no(exclusive, 'build'), 'EEXIST')
        with user(B): eq(no(exclusive, 'build'), 'EEXIST')
        eq(no(exclusive, 'build'), 'EEXIST')
        with user(A): os.remove('build')
        with user(B): open('build', 'x').close()
        eq(status('build')['holder'], 'laptop1:' + B)
    "#)
        .ok();
    let refused = "try { require('fs').openSync('build', 'wx') } catch (e) { console.log(e.code) }";
    assert_eq!(m.node(refused).ok(), "EEXIST\n");
}

/// `open(O_CREAT)` and `> NAME` acquire a free lock. If another client holds the lock, they open
/// its file without acquiring it: the open never fails.
#[test]
fn create_acquires_a_free_lock_and_opens_a_held_one() {
    let m = mount();
    m.sh_as(ALICE, "> build").ok();
    assert_eq!(m.status("build")["holder"], format!("laptop1:{ALICE}"));
    let token = m.token("build");
    // For BOB, who is not the holder, close(2) of the file fails with EBUSY; but the shell ignores
    // errors of close when it closes the target of a redirect.
    m.sh_as(BOB, "> build; test $? = 0").ok();
    m.sh_as(ALICE, "> build").ok();
    m.py(r#"
        with user(B):
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                fd = os.open('build', flags | os.O_CREAT)
                eq(no(os.close, fd), 'ok' if flags == os.O_RDONLY else 'EBUSY')
        fd = os.open('other', os.O_RDONLY | os.O_CREAT)
        eq(status('other')['holder'], 'laptop1:root')
    "#)
        .ok();
    assert_eq!(m.token("build"), token, "it was the same tenure all the time");
    assert_eq!(m.status("build")["holder"], format!("laptop1:{ALICE}"));
}

/// An open with `O_CREAT` does not fail in a race either: the kernel sends CREATE for a name that
/// it does not know, although another client may have acquired that lock meanwhile.
#[test]
fn a_race_to_create_never_fails_an_open() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    m.py(r#"
        there = os.environ['D2']
        child = os.fork()
        if child == 0:
            for n in range(1000):
                fd = os.open(f'{there}/race{n % 10}', os.O_RDWR | os.O_CREAT, 0o600)
                assert no(os.close, fd) in ('ok', 'EBUSY')
                no(os.remove, f'{there}/race{n % 10}')
            os._exit(0)
        won = 0
        for n in range(1000):
            if no(exclusive, f'race{n % 10}') == 'ok':
                won += 1
                os.remove(f'race{n % 10}')
        eq(os.waitpid(child, 0)[1], 0)
        assert won > 0
    "#)
        .ok();
}

/// At most one process holds a lock: eight processes on two mounts add to a counter in an ordinary
/// file, each time under the lock, and none of 1,600 additions is lost.
#[test]
fn a_counter_comes_out_exact() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    for form in ["mkdir", "exclusive", "symlink", "link"] {
        m.py(&format!(
            r#"
            counter = os.environ['T'] + '/counter-{form}'
            pathlib.Path(counter).write_text('0')
            def work(dir, n):
                os.chdir(dir)
                os.close(exclusive(f'own{{n}}'))
                take, give = {{
                    'mkdir': (lambda: os.mkdir('build'), lambda: os.rmdir('build')),
                    'exclusive': (lambda: os.close(exclusive('build')), lambda: os.remove('build')),
                    'symlink': (lambda: os.symlink('x', 'build'), lambda: os.remove('build')),
                    'link': (lambda: os.link(f'own{{n}}', 'build'), lambda: os.remove('build')),
                }}['{form}']
                for _ in range(50):
                    while (seen := no(take)) != 'ok': eq(seen, 'EEXIST')
                    value = int(pathlib.Path(counter).read_text())
                    pathlib.Path(counter).write_text(str(value + 1))
                    give()
                os.remove(f'own{{n}}')
            children = []
            for n in range(8):
                child = os.fork()
                if child == 0:
                    try: work(os.environ['D2' if n % 2 else 'D'], n)
                    except BaseException as error:
                        print(repr(error), file=sys.stderr, flush=True)
                        os._exit(1)
                    os._exit(0)
                children.append(child)
            eq([os.waitpid(child, 0)[1] for child in children], [0] * 8)
            eq(pathlib.Path(counter).read_text(), '400')
            eq(listed(), [])
            "#
        ))
        .ok();
    }
}

/// `ln -s TEXT NAME` acquires the lock exclusively. The lock looks like a symlink, and readlink
/// returns TEXT.
#[test]
fn symlink_acquires() {
    let m = mount();
    m.sh("ln -s 'laptop1:4711 some text' build && test -L build").ok();
    assert_eq!(m.sh("readlink build").ok(), "laptop1:4711 some text\n");
    assert!(m.sh("ln -s x build").fails().contains("File exists"));
    m.py(r#"
        with user(A): eq(no(os.symlink, 'x', 'build'), 'EEXIST')
        eq(status('build')['phase'], 'held')
        assert stat.S_ISLNK(os.lstat('build').st_mode)
        with user(A): eq(no(os.remove, 'build'), 'EPERM')
        os.remove('build')
        eq(status('build')['phase'], 'free')
        long = 'x' * 4095
        os.symlink(long, 'build')
        eq(os.readlink('build'), long)
    "#)
        .ok();
}

/// `ln A NAME` by the holder of A acquires NAME too, exclusively, or gets EEXIST. A and NAME are
/// then one inode with 2 links; a write through the inode applies to both locks; removing A leaves
/// NAME held.
#[test]
fn link_acquires() {
    let m = mount();
    m.py(r#"
        fd = exclusive('a')
        os.write(fd, b'4711\n')
        os.close(fd)
        os.link('a', 'build')
        eq(os.stat('a').st_ino, os.stat('build').st_ino)
        eq((os.stat('a').st_nlink, os.stat('build').st_nlink), (2, 2))
        eq(pathlib.Path('build').read_text(), '4711\n')
        eq(no(os.link, 'a', 'build'), 'EEXIST')

        os.utime('build', ns=(5, 7))
        eq((os.stat('a').st_mtime_ns, os.stat('build').st_mtime_ns), (7, 7))
        eq(write('a', '77s'), 'ok')
        eq((status('a')['ttl_ms'], status('build')['ttl_ms']), (77_000, 77_000))

        os.remove('a')
        eq((status('a')['phase'], status('build')['phase']), ('free', 'held'))
        eq(os.stat('build').st_nlink, 1)
    "#)
        .ok();
}

/// `ln` to a name that another client holds gets EEXIST; `ln` of a lock that another client holds
/// gets EPERM.
#[test]
fn link_is_refused_for_locks_of_others() {
    let m = mount();
    m.py(r#"
        with user(A): os.close(exclusive('build'))
        with user(B):
            os.close(exclusive('mine'))
            eq(no(os.link, 'mine', 'build'), 'EEXIST')
            eq(no(os.link, 'build', 'new'), 'EPERM')
            eq(listed(), ['build', 'mine'])
            eq(os.stat('mine').st_nlink, 1)
        eq(status('build')['holder'], 'laptop1:' + A)
        eq(status('new')['phase'], 'free')
    "#)
        .ok();
}

/// A name may have several parts: `DIR/team/build` is the lock `team/build`. `team` is shown as a
/// directory while a lock below it is held, and is a lock of its own when `mkdir` has acquired it.
/// Every operation works at every depth.
#[test]
fn names_have_parts() {
    let m = mount();
    m.sh("mkdir -p team/b && cd team/b && touch c && (set -C; : > d) && ln -s text e").ok();
    m.sh("cd team/b && ln d f && mv f g && test \"$(readlink e)\" = text && grep -q held c").ok();
    assert_eq!(m.sh("cd team/b && ls").ok(), "c\nd\ne\ng\n");
    for name in ["team", "team/b", "team/b/c", "team/b/d", "team/b/e", "team/b/g"] {
        assert_eq!(m.status(name)["name"], name);
        assert_eq!(m.phase(name), "held", "{name}");
    }
    assert!(m.sh("rmdir team").fails().contains("not empty"));
    m.sh("rm -r team").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
    assert_eq!(m.phase("team/b/c"), "free");

    m.latchfs(&["acquire", "way/to/lock"]).ok();
    assert_eq!(m.sh("find . | sort").ok(), ".\n./way\n./way/to\n./way/to/lock\n");
    assert_eq!(json(&m.latchfs(&["status", "way", "--json"]).ok())["phase"], "free");
    assert!(m.sh("rmdir way/to").fails().contains("not empty"));
    m.sh("rm way/to/lock").ok();
    assert_eq!(m.sh("ls -A").ok(), "", "the way goes with the last lock below it");
}
