//! The format that the encoding of a command needs, and the form of a command that an older latchfs
//! knows.

use super::codec::{
    FORMAT_BASE, WITH_ACKNOWLEDGEMENTS, WITH_FOURTH_RULES, WITH_OPEN_RELEASES, WITH_RESET_PARTS,
    WITH_TAKEOVERS,
};
use super::command::{Acquire, Command, Op, QueuePolicy, Release, Reset, ResetPart, Rulebook};

impl Op {
    /// Returns the operation as a latchfs of this `format` knows it. An open file that releases its
    /// lease is left out before format 6; the release then names the lease by its token. So is the
    /// lease that an acquire takes over; the acquire then does not wait, since it would wait for
    /// that lease. A part of a reset becomes the whole reset.
    #[must_use]
    pub fn for_format(self, format: u8) -> Self {
        match self {
            Self::Release(release) if format < WITH_OPEN_RELEASES => {
                Self::Release(Release { open: None, ..release })
            }
            Self::Acquire(ask) if ask.takes_over.is_some() && format < WITH_TAKEOVERS => {
                Self::Acquire(Acquire { takes_over: None, line: QueuePolicy::Skip, ..ask })
            }
            Self::Reset(reset) if format < WITH_RESET_PARTS => {
                Self::Reset(Reset { part: ResetPart::ALL, ..reset })
            }
            op => op,
        }
    }

    /// Returns the lowest format that can hold the operation.
    pub const fn format(&self) -> u8 {
        match self {
            Self::Release(Release { open: Some(_), .. }) => WITH_OPEN_RELEASES,
            Self::Acquire(Acquire { takes_over: Some(_), .. }) => WITH_TAKEOVERS,
            Self::Reset(Reset { part: ResetPart::Rest { holds: 0, waits: 0 }, .. }) => FORMAT_BASE,
            Self::Reset(_) => WITH_RESET_PARTS,
            _ => FORMAT_BASE,
        }
    }
}

impl Command {
    /// Returns the command as a latchfs of this `format` knows it: see [`Op::for_format`]. Before
    /// format 6 it follows the third rules at most.
    #[must_use]
    pub fn for_format(self, format: u8) -> Self {
        let acknowledged = self.acknowledged.filter(|_| format >= WITH_ACKNOWLEDGEMENTS);
        let newest = if format < WITH_FOURTH_RULES { Rulebook::Third } else { Rulebook::Fourth };
        let rules = self.rules.min(newest);
        Self { op: self.op.for_format(format), rules, acknowledged, ..self }
    }

    /// Returns the lowest format that can hold the command.
    pub fn format(&self) -> u8 {
        let keys = if self.acknowledged.is_some() { WITH_ACKNOWLEDGEMENTS } else { FORMAT_BASE };
        let rules = if self.rules == Rulebook::Fourth { WITH_FOURTH_RULES } else { FORMAT_BASE };
        keys.max(rules).max(self.op.format())
    }
}
