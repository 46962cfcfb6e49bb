//! A record of the change log, as a line of text: a checksum, and the record as JSON.

use barrier::folder_path::ContentDigest;
use barrier::folder_path::FileStamp;
use barrier::folder_path::FolderPath;
use barrier::handover::HandoverId;
use barrier::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A change of what a machine knows of its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChangeRecord {
    /// A path is about to be changed.
    Begin {
        /// The path.
        path: FolderPath,
        /// The file before the change.
        before: Option<FileStamp>,
        /// The file after the change.
        after: Option<FileStamp>,
    },
    /// A path was changed.
    End {
        /// The path.
        path: FolderPath,
        /// The file that the change left.
        after: Option<FileStamp>,
    },
    /// A person accepted a path as it stands.
    Accept {
        /// The path.
        path: FolderPath,
        /// The file that has the path.
        found: Option<FileStamp>,
    },
    /// A person accepted the whole folder as it stands.
    AcceptWhole,
    /// A directory was renamed.
    RenamedDir {
        /// The old path of the directory.
        from: FolderPath,
        /// The new path of the directory.
        to: FolderPath,
    },
    /// A directory was removed.
    RemovedDir {
        /// The path of the directory.
        path: FolderPath,
    },
    /// A handover of this machine is about to be sent.
    Own(HandoverId),
}

/// A line of the change log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogLine {
    /// A change.
    Change(ChangeRecord),
    /// The ledger with this digest, which contains the lines before, is about to replace the one
    /// before it.
    NextLedger(ContentDigest),
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum How {
    Begin,
    End,
    Accept,
    AcceptWhole,
    RenameDir,
    RemoveDir,
    Own,
    Ledger,
}

/// The size, the time and the inode of a file.
type StampJson = (u64, i128, u64);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineJson<'a> {
    how: How,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    path: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    to: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<StampJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<StampJson>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    id: Option<Cow<'a, str>>,
}

impl LineJson<'_> {
    fn new(how: How) -> Self {
        Self { how, path: None, to: None, before: None, after: None, id: None }
    }
}

fn stamp_json(stamp: Option<FileStamp>) -> Option<StampJson> {
    stamp.map(|stamp| (stamp.size, stamp.mtime, stamp.inode))
}

fn stamp(json: Option<StampJson>) -> Option<FileStamp> {
    json.map(|(size, mtime, inode)| FileStamp { size, mtime, inode })
}

fn path(text: Option<&Cow<'_, str>>) -> Option<FolderPath> {
    let text = text?;
    FolderPath::parse(text).ok().filter(|path| path.as_str() == text)
}

impl LogLine {
    /// Returns the line, with its line feed.
    pub(crate) fn write(&self) -> serde_json::Result<Vec<u8>> {
        let text = |path: &FolderPath| Some(Cow::Owned(path.as_str().to_owned()));
        let id = |id: &dyn std::fmt::Display| Some(Cow::Owned(id.to_string()));
        let json = match self {
            Self::NextLedger(digest) => LineJson { id: id(digest), ..LineJson::new(How::Ledger) },
            Self::Change(change) => match change {
                ChangeRecord::Begin { path, before, after } => LineJson {
                    path: text(path),
                    before: stamp_json(*before),
                    after: stamp_json(*after),
                    ..LineJson::new(How::Begin)
                },
                ChangeRecord::End { path, after } => LineJson {
                    path: text(path),
                    after: stamp_json(*after),
                    ..LineJson::new(How::End)
                },
                ChangeRecord::Accept { path, found } => LineJson {
                    path: text(path),
                    after: stamp_json(*found),
                    ..LineJson::new(How::Accept)
                },
                ChangeRecord::AcceptWhole => LineJson::new(How::AcceptWhole),
                ChangeRecord::RenamedDir { from, to } => {
                    LineJson { path: text(from), to: text(to), ..LineJson::new(How::RenameDir) }
                }
                ChangeRecord::RemovedDir { path } => {
                    LineJson { path: text(path), ..LineJson::new(How::RemoveDir) }
                }
                ChangeRecord::Own(own) => LineJson { id: id(own), ..LineJson::new(How::Own) },
            },
        };
        let json = serde_json::to_vec(&json)?;
        let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
        line.extend_from_slice(&json);
        line.push(b'\n');
        Ok(line)
    }

