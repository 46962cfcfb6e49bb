//! Lengths and counts of a command. They are checked here as well, whatever a front end has
//! checked: what is kept of a command, and what replicas copy, has a bound.

use super::name::CLIENT_BYTES_MAX;

/// A note is a word to a person, not a document.
pub const NOTE_BYTES_MAX: usize = 1_024;
/// A host, a user, a pid and its start fit, the first two as long as clients may be.
pub const HOLDER_ID_BYTES_MAX: usize = 512;
/// Programs write pids, host names, small JSON.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// A UUID has 36 bytes; twice that leaves room for a prefix.
pub const REQUEST_KEY_BYTES_MAX: usize = 72;
/// The name of a credential, as long as that of a client, behind the name of a front end.
pub const CALLER_BYTES_MAX: usize = CLIENT_BYTES_MAX + 32;
/// Clients that one reset spares: more than a body of the API can name.
pub const SPARED_MAX: usize = 16_384;

/// A part of a command that has a limit of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedField {
    /// The note, in bytes.
    Note,
    /// The id of the process that acquires, in bytes.
    HolderId,
    /// The key of a request, in bytes.
    Key,
    /// The name of the credential that sent a request, in bytes.
    Caller,
    /// The clients that a reset spares.
    Spared,
}

impl LimitedField {
    /// The most that there may be.
    pub const fn max(self) -> usize {
        match self {
            Self::Note => NOTE_BYTES_MAX,
            Self::HolderId => HOLDER_ID_BYTES_MAX,
            Self::Key => REQUEST_KEY_BYTES_MAX,
            Self::Caller => CALLER_BYTES_MAX,
            Self::Spared => SPARED_MAX,
        }
    }

    /// A sentence about a command in which this part is too long.
    pub(super) fn excess(self) -> String {
        let max = self.max();
        match self {
            Self::Note => format!("a note has at most {max} bytes; shorten it"),
            Self::HolderId => format!("a holder id has at most {max} bytes; shorten it"),
            Self::Key => format!("a request key has 1 to {max} bytes; choose another one"),
            Self::Caller => {
                format!("the name of these credentials has more than {max} bytes; shorten it")
            }
            Self::Spared => {
                format!("a reset spares at most {max} clients; reset others one by one")
            }
        }
    }
}
