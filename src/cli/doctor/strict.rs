//! `latchfs doctor --strict`: checks a guarded folder, the state of its guard, and what it needs
//! from this machine, the server and the sync tool.
//!
//! Finds programs that have a database of a guarded folder open past the view.
//!
//! Fixes what `doctor --strict` finds, as far as that needs no decision of a person. No lock is
//! freed.

use super::finding::Finding;
use super::folder_site::{FolderSite, ViewLife};
use crate::audit_chain::check_files;
use crate::base::said;
use crate::cli::connect::credential_options::ServerKeyArgs;
use crate::cli::doctor::folder_site::FolderServers;
use crate::cli::doctor::{folder_site, machine};
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::carry::tool_patterns;
use crate::cli::guard::decider::server_of_mount;
use crate::cli::guard::endpoint::ViewRecord;
use crate::cli::guard::guard_parts::{PlaceArgs, local_patterns};
use crate::cli::output;
use crate::guard::disk::operations::Disk as _;
use crate::guard::disk::plain_disk::PlainDisk;
use crate::guard::doctor::folder_checks::{ExaminedFolder, KnownTenures};
use crate::guard::doctor::folder_checks::{FindingKind, FolderFinding};
use crate::guard::folder::state_place::synced_by;
use crate::guard::folder::state_place::{ChangedThrough, StatePlace, locked_by_other};
use crate::guard::lost_files::LostFiles;
use crate::guard::lost_files::{Space, SpaceLimits};
use crate::guard::stage::fence::Fence;
use crate::time::Wall;
use kernel::device;
use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Fix what can be fixed without a person: what killed guards and programs left
    #[arg(long, requires = "strict")]
    fix: bool,
    /// With --strict: the mount whose server decides about the lock [default: as the guard uses it]
    #[arg(long, value_name = "MOUNT", requires = "strict")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// Returns the findings about a guarded folder, and what was fixed. If there are no findings, the
/// one that all is well.
pub(super) fn findings(
    args: &StrictArgs,
    server: Option<&str>,
    key: &ServerKeyArgs,
) -> CliResult<(Vec<Finding>, Vec<FixedFinding>)> {
    let of_mount = args.dir.as_deref().map(server_of_mount).transpose()?;
    let mut site = FolderSite::find(args.given.as_deref(), &args.place)?;
    let named = of_mount.or_else(|| server.map(str::to_owned));
    let is_named = named.is_some();
    let servers = named.or_else(|| site.server.clone());
    let asked = servers.as_deref().map(|urls| FolderServers { urls, is_named, key });
    let mut found = examine(&site, asked)?;
    let mut fixed = Vec::new();
    if args.fix && !found.is_empty() {
        fixed = fix_all(&site, &found);
        // Of a dead view whose guard kept its state elsewhere (`--stage`), only the mount is known.
        found = Vec::new();
        if site.record.is_some() {
            site = FolderSite::find(Some(site.named()), &args.place)?;
            found = examine(&site, asked)?;
        } else if let Some(failed) = fixed.iter().find(|fixed| !fixed.is_done) {
            return Err(CliError::unavailable(failed.sentence()));
        }
    }
    let as_finding = |it: FolderFinding| match it.fix {
        Some(fix) => Finding::wrong(it.kind.as_str(), it.says, fix),
        None => Finding::well(it.kind.as_str(), it.says),
    };
    let mut findings: Vec<_> = found.into_iter().map(as_finding).collect();
    if !findings.iter().any(Finding::is_wrong) {
        let shown = site.named().display();
        findings.push(Finding::well("guarded folder", format!("{shown}: nothing is to be fixed")));
    }
    Ok((findings, fixed))
}

fn examine(site: &FolderSite, asked: Option<FolderServers<'_>>) -> CliResult<Vec<FolderFinding>> {
    let mut found = site.view_findings();
    let Some(record) = &site.record else { return Ok(found) };
    found.extend(place_findings(site));
    found.extend(audit_findings(&site.host));
    let mut known = None;
    if let Some(asked) = asked {
        let answer = folder_site::query_servers(site, record, asked)?;
        found.extend(answer.findings);
        known = answer.known.filter(|_| record.has_copies());
    }
    found.extend(folder_findings(site, &record.id, known));
    found.extend(site.record_finding());
    found.extend(machine::findings(site));
    found.extend(programs_around(site));
    found.extend(folder_site::findings(site));
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
        let fix = format!("ask its user to end it, or end it as root: kill {}", locker.pid);
        found.push(FolderFinding::new(FindingKind::FolderLocked, says, fix));
    }
    found
}

