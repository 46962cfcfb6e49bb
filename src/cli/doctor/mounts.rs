//! Checks of the mounts of this machine, and of configured mount points without a mount.
//!
//! Checks of state directories, in which mounts store the state of their locks for a restart.

use super::finding::Finding;
use super::servers;
use crate::base::said;
use crate::cli::argument_types::state_dir;
use crate::cli::connect::machine_locks::{self, MachineLocks};
use crate::cli::connect::mount_client::{ControlFileClient, LockClient};
use crate::cli::connect::own_locks::OwnLocks;
use crate::cli::exit::{CliError, CliResult};
use crate::guard::folder::state_place::synced_by;
use crate::service::BackendKind;
use crate::storage;
use kernel::mountinfo::{Life, MountPoint};
use kernel::{mount_seal, mountinfo};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the findings about each mount, and the descriptions that the responding mounts give of
/// themselves.
pub(super) fn mounts() -> (Vec<Finding>, Vec<Value>) {
    let check = "mount";
    let mounts = match mountinfo::ours() {
        Ok(mounts) => mounts,
        Err(error) => {
            let says = format!("/proc/self/mountinfo can't be read: {}", said(&error));
            return (vec![Finding::wrong(check, says, "mount /proc")], Vec::new());
        }
    };
    let mut abouts = Vec::new();
    let mut findings: Vec<_> =
        mounts.iter().map(|mount| mount_finding(check, &mount.dir, &mut abouts)).collect();
    if mounts.is_empty() {
        findings.push(Finding::well(check, "no latchfs is mounted here"));
    }
    findings.push(own_locks());
    findings.extend(machine_locks());
    findings.extend(mounts.iter().filter_map(|mount| hidden(&mount.dir)));
    let all = mountinfo::ours_and_views().unwrap_or_default();
    findings.extend(all.iter().filter_map(synced));
    let is_mounted = |dir: &PathBuf| mounts.iter().any(|mount| mount.dir == *dir);
    let bare = configured().into_iter().filter(|dir| !is_mounted(dir));
    findings.extend(bare.filter_map(|dir| leftovers(&dir)));
    findings.extend(abouts.iter().flat_map(servers::of_mount));
    (findings, abouts)
}

/// Returns the finding about the daemon of this machine's locks, if the machine has one.
fn machine_locks() -> Option<Finding> {
    let check = "machine's locks";
    match MachineLocks::here() {
        Ok(machine) => {
            let says = format!("{}: {}", machine_locks::URL, machine?.described());
            Some(Finding::well(check, says))
        }
        Err(CliError::Said(_, why)) => {
            Some(Finding::odd(check, why, "have root start 'latchfs serve --machine'"))
        }
        Err(_) => Some(Finding::well(check, "not known")),
    }
}

/// Returns the finding about the locks of this user, which need no mount.
fn own_locks() -> Finding {
    let check = "own locks";
    let own = OwnLocks::here();
    match own.and_then(|own| own.is_running().map(|runs| (own.url(), runs))) {
        Ok((url, true)) => Finding::well(check, format!("your daemon serves them at {url}")),
        Ok((url, false)) => {
            let says = format!("the first command that names no place starts a daemon at {url}");
            Finding::well(check, says)
        }
        Err(CliError::Said(_, why)) => {
            Finding::odd(check, why, "name a mount or a server in each command")
        }
        Err(_) => Finding::well(check, "not known"),
    }
}

fn mount_finding(check: &'static str, dir: &Path, abouts: &mut Vec<Value>) -> Finding {
    let shown = dir.display();
    match mountinfo::probe(dir) {
        Life::Live => {
            let about = ControlFileClient::of(dir.into()).about().unwrap_or_default();
            let version = about["version"].as_str().map(str::to_owned);
            abouts.push(about);
            match version {
                Some(other) if other != env!("CARGO_PKG_VERSION") => Finding::wrong(
                    check,
                    format!("{shown} works, but is served by version {other}"),
                    format!("unmount and mount it again to have {}", env!("CARGO_PKG_VERSION")),
                ),
                _ => Finding::well(check, format!("{shown} works")),
            }
        }
        Life::Dead => Finding::wrong(
            check,
            format!("{shown} is stale: its daemon is gone"),
            format!("latchfs umount {shown}, or mount it again"),
        ),
        Life::Silent => Finding::wrong(
            check,
            format!("{shown} does not answer: its daemon is stopped or stuck"),
            format!("continue or end the daemon, or: latchfs umount {shown}"),
        ),
    }
}

