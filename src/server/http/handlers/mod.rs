//! The handlers of the endpoints, a file for each family of paths.
//!
//! `lock_resource` is the API of one lock, whose waits `wait_for_lock` holds open; `grant_response`
//! shows a lock that was granted. `list` is about many locks and what is remembered of their names,
//! `sessions` about sessions and about all that a client has, `events` about what happened.
//! `cluster` and `metrics` are for administrators, `batch_endpoint` for the clients of latchfs
//! itself, `devices` for machines that join by a code, and `page` is the status page.

pub(super) mod batch_endpoint;
pub(super) mod cluster;
pub(super) mod devices;
pub(super) mod events;
pub(super) mod grant_response;
pub(super) mod list;
pub(super) mod metrics;
pub(super) mod page;
pub(super) mod sessions;
pub(super) mod wait_for_lock;
pub(super) mod lock_resource;
