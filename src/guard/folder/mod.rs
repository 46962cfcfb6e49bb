//! One guarded folder: its record, its changes, and its side of the sync barrier.
//!
//! `folder_record` makes a folder a guarded one, `state_place` is where its guard keeps its state,
//! `folder_claim` is the lock by which guards of one folder see each other, and `synced_place`
//! tells which directories a sync tool carries. `folder_guard` joins the parts, and `folder_names`
//! renames and removes files. `folder_changes` knows what programs have changed, `foreign` which
//! versions are from elsewhere, `unread` which of them nobody has read, and `folder_coverage` for
//! which paths the barrier speaks. `folder_barrier` takes the steps of the barrier, `barrier_worker`
//! those that take long, `late_changes` those after a tenure that ended without a word;
//! `arrival_watch` notices missing files, and `not_ready` says what is missing.

pub(crate) mod unread;
#[cfg_attr(not(target_os = "linux"), path = "arrival_watch_elsewhere.rs")]
pub(crate) mod arrival_watch;
pub(crate) mod folder_changes;
pub(crate) mod folder_guard;
pub(crate) mod folder_barrier;
pub(crate) mod folder_names;
pub(crate) mod folder_record;
pub(crate) mod not_ready;
pub(crate) mod put_back;
pub(crate) mod state_place;
pub(crate) mod put_aside;
