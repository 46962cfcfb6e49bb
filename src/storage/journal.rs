//! Journals: files of consecutive records, each with its length, checksum and sequence number.
//!
//! ```text
//! length u32 | sum u32 | sequence number u64 | record
//! ```
//!
//! The checksum is salted with a random number of this journal. So bytes that a client chose, in
//! the text of a lock for example, cannot be mistaken for a record.
//!
//! Allocates disk space before it is needed.
//!
//! A journal is allocated ahead of its records, so that a full disk is noticed while there is still
//! space for records that must be written in any case. On a copy-on-write file system an allocated
//! block can be written once; overwriting it takes a new block. So the journal turns copy-on-write
//! off where it can (btrfs), and treats ENOSPC from a write into allocated space as any other
//! error.

use super::atomic_file;
use super::atomic_file::Durable;
use super::dir::Dir;
use super::header::{BootId, HEADER_BYTES, Header, Type};
use super::manifest::SealedJournal;
use crate::base::random;
use crate::storage::dir::StateError;
use crate::time::{Span, Time, boot_now};
use log::warn;
use std::fs::{File, OpenOptions};
use std::io;
use std::io::{BufReader, Read};
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum length of a record. A command holds a few names of 1 KiB and a text of 4 KiB.
pub const RECORD_BYTES_MAX: usize = 64 << 10;

/// How long ordinary records are refused without another attempt after the disk was full: an
/// attempt takes a copy-on-write file system milliseconds, during which all requests wait.
const FULL_FOR: Span = Span::from_millis(50);

/// The disk space that a record may use on a full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JournalSpace {
    /// The record must leave [`RESERVE_BYTES`] of allocated space after it.
    Ordinary,
    /// The record may also use the last [`RESERVE_BYTES`] of allocated space, because it only ends
    /// leases or waits.
    Reserve,
}

/// The length of the prefix before each record: see [`Prefix`].
pub(super) const PREFIX_BYTES: usize = 16;

/// The last journal, as recovery found it.
#[derive(Debug)]
pub(super) struct LastJournal {
    pub(super) generation: u64,
    pub(super) salt: u32,
    pub(super) end: u64,
    /// The length of the file. The bytes after `end`, the end of the last record, are allocated
    /// zeros.
    pub(super) allocated: u64,
    pub(super) next_seq: u64,
}

/// The journal to which records are appended.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    generation: u64,
    salt: u32,
    next_seq: u64,
    /// The offset of the next record.
    end: u64,
    /// The offset up to which space is allocated.
    allocated: u64,
    /// Set while the disk counts as full: the time until which no allocation is attempted, and the
    /// error code of the last attempt.
    full: Option<(Time, i32)>,
    /// The offset of the last record, or `None` if that record can't be removed by `take_back`.
    last: Option<u64>,
    /// The error because of which the journal accepts no more records, if there was one.
    broken: Option<(io::ErrorKind, String)>,
    buffer: Vec<u8>,
}

impl Journal {
    /// Creates a journal whose first record will have the number `next_seq`, with or without disk
    /// space in reserve for records that only end leases or waits.
    pub(super) fn create(
        dir: &Dir,
        generation: u64,
        boot: BootId,
        next_seq: u64,
        durable: Durable,
        reserve: bool,
    ) -> io::Result<Self> {
        let salt = random() as u32;
        let kind = Type::Journal;
        let header = Header { kind, boot, generation, next_seq, body_bytes: 0, sum: salt };
        let path = dir.journal(generation);
        let begin = HEADER_BYTES as u64;
        let mut allocated = begin;
        let file = atomic_file::replace_with(&path, durable, |file| {
            disable_copy_on_write(file);
            atomic_file::write_parts(file, &[&header.to_bytes()])?;
            if reserve {
                allocated = allocate(file, begin, begin + RESERVE_BYTES)?;
            }
            Ok(())
        })?;
        let at = LastJournal { generation, salt, end: begin, allocated, next_seq };
        Ok(Self::at(file, path, &at))
    }

