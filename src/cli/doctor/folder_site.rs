//! The guarded folder that `doctor --strict` checks: where it is, where its guard keeps its state,
//! and whether the guard runs.
//!
//! Checks of the Syncthing on this machine that carries a guarded folder: settings with which
//! versions are lost or files never arrive.
//!
//! The answer of the server of a guarded folder: its version, its clock, its engine, and the last
//! tenure of the folder. It is asked without a session, so that nothing changes.

use crate::cli::argument_types::host;
use crate::cli::connect::config_file::urls;
use crate::cli::connect::credential_options::{ServerKeyArgs, connect};
use crate::cli::exit::{CliError, CliResult};
use crate::cli::guard::carry::{FolderSettings, folder_settings, tool_patterns};
use crate::cli::guard::decider::check_engine;
use crate::cli::guard::endpoint::{GuardEndpoint, ViewRecord};
use crate::cli::guard::guard_parts::PlaceArgs;
use crate::client::http_transport::{Http, ServerAccess};
use crate::client::server_clock::{Stuck, probe};
use crate::engine::{LockName, LockView, Ownership};
use crate::guard::doctor::folder_checks::KnownTenures;
use crate::guard::doctor::folder_checks::{FindingKind, FolderFinding};
use crate::guard::folder::folder_record::FolderRecord;
use crate::guard::lock::lock_handovers::previous_tenure;
use crate::service::{LockService, Retry, RttSample};
use crate::time::Span;
use barrier::ignored::IgnoreRules;
use kernel::mountinfo;
use kernel::mountinfo::Life;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A guarded folder with the state of its guard.
pub(super) struct FolderSite {
    /// The folder; the view if only that is known.
    pub(super) folder: PathBuf,
    /// The directory of this machine in the state directory.
    pub(super) host: PathBuf,
    /// The name of this machine.
    pub(super) client: String,
    /// The record of the folder; `None` if the folder of a dead view is not known.
    pub(super) record: Option<FolderRecord>,
    /// The guard's report of its state, if it runs.
    pub(super) status: Option<Value>,
    /// The servers that the guard uses, or used when it was killed.
    pub(super) server: Option<String>,
    /// The view, with whether its guard answers; `None` if there is none.
    pub(super) view: Option<(PathBuf, ViewLife)>,
}

/// Whether a view is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ViewLife {
    /// The guard answers.
    Live,
    /// The guard is gone, and the mount is still there.
    Dead,
    /// The guard is stopped or hangs.
    Silent,
    /// Nothing is mounted.
    Unmounted,
}

/// Returns whether a view is served.
fn life_of(view: &Path) -> ViewLife {
    let is_mounted = mountinfo::ours_and_views()
        .is_ok_and(|mounts| mounts.iter().any(|mount| mount.is_view() && mount.dir == view));
    match is_mounted.then(|| mountinfo::probe(view)) {
        None => ViewLife::Unmounted,
        Some(Life::Live) => ViewLife::Live,
        Some(Life::Dead) => ViewLife::Dead,
        Some(Life::Silent) => ViewLife::Silent,
    }
}

impl FolderSite {
    /// Finds the folder, the state directory and the guard.
    pub(super) fn find(given: Option<&Path>, place: &PlaceArgs) -> CliResult<Self> {
        if let Some(site) = given.and_then(|given| Self::of_missing_view(given, place)) {
            return Ok(site);
        }
        let endpoint = GuardEndpoint::find_any(given, place)?;
        match &endpoint {
            #[cfg(target_os = "linux")]
            GuardEndpoint::View(mount) => Self::of_view(&mount.dir, &endpoint, place),
            GuardEndpoint::Folder(folder) => {
                let (dir, host) = (folder.dir.clone(), folder.host.clone());
                if let Some(record) = ViewRecord::read(&host).filter(|it| it.folder == dir) {
                    return Self::of_view(&record.view, &endpoint, place);
                }
                let status = endpoint.status()?;
                let status = status["pid"].is_number().then_some(status);
                Ok(Self::new(dir, host, status, None))
            }
        }
    }

    /// Returns the folder of a view on which nothing is mounted any more, if the directory of this
    /// machine still names the view: its guard was killed.
    fn of_missing_view(given: &Path, place: &PlaceArgs) -> Option<Self> {
        let view = mountinfo::resolve(given).ok()?;
        if life_of(&view) != ViewLife::Unmounted {
            return None;
        }
        let (record, host) = ViewRecord::of_view(&place.state().ok()?, &view)?;
        Some(Self::new(record.folder, host, None, Some((view, ViewLife::Unmounted))))
    }

