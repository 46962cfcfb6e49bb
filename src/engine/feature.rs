//! The parts of a request that not every version of the encoding has.

use super::command::Op;
use super::refusal::Reason;

/// A part of a request that needs a cluster version above 1. Version 1 is the only one today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// The planted field of an acquire.
    #[cfg(feature = "planted-version")]
    PlantedField,
    /// The planted command.
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
    pub(crate) fn needs_no_more_than(&self, version: u8) -> Result<(), Reason> {
        match Feature::of(self).map(Feature::requires) {
            Some(requires) if requires > version => {
                Err(Reason::NeedsClusterVersion { requires, version })
            }
            _ => Ok(()),
        }
    }
}