    /// Reads a line without its line feed; `None` if it is damaged.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let (sum, json) = (line.get(..8)?, line.get(9..)?);
        if line[8] != b' ' || sum != format!("{:08x}", crc32fast::hash(json)).as_bytes() {
            return None;
        }
        let json: LineJson<'_> = serde_json::from_slice(json).ok()?;
        let id = json.id.as_deref();
        let change = match json.how {
            How::Ledger => return ContentDigest::parse(id?).map(Self::NextLedger),
            How::Begin => ChangeRecord::Begin {
                path: path(json.path.as_ref())?,
                before: stamp(json.before),
                after: stamp(json.after),
            },
            How::End => {
                ChangeRecord::End { path: path(json.path.as_ref())?, after: stamp(json.after) }
            }
            How::Accept => {
                ChangeRecord::Accept { path: path(json.path.as_ref())?, found: stamp(json.after) }
            }
            How::AcceptWhole => ChangeRecord::AcceptWhole,
            How::RenameDir => ChangeRecord::RenamedDir {
                from: path(json.path.as_ref())?,
                to: path(json.to.as_ref())?,
            },
            How::RemoveDir => ChangeRecord::RemovedDir { path: path(json.path.as_ref())? },
            How::Own => {
                let own = u128::from_str_radix(id?, 16).map(HandoverId).ok()?;
                (own.to_string() == id?).then_some(ChangeRecord::Own(own))?
            }
        };
        Some(Self::Change(change))
    }
}

impl ChangeRecord {
    /// Makes the change in the ledger.
    pub(crate) fn apply(&self, ledger: &mut Ledger) {
        match self {
            Self::Begin { path, before, after } => ledger.log_mut().begin(path, *before, *after),
            Self::End { path, after } => ledger.log_mut().end(path, *after),
            Self::Accept { path, found } => ledger.log_mut().accept(path, *found),
            Self::AcceptWhole => ledger.log_mut().accept_whole(),
            Self::RenamedDir { from, to } => ledger.log_renamed_dir(from, to),
            Self::RemovedDir { path } => ledger.log_removed_dir(path),
            Self::Own(id) => ledger.record_own(*id),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn path(text: &str) -> FolderPath {
        FolderPath::parse(text).expect("valid")
    }

    /// Returns records of all kinds.
    pub(in super::super) fn records() -> Vec<ChangeRecord> {
        let small = FileStamp { size: 0, mtime: 0, inode: 1 };
        let large = FileStamp { size: u64::MAX, mtime: i128::MIN, inode: u64::MAX };
        let late = FileStamp { size: 5, mtime: i128::MAX, inode: 2 };
        let odd = path("a \"b\"\n\\\u{1}/caf\u{e9}\u{1f512}");
        vec![
            ChangeRecord::Begin { path: path("a"), before: None, after: Some(small) },
            ChangeRecord::Begin { path: odd.clone(), before: Some(large), after: None },
            ChangeRecord::End { path: odd, after: Some(late) },
            ChangeRecord::End { path: path("d/a"), after: None },
            ChangeRecord::Accept { path: path("b"), found: Some(small) },
            ChangeRecord::Accept { path: path("b"), found: None },
            ChangeRecord::AcceptWhole,
            ChangeRecord::RenamedDir { from: path("d"), to: path("e/f") },
            ChangeRecord::RemovedDir { path: path("e") },
            ChangeRecord::Own(HandoverId(0)),
            ChangeRecord::Own(HandoverId(u128::MAX)),
        ]
    }

    #[test]
    fn a_line_is_read_as_it_was_written_and_each_damaged_byte_is_found() {
        let ledger = LogLine::NextLedger(ContentDigest::of(b"1"));
        let all = records().into_iter().map(LogLine::Change).chain([ledger]);
        for line in all {
            let bytes = line.write().expect("memory suffices");
            let (last, content) = bytes.split_last().expect("not empty");
            assert!(*last == b'\n' && !content.contains(&b'\n'), "one line: {line:?}");
            assert_eq!(LogLine::read(content), Some(line));
            for at in 0..content.len() {
                let mut damaged = content.to_vec();
                damaged[at] ^= 1;
                assert_eq!(LogLine::read(&damaged), None, "byte {at}");
                assert_eq!(LogLine::read(&content[..at]), None, "the first {at} bytes");
            }
        }
    }

    #[test]
    fn a_line_with_a_checksum_is_read_strictly() {
        for json in [
            r#"{"how":"begin"}"#,
            r#"{"how":"end","path":"/a"}"#,
            r#"{"how":"end","path":"cafe\u0301"}"#,
            r#"{"how":"rename-dir","path":"a"}"#,
            r#"{"how":"own","id":"1"}"#,
            r#"{"how":"own","id":"+0000000000000000000000000000001"}"#,
            r#"{"how":"ledger","id":"1"}"#,
            r#"{"how":"later"}"#,
            r#"{"how":"end","path":"a","size":1}"#,
            "",
        ] {
            let line = format!("{:08x} {json}", crc32fast::hash(json.as_bytes()));
            assert_eq!(LogLine::read(line.as_bytes()), None, "{json}");
        }
    }
}
