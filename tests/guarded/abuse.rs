//! A local user who tries to make a guard of root read or change a file that the user may not
//! reach: by exchanging names past the view, in a directory that the user owns, while operations
//! through the view are under way.
use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags};
use std::ffi::{CString, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use testing::{Guard, Scratch, rounds, shell};

/// The user that attacks.
const ATTACKER: u32 = 4_001;
/// The content of each file that the attacker may not read.
const SECRET: &str = "secret of root";

/// Makes this thread, and no other, one of the attacker.
#[allow(unsafe_code)]
fn become_attacker() {
    // SAFETY: the calls change the identity of this thread, and no memory.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, ATTACKER, ATTACKER, ATTACKER), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, ATTACKER, ATTACKER, ATTACKER), 0);
    }
}

/// Runs a part of a test as the attacker.
fn as_attacker<T: Send>(part: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let part = scope.spawn(|| {
            become_attacker();
            part()
        });
        part.join().expect("no panic")
    })
}

/// A pseudo-random number generator, whose seed is printed (splitmix64).
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = std::env::var("LATCHFS_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let mut bytes = [0; 8];
            let mut random = File::open("/dev/urandom").expect("there");
            random.read_exact(&mut bytes).expect("readable");
            u64::from_ne_bytes(bytes)
        });
        println!("LATCHFS_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// The marks of a file that an attack must not change.
#[derive(Debug, PartialEq, Eq)]
struct Marks {
    path: PathBuf,
    mode: u32,
    owner: (u32, u32),
    inode: u64,
    modified: (i64, i64),
    attributes: usize,
    content: Vec<u8>,
}

/// Returns the marks of a file or a tree.
fn marks(path: &Path) -> Vec<Marks> {
    let found = fs::symlink_metadata(path).expect("there");
    let mut all = vec![];
    let mut content = vec![];
    if found.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path).expect("a directory").collect();
        names.sort_by_key(|entry| entry.as_ref().expect("readable").file_name());
        for entry in names {
            all.extend(marks(&entry.expect("readable").path()));
        }
    } else {
        content = fs::read(path).expect("readable");
    }
    let attributes = rustix::fs::llistxattr(path, &mut [0_u8; 1_024]).expect("listed");
    all.push(Marks {
        path: path.to_owned(),
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        inode: found.ino(),
        modified: (found.mtime(), found.mtime_nsec()),
        attributes,
        content,
    });
    all
}

/// Makes a tree of root with the names that the attack uses.
fn make_secrets(dir: &Path) {
    fs::create_dir_all(dir.join("sub")).expect("made");
    for name in ["f", "g", "log.log", "sub/f"] {
        fs::write(dir.join(name), SECRET).expect("written");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600)).expect("changed");
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("changed");
}

/// Makes a directory of the attacker with the same names.
fn make_own(dir: &Path) {
    fs::create_dir_all(dir.join("sub")).expect("made");
    for name in ["f", "g", "log.log", "sub/f"] {
        fs::write(dir.join(name), "of the attacker").expect("written");
        chown(dir.join(name), Some(ATTACKER), Some(ATTACKER)).expect("given");
    }
    for own in [dir.join("sub"), dir.to_owned()] {
        chown(own, Some(ATTACKER), Some(ATTACKER)).expect("given");
    }
}

/// Starts a guard of a folder with the attacker's directory `own`.
fn attacked(options: &[&str]) -> (Scratch, Guard, PathBuf) {
    let scratch = Scratch::with_folder();
    let own = scratch.folder().join("own");
    fs::create_dir(&own).expect("made");
    chown(&own, Some(ATTACKER), Some(ATTACKER)).expect("given");
    scratch.init(&["--alone"]);
    let guard = Guard::start(&scratch, "view", options);
    guard.request("take", &[]).ok();
    (scratch, guard, own)
}

fn exchange(a: &Path, b: &Path) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)
}

/// Exchanges the two names, again and again, as the attacker.
fn keep_exchanging(names: (&Path, &Path), is_over: &AtomicBool, random: &mut Random) {
    become_attacker();
    while !is_over.load(Ordering::Relaxed) {
        let _ = exchange(names.0, names.1);
        // Each state lasts for about as long as an operation.
        for _ in 0..random.below(20_000) {
            std::hint::spin_loop();
        }
    }
}

