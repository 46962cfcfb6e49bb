//! Lengths and counts of a command. They are checked here as well, whatever a front end has
//! checked: what is kept of a command, and what replicas copy, has a bound.

use super::command::{
    Acquire, CALLER_BYTES_MAX, Command, Op, OpenSession, Patch, REQUEST_KEY_BYTES_MAX, Renew,
    ResetScope, Steal,
};
use super::lease::{HOLDER_ID_BYTES_MAX, LeaseTerms, NOTE_BYTES_MAX};
use crate::time::Span;

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

impl Command {
    /// Returns a part that is too long, if there is one.
    pub(super) fn oversized(&self) -> Option<LimitedField> {
        let id = self.request.as_ref().map(|request| &request.id);
        let key = id.filter(|id| id.key.is_empty() || id.key.len() > LimitedField::Key.max());
        let caller = id.filter(|id| id.caller.len() > LimitedField::Caller.max());
        key.map(|_| LimitedField::Key)
            .or_else(|| caller.map(|_| LimitedField::Caller))
            .or_else(|| self.op.patch().and_then(Patch::oversized))
            .or_else(|| self.op.spares_too_many().then_some(LimitedField::Spared))
    }
}

impl Op {
    /// Returns how long what it makes lasts unrenewed, ttl and grace together.
    pub(super) fn lasts(&self) -> Span {
        match self {
            Self::Acquire(Acquire { term: LeaseTerms::Own(ttl, grace), .. })
            | Self::Renew(Renew { term: Some(LeaseTerms::Own(ttl, grace)), .. })
            | Self::Steal(Steal { term: LeaseTerms::Own(ttl, grace), .. })
            | Self::OpenSession(OpenSession { ttl: Some(ttl), grace, .. }) => {
                ttl.span() + grace.span()
            }
            _ => Span::ZERO,
        }
    }

    const fn patch(&self) -> Option<&Patch> {
        match self {
            Self::Acquire(ask) => Some(&ask.patch),
            Self::Renew(ask) => Some(&ask.patch),
            Self::Annotate(ask) => Some(&ask.patch),
            Self::Steal(ask) => Some(&ask.patch),
            _ => None,
        }
    }

    fn spares_too_many(&self) -> bool {
        matches!(self, Self::Reset(ask)
            if matches!(&ask.whose, ResetScope::AllBut(kept) if kept.len() > SPARED_MAX))
    }
}

impl Patch {
    fn oversized(&self) -> Option<LimitedField> {
        let exceeds = |text: &Option<std::sync::Arc<str>>, part: LimitedField| {
            text.as_ref().filter(|text| text.len() > part.max()).map(|_| part)
        };
        exceeds(&self.note, LimitedField::Note)
            .or_else(|| exceeds(&self.holder_id, LimitedField::HolderId))
    }
}
