//! Measures the view of a guarded folder next to its disk, to a view that saves in place without a
//! stage ("naive"), to bindfs and to an overlay.

use crate::Effort;
use crate::guard_works::{BULKS, CALLS, Target, sqlite_is_there};
use crate::mounts::Mount;
use crate::report::{Table, median, number, poll, verdict};
use crate::servers::{self, State};
use latchfs::time::Span;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The number of rounds of each measurement.
const ROUNDS: usize = 9;
/// The number of calls of each kind in one round.
const CALLS_EACH: usize = 400;
/// The number of files whose memory is measured.
const KNOWN_FILES: usize = 20_000;
/// How long the idle daemon is watched.
const IDLE: Span = Span::from_secs(10);

/// The measured directories, in the order of the columns.
struct Subjects {
    names: Vec<&'static str>,
    mounts: Vec<Mount>,
}

const DISK: usize = 0;
const NAIVE: usize = 1;
const GUARD: usize = 2;

impl Subjects {
    fn new() -> Result<Self, String> {
        let mut names = vec!["disk", "naive", "guard"];
        let mut mounts = vec![
            Mount::native()?,
            Mount::guard(&["--alone"], &["--in-place", "**"])?,
            Mount::guard(&["--alone"], &[])?,
        ];
        if let Some(bindfs) = Mount::bindfs()? {
            names.push("bindfs");
            mounts.push(bindfs);
        }
        if let Ok(overlay) = Mount::overlay() {
            names.push("overlay");
            mounts.push(overlay);
        }
        Ok(Self { names, mounts })
    }

    /// Measures a work on all subjects, in interleaved rounds. Returns the median of each.
    fn medians(&self, rounds: usize, work: impl Fn(&Path) -> Result<f64, String>) -> Medians {
        let mut all = vec![Vec::new(); self.mounts.len()];
        // The results of the first round are dropped, because it only warms up.
        for round in 0..=rounds {
            for turn in 0..self.mounts.len() {
                let which = (turn + round) % self.mounts.len();
                let value = work(self.mounts[which].dir())?;
                if round > 0 {
                    all[which].push(value);
                }
            }
        }
        Ok(all.iter().map(|values| median(values)).collect())
    }
}

type Medians = Result<Vec<f64>, String>;

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let rounds = ROUNDS.min(effort.rounds);
    let subjects = Subjects::new()?;
    let mut columns = vec![""];
    columns.extend(&subjects.names);
    columns.extend(["guard", "wanted", ""]);
    {
        let title = "System calls on a guarded folder, us: medians of interleaved rounds";
        let mut table = Table::new(title, &columns);
        for (what, target, call) in CALLS {
            let count = effort.of(CALLS_EACH).max(20);
            let medians = subjects.medians(rounds, |dir| Ok(call(dir, count)))?;
            row(&mut table, what, *target, &medians);
        }
    }
    let title = "Programs on a guarded folder, ms: medians of interleaved rounds";
    let mut table = Table::new(title, &columns);
    for (what, target, bulk) in BULKS {
        if what.starts_with("sqlite") && !sqlite_is_there() {
            println!("(sqlite3 is not installed)");
            continue;
        }
        let medians = subjects.medians(rounds.min(5), |dir| bulk(dir, effort))?;
        row(&mut table, what, *target, &medians);
    }
    drop(table);
    drop(subjects);
    first_change(effort)?;
    idle_and_memory(effort)
}

/// Adds a row with the medians of all subjects, and the verdict about the guard.
fn row(table: &mut Table, what: &str, target: Target, medians: &[f64]) {
    let (guard, naive, disk) = (medians[GUARD], medians[NAIVE], medians[DISK]);
    let (value, wanted, unit) = match target {
        Target::MoreThanNaive(micros) => (guard - naive, micros, "us more"),
        Target::TimesNaive(times) => (guard / naive, times, "x naive"),
        Target::TimesDisk(times) => (guard / disk, times, "x disk"),
        Target::Millis(millis) => (guard, millis, "ms"),
    };
    let mut cells = vec![what.to_owned()];
    cells.extend(medians.iter().map(|micros| number(*micros)));
    let value_text = format!("{} {unit}", number(value));
    cells.extend([value_text, format!("<= {}", number(wanted)), verdict(value, wanted).to_owned()]);
    table.row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Sends a request to a guard.
fn request(view: &Path, request: &str) -> Result<(), String> {
    let mut asked = Command::new(env!("CARGO_BIN_EXE_latchfs"));
    let output = asked.args(["guard", request]).arg(view).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Measures the first change, which takes the free lock, against a further one.
fn first_change(effort: Effort) -> Result<(), String> {
    let server = servers::latchfs("latchfs", State::Synced)?;
    let mut table = Table::new("The first change takes the free lock", &["", "more", "wanted", ""]);
    let url = format!("http://{}", server.address);
    let own = Mount::guard(&["--alone"], &[])?;
    let remote = Mount::guard(&["--server", &url], &[])?;
    for (what, mount, wanted) in
        [("a lock service in the guard", own, 0.3), ("a durable server on loopback", remote, 5.0)]
    {
        let (mut first, mut further) = (Vec::new(), Vec::new());
        let path = mount.dir().join("file");
        let write = || {
            let (taken, done) = crate::report::seconds(|| fs::write(&path, "content"));
            done.map(|()| taken * 1_000.0).map_err(|error| format!("{}: {error}", path.display()))
        };
        for _ in 0..effort.rounds {
            further.push({
                write()?;
                write()?
            });
            request(mount.dir(), "give")?;
            first.push(write()?);
        }
        table.limit(what, median(&first) - median(&further), "ms", wanted);
    }
    Ok(())
}

/// Returns the sum of the numbers in a field of the status of all threads of a process.
fn status_sum(process: u32, field: &str) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let statuses =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let number = |text: String| {
        let line = text.lines().find(|line| line.starts_with(field))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    statuses.filter_map(number).sum()
}

/// Returns the resident memory of a process in bytes.
fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1_024
}

/// Measures how often an idle guard that holds the lock wakes up, and the memory of known files.
fn idle_and_memory(effort: Effort) -> Result<(), String> {
    let mount = Mount::guard(&["--alone"], &[])?;
    let process = mount.daemon_id().ok_or("the guard has no process")?;
    let dir = mount.dir();
    let failed = |error: std::io::Error| error.to_string();
    let count = effort.of(KNOWN_FILES);
    fs::create_dir(dir.join("many")).map_err(failed)?;
    request(dir, "take")?;
    // The guard does not know the files yet, since they are made past the view.
    let path = |dir: &Path, number: usize| dir.join(format!("many/{number:06}"));
    let folder = mount.folder();
    (0..count).try_for_each(|number| fs::write(path(&folder, number), "")).map_err(failed)?;
    let before = resident(process);
    (0..count).try_for_each(|number| fs::metadata(path(dir, number)).map(drop)).map_err(failed)?;
    let each = resident(process).saturating_sub(before) as f64 / count as f64;
    let mut table = Table::new("A guard that holds the lock", &["", "measured", "wanted", ""]);
    table.limit("memory of a known file", each, "bytes", 600.0);
    let switches = || status_sum(process, "voluntary_ctxt_switches");
    let before = switches();
    poll(IDLE, || false);
    table.shown("wake-ups in 10 s without a request", (switches() - before) as f64, "");
    Ok(())
}
