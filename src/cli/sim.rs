//! The `sim` command: simulates a whole cluster with injected faults on virtual time, reproducibly
//! from one seed.

use super::exit::{CliError, CliResult, Exit};
use super::output;
use crate::sim::{SimOptions, SimReport, run as simulate};
use crate::time::Span;
use serde_json::{Map, json};

/// The maximum virtual time in seconds. The history of a longer run does not fit the memory of a
/// laptop, and another seed finds more bugs.
const SECONDS_MAX: u64 = 600;

/// The arguments of `latchfs sim`.
#[derive(Debug, clap::Args)]
pub(super) struct SimArgs {
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

pub(super) fn run(args: &SimArgs) -> CliResult {
    let SimArgs { seed, nodes, seconds, .. } = *args;
    // The trace reports what happens in the simulation, so the log of each simulated node is turned
    // off.
    log::set_max_level(log::LevelFilter::Off);
    let (time, trace, handovers) = (Span::from_secs(seconds), args.trace, args.handovers);
    let options = SimOptions { seed, nodes, time, trace, handovers };
    let report = simulate(&options);
    let SimReport { entries, commands, answers, unknown, digest, violations, .. } = &report;
    if args.json {
        let parts: Map<_, _> = report
            .parts
            .iter()
            .map(|(part, count)| (part.name().to_owned(), (*count).into()))
            .collect();
        output::json(&json!({
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
        }))?;
    } else {
        if args.trace || !violations.is_empty() {
            report.trace.iter().try_for_each(|line| output::line(line))?;
        }
        output::line(&format!(
            "seed {seed}: {nodes} nodes, {seconds} s, {entries} entries, {commands} commands, \
             {answers} answers, {unknown} never came"
        ))?;
        output::line(&format!("trace {digest}"))?;
    }
    if violations.is_empty() {
        return if args.json { Ok(()) } else { output::line("nothing was wrong") };
    }
    let all: Vec<_> = violations.iter().map(ToString::to_string).collect();
    let all = all.join("\n  ");
    let sentence = format!("the cluster of seed {seed} has broken its promises:\n  {all}");
    Err(CliError::Said(Exit::Findings, sentence))
}
