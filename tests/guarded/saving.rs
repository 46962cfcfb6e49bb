//! Saves: each appears in the folder in one step, when it is complete.

use crate::faulty_markers::Traced;
use crate::foreign::lost;
use crate::telling::Events;
use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use testing::{Guard, Scratch, python, shell, soon};

fn alone(options: &[&str]) -> (Scratch, Guard) {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", options);
    (scratch, guard)
}

#[test]
fn a_file_appears_when_it_is_closed() {
    let (scratch, guard) = alone(&[]);
    let real = scratch.folder().join("notes");
    fs::write(&real, "old version").expect("written past the view");
    let mut file = fs::File::create(guard.path("notes")).expect("opened");
    for part in ["new", " ", "version"] {
        file.write_all(part.as_bytes()).expect("written");
        assert_eq!(fs::read_to_string(&real).expect("there"), "old version");
    }
    drop(file);
    assert_eq!(fs::read_to_string(&real).expect("there"), "new version");
    let mut file = fs::File::create(guard.path("made")).expect("made");
    file.write_all(b"x").expect("written");
    assert!(!scratch.folder().join("made").exists(), "not before it is closed");
    assert_eq!(fs::read(guard.path("made")).expect("seen in the view"), b"x");
    file.sync_all().expect("published by fsync");
    assert_eq!(fs::read(scratch.folder().join("made")).expect("there"), b"x");
    drop(file);
    guard.end();
    let state: Vec<_> = fs::read_dir(scratch.join("state")).expect("there").collect();
    let stages = state[0].as_ref().expect("readable").path().join("stage");
    assert_eq!(fs::read_dir(stages).expect("there").count(), 0, "no stage is left");
}

#[test]
fn a_reader_keeps_the_version_that_it_opened() {
    let (scratch, guard) = alone(&[]);
    fs::write(guard.path("a"), "first version").expect("written");
    let mut reader = fs::File::open(guard.path("a")).expect("opened");
    let mut half = [0; 5];
    reader.read_exact(&mut half).expect("read");
    fs::write(guard.path("a"), "2nd").expect("written");
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("read");
    assert_eq!((&half[..], &*rest), (&b"first"[..], " version"));
    assert_eq!(fs::read_to_string(guard.path("a")).expect("there"), "2nd");
    assert_eq!(fs::read_to_string(scratch.folder().join("a")).expect("there"), "2nd");
}

#[test]
fn what_several_programs_write_appears_whole() {
    let (scratch, guard) = alone(&[]);
    let real = |name: &str| scratch.folder().join(name);
    // The shell, which opened the file, goes on to write after each of its commands.
    let writer = "exec 9< gate; (cat; cat <&9) > log";
    fs::create_dir(real("gates")).expect("made");
    let gate = scratch.join("gate");
    let made = Command::new("mkfifo").arg(&gate).status().expect("mkfifo is there");
    assert!(made.success());
    let script = writer.replace("gate", gate.to_str().expect("text"));
    let mut child = Command::new("bash")
        .args(["-ec", &script])
        .current_dir(&guard.view)
        .stdin(Stdio::piped())
        .spawn()
        .expect("bash is there");
    let mut open_gate = OpenOptions::new().write(true).open(&gate).expect("opened by both");
    child.stdin.take().expect("piped").write_all(b"one\n").expect("written");
    soon("the first part", || {
        fs::read_to_string(guard.path("log")).ok().filter(|text| text == "one\n")
    });
    assert!(!real("log").exists(), "a program would go on writing");
    open_gate.write_all(b"two\n").expect("written");
    drop(open_gate);
    assert!(child.wait().expect("it ends").success());
    let text = soon("the file", || fs::read_to_string(real("log")).ok());
    assert_eq!(text, "one\ntwo\n");
}

#[test]
fn a_killed_program_leaves_the_old_version() {
    let (scratch, guard) = alone(&[]);
    fs::write(guard.path("data"), "old").expect("written");
    let script = "import os,sys,time\nf=open('data','w')\nf.write('half')\nf.flush()\n\
                  print('ready',flush=True)\ntime.sleep(60)";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .current_dir(&guard.view)
        .stdout(Stdio::piped())
        .spawn()
        .expect("python is there");
    let mut ready = [0; 5];
    child.stdout.take().expect("piped").read_exact(&mut ready).expect("it says so");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let lost = soon("a lost file", || {
        Some(guard.request("lost", &[]).ok()).filter(|text| text.contains("data"))
    });
    assert!(lost.contains("a signal ended the program"), "{lost}");
    assert_eq!(fs::read_to_string(scratch.folder().join("data")).expect("there"), "old");
    let restored = guard.request("lost", &["--restore", "1"]).ok();
    assert!(restored.contains("data (restored 1)"), "{restored}");
    let beside = scratch.folder().join("data (restored 1)");
    assert_eq!(fs::read_to_string(beside).expect("there"), "half");
    assert!(!guard.request("lost", &[]).ok().contains("data"), "it is no lost file any more");
}

