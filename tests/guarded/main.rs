//! Guarded folders with the real program, the real kernel and programs that nobody here wrote:
//! saves appear whole, a change needs the lock, and a guard that has lost it harms nothing.

#[path = "../support/mod.rs"]
mod support;

mod abuse;
mod accepting;
mod arriving;
mod auditing;
mod away;
mod changed_servers;
mod counters;
mod databases;
mod disks;
mod doctoring;
mod dormant;
mod faulty_markers;
mod file_systems;
mod foreign;
mod frozen;
mod hanging;
mod harness;
mod hostile;
mod hostile_markers;
mod just_ready;
mod killed;
mod local;
mod losing;
mod marker_schema;
mod marking;
mod ordinary_user;
mod passthrough;
mod permissions;
mod programs;
mod programs_end;
mod recorder;
mod relay;
mod removed;
mod restoring;
mod saving;
mod servers_away;
mod sleeping;
mod snapshots;
mod space;
mod stale;
mod suites;
mod telling;
mod unread;
mod using;
mod waiting;
mod watchdog;
mod ways_to_save;
mod without_fuse;
mod writers;
mod yielding;
mod yielding_in_time;
