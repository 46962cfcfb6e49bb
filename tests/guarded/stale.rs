//! Tenures that are over: whatever their programs and their guard still do, and whenever the guard
//! was stopped, the folder stays as the next tenure has it.
use crate::hostile::TestMount;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::process::Command;
use std::time::Duration;
use testing::{
    Guard, Scratch, Server, Stopped, close, no_other_stops, pause, python, rounds, run, soon,
};

#[track_caller]
fn is_stale<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.expect_err("the tenure is over").raw_os_error(), Some(libc::ESTALE));
}

/// Two guards of one storage, whose lease lasts two seconds.
fn two_guards() -> (Scratch, Server, [Guard; 2]) {
    let scratch = Scratch::with_folder();
    let server = Server::of(&scratch);
    scratch.init(&["--server", &server.url, "--shared-storage"]);
    let guards = ["m1", "m2"].map(|client| {
        Guard::start(&scratch, client, &["--client", client, "--shared-storage", "--ttl", "2s"])
    });
    (scratch, server, guards)
}

/// A page of a file that is mapped shared.
struct Mapped(*mut libc::c_void);

const PAGE: usize = 4_096;

#[allow(unsafe_code)]
impl Mapped {
    fn new(file: &File) -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping changes no memory that is in use.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self(at)
    }

    fn write(&self, text: &[u8]) {
        // SAFETY: the text is shorter than the page, which is mapped for writing.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), text.len()) };
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: the page is mapped.
        match unsafe { libc::msync(self.0, PAGE, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapped {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: nothing uses the page any more.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}

#[test]
fn no_change_of_a_tenure_that_is_over_reaches_the_folder() {
    let _alone = no_other_stops();
    let (scratch, _server, [first, second]) = two_guards();
    let real = |name: &str| fs::read(scratch.folder().join(name)).expect("there");
    for round in 0..rounds(1, 200) {
        first.request("take", &[]).ok();
        fs::write(first.path("whole"), "before").expect("held");
        fs::write(first.path("in.log"), "in place").expect("held");
        fs::write(first.path("map.log"), vec![b'-'; PAGE]).expect("held");
        let mut saved = File::create(first.path("whole")).expect("held");
        saved.write_all(b"half of m1").expect("held");
        let in_place = File::options().read(true).write(true).open(first.path("in.log"));
        let in_place = in_place.expect("held");
        in_place.write_at(b"IN", 0).expect("held");
        let mapped = File::options().read(true).write(true).open(first.path("map.log"));
        let mapped = mapped.expect("held");
        let page = Mapped::new(&mapped);
        page.write(b"synced");
        page.sync().expect("held");
        page.write(b"dirty and never in the folder");
        let stopped = Stopped::of(&first);
        second.take_here();
        fs::write(second.path("whole"), format!("m2 {round}")).expect("held");
        let others = fs::read(second.path("map.log")).expect("there");
        assert!(others.starts_with(b"synced-"));
        drop(stopped);
        is_stale(page.sync());
        is_stale(saved.write_all(b", the rest"));
        is_stale(saved.set_len(0));
        let fallocate = rustix::fs::FallocateFlags::empty();
        is_stale(rustix::fs::fallocate(&in_place, fallocate, 0, 9_000).map_err(io::Error::from));
        let copied = rustix::fs::copy_file_range(&mapped, Some(&mut 0), &in_place, Some(&mut 0), 4);
        is_stale(copied.map_err(io::Error::from));
        is_stale(in_place.write_at(b"late", 0));
        is_stale(in_place.set_len(3));
        is_stale(in_place.sync_all());
        is_stale(saved.sync_all());
        is_stale(close(in_place));
        is_stale(close(saved));
        drop((page, mapped));
        assert_eq!(real("whole"), format!("m2 {round}").as_bytes());
        assert_eq!(real("in.log"), b"IN place");
        assert_eq!(real("map.log"), others);
        soon("the half is kept", || {
            let lost = first.request("lost", &[]).ok();
            (lost.matches("whole").count() > round).then_some(())
        });
        second.request("give", &[]).ok();
    }
}

/// The guard is stopped at a random moment of a save or a change in place: often between its check
/// and the system call that changes the folder.
#[test]
fn a_guard_stopped_at_any_moment_changes_nothing_later() {
    let _alone = no_other_stops();
    let (scratch, _server, [first, second]) = two_guards();
    let mut random = File::open("/dev/urandom").expect("there");
    for round in 0..rounds(3, 100) {
        first.request("take", &[]).ok();
        fs::write(first.path("in.log"), "00000000").expect("held");
        let mut byte = [0];
        random.read_exact(&mut byte).expect("readable");
        let view = first.view.clone();
        let writes = std::thread::spawn(move || {
            let in_place = File::options().write(true).open(view.join("in.log"))?;
            for number in 0_u64.. {
                fs::write(view.join("whole"), format!("m1 {number}"))?;
                in_place.write_at(format!("{number:08}").as_bytes(), 0)?;
            }
            io::Result::Ok(())
        });
        pause(Duration::from_micros(20_000 + u64::from(byte[0]) * 37));
        let stopped = Stopped::of(&first);
        second.take_here();
        fs::write(second.path("whole"), format!("m2 {round}")).expect("held");
        let in_place = fs::read(second.path("in.log")).expect("there");
        drop(stopped);
        writes.join().expect("no panic").expect_err("the tenure is over");
        let real = |name: &str| fs::read(scratch.folder().join(name)).expect("there");
        assert_eq!(real("whole"), format!("m2 {round}").as_bytes(), "round {round}");
        assert_eq!(real("in.log"), in_place, "round {round}");
        second.request("give", &[]).ok();
    }
}

/// Anybody who may write in the folder can put something else in the place of a file that a guard
/// changed in place before it died. The next tenure begins all the same, and follows no symlink.
#[test]
fn no_file_in_the_folder_keeps_the_next_tenure_from_beginning() {
    let (scratch, _server, [first, second]) = two_guards();
    let real = scratch.folder();
    fs::create_dir_all(first.path("dir/sub")).expect("the lock is free");
    let names = ["link.log", "fifo.log", "dir.log", "gone.log", "dir/sub/in.log"];
    let open: Vec<_> = names
        .map(|name| {
            fs::write(first.path(name), "in place").expect("held");
            let file = File::options().append(true).open(first.path(name)).expect("held");
            (&file).write_all(b"!").expect("held");
            file
        })
        .into();
    first.kill();
    drop(open);
    for name in &names[..4] {
        fs::remove_file(real.join(name)).expect("there");
    }
    let outside = scratch.join("outside");
    let target = outside.join("sub/in.log");
    fs::create_dir_all(outside.join("sub")).expect("made");
    fs::write(&target, "outside").expect("written");
    let inode = fs::metadata(&target).expect("there").ino();
    symlink(&target, real.join("link.log")).expect("made");
    run(Command::new("mkfifo").arg(real.join("fifo.log"))).ok();
    fs::create_dir(real.join("dir.log")).expect("made");
    fs::rename(real.join("dir"), real.join("away")).expect("renamed");
    symlink(&outside, real.join("dir")).expect("made");
    second.take_here();
    assert_eq!(fs::metadata(&target).expect("there").ino(), inode);
    assert!(fs::symlink_metadata(real.join("link.log")).expect("there").is_symlink());
    let kind = fs::symlink_metadata(real.join("fifo.log")).expect("there").file_type();
    assert!(!kind.is_file(), "the FIFO stays");
}

#[test]
fn a_save_that_does_not_fit_leaves_the_old_file() {
    let scratch = Scratch::with_folder();
    let at = scratch.join("small");
    let mount =
        TestMount::new(Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]), &at);
    let small = Scratch::at(at.join("scratch"));
    fs::create_dir_all(small.folder()).expect("made");
    small.init(&["--alone"]);
    let guard = Guard::start(&small, "view", &[]);
    fs::write(guard.path("a"), "old").expect("it fits");
    let mut file = File::create(guard.path("a")).expect("held");
    let full = file.write_all(&vec![b'x'; 2 << 20]).expect_err("it does not fit");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(close(file).expect_err("spoiled").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(fs::read(small.folder().join("a")).expect("there"), b"old");
    assert!(guard.request("lost", &[]).ok().contains(" a\n"));
    guard.end();
    drop((small, mount));
}

/// Eight login sessions save and rename the same files, and each takes the lock for itself.
#[test]
fn login_sessions_leave_whole_versions() {
    let scratch = Scratch::with_folder();
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", &["--owner", "session"]);
    let program = "
import errno, json, os, random, sys
edits = EDITS
seed = int.from_bytes(os.urandom(4), 'big')
print('seed', seed)
def session(number):
    os.setsid()
    choose = random.Random(seed * 8 + number)
    done = refused = 0
    while done < edits:
        try:
            for _ in range(5):
                name = 'file%d' % choose.randrange(50)
                if choose.randrange(4) == 0:
                    try: os.rename(name, 'file%d' % choose.randrange(50))
                    except FileNotFoundError: pass
                else:
                    line = 'session %d edit %d\\n' % (number, done)
                    with open(name, 'w') as file:
                        for _ in range(50): file.write(line); file.flush()
                done += 1
            with open('.latchfs/ctl', 'r+b', buffering=0) as ctl:
                ctl.write(json.dumps({'do': 'give'}).encode() + b'\\n')
                ctl.seek(0)
                ctl.read()
        except OSError as error:
            assert error.errno == errno.EROFS, error
            refused += 1
            why = open('.latchfs/why').read()
            assert 'session' in why, why
    print(number, done, refused, flush=True)
    os._exit(0)
children = []
for number in range(8):
    pid = os.fork()
    if pid == 0:
        try: session(number)
        except BaseException as error: print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    children.append(pid)
for pid in children: assert os.waitpid(pid, 0)[1] == 0
";
    let program = program.replace("EDITS", &rounds(50, 500).to_string());
    fs::set_permissions(scratch.folder(), fs::Permissions::from_mode(0o777)).expect("ours");
    println!("{}", python(4_001, &guard.view, &program).ok());
    for entry in fs::read_dir(scratch.folder()).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_file() {
            let text = fs::read_to_string(&path).expect("text");
            let first = text.lines().next().expect("not empty").to_owned() + "\n";
            assert_eq!(text, first.repeat(50), "{}", path.display());
        }
    }
}
