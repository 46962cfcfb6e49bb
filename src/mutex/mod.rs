//! A mutex across processes and machines, for programs in Rust: `flock` on the file of a lock in a
//! latchfs mount, re-entrant per thread, with a token, and with a word when the lock is lost.
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
//!     // Give the token to what the lock guards, and let that refuse lesser ones.
//!     println!("mine, with token {}", guard.token());
//!     let again = build.lock()?; // The same thread may: this is the same hold.
//!     assert_eq!(again.token(), guard.token());
//! } // Here it is given back, to whoever has waited longest.
//! # Ok(())
//! # }
//! ```
//!
//! Each thread that locks opens the file for itself, so threads exclude each other as processes
//! do. Not promised, by this or any other lock: that a process which was stopped for long does
//! not *believe* that it holds the lock. [`Guard::is_held`] asks, the handler of
//! [`Mutex::on_unexpected`] is told, and whoever checks tokens is safe in any case.

mod notice;
mod lock_file;
mod thread_ownership;
mod guard;

pub use guard::{Guard, Mutex};
pub use lock_file::MutexMode;
pub use notice::{Notice, Unexpected};
