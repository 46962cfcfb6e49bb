//! The lock service: the interface of all front ends to the engine, wherever that runs.
//!
//! The implementation of [`LockService`] determines which engine orders the commands: [`local`]
//! calls one in this process under one short critical section; `raft` replicates it; `client` sends
//! requests to a server. The engine implements the rules in every case.
//!
//! The folders and files in reading order:
//!
//! - `timer` is an alarm, `unavailable` why a request has no outcome, and `call` a request that was
//!   made. `audit` is the log of what somebody may have to answer for.
//! - `paging`, `event_log`, `backend_status` and `counters` are the data of requests and answers.
//! - `lock_service` is the trait, and `queue_waits` waits in a queue.
//! - `parent_check` decides who may create names below a lock, `scoped_views` who sees which names.
//! - `local` is the engine in this process, `replay` restores it, also from a backup.
//! - `batch` is the protocol between a client of latchfs and its server.
//! - `fuzz` gives `tests/fuzz` access to the recovery of a state directory.

pub(crate) mod timer;
pub mod unavailable;
pub mod call;
pub mod audit;
pub mod paging;
pub mod event_log;
pub mod lock_service;
pub mod parent_check;
pub mod scoped_views;
pub mod counters;
pub mod queue_waits;
pub mod backend_status;
pub mod replay;
pub mod local;
pub mod batch;
#[doc(hidden)]
pub mod fuzz;

pub use crate::service::audit::audit_log::{ActionTarget, AdminAction, AuditEntry};
pub use crate::service::audit::refusal_log::RefusedRequest;
pub(crate) use crate::service::backend_status::TOLERATED_SKEW;
pub use crate::service::backend_status::{RemoteStatus, RttSample};
pub(crate) use crate::service::event_log::EventPlaces;
pub use crate::service::event_log::{EventPlace, EventStart};
pub use crate::service::parent_check::{ParentCheck, submit_in_steps};
pub use crate::service::unavailable::{RequestError, Unavailable};
pub use backend_status::{About, BackendKind, BackendStatus, Contact, SessionOwner};
pub use call::{Call, Replier};
pub use lock_service::{Admission, CacheableView, LockService, Retry};
pub use paging::{Children, List, ListPage, ListedNames, SESSION_LEASES_SHOWN_MAX};
pub(crate) use paging::{page_of_children, page_of_leases, page_of_locks};

#[cfg(test)]
pub(crate) mod test_backends;
#[cfg(test)]
mod tests;
