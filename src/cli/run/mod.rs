//! `latchfs run`: a command that runs while it holds a lock.
//!
//! `run_command` acquires the lock, starts the command and ends with it, or ends the command when
//! the lock is lost. `children` controls the processes of the command, and `supervisor` is the
//! process that outlives the shell's. `guard_target` does the same under the lock of a guarded
//! folder.

pub(super) mod children;
#[cfg_attr(not(target_os = "linux"), path = "supervisor_elsewhere.rs")]
pub(super) mod supervisor;
pub(super) mod run_command;
pub(super) mod guard_target;
