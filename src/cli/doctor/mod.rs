//! The `doctor` command: checks everything that a mount or a server needs, and reports each problem
//! with its fix. With `--strict` it checks one guarded folder.

mod finding;
mod machine;
mod servers;
mod mounts;
mod nodes;
mod state_dirs;
mod folder_site;
mod folder_server;
mod guard_process;
mod around;
mod sync_settings;
mod mending;
mod strict;
mod report;

pub(super) use report::{DoctorArgs, run};
