//! The log of this process on standard error, as text or as JSON, one record per line: `env_logger`
//! with two formats of our own.
//!
//! The lines of a daemon go to a queue of bounded size, from which a thread of its own writes them:
//! a full or closed standard error blocks no request. Each kind of record has a limited number of
//! lines a second. Every line that is left out or lost is counted, and a later line tells the
//! number.
//!
//! `line_format` has the two formats, and `line_queue` the queue with its limits.

mod line_format;
mod line_queue;

pub(crate) use line_format::{LogFormat, controls_terminal};

use crate::time::{Wall, steady_now};
use env_logger::{Builder, Logger, Target, WriteStyle};
use line_format::{LineStyle, format_line};
use line_queue::LineQueue;
use log::{Level, LevelFilter, Log as _, Record};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

/// How long the end of the process waits until the queued lines are written.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// The log of this process, once it has started.
static LOG: OnceLock<ProcessLog> = OnceLock::new();

/// How a process logs.
pub(crate) struct LogConfig {
    /// Selects records by level and target.
    pub(crate) builder: Builder,
    /// The format of the lines.
    pub(crate) format: LogFormat,
    /// Whether the process is a daemon: its lines have a time and a level, and come from a queue.
    pub(crate) is_daemon: bool,
}

struct ProcessLog {
    format: LogFormat,
    records: Logger,
    /// Writes the sentences, which no filter leaves out.
    sentences: Logger,
    /// The queue of a daemon.
    queue: Option<LineQueue>,
}

/// Which lines of a logger are limited in number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limits {
    /// The lines of each kind are limited, if there is a queue.
    OfKind,
    /// No lines are limited.
    None,
}

/// Starts to log the records of this process. A second call does nothing.
pub(crate) fn start(config: LogConfig) {
    let LogConfig { builder, format, is_daemon } = config;
    let style = match format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Text if !is_daemon => LineStyle::Plain,
        LogFormat::Text => LineStyle::Text,
    };
    let log = LOG.get_or_init(|| {
        let queue = || LineQueue::start(Box::new(std::io::stderr()), style).ok();
        let queue = is_daemon.then(queue).flatten();
        let sentences = sentences(format, queue.as_ref());
        let records = logger(builder, style, queue.as_ref(), Limits::OfKind);
        ProcessLog { format, records, sentences, queue }
    });
    log::set_max_level(log.records.filter());
    if log::set_logger(&log.records).is_ok() {
        report_panics(is_daemon);
    }
}

/// Returns a logger whose lines go to the queue, or to standard error where there is none.
fn logger(
    mut builder: Builder,
    style: LineStyle,
    queue: Option<&LineQueue>,
    limits: Limits,
) -> Logger {
    let limiter = queue.filter(|_| limits == Limits::OfKind).cloned();
    builder.format(move |out, record| {
        if limiter.as_ref().is_some_and(|queue| !queue.admits(record, steady_now())) {
            return Ok(());
        }
        let color = out.default_level_style(record.level());
        out.write_all(&format_line(record, Wall::now(), style, color))
    });
    let queue = queue.cloned().map(|queue| Target::Pipe(Box::new(queue)));
    builder.target(queue.unwrap_or(Target::Stderr)).write_style(write_style()).build()
}

/// Returns the logger of sentences: records in JSON, or after the name of the program in text.
fn sentences(format: LogFormat, queue: Option<&LineQueue>) -> Logger {
    let style = match format {
        LogFormat::Json => LineStyle::Json,
        LogFormat::Text => LineStyle::Plain,
    };
    let mut builder = Builder::new();
    builder.filter_level(LevelFilter::Trace);
    logger(builder, style, queue, Limits::None)
}

/// Writes a sentence, which no filter leaves out.
pub(crate) fn say(level: Level, sentence: &str) {
    let write = |logger: &Logger| {
        let mut record = Record::builder();
        record.level(level).target("latchfs");
        logger.log(&record.args(format_args!("{sentence}")).build());
    };
    match LOG.get() {
        Some(log) => write(&log.sentences),
        None => write(&sentences(LogFormat::Text, None)),
    }
}

/// Whether the log of this process is in JSON.
pub(crate) fn is_json() -> bool {
    LOG.get().is_some_and(|log| log.format == LogFormat::Json)
}

/// Waits until the queued lines are written, for a limited time.
pub(crate) fn flush() {
    if let Some(queue) = LOG.get().and_then(|log| log.queue.as_ref()) {
        queue.finish(FLUSH_PATIENCE);
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

/// Returns whether lines have colors, which is asked of standard error also for a queue.
fn write_style() -> WriteStyle {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty());
    if std::io::stderr().is_terminal() && !unwanted {
        WriteStyle::Always
    } else {
        WriteStyle::Never
    }
}
