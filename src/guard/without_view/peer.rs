//! The user at the other end of a Unix socket, as the kernel names it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

/// Returns the effective uid of the process that has connected.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn uid_of(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (option, into) = (libc::SO_PEERCRED, (&raw mut found).cast());
    // SAFETY: `into` points to `length` bytes that live until the call returns.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, into, &raw mut length)
    };
    if result == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

/// Returns the effective uid of the process that has connected.
#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
pub(super) fn uid_of(stream: &UnixStream) -> io::Result<u32> {
    let (mut uid, mut gid) = (0, 0);
    // SAFETY: both pointers are valid until the call returns.
    let result = unsafe { libc::getpeereid(stream.as_raw_fd(), &raw mut uid, &raw mut gid) };
    if result == 0 { Ok(uid) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert_eq!(uid_of(&one).expect("known"), rustix::process::geteuid().as_raw());
    }
}
