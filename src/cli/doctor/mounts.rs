//! Checks of the mounts of this machine, and of configured mount points without a mount.

use super::finding::Finding;
use super::servers;
use crate::cli::mount_client::{ControlFile, LockClient};
use crate::fuse::kernel::mount_seal;
use crate::fuse::kernel::mountinfo::{self, Life, MountPoint};
use crate::guard::synced_place::synced_by;
use crate::os_error::said;
use serde_json::Value;
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
    findings.extend(mounts.iter().filter_map(|mount| hidden(&mount.dir)));
    let all = mountinfo::ours_and_views().unwrap_or_default();
    findings.extend(all.iter().filter_map(synced));
    let is_mounted = |dir: &PathBuf| mounts.iter().any(|mount| mount.dir == *dir);
    let bare = configured().into_iter().filter(|dir| !is_mounted(dir));
    findings.extend(bare.filter_map(|dir| leftovers(&dir)));
    findings.extend(abouts.iter().flat_map(servers::of_mount));
    (findings, abouts)
}

fn mount_finding(check: &'static str, dir: &Path, abouts: &mut Vec<Value>) -> Finding {
    let shown = dir.display();
    match mountinfo::probe(dir) {
        Life::Live => {
            let about = ControlFile::of(dir.into()).about().unwrap_or_default();
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