/// Reads a file, and fails if it holds what the attacker may not read.
fn read_all(file: &mut File) -> io::Result<()> {
    let mut text = Vec::new();
    file.seek(io::SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    assert!(!text.contains(SECRET), "the attacker has read: {text}");
    Ok(())
}

#[allow(unsafe_code)]
fn truncate(path: &Path, size: i64) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero byte, and the call changes no memory.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open_for(flags: i32, path: &Path) -> io::Result<File> {
    let is_append = flags & libc::O_APPEND != 0;
    let mut options = OpenOptions::new();
    options.read(true).write(!is_append).append(is_append);
    // Some of the names are FIFOs, whose open would block.
    options.custom_flags(flags & !libc::O_APPEND | libc::O_NONBLOCK).open(path)
}

fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Makes one operation, of any kind, on the names in the directory `dir` of the view.
fn operate(dir: &Path, number: u64, random: &mut Random) -> io::Result<()> {
    let pick = |random: &mut Random| {
        dir.join(["f", "g", "log.log", "sub/f", "f"][random.below(5) as usize])
    };
    let (path, other) = (pick(random), pick(random));
    let fresh = dir.join(format!("new{}", number % 50));
    let flagged = |flags| rustix::fs::renameat_with(CWD, &path, CWD, &other, flags);
    match random.below(28) {
        0 => read_all(&mut open_to_read(&path)?),
        1 => open_for(0, &path)?.write_at(b"attack", 0).map(drop),
        2 => open_for(libc::O_TRUNC, &path)?.write_all(b"attack"),
        3 => open_for(libc::O_APPEND, &path)?.write_all(b"attack"),
        4 => open_for(libc::O_CREAT | libc::O_TRUNC, &fresh)?.write_all(b"attack"),
        5 => {
            let mut file = open_for(0, &path)?;
            file.write_all(b"attack")?;
            file.sync_all()?;
            read_all(&mut file)
        }
        6 => truncate(&path, 3),
        7 => open_for(0, &path)?.set_len(random.below(9_000)),
        8 => fs::set_permissions(&path, fs::Permissions::from_mode(0o666)),
        9 => chown(&path, Some(ATTACKER), Some(ATTACKER)),
        10 => {
            let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
            open_for(0, &path)?.set_times(times)
        }
        11 => Ok(rustix::fs::setxattr(&path, "user.attack", b"x", XattrFlags::empty())?),
        12 => Ok(rustix::fs::getxattr(&path, "user.attack", &mut [0_u8; 64]).map(drop)?),
        13 => Ok(rustix::fs::listxattr(&path, &mut [0_u8; 64]).map(drop)?),
        14 => {
            fs::hard_link(&path, &fresh)?;
            assert_ne!(fs::symlink_metadata(&fresh)?.uid(), 0, "a file of root got a link");
            Ok(())
        }
        15 => fs::remove_file(&path).and_then(|()| open_for(libc::O_CREAT, &path).map(drop)),
        16 => fs::rename(&path, &fresh).and_then(|()| fs::rename(&fresh, &path)),
        17 => Ok(flagged(RenameFlags::EXCHANGE)?),
        18 => Ok(flagged(RenameFlags::NOREPLACE)?),
        19 => fs::create_dir(&fresh),
        20 => fs::remove_dir(&fresh).or_else(|_| fs::remove_file(&fresh)),
        21 => symlink("/etc/shadow", &fresh),
        22 => {
            let kind = if random.below(2) == 0 { FileType::Fifo } else { FileType::RegularFile };
            Ok(rustix::fs::mknodat(CWD, &fresh, kind, Mode::RWXU, 0)?)
        }
        23 => fs::read_link(&fresh).map(drop),
        24 => {
            let mode = rustix::fs::FallocateFlags::empty();
            Ok(rustix::fs::fallocate(open_for(0, &path)?, mode, 0, 5_000)?)
        }
        25 => {
            let (from, to) = (open_to_read(&path)?, open_for(0, &other)?);
            rustix::fs::copy_file_range(&from, None, &to, None, 100)?;
            read_all(&mut open_to_read(&other)?)
        }
        26 => {
            let file = open_to_read(&path)?;
            Ok(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).map(drop)?)
        }
        _ => {
            let names: Vec<OsString> =
                fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
            let found = fs::symlink_metadata(&path)?;
            assert!(names.len() < 100 && found.len() < 1 << 20);
            Ok(())
        }
    }
}

