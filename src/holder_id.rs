//! The process that acquired a lock, and its text form `holder_id`, as a status shows it:
//! `host:user:pid:start:session.start.boot`.
//!
//! `session` is the login session, given by the pid of its leader and the start of that process,
//! since pids are reused, above all in containers. A start is a number that [`start_of`] returns.
//! `boot` tells both processes from those of other machines, and from those of this machine before
//! its last restart.

use crate::time::this_boot;
#[cfg(target_os = "linux")]
pub use kernel::process_start::pidfd_of;
pub use kernel::process_start::{ProcessStart, start_of};
use std::fmt;

/// A process that acquired a lock. It may have ended since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// The process that acquired the lock.
    pub process: ProcessStart,
    /// The leader of the login session of the process.
    pub session: ProcessStart,
    /// Half of the kernel's boot id for the boot in which both processes started; 0 if it is
    /// unknown.
    pub boot: u64,
}

/// A login session of one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoginSession {
    /// The process that began the session. Its start is 0 if the process has ended: as long as the
    /// session has programs, the kernel gives the pid to no other process.
    pub leader: ProcessStart,
    /// The user of the program.
    pub uid: u32,
}

impl LoginSession {
    /// Returns the session of a thread that acts as the user `uid`.
    pub fn of(tid: u32, uid: u32) -> Self {
        let pid = session_of(tid);
        Self { leader: ProcessStart { pid, at: start_of(pid).unwrap_or(0) }, uid }
    }

    /// Whether a program of the session `other` is one of this session: of the same user, or of
    /// root. `other` is the session as it is now. Its leader may have ended since this one was
    /// looked up.
    pub fn includes(self, other: Self) -> bool {
        let is_same = self.leader == other.leader
            || (self.leader.pid == other.leader.pid && other.leader.at == 0);
        is_same && (self.uid == other.uid || other.uid == 0)
    }
}

impl fmt::Display for LoginSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} of user {}", self.leader.pid, self.uid)
    }
}

impl Maker {
    /// Returns the running process `pid` with its login session and the current boot.
    pub fn running(pid: u32) -> Self {
        let process = ProcessStart { pid, at: start_of(pid).unwrap_or(0) };
        let session = ProcessStart::running(session_of(pid)).unwrap_or_default();
        Self { process, session, boot: this_boot() as u64 }
    }

    /// Parses the process that a `holder_id` names.
    pub fn parse(holder_id: &str) -> Option<Self> {
        let mut parts = holder_id.rsplit(':');
        let (pid, at) = parts.next()?.split_once('.')?;
        let (at, boot) = at.split_once('.')?;
        let session = ProcessStart { pid: pid.parse().ok()?, at: at.parse().ok()? };
        let boot = boot.parse().ok()?;
        let at = parts.next()?.parse().ok()?;
        let process = ProcessStart { pid: parts.next()?.parse().ok()?, at };
        Some(Self { process, session, boot })
    }

    /// Whether the process belongs to the current boot of this machine.
    pub fn is_of_this_boot(self) -> bool {
        self.boot == this_boot() as u64
    }

    /// Whether both name the same process, and it could be identified.
    pub fn is_same_process(self, other: Self) -> bool {
        self.boot == other.boot && self.process.is_known() && self.process == other.process
    }

    /// Whether the two processes belong to the same login session.
    pub fn is_same_session(self, other: Self) -> bool {
        self.boot == other.boot && self.session.is_known() && self.session == other.session
    }

    /// Whether a command that was started from the shell `other` may release a lock that this
    /// process acquired. It may if this process is that shell, or if this process has ended and
    /// belonged to the same login session as the shell.
    pub fn is_of_shell(self, other: Self) -> bool {
        self.is_same_process(other) || (self.is_same_session(other) && !self.process.runs())
    }
}

/// Writes the part of a `holder_id` that follows host and user.
impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, session, boot } = self;
        write!(f, "{}:{}:{}.{}.{boot}", process.pid, process.at, session.pid, session.at)
    }
}

