//! The audit log of a lock service.
//!
//! `audit_log` decides what goes into it, writes its lines, chains those of administrative acts,
//! and continues both after a restart. `refusal_log` sums up refused requests, so that they fill no
//! disk.

pub mod refusal_log;
pub mod audit_log;
