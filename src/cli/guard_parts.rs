//! Puts the parts of a guard together: its lock, its sync barrier, and the guard of the folder.

use super::exit::{CliError, CliResult};
use crate::client::Terms;
use crate::engine::{LockName, Mode};
use crate::fuse::kernel::mountinfo;
use crate::guard::audit_log::AuditLog;
use crate::guard::disk::Disk;
use crate::guard::folder_changes::{FirstMarked, FolderBarrier, MarkerNames};
use crate::guard::folder_guard::FolderGuard;
use crate::guard::folder_lock::FolderLock;
use crate::guard::folder_record::{FolderRecord, LockIdentity, StartedRecord};
use crate::guard::space::SpaceLimits;
use crate::guard::state_place::StatePlace;
use crate::guard::unread::UnreadPolicy;
use crate::guard::write_policy::PathPatterns;
use crate::holder_id::Maker;
use crate::os_error::said;
use crate::service::Locks;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The default of `--local`: what editors, databases and desktops keep for themselves.
const LOCAL_DEFAULT: [&str; 7] =
    ["*-shm", ".*.swp", ".~lock.*#", ".DS_Store", "Thumbs.db", "desktop.ini", ".Trash-*"];

/// The things from which the parts are made.
pub(super) struct PartsRequest<'a> {
    pub(super) record: &'a FolderRecord,
    /// The record as it was when the command began.
    pub(super) started: StartedRecord,
    pub(super) place: &'a StatePlace,
    /// The session to which the lock is bound.
    pub(super) terms: &'a Terms,
    /// The files that belong to this machine.
    pub(super) local: PathPatterns,
    pub(super) limits: SpaceLimits,
    pub(super) unread: UnreadPolicy,
    /// Whether this machine holds the lock alone.
    pub(super) mode: Mode,
    /// The call after the first marker, if the folder may have none yet.
    pub(super) first_marked: Option<FirstMarked>,
}

/// Returns the call that records that a folder has markers, if its record does not say so yet.
pub(super) fn write_with_markers(record: &FolderRecord, folder: &Path) -> Option<FirstMarked> {
    let (record, folder) = (record.with_markers()?, folder.to_owned());
    Some(Box::new(move || {
        if let Err(error) = record.write(&folder, true) {
            log::warn!("the record of the folder does not say yet that it has markers: {error}");
        }
    }))
}

/// Returns the lock and the guard of a folder.
pub(super) fn folder_parts<D: Disk<Dir = OwnedFd>>(
    disk: D,
    locks: Locks,
    wanted: PartsRequest<'_>,
) -> CliResult<(Arc<FolderLock>, Arc<FolderGuard<D>>)> {
    let PartsRequest { record, started, place, terms, local, limits, unread, mode, first_marked } =
        wanted;
    let client = &terms.client;
    let name = LockName::parse(&record.lock()).map_err(|error| unavailable(&error))?;
    let engine = record.server.is_some().then(|| record.engine_id());
    let remembers = record.has_copies();
    let (uid, process) = (rustix::process::getuid().as_raw(), Maker::running(std::process::id()));
    let holder_id = format!("{client}:{uid}:{process}").into();
    let identity = LockIdentity {
        engine,
        name,
        client: client.clone(),
        ttl: terms.ttl,
        holder_id,
        mode,
        remembers,
        record: started,
    };
    let lock = FolderLock::new(locks, identity, place.host.join("session"));
    lock.end_previous();
    let disk = Arc::new(disk);
    let barrier = if remembers {
        let names = MarkerNames {
            folder: record.id.clone(),
            lock: record.lock(),
            holder: client.to_string(),
        };
        let dirs = place.barrier_dirs().map_err(|error| unavailable(&error))?;
        let opened = FolderBarrier::open(Arc::clone(&disk), dirs, names, (local, first_marked));
        Some(Arc::new(opened.map_err(|error| unavailable(&error))?))
    } else {
        None
    };
    let dirs = place.dirs().map_err(|error| unavailable(&error))?;
    let host = place.host_dir().map_err(|error| unavailable(&error))?;
    let audit = AuditLog::open(Arc::clone(&disk), host, client.clone()).map_err(|error| {
        CliError::system(
            &format!("the audit log in {} can't be used", place.host.display()),
            &error,
        )
    })?;
    let is_shared = record.storage.is_some();
    let guard = FolderGuard::new(disk, dirs, Arc::clone(&lock) as _, is_shared);
    let guard = guard.and_then(|guard| {
        guard
            .carried(record.server.is_some())
            .in_shared_mode(mode == Mode::Shared)
            .audited(audit)
            .with_barrier(barrier)
            .with_unread(unread)
            .limit(limits)
    });
    Ok((lock, Arc::new(guard.map_err(|error| unavailable(&error))?)))
}

pub(super) fn unavailable(error: &impl ToString) -> CliError {
    CliError::unavailable(error.to_string())
}

/// Returns the real path of a folder that can be guarded.
pub(super) fn resolved_folder(folder: &Path) -> CliResult<PathBuf> {
    let shown = folder.display();
    let real = std::fs::canonicalize(folder).map_err(|error| {
        CliError::unavailable(format!(
            "{shown} can't be guarded: {}; make the folder first, or name another one",
            said(&error)
        ))
    })?;
    if !real.is_dir() {
        return Err(CliError::usage(format!("{shown} is no directory; name the folder to guard")));
    }
    if real == Path::new("/") {
        return Err(CliError::usage("/ can't be guarded; name a folder with files of your own"));
    }
    let mounts = mountinfo::ours_and_views()
        .map_err(|error| CliError::system("the mounts can't be read", &error))?;
    if let Some(mount) = mounts.iter().find(|mount| real.starts_with(&mount.dir)) {
        let dir = mount.dir.display();
        if mount.is_view() {
            return Err(CliError::usage(format!(
                "{shown} lies in {dir}, which is a view of a guarded folder already; name a folder \
                 outside of it, or use the view as it is"
            )));
        }
        return Err(CliError::usage(format!(
            "{shown} lies in {dir}, which latchfs mounted itself; name the real folder"
        )));
    }
    Ok(real)
}

/// Returns patterns, or the default ones if there are none.
pub(super) fn patterns(texts: &[String], default: &[&str]) -> CliResult<PathPatterns> {
    let default: Vec<_> = default.iter().map(|text| (*text).to_owned()).collect();
    let texts = if texts.is_empty() { &default[..] } else { texts };
    PathPatterns::parse(texts).map_err(CliError::usage)
}

/// Returns the patterns of files that belong to this machine.
pub(super) fn local_patterns(texts: &[String]) -> CliResult<PathPatterns> {
    patterns(texts, &LOCAL_DEFAULT)
}
