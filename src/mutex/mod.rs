//! A mutex across processes and machines, for programs in Rust: `flock` on the file of a lock in a
//! latchfs mount. It is re-entrant per thread, has a fencing token, and reports the loss of the
//! lock.
//!
//! ```no_run
//! use latchfs::mutex::{Mutex, Unexpected};
//! use std::time::Duration;
//!
//! # fn main() -> std::io::Result<()> {
//! let build = Mutex::open("/locks", "build")?;
//! build.on_unexpected(|what| match what {
//!     Unexpected::Lost { token } => eprintln!("the lock of token {token} is lost; stopping"),
//!     Unexpected::Granted { token } => eprintln!("this process held it already, by {token}"),
//! });
//! if let Some(guard) = build.lock_timeout(Duration::from_secs(10))? {
//!     // Pass the token to the protected resource, and let that refuse smaller tokens.
//!     println!("mine, with token {}", guard.token());
//!     let again = build.lock()?; // The same thread may lock again, with the same token.
//!     assert_eq!(again.token(), guard.token());
//! } // Here the lock is released, and passes to the longest waiter.
//! # Ok(())
//! # }
//! ```
//!
//! The changes of all locks of a mount, in order:
//!
//! ```no_run
//! use latchfs::mutex::LockEvents;
//!
//! # fn main() -> std::io::Result<()> {
//! for event in LockEvents::open("/locks", None)? {
//!     let event = event?;
//!     println!("{} {} {} by {}", event.number, event.kind, event.name, event.client);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each thread that locks opens the file for itself, so threads exclude each other as processes do.
//! Neither this nor any other lock can keep a process that was stopped for a long time from
//! *believing* that it still holds the lock. [`Guard::is_held`] checks that, the handler of
//! [`Mutex::on_unexpected`] is notified, and a resource that checks tokens is safe in any case.
//!
//! `guard` has the public types, `thread_ownership` what the threads of a process share, and
//! `lock_file` the file of a lock and the events.

mod lock_file;
mod guard;
mod thread_ownership;

pub use crate::mutex::guard::{Notice, Unexpected};
pub use crate::mutex::lock_file::{Listener, LockEvent, LockEvents};
pub use guard::{Guard, Mutex};
pub use lock_file::MutexMode;
