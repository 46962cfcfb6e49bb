//! Finds the lines at which the chain of an audit log is broken.
//!
//! Checks the files of an audit log in a directory.

use super::hash_chain::{AUDIT_VERSION, ChainedLine, ReadLine, RecordHash};
use crate::audit_chain::hash_chain::AuditHead;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fmt, fs, io};

/// The highest length of a line; a longer one is a fault.
pub(crate) const AUDIT_LINE_BYTES_MAX: usize = 64 << 10;

/// The highest number of faults that a check keeps; one is enough to distrust a log.
pub(crate) const AUDIT_FAULTS_MAX: usize = 64;

/// A fault of an audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditFault {
    /// The name of the log file with the fault.
    pub(crate) file: String,
    /// The number of the line in the file, from 1; 0 for the file as a whole.
    pub(crate) line: u64,
    /// The fault of the line, as a clause.
    pub(crate) what: String,
}

impl fmt::Display for AuditFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{} {}", self.file, self.what),
            line => write!(f, "line {line} of {} {}", self.file, self.what),
        }
    }
}

/// The result of a check.
#[derive(Debug, Default)]
pub(crate) struct AuditReport {
    /// The faults, in the order of the lines.
    pub(crate) faults: Vec<AuditFault>,
    /// Remarks that are no faults, as sentences.
    pub(crate) notes: Vec<String>,
    /// The number of lines that belong to the chain.
    pub(crate) chained: u64,
}

/// The place of a line: its file and its number there.
#[derive(Clone, Copy)]
struct AuditPlace<'a> {
    file: &'a str,
    line: u64,
}

impl AuditPlace<'_> {
    fn fault(self, what: impl Into<String>) -> AuditFault {
        AuditFault { file: self.file.to_owned(), line: self.line, what: what.into() }
    }
}

/// The next line that the chain permits.
enum ExpectedLine {
    /// The chain has not begun.
    First,
    /// A line with this number, which names one of these digests.
    Next(u64, [RecordHash; 2]),
    /// Any line, since the one before can't be read.
    Any,
}

/// The check of an audit log, to which its files are given from the oldest to the newest.
pub(crate) struct AuditCheck {
    head: Option<AuditHead>,
    report: AuditReport,
    expected: ExpectedLine,
    /// Where the last line of the chain is, and its number.
    last: (String, u64, u64),
    /// The digest of the line that the head names, once it was read.
    named: Option<(RecordHash, AuditFault)>,
    torn: Option<AuditFault>,
}

/// Reads a line with its line feed into `line`. Returns whether there was one. A line that is too
/// long is cut.
pub(super) fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    from.by_ref().take(AUDIT_LINE_BYTES_MAX as u64).read_until(b'\n', line)?;
    if line.len() == AUDIT_LINE_BYTES_MAX && line.last() != Some(&b'\n') {
        from.skip_until(b'\n')?;
        line.push(b'\n');
    }
    Ok(!line.is_empty())
}

impl AuditCheck {
    /// Begins a check with the head as it was before the files were opened.
    pub(crate) fn begin(head: Option<AuditHead>) -> Self {
        Self {
            head,
            report: AuditReport::default(),
            expected: ExpectedLine::First,
            last: (String::new(), 0, 0),
            named: None,
            torn: None,
        }
    }

    fn fault(&mut self, at: AuditPlace<'_>, what: impl Into<String>) {
        if self.report.faults.len() < AUDIT_FAULTS_MAX {
            self.report.faults.push(at.fault(what));
        }
    }

    /// Checks the lines of a file.
    pub(crate) fn file(&mut self, name: &str, mut from: impl BufRead) -> io::Result<()> {
        if let Some(torn) = self.torn.take() {
            self.fault(AuditPlace { file: &torn.file, line: torn.line }, torn.what);
        }
        let (mut line, mut number) = (Vec::new(), 0);
        if self.last.2 == 0 {
            self.last = (name.to_owned(), 0, 0);
        }
        while read_line(&mut from, &mut line)? {
            number += 1;
            let at = AuditPlace { file: name, line: number };
            let Some(text) = line.strip_suffix(b"\n") else {
                let what = "is incomplete: it has no end".to_owned();
                self.torn = Some(at.fault(what));
                break;
            };
            match ReadLine::parse(text) {
                ReadLine::Chained(chained) => self.chained(at, &chained),
                ReadLine::OtherVersion(found) => {
                    let what = format!(
                        "has version {found}, and this latchfs knows version {AUDIT_VERSION}"
                    );
                    self.fault(at, what);
                    self.expected = ExpectedLine::Any;
                }
                ReadLine::Unreadable => {
                    self.fault(at, "is no line of the chain: it was changed or inserted");
                    self.expected = ExpectedLine::Any;
                }
            }
        }
        Ok(())
    }

