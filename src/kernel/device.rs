//! Creates and removes mounts: opens /dev/fuse, calls mount(2) or fusermount3, and unmounts.
//!
//! This module mounts, and passes the open device to fuser. fuser could mount as well, but at the
//! end of its session it unmounts by path, even if another daemon has mounted there since, and it
//! tells a missing device from a missing helper only in a log line.

use crate::LOG;
use crate::machine_facts::Users;
use crate::machine_facts::is_root;
use crate::machine_facts::{DEVICE, HELPER};
use crate::mountinfo::MountPoint;
use crate::process_start::ProcessStart;
use crate::session::MountError;
use crate::session::{PermissionsBy, SessionKind};
use common::error_text::said;
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The source of a latchfs mount, as `mount` and `df` show it. That of a view names its daemon as
/// well.
const SOURCE: &str = "latchfs";
/// The environment variable that tells fusermount3 the number of the socket to which it sends the
/// open device.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";
/// The flag of mount(2) that makes path resolution fail at a symlink, while readlink works. libc
/// has no constant for it yet.
const MS_NOSYMFOLLOW: libc::c_ulong = 256;
/// The mount option of fusermount3 that corresponds to [`MS_NOSYMFOLLOW`].
const NO_SYMLINKS: &str = ",nosymfollow";

/// How a mount was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// The mount was not busy, and is gone.
    Clean,
    /// The mount was busy: it is no longer visible, but files that are open in it work until they
    /// are closed.
    Detached,
}

/// Mounts a file system of `kind` at `dir`, and returns the open FUSE device, from which the
/// kernel's requests are read.
pub fn mount(dir: &Path, users: Users, kind: &SessionKind) -> Result<OwnedFd, MountError> {
    let device = match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => MountError::DeviceDenied,
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
                _ => MountError::Device(error),
            });
        }
    };
    match mount_directly(dir, &device, users, kind) {
        Ok(()) => Ok(device.into()),
        // The helper fusermount3 is not tried as root: it has no privilege that root lacks, for
        // example in a container without `CAP_SYS_ADMIN`.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) && !is_root() => {
            // An older fusermount3 does not know the option `nosymfollow` and fails, so the mount
            // is tried again without it.
            let more = if kind.follows_symlinks { "" } else { NO_SYMLINKS };
            mount_by_helper(dir, users, kind, more).or_else(|refused| match refused {
                MountError::Helper(_) if !more.is_empty() => mount_by_helper(dir, users, kind, ""),
                refused => Err(refused),
            })
        }
        Err(error) => Err(MountError::Refused { dir: dir.into(), error }),
    }
}

/// Tells the kernel that its cached entry `name` in the directory `parent` has expired: the kernel
/// looks the name up again on its next use, and drops the entry only if the name then has another
/// inode. Kernels before Linux 6.2 drop the entry at once.
#[allow(unsafe_code)]
pub(crate) fn expire_entry(device: RawFd, parent: u64, name: &OsStr) -> io::Result<()> {
    // The total size of the two headers of the message, `fuse_out_header` and
    // `fuse_notify_inval_entry_out`. The name follows them, with a NUL at its end.
    const HEADERS_BYTES: usize = 32;
    const NOTIFY_INVAL_ENTRY: i32 = 3;
    const EXPIRE_ONLY: u32 = 1;
    let name = name.as_bytes();
    let length = HEADERS_BYTES + name.len() + 1;
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&(length as u32).to_ne_bytes());
    message.extend_from_slice(&NOTIFY_INVAL_ENTRY.to_ne_bytes());
    message.extend_from_slice(&0_u64.to_ne_bytes()); // answers no request
    message.extend_from_slice(&parent.to_ne_bytes());
    message.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    message.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
    message.extend_from_slice(name);
    message.push(0);
    // SAFETY: write(2) reads exactly the bytes of `message`, and is sound for any descriptor
    // number.
    let written = unsafe { libc::write(device, message.as_ptr().cast(), message.len()) };
    match io::Error::last_os_error() {
        // ENOENT counts as success: the kernel has dropped the entry already.
        _ if written >= 0 => Ok(()),
        error if error.kind() == ErrorKind::NotFound => Ok(()),
        error => Err(error),
    }
}

