//! Guarded folders.
//!
//! `guard_command` lists the commands. `guard_init` makes a folder a guarded one under the id
//! that its server has (`shared_id`), and `first_record` has a guard do so. `decider` is the
//! lock service that decides about its lock, and `guard_parts` puts a guard together from it, from
//! the sync barrier and from the folder, and guards a folder without a view. `guard_view` shows a
//! folder through a view. `endpoint` finds the guard that a command is about, and `guard_requests`
//! sends it requests, through the files of a view (`view_requests`) or a socket. `folder_snapshot`
//! has the commands about snapshots, `carry` tells a sync tool what has changed, and
//! `sleep_inhibitor` hears that the machine is about to sleep.

pub(super) mod carry;
pub(super) mod decider;
pub(super) mod guard_parts;
pub(super) mod endpoint;
mod shared_id;
pub(super) mod guard_init;
#[cfg(target_os = "linux")]
mod first_record;
pub(super) mod guard_requests;
#[cfg(target_os = "linux")]
pub(crate) mod sleep_inhibitor;
#[cfg(target_os = "linux")]
pub(super) mod guard_view;
#[cfg(target_os = "linux")]
pub(super) mod folder_snapshot;
#[cfg(target_os = "linux")]
pub(super) mod view_requests;
pub(super) mod guard_command;
