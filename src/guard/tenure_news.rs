//! News of the tenures of a guard: how they began and ended.

use super::barrier::folder_path::FolderPath;
use super::not_ready::NotReady;
use super::staged_file::PutAside;
use super::tenure::TenureId;

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
    /// They do, if nobody else has changed the files.
    Unchanged,
    /// They do not: the lock was lost while files were changed.
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
