//! The options of the log: its format, and whether it has lines about locks.

use super::exit::{CliError, CliResult};
use super::output;
use crate::log_output::{self, LogConfig, LogFormat};
use crate::server::lock_log::LockLog;
use crate::service::LockService;
use crate::service::audit::refusal_log::LOCKS_LOG;
use clap::ValueEnum;
use log::LevelFilter;
use std::env::VarError;
use std::sync::Arc;

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
    /// Whether the log has lines about locks and sessions: granted, released, expired, refused.
    /// Without this option it has, unless a mount is in the background, where nothing limits the
    /// length of its log file
    #[arg(long, value_name = "SWITCH", value_enum)]
    log_locks: Option<LogSwitch>,
}

/// The value of `--log-locks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogSwitch {
    On,
    Off,
}

impl LogLocksArgs {
    /// Whether the log of a daemon has lines about locks. `is_detached` is whether the daemon has
    /// gone into the background by itself.
    pub(super) fn is_on(&self, is_detached: bool) -> bool {
        self.log_locks.map_or(!is_detached, |switch| switch == LogSwitch::On)
    }

    /// Starts to log what happens to locks and sessions, unless that is switched off.
    pub(super) fn start(
        &self,
        locks: &Arc<dyn LockService>,
        is_detached: bool,
    ) -> CliResult<Option<LockLog>> {
        let started = self.is_on(is_detached).then(|| LockLog::start(locks)).transpose();
        started.map_err(|error| CliError::system("the log of locks can't be started", &error))
    }
}

/// The logging options of a command.
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
    let mut builder = env_logger::Builder::new();
    builder.filter_level(level).filter_module("fuser", LevelFilter::Error);
    let variable = std::env::var("RUST_LOG");
    if scope.is_daemon && !variable.as_ref().is_ok_and(|text| has_bare_level(text)) {
        builder.filter_module("latchfs", level.max(LevelFilter::Info));
    }
    let wrong = match variable {
        Ok(text) => {
            let wrong = wrong_directive(&text);
            if wrong.is_none() {
                builder.parse_filters(&text);
            }
            wrong
        }
        Err(VarError::NotUnicode(_)) => Some("it is not UTF-8".to_owned()),
        Err(VarError::NotPresent) => None,
    };
    if !scope.has_locks {
        builder.filter_module(LOCKS_LOG, LevelFilter::Off);
    }
    let format = match format {
        LogFormatArg::Text => LogFormat::Text,
        LogFormatArg::Json => LogFormat::Json,
    };
    log_output::start(LogConfig { builder, format, is_daemon: scope.is_daemon });
    if let Some(wrong) = wrong {
        output::warn(&format!(
            "RUST_LOG is ignored: {wrong}; write a level, such as RUST_LOG=debug or \
             RUST_LOG=latchfs::access=debug"
        ));
    }
}

/// Whether a value of `RUST_LOG` has a level without a target, which then is the level of all
/// targets that it does not name.
fn has_bare_level(text: &str) -> bool {
    let directives = text.split('/').next().unwrap_or_default();
    directives.split(',').any(|directive| directive.trim().parse::<LevelFilter>().is_ok())
}

/// Returns what is wrong with a value of `RUST_LOG`. `env_logger` would print it as a line of its
/// own on standard error, in no format, and follow the rest of the value.
fn wrong_directive(text: &str) -> Option<String> {
    let wrong = |part: &str| format!("error parsing logger filter: invalid logging spec '{part}'");
    let mut parts = text.split('/');
    let directives = parts.next().unwrap_or_default();
    if parts.nth(1).is_some() {
        return Some(wrong(text) + " (too many '/'s)");
    }
    let levels = directives.split(',').filter_map(|directive| directive.split_once('='));
    let is_wrong = |level: &&str| !level.is_empty() && level.parse::<LevelFilter>().is_err();
    levels.map(|(_, level)| level.trim()).find(is_wrong).map(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_in_the_background_logs_no_locks_unless_requested() {
        let is_on = |log_locks, is_detached| LogLocksArgs { log_locks }.is_on(is_detached);
        assert!(is_on(None, false) && !is_on(None, true));
        assert!(is_on(Some(LogSwitch::On), true) && !is_on(Some(LogSwitch::Off), false));
    }

    #[test]
    fn a_bare_level_is_found_among_targets() {
        for text in ["debug", "WARN", "hyper=info, off", "latchfs=debug,trace/regex"] {
            assert!(has_bare_level(text), "{text}");
        }
        for text in ["", "latchfs", "latchfs=debug", "latchfs::locks=off/debug"] {
            assert!(!has_bare_level(text), "{text}");
        }
    }

    #[test]
    fn wrong_directives_are_found() {
        for text in ["", "debug", "latchfs= info ,hyper=,,x", "latchfs::locks=off/a=b"] {
            assert_eq!(wrong_directive(text), None, "{text}");
        }
        for (text, part) in [("info,x=loud", "'loud'"), ("a=b=info", "'b=info'"), ("a/b/c", "'/'s")]
        {
            let wrong = wrong_directive(text);
            assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(part)), "{wrong:?}");
        }
    }
}
