//! `latchfs doctor --strict`: checks a guarded folder, the state of its guard, and what it needs
//! from this machine, the server and the sync tool.

use super::finding::Finding;
use super::folder_server::{self, FolderServers};
use super::folder_site::FolderSite;
use super::mending::{MendedFinding, mend_all};
use super::{around, guard_process, sync_settings};
use crate::audit_chain::check_files;
use crate::cli::carry::tool_patterns;
use crate::cli::credential_options::ServerKeyArgs;
use crate::cli::exit::{CliError, CliResult};
use crate::cli::folder_options::PlaceArgs;
use crate::cli::guard_decider::server_of_mount;
use crate::cli::guard_parts::local_patterns;
use crate::guard::doctor::examined_folder::{ExaminedFolder, KnownTenures};
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use crate::guard::plain_disk::PlainDisk;
use crate::guard::state_place::locked_by_other;
use crate::guard::synced_place::synced_by;
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
    /// Mend what can be mended without a person: what killed guards and programs left
    #[arg(long, requires = "strict")]
    mend: bool,
    /// With --strict: the mount whose server decides about the lock [default: as the guard uses it]
    #[arg(long, value_name = "MOUNT", requires = "strict")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Returns the findings about a guarded folder, and what was mended. If there are no findings, the
/// one that all is well.
pub(super) fn findings(
    args: &StrictArgs,
    server: Option<&str>,
    key: &ServerKeyArgs,
) -> CliResult<(Vec<Finding>, Vec<MendedFinding>)> {
    let of_mount = args.dir.as_deref().map(server_of_mount).transpose()?;
    let mut site = FolderSite::find(args.given.as_deref(), &args.place)?;
    let named = of_mount.or_else(|| server.map(str::to_owned));
    let is_named = named.is_some();
    let servers = named.or_else(|| site.server.clone());
    let asked = servers.as_deref().map(|urls| FolderServers { urls, is_named, key });
    let mut found = examine(&site, asked)?;
    let mut mended = Vec::new();
    if args.mend && !found.is_empty() {
        mended = mend_all(&site, &found);
        // Of a dead view whose guard kept its state elsewhere (`--stage`), only the mount is known.
        found = Vec::new();
        if site.record.is_some() {
            site = FolderSite::find(Some(site.named()), &args.place)?;
            found = examine(&site, asked)?;
        } else if let Some(failed) = mended.iter().find(|mended| !mended.is_done) {
            return Err(CliError::unavailable(failed.sentence()));
        }
    }
    let as_finding = |it: FolderFinding| match it.mend {
        Some(mend) => Finding::wrong(it.kind.as_str(), it.says, mend),
        None => Finding::well(it.kind.as_str(), it.says),
    };
    let mut findings: Vec<_> = found.into_iter().map(as_finding).collect();
    if !findings.iter().any(Finding::is_wrong) {
        let shown = site.named().display();
        findings.push(Finding::well("guarded folder", format!("{shown}: nothing is to be mended")));
    }
    Ok((findings, mended))
}

fn examine(site: &FolderSite, asked: Option<FolderServers<'_>>) -> CliResult<Vec<FolderFinding>> {
    let mut found = site.view_findings();
    let Some(record) = &site.record else { return Ok(found) };
    found.extend(place_findings(site));
    found.extend(audit_findings(&site.host));
    let mut known = None;
    if let Some(asked) = asked {
        let answer = folder_server::ask(site, record, asked)?;
        found.extend(answer.findings);
        known = answer.known.filter(|_| record.has_copies());
    }
    found.extend(folder_findings(site, &record.id, known));
    found.extend(site.record_finding());
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
    let owner = state.metadata().map_or(0, |found| found.uid());
    if let Some(mark) = state.canonicalize().ok().and_then(|state| synced_by(&state, owner)) {
        let says = format!(
            "the state directory {} lies in a folder of a sync tool: {mark}",
            state.display()
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
    if let Some(locker) = locked_by_other(&site.folder) {
        let says = format!(
            "{locker} has locked {} itself; a guard starts all the same, but a guard of another \
             user would not see it",
            site.folder.display()
        );
        let mend = format!("ask its user to end it, or end it as root: kill {}", locker.pid);
        found.push(FolderFinding::new(FindingKind::FolderLocked, says, mend));
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
        snapshots: opened(&state.join("snapshots")),
        changes_snapshots: &|| site.changes_snapshots(),
        tenure: site.tenure(),
        is_guarded: site.status.is_some(),
        is_shared: site.record.as_ref().is_some_and(|record| record.storage.is_some()),
        local: local_patterns(&[]).unwrap_or_default(),
        tool: tool_patterns(None, &site.folder),
        known,
        now: Wall::now(),
    };
    examined.findings().unwrap_or_else(|why| {
        let mend =
            "see the permissions of the folder and of the state directory; root may read both";
        vec![FolderFinding::new(FindingKind::Unsure, why, mend)]
    })
}
