//! Standard output and standard error: sentences, JSON, and colours on a terminal.

use super::exit::{CliError, CliResult, Exit};
use crate::log_output;
use log::Level;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether nothing at all is printed on standard error, as during a completion.
static SILENT: AtomicBool = AtomicBool::new(false);
/// Whether the command line has `--quiet`.
static QUIET: AtomicBool = AtomicBool::new(false);

/// A colour of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// The color of a good state.
    Green,
    /// The color of a warning.
    Yellow,
    /// The color of an error.
    Red,
    /// The color of less important text.
    Faint,
}

/// Whether the output may contain escape sequences for colours and cursor movements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminalStyle {
    /// The output contains no escape sequences.
    Plain,
    /// The output may contain ANSI escape sequences, for colours and for cursor movements.
    Terminal,
}

impl TerminalStyle {
    /// Returns the style of standard output: without escape sequences unless it is a terminal and
    /// the environment variable `NO_COLOR` is unset or empty.
    pub(super) fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if io::stdout().is_terminal() && !unwanted { Self::Terminal } else { Self::Plain }
    }

    /// Returns `text` between the escape sequences of a colour, or unchanged if the output may
    /// contain none.
    pub(super) fn paint(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
            Colour::Faint => 2,
        };
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// Writes `text` to standard output, and flushes it. Queued lines are on standard error before.
pub(super) fn write(text: &str) -> CliResult {
    log_output::flush();
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CliError::output(&error))
}

/// Writes a line to standard output, and flushes it.
pub(super) fn line(text: &str) -> CliResult {
    write(&format!("{text}\n"))
}

/// Returns a number of things in words: `1 file`, `2 files`.
pub(super) fn counted(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Writes a line that tells that a daemon has started to standard output, unless its log is in
/// JSON: the log has a record of the same, and all output of such a daemon is in one format.
pub(super) fn announce(text: &str) -> CliResult {
    if log_output::is_json() { Ok(()) } else { line(text) }
}

/// Writes JSON to standard output, on several lines.
pub(super) fn json(value: &Value) -> CliResult {
    line(&format!("{value:#}"))
}

/// Sleeps for `millis` milliseconds, but fails at once if the reader of standard output has closed
/// the pipe.
#[allow(unsafe_code)]
pub(super) fn pause(millis: libc::c_int) -> CliResult {
    let mut out = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: `out` is one valid pollfd that lives until the call returns.
    let found = unsafe { libc::poll(&raw mut out, 1, millis) };
    if found > 0 && out.revents & libc::POLLERR != 0 { Err(CliError::Pipe) } else { Ok(()) }
}

/// Prints a sentence on standard error.
pub(super) fn say(sentence: &str) {
    say_as(Level::Info, sentence);
}

/// Prints a warning on standard error.
pub(super) fn warn(sentence: &str) {
    say_as(Level::Warn, sentence);
}

fn say_as(level: Level, sentence: &str) {
    if !is_silent() {
        log_output::say(level, &harmless(sentence));
    }
}

/// Records that the command line has `--quiet`: no progress is printed.
pub(super) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Prints nothing on standard error from now on.
pub(super) fn be_silent() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether this process only answers a completion.
pub(super) fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Whether the command line has `--quiet`.
pub(super) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints the progress of a command on standard error, unless the command line has `--quiet`.
pub(super) fn progress(sentence: &str) {
    if !is_quiet() {
        say(sentence);
    }
}

/// Replaces control characters, and those that change the direction of text, by spaces: a note or a
/// file name that another user chose must not control this user's terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().map(|c| if log_output::controls_terminal(c) { ' ' } else { c }).collect()
}

/// Prints a failed command's message on standard error, and returns its exit code.
pub(super) fn report_failure(failure: &CliError) -> Exit {
    match failure {
        CliError::Said(exit, sentence) => {
            say_as(Level::Error, sentence);
            *exit
        }
        CliError::Silent(exit) => *exit,
        CliError::Pipe => Exit::Done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_for_terminals() {
        assert_eq!(TerminalStyle::Plain.paint(Colour::Red, "no"), "no");
        assert_eq!(TerminalStyle::Terminal.paint(Colour::Red, "no"), "\x1b[31mno\x1b[0m");
    }

    #[test]
    fn control_characters_in_a_note_are_replaced() {
        assert_eq!(harmless("a\x1b[2Jb\nc"), "a [2Jb c");
        assert_eq!(harmless("fdp.\u{202e}a\u{2066}b"), "fdp. a b");
    }
}
