//! The line protocol: a lock by one line of text, as the third of the seeds has it.
//!
//! `LOCK,name,client`, `UNLOCK,name,client` and `OWN,name,client` are answered by one word;
//! `REGISTER,ip:port` has every change told to that address. No rule of locks is here: a line
//! becomes a command, and what the engine says becomes a word.
//!
//! Where to look: `request` what a line asks, `desk` what becomes of it, `connection` how lines
//! come and go, `followers` and `wire` who is told of changes, `server` the beginning and end.

mod delivery;
mod followers;
mod request;
mod commands;
mod text_connection;
mod line_server;

use crate::auth::permissions::Operation;
pub use line_server::{LineConfig, LineServer, LineStartError};

/// The first word of each line, and the row of the table of permissions that decides it.
pub(crate) const WORDS: [(&str, Operation); 6] = request::LineRequest::WORDS;