    #[cfg_attr(not(target_os = "linux"), allow(irrefutable_let_patterns))]
    fn of_view(view: &Path, endpoint: &GuardEndpoint, place: &PlaceArgs) -> CliResult<Self> {
        let life = life_of(view);
        let shown = Some((view.to_owned(), life));
        if life == ViewLife::Live {
            let status = GuardEndpoint::find(Some(view), &PlaceArgs::default())?.status()?;
            let path = |field: &str| PathBuf::from(status[field].as_str().unwrap_or_default());
            let (folder, host) = (path("folder"), path("state_dir"));
            return Ok(Self::new(folder, host, Some(status), shown));
        }
        if let GuardEndpoint::Folder(folder) = endpoint {
            return Ok(Self::new(folder.dir.clone(), folder.host.clone(), None, shown));
        }
        Ok(match ViewRecord::of_view(&place.state()?, view) {
            Some((record, host)) => Self::new(record.folder, host, None, shown),
            None => Self::new(view.to_owned(), place.state()?, None, shown),
        })
    }

    fn new(
        folder: PathBuf,
        host_dir: PathBuf,
        status: Option<Value>,
        view: Option<(PathBuf, ViewLife)>,
    ) -> Self {
        let is_dead = view.as_ref().is_some_and(|(dir, _)| *dir == folder);
        let record = if is_dead { None } else { FolderRecord::read(&folder).ok() };
        let named = host_dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let client = named.or_else(|| host().ok().map(|client| client.to_string()));
        let client = client.unwrap_or_default();
        let used = status.as_ref().and_then(|status| status["server"].as_str().map(str::to_owned));
        let server = used
            .or_else(|| ViewRecord::read(&host_dir)?.server)
            .or_else(|| record.as_ref()?.server.clone());
        Self { folder, host: host_dir, client, record, status, server, view }
    }

    /// Returns the name by which sentences call the folder: its view, if that is served.
    pub(super) fn named(&self) -> &Path {
        match &self.view {
            Some((view, ViewLife::Live)) => view,
            _ => &self.folder,
        }
    }

    /// Returns the token of the tenure of the guard that runs.
    pub(super) fn tenure(&self) -> Option<u64> {
        self.status.as_ref()?["tenure"]["token"].as_u64()
    }

    /// Returns the process id of the guard that runs.
    pub(super) fn pid(&self) -> Option<u64> {
        self.status.as_ref()?["pid"].as_u64()
    }

    /// Whether the guard takes, restores or removes a snapshot at this moment.
    pub(super) fn changes_snapshots(&self) -> bool {
        let Some((view, ViewLife::Live)) = &self.view else { return false };
        let endpoint = GuardEndpoint::find(Some(view), &PlaceArgs::default());
        endpoint.and_then(|it| it.status()).is_ok_and(|status| status["snapshot"].is_string())
    }

    /// Returns the path of a record that a program had prepared for a steal when it ended.
    pub(super) fn prepared_record(&self) -> Option<PathBuf> {
        let (view, _) = self.view.as_ref()?;
        let name = self.status.as_ref()?["leftover_record"].as_str()?;
        Some(view.join(".latchfs/locks").join(name))
    }

    /// Returns the finding that a program has left a record which it had prepared for a steal.
    pub(super) fn record_finding(&self) -> Option<FolderFinding> {
        let path = self.prepared_record()?;
        let path = path.display();
        Some(FolderFinding::new(
            FindingKind::RecordLeftover,
            format!("a program had prepared the record {path} for a steal, and has ended since"),
            format!("latchfs doctor --strict --fix, or rm {path}: the lock stays as it is"),
        ))
    }

    /// Returns the finding that the view is not served.
    pub(super) fn view_findings(&self) -> Vec<FolderFinding> {
        let Some((view, life)) = &self.view else { return Vec::new() };
        let view = view.display();
        let folder = match &self.record {
            Some(_) => self.folder.display().to_string(),
            None => "FOLDER".to_owned(),
        };
        let again = format!("latchfs guard {folder} {view}");
        let (says, fix) = match life {
            ViewLife::Live => return Vec::new(),
            ViewLife::Dead => (
                format!("the guard of the view {view} is gone, and its mount is still there"),
                format!("latchfs umount {view} (--fix does that), and start it again: {again}"),
            ),
            ViewLife::Silent => (
                format!("the guard of the view {view} does not answer: it is stopped or hangs"),
                "let its process go on, or end it; 'latchfs guard status' names it".to_owned(),
            ),
            ViewLife::Unmounted => (
                format!("the view {view} is not there, and its guard did not end in good order"),
                format!("start it again: {again}; or forget the view by --fix"),
            ),
        };
        vec![FolderFinding::new(FindingKind::ViewMissing, says, fix)]
    }
}

