//! The kinds of control requests, and the permission that each needs.

use crate::auth::Denial;
use crate::auth::permissions::Operation;

/// The kind of a request, from its field `do`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// The mount and its backend.
    About,
    /// A page of locks.
    List,
    /// One lock.
    Status,
    /// To acquire a lock, or to wait for it.
    Acquire,
    /// To renew a lock.
    Renew,
    /// To release a lock.
    Release,
    /// To take a live lock from its holder.
    Steal,
}

impl ControlKind {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::About,
        Self::List,
        Self::Status,
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Steal,
    ];

    /// As it is written in `do`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::About => "about",
            Self::List => "list",
            Self::Status => "status",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Steal => "steal",
        }
    }

    /// The request that `text` names.
    pub(crate) fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|request| request.as_str() == text)
    }

    /// The row of the table of permissions that decides it.
    pub(crate) const fn operation(self) -> Operation {
        match self {
            Self::About => Operation::ShowCounts,
            Self::List => Operation::ListLocks,
            Self::Status => Operation::ShowLock,
            Self::Acquire => Operation::Acquire,
            Self::Renew => Operation::Renew,
            Self::Release => Operation::Release,
            Self::Steal => Operation::Steal,
        }
    }
}

/// A denial as it is told to a user of a mount, who has no credentials but the user's number.
pub(crate) fn why_denied(denial: &Denial) -> String {
    match denial {
        Denial::Steal => {
            "only root and the user who mounted may steal a lock; ask one of them".to_owned()
        }
        other => other.to_string(),
    }
}
