//! The guarded folder that `doctor --strict` checks: where it is, where its guard keeps its state,
//! and whether the guard runs.

use crate::cli::environment::host;
use crate::cli::exit::CliResult;
use crate::cli::folder_options::PlaceArgs;
use crate::cli::guard_endpoint::GuardEndpoint;
use crate::cli::view_record::ViewRecord;
use crate::fuse::kernel::mountinfo::{self, Life};
use crate::guard::doctor::folder_finding::{FindingKind, FolderFinding};
use crate::guard::folder_record::FolderRecord;
use serde_json::Value;
use std::path::{Path, PathBuf};

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
    /// What the guard says of its state, if it runs.
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

    /// Returns the finding that such a record is there.
    pub(super) fn record_finding(&self) -> Option<FolderFinding> {
        let path = self.prepared_record()?;
        let path = path.display();
        Some(FolderFinding::new(
            FindingKind::RecordLeftover,
            format!("a program had prepared the record {path} for a steal, and has ended since"),
            format!("latchfs doctor --strict --mend, or rm {path}: the lock stays as it is"),
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
        let (says, mend) = match life {
            ViewLife::Live => return Vec::new(),
            ViewLife::Dead => (
                format!("the guard of the view {view} is gone, and its mount is still there"),
                format!("latchfs umount {view} (--mend does that), and start it again: {again}"),
            ),
            ViewLife::Silent => (
                format!("the guard of the view {view} does not answer: it is stopped or hangs"),
                "let its process go on, or end it; 'latchfs guard status' names it".to_owned(),
            ),
            ViewLife::Unmounted => (
                format!("the view {view} is not there, and its guard did not end in good order"),
                format!("start it again: {again}; or forget the view by --mend"),
            ),
        };
        vec![FolderFinding::new(FindingKind::ViewMissing, says, mend)]
    }
}
