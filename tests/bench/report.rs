//! Functions of the benchmark that measure times, and print tables of numbers.

use latchfs::time::{Span, boot_now};
use std::time::Duration;
use std::{fs, mem, thread};

/// Returns a line that describes the machine, without which the measured numbers mean little.
pub(crate) fn machine() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    let model = model.unwrap_or("unknown processor");
    format!("{cores} cores of {model}, Linux {}, load {load}", kernel.trim())
}

/// A table of results with a title; each column is as wide as its longest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        println!("\n{title}");
        Self { rows: vec![columns.iter().map(ToString::to_string).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[&str]) {
        self.rows.push(cells.iter().map(ToString::to_string).collect());
    }

    /// Adds a row with a measured value that should be at most `wanted`.
    pub(crate) fn limit(&mut self, what: &str, value: f64, unit: &str, wanted: f64) {
        let (value_text, wanted_text) = (number(value), number(wanted));
        let verdict = verdict(value, wanted);
        self.row(&[what, &format!("{value_text} {unit}"), &format!("<= {wanted_text}"), verdict]);
    }

    /// Adds a row to the table for a measured value that has no target.
    pub(crate) fn shown(&mut self, what: &str, value: f64, unit: &str) {
        self.row(&[what, &format!("{} {unit}", number(value)), "", ""]);
    }
}

/// Prints the table when it is dropped, even if a failure has left it incomplete.
impl Drop for Table {
    fn drop(&mut self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // The cells of the first column are words, which are aligned to the left; all other
                // cells are numbers, which are aligned to the right.
                let cell = match column {
                    0 => format!("  {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
                line.push_str(&cell);
            }
            println!("{}", line.trim_end());
        }
    }
}

/// Returns a word that says whether a value is within its target.
pub(crate) fn verdict(value: f64, wanted: f64) -> &'static str {
    if value <= wanted { "ok" } else { "MISSED" }
}

/// Formats a number with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns the median of the values, or NaN if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the minimum of the values.
pub(crate) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Returns the average time of one call of `work`, in microseconds.
pub(crate) fn micros_each(count: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = boot_now();
    for turn in 0..count {
        work(turn);
    }
    boot_now().since(start).as_nanos() as f64 / 1_000.0 / count as f64
}

/// Returns the average processor time of one call of `work` on this thread, in microseconds. Other
/// load has less influence on it than on the elapsed time.
pub(crate) fn own_micros_each(count: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = own_nanos();
    for turn in 0..count {
        work(turn);
    }
    (own_nanos() - start) as f64 / 1_000.0 / count as f64
}

/// Returns the seconds that `work` took, and its result.
pub(crate) fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = boot_now();
    let result = work();
    (boot_now().since(start).as_nanos() as f64 / 1e9, result)
}

/// Returns the seconds of processor time of this thread that `work` took, and its result.
pub(crate) fn own_seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = own_nanos();
    let result = work();
    ((own_nanos() - start) as f64 / 1e9, result)
}

/// Returns the processor time of this thread, in user and kernel mode, in nanoseconds.
#[allow(unsafe_code)]
fn own_nanos() -> u64 {
    // SAFETY: an `rusage` consists of numbers, for which zeros are valid.
    let mut used: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: `used` is a valid rusage to write to.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut used) };
    assert_eq!(result, 0, "the kernel counts processor time");
    let nanos =
        |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    nanos(used.ru_utime) + nanos(used.ru_stime)
}

/// Polls until `done` returns true. Returns false if it does not within `patience`.
pub(crate) fn poll(patience: Span, mut done: impl FnMut() -> bool) -> bool {
    let start = boot_now();
    while !done() {
        if boot_now().since(start) > patience {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}
