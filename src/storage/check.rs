//! A check of a state directory that no daemon uses, for `latchfs doctor`. It changes nothing.

use super::dir::Dir;
use super::number_file::NumberFile;
use super::recovery::read_snapshot;
use super::storage_error::StateError;
use std::fs::File;
use std::path::Path;

/// Reads the last snapshot and the ceiling of the tokens in a directory, as its next daemon will.
/// `lock` is the lock file of the directory, locked by the caller.
pub fn check(path: &Path, lock: File) -> Result<(), StateError> {
    let dir = Dir::locked(path, lock);
    dir.read_sheet(NumberFile::TOKENS)?;
    match dir.list()?.snapshots.last() {
        Some(last) => read_snapshot(&dir, *last).map(drop),
        None => Ok(()),
    }
}
