//! The audit log of a guard: `audit.log` in the directory of this machine, whose lines are chained
//! by their digests, and `audit.head`, which names its last line. An entry is on the disk when
//! [`AuditLog::append`] returns.

use crate::audit_chain::{AUDIT_NAME, ChainEntry, ChainedLog};
use crate::engine::{ClientId, Token};
use crate::guard::disk::operations::{Disk, Place};
use crate::storage::atomic_file::Durable;
use crate::time::Wall;
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The highest length of the log. At that length it is renamed to `audit.log.1`.
const GUARD_AUDIT_BYTES_MAX: u64 = 16 << 20;

/// An act that is audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuditedAct {
    /// The lock was acquired after the lease of another holder had ended by itself.
    AcquireAfterExpiry,
    /// The lock was taken from its holder.
    Steal,
    /// A person or an option went on without what had not arrived.
    Accept,
    /// A file appeared in the folder after the deadline of its tenure.
    LatePublish,
}

impl AuditedAct {
    /// Returns the name of the act, as the field `operation` has it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::AcquireAfterExpiry => "acquire after expiry",
            Self::Steal => "steal",
            Self::Accept => "accept",
            Self::LatePublish => "late publish",
        }
    }
}

/// An entry of the audit log of a guard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuardAct<'a> {
    /// The action.
    pub(crate) act: AuditedAct,
    /// The lock or file that the act concerns.
    pub(crate) target: &'a str,
    /// The fencing token of the tenure.
    pub(crate) token: Option<Token>,
    /// The session in the lock service.
    pub(crate) session: Option<u64>,
    /// The reason that a person gave, or what happened.
    pub(crate) reason: &'a str,
}

/// The audit log of one guard.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// The name of this machine.
    client: ClientId,
    log: Mutex<ChainedLog>,
}

/// An entry of an audit log, as a reader needs it.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct ReadAct {
    /// The time, for people.
    pub(crate) timestamp: String,
    /// The action.
    pub(crate) operation: String,
    /// The fencing token of the tenure.
    pub(crate) fencing_token: Option<u64>,
}

