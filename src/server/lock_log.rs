//! Logs each acquisition of a lock and each end of a tenure, as the original specification of the
//! single lock asks, for debugging.
//!
//! A thread of its own writes the lines, so that no request waits for the log. It gathers the
//! events of `GATHER`. A flood of changes has `LINES_MAX` lines a second, and the others are
//! counted.

use crate::engine::{Event, EventKind, TenureEnd};
use crate::service::Locks;
use crate::service::event_log::EventWatch;
use crate::time::{Time, boot_now};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long events are gathered before their lines are written: the thread that decides a request
/// wakes the log at most so often.
const GATHER: Duration = Duration::from_millis(100);

/// Maximum number of lines at once, and in each second of a flood.
const LINES_MAX: usize = 100;

/// Number of events taken from the event log at a time.
const BATCH: usize = 512;

/// A running log of acquisitions and releases. Dropping it writes the lines that are due, and ends
/// its thread.
pub struct LockLog {
    signal: Arc<LogSignal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct LogSignal {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    has_events: bool,
    is_over: bool,
}

impl LockLog {
    /// Starts to log the changes of all locks from now on.
    pub fn start(locks: &Locks) -> io::Result<Self> {
        let signal = Arc::new(LogSignal::default());
        let mut watch = locks.subscribe(None);
        let mut budget = LineBudget { left: LINES_MAX, filled: boot_now() };
        let wakes = Arc::clone(&signal);
        watch.wake_by(Arc::new(move || wakes.tell(|state| state.has_events = true)));
        let waits = Arc::clone(&signal);
        let run = move || loop {
            let goes_on = waits.lines_are_due();
            write_lines(&mut watch, budget.refill(boot_now()));
            if !goes_on {
                return;
            }
        };
        let thread = thread::Builder::new().name("lock-log".to_owned()).spawn(run)?;
        Ok(Self { signal, thread: Some(thread) })
    }
}

impl Drop for LockLog {
    fn drop(&mut self) {
        self.signal.tell(|state| state.is_over = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl LogSignal {
    fn tell(&self, change: impl FnOnce(&mut LogState)) {
        let mut state = self.state.lock();
        let was_idle = !state.has_events;
        change(&mut state);
        if was_idle || state.is_over {
            self.changed.notify_one();
        }
    }

    /// Waits until there are events and [`GATHER`] has passed, or the log is over. Returns whether
    /// more events may come after those.
    fn lines_are_due(&self) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.has_events && !state.is_over);
        self.changed.wait_while_for(&mut state, |state| !state.is_over, GATHER);
        state.has_events = false;
        !state.is_over
    }
}

/// The number of lines that may be written now.
struct LineBudget {
    left: usize,
    filled: Time,
}

impl LineBudget {
    /// Adds the lines for the time since the last call.
    fn refill(&mut self, now: Time) -> &mut usize {
        let more = now.since(self.filled).as_millis() as usize * LINES_MAX / 1_000;
        self.left = (self.left + more).min(LINES_MAX);
        self.filled = now;
        &mut self.left
    }
}

/// Logs the events since the last call in `lines` lines at most, and subtracts those from it. Only
/// the last line of the log may exceed that.
fn write_lines(watch: &mut EventWatch, lines: &mut usize) {
    // One more line has the number of the others.
    let max = lines.saturating_sub(1);
    let (mut written, mut left_out) = (0, 0);
    loop {
        let batch = watch.take(BATCH);
        left_out += batch.lost;
        if batch.events.is_empty() {
            break;
        }
        for line in batch.events.iter().filter_map(|(_, event)| line_of(event)) {
            if written == max {
                left_out += 1;
                continue;
            }
            written += 1;
            log::info!("{line}");
        }
    }
    *lines = lines.saturating_sub(written);
    if left_out > 0 {
        *lines = lines.saturating_sub(1);
        log::info!("{left_out} more changes of locks came at once, and have no line");
    }
}

/// Returns the line for an event; `None` for an event that is no acquisition and no end of one. A
/// steal has no line here, because the audit log reports it.
fn line_of(event: &Event) -> Option<String> {
    let (name, token, what) = match &event.what {
        EventKind::Granted { name, holder, token, waited: None, .. } => {
            (name, token, format!("acquired by {holder}"))
        }
        EventKind::Granted { name, holder, token, waited: Some((_, span)), .. } => {
            (name, token, format!("acquired by {holder} after {span} in the queue"))
        }
        EventKind::Ended { name, holder, token, held, end } => {
            let what = match end {
                TenureEnd::Released => format!("released by {holder} after {held}"),
                TenureEnd::Lapsed => format!("lost by {holder} after {held}: the lease ran out"),
                TenureEnd::Moved { to } => format!("moved to '{to}' by {holder}"),
                TenureEnd::Replaced => format!("acquired anew by {holder}"),
                TenureEnd::Stolen { .. } => return None,
            };
            (name, token, what)
        }
        _ => return None,
    };
    Some(format!("lock '{name}' was {what} (token {token})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    /// In an earlier version a flood had 100 lines in each tenth of a second.
    #[test]
    fn long_flood_has_100_lines_a_second() {
        let mut budget = LineBudget { left: LINES_MAX, filled: Time::ZERO };
        let (mut now, mut written) = (Time::ZERO, 0);
        for _ in 0..100 {
            now = now + Span::from_millis(100);
            let lines = budget.refill(now);
            assert!(*lines > 1, "each call has a line, and the number of the others");
            written += std::mem::take(lines);
        }
        assert_eq!(written, LINES_MAX + 99 * 10);
        assert_eq!(*budget.refill(now + Span::from_secs(3_600)), LINES_MAX);
    }
}
