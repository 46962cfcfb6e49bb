//! Leases that are bound to processes: renewed while the process lives, and released when it ends.

pub(crate) mod lease_users;
pub(crate) mod bindings;
