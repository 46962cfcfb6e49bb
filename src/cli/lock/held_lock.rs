//! A lock that a command of this program holds while another program works: how it is acquired,
//! watched and released.
//!
//! Renewal of a mount's lease that is bound to no process: `run` renews it while any process that
//! its command has started is alive.
//!
//! Watches a lease from outside of the daemon, to know until when the lease is surely valid.
//!
//! A thread reads the lock's status. It polls the status file of a mount, so that it reads again as
//! soon as the lock's phase (held, grace or free) or its holder changes; it queries a server
//! periodically. A status is valid until the expiry that it shows, counted from before the request
//! was sent; a failed read changes nothing.
//!
//! The `hold` command: holds a lock until Ctrl-C, for work that a person does.
//!
//! The progress of a wait, on standard error: a line when the wait begins, and one whenever the
//! place in the queue, the holder or its note changes.
//!
//! A thread reads the lock's status while the request waits. A request that is granted at once
//! costs no read.

use crate::cli::argument_types::span;
use crate::cli::connect::mount_client::{LockClient, no_answer, own_status};
use crate::cli::connect::target::{CommandTarget, TargetArgs};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::lock::lock_commands::{ModeArgs, NameArg, TermArgs};
use crate::cli::output;
use crate::cli::run::children::{Signals, is_end, wake};
use crate::cli::status_table::{Status, held_by};
use crate::control::ControlRequest;
use crate::control::control_request::{AcquireRequest, LeaseOptions};
use crate::engine::LockName;
use crate::engine::values::lease::GRACE_OF_PROCESS;
use crate::engine::{QueuePolicy, Token};
use crate::time::{Span, Time, boot_now};
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{io, thread};

/// How a lock is requested.
pub(in crate::cli) struct HoldTerms {
    pub(in crate::cli) mode: ModeArgs,
    pub(in crate::cli) term: TermArgs,
    /// Whether and for how long the request waits in the queue.
    pub(in crate::cli) queue: QueuePolicy,
}

/// A lock that this process holds.
pub(in crate::cli) struct HeldLock {
    pub(in crate::cli) ctl: Arc<dyn LockClient>,
    pub(in crate::cli) name: LockName,
    pub(in crate::cli) token: u64,
    /// The number of the seat, from 0 on, if the lock has seats.
    pub(in crate::cli) seat: Option<u64>,
    pub(in crate::cli) ttl: Span,
    pub(in crate::cli) grace: Span,
}

impl HoldTerms {
    /// Acquires the lock `name` for this process, and starts to watch its lease. `dir` is the mount
    /// of the lock, unless a server is asked.
    pub(in crate::cli) fn acquire(
        &self,
        ctl: Arc<dyn LockClient>,
        dir: Option<&Path>,
        name: &LockName,
    ) -> CliResult<(HeldLock, LeaseWatcher)> {
        let options = LeaseOptions {
            pid: Some(std::process::id()),
            mode: Some(self.mode.mode()),
            ..self.term.options()?
        };
        let ask = AcquireRequest { queue: self.queue, ..AcquireRequest::new(name, options) };
        let answer = wait(&ctl, name, &ControlRequest::Acquire(ask))?;
        let (token, status) = (answer["token"].as_u64(), own_status(answer));
        let number = |field: &str| status[field].as_u64();
        let (ttl, seat) = (number("ttl_ms"), number("seat"));
        let grace = Span::from_millis(number("grace_ms").unwrap_or(0));
        let (Some(token), Some(ttl)) = (token, ttl) else {
            return Err(CliError::unavailable(
                "the daemon's answer has no token; is it of this version?",
            ));
        };
        let ttl = Span::from_millis(ttl);
        let held = HeldLock { ctl, name: name.clone(), token, seat, ttl, grace };
        let sight = match dir {
            Some(dir) => LeaseReader::of_mount(dir, name, token),
            None => LeaseReader::of_server(Arc::clone(&held.ctl), name, token),
        };
        Ok((held, LeaseWatcher::seen(sight, ttl)?))
    }
}

impl HeldLock {
    pub(in crate::cli) fn release(&self) -> CliResult {
        self.send(&ControlRequest::end_of(&self.name, Token::named(self.token)))
    }

    pub(in crate::cli) fn send(&self, request: &ControlRequest) -> CliResult {
        self.ctl.request(request).map(drop)
    }
}

/// The number of renewals within each ttl.
const RENEWALS_PER_TTL: u64 = 4;
/// The delay before the retry of a renewal that got no answer.
const RETRY: Span = Span::from_millis(100);

/// Renews one lease on a thread of its own.
pub(in crate::cli) struct LeaseRenewal {
    stopped: Arc<AtomicBool>,
}

