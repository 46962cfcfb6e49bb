//! Looks for programs that have a database of a guarded folder open past the view.

use super::folder_site::{FolderSite, ViewLife};
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

/// The first bytes of a database of `SQLite`.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// The ends of the names of the files beside a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Whether a file is a database, or one of the files beside it.
fn is_database(path: &Path) -> bool {
    let name = path.to_string_lossy();
    if BESIDE.iter().any(|end| name.ends_with(end)) {
        return true;
    }
    let mut first = [0; SQLITE.len()];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == SQLITE
}

/// Returns a finding for each program that has a database of the folder open past the view. Without
/// a view all programs use the folder itself; while a guard hangs, its files are not looked at.
pub(super) fn findings(site: &FolderSite) -> Vec<FolderFinding> {
    if !matches!(site.view, Some((_, ViewLife::Live))) {
        return Vec::new();
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |name: &str| name.parse::<u64>().ok();
    let pids = processes.filter_map(|entry| number(entry.file_name().to_str()?));
    let mut found = Vec::new();
    for pid in pids.filter(|pid| Some(*pid) != site.pid()) {
        let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let ours: BTreeSet<_> =
            links.filter(|path| path.starts_with(&site.folder) && is_database(path)).collect();
        let Some(first) = ours.first() else { continue };
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        found.push(FolderFinding::new(
            FindingKind::Around,
            format!(
                "{} (process {pid}) has {} open past the view: its writes need no lock, and it may \
                 remove the log of a database that is open through the view",
                program.trim(),
                first.display()
            ),
            format!("close it there, and open it below {}", site.named().display()),
        ));
    }
    found
}
