//! Allocates disk space before it is needed.
//!
//! A journal is allocated ahead of its records, so that a full disk is noticed while there is still
//! space for records that must be written in any case. On a copy-on-write file system an allocated
//! block can be written once; overwriting it takes a new block. So the journal turns copy-on-write
//! off where it can (btrfs), and treats ENOSPC from a write into allocated space as any other
//! error.

use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// The size in bytes of the reserve: disk space after the last record that is allocated ahead and
/// used only by records that end leases or waits, such as releases. It is enough for some 2,500
/// releases.
pub(super) const RESERVE_BYTES: u64 = 256 << 10;

/// The space by which the journal is extended at a time: enough for thousands of records, so that
/// the cost of fallocate(2) is spread over them.
const STEP_BYTES: u64 = 256 << 10;

/// Allocates disk space for the file from the offset `from` to the offset `to`, and one step of the
/// allocation beyond that. Returns the end of the allocated space. After an error, part of it may
/// be allocated.
pub(super) fn allocate(file: &File, from: u64, to: u64) -> io::Result<u64> {
    let end = to + STEP_BYTES;
    match fallocate(file, from, end - from) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            file.write_all_at(&vec![0; (end - from) as usize], from)?;
        }
        done => done?,
    }
    Ok(end)
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn fallocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: takes numbers only, and the descriptor is open as long as `file` is.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn fallocate(_file: &File, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Turns copy-on-write off for an empty file on btrfs. Other file systems write in place anyway, or
/// refuse the flag; a refusal is ignored, because every write is checked.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
pub(super) fn disable_copy_on_write(file: &File) {
    /// `FS_NOCOW_FL` of linux/fs.h, which libc lacks.
    const NOCOW: libc::c_int = 0x0080_0000;
    let mut flags: libc::c_int = 0;
    // SAFETY: the kernel reads and writes one int at the address, and `flags` is one.
    unsafe {
        if libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) == 0 {
            flags |= NOCOW;
            libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn disable_copy_on_write(_file: &File) {}
