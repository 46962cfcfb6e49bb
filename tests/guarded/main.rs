//! Guarded folders with the real program, the real kernel and programs that nobody here wrote:
//! saves appear whole, a change needs the lock, and a guard that has lost it harms nothing.
//!
//! `src/guard/view/tests` shows in memory what a view does. Here is what the kernel decides:
//! closing, identity, locks, mappings, signals, exec; whole processes, machines and sync tools; and
//! for each thing that a program does with a file, one test that the kernel asks the view for it.
//! The program
//!
//! - reads, stats and lists:
//!   `readers::readers_and_writers_meet_in_all_orders`
//! - creates a file, or empties it as it opens it:
//!   `saving::what_several_programs_write_appears_whole`
//! - changes a file in place:
//!   `writers::a_file_that_is_changed_in_place_is_seen_in_parts`
//! - writes, allocates, copies ranges, truncates:
//!   `stale::no_change_of_a_tenure_that_is_over_reaches_the_folder`
//! - maps a file:
//!   `closing::a_store_to_a_mapping_after_the_close_is_made_in_place`
//! - closes a file:
//!   `closing::a_file_appears_whole_whichever_program_writes_it_by_several_descriptors`
//! - fsyncs a file:
//!   `saving::with_sync_saves_a_file_is_synced_before_it_appears`
//! - dies:
//!   `killed::a_signal_in_the_middle_of_a_save_leaves_the_old_version`
//! - has a write that fails:
//!   `stale::a_save_that_does_not_fit_leaves_the_old_file`
//! - changes names and attributes:
//!   `acting::acts_of_a_user_end_as_in_a_plain_directory`
//! - locks a file:
//!   `readers::the_lock_of_a_reader_keeps_a_writer_out`
//! - writes to a file of a tenure that is over:
//!   `dormant::an_open_database_with_a_log_loses_no_changes_of_another_machine`

mod abuse;
mod accepting;
mod acting;
mod agents;
mod arriving;
mod auditing;
mod away;
mod changed_servers;
mod closing;
mod counters;
mod databases;
mod disks;
mod doctoring;
mod doctoring_kernel;
mod doctoring_schema;
mod doctoring_servers;
mod doctoring_snapshots;
mod dormant;
mod faulty_markers;
mod file_systems;
mod first_record;
mod foreign;
mod frozen;
mod hanging;
mod hostile;
mod hostile_markers;
mod ignoring;
mod just_ready;
mod killed;
mod local;
mod losing;
mod lost_copies;
mod marker_schema;
mod marking;
mod ordinary_user;
mod owner_sessions;
mod permissions;
mod programs;
mod programs_end;
mod quotas;
mod readers;
mod recorder;
mod relay;
mod removed;
mod restoring;
mod rights;
mod saving;
mod servers_away;
mod shared_mode;
mod shares_of_users;
mod sleeping;
mod snapshots;
mod stale;
mod suites;
mod syncing;
mod telling;
mod two_steps;
mod unread;
mod using;
mod waiting;
mod watchdog;
mod ways_to_save;
mod without_fuse;
mod who;
mod writers;
mod yielding;
mod yielding_in_time;
