//! The lock service: the interface of all front ends to the engine, wherever that runs.
//!
//! The implementation of [`LockService`] determines which engine orders the commands: [`local`]
//! calls one in this process under one short critical section; `raft` replicates it; `client` sends
//! requests to a server. The engine implements the rules in every case.
//!
//! The modules in reading order:
//!
//! - `timer`, `callback`, `failure` (why there is no answer), `audit`.
//! - The data of requests and answers: `paging`, `event_log`, `event_places`, `backend_status`,
//!   `remote_status`, `counters`, `pending`, `cluster_status`.
//! - `lock_service`, the trait; `locks`, the handle on it; on top of the handle `scoped_views` (the
//!   locks below some prefixes), `stale_read` (reads that do not wait for a quorum), `nested_names`
//!   (commands that depend on who holds the lock above) and `queue_waits` (waiting in a queue).
//! - `local` and its parts: `clock_mapping`, `deferred_commands`, `replay`, `backup`;
//!   `hold_off_log` says that nothing is granted yet.
//! - The server side of a remote client: `batch_idempotency`, `batch_messages`, `batch_server`.
//! - `fuzz` gives `tests/fuzz` access to the recovery of a state directory.

#[cfg_attr(not(target_os = "linux"), path = "timer_elsewhere.rs")]
pub(crate) mod timer;
#[cfg(all(test, target_os = "linux"))]
mod timer_elsewhere;
mod callback;
pub mod failure;
mod act_chain;
mod audit_file;
mod refusal_summary;
pub(crate) mod audit;
mod paging;
pub mod event_log;
mod event_places;
mod remote_status;
pub mod counters;
mod pending;
pub mod cluster_status;
mod backend_status;
mod locks;
pub mod scoped_views;
pub mod stale_read;
mod nested_names;
mod lock_service;
pub mod queue_waits;
mod clock_mapping;
mod deferred_commands;
mod replay;
pub mod backup;
pub(crate) mod hold_off_log;
pub mod local;
mod batch_idempotency;
pub mod refusal_log;
pub mod batch_messages;
pub mod batch_server;
#[doc(hidden)]
pub mod fuzz;

pub use audit::{ActionTarget, AdminAction, AuditEntry};
pub use backend_status::{About, BackendKind, BackendStatus, Contact, SessionOwner};
pub use callback::Then;
pub(crate) use event_places::EventPlaces;
pub use event_places::{EventPlace, EventStart};
pub use failure::{RequestError, Unavailable};
pub use lock_service::{CacheableView, LockService, Retry};
pub use locks::{Admission, Locks};
pub use nested_names::ParentCheck;
pub use paging::{Children, List, ListPage, ListedNames, SESSION_LEASES_SHOWN_MAX};
pub(crate) use paging::{page_of_children, page_of_leases, page_of_locks};
pub use refusal_summary::RefusedRequest;
pub(crate) use remote_status::TOLERATED_SKEW;
pub use remote_status::{RemoteStatus, RttSample};

#[cfg(test)]
pub(crate) mod test_backends;
#[cfg(test)]
mod tests;