    /// Continues a journal that recovery found.
    pub(super) fn resume(dir: &Dir, last: &LastJournal) -> Result<Self, StateError> {
        let path = dir.journal(last.generation);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| StateError::io(&path, error))?;
        Ok(Self::at(file, path, last))
    }

    pub(super) fn at(file: File, path: PathBuf, last: &LastJournal) -> Self {
        let LastJournal { generation, salt, end, allocated, next_seq } = *last;
        let (full, last, broken, buffer) = (None, None, None, Vec::new());
        Self { file, path, generation, salt, next_seq, end, allocated, full, last, broken, buffer }
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.end
    }

    pub(super) fn append(&mut self, record: &[u8], space: JournalSpace) -> io::Result<()> {
        if let Some((kind, why)) = &self.broken {
            return Err(io::Error::new(*kind, why.clone()));
        }
        if record.is_empty() || record.len() > RECORD_BYTES_MAX {
            let why = format!("a record has 1 to {RECORD_BYTES_MAX} bytes, not {}", record.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.fill_buffer(record);
        // Until the new record is written completely, `take_back` can remove no record. If the
        // write fails, `cut_back` removes the part that was written.
        self.last = None;
        let end = self.end + self.buffer.len() as u64;
        if space == JournalSpace::Ordinary {
            self.allocate(end + RESERVE_BYTES)?;
        }
        if let Err(error) = self.file.write_all_at(&self.buffer, self.end) {
            // A part of the record, followed by zeros, could be mistaken for the whole record.
            self.cut_back(self.end, &error);
            return Err(error);
        }
        self.last = Some(self.end);
        self.end = end;
        self.allocated = self.allocated.max(end);
        self.next_seq += 1;
        Ok(())
    }

    /// Allocates [`RESERVE_BYTES`] of disk space after the last record, which only records that end
    /// leases or waits may use. Does nothing if they are allocated already.
    pub(super) fn reserve(&mut self) -> io::Result<()> {
        self.allocate(self.end + RESERVE_BYTES)
    }

    /// Allocates disk space at least up to the offset `end` of the file.
    fn allocate(&mut self, end: u64) -> io::Result<()> {
        if end <= self.allocated {
            return Ok(());
        }
        if let Some((until, code)) = self.full
            && boot_now() < until
        {
            return Err(io::Error::from_raw_os_error(code));
        }
        match allocate(&self.file, self.allocated, end) {
            Ok(allocated) => {
                (self.allocated, self.full) = (allocated, None);
                Ok(())
            }
            Err(error) => {
                self.full = error.raw_os_error().map(|code| (boot_now() + FULL_FOR, code));
                self.cut_back(self.allocated, &error);
                Err(error)
            }
        }
    }

    /// Fills the buffer with a record and its prefix.
    fn fill_buffer(&mut self, record: &[u8]) {
        let length = (record.len() as u32).to_le_bytes();
        // While the checksum is computed, the length is stored in the four bytes of the checksum,
        // next to the sequence number, so that the checksum covers one contiguous range.
        self.buffer.clear();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&length);
        self.buffer.extend_from_slice(&self.next_seq.to_le_bytes());
        self.buffer.extend_from_slice(record);
        let sum = sum_of(self.salt, &self.buffer[length.len()..]);
        self.buffer[..4].copy_from_slice(&length);
        self.buffer[4..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Truncates the file to `end`, which frees space that a failed call may have allocated.
    fn cut_back(&mut self, end: u64, first: &io::Error) {
        match self.file.set_len(end) {
            Ok(()) => self.allocated = end,
            Err(error) => {
                let why = format!("{first}, and then the journal could not be cut back: {error}");
                self.broken = Some((first.kind(), why));
            }
        }
    }

    pub(super) fn take_back(&mut self) {
        if let Some(last) = self.last.take() {
            self.end = last;
            self.next_seq -= 1;
        }
    }

    /// Truncates the file after its last record, to free allocated space and the bytes of records
    /// that `take_back` removed. Readers do not depend on the truncation, since they find the last
    /// record by its number and checksum.
    pub(super) fn trim(&mut self) {
        if self.allocated > self.end
            && let Err(error) = self.file.set_len(self.end)
        {
            warn!("can't cut {} back to its end ({error})", self.path.display());
        } else {
            self.allocated = self.end;
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.trim();
    }
}

/// Returns the checksum of a record, its length and its sequence number, salted with `salt`.
pub(super) fn sum(salt: u32, seq: u64, record: &[u8]) -> u32 {
    let length = (record.len() as u32).to_le_bytes();
    sum_of(salt, &[&length[..], &seq.to_le_bytes(), record].concat())
}

/// Returns the CRC-32 of `bytes`, salted with `salt`: those of a length, a sequence number and a
/// record.
fn sum_of(salt: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

/// The prefix of a record: its length, checksum and sequence number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefix {
    pub(super) bytes: usize,
    pub(super) sum: u32,
    pub(super) seq: u64,
}

impl Prefix {
    pub(super) fn parse(bytes: [u8; PREFIX_BYTES]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        Self { bytes: whole as u32 as usize, sum: (whole >> 32) as u32, seq: (whole >> 64) as u64 }
    }

    pub(super) const fn is_possible(&self) -> bool {
        self.bytes > 0 && self.bytes <= RECORD_BYTES_MAX
    }
}

/// Reads one journal from its start.
#[derive(Debug)]
pub(super) struct JournalReader {
    input: BufReader<File>,
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// The offset after the last complete record.
    pub(super) offset: u64,
    pub(super) next_seq: u64,
}

/// The size of the read buffer in bytes: large enough to read a journal at the speed of the disk.
const READ_BYTES: usize = 256 << 10;

impl JournalReader {
    pub(super) fn open(dir: &Dir, generation: u64) -> Result<Self, StateError> {
        let path = dir.journal(generation);
        let at = |error| StateError::io(&path, error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StateError::Missing(path));
            }
            opened => opened.map_err(at)?,
        };
        let mut input = BufReader::with_capacity(READ_BYTES, file);
        let mut bytes = [0; HEADER_BYTES];
        match read_whole(&mut input, &mut bytes) {
            Ok(true) => {}
            Ok(false) => return Err(StateError::damaged(&path, 0, "its header is cut off")),
            Err(error) => return Err(at(error)),
        }
        let header = Header::parse(&path, Type::Journal, generation, &bytes)?;
        let next_seq = header.next_seq;
        Ok(Self { input, path, header, offset: HEADER_BYTES as u64, next_seq })
    }

    /// Returns the next record, or `None` if the following bytes are not the next record. Must not
    /// be called again after `None`.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, StateError> {
        self.read().map_err(|error| StateError::io(&self.path, error))
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut prefix = [0; PREFIX_BYTES];
        if !read_whole(&mut self.input, &mut prefix)? {
            return Ok(None);
        }
        let prefix = Prefix::parse(prefix);
        if !prefix.is_possible() || prefix.seq != self.next_seq {
            return Ok(None);
        }
        let mut record = vec![0; prefix.bytes];
        let whole = read_whole(&mut self.input, &mut record)?;
        if !whole || prefix.sum != sum(self.header.sum, prefix.seq, &record) {
            return Ok(None);
        }
        self.offset += (PREFIX_BYTES + record.len()) as u64;
        self.next_seq += 1;
        Ok(Some(record))
    }
}