/// Returns the source of a mount of this process: for a view `latchfs:PID:START`, so that a command
/// can tell why a daemon does not answer.
fn source(kind: &SessionKind) -> String {
    let own = ProcessStart::running(std::process::id()).filter(|_| kind.names_daemon);
    own.map_or(SOURCE.to_owned(), |own| format!("{SOURCE}:{}:{}", own.pid, own.at))
}

/// Returns the daemon that the source of a view names.
pub fn daemon_of(source: &str) -> Option<ProcessStart> {
    let (pid, at) = source.strip_prefix(SOURCE)?.strip_prefix(':')?.split_once(':')?;
    Some(ProcessStart { pid: pid.parse().ok()?, at: at.parse().ok()? })
}

/// Mounts by mount(2), which needs `CAP_SYS_ADMIN`.
#[allow(unsafe_code)]
fn mount_directly(dir: &Path, device: &File, users: Users, kind: &SessionKind) -> io::Result<()> {
    // SAFETY: getuid and getgid only read the ids of this process, and can't fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    data.push_str(&access_options(users, kind));
    let source = c_string(source(kind).as_bytes())?;
    let type_name = c_string(kind.type_name.as_bytes())?;
    let (target, data) = (c_string(dir.as_os_str().as_bytes())?, c_string(data.as_bytes())?);
    // Kernels before Linux 5.10 ignore `MS_NOSYMFOLLOW`.
    let symlinks = if kind.follows_symlinks { 0 } else { MS_NOSYMFOLLOW };
    let flags = libc::MS_NOSUID | libc::MS_NODEV | symlinks;
    // SAFETY: all five arguments are valid NUL-terminated strings or plain numbers, and live
    // until the call returns.
    let result = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            type_name.as_ptr(),
            flags,
            data.as_ptr().cast::<libc::c_void>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts by fusermount3, for users without `CAP_SYS_ADMIN`; the helper sends the open device
/// through a socket.
fn mount_by_helper(
    dir: &Path,
    users: Users,
    kind: &SessionKind,
    more: &str,
) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Device)?;
    // The helper puts `fuse.` in front of the subtype.
    let subtype = kind.type_name.trim_start_matches("fuse.");
    let mut options = format!("nosuid,nodev,fsname={},subtype={subtype}{more}", source(kind));
    options.push_str(&access_options(users, kind));
    let mut command = Command::new(HELPER);
    command.args(["-o", &options, "--"]).arg(dir);
    command.env(HELPER_SOCKET, theirs.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    inherit(&mut command, theirs.as_raw_fd());
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(MountError::NoHelper),
        Err(error) => return Err(MountError::Helper(said(&error))),
    };
    // This process closes its copy of the helper's end of the socket, so that only the helper has
    // that end open. If the helper exits without sending the device, `receive_fd` sees the end of
    // file.
    drop(theirs);
    let device = receive_fd(ours.as_fd());
    let output = child.wait_with_output();
    match device {
        Ok(Some(device)) => Ok(device),
        failed => {
            let why = match (output, failed) {
                (Ok(output), _) if !output.stderr.is_empty() => {
                    String::from_utf8_lossy(&output.stderr).trim().to_owned()
                }
                (_, Err(error)) => said(&error),
                _ => "it exited without sending the device".to_owned(),
            };
            Err(if why.contains("user_allow_other") {
                MountError::AllowOther
            } else {
                MountError::Helper(why.replace('\n', "; "))
            })
        }
    }
}

/// Returns the mount options that say which users the mount serves, and whether the kernel checks
/// permissions.
fn access_options(users: Users, kind: &SessionKind) -> String {
    let mut options = String::new();
    if users == Users::All {
        options.push_str(",allow_other");
    }
    if kind.permissions == PermissionsBy::Kernel {
        options.push_str(",default_permissions");
    }
    options
}

