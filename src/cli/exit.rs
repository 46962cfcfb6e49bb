//! The exit codes of commands, and the errors behind them.

use crate::base::said;
use crate::engine::RefusalKind;
use std::fmt::Write;
use std::io;
use std::process::ExitCode;

/// The exit codes. Their numbers are those of sysexits.h where it defines the meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The command has succeeded.
    Done,
    /// `doctor` or `audit` has found a problem.
    Findings,
    /// The command line or an argument is wrong, such as a name or a ttl.
    Usage,
    /// A mount, daemon, device or state directory is missing, or there was no answer. The outcome
    /// of a change is unknown.
    Unavailable,
    /// The lock is held by another client, or a limit is reached.
    Conflict,
    /// The lease is over: it has expired, or a newer token is current.
    Lost,
    /// The client does not hold the lock, or lacks the permission.
    Denied,
}

impl Exit {
    const ALL: [Self; 7] = [
        Self::Done,
        Self::Findings,
        Self::Usage,
        Self::Unavailable,
        Self::Conflict,
        Self::Lost,
        Self::Denied,
    ];

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Findings => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Conflict => 75,
            Self::Lost => 76,
            Self::Denied => 77,
        }
    }

    /// Returns the exit whose number is `code`; `None` if no command exits with that number.
    pub(super) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| exit.code() == code)
    }

    /// Returns what the exit code means, as a text for the help.
    const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Findings => "doctor or audit has found something to fix",
            Self::Usage => "wrong usage: an option, a name, a ttl",
            Self::Unavailable => {
                "no mount, no daemon or no answer; of a change, the outcome is unknown"
            }
            Self::Conflict => "the lock is held by another, or a limit is reached; try again later",
            Self::Lost => "the lease is over: expired, or the token is no longer the current one",
            Self::Denied => "not the holder of the lock, or not allowed",
        }
    }

    /// Returns the exit code for a kind of refusal.
    pub(super) const fn of(kind: RefusalKind) -> Self {
        match kind {
            RefusalKind::LockConflict | RefusalKind::Limit => Self::Conflict,
            RefusalKind::LockNotHeld | RefusalKind::Denied => Self::Denied,
            RefusalKind::LockExpired | RefusalKind::FencingMismatch => Self::Lost,
            RefusalKind::ClockSkewExceeded | RefusalKind::ConsistencyUnavailable => {
                Self::Unavailable
            }
            RefusalKind::Invalid => Self::Usage,
        }
    }

    /// Formats the table of all exit codes for the help, one per line.
    pub(super) fn table() -> String {
        Self::ALL.iter().fold(String::from("Exit codes:"), |mut table, exit| {
            let _ = write!(table, "\n  {:<3} {}", exit.code(), exit.meaning());
            table
        })
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(super) enum CliError {
    /// The command failed, and the message is still to be printed for the user.
    Said(Exit, String),
    /// The command exits with this code, and prints no further message.
    Silent(Exit),
    /// The reader of this program's output has closed the pipe (`latchfs ls | head -1`), which is
    /// no error.
    Pipe,
}

/// The result of a command: a value, or the reason for its exit code.
pub(super) type CliResult<T = ()> = Result<T, CliError>;

impl CliError {
    /// Returns the error for wrong usage, which the user has to correct.
    pub(super) fn usage(sentence: impl Into<String>) -> Self {
        Self::Said(Exit::Usage, sentence.into())
    }

    /// Returns the error for a server, mount or file that is missing or does not answer.
    pub(super) fn unavailable(sentence: impl Into<String>) -> Self {
        Self::Said(Exit::Unavailable, sentence.into())
    }

    /// Returns the error for a failed system call; `what` names the failed operation.
    pub(super) fn system(what: &str, error: &io::Error) -> Self {
        Self::unavailable(format!("{what}: {}", said(error)))
    }

    /// Returns the error for a failed write to standard output.
    pub(super) fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::system("standard output can't be written", error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_kind_has_its_exit_code() {
        let codes = RefusalKind::ALL.map(|kind| (kind.as_str(), Exit::of(kind).code()));
        assert_eq!(
            codes,
            [
                ("E_LOCK_CONFLICT", 75),
                ("E_LOCK_NOT_HELD", 77),
                ("E_LOCK_EXPIRED", 76),
                ("E_FENCING_MISMATCH", 76),
                ("E_CLOCK_SKEW_EXCEEDED", 69),
                ("E_CONSISTENCY_UNAVAILABLE", 69),
                ("E_INVALID", 64),
                ("E_LIMIT", 75),
                ("E_DENIED", 77),
            ]
        );
    }

    #[test]
    fn each_code_is_in_the_table_once() {
        let table = Exit::table();
        for exit in Exit::ALL {
            let line = format!("\n  {:<3} {}", exit.code(), exit.meaning());
            assert_eq!(table.matches(&line).count(), 1, "{exit:?}");
        }
        let mut codes = Exit::ALL.map(Exit::code).to_vec();
        codes.dedup();
        assert_eq!(codes.len(), Exit::ALL.len());
    }

    #[test]
    fn closed_output_pipe_is_no_error() {
        let gone = CliError::output(&io::ErrorKind::BrokenPipe.into());
        assert!(matches!(gone, CliError::Pipe));
        let full = CliError::output(&io::ErrorKind::StorageFull.into());
        assert!(matches!(full, CliError::Said(Exit::Unavailable, _)));
    }
}
