//! The guard of one folder on one machine: the gate, the stage of the current tenure, the files
//! that are being saved, and the lost files. It knows neither FUSE nor the lock service.
//!
//! Uses of the folder that pass no gate: a program may have a file mapped, and change it at any
//! moment without a system call. A guard that is about to give the lock up looks for them.
//!
//! The acts of a guard that go into its audit log.

use super::folder_changes::{FolderBarrier, stamp_of_file};
use super::unread::{KeptVersions, UnreadPolicy, UnreadRefusal};
use crate::guard::audit_log::{AuditLog, AuditedAct, GuardAct};
use crate::guard::disk::operations::{Disk, FileStat, FolderName, IfThere, Place};
use crate::guard::lost_files::{
    LostDescription, LostFiles, LostReason, NoSpace, Space, SpaceLimits,
};
use crate::guard::stage::fence::{Fence, FenceError};
use crate::guard::stage::gate::{Closed, Gate, OpenTenure, Pass};
use crate::guard::stage::publish::{OwnVersions, PublishError, Stage};
use crate::guard::stage::staged_file::{PutAside, SaveState, StagedFile};
use crate::guard::tenure::{LiveTenures, Owner, TenureClock};
use crate::guard::tenures::sequence::Tenures;
use crate::time::{Span, Time};
use barrier::handover::{HandoverEnd, PreviousTenure};
use barrier::tenure_id::TenureId;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A tenure that begins less than this after the last one may find files of that one with a change
/// time that is not earlier than its own beginning: file systems count time in ticks, some in
/// seconds.
const SAME_CHANGE_TIME: Span = Span::from_secs(2);

/// The directories of a guarded folder.
pub(crate) struct FolderDirs<D: Disk> {
    /// The folder itself.
    pub(crate) folder: D::Dir,
    /// The directory `stage` of the state directory.
    pub(crate) stages: D::Dir,
    /// The directory `lost` of the state directory.
    pub(crate) lost: D::Dir,
}

/// Why a file was not saved.
#[derive(Debug)]
pub(crate) enum SaveError {
    /// The gate is closed for the program.
    Closed(Closed),
    /// The lock service has no handover yet that announces changes.
    Unannounced,
    /// Another file has got the name since the program asked for a new one.
    Exists,
    /// The file has several names, and machines share the storage: the fence of a later tenure
    /// gives a file a new inode under one name, so that a late write would stay under the others.
    Linked,
    /// Another machine's version is there, and no program here has opened it.
    Unread(UnreadRefusal),
    /// A system call failed, of this save or of an earlier write to the file.
    Disk(io::Error),
}

/// The guard of one folder.
pub(crate) struct FolderGuard<D: Disk> {
    pub(in crate::guard) disk: Arc<D>,
    dirs: FolderDirs<D>,
    pub(in crate::guard) lost: LostFiles<D>,
    pub(in crate::guard) space: Arc<Space>,
    gate: Gate,
    clock: Arc<dyn TenureClock>,
    pub(in crate::guard) stage: RwLock<Option<Arc<Stage<D>>>>,
    /// The versions of files that the last tenure has left in the folder, and when it ended.
    last_own: Mutex<Option<(Arc<OwnVersions>, Time)>>,
    /// The files that are not published yet, in the order in which they were opened.
    pub(in crate::guard) unpublished: Mutex<BTreeMap<u64, Weak<StagedFile<D>>>>,
    next: AtomicU64,
    /// The versions that were replaced, put aside and not reported yet: the number and the path of
    /// each lost file, and the reason.
    pub(in crate::guard) displaced: Mutex<Vec<(u64, String, LostReason)>>,
    /// Whether the lost files may hold copies that a late marker names.
    pub(super) may_have_late_copies: AtomicBool,
    /// The handling of versions that no program has opened.
    pub(super) unread_policy: UnreadPolicy,
    /// The unread versions among the lost files; `None` before they were looked up.
    pub(super) unread_kept: Mutex<Option<KeptVersions>>,
    /// Whether the stage of the current tenure was found removed: a later fence has passed.
    pub(in crate::guard) is_fenced: AtomicBool,
    /// Whether a file appeared in the folder after the deadline of its tenure.
    is_late: AtomicBool,
    /// Whether other machines guard the same storage.
    pub(in crate::guard) is_shared_storage: bool,
    /// Whether other machines may hold the lock at the same time.
    pub(in crate::guard) is_shared_mode: bool,
    /// Whether a sync tool may carry the folder.
    is_carried: bool,
    /// The audit log, if there is one.
    pub(in crate::guard) audit: Option<AuditLog>,
    /// The sync barrier, if other machines have copies of the folder.
    barrier: Option<Arc<FolderBarrier<D>>>,
}

