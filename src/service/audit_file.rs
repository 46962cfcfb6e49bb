//! A file of the audit log: lines of JSON, which are appended, and which a restart continues.

use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How much of the end of a file a start reads, in search of the last line of a log entry.
const END_BYTES_MAX: u64 = 1 << 20;

/// The place of a line: the log entry that caused it, and its number among the lines of that entry
/// in its file.
pub(super) type LinePlace = (u64, u64);

/// An open file of the audit log.
pub(super) struct AuditFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// At this length the file is renamed, and a new one begun. `None` for a file of any length.
    limit: Option<u64>,
}

impl AuditFile {
    /// Opens a file, which is created if it is not there, and removes a line that a crash has cut.
    /// Also returns the place of its last line that has one.
    pub(super) fn open(path: &Path, limit: Option<u64>) -> io::Result<(Self, Option<LinePlace>)> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        let from = length.saturating_sub(END_BYTES_MAX);
        let mut end = vec![0; (length - from) as usize];
        file.read_exact_at(&mut end, from)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let is_ours = from == 0 || whole > 0;
        let length = if is_ours { from + whole as u64 } else { length };
        file.set_len(length)?;
        let last = end[..whole].split(|byte| *byte == b'\n').rev().find_map(place_of);
        Ok((Self { path: path.to_path_buf(), file, length, limit }, last))
    }

    /// Appends whole lines. If that fails, the file stays as it was before.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = self.length + lines.len() as u64;
        if self.length > 0 && self.limit.is_some_and(|limit| length > limit) {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
            *self = Self::open(&self.path, self.limit)?.0;
        }
        if let Err(error) = self.file.write_all(lines) {
            // A part of a line would spoil the next one.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Syncs the file to the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Returns the place of a line, if it has one: the lines of administrative acts have none.
fn place_of(line: &[u8]) -> Option<LinePlace> {
    let line: Value = serde_json::from_slice(line).ok()?;
    Some((line.get("entry")?.as_u64()?, line.get("line")?.as_u64()?))
}
