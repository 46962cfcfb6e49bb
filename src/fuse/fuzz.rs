//! The parsers of texts that programs write into a mount, for the fuzzer in `tests/fuzz`. Not a
//! part of the library's interface.

use crate::control::control_request;
use crate::fuse::ops::lease_change;

/// The highest length of a control request in bytes.
pub const CONTROL_BYTES_MAX: usize = control_request::REQUEST_BYTES_MAX;

/// Parses a request to `.latchfs/ctl`. Returns it as text, or the sentence that refuses it.
pub fn control(bytes: &[u8]) -> Result<String, String> {
    control_request::parse(bytes).map(|request| format!("{request:?}"))
}

/// Parses a text that is written to the file of a lock. Returns it as text, or the sentence that
/// refuses it.
pub fn message(bytes: &[u8]) -> Result<String, String> {
    lease_change::parse(bytes).map(|message| format!("{message:?}"))
}
