//! The guard of a folder as `latchfs run --guard` uses it: takes the folder's lock, watches until
//! when it is certainly held, and gives it back.
//!
//! The guard is asked by a process of its own, the *watcher*. If the guard hangs, a process that
//! reads from its view may not be able to end, and must therefore be neither `run` itself nor one
//! of the processes whose end `run` waits for. The watcher keeps a connection with the guard: so
//! the guard knows that a program uses the lock, and does not give it up before that has ended.
//!
//! The connection of the watcher of `latchfs run --guard` with the guard, which takes the end of
//! the connection for the end of the program.
//!
//! The command `run --guard`: runs a command while a guard holds the lock of its folder. The
//! command starts when the folder is ready, and is dead before another machine can get the lock.

use super::children::{Signals, wake};
use super::supervisor::{Inheritance, SupervisedLease};
use super::{children, supervisor};
use crate::cli::exit::{CliError, CliResult, Exit};
use crate::cli::guard::endpoint::{AnswerWait, FolderConnection, GuardEndpoint};
use crate::cli::guard::guard_parts::PlaceArgs;
use crate::cli::lock::held_lock::LeaseValidity;
use crate::cli::run::run_command::{
    CommandEnd, NOTICE_AFTER_STEAL, RunArgs, Watched, code_of, not_run, run_on_lost,
};
use crate::engine::Ttl;
use crate::time::{Span, Time, boot_now};
#[cfg(target_os = "linux")]
use kernel::mountinfo;
use serde_json::{Value, json};
use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
#[cfg(target_os = "linux")]
use std::io::{Seek as _, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, thread};

/// The interval at which the state of the guard is polled.
const POLL: Span = Span::from_millis(100);
/// How long a watcher may take to answer a request.
const ANSWER_PATIENCE: Span = Span::from_secs(10);
/// How long a guard may take to write its last marker and give the lock back.
const GIVE_PATIENCE: Span = Span::from_secs(60);

/// The highest descriptor that is closed where the system can't close all of them at once.
#[cfg(not(target_os = "linux"))]
const DESCRIPTORS_CLOSED: libc::c_int = 1_024;

/// The guard of a folder.
pub(in crate::cli) struct GuardTarget {
    endpoint: GuardEndpoint,
    /// The arguments of `latchfs` that start the guard of a folder without a view.
    start: Vec<OsString>,
    watcher: UnixStream,
}

/// The lock of a folder, which is held and in use.
pub(in crate::cli) struct GuardedLock {
    pub(in crate::cli) token: u64,
    /// The name of the lock.
    pub(in crate::cli) name: String,
    /// Until when the lock is certainly held.
    pub(in crate::cli) until: Time,
    /// How long the lock stays held without a sign of life of the guard.
    pub(in crate::cli) ttl: Span,
}

impl GuardTarget {
    /// Returns the guard of a view, or of a folder that has none, and starts a watcher for it. The
    /// guard of a folder is started with the ttl and with the options `key`, which name the
    /// credentials. Must be called while the process has one thread.
    pub(in crate::cli) fn of(
        path: &Path,
        place: &PlaceArgs,
        ttl: Option<Ttl>,
        key: Vec<OsString>,
    ) -> CliResult<Self> {
        let endpoint = GuardEndpoint::find(Some(path), place)?;
        let has_options = ttl.is_some() || !key.is_empty();
        if has_options && !matches!(endpoint, GuardEndpoint::Folder(_)) {
            return Err(CliError::usage(
                "the guard of a view has its ttl and its credentials itself; leave these options \
                 out here",
            ));
        }
        let watcher =
            start_watcher(&endpoint).map_err(|error| CliError::system("the watcher", &error))?;
        let mut start = vec!["guard".into(), "take".into(), endpoint.dir().into()];
        start.extend(place.arguments());
        start.extend(key);
        start.extend(
            ttl.into_iter().flat_map(|ttl| ["--ttl".into(), ttl.span().to_string().into()]),
        );
        Ok(Self { endpoint, start, watcher })
    }

