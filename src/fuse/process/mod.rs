//! Leases that a process keeps alive.

pub(crate) mod epoll;
pub(crate) mod process_handle;
mod binding_table;
pub(crate) mod bindings;
