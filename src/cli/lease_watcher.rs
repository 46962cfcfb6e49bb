//! Watches a lease from outside of the daemon: until when the lock is surely ours.
//!
//! A thread reads the lock's status. On a mount it polls the status file, and so reads again as
//! soon as the phase or the holder changes; a server it queries periodically. A status is valid
//! until the expiry that it shows, counted from before the request was sent; a read that fails
//! changes nothing.

use super::exit::CliResult;
use super::mount_client::{LockClient, no_answer};
use crate::engine::LockName;
use crate::time::{Span, Time, boot_now};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Between two looks at most. A change is told by poll; the rest is learning of renewals.
const LOOK_MAX: Span = Span::from_secs(1);
/// The same with a ttl of 1 s, and between two looks that fail.
const LOOK_MIN: Span = Span::from_millis(100);
/// More than a status has that is not shared by hundreds; then it is read in parts.
const STATUS_BYTES: usize = 16 << 10;

/// Watches one lease on a thread of its own.
pub(super) struct LeaseWatcher {
    /// Until when it is surely ours, in nanoseconds of the boot clock. 0: it is over.
    sure: Arc<AtomicU64>,
    sight: LeaseReader,
    /// Between two looks.
    period: Span,
}

/// Reads the remaining time of one lease.
pub(super) struct LeaseReader {
    through: StatusSource,
    token: u64,
}

/// The source of a lock's status: a mount or a server.
enum StatusSource {
    /// A mount's file, below `dir`. `file` is `None` after a failure: another daemon may serve the
    /// mount by now.
    Mount { dir: PathBuf, path: PathBuf, file: Option<File> },
    /// A server's answers.
    Server { ask: Arc<dyn LockClient>, name: LockName },
}

impl LeaseWatcher {
    /// Reads the status once, and returns a watcher that starts from the result.
    pub(super) fn seen(mut sight: LeaseReader, ttl: Span) -> CliResult<Self> {
        let sure = Arc::new(AtomicU64::new(sight.look()?.as_nanos()));
        let period = Span::from_nanos(ttl.as_nanos() / 10).as_duration();
        let period = period.clamp(LOOK_MIN.as_duration(), LOOK_MAX.as_duration()).into();
        Ok(Self { sure, sight, period })
    }

    /// Reads on from now on, on a thread of its own, because a daemon that is stopped answers late
    /// and must not block the caller. Calls `woken` when the lease ends earlier than was known.
    pub(super) fn follow(self, woken: impl Fn() + Send + 'static) -> LeaseValidity {
        let Self { sure, mut sight, period } = self;
        let known = LeaseValidity { sure: Arc::clone(&sure), period };
        thread::spawn(move || {
            loop {
                sight.rest(period);
                let Ok(until) = sight.look() else { continue };
                let before = sure.swap(until.as_nanos(), Ordering::AcqRel);
                if until.as_nanos() < before {
                    woken();
                }
            }
        });
        known
    }
}

/// Until when the watched lease is surely ours.
pub(super) struct LeaseValidity {
    sure: Arc<AtomicU64>,
    period: Span,
}

impl LeaseValidity {
    /// Until when it is surely ours, on the boot clock. `Time::ZERO`: it is over.
    pub(super) fn sure(&self) -> Time {
        Time::from_nanos(self.sure.load(Ordering::Acquire))
    }

    /// How long one may sleep at most: a sleep does not count the sleep of the machine.
    pub(super) const fn period(&self) -> Span {
        self.period
    }
}

impl LeaseReader {
    /// On the tenure `token` of a lock of the mount at `dir`.
    pub(super) fn of_mount(dir: &Path, name: &LockName, token: u64) -> Self {
        // So written, a name is a file whatever lies below it.
        let name = name.as_str().replace('%', "%25").replace('/', "%2F");
        let path = dir.join(".latchfs/status").join(format!("%2F{name}"));
        Self { through: StatusSource::Mount { dir: dir.into(), path, file: None }, token }
    }

    /// On the tenure `token` of a lock of a server.
    pub(super) fn of_server(ask: Arc<dyn LockClient>, name: &LockName, token: u64) -> Self {
        Self { through: StatusSource::Server { ask, name: name.clone() }, token }
    }

