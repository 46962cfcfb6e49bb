//! The lock table: holders and waiters of this mount's open files. Pure state: it returns a list of
//! effects to perform, and takes their results as input.
//!
//! A lock on the whole file is a hold of the engine, one for each owner: so the line is the
//! engine's, fair across mounts. Byte ranges are this machine's affair: the first range takes the
//! whole lock from the engine for the *bundle* of all ranges of that file, and from then on
//! owners of this mount settle among themselves, first come first served, until the last range is
//! gone.
//!
//! The engine may be far away: requests reach it in the order in which the table issues them, but
//! answers come late, in any order, and before or after the events that announce the same change.
//! So the table has one request at a time for each number, and one for each owner of a file;
//! further requests wait in `behind`. A request or hold that is given up stays recorded until its
//! outcome is known, and events that cannot be attributed yet are kept until the answer.
//!
//! The kernel's numbers for owners are used again as soon as an owner is gone, so nothing is kept
//! under one after FLUSH or RELEASE.

mod messages;
mod locked_file;
mod releasing;
mod table_state;
mod range_locks;
mod unlock;
mod engine_events;
mod deadlock;

#[cfg(test)]
mod tests_async;
#[cfg(test)]
mod tests;

pub(crate) use messages::{Ask, Call, Effect, Found, No, Recall, Waits};
pub(crate) use table_state::Table;
