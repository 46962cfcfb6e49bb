//! Measures the latency of system calls on a mount, next to a FUSE file system that does no work.

use crate::Effort;
use crate::mounts::Mount;
use crate::report::{Table, least, median, micros_each, number, seconds, verdict};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{io, ptr};

/// Target: the latency on a mount is at most this many times that of the file system that does no
/// work.
const RATIO_WANTED: f64 = 1.2;

/// The ratio of median to minimum above which a result is marked as disturbed: it then says more
/// about other load on the machine, and about which processor woke which, than about the measured
/// call.
const DISTURBED: f64 = 1.3;

/// A function that performs an operation on a directory, such as mkdir and rmdir, as many times as
/// the `usize` says. It returns the average time of one operation in microseconds.
type Work = fn(&Path, usize) -> f64;

const WORKS: [(&str, Work); 4] = [
    ("mkdir + rmdir", mkdir_rmdir),
    ("create + close + unlink", create_unlink),
    ("utimensat", utimensat),
    ("stat", stat),
];

/// The name of a lock that is held throughout the run.
const HELD: &str = "held";

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let mounts = [Mount::tmpfs()?, Mount::null()?, Mount::latchfs(&["--ttl", "1h"])?];
    for mount in &mounts {
        fs::write(mount.dir().join(HELD), "").map_err(|error| error.to_string())?;
    }
    let count = effort.of(500);
    let mut rounds = vec![[const { Vec::new() }; 3]; WORKS.len()];
    for round in 0..=effort.rounds {
        for (work, (_, run)) in WORKS.iter().enumerate() {
            for turn in 0..mounts.len() {
                // In each round another mount is measured first, so that the after-effects of one
                // mount's measurement do not always fall on the same other mount.
                let which = (turn + round) % mounts.len();
                let micros = run(mounts[which].dir(), count);
                // The results of the first round are dropped, because it only warms up.
                if round > 0 {
                    rounds[work][which].push(micros);
                }
            }
        }
    }
    let columns = ["", "tmpfs", "nothing", "latchfs", "ratio", "wanted", "", "least", "ratio"];
    let disturbed = |micros: &Vec<f64>| median(micros) > DISTURBED * least(micros);
    if rounds.iter().flat_map(|of_work| &of_work[1..]).any(disturbed) {
        println!(
            "\nThe machine is busy: medians are far from the least. Trust --pin, and the least"
        );
    }
    let title = "System calls, us: medians of interleaved rounds, and the least";
    let mut table = Table::new(title, &columns);
    for ((what, _), [tmpfs, null, latchfs]) in WORKS.iter().zip(&rounds) {
        let ratio = median(latchfs) / median(null);
        let least_ratio = least(latchfs) / least(null);
        table.row(&[
            what,
            &number(median(tmpfs)),
            &number(median(null)),
            &number(median(latchfs)),
            &number(ratio),
            &format!("<= {RATIO_WANTED}"),
            verdict(ratio, RATIO_WANTED),
            &format!("{} / {}", number(least(null)), number(least(latchfs))),
            &number(least_ratio),
        ]);
    }
    Ok(())
}

fn mkdir_rmdir(dir: &Path, count: usize) -> f64 {
    let path = dir.join("build");
    micros_each(count, |_| {
        fs::create_dir(&path).expect("it is free");
        fs::remove_dir(&path).expect("it is ours");
    })
}

fn create_unlink(dir: &Path, count: usize) -> f64 {
    let path = dir.join("build");
    micros_each(count, |_| {
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        drop(made.expect("it is free"));
        fs::remove_file(&path).expect("it is ours");
    })
}

#[allow(unsafe_code)]
fn utimensat(dir: &Path, count: usize) -> f64 {
    let path = dir.join(HELD);
    let path = CString::new(path.as_os_str().as_bytes()).expect("paths hold no zero byte");
    micros_each(count, |_| {
        // SAFETY: the path ends with a zero byte, and a null pointer as times means the present
        // time.
        let result = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), ptr::null(), 0) };
        assert_eq!(result, 0, "it is ours: {}", io::Error::last_os_error());
    })
}

fn stat(dir: &Path, count: usize) -> f64 {
    let path = dir.join(HELD);
    micros_each(count, |_| {
        fs::metadata(&path).expect("it is there");
    })
}

/// Measures `ls DIR` in a mount with many locks.
pub(crate) fn run_ls(effort: Effort) -> Result<(), String> {
    let mount = Mount::latchfs(&["--ttl", "1h"])?;
    let count = effort.of(100_000);
    let (taken, result) = seconds(|| {
        (0..count).try_for_each(|number| fs::create_dir(mount.dir().join(format!("l{number:06}"))))
    });
    result.map_err(|error| format!("can't make {count} locks: {error}"))?;
    let mut table = Table::new("Many locks on a mount", &["", "measured", "wanted", ""]);
    table.shown(&format!("mkdir of {count} locks"), taken, "s");
    let mut rounds = Vec::new();
    for _ in 0..effort.rounds.min(5) {
        let (taken, output) =
            seconds(|| Command::new("ls").arg(mount.dir()).stderr(Stdio::inherit()).output());
        let lines = output.map_err(|error| format!("can't run ls: {error}"))?.stdout;
        let lines = lines.split(|byte| *byte == b'\n').count() - 1;
        if lines != count {
            return Err(format!("ls shows {lines} locks of {count}"));
        }
        rounds.push(taken);
    }
    table.limit(&format!("ls of {count} locks"), median(&rounds), "s", 1.0);
    Ok(())
}