    /// Until when the tenure is surely ours, counted from before asking. `Time::ZERO`: it is over.
    fn look(&mut self) -> CliResult<Time> {
        let asked_at = boot_now();
        let status = self.through.status()?;
        let more = status["holders"].as_array().into_iter().flatten();
        let own = std::iter::once(&status).chain(more).find(|holder| holder["token"] == self.token);
        let left = own.map(|holder| holder["expires_in_ms"].as_u64().unwrap_or(0));
        Ok(left.map_or(Time::ZERO, |left| asked_at + Span::from_millis(left)))
    }

    /// Sleeps until something has changed, or so long.
    #[allow(unsafe_code)]
    fn rest(&self, period: Span) {
        let file = match &self.through {
            StatusSource::Server { .. } => return thread::sleep(period.as_duration()),
            StatusSource::Mount { file: None, .. } => return thread::sleep(LOOK_MIN.as_duration()),
            StatusSource::Mount { file: Some(file), .. } => file,
        };
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: one valid pollfd, which lives through the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, period.as_millis() as i32) };
        if ready < 0 || poll.revents & !libc::POLLPRI != 0 {
            // The daemon is gone, which poll tells again and again.
            thread::sleep(LOOK_MIN.as_duration());
        }
    }
}

impl StatusSource {
    /// The lock's status as it is now.
    fn status(&mut self) -> CliResult<Value> {
        match self {
            Self::Server { ask, name } => {
                let mut answer = ask.wait(&json!({"do": "status", "name": name.as_str()}))?;
                Ok(answer["status"].take())
            }
            Self::Mount { dir, path, file } => {
                let read = || -> io::Result<(File, Value)> {
                    let opened = match file.take() {
                        Some(opened) => opened,
                        None => File::open(path)?,
                    };
                    let status = read(&opened)?;
                    Ok((opened, status))
                };
                let (opened, status) = read().map_err(|error| no_answer(dir, &error))?;
                *file = Some(opened);
                Ok(status)
            }
        }
    }
}

/// Reads a status from its beginning.
fn read(file: &File) -> io::Result<Value> {
    let (mut text, mut part) = (Vec::new(), vec![0; STATUS_BYTES]);
    loop {
        match file.read_at(&mut part, text.len() as u64)? {
            0 => return serde_json::from_slice(&text).map_err(io::Error::from),
            length => text.extend_from_slice(&part[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that says what a status says, and another instead of it.
    #[test]
    fn what_was_seen_holds_until_something_else_is_seen() {
        let dir = std::env::temp_dir().join(format!("latchfs-tenure-{}", std::process::id()));
        std::fs::create_dir_all(dir.join(".latchfs/status")).expect("ours");
        let status = dir.join(".latchfs/status/%2Fteam%2Fbuild");
        let name = LockName::parse("team/build").expect("valid");
        let say = |text: &str| std::fs::write(&status, text).expect("ours");
        say(r#"{"token": 7, "expires_in_ms": 60000}"#);
        let asked_at = boot_now();
        let sight = LeaseReader::of_mount(&dir, &name, 7);
        let Ok(mut seen) = LeaseWatcher::seen(sight, Span::from_secs(60)) else {
            panic!("readable")
        };
        let sure = Time::from_nanos(seen.sure.load(Ordering::Relaxed));
        assert!(sure >= asked_at + Span::from_secs(60) && sure < boot_now() + Span::from_secs(60));
        assert_eq!(seen.period, LOOK_MAX);
        // Of a shared lock it is one of several.
        say(r#"{"token": 3, "expires_in_ms": 1,
                "holders": [{"token": 3, "expires_in_ms": 1},
                            {"token": 7, "expires_in_ms": 50}]}"#);
        let look = |seen: &mut LeaseWatcher| seen.sight.look().ok();
        assert!(look(&mut seen).expect("readable") >= asked_at + Span::from_millis(50));
        say(r#"{"token": 8, "expires_in_ms": 60000}"#);
        assert_eq!(look(&mut seen), Some(Time::ZERO));
        say("no JSON");
        assert_eq!(look(&mut seen), None);
        let StatusSource::Mount { file, .. } = &seen.sight.through else { panic!("a mount") };
        assert!(file.is_none(), "opened anew the next time");
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}