/// Makes the files again that an operation has removed from a directory of the attacker.
fn mend_own(dir: &Path) {
    for name in ["f", "g", "log.log", "sub/f"] {
        if fs::symlink_metadata(dir.join(name)).is_err() {
            let _ = open_for(libc::O_CREAT, &dir.join(name));
        }
    }
}

/// Makes operations in `dir` of the view, while the two names are exchanged past the view. Calls
/// `mend` after each.
fn attack(dir: &Path, names: (&Path, &Path), mend: impl Fn() + Send) {
    let mut random = Random::new();
    let operations = rounds(5_000, 100_000) as u64;
    let is_over = AtomicBool::new(false);
    let (done, refused) = std::thread::scope(|scope| {
        let mut other = Random(random.below(u64::MAX));
        let over = &is_over;
        let exchanging = scope.spawn(move || keep_exchanging(names, over, &mut other));
        let operating = scope.spawn(move || {
            become_attacker();
            let mut counts = (0, 0);
            for number in 0..10 * operations {
                // On a busy machine the names may be exchanged most of the time, or seldom.
                if number >= operations && counts.0.min(counts.1) > operations / 20 {
                    break;
                }
                match operate(dir, number, &mut random) {
                    Ok(()) => counts.0 += 1,
                    Err(_) => counts.1 += 1,
                }
                mend();
            }
            counts
        });
        let counts = operating.join();
        is_over.store(true, Ordering::Relaxed);
        exchanging.join().expect("no panic");
        counts.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{done} operations were done, {refused} refused");
    assert!(done > operations / 20 && refused > operations / 20, "{done} done, {refused} refused");
}

/// A directory that becomes a symlink to a place of root: nothing there is read or changed.
#[test]
fn a_directory_exchanged_for_a_symlink_leads_nowhere() {
    let (scratch, guard, own) = attacked(&[]);
    let outside = scratch.join("outside");
    make_secrets(&outside);
    make_own(&own.join("dir"));
    symlink(&outside, own.join("link")).expect("made");
    let before = marks(&outside);
    attack(&guard.path("own/dir"), (&own.join("dir"), &own.join("link")), || {
        mend_own(&own.join("dir"));
    });
    assert_eq!(marks(&outside), before);
}

/// A directory that becomes one of root, which nobody else may enter.
#[test]
fn a_directory_exchanged_for_one_of_root_is_not_entered() {
    let (_scratch, guard, own) = attacked(&[]);
    let (dir, private) = (own.join("dir"), own.join("private"));
    make_own(&dir);
    make_secrets(&private);
    let inode = |path: &Path| fs::symlink_metadata(path).expect("there").ino();
    let (inside, before) = (inode(&private), marks(&private));
    attack(&guard.path("own/dir"), (&dir, &private), || mend_own(&dir));
    if inode(&private) != inside {
        exchange(&dir, &private).expect("exchanged");
    }
    assert_eq!(marks(&private), before);
}

/// A file that becomes a file of root with mode 0600. The attacker may remove or rename it, since
/// the directory is the attacker's, and nothing else.
#[test]
fn a_file_exchanged_for_one_of_root_is_not_touched() {
    let (scratch, guard, own) = attacked(&[]);
    let vault = scratch.join("vault");
    make_secrets(&vault);
    make_own(&own);
    let secret = own.join("secret");
    fs::hard_link(vault.join("f"), &secret).expect("linked");
    let before = marks(&vault);
    let inode = fs::metadata(vault.join("f")).expect("there").ino();
    // Root, and not the attacker, gives the secret its name again after a removal.
    let (root, is_wanted, is_over) = (own.clone(), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if is_wanted.swap(false, Ordering::Relaxed) {
                    let _ = fs::remove_file(&secret);
                    let _ = fs::hard_link(vault.join("f"), &secret);
                }
                std::thread::yield_now();
            }
        });
        let mend = || {
            let names = ["f", "secret"].map(|name| fs::symlink_metadata(root.join(name)));
            if !names.iter().any(|found| found.as_ref().is_ok_and(|found| found.ino() == inode)) {
                is_wanted.store(true, Ordering::Relaxed);
            }
            if names[0].is_err() {
                let _ = open_for(libc::O_CREAT, &root.join("f"));
            }
        };
        attack(&guard.path("own"), (&own.join("f"), &secret), mend);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(marks(&vault), before);
}