/// The file with Syncthing's ignore rules.
const IGNORE: &str = ".stignore";
/// The maximum length of `.stignore` in bytes.
const IGNORE_BYTES_MAX: u64 = 1 << 20;
/// An example of a marker's path, which the sync tool must carry: otherwise other machines do not
/// learn what a tenure changed.
const CARRIED: &str = ".latchfs/markers/0000000000000000-1-1-00000000.json";

/// Returns a finding for each setting.
pub(super) fn findings(site: &FolderSite) -> Vec<FolderFinding> {
    let Some(settings) = folder_settings(None, &site.folder) else { return Vec::new() };
    let FolderSettings { id: _, kind, max_conflicts, is_watched, is_paused } = &settings;
    let finding = |says: String, fix: &str| {
        FolderFinding::new(FindingKind::SyncSettings, format!("Syncthing: {says}"), fix)
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

/// How long the server may take to answer.
const PATIENCE: Span = Span::from_secs(5);
/// The difference of the clocks above which it is a finding: half of `max_clock_skew_ms`, above
/// which a steal is refused.
const SKEW_MAX: Span = Span::from_secs(1);

/// The answer of the server.
#[derive(Default)]
pub(super) struct ServerAnswer {
    pub(super) findings: Vec<FolderFinding>,
    pub(super) known: Option<KnownTenures>,
}

/// The servers that are asked about a folder.
#[derive(Clone, Copy)]
pub(super) struct FolderServers<'a> {
    /// The URLs, as a comma-separated list.
    pub(super) urls: &'a str,
    /// Whether the user has named the servers, and not only the folder.
    pub(super) is_named: bool,
    pub(super) key: &'a ServerKeyArgs,
}

impl FolderServers<'_> {
    fn access(&self, url: &str) -> CliResult<ServerAccess> {
        if self.is_named { self.key.access(url) } else { self.key.access_of_folder(url) }
    }
}

/// Asks the servers of a folder.
pub(super) fn query_servers(
    site: &FolderSite,
    record: &FolderRecord,
    asked: FolderServers<'_>,
) -> CliResult<ServerAnswer> {
    let mut answer = ServerAnswer::default();
    let servers = asked.urls;
    let heard = match first_answer(asked)? {
        Ok(heard) => heard,
        Err(finding) => {
            answer.findings.push(finding);
            return Ok(answer);
        }
    };
    answer.findings.extend(skew_finding(&heard));
    let remote = match connect(&asked.access(servers)?, None) {
        Ok(remote) => remote,
        Err(CliError::Said(_, why)) => {
            answer.findings.push(unreachable(servers, "does not answer properly", &why));
            return Ok(answer);
        }
        Err(other) => return Err(other),
    };
    let locks = Arc::clone(&remote) as Arc<dyn LockService>;
    // The first request tells which engine answers.
    let view = match view_of(record, &locks) {
        Ok(view) => view,
        Err(why) => {
            answer.findings.push(unreachable(servers, "does not answer properly", &why));
            return Ok(answer);
        }
    };
    match check_engine(record, &locks) {
        Err(CliError::Said(_, why)) => answer.findings.push(FolderFinding::new(
            FindingKind::OtherEngine,
            why,
            "bring the server back whose engine the folder's record names, or make the folder a \
             new one: latchfs guard init FOLDER --new-id",
        )),
        Err(other) => return Err(other),
        Ok(()) => {
            answer.findings.extend(same_name(site, &view));
            let previous = previous_tenure(view.previous.as_deref(), |at| locks.wall(at));
            let (engine, is_held) = (locks.engine_id(), !view.holders.is_empty());
            answer.known = Some(KnownTenures { engine, previous, is_held });
        }
    }
    remote.close();
    Ok(answer)
}

/// The answer of the first server that answers, with its URL.
struct FirstAnswer {
    url: String,
    sample: RttSample,
}

