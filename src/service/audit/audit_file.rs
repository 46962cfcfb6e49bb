//! The files of the audit log: lines of JSON, which are appended, and which a restart continues.
//!
//! The chain of the file of administrative acts, and its head.

use crate::audit_chain::{
    AUDIT_NAME, AuditChain, AuditHead, ChainEntry, ChainLink, first_event, last_link,
};
use crate::storage::atomic_file::{Durable, replace};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The name of the file for steals, resets and other administrative acts.
pub(super) const AUDIT_FILE: &str = AUDIT_NAME;

/// The name of the file for expired leases.
pub(super) const EXPIRED_FILE: &str = "expired.log";

/// The highest length of the file of administrative acts.
const AUDIT_BYTES_MAX: u64 = 64 << 20;

/// The highest length of the file of expired leases.
const EXPIRED_BYTES_MAX: u64 = 16 << 20;

/// The highest length of the file of refused requests.
const REFUSED_BYTES_MAX: u64 = 16 << 20;

/// The files with their highest lengths. At that length a file is renamed to `NAME.log.1`. Any
/// client can have leases expire and requests refused, so these are not in the file of acts.
const FILES: [(&str, u64); 3] = [
    (AUDIT_FILE, AUDIT_BYTES_MAX),
    (EXPIRED_FILE, EXPIRED_BYTES_MAX),
    ("refused.log", REFUSED_BYTES_MAX),
];

/// The index of the file for refused requests.
pub(super) const REFUSED: usize = 2;

/// How many bytes of lines are written at a time.
pub(super) const PIECE: usize = 256 << 10;

/// How many acts are written at a time.
pub(super) const ACTS_PIECE: usize = 512;

/// The place of a line: the log entry that caused it, and its number among the lines of that entry
/// in its file.
pub(in crate::service) type LinePlace = (u64, u64);

/// The files of the audit log; none of them if records go to the ordinary log only.
#[derive(Default)]
pub(in crate::service) struct AuditFiles {
    dir: Option<PathBuf>,
    /// The files for which any client can cause records are opened at their first record.
    files: [Option<AuditFile>; 3],
}

impl AuditFiles {
    /// Opens the files in `dir`. Also returns the places of the last lines of the first two.
    pub(in crate::service) fn open(dir: &Path) -> io::Result<(Self, [Option<LinePlace>; 2])> {
        let mut opened = Self { dir: Some(dir.to_path_buf()), files: [const { None }; 3] };
        let mut places = [None; 2];
        for (file, place) in places.iter_mut().enumerate() {
            let path = dir.join(FILES[file].0);
            if file == 0 || path.exists() {
                let (audit, last) = AuditFile::open(&path, FILES[file].1)?;
                (opened.files[file], *place) = (Some(audit), last);
            }
        }
        if let Some(acts) = &mut opened.files[0] {
            acts.chain = Some(ActChain::open(dir)?);
        }
        Ok((opened, places))
    }

    /// Whether there are files.
    pub(super) const fn are_there(&self) -> bool {
        self.dir.is_some()
    }

    /// Appends lines to a file, and empties `lines`.
    pub(in crate::service) fn append(&mut self, file: usize, lines: &mut Vec<u8>) {
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.file(file).and_then(|file| file.append(lines)) {
            let lost = String::from_utf8_lossy(lines);
            let (count, first) = (lost.lines().count(), lost.lines().next().unwrap_or_default());
            log::error!("{count} audit records can't be written ({error}); the first is: {first}");
        }
        lines.clear();
    }

    /// Appends administrative acts to their file, as lines of its chain, and empties `acts`.
    pub(super) fn append_acts(&mut self, acts: &mut Vec<Value>) {
        let Some(first) = acts.first() else { return };
        if let Err(error) = self.file(0).and_then(|file| file.append_acts(acts)) {
            let count = acts.len();
            log::error!("{count} audit records can't be written ({error}); the first is: {first}");
        }
        acts.clear();
    }

    /// Syncs the file of administrative acts to the disk, and then the head of its chain.
    pub(in crate::service) fn sync(&self) {
        if let Some(audit) = &self.files[0]
            && let Err(error) = audit.sync()
        {
            log::error!("{AUDIT_FILE} can't be synced ({error}); its last lines may be lost");
        }
    }

