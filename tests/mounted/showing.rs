//! Operations that read a lock: `cat`, `ls`, stat, extended attributes; and file operations that
//! locks do not support.

use testing::*;

/// The names of the fields of a lock's JSON status, in the order in which `cat` shows them.
const FIELDS: [&str; 17] = [
    "name",
    "holder",
    "expires_at",
    "is_expired",
    "grace_until",
    "phase",
    "mode",
    "token",
    "expires_in_ms",
    "acquired_at",
    "held_ms",
    "renewed_at",
    "ttl_ms",
    "grace_ms",
    "holder_id",
    "note",
    "waiters",
];

/// `cat NAME` shows the lock's status as JSON: one object, pretty-printed, with a newline at the
/// end.
#[test]
fn cat_shows_the_status() {
    let m = mount();
    m.sh_as(ALICE, "touch build && echo '{\"note\":\"nightly\"}' > build").ok();
    let shown = m.sh_as(BOB, "cat build").ok();
    assert!(shown.starts_with("{\n") && shown.ends_with("\n}\n"), "{shown}");
    let status = json(&shown);
    let fields: Vec<_> = status.as_object().expect("an object").keys().collect();
    assert_eq!(fields, FIELDS);
    assert_eq!(status["name"], "build");
    assert_eq!(status["holder"], format!("laptop1:{ALICE}"));
    assert_eq!(status["is_expired"], false);
    assert_eq!((&status["ttl_ms"], &status["grace_ms"]), (&30_000.into(), &5_000.into()));
    assert_eq!(status["note"], "nightly");
    assert_eq!(status["waiters"], serde_json::json!([]));
    let holder_id = text(&status["holder_id"]);
    let parts: Vec<_> = holder_id.split(':').collect();
    assert_eq!(parts[..2], ["laptop1", ALICE], "{holder_id}");
    let numbers = parts[2..].iter().flat_map(|part| part.split('.'));
    assert!(numbers.clone().all(|part| part.parse::<u64>().is_ok()), "{holder_id}");
    assert_eq!(numbers.count(), 5, "host:user:pid:start:leader.start.boot, not {holder_id}");
    for field in ["expires_at", "grace_until", "acquired_at", "renewed_at"] {
        let time = text(&status[field]);
        assert!(time.starts_with("20") && time.ends_with('Z') && time.contains('T'), "{time}");
    }
    m.node("JSON.parse(require('fs').readFileSync('build', 'utf8'))").ok();
    assert_eq!(m.sh("wc -c < build").ok(), format!("{}\n", m.sh("cat build").ok().len()));
}

/// The status of a free lock is `{"name", "holder": "", "is_expired": true, "phase": "free"}`.
#[test]
fn a_free_lock_has_a_status() {
    let m = mount();
    assert!(m.sh("cat build").fails().contains("No such file"));
    let free = "{\"name\":\"build\",\"holder\":\"\",\"is_expired\":true,\"phase\":\"free\"}";
    assert_eq!(m.status("build").to_string(), free);
    assert_eq!(m.sh("ls -A; stat build 2>&1 | grep -c 'No such'").ok(), "1\n");
}

