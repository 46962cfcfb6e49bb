//! The parsing of lock names, and the error for an invalid one.

use super::exit::{CliError, CliResult};
use crate::engine::{LockName, NameError};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Parses an argument as the name of a lock on a server.
pub(super) fn parsed(given: &OsStr) -> CliResult<LockName> {
    LockName::parse_bytes(given.as_bytes()).map_err(|error| not_a_name(given, error))
}

/// Returns the error for an invalid name: the name, the reason, and a correction.
pub(super) fn not_a_name(given: &OsStr, error: NameError) -> CliError {
    let next = match error {
        NameError::Empty => "write one slash between parts, and none around them: team/build",
        NameError::TooLong => "choose a shorter one",
        NameError::NotUtf8 => "write it in UTF-8",
        NameError::Control => "leave out line ends, tabs and the like",
        NameError::Invisible => "write it by characters that can be seen",
        NameError::Dots => "write it whole, as from the top of a mount: team/build",
        NameError::Reserved => "let it begin otherwise",
    };
    CliError::usage(format!("'{}' is not the name of a lock: {error}; {next}", given.display()))
}