    fn chained(&mut self, at: AuditPlace<'_>, line: &ChainedLine) {
        self.report.chained += 1;
        match &self.expected {
            _ if !line.is_whole => self.fault(at, "was changed after it was written"),
            ExpectedLine::First => self.first(at, line),
            ExpectedLine::Next(event, _) if line.event < *event => {
                return self.fault(at, format!("repeats event {}", line.event));
            }
            ExpectedLine::Next(event, _) if line.event > *event => {
                let missing = line.event - event;
                let says = format!(
                    "has event {}, and event {event} should come there: {missing} lines before it \
                     are missing",
                    line.event
                );
                self.fault(at, says);
            }
            ExpectedLine::Next(_, before) if !before.contains(&line.previous) => {
                self.fault(at, "does not continue the line before it: that one was replaced");
            }
            ExpectedLine::Any | ExpectedLine::Next(..) => {}
        }
        let here = at.fault("");
        if self.head.as_ref().is_some_and(|head| head.last.event == line.event) {
            self.named = Some((line.named.clone(), here));
        }
        // The next line may name either digest of this line, so that a changed line is one fault
        // and not two.
        self.expected = match line.event.checked_add(1) {
            Some(next) => ExpectedLine::Next(next, [line.named.clone(), line.own.clone()]),
            None => ExpectedLine::Any,
        };
        self.last = (at.file.to_owned(), at.line, line.event);
    }

    /// Checks the first line of the chain.
    fn first(&mut self, at: AuditPlace<'_>, line: &ChainedLine) {
        let first = self.head.as_ref().map_or(1, |head| head.first);
        if line.event > first {
            let says =
                format!("event {first} should be there, and the chain begins at a later one");
            return self.fault(at, format!("has event {}: {says}", line.event));
        }
        if line.event > 1 {
            let gone = line.event - 1;
            self.report.notes.push(format!(
                "the log begins with event {}: older files were removed as it grew, and with them \
                 events 1 to {gone}, which this check can't see",
                line.event
            ));
            return;
        }
        if line.previous != RecordHash::of(b"") {
            self.fault(at, "is not the first line of the chain: it names a line before it");
        }
    }

    /// Ends the check: compares the end of the log with the head.
    pub(crate) fn end(mut self, has_head: bool) -> AuditReport {
        let (file, line, event) = std::mem::take(&mut self.last);
        match self.head.take() {
            None if has_head => {
                self.fault(AuditPlace { file: AuditHead::NAME, line: 0 }, "is damaged");
            }
            None if self.report.chained > 0 => {
                let says = "is missing: nothing shows whether the end of the log was cut";
                self.fault(AuditPlace { file: AuditHead::NAME, line: 0 }, says);
            }
            None => {}
            Some(head) if head.last.event > event => {
                let named = head.last.event;
                let says = match event {
                    0 => format!("has no line of the chain, and the head names event {named}"),
                    _ => format!(
                        "is the last one, with event {event}, and the head names event {named}: \
                         the end of the log was cut"
                    ),
                };
                let torn = self.torn.take();
                let (file, line) = torn.map_or((file, line), |torn| (torn.file, torn.line));
                self.fault(AuditPlace { file: &file, line }, says);
            }
            Some(head) => {
                if let Some((hash, at)) = self.named.take()
                    && hash != head.last.hash
                    && self.report.faults.is_empty()
                {
                    let place = AuditPlace { file: &at.file, line: at.line };
                    self.fault(place, "is not the one that the head names");
                }
                if let after @ 1.. = event - head.last.event {
                    let lines = if after == 1 { "line follows" } else { "lines follow" };
                    self.report.notes.push(format!(
                        "{after} {lines} the one that the head names: a crash, or a write under \
                         way, came before the new head"
                    ));
                }
            }
        }
        if let Some(torn) = self.torn.take() {
            self.report.notes.push(format!("{torn}: a crash cut it before it counted"));
        }
        self.report
    }
}

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
