//! What each endpoint does, a file for each family of paths.
//!
//! `lock_resource` is the API of one lock, whose waits `wait_for_lock` holds open, and `previous`
//! what is remembered of its name; `list` and `release_all` are about many locks, `sessions` about
//! sessions, `events` and `history` about what happened. `cluster`, `backup_routes` and `metrics`
//! are for administrators, `batch_endpoint` for the clients of latchfs itself, `single_lock_api`
//! is the small API of one lock, and `page` the status page.

pub(super) mod batch_endpoint;
pub(super) mod cluster;
pub(super) mod events;
pub(super) mod grant_response;
pub(super) mod list;
pub(super) mod metrics;
pub(super) mod page;
pub(super) mod sessions;
pub(super) mod wait_for_lock;
pub(super) mod lock_resource;
