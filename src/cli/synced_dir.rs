//! Refuses mount points in folders that a sync tool carries.

use super::exit::{CliError, CliResult};
use crate::fuse::kernel::mountinfo;
use crate::fuse::kernel::own_user::{is_root, own_uid};
use crate::guard::synced_place::synced_by;
use std::path::Path;

/// Refuses a mount point that a sync tool would carry to other machines, unless that is wanted.
/// Returns a warning instead for a system service of root: its path is fixed, and nobody would see
/// why it is gone after the next boot.
pub(super) fn check(dir: &Path, is_wanted: bool) -> CliResult<Option<String>> {
    let real = mountinfo::resolve(dir)
        .map_err(|error| CliError::system(&format!("{} can't be found", dir.display()), &error))?;
    let Some(mark) = synced_by(&real, own_uid()).filter(|_| !is_wanted) else {
        return Ok(None);
    };
    let says = format!(
        "{} lies in a folder of a sync tool: {mark}. There it becomes files, and what happens to \
         them comes back as operations here; mount outside of that folder, for example at \
         ~/locks, or pass --inside-synced-folder",
        real.display()
    );
    if is_root() && std::env::var_os("NOTIFY_SOCKET").is_some() {
        return Ok(Some(says));
    }
    Err(CliError::usage(says))
}
