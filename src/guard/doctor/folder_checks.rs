//! All checks of a guarded folder, in the order of their findings.

use super::super::disk::Disk;
use super::arrival_findings::arrival_findings;
use super::examined_folder::ExaminedFolder;
use super::folder_finding::FolderFinding;
use super::leftovers::{late_publish, lost_files, stage_leftovers};
#[cfg(target_os = "linux")]
use super::snapshot_findings::snapshot_findings;

impl<D: Disk> ExaminedFolder<'_, D> {
    /// Returns what is to be mended. A part that can't be read is an error.
    pub(crate) fn findings(&self) -> Result<Vec<FolderFinding>, String> {
        let mut findings = stage_leftovers(self)?;
        #[cfg(target_os = "linux")]
        findings.extend(snapshot_findings(self)?);
        findings.extend(arrival_findings(self)?);
        findings.extend(late_publish(self)?);
        findings.extend(lost_files(self)?);
        Ok(findings)
    }
}
