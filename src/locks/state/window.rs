//! A window on the end of a journal: memory that is the file.
//!
//! A record put into it is in the kernel's cache as after a write(2), and outlives the process,
//! without the microsecond that the call takes. The room is taken from the file system before it
//! is used: a full disk is an error when a window is opened, never a fault in the middle of a
//! record. What can't be had as a window is written as ever.

use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;

/// The room that is taken at a time: some thousand records, so that taking it costs each of them
/// nothing, and little to lose on a small disk.
pub(super) const WINDOW_BYTES: u64 = 256 << 10;

/// Windows begin at a page; this is a multiple of every size that pages have.
const ALIGN_BYTES: u64 = 64 << 10;

/// The part of a file that is being written.
#[derive(Debug)]
pub(super) struct Window {
    map: MmapMut,
    begin: u64,
}

impl Window {
    /// A window in which a record of any size fits at `end`, if there is room for it.
    pub(super) fn open(file: &File, end: u64) -> io::Result<Self> {
        let begin = end - end % ALIGN_BYTES;
        allocate(file, begin, WINDOW_BYTES)?;
        let mut options = MmapOptions::new();
        options.offset(begin).len(WINDOW_BYTES as usize);
        let map = map(&options, file)?;
        touch(&map);
        Ok(Self { map, begin })
    }

    /// Puts bytes at an offset of the file, if they lie in the window.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let place = offset.checked_sub(self.begin).map(|from| from as usize);
        match place.and_then(|from| self.map.get_mut(from..from + bytes.len())) {
            Some(place) => {
                place.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Behind its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.begin + WINDOW_BYTES
    }
}

/// Takes room in the file system for a part of a file, which then has at least that length.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn allocate(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: takes numbers only, and the descriptor is open as long as `file` is.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Elsewhere records are written as ever: no room is taken that could turn out not to be there.
#[cfg(not(target_os = "linux"))]
fn allocate(_file: &File, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Has the kernel make all pages ready at once, instead of one by one when a record comes to it.
#[cfg(target_os = "linux")]
fn touch(map: &MmapMut) {
    // Before Linux 5.14 it can't, and then does as ever.
    let _ = map.advise(memmap2::Advice::PopulateWrite);
}

#[cfg(not(target_os = "linux"))]
fn touch(_map: &MmapMut) {}

#[allow(unsafe_code)]
fn map(options: &MmapOptions, file: &File) -> io::Result<MmapMut> {
    // SAFETY: the bytes of a mapped file must not change behind our back. This one lies in a
    // directory that only we may use, whose lock we have; nobody else writes to it.
    unsafe { options.map_mut(file) }
}
