//! Puts the parts of a guard together: its lock, its sync barrier, and the guard of the folder.

use crate::base::said;
use crate::engine::{ClientId, LockName, Mode, Ttl};
use crate::guard::audit_log::AuditLog;
use crate::guard::disk::operations::Disk;
use crate::guard::folder::folder_changes::{FirstMarked, FolderBarrier, MarkerNames};
use crate::guard::folder::folder_guard::FolderGuard;
use crate::guard::folder::folder_record::{FolderRecord, LockIdentity, StartedRecord};
use crate::guard::folder::state_place::StatePlace;
use crate::guard::folder::unread::UnreadPolicy;
use crate::guard::lock::folder_lock::FolderLock;
use crate::guard::lost_files::SpaceLimits;
use crate::holder_id::Maker;
use crate::service::LockService;
use barrier::folder_path::PathPatterns;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The inputs from which the lock and the guard of a folder are made.
pub(crate) struct PartsRequest<'a> {
    /// The record of the folder.
    pub(crate) record: &'a FolderRecord,
    /// The record as it was when the command began.
    pub(crate) started: StartedRecord,
    /// The directories of the folder.
    pub(crate) place: &'a StatePlace,
    /// The client as which this machine holds the lock.
    pub(crate) client: ClientId,
    /// How long the lock lasts when this machine does not answer.
    pub(crate) ttl: Ttl,
    /// The files that belong to this machine.
    pub(crate) local: PathPatterns,
    /// The bounds of what is staged and lost.
    pub(crate) limits: SpaceLimits,
    /// What happens to versions that no program has read.
    pub(crate) unread: UnreadPolicy,
    /// Whether this machine holds the lock alone.
    pub(crate) mode: Mode,
    /// The call after the first marker, if the folder may have none yet.
    pub(crate) first_marked: Option<FirstMarked>,
}

/// Returns the lock and the guard of a folder, or a sentence that says why there are none.
pub(crate) fn folder_parts<D: Disk<Dir = OwnedFd>>(
    disk: D,
    locks: Arc<dyn LockService>,
    wanted: PartsRequest<'_>,
) -> Result<(Arc<FolderLock>, Arc<FolderGuard<D>>), String> {
    let PartsRequest { record, place, client, mode, .. } = wanted;
    let name = LockName::parse(&record.lock()).map_err(|error| error.to_string())?;
    let engine = record.server.is_some().then(|| record.engine_id());
    let remembers = record.has_copies();
    let (uid, process) = (rustix::process::getuid().as_raw(), Maker::running(std::process::id()));
    let holder_id = format!("{client}:{uid}:{process}").into();
    let identity = LockIdentity {
        engine,
        name,
        client: client.clone(),
        ttl: wanted.ttl,
        holder_id,
        mode,
        remembers,
        record: wanted.started,
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
        let dirs = place.barrier_dirs().map_err(|error| error.to_string())?;
        let opened =
            FolderBarrier::open(Arc::clone(&disk), dirs, names, wanted.local, wanted.first_marked);
        Some(Arc::new(opened.map_err(|error| error.to_string())?))
    } else {
        None
    };
    let dirs = place.dirs().map_err(|error| error.to_string())?;
    let audit = AuditLog::open(&place.host, client).map_err(|error| {
        format!("the audit log in {} can't be used: {}", place.host.display(), said(&error))
    })?;
    let is_shared = record.storage.is_some();
    let guard = FolderGuard::new(disk, dirs, Arc::clone(&lock) as _, is_shared);
    let guard = guard.and_then(|guard| {
        guard
            .carried(record.server.is_some())
            .in_shared_mode(mode == Mode::Shared)
            .audited(audit)
            .with_barrier(barrier)
            .with_unread(wanted.unread)
            .limit(wanted.limits)
    });
    Ok((lock, Arc::new(guard.map_err(|error| error.to_string())?)))
}