    /// Takes the lock, waits until the folder is ready, and tells the guard that a program uses the
    /// lock. Says what it waits for on standard error.
    pub(in crate::cli) fn take(&self, patience: Option<Span>) -> CliResult<GuardedLock> {
        let until = patience.map(|patience| boot_now() + patience);
        let mut taken_here = None;
        loop {
            let before = self.endpoint.status()?;
            let left = until.map(|until| until.since(boot_now()).as_millis());
            let wait = left.unwrap_or(u64::MAX);
            let request = json!({"do": "take", "wait_ms": wait});
            let status =
                self.endpoint.request(&request, AnswerWait::UntilStopped, Some(&self.start))?;
            let token = status["tenure"]["token"].as_u64();
            let name = status["lock"].as_str().unwrap_or_default().to_owned();
            let was_held = before["state"] == "holding" && before["tenure"] == status["tenure"];
            let Some(token) = token else { continue };
            if !was_held {
                taken_here = Some(token);
            }
            let gives = u8::from(taken_here == Some(token));
            let begun = self.send(&format!("{token} {gives}\n"))?;
            if begun["error"].is_null() {
                let until = sure(&begun, token);
                let ttl = Span::from_millis(begun["ttl_ms"].as_u64().unwrap_or_default());
                return Ok(GuardedLock { token, name, until, ttl });
            }
            // The guard has given the lock up before it knew of the use, or is about to.
            thread::sleep(POLL.as_duration());
        }
    }

    /// Sends a line to the watcher, and returns its answer.
    fn send(&self, line: &str) -> CliResult<Value> {
        let failed = |error| CliError::system("the guard can't be watched", &error);
        self.watcher.set_read_timeout(Some(ANSWER_PATIENCE.as_duration())).map_err(failed)?;
        (&self.watcher).write_all(line.as_bytes()).map_err(failed)?;
        let answer = read_line(&self.watcher).map_err(failed)?;
        self.watcher.set_read_timeout(None).map_err(failed)?;
        serde_json::from_str(&answer)
            .map_err(|error| CliError::unavailable(format!("the guard's answer: {error}")))
    }

    /// Watches until when the lock is certainly held, on a thread of its own. Calls `woken` when
    /// that ends earlier than was known.
    pub(in crate::cli) fn follow(
        &self,
        lock: &GuardedLock,
        woken: impl Fn() + Send + 'static,
    ) -> CliResult<LeaseValidity> {
        let known = Arc::new(AtomicU64::new(lock.until.as_nanos()));
        let (token, valid_until) = (lock.token, Arc::clone(&known));
        let lines = self.watcher.try_clone().map_err(|error| CliError::system("a copy", &error))?;
        let watch = move || {
            let lines = BufReader::new(lines).lines().map_while(Result::ok);
            let states = lines.map(|line| serde_json::from_str(&line).unwrap_or_default());
            // After its last line the watcher has ended, and nothing is known of the guard.
            for state in states.chain([Value::Null]) {
                let until = sure(&state, token).as_nanos();
                if until < valid_until.swap(until, Ordering::AcqRel) {
                    woken();
                }
            }
        };
        let started = thread::Builder::new().name("guard".into()).spawn(watch);
        started.map_err(|error| CliError::system("no thread can be made", &error))?;
        Ok(LeaseValidity::of(known, POLL))
    }

    /// Ends the use of the lock, and gives it back if [`Self::take`] took it.
    pub(in crate::cli) fn end(&self) {
        // If the watcher or the guard is gone, the lock is not held any more.
        let _ = (&self.watcher).write_all(b"end\n");
    }

    /// Ends the use of the lock, and waits until the lock is given back.
    pub(in crate::cli) fn end_and_wait(&self) {
        self.end();
        let _ = self.watcher.set_read_timeout(Some(GIVE_PATIENCE.as_duration()));
        let mut rest = [0; 4_096];
        while (&self.watcher).read(&mut rest).is_ok_and(|read| read > 0) {}
    }
}

