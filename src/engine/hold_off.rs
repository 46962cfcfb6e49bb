//! The hold-off: a time in which the engine grants no lock, because clients of an engine before it
//! may still rely on leases that this one does not know. Its rules are in `hold_off_rules`.

use super::lease::StealReason;
use super::name::ClientId;
use crate::time::{Time, Wall};
use std::fmt;

/// A time in which the engine grants no lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldOff {
    /// The time from which the engine grants locks.
    pub until: Time,
    /// Why it grants none before.
    pub cause: HoldOffCause,
}

/// Why an engine grants no lock for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldOffCause {
    /// The engine was started without durable state.
    NoState,
    /// The engine was restored from a backup.
    Restored,
    /// The engine was begun by the survivor of a lost majority.
    Recovered,
}

impl HoldOffCause {
    /// Returns the name of the cause in answers and statuses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoState => "no_state",
            Self::Restored => "restored",
            Self::Recovered => "recovered",
        }
    }
}

/// The cause as a part of a sentence.
impl fmt::Display for HoldOffCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoState => "this server began without the leases of its last run",
            Self::Restored => "the cluster was restored from a backup",
            Self::Recovered => "the cluster was begun again by a node that was left",
        })
    }
}

impl HoldOff {
    /// Returns what a hold-off means, as a sentence without its end. `until` is its end by the wall
    /// clock.
    pub fn sentence(self, until: Wall) -> String {
        format!("nothing is granted before {until}, because {}", self.cause)
    }
}

/// Ends the hold-off, if the engine has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndHoldOff {
    /// The client on whose behalf the hold-off is ended.
    pub by: ClientId,
    /// Why no client can rely on an old lease any more, for the audit log.
    pub reason: StealReason,
}
