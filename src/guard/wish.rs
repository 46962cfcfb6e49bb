//! The wishes for a tenure: of programs of this machine, and of other machines.

use super::barrier::folder_path::FolderPath;
use super::tenure::Owner;
use crate::time::Time;
use std::collections::BTreeSet;

/// Why a program does not get a tenure now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The reason as a sentence without a full stop.
    pub(crate) sentence: String,
}

/// A callback for the answer to a wish for a tenure.
pub(crate) type OnHeld = Box<dyn FnOnce(Result<(), Denied>) + Send>;

/// Tells whether a program still waits for a tenure: a signal may have ended its wait.
pub(crate) type IsWanted = Box<dyn Fn() -> bool + Send>;

/// The origin of a wish for a tenure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WishOf {
    /// A program that changes the folder.
    Program {
        /// Whether the guard asks the holder of the lock to hand it over.
        asks: bool,
    },
    /// A person, by `latchfs guard take`. The guard gives a tenure that a person waits for to no
    /// other machine before it is ready.
    Person,
    /// A person who goes on without what has not arrived, by `latchfs guard accept`.
    Acceptance {
        /// The paths that the person accepts as they stand; none for the whole folder.
        paths: BTreeSet<FolderPath>,
        /// The reason, for the other machines.
        reason: String,
    },
    /// A person who puts the content of a conflict copy back, by `latchfs guard accept --from`.
    PutBack {
        /// The path that has another content.
        path: FolderPath,
        /// The conflict copy.
        copy: FolderPath,
    },
    /// The same, once the guard has begun to accept the paths.
    Accepting,
}

/// A program's wish for a tenure.
pub(super) struct Wish {
    pub(super) owner: Owner,
    pub(super) of: WishOf,
    /// When the program no longer waits for a lock that is held.
    pub(super) waits_until: Time,
    /// When the program is refused if there was no answer.
    pub(super) until: Time,
    /// Whether the program still waits.
    pub(super) is_wanted: IsWanted,
    pub(super) then: OnHeld,
}

/// A program that was refused, and that may try again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// For whom the guard asks for the lock.
    pub(super) owner: Owner,
    /// How long it asks.
    pub(super) until: Time,
}

/// Another client that waits for the lock while this guard holds it.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) client: String,
    /// Since when this guard knows that somebody waits.
    pub(super) since: Time,
    /// Whether the view was told that the lock must be given up.
    pub(super) is_overdue: bool,
}