/// A program saves a file in a directory that was exchanged for one of root meanwhile.
#[test]
fn a_save_does_not_reach_the_directory_that_has_the_path_now() {
    let (_scratch, guard, own) = attacked(&[]);
    let (dir, private) = (own.join("dir"), own.join("private"));
    make_own(&dir);
    make_secrets(&private);
    let before = marks(&private);
    let view = guard.path("own/dir");
    let write = |name: &str| {
        let mut file = File::create(view.join(name)).expect("the directory is the attacker's");
        file.write_all(b"attack").expect("the lock is held");
        file
    };
    as_attacker(|| {
        let (over, made, emptied) = (write("f"), write("made"), write("sub/f"));
        exchange(&dir, &private).expect("exchanged");
        over.sync_all().expect_err("the directory is elsewhere");
        made.sync_all().expect_err("the directory is elsewhere");
        emptied.sync_all().expect_err("the directory is elsewhere");
        exchange(&dir, &private).expect("exchanged");
    });
    assert_eq!(marks(&private), before);
    // The content is kept, and its writer can't have it put where the writer may not write.
    exchange(&dir, &private).expect("exchanged");
    let setpriv = "setpriv --reuid 4001 --regid 4001 --clear-groups";
    let latchfs = testing::latchfs_path();
    let lost = shell(&guard.view, &format!("{setpriv} {latchfs} guard lost .")).ok();
    let number = |line: &str| line.split_whitespace().next()?.parse::<u64>().ok();
    let numbers: Vec<_> = lost.lines().filter_map(number).collect();
    for number in &numbers {
        let restore = format!("{setpriv} {latchfs} guard lost --restore {number} .");
        let refused = shell(&guard.view, &restore).fails();
        assert!(refused.contains("may not"), "{refused}");
    }
    assert_eq!(numbers.len(), 3, "{lost}");
    exchange(&dir, &private).expect("exchanged");
    assert_eq!(marks(&private), before);
    for number in &numbers {
        let restore = format!("{setpriv} {latchfs} guard lost --restore {number} .");
        shell(&guard.view, &restore).ok();
    }
    assert_eq!(fs::read(dir.join("made")).expect("restored"), b"attack");
}

/// One way to change a directory.
type Attack = fn(&Path) -> io::Result<()>;

