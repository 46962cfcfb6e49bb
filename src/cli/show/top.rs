//! The `top` command: a table of the locks on the terminal, live, with totals and rates.
//!
//! One thread reads the locks and their events, and the main thread draws and reads the keyboard: a
//! server that does not answer must not keep `q` from working.
//!
//! The terminal of a command that draws its whole screen: keys without echo, the alternate screen,
//! and how the terminal was before.

use super::events::EventSource;
use crate::cli::argument_types::span;
use crate::cli::connect::mount_client::LockClient;
use crate::cli::connect::target::TargetArgs;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::lock::lock_commands::PrefixArg;
use crate::cli::output;
use crate::cli::output::{Colour, TerminalStyle};
use crate::cli::run::children::{Signals, is_end};
use crate::cli::status_table::{Status, is_finished_slot, table, terminal_size};
use crate::time::{Span, Time, boot_now};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;
use std::{io, thread};

/// How often the keyboard and the signals are looked at.
const KEYS_EVERY: Duration = Duration::from_millis(100);
/// The shortest interval between two reads of all locks.
const REFRESH_MIN: Span = Span::from_millis(100);
/// How many times the events are read for one refresh: of more events than that the rest counts at
/// the next refresh.
const EVENT_READS_MAX: usize = 1_000;
/// The lines of the screen that are not rows of the table: totals, head and the last line.
const OTHER_LINES: usize = 3;

/// The arguments of `latchfs top`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct TopArgs {
    #[command(flatten)]
    names: PrefixArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Print one table, and end
    #[arg(long)]
    once: bool,
    /// The time between two refreshes
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = span)]
    every: Span,
}

/// The results of one refresh.
struct TopFrame {
    locks: Vec<Value>,
    rates: Option<EventRates>,
}

/// How many events there were in a second.
struct EventRates {
    grants: f64,
    releases: f64,
    expiries: f64,
    steals: f64,
}

pub(in crate::cli) fn run(args: &TopArgs) -> CliResult {
    let ask = args.target.lock_client()?;
    if args.once {
        let frame = TopFrame { locks: ask.list(&args.names.prefix)?, rates: None };
        let size = terminal_size().map(|(columns, _)| (columns, usize::MAX));
        let lines = frame.lines(size, TerminalStyle::of_stdout());
        return output::write(&(lines.join("\n") + "\n"));
    }
    if terminal_size().is_none() {
        return Err(CliError::usage(
            "standard output is no terminal; print one table with 'latchfs top --once'",
        ));
    }
    // The signals are taken before the first thread is started, which inherits the mask.
    let signals = Signals::take().map_err(|error| CliError::system("signals", &error))?;
    // The events are optional: without them there are no rates.
    let events = EventSource::open(&args.target, None).ok();
    let (send, frames) = sync_channel(1);
    let (prefix, every) = (args.names.prefix.clone(), args.every.max(REFRESH_MIN));
    thread::Builder::new()
        .name("refresh".into())
        .spawn(move || refresh(&ask, &prefix, every, events, &send))
        .map_err(|error| CliError::system("no thread can be made", &error))?;
    let mode = TerminalMode::enter()?;
    let ended = draw_frames(&frames, &signals, &mode);
    drop(mode);
    ended
}

/// Reads all locks again and again, until nobody receives them any more.
fn refresh(
    ask: &Arc<dyn LockClient>,
    prefix: &str,
    every: Span,
    mut events: Option<EventSource>,
    send: &SyncSender<CliResult<TopFrame>>,
) {
    let mut counted_at = boot_now();
    loop {
        let rates = events.as_mut().and_then(|events| EventRates::since(events, &mut counted_at));
        let frame = ask.list(prefix).map(|locks| TopFrame { locks, rates });
        // A terminal that does not keep up misses a frame.
        if let Err(TrySendError::Disconnected(_)) = send.try_send(frame) {
            return;
        }
        thread::sleep(every.as_duration());
    }
}

