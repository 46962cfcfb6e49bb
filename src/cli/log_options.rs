//! The options of the log: its format, and whether it has lines about locks.

use super::exit::{CliError, CliResult};
use super::output;
use crate::log_output::{self, LogConfig, LogFormat};
use crate::server::lock_log::LockLog;
use crate::service::Locks;
use crate::service::refusal_log::LOCKS_LOG;
use clap::ValueEnum;
use log::LevelFilter;

/// The value of `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormatArg {
    /// Time, level, message and fields such as lock=build
    Text,
    /// One JSON object per line
    Json,
}

/// The option `--log-locks` of `serve` and `mount`.
#[derive(Debug, clap::Args)]
pub(super) struct LogLocksArgs {
    /// Whether the log has lines about locks and sessions: granted, released, expired, refused
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = LogSwitch::On)]
    log_locks: LogSwitch,
}

/// The value of `--log-locks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogSwitch {
    On,
    Off,
}

impl LogLocksArgs {
    pub(super) fn is_on(&self) -> bool {
        self.log_locks == LogSwitch::On
    }

    /// Starts to log what happens to locks and sessions, unless that is switched off.
    pub(super) fn start(&self, locks: &Locks) -> CliResult<Option<LockLog>> {
        let started = self.is_on().then(|| LockLog::start(locks)).transpose();
        started.map_err(|error| CliError::system("the log of locks can't be started", &error))
    }
}

/// What a command logs.
pub(super) struct LogScope {
    /// Whether the command is a daemon, which logs the level `info`; others only log warnings.
    pub(super) is_daemon: bool,
    /// Whether the log has lines about locks and sessions.
    pub(super) has_locks: bool,
}

/// Starts the log on standard error. `verbose` is the number of `-v` options.
pub(super) fn start(scope: &LogScope, verbose: u8, format: LogFormatArg) {
    let level = match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let mut filter = env_filter::Builder::new();
    filter.filter_level(level).filter_module("fuser", LevelFilter::Error);
    if scope.is_daemon {
        filter.filter_module("latchfs", level.max(LevelFilter::Info));
    }
    let wrong = std::env::var("RUST_LOG").ok().and_then(|text| filter.try_parse(&text).err());
    if !scope.has_locks {
        filter.filter_module(LOCKS_LOG, LevelFilter::Off);
    }
    let format = match format {
        LogFormatArg::Text => LogFormat::Text,
        LogFormatArg::Json => LogFormat::Json,
    };
    log_output::start(LogConfig { filter: filter.build(), format, is_daemon: scope.is_daemon });
    if let Some(wrong) = wrong {
        output::warn(&format!(
            "RUST_LOG is ignored: {wrong}; write a level, such as RUST_LOG=debug or \
             RUST_LOG=latchfs::access=debug"
        ));
    }
}