impl LeaseRenewal {
    /// Renews the lease `token` from now on, until a renewal is refused or [`Self::stop`] is
    /// called.
    pub(in crate::cli) fn start(
        client: Arc<dyn LockClient>,
        name: &LockName,
        token: u64,
        ttl: Span,
    ) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let period = Span::from_nanos(ttl.as_nanos() / RENEWALS_PER_TTL);
        let token = Some(Token::named(token));
        let options = LeaseOptions { token, ..LeaseOptions::default() };
        let request = ControlRequest::renewal(name, options);
        thread::Builder::new().name("renewal".into()).spawn(move || {
            let mut pause = period;
            loop {
                thread::sleep(pause.as_duration());
                if is_stopped.load(Ordering::Acquire) {
                    return;
                }
                pause = match client.request(&request) {
                    Ok(_) => period,
                    // A refusal means that the lease is over, so the renewals end. The lease
                    // watcher of `run` detects the loss by itself.
                    Err(CliError::Said(Exit::Lost | Exit::Denied, _)) => return,
                    Err(_) => RETRY.min(period),
                };
            }
        })?;
        Ok(Self { stopped })
    }

    /// Stops the renewals, so that the lease expires at the end of its ttl.
    pub(in crate::cli) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }
}

/// The maximum interval between two reads of the status. On a mount, `poll` reports changes at
/// once, so the interval only delays the knowledge of renewals.
const POLL_MAX: Span = Span::from_secs(1);
/// The minimum interval between two reads of the status, used with a ttl of 1 s and after a failed
/// read.
const POLL_MIN: Span = Span::from_millis(100);
/// The size of one read of a status file: larger than the status, unless hundreds of clients share
/// the lock; then several reads are needed.
const STATUS_BYTES: usize = 16 << 10;

/// Watches one lease on a thread of its own.
pub(in crate::cli) struct LeaseWatcher {
    /// The time until which the lease is certainly valid, in nanoseconds of the boot clock; 0 if
    /// the lease has ended.
    sure: Arc<AtomicU64>,
    sight: LeaseReader,
    /// The maximum interval between two reads of the lock's status.
    period: Span,
}

/// Reads from a lock's status how long one lease will last.
pub(in crate::cli) struct LeaseReader {
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
    pub(in crate::cli) fn seen(mut sight: LeaseReader, ttl: Span) -> CliResult<Self> {
        let sure = Arc::new(AtomicU64::new(sight.valid_until()?.as_nanos()));
        let period = Span::from_nanos(ttl.as_nanos() / 10).as_duration();
        let period = period.clamp(POLL_MIN.as_duration(), POLL_MAX.as_duration()).into();
        Ok(Self { sure, sight, period })
    }