impl<D: Disk> FolderGuard<D> {
    /// Returns the guard of a folder, which holds no lock yet.
    pub(crate) fn new(
        disk: Arc<D>,
        dirs: FolderDirs<D>,
        clock: Arc<dyn TenureClock>,
        is_shared_storage: bool,
    ) -> io::Result<Self> {
        let lost_dir = disk.reopen_dir(&dirs.lost)?;
        let space = Arc::new(Space::new(SpaceLimits::NONE));
        let lost = LostFiles::open(&*disk, lost_dir, Arc::clone(&space))?;
        Ok(Self {
            lost,
            space,
            gate: Gate::new(Arc::clone(&clock)),
            clock,
            stage: RwLock::new(None),
            last_own: Mutex::new(None),
            unpublished: Mutex::default(),
            next: AtomicU64::new(1),
            displaced: Mutex::default(),
            may_have_late_copies: AtomicBool::new(true),
            unread_policy: UnreadPolicy::NONE,
            unread_kept: Mutex::default(),
            is_fenced: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            disk,
            dirs,
            is_shared_storage,
            is_shared_mode: false,
            is_carried: false,
            audit: None,
            barrier: None,
        })
    }

    /// Limits the space of unpublished content and lost files.
    pub(crate) fn limit(mut self, limits: SpaceLimits) -> io::Result<Self> {
        self.space = Arc::new(Space::new(limits));
        let lost_dir = self.disk.reopen_dir(&self.dirs.lost)?;
        self.lost = LostFiles::open(&*self.disk, lost_dir, Arc::clone(&self.space))?;
        if limits != SpaceLimits::NONE {
            self.lost.refresh(&*self.disk)?;
        }
        Ok(self)
    }

    /// Says that other machines may hold the lock at the same time.
    pub(crate) fn in_shared_mode(mut self, is_shared_mode: bool) -> Self {
        self.is_shared_mode = is_shared_mode;
        self
    }

    /// Says that a sync tool may carry the folder: other machines have copies of it.
    pub(crate) fn carried(mut self, is_carried: bool) -> Self {
        self.is_carried = is_carried;
        self
    }

    /// Says that other machines have copies of the folder: changes are logged and announced.
    pub(crate) fn with_barrier(mut self, barrier: Option<Arc<FolderBarrier<D>>>) -> Self {
        self.barrier = barrier;
        self
    }

    /// Returns the sync barrier, if there is one.
    pub(crate) const fn barrier(&self) -> Option<&Arc<FolderBarrier<D>>> {
        self.barrier.as_ref()
    }

    /// Whether other machines may hold the lock at the same time.
    pub(crate) const fn is_shared_mode(&self) -> bool {
        self.is_shared_mode
    }

    /// Whether several machines guard the same storage.
    pub(crate) const fn is_shared_storage(&self) -> bool {
        self.is_shared_storage
    }

    /// Fails if there is no space for a new change of a user.
    pub(crate) fn check_space(&self, uid: u32) -> Result<(), NoSpace> {
        self.space.check(uid)
    }

    /// Returns the bytes of unpublished content and of lost files.
    pub(crate) fn space_used(&self) -> (u64, u64) {
        self.space.used()
    }

    /// Returns the gate.
    pub(crate) const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns the lost files.
    pub(crate) const fn lost(&self) -> &LostFiles<D> {
        &self.lost
    }

    /// Returns the disk on which the folder lies.
    pub(crate) fn disk(&self) -> &D {
        &self.disk
    }

    /// Returns the folder.
    pub(crate) const fn folder(&self) -> &D::Dir {
        &self.dirs.folder
    }

