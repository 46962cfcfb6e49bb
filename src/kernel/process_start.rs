//! A process, told from all others that have or had its pid.

#[cfg(target_os = "linux")]
use std::io;
use std::io::Read;
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A pid with a number that distinguishes the process from all others with that pid. Zeros mean
/// unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProcessStart {
    /// The pid of the process.
    pub pid: u32,
    /// The result of [`start_of`] for the process.
    pub at: u64,
}

impl ProcessStart {
    /// Returns the process that has this pid now, or `None` if there is none.
    pub fn running(pid: u32) -> Option<Self> {
        Some(Self { pid, at: start_of(pid)? })
    }

    /// Whether the process still runs.
    pub fn runs(self) -> bool {
        Self::running(self.pid) == Some(self)
    }

    /// Whether the process could be identified.
    pub const fn is_known(self) -> bool {
        self.pid != 0 && self.at != 0
    }
}

/// Returns a number that tells a process from all earlier and later ones with its pid: the inode of
/// its pidfd where the kernel makes that unique (Linux 6.9), else its start time in ticks since
/// boot.
///
/// `/proc/PID/stat` is avoided where possible: newer kernels block its reader while the process is
/// in exec, and an exec waits for the FUSE daemon of each mount of which it closes a file. A daemon
/// that read the file while it serves such a mount would wait for itself.
#[cfg(target_os = "linux")]
pub fn start_of(pid: u32) -> Option<u64> {
    let process = pidfd_of(pid).ok()?;
    inode_of(&process).or_else(|| ticks_of(pid))
}

/// Returns `None`: on systems other than Linux, latchfs can't tell a process from an earlier one
/// with the same pid.
#[cfg(not(target_os = "linux"))]
pub const fn start_of(_pid: u32) -> Option<u64> {
    None
}

/// Opens a pidfd of the process `pid`. Fails if `pid` is the id of a mere thread.
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
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the inode of a pidfd, or `None` if the kernel does not give each process its own inode.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn inode_of(process: &OwnedFd) -> Option<u64> {
    /// The magic number of pidfs, the file system of pidfds. On kernels without pidfs, all pidfds
    /// share one inode.
    const PIDFS_MAGIC: u64 = 0x5049_4446;
    let fd = process.as_raw_fd();
    let mut system = std::mem::MaybeUninit::<libc::statfs>::uninit();
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the descriptor is open, and each call writes only to the struct whose address it is
    // given.
    let done = unsafe {
        libc::fstatfs(fd, system.as_mut_ptr()) == 0 && libc::fstat(fd, stat.as_mut_ptr()) == 0
    };
    if !done {
        return None;
    }
    // SAFETY: both calls have succeeded, so both structs are initialized.
    let (system, stat) = unsafe { (system.assume_init(), stat.assume_init()) };
    (system.f_type as u64 == PIDFS_MAGIC).then_some(stat.st_ino)
}

/// Returns the start time of a process in ticks since boot. May block: see [`start_of`].
pub fn ticks_of(pid: u32) -> Option<u64> {
    let mut buffer = [0_u8; 1_024];
    let mut file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let length = file.read(&mut buffer).ok()?;
    parse_start(&buffer[..length])
}

/// Parses field 22 of `/proc/PID/stat`. Field 2 is the command in brackets, and may itself contain
/// spaces and brackets.
fn parse_start(stat: &[u8]) -> Option<u64> {
    let after_command = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let fields = std::str::from_utf8(stat.get(after_command..)?).ok()?;
    fields.split(' ').nth(22 - 3)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_field_22_whatever_the_command_is_called() {
        let stat = b"7 (a b) c) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 9 9\n";
        assert_eq!(parse_start(stat), Some(4_711));
        assert_eq!(parse_start(b"7 (x"), None);
    }
}
