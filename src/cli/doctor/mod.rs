//! The `doctor` command: checks everything that a mount or a server needs, and reports each problem
//! with its fix. With `--strict` it checks one guarded folder.

mod finding;
mod servers;
mod mounts;
mod nodes;
mod folder_site;
mod machine;
mod strict;
mod report;

pub(super) use report::{DoctorArgs, run};
