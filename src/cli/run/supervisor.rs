//! The two processes of `run`: the front process, which the shell has started, and its child, the
//! supervisor, which holds the lock.
//!
//! SIGKILL can't be caught, so a process that is killed by it can't end its own descendants. Here
//! each of the two processes can end them for the other: everything that the command starts
//! descends from both, and both are subreapers. The lease is bound to neither of them. When the
//! front process is killed, the supervisor ends the command and all its descendants, and then
//! releases the lock. When the supervisor is killed, the front process does the same. When both are
//! killed at once, the kernel kills the command's first process, and the lease ends with its ttl
//! and grace; no process is left then to find the command's other descendants.

use super::children::{self, Signals, kill};
use crate::cli::exit::{CliError, CliResult};
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The maximum sleep of the front process. Nothing depends on it, because signals wake the process.
const POLL_EVERY: Duration = Duration::from_secs(60);

/// How long the front process tries to kill the descendants of a killed supervisor before it renews
/// the lease again.
const KILL_FOR: Duration = Duration::from_millis(200);

/// The front process of `run`, to which the supervisor sends its lease, and whose end the
/// supervisor detects.
pub(in crate::cli) struct FrontProcess {
    pid: libc::pid_t,
    group: libc::pid_t,
    link: UnixStream,
}

/// The lease that the supervisor of `run` holds. If the supervisor is killed, the front process
/// renews or releases this lease.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct SupervisedLease {
    pub(in crate::cli) token: u64,
    pub(in crate::cli) ttl_ms: u64,
}

/// How the front process treats the lease of a supervisor that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Inheritance {
    /// Renew the lease, because a process of the command is alive.
    Renew,
    /// Release the lease, because all processes of the command are dead.
    Release,
}

/// Forks this process. The child becomes the supervisor, and the function returns in the child
/// only. The calling process becomes the front process: it forwards signals, and exits with the
/// supervisor's exit code or signal. If the supervisor is killed, the front process calls `inherit`
/// with the supervisor's lease. Must be called while the process has one thread.
#[allow(unsafe_code)]
pub(in crate::cli) fn split(
    inherit: impl Fn(SupervisedLease, Inheritance),
) -> CliResult<FrontProcess> {
    let wrong = |error| CliError::system("the supervisor", &error);
    let (link, other_end) = UnixStream::pair().map_err(wrong)?;
    // SAFETY: these calls take numbers and touch no memory.
    let front = unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        FrontProcess { pid: libc::getpid(), group: libc::getpgrp(), link: other_end }
    };
    // The signals are blocked before the fork, so that a signal that arrives in between stays
    // pending and is not lost.
    let signals = Signals::take().map_err(wrong)?;
    // SAFETY: the process has one thread, so the child finds no mutex locked by another thread.
    match unsafe { libc::fork() } {
        -1 => Err(wrong(io::Error::last_os_error())),
        0 => {
            // In a process group of its own, the supervisor gets a signal to the front process's
            // group only once, when the front process forwards it.
            // SAFETY: setpgid takes two numbers.
            unsafe { libc::setpgid(0, 0) };
            signals.let_through();
            dies_with(&front, libc::SIGKILL);
            Ok(front)
        }
        supervisor => {
            drop(front);
            stay_in_front(supervisor, &signals, || inherit_all(link, &inherit))
        }
    }
}

/// Makes the kernel send `signal` to this process when the front process ends; sends it at once if
/// the front process has ended already.
#[allow(unsafe_code)]
fn dies_with(front: &FrontProcess, signal: libc::c_int) {
    // SAFETY: prctl takes numbers here, and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) };
    if !front.lives() {
        kill(std::process::id().cast_signed(), signal);
    }
}

impl FrontProcess {
    /// Returns the process group of the front process, which may have the terminal.
    pub(in crate::cli) const fn group(&self) -> libc::pid_t {
        self.group
    }

    /// Makes the supervisor outlive the front process: until this call the supervisor is killed
    /// when the front process ends, and from then on it only gets SIGCHLD. Also sends the lease to
    /// the front process, which needs it if the supervisor is killed. Returns whether there is a
    /// front process.
    pub(in crate::cli) fn outlive(&self, lease: SupervisedLease) -> CliResult<bool> {
        let said = [lease.token.to_ne_bytes(), lease.ttl_ms.to_ne_bytes()].concat();
        let sent = (&self.link).write_all(&said);
        sent.map_err(|error| CliError::system("the front process", &error))?;
        dies_with(self, libc::SIGCHLD);
        Ok(true)
    }

    /// Whether the front process is alive: when it ends, the supervisor gets another parent.
    #[allow(unsafe_code)]
    pub(in crate::cli) fn lives(&self) -> bool {
        // SAFETY: getppid only reads the parent's pid, and can't fail.
        unsafe { libc::getppid() == self.pid }
    }
}

/// Runs the front process: forwards signals until the supervisor ends, then exits with the same
/// code or signal. If a signal killed the supervisor, calls `inherit` first.
#[allow(unsafe_code)]
fn stay_in_front(supervisor: libc::pid_t, signals: &Signals, inherit: impl FnOnce()) -> ! {
    loop {
        match signals.next(POLL_EVERY) {
            Some(libc::SIGCHLD) | None => {}
            Some(signal) => kill(supervisor, signal),
        }
        let mut status = 0;
        let flags = libc::WNOHANG | libc::WUNTRACED;
        // SAFETY: `status` is a valid place to write to.
        let ended = unsafe { libc::waitpid(supervisor, &raw mut status, flags) };
        if ended == 0 {
            continue;
        }
        if ended == supervisor && libc::WIFSTOPPED(status) {
            // A stopped supervisor could not renew the lease while the command continues, so it is
            // continued at once.
            kill(supervisor, libc::SIGCONT);
            continue;
        }
        if ended == supervisor && libc::WIFEXITED(status) {
            std::process::exit(libc::WEXITSTATUS(status));
        }
        inherit();
        end_by(libc::WTERMSIG(status), signals);
    }
}

/// Kills all descendants that a killed supervisor has left, renews its lease until they are dead,
/// and then releases the lease. If the supervisor has sent no lease, it was killed before it had
/// started the command.
fn inherit_all(mut link: UnixStream, inherit: &impl Fn(SupervisedLease, Inheritance)) {
    let mut said = [[0; 8]; 2];
    let is_said =
        link.set_nonblocking(true).and_then(|()| link.read_exact(said.as_flattened_mut()));
    let [token, ttl_ms] = said.map(u64::from_ne_bytes);
    let lease = is_said.ok().map(|()| SupervisedLease { token, ttl_ms });
    let hand_on = |step| {
        if let Some(lease) = lease {
            inherit(lease, step);
        }
    };
    while !children::kill_descendants(KILL_FOR) {
        hand_on(Inheritance::Renew);
    }
    hand_on(Inheritance::Release);
}

/// Ends this process by the same signal that has ended the supervisor, so that a shell reports the
/// signal.
#[allow(unsafe_code)]
fn end_by(signal: libc::c_int, signals: &Signals) -> ! {
    // If the signal writes a core file, the supervisor has written one already, so this process
    // writes none.
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `no_core` outlives the call, which only reads it; `signal` takes numbers.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        libc::signal(signal, libc::SIG_DFL);
    }
    signals.let_through();
    kill(std::process::id().cast_signed(), signal);
    std::process::exit(128 + signal)
}
