//! The command line.
//!
//! Modules: `exit` and `output` define how a command ends; `target` finds the mount or the server
//! that a command is about, and `mount_client` and `remote_client` send requests to it; each
//! command has a module of its own, and `command_line` lists them all.

mod exit;
mod output;
mod signals;
mod argument_types;
mod log_options;
mod status_table;
mod connect;
mod serve;
mod mount;
mod guard;
mod lock;
mod run;
mod show;
mod doctor;
mod sim;
mod generate;
mod command_line;

pub use command_line::main;
