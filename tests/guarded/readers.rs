//! Readers keep what they opened, and no program sees an error, in whatever order others read and
//! write.
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testing::{Guard, Output, Scratch, python, rounds, run_within, soon};

/// The size of a file that takes several reads.
const LARGE: usize = 128 * 1024;

/// Runs a Python program in a directory.
fn program(dir: &Path, text: &str, args: &[&str]) -> Output {
    let mut command = Command::new("/usr/bin/python3");
    let limit = Duration::from_secs(if rounds(1, 2) == 1 { 120 } else { 3_600 });
    run_within(limit, command.args(["-c", text]).args(args).current_dir(dir))
}

fn alone(options: &[&str]) -> (Scratch, Guard) {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", options);
    (scratch, guard)
}

/// Returns how many bytes the guard has read: from the folder, and requests of the kernel.
fn bytes_read(guard: &Guard) -> usize {
    let text = fs::read_to_string(format!("/proc/{}/io", guard.pid())).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("a number")
}

#[test]
fn a_file_that_is_read_again_comes_from_the_cache_of_the_kernel() {
    let (scratch, guard) = alone(&[]);
    let path = scratch.folder().join("large");
    let many = LARGE * 64;
    fs::write(&path, vec![b'x'; many]).expect("written past the view");
    let read = |byte| {
        let before = bytes_read(&guard);
        let all = fs::read(guard.path("large")).expect("there");
        assert!(all.len() == many && all.iter().all(|found| *found == byte));
        bytes_read(&guard) - before
    };
    assert!(read(b'x') >= many);
    let again = read(b'x');
    assert!(again < LARGE, "{again} bytes");
    fs::write(&path, vec![b'y'; many]).expect("written past the view");
    soon("the new content", || {
        (fs::read(guard.path("large")).expect("there")[0] == b'y').then_some(())
    });
    let again = read(b'y');
    assert!(again < LARGE, "{again} bytes");
}

/// Readers and writers of all kinds in all orders. Each version of a file is a list of one text: a
/// save as a whole makes another version, and a change in place changes the one that has the name.
const ORDERS: &str = "
import mmap, os, sys
PAGE, SIZE = 4096, 128 * 1024
def fill(byte): return bytes([byte]) * SIZE
def save(name, version, byte):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, fill(byte)); os.close(fd)
    return [fill(byte)]
def rename(name, version, byte):
    save(name + '.new', None, byte)
    os.rename(name + '.new', name)
    return [fill(byte)]
def in_place(name, version, byte):
    fd = os.open(name, os.O_RDWR)
    assert os.pread(fd, SIZE * 9, 0) == version[0], 'a writer reads what it opened'
    os.pwrite(fd, bytes([byte]) * PAGE, PAGE); os.close(fd)
    version[0] = version[0][:PAGE] + bytes([byte]) * PAGE + version[0][2 * PAGE:]
    return version
def append(name, version, byte):
    fd = os.open(name, os.O_WRONLY | os.O_APPEND)
    os.write(fd, bytes([byte]) * PAGE); os.close(fd)
    version[0] += bytes([byte]) * PAGE
    return version
def mapped(name, version, byte):
    fd = os.open(name, os.O_RDWR)
    with mmap.mmap(fd, SIZE) as pages: pages[0:PAGE] = bytes([byte]) * PAGE
    os.close(fd)
    version[0] = bytes([byte]) * PAGE + version[0][PAGE:]
    return version
