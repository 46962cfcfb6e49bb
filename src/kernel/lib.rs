//! The FUSE protocol layer, which knows nothing of locks: it mounts, reads the kernel's requests,
//! calls a file system that implements `file_system::FileSystem` on plain values, and sends the
//! replies.
//!
//! `device`, `mountinfo` and `mount_seal` create, find and remove mounts. `file_system` is the
//! trait with its values; `dispatch` converts requests and replies, `slow_calls` makes calls that
//! take long, and `interrupts` ends waits of programs that get a signal. `notifications` drops what
//! the kernel has cached, `handles` numbers open files and shares what all users need. `session`
//! serves one mount. `child_call` makes calls that may hang. `machine_facts` are small facts that
//! systems without FUSE need as well, and `process_start` tells processes apart; `elsewhere` stands
//! for the rest on these systems.

#[cfg(target_os = "linux")]
pub mod handles;
#[cfg(target_os = "linux")]
pub mod slow_calls;
pub mod machine_facts;
pub mod process_start;
#[cfg(target_os = "linux")]
pub mod child_call;
#[cfg(target_os = "linux")]
pub mod mountinfo;
#[cfg(target_os = "linux")]
pub mod device;
#[cfg(target_os = "linux")]
pub mod mount_seal;
#[cfg(target_os = "linux")]
pub mod notifications;
#[cfg(target_os = "linux")]
pub mod file_system;
#[cfg(target_os = "linux")]
pub mod interrupts;
#[cfg(target_os = "linux")]
pub mod session;
#[cfg(target_os = "linux")]
mod dispatch;

/// The target of the log records of this crate. It begins with the name of the program, so that
/// `RUST_LOG=latchfs=debug` and the default for daemons select them too.
#[cfg(target_os = "linux")]
const LOG: &str = "latchfs::kernel";

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{device, mount_seal, mountinfo};

#[cfg(all(test, target_os = "linux"))]
mod tests;
