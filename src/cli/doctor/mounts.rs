//! The mounts that there are.

use super::{Finding, servers};
use crate::cli::ctl::{Ask, Ctl};
use crate::fs::mountinfo::{self, Life};
use crate::said::said;
use serde_json::Value;
use std::path::Path;

/// What is to be said of each mount, and what those that answer tell about themselves.
pub(super) fn mounts() -> (Vec<Finding>, Vec<Value>) {
    let check = "mount";
    let mounts = match mountinfo::ours() {
        Ok(mounts) => mounts,
        Err(error) => {
            let says = format!("/proc/self/mountinfo can't be read: {}", said(&error));
            return (vec![Finding::wrong(check, says, "mount /proc")], Vec::new());
        }
    };
    if mounts.is_empty() {
        return (vec![Finding::well(check, "no latchfs is mounted here")], Vec::new());
    }
    let mut abouts = Vec::new();
    let mut findings: Vec<_> =
        mounts.iter().map(|mount| mount_finding(check, &mount.dir, &mut abouts)).collect();
    findings.extend(abouts.iter().flat_map(servers::of_mount));
    (findings, abouts)
}

fn mount_finding(check: &'static str, dir: &Path, abouts: &mut Vec<Value>) -> Finding {
    let shown = dir.display();
    match mountinfo::probe(dir) {
        Life::Live => {
            let about = Ctl::of(dir.into()).about().unwrap_or_default();
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
