//! Stand-in for `supervisor` on systems without subreapers. `run` is one process there, because a
//! process can't inherit the descendants of another.

use crate::cli::exit::CliResult;

/// A stand-in for the front process of `run`, which exists on Linux only.
pub(in crate::cli) struct FrontProcess;

/// The lease of `run`. On these systems no other process takes it over when `run` is killed.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct SupervisedLease {
    pub(in crate::cli) token: u64,
    pub(in crate::cli) ttl_ms: u64,
}

/// The treatment of the lease of a supervisor that was killed. Never used on these
/// systems, where `run` has no front process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // there is no front process
pub(in crate::cli) enum Inheritance {
    /// Renew the lease, because a process of the command is alive.
    Renew,
    /// Release the lease, because all processes of the command are dead.
    Release,
}

/// Returns a stand-in for the front process, without a fork: on these systems `run` is one process.
#[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
pub(in crate::cli) fn split(_: impl Fn(SupervisedLease, Inheritance)) -> CliResult<FrontProcess> {
    Ok(FrontProcess)
}

#[allow(clippy::unused_self)] // elsewhere there is something to ask
impl FrontProcess {
    /// Returns the process group of this process, which may be the foreground group of the
    /// terminal.
    #[allow(unsafe_code)]
    pub(in crate::cli) fn group(&self) -> libc::pid_t {
        // SAFETY: getpgrp only reads the process group, and can't fail.
        unsafe { libc::getpgrp() }
    }

    /// Always returns false: these systems have no front process, so no other process takes over
    /// the lease.
    #[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
    pub(in crate::cli) fn outlive(&self, lease: SupervisedLease) -> CliResult<bool> {
        log::debug!("token {} lasts {} ms", lease.token, lease.ttl_ms);
        Ok(false)
    }

    /// Whether the front process is alive; always true, because there is none on these systems.
    pub(in crate::cli) fn lives(&self) -> bool {
        true
    }
}
