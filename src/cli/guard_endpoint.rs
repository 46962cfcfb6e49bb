//! The guard that a command is about: that of a view, or that of a folder without one.

use super::environment::absolute;
use super::exit::{CliError, CliResult};
use super::folder_options::PlaceArgs;
use super::folder_requests::PlainFolder;
use super::guard_answers::Waits;
#[cfg(target_os = "linux")]
use super::view_requests;
#[cfg(target_os = "linux")]
use crate::fuse::kernel::mountinfo::{self, MountPoint};
#[cfg(target_os = "linux")]
use crate::fuse::kernel::own_user::own_uid;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The view or the folder that a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct EndpointArgs {
    /// The view, or the folder where it has none [default: the one that contains the current
    /// directory, or the only view]
    #[arg(value_name = "VIEW|FOLDER")]
    given: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

/// A guard that takes requests.
pub(super) enum GuardEndpoint {
    /// The guard of a view.
    #[cfg(target_os = "linux")]
    View(MountPoint),
    /// The guard of a folder that has no view, which may not run.
    Folder(PlainFolder),
}

impl EndpointArgs {
    /// Returns the place of a guard without a view.
    pub(super) const fn place(&self) -> &PlaceArgs {
        &self.place
    }

    /// Returns the guard that the arguments name.
    pub(super) fn find(&self) -> CliResult<GuardEndpoint> {
        GuardEndpoint::find(self.given.as_deref(), &self.place)
    }
}

#[cfg(target_os = "linux")]
fn views() -> CliResult<Vec<MountPoint>> {
    let mounts =
        mountinfo::read().map_err(|error| CliError::system("the mounts can't be read", &error))?;
    Ok(mounts.into_iter().filter(MountPoint::is_view).collect())
}

/// Returns the view in which a path lies. One that lies in a view as it stands is not resolved,
/// because a guard that hangs would not answer.
#[cfg(target_os = "linux")]
fn view_around(path: &Path) -> CliResult<Option<GuardEndpoint>> {
    let mut views = views()?;
    let around = |dir: &Path| views.iter().rposition(|mount| dir.starts_with(&mount.dir));
    let found = around(path).or_else(|| around(&mountinfo::resolve(path).ok()?));
    Ok(found.map(|at| GuardEndpoint::View(views.swap_remove(at))))
}

/// Returns the view of a folder, if root or this user shows it: any user can show a view that tells
/// anything.
#[cfg(target_os = "linux")]
fn view_of(folder: &Path) -> CliResult<Option<GuardEndpoint>> {
    let mut views = views()?;
    views.retain(|view| view.mounter == 0 || view.mounter == own_uid());
    let shows = |view: &MountPoint| {
        let status = view_requests::ask(view, &json!({"do": "status"}), Waits::Never);
        status.is_ok_and(|status| status["folder"].as_str().map(Path::new) == Some(folder))
    };
    Ok(views.into_iter().find(shows).map(GuardEndpoint::View))
}

/// Returns `None`: this system has no views.
#[cfg(not(target_os = "linux"))]
fn view_of(_folder: &Path) -> CliResult<Option<GuardEndpoint>> {
    Ok(None)
}

/// Returns `None`: this system has no views.
#[cfg(not(target_os = "linux"))]
fn view_around(_path: &Path) -> CliResult<Option<GuardEndpoint>> {
    Ok(None)
}

/// Returns the only view.
#[cfg(target_os = "linux")]
fn only_view() -> CliResult<GuardEndpoint> {
    let mut views = views()?;
    // Any user can show a view; a command that names none means one of root or of its own user.
    views.retain(|view| view.mounter == 0 || view.mounter == own_uid());
    match views.len() {
        1 => Ok(GuardEndpoint::View(views.swap_remove(0))),
        0 => Err(CliError::unavailable(
            "no guarded folder is shown on this machine; show one with 'latchfs guard FOLDER \
             VIEW', or name a folder that has no view",
        )),
        _ => Err(CliError::usage("several guarded folders are shown here; name one of them")),
    }
}

/// Fails: this system has no views.
#[cfg(not(target_os = "linux"))]
fn only_view() -> CliResult<GuardEndpoint> {
    Err(CliError::usage("name the guarded folder, or go into it"))
}

impl GuardEndpoint {
    /// Returns the guard of the view or folder in which a path lies, or without one the current
    /// directory; else that of the only view.
    pub(super) fn find(given: Option<&Path>, place: &PlaceArgs) -> CliResult<Self> {
        let found = Self::find_any(given, place)?;
        if place.is_given() && !matches!(found, Self::Folder(_)) {
            return Err(CliError::usage(
                "the guard of a view has --client and --stage itself; leave them out here",
            ));
        }
        Ok(found)
    }

    /// Returns the guard like [`Self::find`]. For a view `place` says where the state of its guard
    /// is, if that does not run any more.
    pub(super) fn find_any(given: Option<&Path>, place: &PlaceArgs) -> CliResult<Self> {
        let path = match given {
            Some(given) => absolute(given)?,
            None => std::env::current_dir().unwrap_or_default(),
        };
        if let Some(view) = view_around(&path)? {
            return Ok(view);
        }
        if let Some(folder) = PlainFolder::around(&path, place)? {
            return Ok(Self::Folder(folder));
        }
        match given {
            None => only_view(),
            Some(given) => Err(CliError::unavailable(format!(
                "{} is no view of a guarded folder, and no guarded folder; show one with 'latchfs \
                 guard FOLDER VIEW', or make one with 'latchfs guard init'",
                given.display()
            ))),
        }
    }

    /// Returns the guard of the folder's view if this is a folder without a running guard: a guard
    /// may keep its state where only it knows (`--stage`). That guard takes paths in its view only.
    pub(super) fn or_view(self) -> CliResult<Self> {
        let folder = match &self {
            #[cfg(target_os = "linux")]
            Self::View(_) => return Ok(self),
            Self::Folder(folder) => folder,
        };
        let view = if folder.connect()?.is_none() { view_of(&folder.dir)? } else { None };
        Ok(view.unwrap_or(self))
    }

    /// Returns the view, or the folder, in which paths lie.
    pub(super) fn dir(&self) -> &Path {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(view) => &view.dir,
            Self::Folder(folder) => &folder.dir,
        }
    }

    /// Sends a request to the guard, and returns its answer. `start`: the arguments of `latchfs`
    /// that start the guard of a folder without a view, if the request needs one.
    pub(super) fn ask(
        &self,
        request: &Value,
        waits: Waits,
        start: Option<&[OsString]>,
    ) -> CliResult<Value> {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(view) => view_requests::ask(view, request, waits),
            Self::Folder(folder) => {
                let connection = match start {
                    Some(args) => folder.connect_or_start(args)?,
                    None => folder.connect()?.ok_or_else(|| folder.none())?,
                };
                folder.ask(&connection, request, waits)
            }
        }
    }

    /// Waits until this machine holds the lock and everything is here.
    pub(super) fn wait(&self) -> CliResult {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(view) => view_requests::wait(view),
            Self::Folder(_) => {
                self.ask(&json!({"do": "wait"}), Waits::UntilStopped, None).map(drop)
            }
        }
    }

    /// Returns the state of the guard.
    pub(super) fn status(&self) -> CliResult<Value> {
        if let Self::Folder(folder) = self
            && folder.connect()?.is_none()
        {
            return Ok(folder.status());
        }
        self.ask(&json!({"do": "status"}), Waits::Never, None)
    }

    /// Returns the server that knows the lock of a folder whose guard does not run; `None` if the
    /// guard can be asked, or the folder has no server.
    pub(super) fn server_without_guard(&self) -> Option<String> {
        match self {
            #[cfg(target_os = "linux")]
            Self::View(_) => None,
            Self::Folder(folder) => match folder.connect() {
                Ok(None) => folder.record.server.clone(),
                _ => None,
            },
        }
    }

    /// Returns the directory of this machine in the state directory of the folder.
    #[cfg_attr(not(target_os = "linux"), allow(irrefutable_let_patterns))]
    pub(super) fn state_dir(&self) -> CliResult<PathBuf> {
        if let Self::Folder(folder) = self {
            return Ok(folder.host.clone());
        }
        let status = self.status()?;
        let dir = status["state_dir"].as_str().map(PathBuf::from);
        dir.ok_or_else(|| {
            CliError::unavailable(
                "the guard of the view does not say where its state is; name the directory",
            )
        })
    }
}
