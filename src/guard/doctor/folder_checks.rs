//! All checks of a guarded folder, in the order of their findings.
//!
//! A guarded folder, with what its guard and the lock service say of it.
//!
//! The findings of a guarded folder.
//!
//! Compares the folder with the markers, as the barrier does.
//!
//! The files that tenures have left in the state directory: stages, lost files, and late publishes.

use super::super::audit_log::{AuditedAct, acts_of};
use super::super::barrier_store::disk_tree::DiskTree;
use super::super::barrier_store::ledger_store::read_ledger;
use super::super::barrier_store::marker_dir::MarkerDir;
#[cfg(target_os = "linux")]
use super::snapshot_findings::snapshot_findings;
use crate::base::said;
use crate::guard::barrier_store::small_files::{ToolPatterns, read_ignore_rules};
use crate::guard::disk::operations::Disk;
use crate::time::{Span, Wall};
use barrier::arrival_target::{Barrier, Unsure};
use barrier::comparison::original_of;
use barrier::coverage::{CountedPaths, CoverageReport};
use barrier::folder_path::FolderPath;
use barrier::folder_path::PathPatterns;
use barrier::folder_path::{DigestCache, FolderTree as _, FoundFile};
use barrier::handover::{PreviousTenure, Remembered};
use barrier::ignored::IgnoreRules;
use barrier::ledger::Ledger;
use barrier::ready::Decision;
use barrier::ready::{MissingBecause, MissingPath, NotArrived};
use barrier::tenure_id::TenureId;
use std::collections::BTreeMap;
use std::io;

impl<D: Disk> ExaminedFolder<'_, D> {
    /// Returns what is to be fixed. A part that can't be read is an error.
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

/// The last tenure as the lock service remembers it, and the engine that decides.
#[derive(Debug)]
pub(crate) struct KnownTenures {
    pub(crate) engine: u64,
    pub(crate) previous: PreviousTenure,
    /// Whether a client holds the lock.
    pub(crate) is_held: bool,
}

/// The directories and facts that are examined.
pub(crate) struct ExaminedFolder<'a, D: Disk> {
    pub(crate) disk: &'a D,
    /// How the folder is named in sentences.
    pub(crate) shown: String,
    /// The id of the folder.
    pub(crate) id: &'a str,
    /// The name of this machine.
    pub(crate) client: &'a str,
    pub(crate) folder: D::Dir,
    /// The directory of this machine in the state directory; `None` if no guard has made it yet.
    pub(crate) host: Option<D::Dir>,
    pub(crate) stages: Option<D::Dir>,
    pub(crate) lost: Option<D::Dir>,
    pub(crate) snapshots: Option<D::Dir>,
    /// Whether the guard that runs takes, restores or removes a snapshot at this moment.
    pub(crate) changes_snapshots: &'a dyn Fn() -> bool,
    /// The token of the tenure of the guard that runs.
    pub(crate) tenure: Option<u64>,
    /// Whether a guard of this machine runs for the folder.
    pub(crate) is_guarded: bool,
    /// Whether machines share the storage, and the state directory as well.
    pub(crate) is_shared: bool,
    /// The patterns of files that belong to this machine.
    pub(crate) local: PathPatterns,
    /// The ignore patterns of the sync tool of this machine.
    pub(crate) tool: ToolPatterns,
    /// The answer of the lock service, if other machines have copies of the folder.
    pub(crate) known: Option<KnownTenures>,
    pub(crate) now: Wall,
}

