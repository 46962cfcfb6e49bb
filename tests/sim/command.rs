//! The command line of the simulator: simulates a whole cluster with injected faults on virtual
//! time, reproducibly from one seed.

use clap::Parser;
use latchfs::time::Span;
use serde_json::{Map, json};
use sim::{SimOptions, SimReport, run as simulate};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// The maximum virtual time in seconds. The history of a longer run does not fit the memory of a
/// laptop, and another seed finds more bugs.
const SECONDS_MAX: u64 = 600;

/// The exit codes of latchfs for a wrong command line, and for output that can't be written.
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;

const EXAMPLES: &str = "\
Examples:
  cargo run --release -p sim -- --seed 7                     three nodes, for 20 virtual seconds
  cargo run --release -p sim -- --seed 7 --nodes 5 --trace   all that happened, line by line
  contrib/sim-seeds --seeds 100                              many seeds, one after the other";

/// Try a whole cluster on virtual time, with all that may go wrong
///
/// Nodes crash, disks lose what was not synced, the network splits, and clients ask for locks
/// meanwhile. If they saw anything that must not be it is said, and the exit code is 1.
#[derive(Debug, Parser)]
#[command(name = "sim", after_long_help = EXAMPLES)]
struct SimArgs {
    /// Seed of the random numbers: the same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many nodes vote
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..=7))]
    nodes: u64,
    /// For how long things go wrong, in virtual time
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: u64,
    /// Let clients set handovers too, and restore another cluster from a backup at the end
    #[arg(long)]
    handovers: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print all that happened, too
    #[arg(long, conflicts_with = "json")]
    trace: bool,
}

fn main() -> ExitCode {
    let args = match SimArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // A write error is ignored: it means that the reader of the output has closed the pipe.
            let _ = error.print();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let SimArgs { seed, nodes, seconds, .. } = args;
    let (time, trace, handovers) = (Span::from_secs(seconds), args.trace, args.handovers);
    let report = simulate(&SimOptions { seed, nodes, time, trace, handovers });
    match print(&args, &report) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sim: standard output can't be written: {error}");
            return UNAVAILABLE.into();
        }
    }
    if report.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    let all: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
    let all = all.join("\n  ");
    eprintln!("sim: the cluster of seed {seed} has broken its promises:\n  {all}");
    ExitCode::FAILURE
}

/// Prints a report to standard output.
fn print(args: &SimArgs, report: &SimReport) -> io::Result<()> {
    let SimArgs { seed, nodes, seconds, .. } = *args;
    let SimReport { entries, commands, answers, unknown, digest, violations, .. } = report;
    let mut out = io::stdout().lock();
    if args.json {
        let parts: Map<_, _> = report
            .parts
            .iter()
            .map(|(part, count)| (part.name().to_owned(), (*count).into()))
            .collect();
        let report = json!({
            "seed": seed,
            "nodes": nodes,
            "seconds": seconds,
            "entries": entries,
            "commands": commands,
            "answers": answers,
            "unknown": unknown,
            "trace_lines": report.lines,
            "trace_sha256": digest,
            "handovers": report.handovers,
            "parts": parts,
            "violations": violations.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        return writeln!(out, "{report:#}");
    }
    if args.trace || !violations.is_empty() {
        report.trace.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    writeln!(
        out,
        "seed {seed}: {nodes} nodes, {seconds} s, {entries} entries, {commands} commands, \
         {answers} answers, {unknown} never came"
    )?;
    writeln!(out, "trace {digest}")?;
    if violations.is_empty() { writeln!(out, "nothing was wrong") } else { Ok(()) }
}
