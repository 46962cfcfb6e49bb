//! The readers of what sync tools, lock services and programs deliver, for the fuzzer in
//! `tests/fuzz`. Not a part of the library's interface.

use super::barrier_store::change_record::{ChangeRecord, LogLine};
use crate::guard::lock::lock_record::HolderProof;
use barrier::coverage::Coverage;
use barrier::folder_path::ContentDigest;
use barrier::folder_path::FolderPath;
use barrier::handover::Handover;
use barrier::ignored::IgnoreRules;
use barrier::ledger::Ledger;
use barrier::marker::Marker;

/// Reads a marker. Returns the bytes to which it is written again, and the paths that it names; or
/// the sentence that refuses it.
pub fn marker(bytes: &[u8]) -> Result<(Vec<u8>, Vec<String>), String> {
    let marker = Marker::read(bytes).map_err(|error| error.to_string())?;
    let paths = marker.changes.iter().map(|change| change.path.to_string()).collect();
    Ok((marker.write().map_err(|error| error.to_string())?, paths))
}

/// Reads a handover. Returns its text, or the sentence that refuses it.
pub fn handover(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    Handover::parse(text).map(|read| read.to_string()).map_err(|error| error.to_string())
}

/// Reads a ledger whose content is followed by its digest. Returns the content to which it is
/// written again, or the sentence that refuses it.
pub fn ledger(content: &[u8]) -> Result<Vec<u8>, String> {
    let bytes = [content, &ContentDigest::of(content).0].concat();
    let ledger = Ledger::load(&bytes).map_err(|error| error.to_string())?;
    let mut again = ledger.save();
    again.truncate(again.len() - 32);
    Ok(again)
}

/// Reads a line of the change log, which is `json` after its checksum. Returns the JSON to which it
/// is written again, and the paths that it names; or the sentence that refuses it.
pub fn change_log(json: &[u8]) -> Result<(Vec<u8>, Vec<String>), String> {
    let line = [format!("{:08x} ", crc32fast::hash(json)).as_bytes(), json].concat();
    let read = LogLine::read(&line).ok_or("the line is damaged")?;
    let paths = match &read {
        LogLine::Change(
            ChangeRecord::Begin { path, .. }
            | ChangeRecord::End { path, .. }
            | ChangeRecord::Accept { path, .. }
            | ChangeRecord::RemovedDir { path },
        ) => vec![path.to_string()],
        LogLine::Change(ChangeRecord::RenamedDir { from, to }) => {
            vec![from.to_string(), to.to_string()]
        }
        LogLine::Change(ChangeRecord::AcceptWhole | ChangeRecord::Own(_))
        | LogLine::NextLedger(_) => Vec::new(),
    };
    let again = read.write().map_err(|error| error.to_string())?;
    Ok((again.trim_ascii_end().get(9..).unwrap_or_default().to_vec(), paths))
}

/// Reads ignore rules, in either syntax. Returns whether they ignore a path, or the sentence that
/// refuses them.
pub fn ignores(rules: &str, path: &str) -> Result<bool, String> {
    let mut read = IgnoreRules::parse(rules).map_err(|error| error.to_string())?;
    read.add_syncthing(rules).map_err(|error| error.to_string())?;
    let path = FolderPath::parse(path).map_err(|error| error.to_string())?;
    Ok(!Coverage::of(&read, &Ledger::default()).covers(&path))
}

/// Reads a lock record that a program has written. Returns the text that the lock service keeps of
/// it, and whether that text can be read again; or the sentence that refuses the record.
pub fn lock_record(text: &[u8]) -> Result<(Vec<u8>, bool), String> {
    let proof = HolderProof::parse(text).ok_or("the text is no lock record")?;
    let kept = proof.to_lease();
    Ok((kept.to_vec(), HolderProof::in_lease(&kept) == Some(proof)))
}
