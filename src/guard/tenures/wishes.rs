//! The wishes for a tenure: of programs of this machine, and of other machines.
//!
//! News of the tenures of a guard: how they began and ended.

use crate::guard::folder::not_ready::NotReady;
use crate::guard::stage::staged_file::PutAside;
use crate::guard::tenure::Owner;
use crate::time::Time;
use barrier::folder_path::FolderPath;
use barrier::tenure_id::TenureId;
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
    /// Since when the program waits.
    pub(in crate::guard) since: Time,
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
    /// Since when the guard asks.
    pub(in crate::guard) since: Time,
    /// Until when the guard asks for the lock on behalf of the program.
    pub(in crate::guard) until: Time,
}

/// The maximum number of owners for which the guard keeps a place.
const PLACES_MAX: usize = 64;

/// The programs that were refused, one per owner, in the order in which they first asked.
#[derive(Debug, Default)]
pub(in crate::guard) struct KeptPlaces(Vec<Asked>);

impl KeptPlaces {
    /// Keeps a place until then. An owner that has one already keeps its position.
    pub(in crate::guard) fn keep(&mut self, owner: Owner, now: Time, until: Time) {
        if let Some(asked) = self.0.iter_mut().find(|asked| asked.owner == owner) {
            asked.until = until;
        } else if self.0.len() < PLACES_MAX {
            self.0.push(Asked { owner, since: now, until });
        }
    }

    /// Returns the place that was kept first.
    pub(in crate::guard) fn first(&self, now: Time) -> Option<Asked> {
        let may_return = |asked: &&Asked| asked.until > now && asked.owner.may_return();
        self.0.iter().find(may_return).copied()
    }

    /// Drops the places whose time is over, and those of login sessions that have ended.
    pub(in crate::guard) fn drop_old(&mut self, now: Time) {
        self.0.retain(|asked| asked.until > now && asked.owner.may_return());
    }

    /// Drops the places of an owner whose tenure begins or ends.
    pub(in crate::guard) fn drop_of(&mut self, owner: Owner) {
        self.0.retain(|asked| !owner.includes(asked.owner));
    }

    /// Drops all places.
    pub(in crate::guard) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the ends of the first and of the last place that is over.
    pub(in crate::guard) fn ends(&self) -> Option<(Time, Time)> {
        let ends = || self.0.iter().map(|asked| asked.until);
        Some((ends().min()?, ends().max()?))
    }
}

/// Another client, or another owner of this machine, that waits for the lock while this guard holds
/// it.
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
    /// The guard gave the lock up because another user or login session of this machine waited for
    /// it.
    HandedOn,
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
            Self::HandedOn => {
                "another user or session of this machine waited for the lock, and it was given up"
            }
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
    /// Another client, or another owner of this machine, waits for the lock.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder_id::{LoginSession, ProcessStart};

    #[test]
    fn places_are_kept_in_the_order_of_the_first_request_and_have_a_bound() {
        let (now, later) = (Time::from_secs(10), Time::from_secs(70));
        let mut places = KeptPlaces::default();
        let first = |places: &KeptPlaces, now| places.first(now).map(|asked| asked.owner);
        for uid in 1..100 {
            places.keep(Owner::User(uid), now, later);
        }
        assert_eq!(places.0.len(), PLACES_MAX);
        assert_eq!(first(&places, now), Some(Owner::User(1)));
        places.keep(Owner::User(1), now, Time::from_secs(80));
        assert_eq!(first(&places, now), Some(Owner::User(1)), "it keeps its position");
        assert_eq!(places.ends(), Some((later, Time::from_secs(80))));
        places.drop_of(Owner::User(1));
        assert_eq!(first(&places, now), Some(Owner::User(2)));
        places.drop_old(later);
        assert_eq!((first(&places, later), places.ends()), (None, None));
    }

    #[test]
    fn no_place_is_kept_for_a_session_that_has_ended() {
        // No process has a pid as great as this.
        let leader = |at| ProcessStart { pid: 1 << 23, at };
        let session = |at| Owner::Session(LoginSession { leader: leader(at), uid: 0 });
        let mut places = KeptPlaces::default();
        let (now, later) = (Time::from_secs(10), Time::from_secs(70));
        places.keep(session(7), now, later);
        assert!(places.first(now).is_none(), "its leader has ended");
        places.keep(session(0), now, later);
        assert!(places.first(now).is_some(), "nobody knows whether its leader runs");
    }
}
