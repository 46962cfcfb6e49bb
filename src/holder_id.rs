//! The process that acquired a lock, as `holder_id` of a status names it:
//! `host:user:pid:start:session.start.boot`. The session is the login session, by the pid and the
//! start of its leader: pids alone come again, in containers above all. A start is the number of
//! [`start_of`]. The boot tells both from processes of other machines, and of this one before it
//! was restarted.
//! Statuses written by an older latchfs lack the boot, or the session as well.

use crate::time::this_boot;
use std::fmt;
#[cfg(target_os = "linux")]
use std::io;
use std::io::Read;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A process, whether it still runs or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// Which process.
    pub process: Started,
    /// The leader of its login session.
    pub session: Started,
    /// Half of the kernel's name for the boot in which both started; 0 if that is not known.
    pub boot: u64,
}

/// A pid, and what tells its process from others of that pid; zeros where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Started {
    /// Which pid.
    pub pid: u32,
    /// Its [`start_of`].
    pub at: u64,
}

impl Started {
    /// The process that has this pid now, if one has.
    pub fn running(pid: u32) -> Option<Self> {
        Some(Self { pid, at: start_of(pid)? })
    }

    /// Whether the process still runs.
    pub fn runs(self) -> bool {
        Self::running(self.pid) == Some(self)
    }

    fn is_known(self) -> bool {
        self.pid != 0 && self.at != 0
    }
}

impl Maker {
    /// The process `pid`.
    pub fn running(pid: u32) -> Self {
        let process = Started { pid, at: start_of(pid).unwrap_or(0) };
        let session = Started::running(session_of(pid)).unwrap_or_default();
        Self { process, session, boot: this_boot() as u64 }
    }

    /// The process that a `holder_id` names.
    pub fn parse(holder_id: &str) -> Option<Self> {
        let mut parts = holder_id.rsplit(':').peekable();
        let (session, boot) = match parts.next_if(|last| last.contains('.')) {
            None => (Started::default(), 0),
            Some(session) => {
                let (pid, at) = session.split_once('.')?;
                let (at, boot) = at.split_once('.').unwrap_or((at, "0"));
                (Started { pid: pid.parse().ok()?, at: at.parse().ok()? }, boot.parse().ok()?)
            }
        };
        let at = parts.next()?.parse().ok()?;
        let process = Started { pid: parts.next()?.parse().ok()?, at };
        Some(Self { process, session, boot })
    }

    /// Whether it was of this machine, and not before its last start.
    pub fn is_of_this_boot(self) -> bool {
        self.boot == this_boot() as u64
    }

    /// Whether a command below `other`, a shell, may release what this process acquired: it is
    /// that shell, or it has ended and was of the same login session.
    pub fn is_of_shell(self, other: Self) -> bool {
        if self.boot != other.boot {
            return false;
        }
        if self.process.is_known() && self.process == other.process {
            return true;
        }
        let same_session = self.session.is_known() && self.session == other.session;
        same_session && !self.process.runs()
    }
}

/// The end of a `holder_id`.
impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, session, boot } = self;
        write!(f, "{}:{}:{}.{}.{boot}", process.pid, process.at, session.pid, session.at)
    }
}

/// A number that tells a process from all others that have its pid before or after it: the inode
/// of its pidfd where the kernel counts those (Linux 6.9), else when it started, in ticks since
/// boot.
///
/// `/proc/PID/stat` is not read where that can be avoided: newer kernels make the reader wait while
/// the process is in exec, and an exec waits for the daemon of each mount of which it closes a
/// file. A daemon that read it while it serves that mount would wait for itself.
#[cfg(target_os = "linux")]
pub fn start_of(pid: u32) -> Option<u64> {
    let process = pidfd_of(pid).ok()?;
    inode_of(&process).or_else(|| ticks_of(pid))
}

/// Nothing is known of other systems.
#[cfg(not(target_os = "linux"))]
pub const fn start_of(_pid: u32) -> Option<u64> {
    None
}

