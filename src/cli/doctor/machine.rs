//! Checks of this machine: FUSE device, mount helper, kernel settings and clocks.
//!
//! Checks of the process of a guard and of the kernel that it needs.

use super::finding::Finding;
use super::folder_site::FolderSite;
use crate::base::said;
use crate::guard::doctor::folder_checks::{FindingKind, FolderFinding};
use crate::time::{Span, Wall, boot_now};
use kernel::machine_facts::is_root;
use kernel::machine_facts::request_timeout;
use kernel::machine_facts::{DEVICE, HELPER};
use std::fs;
use std::fs::{Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// The file in which root configures fusermount3.
const FUSE_CONF: &str = "/etc/fuse.conf";
/// 2025-01-01 in seconds since the epoch. latchfs is younger, so a wall clock that shows less is
/// wrong.
const WALL_SECS_MIN: i64 = 1_735_689_600;

pub(super) fn device() -> Finding {
    let check = "device";
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Finding::well(check, format!("{DEVICE} is there and can be opened")),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::wrong(
            check,
            format!("{DEVICE} may not be opened by this user"),
            format!("as root: chmod 666 {DEVICE}"),
        ),
        Err(error) => Finding::wrong(
            check,
            format!("{DEVICE} can't be opened: {}", said(&error)),
            "as root: modprobe fuse; a container needs '--device /dev/fuse'",
        ),
    }
}

pub(super) fn helper() -> Finding {
    let check = "helper";
    if is_root() {
        return Finding::well(check, format!("{HELPER} is not needed by root"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(HELPER))
        .find_map(|file| Some((fs::metadata(&file).ok()?, file)));
    match found {
        None => Finding::wrong(
            check,
            format!("{HELPER} is missing, and without it only root can mount"),
            "as root: apt-get install fuse3",
        ),
        Some((meta, file)) if !is_setuid_root(&meta) => Finding::wrong(
            check,
            format!("{} is not setuid root, so it can't mount", file.display()),
            format!("as root: chown root {0} && chmod u+s {0}", file.display()),
        ),
        Some((_, file)) => Finding::well(check, format!("{} can mount for you", file.display())),
    }
}

fn is_setuid_root(meta: &Metadata) -> bool {
    meta.uid() == 0 && meta.permissions().mode() & 0o4000 != 0
}

/// Reports whether mounts can serve other users. If `/etc/fuse.conf` does not permit it, that is no
/// problem, since only `--allow-other` needs it.
pub(super) fn conf() -> Finding {
    let check = "other users";
    let conf = fs::read_to_string(FUSE_CONF).unwrap_or_default();
    Finding::well(
        check,
        match () {
            () if is_root() => "a mount by root serves all users".to_owned(),
            () if allows_others(&conf) => format!("{FUSE_CONF} lets you serve them"),
            () => format!("{FUSE_CONF} has no line 'user_allow_other', so you serve only yourself"),
        },
    )
}

fn allows_others(conf: &str) -> bool {
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

pub(super) fn timeout() -> Finding {
    let check = "request timeout";
    match request_timeout() {
        None => Finding::well(
            check,
            "the kernel has no request timeout, so waiting may last as long as it takes",
        ),
        Some(limit) => Finding::wrong(
            check,
            format!("{limit}: a program that waits longer for a lock ends the whole mount"),
            format!("as root: sysctl {}=0", limit.setting),
        ),
    }
}

pub(super) fn clocks() -> Finding {
    let check = "clocks";
    let (wall, up) = (Wall::now(), Span::from_nanos(boot_now().as_nanos()));
    if wall.secs < WALL_SECS_MIN {
        return Finding::wrong(
            check,
            format!("the wall clock shows {wall}: leases end in time, but their times read wrong"),
            "as root: timedatectl set-ntp true",
        );
    }
    Finding::well(check, format!("the wall clock shows {wall}, the boot clock runs since {up}"))
}

pub(super) fn version() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = if cfg!(target_os = "linux") { "Linux" } else { std::env::consts::OS };
    format!("latchfs {} on {system} {}", env!("CARGO_PKG_VERSION"), kernel.trim())
        .trim_end()
        .to_owned()
}

/// Returns the findings about the guard's process and the kernel.
pub(super) fn findings(site: &FolderSite) -> Vec<FolderFinding> {
    let mut found: Vec<_> = site.pid().and_then(descriptors).into_iter().collect();
    if site.view.is_some() {
        found.extend(kernel(site));
    }
    found
}

/// Returns the limit of open files in the text of `/proc/PID/limits`.
fn limit_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// Returns a finding if the guard has used most of the descriptors that the programs of one user
/// may take, which is a little less than half of all.
fn descriptors(pid: u64) -> Option<FolderFinding> {
    let limit = limit_in(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)?;
    let used = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    (used >= limit / 3).then(|| {
        FolderFinding::new(
            FindingKind::Descriptors,
            format!(
                "the guard (process {pid}) has {used} of {limit} descriptors open; the programs of \
                 one user may take about half of them, and get ENFILE beyond that"
            ),
            "close files in programs of the view, or start the guard with a higher limit (ulimit \
             -n, LimitNOFILE=)",
        )
    })
}

/// Returns a finding about the kernel if it limits the time of requests.
fn kernel(site: &FolderSite) -> Option<FolderFinding> {
    let of_view = site.status.as_ref().and_then(|status| status["request_timeout_s"].as_u64());
    let (says, fix) = match (of_view, request_timeout()) {
        (Some(seconds), now) => (
            format!(
                "the view was made while the kernel had a request timeout of {seconds} s: a \
                 program that waits longer for the lock ends the whole view"
            ),
            match now {
                Some(now) => format!(
                    "as root: sysctl {}=0; then end the guard, and start it again",
                    now.setting
                ),
                None => "end the guard, and start it again: the setting is 0 by now".to_owned(),
            },
        ),
        (None, Some(limit)) => (
            format!(
                "{limit}: in a view that is started now, a program that waits longer for the lock \
                 ends the whole view"
            ),
            format!("as root: sysctl {}=0", limit.setting),
        ),
        (None, None) => return None,
    };
    Some(FolderFinding::new(FindingKind::Kernel, says, &fix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_conf_is_read() {
        assert!(allows_others("# comment\n user_allow_other\n"));
        assert!(!allows_others("#user_allow_other\nmount_max = 10\n"));
    }
}

#[cfg(test)]
mod guard_process_tests {
    use super::*;

    #[test]
    fn limits_are_parsed() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files 1024 524288 files\n";
        assert_eq!((limit_in(limits), limit_in("")), (Some(1_024), None));
    }
}
