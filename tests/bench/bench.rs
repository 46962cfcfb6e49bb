//! Measures latchfs next to baselines, such as a file system that does no work, Redis and etcd:
//! `cargo bench`.
//!
//! This is no test: it prints each number next to its target, and fails only if a program does not
//! work. Ratios within one run are more reliable than numbers of two runs.
//!
//! `cargo bench -- engine journal local files flock ls http sessions durable cluster guard` runs
//! parts;
//! `--quick` runs fewer rounds; `--pin` keeps all processes on one processor, which removes most of
//! the noise.

#![allow(clippy::cast_precision_loss)] // numbers are printed with three digits

mod cluster;
mod engine;
mod files;
mod groups;
mod guard;
mod guard_works;
mod http;
mod journal;
mod local;
mod locks;
mod mounts;
mod null;
mod report;
mod scratch;
mod servers;
mod sessions;

use std::env;
use std::process::ExitCode;

/// How many rounds to run, and by how much to reduce the number of operations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// The number of rounds of each measurement, whose median is reported.
    pub(crate) rounds: usize,
    /// The divisor of large numbers of operations; larger than 1 with `--quick`.
    pub(crate) divisor: usize,
}

impl Effort {
    const FULL: Self = Self { rounds: 21, divisor: 1 };
    const QUICK: Self = Self { rounds: 3, divisor: 20 };

    /// Returns `count` divided by the divisor, which is larger than 1 with `--quick`.
    pub(crate) const fn of(self, count: usize) -> usize {
        count / self.divisor
    }
}

/// A part of the benchmark: its name on the command line, and its function.
type Part = (&'static str, fn(Effort) -> Result<(), String>);

const PARTS: [Part; 11] = [
    ("engine", engine::run),
    ("journal", journal::run),
    ("local", local::run),
    ("files", files::run),
    ("flock", locks::run),
    ("ls", files::run_ls),
    ("http", http::run),
    ("sessions", sessions::run),
    ("durable", cluster::run_one),
    ("cluster", cluster::run),
    ("guard", guard::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // Modes in which the benchmark runs this program again as a child process.
        ["null-fs", dir] => null::serve(dir),
        ["hold", path] => locks::hold(path),
        ["memory", count, notes] => engine::print_memory(count, notes),
        words => run(words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    let mut effort = Effort::FULL;
    let mut wanted = Vec::new();
    for word in words {
        match *word {
            // Cargo passes the argument `--bench` to every benchmark; it is ignored.
            "--bench" => {}
            "--quick" => effort = Effort::QUICK,
            "--pin" => mounts::pin()?,
            part if PARTS.iter().any(|(name, _)| *name == part) => wanted.push(part),
            other => {
                let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                return Err(format!("no part is called '{other}'; there are {names}"));
            }
        }
    }
    println!("{}", report::machine());
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.contains(&name) {
            part(effort)?;
        }
    }
    Ok(())
}
