//! Stand-in for `supervisor` on systems without subreapers, where `run` is one process: a process
//! can't inherit the descendants of another there.

use super::exit::CliResult;

/// Stands in for the front process, which exists on Linux only.
pub(super) struct FrontProcess;

/// The lease of a supervisor, which no other process inherits.
#[derive(Debug, Clone, Copy)]
pub(super) struct SupervisedLease {
    pub(super) token: u64,
    pub(super) ttl_ms: u64,
}

/// How a front process treats the lease of a supervisor that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // there is no front process
pub(super) enum Inheritance {
    /// A process of the command is alive: the lease is renewed.
    Renew,
    /// All processes of the command are dead: the lease is released.
    Release,
}

/// Continues as the only process.
#[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
pub(super) fn split(_: impl Fn(SupervisedLease, Inheritance)) -> CliResult<FrontProcess> {
    Ok(FrontProcess)
}

#[allow(clippy::unused_self)] // elsewhere there is something to ask
impl FrontProcess {
    /// Returns the process group that may have the terminal.
    #[allow(unsafe_code)]
    pub(super) fn group(&self) -> libc::pid_t {
        // SAFETY: only reads, and can't fail.
        unsafe { libc::getpgrp() }
    }

    /// Returns false: there is no front process to outlive, and none that inherits the lease.
    #[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
    pub(super) fn outlive(&self, lease: SupervisedLease) -> CliResult<bool> {
        log::debug!("token {} lasts {} ms", lease.token, lease.ttl_ms);
        Ok(false)
    }

    /// Whether the front process lives; without one, this is always true.
    pub(super) fn lives(&self) -> bool {
        true
    }
}