    fn file(&mut self, file: usize) -> io::Result<&mut AuditFile> {
        let (place, (name, limit)) = (&mut self.files[file], FILES[file]);
        if place.is_none() {
            let dir = self.dir.as_deref().ok_or(ErrorKind::NotFound)?;
            *place = Some(AuditFile::open(&dir.join(name), limit)?.0);
        }
        place.as_mut().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// An open file of the audit log.
struct AuditFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// At this length the file is renamed, and a new one begun.
    limit: u64,
    /// The chain of the file's lines, if they form one.
    chain: Option<ActChain>,
}

impl AuditFile {
    /// Opens a file, which is created if it is not there, and removes a line that a crash has cut.
    /// Also returns the place of its last line that has one.
    fn open(path: &Path, limit: u64) -> io::Result<(Self, Option<LinePlace>)> {
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
        Ok((Self { path: path.to_path_buf(), file, length, limit, chain: None }, last))
    }

    /// Renames the file, and begins a new one. Its last lines may have no sync yet, and after this
    /// call only the new file is synced; so they are on disk first, and then both names.
    fn rotate(&mut self) -> io::Result<()> {
        if let Some(chain) = &mut self.chain {
            chain.rotate();
        }
        self.sync()?;
        match fs::rename(&self.path, self.path.with_extension("log.1")) {
            // An earlier rotation has renamed it, and could not make the new file.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let opened = Self::open(&self.path, self.limit)?.0;
        *self = Self { chain: self.chain.take(), ..opened };
        let dir = self.path.parent().ok_or(ErrorKind::NotFound)?;
        File::open(dir)?.sync_all()
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.chain.as_ref().map_or(Ok(()), ActChain::write_head)
    }

    /// Appends acts as lines of the chain. If that fails, file and chain stay as they were before.
    fn append_acts(&mut self, acts: &[Value]) -> io::Result<()> {
        let Some(mut chain) = self.chain.clone() else {
            return Err(ErrorKind::NotFound.into());
        };
        let lines: String = acts.iter().map(|act| chain.add(act)).collect();
        self.append(lines.as_bytes())?;
        if let Some(own) = &mut self.chain {
            own.advance(chain);
        }
        Ok(())
    }

    /// Appends whole lines. If that fails, the file stays as it was before.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = self.length + lines.len() as u64;
        if self.length > 0 && length > self.limit {
            self.rotate()?;
        }
        if let Err(error) = self.file.write_all(lines) {
            // The part of the lines that was written is cut off: it would spoil the next line.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += lines.len() as u64;
        Ok(())
    }
}

/// Returns the place of the last line of a file that has one.
pub(in crate::service) fn last_place(path: &Path) -> Option<LinePlace> {
    let file = File::open(path).ok()?;
    let from = file.metadata().ok()?.len().saturating_sub(END_BYTES_MAX);
    let mut end = Vec::new();
    (&file).seek(SeekFrom::Start(from)).ok()?;
    file.take(END_BYTES_MAX).read_to_end(&mut end).ok()?;
    end.split(|byte| *byte == b'\n').rev().find_map(place_of)
}

/// Returns the place of a line, if it has one: the lines of administrative acts have none.
fn place_of(line: &[u8]) -> Option<LinePlace> {
    let line: Value = serde_json::from_slice(line).ok()?;
    Some((line.get("entry")?.as_u64()?, line.get("line")?.as_u64()?))
}

/// How much of the end of a file a start reads, in search of the last line of a log entry.
pub(super) const END_BYTES_MAX: u64 = 1 << 20;

/// The chain of `audit.log` in one directory.
#[derive(Clone)]
pub(in crate::service) struct ActChain {
    head: PathBuf,
    chain: AuditChain,
    /// The number of the first line that must be there.
    first: u64,
    /// The number of the first line in the newest file.
    own_first: Option<u64>,
}

impl ActChain {
    /// Continues the chain of the log in `dir`, or begins one.
    pub(in crate::service) fn open(dir: &Path) -> io::Result<Self> {
        let (log, rotated) = (dir.join(AUDIT_NAME), dir.join(format!("{AUDIT_NAME}.1")));
        let head_path = dir.join(AuditHead::NAME);
        let head = match fs::read(&head_path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => AuditHead::parse(&text?)?,
        };
        let own_first = first_of(&log)?;
        let last = match last_of(&log)? {
            Some(last) => Some(last),
            None => last_of(&rotated)?,
        };
        let first = match &head {
            Some(head) => head.first,
            None => first_of(&rotated)?.or(own_first).unwrap_or(1),
        };
        let has_head = head.is_some();
        let chain = AuditChain::resume(head.map(|head| head.last), last);
        let opened = Self { head: head_path, chain, first, own_first };
        // Without a head nothing would show that the end of the log was cut.
        if !has_head {
            opened.write_head()?;
        }
        Ok(opened)
    }

