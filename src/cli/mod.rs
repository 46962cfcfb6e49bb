//! The command line.
//!
//! `command_line` lists all commands and dispatches them. There is a folder for each family: `lock`
//! for one lock, `show` for many, `run` for a command under a lock, `hook` for coding agents,
//! `mount`, `serve` for servers and clusters, `guard` for guarded folders, and `doctor`. `connect`
//! finds the mount or the server that a command is about. `exit` and `output` define how a command
//! ends and what it prints, `status_table` formats locks, `argument_types` and `log_options` are
//! shared arguments, and `background` starts daemons, which `signals` ends; those that `at_login`
//! installs start at login. `generate` writes completions and the manual.

mod exit;
mod output;
mod signals;
mod background;
mod argument_types;
mod log_options;
mod status_table;
mod connect;
mod at_login;
mod serve;
mod mount;
mod guard;
mod lock;
mod run;
mod hook;
mod show;
mod doctor;
mod generate;
mod command_line;

pub use command_line::main;
