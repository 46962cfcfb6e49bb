//! The chain of the file of administrative acts, and its head.

use crate::audit_chain::{
    AUDIT_NAME, AuditChain, AuditHead, ChainEntry, ChainLink, first_event, last_link,
};
use crate::storage::atomic_file::{Durable, replace};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// How much of the end of a file a start reads, in search of the last line of a log entry.
pub(super) const END_BYTES_MAX: u64 = 1 << 20;

/// The chain of `audit.log` in one directory.
#[derive(Clone)]
pub(super) struct ActChain {
    head: PathBuf,
    chain: AuditChain,
    /// The number of the first line that must be there.
    first: u64,
    /// The number of the first line in the newest file.
    own_first: Option<u64>,
}

impl ActChain {
    /// Continues the chain of the log in `dir`, or begins one.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
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
    pub(super) fn add(&mut self, act: &Value) -> String {
        let text = |field: &str| act[field].as_str();
        let target = match (text("name").or_else(|| text("client")), act["node"].as_u64()) {
            (Some(name), _) => Some(name.to_owned()),
            (None, node) => node.map(|id| format!("node {id}")),
        };
        self.chain.add(ChainEntry {
            timestamp: text("at").unwrap_or_default().to_owned(),
            operation: text("act").unwrap_or_default(),
            actor: text("by").unwrap_or_default(),
            target,
            fencing_token: act["token"].as_u64(),
            session_id: None,
            reason: text("reason"),
            more: act.as_object().cloned().unwrap_or_default(),
        })
    }

    /// Takes over the lines that another value of the same chain has added, and that are written.
    pub(super) fn advance(&mut self, to: Self) {
        let begins = self.chain.last().event + 1;
        self.chain = to.chain;
        if self.chain.last().event >= begins {
            self.own_first.get_or_insert(begins);
        }
    }

    /// Notes that the newest file is about to replace the older one.
    pub(super) const fn rotate(&mut self) {
        if let Some(first) = self.own_first.take() {
            self.first = first;
        }
    }

    /// Writes the head, after the lines were synced.
    pub(super) fn write_head(&self) -> io::Result<()> {
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
