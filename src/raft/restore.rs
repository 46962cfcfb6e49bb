//! A node that goes on from the backup of a lost cluster, as the first of a new one.

use super::data_dir::sync_names;
use super::data_dir_error::DataError;
use super::raft_node::RaftNode;
use crate::engine::Baseline;
use crate::storage::locked_dir::Role;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes the data directory of a node that begins a new cluster with what is left of a lost one.
/// The directory must be empty or not there; it is there as a whole, or as it was.
pub fn restore(path: &Path, heritage: Baseline) -> Result<(), DataError> {
    let at = |error| DataError::io(path, error);
    let path = std::path::absolute(path).map_err(at)?;
    if let Some(found) = first_entry(&path)? {
        return Err(DataError::Foreign(found));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Role::Data.not_a_directory(&path).into());
    };
    // Beside it, so that it can be put there in one step: half a beginning would be a new one,
    // which gives tokens out that others have.
    let name = format!(".{}.restoring-{}", name.to_string_lossy(), std::process::id());
    let beside = parent.join(name);
    let made = RaftNode::begin_with(&beside, heritage)
        .and_then(|()| fs::rename(&beside, &path).and_then(|()| sync_names(parent)).map_err(at));
    if made.is_err() {
        // It takes room, and nobody knows what it is.
        let _ = fs::remove_dir_all(&beside);
    }
    made
}

/// Something that is in a directory, if that is there.
fn first_entry(path: &Path) -> Result<Option<PathBuf>, DataError> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io(path, error)),
    };
    let first = entries.next().transpose().map_err(|error| DataError::io(path, error))?;
    Ok(first.map(|entry| entry.path()))
}
