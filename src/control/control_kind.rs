//! The kinds of control requests, and the permission that each needs.

use crate::auth::Denial;
use crate::auth::permissions::Operation;

/// The kind of a control request, which its field `do` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlKind {
    /// Describe the mount, or the connection to the server.
    About,
    /// List locks, one page at a time.
    List,
    /// Show the status of one lock.
    Status,
    /// Acquire a lock, or wait for it.
    Acquire,
    /// Renew a lease.
    Renew,
    /// Release a lock.
    Release,
    /// Take a live lock from its holder.
    Steal,
}

impl ControlKind {
    /// All kinds of requests, in the order in which error messages list them.
    pub(crate) const ALL: [Self; 7] = [
        Self::About,
        Self::List,
        Self::Status,
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Steal,
    ];

    /// Returns the value of the field `do` for this kind.
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

    /// Returns the kind whose name in the field `do` is `text`.
    pub(crate) fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|request| request.as_str() == text)
    }

    /// Returns the operation whose permissions a request of this kind needs.
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

/// Returns the message of a denial to a user of a mount. Such a user has no credentials but a uid.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
pub(crate) fn why_denied(denial: &Denial) -> String {
    match denial {
        Denial::Steal => {
            "only root and the user who mounted may steal a lock; ask one of them".to_owned()
        }
        other => other.to_string(),
    }
}