/// Defines the kinds of findings with their names, in the order in which they are documented.
macro_rules! finding_kinds {
    ($($kind:ident = $name:literal,)+) => {
        /// The kinds of findings. Each has a section in `contrib/doc/doctor.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum FindingKind {
            $($kind,)+
        }

        impl FindingKind {
            /// The names of all kinds, in the order in which they are documented.
            #[cfg(test)]
            pub(crate) const NAMES: &[&str] = &[$($name,)+];

            /// Returns the name of the kind.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

finding_kinds! {
    ViewMissing = "view-missing",
    StageLeftover = "stage-leftover",
    SnapshotPartial = "snapshot-partial",
    SnapshotCorrupt = "snapshot-corrupt",
    RecordLeftover = "record-leftover",
    AuditChain = "audit-chain",
    Descriptors = "descriptors",
    Kernel = "kernel",
    StageSynced = "stage-synced",
    OtherFileSystem = "other-filesystem",
    FolderLocked = "folder-locked",
    MarkerMissing = "marker-missing",
    MarkerBroken = "marker-broken",
    Unsure = "unsure",
    NotArrived = "not-arrived",
    Foreign = "foreign",
    Superseded = "superseded",
    Stray = "stray",
    Ignored = "ignored",
    Lost = "lost",
    LatePublish = "late-publish",
    Around = "around",
    ServerUnreachable = "server-unreachable",
    Clock = "clock",
    SameName = "same-name",
    OtherEngine = "other-engine",
    ServerTooOld = "server-too-old",
    SyncSettings = "sync-settings",
}

/// A finding, as sentences for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FolderFinding {
    /// The kind of the finding.
    pub(crate) kind: FindingKind,
    /// The finding, as a sentence.
    pub(crate) says: String,
    /// The remedy; `None` if nothing is wrong.
    pub(crate) fix: Option<String>,
}

impl FolderFinding {
    /// Returns a finding.
    pub(crate) fn new(kind: FindingKind, says: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { kind, says: says.into(), fix: Some(fix.into()) }
    }

    /// Returns a finding for a person who wants to know; nothing is wrong.
    pub(crate) fn known(kind: FindingKind, says: impl Into<String>) -> Self {
        Self { kind, says: says.into(), fix: None }
    }
}

/// The highest number of conflict copies that are looked at.
const STRAYS_MAX: usize = 64;

fn failed(what: &str, error: &io::Error) -> String {
    format!("{what} can't be read: {}", said(error))
}

/// Returns how long ago the last tenure set its handover, as a clause.
fn how_long<D: Disk>(of: &ExaminedFolder<'_, D>, known: &KnownTenures) -> String {
    let now = u64::try_from(of.now.secs).unwrap_or(0) * 1_000;
    match (known.previous.at, now.saturating_sub(known.previous.at)) {
        (0, _) => "for an unknown time".to_owned(),
        (_, ago) => format!("for {}", Span::from_secs((ago / 1_000).max(1))),
    }
}

/// Returns the findings about markers and about files that have not arrived.
pub(super) fn arrival_findings<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Vec<FolderFinding>, String> {
    let Some(known) = &of.known else { return Ok(Vec::new()) };
    let rules = read_ignore_rules(of.disk, &of.folder, of.local.clone(), &of.tool);
    let ledger = match &of.host {
        Some(host) => read_ledger(of.disk, host).map_err(|error| failed("the ledger", &error))?,
        None => Ledger::default(),
    };
    let wanted = match known.previous.handover {
        Remembered::Handover(handover) => handover.marker,
        Remembered::Nothing | Remembered::Damaged(_) => None,
    };
    let mut markers = MarkerDir::new(of.id);
    let read = markers.refresh(of.disk, &of.folder, wanted);
    read.map_err(|error| failed("the markers in '.latchfs'", &error))?;
    let mut findings: Vec<_> = markers
        .unread()
        .into_iter()
        .map(|it| {
            FolderFinding::new(
                FindingKind::MarkerBroken,
                format!("'.latchfs/{}' is no marker that can be used: {}", it.file_name, it.why),
                "have the sync tool bring it again from the machine that wrote it; a conflict copy \
                 or a file of nobody can be removed",
            )
        })
        .collect();
    let now = i128::from(of.now.secs) * 1_000_000_000 + i128::from(of.now.nanos);
    let (previous, engine) = (&known.previous, known.engine);
    let barrier =
        Barrier { previous, engine, ledger: &ledger, markers: markers.files(), rules: &rules, now };
    let covered = barrier.covered_files(&mut DiskTree::new(of.disk, &of.folder));
    let covered = covered.map_err(|error| failed("the folder", &error))?;
    findings.extend(strays(of, &covered.standing, &markers)?);
    findings.extend(ignore_findings(of, &rules, &covered.report));
    // While the lock is held its holder knows what is here, and changes go on.
    if known.is_held {
        return Ok(findings);
    }
    let mut tree = DiskTree::new(of.disk, &of.folder);
    let decided = barrier.decide(&mut tree, &mut DigestCache::default());
    match decided.map_err(|error| failed("the folder", &error))? {
        Decision::Ready(_) => {}
        Decision::Unsure(why) => findings.push(unsure(of, known, &why.seen_from(of.client))),
        Decision::NotArrived(missing) => findings.extend(not_arrived(of, known, &missing)),
    }
    Ok(findings)
}

/// Returns a finding for the ignore rules that can't be used, one for those that change nothing,
/// and one for the files that they keep out of the markers.
fn ignore_findings<D: Disk>(
    of: &ExaminedFolder<'_, D>,
    rules: &IgnoreRules,
    report: &CoverageReport,
) -> Vec<FolderFinding> {
    let finding = |says, fix| FolderFinding::new(FindingKind::Ignored, says, fix);
    let mut findings: Vec<_> = rules
        .problems()
        .map(|why| finding(why.to_owned(), "fix the rules; files that they ignored are foreign"))
        .collect();
    let note = rules.unused_stignore().map(|why| FolderFinding::known(FindingKind::Ignored, why));
    findings.extend(note);
    let named = |paths: &CountedPaths| {
        let name = |(path, rule): &(FolderPath, _)| format!("'{path}' ({rule})");
        let names: Vec<_> = paths.first.iter().map(name).collect();
        let more = paths.count.saturating_sub(names.len() as u64);
        some_of_all(&names, more)
    };
    if let Some((path, _)) = report.despite.first.first() {
        let says = format!(
            "ignore rules match paths that markers name, which stay covered ({}): {}",
            report.despite.count,
            named(&report.despite)
        );
        let fix = format!(
            "see who has written the rule; if the path is not to be carried any more, give it up: \
             latchfs guard accept {}/{path} --reason WHY",
            of.shown
        );
        findings.push(FolderFinding::new(FindingKind::Ignored, says, fix));
    }
    if report.not_covered.count > 0 {
        let says = format!(
            "no marker names files that are ignored, and no machine waits for them ({}): {}",
            report.not_covered.count,
            named(&report.not_covered)
        );
        findings.push(FolderFinding::known(FindingKind::Ignored, says));
    }
    findings
}

fn unsure<D: Disk>(
    of: &ExaminedFolder<'_, D>,
    known: &KnownTenures,
    why: &Unsure,
) -> FolderFinding {
    let kind = match why {
        Unsure::Chain(_) => FindingKind::MarkerBroken,
        Unsure::OwnName { .. } => FindingKind::SameName,
        _ => FindingKind::Unsure,
    };
    let since = how_long(of, known);
    let fix = format!(
        "{}; or go on with the folder as it stands: latchfs guard accept {} --reason WHY",
        why.next_step(),
        of.shown
    );
    FolderFinding::new(
        kind,
        format!("nobody knows whether everything is here: {why} ({since})"),
        fix,
    )
}

/// Returns a finding for each reason for which paths have not arrived.
fn not_arrived<D: Disk>(
    of: &ExaminedFolder<'_, D>,
    known: &KnownTenures,
    missing: &NotArrived,
) -> Vec<FolderFinding> {
    let (shown, client, token) = (&of.shown, &known.previous.client, known.previous.token);
    let since = how_long(of, known);
    let mut findings = Vec::new();
    if let Some(marker) = &missing.marker {
        findings.push(FolderFinding::new(
            FindingKind::MarkerMissing,
            format!(
                "the marker '.latchfs/{}' of {client}'s tenure {token} is missing {since}",
                marker.file_name()
            ),
            "see whether the sync tool runs on both machines and carries '.latchfs'",
        ));
    }
    if missing.is_other_ignore {
        findings.push(FolderFinding::new(
            FindingKind::NotArrived,
            format!("'.latchfs/ignore' is not that of {client}'s tenure {token} {since}"),
            "see whether the sync tool runs on both machines and carries '.latchfs'",
        ));
    }
    for kind in [FindingKind::NotArrived, FindingKind::Foreign, FindingKind::Superseded] {
        let of_kind: Vec<_> = missing.paths.iter().filter(|it| kind_of(it) == kind).collect();
        let names: Vec<_> =
            of_kind.iter().map(|it| format!("'{}' {}", it.path, it.because)).collect();
        let Some(first) = of_kind.first() else { continue };
        let path = &first.path;
        let fix = match (kind, &first.because) {
            (_, MissingBecause::Overwritten { copy }) => format!(
                "put the wanted content back: latchfs guard accept {shown}/{path} --from \
                 {shown}/{copy}"
            ),
            (FindingKind::NotArrived, _) => format!(
                "see whether the sync tool runs on both machines; a path that never comes belongs \
                 into .latchfs/ignore of the folder, and is then given up: latchfs guard accept \
                 {shown}/{path} --reason WHY"
            ),
            _ => format!(
                "wait for the wanted version, or go on with the one that stands there: latchfs \
                 guard accept {shown}/{path} --reason WHY"
            ),
        };
        let says = format!(
            "{} of {} files of {client}'s tenure {token} {since}: {}",
            of_kind.len(),
            missing.of,
            some_of(&names)
        );
        findings.push(FolderFinding::new(kind, says, fix));
    }
    findings
}

const fn kind_of(path: &MissingPath) -> FindingKind {
    match path.because {
        MissingBecause::NotHere
        | MissingBecause::NotDownloaded
        | MissingBecause::Changing
        | MissingBecause::NotYetDeleted
        | MissingBecause::TwoNames => FindingKind::NotArrived,
        MissingBecause::Foreign | MissingBecause::Overwritten { .. } => FindingKind::Foreign,
        MissingBecause::Superseded { .. } => FindingKind::Superseded,
    }
}

/// Returns the conflict copies, each with the tenure whose version it holds.
fn strays<D: Disk>(
    of: &ExaminedFolder<'_, D>,
    files: &BTreeMap<FolderPath, FoundFile>,
    markers: &MarkerDir,
) -> Result<Vec<FolderFinding>, String> {
    let mut tree = DiskTree::new(of.disk, &of.folder);
    let is_there = |path: &FolderPath| files.contains_key(path);
    let strays =
        files.iter().filter_map(|(path, found)| Some((path, found, original_of(path, is_there)?)));
    let mut findings = Vec::new();
    for (path, found, original) in strays.take(STRAYS_MAX) {
        let digest = tree.digest(path, found).map_err(|error| failed("a conflict copy", &error))?;
        let mut versions = markers.files().versions(&original, found.stamp.size);
        let fits = versions.find(|(named, _)| Some(*named) == digest).map(|(_, tenure)| tenure);
        let (fits, step) = match fits {
            Some(tenure) => {
                let holder = markers.files().holder_of(tenure).unwrap_or_default();
                let token = tenure.token;
                let fits = format!("it is {holder}'s version (tenure {token})");
                (
                    fits,
                    format!(
                        "put it back with 'latchfs guard accept {0}/{original} --from \
                                {0}/{path}' while '{original}' is missed, or ",
                        of.shown
                    ),
                )
            }
            None => ("no marker names its content".to_owned(), String::new()),
        };
        findings.push(FolderFinding::new(
            FindingKind::Stray,
            format!("'{path}' is a conflict copy of '{original}': {fits}"),
            format!("compare the two; {step}remove the copy through the view"),
        ));
    }
    Ok(findings)
}

/// How many names a sentence shows.
const NAMES_SHOWN: usize = 3;

/// Returns the first names, and how many more there are.
pub(super) fn some_of(names: &[String]) -> String {
    some_of_all(names, 0)
}

/// Returns the first names, and how many more there are besides `others` that are not in the list.
pub(super) fn some_of_all(names: &[String], others: u64) -> String {
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) as u64 + others {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the stages that no tenure uses any more.
pub(super) fn stage_leftovers<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Vec<FolderFinding>, String> {
    let Some(stages) = of.stages.as_ref().filter(|_| !of.is_shared) else { return Ok(Vec::new()) };
    let entries = of.disk.entries(stages).map_err(|error| failed("the stages", &error))?;
    let is_current = |name: &str| {
        let tenure = TenureId::parse(name).map(|tenure| tenure.token.as_u64());
        of.is_guarded && tenure.is_some() && tenure >= of.tenure
    };
    let mut names: Vec<_> = entries
        .iter()
        .map(|entry| entry.name.to_string_lossy().into_owned())
        .filter(|name| !is_current(name))
        .collect();
    names.sort();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let says = format!(
        "a guard that was killed left the stage {}: what is left of a save that was under way is \
         in it",
        some_of(&names)
    );
    let fix = if of.is_guarded {
        format!("latchfs guard take {}: the next tenure moves it to the lost files", of.shown)
    } else {
        "latchfs doctor --strict --fix: it moves the content to the lost files; the next tenure \
         does so as well"
            .to_owned()
    };
    Ok(vec![FolderFinding::new(FindingKind::StageLeftover, says, fix)])
}

/// Returns the lost files.
pub(super) fn lost_files<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Option<FolderFinding>, String> {
    let Some(lost) = &of.lost else { return Ok(None) };
    let entries = of.disk.entries(lost).map_err(|error| failed("the lost files", &error))?;
    let is_description =
        |name: &str| name.strip_suffix(".json").is_some_and(|number| number.parse::<u64>().is_ok());
    let count =
        entries.iter().filter(|entry| entry.name.to_str().is_some_and(is_description)).count();
    let files = if count == 1 { "file was" } else { "files were" };
    Ok((count > 0).then(|| {
        FolderFinding::new(
            FindingKind::Lost,
            format!("{count} {files} kept out of the folder, and nobody has looked after them"),
            format!(
                "'latchfs guard lost' lists them with the view of {}; put one back by --restore N, \
                 or drop it by --drop N",
                of.shown
            ),
        )
    }))
}

/// Returns the files that appeared after the deadline of the last tenure of this machine. After a
/// later tenure they are compared, and named by its marker.
pub(super) fn late_publish<D: Disk>(
    of: &ExaminedFolder<'_, D>,
) -> Result<Option<FolderFinding>, String> {
    let Some(host) = &of.host else { return Ok(None) };
    let acts = acts_of(of.disk, host).map_err(|error| failed("the audit log", &error))?;
    let name = AuditedAct::LatePublish.as_str();
    let Some(last) = acts.iter().rfind(|act| act.operation == name) else { return Ok(None) };
    let token = last.fencing_token.unwrap_or(0);
    let own = of.known.as_ref().filter(|known| known.previous.client == of.client);
    let later = own.map(|known| known.previous.token.as_u64()).max(of.tenure);
    Ok((later.is_none_or(|later| later <= token)).then(|| {
        FolderFinding::new(
            FindingKind::LatePublish,
            format!(
                "a file appeared in {} at {} after the deadline of tenure {token}, when the lock \
                 could already be another machine's",
                of.shown, last.timestamp
            ),
            format!(
                "compare the last changes with those of the other machines, then take the lock \
                 again ('latchfs guard take'): the next marker names the file in {}",
                of.shown
            ),
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators look findings up by their names.
    #[test]
    fn each_finding_has_its_section() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/doc/doctor.md");
        let text = std::fs::read_to_string(path).expect("the chapter");
        let sections: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        assert_eq!(sections, FindingKind::NAMES);
    }

    /// Programs look them up in the schema.
    #[test]
    fn each_finding_is_in_the_schema() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/contrib/schema/doctor.json");
        let text = std::fs::read_to_string(path).expect("the schema");
        let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(schema["$defs"]["name"]["enum"], serde_json::json!(FindingKind::NAMES));
    }

    /// Each one arises from its fault in a test of the guarded folders.
    #[test]
    fn each_finding_arises_in_a_test() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guarded");
        let mut tests = String::new();
        for entry in std::fs::read_dir(dir).expect("the tests") {
            tests += &std::fs::read_to_string(entry.expect("one").path()).unwrap_or_default();
        }
        for name in FindingKind::NAMES {
            assert!(tests.contains(&format!("\"{name}")), "{name}");
        }
    }
}
