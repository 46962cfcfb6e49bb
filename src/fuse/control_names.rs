//! The names of control files: the files in `.latchfs`, and the files that show one fact about a
//! lock in the lock's directory.
//!
//! Parses and writes the names of files in `.latchfs`: `events@N`, and the names of locks in
//! `status/`, `content/` and `wait/`.

use crate::engine::{LockName, LockView, NameError};
use crate::fuse::lock_nodes::wrong_name;
use crate::fuse::refusals::errno_of_name;
use kernel::file_system::Errno;
use std::borrow::Cow;
use std::ffi::OsStr;

/// The help text of the mount, for people.
pub(crate) const README: &str = include_str!("control_files/README.txt");

/// A file or directory of the mount that is not a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ControlFile {
    /// The directory `.latchfs`.
    Top,
    /// A file in `.latchfs` about the mount as a whole.
    Page(ControlPage),
    /// The event stream `.latchfs/events@N` from event number N on, or `.latchfs/events` from now
    /// on.
    Events(Option<u64>),
    /// A directory of reports on locks, such as `.latchfs/status`, or a subdirectory of it for a
    /// lock name that has other locks below it.
    Reports(LockReport, Option<LockName>),
    /// A report about one lock, such as `.latchfs/status/NAME`. Free locks have reports too.
    Report(LockReport, LockName),
    /// A file in the directory of a held lock, such as `NAME/holder`, that shows one fact about the
    /// lock.
    Fact(LockFact, LockName),
}

/// A file in `.latchfs` about the mount as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ControlPage {
    /// `.latchfs/README`: the help text about the mount.
    Readme,
    /// `.latchfs/why`: the last refusal to the program's client.
    Why,
    /// `.latchfs/server`: the configuration and state of the mount.
    Server,
    /// `.latchfs/metrics`: counters in the text format of Prometheus.
    Metrics,
    /// `.latchfs/ctl`: requests and answers as JSON, for the command line.
    Ctl,
}

/// A kind of report about locks, with a directory of its own in `.latchfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockReport {
    /// `.latchfs/status`: the status of a lock, as JSON.
    Status,
    /// `.latchfs/content`: the content that programs have written to a lock's file.
    Content,
    /// `.latchfs/wait`: a read returns the status of a lock as soon as the lock is granted to the
    /// reader.
    Wait,
}

/// A file in the directory of a held lock that shows one fact about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockFact {
    /// The status of the lock, as JSON.
    Status,
    /// The client that holds the lock.
    Holder,
    /// The fencing token of the lock.
    Token,
    /// The phase of the lock: free, held or grace.
    Phase,
    /// The time at which the lease expires.
    ExpiresAt,
    /// The waiting clients, one per line.
    Waiters,
    /// Accepts the messages that programs write to the file of a lock, for a lock whose file is a
    /// directory.
    Ctl,
}

impl ControlPage {
    pub(crate) const ALL: [Self; 5] =
        [Self::Readme, Self::Why, Self::Server, Self::Metrics, Self::Ctl];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Readme => "README",
            Self::Why => "why",
            Self::Server => "server",
            Self::Metrics => "metrics",
            Self::Ctl => "ctl",
        }
    }
}

impl LockReport {
    pub(crate) const ALL: [Self; 3] = [Self::Status, Self::Content, Self::Wait];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Content => "content",
            Self::Wait => "wait",
        }
    }
}

impl LockFact {
    /// Returns the fact about a lock whose file has the name `name`.
    pub(crate) fn named(name: &OsStr) -> Option<Self> {
        match name.to_str()? {
            "status.json" => Some(Self::Status),
            "holder" => Some(Self::Holder),
            "token" => Some(Self::Token),
            "phase" => Some(Self::Phase),
            "expires_at" => Some(Self::ExpiresAt),
            "waiters" => Some(Self::Waiters),
            "ctl" => Some(Self::Ctl),
            _ => None,
        }
    }
}

impl ControlFile {
    pub(crate) const fn is_directory(&self) -> bool {
        matches!(self, Self::Top | Self::Reports(..))
    }

    pub(crate) const fn takes_writes(&self) -> bool {
        matches!(self, Self::Page(ControlPage::Ctl) | Self::Fact(LockFact::Ctl, _))
    }

    /// Whether the control file exists independently of which locks there are, so that the kernel
    /// may cache its name.
    pub(crate) const fn is_constant(&self) -> bool {
        matches!(self, Self::Top | Self::Page(_) | Self::Events(None) | Self::Reports(_, None))
    }
}

/// Parses `events` or `events@N`. These files are not listed: a program that reads all files of a
/// directory would never finish reading the event stream.
pub(crate) fn events(text: &str) -> Option<ControlFile> {
    match text.strip_prefix("events")? {
        "" => Some(ControlFile::Events(None)),
        since => {
            let number = since.strip_prefix('@')?;
            let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse().ok().filter(|_| is_plain).map(|since| ControlFile::Events(Some(since)))
        }
    }
}

