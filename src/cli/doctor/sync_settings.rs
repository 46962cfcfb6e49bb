//! Checks of the Syncthing on this machine that carries a guarded folder: settings with which
//! versions are lost or files never arrive.

use super::folder_site::FolderSite;
use crate::cli::carry::{FolderSettings, folder_settings, tool_patterns};
use crate::guard::barrier::ignored::IgnoreRules;
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use std::fs;
use std::path::Path;

/// The file with Syncthing's ignore rules.
const IGNORE: &str = ".stignore";
/// The highest length of that file.
const IGNORE_BYTES_MAX: u64 = 1 << 20;
/// A path that must be carried for the others to know what a tenure changed.
const CARRIED: &str = ".latchfs/markers/0000000000000000-1-1-00000000.json";

/// Returns a finding for each setting.
pub(super) fn findings(site: &FolderSite) -> Vec<FolderFinding> {
    let Some(settings) = folder_settings(&site.folder) else { return Vec::new() };
    let FolderSettings { kind, max_conflicts, is_watched, is_paused } = &settings;
    let finding = |says: String, mend: &str| {
        FolderFinding::new(FindingKind::SyncSettings, format!("Syncthing: {says}"), mend)
    };
    let mut found = Vec::new();
    if *max_conflicts == Some(0) {
        found.push(finding(
            "maxConflicts is 0: of two versions one is deleted, and no conflict copy is kept"
                .to_owned(),
            "set maxConflicts of the folder to -1 or 10 (Advanced Configuration)",
        ));
    }
    if kind == "receiveonly" || kind == "receiveencrypted" {
        found.push(finding(
            format!("the folder is {kind}: what this machine changes never reaches the others"),
            "make the folder 'Send & Receive' (Edit, Advanced, Folder Type)",
        ));
    }
    if !is_watched {
        found.push(finding(
            "the watcher is off: changes are noticed by the next full scan, which may take an hour"
                .to_owned(),
            "switch 'Watch for Changes' on (Edit, Advanced)",
        ));
    }
    if *is_paused {
        found.push(finding("the folder is paused".to_owned(), "resume the folder in Syncthing"));
    }
    found.extend(ignored(site).map(|(pattern, path)| {
        let says = format!("ignore pattern {pattern} keeps '{path}' back: the others wait for it");
        finding(says, "remove the rule, or exclude '.latchfs' from it by '!/.latchfs' before it")
    }));
    found
}

/// Returns a rule of Syncthing that keeps back what the guards of other machines need, with the
/// path. Where Syncthing does not answer, the file counts from which it reads its rules.
fn ignored(site: &FolderSite) -> Option<(usize, &'static str)> {
    let text = match tool_patterns(None, &site.folder)? {
        Ok(text) => text,
        Err(_) => in_file(&site.folder.join(IGNORE))?,
    };
    let mut rules = IgnoreRules::default();
    rules.add_syncthing(&text).ok()?;
    Some((rules.syncthing_line(CARRIED)?, ".latchfs"))
}

fn in_file(path: &Path) -> Option<String> {
    let is_short = path.metadata().is_ok_and(|found| found.len() <= IGNORE_BYTES_MAX);
    is_short.then(|| fs::read_to_string(path).ok())?
}
