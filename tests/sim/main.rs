//! Simulated clusters: many seeds, and what a seed gives is always the same.

use latchfs::sim::{Options, run};
use latchfs::time::Span;

#[test]
fn try_one() {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let report = run(&Options { seed, nodes: 3, time: Span::from_secs(20), trace: true });
    if std::env::var("TRACE").is_ok() {
        for line in &report.trace {
            println!("{line}");
        }
    }
    println!("{:?} {} lines {} entries {} commands {} answers {} unknown {}", report.violations, report.lines, report.entries, report.commands, report.answers, report.unknown, report.digest);
}