    /// Returns the line of an act.
    pub(in crate::service) fn add(&mut self, act: &Value) -> String {
        let text = |field: &str| act[field].as_str();
        let target = match (text("name").or_else(|| text("client")), act["node"].as_u64()) {
            (Some(name), _) => Some(name.to_owned()),
            (None, node) => node.map(|id| format!("node {id}")),
        };
        self.chain.add(ChainEntry {
            timestamp: text("timestamp").unwrap_or_default().to_owned(),
            operation: text("operation").unwrap_or_default(),
            actor: text("actor").unwrap_or_default(),
            target,
            fencing_token: act["fencing_token"].as_u64(),
            session_id: None,
            reason: text("reason"),
            more: act.as_object().cloned().unwrap_or_default(),
        })
    }

    /// Takes over the lines that another value of the same chain has added, and that are written.
    pub(in crate::service) fn advance(&mut self, to: Self) {
        let begins = self.chain.last().event + 1;
        self.chain = to.chain;
        if self.chain.last().event >= begins {
            self.own_first.get_or_insert(begins);
        }
    }

    /// Notes that the newest file is about to replace the older one.
    pub(in crate::service) const fn rotate(&mut self) {
        if let Some(first) = self.own_first.take() {
            self.first = first;
        }
    }

    /// Writes the head, after the lines were synced.
    pub(in crate::service) fn write_head(&self) -> io::Result<()> {
        let text = AuditHead::of(&self.chain, self.first).to_text();
        replace(&self.head, &[text.as_bytes()], Durable::Yes).map(drop)
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Returns the number of the first line of a file.
fn first_of(path: &Path) -> io::Result<Option<u64>> {
    let Some(file) = open(path)? else { return Ok(None) };
    first_event(BufReader::new(file).split(b'\n'))
}

/// Returns the last line of a file that belongs to the chain.
fn last_of(path: &Path) -> io::Result<Option<ChainLink>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let from = file.metadata()?.len().saturating_sub(END_BYTES_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.take(END_BYTES_MAX).read_to_end(&mut end)?;
    last_link(&end)
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
        let mut full = AuditFile { path: path.clone(), file, length: 100, limit: 100, chain: None };
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
        let (mut file, none) = AuditFile::open(&path, 100).expect("new");
        assert_eq!(none, None);
        for number in 1..=20 {
            file.append(entry(number).as_bytes()).expect("written");
            assert!(fs::metadata(&path).expect("a file").len() <= 100);
        }
        file.append(&[b' '; 99]).expect("written");
        file.append(b"\n{}\n").expect("written");
        assert_eq!(AuditFile::open(&path, 100).expect("there").1, None);
        let last = last_place(&before);
        assert!(last.is_none(), "only the file before is kept: {last:?}");
        file.append(entry(21).as_bytes()).expect("written");
        file.append(&[b'{'; 90]).expect("written");
        assert_eq!(last_place(&before), Some((21, 1)));
        // The file is renamed, as if the new one could not be made after a rotation.
        fs::rename(&path, &before).expect("it is there");
        file.append(entry(22).repeat(6).as_bytes()).expect("written to a new file");
        assert_eq!(last_place(&path), Some((22, 1)));
        fs::remove_dir_all(&dir).expect("ours");
    }
}
