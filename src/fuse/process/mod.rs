//! Leases that are bound to processes: renewed while the process lives, and released when it ends.

pub(crate) mod epoll;
pub(crate) mod process_handle;
mod binding_table;
pub(crate) mod bindings;
