//! Stand-in for `supervisor` on systems without subreapers. `run` is one process there, because a
//! process can't inherit the descendants of another.

use super::exit::CliResult;

/// Stands in for the front process, which exists on Linux only.
pub(super) struct FrontProcess;

/// The lease of a supervisor, which no other process inherits.
#[derive(Debug, Clone, Copy)]
pub(super) struct SupervisedLease {
    pub(super) token: u64,
    pub(super) ttl_ms: u64,
}

/// How a front process would treat the lease of a supervisor that was killed. Never used on these
/// systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // there is no front process
pub(super) enum Inheritance {
    /// Renew the lease, because a process of the command is alive.
    Renew,
    /// Release the lease, because all processes of the command are dead.
    Release,
}

/// Returns without a fork, so that `run` is one process.
#[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
pub(super) fn split(_: impl Fn(SupervisedLease, Inheritance)) -> CliResult<FrontProcess> {
    Ok(FrontProcess)
}

#[allow(clippy::unused_self)] // elsewhere there is something to ask
impl FrontProcess {
    /// Returns the process group that may have the terminal.
    #[allow(unsafe_code)]
    pub(super) fn group(&self) -> libc::pid_t {
        // SAFETY: getpgrp only reads the process group, and can't fail.
        unsafe { libc::getpgrp() }
    }

    /// Returns false: there is no front process to outlive, and none that takes the lease over.
    #[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
    pub(super) fn outlive(&self, lease: SupervisedLease) -> CliResult<bool> {
        log::debug!("token {} lasts {} ms", lease.token, lease.ttl_ms);
        Ok(false)
    }

    /// Whether the front process is alive; always true, because there is none on these systems.
    pub(super) fn lives(&self) -> bool {
        true
    }
}
