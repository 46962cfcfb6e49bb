//! The FUSE protocol layer, which knows nothing of locks: it mounts, reads the kernel's requests,
//! calls a file system that implements `file_system::FileSystem` on plain values, and sends the
//! replies.

pub(crate) mod handles;
pub(crate) mod task;
pub mod own_user;
pub mod mount_users;
pub mod device_names;
pub(crate) mod child_call;
pub mod mountinfo;
pub mod device;
pub mod mount_seal;
pub(crate) mod request_timeout;
pub(crate) mod notifications;
pub(crate) mod file_system;
pub(crate) mod interrupts;
pub mod session;
mod dispatch;
#[cfg(test)]
mod tests;