#[test]
fn programs_save_as_on_any_file_system() {
    let (scratch, guard) = alone(&[]);
    let script = "
        cp /etc/services s && cmp s /etc/services
        sed -i 's/tcp/TCP/' s && grep -q TCP s
        mkdir -p d/e && mv s d/e/t && ln d/e/t hard && ln -s d/e/t soft && cat soft > copy
        cmp copy hard && rm hard && printf more >> copy && tail -c 4 copy | grep -q more
        dd if=/dev/zero of=zeros bs=4096 count=3 conv=fsync status=none
        truncate -s 5 zeros && test $(stat -c %s zeros) = 5
        tar -cf all.tar d && mkdir x && tar -xf all.tar -C x && cmp x/d/e/t d/e/t
        install -m 600 copy private && test $(stat -c %a private) = 600
        t=$(mktemp ./tmp.XXXXXX) && echo done > $t && mv $t final && grep -q done final
        git init -q repo && cd repo && echo a > a && git add a
        git -c user.name=a -c user.email=b commit -qm first && git fsck --strict
        test -z \"$(git status --porcelain)\" && cd ..
        touch -d '2001-02-03 04:05:06.123456789' old
        test $(stat -c %Y old) = $(date -d '2001-02-03 04:05:06' +%s)
        python3 -c \"
import sqlite3
for mode in ('delete','wal'):
    c=sqlite3.connect(mode+'.db'); c.execute('pragma journal_mode='+mode)
    c.execute('create table t(x)'); c.commit()
    for n in range(50):
        c.execute('insert into t values(?)',(n,)); c.commit()
    assert c.execute('pragma integrity_check').fetchone()==('ok',); c.close()\"
    ";
    shell(&guard.view, script).ok();
    guard.request("give", &[]).ok();
    let compare = format!("diff -r --no-dereference -x .latchfs {} .", guard.view.display());
    shell(&scratch.folder(), &compare).ok();
    let check = "python3 -c \"
import sqlite3
for m in ('delete','wal'):
    assert sqlite3.connect(m+'.db').execute('select count(*) from t').fetchone()==(50,)\"";
    shell(&scratch.folder(), check).ok();
}

/// Programs try calls that a file system may refuse, and go on with others.
#[test]
fn a_refused_call_spoils_no_save() {
    let (scratch, guard) = alone(&[]);
    let program = "
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open('data', os.O_RDWR | os.O_CREAT)
os.write(fd, b'one ')
for mode, offset, length, wanted in (
    # A file of 1 << 60 bytes exceeds also what --max-stage allows.
    (0x40, 1, 3, (errno.EINVAL, errno.EOPNOTSUPP)), (0, 0, 1 << 60, (errno.EFBIG, errno.ENOSPC)),
):
    code = libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length))
    assert code == -1 and ctypes.get_errno() in wanted, (code, ctypes.get_errno())
os.write(fd, b'two')
os.close(fd)
";
    python(0, &guard.view, program).ok();
    assert_eq!(fs::read(scratch.folder().join("data")).expect("there"), b"one two");
}

/// Editors truncate a file that they have opened, and write it from its beginning.
#[test]
fn a_file_that_is_truncated_before_it_is_written_appears_whole() {
    let (scratch, guard) = alone(&[]);
    let program = "
import os
def folder(): return open('../folder/data').read()
open('data', 'w').write('old version')
fd = os.open('data', os.O_WRONLY)
os.ftruncate(fd, 0)
copy = os.dup(fd)
os.close(fd)
os.write(copy, b'new ')
assert folder() == 'old version', folder()
assert open('data').read() == 'new '
os.write(copy, b'version')
os.close(copy)
assert folder() == 'new version', folder()
# With another reader, or after a write, the file is changed in place.
reader, fd = open('data'), os.open('data', os.O_WRONLY)
os.ftruncate(fd, 0)
assert folder() == '' and reader.read() == ''
reader.close()
os.write(fd, b'12345')
os.ftruncate(fd, 0)
assert folder() == '', folder()
os.close(fd)
# A database truncates its journal to commit.
open('data', 'w').write('journal')
fd = os.open('data', os.O_RDWR)
os.ftruncate(fd, 0)
assert folder() == '', folder()
";
    python(0, &guard.view, program).ok();
    assert!(!guard.request("lost", &[]).ok().contains("data"));
    assert_eq!(fs::read(scratch.folder().join("data")).expect("there"), b"");
}