    /// Begins a tenure right after its grant: removes the stages of all other tenures but those
    /// that live on, and makes its own. Returns the number of files of other tenures that were put
    /// aside.
    pub(crate) fn begin(
        &self,
        tenure: TenureId,
        live: Option<&LiveTenures>,
    ) -> Result<usize, FenceError> {
        let is_held = || self.clock.now() < self.clock.surely_until();
        let fence = Fence { live, ..self.fence(&is_held) };
        let fenced = fence.erect()?;
        let stage = Stage::begin(&*self.disk, &self.dirs.stages, tenure, self.is_carried)?;
        if let Some((last, end)) = self.last_own.lock().take()
            && self.clock.now().since(end) < SAME_CHANGE_TIME
        {
            stage.own.inherit(&last);
        }
        for renewed in &fenced.renewed {
            stage.own.record(renewed, false);
        }
        *self.stage.write() = Some(Arc::new(stage));
        self.is_fenced.store(false, Ordering::Release);
        Ok(fenced.kept)
    }

    /// Returns the fence of a tenure.
    pub(in crate::guard) fn fence<'a>(&'a self, is_held: &'a dyn Fn() -> bool) -> Fence<'a, D> {
        let FolderDirs { folder, stages, .. } = &self.dirs;
        Fence { disk: &*self.disk, folder, stages, lost: &self.lost, is_held, live: None }
    }

    /// Opens the gate for a tenure that has begun and is ready.
    pub(crate) fn open(&self, tenure: TenureId, owner: Owner) {
        self.gate.open(OpenTenure { id: tenure, owner });
    }

    /// Closes the gate after the lock was lost, and puts the unpublished files aside. The stage is
    /// left to the fence of the next tenure.
    pub(crate) fn lose(&self) -> PutAside {
        let _ = self.gate.close();
        if let Some(stage) = self.stage.write().take() {
            *self.last_own.lock() = Some((Arc::clone(&stage.own), self.clock.now()));
        }
        self.put_aside_all()
    }

    /// Closes the gate before the lock is released, puts the unpublished files aside, and removes
    /// the stage, if that is possible: the next tenure removes it otherwise.
    pub(crate) fn give_up(&self) -> PutAside {
        let _ = self.gate.close();
        let aside = self.put_aside_all();
        if let Some(stage) = self.stage.write().take() {
            *self.last_own.lock() = Some((Arc::clone(&stage.own), self.clock.now()));
            if let Err(error) = stage.end(&*self.disk, &self.dirs.stages) {
                log::debug!("the stage of tenure {} stays: {error}", stage.tenure);
            }
        }
        aside
    }

    /// Whether a later tenure has removed the stage of the current one.
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    /// Returns whether a file has appeared late since the last call: after its tenure's deadline.
    pub(crate) fn take_late(&self) -> bool {
        self.is_late.swap(false, Ordering::AcqRel)
    }

    /// Begins to save a file as a whole. `near` is the directory in which it is going to appear.
    pub(crate) fn stage_file(
        &self,
        pass: &Pass<'_>,
        near: &D::Dir,
        mode: u32,
        uid: u32,
        path: &OsStr,
        is_exclusive: bool,
    ) -> io::Result<Arc<StagedFile<D>>> {
        let file = self.disk.unnamed_file(near, mode)?;
        let space = self.space.staged(uid);
        let staged = StagedFile::new(file, pass.tenure(), uid, path, is_exclusive, space);
        let staged = Arc::new(staged);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut unpublished = self.unpublished.lock();
        if number.is_multiple_of(1_024) {
            unpublished.retain(|_, staged| staged.strong_count() > 0);
        }
        unpublished.insert(number, Arc::downgrade(&staged));
        Ok(staged)
    }

    /// Whether the content of a file is not in the folder yet, and not among the lost files.
    pub(crate) fn has_unpublished(&self) -> bool {
        let is_open = |state| matches!(state, SaveState::Unpublished | SaveState::Spoiled(_));
        let unpublished = self.unpublished.lock();
        unpublished.values().filter_map(Weak::upgrade).any(|it| is_open(it.save_state()))
    }