    /// Continues to read the status on a separate thread, because a suspended daemon answers late
    /// and must not block the caller. Calls `woken` when the lease ends earlier than was known.
    pub(in crate::cli) fn follow(self, woken: impl Fn() + Send + 'static) -> LeaseValidity {
        let Self { sure, mut sight, period } = self;
        let known = LeaseValidity { sure: Arc::clone(&sure), period };
        thread::spawn(move || {
            loop {
                sight.rest(period);
                let Ok(until) = sight.valid_until() else { continue };
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
pub(in crate::cli) struct LeaseValidity {
    sure: Arc<AtomicU64>,
    period: Span,
}

impl LeaseValidity {
    /// Returns the validity of a lease that another thread watches: the time in nanoseconds of the
    /// boot clock, and how often that thread polls.
    pub(in crate::cli) const fn of(sure: Arc<AtomicU64>, period: Span) -> Self {
        Self { sure, period }
    }

    /// Returns the time on the boot clock until which the lease is surely valid; `Time::ZERO` if
    /// the lease is over.
    pub(in crate::cli) fn sure(&self) -> Time {
        Time::from_nanos(self.sure.load(Ordering::Acquire))
    }

    /// Returns the maximum time for which a caller may sleep before it checks the lease again,
    /// because a sleep does not count the time for which the machine is suspended.
    pub(in crate::cli) const fn period(&self) -> Span {
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
    pub(in crate::cli) fn of_mount(dir: &Path, name: &LockName, token: u64) -> Self {
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
    fn valid_until(&mut self) -> CliResult<Time> {
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
            StatusSource::Mount { file: None, .. } => return thread::sleep(POLL_MIN.as_duration()),
            StatusSource::Mount { file: Some(file), .. } => file,
        };
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: `poll` is one valid pollfd, which outlives the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, period.as_millis() as i32) };
        if ready < 0 || poll.revents & !libc::POLLPRI != 0 {
            // The mount's daemon is gone. `poll` then returns at once each time, so this thread
            // sleeps before the next read.
            thread::sleep(POLL_MIN.as_duration());
        }
    }
}

impl StatusSource {
    /// Returns the current status of the lock.
    fn status(&mut self) -> CliResult<Value> {
        match self {
            Self::Server { ask, name } => {
                let mut answer = ask.wait(&ControlRequest::Status(name.clone()))?;
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

/// The arguments of `latchfs hold`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct HoldArgs {
    #[command(flatten)]
    name: NameArg,
    #[command(flatten)]
    target: TargetArgs,
    /// Wait in the queue for at most this long: 10m, 1h30m, or seconds [default: for ever]
    #[arg(long, visible_alias = "timeout", value_name = "DURATION", value_parser = span,
        conflicts_with = "try_only")]
    wait: Option<Span>,
    /// Do not wait: exit with 75 if another has the lock
    #[arg(long = "try")]
    try_only: bool,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    term: TermArgs,
}

pub(in crate::cli) fn run(args: &HoldArgs) -> CliResult {
    // The signals are taken before the first thread is started, which inherits the mask.
    let signals = Signals::take().map_err(|error| CliError::system("signals", &error))?;
    let CommandTarget { ask, place, name } = args.target.asking(&args.name.name)?;
    let terms = HoldTerms {
        mode: args.mode,
        term: args.term.clone(),
        queue: if args.try_only { QueuePolicy::Skip } else { QueuePolicy::Join(args.wait) },
    };
    let (held, tenure) =
        signals.end_or(|| ask.close(), || terms.acquire(Arc::clone(&ask), place.dir(), &name))?;
    let token = held.token;
    let seat = held.seat.map(|seat| format!(", seat {seat}")).unwrap_or_default();
    let begun = output::line(&format!("holding {name}: token {token}{seat}; Ctrl-C releases it"));
    if begun.is_err() {
        held.release()?;
        return begun;
    }
    let known = tenure.follow(wake);
    loop {
        let left = known.sure().since(boot_now());
        if left == Span::ZERO {
            return Err(CliError::Said(
                Exit::Lost,
                format!(
                    "lock '{name}' was lost (token {token}), so stop the work that it guards; see \
                     'latchfs status {name}' for its holder"
                ),
            ));
        }
        if signals.next(left.min(known.period()).as_duration()).is_some_and(is_end) {
            held.release()?;
            held.ctl.close();
            return output::line(&format!("released {name}"));
        }
    }
}

/// How long a request waits before the first read of the status.
const FIRST_POLL: Span = Span::from_millis(100);
/// The interval between two reads of the status after a change. It doubles with each read that
/// finds no change.
const POLL: Span = Span::from_secs(1);
/// The longest interval between two reads of the status, at the head of the queue.
const SLOW_POLL: Span = Span::from_secs(4);
/// The shortest interval of a waiter is this times its place: a status lists the whole queue, so
/// the reads of a long queue would cost the server the square of its length.
const POLL_PER_PLACE: Span = Span::from_millis(50);

/// The end of a wait, for the thread that tells its progress.
#[derive(Default)]
struct WaitOver {
    is_over: Mutex<bool>,
    ended: Condvar,
}

/// The place of one waiter in the queue of a lock, as last reported.
#[derive(Default)]
struct QueueWatch {
    /// When the waiter joined the queue, on the boot clock; it distinguishes the waiter from others
    /// of the same client.
    joined: Option<Time>,
    /// The last line, without for how long the lock was held.
    last_line: String,
}

/// Sends a request to acquire the lock `name`, and returns the answer. If the request waits in the
/// queue, tells the progress on standard error, unless the command line has `--quiet`.
pub(in crate::cli) fn wait(
    client: &Arc<dyn LockClient>,
    name: &LockName,
    request: &ControlRequest,
) -> CliResult<Value> {
    if !request.waits() {
        return client.request(request);
    }
    if output::is_quiet() {
        return client.wait(request);
    }
    let over = Arc::new(WaitOver::default());
    let (watched, asked, lock) = (Arc::clone(&over), Arc::clone(client), name.clone());
    let report = move || watched.report_progress(&*asked, &lock);
    // If the thread can't be started, the wait goes on without progress messages.
    let _ = thread::Builder::new().name("progress".into()).spawn(report);
    let answer = client.wait(request);
    *over.is_over.lock() = true;
    over.ended.notify_all();
    answer
}

impl WaitOver {
    fn report_progress(&self, client: &dyn LockClient, name: &LockName) {
        let mut watch = QueueWatch::default();
        let mut pause = FIRST_POLL;
        while !self.ends_within(pause) {
            // Each pause is twice as long as the last one, unless the queue place has changed.
            pause = Span::from_nanos(pause.as_nanos() * 2).min(SLOW_POLL);
            let asked = ControlRequest::Status(name.clone());
            let Ok(mut answer) = client.request_connected(&asked) else { continue };
            let (status, you) = (answer["status"].take(), answer["you"].take());
            let Some((line, place)) = watch.news(&status, &you) else { continue };
            let next = if line.is_some() { POLL } else { pause };
            pause = next.max(Span::from_nanos(POLL_PER_PLACE.as_nanos() * place));
            // The line is written with the mutex held, so that none comes after the end.
            let is_over = self.is_over.lock();
            if let Some(line) = line.filter(|_| !*is_over) {
                output::progress(&format!("waiting for lock '{name}', {line}"));
            }
        }
    }

    fn ends_within(&self, span: Span) -> bool {
        let mut is_over = self.is_over.lock();
        if !*is_over {
            self.ended.wait_for(&mut is_over, span.as_duration());
        }
        *is_over
    }
}

impl QueueWatch {
    /// Returns the place of this waiter in the queue, with a line that tells it if the line differs
    /// from the one before; `None` if the waiter is not in the queue.
    fn news(&mut self, status: &Value, you: &Value) -> Option<(Option<String>, u64)> {
        let (place, joined) = self.own_place(status, you)?;
        self.joined = self.joined.or(Some(joined));
        let line = |status| format!("place {place}: it is {}", held_by(Status(status)));
        let mut timeless = status.clone();
        timeless["held_ms"] = Value::Null;
        let timeless = line(&timeless);
        let news = (timeless != self.last_line).then(|| line(status));
        self.last_line = timeless;
        Some((news, place))
    }

    /// Returns the place of this waiter, counted from 1, and when it has joined the queue. Of
    /// several waiters of its client, the first look takes the last one.
    fn own_place(&self, status: &Value, you: &Value) -> Option<(u64, Time)> {
        let now = boot_now();
        let own = (1..).zip(status["waiters"].as_array()?).filter_map(|(place, waiter)| {
            let waited = Span::from_millis(waiter["waited_ms"].as_u64()?);
            (waiter["client"] == *you).then(|| (place, now - waited))
        });
        match self.joined {
            None => own.last(),
            Some(joined) => own.min_by_key(|(_, at)| at.since(joined).max(joined.since(*at))),
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
        assert_eq!(seen.period, POLL_MAX);
        // The lock is shared: the lease that is watched (token 7) is one of two, and not the first.
        say(r#"{"token": 3, "expires_in_ms": 1,
                "holders": [{"token": 3, "expires_in_ms": 1},
                            {"token": 7, "expires_in_ms": 50}]}"#);
        let valid_until = |seen: &mut LeaseWatcher| seen.sight.valid_until().ok();
        assert!(valid_until(&mut seen).expect("readable") >= asked_at + Span::from_millis(50));
        say(r#"{"token": 8, "expires_in_ms": 60000}"#);
        assert_eq!(valid_until(&mut seen), Some(Time::ZERO));
        say("no JSON");
        assert_eq!(valid_until(&mut seen), None);
        let StatusSource::Mount { file, .. } = &seen.sight.through else { panic!("a mount") };
        assert!(file.is_none(), "opened anew the next time");
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

#[cfg(test)]
mod wait_progress_tests {
    use super::*;
    use serde_json::json;

    fn queue(waiters: &[(&str, u64)], note: &str) -> Value {
        let waiters: Vec<_> = waiters
            .iter()
            .map(|(client, waited)| json!({"client": client, "waited_ms": waited}))
            .collect();
        json!({"name": "x", "phase": "held", "holder": "h", "note": note, "waiters": waiters})
    }

    #[test]
    fn a_line_is_reported_once_for_each_change() {
        let (mut watch, you) = (QueueWatch::default(), json!("me"));
        let mut line = |status| watch.news(&status, &you).map(|(line, _)| line.unwrap_or_default());
        let first = line(queue(&[("me", 900_000), ("a", 800_000), ("me", 0)], ""));
        assert_eq!(first.as_deref(), Some("place 3: it is held by h"));
        // Another waiter joins behind, and the other one of this client stays in front.
        let queued = [("me", 900_000), ("a", 800_000), ("me", 1), ("b", 0)];
        assert_eq!(line(queue(&queued, "")).as_deref(), Some(""));
        let nearer = line(queue(&[("me", 900_100), ("me", 100)], "")).expect("it waits");
        assert_eq!(nearer, "place 2: it is held by h");
        let noted = line(queue(&[("me", 900_100), ("me", 100)], "soon")).expect("it waits");
        assert_eq!(noted, "place 2: it is held by h (note: soon)");
        let mut held = queue(&[("me", 900_100), ("me", 100)], "");
        held["held_ms"] = 252_000.into();
        assert_eq!(
            line(held.clone()).as_deref(),
            Some("place 2: it is held by h, taken 4m12s ago")
        );
        held["held_ms"] = 256_000.into();
        assert_eq!(line(held).as_deref(), Some(""), "time alone is no change");
        assert_eq!(line(json!({"phase": "free"})), None);
    }
}
