//! Limits on the parts of a command. The engine checks them even if a front end already has, so
//! that the memory of the engine and the traffic between replicas stay bounded.

use super::name::CLIENT_BYTES_MAX;

/// The maximum length of a note in bytes. A note is a short message to a person, not a document.
pub const NOTE_BYTES_MAX: usize = 1_024;
/// The maximum length of a holder id in bytes: room for a host and a user (together as long as a
/// client name may be), and for the numbers that identify a process and its login session.
pub const HOLDER_ID_BYTES_MAX: usize = 512;
/// The maximum length of the text of a lock in bytes. Programs write pids, host names and small
/// JSON.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// The maximum length of an idempotency key in bytes. A UUID has 36; twice that leaves room for a
/// prefix.
pub const REQUEST_KEY_BYTES_MAX: usize = 72;
/// The maximum length of the id of a caller in bytes. The id consists of the name of a front end
/// and the name of a credential, which may be as long as a client name.
pub const CALLER_BYTES_MAX: usize = CLIENT_BYTES_MAX + 32;
/// The maximum number of clients that a [`Reset`](super::command::Reset) can name as exceptions:
/// more than fit into a request body of the HTTP API.
pub const SPARED_MAX: usize = 16_384;

/// The maximum length of a handover in bytes: room for a state, a number and a digest.
pub const HANDOVER_BYTES_MAX: usize = 256;
/// The maximum number of names that are remembered beyond a tenure. At some 300 bytes each they
/// take about 20 MB; with the longest names, clients and texts 120 MB.
pub const REMEMBERED_MAX: usize = 65_536;

/// A part of a command that has its own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitedField {
    /// The note of a lock, in bytes.
    Note,
    /// The holder id: the id of the process that acquires, in bytes.
    HolderId,
    /// The idempotency key of a request, in bytes.
    Key,
    /// The id of a caller: the name of the front end and of the credential that sent a request, in
    /// bytes.
    Caller,
    /// The number of clients that are named as exceptions to a reset.
    Spared,
    /// The text of a handover, in bytes.
    Handover,
}

impl LimitedField {
    /// Returns the maximum length of this field, or the maximum number of spared clients.
    pub const fn max(self) -> usize {
        match self {
            Self::Note => NOTE_BYTES_MAX,
            Self::HolderId => HOLDER_ID_BYTES_MAX,
            Self::Key => REQUEST_KEY_BYTES_MAX,
            Self::Caller => CALLER_BYTES_MAX,
            Self::Spared => SPARED_MAX,
            Self::Handover => HANDOVER_BYTES_MAX,
        }
    }

    /// Returns a sentence that says that this part of a command is too long.
    pub(super) fn excess(self) -> String {
        let max = self.max();
        match self {
            Self::Note => format!("a note has at most {max} bytes; shorten it"),
            Self::HolderId => format!("a holder id has at most {max} bytes; shorten it"),
            Self::Handover => format!("a handover has at most {max} bytes; shorten it"),
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
