//! The audit log of a lock service.
//!
//! `audit` decides what goes into it, `audit_file` writes its lines and continues them after a
//! restart, `act_chain` chains those of administrative acts, and `refusal_log` and
//! `refusal_summary` keep refused requests from filling the disk.

pub(super) mod audit_file;
pub mod refusal_log;
pub(crate) mod audit_log;
