//! The guard of a folder as `latchfs run --guard` uses it: takes the folder's lock, watches until
//! when it is certainly held, and gives it back.
//!
//! The guard is asked by a process of its own, the *watcher*. If the guard hangs, a process that
//! reads from its view may not be able to end, and must therefore be neither `run` itself nor one
//! of the processes whose end `run` waits for. The watcher keeps a connection with the guard: so
//! the guard knows that a program uses the lock, and does not give it up before that has ended.

use super::exit::{CliError, CliResult};
use super::folder_options::PlaceArgs;
use super::guard_answers::Waits;
use super::guard_endpoint::GuardEndpoint;
use super::guard_link::GuardLink;
use super::lease_watcher::LeaseValidity;
use crate::engine::Ttl;
use crate::time::{Span, Time, boot_now};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The interval between two looks at the state of the guard.
const LOOK: Span = Span::from_millis(100);
/// How long a watcher may take to answer a request.
const ANSWER_PATIENCE: Span = Span::from_secs(10);
/// How long a guard may take to write its last marker and give the lock back.
const GIVE_PATIENCE: Span = Span::from_secs(60);

/// The highest descriptor that is closed where the system can't close all of them at once.
#[cfg(not(target_os = "linux"))]
const DESCRIPTORS_CLOSED: libc::c_int = 1_024;

/// The guard of a folder.
pub(super) struct GuardTarget {
    endpoint: GuardEndpoint,
    /// The arguments of `latchfs` that start the guard of a folder without a view.
    start: Vec<OsString>,
    watcher: UnixStream,
}

/// The lock of a folder, which is held and in use.
pub(super) struct GuardedLock {
    pub(super) token: u64,
    /// The name of the lock.
    pub(super) name: String,
    /// Until when the lock is certainly held.
    pub(super) until: Time,
    /// How long the lock stays held without a sign of life of the guard.
    pub(super) ttl: Span,
}

impl GuardTarget {
    /// Returns the guard of a view, or of a folder that has none, and starts a watcher for it. The
    /// guard of a folder is started with the ttl and with the options `key`, which name the
    /// credentials. Must be called while the process has one thread.
    pub(super) fn of(
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
    pub(super) fn take(&self, patience: Option<Span>) -> CliResult<GuardedLock> {
        let until = patience.map(|patience| boot_now() + patience);
        loop {
            let before = self.endpoint.status()?;
            let left = until.map(|until| until.since(boot_now()).as_millis());
            let wait = left.unwrap_or(u64::MAX);
            let request = json!({"do": "take", "wait_ms": wait});
            let status = self.endpoint.ask(&request, Waits::UntilStopped, Some(&self.start))?;
            let token = status["tenure"]["token"].as_u64();
            let name = status["lock"].as_str().unwrap_or_default().to_owned();
            let was_held = before["state"] == "holding" && before["tenure"] == status["tenure"];
            let Some(token) = token else { continue };
            let begun = self.tell(&format!("{token} {}\n", u8::from(!was_held)))?;
            if begun["error"].is_null() {
                let until = sure(&begun, token);
                let ttl = Span::from_millis(begun["ttl_ms"].as_u64().unwrap_or_default());
                return Ok(GuardedLock { token, name, until, ttl });
            }
            // The guard has given the lock up before it knew of the use, or is about to.
            thread::sleep(LOOK.as_duration());
        }
    }

    /// Sends a line to the watcher, and returns its answer.
    fn tell(&self, line: &str) -> CliResult<Value> {
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
    pub(super) fn follow(
        &self,
        lock: &GuardedLock,
        woken: impl Fn() + Send + 'static,
    ) -> CliResult<LeaseValidity> {
        let known = Arc::new(AtomicU64::new(lock.until.as_nanos()));
        let (token, told) = (lock.token, Arc::clone(&known));
        let lines = self.watcher.try_clone().map_err(|error| CliError::system("a copy", &error))?;
        let watch = move || {
            let lines = BufReader::new(lines).lines().map_while(Result::ok);
            let states = lines.map(|line| serde_json::from_str(&line).unwrap_or_default());
            // After its last line the watcher has ended, and nothing is known of the guard.
            for state in states.chain([Value::Null]) {
                let until = sure(&state, token).as_nanos();
                if until < told.swap(until, Ordering::AcqRel) {
                    woken();
                }
            }
        };
        let started = thread::Builder::new().name("guard".into()).spawn(watch);
        started.map_err(|error| CliError::system("no thread can be made", &error))?;
        Ok(LeaseValidity::of(known, LOOK))
    }

    /// Ends the use of the lock, and gives it back if [`Self::take`] took it.
    pub(super) fn end(&self) {
        // If the watcher or the guard is gone, the lock is not held any more.
        let _ = (&self.watcher).write_all(b"end\n");
    }

    /// Ends the use of the lock, and waits until the lock is given back.
    pub(super) fn end_and_wait(&self) {
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
        // The engine is in the guard.
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
    let mut begun = (0, false);
    loop {
        let is_over = match wait_for_line(run, link.is_some()) {
            Some(Ok(request)) => {
                let mut words = request.split_whitespace();
                match (words.next().and_then(|word| word.parse().ok()), words.next()) {
                    (Some(token), Some(took)) => begun = (token, took == "1"),
                    _ => return end(link.as_mut(), begun),
                }
                let mut opened = GuardLink::open(endpoint)?;
                let answer = opened.exchange(&json!({"do": "use", "token": begun.0}))?;
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
    let wait = if is_watching { LOOK.as_millis() as libc::c_int } else { -1 };
    let mut wanted = libc::pollfd { fd: run.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `wanted` is one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut wanted, 1, wait) };
    (ready != 0).then(|| read_line(run))
}

/// Ends the use of the lock, and gives it back if it was taken for that.
fn end(link: Option<&mut GuardLink>, (token, took): (u64, bool)) -> io::Result<()> {
    let Some(link) = link else { return Ok(()) };
    link.exchange(&json!({"do": "end_use", "token": token, "give": took})).map(drop)
}
