//! The command `hook`, which coding agents call before they write a file: it takes a lease on the
//! path for the agent's session, and blocks the write if another session has it.
//!
//! `event` parses what an agent tells a hook, `file_lock` derives the lock of a path,
//! `agent_leases` takes, renews and releases the leases of a session, and `agent_process` watches
//! the process of the agent. `hook_command` puts them together.

pub(super) mod agent_leases;
pub(super) mod agent_process;
pub(super) mod event;
pub(super) mod file_lock;
pub(super) mod hook_command;