    /// Publishes a file: from one step to the next it is in the folder as a whole, or the folder
    /// is as before. With `sync` the content and the name survive a power failure.
    pub(crate) fn publish(
        &self,
        staged: &StagedFile<D>,
        is_of: impl FnOnce(Owner) -> bool,
        to: Place<'_, D::Dir>,
        sync: bool,
    ) -> Result<(), SaveError> {
        // The content is synced before the change passes the gate, since a sync may take longer
        // than the lease lasts.
        if sync && staged.save_state() == SaveState::Unpublished {
            self.disk.sync_file(&staged.file).map_err(|error| {
                staged.spoil(error.raw_os_error().unwrap_or(libc::EIO));
                SaveError::Disk(error)
            })?;
        }
        let passed = self.gate.enter(Some(staged.tenure), is_of);
        let pass = passed.map_err(SaveError::Closed)?;
        if self.gate.must_announce() {
            return Err(SaveError::Unannounced);
        }
        let if_there = if staged.is_exclusive() { IfThere::Fail } else { IfThere::Replace };
        let published = staged.change(|save, path| match *save {
            SaveState::Published => Ok(false),
            SaveState::PutAside(_) => Err(SaveError::Closed(Closed::TenureOver)),
            SaveState::Spoiled(errno) => Err(SaveError::Disk(io::Error::from_raw_os_error(errno))),
            SaveState::Unpublished => {
                self.publish_now(staged, pass.owner(), save, FolderName { at: to, path }, if_there)
            }
        })?;
        if published && self.gate.is_past_deadline() {
            self.is_late.store(true, Ordering::Release);
        }
        // The end of the tenure waits for the pass, and then tells that the file came late.
        drop(pass);
        if published && sync {
            self.disk.sync_dir(to.dir).map_err(SaveError::Disk)?;
        }
        Ok(())
    }

    /// Publishes a file that is not published yet. Returns true.
    fn publish_now(
        &self,
        staged: &StagedFile<D>,
        owner: Owner,
        save: &mut SaveState,
        to: FolderName<'_, D::Dir>,
        if_there: IfThere,
    ) -> Result<bool, SaveError> {
        let Some(stage) = self.stage.read().clone() else {
            return Err(SaveError::Closed(Closed::TenureOver));
        };
        let FolderName { at, path } = to;
        let there = self.disk.stat(at).ok().filter(|_| if_there == IfThere::Replace);
        let unread = there.map_or(Ok(()), |there| self.check_unread(&there, owner));
        if let Err(unread) = unread {
            *save = self.keep(staged, path, LostReason::OverUnread);
            return Err(SaveError::Unread(unread));
        }
        self.log_publish(&staged.file, at, path)?;
        let is_kept = |there: &FileStat| self.is_kept(&stage, there, owner);
        match stage.publish(&*self.disk, &staged.file, at, path, if_there, &is_kept) {
            Ok(displaced) => {
                *save = SaveState::Published;
                staged.give_space();
                self.log_published(&staged.file, path);
                if let Some(name) = displaced {
                    self.keep_displaced(&stage, owner, &name, path);
                }
                Ok(true)
            }
            Err(PublishError::Fenced { is_kept }) => {
                self.is_fenced.store(true, Ordering::Release);
                *save = if is_kept {
                    SaveState::PutAside(None)
                } else {
                    self.keep(staged, path, LostReason::TenureOver)
                };
                Err(SaveError::Closed(Closed::TenureOver))
            }
            Err(PublishError::Stays { name, error }) => {
                let reason = match error.kind() {
                    io::ErrorKind::NotFound => LostReason::NoDirectory,
                    io::ErrorKind::AlreadyExists => LostReason::NameTaken,
                    _ => LostReason::NotNamed,
                };
                let about = LostDescription::now(path, staged.uid, Some(staged.tenure), reason);
                let kept = self.lost.keep_name(&*self.disk, stage.displaced(&name), &about);
                *save = Self::kept(staged, path, kept);
                match error.kind() {
                    io::ErrorKind::AlreadyExists => Err(SaveError::Exists),
                    _ => Err(SaveError::Disk(error)),
                }
            }
            Err(PublishError::Disk(error)) => {
                *save = self.keep(staged, path, LostReason::NotNamed);
                Err(SaveError::Disk(error))
            }
        }
    }

