//! The daemon behind the view of a guarded folder, as `/proc` shows it. Nothing here touches the
//! view, so that it can be told why a daemon does not answer.

use crate::fuse::kernel::device;
use crate::fuse::kernel::mountinfo::MountPoint;
use crate::holder_id::ProcessStart;
use std::fmt;
use std::fs;

/// The state of a daemon that does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DaemonState {
    /// A signal has stopped the process.
    Stopped(u32),
    /// A thread of the process sleeps in the kernel, where no signal ends it.
    InKernel(u32, String),
    /// The process runs, or waits for something that `/proc` does not tell.
    Runs(u32),
    /// No process of this pid namespace is the daemon.
    Unseen,
}

impl DaemonState {
    /// Returns the state of the daemon of a view.
    pub(super) fn of(view: &MountPoint) -> Self {
        let Some(ProcessStart { pid, .. }) =
            device::daemon_of(&view.source).filter(|daemon| daemon.runs())
        else {
            return Self::Unseen;
        };
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut state = Self::Runs(pid);
        for thread in threads {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            match field(&status, "State").chars().next() {
                Some('T' | 't') => return Self::Stopped(pid),
                Some('D') => state = Self::InKernel(pid, field(&status, "Name").to_owned()),
                _ => {}
            }
        }
        state
    }

    /// Whether a signal has stopped the process.
    pub(super) const fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped(_))
    }
}

/// Returns a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(key, _)| *key == name).map(|(_, value)| value.trim()).next().unwrap_or_default()
}

/// Writes the state as a clause, with the next step.
impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(pid) => write!(
                f,
                "its process {pid} was stopped by a signal; let it go on with 'kill -CONT {pid}', \
                 or end it with 'kill -KILL {pid}'"
            ),
            Self::InKernel(pid, thread) => write!(
                f,
                "the thread '{thread}' of its process {pid} waits for a disk or another file \
                 system; look after the disk of the folder, or end the process with 'kill -KILL \
                 {pid}'"
            ),
            Self::Runs(pid) => write!(
                f,
                "its process {pid} runs and does not answer; try again, or end it with 'kill -KILL \
                 {pid}'"
            ),
            Self::Unseen => write!(
                f,
                "its process is not among those of this machine that are seen here; look for it \
                 outside of this container"
            ),
        }
    }
}
