//! Where a command sends its requests, and with which credentials.
//!
//! A command is about a mount or about a server. `target` decides which, from its options, the
//! environment and the directory that it stands in; `config_file` reads the servers that have a
//! name, and `config` shows where each value came from; `credential_options` are the options that
//! all commands share. `join_command` joins a server, writes the profile for it, and renews what it
//! has brought. Where nothing is named, the server is the machine's daemon of `machine_locks`, or
//! else a daemon of this user, which `own_locks` starts. `mount_client` and `remote_client` then
//! carry the same requests to a mount's `.latchfs/ctl` or to a server.

pub(super) mod config_file;
pub(super) mod join_command;
pub(super) mod machine_locks;
pub(super) mod credential_options;
pub(super) mod mount_client;
pub(super) mod remote_client;
pub(super) mod own_locks;
pub(super) mod target;
pub(super) mod config;
