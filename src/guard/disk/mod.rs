//! The file operations of a guard, and as which user each one runs.
//!
//! `operations` is the trait of all of them, which the explorations implement in memory;
//! `linux_disk` does them by system calls of Linux, and `plain_disk` by those that every system
//! has, for a guard without a view. `acting_as` decides as which user each act runs.

#[cfg_attr(not(target_os = "linux"), path = "acting_as_elsewhere.rs")]
pub(crate) mod acting_as;
pub(crate) mod operations;
#[cfg(target_os = "linux")]
pub(crate) mod linux_disk;
pub(crate) mod plain_disk;
