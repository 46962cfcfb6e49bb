//! The process of a coding agent: which one it is, and the watcher that releases the leases of a
//! session when it has ended.

use crate::cli::exit::{CliError, CliResult};
use crate::holder_id::ProcessStart;
use crate::time::Span;
use std::os::unix::process::parent_id;
use std::str::FromStr;

/// How many processes above a hook are looked at.
const ANCESTORS_MAX: usize = 16;
/// Programs that start a hook for an agent, and may end before it.
const STARTERS: [&str; 11] =
    ["sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "busybox", "env", "timeout", "nice"];

/// A process with its start, as a watcher is told of it: `PID.START`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) struct WatchedProcess(pub(in crate::cli) ProcessStart);

impl FromStr for WatchedProcess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (pid, at) = text.split_once('.')?;
            Some(ProcessStart { pid: pid.parse().ok()?, at: at.parse().ok()? })
        };
        parse().map(Self).ok_or_else(|| format!("'{text}' is no process; write PID.START"))
    }
}

impl WatchedProcess {
    /// Returns the process with this id, or else that of the agent which has started this hook: the
    /// nearest process above that is no shell. `None` if there is none that can be watched.
    pub(super) fn of_agent(pid: Option<u32>) -> CliResult<Option<Self>> {
        let running = |pid: u32| ProcessStart::running(pid).map(Self);
        let Some(pid) = pid else { return Ok(above().and_then(running)) };
        running(pid).map(Some).ok_or_else(|| {
            CliError::usage(format!(
                "there is no process {pid}; --agent-pid names that of the agent"
            ))
        })
    }

    /// Waits until the process has ended, for at most this long. Returns whether it has.
    #[cfg(target_os = "linux")]
    pub(super) fn has_ended_within(self, patience: Span) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let Ok(process) = kernel::process_start::pidfd_of(self.0.pid) else { return true };
        if !self.0.runs() {
            return true;
        }
        let timeout = patience.as_duration().try_into().ok();
        let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], timeout.as_ref());
        !matches!(ended, Ok(0) | Err(rustix::io::Errno::INTR))
    }

    /// Waits until the process has ended, for at most this long. Returns whether it has.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn has_ended_within(self, patience: Span) -> bool {
        std::thread::sleep(patience.as_duration());
        !self.0.runs()
    }
}

/// Returns the nearest process above this one that is no shell.
fn above() -> Option<u32> {
    let mut pid = parent_id();
    for _ in 0..ANCESTORS_MAX {
        let (name, parent) = described(pid)?;
        if !STARTERS.contains(&name.as_str()) {
            return (pid > 1).then_some(pid);
        }
        pid = parent;
    }
    None
}

/// Returns the name of a process, and its parent.
fn described(pid: u32) -> Option<(String, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    Some((field("Name")?.to_owned(), field("PPid")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_process_survives_a_round_trip() {
        let process = WatchedProcess(ProcessStart { pid: 7, at: 70 });
        assert_eq!("7.70".parse(), Ok(process));
        for wrong in ["", "7", "7.", ".70", "-1.2", "a.b"] {
            assert!(wrong.parse::<WatchedProcess>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_end_of_a_process_is_seen_before_it_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let process = WatchedProcess::of_agent(Some(child.id())).ok().flatten().expect("it runs");
        assert!(!process.has_ended_within(Span::from_millis(1)));
        child.kill().expect("it runs");
        assert!(process.has_ended_within(Span::from_secs(60)));
        child.wait().expect("it ends");
        assert!(process.has_ended_within(Span::from_secs(60)));
        assert!(WatchedProcess::of_agent(Some(child.id())).is_err(), "it has ended");
    }

    #[test]
    fn the_agent_is_no_shell() {
        let (name, parent) = described(std::process::id()).expect("this process");
        assert!(!name.is_empty() && parent > 0);
        assert_eq!(described(u32::MAX), None);
    }
}
