//! Guarded folders with the real program, the real kernel and programs that nobody here wrote:
//! saves appear whole, a change needs the lock, and a guard that has lost it harms nothing.

#[path = "../support/mod.rs"]
mod support;

mod abuse;
mod counters;
mod file_systems;
mod harness;
mod hostile;
mod losing;
mod saving;
mod stale;
mod using;