/// A descriptor of a process, if `pid` is one and not a mere thread of one.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub fn pidfd_of(pid: u32) -> io::Result<OwnedFd> {
    if pid == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the call takes two numbers and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The inode of a pidfd, where each process has one of its own.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn inode_of(process: &OwnedFd) -> Option<u64> {
    /// The file system of pidfds: before there was one, all of them shared an inode.
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let fd = process.as_raw_fd();
    let mut system = std::mem::MaybeUninit::<libc::statfs>::uninit();
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the descriptor is open, and both calls write to what they are given and no further.
    let done = unsafe {
        libc::fstatfs(fd, system.as_mut_ptr()) == 0 && libc::fstat(fd, stat.as_mut_ptr()) == 0
    };
    if !done {
        return None;
    }
    // SAFETY: both calls have succeeded, so both are written.
    let (system, stat) = unsafe { (system.assume_init(), stat.assume_init()) };
    (system.f_type as u64 == PIDFS_MAGIC).then_some(stat.st_ino)
}

/// When a process started, in ticks since boot. May wait: see [`start_of`].
pub fn ticks_of(pid: u32) -> Option<u64> {
    let mut buffer = [0_u8; 1_024];
    let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let length = file.read(&mut buffer).ok()?;
    parse_start(&buffer[..length])
}

/// Field 22. The second field is the command in brackets, which may hold spaces and brackets.
fn parse_start(stat: &[u8]) -> Option<u64> {
    let after_command = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let fields = std::str::from_utf8(stat.get(after_command..)?).ok()?;
    fields.split(' ').nth(22 - 3)?.trim().parse().ok()
}

/// The login session of a thread; 0 if it is gone or in a foreign pid namespace.
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
    fn a_holder_id_is_read_as_it_is_written() {
        let own = Maker::running(std::process::id());
        assert!(own.process.runs() && own.process.is_known());
        assert_eq!(Maker::parse(&format!("laptop1:ann:{own}")), Some(own));
        let old = Maker::parse("laptop1:ann:7:70").expect("as older ones wrote it");
        assert_eq!((old.process, old.session), (Started { pid: 7, at: 70 }, Started::default()));
        let old = Maker::parse("laptop1:ann:7:70:4.40").expect("as older ones wrote it");
        assert_eq!((old.session, old.boot), (Started { pid: 4, at: 40 }, 0));
        for other in [
            "",
            "7",
            "laptop1:ann",
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
        // The test may run where the leader of its session has ended or cannot be seen.
        let session = Started { pid: 4_000, at: 17 };
        let here = Maker { session, ..Maker::running(std::process::id()) };
        assert!(here.is_of_shell(here));
        let gone = Started { pid: here.process.pid, at: here.process.at + 1 };
        let same_session = Maker { process: gone, ..here };
        assert!(same_session.is_of_shell(here), "its process has ended");
        let other = Started { pid: 1, at: 1 };
        assert!(!Maker { process: gone, session: other, ..here }.is_of_shell(here));
        let elsewhere = Maker { boot: here.boot ^ 1, ..here };
        assert!(!elsewhere.is_of_shell(here), "the same numbers on another machine");
        assert!(!Maker { process: gone, ..elsewhere }.is_of_shell(here));
        let unknown =
            Maker { process: Started::default(), session: Started::default(), boot: here.boot };
        assert!(!unknown.is_of_shell(unknown), "nothing is known of either");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let running = Maker { session, ..Maker::running(child.id()) };
        assert!(!running.is_of_shell(here), "another program, which still runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(running.is_of_shell(here), "its process has ended");
    }

    #[test]
    fn a_session_is_known_while_its_leader_runs() {
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
        assert_eq!(known, Started::running(leader.id()).expect("it runs"));
        drop(leader.stdin.take());
        leader.wait().expect("it ends");
        let unknown = Maker::running(sleeper).session;
        std::process::Command::new("kill").arg(line.trim()).status().expect("kill");
        assert_eq!(unknown, Started::default(), "nothing tells it from later ones of that pid");
    }

    #[test]
    fn the_start_time_is_field_22_whatever_the_command_is_called() {
        let stat = b"7 (a b) c) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 9 9\n";
        assert_eq!(parse_start(stat), Some(4_711));
        assert_eq!(parse_start(b"7 (x"), None);
    }
}
