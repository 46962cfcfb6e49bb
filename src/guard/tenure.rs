//! A tenure: the time in which this guard holds the lock of its folder under one fencing token.
//!
//! The tenures that go on beside a new one, where many machines hold the lock of a folder at once
//! (`--mode shared`). The fence of the new tenure spares their stages.

use crate::engine::Token;
use crate::holder_id::LoginSession;
use crate::time::{Span, Time, Wall};
use barrier::tenure_id::TenureId;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// The clocks on which a guard relies to know that it still holds the lock.
pub(crate) trait TenureClock: Send + Sync {
    /// Returns the boot clock.
    fn now(&self) -> Time;
    /// Returns the boot time until which the lock service certainly keeps the lock of the current
    /// tenure; [`Time::ZERO`] if the lock is lost or was never held.
    fn surely_until(&self) -> Time;
    /// Returns how long the machine has slept since it was booted.
    fn slept(&self) -> Span {
        Span::ZERO
    }
}

/// The programs for which a tenure is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// All programs of this machine.
    Host,
    /// All programs of the user with this uid.
    User(u32),
    /// All programs of a user in one login session.
    Session(LoginSession),
}

impl Owner {
    /// Whether the programs of `other` belong to this owner too.
    pub(crate) fn includes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Session(own), Self::Session(other)) => own.includes(other),
            _ => self == other,
        }
    }

    /// Whether a program that was refused may try again: the login session has not ended, as far
    /// as that is known.
    pub(crate) fn may_return(self) -> bool {
        match self {
            Self::Host | Self::User(_) => true,
            Self::Session(LoginSession { leader, .. }) => leader.at == 0 || is_there(leader.pid),
        }
    }

    /// Returns the clause that says for whom the lock is held, and since when programs may write.
    pub(crate) fn holds(self, since: Option<Wall>) -> String {
        let program = match self {
            Self::Host | Self::User(_) => String::new(),
            Self::Session(session) => leader_name(session),
        };
        let since = since.map(|since| format!(" since {}", since.to_minute())).unwrap_or_default();
        format!("{self}{program} holds the lock of this folder{since}")
    }
}

/// Whether a process has this pid. Its start is not asked for, which would read its state where the
/// kernel has no pidfs: a process that closes a file of the view meanwhile could not be looked at.
#[cfg(target_os = "linux")]
fn is_there(pid: u32) -> bool {
    let gone = Some(libc::ESRCH);
    crate::holder_id::pidfd_of(pid).map_or_else(|error| error.raw_os_error() != gone, |_| true)
}

/// Whether a process has this pid, as far as that is known.
#[cfg(not(target_os = "linux"))]
const fn is_there(_pid: u32) -> bool {
    true
}

/// Returns the name of the program that began a login session, in brackets; nothing if it has
/// ended.
fn leader_name(session: LoginSession) -> String {
    let path = format!("/proc/{}/comm", session.leader.pid);
    let name = std::fs::read(Path::new(&path)).unwrap_or_default();
    let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
    if name.is_empty() { name } else { format!(" ({name})") }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Session(session) => session.fmt(f),
        }
    }
}

/// The tenures of a folder that the lock service named as live after it had granted a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveTenures {
    /// The new tenure.
    pub(crate) newest: TenureId,
    /// The tokens of the tenures that were live then.
    pub(crate) tokens: BTreeSet<Token>,
}

impl LiveTenures {
    /// Whether the fence of the new tenure spares the stage with this name. A greater token may be
    /// one that was granted after the lock service had named the live tenures.
    pub(super) fn spares(&self, stage: &OsStr) -> bool {
        let tenure = stage.to_str().and_then(TenureId::parse);
        tenure.is_some_and(|tenure| {
            let is_later = tenure.token > self.newest.token;
            tenure.engine == self.newest.engine && (is_later || self.tokens.contains(&tenure.token))
        })
    }
}

#[cfg(test)]
mod live_tenures_tests {
    use super::*;

    #[test]
    fn live_and_later_tenures_are_spared() {
        let of = |token| TenureId { engine: 7, token: Token::named(token) };
        let tokens = [3, 9].map(Token::named).into();
        let live = LiveTenures { newest: of(9), tokens };
        let spares = |tenure: TenureId| live.spares(OsStr::new(&tenure.to_string()));
        assert!(spares(of(3)) && spares(of(9)) && spares(of(10)));
        assert!(!spares(of(8)) && !spares(TenureId { engine: 8, ..of(3) }));
        assert!(!live.spares(OsStr::new("unknown")));
    }
}