/// git keeps the change time that it reads before the close, and takes a file with a later one for
/// a changed file.
#[test]
fn a_close_leaves_the_change_time_that_the_program_has_read() {
    let (_scratch, guard) = alone(&[]);
    let program = "
import os
for name in ('new', 'new', 'other'):
    with open(name, 'w') as file:
        file.write('text')
        file.flush()
        before = os.fstat(file.fileno())
    after, real = os.stat(name), os.stat('../folder/' + name)
    assert (before.st_ctime_ns, before.st_mtime_ns) == (after.st_ctime_ns, after.st_mtime_ns), name
    assert real.st_ctime_ns > before.st_ctime_ns, 'the publish changes no time'
    os.chmod(name, 0o600)
    after, real = os.stat(name), os.stat('../folder/' + name)
    assert after.st_ctime_ns == real.st_ctime_ns > before.st_ctime_ns, name
";
    python(0, &guard.view, program).ok();
}

#[test]
fn an_open_for_reading_truncates_as_on_any_file_system() {
    let (scratch, guard) = alone(&[]);
    for name in ["notes", "program"] {
        fs::write(guard.path(name), "text").expect("the lock is free");
    }
    let truncate = |name: &str| {
        let text = format!("import os; os.close(os.open('{name}', os.O_RDONLY | os.O_TRUNC))");
        python(0, &guard.view, &text)
    };
    truncate("notes").ok();
    soon("the empty file", || {
        fs::read(scratch.folder().join("notes")).is_ok_and(|text| text.is_empty()).then_some(())
    });
    // The kernel opens the file, and looks only then whether the program runs.
    fs::set_permissions(guard.path("program"), fs::Permissions::from_mode(0o755)).expect("ours");
    let refused = truncate("program");
    assert!(refused.err.contains("ETXTBSY") || refused.err.contains("file busy"), "{refused:?}");
    assert!(guard.why().contains("open it for writing"), "{}", guard.why());
    assert_eq!(fs::read(scratch.folder().join("program")).expect("there"), b"text");
}

#[test]
fn permissions_are_those_of_the_folder() {
    let (scratch, guard) = alone(&[]);
    fs::write(guard.path("mine"), "x").expect("written");
    fs::set_permissions(guard.path("mine"), fs::Permissions::from_mode(0o600)).expect("changed");
    fs::create_dir(guard.path("open")).expect("made");
    fs::set_permissions(guard.path("open"), fs::Permissions::from_mode(0o777)).expect("changed");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("changed");
    let other = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let refused = shell(&guard.view, &format!("{other} cat mine")).fails();
    assert!(refused.contains("Permission denied"), "{refused}");
    shell(&guard.view, &format!("{other} sh -c 'echo y > mine'")).fails();
    shell(&guard.view, &format!("{other} sh -c 'echo y > open/theirs; mkdir open/dir'")).ok();
    let real = scratch.folder().join("open");
    assert_eq!(fs::metadata(real.join("theirs")).expect("there").uid(), 65_534);
    assert_eq!(fs::metadata(real.join("dir")).expect("there").uid(), 65_534);
    // A symlink out of the folder is the caller's to follow, and never the guard's.
    symlink("/etc/shadow", real.join("out")).expect("made");
    shell(&guard.view, &format!("{other} cat open/out")).fails();
    assert_eq!(fs::read_link(guard.path("open/out")).expect("there").to_str(), Some("/etc/shadow"));
}

#[test]
fn a_directory_that_becomes_a_symlink_leads_nowhere() {
    let (scratch, guard) = alone(&[]);
    let secret = scratch.join("secret");
    fs::create_dir(&secret).expect("made");
    fs::write(secret.join("file"), "secret").expect("written");
    let real = scratch.folder();
    fs::create_dir(real.join("dir")).expect("made");
    fs::write(real.join("dir/file"), "public").expect("written");
    symlink(&secret, real.join("link")).expect("made");
    let rounds = testing::rounds(2_000, 100_000);
    let swapping = std::thread::spawn(move || {
        for _ in 0..rounds {
            let (dir, link) = (real.join("dir"), real.join("link"));
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                &dir,
                rustix::fs::CWD,
                &link,
                rustix::fs::RenameFlags::EXCHANGE,
            )
            .expect("exchanged");
        }
    });
    let mut reads = 0;
    while !swapping.is_finished() {
        // The kernel may follow the symlink for this caller; the guard, as root, must not.
        let file = guard.path("dir/file");
        if fs::symlink_metadata(guard.path("dir")).is_ok_and(|found| found.is_dir())
            && let Ok(text) = fs::read_to_string(&file)
            && fs::symlink_metadata(guard.path("dir")).is_ok_and(|found| found.is_dir())
        {
            reads += usize::from(text == "public");
        }
        let _ = OpenOptions::new().append(true).open(&file).map(|mut file| file.write_all(b""));
    }
    swapping.join().expect("no panic");
    assert_eq!(fs::read_to_string(secret.join("file")).expect("there"), "secret", "{reads} reads");
}

