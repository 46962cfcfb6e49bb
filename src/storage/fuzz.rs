//! The recovery of a state directory without a new journal, for the fuzzer in `tests/fuzz`. Not a
//! part of the library's interface.

use super::dir::Dir;
use super::header::BootId;
use super::journal::Records;
use super::recovery::recover;
use super::state_dir::Recovered;
use super::storage_error::StateError;
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