/// Returns a finding if the directory that a mount covers has entries. They may be lock files of
/// programs that ran while nothing was mounted there, so that they excluded no other program.
fn hidden(dir: &Path) -> Option<Finding> {
    let (check, shown) = ("mount point", dir.display());
    match mount_seal::hidden(dir) {
        Ok(None) => None,
        Ok(Some(entries)) => Some(Finding::wrong(
            check,
            format!("the mount at {shown} hides entries of the directory below it: {entries}"),
            format!(
                "stop the programs that made them, since those lock nothing; then: latchfs umount \
                 --unseal {shown}, remove them, and mount again"
            ),
        )),
        Err(error) => Some(Finding::well(
            check,
            format!("what lies below the mount at {shown} can't be seen: {}", said(&error)),
        )),
    }
}

/// Returns a finding if a mount lies in a folder that a sync tool carries.
fn synced(mount: &MountPoint) -> Option<Finding> {
    // The mount point itself is not looked at, since its names are locks.
    let (around, shown) = (mount.dir.parent()?, mount.dir.display());
    let mark = synced_by(around, mount.mounter)?;
    Some(Finding::wrong(
        "mount point",
        format!("{shown} lies in a folder of a sync tool: {mark}"),
        format!("latchfs umount {shown}, and mount outside of that folder, such as at ~/locks"),
    ))
}

/// Returns the mount points that `/etc/fstab` and `LATCHFS_DIR` name.
fn configured() -> Vec<PathBuf> {
    let fstab = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (dir, kind) = (fields.next()?, fields.next()?);
        let is_ours = [mountinfo::TYPE, "latchfs"].contains(&kind) && !line.starts_with('#');
        is_ours.then(|| PathBuf::from(dir))
    };
    let mut dirs: Vec<_> = fstab.lines().filter_map(of_line).collect();
    let named = std::env::var_os("LATCHFS_DIR").map(PathBuf::from);
    dirs.extend(named.and_then(|dir| std::path::absolute(dir).ok()));
    dirs
}

/// Returns a finding if a configured mount point on which nothing is mounted has entries.
fn leftovers(dir: &Path) -> Option<Finding> {
    let (entries, shown) = (mount_seal::entries(dir)?, dir.display());
    Some(Finding::wrong(
        "mount point",
        format!(
            "no latchfs is mounted at {shown}, and it has entries, which lock nothing: {entries}"
        ),
        format!("stop the programs that made them, remove them, and mount {shown}"),
    ))
}

/// The minimum free space on the disk of a state directory: twice the size of the journal of a busy
/// day.
const ROOM_MIN_BYTES: u64 = 64 << 20;

/// Returns the findings about the state directory `named`. If none is named, checks the state
/// directories of all mounts, each once; if there are no mounts, checks the directory that a mount
/// would use by default.
pub(super) fn states(named: Option<&OsStr>, abouts: &[Value]) -> CliResult<Vec<Finding>> {
    // A mount of a server's locks has no state directory to check.
    let here = abouts.iter().filter(|about| about["kind"] != BackendKind::Server.as_str());
    let state_dirs: BTreeSet<&str> = here.filter_map(|about| about["state"].as_str()).collect();
    if named.is_none() && state_dirs.is_empty() && !abouts.is_empty() {
        return Ok(Vec::new());
    }
    if named.is_some() || state_dirs.is_empty() {
        return Ok(state_dir(named)?.iter().map(|state| state_finding(state)).collect());
    }
    let finding = |state: &str| match Path::new(state) {
        dir if dir.is_absolute() => state_finding(dir),
        _ => Finding::well("state", format!("a mount keeps {state}")),
    };
    Ok(state_dirs.into_iter().map(finding).collect())
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
        return Finding::wrong(check, says, format!("fix its permissions, or {elsewhere}"));
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
            let (says, fix) = said.split_once("; ").unwrap_or((&said, elsewhere));
            Finding::wrong(check, says, fix)
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
        assert!(found[0].says.contains("/proc/self/stat") && found[0].fix.is_some());
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
        assert!(found.fix.is_some_and(|fix| fix.contains("put back a backup")));
        std::fs::remove_dir_all(&dir).expect("ours");
    }

    #[test]
    fn a_state_directory_is_checked() {
        let base = std::env::temp_dir();
        let yet = state_finding(&base.join("latchfs-doctor-no-such/state"));
        assert!(yet.says.ends_with("will be made by the first mount"), "{yet:?}");
        let file = state_finding(Path::new("/proc/self/stat/state"));
        assert!(file.says.contains("is not a directory") && file.fix.is_some(), "{file:?}");
    }
}
