//! The file `view` in the directory of a machine: where its guard shows the folder. It stays when
//! the guard is killed, so that `doctor --strict` misses the view.

use crate::storage::atomic_file::{Durable, replace};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The name of the file.
const NAME: &str = "view";

/// The folder and the view of a guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ViewRecord {
    /// The guarded folder.
    pub(super) folder: PathBuf,
    /// The directory at which it is shown.
    pub(super) view: PathBuf,
    /// The servers that decide about the lock, if it is not an engine of the guard.
    #[serde(default)]
    pub(super) server: Option<String>,
}

impl ViewRecord {
    /// Reads the record in the directory of a machine, if its guard has a view or was killed.
    pub(super) fn read(host: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(host.join(NAME)).ok()?).ok()
    }

    /// Writes the record. Only `doctor` needs it, so a failure is no reason to show no view.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub(super) fn note(host: &Path, (folder, view): (&Path, &Path), server: Option<String>) {
        let record = Self { folder: folder.to_owned(), view: view.to_owned(), server };
        if let Err(error) = record.write(host) {
            log::warn!("doctor would not miss the view: {error}");
        }
    }

    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn write(&self, host: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        replace(&host.join(NAME), &[text.as_bytes(), b"\n"], Durable::No).map(drop)
    }

    /// Removes the record: the view is not wanted any more.
    pub(super) fn remove(host: &Path) {
        if let Err(error) = fs::remove_file(host.join(NAME)) {
            log::debug!("the record of the view stays: {error}");
        }
    }

    /// Returns the record of a view, with the directory of its machine, from those in a state
    /// directory.
    pub(super) fn of_view(state: &Path, view: &Path) -> Option<(Self, PathBuf)> {
        let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
        let mut hosts = below(state).flat_map(|id| below(&id.path())).map(|host| host.path());
        hosts.find_map(|host| {
            let record = Self::read(&host).filter(|record| record.view == view)?;
            Some((record, host))
        })
    }
}
