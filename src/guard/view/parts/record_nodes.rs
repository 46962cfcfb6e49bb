//! The nodes of the lock record in `.latchfs/locks`, and what programs have open of it.

use crate::auth::FolderAct;
use crate::engine::Token;
use crate::guard::lock::lock_record::HolderProof;
use crate::holder_id::ProcessStart;
use kernel::file_system::{DirEntry, NodeType, Requester};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::sync::Arc;

/// The name of the directory in `.latchfs`.
pub(in crate::guard::view) const LOCKS_DIR: &str = "locks";
/// The inode number of the directory. Those of the record and of its temporary file follow; the
/// control files have smaller ones, and nodes of the folder greater ones.
pub(in crate::guard::view) const LOCKS_INO: u64 = 1 << 20;

/// A file in `.latchfs/locks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::guard::view) enum RecordFile {
    /// The record, `NAME.lock`.
    Record,
    /// The record that a stealing program prepares, `NAME.lock.tmp`.
    Prepared,
}

impl RecordFile {
    pub(in crate::guard::view) const fn ino(self) -> u64 {
        LOCKS_INO + 1 + self as u64
    }

    pub(in crate::guard::view) fn of(ino: u64) -> Option<Self> {
        [Self::Record, Self::Prepared].into_iter().find(|file| file.ino() == ino)
    }

    /// Returns the file with this name, if the record is called `record`.
    pub(in crate::guard::view) fn named(name: &OsStr, record: &str) -> Option<Self> {
        let name = name.to_str()?;
        if name == record {
            return Some(Self::Record);
        }
        (name.strip_suffix(".tmp") == Some(record)).then_some(Self::Prepared)
    }

    /// Returns what a program does that makes the file.
    pub(in crate::guard::view) const fn act_of_maker(self) -> FolderAct {
        match self {
            Self::Record => FolderAct::Take,
            Self::Prepared => FolderAct::Steal,
        }
    }

    /// Returns what a program does that writes to the file.
    pub(in crate::guard::view) const fn act_of_writer(self) -> FolderAct {
        match self {
            Self::Record => FolderAct::Renew,
            Self::Prepared => FolderAct::Steal,
        }
    }

    pub(in crate::guard::view) fn name(self, record: &str) -> String {
        match self {
            Self::Record => record.to_owned(),
            Self::Prepared => format!("{record}.tmp"),
        }
    }

    pub(in crate::guard::view) fn entry(self, record: &str) -> DirEntry {
        let name: &OsStr = &std::ffi::OsString::from(self.name(record));
        DirEntry { ino: Some(self.ino()), kind: NodeType::RegularFile, name: name.into() }
    }
}

/// Whether a node is `.latchfs/locks` or a file in it.
pub(super) const fn is_of_records(ino: u64) -> bool {
    ino >= LOCKS_INO && ino <= RecordFile::Prepared.ino()
}

/// Returns the type and the permissions of such a node. The rights are checked by `src/auth`,
/// as for `ctl`.
pub(super) fn record_type(ino: u64) -> Option<(NodeType, u16)> {
    match ino {
        LOCKS_INO => Some((NodeType::Directory, 0o777)),
        ino => RecordFile::of(ino).map(|_| (NodeType::RegularFile, 0o666)),
    }
}

/// Returns the entry of the directory.
pub(super) fn locks_entry() -> DirEntry {
    let (kind, name) = (NodeType::Directory, OsStr::new(LOCKS_DIR));
    DirEntry { ino: Some(LOCKS_INO), kind, name: name.into() }
}

/// An open file in `.latchfs/locks`.
pub(in crate::guard::view) struct RecordHandle {
    pub(in crate::guard::view) file: RecordFile,
    pub(in crate::guard::view) who: Requester,
    /// The text that reads return, once it is known.
    pub(in crate::guard::view) text: Mutex<Option<Arc<[u8]>>>,
    /// The text that was written and is no record yet.
    pub(in crate::guard::view) written: Mutex<Vec<u8>>,
    /// The tenure in which the file was opened.
    pub(in crate::guard::view) tenure: Option<Token>,
    /// Whether the program has acquired the lock by making this file, and has not written its
    /// record yet.
    pub(in crate::guard::view) begins: Mutex<bool>,
}

/// A record that a program has prepared for a steal.
pub(in crate::guard::view) struct PreparedRecord {
    /// The text, once it is a record, and its proof.
    pub(in crate::guard::view) record: Option<(Arc<[u8]>, HolderProof)>,
    /// The process that writes it, if it is known.
    pub(in crate::guard::view) writer: Option<ProcessStart>,
    /// Whether its steal was refused. Another process may prepare one then.
    pub(in crate::guard::view) is_refused: bool,
}

impl PreparedRecord {
    /// Whether the process that writes it has ended.
    fn is_left(&self) -> bool {
        self.writer.is_none_or(|writer| !writer.runs())
    }

    /// Whether another process may not prepare one now.
    pub(in crate::guard::view) fn is_kept_from(&self, other: Option<ProcessStart>) -> bool {
        !self.is_refused && !self.is_left() && self.writer != other
    }
}

/// The program that has begun or last renewed a tenure by a record.
#[derive(Debug, Clone, Copy)]
pub(in crate::guard::view) struct RecordHolder {
    pub(in crate::guard::view) token: Token,
    pub(in crate::guard::view) process: ProcessStart,
}

/// The use of the record by programs of the view.
#[derive(Default)]
pub(in crate::guard::view) struct RecordUse {
    /// The record that a program prepares for a steal.
    pub(in crate::guard::view) prepared: Mutex<Option<PreparedRecord>>,
    holder: Mutex<Option<RecordHolder>>,
    /// The program whose renewal has failed, and which must not write until one succeeds.
    stopped: Mutex<Option<RecordHolder>>,
}

impl RecordUse {
    /// Takes note that a process has begun or renewed the tenure with this token.
    pub(in crate::guard::view) fn claim(&self, token: Token, pid: u32) {
        if let Some(process) = ProcessStart::running(pid) {
            *self.holder.lock() = Some(RecordHolder { token, process });
        }
    }

    /// Takes note that the renewal of a process has succeeded, or has failed: then it must stop its
    /// writes.
    pub(in crate::guard::view) fn renewed(&self, token: Token, pid: u32, has_succeeded: bool) {
        let Some(process) = ProcessStart::running(pid) else { return };
        let mut stopped = self.stopped.lock();
        if !has_succeeded {
            *stopped = Some(RecordHolder { token, process });
        } else if stopped.is_some_and(|stopped| stopped.process == process) {
            *stopped = None;
        }
    }

    /// Whether the process `pid` must not write in the tenure with this token, since it could not
    /// renew it.
    pub(in crate::guard::view) fn is_stopped(
        &self,
        token: Option<Token>,
        pid: impl FnOnce() -> u32,
    ) -> bool {
        let Some(stopped) = *self.stopped.lock() else { return false };
        Some(stopped.token) == token && ProcessStart::running(pid()) == Some(stopped.process)
    }

    /// Whether there is a prepared record whose process has ended.
    pub(in crate::guard::view) fn has_leftover(&self) -> bool {
        self.prepared.lock().as_ref().is_some_and(PreparedRecord::is_left)
    }

    /// Returns the pid of the process that has done so, if it still runs.
    pub(in crate::guard::view) fn holder_of(&self, token: Token) -> Option<u32> {
        let holder = (*self.holder.lock()).filter(|holder| holder.token == token)?;
        holder.process.runs().then_some(holder.process.pid)
    }
}
