//! Guarded folders: a view of a real folder in which a write succeeds only under the folder's lock.
//! A file that is saved appears in the folder complete or not at all, and a machine that has lost
//! the lock changes nothing any more, however late it wakes up.
//!
//! The modules in reading order:
//!
//! - `tenure` is the time in which a guard holds the lock of its folder; `live_tenures` are those
//!   that go on beside a new one.
//! - `acting_as` decides as which user each act runs.
//! - `disk` is the trait of all file operations, `linux_disk` the real disk, and
//!   `plain_disk` that of a guard without a view; `extended_attributes` reads those of files.
//! - `gate` lets a change of the folder pass, or refuses it.
//! - `space` bounds unpublished and lost content.
//! - `foreign` tells own versions of files from foreign ones.
//! - `stage` publishes a file in one step, `staged_names` makes and removes other names.
//! - `lost_files` keeps what must not reach the folder.
//! - `tree_removal` removes a directory with everything in it.
//! - `fence` removes the stages of other tenures.
//! - `staged_file` is a file that is being saved.
//! - `barrier` decides whether everything that other machines have published is here, and
//!   `barrier_store` reads and writes its files.
//! - `folder_changes` logs the changes of one folder for it, `renamed_dirs` those of directories;
//!   `folder_coverage` reads the ignore rules;
//!   `folder_barrier` takes its steps, and `late_changes` those after a tenure that ended without a
//!   word.
//!   `late_copies` keeps copies of the files that such a tenure left.
//! - `unread` knows which versions of other machines no program has opened, and `keep_unread` keeps
//!   them when a save replaces them.
//! - `audit_log` records acts for which somebody may have to answer, in a chain of digests, and
//!   `audited_acts` says which acts these are.
//! - `synced_place` tells which directories a sync tool carries.
//! - `folder_guard` joins these parts for one folder, `put_aside` keeps what it does not publish,
//!   `folder_names` renames and removes files, and `publish_copy` puts lost ones back.
//! - `folder_snapshot` takes, checks and restores snapshots of the folder.
//! - `put_back` puts the content of a conflict copy back.
//! - `folder_claim` is the lock on the folder itself, by which guards of different users see each
//!   other.
//! - `folder_lock` is the folder's lock in the lock service, `process_session` its session if the
//!   service is in this process, `session_record` names its session on the disk, and
//!   `lock_handovers` is what the lock service remembers. `lock_record` is the record by which
//!   programs take the lock, and `lock_records` knows of which tenure there is one; `shared_look`
//!   asks once for all who look it up.
//! - `hidden_use` looks for programs that use a folder whose lock is about to be given up, and
//!   `lock_uses` knows those that must end before.
//! - `tenures` asks for tenures, `tenure_bounds` begins and ends them; `tenure_arrival` waits until
//!   the folder is ready, `tenure_handovers` tells the lock service of changes and of markers, and
//!   `barrier_worker` makes the steps that may take long, `arrival_watch` notices missing files.
//! - `sleeping` gives an idle lock up before this machine sleeps, `clock_jump` asks for
//!   it after it has slept.
//! - `away` takes a lock along for a person, by the session of `away_session`.
//! - `guard_request` reads the requests of `latchfs guard`, `guard_status` shows the state of a
//!   guard, and `tenure_events` what happens to it, to the readers of `event_queue`.
//! - `without_view` guards a folder that programs change directly, `view` shows one to programs.
//! - `doctor` finds what is wrong with a folder and with the state of its guard.
//! - `fuzz` gives `tests/fuzz` access to the readers of `barrier`.

// Without views, nothing stages or publishes files.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

pub(crate) mod tenure;
pub(crate) mod disk;
pub(crate) mod lost_files;
pub(crate) mod stage;
pub(crate) mod write_policy;
pub(crate) mod barrier;
pub(crate) mod barrier_store;
pub(crate) mod audit_log;
pub(crate) mod folder;
#[cfg(target_os = "linux")]
pub(crate) mod folder_snapshot;
mod shared_look;
pub(crate) mod lock;
pub(crate) mod tenures;
pub(crate) mod guard_request;
pub(crate) mod without_view;
#[cfg(target_os = "linux")]
pub(crate) mod view;
pub(crate) mod doctor;
pub mod fuzz;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests_explore;
