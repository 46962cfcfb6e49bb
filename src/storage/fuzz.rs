//! The recovery of a state directory without a new journal, for the fuzzer in `tests/fuzz`. Not a
//! part of the library's interface.

use super::dir::Dir;
use super::header::BootId;
#[cfg(test)]
use super::header::{HEADER_BYTES, Header, Type};
use super::journal::Records;
#[cfg(test)]
use super::journal::{Journal, JournalSpace, LastJournal};
use super::recovery::recover;
use super::state_dir::Recovered;
use crate::storage::dir::StateError;
use std::path::Path;
use std::sync::Arc;

/// Recovers the state in a directory, as its daemon does before it writes anything.
pub fn recovered(path: &Path) -> Result<Recovered, StateError> {
    let dir = Arc::new(Dir::open(path)?);
    let found = recover(&dir, BootId::current())?;
    Ok(Recovered {
        tokens_reserved: found.tokens,
        snapshot: found.snapshot,
        records: Records::new(&dir, found.parts),
        same_boot: found.same_boot,
        clean: found.clean,
    })
}

/// Returns the bytes of a journal with these records, and a boot and a salt that do not change.
#[cfg(test)]
pub(crate) fn journal(records: &[Vec<u8>]) -> Vec<u8> {
    let path = std::env::temp_dir().join(format!("latchfs-journal-{}", std::process::id()));
    let (boot, salt) = (BootId::fixed(), 7);
    let header =
        Header { kind: Type::Journal, boot, generation: 1, next_seq: 1, body_bytes: 0, sum: salt };
    std::fs::write(&path, header.to_bytes()).expect("the temporary directory can be written");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("ours");
    let end = HEADER_BYTES as u64;
    let at = LastJournal { generation: 1, salt, end, allocated: end, next_seq: 1 };
    let mut journal = Journal::at(file, path.clone(), &at);
    for record in records {
        journal.append(record, JournalSpace::Ordinary).expect("there is room");
    }
    journal.trim();
    let bytes = std::fs::read(&path).expect("ours");
    std::fs::remove_file(&path).expect("ours");
    bytes
}

/// Returns the bytes of a snapshot file with this body.
#[cfg(test)]
pub(crate) fn snapshot(body: &[u8]) -> Vec<u8> {
    let (boot, sum, body_bytes) = (BootId::fixed(), crc32fast::hash(body), body.len() as u64);
    let header = Header { kind: Type::Snapshot, boot, generation: 1, next_seq: 1, body_bytes, sum };
    [&header.to_bytes()[..], body].concat()
}

/// Returns the bytes of the file `tokens`.
#[cfg(test)]
pub(crate) fn tokens(ceiling: u64) -> Vec<u8> {
    crate::storage::manifest::NumberFile::Tokens(ceiling).to_text().into_bytes()
}