/// Returns the login session of a thread; 0 if it has ended or is in a foreign pid namespace.
#[allow(unsafe_code)]
pub fn session_of(tid: u32) -> u32 {
    if tid == 0 {
        return 0;
    }
    // SAFETY: getsid takes any number and touches no memory.
    let session = unsafe { libc::getsid(tid as libc::pid_t) };
    u32::try_from(session).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn a_holder_id_survives_a_round_trip() {
        let own = Maker::running(std::process::id());
        assert!(own.process.runs() && own.process.is_known());
        assert_eq!(Maker::parse(&format!("laptop1:ann:{own}")), Some(own));
        for other in [
            "",
            "7",
            "laptop1:ann",
            "laptop1:ann:7:70",
            "laptop1:ann:7:70:4.40",
            "a:b:c:d",
            "a:b:1:2:3.",
            "a:b:1:2:3.4x",
            "a:b:1:2:3.4.",
            "a:b:1:2:3.4.5.6",
            "1:2.3",
        ] {
            assert_eq!(Maker::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_shell_may_release_what_it_acquired() {
        // The leader of the test's own session may have ended or be invisible, so the test sets
        // one.
        let session = ProcessStart { pid: 4_000, at: 17 };
        let here = Maker { session, ..Maker::running(std::process::id()) };
        assert!(here.is_of_shell(here));
        let gone = ProcessStart { pid: here.process.pid, at: here.process.at + 1 };
        let same_session = Maker { process: gone, ..here };
        assert!(same_session.is_of_shell(here), "its process has ended");
        let other = ProcessStart { pid: 1, at: 1 };
        assert!(!Maker { process: gone, session: other, ..here }.is_of_shell(here));
        let elsewhere = Maker { boot: here.boot ^ 1, ..here };
        assert!(!elsewhere.is_of_shell(here), "the same numbers on another machine");
        assert!(!Maker { process: gone, ..elsewhere }.is_of_shell(here));
        let unknown = Maker {
            process: ProcessStart::default(),
            session: ProcessStart::default(),
            boot: here.boot,
        };
        assert!(!unknown.is_of_shell(unknown), "nothing is known of either");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let running = Maker { session, ..Maker::running(child.id()) };
        assert!(!running.is_of_shell(here), "another program, which still runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(running.is_of_shell(here), "its process has ended");
    }

    #[test]
    fn a_session_has_a_start_while_its_leader_runs() {
        let mut leader = std::process::Command::new("setsid")
            .args(["sh", "-c", "sleep 60 & echo $!; exec cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("setsid");
        let mut line = String::new();
        let stdout = leader.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let sleeper: u32 = line.trim().parse().expect("a pid");
        let known = Maker::running(sleeper).session;
        assert_eq!(known, ProcessStart::running(leader.id()).expect("it runs"));
        drop(leader.stdin.take());
        leader.wait().expect("it ends");
        let unknown = Maker::running(sleeper).session;
        std::process::Command::new("kill").arg(line.trim()).status().expect("kill");
        assert_eq!(
            unknown,
            ProcessStart::default(),
            "nothing tells it from later ones of that pid"
        );
    }

    #[test]
    fn a_reused_pid_is_no_login_session_of_before() {
        let session = |at, uid| LoginSession { leader: ProcessStart { pid: 7, at }, uid };
        let owner = session(100, 1_000);
        assert!(owner.includes(owner), "the same");
        assert!(owner.includes(session(100, 0)), "root in the same session");
        assert!(owner.includes(session(0, 1_000)), "its leader has ended");
        for (other, why) in [
            (session(200, 1_000), "the pid was used again"),
            (session(200, 1_001), "by another user"),
            (session(200, 0), "by root"),
            (session(100, 1_001), "another user in the same session"),
            (session(0, 1_001), "the leader of another user's session has ended"),
        ] {
            assert!(!owner.includes(other), "{why}");
        }
        assert!(!session(0, 1_000).includes(owner), "a session whose leader runs is another one");
        assert!(!session(100, 0).includes(owner), "what root holds is not the user's");
        let own = LoginSession::of(std::process::id(), 1_000);
        assert_eq!(own, LoginSession::of(std::process::id(), 1_000));
    }
}
