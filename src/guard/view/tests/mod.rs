//! Tests of the view in memory: no mount, no server, no other process, and no need for root.
//!
//! A test makes a [`bed::Bed`], which is a guard over a real folder in a scratch directory with a
//! lock service in this process, and calls the view through the trait of the kernel's requests:
//!
//! - `bed.write("a", "text")`, `bed.open("a", flags)`, `bed.rename("a", "b")` and so on do what a
//!   program does, by the requests that the kernel makes of it ([`program::Program`]). They return
//!   the errno of a failure. `bed.program()` is another process, `bed.user(7)` one of user 7.
//! - `bed.folder` is the folder past the view: `bed.folder.put("a", b"text")`.
//! - `bed.request(json!({"do": "give"}))`, `bed.why()`, `bed.status()`: the files in `.latchfs`.
//! - `bed.service` is the lock service: another client takes the lock, steals it or waits for it,
//!   the session ends, no answer comes, the lease ends ([`bed::TestService`]).
//! - `Bed::with(|setup| ..)` changes the options of the guard; two beds with one
//!   [`bed::Bed::beside`] are two machines.
//!
//! What the kernel alone decides (permissions, mappings, its caches, locks of files, signals) is
//! not here: tests/guarded shows it through a mount.

mod bed;
mod program;

mod saving;
mod tenures;
mod foreign;
mod file_names;
mod copies;
mod owners;
