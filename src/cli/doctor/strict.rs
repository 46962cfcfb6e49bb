//! `latchfs doctor --strict`: checks a guarded folder, the state of its guard, and what it needs
//! from this machine, the server and the sync tool.

use super::finding::Finding;
use super::folder_server;
use super::folder_site::{FolderSite, ViewLife};
use super::{around, guard_process, sync_settings};
use crate::audit_chain::check_files;
use crate::cli::exit::CliResult;
use crate::cli::folder_options::PlaceArgs;
use crate::cli::guard_parts::local_patterns;
use crate::cli::output;
use crate::cli::server_options::ServerKeyArgs;
use crate::cli::view_record::ViewRecord;
use crate::fuse::kernel::device;
use crate::guard::disk::Disk as _;
use crate::guard::doctor::examined_folder::{ExaminedFolder, KnownTenures};
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use crate::guard::fence::Fence;
use crate::guard::lost_files::LostFiles;
use crate::guard::plain_disk::PlainDisk;
use crate::guard::state_place::{ChangedThrough, StatePlace, synced_by};
use crate::os_error::said;
use crate::time::Wall;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The options of `doctor` that belong to `--strict`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct StrictArgs {
    /// Check one guarded folder, whether its guard runs or not, and print a line for each finding
    #[arg(long)]
    pub(super) strict: bool,
    /// The view or the guarded folder to check [default: the one that contains the current
    /// directory, or the only view]
    #[arg(value_name = "VIEW|FOLDER", requires = "strict")]
    given: Option<PathBuf>,
    /// Mend what can be mended without a person: stages and views of killed guards
    #[arg(long, requires = "strict")]
    mend: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Returns the findings about a guarded folder, mended ones left out. If there are none, the
/// finding that all is well.
pub(super) fn findings(
    args: &StrictArgs,
    server: Option<&str>,
    key: &ServerKeyArgs,
) -> CliResult<Vec<Finding>> {
    let mut site = FolderSite::find(args.given.as_deref(), &args.place)?;
    let mut found = examine(&site, server, key)?;
    if args.mend {
        let before = found.len();
        for finding in &found {
            mend(&site, finding);
        }
        if before > 0 {
            site = FolderSite::find(Some(site.named()), &args.place)?;
            found = examine(&site, server, key)?;
        }
    }
    let mut findings: Vec<_> =
        found.into_iter().map(|it| Finding::wrong(it.kind.as_str(), it.says, it.mend)).collect();
    if findings.is_empty() {
        let shown = site.named().display();
        findings.push(Finding::well("guarded folder", format!("{shown}: nothing is to be mended")));
    }
    Ok(findings)
}

fn examine(
    site: &FolderSite,
    server: Option<&str>,
    key: &ServerKeyArgs,
) -> CliResult<Vec<FolderFinding>> {
    let mut found = site.view_findings();
    let Some(record) = &site.record else { return Ok(found) };
    found.extend(place_findings(site));
    found.extend(audit_findings(&site.host));
    let mut known = None;
    if let Some(url) = server.or(record.server.as_deref()) {
        let asked = folder_server::ask(site, record, url, key)?;
        found.extend(asked.findings);
        known = asked.known.filter(|_| record.has_copies());
    }
    found.extend(folder_findings(site, &record.id, known));
    found.extend(guard_process::findings(site));
    found.extend(around::findings(site));
    found.extend(sync_settings::findings(site));
    Ok(found)
}

/// Returns the findings about the place of the state directory.
fn place_findings(site: &FolderSite) -> Vec<FolderFinding> {
    let Some(state) = site.host.parent().filter(|_| site.host.is_dir()) else { return Vec::new() };
    let mut found = Vec::new();
    let move_it = "move the state directory to a place beside the folder while no guard runs, and \
                   name it by --stage DIR";
    if let Some(mark) = synced_by(state) {
        let says = format!(
            "a sync tool carries the state directory {}: {} is there",
            state.display(),
            mark.display()
        );
        found.push(FolderFinding::new(FindingKind::StageSynced, says, move_it));
    }
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    if device(state) != device(&site.folder) {
        let says = format!(
            "the state directory {} is on another file system than {}: no file can be published \
             from there by a rename",
            state.display(),
            site.folder.display()
        );
        found.push(FolderFinding::new(FindingKind::OtherFileSystem, says, move_it));
    }
    found
}

/// Returns a finding for each fault of the guard's audit log.
fn audit_findings(host: &Path) -> Vec<FolderFinding> {
    let shown = host.display();
    let mend = format!(
        "keep a copy of the logs in {shown}, and ask which program changed them; once that is \
         known, move audit.log, audit.log.1 and audit.head away: a new chain begins"
    );
    match check_files(host) {
        Ok(None) => Vec::new(),
        Ok(Some(report)) => report
            .faults
            .iter()
            .map(|fault| FolderFinding::new(FindingKind::AuditChain, fault.to_string(), &*mend))
            .collect(),
        Err(error) => {
            let says = format!("the audit log in {shown} can't be read: {}", said(&error));
            vec![FolderFinding::new(FindingKind::AuditChain, says, mend)]
        }
    }
}

fn opened(dir: &Path) -> Option<OwnedFd> {
    File::open(dir).ok().map(OwnedFd::from)
}

/// Returns the findings about the files of the folder and of the state directory.
fn folder_findings(site: &FolderSite, id: &str, known: Option<KnownTenures>) -> Vec<FolderFinding> {
    let state = site.host.parent().unwrap_or(&site.host);
    let Some(folder) = opened(&site.folder) else { return Vec::new() };
    let examined = ExaminedFolder {
        disk: &PlainDisk,
        shown: site.named().display().to_string(),
        id,
        client: &site.client,
        folder,
        host: opened(&site.host),
        stages: opened(&state.join("stage")),
        lost: opened(&state.join("lost")),
        tenure: site.tenure(),
        is_guarded: site.status.is_some(),
        is_shared: site.record.as_ref().is_some_and(|record| record.storage.is_some()),
        local: local_patterns(&[]).unwrap_or_default(),
        known,
        now: Wall::now(),
    };
    examined.findings().unwrap_or_else(|why| {
        let mend =
            "see the permissions of the folder and of the state directory; root may read both";
        vec![FolderFinding::new(FindingKind::Unsure, why, mend)]
    })
}

/// Mends a finding, if that needs no decision of a person.
fn mend(site: &FolderSite, finding: &FolderFinding) {
    let done = match finding.kind {
        FindingKind::StageLeftover => mend_stages(site),
        FindingKind::ViewMissing => mend_view(site),
        _ => return,
    };
    let name = finding.kind.as_str();
    match done {
        Ok(says) => output::say(&format!("mended {name}: {says}")),
        Err(why) => output::say(&format!("{name} can't be mended: {why}")),
    }
}

/// Moves the content of stages to the lost files. The place is locked meanwhile, so no guard runs.
fn mend_stages(site: &FolderSite) -> Result<String, String> {
    let Some(record) = &site.record else { return Err("the folder has no record".to_owned()) };
    let Some(state) = site.host.ancestors().nth(2) else { return Err("no place".to_owned()) };
    let host = (site.client.as_str(), ChangedThrough::Folder);
    let place = StatePlace::open(&site.folder, record, state, host);
    let place = place.map_err(|error| error.to_string())?;
    let dirs = place.dirs::<PlainDisk>().map_err(|error| error.to_string())?;
    let lost_dir = PlainDisk.reopen_dir(&dirs.lost).map_err(|error| said(&error))?;
    let lost = LostFiles::open(&PlainDisk, lost_dir).map_err(|error| said(&error))?;
    let (folder, stages, lost) = (&dirs.folder, &dirs.stages, &lost);
    // The stages are those of this machine, and none of its guards runs.
    let fence = Fence { disk: &PlainDisk, folder, stages, lost, is_held: &|| true, live: None };
    match fence.erect() {
        Ok(fenced) => Ok(format!("{} files are among the lost files", fenced.kept)),
        Err(error) => Err(format!("{error:?}")),
    }
}

/// Removes the mount of a guard that was killed, and forgets the view.
fn mend_view(site: &FolderSite) -> Result<String, String> {
    let Some((view, life)) = &site.view else { return Err("there is no view".to_owned()) };
    match life {
        ViewLife::Dead => device::detach(view).map_err(|error| said(&error))?,
        ViewLife::Unmounted => {}
        ViewLife::Live | ViewLife::Silent => {
            return Err("its guard is there, and may go on".to_owned());
        }
    }
    ViewRecord::remove(&site.host);
    Ok(format!("nothing is mounted at {} any more; start the guard again", view.display()))
}
