//! The wishes for a tenure: of programs of this machine, and of other machines.
//!
//! News of the tenures of a guard: how they began and ended.

use crate::guard::barrier::folder_path::FolderPath;
use crate::guard::folder::not_ready::NotReady;
use crate::guard::stage::staged_file::PutAside;
use crate::guard::tenure::{Owner, TenureId};
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
    /// A person who accepts paths or puts a copy back, once the guard has begun to do so.
    Accepting,
}

/// A program's wish for a tenure.
pub(in crate::guard) struct Wish {
    pub(in crate::guard) owner: Owner,
    pub(in crate::guard) of: WishOf,
    /// When the program no longer waits for a lock that is held.
    pub(in crate::guard) waits_until: Time,
    /// When the program is refused if there was no answer.
    pub(in crate::guard) until: Time,
    /// Whether the program still waits.
    pub(in crate::guard) is_wanted: IsWanted,
    pub(in crate::guard) then: OnHeld,
}

/// A program that was refused, and that may try again.
#[derive(Debug, Clone, Copy)]
pub(in crate::guard) struct Asked {
    /// For whom the guard asks for the lock.
    pub(in crate::guard) owner: Owner,
    /// Until when the guard asks for the lock on behalf of the program.
    pub(in crate::guard) until: Time,
}

/// Another client that waits for the lock while this guard holds it.
#[derive(Debug, Clone)]
pub(in crate::guard) struct Waiter {
    pub(in crate::guard) client: String,
    /// Since when this guard knows that somebody waits.
    pub(in crate::guard) since: Time,
    /// Whether the view was notified that the lock must be given up.
    pub(super) is_overdue: bool,
}

/// How a tenure ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TenureEnd {
    /// The guard gave the lock up.
    Given,
    /// The guard gave the lock up because another machine asked for it.
    Yielded,
    /// The guard gave the lock up before the folder was ready, because no program waited for it any
    /// more.
    Unwanted,
    /// The guard gave the lock up because this machine was about to sleep.
    Slept,
    /// The time was over for which a person had taken the lock along.
    AwayOver,
    /// The lock service could not be reached until the deadline of the tenure.
    Deadline,
    /// The session was over, or the lock was stolen.
    Taken,
    /// A later tenure had removed the stage.
    Fenced,
}

impl TenureEnd {
    /// Whether the lock was lost: nobody gave it up.
    pub(crate) const fn is_loss(self) -> bool {
        matches!(self, Self::Deadline | Self::Taken | Self::Fenced)
    }

    /// Returns the end as a clause of a sentence.
    pub(crate) const fn clause(self) -> &'static str {
        match self {
            Self::Given => "the lock was given up",
            Self::Yielded => "another machine asked for the lock, and it was given up",
            Self::Unwanted => {
                "no program waited for the folder any more, and the lock was given up"
            }
            Self::Slept => "this machine was about to sleep, and nothing was changing",
            Self::AwayOver => "the time was over for which the lock was taken along",
            Self::Deadline => "the lock service did not answer before the lease ended",
            Self::Taken => "the lock service ended the lease",
            Self::Fenced => "another machine has taken the folder over",
        }
    }
}

/// Whether the programs whose files are open for writing when a tenure ends go on in the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayGoOn {
    /// The programs go on, if nobody else has changed the files.
    Unchanged,
    /// The programs do not go on: the lock was lost while files were changed.
    Never,
}

/// A change of the lock of the folder.
#[derive(Debug)]
pub(crate) enum TenureNews {
    /// A tenure began. The number counts the files of other tenures that were put aside.
    Began(TenureId, usize),
    /// The guard holds the lock, and the folder is not ready, for this reason.
    NotReady(TenureId, NotReady),
    /// The gate has closed for good. Files that are open for writing may go on in the next tenure,
    /// unless one was in use when the lock was lost.
    Closed(TenureId, MayGoOn),
    /// The gate is about to open.
    Opens(TenureId),
    /// A tenure ended.
    Ended(TenureId, TenureEnd, PutAside),
    /// Another client waits for the lock.
    Wanted(String),
    /// Another client has waited for so long that the lock must be given up, although programs
    /// change the folder.
    Overdue(TenureId),
    /// Files were changed past the view during a tenure: a marker names them as foreign.
    Overwritten(TenureId, Vec<FolderPath>),
    /// A file appeared in the folder after the deadline of its tenure.
    Late(TenureId),
}

/// A callback for news of the tenures.
pub(crate) type OnNews = Box<dyn Fn(&TenureNews) + Send + Sync>;