/// Returns until when the guard certainly holds the lock, as its state says; `Time::ZERO` if it
/// does not, or if the program must end since the guard gives it up.
fn sure(state: &Value, token: u64) -> Time {
    let is_held = state["state"] == "holding" && state["tenure"]["token"] == token;
    match state["surely_until_ms"].as_u64() {
        _ if !is_held || state["must_end"] == true => Time::ZERO,
        Some(until) => Time::ZERO + Span::from_millis(until),
        // The engine runs in the guard's process, so no lost connection can end the lease.
        None => Time::NEVER,
    }
}

/// Reads a line byte by byte, so that what follows stays in the socket.
fn read_line(mut from: &UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") {
        from.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Closes all descriptors of this process but one.
#[allow(unsafe_code)]
fn close_all_but(kept: libc::c_int) {
    let close = |from: libc::c_int, to: libc::c_int| {
        #[cfg(target_os = "linux")]
        // SAFETY: the process has one thread, which uses none of these descriptors any more.
        unsafe {
            libc::syscall(libc::SYS_close_range, from, to, 0);
        }
        #[cfg(not(target_os = "linux"))]
        for fd in from..=to.min(DESCRIPTORS_CLOSED) {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    };
    close(0, kept - 1);
    close(kept + 1, libc::c_int::MAX);
}

/// Starts a watcher, which is no descendant of this process, and returns the connection to it.
#[allow(unsafe_code)]
fn start_watcher(endpoint: &GuardEndpoint) -> io::Result<UnixStream> {
    let (own, other) = UnixStream::pair()?;
    // SAFETY: the process has one thread, so the child finds no lock held. Neither child returns
    // from this block, nor uses a descriptor that was closed.
    let child = unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                // A signal to the foreground processes of the terminal must not end the watcher.
                libc::setpgid(0, 0);
                if libc::fork() == 0 {
                    close_all_but(other.as_raw_fd());
                    let work = std::panic::AssertUnwindSafe(|| watch(endpoint, &other));
                    let _ = std::panic::catch_unwind(work);
                }
                libc::_exit(0)
            }
            child => child,
        }
    };
    // SAFETY: the child was not waited for yet, so the id is its own.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    Ok(own)
}

/// In the watcher: keeps a connection with the guard, and sends the state of the guard over `run`
/// until that ends, or says so.
fn watch(endpoint: &GuardEndpoint, run: &UnixStream) -> io::Result<()> {
    let mut link = None;
    let (mut token, mut took) = (0, false);
    loop {
        let is_over = match wait_for_line(run, link.is_some()) {
            Some(Ok(request)) => {
                let mut words = request.split_whitespace();
                match (words.next().and_then(|word| word.parse().ok()), words.next()) {
                    (Some(begun), Some(word)) => (token, took) = (begun, word == "1"),
                    _ => return end(link.as_mut(), token, took),
                }
                let mut opened = GuardLink::open(endpoint)?;
                let answer = opened.exchange(&json!({"do": "use", "token": token}))?;
                let is_begun = !answer.contains("\"error\"");
                let mut run = run;
                run.write_all(answer.as_bytes())?;
                link = is_begun.then_some(opened);
                false
            }
            Some(Err(_)) => true,
            None => false,
        };
        if is_over {
            return Ok(());
        }
        if let Some(link) = &mut link {
            match link.exchange(&json!({"do": "status"})) {
                Ok(state) => {
                    let mut run = run;
                    run.write_all(state.as_bytes())?;
                }
                Err(error) if link.is_over(&error) => return Ok(()),
                Err(_) => {}
            }
        }
    }
}

