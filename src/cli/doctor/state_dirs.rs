//! Checks of state directories, in which mounts store the state of their locks for a restart.

use super::finding::Finding;
use crate::cli::environment::state_dir;
use crate::cli::exit::CliResult;
use crate::os_error::said;
use crate::service::BackendKind;
use crate::storage;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The minimum free space on the disk of a state directory: twice the size of the journal of a busy
/// day.
const ROOM_MIN_BYTES: u64 = 64 << 20;

/// Returns the findings about the state directory `named`. If none is named, checks the state
/// directories of all mounts, each once; if there are no mounts, checks the directory that a mount
/// would use by default.
pub(super) fn states(named: Option<&OsStr>, abouts: &[Value]) -> CliResult<Vec<Finding>> {
    // A mount of a server's locks has no state directory to check.
    let here = abouts.iter().filter(|about| about["kind"] != BackendKind::Server.as_str());
    let told: BTreeSet<&str> = here.filter_map(|about| about["state"].as_str()).collect();
    if named.is_none() && told.is_empty() && !abouts.is_empty() {
        return Ok(Vec::new());
    }
    if named.is_some() || told.is_empty() {
        return Ok(state_dir(named)?.iter().map(|state| state_finding(state)).collect());
    }
    let finding = |state: &str| match Path::new(state) {
        dir if dir.is_absolute() => state_finding(dir),
        _ => Finding::well("state", format!("a mount keeps {state}")),
    };
    Ok(told.into_iter().map(finding).collect())
}

fn state_finding(state: &Path) -> Finding {
    let (check, shown) = ("state", state.display());
    let elsewhere = "name another directory by 'latchfs mount --state DIR'";
    // If the state directory is missing, the first mount creates it below its nearest existing
    // ancestor, so that ancestor is checked.
    let there: PathBuf = state.ancestors().find(|dir| dir.exists()).unwrap_or(state).into();
    if !there.is_dir() {
        let says = format!("{} is not a directory", there.display());
        return Finding::wrong(check, says, elsewhere);
    }
    if let Err(error) = writable(&there) {
        let says = format!("{} can't be written: {}", there.display(), said(&error));
        return Finding::wrong(check, says, format!("mend its permissions, or {elsewhere}"));
    }
    match room(&there) {
        Err(error) => {
            let says = format!("the room in {} can't be found: {}", there.display(), said(&error));
            return Finding::wrong(check, says, elsewhere);
        }
        Ok(bytes) if bytes < ROOM_MIN_BYTES => {
            let says = format!("{} has only {} MiB of room", there.display(), bytes >> 20);
            return Finding::wrong(check, says, format!("make room, or {elsewhere}"));
        }
        Ok(_) => {}
    }
    if there != state {
        return Finding::well(check, format!("{shown} will be made by the first mount"));
    }
    let path = state.join("lock");
    let Ok(lock) = File::open(&path) else {
        return Finding::well(check, format!("{shown} is writable and not in use"));
    };
    if lock.try_lock_shared().is_err() {
        let pid = std::fs::read_to_string(&path).unwrap_or_default();
        let says = format!("{shown} is writable and in use by process {}", pid.trim());
        return Finding::well(check, says);
    }
    match storage::check(state, lock) {
        Ok(()) => Finding::well(check, format!("{shown} is writable, intact and not in use")),
        Err(damage) => {
            let said = damage.to_string();
            let (says, mend) = said.split_once("; ").unwrap_or((&said, elsewhere));
            Finding::wrong(check, says, mend)
        }
    }
}

#[allow(unsafe_code)]
fn writable(dir: &Path) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: `path` is a valid NUL-terminated string that lives until the call returns.
    match unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of free bytes on the disk of `dir` that this user may use.
#[allow(unsafe_code)]
fn room(dir: &Path) -> io::Result<u64> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a valid NUL-terminated string, and `found` has room for the answer.
    if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: statvfs has succeeded, so it has initialised `found`.
    let found = unsafe { found.assume_init() };
    #[allow(clippy::unnecessary_cast)] // the types differ between systems
    let (blocks, size) = (found.f_bavail as u64, found.f_frsize as u64);
    Ok(blocks.saturating_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Rules;
    use crate::service::local::Local;
    use serde_json::json;

    #[test]
    fn the_mounts_say_where_their_state_is() {
        let abouts = [
            json!({"state": "/proc/self/stat/one"}),
            json!({"state": "/proc/self/stat/one"}),
            json!({"state": "none: a restart forgets all leases"}),
            json!({"state": "http://box:8080", "kind": "server"}),
            json!(null),
        ];
        let found = states(None, &abouts).expect("looked at");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].says.contains("/proc/self/stat") && found[0].mend.is_some());
        assert_eq!(found[1].says, "a mount keeps none: a restart forgets all leases");
        let named = states(Some(OsStr::new("none")), &abouts).expect("none is a name");
        assert_eq!(named, []);
        assert_eq!(states(None, &abouts[3..4]).expect("looked at"), []);
    }

    #[test]
    fn a_damaged_snapshot_is_found() {
        let dir = std::env::temp_dir().join(format!("latchfs-damaged-{}", std::process::id()));
        let open = || Local::open(&dir, Rules::default()).expect("it opens");
        let used = open();
        let says = |wanted: &str| {
            let found = state_finding(&dir);
            assert!(found.says.contains(wanted), "{found:?}");
            found
        };
        says("in use by process");
        used.close().expect("it closes");
        drop(used);
        says("is writable, intact and not in use");
        let names = std::fs::read_dir(&dir).expect("there").flatten().map(|entry| entry.path());
        let is_snapshot = |path: &PathBuf| path.display().to_string().contains("/snapshot.");
        let snapshot = names.into_iter().find(is_snapshot).expect("it was written at the end");
        let mut bytes = std::fs::read(&snapshot).expect("ours");
        *bytes.last_mut().expect("it is not empty") ^= 1;
        std::fs::write(&snapshot, bytes).expect("ours");
        let found = says("is damaged at byte");
        assert!(found.mend.is_some_and(|mend| mend.contains("put back a backup")));
        std::fs::remove_dir_all(&dir).expect("ours");
    }

    #[test]
    fn a_state_directory_is_looked_at() {
        let base = std::env::temp_dir();
        let yet = state_finding(&base.join("latchfs-doctor-no-such/state"));
        assert!(yet.says.ends_with("will be made by the first mount"), "{yet:?}");
        let file = state_finding(Path::new("/proc/self/stat/state"));
        assert!(file.says.contains("is not a directory") && file.mend.is_some(), "{file:?}");
    }
}
