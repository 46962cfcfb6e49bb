//! Watches a lease from outside of the daemon, to know until when the lease is surely valid.
//!
//! A thread reads the lock's status. It polls the status file of a mount, so that it reads again as
//! soon as the lock's phase (held, grace or free) or its holder changes; it queries a server
//! periodically. A status is valid until the expiry that it shows, counted from before the request
//! was sent; a failed read changes nothing.

use super::exit::CliResult;
use super::mount_client::{LockClient, no_answer};
use crate::engine::LockName;
use crate::engine::lease_terms::GRACE_OF_PROCESS;
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

/// The maximum interval between two reads of the status. On a mount, `poll` reports changes at
/// once, so the interval only delays the knowledge of renewals.
const LOOK_MAX: Span = Span::from_secs(1);
/// The minimum interval between two reads of the status, used with a ttl of 1 s and after a failed
/// read.
const LOOK_MIN: Span = Span::from_millis(100);
/// The size of one read of a status file: larger than the status, unless hundreds of clients share
/// the lock; then several reads are needed.
const STATUS_BYTES: usize = 16 << 10;

/// Watches one lease on a thread of its own.
pub(super) struct LeaseWatcher {
    /// The time until which the lease is certainly valid, in nanoseconds of the boot clock; 0 if
    /// the lease has ended.
    sure: Arc<AtomicU64>,
    sight: LeaseReader,
    /// The maximum interval between two reads of the lock's status.
    period: Span,
}

/// Reads from a lock's status how long one lease will last.
pub(super) struct LeaseReader {
    through: StatusSource,
    token: u64,
}

/// The source of a lock's status: a mount or a server.
enum StatusSource {
    /// The status file of a mount: its path, and the open file. `file` is `None` after a failed
    /// read, because another daemon may serve the mount by now, and the file must be opened again.
    Mount { dir: PathBuf, path: PathBuf, file: Option<File> },
    /// A server that answers requests for the lock's status.
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

    /// Continues to read the status on a separate thread, because a suspended daemon answers late
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

/// The time until which the watched lease is surely valid.
pub(super) struct LeaseValidity {
    sure: Arc<AtomicU64>,
    period: Span,
}

impl LeaseValidity {
    /// Returns the validity of a lease that another thread watches: the time in nanoseconds of the
    /// boot clock, and how often that thread looks.
    pub(super) const fn of(sure: Arc<AtomicU64>, period: Span) -> Self {
        Self { sure, period }
    }

    /// Returns the time on the boot clock until which the lease is surely valid; `Time::ZERO` if
    /// the lease is over.
    pub(super) fn sure(&self) -> Time {
        Time::from_nanos(self.sure.load(Ordering::Acquire))
    }

    /// Returns the maximum time for which a caller may sleep before it checks the lease again,
    /// because a sleep does not count the time for which the machine is suspended.
    pub(super) const fn period(&self) -> Span {
        self.period
    }
}

/// Returns for how long a lease is surely valid, from the status of its holder. After a restart of
/// the daemon a lease may last as long as its process. If that daemon is killed, nobody else gets
/// the lock within the grace of such leases, which begins when an engine starts again.
fn left(holder: &Value) -> Span {
    match holder["lasts"].as_str() {
        Some(_) => GRACE_OF_PROCESS.span(),
        None => Span::from_millis(holder["expires_in_ms"].as_u64().unwrap_or(0)),
    }
}

impl LeaseReader {
    /// Returns a reader of the lease `token` on a lock of the mount at `dir`.
    pub(super) fn of_mount(dir: &Path, name: &LockName, token: u64) -> Self {
        // The slashes of the lock's name are encoded as `%2F`. Without that, the path would be a
        // directory if there are locks below the name.
        let name = name.as_str().replace('%', "%25").replace('/', "%2F");
        let path = dir.join(".latchfs/status").join(format!("%2F{name}"));
        Self { through: StatusSource::Mount { dir: dir.into(), path, file: None }, token }
    }

    /// Returns a reader of the lease `token` on a lock of a server.
    pub(super) fn of_server(ask: Arc<dyn LockClient>, name: &LockName, token: u64) -> Self {
        Self { through: StatusSource::Server { ask, name: name.clone() }, token }
    }

    /// Returns the time until which the lease is surely valid, computed from the remaining time in
    /// the status and the time at which the request was sent; `Time::ZERO` if the lease is over.
    fn look(&mut self) -> CliResult<Time> {
        let asked_at = boot_now();
        let status = self.through.status()?;
        let more = status["holders"].as_array().into_iter().flatten();
        let own = std::iter::once(&status).chain(more).find(|holder| holder["token"] == self.token);
        Ok(own.map_or(Time::ZERO, |holder| asked_at + left(holder)))
    }

    /// Sleeps until the lock's status has changed, or for `period`.
    #[allow(unsafe_code)]
    fn rest(&self, period: Span) {
        let file = match &self.through {
            StatusSource::Server { .. } => return thread::sleep(period.as_duration()),
            StatusSource::Mount { file: None, .. } => return thread::sleep(LOOK_MIN.as_duration()),
            StatusSource::Mount { file: Some(file), .. } => file,
        };
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: `poll` is one valid pollfd, which outlives the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, period.as_millis() as i32) };
        if ready < 0 || poll.revents & !libc::POLLPRI != 0 {
            // The mount's daemon is gone. `poll` then returns at once each time, so this thread
            // sleeps before the next read.
            thread::sleep(LOOK_MIN.as_duration());
        }
    }
}

impl StatusSource {
    /// Returns the current status of the lock.
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

/// Reads the whole status file of a lock from its beginning.
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

    /// The test writes a status file itself, in place of a mount, and checks after each change
    /// until when the lease counts as valid.
    #[test]
    fn lease_validity_follows_the_status_file() {
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
        // The lock is shared: the lease that is watched (token 7) is one of two, and not the first.
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
