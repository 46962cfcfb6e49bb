//! The two processes of `run`: one that others see, and a supervisor below it that holds the lock.
//!
//! SIGKILL can't be caught, so a process that was killed by it can't end what it had started. The
//! supervisor holds the lock, and all that the command starts descends from it. When the process
//! that others see is killed, the supervisor ends the command and all its descendants, and only
//! then does the lock become free. Should the supervisor be killed, the other process ends them.

use super::children::{self, Signals, kill};
use super::exit::{CliError, CliResult};
use std::io;
use std::time::Duration;

/// How long the front process sleeps at most: nothing depends on its waking up.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The process in front of the supervisor.
pub(super) struct FrontProcess {
    pid: libc::pid_t,
    group: libc::pid_t,
}

/// Goes on as the supervisor. The calling process stays in front of it: it passes signals on, and
/// ends as the supervisor ends. To be called while the process has one thread.
#[allow(unsafe_code)]
pub(super) fn split() -> CliResult<FrontProcess> {
    let wrong = |error| CliError::system("the supervisor", &error);
    // SAFETY: these take numbers and touch no memory.
    let front = unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        FrontProcess { pid: libc::getpid(), group: libc::getpgrp() }
    };
    // Before the fork, so that no signal is lost.
    let signals = Signals::take().map_err(wrong)?;
    // SAFETY: there is one thread, so the child finds no mutex locked by another.
    match unsafe { libc::fork() } {
        -1 => Err(wrong(io::Error::last_os_error())),
        0 => {
            // Signals to the group of the front process come by way of that process, and once.
            // SAFETY: takes two numbers.
            unsafe { libc::setpgid(0, 0) };
            signals.let_through();
            dies_with(&front, libc::SIGKILL);
            Ok(front)
        }
        supervisor => stay_in_front(supervisor, &signals),
    }
}

/// Has this process get a signal when the front process ends; at once if that has ended.
#[allow(unsafe_code)]
fn dies_with(front: &FrontProcess, signal: libc::c_int) {
    // SAFETY: takes numbers, and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) };
    if !front.lives() {
        kill(std::process::id().cast_signed(), signal);
    }
}

impl FrontProcess {
    /// The process group of the front process, which may have the terminal.
    pub(super) const fn group(&self) -> libc::pid_t {
        self.group
    }

    /// From now on the supervisor outlives the front process, and is woken by SIGCHLD when that
    /// ends.
    pub(super) fn outlive(&self) {
        dies_with(self, libc::SIGCHLD);
    }

    /// Whether the front process lives: a process whose parent ends gets another.
    #[allow(unsafe_code)]
    pub(super) fn lives(&self) -> bool {
        // SAFETY: only reads, and can't fail.
        unsafe { libc::getppid() == self.pid }
    }
}

/// What the front process does: passes signals on until the supervisor ends, then ends likewise.
#[allow(unsafe_code)]
fn stay_in_front(supervisor: libc::pid_t, signals: &Signals) -> ! {
    loop {
        match signals.next(LOOK_EVERY) {
            Some(libc::SIGCHLD) | None => {}
            Some(signal) => kill(supervisor, signal),
        }
        let mut status = 0;
        // SAFETY: the status is a valid place to write to.
        let ended = unsafe { libc::waitpid(supervisor, &raw mut status, libc::WNOHANG) };
        if ended == 0 {
            continue;
        }
        if ended == supervisor && libc::WIFEXITED(status) {
            std::process::exit(libc::WEXITSTATUS(status));
        }
        children::kill_descendants();
        end_by(libc::WTERMSIG(status), signals);
    }
}

/// Ends by the signal that ended the supervisor, as shells expect it.
#[allow(unsafe_code)]
fn end_by(signal: libc::c_int, signals: &Signals) -> ! {
    // One core file is enough.
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through the call, which only reads it; the rest takes numbers.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        libc::signal(signal, libc::SIG_DFL);
    }
    signals.let_through();
    kill(std::process::id().cast_signed(), signal);
    std::process::exit(128 + signal)
}