/// Returns the entries of the log in the directory of a machine. Lines that can't be read are left
/// out: the check of the chain finds them.
pub(crate) fn acts_of<D: Disk>(disk: &D, dir: &D::Dir) -> io::Result<Vec<ReadAct>> {
    let file = match disk.open_to_read(Place::new(dir, AUDIT_NAME)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let size = disk.stat_file(&file)?.size;
    if size > GUARD_AUDIT_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {GUARD_AUDIT_BYTES_MAX} bytes")));
    }
    let mut bytes = vec![0; size as usize];
    let read = disk.read(&file, 0, &mut bytes)?;
    let lines = bytes[..read].split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

impl AuditLog {
    /// Opens the audit log in the directory of this machine, and continues its chain. A line that a
    /// crash has cut is removed.
    pub(crate) fn open(dir: &Path, client: ClientId) -> io::Result<Self> {
        let log = ChainedLog::open(dir, GUARD_AUDIT_BYTES_MAX)?;
        Ok(Self { client, log: Mutex::new(log) })
    }

    /// Adds an entry, which is on the disk when this returns.
    pub(crate) fn append(&self, act: &GuardAct<'_>) -> io::Result<()> {
        let entry = ChainEntry {
            timestamp: Wall::now().to_string(),
            operation: act.act.as_str(),
            actor: self.client.as_str(),
            target: Some(act.target.to_owned()),
            fencing_token: act.token.map(Token::as_u64),
            session_id: act.session.map(|session| session.to_string()),
            reason: Some(act.reason),
            more: serde_json::Map::new(),
        };
        self.log.lock().append([entry], Durable::Yes)
    }

    /// Adds an entry. An act that is done is not undone because its entry can't be written, so the
    /// failure goes to the ordinary log, with the entry.
    pub(crate) fn note(&self, act: &GuardAct<'_>) {
        if let Err(error) = self.append(act) {
            log::error!("an audit record can't be written ({error}): {act:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit_chain::{AuditCheck, AuditHead, check_files};
    use std::fs;
    use std::path::PathBuf;

    fn fresh(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("latchfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        dir
    }

    fn try_open(dir: &Path) -> io::Result<AuditLog> {
        AuditLog::open(dir, ClientId::parse("laptop1").expect("valid"))
    }

    fn open(dir: &Path) -> AuditLog {
        try_open(dir).expect("it opens")
    }

    fn append(log: &AuditLog, reason: &str) {
        let (act, token) = (AuditedAct::Accept, Some(Token::named(7)));
        let act = GuardAct { act, target: "folder", token, session: Some(3), reason };
        log.append(&act).expect("written");
    }

    /// Returns the faults, each as a sentence.
    fn faults(dir: &Path) -> Vec<String> {
        let report = check_files(dir).expect("readable").expect("there");
        report.faults.iter().map(ToString::to_string).collect()
    }

    fn with_lines(name: &str, lines: usize) -> (PathBuf, String) {
        let dir = fresh(name);
        let log = open(&dir);
        for number in 0..lines {
            append(&log, &format!("why \"{number}\" \u{e9}\n"));
        }
        let text = fs::read_to_string(dir.join(AUDIT_NAME)).expect("written");
        (dir, text)
    }

    /// The check finds each damage: a byte changed, a line removed, doubled or moved, the tail cut.
    #[test]
    fn each_change_of_an_audit_log_is_found_with_its_line() {
        let (dir, text) = with_lines("audit-bytes", 4);
        assert_eq!(faults(&dir), Vec::<String>::new());
        let head = fs::read(dir.join(AuditHead::NAME)).expect("there");
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let finds = |content: &[u8], line: usize, what: &str| {
            let mut check = AuditCheck::begin(AuditHead::parse(&head).expect("of this version"));
            check.file(AUDIT_NAME, content).expect("in memory");
            let found = check.end(true).faults;
            let first = found.first().map(|it| (it.file.as_str(), it.line));
            assert_eq!(first, Some((AUDIT_NAME, line as u64)), "{what}: {found:?}");
        };
        let mut bytes = text.clone().into_bytes();
        let mut line = 1;
        for at in 0..bytes.len() {
            let was = bytes[at];
            for now in [was ^ 1, was ^ 0x20, b'\n', b' ', b'0'] {
                if now != was {
                    bytes[at] = now;
                    finds(&bytes, line, &format!("byte {at} as {now}"));
                }
            }
            bytes[at] = was;
            line += usize::from(was == b'\n');
        }
        for number in 1..=lines.len() {
            let without = [&lines[..number - 1], &lines[number..]].concat().concat();
            // The line after the gap is named, or the last line if the tail was cut.
            let named = if number == lines.len() { number - 1 } else { number };
            finds(without.as_bytes(), named, "removed");
            let twice = [&lines[..number], &lines[number - 1..]].concat().concat();
            finds(twice.as_bytes(), number + 1, "doubled");
        }
        finds([lines[0], lines[2], lines[1], lines[3]].concat().as_bytes(), 2, "moved");
        let bytes = text.as_bytes();
        for length in 0..bytes.len() {
            let rest = &bytes[..length];
            let is_whole = rest.last().is_none_or(|byte| *byte == b'\n');
            let whole = rest.split(|byte| *byte == b'\n').count() - 1;
            finds(rest, whole + usize::from(!is_whole), &format!("cut at {length}"));
        }
        fs::remove_file(dir.join(AuditHead::NAME)).expect("there");
        assert_eq!(faults(&dir).len(), 1, "the head is missing");
        fs::remove_dir_all(&dir).expect("there");
    }

    /// A tail that was cut stays visible after further entries.
    #[test]
    fn lost_tail_is_not_covered_by_later_entries() {
        let (dir, text) = with_lines("audit-tail", 3);
        let cut = text.split_inclusive('\n').take(2).collect::<String>();
        fs::write(dir.join(AUDIT_NAME), cut).expect("written");
        append(&open(&dir), "later");
        let found = faults(&dir);
        assert!(found[0].starts_with("line 3 of audit.log has event 4"), "{found:?}");
        fs::remove_dir_all(&dir).expect("there");
    }

    /// A crash between the line and the head, or within a line, is no fault.
    #[test]
    fn crash_between_the_line_and_the_head_is_reported_and_no_fault() {
        let (dir, _) = with_lines("audit-crash", 2);
        let head = fs::read(dir.join(AuditHead::NAME)).expect("there");
        append(&open(&dir), "the third");
        fs::write(dir.join(AuditHead::NAME), &head).expect("written");
        let mut text = fs::read_to_string(dir.join(AUDIT_NAME)).expect("there");
        text.push_str("{\"actor\":\"lap");
        fs::write(dir.join(AUDIT_NAME), &text).expect("written");
        let report = check_files(&dir).expect("readable").expect("there");
        assert_eq!((report.faults.len(), report.notes.len(), report.chained), (0, 2, 3));
        assert!(report.notes[0].starts_with("1 line follows"), "{:?}", report.notes);
        append(&open(&dir), "the fourth");
        let report = check_files(&dir).expect("readable").expect("there");
        assert_eq!((report.faults.len(), report.notes.len(), report.chained), (0, 0, 4));
        fs::remove_dir_all(&dir).expect("there");
    }

    /// The chain goes on in the next file, and a missing beginning is found there as well.
    #[test]
    fn rotated_log_keeps_its_chain() {
        let dir = fresh("audit-rotated");
        let log = open(&dir);
        for round in 0..3 {
            append(&log, "one");
            append(&log, "two");
            assert_eq!(faults(&dir), Vec::<String>::new(), "round {round}");
            log.log.lock().rotate().expect("rotated");
            assert_eq!(faults(&dir), Vec::<String>::new(), "round {round}");
        }
        drop(log);
        append(&open(&dir), "three");
        assert_eq!(faults(&dir), Vec::<String>::new());
        let report = check_files(&dir).expect("readable").expect("a log");
        let gone = "the log begins with event 5: older files were removed";
        assert!(report.notes[0].starts_with(gone), "{:?}", report.notes);
        let older = dir.join("audit.log.1");
        let text = fs::read_to_string(&older).expect("there");
        fs::write(&older, text.split_inclusive('\n').skip(1).collect::<String>()).expect("written");
        let found = faults(&dir);
        assert!(found[0].starts_with("line 1 of audit.log.1 has event 6"), "{found:?}");
        fs::remove_dir_all(&dir).expect("there");
    }

    /// A line that is too long is not kept in memory.
    #[test]
    fn line_that_is_too_long_is_a_fault() {
        let (dir, mut text) = with_lines("audit-long", 2);
        text.push_str(&"x".repeat(3 * (64 << 10)));
        text.push('\n');
        fs::write(dir.join(AUDIT_NAME), &text).expect("written");
        let found = faults(&dir);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("line 3 of audit.log is no line of the chain"), "{found:?}");
        fs::remove_dir_all(&dir).expect("there");
    }

    /// A log or a head of another version is refused by a sentence that names both, and stays as it
    /// is; the check says the same of a line.
    #[test]
    fn another_version_is_refused() {
        let (dir, text) = with_lines("audit-version", 2);
        let head = fs::read_to_string(dir.join(AuditHead::NAME)).expect("there");
        let both = "has version 2, and this latchfs knows version 1";
        let of_line = text.replace("\"v\":1}", "\"v\":2}");
        let of_head = head.replace("latchfs audit 1", "latchfs audit 2");
        assert!(of_line != text && of_head != head);
        for (file, log, head) in [(AUDIT_NAME, &of_line, &head), (AuditHead::NAME, &text, &of_head)]
        {
            fs::write(dir.join(AUDIT_NAME), log).expect("written");
            fs::write(dir.join(AuditHead::NAME), head).expect("written");
            let said = try_open(&dir).map(drop).expect_err("another version").to_string();
            assert!(said.starts_with(&format!("{file} {both}")), "{said}");
            assert_eq!(&fs::read_to_string(dir.join(AUDIT_NAME)).expect("there"), log);
            assert_eq!(&fs::read_to_string(dir.join(AuditHead::NAME)).expect("there"), head);
        }
        fs::write(dir.join(AuditHead::NAME), &head).expect("written");
        fs::write(dir.join(AUDIT_NAME), &of_line).expect("written");
        assert!(faults(&dir)[0].contains(both), "{:?}", faults(&dir));
        fs::remove_dir_all(&dir).expect("there");
    }
}
