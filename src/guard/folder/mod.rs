//! One guarded folder: its record, its changes, and its side of the sync barrier.
//!
//! `folder_record` makes a folder a guarded one, and is locked by its guard; `state_place` is where
//! a guard keeps its state, and tells which directories a sync tool carries. `folder_changes` knows
//! what programs have changed, and for which paths the barrier speaks; `unread` knows which
//! versions nobody has read. `folder_guard` joins the parts, `folder_names` renames and removes
//! files, and `put_aside` moves content to the lost files and back. `folder_barrier`
//! takes the steps of the barrier, also those that take long or follow a tenure that ended without
//! a word; `arrival_watch` notices missing files, and `not_ready` says what is missing.

pub(crate) mod unread;
#[cfg_attr(not(target_os = "linux"), path = "arrival_watch_elsewhere.rs")]
pub(crate) mod arrival_watch;
pub(crate) mod folder_changes;
pub(crate) mod folder_guard;
pub(crate) mod folder_barrier;
pub(crate) mod folder_names;
pub(crate) mod folder_record;
pub(crate) mod not_ready;
pub(crate) mod state_place;
pub(crate) mod put_aside;