/// Fills `buffer`, or returns false if the file ends before.
fn read_whole(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// An iterator over the records of several journals, which reads them on demand.
#[derive(Debug)]
pub struct Records {
    dir: Arc<Dir>,
    parts: std::vec::IntoIter<SealedJournal>,
    open: Option<(JournalReader, u64)>,
}

impl Records {
    pub(super) fn new(dir: &Arc<Dir>, parts: Vec<SealedJournal>) -> Self {
        Self { dir: Arc::clone(dir), parts: parts.into_iter(), open: None }
    }

    /// Returns the path of the last record's journal, or of the directory before the first record.
    pub fn place(&self) -> PathBuf {
        let reader = self.open.as_ref().map(|(reader, _)| &reader.path);
        reader.cloned().unwrap_or_else(|| self.dir.path().to_path_buf())
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>, StateError> {
        loop {
            if let Some((reader, limit_seq)) = &mut self.open
                && reader.next_seq < *limit_seq
            {
                let record = reader.next()?;
                let missing = || lost_since(&reader.path, reader.offset);
                return record.map(Some).ok_or_else(missing);
            }
            let Some(part) = self.parts.next() else { return Ok(None) };
            self.open = Some((JournalReader::open(&self.dir, part.generation)?, part.limit_seq));
        }
    }
}

fn lost_since(path: &Path, offset: u64) -> StateError {
    StateError::damaged(path, offset, "a record that was there before is not there any more")
}

impl Iterator for Records {
    type Item = Result<Vec<u8>, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.read();
        if record.is_err() {
            // After a record that can't be read, the iterator ends, because a replay can't leave
            // out a record.
            self.open = None;
            self.parts = Vec::new().into_iter();
        }
        record.transpose()
    }
}

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
