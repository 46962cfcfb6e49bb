//! Leases that a process keeps alive.

pub(crate) mod epoll;
pub(crate) mod process_handle;
pub(crate) mod bindings;