/// In a directory with the sticky bit, such as /tmp, nobody removes or replaces the file of
/// another user. The kernel decides by the file that it knows, and another one may have the name by
/// now.
#[test]
fn the_sticky_bit_protects_a_file_that_has_just_got_the_name() {
    let (_scratch, guard, _) = attacked(&[]);
    let shared = guard.path("shared");
    fs::create_dir(&shared).expect("made");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("changed");
    let real = guard.view.with_file_name("folder").join("shared");
    let attacks: [(&str, Attack); 6] = [
        ("unlink", |dir| fs::remove_file(dir.join("f"))),
        ("rename", |dir| fs::rename(dir.join("f"), dir.join("g"))),
        ("rename over", |dir| fs::rename(dir.join("h"), dir.join("f"))),
        ("exchange", |dir| Ok(exchange(&dir.join("f"), &dir.join("h"))?)),
        ("save", |_| Ok(())),
        ("rmdir", |dir| fs::remove_dir(dir.join("d"))),
    ];
    for (name, attack) in attacks {
        let kept = as_attacker(|| {
            fs::write(shared.join("f"), "own").expect("anybody may");
            fs::write(shared.join("h"), "own").expect("anybody may");
            fs::create_dir(shared.join("d")).expect("anybody may");
            let open = (name == "save").then(|| {
                let mut file = File::create(shared.join("f")).expect("its owner");
                file.write_all(b"attack").expect("its owner");
                file
            });
            fs::symlink_metadata(shared.join("f")).expect("there");
            fs::rename(real.join("f"), real.join("away")).expect("its owner");
            fs::remove_dir(real.join("d")).expect("its owner");
            open
        });
        fs::write(real.join("f"), SECRET).expect("written");
        fs::create_dir(real.join("d")).expect("made");
        let before = marks(&real.join("f"));
        let done = as_attacker(|| match kept {
            Some(file) => file.sync_all(),
            None => attack(&shared),
        });
        done.expect_err(name);
        assert_eq!(marks(&real.join("f")), before, "{name}");
        assert!(real.join("d").exists(), "{name}");
        for left in ["f", "g", "h", "away"] {
            let _ = fs::remove_file(real.join(left));
        }
        fs::remove_dir(real.join("d")).expect("there");
    }
}

/// The access control list that a directory gives to new files does not open a file that is saved
/// again, and a program's own list stays.
#[test]
fn a_save_keeps_the_access_control_list_of_a_file() {
    let (_scratch, guard, _own) = attacked(&[]);
    let program = "
import os, struct
def acl(entries):
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *entry) for entry in entries)
NONE = 0xffffffff
one = acl([(1, 6, NONE), (2, 7, 4002), (4, 6, NONE), (16, 6, NONE), (32, 0, NONE)])
own = acl([(1, 6, NONE), (2, 4, 4003), (4, 6, NONE), (16, 6, NONE), (32, 0, NONE)])
folder = '../folder/own/'
for name in ('plain', 'listed'):
    open(folder + name, 'w').write('private')
    os.chmod(folder + name, 0o660)
os.setxattr(folder + 'listed', 'system.posix_acl_access', own)
os.setxattr(folder, 'system.posix_acl_default', one)
os.setxattr('own/plain', 'user.kind', b'plain')
os.setxattr(folder + 'plain', 'trusted.kind', b'of root')
assert sorted(os.listxattr('own/plain')) == ['trusted.kind', 'user.kind']
assert os.getxattr('own/listed', 'system.posix_acl_access') == own
for name in ('plain', 'listed'):
    open('own/' + name, 'w').write('saved')
assert 'system.posix_acl_access' not in os.listxattr(folder + 'plain'), 'opened for 4002'
assert os.getxattr(folder + 'listed', 'system.posix_acl_access') == own
open('own/new', 'w').write('new')
assert 'system.posix_acl_access' in os.listxattr(folder + 'new'), 'inherited'
assert os.getxattr(folder + 'plain', 'user.kind') == b'plain'
os.chmod(folder + 'plain', 0o644)
os.setuid(4002)
assert os.listxattr('own/plain') == ['user.kind'], os.listxattr('own/plain')
";
    testing::python(0, &guard.view, program).ok();
}

/// `guard init` by root in a folder of somebody else writes nowhere else.
#[test]
fn init_follows_no_symlink() {
    let scratch = Scratch::with_folder();
    let (folder, outside) = (scratch.folder(), scratch.join("outside"));
    make_secrets(&outside);
    let before = marks(&outside);
    let init = || {
        let mut command = testing::latchfs();
        testing::run(command.args(["guard", "init", "--alone"]).arg(&folder))
    };
    symlink(&outside, folder.join(".latchfs")).expect("made");
    let refused = init().fails();
    assert!(refused.contains("symlink"), "{refused}");
    assert_eq!(marks(&outside), before);
    fs::remove_file(folder.join(".latchfs")).expect("there");
    fs::create_dir(folder.join(".latchfs")).expect("made");
    for name in ["README", "folder.tmp"] {
        symlink(outside.join("f"), folder.join(".latchfs").join(name)).expect("made");
    }
    let _ = init();
    assert_eq!(marks(&outside), before);
}
