//! Where a process can't inherit the descendants of another, `run` is one process.

use super::exit::Done;

/// What would be above a supervisor.
pub(super) struct Front;

/// Goes on as the only process.
#[allow(clippy::unnecessary_wraps)] // elsewhere it can fail
pub(super) fn split() -> Done<Front> {
    Ok(Front)
}

#[allow(clippy::unused_self)] // elsewhere there is something to ask
impl Front {
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
