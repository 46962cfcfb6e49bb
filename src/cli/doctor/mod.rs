//! `doctor`: looks at all that a mount or a server needs, and says what to mend and how.

mod finding;
mod machine;
mod servers;
mod mounts;
mod nodes;
mod state_dirs;
mod report;

pub(super) use report::{DoctorArgs, run};
