//! Servers and clusters.
//!
//! `storage_options` opens the engine of a daemon, `access_options` says who may do what and has
//! the certificate authority of a home (`cert`), and `peer_options` makes a node of a server.
//! `serve_command` runs all of that. `cluster` and `backup_restore` administer a server that runs,
//! and `print_permissions` prints who may do what.

pub(super) mod access_options;
pub(super) mod backup_restore;
pub(super) mod cluster;
pub(super) mod storage_options;
pub(super) mod serve_command;
