//! Restores a cluster: creates the first node of a new cluster from what is known of a lost one.

use super::data_dir_error::DataError;
use super::raft_node::RaftNode;
use super::types::{Heritage, Origin};
use crate::storage::atomic_file::sync_names;
use crate::storage::locked_dir::Role;
use std::fs;
use std::path::Path;

/// Creates the data directory of the first node of a new cluster that replaces a lost one.
/// The directory must be empty or missing. It is created
/// atomically: after an error it is as before.
pub fn restore(path: &Path, heritage: Heritage, origin: Origin) -> Result<(), DataError> {
    let at = |error| DataError::io(path, error);
    let path = std::path::absolute(path).map_err(at)?;
    if !is_empty(&path)? {
        return Err(DataError::NotEmpty(path));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Role::Data.not_a_directory(&path).into());
    };
    // Build the directory under a temporary name and rename it. A half-restored directory would
    // start as a new cluster, and grant tokens that clients of the lost one still hold.
    let name = format!(".{}.restoring-{}", name.to_string_lossy(), std::process::id());
    let beside = parent.join(name);
    let made = RaftNode::begin_with(&beside, heritage, origin)
        .and_then(|()| fs::rename(&beside, &path).and_then(|()| sync_names(parent)).map_err(at));
    if made.is_err() {
        // After an error, the incomplete directory is removed, because it takes up disk space.
        let _ = fs::remove_dir_all(&beside);
    }
    made
}

/// Whether a directory is empty or missing.
fn is_empty(path: &Path) -> Result<bool, DataError> {
    let mut entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(DataError::io(path, error)),
    };
    let first = entries.next().transpose().map_err(|error| DataError::io(path, error))?;
    Ok(first.is_none())
}
