//! The options of a guard: what a change without the lock does, for whom a tenure is held, and
//! which files are treated in a way of their own.

use super::tenure::Owner;
use crate::holder_id::LoginSession;
use crate::time::Span;
use barrier::folder_path::PathPatterns;

/// The default of `--local`: what editors, databases and desktops keep for themselves.
pub(crate) const LOCAL_DEFAULT: [&str; 7] =
    ["*-shm", ".*.swp", ".~lock.*#", ".DS_Store", "Thumbs.db", "desktop.ini", ".Trash-*"];
/// The default of `--in-place`: files to which programs append.
pub(crate) const IN_PLACE_DEFAULT: [&str; 2] = ["*.log", "nohup.out"];
/// The default of `--never-ask`: `git status` refreshes its index when it can.
pub(crate) const NEVER_ASK_DEFAULT: [&str; 1] = [".git/index.lock"];

/// How long nothing must have changed for the folder to count as idle, if no option says it.
const IDLE_DEFAULT: Span = Span::from_secs(2);

/// The answer to a program that changes the folder without its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnWrite {
    /// The guard takes the lock if it is free; otherwise the change fails with EROFS.
    Take,
    /// The program waits for the lock, for at most this long.
    Wait(Span),
    /// The change fails with EROFS, whether the lock is free or not.
    Refuse,
}

/// When the guard gives the lock up because another machine asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenAsked {
    /// The guard keeps the lock.
    Keep,
    /// The guard gives the lock up once nothing has changed for a while, and at the latest after
    /// some time.
    Yield {
        /// How long nothing must have changed.
        idle: Span,
        /// How long after the other machine's request the lock is given up, whatever programs do.
        max: Span,
    },
}

/// The faults of a folder that a guard accepts without a person when it takes the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AcceptedByOption {
    /// Whether the folder is accepted as it stands if nobody can say whether everything is here.
    pub(crate) unsure: bool,
    /// Whether versions of files that no guard knows are accepted.
    pub(crate) foreign: bool,
}

/// For which programs a tenure is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerKind {
    /// The tenure is held for all programs of this machine.
    Host,
    /// The tenure is held for the programs of one user.
    User,
    /// The tenure is held for the programs of one login session.
    Session,
}

impl OwnerKind {
    /// Returns the owner of a tenure that the thread `tid` takes as the user `uid`.
    pub(crate) fn of(self, uid: u32, tid: u32) -> Owner {
        match self {
            Self::Host => Owner::Host,
            Self::User => Owner::User(uid),
            Self::Session => Owner::Session(LoginSession::of(tid, uid)),
        }
    }
}

/// How long a guard that sees no change waits before it writes a marker by itself: for ever.
const NEVER: Span = Span::from_secs(100 * 365 * 24 * 3_600);

/// The options of a guard.
#[derive(Debug, Clone)]
pub(crate) struct WritePolicy {
    /// Whether programs change the folder through a view, so that the guard sees each change.
    /// Otherwise a tenure that is ready announces changes at once, and its last marker finds them.
    pub(crate) sees_changes: bool,
    /// The answer to a change without the lock.
    pub(crate) on_write: OnWrite,
    /// How long after the last change the guard gives the lock up; `None`: it keeps the lock.
    pub(crate) give_after: Option<Span>,
    /// When the guard gives the lock up because another machine asks for it.
    pub(crate) when_asked: WhenAsked,
    /// The faults of a folder that the guard accepts without a person.
    pub(crate) accepts: AcceptedByOption,
    /// For which programs a tenure is held.
    pub(crate) owner: OwnerKind,
    /// The files that are changed in place although a program rewrites them as a whole.
    pub(crate) in_place: PathPatterns,
    /// The files whose changes take a free lock, and never ask another machine for it.
    pub(crate) never_ask: PathPatterns,
    /// The files that belong to this machine, and never reach the folder.
    pub(crate) local: PathPatterns,
    /// How long nothing must change before a marker names the changes.
    pub(crate) settle: Span,
    /// Whether the content of a file is on the disk before the file appears in the folder.
    pub(crate) sync_saves: bool,
}

impl WritePolicy {
    /// Returns the options of a guard that has no view.
    pub(crate) fn without_view() -> Self {
        let none = PathPatterns::default;
        Self {
            sees_changes: false,
            on_write: OnWrite::Refuse,
            give_after: None,
            // Nobody knows when programs have finished.
            when_asked: WhenAsked::Keep,
            accepts: AcceptedByOption::default(),
            owner: OwnerKind::Host,
            in_place: none(),
            never_ask: none(),
            local: none(),
            settle: NEVER,
            sync_saves: false,
        }
    }

    /// Returns how long nothing must have changed for the folder to count as idle.
    pub(crate) const fn idle_after(&self) -> Span {
        match self.when_asked {
            WhenAsked::Keep => IDLE_DEFAULT,
            WhenAsked::Yield { idle, .. } => idle,
        }
    }
}
