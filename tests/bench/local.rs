//! Measures the lock service within this process: mutex, timer, events and journal around the
//! engine, on the real clock.

use crate::Effort;
use crate::engine::{acquire, release, term};
use crate::report::{Table, median, own_micros_each, poll, seconds};
use crate::scratch::Scratch;
use latchfs::engine::{Command, Rules};
use latchfs::service::local::Local;
use latchfs::service::{LockService, Retry};
use latchfs::time::{Span, boot_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn submit(locks: &Arc<dyn LockService>, command: &Command) {
    let answer = locks.submit(command.clone(), Retry::Never).wait();
    let answer = answer.expect("the state can be written");
    assert!(answer.is_ok(), "nobody is in the way: {answer:?}");
}

pub(crate) fn run(effort: Effort) -> Result<(), String> {
    let mut table = Table::new("The locks of one process", &["", "measured", "wanted", ""]);
    journal_cost(effort, &mut table)?;
    expiry(effort, &mut table)
}

fn journal_cost(effort: Effort, table: &mut Table) -> Result<(), String> {
    let scratch = Scratch::new()?;
    let kept = Local::open(scratch.path(), Rules::default()).map_err(|error| error.to_string())?;
    let memory = Local::in_memory(Rules::default()).map_err(|error| error.to_string())?;
    let backends: [Arc<dyn LockService>; 2] = [Arc::new(memory), Arc::new(kept)];
    let term = term(Span::from_secs(3_600), Span::from_secs(5));
    let pairs: Vec<_> = (0..1_000).map(|n| (acquire(n, term, None), release(n))).collect();
    let (mut costs, mut each) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..effort.rounds {
        let mut round = [0.0; 2];
        for (backend, locks) in backends.iter().enumerate() {
            round[backend] = own_micros_each(effort.of(20_000), |turn| {
                let (acquire, release) = &pairs[turn % pairs.len()];
                submit(locks, acquire);
                submit(locks, release);
            });
            each[backend].push(round[backend]);
        }
        costs.push((round[1] - round[0]) / 2.0);
    }
    table.shown("acquire + release, in memory", median(&each[0]), "us");
    table.shown("acquire + release, with the journal", median(&each[1]), "us");
    table.limit("what the journal adds to an operation", median(&costs), "us", 3.0);
    Ok(())
}

/// Measures leases that expire within one second, while another thread acquires and releases other
/// locks.
fn expiry(effort: Effort, table: &mut Table) -> Result<(), String> {
    const TTL: Span = Span::from_secs(2);
    const GRACE: Span = Span::from_secs(1);
    const PATIENCE: Span = Span::from_secs(60);
    let scratch = Scratch::new()?;
    let local = Local::open(scratch.path(), Rules::default()).map_err(|error| error.to_string())?;
    let locks: Arc<dyn LockService> = Arc::new(local);
    let count = effort.of(100_000);
    let term = term(TTL, GRACE);
    let commands: Vec<_> = (0..count).map(|n| acquire(2 * n, term, None)).collect();
    let (taken, ()) = seconds(|| commands.iter().for_each(|command| submit(&locks, command)));
    let last_end = boot_now() + TTL + GRACE;

    let (stop, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let others = {
        let (locks, stop, longest) = (locks.clone(), Arc::clone(&stop), Arc::clone(&longest));
        thread::spawn(move || {
            let pairs: Vec<_> = (0..1_000)
                .map(|n| 2 * n + 1)
                .map(|n| (acquire(n, term, None), release(n)))
                .collect();
            let mut done = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let (acquire, release) = &pairs[done as usize % pairs.len()];
                let start = boot_now();
                submit(&locks, acquire);
                longest.fetch_max(boot_now().since(start).as_nanos(), Ordering::Relaxed);
                submit(&locks, release);
                done += 1;
            }
            done
        })
    };
    // Up to one lock may be held now: one that the other thread has just acquired and not yet
    // released.
    let all = poll(TTL + GRACE + PATIENCE, || locks.about().locks <= 1);
    let settled = boot_now().since(last_end).as_nanos() as f64 / 1e9;
    stop.store(true, Ordering::Relaxed);
    let done = others.join().map_err(|_| "the other thread has panicked".to_owned())?;
    if !all {
        return Err(format!("{} leases have not expired in {PATIENCE}", locks.about().locks));
    }
    let what = format!("{count} leases that expire within {taken:.2} s, after the last");
    table.limit(&what, settled, "s", 1.0);
    let longest = longest.load(Ordering::Relaxed) as f64 / 1e6;
    table.shown(&format!("  longest of {done} acquires meanwhile"), longest, "ms");
    Ok(())
}
