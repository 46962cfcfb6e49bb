//! Guarded folders with the real program, the real kernel and programs that nobody here wrote:
//! saves appear whole, a change needs the lock, and a guard that has lost it harms nothing.

#[path = "../support/mod.rs"]
mod support;

mod databases;
mod disks;
mod foreign;
mod hanging;
mod harness;
mod killed;
mod local;
mod losing;
mod ordinary_user;
mod permissions;
mod programs;
mod recorder;
mod saving;
mod space;
mod suites;
mod telling;
mod using;
mod watchdog;
mod writers;
