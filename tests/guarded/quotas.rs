//! Quotas of users, on a file system that stands in for ext4 with quotas, which the kernel of the
//! tests may lack. It charges each page to the owner of its file, and refuses all but root beyond a
//! limit, as ext4 refuses all that lack `CAP_SYS_RESOURCE`.
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testing::{Guard, Scratch, python};

/// The acts of an ordinary user.
const ACTS: &str = include_str!("../fixtures/guard_acts.py");
/// The user with a quota.
const USER: u32 = 4242;
/// A user without one.
const OTHER: u32 = 4343;
/// The quota in bytes.
const QUOTA: u64 = 8 << 20;
/// The length of a step of a program that fills the quota.
const STEP: u64 = 1 << 20;

/// A file system with a quota, which ends after the guard and the scratch directory.
struct QuotaDisk {
    server: Child,
    dir: PathBuf,
    _outer: Scratch,
}

impl QuotaDisk {
    fn new() -> Self {
        let outer = Scratch::with_folder();
        let dir = outer.join("disk");
        fs::create_dir(&dir).expect("made");
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quota_fs.py");
        let mut server = Command::new("/usr/bin/python3");
        server.arg(program).arg(&dir).arg(format!("{USER}:{QUOTA}"));
        server.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut disk = Self { server: server.spawn().expect("it starts"), dir, _outer: outer };
        let mut said = [0; 8];
        let out = disk.server.stdout.as_mut().expect("piped");
        out.read_exact(&mut said).expect("it says that it is mounted");
        assert_eq!(&said, b"mounted\n");
        disk
    }

    /// Returns a guarded folder on this file system, in which all users may make files.
    fn scratch(&self) -> Scratch {
        let scratch = Scratch::at(self.dir.join("test"));
        fs::create_dir_all(scratch.folder()).expect("made");
        for dir in [scratch.path().to_owned(), scratch.folder()] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("its owner");
        }
        scratch.init(&["--alone"]);
        scratch
    }
}

impl Drop for QuotaDisk {
    fn drop(&mut self) {
        // The file system is unmounted when its input ends.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

/// Returns the bytes of the files of a user below a directory.
fn used(dir: &Path, uid: u32) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(dir).expect("there").flatten() {
        let found = entry.path().symlink_metadata().expect("there");
        if found.is_dir() {
            sum += used(&entry.path(), uid);
        } else if found.uid() == uid {
            sum += found.blocks() * 512;
        }
    }
    sum
}

/// Writes more than the quota through a mapping, without msync, and closes the file.
const MAPPED: &str = "
file = os.open('big', os.O_RDWR | os.O_TRUNC)
os.ftruncate(file, 24 * MIB)
pages = mmap.mmap(file, 24 * MIB)
for count in range(24): pages[count * MIB:(count + 1) * MIB] = bytes(MIB)
pages.close()
try:
    os.close(file); print('mapped big closed')
except OSError as error:
    print('mapped big', errno.errorcode[error.errno])
";

/// Fills the quota as the user, in a child of a process of root if `way` is one of the acts.
fn fill(dir: &Path, way: &str, path: &str) -> String {
    if way == "mapped" {
        return python(USER, dir, &format!("{ACTS}\n{MAPPED}")).ok();
    }
    let program = format!(
        "{ACTS}
if os.WIFSIGNALED(as_user(lambda: fill({way:?}, {path:?}))): print({way:?}, {path:?}, 'full')"
    );
    python(0, dir, &program).ok()
}

fn drop_lost(guard: &Guard, scratch: &Scratch) {
    let states = fs::read_dir(scratch.join("state")).expect("there");
    for state in states.flatten() {
        for file in fs::read_dir(state.path().join("lost")).expect("there").flatten() {
            if let Some(number) = file.file_name().to_str().filter(|name| !name.contains('.')) {
                guard.request("lost", &["--drop", number]).ok();
            }
        }
    }
}

#[test]
fn users_of_a_view_do_not_exceed_their_quotas() {
    let disk = QuotaDisk::new();
    let scratch = disk.scratch();
    let source = scratch.folder().join("source");
    fs::write(&source, vec![0; STEP as usize]).expect("root's");
    // The stand-in refuses the user in a plain directory as well.
    assert_eq!(fill(&scratch.folder(), "write", "plain"), "write plain EDQUOT\n");
    assert_eq!(used(&disk.dir, USER), QUOTA);
    fs::remove_file(scratch.folder().join("plain")).expect("there");
    let guard = Guard::start(&scratch, "view", &[]);
    let put = |uid: u32, name: &str, bytes: u64| {
        let program = format!("open({name:?}, 'wb').write(bytes({bytes}))");
        python(uid, &guard.view, &program)
    };
    let dirs = [scratch.folder(), scratch.join("state")];
    let of_user = || dirs.iter().map(|dir| used(dir, USER)).sum::<u64>();
    for way in ["write", "mmap", "mapped", "allocate", "copy"] {
        let paths = ["big", "big.log", ".big.swp"];
        for path in paths.into_iter().take(if way == "mapped" { 1 } else { 3 }) {
            put(USER, path, 3).ok();
            let said = fill(&guard.view, way, path);
            let errors: &[&str] = match way {
                "mmap" => &["full"],
                "mapped" => &["EIO", "EDQUOT"],
                _ => &["EDQUOT"],
            };
            let is_refused = errors.iter().any(|it| said == format!("{way} {path} {it}\n"));
            assert!(is_refused, "{said}{}", guard.why());
            let taken = of_user();
            assert!(taken <= QUOTA && taken > QUOTA - 2 * STEP, "{way} {path}: {taken} bytes");
            // A save that did not fit publishes nothing. An msync publishes what it has written.
            if path == "big" && way != "mmap" {
                let found = fs::metadata(scratch.folder().join(path)).expect("the old version");
                assert_eq!(found.len(), 3, "{way}");
            }
            let refused = put(USER, "more", 4 * STEP).fails();
            assert!(refused.contains("Disk quota exceeded"), "{way} {path}: {refused}");
            put(OTHER, "others", 2 * STEP).ok();
            put(0, "roots", 2 * STEP).ok();
            // Space that is free again can be used again.
            drop_lost(&guard, &scratch);
            python(USER, &guard.view, &format!("import os; os.remove({path:?})")).ok();
            drop_lost(&guard, &scratch);
            put(USER, "again", QUOTA - 2 * STEP).ok();
            let again = scratch.folder().join("again");
            let found = fs::metadata(&again).expect("it is published");
            assert_eq!((found.uid(), found.len()), (USER, QUOTA - 2 * STEP), "{way} {path}");
            fs::remove_file(again).expect("there");
        }
    }
    assert_eq!(used(&scratch.folder(), OTHER), 2 * STEP);
}
