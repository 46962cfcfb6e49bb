//! The version of the encoding.
//!
//! The parts of a request that not every version of the encoding has.

use crate::values::command::Op;
use crate::values::refusal::Reason;
use std::fmt;

/// The newest version of the encoding that this source knows. Each file, record and message has a
/// version, so that bytes of another one are refused and never misread. It stays 1 until the first
/// release.
pub const FORMAT_VERSION: u8 = 1;

/// Returns the newest version of the encoding that this latchfs knows.
pub fn known_version() -> u8 {
    #[cfg(feature = "planted-version")]
    return PLANTED_VERSION.load(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(feature = "planted-version"))]
    FORMAT_VERSION
}

/// The newest version that this process knows, in the build for the tests of upgrades: version 2
/// adds a field to an acquire, and a command.
#[cfg(feature = "planted-version")]
pub static PLANTED_VERSION: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(2);

/// Returns the oldest version that this latchfs reads: the one before the newest.
pub fn oldest_version() -> u8 {
    known_version().saturating_sub(1).max(1)
}

/// The error for bytes of a version that this latchfs does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownVersion {
    /// The version of the bytes.
    pub found: u8,
}

impl UnknownVersion {
    /// Whether the bytes come from an older latchfs, which is the side to upgrade.
    pub fn is_older(self) -> bool {
        self.found < oldest_version()
    }
}

impl fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}, and this latchfs knows version ", self.found)?;
        match (oldest_version(), known_version()) {
            (oldest, newest) if oldest == newest => write!(f, "{newest}"),
            (oldest, newest) => write!(f, "{oldest} and {newest}"),
        }
    }
}

impl std::error::Error for UnknownVersion {}

/// Returns an error unless this latchfs knows the version `found`.
pub fn check_version(found: u8) -> Result<(), UnknownVersion> {
    let is_known = (oldest_version()..=known_version()).contains(&found);
    if is_known { Ok(()) } else { Err(UnknownVersion { found }) }
}

/// A part of a request that needs a cluster version above 1. Version 1 is the only one today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// The field of an acquire that version 2 adds, in the build for the tests of upgrades.
    #[cfg(feature = "planted-version")]
    PlantedField,
    /// The command that version 2 adds, in the build for the tests of upgrades.
    #[cfg(feature = "planted-version")]
    PlantedCommand,
}

impl Feature {
    /// Returns the cluster version from which on the feature may be used.
    pub const fn requires(self) -> u8 {
        match self {
            #[cfg(feature = "planted-version")]
            Self::PlantedField | Self::PlantedCommand => 2,
        }
    }

    /// Returns the feature that an operation uses.
    fn of(op: &Op) -> Option<Self> {
        match op {
            #[cfg(feature = "planted-version")]
            Op::Acquire(ask) if ask.planted.is_some() => Some(Self::PlantedField),
            #[cfg(feature = "planted-version")]
            Op::Planted(_) => Some(Self::PlantedCommand),
            _ => None,
        }
    }
}

impl Op {
    /// Refuses an operation that uses a feature above this cluster version.
    pub fn needs_no_more_than(&self, version: u8) -> Result<(), Reason> {
        match Feature::of(self).map(Feature::requires) {
            Some(requires) if requires > version => {
                Err(Reason::NeedsClusterVersion { requires, version })
            }
            _ => Ok(()),
        }
    }
}
