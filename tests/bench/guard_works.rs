//! The work that is measured on a guarded folder and beside it.

use crate::Effort;
use crate::report::{micros_each, seconds};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The wanted figure of a work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// At most so many microseconds more than without a stage.
    MoreThanNaive(f64),
    /// At most so many times the time without a stage.
    TimesNaive(f64),
    /// At most so many times the time on the disk itself.
    TimesDisk(f64),
    /// At most so many milliseconds.
    Millis(f64),
}

/// A system call, or a few, that is repeated in a directory. Returns the microseconds of each.
type Call = fn(&Path, usize) -> f64;

pub(crate) const CALLS: &[(&str, Target, Call)] = &[
    ("save: O_TRUNC, write, close", Target::MoreThanNaive(25.0), save_by_truncation),
    ("save: new name, rename over", Target::MoreThanNaive(25.0), save_by_rename),
    ("save: new file, unlink", Target::MoreThanNaive(25.0), save_new),
    ("mkdir + rmdir", Target::TimesNaive(1.1), mkdir_rmdir),
    ("rename", Target::TimesNaive(1.1), rename),
    ("chmod", Target::TimesNaive(1.1), chmod),
    ("pwrite of 4 KiB in place", Target::TimesNaive(1.1), write_in_place),
    ("open + append + close", Target::TimesNaive(1.1), append),
    ("stat", Target::TimesNaive(1.1), stat),
    ("open + read 4 KiB + close", Target::TimesNaive(1.1), open_read),
    ("read a file again", Target::TimesDisk(1.2), read_again),
    ("read a mapped page", Target::TimesDisk(1.5), mapped),
    ("pread of an open file", Target::TimesDisk(1.5), pread),
];

/// The work of whole programs in a directory. Returns the milliseconds.
type Bulk = fn(&Path, Effort) -> Result<f64, String>;

pub(crate) const BULKS: &[(&str, Target, Bulk)] = &[
    ("git status of 1,134 files", Target::Millis(60.0), git_status),
    ("tar -x of 1,134 files", Target::TimesDisk(2.0), untar),
    ("git clone of 1,134 files", Target::TimesDisk(2.0), git_clone),
    ("cargo build of a small crate", Target::TimesDisk(1.5), cargo_build),
    ("sqlite3, 1,000 transactions, WAL", Target::TimesDisk(1.5), sqlite_wal),
    ("sqlite3, 1,000 transactions, rollback", Target::TimesDisk(2.5), sqlite_rollback),
];

/// The number of files in a tree.
const TREE_FILES: usize = 1_134;
const PAGE: [u8; 4_096] = [b'x'; 4_096];

fn save_by_truncation(dir: &Path, count: usize) -> f64 {
    let path = dir.join("saved");
    micros_each(count, |_| fs::write(&path, PAGE).expect("saved"))
}

fn save_by_rename(dir: &Path, count: usize) -> f64 {
    let (path, new) = (dir.join("replaced"), dir.join("replaced.new"));
    micros_each(count, |_| {
        fs::write(&new, PAGE).expect("written");
        fs::rename(&new, &path).expect("renamed");
    })
}

fn save_new(dir: &Path, count: usize) -> f64 {
    let path = dir.join("new");
    micros_each(count, |_| {
        fs::write(&path, PAGE).expect("written");
        fs::remove_file(&path).expect("removed");
    })
}

fn mkdir_rmdir(dir: &Path, count: usize) -> f64 {
    let path = dir.join("directory");
    micros_each(count, |_| {
        fs::create_dir(&path).expect("made");
        fs::remove_dir(&path).expect("removed");
    })
}

fn rename(dir: &Path, count: usize) -> f64 {
    let (a, b) = (dir.join("a"), dir.join("b"));
    fs::write(&a, PAGE).expect("written");
    micros_each(count, |_| {
        fs::rename(&a, &b).expect("renamed");
        fs::rename(&b, &a).expect("renamed");
    })
}