/// Waits for a line from `run`: for a moment if the guard is watched, else until there is one.
/// Returns an error if `run` has ended.
#[allow(unsafe_code)]
fn wait_for_line(run: &UnixStream, is_watching: bool) -> Option<io::Result<String>> {
    let wait = if is_watching { POLL.as_millis() as libc::c_int } else { -1 };
    let mut wanted = libc::pollfd { fd: run.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `wanted` is one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, wait) };
    (ready != 0).then(|| read_line(run))
}

/// Ends the use of the lock, and gives it back if it was taken for that.
fn end(link: Option<&mut GuardLink>, token: u64, took: bool) -> io::Result<()> {
    let Some(link) = link else { return Ok(()) };
    link.exchange(&json!({"do": "end_use", "token": token, "give": took})).map(drop)
}

/// How long the watcher waits for the answer of a guard without a view. The caller that waits for
/// the watcher has a bound of its own.
const END_PATIENCE: Span = Span::from_secs(24 * 3_600);

/// A connection with a guard, which lasts as long as the program uses the lock.
pub(in crate::cli) enum GuardLink {
    /// The control file of a view.
    #[cfg(target_os = "linux")]
    View(File),
    /// The socket of a guard without a view.
    Folder(FolderConnection),
}

impl GuardLink {
    /// Connects to a guard that runs.
    pub(in crate::cli) fn open(endpoint: &GuardEndpoint) -> io::Result<Self> {
        match endpoint {
            #[cfg(target_os = "linux")]
            GuardEndpoint::View(view) => {
                let ctl = view.dir.join(".latchfs/ctl");
                Ok(Self::View(OpenOptions::new().read(true).write(true).open(ctl)?))
            }
            GuardEndpoint::Folder(folder) => match folder.connect() {
                Ok(Some(connection)) => Ok(Self::Folder(connection)),
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            },
        }
    }

    /// Sends a request to the guard, and returns its answer as a line.
    pub(in crate::cli) fn exchange(&mut self, request: &Value) -> io::Result<String> {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(ctl) => {
                ctl.seek(SeekFrom::Start(0))?;
                ctl.write_all(format!("{request}\n").as_bytes())?;
                ctl.seek(SeekFrom::Start(0))?;
                let mut answer = String::new();
                ctl.read_to_string(&mut answer)?;
                Ok(answer)
            }
            Self::Folder(connection) => {
                connection.send(request)?;
                let answer = connection.receive(END_PATIENCE)?;
                let answer = answer.ok_or(io::ErrorKind::TimedOut)?;
                Ok(String::from_utf8_lossy(&answer).into_owned())
            }
        }
    }

    /// Whether no more answers come after this error.
    pub(in crate::cli) fn is_over(&self, error: &io::Error) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(_) => mountinfo::is_dead(error),
            Self::Folder(_) => {
                log::debug!("the guard can't be asked any more: {error}");
                true
            }
        }
    }
}

/// How long before the end of the lease the command gets SIGTERM, if the lease is long. With a
/// short lease that is a fifth of it.
const ENDS_BEFORE: Span = Span::from_secs(10);
/// The lease that is reported to the front process. A guard renews its lease itself.
const UNUSED_TTL_MS: u64 = 0;

