//! The snapshots of a folder that is shown in no view: they are read in its state directory.

use super::exit::{CliError, CliResult};
use super::folder_requests::PlainFolder;
use super::guard_answers::answered;
use super::guard_parts::unavailable;
use super::output;
use crate::guard::folder_snapshot::snapshot_answers::{list, remove, show, verify};
use crate::guard::folder_snapshot::snapshot_store::{SnapshotStore, TREE};
use crate::guard::linux_disk::LinuxDisk;
use crate::guard::state_place::{ChangedThrough, StatePlace};
use crate::os_error::said;
use crate::time::{Span, boot_now};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How often this process says how far it has come.
const TELL: Span = Span::from_secs(1);
/// The next step where the folder is shown in no view.
const SHOW: &str = "show the folder with 'latchfs guard FOLDER VIEW'";

impl PlainFolder {
    /// Returns the directory of the folder's snapshots.
    pub(super) fn snapshots(&self) -> PathBuf {
        self.state.join(&self.record.id).join("snapshots")
    }

    /// Keeps guards of this machine from the folder, as long as the result lives.
    pub(super) fn lock(&self) -> CliResult<StatePlace> {
        let host = self.host.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let through = ChangedThrough::Folder;
        StatePlace::open(&self.dir, &self.record, &self.state, (host, through))
            .map_err(|error| unavailable(&error))
    }
}

/// The directory with the snapshots of a folder.
struct StoredSnapshots(OwnedFd);

impl StoredSnapshots {
    /// Opens the directory; `None` if the folder has none.
    fn open(folder: &PlainFolder) -> CliResult<Option<Self>> {
        let path = folder.snapshots();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from) {
            Ok(dir) => Ok(Some(Self(dir))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(CliError::unavailable(format!(
                "the snapshots of {} can't be read: {}; they belong to the user who started its \
                 guard",
                folder.dir.display(),
                said(&error)
            ))),
        }
    }

    const fn store(&self) -> SnapshotStore<'_, LinuxDisk> {
        SnapshotStore { disk: &LinuxDisk, dir: &self.0 }
    }
}

/// Returns the refusal to take a snapshot of a folder that programs change past its guard.
fn unquiet(folder: &Path) -> CliError {
    CliError::unavailable(format!(
        "E_CONSISTENCY_UNAVAILABLE: {} is shown in no view, so that programs change it past its \
         guard, and nobody knows which of its files are half changed; {SHOW}, and take the \
         snapshot of the view",
        folder.display()
    ))
}

/// Returns the refusal to put one file back where no view saves it as a whole.
pub(super) fn needs_view(folder: &Path) -> CliError {
    CliError::unavailable(format!(
        "{} is shown in no view, through which a file is saved as a whole; {SHOW}, or restore to a \
         new directory with --to DIR and copy the file",
        folder.display()
    ))
}

/// Answers a request about the snapshots of a folder.
pub(super) fn ask(folder: &PlainFolder, request: &Value) -> CliResult<Value> {
    let (what, id) = (request["snapshot"].as_str(), request["id"].as_str().unwrap_or_default());
    if what == Some("take") {
        return Err(unquiet(&folder.dir));
    }
    let Some(snapshots) = StoredSnapshots::open(folder)? else {
        let none = json!({"snapshots": []});
        let why = format!("there is no snapshot of {}", folder.dir.display());
        return if what == Some("list") { Ok(none) } else { Err(CliError::unavailable(why)) };
    };
    let store = snapshots.store();
    answered(match what {
        Some("list") => list(&store, true),
        Some("show") => show(&store, id, true),
        Some("verify") => verify_aloud(&store, id),
        _ => {
            // No guard counts the files of a snapshot meanwhile.
            let _locked = folder.lock()?;
            remove(&store, id)
        }
    })
}

fn verify_aloud(store: &SnapshotStore<'_, LinuxDisk>, id: &str) -> Value {
    let (files, next) = (Cell::new(0_u64), Cell::new(boot_now() + TELL));
    verify(store, id, &|| {
        files.set(files.get() + 1);
        if boot_now() >= next.get() {
            next.set(boot_now() + TELL);
            output::say(&format!("checked {} files", files.get()));
        }
    })
}

/// Returns the directory with the files of a snapshot.
pub(super) fn tree(folder: &PlainFolder, id: &str) -> PathBuf {
    folder.snapshots().join(id).join(TREE)
}
