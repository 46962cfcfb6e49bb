//! The process at the other end of a Unix socket, as the kernel names it.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

/// The process that has connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its effective uid.
    pub(super) uid: u32,
    /// Its id.
    pub(super) pid: u32,
}

/// Returns the process that has connected.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (option, into) = (libc::SO_PEERCRED, (&raw mut found).cast());
    // SAFETY: `into` points to `length` bytes that live until the call returns.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, into, &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { uid: found.uid, pid: found.pid.cast_unsigned() })
}

/// Returns the process that has connected.
#[cfg(not(target_os = "linux"))]
#[allow(unsafe_code)]
pub(super) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let (mut uid, mut gid, mut pid) = (0, 0, 0_i32);
    let mut length = size_of::<i32>() as libc::socklen_t;
    let fd = stream.as_raw_fd();
    // SAFETY: all pointers are valid until the calls return.
    let result = unsafe {
        match libc::getpeereid(fd, &raw mut uid, &raw mut gid) {
            0 => libc::getsockopt(
                fd,
                libc::SOL_LOCAL,
                libc::LOCAL_PEERPID,
                (&raw mut pid).cast(),
                &raw mut length,
            ),
            failed => failed,
        }
    };
    if result == 0 {
        Ok(Peer { uid, pid: pid.cast_unsigned() })
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let own = Peer { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() };
        assert_eq!(peer_of(&one).expect("known"), own);
    }
}
