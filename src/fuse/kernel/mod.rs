//! The FUSE protocol layer, which knows nothing of locks: it mounts, reads the kernel's requests,
//! calls a file system that implements `file_system::FileSystem` on plain values, and sends the
//! replies.

pub(crate) mod hash_maps;
pub(crate) mod backing;
pub(crate) mod values;
mod descriptor_limit;
pub(crate) mod user_shares;
pub(crate) mod task;
pub(crate) mod pending;
pub(crate) mod slow_calls;
pub(crate) mod handles;
pub(crate) mod poll_waker;
pub mod own_user;
pub(crate) mod caller_status;
pub mod mount_users;
pub mod device_names;
pub(crate) mod child_call;
pub mod mountinfo;
mod freezer;
pub(crate) mod pending_signals;
pub(crate) mod interrupts;
pub mod session_kind;
pub mod mount_seal;
pub mod mount_error;
pub(crate) mod request_timeout;
pub mod device;
pub(crate) mod invalidation;
pub(crate) mod file_system;
mod replies;
mod capabilities;
mod dispatch;
pub mod session;
#[cfg(test)]
mod tests;