/// Returns a finding for each fault of the guard's audit log.
fn audit_findings(host: &Path) -> Vec<FolderFinding> {
    let shown = host.display();
    let fix = format!(
        "keep a copy of the logs in {shown}, and ask which program changed them; once that is \
         known, move audit.log, audit.log.1 and audit.head away: a new chain begins"
    );
    match check_files(host) {
        Ok(None) => Vec::new(),
        Ok(Some(report)) => report
            .faults
            .iter()
            .map(|fault| FolderFinding::new(FindingKind::AuditChain, fault.to_string(), &*fix))
            .collect(),
        Err(error) => {
            let says = format!("the audit log in {shown} can't be read: {}", said(&error));
            vec![FolderFinding::new(FindingKind::AuditChain, says, fix)]
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
        let fix =
            "see the permissions of the folder and of the state directory; root may read both";
        vec![FolderFinding::new(FindingKind::Unsure, why, fix)]
    })
}

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
pub(super) fn programs_around(site: &FolderSite) -> Vec<FolderFinding> {
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

/// The result of an attempt to fix a finding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FixedFinding {
    /// The name of the finding.
    pub(super) check: &'static str,
    /// Whether the problem of the finding was fixed.
    pub(super) is_done: bool,
    /// The action that was taken, or why none was.
    pub(super) says: String,
}

impl FixedFinding {
    /// Returns the result as a sentence.
    pub(super) fn sentence(&self) -> String {
        let (check, says) = (self.check, &self.says);
        if self.is_done {
            format!("fixed {check}: {says}")
        } else {
            format!("{check} can't be fixed: {says}")
        }
    }
}

/// Fixes those of the findings that need no person.
pub(super) fn fix_all(site: &FolderSite, found: &[FolderFinding]) -> Vec<FixedFinding> {
    let (snapshots, others): (Vec<_>, Vec<_>) =
        found.iter().partition(|finding| finding.kind == FindingKind::SnapshotPartial);
    // The snapshots come first: one that is complete may still lie in a stage.
    let of_snapshots = snapshots.first().copied();
    let all = of_snapshots.into_iter().chain(others);
    let fixed = all.filter_map(|finding| {
        let done = fix(site, finding.kind)?;
        let check = finding.kind.as_str();
        let is_done = done.is_ok();
        Some(FixedFinding { check, is_done, says: done.unwrap_or_else(|why| why) })
    });
    fixed.collect()
}

/// Fixes the findings of a kind; `None` if that needs a person.
fn fix(site: &FolderSite, kind: FindingKind) -> Option<Result<String, String>> {
    match kind {
        FindingKind::ViewMissing => Some(fix_view(site)),
        FindingKind::StageLeftover => Some(fix_stages(site)),
        #[cfg(target_os = "linux")]
        FindingKind::SnapshotPartial => Some(fix_snapshots(site)),
        FindingKind::RecordLeftover => Some(remove_prepared_record(site)),
        _ => None,
    }
}

/// Opens and locks the state directory, so that no guard runs meanwhile.
fn locked_place(site: &FolderSite) -> Result<StatePlace, String> {
    let Some(record) = &site.record else { return Err("the folder has no record".to_owned()) };
    let Some(state) = site.host.ancestors().nth(2) else { return Err("no place".to_owned()) };
    StatePlace::open(&site.folder, record, state, &site.client, ChangedThrough::Folder)
        .map_err(|error| error.to_string())
}

/// Moves the content of stages to the lost files.
fn fix_stages(site: &FolderSite) -> Result<String, String> {
    let place = locked_place(site)?;
    let dirs = place.dirs::<PlainDisk>().map_err(|error| error.to_string())?;
    let lost_dir = PlainDisk.reopen_dir(&dirs.lost).map_err(|error| said(&error))?;
    let space = Arc::new(Space::new(SpaceLimits::NONE));
    let lost = LostFiles::open(&PlainDisk, lost_dir, space).map_err(|error| said(&error))?;
    let (folder, stages, lost) = (&dirs.folder, &dirs.stages, &lost);
    // The stages are those of this machine, and none of its guards runs.
    let fence = Fence { disk: &PlainDisk, folder, stages, lost, is_held: &|| true, live: None };
    match fence.erect() {
        Ok(fenced) => {
            Ok(format!("{} kept among the lost files", output::counted(fenced.kept as u64, "file")))
        }
        Err(error) => Err(format!("{error:?}")),
    }
}

/// Finishes interrupted snapshots that are complete, and removes the others.
#[cfg(target_os = "linux")]
fn fix_snapshots(site: &FolderSite) -> Result<String, String> {
    use crate::guard::folder_snapshot::snapshot_store::SnapshotStore;
    use crate::guard::folder_snapshot::snapshot_store::recover;
    let place = locked_place(site)?;
    let (stages, dir) = place.snapshots().map_err(|error| error.to_string())?;
    let is_shared = site.record.as_ref().is_some_and(|record| record.storage.is_some());
    let store = SnapshotStore { disk: &PlainDisk, dir: &dir };
    let done = recover(&store, &stages, |intent| {
        is_shared && intent.may_go_on(&site.client, &PlainDisk, &stages)
    });
    let done = done.map_err(|error| said(&error))?;
    let (finished, removed) = (done.finished.len(), done.removed);
    Ok(format!("{finished} finished and shown now, {removed} removed"))
}

/// Removes a record that a program had prepared for a steal when it ended.
fn remove_prepared_record(site: &FolderSite) -> Result<String, String> {
    let Some(path) = site.prepared_record() else { return Err("it is gone".to_owned()) };
    fs::remove_file(&path).map_err(|error| said(&error))?;
    Ok(format!("{} was removed", path.display()))
}

/// Removes the mount of a guard that was killed, and forgets the view.
fn fix_view(site: &FolderSite) -> Result<String, String> {
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