/// A guard remembers a limited number of writers of one file. With more writers the file appears
/// when its last descriptor is closed.
/// Once published, a file that is still open is changed in place.
#[test]
fn after_an_fsync_later_writes_are_in_place() {
    let (scratch, guard) = alone(&[]);
    let real = scratch.folder().join("journal");
    let mut file = fs::File::create(guard.path("journal")).expect("made");
    file.write_all(b"begun").expect("written");
    assert!(!real.exists());
    file.sync_all().expect("published");
    let published = real.metadata().expect("there").ino();
    file.write_all(b", and gone on").expect("written");
    assert_eq!(fs::read_to_string(&real).expect("there"), "begun, and gone on");
    assert_eq!(real.metadata().expect("there").ino(), published);
}

/// Returns the places in a trace of a guard at which it has synced a file, and at which a file got
/// the name `a`.
fn syncs_and_names(options: &[&str]) -> (Option<usize>, usize) {
    let (scratch, guard) = alone(options);
    fs::write(guard.path("other"), "x").expect("free");
    let out = scratch.join("trace");
    let traced = Traced::attach(&guard, &out, &["-e", "trace=fsync,fdatasync,renameat,renameat2"]);
    fs::write(guard.path("a"), "saved").expect("held");
    drop(traced);
    let trace = fs::read_to_string(out).expect("there");
    let named = trace.lines().position(|line| line.contains("rename") && line.contains("\"a\""));
    let named = named.unwrap_or_else(|| panic!("no rename: {trace}"));
    let synced = trace.lines().position(|line| line.contains("sync(")).filter(|at| *at < named);
    (synced, named)
}

#[test]
fn with_sync_saves_a_file_is_synced_before_it_appears() {
    assert_eq!(syncs_and_names(&[]).0, None);
    let (synced, named) = syncs_and_names(&["--sync-saves"]);
    assert!(synced.is_some_and(|synced| synced < named), "{synced:?}, {named}");
}

/// A file that was emptied and not written is published when its last descriptor is closed: the
/// close has returned, and the failure is reported otherwise.
#[test]
fn a_failure_at_the_last_close_is_reported_to_the_user_who_wrote() {
    let (scratch, guard) = alone(&[]);
    fs::set_permissions(scratch.folder(), fs::Permissions::from_mode(0o777)).expect("ours");
    let events = Events::of(&guard);
    let program = "
import os, time
with open('a', 'w') as file: file.write('ours')
emptied = os.open('a', os.O_WRONLY | os.O_TRUNC)
os.remove('../folder/a')
os.mkdir('../folder/a')
os.close(emptied)
for _ in range(1000):
    why = open('.latchfs/why').read()
    if why.startswith('a was not changed: '): break
    time.sleep(0.01)
else: raise SystemExit('not reported: ' + why)
";
    python(4_242, &guard.view, program).ok();
    events.next("held");
    let event = events.next("unsaved");
    assert_eq!(event["path"], "a");
    let kept = lost(&guard);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!((&kept[0]["number"], &kept[0]["path"]), (&event["number"], &"a".into()));
}

#[test]
fn a_file_with_too_many_writers_is_published_at_its_last_close() {
    let (_scratch, guard) = alone(&[]);
    let program = "
import os, time
folder = '../folder'
fd = os.open('many', os.O_WRONLY | os.O_CREAT)
writers = []
for number in range(20):
    (come, go), (reply, tell) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.write(fd, b'%d\\n' % number)
        os.write(tell, b'x')
        os.read(come, 1)
        os._exit(0)
    os.close(come)
    os.read(reply, 1)
    writers.append((pid, go))
os.close(fd)
for pid, go in writers:
    assert not os.path.exists(folder + '/many'), pid
    os.write(go, b'x')
    os.waitpid(pid, 0)
for _ in range(1000):
    # The kernel reports the last close only after the program has ended.
    if os.path.exists(folder + '/many'): break
    time.sleep(0.01)
assert open(folder + '/many').read().split() == [str(number) for number in range(20)]
";
    python(0, &guard.view, program).ok();
}
