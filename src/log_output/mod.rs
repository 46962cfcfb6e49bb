//! The log of this process on standard error, as text or as JSON, one record per line.
//!
//! The records of a daemon are written by a thread of its own, from a queue of bounded size: a full
//! or closed standard error blocks no request. Each kind of record has a limited number of lines a
//! second. Every line that is left out or lost is counted, and a later line tells the number.

mod line_format;
mod line_limits;
mod line_queue;

pub(crate) use line_format::{LogFormat, controls_terminal};

use crate::time::{Wall, steady_now};
use line_format::{LineStyle, format_line};
use line_queue::LineQueue;
use log::{Level, Log, Metadata, Record};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

/// How long the end of the process waits until the queued lines are written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// The log of this process, once it has started.
static LOG: OnceLock<LineLog> = OnceLock::new();

/// How a process logs.
pub(crate) struct LogConfig {
    /// Selects records by level and target.
    pub(crate) filter: env_filter::Filter,
    /// The format of the lines.
    pub(crate) format: LogFormat,
    /// Whether the process is a daemon: its lines have a time and a level, and come from a queue.
    pub(crate) is_daemon: bool,
}

/// The logger of a process.
struct LineLog {
    filter: env_filter::Filter,
    style: LineStyle,
    /// The queue of a daemon.
    queue: Option<LineQueue>,
}

/// Starts to log the records of this process. A second call does nothing.
pub(crate) fn start(config: LogConfig) {
    let LogConfig { filter, format, is_daemon } = config;
    let style = match format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Text if !is_daemon => LineStyle::Plain,
        LogFormat::Text => LineStyle::Text { colored: shows_colors() },
    };
    let queue = || LineQueue::start(Box::new(std::io::stderr()), style).ok();
    let log = LOG.get_or_init(|| LineLog { filter, style, queue: is_daemon.then(queue).flatten() });
    log::set_max_level(log.filter.filter());
    if log::set_logger(log).is_ok() {
        report_panics(is_daemon);
    }
}

/// Writes a sentence, which no filter leaves out: as a record in JSON, or after the name of the
/// program in text.
pub(crate) fn say(level: Level, sentence: &str) {
    let log = LOG.get();
    let style = match log {
        Some(LineLog { style: LineStyle::Json, .. }) => LineStyle::Json,
        _ => LineStyle::Plain,
    };
    let mut record = Record::builder();
    record.level(level).target("latchfs");
    let line = format_line(&record.args(format_args!("{sentence}")).build(), Wall::now(), style);
    write(log, &line);
}

/// Whether the log of this process is in JSON.
pub(crate) fn is_json() -> bool {
    LOG.get().is_some_and(|log| log.style == LineStyle::Json)
}

/// Waits until the queued lines are written, for a limited time.
pub(crate) fn flush() {
    if let Some(queue) = LOG.get().and_then(|log| log.queue.as_ref()) {
        queue.flush(FLUSH_PATIENCE);
    }
}

/// Writes the message of a panic of a daemon like its other lines, so that a standard error that
/// nobody reads does not keep the daemon from ending. A command leaves it to the standard library.
fn report_panics(is_daemon: bool) {
    if !is_daemon {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        panic.to_string().lines().for_each(|line| say(Level::Error, line));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            trace.to_string().lines().for_each(|line| say(Level::Error, line));
        }
        flush();
    }));
}

/// Adds a line to the queue, or writes it where there is none.
fn write(log: Option<&LineLog>, line: &[u8]) {
    match log.and_then(|log| log.queue.as_ref()) {
        Some(queue) => queue.push(line),
        // Nothing is left to be done if standard error can't be written.
        None => drop(std::io::stderr().lock().write_all(line)),
    }
}

fn shows_colors() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

impl Log for LineLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.filter.matches(record) {
            return;
        }
        match &self.queue {
            Some(queue) => queue.add(record, steady_now()),
            None => write(None, &format_line(record, Wall::now(), self.style)),
        }
    }

    fn flush(&self) {
        flush();
    }
}
