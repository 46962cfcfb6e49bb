//! Detects whether the freezer of a control group (cgroup) is about to freeze a thread, as before a
//! suspend.
//!
//! A thread that waits for a reply of FUSE can't be frozen, and would keep its whole cgroup from
//! being frozen. The freezer wakes such a thread like a signal, but no file in `/proc` shows that.

use crate::fuse::kernel::mountinfo;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The directories at which the hierarchies with freezers are mounted.
#[derive(Debug, Default)]
struct Hierarchies {
    unified: Option<PathBuf>,
    /// The hierarchy of version 1 with the controller `freezer`.
    freezer: Option<PathBuf>,
}

static HIERARCHIES: LazyLock<Hierarchies> = LazyLock::new(|| {
    let mounts = mountinfo::read().unwrap_or_default();
    let first = |wanted: fn(&mountinfo::MountPoint) -> bool| {
        mounts.iter().find(|mount| wanted(mount)).map(|mount| mount.dir.clone())
    };
    Hierarchies {
        unified: first(|mount| mount.kind == "cgroup2"),
        freezer: first(|mount| mount.kind == "cgroup" && mount.dir.ends_with("freezer")),
    }
});

/// Whether a cgroup of the thread `tid` is frozen or about to be.
pub(super) fn is_freezing(tid: u32) -> bool {
    let cgroups = fs::read_to_string(format!("/proc/{tid}/cgroup")).unwrap_or_default();
    cgroups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return false };
        match (controllers, &*HIERARCHIES) {
            ("", Hierarchies { unified: Some(root), .. }) => freezes(root, path),
            ("freezer", Hierarchies { freezer: Some(root), .. }) => {
                says(&inside(root, path).join("freezer.state"), |state| state != "THAWED")
            }
            _ => false,
        }
    })
}

/// Whether the cgroup `path` of the unified hierarchy, or one above it, is to be frozen.
fn freezes(root: &Path, path: &str) -> bool {
    let dir = inside(root, path);
    let to_root = dir.ancestors().take_while(|above| above.starts_with(root));
    to_root.into_iter().any(|dir| says(&dir.join("cgroup.freeze"), |state| state == "1"))
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn says(file: &Path, wanted: impl Fn(&str) -> bool) -> bool {
    fs::read_to_string(file).is_ok_and(|state| wanted(state.trim()))
}
