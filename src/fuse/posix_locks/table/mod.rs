//! The lock table: holders and waiters of this mount's open files. The table is pure state: it
//! returns a list of effects to perform, and takes the results of the effects as input.
//!
//! A lock on a whole file is a lease of the engine, one for each owner, so waiters queue in the
//! engine, fairly across mounts. Byte ranges are local to this mount: the first range takes the
//! whole lock from the engine, by one lease (the *bundle*) for all ranges of that file. Until the
//! last range is gone, the ranges of owners of this mount conflict only among themselves, first
//! come first served.
//!
//! Each lease and each pending request has a *number* that identifies it within the session (the
//! `number` of an `OpenId`). The engine may be remote: requests reach it in the order in which the
//! table issues them, but answers come late, in any order, and before or after the events that
//! announce the same change. So the table has at most one unanswered request for each number, and
//! one for each owner of a file; further requests wait in `File::behind`. A request or lease that
//! is given up stays recorded until its outcome is known, and events that cannot be attributed yet
//! are kept until the answer comes.
//!
//! A release names the number, and ends the lease that has the number when the release reaches the
//! engine, under whatever name. So a number is never used again after its lease was released or its
//! request was given up.
//!
//! The kernel identifies lock owners by numbers of its own, which it reuses as soon as an owner is
//! gone. So the table keeps nothing under the number of an owner after FLUSH or RELEASE.
//!
//! `table_state` is the table, with its files and messages; `engine_events` takes what the engine
//! answers, and has locks of byte ranges, releases and deadlocks.

mod table_state;
mod engine_events;

#[cfg(test)]
mod tests_async;
#[cfg(test)]
mod tests;

pub(crate) use crate::fuse::posix_locks::table::table_state::{
    Ask, Call, Effect, Found, No, Recall, Waits,
};
pub(crate) use engine_events::RequestedLease;
pub(crate) use table_state::Table;
