//! The `doctor` command: checks everything that a mount or a server needs, and reports each problem
//! with its fix.

mod finding;
mod machine;
mod servers;
mod mounts;
mod nodes;
mod state_dirs;
mod report;

pub(super) use report::{DoctorArgs, run};
