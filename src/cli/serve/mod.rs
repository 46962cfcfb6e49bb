//! Servers and clusters.
//!
//! `storage_options` opens the engine of a daemon, also as a node of a cluster, and
//! `access_options` says who may do what, with the certificate authority of a home. `serve_command`
//! runs all of that, and the HTTP server of a mount. `cluster_command` and `backup_restore`
//! administer a server that runs, and `invite_command` lets
//! other machines join it.

pub(super) mod access_options;
pub(super) mod backup_restore;
pub(super) mod cluster_command;
pub(super) mod storage_options;
pub(super) mod invite_command;
pub(super) mod serve_command;
