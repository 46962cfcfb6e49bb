//! The chain of an audit log: each line names the digest of the line before it, and the *head*, a
//! file of its own, names the last line. A line that is changed, removed, doubled or moved breaks
//! the chain, and a log that is shorter than its head says has lost its tail.
//!
//! A line is canonical JSON: the names of the fields in the order of their bytes, without spaces.
//! `record_hash` is the SHA-256 of the line without that field, and `prev_hash` is that of the line
//! before; the first line names the digest of nothing. The field `v` is the version of the line.
//! The head has a version too. Another version is refused by a sentence that names both.
//!
//! A writer syncs its lines before it writes the head. So after a crash the head is at most older
//! than the log.
//!
//! `hash_chain` makes lines and the head, `log_file` writes them for the server and for guards, and
//! `check` finds faults.

mod hash_chain;
mod check;
mod log_file;

pub(crate) use crate::audit_chain::check::{AUDIT_NAME, check_files};
#[cfg(test)]
pub(crate) use crate::audit_chain::hash_chain::AuditHead;
#[cfg(test)]
pub(crate) use check::AuditCheck;
pub(crate) use check::AuditReport;
#[cfg(test)]
pub(crate) use hash_chain::AuditChain;
pub(crate) use hash_chain::ChainEntry;
pub(crate) use log_file::{ChainedLog, RotatedFile, last_line_of};
