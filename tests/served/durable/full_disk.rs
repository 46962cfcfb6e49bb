//! Full disks, with a state directory on btrfs, ext4, xfs and tmpfs. New grants are refused with
//! the reason, releases still work, `kill -9` loses nothing, and the daemon grants locks again by
//! itself when there is space.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testing::{HttpConnection, Scratch, Server, eventually, latchfs, run};

/// A small file system for one test, unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    /// Mounts a tmpfs with a size limit.
    fn tmpfs(scratch: &Scratch) -> Self {
        Self::mounted(scratch, &["-t", "tmpfs", "-o", "size=8m"], Path::new("tmpfs"))
    }

    /// Mounts a file system from an image file that `mkfs` formats.
    fn image(scratch: &Scratch, mkfs: &[&str], mebibytes: u64) -> Self {
        let image = scratch.path().join("image");
        let file = File::create(&image).expect("the scratch directory is ours");
        file.set_len(mebibytes << 20).expect("a sparse file takes no room");
        run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image)).ok();
        Self::mounted(scratch, &["-o", "loop"], &image)
    }

    fn mounted(scratch: &Scratch, options: &[&str], source: &Path) -> Self {
        let path = scratch.path().join("disk");
        fs::create_dir(&path).expect("a fresh name");
        let mounted = run(Command::new("mount").args(options).arg(source).arg(&path));
        let needs = "this test needs root and loop devices (/dev/loop-control)";
        assert_eq!(mounted.code, 0, "can't mount {}: {}; {needs}", source.display(), mounted.err);
        Self(path)
    }

    fn state(&self) -> String {
        self.0.join("state").display().to_string()
    }

    /// Fills the file system until not even a single byte fits.
    fn fill(&self) {
        let mut options = OpenOptions::new();
        let path = self.0.join("fill");
        let mut file = options.write(true).create(true).mode(0o600).open(path).expect("an inode");
        let mut bytes = 1 << 22;
        while bytes > 0 {
            let end = file.seek(SeekFrom::End(0)).expect("a file");
            // Each write is synced, because a file system may accept data into the kernel's page
            // cache and find only at the writeback that there is no space for it.
            if file.write_all(&vec![b'f'; bytes]).and_then(|()| file.sync_all()).is_err() {
                file.set_len(end).expect("a file");
                bytes /= 4;
            }
        }
        self.sync();
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("fill")).expect("it is there");
        self.sync();
    }

    /// Makes the kernel write its caches to the disk, which it does sooner or later anyway. After
    /// that, a copy-on-write file system needs a new block for each change of a block.
    fn sync(&self) {
        run(Command::new("sync").arg("-f").arg(&self.0)).ok();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A mount point that is unmounted when the test ends, even if the test or the daemon has failed.
struct MountPoint(PathBuf);

impl Drop for MountPoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

fn serve(disk: &Disk) -> Server {
    Server::of_own_locks(Path::new(&disk.state()))
}

fn mount(disk: &Disk, dir: &Path) -> Server {
    let scratch = Scratch::new();
    let socket = format!("unix:{}", scratch.path().join("socket").display());
    let mut command = latchfs();
    command.arg("mount").arg(dir).args(["--listen", &socket, "--client", "box", "--state"]);
    Server::spawn(command.arg(disk.state()), scratch)
}

/// Whether the lock `name` of the mount at `dir` is held.
fn is_held_there(dir: &Path, name: &str) -> bool {
    let status = fs::read_to_string(dir.join(".latchfs/status").join(name)).expect("it lives");
    status.contains("\"phase\": \"held\"")
}

/// Acquires locks until one is refused. Returns the number of granted locks.
#[track_caller]
fn take_until_refused(talk: &mut HttpConnection) -> u64 {
    for number in 0..10_000 {
        let path = format!("/locks/lock{number}?client=a&ttl=1h&note={}", "n".repeat(1_000));
        let (code, body) = talk.request("POST", &path).expect("the server lives");
        if code != 200 {
            assert_eq!((code, &body["kind"]), (429, &"E_LIMIT".into()), "{body}");
            assert!(body.to_string().contains("no space left on device"), "{body}");
            return number;
        }
    }
    panic!("the disk is never full");
}

#[track_caller]
fn is_held(talk: &mut HttpConnection, name: &str) -> bool {
    let (code, body) = talk.request("GET", &format!("/locks/{name}")).expect("the server lives");
    assert_eq!(code, 200, "{body}");
    body["phase"] == "held"
}

#[track_caller]
fn release(talk: &mut HttpConnection, name: &str, client: &str) {
    let path = format!("/locks/{name}?client={client}");
    let (code, body) = talk.request("DELETE", &path).expect("the server lives");
    assert_eq!(code, 200, "{body}");
}

fn can_take(talk: &mut HttpConnection, name: &str) -> Option<()> {
    let path = format!("/locks/{name}?client=a");
    (talk.request("POST", &path).expect("the server lives").0 == 200).then_some(())
}

/// A server on a full disk refuses grants, accepts releases, survives SIGKILL and a restart, and
/// grants locks again when there is space.
fn a_server_survives(disk: &Disk) {
    let mut server = serve(disk);
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    for name in ["one", "two", "three"] {
        can_take(&mut talk, name).expect("there is room");
    }
    disk.fill();
    let granted = take_until_refused(&mut talk);
    disk.sync();
    assert!(is_held(&mut talk, "one"));
    release(&mut talk, "one", "a");

    server.signal(libc::SIGKILL);
    server.wait();
    disk.fill();
    let server = serve(disk);
    let mut talk = HttpConnection::to(&server.url).expect("it listens");
    assert!(!is_held(&mut talk, "one") && is_held(&mut talk, "two"));
    for number in 0..granted {
        assert!(is_held(&mut talk, &format!("lock{number}")), "{number} of {granted} is lost");
    }
    assert!(!is_held(&mut talk, &format!("lock{granted}")), "it was refused");
    release(&mut talk, "two", "a");
    // Releases use disk space that the server has reserved for them, so each succeeds on the full
    // disk, even after the kernel has written its caches to the disk.
    for number in 0..granted {
        release(&mut talk, &format!("lock{number}"), "a");
        if number % 16 == 0 {
            disk.sync();
        }
    }
    disk.empty();
    eventually("a grant when there is room", || can_take(&mut talk, "four"));
    assert!(is_held(&mut talk, "three") && !is_held(&mut talk, "two"));
}

/// A process to which a lock of the mount is bound, so that the lock is held as long as the process
/// lives. Dropping this value kills the process.
struct Bound(Child);

impl Bound {
    fn new(dir: &Path, name: &str) -> Self {
        let process = Self(Command::new("sleep").arg("600").spawn().expect("sleep is there"));
        let mut file = File::create_new(dir.join(name)).expect("it is free");
        // A write(2) of a few bytes reaches the mount as one WRITE request, so the mount sees the
        // whole `pid=` text at once.
        file.write_all(format!("pid={}", process.0.id()).as_bytes()).expect("it lives");
        process
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.kill().expect("it is ours");
        self.0.wait().expect("it is ours");
    }
}

/// A mount on a full disk refuses grants with ENOSPC, carries out releases, and grants locks again
/// when there is space.
fn a_mount_survives(disk: &Disk, scratch: &Scratch) {
    let point = MountPoint(scratch.path().join("locks"));
    let dir = &point.0;
    let mut server = mount(disk, dir);
    fs::create_dir(dir.join("held")).expect("it is free");
    let file = File::create(dir.join("file")).expect("it is free");
    file.try_lock().expect("it is free");
    let unlocked = File::create(dir.join("unlocked")).expect("it is free");
    unlocked.try_lock().expect("it is free");
    let process = Bound::new(dir, "bound");
    disk.fill();
    let refused = (0..10_000).find_map(|number| {
        let made = fs::create_dir(dir.join(format!("more{number}")));
        made.err().map(|error| (number, error))
    });
    let (granted, error) = refused.expect("the disk is full");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    let why = fs::read_to_string(dir.join(".latchfs/why")).expect("the mount lives");
    assert!(why.contains("no space left on device"), "{why}");
    disk.sync();
    fs::remove_dir(dir.join("held")).expect("a release needs no room");
    drop((file, process));
    unlocked.unlock().expect("it is locked");
    for name in ["file", "unlocked", "bound"] {
        eventually(name, || (!is_held_there(dir, name)).then_some(()));
    }
    let nothing_is_lost = || {
        assert!(!is_held_there(dir, "held"));
        for number in 0..granted {
            assert!(is_held_there(dir, &format!("more{number}")), "{number} of {granted} is lost");
        }
        assert!(!is_held_there(dir, &format!("more{granted}")), "it was refused");
    };
    nothing_is_lost();
    // A crash of the daemon loses nothing. The restarted daemon still has the disk space that is
    // reserved for releases.
    server.signal(libc::SIGKILL);
    server.wait();
    let mut server = mount(disk, dir);
    nothing_is_lost();
    for number in 0..granted {
        fs::remove_dir(dir.join(format!("more{number}"))).expect("a release needs no room");
    }
    disk.empty();
    eventually("a grant when there is room", || fs::create_dir(dir.join("held")).ok());
    fs::remove_dir(dir.join("held")).expect("it is ours");
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
}

fn both_survive(scratch: &Scratch, disk: &Disk) {
    a_server_survives(disk);
    fs::remove_dir_all(disk.state()).expect("nobody uses it any more");
    a_mount_survives(disk, scratch);
}

#[test]
fn grants_are_refused_while_a_btrfs_is_full() {
    let scratch = Scratch::new();
    let disk = Disk::image(&scratch, &["mkfs.btrfs", "-q"], 128);
    both_survive(&scratch, &disk);
}

#[test]
fn grants_are_refused_while_an_ext4_is_full() {
    let scratch = Scratch::new();
    let disk = Disk::image(&scratch, &["mkfs.ext4", "-q"], 16);
    both_survive(&scratch, &disk);
}

#[test]
fn grants_are_refused_while_an_xfs_is_full() {
    let scratch = Scratch::new();
    let disk = Disk::image(&scratch, &["mkfs.xfs", "-q"], 300);
    both_survive(&scratch, &disk);
}

#[test]
fn grants_are_refused_while_a_tmpfs_is_full() {
    let scratch = Scratch::new();
    let disk = Disk::tmpfs(&scratch);
    both_survive(&scratch, &disk);
}

/// Programs close more locked files on a full disk than the daemon has reserved journal space for.
/// The daemon carries out the remaining releases when there is space, before it handles any new
/// request.
#[test]
fn closes_beyond_the_reserve_are_carried_out_when_there_is_room() {
    const FILES: usize = 15_000;
    let scratch = Scratch::new();
    let disk = Disk::tmpfs(&scratch);
    let point = MountPoint(scratch.path().join("locks"));
    let dir = &point.0;
    let mut server = mount(&disk, dir);
    let program = format!(
        "import fcntl, sys\n\
         files = [open(f'{{sys.argv[1]}}/f{{n}}', 'w') for n in range({FILES})]\n\
         [fcntl.flock(f, fcntl.LOCK_EX) for f in files]\n\
         print('held', flush=True)\n\
         sys.stdin.read()"
    );
    let mut command = Command::new("prlimit");
    command.args(["--nofile=20000", "python3", "-c", &program]).arg(dir);
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let out = holder.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("it says something");
    assert_eq!(line, "held\n");
    disk.fill();
    drop(holder.stdin.take());
    holder.wait().expect("it is ours");
    let left = || fs::read_dir(dir).expect("the mount lives").count();
    assert!(left() > 0, "the reserve has space for fewer");
    disk.empty();
    eventually("all files are free", || (left() == 0).then_some(()));
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
}
