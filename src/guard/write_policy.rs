//! The options of a guard: what a change without the lock does, for whom a tenure is held, and
//! which files are treated in a way of their own.

use super::tenure::Owner;
use crate::holder_id::LoginSession;
use crate::time::Span;
use globset::{Glob, GlobSet, GlobSetBuilder};
use std::path::Path;

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

/// A list of patterns for paths. A pattern without a slash matches the last name of a path.
#[derive(Debug, Clone, Default)]
pub(crate) struct PathPatterns {
    names: GlobSet,
    paths: GlobSet,
}

impl PathPatterns {
    /// Parses patterns such as `*.log` or `build/**`.
    pub(crate) fn parse(texts: &[String]) -> Result<Self, String> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for text in texts {
            let glob = Glob::new(text).map_err(|error| {
                format!("'{text}' is no pattern: {}; write one such as '*.log'", error.kind())
            })?;
            if text.contains('/') {
                paths.add(glob)
            } else {
                names.add(glob)
            };
        }
        let set = |builder: &GlobSetBuilder| builder.build().map_err(|error| error.to_string());
        Ok(Self { names: set(&names)?, paths: set(&paths)? })
    }

    /// Whether a pattern looks at more than the name of a file.
    pub(crate) fn have_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether a pattern matches the path, which is relative to the folder.
    pub(crate) fn matches(&self, path: &Path) -> bool {
        let name = path.file_name().map(Path::new);
        name.is_some_and(|name| self.names.is_match(name)) || self.paths.is_match(path)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_a_slash_matches_names_in_each_directory() {
        let texts = ["*.log".to_owned(), ".git/index.lock".to_owned()];
        let patterns = PathPatterns::parse(&texts).expect("valid");
        for path in ["a.log", "deep/er/b.log", ".git/index.lock"] {
            assert!(patterns.matches(Path::new(path)), "{path}");
        }
        for path in ["a.logs", "a.log/file", "sub/.git/index.lock", ""] {
            assert!(!patterns.matches(Path::new(path)), "{path}");
        }
        let wrong = PathPatterns::parse(&["[".to_owned()]).expect_err("not closed");
        assert!(wrong.contains("'['") && wrong.contains("*.log"), "{wrong}");
    }
}
