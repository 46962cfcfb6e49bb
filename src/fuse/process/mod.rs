//! Leases that are bound to processes: renewed while the process lives, and released when it ends.
//!
//! `lease_users` knows the processes that use leases, and `bindings` renews and releases for them.

pub(crate) mod lease_users;
pub(crate) mod bindings;
