//! Checks the files of an audit log in a directory.

use super::check::{AuditCheck, AuditReport};
use super::head::AuditHead;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file name of an audit log.
pub(crate) const AUDIT_NAME: &str = "audit.log";

/// How often a check begins anew because the log was rotated meanwhile.
const TRIES: usize = 3;

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Checks the audit log in a directory, to which a writer may add lines meanwhile. Returns `None`
/// if there is no log.
pub(crate) fn check_files(dir: &Path) -> io::Result<Option<AuditReport>> {
    let (path, rotated) = (dir.join(AUDIT_NAME), dir.join(format!("{AUDIT_NAME}.1")));
    for left in (0..TRIES).rev() {
        // The head is read first: the log is at least as long.
        let text = match fs::read(dir.join(AuditHead::NAME)) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(text?),
        };
        let (log, older) = (open(&path)?, open(&rotated)?);
        let number = |file: &Option<File>| Some(file.as_ref()?.metadata().ok()?.ino());
        if left > 0 && number(&log).is_some() && number(&log) == number(&older) {
            continue;
        }
        if log.is_none() && older.is_none() && text.is_none() {
            return Ok(None);
        }
        let head = text.as_deref().map(AuditHead::parse).transpose()?.flatten();
        let mut check = AuditCheck::begin(head);
        if let Some(older) = older {
            check.file(&format!("{AUDIT_NAME}.1"), BufReader::new(older))?;
        }
        if let Some(log) = log {
            check.file(AUDIT_NAME, BufReader::new(log))?;
        }
        return Ok(Some(check.end(text.is_some())));
    }
    Ok(None)
}