/// The spelling of a lock's name in `status/`, `content/` and `wait/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpelledName {
    /// The name is not escaped: a directory if there are locks below the name, as in the mount
    /// itself, and otherwise a file.
    Plain,
    /// The name has `%2F` for a slash, and is always a file. Every lock's name can be written this
    /// way; one without a slash gets a leading one: `%2Fteam`.
    Escaped,
}

/// Returns the lock to which a name in `status/`, `content/` or `wait/` refers, relative to
/// `parent` if given.
pub(crate) fn reported(
    parent: Option<&LockName>,
    text: &OsStr,
) -> Result<(LockName, SpelledName), (Errno, String)> {
    let wrong = |error| (errno_of_name(error), wrong_name(text, error));
    let name = text.to_str().ok_or(NameError::NotUtf8).map_err(wrong)?;
    let Some(name) = unescaped(name) else {
        let sentence = format!(
            "'{name}' is not a valid escaped name: write %2F for a slash and %25 for a \
                percent sign"
        );
        return Err((Errno::EINVAL, sentence));
    };
    let written = if name.contains('/') { SpelledName::Escaped } else { SpelledName::Plain };
    let name = match parent {
        Some(parent) => LockName::parse(&format!("{parent}/{name}")),
        None => LockName::parse(name.strip_prefix('/').unwrap_or(&name)),
    };
    Ok((name.map_err(wrong)?, written))
}

/// Returns the name of the file in `status/` that reports on a lock, whether or not there are locks
/// below it.
pub(crate) fn report_of(view: &LockView) -> String {
    let name = view.name.as_str().replace('%', "%25").replace('/', "%2F");
    if view.has_below && !name.contains("%2F") { format!("%2F{name}") } else { name }
}

fn unescaped(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(text.into());
    }
    let mut name = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        name.push_str(before);
        name.push(match after.get(..2)? {
            "2F" | "2f" => '/',
            "25" => '%',
            _ => return None,
        });
        rest = &after[2..];
    }
    name.push_str(rest);
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("valid")
    }

    #[test]
    fn slashes_in_report_names_are_escaped() {
        let view = |text, has_below| {
            let (at, mode) = (crate::time::Time::ZERO, engine::Mode::Exclusive);
            let (holders, waiters) = (Vec::new(), Vec::new());
            let name = name(text);
            LockView { name, at, mode, holders, waiters, has_below, previous: None, hold_off: None }
        };
        for text in ["build", "team/build", "100%", "%2F", "a%/b"] {
            for has_below in [false, true] {
                let written = report_of(&view(text, has_below));
                assert!(!written.contains('/'), "{written}");
                let (read, form) = reported(None, OsStr::new(&written)).expect("a name");
                assert_eq!(read, name(text), "{written}");
                assert!(!has_below || form == SpelledName::Escaped, "{written} is a file");
            }
        }
        assert_eq!(report_of(&view("a/b%", false)), "a%2Fb%25");
        for wrong in ["%", "%2", "%41", "a%2"] {
            assert_eq!(unescaped(wrong), None, "{wrong}");
            assert!(reported(None, OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_start_now_or_at_a_number() {
        assert_eq!(events("events"), Some(ControlFile::Events(None)));
        assert_eq!(events("events@0"), Some(ControlFile::Events(Some(0))));
        assert_eq!(events("events@17"), Some(ControlFile::Events(Some(17))));
        for wrong in ["event", "events@", "events@x", "events@-1", "events@+1", "events17"] {
            assert_eq!(events(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn report_names_are_parsed() {
        let parsed = |parent: Option<&LockName>, text| {
            reported(parent, OsStr::new(text)).map_err(|(errno, _)| errno.code())
        };
        let team = name("team");
        assert_eq!(parsed(None, "team%2Fbuild"), Ok((name("team/build"), SpelledName::Escaped)));
        assert_eq!(parsed(Some(&team), "build"), Ok((name("team/build"), SpelledName::Plain)));
        assert_eq!(parsed(Some(&team), "x%2Fy"), Ok((name("team/x/y"), SpelledName::Escaped)));
        assert_eq!(parsed(None, "team"), Ok((name("team"), SpelledName::Plain)));
        assert_eq!(parsed(None, "%2Fteam"), Ok((name("team"), SpelledName::Escaped)));
        for wrong in ["..", ".latchfs", "%2F", "team%2F", "%2F%2Fteam", "a\nb"] {
            assert_eq!(parsed(None, wrong), Err(libc::EINVAL), "{wrong}");
        }
        assert_eq!(parsed(None, &"x".repeat(256)), Err(libc::ENAMETOOLONG));
    }
}