/// `cat NAME` shows the content instead of the status if the content was written through the open
/// file that created the lock with `O_EXCL`, or through one opened with `O_RDWR`, or if the lock
/// has been linked. An `O_RDWR` open file reads the content, which is empty at first.
#[test]
fn programs_read_their_text_back() {
    let m = mount();
    m.py(r#"
        read = lambda name: pathlib.Path(name).read_text()
        # Written by who made it.
        with open('made', 'x') as file: file.write('4711\n')
        eq(read('made'), '4711\n')
        with user(A): eq(read('made'), '4711\n')
        # Made exclusively, but written by a later open file.
        os.close(exclusive('later'))
        eq(write('later', '4711\n'), 'ok')
        eq(json.loads(read('later'))['phase'], 'held')
        # Read and written by one open file.
        both = os.open('both', os.O_RDWR | os.O_CREAT)
        eq(os.read(both, 100), b'')
        os.write(both, b'host:4711')
        eq(os.pread(both, 100, 0), b'host:4711')
        eq(os.pread(both, 4, 5), b'4711')
        eq(read('both'), 'host:4711')
        with user(A):
            other = os.open('both', os.O_RDWR)
            eq(os.read(other, 100), b'host:4711')
        # Linked.
        with open('a', 'w') as file: file.write('via a\n')
        eq(json.loads(read('a'))['name'], 'a')
        os.link('a', 'linked')
        eq((read('a'), read('linked')), ('via a\n', 'via a\n'))
        os.remove('a')
        eq(read('linked'), 'via a\n')
        # The status and the text are there in any case.
        eq(status('made')['phase'], 'held')
        eq(read('.latchfs/content/later'), '4711\n')
    "#)
        .ok();
}

/// The first read of an open file may begin anywhere: `f.seek(1)` before `f.read()`, `tail -c +2`,
/// `dd skip=`. So may that of a control file.
#[test]
fn the_first_read_may_begin_anywhere() {
    let m = mount();
    m.py(r#"
        with open('made', 'x') as file: file.write(' 4711\n')
        for name in 'made', '.latchfs/content/made':
            with open(name) as file:
                file.seek(1)
                eq(file.read(), '4711\n')
            fd = os.open(name, os.O_RDONLY)
            eq([os.pread(fd, 9, at) for at in (2, 0, 6, 1)], [b'711\n', b' 4711\n', b'', b'4711\n'])
    "#)
        .ok();
    assert_eq!(m.sh("tail -c +3 made").ok(), "711\n");
    assert_eq!(m.sh("dd if=made bs=1 skip=2 status=none").ok(), "711\n");
}

/// With `mount --content note`, `cat NAME` always shows the text that was written to the lock, and
/// never the status of the lock.
#[test]
fn content_note_shows_the_text_always() {
    let m = Setup::new().with("--content note").start();
    m.sh("touch build").ok();
    assert_eq!(m.sh("cat build").ok(), "");
    m.sh("echo 4711 > build && echo 60s >> build").ok();
    assert_eq!(m.sh("cat build").ok(), "4711\n");
    assert_eq!(m.sh("stat -c %s build").ok(), "5\n");
    assert_eq!(m.status("build")["ttl_ms"], 60_000);
}

/// stat shows the holder's uid, or 65534 if the holder is not local; size 0 if readers get the
/// status, otherwise the length of the content; as mtime the last renewal, and as ctime the
/// acquisition.
#[test]
fn stat_shows_the_holder() {
    let m = Setup::new().only("--client laptop1 --client laptop2").dirs(2).start();
    m.py(r#"
        start = time.time_ns() - 100_000_000
        with user(A):
            with open('build', 'x') as file: file.write('4711\n')
            pathlib.Path('plain').touch()
            os.mkdir('dir')
        alice = pwd.getpwnam(A)
        for name, size in (('build', 5), ('plain', 0), ('dir', None)):
            seen = os.stat(name)
            eq((seen.st_uid, seen.st_gid), (alice.pw_uid, alice.pw_gid))
            if size is not None: eq(seen.st_size, size)
            for at in (seen.st_mtime_ns, seen.st_ctime_ns):
                assert start < at < start + 60_000_000_000, (at, start)
            there = os.stat(os.environ['D2'] + '/' + name)
            eq(there.st_uid, 65534)
        eq(stat.S_ISREG(os.stat('build').st_mode), True)
        ctime = os.stat('plain').st_ctime_ns
        with user(A): os.utime('plain', ns=(1, 1))
        eq((os.stat('plain').st_mtime_ns, os.stat('plain').st_ctime_ns), (1, ctime))
    "#)
        .ok();
    assert!(m.sh("ls -l").ok().contains(ALICE));
}

/// chmod and chown by the holder are stored and shown, but let no other client change or release
/// the lock.
#[test]
fn chmod_and_chown_are_only_shown() {
    let m = mount();
    m.py(r#"
        mode = lambda name: stat.S_IMODE(os.stat(name).st_mode)
        os.umask(0o022)
        os.close(exclusive('build', 0o660)); os.mkdir('dir', 0o700)
        eq((mode('build'), mode('dir')), (0o640, 0o700))
        os.chmod('build', 0o600); os.chmod('dir', 0o755)
        eq((mode('build'), mode('dir')), (0o600, 0o755))
        bob = pwd.getpwnam(B)
        os.chown('build', bob.pw_uid, bob.pw_gid)
        eq((os.stat('build').st_uid, os.stat('build').st_gid), (bob.pw_uid, bob.pw_gid))
        eq(status('build')['holder'], 'laptop1:root')
        with user(A):
            assert no(os.chmod, 'build', 0o777) in ('EPERM', 'EBUSY')
            assert no(os.chown, 'build', os.geteuid(), -1) in ('EPERM', 'EBUSY')
        eq(mode('build'), 0o600)
        with user(B): assert no(os.remove, 'build') == 'EPERM', 'the owner shown is no holder'
    "#)
        .ok();
}

/// A lock that is a file keeps its inode number as long as the kernel knows the inode, even when
/// the lock is released and acquired again. Directories and symlinks get a new number each time,
/// and so does a name whose old inode still has another name. The link count is 0 when the lock is
/// free.
#[test]
fn inode_numbers_follow_the_open_file() {
    let m = mount();
    m.py(r#"
        fd = exclusive('build')
        number = os.fstat(fd).st_ino
        eq(os.stat('build').st_ino, number)
        os.remove('build')
        eq((os.fstat(fd).st_ino, os.fstat(fd).st_nlink), (number, 0))
        again = exclusive('build')
        eq((os.fstat(again).st_ino, os.fstat(fd).st_ino), (number, number))
        eq((os.fstat(again).st_nlink, os.stat('build').st_nlink), (1, 1))

        os.mkdir('dir')
        held = os.open('dir', os.O_RDONLY)
        old = os.fstat(held).st_ino
        os.rmdir('dir'); os.mkdir('dir')
        assert os.stat('dir').st_ino != old
        os.symlink('x', 'link')
        held = os.open('link', os.O_PATH | os.O_NOFOLLOW)
        old = os.fstat(held).st_ino
        os.remove('link'); os.symlink('x', 'link')
        assert os.lstat('link').st_ino != old

        os.close(exclusive('a'))
        os.link('a', 'b')
        os.remove('a')
        os.close(exclusive('a'))
        assert os.stat('a').st_ino != os.stat('b').st_ino
        eq((os.stat('a').st_nlink, os.stat('b').st_nlink), (1, 1))
    "#)
        .ok();
}

/// `getfattr -d NAME` shows as extended attributes the lock's token, holder, phase,
/// `expires_in_ms`, note (a text for others who want the lock) and number of waiters.
#[test]
fn attributes_show_the_status() {
    let m = mount();
    m.sh_as(ALICE, "touch build && echo '{\"note\":\"nightly\"}' > build").ok();
    let shown = m.sh("getfattr -d build").ok();
    let status = m.status("build");
    for line in [
        format!("user.latchfs.token=\"{}\"", status["token"]),
        format!("user.latchfs.holder=\"laptop1:{ALICE}\""),
        "user.latchfs.phase=\"held\"".to_owned(),
        "user.latchfs.note=\"nightly\"".to_owned(),
        "user.latchfs.waiters=\"0\"".to_owned(),
    ] {
        assert!(shown.contains(&line), "{line} is not in {shown}");
    }
    let left = m.sh("getfattr --only-values -n user.latchfs.expires_in_ms build").ok();
    assert!((1..=30_000).contains(&left.parse::<u64>().expect("a number")), "{left}");
    m.sh("mkdir dir && getfattr -d dir | grep -q latchfs.token").ok();
}

/// Setting the attribute `user.latchfs.ttl` renews the lease. Unknown `user.*` attributes get
/// ENODATA, and other namespaces ENOTSUP: with ENODATA for those, editors would set ACLs.
#[test]
fn setting_the_ttl_attribute_renews() {
    let m = mount();
    m.sh("touch build && setfattr -n user.latchfs.ttl -v 60s build").ok();
    assert_eq!(m.status("build")["ttl_ms"], 60_000);
    m.py(r#"
        eq(no(os.setxattr, 'build', 'user.latchfs.ttl', b'500ms'), 'EINVAL')
        assert 'ttl' in why(), why()
        with user(A):
            eq(no(os.setxattr, 'build', 'user.latchfs.ttl', b'60s'), 'EBUSY')
            assert "'build'" in why(), why()
        assert no(os.setxattr, 'build', 'user.latchfs.token', b'9') != 'ok'
        eq(no(os.getxattr, 'build', 'user.other'), 'ENODATA')
        eq(no(os.getxattr, 'build', 'user.latchfs.other'), 'ENODATA')
        for name in ('trusted.x', 'security.x', 'system.posix_acl_access'):
            eq((name, no(os.getxattr, 'build', name)), (name, 'ENOTSUP'))
            assert no(os.setxattr, 'build', name, b'x') in ('ENOTSUP', 'EINVAL'), name
        eq(status('build')['ttl_ms'], 60_000)
    "#)
        .ok();
}

/// A lock made by mkdir has a file for each field of its status, and `ctl`, which takes the same
/// writes as the file of a lock. These files can be opened but are not listed, so that `rm -rf
/// NAME` releases the lock.
#[test]
fn a_directory_has_a_file_for_each_field() {
    let m = mount();
    m.sh_as(ALICE, "mkdir build && echo 60s > build/ctl").ok();
    let status = m.status("build");
    assert_eq!(status["ttl_ms"], 60_000);
    let fact = |name: &str| m.sh(&format!("cat build/{name}")).ok().trim_end().to_owned();
    assert_eq!(json(&fact("status.json"))["token"], status["token"]);
    assert_eq!(fact("holder"), format!("laptop1:{ALICE}"));
    assert_eq!(fact("token"), status["token"].to_string());
    assert_eq!(fact("phase"), "held");
    assert_eq!(fact("expires_at"), text(&status["expires_at"]));
    assert!(m.sh("cat build/waiters").code == 0);
    assert_eq!(m.sh("ls -A build").ok(), "");
    m.py(r#"
        with user(A):
            eq(no(os.open, 'build/token', os.O_WRONLY) != 'ok', True)
            eq(no(os.mkdir, 'build/holder'), 'EEXIST')
            eq(write('build/ctl', '{"note":"nightly"}'), 'ok')
            eq(write('build/ctl', '500ms'), 'EINVAL')
        eq(status('build')['note'], 'nightly')
        with user(B): eq(write('build/ctl', '60s'), 'EBUSY')
    "#)
        .ok();
    m.sh_as(ALICE, "mkdir build/below && rm -rf build").ok();
    assert_eq!(m.sh("ls -A").ok(), "");
    assert_eq!((m.phase("build"), m.phase("build/below")), ("free".into(), "free".into()));
}

/// Unsupported system calls are refused at once with the errno of their manual page (EPERM, EXDEV,
/// ENOTSUP), never with ENOSYS.
#[test]
fn unsupported_calls_are_refused_at_once() {
    let m = mount();
    m.py(r#"
        import mmap
        fd = os.open('build', os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.write(fd, b'text text text')
        refused = ('EPERM', 'ENOTSUP', 'EINVAL', 'ENOTTY')
        for name, call in {
            'mkfifo': lambda: os.mkfifo('new'),
            'mknod': lambda: os.mknod('new', stat.S_IFREG | 0o600),
            'device': lambda: os.mknod('new', stat.S_IFCHR | 0o600, os.makedev(1, 3)),
            'ioctl': lambda: fcntl.ioctl(fd, 0x1234),
            'link to a directory': lambda: (os.mkdir('d'), os.link('d', 'new')),
        }.items():
            seen = no(call)
            assert seen in refused, (name, seen)
        try:
            mmap.mmap(fd, 4, mmap.MAP_SHARED)
            raise AssertionError('mapped')
        except OSError as error:
            eq(errno.errorcode[error.errno], 'ENODEV')
        away = os.environ['T'] + '/away'
        eq(no(os.rename, 'build', away), 'EXDEV')
        eq(no(os.link, 'build', away), 'EXDEV')
        pathlib.Path(away).touch()
        eq(no(os.rename, away, 'new'), 'EXDEV')
        eq(no(os.lstat, 'new'), 'ENOENT')
        eq(no(os.fsync, fd), 'ok')
        eq(pathlib.Path('build').read_text(), 'text text text')
    "#)
        .ok();
    assert!(m.sh("fallocate -l 10 build").fails().contains("not supported"));
    assert_eq!(m.sh("ls").ok(), "build\nd\n");
}

/// `statfs` shows free space, because programs check it before they write.
#[test]
fn statfs_shows_free_space() {
    let m = mount();
    m.py(r#"
        seen = os.statvfs('.')
        assert seen.f_bavail > 0 and seen.f_files > 0 and seen.f_ffree > 0, seen
        eq(seen.f_namemax, 255)
    "#)
        .ok();
    m.sh("df . && df -i . && stat -f .").ok();
}

/// A hold that no deadline ends is shown in words, the same everywhere, and no time that means
/// nothing is shown.
#[test]
fn a_hold_without_expiry_is_shown_as_what_it_is() {
    let m = mount();
    let look = |name: &str, words: &str| {
        let status = m.status(name);
        assert_eq!(status["lasts"], words, "{status}");
        for field in ["expires_at", "grace_until", "expires_in_ms"] {
            assert!(status[field].is_null(), "{field}: {status}");
        }
        let page = m.latchfs(&["status", name]).ok();
        assert!(page.contains(&format!("lasts     {words}\n")), "{page}");
        assert!(!page.contains("grace"), "{page}");
        assert!(m.latchfs(&["ls"]).ok().contains(words));
        let shown = m.sh(&format!("getfattr -d {name}")).ok();
        assert!(shown.contains(&format!("user.latchfs.lasts=\"{words}\"")), "{shown}");
        assert!(!shown.contains("expires_in_ms"), "{shown}");
    };
    let hold = |name: &str| {
        let mut command = std::process::Command::new("flock");
        command.args([name, "sleep", "100"]).current_dir(m.dir());
        command.spawn().expect("flock is there")
    };
    let mut open = hold("held");
    m.until("held", "held");
    look("held", "while the file is open");
    // A durable mount binds a lock to a process for the ttl only, and renews it.
    if is_durable() {
        open.kill().expect("it is ours");
        open.wait().expect("it is ours");
        return;
    }
    // A directory shows the same in one of its files.
    let mut sleep = std::process::Command::new("sleep");
    let mut process = sleep.arg("100").spawn().expect("sleep is there");
    m.sh(&format!("mkdir job && echo pid={} > job/ctl", process.id())).ok();
    let words = format!("while process {} runs", process.id());
    look("job", &words);
    assert_eq!(m.sh("cat job/expires_at").ok(), format!("{words}\n"));
    for child in [&mut open, &mut process] {
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}

/// Not even root may execute a file without an execute permission.
#[test]
fn access_asks_for_an_execute_permission() {
    let m = mount();
    m.sh("mkdir dir && touch file && chmod 600 file && test -r file && test -w file").ok();
    m.sh("test -x dir && test ! -x file && chmod 700 file && test -x file && cd dir").ok();
}

/// The size of a file in `.latchfs` is true where it can be, so that `tar` and `rsync` copy the
/// file; a status changes all the time, and has the size 0 as in `/proc`.
#[test]
fn the_size_of_a_constant_file_is_true() {
    let m = mount();
    m.py(r#"
        fd = exclusive('team'); os.write(fd, b'some text\n'); os.close(fd)
        size = lambda name: os.stat('.latchfs/' + name).st_size
        read = lambda name: len(pathlib.Path('.latchfs/' + name).read_bytes())
        for name in 'README', 'content/team', 'content/%2Fteam':
            assert size(name) == read(name) > 0, name
        eq(size('content/free'), 0)
        eq(size('status/team'), 0)
        fd = os.open('team', os.O_WRONLY | os.O_APPEND); os.write(fd, b'more'); os.close(fd)
        eq(size('content/team'), read('content/team'))
    "#)
        .ok();
    m.sh("tar -cf $T/content.tar .latchfs/content/team && tar -xOf $T/content.tar | grep -q more")
        .ok();
}