    /// Logs that a file is about to be published.
    pub(super) fn log_publish(
        &self,
        file: &D::File,
        to: Place<'_, D::Dir>,
        path: &OsStr,
    ) -> Result<(), SaveError> {
        let Some(barrier) = &self.barrier else { return Ok(()) };
        let after = self.disk.stat_file(file).map_err(SaveError::Disk)?;
        let before = self.disk.stat(to).ok().as_ref().and_then(stamp_of_file);
        barrier.begin_change(path, before, stamp_of_file(&after)).map_err(SaveError::Disk)
    }

    pub(super) fn log_published(&self, file: &D::File, path: &OsStr) {
        if let Some(barrier) = &self.barrier
            && let Ok(found) = self.disk.stat_file(file)
        {
            barrier.end_change(path, stamp_of_file(&found));
        }
    }

    /// Prepares the first change of a file in place in this tenure. On shared storage the next
    /// tenure must know the file, so that a late write does not reach it.
    pub(crate) fn name_in_place(&self, pass: &Pass<'_>, path: &OsStr) -> Result<(), SaveError> {
        if !self.is_shared_storage {
            return Ok(());
        }
        let Some(stage) = self.stage_of(pass) else {
            return Err(SaveError::Closed(Closed::TenureOver));
        };
        let parent = self.disk.open_parent(&self.dirs.folder, path);
        let found = parent.and_then(|(dir, name)| self.disk.stat(Place::new(&dir, &name)));
        // A file without a name is not in the folder any more: nobody reads a late write to it.
        if found.is_ok_and(|found| found.is_file && found.links > 1) {
            return Err(SaveError::Linked);
        }
        stage.name_in_place(&*self.disk, path).map_err(|error| match error {
            PublishError::Disk(error) | PublishError::Stays { error, .. } => SaveError::Disk(error),
            PublishError::Fenced { .. } => {
                self.is_fenced.store(true, Ordering::Release);
                SaveError::Closed(Closed::TenureOver)
            }
        })
    }
}

/// The delay before a guard checks again whether programs use the folder in a way that passes no
/// gate.
pub(in crate::guard) const CHECK_AGAIN: Span = Span::from_secs(1);

/// Tells whether programs use the folder in a way that passes no gate.
pub(crate) type IsUsed = Arc<dyn Fn() -> bool + Send + Sync>;

/// When the guard checks whether programs use the folder in a way that passes no gate.
#[derive(Default)]
pub(crate) struct HiddenUse {
    pub(in crate::guard) is_used: OnceLock<IsUsed>,
    /// The time of the next check; `Time::NEVER` during a check.
    pub(in crate::guard) next: Mutex<Time>,
}

impl HiddenUse {
    /// Returns when the guard may look next.
    pub(in crate::guard) fn next_check(&self) -> Time {
        *self.next.lock()
    }
}

impl<D: Disk> FolderGuard<D> {
    /// Records acts in this audit log.
    pub(crate) fn audited(mut self, audit: AuditLog) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Records an act in the audit log.
    pub(crate) fn audit(&self, act: &GuardAct<'_>) {
        if let Some(audit) = &self.audit {
            audit.note(act);
        }
    }
}

impl<D: Disk> Tenures<D> {
    /// Records an act of a tenure in the audit log.
    pub(in crate::guard) fn audit(&self, act: AuditedAct, tenure: TenureId, reason: &str) {
        let (target, token) = (self.lock.name().as_str(), Some(tenure.token));
        let session = self.lock.held_session();
        self.guard.audit(&GuardAct { act, target, token, session, reason });
    }

    /// Records that a tenure has begun after the lease of the last one had expired, once for each
    /// tenure that has expired.
    pub(in crate::guard) fn audit_expiry(&self, tenure: TenureId, last: &PreviousTenure) {
        let is_new = self.steps.lock().expired.replace(last.token) != Some(last.token);
        if last.end == HandoverEnd::Expired && is_new {
            let why = format!("the lease of {} (token {}) expired", last.client, last.token);
            self.audit(AuditedAct::AcquireAfterExpiry, tenure, &why);
        }
    }
}
