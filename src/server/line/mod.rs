//! The line protocol: one line of text for each request, and one for its reply, for clients that
//! can open a socket but have no HTTP library.
//!
//! `LOCK,name,client`, `UNLOCK,name,client` and `OWN,name,client` get a one-word reply;
//! `REGISTER,ip:port` subscribes that address to all changes. The protocol is a translation only: a
//! line becomes a command, and the engine's answer becomes a word.
//!
//! Where to look: `request` parses lines, `commands` executes requests and sends changes
//! to followers, and `line_server` serves connections, and starts and stops. `fuzz` gives
//! `tests/fuzz` access to the parser.

mod request;
mod commands;
mod line_server;
#[doc(hidden)]
pub mod fuzz;

pub use line_server::{LineConfig, LineServer, LineStartError};
pub(crate) use request::WORDS;