def truncated(name, version, byte):
    os.truncate(name, SIZE // 2)
    os.truncate(name, SIZE)
    version[0] = version[0][:SIZE // 2] + bytes(SIZE // 2)
    return version
WRITERS = [save, rename, in_place, append, mapped, truncated]
def look(name, readers, what):
    for number, (fd, maps, version) in enumerate(readers):
        got = os.pread(fd, SIZE * 9, 0)
        assert got == version[0], (what, 'reader', number, got[::PAGE], version[0][::PAGE])
        assert maps[:SIZE] == version[0][:SIZE], (what, 'mapping', number)
def read(name, version, readers):
    fd = os.open(name, os.O_RDONLY)
    readers.append((fd, mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ), version))
count = 0
for first in WRITERS:
    for second in WRITERS:
        for third in WRITERS:
            for when in range(8):
                name = 'file%d' % (count % 7)
                what = (first.__name__, second.__name__, third.__name__, when)
                readers, version = [], save(name, None, 1)
                for step, writer in enumerate([first, second, third]):
                    if when & 1 << step: read(name, version, readers)
                    try: version = writer(name, version, step + 2)
                    except OSError as error: raise AssertionError((what, step, error))
                    look(name, readers, what)
                    assert open('../folder/' + name, 'rb').read() == version[0], (what, 'folder')
                read(name, version, readers)
                look(name, readers, what)
                for fd, maps, _ in readers: maps.close(); os.close(fd)
                count += 1
print(count, 'orders')
";

#[test]
fn readers_and_writers_meet_in_all_orders() {
    let (_scratch, guard) = alone(&[]);
    let seen = program(&guard.view, ORDERS, &[]).ok();
    assert_eq!(seen, "1728 orders\n");
}

/// Programs that read and write some files at random. The arguments are a seed, the number of
/// programs, and the number of actions of each.
const RANDOM: &str = "
import fcntl, mmap, os, random, sys
seed, workers, rounds = map(int, sys.argv[1:4])
PAGE, PAGES = 4096, 32
SIZE = PAGE * PAGES
# One program at a time writes these files, and none opens them meanwhile for reading: it would see
# a part of what is being written. Readers of older versions read on.
CHECKED, MIXED = ['checked0', 'checked1'], ['mixed0', 'mixed1']
# These are opened, read and changed at any time.
FREE = ['free%d' % number for number in range(20)]
def check(name, data, what):
    if name in CHECKED:
        assert len(set(data)) <= 1 and len(data) in (0, SIZE), (what, name, set(data), len(data))
def save(name, byte):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, bytes([byte]) * SIZE); os.close(fd)
def rename(name, byte):
    own = '%s.%d' % (name, os.getpid())
    save(own, byte); os.rename(own, name)
def in_place(name, byte):
    fd = os.open(name, os.O_RDWR)
    os.pwrite(fd, bytes([byte]) * PAGE, PAGE * (byte % PAGES)); os.close(fd)
def append(name, byte):
    fd = os.open(name, os.O_WRONLY | os.O_APPEND)
    if os.fstat(fd).st_size < 2 * SIZE: os.write(fd, bytes([byte]) * PAGE)
    os.close(fd)
def mapped(name, byte):
    fd = os.open(name, os.O_RDWR)
    with mmap.mmap(fd, PAGE) as first: first[:] = bytes([byte]) * PAGE
    os.close(fd)
NAMES = CHECKED + MIXED + FREE
def locked(name, how):
    lock = open('../lock.' + name, 'w')
    if name not in FREE: fcntl.flock(lock, how)
    return lock
def work(number):
    rand, readers = random.Random(seed * 1000 + number), []
    for turn in range(rounds):
        name, byte = rand.choice(NAMES), rand.randrange(1, 256)
        action = rand.randrange(5)
        what = (seed, number, turn, name, action)
        try:
            if action == 0:
                with locked(name, fcntl.LOCK_SH): fd = os.open(name, os.O_RDONLY)
                data = os.pread(fd, 4 * SIZE, 0)
                check(name, data, what)
                readers.append((name, fd, data))
            elif action == 1 and readers:
                held, fd, data = readers.pop(rand.randrange(len(readers)))
                again = os.pread(fd, 4 * SIZE, 0)
                check(held, again, what)
                # What was empty was being written.
                assert held not in CHECKED or not data or again == data, (what, held, 'changed')
                os.close(fd)
            elif name in FREE: rand.choice([in_place, append, mapped])(name, byte)
            else:
                with locked(name, fcntl.LOCK_EX):
                    kinds = [save, rename] if name in CHECKED else [save, rename, in_place, append]
                    rand.choice(kinds)(name, byte)
                    if name in CHECKED: assert open(name, 'rb').read() == bytes([byte]) * SIZE, what
        except OSError as error:
            raise AssertionError((what, error))
for name in NAMES: save(name, 1)
children = []
for number in range(workers):
    pid = os.fork()
    if pid == 0:
        try: work(number)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
assert not sum(os.waitpid(pid, 0)[1] for pid in children), 'a program failed'
";

