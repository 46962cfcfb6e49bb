//! The line protocol: a lock by one line of text, as the third of the seeds has it.
//!
//! `LOCK,name,client`, `UNLOCK,name,client` and `OWN,name,client` are answered by one word;
//! `REGISTER,ip:port` has every change told to that address. No rule of locks is here: a line
//! becomes a command, and what the engine says becomes a word.
//!
//! Where to look: `request` parses a line, `commands` makes a command of it, `followers` tell of
//! changes over connections of `delivery`, `text_connection` reads lines and writes words, and
//! `line_server` starts and ends it.

mod request;
mod delivery;
mod followers;
mod commands;
mod text_connection;
mod line_server;

pub use line_server::{LineConfig, LineServer, LineStartError};
pub(crate) use request::WORDS;
