//! Where a process can't inherit the descendants of another, `run` is one process.

use super::exit::CliResult;

/// Stands in for the front process, which exists on Linux only.
pub(super) struct FrontProcess;

/// Goes on as the only process.
#[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
pub(super) fn split() -> CliResult<FrontProcess> {
    Ok(FrontProcess)
}

#[allow(clippy::unused_self)] // elsewhere there is something to ask
impl FrontProcess {
    /// The process group that may have the terminal.
    #[allow(unsafe_code)]
    pub(super) fn group(&self) -> libc::pid_t {
        // SAFETY: only reads, and can't fail.
        unsafe { libc::getpgrp() }
    }

    /// Nothing is to be outlived.
    pub(super) fn outlive(&self) {}

    /// Always.
    pub(super) fn lives(&self) -> bool {
        true
    }
}