/// Keeps `fd` open in the program that `command` starts.
#[allow(unsafe_code)]
fn inherit(command: &mut Command, fd: RawFd) {
    let keep = move || {
        // SAFETY: fcntl is sound for any descriptor number, and may be called after fork.
        match unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure makes one system call and allocates nothing, so it may run after fork.
    unsafe { command.pre_exec(keep) };
}

/// A buffer for one control message (cmsg) with one file descriptor, aligned as the kernel
/// requires.
#[repr(C)]
union Control {
    header: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Receives one file descriptor through `socket`; `None` if the other end closed without sending
/// one.
#[allow(unsafe_code)]
fn receive_fd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast::<libc::c_void>(), iov_len: 1 };
    let mut control = Control { bytes: [0; 64] };
    // SAFETY: all zeros is a valid msghdr: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast::<libc::c_void>();
    message.msg_controllen = size_of::<Control>() as _;
    let received = loop {
        // SAFETY: `message` points to `byte` and `control`, which outlive the call, with their
        // true sizes.
        let received =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if received >= 0 {
            break received;
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    };
    if received == 0 {
        return Ok(None);
    }
    // SAFETY: recvmsg has set the length of what it wrote to `control`; CMSG_FIRSTHDR returns
    // null when that is less than a header.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: `header` is null or points to a header within `control`, and `as_ref` checks for
    // null.
    let Some(found) = (unsafe { header.as_ref() }) else { return Ok(None) };
    if found.cmsg_level != libc::SOL_SOCKET || found.cmsg_type != libc::SCM_RIGHTS {
        return Ok(None);
    }
    // SAFETY: a control message of type SCM_RIGHTS carries at least one descriptor behind its
    // header, perhaps unaligned. The kernel created the descriptor for this process, so nothing
    // else owns it.
    let fd =
        unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()) };
    Ok(Some(fd))
}

/// Unmounts the topmost mount at `dir`, or detaches it if it is busy.
pub fn unmount(dir: &Path) -> io::Result<Gone> {
    match umount2(dir, 0) {
        Ok(()) => Ok(Gone::Clean),
        Err(error) => match error.raw_os_error() {
            Some(libc::EBUSY) => detach(dir).map(|()| Gone::Detached),
            Some(libc::EPERM) => match helper_unmount(dir, &["-u"]) {
                Ok(()) => Ok(Gone::Clean),
                Err(_) => helper_unmount(dir, &["-u", "-z"]).map(|()| Gone::Detached),
            },
            _ => Err(error),
        },
    }
}

/// Detaches the topmost mount at `dir`, even if the mount is busy or its daemon has died.
pub fn detach(dir: &Path) -> io::Result<()> {
    match umount2(dir, libc::MNT_DETACH) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            helper_unmount(dir, &["-u", "-z"])
        }
        result => result,
    }
}

/// Detaches a mount whose daemon hangs, and ends its connection with the kernel: requests that wait
/// for the daemon fail, as do all later ones. A daemon can't end while one of its threads sleeps in
/// the kernel, and programs would wait for it even after it was killed.
pub fn abort(mount: &MountPoint) -> io::Result<()> {
    match umount2(&mount.dir, libc::MNT_FORCE | libc::MNT_DETACH) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            // A user who has mounted may end the connection. The file is not there where the file
            // system for it is not mounted.
            let control = format!("/sys/fs/fuse/connections/{}/abort", mount.device.minor);
            if let Err(error) = std::fs::write(&control, "1") {
                log::warn!(target: LOG, "{control} can't be written: {}", said(&error));
            }
            helper_unmount(&mount.dir, &["-u", "-z"])
        }
        result => result,
    }
}

#[allow(unsafe_code)]
fn umount2(dir: &Path, flags: libc::c_int) -> io::Result<()> {
    let dir = c_string(dir.as_os_str().as_bytes())?;
    // SAFETY: `dir` is a valid NUL-terminated string that lives until the call returns.
    match unsafe { libc::umount2(dir.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn helper_unmount(dir: &Path, options: &[&str]) -> io::Result<()> {
    let output = Command::new(HELPER).args(options).arg("--").arg(dir).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ")))
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