/// Probes the servers of a list in turn until one answers. If none does, returns the finding about
/// the first one that says most: a server of another kind, or one that does not answer.
fn first_answer(asked: FolderServers<'_>) -> CliResult<Result<FirstAnswer, FolderFinding>> {
    let mut all = urls(asked.urls);
    if all.is_empty() {
        all.push(asked.urls);
    }
    let mut stuck = Vec::new();
    for url in all {
        let heard = match Http::new(&asked.access(url)?) {
            Ok(server) => probe(&server),
            Err(error) => Err(Stuck::Unreachable(error.to_string())),
        };
        match heard {
            Ok(sample) => return Ok(Ok(FirstAnswer { url: url.to_owned(), sample })),
            Err(why) => stuck.push((url, why)),
        }
    }
    stuck.sort_by_key(|(_, why)| !matches!(why, Stuck::Foreign(_)));
    let (url, why) = stuck.swap_remove(0);
    Ok(Err(stuck_finding(url, &why)))
}

fn skew_finding(heard: &FirstAnswer) -> Option<FolderFinding> {
    let (url, skew) = (&heard.url, heard.sample.skew());
    (skew > SKEW_MAX).then(|| {
        FolderFinding::new(
            FindingKind::Clock,
            format!(
                "the clock of this machine differs from that of {url} by at least {skew}; from 2 s \
                 on this machine may steal no lock"
            ),
            "as root on both: timedatectl set-ntp true",
        )
    })
}

fn stuck_finding(url: &str, stuck: &Stuck) -> FolderFinding {
    match stuck {
        Stuck::Foreign(why) => FolderFinding::new(
            FindingKind::ServerTooOld,
            format!("{url} does not speak the protocol of this version of latchfs: {why}"),
            "install this version on the server as well, and see whether the port is the right one",
        ),
        Stuck::Unreachable(why) => unreachable(url, "does not answer", why),
        Stuck::Silent(why) => unreachable(url, "does not answer properly", why),
        Stuck::Untrusted(why) => refused(url, "can't be trusted", why),
        Stuck::Denied(why) => refused(url, "refuses this machine", why),
    }
}

/// The part of a finding that says what follows from it.
const UNKNOWN: &str = "so nobody can say who holds the lock and what the last tenure left";

fn unreachable(url: &str, what: &str, why: &str) -> FolderFinding {
    FolderFinding::new(
        FindingKind::ServerUnreachable,
        format!("the server {url} {what}, {UNKNOWN}: {why}"),
        format!(
            "start the server, or fix the way to it; 'latchfs doctor --server {url}' says what is \
             in the way"
        ),
    )
}

fn refused(url: &str, what: &str, why: &str) -> FolderFinding {
    FolderFinding::new(
        FindingKind::ServerUnreachable,
        format!("the server {url} {what}, {UNKNOWN}: {why}"),
        "name the credentials of the guard to doctor as well: --token-file, --ca, --cert and --key",
    )
}

/// Asks for the lock of a folder. An error is a sentence.
fn view_of(record: &FolderRecord, locks: &Arc<dyn LockService>) -> Result<LockView, String> {
    let name = LockName::parse(&record.lock()).map_err(|error| error.to_string())?;
    match locks.view(&name, Retry::Never).wait_at_most(PATIENCE) {
        Some(seen) => seen.map(|seen| seen.view).map_err(|why| why.to_string()),
        None => Err(format!("it was asked for the lock, and said nothing for {PATIENCE}")),
    }
}

/// Returns a finding if a holder has the name of this machine, and is not this machine's guard.
fn same_name(site: &FolderSite, view: &LockView) -> Option<FolderFinding> {
    let noted = fs::read_to_string(site.host.join("session")).unwrap_or_default();
    let noted = noted.split(' ').next().and_then(|session| session.parse::<u64>().ok());
    let is_other = |hold: Ownership| match hold {
        Ownership::OpenFile(open) => Some(open.session.as_u64()) != noted,
        Ownership::Client | Ownership::Exclusive(_) => true,
    };
    let other = view.holders.iter().find(|holder| {
        holder.lease.holder.as_str() == site.client && is_other(holder.lease.hold)
    })?;
    Some(FolderFinding::new(
        FindingKind::SameName,
        format!(
            "another guard with this machine's name, {}, holds the lock (token {})",
            site.client, other.lease.token
        ),
        "give each machine a name of its own by --client",
    ))
}
