//! The files of logs whose lines must stay: a [`RotatedFile`] is renamed when it is full, and a
//! [`ChainedLog`] is one whose lines form a chain, with its head. The server and the guards write
//! their audit logs by it.

use super::check::AUDIT_NAME;
use super::hash_chain::{AuditChain, AuditHead, ChainEntry, ChainLink, first_event, last_link};
use crate::storage::atomic_file::{Durable, replace, sync_names};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// How much of the end of a file a start reads, in search of its last line of a kind.
pub(crate) const END_BYTES_MAX: u64 = 1 << 20;

/// A file of whole lines. When it is full, it is renamed to `NAME.log.1` and a new one begun.
#[derive(Debug)]
pub(crate) struct RotatedFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// At this length the file is renamed, and a new one begun.
    limit: u64,
}

impl RotatedFile {
    /// Opens a file, which is created if it is not there, and removes a line that a crash has cut.
    pub(crate) fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path)?;
        let end = end_of(&file)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let size = file.metadata()?.len();
        let is_ours = size == end.len() as u64 || whole > 0;
        let length = if is_ours { size - (end.len() - whole) as u64 } else { size };
        file.set_len(length)?;
        Ok(Self { path: path.to_path_buf(), file, length, limit })
    }

    /// Whether the file is renamed before `more` bytes are appended.
    const fn is_full(&self, more: usize) -> bool {
        self.length > 0 && self.length + more as u64 > self.limit
    }

    /// Renames the file, and begins a new one. Its last lines may have no sync yet, and after this
    /// call only the new file is synced; so they are on disk first, and then both names.
    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        match fs::rename(&self.path, rotated(&self.path)) {
            // An earlier rotation has renamed it, and could not make the new file.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        *self = Self::open(&self.path, self.limit)?;
        sync_names(self.path.parent().ok_or(ErrorKind::NotFound)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Appends whole lines. If that fails, the file stays as it was before.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_full(lines.len()) {
            self.rotate()?;
        }
        self.write(lines, Durable::No)
    }

    fn write(&mut self, lines: &[u8], durable: Durable) -> io::Result<()> {
        let written = self.file.write_all(lines).and_then(|()| match durable {
            Durable::Yes => self.sync(),
            Durable::No => Ok(()),
        });
        if let Err(error) = written {
            // The part of the lines that was written is cut off: it would spoil the next line.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }
}

/// The file `audit.log` in a directory, whose lines form a chain, and its head.
#[derive(Debug)]
pub(crate) struct ChainedLog {
    file: RotatedFile,
    head: PathBuf,
    chain: AuditChain,
    /// The number of the first line that must be there.
    first: u64,
    /// The number of the first line in the newest file.
    own_first: Option<u64>,
}

impl ChainedLog {
    /// Continues the log in `dir`, or begins one; its file is renamed at the length `limit`.
    pub(crate) fn open(dir: &Path, limit: u64) -> io::Result<Self> {
        let path = dir.join(AUDIT_NAME);
        let head_path = dir.join(AuditHead::NAME);
        let head = match fs::read(&head_path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => AuditHead::parse(&text?)?,
        };
        let own_first = first_of(&path)?;
        let last = match last_of(&path)? {
            Some(last) => Some(last),
            None => last_of(&rotated(&path))?,
        };
        let first = match &head {
            Some(head) => head.first,
            None => first_of(&rotated(&path))?.or(own_first).unwrap_or(1),
        };
        let file = RotatedFile::open(&path, limit)?;
        let has_head = head.is_some();
        let chain = AuditChain::resume(head.map(|head| head.last), last);
        let log = Self { file, head: head_path, chain, first, own_first };
        // Without a head nothing would show that the end of the log was cut.
        if !has_head {
            log.write_head()?;
        }
        Ok(log)
    }

    /// Appends entries as lines of the chain, which are on the disk when this returns, or after the
    /// next [`ChainedLog::sync`]. If that fails, file and chain stay as they were.
    pub(crate) fn append<'a>(
        &mut self,
        entries: impl IntoIterator<Item = ChainEntry<'a>>,
        durable: Durable,
    ) -> io::Result<()> {
        let mut chain = self.chain.clone();
        let lines: String = entries.into_iter().map(|entry| chain.add(entry)).collect();
        if self.file.is_full(lines.len()) {
            self.rotate()?;
        }
        self.file.write(lines.as_bytes(), durable)?;
        if !lines.is_empty() {
            self.own_first.get_or_insert(self.chain.last().event + 1);
        }
        self.chain = chain;
        if durable == Durable::Yes { self.write_head() } else { Ok(()) }
    }

    /// Begins a new file. The head says before that the lines of the file that is replaced need not
    /// be there any more.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        if let Some(first) = self.own_first.take() {
            self.first = first;
        }
        self.sync()?;
        self.file.rotate()
    }

    /// Syncs the lines to the disk, and then writes the head.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()?;
        self.write_head()
    }

    fn write_head(&self) -> io::Result<()> {
        let text = AuditHead::of(&self.chain, self.first).to_text();
        replace(&self.head, &[text.as_bytes()], Durable::Yes).map(drop)
    }
}