/// Draws each frame that arrives, until the user or a signal ends that.
fn draw_frames(
    frames: &Receiver<CliResult<TopFrame>>,
    signals: &Signals,
    mode: &TerminalMode,
) -> CliResult {
    let (mut last, mut error, mut size) = (None, String::new(), None);
    loop {
        if mode.is_quit_pressed(KEYS_EVERY) || signals.next(Duration::ZERO).is_some_and(is_end) {
            return Ok(());
        }
        let news = match frames.try_recv() {
            Ok(Ok(frame)) => {
                error.clear();
                last = Some(frame);
                true
            }
            Ok(Err(CliError::Said(_, sentence))) => {
                error = sentence;
                true
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => false,
        };
        let now = terminal_size();
        if !news && now == size {
            continue;
        }
        size = now;
        let lines = last.as_ref().map(|frame| frame.lines(size, TerminalStyle::of_stdout()));
        let mut lines = lines.unwrap_or_default();
        if !error.is_empty() {
            lines.truncate(size.map_or(0, |(_, rows)| rows.saturating_sub(1)));
            lines.insert(0, TerminalStyle::of_stdout().paint(Colour::Red, &error));
        }
        TerminalMode::draw(&lines)?;
    }
}

impl TopFrame {
    /// Returns the lines of the screen: totals, the table, and what did not fit. Locks in grace and
    /// those with long queues come first.
    fn lines(&self, size: Option<(usize, usize)>, style: TerminalStyle) -> Vec<String> {
        let phase_is =
            |phase: &str| self.locks.iter().filter(|lock| Status(lock).phase() == phase).count();
        let waiting: usize = self.locks.iter().map(|lock| Status(lock).waiters().len()).sum();
        let mut totals =
            format!("{} held, {} in grace, {waiting} waiting", phase_is("held"), phase_is("grace"));
        if let Some(rates) = &self.rates {
            let _ = write!(
                totals,
                "; a second: {:.1} granted, {:.1} released, {:.1} expired, {:.1} stolen",
                rates.grants, rates.releases, rates.expiries, rates.steals
            );
        }
        let mut shown: Vec<_> =
            self.locks.iter().filter(|lock| !is_finished_slot(Status(lock))).collect();
        shown.sort_by_key(|lock| {
            let status = Status(lock);
            (status.phase() != "grace", usize::MAX - status.waiters().len(), status.text("name"))
        });
        let room = size.map_or(usize::MAX, |(_, rows)| rows.saturating_sub(OTHER_LINES));
        let hidden = shown.len().saturating_sub(room);
        shown.truncate(room);
        let columns = size.map(|(columns, _)| columns);
        let mut lines =
            vec![columns.map_or(totals.clone(), |it| totals.chars().take(it).collect())];
        lines.extend(table(&shown, style, columns));
        if hidden > 0 {
            lines.push(style.paint(Colour::Faint, &format!("and {hidden} more")));
        }
        lines
    }
}

impl EventRates {
    /// Counts the events since `counted_at`, and sets that to now; `None` if they can't be read.
    fn since(events: &mut EventSource, counted_at: &mut Time) -> Option<Self> {
        let mut rates = Self { grants: 0.0, releases: 0.0, expiries: 0.0, steals: 0.0 };
        for _ in 0..EVENT_READS_MAX {
            let lines = events.take().ok()?;
            if lines.is_empty() {
                break;
            }
            for line in &lines {
                rates.count(line);
            }
        }
        let now = boot_now();
        let seconds = now.since(*counted_at).as_duration().as_secs_f64().max(0.001);
        *counted_at = now;
        let Self { grants, releases, expiries, steals } = rates;
        Some(Self {
            grants: grants / seconds,
            releases: releases / seconds,
            expiries: expiries / seconds,
            steals: steals / seconds,
        })
    }

    fn count(&mut self, line: &str) {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        match event["event"].as_str() {
            Some("granted") => self.grants += 1.0,
            Some("released") => self.releases += 1.0,
            Some("expired" | "lapsed") => self.expiries += 1.0,
            Some("stolen") => self.steals += 1.0,
            _ => {}
        }
    }
}

/// Switches to the alternate screen, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor, and switches back.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves the cursor to the top left.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears the rest of the screen.
const CLEAR_BELOW: &str = "\x1b[J";
/// The keys that end the command: q, Q, Ctrl-C, Ctrl-D and Escape.
const QUIT: [u8; 5] = [b'q', b'Q', 3, 4, 27];

/// The terminal in the mode of a command that redraws the screen and reads single keys, until this
/// value is dropped.
pub(in crate::cli) struct TerminalMode {
    /// The modes before, unless standard input is no terminal.
    before: Option<Termios>,
}

impl TerminalMode {
    /// Switches the terminal into the mode.
    pub(in crate::cli) fn enter() -> CliResult<Self> {
        let failed = |error: rustix::io::Errno| CliError::system("the terminal", &error.into());
        let stdin = io::stdin();
        let before = stdin.is_terminal().then(|| tcgetattr(&stdin)).transpose().map_err(failed)?;
        if let Some(before) = &before {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            tcsetattr(&stdin, OptionalActions::Now, &modes).map_err(failed)?;
        }
        let mode = Self { before };
        output::write(ENTER)?;
        Ok(mode)
    }

    /// Draws lines from the top of the screen.
    pub(in crate::cli) fn draw(lines: &[String]) -> CliResult {
        let mut text = HOME.to_owned();
        for (number, line) in lines.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            let _ = write!(text, "{end}{line}{CLEAR_LINE}");
        }
        output::write(&(text + CLEAR_BELOW))
    }

    /// Waits for a key for so long, and returns whether it is one that ends the command.
    pub(super) fn is_quit_pressed(&self, patience: Duration) -> bool {
        let mut stdin = io::stdin();
        if self.before.is_none() {
            thread::sleep(patience);
            return false;
        }
        let patience = Timespec::try_from(patience).ok();
        let mut wanted = [PollFd::new(&stdin, PollFlags::IN)];
        if !poll(&mut wanted, patience.as_ref()).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut keys = [0; 64];
        match stdin.read(&mut keys) {
            // The terminal is gone.
            Ok(0) | Err(_) => true,
            Ok(count) => keys[..count].iter().any(|key| QUIT.contains(key)),
        }
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = output::write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn grace_and_long_queues_come_first() {
        let lock = |name: &str, phase: &str, waiters: usize| {
            let waiters = vec![json!({"client": "w"}); waiters];
            json!({"name": name, "phase": phase, "holder": "h", "waiters": waiters, "note": ""})
        };
        let slot = json!({"name": "a@b", "phase": "held", "holder": "h", "note": "done"});
        let locks = vec![lock("b", "held", 0), slot, lock("a", "held", 2), lock("c", "grace", 0)];
        let frame = TopFrame { locks, rates: None };
        let lines = frame.lines(None, TerminalStyle::Plain);
        assert_eq!(lines[0], "3 held, 1 in grace, 2 waiting");
        let names: Vec<_> = lines[2..].iter().map(|line| &line[..1]).collect();
        assert_eq!(names, ["c", "a", "b"]);
        let lines = frame.lines(Some((20, 5)), TerminalStyle::Plain);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[4], "and 1 more");
        assert_eq!(lines[0], "3 held, 1 in grace, ");
    }

    #[test]
    fn events_are_counted_by_kind() {
        let mut rates = EventRates { grants: 0.0, releases: 0.0, expiries: 0.0, steals: 0.0 };
        for line in [r#"{"event":"granted"}"#, r#"{"event":"granted"}"#, "", "{}"] {
            rates.count(line);
        }
        assert!((rates.grants - 2.0).abs() < f64::EPSILON && rates.steals < f64::EPSILON);
    }
}
