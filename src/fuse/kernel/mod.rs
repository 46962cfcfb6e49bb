//! The FUSE protocol layer, which knows nothing of locks: it mounts, reads the kernel's requests,
//! calls a file system that implements `file_system::FileSystem` on plain values, and sends the
//! replies.
//!
//! `device`, `mountinfo` and `mount_seal` create, find and remove mounts. `file_system` is the
//! trait with its values; `dispatch` converts requests and replies, `task` runs operations that
//! wait, and `interrupts` ends waits of programs that get a signal. `notifications` drops what the
//! kernel has cached, `handles` numbers open files and shares what all users need. `session` serves
//! one mount. `child_call` makes calls that may hang. `machine_facts` are small facts that systems
//! without FUSE need as well.

pub(crate) mod handles;
pub(crate) mod task;
pub mod machine_facts;
pub(crate) mod child_call;
pub mod mountinfo;
pub mod device;
pub mod mount_seal;
pub(crate) mod notifications;
pub(crate) mod file_system;
pub(crate) mod interrupts;
pub mod session;
mod dispatch;
#[cfg(test)]
mod tests;
