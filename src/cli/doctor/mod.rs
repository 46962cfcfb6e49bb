//! The `doctor` command: checks everything that a mount or a server needs, and reports each problem
//! with its fix. With `--strict` it checks one guarded folder.
//!
//! `machine`, `mounts` and `servers` make the checks, `finding` is what they find, and
//! `report` runs them and prints it. `strict` checks a guarded folder, which `folder_site`
//! finds with its server.

mod finding;
mod servers;
mod mounts;
mod folder_site;
mod machine;
mod strict;
mod report;

pub(super) use report::{DoctorArgs, run};