/// Returns the name that a full file gets, which replaces the file before it.
fn rotated(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Returns the last part of a file.
fn end_of(file: &File) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.len();
    let from = size.saturating_sub(END_BYTES_MAX);
    let mut end = vec![0; (size - from) as usize];
    file.read_exact_at(&mut end, from)?;
    Ok(end)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Returns the last line of a file of which `found` returns something.
pub(crate) fn last_line_of<T>(
    path: &Path,
    found: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let Some(file) = open(path)? else { return Ok(None) };
    Ok(end_of(&file)?.split(|byte| *byte == b'\n').rev().find_map(found))
}

/// Returns the number of the first line of a file that belongs to the chain.
fn first_of(path: &Path) -> io::Result<Option<u64>> {
    let Some(file) = open(path)? else { return Ok(None) };
    first_event(BufReader::new(file).split(b'\n'))
}

/// Returns the last line of a file that belongs to the chain.
fn last_of(path: &Path) -> io::Result<Option<ChainLink>> {
    let Some(file) = open(path)? else { return Ok(None) };
    last_link(&end_of(&file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In an earlier version the last lines of a full file were said to be on disk without a sync.
    #[test]
    fn full_file_is_synced_before_it_is_renamed() {
        let path = std::env::temp_dir().join(format!("latchfs-sync-{}.log", std::process::id()));
        fs::write(&path, "{}\n").expect("a fresh name");
        // A device on which each sync fails.
        let file = OpenOptions::new().write(true).open("/dev/null").expect("it is there");
        let mut full = RotatedFile { path: path.clone(), file, length: 100, limit: 100 };
        assert!(full.append(b"{}\n").is_err());
        assert!(path.exists(), "the file was renamed without a sync");
        fs::remove_file(&path).expect("ours");
    }

    /// A start after a rotation finds the last entry of a log in the file before.
    #[test]
    fn full_file_is_renamed_and_still_read() {
        let dir = std::env::temp_dir().join(format!("latchfs-audit-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a fresh name");
        let (path, before) = (dir.join("audit.log"), dir.join("audit.log.1"));
        let entry = |number: u64| format!("{{\"entry\":{number},\"line\":1}}\n");
        let last = |path: &Path| {
            let number = |line: &[u8]| {
                let text = std::str::from_utf8(line).ok()?.strip_prefix("{\"entry\":")?;
                text.split(',').next()?.parse::<u64>().ok()
            };
            last_line_of(path, number).expect("readable")
        };
        let mut file = RotatedFile::open(&path, 100).expect("new");
        assert_eq!(last(&path), None);
        for number in 1..=20 {
            file.append(entry(number).as_bytes()).expect("written");
            assert!(fs::metadata(&path).expect("a file").len() <= 100);
        }
        file.append(&[b' '; 99]).expect("written");
        file.append(b"\n{}\n").expect("written");
        drop(RotatedFile::open(&path, 100).expect("there"));
        assert_eq!((last(&path), last(&before)), (None, None), "only the file before is kept");
        file.append(entry(21).as_bytes()).expect("written");
        file.append(&[b'{'; 90]).expect("written");
        assert_eq!(last(&before), Some(21));
        // The file is renamed, as if the new one could not be made after a rotation.
        fs::rename(&path, &before).expect("it is there");
        file.append(entry(22).repeat(6).as_bytes()).expect("written to a new file");
        assert_eq!(last(&path), Some(22));
        fs::remove_dir_all(&dir).expect("ours");
    }
}
