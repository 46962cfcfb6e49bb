//! Changes wait until the lock service has a handover that announces them: a machine that takes the
//! folder over then knows that the last markers do not name everything.

use super::folder_view::{FolderView, MayWait, errno};
use crate::base::said;
use crate::guard::disk::linux_disk::{stat, stat_in};
use crate::guard::disk::operations::FileStat;
use crate::guard::stage::staged_file::SaveState;
use crate::guard::tenures::wishes::Denied;
use crate::guard::view::parts::open_file::KernelWait;
use crate::guard::view::parts::open_file::OpenFile;
use crate::time::Span;
use kernel::file_system::Done;
use kernel::file_system::{Errno, Requester};
use kernel::handles::Pool;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering;

/// How long a change waits at most until it is announced.
const ANNOUNCE_PATIENCE: Span = Span::from_secs(10);
/// How long it waits if a directory is locked in the kernel meanwhile.
const BRIEF_PATIENCE: Span = Span::from_secs(1);

impl MayWait {
    /// Returns how long a change waits for the lock service.
    const fn patience(self) -> Span {
        match self {
            Self::Long => ANNOUNCE_PATIENCE,
            Self::Briefly => BRIEF_PATIENCE,
        }
    }
}

impl FolderView {
    /// Waits until the lock service has a handover that announces changes.
    pub(super) async fn announce(
        &self,
        who: Requester,
        path: &Path,
        may_wait: MayWait,
    ) -> Done<()> {
        if let Err(full) = self.shares.room(Pool::Threads, who.uid) {
            return Err(self.say(who, path, Errno::ENFILE, &full));
        }
        let (wait, announced) = KernelWait::new();
        if who.pid != 0 {
            self.interrupts.watch(self.numbers.next(), who.pid, wait.clone());
        }
        self.tenures.announced(may_wait.patience(), Box::new(move |answer| wait.keep(answer)));
        match announced.await {
            None => Err(Errno::EINTR),
            Some(Ok(())) => Ok(()),
            Some(Err(Denied { sentence })) => Err(self.say(who, path, Errno::EROFS, &sentence)),
        }
    }

    /// Waits until the lock service has said that the lock is still held, if this machine has slept
    /// during the tenure.
    pub(super) async fn after_jump(
        &self,
        who: Requester,
        path: &Path,
        may_wait: MayWait,
    ) -> Done<()> {
        let gate = self.guard.gate();
        if gate.tenure().is_none() || !gate.has_jumped() {
            return Ok(());
        }
        let (wait, answered) = KernelWait::new();
        if who.pid != 0 {
            self.interrupts.watch(self.numbers.next(), who.pid, wait.clone());
        }
        self.tenures.after_jump(may_wait.patience(), move |answer| wait.keep(answer));
        match answered.await {
            None => Err(Errno::EINTR),
            Some(Ok(())) => Ok(()),
            // The gate says whether the tenure is over.
            Some(Err(_)) if gate.tenure().is_none() => Ok(()),
            Some(Err(Denied { sentence })) => Err(self.say(who, path, Errno::EROFS, &sentence)),
        }
    }

    /// Whether a change of an open file has to be announced first. `publishes`: the change is that
    /// the file appears in the folder. New content of one that is not there yet is no change.
    pub(super) fn is_unannounced(&self, open: &OpenFile, publishes: bool) -> bool {
        if !open.is_for_writing() || !self.guard.gate().must_announce() {
            return false;
        }
        let is_current = self.guard.gate().tenure().map(|tenure| tenure.id) == open.tenure();
        let state = open.saving().map(|saving| saving.staged.save_state());
        is_current && (state == Some(SaveState::Unpublished)) == publishes
    }

    /// Waits until a change of an open file is announced.
    pub(super) async fn announce_open(
        &self,
        who: Requester,
        open: &OpenFile,
        publishes: bool,
    ) -> Done<()> {
        let path = || self.nodes.path(open.ino).unwrap_or_default();
        if open.tenure().is_some() && self.guard.gate().has_jumped() {
            self.after_jump(who, &path(), MayWait::Long).await?;
        }
        if !self.is_unannounced(open, publishes) {
            return Ok(());
        }
        let path = path();
        self.announce(who, &path, MayWait::Long).await
    }

    /// Calls `then` once a change is announced, or can't be. No program waits for it.
    pub(super) fn after_announcement(&self, then: impl FnOnce(&Self) + Send + 'static) {
        let Some(own) = self.own.upgrade() else { return then(self) };
        self.tenures.announced(ANNOUNCE_PATIENCE, Box::new(move |_| then(&own)));
    }

    /// Fails if a change is not announced. The caller has passed the gate.
    pub(super) fn check_announced(&self, who: Requester, path: &Path) -> Done<()> {
        if self.guard.gate().must_announce() { Err(self.unannounced(who, path)) } else { Ok(()) }
    }

    pub(super) fn unannounced(&self, who: Requester, path: &Path) -> Errno {
        let why = "the lock service was told meanwhile that nothing changes any more; try again";
        self.say(who, path, Errno::EROFS, why)
    }

    /// Logs that a file is about to be changed in place by an open file, once for each marker.
    pub(super) fn log_in_place(&self, who: Requester, open: &OpenFile, path: &Path) -> Done<()> {
        let (Some(barrier), Some(file)) = (self.guard.barrier(), open.file()) else {
            return Ok(());
        };
        if open.logged.load(Ordering::Acquire) == barrier.epoch() {
            return Ok(());
        }
        let epoch = self.log_in_place_of(who, path, file)?;
        open.logged.store(epoch, Ordering::Release);
        Ok(())
    }

    /// Logs that a file is about to be changed in place. Returns the number of the list that names
    /// the change.
    pub(super) fn log_in_place_of(
        &self,
        who: Requester,
        path: &Path,
        file: &impl AsFd,
    ) -> Done<u64> {
        let Some(barrier) = self.guard.barrier() else { return Ok(0) };
        self.check_announced(who, path)?;
        let found = stat(file.as_fd());
        let logged = found.and_then(|found| {
            let found = stat_in(&found);
            barrier.begin_in_place(path.as_os_str(), &found)
        });
        logged.map_err(|error| {
            self.say(
                who,
                path,
                errno(&error),
                &format!("the change can't be logged: {}", said(&error)),
            )
        })
    }

    /// Makes open files that are changed in place log their next change under the names that they
    /// have now.
    pub(super) fn names_changed(&self) {
        if let Some(barrier) = self.guard.barrier() {
            barrier.begin_epoch();
        }
    }

    /// Logs how changes in place have left a file.
    pub(super) fn log_left(&self, open: &OpenFile, found: &FileStat) {
        if let Some(barrier) = self.guard.barrier()
            && let Ok(path) = self.nodes.path(open.ino)
        {
            barrier.end_in_place(path.as_os_str(), found);
        }
    }
}