pub(in crate::cli) fn run(args: &RunArgs, path: &Path) -> CliResult {
    let place = PlaceArgs::new(args.target.client(), args.stage.clone());
    // Both this and `split` fork, and must run before any other thread is started.
    let guard = GuardTarget::of(path, &place, args.term.ttl, args.target.key_arguments())?;
    let front = supervisor::split(|_, step| {
        if step == Inheritance::Release {
            guard.end_and_wait();
        }
    })?;
    let patience = if args.try_only { Some(Span::ZERO) } else { args.wait };
    let signals = Signals::take().map_err(|error| CliError::system("signals", &error))?;
    let lock = signals.end_or(|| guard.end_and_wait(), || guard.take(patience))?;
    let mut command = args.command_line();
    command.env("LATCHFS_LOCK", &lock.name).env("LATCHFS_TOKEN", lock.token.to_string());
    let lease = SupervisedLease { token: lock.token, ttl_ms: UNUSED_TTL_MS };
    let watched = front.outlive(lease).and_then(|_| {
        let times = ending_times(&lock);
        Ok((guard.follow(&lock, wake)?, times))
    });
    let (known, times) = watched.inspect_err(|_| guard.end())?;
    let watched = Watched { known, times: &times, at_loss: &|| {}, lock: lock.name.clone() };
    let mut group = match children::Group::start(command, front.group()) {
        Ok(group) => group,
        Err(error) => {
            guard.end_and_wait();
            not_run(&args.command_line(), &error);
        }
    };
    let ended = watched.supervise(&mut group, &signals, &front);
    if matches!(ended, CommandEnd::Lost) {
        // The guard may hang, so nothing waits for its answer.
        guard.end();
    } else {
        guard.end_and_wait();
    }
    match ended {
        CommandEnd::Lost => {
            run_on_lost(args, &lock.name, lock.token, |_| {});
            Err(CliError::Said(Exit::Lost, why_lost(&lock, path)))
        }
        CommandEnd::Killed => Ok(()),
        CommandEnd::Exited(status) => match code_of(status) {
            0 => Ok(()),
            code => std::process::exit(code),
        },
    }
}

/// Returns how long before the end of the lease the command gets SIGTERM, and how long after
/// SIGTERM it gets SIGKILL. All processes are then dead before the lease ends, also if this process
/// has to wait for a busy machine: with a lease of 2 s, for up to 300 ms.
fn ending_times(lock: &GuardedLock) -> impl Fn(Time) -> (Span, Span) + use<> {
    let ttl = lock.ttl;
    let part = move |of: u64| Span::from_nanos(ttl.as_nanos() / of);
    move |sure| match sure {
        // The lock was stolen, or the guard is gone, or it waits for the end of the command.
        Time::ZERO => (Span::ZERO, part(10).min(NOTICE_AFTER_STEAL)),
        _ => (part(5).min(ENDS_BEFORE), part(20).min(NOTICE_AFTER_STEAL)),
    }
}

fn why_lost(lock: &GuardedLock, path: &Path) -> String {
    format!(
        "the folder's lock was lost or must be given up (token {}), so the command was ended; see \
         'latchfs guard status {}'",
        lock.token,
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guard learns of the loss of its lock a moment before its state says so.
    #[test]
    fn a_lock_that_is_lost_is_not_held_for_ever() {
        let state = |until: Value| {
            let tenure = json!({"token": 7});
            json!({"state": "holding", "tenure": tenure, "surely_until_ms": until})
        };
        assert_eq!(sure(&state(0.into()), 7), Time::ZERO);
        assert_eq!(sure(&state(2_000.into()), 7), Time::from_secs(2));
        assert_eq!(sure(&state(2_000.into()), 6), Time::ZERO);
        assert_eq!(sure(&state(Value::Null), 7), Time::NEVER, "the engine is in the guard");
    }

    /// A lock is taken at any time between two renewals of the lease. How soon the command ends
    /// depends on the whole lease, not on what is left of it then.
    #[test]
    fn a_command_ends_a_fifth_of_the_whole_lease_before_its_end() {
        let times_of = |ttl| {
            let until = Time::from_secs(1);
            ending_times(&GuardedLock { token: 1, name: "build".to_owned(), until, ttl })
        };
        let times = times_of(Span::from_secs(2));
        let (margin, notice) = times(Time::from_secs(7));
        assert_eq!((margin, notice), (Span::from_millis(400), Span::from_millis(100)));
        assert_eq!(times(Time::ZERO), (Span::ZERO, Span::from_millis(200)));
        let times = times_of(Span::from_secs(24 * 3_600));
        assert_eq!(times(Time::from_secs(7)), (ENDS_BEFORE, NOTICE_AFTER_STEAL));
    }
}
