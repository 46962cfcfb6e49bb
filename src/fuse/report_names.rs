//! Parses and writes the names of files in `.latchfs`: `events@N`, and the names of locks in
//! `status/`, `content/` and `wait/`.

use crate::engine::{LockName, LockView, NameError};
use crate::fuse::control_names::ControlFile;
use crate::fuse::errno::errno_of_name;
use crate::fuse::kernel::values::Errno;
use crate::fuse::lock_nodes::wrong_name;
use std::borrow::Cow;
use std::ffi::OsStr;

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
            let (at, mode) = (crate::time::Time::ZERO, crate::engine::Mode::Exclusive);
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
        let told = |parent: Option<&LockName>, text| {
            reported(parent, OsStr::new(text)).map_err(|(errno, _)| errno.code())
        };
        let team = name("team");
        assert_eq!(told(None, "team%2Fbuild"), Ok((name("team/build"), SpelledName::Escaped)));
        assert_eq!(told(Some(&team), "build"), Ok((name("team/build"), SpelledName::Plain)));
        assert_eq!(told(Some(&team), "x%2Fy"), Ok((name("team/x/y"), SpelledName::Escaped)));
        assert_eq!(told(None, "team"), Ok((name("team"), SpelledName::Plain)));
        assert_eq!(told(None, "%2Fteam"), Ok((name("team"), SpelledName::Escaped)));
        for wrong in ["..", ".latchfs", "%2F", "team%2F", "%2F%2Fteam", "a\nb"] {
            assert_eq!(told(None, wrong), Err(libc::EINVAL), "{wrong}");
        }
        assert_eq!(told(None, &"x".repeat(256)), Err(libc::ENAMETOOLONG));
    }
}