#[test]
fn programs_that_read_and_write_at_random_see_no_error() {
    let seed = std::env::var("LATCHFS_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| crate::suites::seed() >> 24).to_string();
    println!("LATCHFS_SEED={seed}");
    let (_scratch, guard) = alone(&[]);
    let actions = rounds(1_000, 100_000).to_string();
    let output = program(&guard.view, RANDOM, &[&seed, "4", &actions]);
    assert_eq!(output.code, 0, "seed {seed}: {}", output.out);
}

/// Locks of programs that only read a file keep those out that change it in place.
const LOCKS: &str = r#"
import fcntl, os, sqlite3, subprocess, sys
# The database came past the view.
base = sqlite3.connect('../folder/base.db', isolation_level=None)
base.execute('create table t(b)')
for _ in range(100): base.execute('insert into t values(?)', (bytes(1000),))
base.close()
assert os.stat('base.db').st_size > 65536
reader = sqlite3.connect('file:base.db?mode=ro', uri=True, isolation_level=None)
reader.execute('begin'); reader.execute('select count(*) from t').fetchall()
writer = """import sqlite3
sqlite3.connect('base.db', timeout=0, isolation_level=None).execute('delete from t')"""
tried = subprocess.run([sys.executable, '-c', writer], stderr=subprocess.PIPE, text=True)
assert 'database is locked' in tried.stderr, tried
reader.execute('commit')
subprocess.run([sys.executable, '-c', writer], check=True)
assert reader.execute('select count(*) from t').fetchall() == [(0,)]
# The same for the locks of any file.
with open('data', 'wb') as data: data.write(b'x' * 131072)
with open('data', 'rb') as reader:
    fcntl.flock(reader, fcntl.LOCK_SH)
    with open('data', 'r+b') as writer:
        try:
            fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise AssertionError('both have the lock')
        except BlockingIOError: pass
print('locked')
"#;

#[test]
fn the_lock_of_a_reader_keeps_a_writer_out() {
    let (_scratch, guard) = alone(&[]);
    assert_eq!(program(&guard.view, LOCKS, &[]).ok(), "locked\n");
}

/// A program that appends to a file past the view, as a sync tool may: readers get all of it, once
/// the kernel asks for the size again.
#[test]
fn a_reader_sees_what_is_appended_past_the_view() {
    let (scratch, guard) = alone(&[]);
    let real = scratch.folder().join("large");
    fs::write(&real, vec![b'x'; LARGE]).expect("written past the view");
    let file = File::open(guard.path("large")).expect("opened");
    assert_eq!(file.metadata().expect("there").len(), LARGE as u64);
    let past = fs::OpenOptions::new().append(true).open(&real).expect("there");
    std::io::Write::write_all(&mut &past, b"more").expect("written past the view");
    let reads = |offset| file.read_at(&mut [0; 8], offset).expect("read");
    soon("the new bytes, without a stat", || (reads(LARGE as u64) == 4).then_some(()));
    assert_eq!(file.metadata().expect("there").len(), LARGE as u64 + 4);
    past.set_len(10).expect("written past the view");
    soon("the new end", || (reads(9) == 1).then_some(()));
}

#[test]
fn a_reader_gets_an_error_after_the_guard_was_killed() {
    let (_scratch, guard) = alone(&[]);
    fs::write(guard.path("large"), vec![b'x'; LARGE]).expect("the lock is free");
    guard.request("give", &[]).ok();
    let (file, path) = (File::open(guard.path("large")).expect("opened"), guard.path("large"));
    guard.signal(libc::SIGKILL);
    // A request that the guard has read before its end fails with ECONNABORTED.
    let is_dead = |error: &std::io::Error| error.raw_os_error() == Some(libc::ENOTCONN);
    soon("the end of the guard", || File::open(&path).err().filter(is_dead));
    let read = file.read_exact_at(&mut vec![0; LARGE], 0);
    assert!(read.as_ref().is_err_and(is_dead), "{read:?}");
}

/// A user lets the kernel look an own file up, exchanges it with a file of root, and opens the name
/// while the kernel still has the attributes of the own file. In half of the cases the own file is
/// open at that time.
const EXCHANGES: &str = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for number in range(100):
    own, real = f'dir/own{number}', f'../folder/dir/own{number}'.encode()
    held = os.open(own, os.O_RDONLY) if number % 2 else None
    os.stat(own)
    assert libc.renameat2(-100, real, -100, b'../folder/dir/secret', 2) == 0
    try:
        fd = os.open(own, os.O_RDONLY)
        assert held is not None and b's' not in os.pread(fd, 200000, 0), 'the file of root'
        os.close(fd)
    except PermissionError: pass
    assert libc.renameat2(-100, real, -100, b'../folder/dir/secret', 2) == 0
print('nothing')
";

#[test]
fn no_user_gets_the_content_of_a_file_that_only_root_may_read() {
    let (scratch, guard) = alone(&[]);
    let dir = scratch.folder().join("dir");
    fs::create_dir(&dir).expect("made");
    for path in [scratch.path(), &scratch.folder(), &dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    fs::write(dir.join("secret"), vec![b's'; LARGE]).expect("written");
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).expect("ours");
    chown(&dir, Some(4_001), Some(4_001)).expect("given");
    for number in 0..100 {
        let own = dir.join(format!("own{number}"));
        fs::write(&own, vec![b'o'; LARGE]).expect("written");
        chown(own, Some(4_001), Some(4_001)).expect("given");
    }
    // Root reads it, so that the guard has it open already.
    let by_root = File::open(guard.path("dir/secret")).expect("opened");
    assert_eq!(by_root.read_at(&mut [0; 9], 0).expect("read"), 9);
    let open = "
try: open('dir/secret')
except PermissionError: print('denied')
";
    assert_eq!(python(4_001, &guard.view, open).ok(), "denied\n");
    assert_eq!(python(4_001, &guard.view, EXCHANGES).ok(), "nothing\n");
}

/// A user makes a file, and renames a file of root onto its name past the view at that moment.
const CREATES: &str = "
import os, time
end = time.monotonic() + 3
child = os.fork()
while time.monotonic() < end:
    try:
        if child == 0:
            os.rename('../folder/dir/secret', '../folder/dir/mine')
            os.rename('../folder/dir/mine', '../folder/dir/secret')
        else:
            fd = os.open('dir/mine', os.O_RDWR | os.O_CREAT, 0o600)
            assert b's' not in os.pread(fd, 100, 0), 'the file of root'
            os.close(fd)
    except OSError: pass
if child: print('nothing')
";

#[test]
fn a_user_who_makes_a_file_does_not_open_one_that_only_root_may_read() {
    let (scratch, guard) = alone(&[]);
    let dir = scratch.folder().join("dir");
    fs::create_dir(&dir).expect("made");
    for path in [scratch.path(), &scratch.folder(), &dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    fs::write(dir.join("secret"), "sss").expect("written");
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).expect("ours");
    chown(&dir, Some(4_001), Some(4_001)).expect("given");
    assert_eq!(python(4_001, &guard.view, CREATES).ok(), "nothing\n");
}

/// A sync tool replaces a file that a program reads, and another program opens the name before the
/// kernel looks it up again by itself.
const REPLACED_PAST_THE_VIEW: &str = "
import os
def put(name, byte, size):
    with open('../folder/new', 'wb') as new: new.write(byte * size)
    os.rename('../folder/new', '../folder/' + name)
for size in [100, 131072]:
    for flags in [os.O_APPEND, os.O_TRUNC, 0]:
        name = f'file{size}-{flags}'
        put(name, b'a', size)
        reader = os.open(name, os.O_RDONLY)
        assert os.read(reader, 1) == b'a'
        put(name, b'b', size)
        with open(name, 'rb') as other: assert other.read(1) == b'b', name
        put(name, b'c', size)
        writer = os.open(name, os.O_WRONLY | flags)
        os.write(writer, b'ours'); os.close(writer)
        with open('../folder/' + name, 'rb') as real: found = real.read()
        assert b'ours' in found, (name, 'the write is lost')
        again = os.open(f'/proc/self/fd/{reader}', os.O_RDONLY)
        assert os.read(again, size * 2) == os.pread(reader, size * 2, 0) == b'a' * size, name
print('kept')
";

#[test]
fn a_program_opens_the_version_that_has_the_name() {
    let (_scratch, guard) = alone(&[]);
    assert_eq!(program(&guard.view, REPLACED_PAST_THE_VIEW, &[]).ok(), "kept\n");
}

/// An open fails that has begun a new version. Nobody sees that version, and nobody adds to it.
const NOT_TRUNCATED: &str = "
import errno, os, time
for then in ['append', 'rename']:
    with open(then, 'wb') as file: file.write(b'x' * 131072)
    reader = os.open(then, os.O_RDONLY)
    assert os.read(reader, 1) == b'x'
    try:
        os.open(f'/proc/self/fd/{reader}', os.O_WRONLY | os.O_TRUNC)
        raise AssertionError('it is opened')
    except OSError as error: assert error.errno == errno.ESTALE, error
    # The kernel looks the name up again.
    time.sleep(1.2)
    assert os.stat(then).st_size == 131072, then
    if then == 'append':
        with open(then, 'ab') as file: file.write(b'x')
    else: os.rename(then, then + '.bak')
    name = 'append' if then == 'append' else 'rename.bak'
    with open('../folder/' + name, 'rb') as file: assert len(file.read()) >= 131072, then
print('whole')
";

#[test]
fn an_open_that_fails_truncates_nothing() {
    let (_scratch, guard) = alone(&[]);
    assert_eq!(program(&guard.view, NOT_TRUNCATED, &[]).ok(), "whole\n");
}

/// A file is replaced again and again while programs open it. The arguments are the length in
/// seconds, and the directory through which it is replaced.
const REPLACED_ALWAYS: &str = "
import os, sys, time
SIZE = 100000
def save(byte):
    new, file = sys.argv[2] + '/new', sys.argv[2] + '/file'
    with open(new, 'wb') as saved: saved.write(bytes([byte]) * SIZE)
    os.rename(new, file)
def read():
    with open('file', 'rb') as file: data = file.read()
    assert len(set(data)) == 1 and len(data) == SIZE, (set(data), len(data))
def change(): os.close(os.open('file', os.O_RDWR))
save(1)
end, children = time.monotonic() + float(sys.argv[1]), []
for work in [read, read, change, change]:
    pid = os.fork()
    if pid == 0:
        try:
            while time.monotonic() < end: work()
        except BaseException as error:
            print(work.__name__, repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
byte = 1
while time.monotonic() < end:
    byte = byte % 200 + 1
    save(byte)
assert not sum(os.waitpid(pid, 0)[1] for pid in children), 'a program failed'
";

#[test]
fn a_file_that_is_always_replaced_can_be_opened() {
    let (_scratch, guard) = alone(&[]);
    for through in [".", "../folder"] {
        let output = program(&guard.view, REPLACED_ALWAYS, &[&rounds(5, 300).to_string(), through]);
        assert_eq!(output.code, 0, "{through}: {output:?}");
    }
}

/// A program saves a file again and again, while others read it twice by one descriptor. Then
/// another one opens it for writing as well: a save that begins before that one has closed it
/// changes the same version, which a reader may have. The argument is the length of each in
/// seconds.
const SAVED_ALWAYS: &str = "
import os, sys, time
SIZE, count = 100000, 0
def save():
    global count
    count = count % 200 + 1
    with open('file', 'wb') as file: file.write(bytes([count]) * SIZE)
def read_twice():
    with open('file', 'rb') as file:
        first = file.read()
        time.sleep(0.001)
        file.seek(0)
        # A shorter one was being written.
        assert len(first) < SIZE or len(set(first)) == 1 and file.read() == first, 'another version'
def read():
    with open('file', 'rb') as file: first = file.read()
    assert len(set(first)) < 2, 'two versions'
def change(): os.close(os.open('file', os.O_RDWR))
save()
for works in [[save, read_twice, read_twice], [save, read, read, change]]:
    end, children = time.monotonic() + float(sys.argv[1]), []
    for work in works:
        pid = os.fork()
        if pid == 0:
            try:
                while time.monotonic() < end: work()
            except BaseException as error:
                print(work.__name__, repr(error), flush=True)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    assert not sum(os.waitpid(pid, 0)[1] for pid in children), 'a program failed'
";

#[test]
fn a_file_that_is_always_saved_can_be_opened_and_readers_keep_their_version() {
    let (_scratch, guard) = alone(&[]);
    let output = program(&guard.view, SAVED_ALWAYS, &[&rounds(3, 150).to_string()]);
    assert_eq!(output.code, 0, "{output:?}");
}

/// A reader asks for the size of a file that grows.
const SIZES: &str = "
import os, time
with open('file', 'wb') as file: file.write(b'x' * 131072)
reader, path = os.open('file', os.O_RDONLY), os.open('file', os.O_PATH)
assert os.read(reader, 1) == b'x'
writer = os.open('file', os.O_WRONLY | os.O_APPEND)
time.sleep(0.1)
for count in range(1, 100):
    assert os.fstat(reader).st_size == 131072 + 10 * (count - 1)
    os.write(writer, b'y' * 10)
    assert os.fstat(reader).st_size == os.lseek(reader, 0, os.SEEK_END) == 131072 + 10 * count
os.close(writer); os.close(reader)
time.sleep(0.1)
# A program that has the file without a descriptor to read it opens it.
again = os.open(f'/proc/self/fd/{path}', os.O_RDONLY)
assert len(os.pread(again, 200000, 0)) == 131072 + 990
print('seen')
";

#[test]
fn a_reader_sees_the_size_of_a_file_that_another_program_changes() {
    let (_scratch, guard) = alone(&[]);
    assert_eq!(program(&guard.view, SIZES, &[]).ok(), "seen\n");
}