fn chmod(dir: &Path, count: usize) -> f64 {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("mode");
    fs::write(&path, PAGE).expect("written");
    micros_each(count, |turn| {
        let mode = if turn % 2 == 0 { 0o600 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
    })
}

fn write_in_place(dir: &Path, count: usize) -> f64 {
    let path = dir.join("in-place");
    fs::write(&path, PAGE).expect("written");
    let file = OpenOptions::new().write(true).open(path).expect("there");
    micros_each(count, |_| file.write_all_at(&PAGE, 0).expect("written"))
}

fn append(dir: &Path, count: usize) -> f64 {
    let path = dir.join("appended");
    fs::write(&path, "").expect("written");
    micros_each(count, |_| {
        let mut file = OpenOptions::new().append(true).open(&path).expect("there");
        file.write_all(b"a line of a log\n").expect("written");
    })
}

/// Makes a file for the works that only read.
fn readable(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("readable");
    if !path.exists() {
        fs::write(&path, PAGE.repeat(16)).expect("written");
    }
    path
}

fn stat(dir: &Path, count: usize) -> f64 {
    let path = readable(dir);
    micros_each(count, |_| {
        fs::metadata(&path).expect("there");
    })
}

fn open_read(dir: &Path, count: usize) -> f64 {
    let path = readable(dir);
    let mut page = PAGE;
    micros_each(count, |_| {
        File::open(&path).and_then(|mut file| file.read_exact(&mut page)).expect("there");
    })
}

fn read_again(dir: &Path, count: usize) -> f64 {
    let file = File::open(readable(dir)).expect("there");
    let mut all = PAGE.repeat(16);
    file.read_exact_at(&mut all, 0).expect("there");
    micros_each(count * 10, |_| file.read_exact_at(&mut all, 0).expect("there"))
}

fn pread(dir: &Path, count: usize) -> f64 {
    let file = File::open(readable(dir)).expect("there");
    let mut page = PAGE;
    micros_each(count * 10, |turn| {
        let offset = (turn % 16 * PAGE.len()) as u64;
        file.read_exact_at(&mut page, offset).expect("there");
    })
}

/// Reads the pages of a new mapping: each is a page fault.
#[allow(unsafe_code)]
fn mapped(dir: &Path, count: usize) -> f64 {
    use std::os::fd::AsRawFd;
    let file = File::open(readable(dir)).expect("there");
    let length = PAGE.len() * 16;
    micros_each(count, |_| {
        // SAFETY: the kernel chooses the address, and nothing else uses it before the unmapping.
        unsafe {
            let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
            let at = libc::mmap(std::ptr::null_mut(), length, read, shared, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED, "mapped");
            for page in 0..16 {
                assert_eq!(at.cast::<u8>().add(page * PAGE.len()).read_volatile(), b'x');
            }
            assert_eq!(libc::munmap(at, length), 0);
        }
    }) / 16.0
}

/// Runs a shell script in a directory, and returns the milliseconds that it took.
fn shell(dir: &Path, script: &str) -> Result<f64, String> {
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(dir).stdin(Stdio::null());
    let (taken, output) = seconds(|| command.output());
    let output = output.map_err(|error| format!("can't run sh: {error}"))?;
    if !output.status.success() {
        return Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(taken * 1_000.0)
}

/// Makes a tree of files with a repository in a directory, once, and a tar archive and a clone of
/// it outside.
fn tree(dir: &Path) -> Result<(), String> {
    if dir.join("tree").exists() {
        return Ok(());
    }
    let script = format!(
        "mkdir tree; cd tree; git init -q .; git config user.email a@b.c; git config user.name n
         i=0; while [ $i -lt {TREE_FILES} ]; do
            d=d$((i % 40)); mkdir -p $d
            head -c $((i * 37 % 8000 + 100)) /dev/zero | tr '\\0' x > $d/f$i; i=$((i + 1))
         done
         git add -A; git commit -qm tree; git gc -q; cd ..; tar -cf tree.tar tree"
    );
    shell(dir, &script).map(drop)
}

fn git_status(dir: &Path, _: Effort) -> Result<f64, String> {
    tree(dir)?;
    shell(dir, "cd tree; git status --porcelain")
}

fn untar(dir: &Path, _: Effort) -> Result<f64, String> {
    tree(dir)?;
    shell(dir, "rm -rf untarred; mkdir untarred")?;
    shell(dir, "tar -xf tree.tar -C untarred")
}

fn git_clone(dir: &Path, _: Effort) -> Result<f64, String> {
    tree(dir)?;
    shell(dir, "rm -rf cloned")?;
    shell(dir, "git clone -q --no-local tree cloned")
}

fn cargo_build(dir: &Path, _: Effort) -> Result<f64, String> {
    shell(
        dir,
        "rm -rf crate; mkdir -p crate/src; cd crate
         printf '[package]\\nname = \"c\"\\n' > Cargo.toml
         printf 'version = \"0.1.0\"\\nedition = \"2021\"\\n' >> Cargo.toml
         for i in 1 2 3 4 5 6 7 8; do echo \"pub fn f$i() -> u32 {{ $i }}\" > src/m$i.rs; done
         for i in 1 2 3 4 5 6 7 8; do echo \"pub mod m$i;\" >> src/lib.rs; done
         echo 'fn main() { println!(\"{}\", c::m1::f1()); }' > src/main.rs",
    )?;
    shell(dir, "cd crate; env -u CARGO_TARGET_DIR cargo build -q --offline")
}

pub(crate) fn sqlite_is_there() -> bool {
    Command::new("sqlite3").arg("--version").stdout(Stdio::null()).status().is_ok()
}

fn sqlite(dir: &Path, mode: &str, effort: Effort) -> Result<f64, String> {
    let count = effort.of(1_000);
    let script = format!(
        "rm -f d.db d.db-*
         {{ echo 'PRAGMA journal_mode={mode}; CREATE TABLE t(n INTEGER, s TEXT);'
           i=0; while [ $i -lt {count} ]; do
             echo \"INSERT INTO t VALUES($i, 'some text of a row');\"; i=$((i + 1))
           done; }} > load.sql"
    );
    shell(dir, &script)?;
    shell(dir, "sqlite3 d.db < load.sql")
}

fn sqlite_wal(dir: &Path, effort: Effort) -> Result<f64, String> {
    sqlite(dir, "WAL", effort)
}

fn sqlite_rollback(dir: &Path, effort: Effort) -> Result<f64, String> {
    sqlite(dir, "DELETE", effort)
}
